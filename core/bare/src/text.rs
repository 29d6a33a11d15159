//! Text from other people's files, peers and programs, made safe to show.
//!
//! Why here: a terminal obeys escape sequences, and a reader believes the order and the width of
//! the letters. Names in images and trees, digests, a server's words, names of programs and files
//! are untrusted. Every message passes through one of these functions, so that the shown text is
//! the real text.
//! Must stay true: the output holds no control character except those that a function names, no
//! character that changes the direction of text, and none without width. Other text is the same,
//! byte for byte, so a second application changes nothing. Pure.
//! Source: Unicode Standard Annex 9 (bidirectional formatting characters); ECMA-48 (C0 and C1);
//! Boucher and Anderson, "Trojan Source", 2021.

use std::borrow::Cow;
use std::error::Error;
use std::fmt::Write;

/// The text on one line: control characters, line ends included, and invisible ones as escapes
/// (`\x1b`, `\n`, `\u{202e}`).
///
/// ```
/// use sidecore_bare::text::printable;
/// assert_eq!(printable("a\x1b[31mb\u{202e}"), "a\\x1b[31mb\\u{202e}");
/// assert_eq!(printable("Gänse, 鵞鳥"), "Gänse, 鵞鳥");
/// ```
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, is_unsafe)
}

/// True where a terminal would obey the character, or a reader be misled by it: C0, DEL, C1, the
/// characters that set a direction, separators of lines, and characters without width. Joiners
/// (U+200C, U+200D) stay: scripts and pictures need them.
#[must_use]
pub fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}'
            | '\u{200b}' | '\u{200e}' | '\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

fn escaped(text: &str, is_unsafe: impl Fn(char) -> bool) -> Cow<'_, str> {
    let Some(first) = text.find(&is_unsafe) else {
        return Cow::Borrowed(text);
    };
    // Escapes are longer than what they replace; few texts have many.
    let mut safe = String::with_capacity(text.len() + 16);
    safe.push_str(&text[..first]);
    for c in text[first..].chars() {
        // Into memory: it does not fail.
        let _ = match c {
            _ if !is_unsafe(c) => safe.write_char(c),
            '\n' => safe.write_str("\\n"),
            '\r' => safe.write_str("\\r"),
            '\t' => safe.write_str("\\t"),
            '\0'..='\x7f' => write!(safe, "\\x{:02x}", u32::from(c)),
            _ => write!(safe, "\\u{{{:x}}}", u32::from(c)),
        };
    }
    Cow::Owned(safe)
}

/// JSON without the characters that a terminal obeys and JSON lets pass (DEL, C1, directions): they
/// are written as `\u202e`, which readers of JSON take for the same character. Line ends stay.
#[must_use]
pub fn printable_json(json: String) -> String {
    // Line ends stand between JSON's parts only: strings have them escaped.
    let is_obeyed = |c| c != '\n' && is_unsafe(c);
    if !json.contains(is_obeyed) {
        return json;
    }
    let mut safe = String::with_capacity(json.len() + 64);
    for c in json.chars() {
        if is_obeyed(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                // Into memory: it does not fail.
                let _ = write!(safe, "\\u{unit:04x}");
            }
        } else {
            safe.push(c);
        }
    }
    safe
}

/// An error and its causes in one line, printable; a cause that its effect's text already contains
/// is not repeated.
#[must_use]
pub fn causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        next = cause.source();
    }
    printable(&text).into_owned()
}

/// Formats bytes with a binary unit and about three digits: `288 KiB`, `12 MiB`, `1.5 GiB`.
#[must_use]
pub fn bytes(count: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let Some((shift, unit)) = units.into_iter().find(|(shift, _)| count >> shift > 0) else {
        return format!("{count} B");
    };
    let value = count as f64 / (1_u64 << shift) as f64;
    match value >= 100.0 || value.fract() < 0.05 {
        true => format!("{value:.0} {unit}"),
        false => format!("{value:.1} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_nothing_that_terminals_obey() {
        let json = "[\n \"\u{9b}31m\u{7f}\", \"\u{202e}\u{e0041}\", \"a\\nb \u{fc}\"]";
        let safe = printable_json(json.to_owned());
        let escaped = r#""\u009b31m\u007f", "\u202e\udb40\udc41", "a\nb ü"]"#;
        assert_eq!(safe, format!("[\n {escaped}"));
    }

    #[derive(Debug)]
    struct Fault(&'static str, Option<Box<Self>>);

    impl std::fmt::Display for Fault {
        fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            to.write_str(self.0)
        }
    }

    impl Error for Fault {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            self.1.as_deref().map(|cause| cause as _)
        }
    }

    #[test]
    fn an_error_is_one_line_whatever_is_in_it() {
        let cause = Fault("a\x1b[2Jb", Some(Box::new(Fault("a", None))));
        let error = Fault("digest c\nsidecore: d", Some(Box::new(cause)));
        assert_eq!(causes(&error), "digest c\\nsidecore: d: a\\x1b[2Jb");
    }

    #[test]
    fn bytes_are_short() {
        assert_eq!(bytes(72 * 4096), "288 KiB");
        assert_eq!(bytes(3072 * 4096), "12 MiB");
        assert_eq!(bytes(3 << 19), "1.5 MiB");
        assert_eq!(bytes(5), "5 B");
        assert_eq!(bytes(5 << 40), "5 TiB");
    }

    #[test]
    fn every_character_that_a_terminal_obeys_is_escaped() {
        let obeyed = (0..0x20)
            .chain(0x7f..0xa0)
            .chain([0x200e, 0x202a, 0x202e, 0x2066, 0x2069, 0xfeff, 0xe0041]);
        for c in obeyed.filter_map(char::from_u32) {
            let safe = printable(&format!("a{c}b")).into_owned();
            assert!(safe.starts_with("a\\") && safe.ends_with('b'), "{safe}");
            assert!(!safe.chars().any(is_unsafe), "{safe:?}");
            // Once more changes nothing.
            assert_eq!(printable(&safe), safe);
        }
        assert_eq!(
            printable("\x1b]0;t\x07\u{9b}31m"),
            "\\x1b]0;t\\x07\\u{9b}31m"
        );
        assert_eq!(printable("a\nb\r\tc"), "a\\nb\\r\\tc");
    }

    #[test]
    fn other_text_is_the_same_and_not_copied() {
        for text in [
            "",
            "plain",
            "C:\\dir",
            "Ünï, مرحبا, नमस्ते \u{200d}",
            "👩\u{200d}🔬",
        ] {
            assert!(matches!(printable(text), Cow::Borrowed(same) if same == text));
        }
    }
}
