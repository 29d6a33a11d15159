//! The pass: casts, bytes of vectors through pointers, and unions.

mod constant;
mod memory;

use super::shared::Members;
use super::types::{Pointers, Types};
use super::unions::Accesses;
use super::{Lanes, is_typeof, looks_at_addresses, operand};
use crate::text::{Edits, Text};
use crate::tokens::Kind;
use std::collections::BTreeSet;

/// One walk over a source.
pub(super) struct Pass<'a> {
    text: &'a Text<'a>,
    types: &'a Types,
    lanes: Lanes,
    /// True where the source reads the last bits of addresses, so that pointers must keep them.
    addresses: bool,
    /// True for C++.
    plus: bool,
    /// Types that only the compiler knows: parameters of C++'s templates, names of C's `typeof`.
    parameters: BTreeSet<Vec<u8>>,
    /// Its pointers to vectors, where that is so.
    pointers: Pointers,
    unions: Accesses,
    members: Members,
    /// Names of members whose accesses `unions` has.
    united: BTreeSet<usize>,
    edits: Edits,
    inexact: Vec<Inexact>,
    /// True where elements may have several sizes.
    pub(super) several: bool,
    /// True where what is not exact is only said.
    pub(super) warns: bool,
}

/// A place whose numbers would not be the SPU's.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Inexact {
    /// File and line.
    pub(super) place: (String, u32),
    pub(super) reason: String,
    /// The text to write there.
    pub(super) instead: &'static str,
}

impl<'a> Pass<'a> {
    pub(super) fn new(
        text: &'a Text<'a>,
        types: &'a Types,
        lanes: Lanes,
        (unions, members): (Accesses, Members),
    ) -> Self {
        let addresses = looks_at_addresses(text);
        Self {
            text,
            types,
            lanes,
            addresses,
            plus: text.is_plus(),
            parameters: if text.is_plus() {
                parameters(text)
            } else {
                named_by_typeof(text)
            },
            pointers: if addresses {
                Pointers::read(text, types)
            } else {
                Pointers::default()
            },
            unions,
            members,
            united: BTreeSet::new(),
            edits: Edits::default(),
            inexact: Vec::new(),
            several: true,
            warns: false,
        }
    }

    pub(super) fn finish(self) -> (Edits, Vec<Inexact>) {
        (self.edits, self.inexact)
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

    /// Vectors of unions that hold a register from its last byte to its first.
    fn united_vectors(&mut self) {
        let text = self.text;
        for (start, end) in &self.unions.reads {
            self.united.insert(*end - 1);
            let (start, end) = (text.start(*start), text.end(*end - 1));
            self.edits.replace(start, start, "__lane_united(");
            self.edits.replace(end, end, ")");
        }
        for (start, equals, end) in &self.unions.writes {
            self.united.insert(*equals - 1);
            let start = text.start(*start);
            self.edits.replace(start, start, "__lane_put(");
            self.edits
                .replace(text.start(*equals), text.end(*equals), ",");
            let end = text.end(*end - 1);
            self.edits.replace(end, end, ")");
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
                // With elements of one size any cast is the compiler's.
                if self.lanes != Lanes::Off && self.several {
                    self.unknown_cast(place, close);
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
            word if COPIES.contains(&word) => self.copied(place),
            b"=" => self.assigned(place),
            word if self.members.is_listed(word) => {
                self.listed(place);
                self.listed_literal(place);
                if self.pointers.names.contains(word) {
                    self.through(place);
                }
            }
            _ if self.plus && self.members.is_bare(self.text, place) => {
                let reason = "a member that shares memory is named without its object";
                self.refuse(place, reason, "write `this->` before it");
            }
            word if self.plus && self.types.vector(word).is_some() => {
                self.functional_cast(place, "__lane_cast");
            }
            word if self.plus && self.several && self.parameters.contains(word) => {
                self.functional_cast(place, "__lane_any");
            }
            word if self.pointers.names.contains(word) => self.through(place),
            b"." => self.member(place, place + 1),
            // `->` is two pieces of this text.
            b"-" if self.text.at(place + 1) == b">" => self.member(place, place + 2),
            _ => {}
        }
        None
    }

    /// `(typeof(x)) operand`, and `(T) operand` of a template's type T or a name of `typeof`: the
    /// compiler knows whether they are vectors.
    fn unknown_cast(&mut self, open: usize, close: usize) {
        let text = self.text;
        let by_name = is_typeof(text.at(open + 1)) && text.partner(open + 2) == Some(close - 1);
        let parameter = close == open + 2 && self.parameters.contains(text.at(open + 1));
        let before = open
            .checked_sub(1)
            .map_or(&b";"[..], |before| text.at(before));
        let called = text.is_word(open.saturating_sub(1))
            && !matches!(before, b"return" | b"case" | b"else" | b"do");
        let constant = text.is_constant(open) || before == b"case" || self.is_count(open);
        if !(by_name || parameter) || called || constant {
            return;
        }
        let end =
            operand::end(text, self.types, close + 1).filter(|_| operand::begins(text, close + 1));
        // Neither numbers nor sizes become vectors, and the compiler may have to know them.
        let number = |at: usize| text.kind(at) != Some(Kind::Word);
        let known = |end: &usize| text.at(close + 1) != b"sizeof" && !(close + 1..*end).all(number);
        let Some(end) = end.filter(known) else {
            return;
        };
        let name = text.span(open + 1, close);
        let (start, behind) = (text.start(open), text.end(end - 1));
        self.edits
            .replace(start, text.end(close), format!(" __lane_any({name}, "));
        self.edits.replace(behind, behind, ")");
    }

    /// True for a part of an enumerator, an index or an array's size.
    fn is_count(&self, open: usize) -> bool {
        let text = self.text;
        let mut at = open;
        while let Some(before) = at.checked_sub(1) {
            at = match text.at(before) {
                b";" => return false,
                b"[" => return true,
                b"{" => {
                    let head = before.saturating_sub(ENUM_PIECES_MAX)..before;
                    let mut head = head.rev().map(|at| text.at(at));
                    return head
                        .find(|word| matches!(*word, b"enum" | b";" | b"{" | b"}" | b")"))
                        .is_some_and(|word| word == b"enum");
                }
                // A call's arguments may be vectors, and so may what has elements.
                b"(" if before > 0 && text.is_word(before - 1) => return false,
                b"(" if text
                    .partner(before)
                    .is_some_and(|end| text.at(end + 1) == b"[") =>
                {
                    return false;
                }
                b")" | b"]" | b"}" => match text.partner(before) {
                    Some(other) => other,
                    None => return false,
                },
                _ => before,
            };
        }
        false
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
        if text.at(shut) != b">" {
            self.pointer_cast_of_cplusplus(place);
            return;
        }
        let close = text.partner(shut + 1);
        let parameter = self.parameters.contains(text.at(name)) && self.several;
        if let Some(close) = close.filter(|_| parameter) {
            // Of a template's type the compiler knows whether it is a vector.
            if reference == 0 {
                self.call_cast("__lane_any", (place, shut), name, close);
            } else {
                let (start, behind) = (text.end(shut + 1), text.start(close));
                let call = format!("*__lane_same({}, &(", text.span(name, name + 1));
                self.edits.replace(start, start, call);
                self.edits.replace(behind, behind, "))");
            }
            return;
        }
        let Some(to) = self.types.vector(text.at(name)) else {
            return;
        };
        let (Some(close), b"<", b">") = (close, text.at(place + 1), text.at(shut)) else {
            return;
        };
        let object = text.at(shut + 2);
        let from = self.types.variable(object);
        let alone = from.is_some_and(|from| from.vector && from.width != to.width);
        // A value has no address.
        let addressed = place > 0 && text.at(place - 1) == b"&";
        let alone = alone && close == shut + 3 && !addressed;
        if reference == 0 || (constant == 1 && alone) {
            self.call_cast("__lane_cast", (place, shut), name, close);
        } else if from.is_some_and(|from| from.width != to.width) {
            self.refuse(
                place,
                "a reference to a vector of other elements looks at memory",
                "cast the value, and assign it back",
            );
        } else if self.types.is_ambiguous(object) && !self.warns {
            // Of several variables of the name the compiler knows the right one.
            let (start, behind) = (text.end(shut + 1), text.start(close));
            let call = format!("*__lane_known({}, &(", to.width);
            self.edits.replace(start, start, call);
            self.edits.replace(behind, behind, "))");
        }
    }

    /// `reinterpret_cast<T *>(operand)`: the compiler knows what the operand points to.
    fn pointer_cast_of_cplusplus(&mut self, place: usize) {
        let text = self.text;
        let mut inner = place + 2..place + 2 + CAST_PIECES_MAX;
        let shut = inner.find(|at| text.at(*at) == b">");
        let close = shut.and_then(|shut| text.partner(shut + 1));
        let (Some(shut), Some(close)) = (shut, close.filter(|_| self.several)) else {
            return;
        };
        let Some((to, pointee)) = self.pointee(place + 1, shut) else {
            return;
        };
        // Of a `void *` the compiler knows nothing.
        let alone = close == shut + 3;
        let behind = self.behind_void(shut + 2).filter(|_| alone);
        if let Some(from) = behind.filter(|from| self.is_other(*from, to)) {
            self.refuse_look(place, from, to);
            return;
        }
        if self.warns {
            return;
        }
        let call = match to {
            memory::UNKNOWN => format!("__lane_same({pointee}, "),
            _ if to.vector => format!("__lane_known({}, ", to.width),
            _ => return,
        };
        let (start, behind) = (text.start(shut + 2), text.start(close));
        self.edits.replace(start, start, call);
        self.edits.replace(behind, behind, ")");
    }

    /// `T(operand)` of C++, where no declaration can stand.
    fn functional_cast(&mut self, place: usize, call: &str) {
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
        // Several arguments are a constructor's.
        let single = argument_end(text, open + 1, close).is_none();
        if expected && !declares && !scoped && single && operand::begins(text, open + 1) {
            self.call_cast(call, (place, place), place, close);
        }
    }

    /// Puts the macro of a cast in the place of the pieces from `from` to `to`, in front of the
    /// parentheses that `close` ends.
    fn call_cast(&mut self, call: &str, (from, to): (usize, usize), name: usize, close: usize) {
        let text = self.text;
        let name = String::from_utf8_lossy(text.at(name)).into_owned();
        let (start, end) = (text.start(from), text.end(to));
        self.edits.replace(start, end, format!("{call}({name}, "));
        let behind = text.end(close);
        self.edits.replace(behind, behind, ")");
    }

    /// `(T){ … }` of C, of a union whose first member's elements have other places.
    fn listed_literal(&mut self, name: usize) {
        let text = self.text;
        let tagged = matches!(text.at(name.wrapping_sub(1)), b"union" | b"struct");
        let open = name.wrapping_sub(1 + usize::from(tagged));
        let before = open.wrapping_sub(1);
        // `f(T) {` is no literal.
        let called = text.is_word(before) && text.at(before) != b"return";
        let cast = text.at(open) == b"(" && text.at(name + 1) == b")" && !called && !self.plus;
        let list = cast && text.at(name + 2) == b"{";
        if list && !self.members.is_plain_list(text, name + 2) {
            let reason = "a list fills a member that shares memory with other elements";
            self.refuse(name, reason, "assign the member of a variable");
        }
    }

    /// `memcpy` of vectors, and its like: where the compiler finds elements of another size on the
    /// other side, it is done byte by byte, as the SPU has them.
    pub(super) fn copied(&mut self, place: usize) {
        let (text, types) = (self.text, self.types);
        let open = place + 1;
        let close = text.partner(open).filter(|_| text.at(open) == b"(");
        let comma = close.and_then(|close| argument_end(text, open + 1, close));
        let second = comma.and_then(|comma| argument_end(text, comma + 1, close?));
        let (Some(comma), Some(second)) = (comma, second) else {
            return;
        };
        let scoped = place > 2 && text.at(place - 1) == b":" && text.at(place - 3) == b"std";
        let member = place > 0 && matches!(text.at(place - 1), b"." | b">" | b":");
        let (to, from) = (self.bare(open + 1), self.bare(comma + 1));
        // Its source is first.
        let reversed = text.at(place) == b"bcopy";
        let name = |at: usize| text.at(at + usize::from(text.at(at) == b"&"));
        // What all calls of the source pass as a `void *`, of which the compiler knows nothing.
        let sides = [to, from].map(|at| types.behind_void(name(at)).or(types.variable(name(at))));
        if let [Some(one), Some(other)] = sides
            && [to, from]
                .iter()
                .any(|at| types.behind_void(name(*at)).is_some())
            && (one.vector || other.vector)
            && one.width != other.width
        {
            let (from, to) = if reversed { (one, other) } else { (other, one) };
            self.refuse_look(place, from, to);
            return;
        }
        let vector = [to, from]
            .iter()
            .any(|at| types.is_vector(name(*at)) || types.is_ambiguous(name(*at)))
            // A template's own types are known to the compiler alone.
            || self.plus && sides == [None, None] && !self.parameters.is_empty();
        let declares = types.is_type(text, open + 1, open + 2) || text.at(open + 1) == b"const";
        if !vector || (member && !scoped) || declares {
            return;
        }
        let begin = text.start(if scoped { place - 3 } else { place });
        let (to, from) = (text.span(to, comma), text.span(from, second));
        let call = match text.at(place) {
            b"bcopy" => format!("__lane_bcopied({from}, {to}, "),
            b"mempcpy" | b"__builtin_mempcpy" => format!("__lane_mempcopied({to}, {from}, "),
            _ => format!("__lane_copied({to}, {from}, "),
        };
        self.edits.replace(begin, text.end(open), call);
    }

    /// The first piece of an argument behind its casts to pointers.
    fn bare(&self, start: usize) -> usize {
        let text = self.text;
        let mut at = start;
        while let Some(close) = text.partner(at).filter(|_| text.at(at) == b"(") {
            if text.at(close - 1) != b"*" {
                break;
            }
            at = close + 1;
        }
        at
    }

    /// Reports what has no exact form.
    fn refuse(&mut self, place: usize, reason: &str, instead: &'static str) {
        let line = Inexact {
            place: self.text.position(place),
            reason: reason.to_owned(),
            instead,
        };
        // A header that is included twice has each of its lines twice.
        if !self.inexact.contains(&line) {
            self.inexact.push(line);
        }
    }
}

/// Types that the user's templates have as parameters.
fn parameters(text: &Text<'_>) -> BTreeSet<Vec<u8>> {
    let mut all = BTreeSet::new();
    for place in (1..text.len()).filter(|place| text.is_users(*place)) {
        let begins = matches!(text.at(place), b"class" | b"typename");
        if begins && matches!(text.at(place - 1), b"<" | b",") && text.is_word(place + 1) {
            all.insert(text.at(place + 1).to_vec());
        }
    }
    all
}

/// Names that the user's C source gives by `typedef typeof(v) name;`.
fn named_by_typeof(text: &Text<'_>) -> BTreeSet<Vec<u8>> {
    let name = |place: usize| {
        let typedef = text.at(place) == b"typedef" && is_typeof(text.at(place + 1));
        let name = text.partner(place + 2).filter(|_| typedef)? + 1;
        let alone = text.is_word(name) && text.at(name + 1) == b";";
        alone.then(|| text.at(name).to_vec())
    };
    let users = (0..text.len()).filter(|place| text.is_users(*place));
    users.filter_map(name).collect()
}

/// The comma that ends the argument that begins at `start`.
fn argument_end(text: &Text<'_>, start: usize, close: usize) -> Option<usize> {
    let mut at = start;
    while at < close && text.at(at) != b"," {
        at = text.partner(at).filter(|end| *end > at).unwrap_or(at) + 1;
    }
    (at < close).then_some(at)
}

/// Functions that copy memory.
pub(super) const COPIES: &[&[u8]] = &[
    b"memcpy",
    b"memmove",
    b"mempcpy",
    b"bcopy",
    b"__builtin_memcpy",
    b"__builtin_memmove",
    b"__builtin_mempcpy",
];
/// Pieces of the type that a cast of C++ names at most.
const CAST_PIECES_MAX: usize = 16;
/// Pieces between `enum` and its brace at most.
const ENUM_PIECES_MAX: usize = 6;
/// Pieces of a call's first argument at most.
const CALL_PIECES_MAX: usize = 16;
/// Pieces behind which a value stands.
const BEFORE_VALUES: &[&[u8]] = &[
    b"=", b"(", b",", b"return", b"+", b"-", b"*", b"/", b"&", b"|", b"^", b"?", b":", b"[", b"{",
];
