//! Widths of letters, near enough to keep room for a name.
//!
//! Source: the advance widths of Helvetica and its likenesses, in classes.

/// Width of a text in a sans-serif font of this size, in the size's unit; a little too wide rather
/// than too narrow.
pub(super) fn width(text: &str, size: f64) -> f64 {
    let each = text.chars().map(|letter| match letter {
        'i' | 'j' | 'l' | '\'' | '|' => 0.25,
        ' ' | '.' | ',' | ':' | ';' | '!' | 'I' | 'f' | 't' | '/' => 0.31,
        '-' | '(' | ')' | '[' | ']' | 'r' => 0.36,
        'm' | 'w' | 'M' | 'W' | '@' | '%' => 0.92,
        'A'..='Z' | '<' | '>' | '≥' => 0.72,
        'a'..='z' | '0'..='9' => 0.58,
        // Scripts with wide letters.
        _ if u32::from(letter) > 0x2E80 => 1.0,
        _ => 0.65,
    });
    size * each.sum::<f64>()
}
