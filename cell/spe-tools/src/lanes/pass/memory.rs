//! Memory that is accessed as elements of another size: through pointers' casts, by members of
//! unions, and by copies.

use super::{CALL_PIECES_MAX, Pass};
use crate::lanes::shared::{Access, Shared};
use crate::lanes::unions::{is_addressed, value_end};
use crate::lanes::{Lanes, is_typeof, operand, types::Shape};

/// In the place of what an address points to that only the compiler knows.
pub(super) const UNKNOWN: Shape = Shape {
    width: 16,
    vector: true,
};

/// A pointer's cast: places of its first parenthesis, of the operand behind all casts, and of the
/// piece behind it; what the operand points to, and what the pointer does.
#[derive(Debug)]
struct Cast {
    open: usize,
    start: usize,
    end: usize,
    from: Shape,
    to: Shape,
    /// The type that the pointer is to point to.
    pointee: String,
}

impl Pass<'_> {
    /// `(S *) operand`, for the bytes of a vector.
    pub(super) fn pointer_cast(&mut self, open: usize, close: usize) {
        let (text, types) = (self.text, self.types);
        if self.lanes == Lanes::Off {
            return;
        }
        let Some((to, pointee)) = self.pointee(open, close) else {
            return;
        };
        let named = open > 0 && text.is_word(open - 1) && text.at(open - 1) != b"return";
        if named || !operand::begins(text, close + 1) {
            return;
        }
        let Some(end) = operand::end(text, types, close + 1) else {
            return;
        };
        // A cast to another pointer before this one changes nothing.
        let mut start = close + 1;
        while let Some(shut) = text.partner(start).filter(|_| text.at(start) == b"(") {
            if text.at(shut - 1) != b"*" || !types.is_type(text, start + 1, shut) {
                break;
            }
            start = shut + 1;
        }
        if to.vector && to != UNKNOWN {
            self.quadword(open, start, end);
        }
        let mut name = start;
        // The variable's own name tells what the address points at.
        while matches!(text.at(name), b"&" | b"(") {
            name += 1;
        }
        let unknown = types.is_ambiguous(text.at(name)) && text.at(start) == b"&";
        let from = types
            .variable(text.at(name))
            .or_else(|| types.behind_void(text.at(name)))
            // Of several variables of the name the compiler knows the right one.
            .or_else(|| unknown.then_some(UNKNOWN));
        let differs = |from: &Shape| from.width != to.width || to == UNKNOWN;
        let Some(from) = from.filter(differs) else {
            return;
        };
        // Elements of one size are in one order, whatever they are called.
        let cast = Cast {
            open,
            start,
            end,
            from,
            to,
            pointee,
        };
        self.look(&cast);
    }

    /// Target of the pointer type between parentheses, and its name.
    pub(super) fn pointee(&self, open: usize, close: usize) -> Option<(Shape, String)> {
        let (text, types) = (self.text, self.types);
        if close == open + 2 {
            let shape = types.pointed(text.at(open + 1))?;
            let name = text.span(open + 1, close);
            return Some((shape, format!("__typeof__(*({name})0)")));
        }
        // A pointer to pointers looks at addresses, which have one order.
        if text.at(close - 1) != b"*" || text.at(close - 2) == b"*" {
            return None;
        }
        let constant = usize::from(text.at(open + 1) == b"const");
        let (at, first) = (open + 1 + constant, text.at(open + 1 + constant));
        let named = is_typeof(first) && text.partner(at + 1) == Some(close - 2);
        let parameter = close == at + 2 && self.parameters.contains(first);
        let known = || types.shape(text, open + 1, close - 1);
        // The compiler knows which one it is.
        let shape = (named || parameter).then_some(UNKNOWN).or_else(known)?;
        Some((shape, text.span(at, close - 1)))
    }

    /// A cast to a pointer to elements of another size than those behind the operand.
    fn look(&mut self, cast: &Cast) {
        let text = self.text;
        let Cast {
            open,
            end,
            from,
            to,
            ..
        } = *cast;
        let several = from.vector || to.vector;
        let addressed = text.at(cast.start) == b"&";
        if addressed && from.vector && to.vector && self.view(cast) {
            return;
        }
        if to == UNKNOWN {
            let known = self
                .types
                .variable(text.at(cast.start + usize::from(addressed)));
            if (from == UNKNOWN || known.is_some_and(|known| known.vector)) && !self.warns {
                self.surround(cast, &format!("__lane_same({}, ", cast.pointee));
            }
            return;
        }
        // `T *p = (T *) &v;`: the pointer's indices can be turned at each use, where all uses are
        // indices.
        let declared = self.declared(open, end);
        // Parts of an element have places of their own; wider numbers have none.
        let narrow = addressed && !to.vector && to.width < from.width;
        if narrow && (from.vector || !self.types.asks_for_order) {
            let scalar = cast.pointee.clone();
            let object = text.span(cast.start, end);
            let around =
                open > 0 && text.at(open - 1) == b"(" && text.partner(open - 1) == Some(end);
            if around && text.at(end + 1) == b"[" {
                self.index(end + 1, &scalar, &object);
                return;
            }
            // `*(T *) &v` is element 0.
            if open > 0 && text.at(open - 1) == b"*" && operand::dereferences(text, open - 1) {
                let (star, behind) = (text.start(open - 1), text.end(end - 1));
                self.edits.replace(star, text.end(open - 1), "(");
                let index = format!(")[__lane_index({scalar}, {object}, 0)]");
                self.edits.replace(behind, behind, index);
                return;
            }
            if declared.is_some_and(|pointer| self.indices(pointer, end, &scalar, &object)) {
                return;
            }
        }
        // Numbers looked at through numbers: this machine's order shows where a part is read.
        if !several {
            if narrow
                && !self.types.asks_for_order
                && declared.is_some_and(|at| self.reads(at, end))
            {
                self.refuse_look(open, from, to);
            }
            return;
        }
        // Bytes handed on as such are copied, not looked at, and a buffer has no element size.
        let handed = declared.is_none() && !(addressed && operand::is_read(text, open));
        let bytes = to.width == 1 && !to.vector && (handed || !addressed);
        // Vectors of bytes in an array may be one as well; a variable alone is none.
        let buffer = from.width == 1 && !(from.vector && addressed);
        if self.lanes == Lanes::Auto && (bytes || buffer) {
            return;
        }
        if from != UNKNOWN {
            self.refuse_look(open, from, to);
        } else if !self.warns {
            // The compiler refuses it, or not.
            self.surround(cast, &format!("__lane_known({}, ", to.width));
        }
    }

    /// `p = d` of C for a `void *`, of which the compiler knows nothing.
    pub(super) fn assigned(&mut self, equals: usize) {
        let (text, types) = (self.text, self.types);
        let ends = matches!(text.at(equals + 2), b";" | b",");
        let to = equals.checked_sub(1).map(|name| text.at(name));
        let to = to.and_then(|name| types.variable(name));
        let (Some(to), Some(from)) = (to, self.behind_void(equals + 1)) else {
            return;
        };
        if ends && !self.plus && self.several && self.is_other(from, to) {
            self.refuse_look(equals, from, to);
        }
    }

    /// Common target of all values of the `void *` at `name`.
    pub(super) fn behind_void(&self, name: usize) -> Option<Shape> {
        let text = self.text;
        let shape = self.types.behind_void(text.at(name))?;
        // Another function's variable of the name may be one of vectors.
        let pointer = |at: &usize| text.at(*at) == text.at(name) && text.at(*at - 1) == b"*";
        let declared = (2..name).rev().find(pointer)?;
        (text.at(declared - 2) == b"void").then_some(shape)
    }

    /// True where a pointer to vectors is to point to elements of another size; a buffer has none.
    pub(super) fn is_other(&self, from: Shape, to: Shape) -> bool {
        let buffer = from.width == 1 && self.lanes == Lanes::Auto;
        to.vector && to != UNKNOWN && to.width != from.width && !buffer
    }

    /// Puts a macro around a cast's operand.
    fn surround(&mut self, cast: &Cast, call: &str) {
        let (start, behind) = (self.text.start(cast.start), self.text.end(cast.end - 1));
        self.edits.replace(start, start, call);
        self.edits.replace(behind, behind, ")");
    }

    pub(super) fn refuse_look(&mut self, place: usize, from: Shape, to: Shape) {
        let reason = format!(
            "elements of size {} are read as elements of size {} in memory",
            from.width, to.width
        );
        let instead = if from.vector || to.vector {
            "cast the vector itself, or its element of an array"
        } else {
            "index the pointer only, or shift the number"
        };
        self.refuse(place, &reason, instead);
    }

    /// `(T *) operand` for a vector T: the SPU and AltiVec ignore the last four bits of an address.
    /// The compiler takes them for zeros, and reads parts of a quadword by shorter loads.
    fn quadword(&mut self, open: usize, start: usize, end: usize) {
        let text = self.text;
        let loaded = open > 1
            && match text.at(open - 1) {
                b"*" => operand::dereferences(text, open - 1),
                b"(" => text.partner(open - 1) == Some(end) && text.at(end + 1) == b"[",
                _ => false,
            };
        // A pointer whose last bits the source itself reads keeps them.
        let masked = loaded || !self.addresses;
        // A vector's own address is aligned by its type, and a mask is no constant.
        let own = text.at(start) == b"&" && {
            let name = text.at(start + 1);
            self.types.is_vector(name) || self.types.is_ambiguous(name)
        };
        if masked && !own && !text.is_constant(open) {
            let before = text.start(open);
            self.edits.replace(before, before, "__lane_at(");
            let behind = text.end(end - 1);
            self.edits.replace(behind, behind, ")");
        }
    }

    /// `*p` and `p[i]` of a pointer to vectors that keeps its last bits.
    pub(super) fn through(&mut self, place: usize) {
        let text = self.text;
        // A pointer in a structure begins with the structure.
        let Some(first) = operand::first(text, place) else {
            return;
        };
        let before = first
            .checked_sub(1)
            .map_or(&b""[..], |before| text.at(before));
        let (start, end) = match (before, text.at(place + 1)) {
            (b"*", _) if operand::dereferences(text, first - 1) => {
                let declared = self.pointers.stars.contains(&(first - 1));
                if declared || self.types.is_declarator(text, first - 1) {
                    return;
                }
                let Some(end) = operand::end(text, self.types, first) else {
                    return;
                };
                (("__lane_at("), end)
            }
            (_, b"[") => match text.partner(place + 1) {
                Some(close) => ("(*__lane_at(&", close + 1),
                None => return,
            },
            _ => return,
        };
        let at = text.start(first);
        self.edits.replace(at, at, start);
        let behind = text.end(end - 1);
        let shut = if start.starts_with('(') { "))" } else { ")" };
        self.edits.replace(behind, behind, shut);
    }

    /// `*(T *) &v` for a vector v: a cast of it, unless something is stored there.
    fn view(&mut self, cast: &Cast) -> bool {
        let text = self.text;
        let (mut from, mut to) = (cast.open, cast.end);
        while from > 0 && text.at(from - 1) == b"(" && text.partner(from - 1) == Some(to) {
            from -= 1;
            to += 1;
        }
        let loaded = from > 0 && text.at(from - 1) == b"*";
        // A store is seen only behind all parentheses: `(*(T *) &v) = …`.
        while text.at(to) == b")" {
            to += 1;
        }
        let stored = text.at(to) == b"=" && text.at(to + 1) != b"=";
        if !loaded || stored || text.at(to) == b"[" {
            return false;
        }
        let name = &cast.pointee;
        let start = text.start(cast.open);
        let view = if cast.from == UNKNOWN || cast.to == UNKNOWN {
            "__lane_look"
        } else {
            "__lane_view"
        };
        // Casts before it would hide the vector's type.
        let behind = text.end(cast.start - 1);
        self.edits
            .replace(start, behind, format!("&{view}({name}, "));
        let behind = text.end(cast.end - 1);
        self.edits.replace(behind, behind, ")");
        true
    }

    /// Turns the index in the brackets that open at `place`.
    fn index(&mut self, place: usize, scalar: &str, vector: &str) {
        let text = self.text;
        let Some(close) = text.partner(place) else {
            return;
        };
        let start = text.end(place);
        self.edits
            .replace(start, start, format!("__lane_index({scalar}, {vector}, "));
        let behind = text.start(close);
        self.edits.replace(behind, behind, ")");
    }

    /// The variable that a cast alone initializes.
    fn declared(&self, open: usize, end: usize) -> Option<usize> {
        let text = self.text;
        let whole = open >= 2 && text.at(open - 1) == b"=" && matches!(text.at(end), b";" | b",");
        (whole && text.is_word(open - 2)).then(|| open - 2)
    }

    /// Turns each index of the variable at `name` until its block ends; false, and nothing done,
    /// where it is used in another way.
    fn indices(&mut self, name: usize, from: usize, scalar: &str, vector: &str) -> bool {
        let text = self.text;
        let uses = self.uses(name, from);
        // Handed on, moved or compared: what is read through it is not known, so no index may be
        // turned.
        if uses.iter().any(|place| text.at(place + 1) != b"[") {
            return false;
        }
        for place in uses {
            self.index(place + 1, scalar, vector);
        }
        true
    }

    /// True where the variable at `name` is read through until its block ends.
    fn reads(&self, name: usize, from: usize) -> bool {
        let text = self.text;
        self.uses(name, from).into_iter().any(|place| {
            let before = place.checked_sub(1).map_or(&b""[..], |at| text.at(at));
            before == b"*" || text.at(place + 1) == b"["
        })
    }

    /// The places that name the variable at `name` from a place on, until its block ends.
    fn uses(&self, name: usize, from: usize) -> Vec<usize> {
        let text = self.text;
        let mut depth = 0_usize;
        let mut uses = Vec::new();
        for place in from..text.len() {
            match text.at(place) {
                b"{" => depth += 1,
                b"}" if depth == 0 => break,
                b"}" => depth -= 1,
                word if word == text.at(name) && !self.is_member(place) => uses.push(place),
                _ => {}
            }
        }
        uses
    }

    fn is_member(&self, place: usize) -> bool {
        place > 0 && matches!(self.text.at(place - 1), b"." | b">")
    }
}

// Members of unions.
impl Pass<'_> {
    /// `.name` or `->name`, by its dot: a member of a union that shares its memory.
    pub(super) fn member(&mut self, dot: usize, name: usize) {
        let text = self.text;
        if let Some(element) = self.unions.elements.get(&name) {
            let call = format!("__lane_shared({element}, 16, ");
            self.turn_index(name + 1, &call);
            return;
        }
        let Some(shared) = self.members.of(text.at(name)) else {
            return;
        };
        if self.united.contains(&name) {
            return;
        }
        let Some(first) = operand::first(text, name) else {
            let listed = dot > 0 && matches!(text.at(dot - 1), b"{" | b",");
            let reason = "lists values of a member that shares memory with other elements";
            let instead = "assign the member behind the declaration";
            if listed && !shared.ambiguous {
                self.refuse(name, reason, instead);
            } else if !listed {
                self.refuse_member(name, &shared);
            }
            return;
        };
        let sized = first > 0 && text.at(first - 1) == b"(" && first > 1;
        let before = if sized {
            first - 2
        } else {
            first.saturating_sub(1)
        };
        if matches!(
            text.at(before),
            b"sizeof" | b"typeof" | b"__typeof__" | b"__alignof__"
        ) {
            return;
        }
        let Some(width) = self.width_of(&shared, first, dot) else {
            self.refuse_member(name, &shared);
            return;
        };
        if is_addressed(text, first) && self.takes_address(name, &shared) {
            self.refuse_member(name, &shared);
            return;
        }
        match &shared.access {
            Access::Elements(element) if text.at(name + 1) == b"[" => {
                self.turn_index(name + 1, &format!("__lane_shared({element}, {width}, "));
            }
            Access::Elements(element) => {
                if !self.halves(name, element, &width) {
                    self.refuse_member(name, &shared);
                }
            }
            Access::Vector(own) => self.shared_vector(first, name, *own, &width, &shared),
            Access::Fields(all) => match all.get(text.at(name + 2)) {
                Some(other) if text.at(name + 1) == b"." && !shared.ambiguous => {
                    self.rename(name + 2, other);
                }
                _ => self.refuse_member(name, &shared),
            },
            Access::Field(other) if !shared.ambiguous => self.rename(name, other),
            Access::Field(_) | Access::Refused => self.refuse_member(name, &shared),
        }
    }

    /// The order of a member's union as C: 0 where the object is another type's.
    fn width_of(&self, shared: &Shared, first: usize, dot: usize) -> Option<String> {
        if !shared.ambiguous {
            return Some(shared.width.clone());
        }
        let star = if self.text.at(dot) == b"." { "" } else { "*" };
        let object = self.text.span(first, dot);
        let of = |(union, width): &(String, String)| {
            format!("__lane_of({union}, {star}({object}), {width})")
        };
        let all = shared.unions.iter().map(of).collect::<Vec<_>>();
        (!all.is_empty()).then(|| all.join(" + "))
    }

    /// True where the address of a member is more than one of a field.
    fn takes_address(&self, name: usize, shared: &Shared) -> bool {
        let fields = matches!(shared.access, Access::Fields(_) | Access::Field(_));
        !(fields && (self.text.at(name + 1) == b"." || matches!(shared.access, Access::Field(_))))
    }

    /// A vector of a union whose memory has another element's order.
    fn shared_vector(
        &mut self,
        first: usize,
        name: usize,
        own: usize,
        width: &str,
        shared: &Shared,
    ) {
        let text = self.text;
        let behind = name + 1;
        match (text.at(behind), text.at(behind + 1)) {
            (b"=", next) if next != b"=" => {
                let end = value_end(text, behind + 1);
                let (start, last) = (text.start(first), text.end(end - 1));
                self.edits
                    .replace(start, start, format!("__lane_put_as({width}, "));
                self.edits
                    .replace(text.start(behind), text.end(behind), ",");
                self.edits.replace(last, last, ")");
            }
            (b"[", _) => {
                let narrower = shared.width.parse::<usize>().is_ok_and(|whole| own < whole);
                let number = match own {
                    1 => "char",
                    2 => "short",
                    _ => "int",
                };
                if narrower {
                    self.turn_index(behind, &format!("__lane_shared({number}, {width}, "));
                } else {
                    self.refuse_member(name, shared);
                }
            }
            (b"." | b"-", b">" | b"-") | (b".", _) | (b"+", b"+") => {
                self.refuse_member(name, shared);
            }
            (b"+" | b"-" | b"*" | b"/" | b"%" | b"&" | b"|" | b"^", b"=") => {
                self.refuse_member(name, shared);
            }
            (b"<", b"<") | (b">", b">") if text.at(behind + 2) == b"=" => {
                self.refuse_member(name, shared);
            }
            _ => {
                let (start, end) = (text.start(first), text.end(name));
                self.edits
                    .replace(start, start, format!("__lane_held({width}, "));
                self.edits.replace(end, end, ")");
            }
        }
    }

    fn refuse_member(&mut self, name: usize, shared: &Shared) {
        let member = String::from_utf8_lossy(self.text.at(name)).into_owned();
        let order = match shared.width.parse::<usize>() {
            Ok(width) => format!("elements of size {width}"),
            Err(_) => "a wider number".into(),
        };
        let more = match (&shared.access, shared.ambiguous) {
            (_, true) => "give it a name that no other type's member has",
            (Access::Elements(_), _) => "access its elements by an index",
            (Access::Vector(_), _) => "read or assign it whole, by the union's member",
            (Access::Fields(_) | Access::Field(_), _) => "access its fields by their names",
            (Access::Refused, _) => "cast the vector to one with elements of the wanted size",
        };
        let reason =
            format!("`{member}` shares memory with {order}, whose bytes have other places");
        self.refuse(name, &reason, more);
    }

    fn rename(&mut self, piece: usize, other: &[u8]) {
        let (start, end) = (self.text.start(piece), self.text.end(piece));
        self.edits
            .replace(start, end, String::from_utf8_lossy(other));
    }

    /// Puts a macro around the index in the brackets that open at `place`.
    fn turn_index(&mut self, place: usize, call: &str) {
        let text = self.text;
        let Some(close) = text.partner(place) else {
            return;
        };
        let (start, behind) = (text.end(place), text.start(close));
        self.edits.replace(start, start, call);
        self.edits.replace(behind, behind, ")");
    }

    /// A union's array that is written whole into a mailbox, whose words programs send in the order
    /// of the halves of an address there; false, and nothing done, for other uses of the array.
    fn halves(&mut self, name: usize, element: &str, width: &str) -> bool {
        let text = self.text;
        let mut start = name;
        // Back to the start of the argument, `a[i].u.words` as a whole.
        while start > 0 && !matches!(text.at(start - 1), b"," | b"(" | b";" | b"{" | b"}") {
            start -= 1;
            if matches!(text.at(start), b")" | b"]") {
                start = text.partner(start).unwrap_or(start);
            }
        }
        // Bounded, so that a source of one long initializer is not walked again for each of its
        // members.
        let is_second = (0..start)
            .rev()
            .take(CALL_PIECES_MAX)
            .find(|at| text.at(*at) == b"(");
        let call = is_second.filter(|open| {
            *open > 0 && text.at(open - 1) == b"spe_in_mbox_write" && text.at(name + 1) == b","
        });
        if call.is_some() {
            let begin = format!("__lane_words({element}, {width}, ");
            self.edits
                .replace(text.start(start), text.start(start), begin);
            self.edits.replace(text.end(name), text.end(name), ")");
        }
        call.is_some()
    }

    /// A list of values for a union whose first member's elements have other places.
    pub(super) fn listed(&mut self, name: usize) {
        let text = self.text;
        if !self.members.is_listed(text.at(name)) {
            return;
        }
        let mut at = name + usize::from(!matches!(text.at(name + 1), b"=" | b"["));
        // A variable is declared behind its type's body; elsewhere the name is another's.
        let own = at > name || matches!(text.at(name.wrapping_sub(1)), b"}" | b")");
        while text.at(at + 1) == b"[" {
            at = text.partner(at + 1).unwrap_or(at + 1);
        }
        let list = text.at(at + 1) == b"=" && text.at(at + 2) == b"{";
        if own && list && !self.members.is_plain_list(text, at + 2) {
            self.refuse(
                name,
                "a list fills a member that shares memory with other elements",
                "assign the member behind the declaration",
            );
        }
    }
}
