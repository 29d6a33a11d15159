//! Vectors of numbers as the bytes of an SPU's register, for initializers that a compiler must
//! evaluate: there a cast can be no function.

use super::Pass;
use crate::lanes::types::{Shape, Types};
use crate::text::Text;
use crate::tokens::Kind;
use std::fmt::Write as _;

impl Pass<'_> {
    /// `(T) operand` in an initializer that the compiler must evaluate.
    pub(super) fn cast_of_numbers(
        &mut self,
        open: usize,
        type_at: usize,
        end: usize,
    ) -> Option<usize> {
        let (text, word) = (self.text, self.text.at(type_at));
        let (to, base) = (self.types.vector(word)?, self.types.base(word)?);
        let operand = text.partner(open)? + 1;
        let mut literal = cast(text, self.types, &base, to, operand, end)?;
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
    pub(super) fn splat(&mut self, place: usize) -> Option<usize> {
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
        let literal = cast(text, self.types, &name, shape, place, end)?;
        self.edits
            .replace(text.start(from), text.end(to - 1), literal);
        Some(to)
    }

    /// `(T){…}` in an initializer that the compiler must evaluate. Where it is the whole of an
    /// element, only the braces stay, since the compiler takes no literal for a constant object.
    pub(super) fn literal(&mut self, open: usize, close: usize) {
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
}

/// The braces of the literal that a cast of the literal at `place` to `name` is; nothing where an
/// element is more than a number.
fn cast(
    text: &Text<'_>,
    types: &Types,
    name: &str,
    to: Shape,
    place: usize,
    end: usize,
) -> Option<String> {
    let mut start = place;
    let mut last = end;
    // Parentheses around the whole.
    while text.at(start) == b"(" && text.partner(start) == Some(last - 1) {
        start += 1;
        last -= 1;
    }
    let register = literal(text, types, start, last).or_else(|| splat(text, types, start, last))?;
    write(name, to, &register)
}

/// The register of a vector's literal.
fn literal(text: &Text<'_>, types: &Types, start: usize, last: usize) -> Option<Vec<u8>> {
    let close = text.partner(start).filter(|_| text.at(start) == b"(")?;
    let from = types.shape(text, start + 1, close)?;
    let floats = (start + 1..close).any(|word| {
        let base = types.base(text.at(word)).unwrap_or_default();
        base.contains("float") || base.contains("double")
    });
    let open = close + 1;
    if !from.vector || text.at(open) != b"{" || text.partner(open) != Some(last - 1) {
        return None;
    }
    let mut register = Vec::with_capacity(16);
    let mut at = open + 1;
    while at < last - 1 {
        let (value, behind) = number(text, at, from.width, floats)?;
        register.extend_from_slice(&value.to_be_bytes()[8 - from.width..]);
        at = behind;
        match text.at(at) {
            b"," => at += 1,
            _ if at == last - 1 => {}
            _ => return None,
        }
    }
    register.resize(register.len().max(16), 0);
    (register.len() == 16).then_some(register)
}

/// The register of a number in all elements, by an intrinsic that no initializer may call here.
fn splat(text: &Text<'_>, types: &Types, start: usize, last: usize) -> Option<Vec<u8>> {
    let named = matches!(text.at(start), b"spu_splats" | b"vec_splats");
    if !named || text.partner(start + 1) != Some(last - 1) {
        return None;
    }
    let mut at = start + 2;
    let mut width = None;
    let mut floats = false;
    let is_cast = text.at(at) == b"(";
    if is_cast {
        let close = text.partner(at)?;
        width = Some(types.shape(text, at + 1, close)?.width);
        floats = matches!(text.at(close - 1), b"float" | b"double");
        at = close + 1;
    }
    let place = if text.at(at) == b"-" { at + 1 } else { at };
    let word = text.at(place);
    let hexadecimal = word.starts_with(b"0x") || word.starts_with(b"0X");
    let point = !hexadecimal
        && word
            .iter()
            .any(|byte| matches!(byte, b'.' | b'e' | b'f' | b'F'));
    let long = word
        .iter()
        .filter(|byte| matches!(byte, b'l' | b'L'))
        .count()
        > 1;
    // The cast would round it, and the bits of a float are no integer's.
    if is_cast && !floats && point {
        return None;
    }
    let double = point && !word.ends_with(b"f") && !word.ends_with(b"F");
    let width = width.unwrap_or(if long || double { 8 } else { 4 });
    let (value, behind) = number(text, at, width, floats || point)?;
    let bytes = value.to_be_bytes();
    (behind == last - 1).then(|| bytes[8 - width..].repeat(16 / width))
}

/// The braces of a literal of the vector type `name` with the register's bits.
fn write(name: &str, to: Shape, register: &[u8]) -> Option<String> {
    let mut literal = String::from("{");
    for element in register.chunks(to.width) {
        let value = element
            .iter()
            .fold(0_u64, |value, byte| value << 8 | u64::from(*byte));
        if name.contains("float") || name.contains("double") {
            let value = if to.width == 4 {
                f64::from(f32::from_bits(u32::try_from(value).ok()?))
            } else {
                f64::from_bits(value)
            };
            if !value.is_finite() {
                return None;
            }
            let _ = write!(literal, "{value:e},");
        } else {
            let ending = if to.width == 8 { "ULL" } else { "" };
            let _ = write!(literal, "{value:#x}{ending},");
        }
    }
    literal.pop();
    literal.push('}');
    Some(literal)
}

/// A number with or without a sign, as bits in the lowest `width` bytes.
fn number(text: &Text<'_>, place: usize, width: usize, floats: bool) -> Option<(u64, usize)> {
    let (negative, at) = match text.at(place) {
        b"-" => (true, place + 1),
        b"+" => (false, place + 1),
        _ => (false, place),
    };
    if text.kind(at)? != Kind::Number {
        return None;
    }
    let word = std::str::from_utf8(text.at(at)).ok()?;
    if floats {
        // Octal: another number than its digits say.
        let digits = word.bytes().take_while(u8::is_ascii_digit).count();
        if digits > 1 && digits == word.len() && word.starts_with('0') {
            return None;
        }
        let value: f64 = word.trim_end_matches(['f', 'F', 'l', 'L']).parse().ok()?;
        let value = if negative { -value } else { value };
        // The narrowing is C's own for an element of a float vector.
        #[allow(clippy::cast_possible_truncation)]
        let bits = if width == 4 {
            u64::from((value as f32).to_bits())
        } else {
            value.to_bits()
        };
        return Some((bits, at + 1));
    }
    let digits = word.trim_end_matches(['u', 'U', 'l', 'L']);
    let lower = digits.to_ascii_lowercase();
    let value = if let Some(hexadecimal) = lower.strip_prefix("0x") {
        u64::from_str_radix(hexadecimal, 16)
    } else if lower.len() > 1 && lower.starts_with('0') {
        u64::from_str_radix(&lower, 8)
    } else {
        lower.parse()
    };
    let value = value.ok()?;
    Some((
        if negative {
            value.wrapping_neg()
        } else {
            value
        },
        at + 1,
    ))
}
