//! Unions of vectors whose elements differ in size.
//!
//! Why: no one order of bytes in memory is every member's own. Such a union therefore holds the
//! register's bytes from the last to the first, which is this machine's order for an element of any
//! size. Element i of an array is as far from the end as on an SPU from the begin, and a vector is
//! turned where it is read or written.
//!
//! Must stay true: this is done only where the source shows every use of such a union. Its members
//! are vectors and arrays of the register's size, its variables are its file's own, and its uses
//! are access by member, copies and passing by value. Wherever an address is taken, a pointer to
//! one is declared, or a structure holds one, its memory keeps its order, and a warning names it.

use super::types::Types;
use crate::text::Text;
use crate::tokens::Kind;
use std::collections::{BTreeMap, BTreeSet};

/// Accesses to rewrite.
#[derive(Debug, Default)]
pub(super) struct Accesses {
    /// Places of the keyword `union` of those that are exact.
    pub(super) exact: BTreeSet<usize>,
    /// Places of arrays' names in accesses, and the type of their elements.
    pub(super) elements: BTreeMap<usize, String>,
    /// First pieces of vectors that are read, and the piece behind.
    pub(super) reads: Vec<(usize, usize)>,
    /// First pieces of vectors that are written, the piece of `=`, and the piece behind the value.
    pub(super) writes: Vec<(usize, usize, usize)>,
}

/// A member of the register's size.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Member {
    Vector,
    Array(String),
}

struct Union<'a> {
    place: usize,
    close: usize,
    members: BTreeMap<&'a [u8], Member>,
    /// Names that stand for its type: of a `typedef`, or its tag.
    names: Vec<&'a [u8]>,
    tag: Option<&'a [u8]>,
    /// Its variables.
    variables: BTreeMap<&'a [u8], Vec<Variable>>,
    /// Pieces that declare them.
    declared: BTreeSet<usize>,
}

/// A variable, by the pieces from which to which its name means it.
struct Variable {
    from: usize,
    to: usize,
    array: bool,
}

/// Finds the unions that can be exact, and the new form of their accesses. C alone: in C++ members
/// may be used without their object's name.
pub(super) fn accesses(text: &Text<'_>, types: &Types) -> Accesses {
    let mut found = Accesses::default();
    let users = |place: &usize| text.is_users(*place);
    if text.is_plus() {
        return found;
    }
    let first = (0..text.len())
        .find(users)
        .map(|place| text.position(place).0);
    for place in (0..text.len()).filter(users) {
        // A header's union may be used by another file, whose source is not at hand.
        if text.at(place) != b"union" || Some(text.position(place).0) != first {
            continue;
        }
        let Some(mut union) = Union::read(text, types, place) else {
            continue;
        };
        let mut accesses = Accesses::default();
        if union.declare(text).is_some() && union.uses(text, types, &mut accesses).is_some() {
            found.exact.insert(place);
            found.elements.append(&mut accesses.elements);
            found.reads.append(&mut accesses.reads);
            found.writes.append(&mut accesses.writes);
        }
    }
    found
}

impl<'a> Union<'a> {
    /// The union at `place`, if its members are vectors of several element sizes, and arrays.
    fn read(text: &Text<'a>, types: &Types, place: usize) -> Option<Self> {
        let tag = text.is_word(place + 1).then(|| text.at(place + 1));
        let open = place + 1 + usize::from(tag.is_some());
        let close = text.partner(open).filter(|_| text.at(open) == b"{")?;
        let mut members = BTreeMap::new();
        let mut widths = BTreeSet::new();
        let mut at = open + 1;
        while at < close {
            // One declarator a member; anything else is not understood below and gives up the
            // union.
            let end = (at..close).find(|place| text.at(*place) == b";")?;
            let array = (at..end).find(|place| text.at(*place) == b"[");
            let name = array
                .unwrap_or(end)
                .checked_sub(1)
                .filter(|name| *name > at)?;
            let shape = types.shape(text, at, name)?;
            let plain = (at..name).all(|word| text.is_word(word));
            let member = if shape.vector && array.is_none() {
                widths.insert(shape.width);
                Member::Vector
            } else {
                let count = std::str::from_utf8(text.at(name + 2)).ok()?;
                let count = count.parse::<usize>().ok()?;
                let whole = text.at(name + 3) == b"]" && name + 4 == end;
                // A long has another size on a host.
                let long = (at..name).filter(|word| text.at(*word) == b"long").count() == 1;
                // Elements are counted from the register's end, which is the array's only if it is
                // as large.
                if shape.vector || !whole || long || count * shape.width != REGISTER {
                    return None;
                }
                Member::Array(text.span(at, name))
            };
            if !plain || members.insert(text.at(name), member).is_some() {
                return None;
            }
            at = end + 1;
        }
        // Vectors of one element size need nothing: they agree already.
        (widths.len() > 1).then(|| Self {
            place,
            close,
            members,
            names: Vec::new(),
            tag,
            variables: BTreeMap::new(),
            declared: BTreeSet::new(),
        })
    }

    /// Finds the names of the type and of its variables; nothing where one is more than that.
    fn declare(&mut self, text: &Text<'a>) -> Option<()> {
        let before = self
            .place
            .checked_sub(1)
            .map_or(&b";"[..], |at| text.at(at));
        // One name alone: a pointer's or an array's would make variables of another shape.
        if before == b"typedef" {
            let name = self.close + 1;
            if !text.is_word(name) || text.at(name + 1) != b";" {
                return None;
            }
            self.names.push(text.at(name));
            self.declared.insert(name);
        } else {
            self.declarators(text, self.place, self.close + 1)?;
        }
        for place in (0..text.len()).filter(|place| text.is_users(*place)) {
            let word = text.at(place);
            let tagged = self.tag == Some(word) && place > 0 && text.at(place - 1) == b"union";
            let named = self.names.contains(&word) && !self.declared.contains(&place);
            if tagged && place != self.place + 1 {
                self.declarators(text, place - 1, place + 1)?;
            } else if named {
                self.declarators(text, place, place + 1)?;
            }
        }
        Some(())
    }

    /// Reads the declarators from `at` on, behind the type that begins at `start`.
    fn declarators(&mut self, text: &Text<'a>, start: usize, at: usize) -> Option<()> {
        let mut at = at;
        let mut before = start;
        while before > 0 && matches!(text.at(before - 1), b"const" | b"volatile" | b"static") {
            before -= 1;
        }
        let before = before.checked_sub(1).map_or(&b";"[..], |at| text.at(at));
        // Another file's, a further type, or a part of a structure.
        if matches!(before, b"extern" | b"typedef") || in_body(text, start) {
            return None;
        }
        if text.at(at) == b";" {
            return Some(());
        }
        // A cast, or a size; only the size says nothing about memory.
        if text.at(at) == b")" {
            let open = text.partner(at)?;
            return (open > 0 && text.at(open - 1) == b"sizeof").then_some(());
        }
        let argument = matches!(before, b"(" | b",");
        loop {
            // A `*`: through a pointer the memory may be another's.
            if !text.is_word(at) {
                return None;
            }
            self.declared.insert(at);
            let mut behind = at + 1;
            let array = text.at(behind) == b"[";
            while text.at(behind) == b"[" {
                behind = text.partner(behind)? + 1;
            }
            if text.at(behind) == b"(" {
                // A function that returns one.
                return (!array).then_some(());
            }
            let variable = Variable {
                from: at,
                to: scope_end(text, at, argument),
                array,
            };
            let known = self.variables.entry(text.at(at)).or_default();
            known.push(variable);
            if text.at(behind) == b"=" {
                // A list fills the first member by memory's order.
                if text.at(behind + 1) == b"{" {
                    return None;
                }
                behind = value_end(text, behind + 1);
            }
            match text.at(behind) {
                b";" => return Some(()),
                b"," | b")" if argument => return Some(()),
                b"," => at = behind + 1,
                _ => return None,
            }
        }
    }

    /// Reads the uses of all variables; nothing where one is not known to keep to members.
    fn uses(&self, text: &Text<'a>, types: &Types, accesses: &mut Accesses) -> Option<()> {
        for place in (0..text.len()).filter(|place| text.is_users(*place)) {
            let dot = place > 0 && text.at(place - 1) == b".";
            let arrow = place > 1 && text.at(place - 1) == b">" && text.at(place - 2) == b"-";
            // A member of a function's result, or of a choice.
            let given = dot && place > 1 && matches!(text.at(place - 2), b")");
            if given && self.members.contains_key(text.at(place)) {
                return None;
            }
            // A member of something else by the same name.
            if dot || arrow || self.declared.contains(&place) {
                continue;
            }
            let variables = self.variables.get(text.at(place));
            // The innermost variable of the name is declared last.
            let mut around = variables.into_iter().flatten().rev();
            if let Some(variable) = around.find(|known| (known.from..known.to).contains(&place)) {
                if self.is_other(text, types, place) {
                    return None;
                }
                self.used(text, place, variable.array, accesses)?;
            }
        }
        Some(())
    }

    fn used(
        &self,
        text: &Text<'a>,
        place: usize,
        array: bool,
        accesses: &mut Accesses,
    ) -> Option<()> {
        let addressed = is_addressed(text, place);
        let mut at = place + 1;
        while text.at(at) == b"[" {
            at = text.partner(at)? + 1;
        }
        let whole = !array || at > place + 1;
        if text.at(at) != b"." {
            let before = place.checked_sub(2).map_or(&b""[..], |at| text.at(at));
            // It declares another variable of the type, which was not followed.
            if matches!(before, b"typeof" | b"__typeof__" | b"__typeof") {
                return None;
            }
            let sized = before == b"sizeof";
            // `(x).member` hides the access behind a parenthesis.
            let shut = text.at(at) == b")" && matches!(text.at(at + 1), b"." | b"-" | b"[");
            let arrow = text.at(at) == b"-" && text.at(at + 1) == b">";
            return (sized || arrow || (whole && !addressed && !shut)).then_some(());
        }
        let Some(member) = self.members.get(text.at(at + 1)) else {
            return Some(());
        };
        // The address of an element or a vector would be read in memory's order.
        if addressed {
            return None;
        }
        let behind = at + 2;
        match member {
            Member::Array(element) => {
                let close = text.partner(behind).filter(|_| text.at(behind) == b"[")?;
                if text.at(close + 1) == b"[" {
                    return None;
                }
                accesses.elements.insert(at + 1, element.clone());
            }
            Member::Vector => match (text.at(behind), text.at(behind + 1)) {
                (b"=", next) if next != b"=" => {
                    accesses
                        .writes
                        .push((place, behind, value_end(text, behind + 1)));
                }
                // A vector that is indexed or changed in place is read and written at once, which
                // no macro does.
                (b"[" | b".", _) | (b"+", b"+") | (b"-", b"-" | b">") => return None,
                (b"+" | b"-" | b"*" | b"/" | b"%" | b"&" | b"|" | b"^", b"=") => return None,
                (b"<", b"<") | (b">", b">") if text.at(behind + 2) == b"=" => return None,
                _ => accesses.reads.push((place, behind)),
            },
        }
        Some(())
    }

    /// True for a piece that declares something of another type by the name of a variable, with
    /// members.
    fn is_other(&self, text: &Text<'a>, types: &Types, place: usize) -> bool {
        // `struct s *x;` in an inner block is another x.
        let mut before = place;
        while before > 0 && text.at(before - 1) == b"*" {
            before -= 1;
        }
        let behind = matches!(text.at(place + 1), b";" | b"," | b"=" | b"[" | b")");
        let Some(before) = before.checked_sub(1).filter(|_| behind) else {
            return false;
        };
        let tagged = before > 0 && matches!(text.at(before - 1), b"struct" | b"union");
        let body = text.at(before) == b"}"
            && text.partner(before).is_some_and(|open| {
                (open.saturating_sub(2)..open).any(|at| matches!(text.at(at), b"struct" | b"union"))
            });
        let named = types.is_type(text, before, before + 1)
            && types.shape(text, before, before + 1).is_none();
        tagged || body || named
    }
}

/// True where the name at `place`, or a part of it, has its address taken.
pub(super) fn is_addressed(text: &Text<'_>, place: usize) -> bool {
    let mut at = place;
    while at > 0 && text.at(at - 1) == b"(" {
        at -= 1;
    }
    if at == 0 || text.at(at - 1) != b"&" {
        return false;
    }
    // Behind an operand it is an operation on bits; twice it is a condition.
    let before = at.checked_sub(2).map_or(&b";"[..], |at| text.at(at));
    let operand = match text.kind(at.wrapping_sub(2)) {
        Some(Kind::Word) => before != b"return",
        Some(Kind::Number) => true,
        _ => matches!(before, b")" | b"]" | b"&"),
    };
    !operand
}

/// The first piece behind the scope of the name that `at` declares.
fn scope_end(text: &Text<'_>, at: usize, argument: bool) -> usize {
    let around = |bracket: &[u8]| {
        (0..at).rev().find_map(|open| {
            let close = text.partner(open).filter(|close| *close > at)?;
            (text.at(open) == bracket).then_some(close)
        })
    };
    // A variable's scope ends with the block, an argument's with the function.
    if !argument {
        return around(b"{").unwrap_or(text.len());
    }
    let Some(close) = around(b"(") else {
        return at;
    };
    match text.partner(close + 1) {
        Some(end) if text.at(close + 1) == b"{" => end,
        _ => close,
    }
}

/// True for a piece within a structure's or union's braces.
fn in_body(text: &Text<'_>, place: usize) -> bool {
    (0..place).any(|open| {
        let inside = text.at(open) == b"{" && text.partner(open).is_some_and(|end| end > place);
        inside
            && (open.saturating_sub(2)..open).any(|at| matches!(text.at(at), b"struct" | b"union"))
    })
}

/// The piece behind the value that begins at `at`.
pub(super) fn value_end(text: &Text<'_>, at: usize) -> usize {
    let mut at = at;
    let mut choices = 0_usize;
    while at < text.len() {
        match text.at(at) {
            b";" | b"," | b")" | b"]" | b"}" => break,
            b"?" => choices += 1,
            // The end of a label or a case, or of a choice around the value.
            b":" if choices == 0 => break,
            b":" => choices -= 1,
            _ => {}
        }
        at = text.partner(at).filter(|end| *end > at).unwrap_or(at) + 1;
    }
    at
}

/// Bytes of a register.
const REGISTER: usize = 16;
