//! Vectors that programs print as numbers.
//!
//! Why: an SPU passes an argument in a register of its own, whatever its type, so a vector for `%x`
//! is its first word there. Here vectors and numbers travel by different registers. So each
//! argument that no `%v` prints is put through a macro of the kit's. The macro gives a vector's
//! first word, and anything else as it is.
//!
//! Must stay true: arguments of `%v`, and calls whose format is no literal, stay as they are.

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
        let open = next_seen(&tokens, place + 1);
        // A member by that name prints as it likes; so does a name that is not called.
        if text(open) != b"(" || before == b"." || before == b">" {
            continue;
        }
        let all = parts(source, &tokens, open);
        // A call with too few arguments is the compiler's to name.
        let Some((first, rest)) = all.get(*format..).and_then(<[_]>::split_first) else {
            continue;
        };
        let Some(format) = literal(source, &tokens[first.0..first.1]) else {
            continue;
        };
        let vectors = vectors(&format);
        for (number, (start, end)) in rest.iter().enumerate() {
            if vectors.contains(&number) {
                continue;
            }
            let (start, end) = (tokens[*start].start, tokens[*end - 1].end);
            edits.replace(start, start, "__sidecore_print(");
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

/// The numbers of the arguments that a format prints as whole vectors.
fn vectors(format: &[u8]) -> Vec<usize> {
    let mut all = Vec::new();
    let mut argument = 0;
    let mut bytes = format.iter();
    while bytes.any(|byte| *byte == b'%') {
        for byte in bytes.by_ref() {
            match byte {
                b'%' => break,
                // A width or precision is an argument of its own, before the one that is printed.
                b'*' => argument += 1,
                b'-' | b'+' | b' ' | b'#' | b'0'..=b'9' | b'.' => {}
                b',' | b';' | b':' | b'_' | b'h' | b'l' | b'L' | b'j' | b'z' | b't' | b'q' => {}
                b'v' => {
                    all.push(argument);
                    argument += 1;
                    break;
                }
                _ => {
                    argument += 1;
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
        ] {
            assert_eq!(rewritten(source).as_deref(), Some(wanted));
        }
    }

    #[test]
    fn other_calls_stay_as_they_are() {
        for source in [
            "printf(\"%8.3,vf\", a);",
            "printf(format, a);",
            "int printf(const char *, ...);",
            "a.printf(\"%d\", a); a->printf(\"%d\", a);",
            "printf(\"100%\");",
            "printf();",
        ] {
            assert_eq!(rewritten(source), None, "{source}");
        }
    }
}
