//! The pass: casts, bytes of vectors through pointers, and unions.

mod unions;

use super::types::{Pointers, Types, looks_at_addresses};
use super::unions::Accesses;
use super::{Lanes, constant, operand};
use crate::text::{Edits, Text};

/// One walk over a source.
pub(super) struct Pass<'a> {
    text: &'a Text<'a>,
    types: &'a Types,
    lanes: Lanes,
    /// True where the source reads the last bits of addresses, so that pointers must keep them.
    addresses: bool,
    /// True for C++.
    plus: bool,
    /// Its pointers to vectors, where that is so.
    pointers: Pointers,
    unions: Accesses,
    edits: Edits,
    warnings: Vec<String>,
}

impl<'a> Pass<'a> {
    pub(super) fn new(
        text: &'a Text<'a>,
        types: &'a Types,
        lanes: Lanes,
        unions: Accesses,
    ) -> Self {
        let addresses = looks_at_addresses(text);
        Self {
            text,
            types,
            lanes,
            addresses,
            plus: text.is_plus(),
            pointers: if addresses {
                Pointers::read(text, types)
            } else {
                Pointers::default()
            },
            unions,
            edits: Edits::default(),
            warnings: Vec::new(),
        }
    }

    pub(super) fn finish(self) -> (Edits, Vec<String>) {
        (self.edits, self.warnings)
    }

    pub(super) fn run(&mut self) {
        // First: edits of the walk below lie within these, and edits at one place keep the order in
        // which they came.
        self.united_vectors();
        let mut place = 0;
        while place < self.text.len() {
            if self.text.is_users(place) {
                // A literal of numbers is replaced whole: nothing within it is looked at again.
                place = self.visit(place).unwrap_or(place + 1);
            } else {
                place += 1;
            }
        }
    }

    /// Treats the construct at `place`; returns the next place where that is not the one behind it.
    fn visit(&mut self, place: usize) -> Option<usize> {
        match self.text.at(place) {
            b"(" => {
                let close = self.text.partner(place)?;
                if let Some(type_at) = self.vector_alone(place + 1, close) {
                    return self.cast(place, type_at, close);
                }
                self.pointer_cast(place, close);
            }
            // A call is no constant, and initializers that the compiler evaluates may have none.
            b"spu_splats" | b"vec_splats" if self.text.is_constant(place) => {
                return self.splat(place);
            }
            // Constants are needed whatever the order of lanes; what follows turns lanes.
            _ if self.lanes == Lanes::Off => {}
            b"reinterpret_cast" | b"static_cast" => self.cast_of_cplusplus(place),
            b"union" => self.united(place),
            word if self.plus && self.types.vector(word).is_some() => self.functional_cast(place),
            word if self.pointers.names.contains(word) => self.through(place),
            b"." => self.member(place, place + 1),
            // `->` is two pieces of this text.
            b"-" if self.text.at(place + 1) == b">" => self.member(place, place + 2),
            _ => {}
        }
        None
    }

    /// The place of a vector's name, where the pieces name that type and nothing more.
    fn vector_alone(&self, from: usize, to: usize) -> Option<usize> {
        let mut found = None;
        for place in from..to {
            let word = self.text.at(place);
            if self.types.vector(word).is_some() && found.is_none() {
                found = Some(place);
            // A second type, a `*` or a number: no cast to one vector.
            } else if !matches!(word, b"const" | b"volatile") {
                return None;
            }
        }
        found
    }

    /// `(T) operand`.
    fn cast(&mut self, open: usize, type_at: usize, close: usize) -> Option<usize> {
        let (text, types) = (self.text, self.types);
        // At the source's start it is as behind a statement.
        let before = open
            .checked_sub(1)
            .map_or(&b";"[..], |before| text.at(before));
        let named = open > 0 && text.is_word(open - 1);
        // `f(T)` is a call or a declaration; behind these words it can only be an expression.
        if named && !matches!(before, b"return" | b"case" | b"else" | b"do") {
            return None;
        }
        if text.at(close + 1) == b"{" && text.is_constant(open) {
            self.literal(open, close);
            return None;
        }
        if !operand::begins(text, close + 1) {
            return None;
        }
        let end = operand::end(text, types, close + 1)?;
        let name = String::from_utf8_lossy(text.at(type_at)).into_owned();
        if text.is_constant(open) {
            let behind = self.cast_of_numbers(open, type_at, end);
            // C++ also computes initializers when the program starts.
            if behind.is_some() || !self.plus {
                return behind;
            }
        }
        if self.lanes == Lanes::Off {
            return None;
        }
        if let Some(load) = operand::quadword_load(text, close + 1, end) {
            // The cast's type is that of the memory.
            self.edits.replace(
                text.start(load),
                text.end(load),
                format!("__si_raw_{}", String::from_utf8_lossy(&text.at(load)[3..])),
            );
            return None;
        }
        // What lies in memory is in memory's order already, whichever type looks at it; only
        // registers are turned.
        let call = if self.is_memory(close + 1, end) {
            "__lane_loaded"
        } else if self.is_stored(open, end) {
            "__lane_stored"
        } else {
            "__lane_cast"
        };
        let start = text.start(open);
        // `return(T)x` has no blank between its words.
        let joined = named && text.end(open - 1) == start;
        let blank = if joined { " " } else { "" };
        self.edits
            .replace(start, text.end(close), format!("{blank}{call}({name}, "));
        let behind = text.end(end - 1);
        self.edits.replace(behind, behind, ")");
        None
    }

    /// `(T) operand` in an initializer that the compiler must evaluate.
    fn cast_of_numbers(&mut self, open: usize, type_at: usize, end: usize) -> Option<usize> {
        let (text, word) = (self.text, self.text.at(type_at));
        let (to, base) = (self.types.vector(word)?, self.types.base(word)?);
        let operand = text.partner(open)? + 1;
        let mut literal = constant::cast(text, self.types, &base, to, operand, end)?;
        // As a whole element it needs no type, and must not have one: see `literal`.
        let (from, to) = self.element(open, end).unwrap_or_else(|| {
            literal.insert_str(0, &format!("({})", String::from_utf8_lossy(word)));
            (open, end)
        });
        self.edits
            .replace(text.start(from), text.end(to - 1), literal);
        Some(to)
    }

    /// `spu_splats(number)` as an initializer of a vector that the compiler must evaluate.
    fn splat(&mut self, place: usize) -> Option<usize> {
        let text = self.text;
        let end = text.partner(place + 1)? + 1;
        // Within a larger expression the type is not the declaration's.
        let (from, to) = self.element(place, end)?;
        let mut start = from;
        // Back to the declaration's start, over what braces and parentheses enclose.
        while start > 0 && text.at(start - 1) != b";" {
            // A brace of an element before is no end of a declaration.
            let behind = matches!(text.at(start), b"," | b"}");
            start = match (text.at(start - 1), text.partner(start - 1)) {
                (b"}", _) if !behind => break,
                (b")" | b"]" | b"}", Some(open)) => open,
                _ => start - 1,
            };
        }
        // The vector's name in front of the variable gives the shape that the call's result has.
        let declared = (start..from).find(|word| self.types.vector(text.at(*word)).is_some())?;
        let shape = self.types.vector(text.at(declared))?;
        let name = self.types.base(text.at(declared))?;
        let literal = constant::cast(text, self.types, &name, shape, place, end)?;
        self.edits
            .replace(text.start(from), text.end(to - 1), literal);
        Some(to)
    }

    /// `(T){…}` in an initializer that the compiler must evaluate. Where it is the whole of an
    /// element, only the braces stay, since the compiler takes no literal for a constant object.
    fn literal(&mut self, open: usize, close: usize) {
        let text = self.text;
        let Some(end) = text.partner(close + 1) else {
            return;
        };
        if let Some((from, to)) = self.element(open, end + 1) {
            self.edits.replace(text.start(from), text.end(close), "");
            self.edits.replace(text.end(end), text.end(to - 1), "");
        }
    }

    /// The pieces of an initializer's element, parentheses included, whose expression stands from
    /// `from` to before `to`; nothing where that is a part of it.
    fn element(&self, from: usize, to: usize) -> Option<(usize, usize)> {
        let text = self.text;
        let (mut from, mut to) = (from, to);
        // Parentheses around it are no part of the expression.
        while from > 0 && text.at(from - 1) == b"(" && text.partner(from - 1) == Some(to) {
            from -= 1;
            to += 1;
        }
        let before = from > 0 && matches!(text.at(from - 1), b"=" | b"," | b"{");
        (before && matches!(text.at(to), b"," | b";" | b"}")).then_some((from, to))
    }

    /// An operand that is an element of memory, where such casts are no casts of a register.
    fn is_memory(&self, start: usize, end: usize) -> bool {
        let called = (start..end).any(|place| self.text.at(place) == b"(");
        let element = self.text.at(end - 1) == b"]" || self.text.at(start) == b"*";
        self.lanes == Lanes::Auto && element && !called
    }

    /// A cast that is all that is stored into an element of memory.
    fn is_stored(&self, open: usize, end: usize) -> bool {
        let text = self.text;
        // `a[i] = (T) x;` and no more: a part of an expression is used as a register.
        let whole = open >= 2 && text.at(open - 1) == b"=" && text.at(end) == b";";
        if self.lanes != Lanes::Auto || !whole {
            return false;
        }
        let mut start = open - 1;
        while start > 0 && !matches!(text.at(start - 1), b";" | b"{" | b"}" | b")") {
            start -= 1;
        }
        text.at(open - 2) == b"]" || text.at(start) == b"*"
    }

    /// `reinterpret_cast<T>(operand)`; of a constant reference to a vector the value is meant.
    fn cast_of_cplusplus(&mut self, place: usize) {
        let text = self.text;
        let constant = usize::from(text.at(place + 2) == b"const");
        let name = place + 2 + constant;
        let reference = usize::from(text.at(name + 1) == b"&");
        let shut = name + 1 + reference;
        let Some(to) = self.types.vector(text.at(name)) else {
            return;
        };
        let close = text.partner(shut + 1);
        let (Some(close), b"<", b">") = (close, text.at(place + 1), text.at(shut)) else {
            return;
        };
        let from = self.types.variable(text.at(shut + 2));
        let alone = from.is_some_and(|from| from.vector && from.width != to.width);
        // A value has no address.
        let addressed = place > 0 && text.at(place - 1) == b"&";
        let alone = alone && close == shut + 3 && !addressed;
        if reference == 0 || (constant == 1 && alone) {
            self.call_cast(place, shut, name, close);
        } else if from.is_some_and(|from| from.width != to.width) {
            self.warn(place, "a reference to another vector keeps memory's order");
        }
    }

    /// `T(operand)` of C++, where no declaration can stand.
    fn functional_cast(&mut self, place: usize) {
        let text = self.text;
        let before = place
            .checked_sub(1)
            .map_or(&b";"[..], |before| text.at(before));
        let cast = || {
            let open = text.partner(place - 1)?;
            self.vector_alone(open + 1, place - 1)
        };
        let expected = BEFORE_VALUES.contains(&before) || (before == b")" && cast().is_some());
        let open = place + 1;
        let Some(close) = text.partner(open).filter(|_| text.at(open) == b"(") else {
            return;
        };
        let declares = self.types.is_type(text, open + 1, close)
            || (before == b"{" && text.at(close + 1) == b";")
            || (matches!(text.at(open + 1), b"*" | b"&")
                && matches!(text.at(close + 1), b"(" | b"["));
        // `a::T(x)`, and `using f = T(x)`.
        let scoped = place > 1 && before == b":" && text.at(place - 2) == b":";
        let scoped = scoped || (place > 2 && text.at(place - 3) == b"using");
        if expected && !declares && !scoped && operand::begins(text, open + 1) {
            self.call_cast(place, place, place, close);
        }
    }

    /// Puts the macro of a cast in the place of the pieces from `from` to `to`, in front of the
    /// parentheses that `close` ends.
    fn call_cast(&mut self, from: usize, to: usize, name: usize, close: usize) {
        let text = self.text;
        let name = String::from_utf8_lossy(text.at(name)).into_owned();
        let (start, end) = (text.start(from), text.end(to));
        self.edits
            .replace(start, end, format!("__lane_cast({name}, "));
        let behind = text.end(close);
        self.edits.replace(behind, behind, ")");
    }

    /// `(S *) operand`, for the bytes of a vector.
    fn pointer_cast(&mut self, open: usize, close: usize) {
        let (text, types) = (self.text, self.types);
        if self.lanes == Lanes::Off
            || text.at(close - 1) != b"*"
            // A pointer to pointers looks at addresses, which have one order.
            || text.at(close.saturating_sub(2)) == b"*"
        {
            return;
        }
        let Some(to) = types.shape(text, open + 1, close - 1) else {
            return;
        };
        let named = open > 0 && text.is_word(open - 1) && text.at(open - 1) != b"return";
        if named || !operand::begins(text, close + 1) {
            return;
        }
        let Some(end) = operand::end(text, types, close + 1) else {
            return;
        };
        if to.vector {
            self.quadword(open, close, end);
        }
        let mut name = close + 1;
        // The variable's own name tells what the address points at.
        while matches!(text.at(name), b"&" | b"(") {
            name += 1;
        }
        let Some(from) = types.variable(text.at(name)) else {
            return;
        };
        // Numbers looked at through numbers: this machine's order shows only where a part is
        // indexed.
        let several = from.vector || to.vector;
        if !several && to.width < from.width && text.at(close + 1) == b"&" {
            let around = open > 0 && text.at(open - 1) == b"(";
            if around && text.partner(open - 1) == Some(end) && text.at(end + 1) == b"[" {
                self.warn(
                    open,
                    &format!(
                        "parts of a number of {} bytes keep this machine's order",
                        from.width
                    ),
                );
            }
        }
        // Elements of one size are in one order, whatever they are called.
        if !several || from.width == to.width {
            return;
        }
        let addressed = text.at(close + 1) == b"&";
        if addressed && from.vector && to.vector && self.view(open, close, end) {
            return;
        }
        // `T *p = (T *) &v;`: the pointer's indices can be turned at each use, where all uses are
        // indices.
        let declared = self.declared(open, end);
        // Parts of an element have places of their own; wider numbers have none.
        if addressed && from.vector && !to.vector && to.width < from.width {
            let scalar = text.span(open + 1, close - 1);
            let vector = text.span(close + 1, end);
            let around =
                open > 0 && text.at(open - 1) == b"(" && text.partner(open - 1) == Some(end);
            if around && text.at(end + 1) == b"[" {
                self.index(end + 1, &scalar, &vector);
                return;
            }
            if declared.is_some_and(|pointer| self.indices(pointer, end, &scalar, &vector)) {
                return;
            }
        }
        // Bytes handed on as such are copied, not looked at, and a buffer has no element size.
        let handed = declared.is_none() && !(addressed && operand::is_read(text, open));
        let bytes = to.width == 1 && !to.vector && (handed || !addressed);
        // A warning for each would hide those that matter.
        let buffer = from.width == 1;
        if self.lanes == Lanes::Auto && (bytes || buffer) {
            return;
        }
        self.warn(
            open,
            &format!(
                "elements of size {} read as elements of size {} keep memory's order",
                from.width, to.width
            ),
        );
    }

    /// `(T *) operand` for a vector T: the SPU and AltiVec ignore the last four bits of an address.
    /// The compiler takes them for zeros, and reads parts of a quadword by shorter loads.
    fn quadword(&mut self, open: usize, close: usize, end: usize) {
        let text = self.text;
        let loaded = open > 1
            && match text.at(open - 1) {
                b"*" => operand::dereferences(text, open - 1),
                b"(" => text.partner(open - 1) == Some(end) && text.at(end + 1) == b"[",
                _ => false,
            };
        // A pointer whose last bits the source itself reads keeps them.
        let masked = loaded || !self.addresses;
        // A variable's own address is aligned by its type, and a mask is no constant.
        if masked && text.at(close + 1) != b"&" && !text.is_constant(open) {
            let start = text.start(open);
            self.edits.replace(start, start, "__lane_at(");
            let behind = text.end(end - 1);
            self.edits.replace(behind, behind, ")");
        }
    }

    /// `*p` and `p[i]` of a pointer to vectors that keeps its last bits.
    fn through(&mut self, place: usize) {
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
    fn view(&mut self, open: usize, close: usize, end: usize) -> bool {
        let text = self.text;
        let (mut from, mut to) = (open, end);
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
        let name = text.span(open + 1, close - 1);
        let start = text.start(open);
        self.edits
            .replace(start, text.end(close), format!("&__lane_view({name}, "));
        let behind = text.end(end - 1);
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
        let mut depth = 0_usize;
        let mut uses = Vec::new();
        for place in from..text.len() {
            match text.at(place) {
                b"{" => depth += 1,
                // The variable's block ends here.
                b"}" if depth == 0 => break,
                b"}" => depth -= 1,
                word if word == text.at(name) && !self.is_member(place) => {
                    if text.at(place + 1) != b"[" {
                        // Handed on, moved or compared: what is read through it is not known, so no
                        // index may be turned.
                        return false;
                    }
                    uses.push(place + 1);
                }
                _ => {}
            }
        }
        for place in uses {
            self.index(place, scalar, vector);
        }
        true
    }

    fn is_member(&self, place: usize) -> bool {
        place > 0 && matches!(self.text.at(place - 1), b"." | b">")
    }

    /// `.name[index]`, where the name is a union's array in a union with a vector.
    fn member(&mut self, _dot: usize, name: usize) {
        let text = self.text;
        if let Some(element) = self.unions.elements.get(&name) {
            let start = text.end(name + 1);
            let call = format!("__lane_shared({element}, 16, ");
            let behind = text.partner(name + 1).map(|close| text.start(close));
            if let Some(behind) = behind {
                self.edits.replace(start, start, call);
                self.edits.replace(behind, behind, ")");
            }
            return;
        }
        if text.at(name + 1) != b"[" {
            self.halves(name);
            return;
        }
        if let Some(shared) = self.types.shared.get(text.at(name)) {
            let start = text.end(name + 1);
            let Some(close) = text.partner(name + 1) else {
                return;
            };
            let call = format!("__lane_shared({}, {}, ", shared.element, shared.width);
            self.edits.replace(start, start, call);
            let behind = text.start(close);
            self.edits.replace(behind, behind, ")");
        }
    }

    fn warn(&mut self, place: usize, reason: &str) {
        let (file, line) = self.text.position(place);
        let line = format!("{file}:{line}: warning: lanes: {reason}");
        // A header that is included twice has each of its lines twice.
        if !self.warnings.contains(&line) {
            self.warnings.push(line);
        }
    }
}

/// Pieces of a call's first argument at most.
const CALL_PIECES_MAX: usize = 16;
/// Pieces behind which a value stands.
const BEFORE_VALUES: &[&[u8]] = &[
    b"=", b"(", b",", b"return", b"+", b"-", b"*", b"/", b"&", b"|", b"^", b"?", b":", b"[", b"{",
];
