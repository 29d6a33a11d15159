//! The pass: casts, bytes of vectors through pointers, and unions.

mod memory;

use super::shared::Members;
use super::types::{Pointers, Types, looks_at_addresses};
use super::unions::Accesses;
use super::{Lanes, constant, is_typeof, operand};
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
    /// Types that templates have as parameters.
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
            parameters: parameters(text),
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
            b"memcpy" | b"memmove" | b"__builtin_memcpy" => self.copied(place),
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
            word if self.plus && self.types.vector(word).is_some() => self.functional_cast(place),
            word if self.pointers.names.contains(word) => self.through(place),
            b"." => self.member(place, place + 1),
            // `->` is two pieces of this text.
            b"-" if self.text.at(place + 1) == b">" => self.member(place, place + 2),
            _ => {}
        }
        None
    }

    /// `(typeof(x)) operand`, and `(T) operand` of a template's type T: the compiler knows whether
    /// they are vectors.
    fn unknown_cast(&mut self, open: usize, close: usize) {
        let text = self.text;
        let by_name = is_typeof(text.at(open + 1)) && text.partner(open + 2) == Some(close - 1);
        let parameter =
            self.plus && close == open + 2 && self.parameters.contains(text.at(open + 1));
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
        let object = text.at(shut + 2);
        let from = self.types.variable(object);
        let alone = from.is_some_and(|from| from.vector && from.width != to.width);
        // A value has no address.
        let addressed = place > 0 && text.at(place - 1) == b"&";
        let alone = alone && close == shut + 3 && !addressed;
        if reference == 0 || (constant == 1 && alone) {
            self.call_cast(place, shut, name, close);
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

/// Pieces between `enum` and its brace at most.
const ENUM_PIECES_MAX: usize = 6;
/// Pieces of a call's first argument at most.
const CALL_PIECES_MAX: usize = 16;
/// Pieces behind which a value stands.
const BEFORE_VALUES: &[&[u8]] = &[
    b"=", b"(", b",", b"return", b"+", b"-", b"*", b"/", b"&", b"|", b"^", b"?", b":", b"[", b"{",
];
