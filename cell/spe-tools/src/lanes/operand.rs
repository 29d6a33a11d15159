//! Extents of C's unary expressions, by their pieces.

use super::types::Types;
use crate::text::Text;
use crate::tokens::Kind;

/// The place behind the unary expression that begins at `place`; nothing where none does.
pub(crate) fn end(text: &Text<'_>, types: &Types, place: usize) -> Option<usize> {
    let mut at = place;
    loop {
        match (text.at(at), text.kind(at)?) {
            // What stands before an operand belongs to it; so does a cast, below.
            (b"-" | b"+" | b"~" | b"!" | b"*" | b"&", _) => at += 1,
            (b"sizeof" | b"__extension__", _) => at += 1,
            (b"(", _) => {
                let close = text.partner(at)?;
                // Only a type ends with an asterisk.
                let pointer = text.at(close - 1) == b"*";
                let cast =
                    pointer || types.is_type(text, at + 1, close) || is_named_cast(text, at, close);
                if !cast {
                    return Some(behind_postfix(text, close + 1));
                }
                // A compound literal is an object: no further operand follows.
                if text.at(close + 1) == b"{" {
                    return Some(behind_postfix(text, text.partner(close + 1)? + 1));
                }
                at = close + 1;
            }
            (_, Kind::Word) => {
                let mut last = at;
                // Names of C++ with their spaces.
                while text.at(last + 1) == b":" && text.at(last + 2) == b":" {
                    last += 3;
                }
                return Some(behind_postfix(text, last + 1));
            }
            (_, Kind::Number) => return Some(behind_postfix(text, at + 1)),
            (_, Kind::Quoted) => {
                while text.kind(at) == Some(Kind::Quoted) {
                    at += 1;
                }
                return Some(behind_postfix(text, at));
            }
            _ => return None,
        }
    }
}

/// True where an expression may begin.
pub(crate) fn begins(text: &Text<'_>, place: usize) -> bool {
    match text.kind(place) {
        // `__attribute__` and `__asm__` follow a declaration's parenthesis.
        Some(Kind::Word) => !text.at(place).starts_with(b"__a"),
        Some(Kind::Number | Kind::Quoted) => true,
        Some(Kind::Mark) => {
            matches!(
                text.at(place),
                b"(" | b"-" | b"+" | b"~" | b"!" | b"*" | b"&"
            )
        }
        _ => false,
    }
}

/// A name alone in parentheses before a name or number can only be a type.
fn is_named_cast(text: &Text<'_>, open: usize, close: usize) -> bool {
    let named = close == open + 2 && text.is_word(open + 1);
    named && matches!(text.kind(close + 1), Some(Kind::Word | Kind::Number))
}

fn behind_postfix(text: &Text<'_>, place: usize) -> usize {
    let mut at = place;
    loop {
        // `a - >b` is no arrow, and `a + +b` is a sum.
        let adjacent = text.start(at + 1) == text.end(at);
        match text.at(at) {
            b"(" | b"[" => match text.partner(at) {
                Some(close) => at = close + 1,
                None => return at,
            },
            b"." if text.is_word(at + 1) => at += 2,
            b"-" if adjacent && text.at(at + 1) == b">" => at += 3,
            b"+" | b"-" if adjacent && text.at(at + 1) == text.at(at) => at += 2,
            _ => return at,
        }
    }
}
