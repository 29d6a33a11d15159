//! Vectors that programs print as numbers.
//!
//! Why: an SPU passes an argument in a register of its own, whatever its type, so a vector for `%x`
//! is its first word there. Here vectors and numbers travel by different registers. So each
//! argument that no `%v` prints is put through a macro of the kit's. The macro gives a vector's
//! first word, its first doubleword for `%llx` and the like, and anything else as it is. A vector
//! behind a format that is no literal is an error, since the format may print all of it.
//!
//! Must stay true: arguments of `%v` stay as they are.

use crate::text::Edits;
use crate::tokens::{Kind, Token, next_seen, tokens};

/// The source with the macro around printed arguments; nothing where there are none.
pub(crate) fn arguments(source: &[u8]) -> Option<Vec<u8>> {
    let tokens = tokens(source);
    let text = |place: usize| {
        tokens
            .get(place)
            .map_or(&b""[..], |token| token.text(source))
    };
    let mut edits = Edits::default();
    let mut last = &b""[..];
    for (place, token) in tokens.iter().enumerate() {
        let word = text(place);
        let before = last;
        if token.kind != Kind::Blank {
            last = word;
        }
        let Some((_, format)) = PRINTERS.iter().find(|(name, _)| *name == word) else {
            continue;
        };
        let mut open = next_seen(&tokens, place + 1);
        if before == b"(" && text(open) == b")" {
            // `(printf)(…)`, against a macro of that name.
            open = next_seen(&tokens, open + 1);
        }
        // A member by that name prints as it likes; so does a name that is not called.
        if text(open) != b"(" || before == b"." || before == b">" {
            continue;
        }
        let all = parts(source, &tokens, open);
        // A call with too few arguments is the compiler's to name.
        let Some((first, rest)) = all.get(*format..).and_then(<[_]>::split_first) else {
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
        for (number, part) in rest.iter().enumerate() {
            let name = match format.as_ref().map(|all| all.get(number)) {
                Some(Some(Printed::Whole)) => continue,
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
    Whole,
}

/// The parts that a format prints of each argument.
fn printed(format: &[u8]) -> Vec<Printed> {
    let mut all = Vec::new();
    let mut bytes = format.iter();
    while bytes.any(|byte| *byte == b'%') {
        let mut longs = 0;
        for byte in bytes.by_ref() {
            match byte {
                b'%' => break,
                // A width or precision is an argument of its own, before the one that is printed.
                b'*' => all.push(Printed::Word),
                b'-' | b'+' | b' ' | b'#' | b'0'..=b'9' | b'.' => {}
                b',' | b';' | b':' | b'_' | b'h' | b'z' | b't' => {}
                // Longs have 4 bytes.
                b'l' => longs += 1,
                b'L' | b'j' | b'q' => longs += 2,
                b'v' => {
                    all.push(Printed::Whole);
                    break;
                }
                b'd' | b'i' | b'o' | b'u' | b'x' | b'X' if longs > 1 => {
                    all.push(Printed::Doubleword);
                    break;
                }
                _ => {
                    all.push(Printed::Word);
                    break;
                }
            }
        }
    }
    all
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
                "printf(\"%vd %d%% %*\" \".3vf %f\", a, __sidecore_print(b), \
                 __sidecore_print(2), c, __sidecore_print(d));",
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
            "printf(\"%8.3,vf\", a);",
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
