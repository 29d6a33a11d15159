//! Pointers that programs make from numbers, and numbers that they make from pointers.
//!
//! Why: an SPU's address is a place in its store, from 0 on, and programs compute with such places:
//! they get one by mailbox and cast it to a pointer. Here the store begins elsewhere, and an access
//! through such a pointer is two signals. So the operand of a cast to a pointer goes through a
//! macro of the kit's, which adds the store's address to a number of a place in it. Source that has
//! such casts is read a second time, so that its casts of pointers to numbers give the places
//! again.
//!
//! Must stay true: the compiler itself decides, in the macros, between numbers and pointers, so
//! casts between pointers compile as they did. Initializers that it must evaluate, literals of
//! small numbers and offsets of members stay as they are, and lines keep their numbers.

use crate::lanes::{operand, types::Types};
use crate::text::{Edits, Text};
use crate::tokens::Kind;
use std::collections::BTreeMap;

/// A name that stands in a compiler's output where a pointer is made from a number.
pub(crate) const MARK: &[u8] = b"__sidecore_place";

/// The source with the macros around operands of casts to pointers, and with `numbers` also around
/// those of casts to numbers; nothing where there are no such casts.
pub(crate) fn rewrite(source: &[u8], numbers: bool) -> Option<Vec<u8>> {
    let text = Text::new(source);
    let types = Types::read(&text);
    let mut pass = Pass {
        text: &text,
        types: &types,
        named: named(&text),
        plus: text.is_plus(),
        numbers,
        calls: Vec::new(),
    };
    // Casts of the kit's own headers are right as they are.
    for place in (0..text.len()).filter(|place| text.is_users(*place)) {
        pass.visit(place);
    }
    let mut edits = Edits::default();
    for call in pass.kept() {
        let (start, end) = (text.start(call.from), text.end(call.to - 1));
        let name = call.name;
        if let Some((open, close)) = call.cast {
            // The cast itself is the macro's first argument.
            let (open, close) = (text.start(open), text.end(close));
            // A blank in front: `return(T *)x` would become one word.
            edits.replace(open, open, format!(" {name}_cast("));
            edits.replace(close, close, ", ");
        } else {
            edits.replace(start, start, format!("{name}("));
        }
        edits.replace(end, end, ")");
    }
    (!edits.is_empty()).then(|| edits.apply(source))
}

/// Types with names, as far as casts to them differ.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Named {
    Pointer,
    Function,
    /// By an attribute, which `Types` does not read.
    Vector,
}

/// Names of pointers' types and of vectors', by `typedef`.
fn named<'a>(text: &Text<'a>) -> BTreeMap<&'a [u8], Named> {
    let mut found = BTreeMap::new();
    for place in (0..text.len()).filter(|place| text.at(*place) == b"typedef") {
        let mut at = place + 1;
        let mut last = place;
        // Over structures' bodies at one step: their members are no names of types.
        while at < text.len() && text.at(at) != b";" {
            let word = text.at(at);
            let behind = text.at(at + 1);
            if matches!(behind, b"__attribute__" | b";") && text.is_word(at) {
                last = at;
            }
            if word == b"*" && text.is_word(at + 1) {
                let mut name = at + 1;
                while is_qualifier(text.at(name)) {
                    name += 1;
                }
                let alone = matches!(text.at(name + 1), b";" | b"," | b"__attribute__");
                if text.is_word(name) && alone {
                    found.insert(text.at(name), Named::Pointer);
                }
            }
            if word == b"(" && behind == b"*" && text.at(at + 3) == b")" {
                // `(*name)[…]` is a pointer to an array, `(*name)(…)` one to a function.
                let function = text.at(at + 4) == b"(";
                let kind = [Named::Pointer, Named::Function][usize::from(function)];
                found.insert(text.at(at + 2), kind);
            }
            at = text.partner(at).filter(|other| *other > at).unwrap_or(at) + 1;
        }
        // Such an attribute may stand before the name or behind it.
        let is_size = |place| matches!(text.at(place), b"vector_size" | b"__vector_size__");
        if (place..at).any(is_size) {
            found.insert(text.at(last), Named::Vector);
        }
        // A pointer's name with another before it.
        let second = found.get(text.at(place + 1)).copied();
        if let Some(kind) = second.filter(|_| text.at(place + 3) == b";") {
            found.insert(text.at(place + 2), kind);
        }
    }
    found
}

/// A macro around an expression, by its pieces.
struct Call {
    name: &'static str,
    from: usize,
    to: usize,
    /// The cast's parentheses, where the macro is around it as well.
    cast: Option<(usize, usize)>,
}

struct Pass<'a> {
    text: &'a Text<'a>,
    types: &'a Types,
    named: BTreeMap<&'a [u8], Named>,
    /// True for C++.
    plus: bool,
    numbers: bool,
    calls: Vec<Call>,
}

/// Result of a cast.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Made {
    Pointer,
    Function,
    Number,
}

impl Pass<'_> {
    /// The calls, without those around more casts than a macro should repeat.
    fn kept(&self) -> impl Iterator<Item = &Call> {
        let inside = |call: &Call| {
            let within = |other: &&Call| call.from <= other.from && other.to <= call.to;
            self.calls.iter().filter(within).count() - 1
        };
        let plus = self.plus;
        self.calls
            .iter()
            .filter(move |call| plus || inside(call) <= NESTED_MAX)
    }

    fn visit(&mut self, place: usize) {
        let text = self.text;
        // A macro with a function's call within is no constant.
        if text.is_constant(place) {
            return;
        }
        if text.at(place) == b"(" {
            let Some(close) = text.partner(place) else {
                return;
            };
            if !self.is_cast(place) {
                return;
            }
            let Some(made) = self.made(place + 1, close) else {
                return;
            };
            if !operand::begins(text, close + 1) {
                return;
            }
            if let Some(end) = operand::end(text, self.types, close + 1) {
                let before = self.calls.len();
                self.wrap(made, close + 1, end);
                // C chooses an operand; C++, which cannot, chooses between two whole casts.
                let whole = self.plus && made == Made::Pointer;
                for call in self.calls.iter_mut().skip(before) {
                    call.cast = Some((place, close)).filter(|_| whole && call.from == close + 1);
                }
            }
        } else if text.at(place) == b"reinterpret_cast" && text.at(place + 1) == b"<" {
            let open = (place + 2..text.len())
                // Bounded, so that a comparison by `<` is not searched to the source's end.
                .take(TYPE_PIECES_MAX)
                .find(|at| text.at(*at) == b"(" && text.at(*at - 1) == b">");
            let Some((open, close)) = open.and_then(|open| Some((open, text.partner(open)?)))
            else {
                return;
            };
            if let Some(made) = self.made(place + 2, open - 1).filter(|_| close > open + 1) {
                self.wrap(made, open + 1, close);
            }
        }
    }

    /// True where a type in parentheses at `open` is a cast's, not an argument's.
    fn is_cast(&self, open: usize) -> bool {
        let text = self.text;
        let Some(before) = open.checked_sub(1) else {
            return false;
        };
        let word = text.at(before);
        let begins = matches!(word, b"return" | b"case" | b"else" | b"do" | b"throw");
        // `f(T *)` declares or calls; `sizeof(T *)` and `va_arg` take types, not operands.
        !matches!(text.kind(before), Some(Kind::Word)) || begins
    }

    /// The kind of type that the pieces from `from` to before `to` name.
    fn made(&self, from: usize, to: usize) -> Option<Made> {
        let text = self.text;
        if from >= to || !text.is_word(from) {
            return None;
        }
        let mut last = to - 1;
        while last > from && is_qualifier(text.at(last)) {
            last -= 1;
        }
        if text.at(last) == b"*" {
            let mut at = from;
            while at < last {
                // Two arguments, no type; templates have commas within.
                if text.at(at) == b"," && !self.plus {
                    return None;
                }
                at = text.partner(at).filter(|end| *end > at).unwrap_or(at) + 1;
            }
            return Some(Made::Pointer);
        }
        if let Some(arguments) = text.partner(last).filter(|_| text.at(last) == b")") {
            // `R (*)(A)`: behind the arguments' parentheses another pair with stars alone.
            let star = arguments
                .checked_sub(1)
                .and_then(|shut| text.partner(shut))
                .filter(|open| text.at(*open) == b"(" && *open > from)?;
            let pointer = (star + 1..arguments - 1).all(|at| text.at(at) == b"*");
            return (pointer && star + 1 < arguments - 1).then_some(Made::Function);
        }
        let mut words = (from..to).filter(|at| !is_qualifier(text.at(*at)));
        let name = words.next().map(|at| text.at(at))?;
        if words.next().is_none()
            && let Some(kind) = self.named.get(name)
        {
            return match kind {
                Named::Pointer => Some(Made::Pointer),
                Named::Function => Some(Made::Function),
                Named::Vector => None,
            };
        }
        // A number of fewer bytes is the same of both.
        let shape = self.types.shape(text, from, to)?;
        // A float of an address is a mistake that the compiler names better.
        let floats = (from..to).any(|at| matches!(text.at(at), b"float" | b"double"));
        let number = self.types.is_type(text, from, to) && !shape.vector && shape.width >= 4;
        (number && !floats && self.numbers).then_some(Made::Number)
    }

    /// Puts the macro around a cast's operand, unless that needs none.
    fn wrap(&mut self, made: Made, from: usize, to: usize) {
        let text = self.text;
        let (mut start, mut end) = (from, to);
        // What is asked below is asked of the expression, not of parentheses around it.
        while text.at(start) == b"(" && text.partner(start) == Some(end - 1) {
            start += 1;
            end -= 1;
        }
        let plain = match text.kind(start) {
            None | Some(Kind::Quoted | Kind::Blank) => true,
            // 0 stays the null pointer, and small numbers are marks of programs' own; sums that
            // begin with a number may be places.
            Some(Kind::Number) => end == start + 1 && !is_place(text.at(start)),
            Some(Kind::Word) => matches!(
                text.at(start),
                b"this" | b"new" | b"delete" | b"nullptr" | b"__null" | b"sizeof" | b"NULL"
            ),
            Some(Kind::Mark) => match made {
                // The result of `&` is a pointer, and so is the operand of a cast to one.
                Made::Pointer | Made::Function => text.at(start) == b"&" || self.is_pointer(start),
                Made::Number => matches!(text.at(start), b"-" | b"+" | b"~" | b"!"),
            },
        };
        let behind = text.at(to);
        // A literal's brace or a string behind it: the operand was not read to its end, so nothing
        // is changed.
        let part = matches!(text.kind(to), Some(Kind::Word | Kind::Quoted)) || behind == b"{";
        // A function's name may be that of several.
        let named = self.plus && (made == Made::Function || self.is_template(to));
        if plain || part || named || self.is_offset(from, to) {
            return;
        }
        let name = match made {
            Made::Number => "__spe_number",
            Made::Pointer | Made::Function => "__spe_place",
        };
        let cast = None;
        self.calls.push(Call {
            name,
            from,
            to,
            cast,
        });
    }

    /// True for a cast to a pointer at `open`.
    fn is_pointer(&self, open: usize) -> bool {
        let close = self.text.partner(open).filter(|close| *close > open);
        let made = close.and_then(|close| self.made(open + 1, close));
        matches!(made, Some(Made::Pointer | Made::Function))
            && close.is_some_and(|close| operand::begins(self.text, close + 1))
    }

    /// True where a template's arguments begin at `open`.
    fn is_template(&self, open: usize) -> bool {
        let text = self.text;
        if text.at(open) != b"<" {
            return false;
        }
        let mut at = open + 1;
        while text.is_word(at)
            || text.kind(at) == Some(Kind::Number)
            || matches!(text.at(at), b"<" | b"," | b":" | b"*" | b"&")
        {
            at += 1;
        }
        text.at(at) == b">" && matches!(text.at(at + 1), b"(" | b":" | b">")
    }

    /// True for the address of a member of an object at 0, which is the member's offset.
    fn is_offset(&self, from: usize, to: usize) -> bool {
        let text = self.text;
        (from..to.saturating_sub(2)).any(|at| {
            let zero = text.kind(at + 2) == Some(Kind::Number) && !is_place(text.at(at + 2));
            text.at(at) == b"*" && text.at(at + 1) == b")" && zero
        })
    }
}

fn is_qualifier(word: &[u8]) -> bool {
    matches!(
        word,
        b"const" | b"volatile" | b"restrict" | b"__restrict" | b"__restrict__"
    )
}

/// True for a number that may be a place of the store's.
fn is_place(number: &[u8]) -> bool {
    let text = String::from_utf8_lossy(number).to_ascii_lowercase();
    // By C's rules, suffixes left out: 0x for sixteen, 0 for eight.
    let digits = text.trim_end_matches(['u', 'l']);
    let value = if let Some(hexadecimal) = digits.strip_prefix("0x") {
        u64::from_str_radix(hexadecimal, 16)
    } else if digits.len() > 1 && digits.starts_with('0') {
        u64::from_str_radix(digits, 8)
    } else {
        digits.parse()
    };
    value.is_ok_and(|value| PLACES.contains(&value))
}

/// Numbers that are places; those of `sidecore_places.h`.
const PLACES: std::ops::Range<u64> = 0x400..0x8_0000;
/// Calls within a call at most: in C the compiler reads each three times.
const NESTED_MAX: usize = 4;
/// Pieces of a type's name at most.
const TYPE_PIECES_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::rewrite;

    fn rewritten(source: &str, numbers: bool) -> String {
        let source = format!("void f(void) {{ {source} }}");
        match rewrite(source.as_bytes(), numbers) {
            Some(text) => String::from_utf8(text).expect("text"),
            None => source,
        }
    }

    #[test]
    fn what_may_be_a_number_goes_through_the_macro() {
        for (source, wanted) in [
            ("*(int *)0x3000 = 1;", "*(int *)__spe_place(0x3000) = 1;"),
            (
                "x = (vector_t *)(base + 128 * i);",
                "x = (vector_t *)__spe_place((base + 128 * i));",
            ),
            (
                "x = (const struct s *const)(int *)p[n].q;",
                "x = (const struct s *const)(int *)__spe_place(p[n].q);",
            ),
            (
                "return (T **)f((U *)a, b)->c + 1;",
                "return (T **)__spe_place(f((U *)__spe_place(a), b)->c) + 1;",
            ),
            (
                "((int (*)(int))n)(2);",
                "((int (*)(int))__spe_place(n))(2);",
            ),
            (
                "x = __lane_at((T *)(n));",
                "x = __lane_at((T *)__spe_place((n)));",
            ),
            (
                "x = reinterpret_cast<T *>(n + 1);",
                "x = reinterpret_cast<T *>(__spe_place(n + 1));",
            ),
            (
                "x = (T *)*(Foo **)y;",
                "x = (T *)__spe_place(*(Foo **)__spe_place(y));",
            ),
        ] {
            assert_eq!(
                rewritten(source, false),
                format!("void f(void) {{ {wanted} }}")
            );
        }
    }

    #[test]
    fn what_cannot_be_a_place_stays() {
        for source in [
            "x = (void *)0; y = ((void *)0); z = (T *)((void *)0);",
            "x = (T *)&y; z = (T *)\"text\"; e = (T *)1;",
            "x = sizeof(T *); f(T *); g = va_arg(list, T *);",
            "x = (a * b); (unsigned int)p; (float)x;",
            "x = (T *)this; y = (T *)new U[3];",
            "static int *p = (int *)0x3000;",
        ] {
            assert_eq!(
                rewritten(source, false),
                format!("void f(void) {{ {source} }}")
            );
        }
        let outside = "int *p = (int *)0x3000; int (*g)(T *) __attribute__((x));";
        assert_eq!(rewrite(outside.as_bytes(), true), None);
    }

    #[test]
    fn arguments_of_templates_are_no_comparisons() {
        let source = "template <class T> void f(T t) { x = (T *)a < (T *)b; y = (T *)g<T>(t); \
                      return(S<T, U> *)t; }";
        let wanted = "{ x =  __spe_place_cast((T *), a) <  __spe_place_cast((T *), b); \
                      y = (T *)g<T>(t); return __spe_place_cast((S<T, U> *), t); }";
        let text = rewrite(source.as_bytes(), false).expect("it has casts");
        assert!(String::from_utf8_lossy(&text).ends_with(wanted));
    }

    #[test]
    fn names_of_pointers_are_known() {
        let source = "typedef long long v __attribute__((vector_size(16))); typedef void *LS; \
                      typedef int (*FN)(int); typedef LS again; typedef int n; \
                      void f(void) { x = (LS)a; ((FN)b)(1); y = (again)c; z = (n)d + (v)e; }";
        let wanted = "x = (LS)__spe_place(a); ((FN)__spe_place(b))(1); \
                      y = (again)__spe_place(c); z = (n)__spe_number(d) + (v)e; }";
        let text = rewrite(source.as_bytes(), true).expect("it has casts");
        assert!(String::from_utf8_lossy(&text).ends_with(wanted));
    }

    #[test]
    fn numbers_of_pointers_are_places_again() {
        for (source, wanted) in [
            (
                "x = (unsigned int)p & 15;",
                "x = (unsigned int)__spe_number(p) & 15;",
            ),
            (
                "x = (int)&y; z = (float)w;",
                "x = (int)__spe_number(&y); z = (float)w;",
            ),
            ("x = (int)&((T *)0)->m;", "x = (int)&((T *)0)->m;"),
            ("x = (int)5; y = (char)p;", "x = (int)5; y = (char)p;"),
        ] {
            assert_eq!(
                rewritten(source, true),
                format!("void f(void) {{ {wanted} }}")
            );
        }
    }
}
