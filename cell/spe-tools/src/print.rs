//! Vectors that programs print as numbers.
//!
//! Why: an SPU passes an argument in a register of its own, whatever its type, so a vector for `%x`
//! is its first word there. Here vectors and numbers travel by different registers. So each
//! argument that no `%v` prints is put through a macro of the kit's. The macro gives a vector's
//! first word, its first doubleword for `%llx` and the like, and anything else as it is. A vector
//! behind a format that is no literal is an error, since the format may print all of it. What `%v`
//! prints is turned to the elements that the conversion names.
//!
//! The same holds for functions of the user's own that take a format. To others with `...` a vector
//! goes as the register's bytes, and `va_arg` gives it back as the type that it names.
//!
//! Must stay true: a vector is read as its register, whatever the type that reads it.

use crate::lanes::types::Types;
use crate::text::{Edits, Text};
use crate::tokens::{Kind, Token, next_seen, tokens};
use std::collections::BTreeMap;
use std::ops::Range;

/// The source with the macro around printed arguments; nothing where there are none.
pub(crate) fn arguments(source: &[u8]) -> Option<Vec<u8>> {
    let tokens = tokens(source);
    let text = |place: usize| {
        tokens
            .get(place)
            .map_or(&b""[..], |token| token.text(source))
    };
    let mut edits = Edits::default();
    let own = Own::read(source, &mut edits);
    let mut last = &b""[..];
    for (place, token) in tokens.iter().enumerate() {
        let word = text(place);
        let before = last;
        if token.kind != Kind::Blank {
            last = word;
        }
        let printer = PRINTERS.iter().find(|(name, _)| *name == word);
        let printer = printer.map(|(_, format)| Variadic {
            fixed: *format + 1,
            formats: true,
        });
        let Some(function) = printer.or_else(|| own.function(word)) else {
            continue;
        };
        let mut open = next_seen(&tokens, place + 1);
        if before == b"(" && text(open) == b")" {
            // `(printf)(…)`, against a macro of that name.
            open = next_seen(&tokens, open + 1);
        }
        // A member by that name prints as it likes; so does a name that is not called.
        let member = printer.is_some() && (before == b"." || before == b">");
        if text(open) != b"(" || member {
            continue;
        }
        let all = parts(source, &tokens, open);
        // A call with too few arguments is the compiler's to name.
        let last_fixed = all.get(function.fixed - 1..).and_then(<[_]>::split_first);
        let Some((first, rest)) = last_fixed else {
            continue;
        };
        let format = literal(source, &tokens[first.0..first.1]).map(|format| printed(&format));
        let bytes = |part: &(usize, usize)| (tokens[part.0].start, tokens[part.1 - 1].end);
        let varies = rest.last().is_some_and(|last| {
            let (start, end) = bytes(last);
            source[start..end].ends_with(b"...")
        });
        // A declaration; one of the user's own may have other parameters, behind its type.
        let typed = before.first().is_some_and(u8::is_ascii_alphabetic)
            && !matches!(before, b"return" | b"else" | b"do");
        if varies || (typed && format.is_none()) {
            continue;
        }
        let whole = |part: &Printed| matches!(part, Printed::Whole(_));
        let has_whole = format.as_ref().is_some_and(|all| all.iter().any(whole));
        if function.formats && has_whole && !rest.is_empty() {
            // The compiler knows no `%v`, and would warn of each.
            let (start, end) = bytes(first);
            edits.replace(start, start, "__sidecore_format(");
            edits.replace(end, end, ")");
        }
        for (number, part) in rest.iter().enumerate() {
            let name = match format.as_ref().map(|all| all.get(number)) {
                _ if !function.formats => "__sidecore_print_1(",
                Some(Some(Printed::Whole(1))) => "__sidecore_print_1(",
                Some(Some(Printed::Whole(2))) => "__sidecore_print_2(",
                Some(Some(Printed::Whole(4))) => "__sidecore_print_4(",
                Some(Some(Printed::Whole(_))) => "__sidecore_print_8(",
                Some(Some(Printed::Doubleword)) => "__sidecore_print_long(",
                Some(_) => "__sidecore_print(",
                None => "__sidecore_print_unknown(",
            };
            let (start, end) = bytes(part);
            edits.replace(start, start, name);
            edits.replace(end, end, ")");
        }
    }
    (!edits.is_empty()).then(|| edits.apply(source))
}

/// A function that takes arguments without a type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Variadic {
    /// Parameters before them.
    fixed: usize,
    /// True where the last of those is a format.
    formats: bool,
}

/// The user's own functions of the kind.
#[derive(Debug, Default)]
struct Own {
    all: BTreeMap<Vec<u8>, Variadic>,
    /// Names and bodies of those that the source defines.
    bodies: Vec<(Vec<u8>, Range<usize>)>,
}

impl Own {
    /// Reads their declarations, and lets `va_arg` give vectors by their registers.
    fn read(source: &[u8], edits: &mut Edits) -> Self {
        let mut own = Self::default();
        let text = Text::new(source);
        let types = Types::read(&text);
        let mut takes = Vec::new();
        for place in 0..text.len() {
            if text.at(place) == b"__builtin_va_arg" {
                takes.extend(take(&text, &types, place, edits).then_some(place));
            } else if text.at(place) == b"(" && text.is_users(place) {
                own.declare(&text, place);
            }
        }
        // With vectors in its own hands a function has conversions of its own as well.
        for place in takes {
            let around = own.bodies.iter().find(|(_, body)| body.contains(&place));
            let name = around.map(|(name, _)| name);
            for (function, variadic) in &mut own.all {
                // A function with the list of another's may be any one's.
                variadic.formats &= name.is_some_and(|name| name != function);
            }
        }
        own
    }

    fn function(&self, name: &[u8]) -> Option<Variadic> {
        self.all.get(name).copied()
    }

    /// Reads parameters that open at `open` and end with `...`.
    fn declare(&mut self, text: &Text<'_>, open: usize) {
        let Some(close) = text.partner(open).filter(|close| *close > open + 4) else {
            return;
        };
        if (close - 3..close).any(|at| text.at(at) != b".") || text.at(close - 4) != b"," {
            return;
        }
        // `(*name)(…)` is a pointer to one.
        let before = open.checked_sub(1).filter(|at| text.at(*at) == b")");
        let name = before.map_or(open.checked_sub(1), |shut| shut.checked_sub(1));
        let Some(name) = name.filter(|name| text.is_word(*name)) else {
            return;
        };
        let mut commas = vec![open];
        let mut at = open + 1;
        while at < close {
            if text.at(at) == b"," {
                commas.push(at);
            }
            at = text.partner(at).filter(|end| *end > at).unwrap_or(at) + 1;
        }
        let fixed = commas.len() - 1;
        let Some(last) = commas.get(fixed.wrapping_sub(1)) else {
            return;
        };
        let pieces = || *last + 1..close - 4;
        let formats =
            pieces().any(|at| text.at(at) == b"char") && pieces().any(|at| text.at(at) == b"*");
        let function = Variadic { fixed, formats };
        self.all.insert(text.at(name).to_vec(), function);
        let end = text.partner(close + 1);
        let body = end
            .filter(|_| text.at(close + 1) == b"{")
            .map(|end| close..end);
        self.bodies
            .extend(body.map(|body| (text.at(name).to_vec(), body)));
    }
}

/// Rewrites `__builtin_va_arg(list, T)` at `place` for a vector T; true where it is one.
fn take(text: &Text<'_>, types: &Types, place: usize, edits: &mut Edits) -> bool {
    let Some(close) = text.partner(place + 1) else {
        return false;
    };
    let Some(comma) = (place + 2..close).rev().find(|at| text.at(*at) == b",") else {
        return false;
    };
    let vector = types
        .shape(text, comma + 1, close)
        .is_some_and(|shape| shape.vector);
    if !vector || (comma + 1..close).any(|at| text.at(at) == b"*") {
        return false;
    }
    let name = text.span(comma + 1, close);
    let start = text.start(place);
    edits.replace(start, start, format!("__sidecore_taken({name}, "));
    edits.replace(
        text.start(comma + 1),
        text.end(close - 1),
        "__spe_vec_uchar16",
    );
    let behind = text.end(close);
    edits.replace(behind, behind, ")");
    true
}

/// The arguments of a call, by the places of their pieces, without blanks around them.
fn parts(source: &[u8], tokens: &[Token], open: usize) -> Vec<(usize, usize)> {
    let mut all = Vec::new();
    let mut depth = 0_usize;
    let mut range: Option<(usize, usize)> = None;
    for (place, token) in tokens.iter().enumerate().skip(open) {
        let word = token.text(source);
        if token.kind == Kind::Mark {
            match word {
                b"(" | b"[" | b"{" => depth += 1,
                b")" | b"]" | b"}" => depth -= 1,
                _ => {}
            }
        }
        if depth == 0 || (depth == 1 && word == b",") {
            // An empty argument: no call that C has.
            let Some(part) = range.take() else {
                return Vec::new();
            };
            all.push(part);
            if depth == 0 {
                return all;
            }
        } else if place > open && token.kind != Kind::Blank {
            range = Some((range.map_or(place, |range| range.0), place + 1));
        }
    }
    Vec::new()
}

/// The text of a format that is a literal, or several behind one another.
fn literal(source: &[u8], format: &[Token]) -> Option<Vec<u8>> {
    let mut all = Vec::new();
    for token in format.iter().filter(|token| token.kind != Kind::Blank) {
        let text = token.text(source).strip_prefix(b"\"")?;
        all.extend_from_slice(text.strip_suffix(b"\"")?);
    }
    Some(all)
}

/// The part of an argument that a conversion prints, where it is a vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Printed {
    Word,
    Doubleword,
    /// All, as elements of this size.
    Whole(usize),
}

/// The parts that a format prints of each argument.
fn printed(format: &[u8]) -> Vec<Printed> {
    let mut all = Vec::new();
    let mut bytes = format.iter();
    while bytes.any(|byte| *byte == b'%') {
        let (mut longs, mut shorts) = (0, 0);
        let mut whole = false;
        for byte in bytes.by_ref() {
            match byte {
                b'%' => break,
                // A width or precision is an argument of its own, before the one that is printed.
                b'*' => all.push(Printed::Word),
                b'-' | b'+' | b' ' | b'#' | b'0'..=b'9' | b'.' => {}
                b',' | b';' | b':' | b'_' | b'z' | b't' => {}
                b'h' => shorts += 1,
                // Longs have 4 bytes.
                b'l' => longs += 1,
                b'L' | b'j' | b'q' => longs += 2,
                // Twice it stands for doubles.
                b'v' => {
                    longs += if whole { 2 } else { 0 };
                    whole = true;
                }
                letter => {
                    all.push(conversion(*letter, whole, longs, shorts));
                    break;
                }
            }
        }
    }
    all
}

/// The part that one conversion prints.
fn conversion(letter: u8, whole: bool, longs: u32, shorts: u32) -> Printed {
    let real = b"aAeEfFgG".contains(&letter);
    if !whole {
        let integer = b"diouxX".contains(&letter);
        return if integer && longs > 1 {
            Printed::Doubleword
        } else {
            Printed::Word
        };
    }
    // As the library divides a vector.
    Printed::Whole(match (longs, real, shorts) {
        (2.., _, _) | (1, true, _) => 8,
        (1, false, _) | (0, true, _) => 4,
        (0, false, 1) => 2,
        (0, false, _) => 1,
    })
}

/// Functions that print, and the place of their formats.
const PRINTERS: &[(&[u8], usize)] = &[
    (b"printf", 0),
    (b"fprintf", 1),
    (b"sprintf", 1),
    (b"snprintf", 2),
];

#[cfg(test)]
mod tests {
    use super::arguments;

    fn rewritten(source: &str) -> Option<String> {
        arguments(source.as_bytes()).map(|text| String::from_utf8(text).expect("text"))
    }

    #[test]
    fn what_is_printed_goes_through_the_macro() {
        for (source, wanted) in [
            (
                "printf(\"%x %d\\n\", spu_gather(a, b) , f[1, 2]);",
                "printf(\"%x %d\\n\", __sidecore_print(spu_gather(a, b)) , \
                 __sidecore_print(f[1, 2]));",
            ),
            (
                "fprintf(out, \"%\" \"d\", printf(\"%s\", a));",
                "fprintf(out, \"%\" \"d\", \
                 __sidecore_print(printf(\"%s\", __sidecore_print(a))));",
            ),
            (
                "printf(\"%vd %d%% %*\" \".3vf %f\", a, b, 2, c, d);",
                "printf(__sidecore_format(\"%vd %d%% %*\" \".3vf %f\"), \
                 __sidecore_print_1(a), __sidecore_print(b), __sidecore_print(2), \
                 __sidecore_print_4(c), __sidecore_print(d));",
            ),
            (
                "printf(\"%vhd %lvx %vvf %vlld %vc\", a, b, c, d, e);",
                "printf(__sidecore_format(\"%vhd %lvx %vvf %vlld %vc\"), __sidecore_print_2(a), \
                 __sidecore_print_4(b), __sidecore_print_8(c), __sidecore_print_8(d), \
                 __sidecore_print_1(e));",
            ),
            (
                "void note(int n, const char *format, ...); void f() { note(1, \"%d\", a); }",
                "void note(int n, const char *format, ...); void f() { note(1, \"%d\", \
                 __sidecore_print(a)); }",
            ),
            (
                "int (*all)(int n, ...); void f() { p->all(1, a, 2); }",
                "int (*all)(int n, ...); void f() { p->all(1, __sidecore_print_1(a), \
                 __sidecore_print_1(2)); }",
            ),
            (
                "v = __builtin_va_arg(l, __spe_vec_uint4); n = __builtin_va_arg(l, int);",
                "v = __sidecore_taken(__spe_vec_uint4, __builtin_va_arg(l, __spe_vec_uchar16)); \
                 n = __builtin_va_arg(l, int);",
            ),
            (
                "printf(\"%llx %lx %s\", a, b, c); (printf)(\"%-8Ld\", d);",
                "printf(\"%llx %lx %s\", __sidecore_print_long(a), __sidecore_print(b), \
                 __sidecore_print(c)); (printf)(\"%-8Ld\", __sidecore_print_long(d));",
            ),
            (
                "sprintf(to, format, a, 1);",
                "sprintf(to, format, __sidecore_print_unknown(a), __sidecore_print_unknown(1));",
            ),
        ] {
            assert_eq!(rewritten(source).as_deref(), Some(wanted));
        }
    }

    #[test]
    fn other_calls_stay_as_they_are() {
        for source in [
            "printf(format);",
            "void printf(char *format, ...) {}",
            "static int printf(const char *format, int number) {}",
            "int printf(const char *, ...);",
            "a.printf(\"%d\", a); a->printf(\"%d\", a);",
            "printf(\"100%\");",
            "printf();",
        ] {
            assert_eq!(rewritten(source), None, "{source}");
        }
    }
}
