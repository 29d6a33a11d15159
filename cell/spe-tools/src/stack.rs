//! Programs that look at the SPU's register 1, the stack's, by a variable of that register.
//!
//! Why: `register T name asm("1")` names no register of this machine. A pointer or number becomes
//! this machine's stack register. A vector, which holds the stack pointer and the bytes between
//! stack and heap, becomes a call of the library that returns both.
//!
//! Assembly outside of functions that gives a function another's name is refused: what an SPU has
//! in registers for both, this machine has in different places.
//!
//! Must stay true: declarations of other registers and all other source stay as they are, and
//! lines keep their numbers.

use crate::text::{Edits, Text};
use crate::tokens::{Kind, Token, next_seen, previous_seen, tokens};
use std::ops::Range;

/// The source with variables of register 1 in this machine's words; nothing where there are none.
pub(crate) fn registers(source: &[u8]) -> Option<Vec<u8>> {
    if !source.windows(8).any(|word| word == b"register") {
        return None;
    }
    let tokens = tokens(source);
    let text = |place: usize| {
        tokens
            .get(place)
            .map_or(&b""[..], |token| token.text(source))
    };
    let mut edits = Edits::default();
    let mut replace = |range: Range<usize>, new: &str| {
        edits.replace(tokens[range.start].start, tokens[range.end - 1].end, new);
    };
    for start in 0..tokens.len() {
        if text(start) != b"register" {
            continue;
        }
        let Some(found) = declaration(source, &tokens, start) else {
            continue;
        };
        if !found.vector {
            // The stacks grow alike, so the register alone has another name.
            replace(found.register..found.register + 1, "\"rsp\"");
            continue;
        }
        replace(start..found.end, CALL_DECLARATION);
        // To the source's end: such variables are declared outside functions.
        for place in found.end..tokens.len() {
            let member = matches!(text(previous_seen(&tokens, place)), b"." | b">");
            if text(place) == found.name && !member {
                replace(place..place + 1, CALL);
            }
        }
    }
    (!edits.is_empty()).then(|| edits.apply(source))
}

/// The error for assembly outside of functions by which one name becomes another's.
pub(crate) fn renames(source: &[u8]) -> Option<String> {
    if !source.windows(3).any(|part| part == b"asm") {
        return None;
    }
    let text = Text::new(source);
    let mut place = 0;
    while place < text.len() {
        let named = matches!(text.at(place), b"asm" | b"__asm__" | b"__asm");
        // Behind a declarator it is that one's own name.
        let stands = matches!(text.at(place.wrapping_sub(1)), b";" | b"}" | b"");
        let close = text.partner(place + 1).filter(|_| named && stands);
        let assigns = close.is_some_and(|close| {
            let mut strings = (place + 2..close).map(|at| text.at(at));
            strings.any(|part| {
                let word = |name: &[u8]| part.windows(name.len()).any(|found| found == name);
                part.contains(&b'=') || word(b".set") || word(b".equ")
            })
        });
        if assigns && text.is_users(place) {
            let (file, line) = text.position(place);
            return Some(format!(
                "{file}:{line}: error: assembly outside of functions renames one; write a \
                 declaration with __attribute__((alias(\"...\")))"
            ));
        }
        // Only the file's scope is looked at.
        let skipped = text.partner(place).filter(|end| *end > place);
        place = skipped.filter(|_| text.at(place) == b"{").unwrap_or(place) + 1;
    }
    None
}

/// A variable of register 1, by the places of its pieces.
struct Declaration<'a> {
    name: &'a [u8],
    vector: bool,
    /// The register's string.
    register: usize,
    /// Behind the semicolon.
    end: usize,
}

/// The declaration that begins with `register` at `start`, if it is one of register 1.
fn declaration<'a>(source: &'a [u8], tokens: &[Token], start: usize) -> Option<Declaration<'a>> {
    let text = |place: usize| {
        tokens
            .get(place)
            .map_or(&b""[..], |token| token.text(source))
    };
    let (mut name, mut vector, mut pointer) = (None, false, false);
    let mut at = next_seen(tokens, start + 1);
    loop {
        match text(at) {
            b"asm" | b"__asm__" | b"__asm" => break,
            b"*" => pointer = true,
            word if tokens.get(at)?.kind == Kind::Word => {
                vector |= word == b"vector" || word.windows(4).any(|part| part == b"vec_");
                name = Some(at);
            }
            _ => return None,
        }
        at = next_seen(tokens, at + 1);
    }
    let open = next_seen(tokens, at + 1);
    let register = next_seen(tokens, open + 1);
    let close = next_seen(tokens, register + 1);
    let end = next_seen(tokens, close + 1);
    // An initializer or attribute makes it something else.
    let shape = (text(open), text(close), text(end)) == (b"(", b")", b";");
    (shape && NAMES.contains(&text(register))).then_some(Declaration {
        name: text(name?),
        vector: vector && !pointer,
        register,
        end: end + 1,
    })
}

/// Names of register 1.
const NAMES: &[&[u8]] = &[b"\"1\"", b"\"$1\"", b"\"sp\"", b"\"$sp\"", b"\"r1\""];
const CALL: &str = "__sidecore_stack_register()";
const CALL_DECLARATION: &str = "extern __spe_vec_uint4 __sidecore_stack_register(void);";

#[cfg(test)]
mod tests {
    #[test]
    fn assembly_that_renames_functions_is_refused() {
        let said = |source: &str| super::renames(format!("# 4 \"a.c\"\n{source}").as_bytes());
        let line = said("int a;\n__asm__ (\"f = g\");").expect("it is refused");
        assert!(line.starts_with("a.c:5: error: assembly outside"), "{line}");
        assert!(said("asm(\".set f, g\");").is_some());
        for source in [
            "int f(void) asm(\"x=y\"); asm(\"\");",
            "void f(void) { asm(\"a = b\"); }",
            "register int a asm(\"1\");",
        ] {
            assert_eq!(said(source), None, "{source}");
        }
    }

    use super::registers;

    fn rewritten(source: &str) -> Option<String> {
        registers(source.as_bytes()).map(|text| String::from_utf8(text).expect("text"))
    }

    #[test]
    fn pointers_are_this_machines_stack_register() {
        let source = "register volatile unsigned *top\n asm(\"1\"); int a = top != 0;";
        let wanted = "register volatile unsigned *top\n asm(\"rsp\"); int a = top != 0;";
        assert_eq!(rewritten(source).as_deref(), Some(wanted));
        for other in [
            "register int i; asm(\"1\");",
            "register int i asm(\"3\");",
            "register void f(int) asm(\"1\");",
            "int register_1;",
        ] {
            assert_eq!(rewritten(other), None, "{other}");
        }
    }

    #[test]
    fn vectors_are_asked_of_the_library() {
        let source = "register volatile __spe_vec_uint4 r1\n__asm__(\"$sp\"); \
                      int a = spu_extract(r1, 1) + b.r1 + c->r1;";
        let wanted = "extern __spe_vec_uint4 __sidecore_stack_register(void);\n \
                      int a = spu_extract(__sidecore_stack_register(), 1) + b.r1 + c->r1;";
        assert_eq!(rewritten(source).as_deref(), Some(wanted));
    }
}
