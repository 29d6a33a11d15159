//! Text in XML. Pure.

/// Text for an element or an attribute; characters that XML forbids are left out.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // XML would change them, and other controls are not allowed in it at all.
            '\t' | '\n' | '\r' => out.push(' '),
            _ if letter < ' ' || letter == '\u{FFFE}' || letter == '\u{FFFF}' => {}
            _ => out.push(letter),
        }
    }
    out
}
