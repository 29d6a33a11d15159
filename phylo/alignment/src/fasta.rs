//! FASTA: `>name comment`, then the sequence over any number of lines.
//!
//! A name ends at the first blank. If several would be the same then (`>Homo sapiens`, `>Homo
//! erectus`), all are whole lines with `_` for blanks.

use super::{Accept, MsaError, Rows, name, shown};

pub(super) fn parse(bytes: &[u8], accept: Accept) -> Result<Rows, MsaError> {
    let (mut names, mut rows) = (Vec::new(), Vec::<Vec<u8>>::new());
    let mut heads = Vec::new();
    for (number, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
        let error = |what: String| MsaError::Format {
            format: "FASTA",
            line: number + 1,
            what,
        };
        if let Some(head) = line.strip_prefix(b">") {
            // The name ends at the first blank; the rest of the line is a description.
            let word = head
                .split(u8::is_ascii_whitespace)
                .find(|word| !word.is_empty());
            let word = word.ok_or_else(|| error("a sequence without a name".to_owned()))?;
            names.push(name(word));
            heads.push(head);
            rows.push(Vec::new());
            continue;
        }
        for &byte in line {
            if byte.is_ascii_whitespace() {
                continue;
            }
            if !accept(byte) {
                let character = shown(&String::from_utf8_lossy(&[byte]));
                return Err(error(format!("`{character}` cannot stand in a sequence")));
            }
            let row = rows.last_mut();
            row.ok_or_else(|| error("characters before the first `>`".to_owned()))?
                .push(byte);
        }
    }
    if super::check_distinct(&names).is_err() {
        let whole: Vec<String> = heads.into_iter().map(whole_name).collect();
        // Where that does not help either, the shorter names make the better message.
        if super::check_distinct(&whole).is_ok() {
            names = whole;
        }
    }
    Ok((names, rows))
}

/// A line's words, `_` between them.
fn whole_name(head: &[u8]) -> String {
    let words = head
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    let words: Vec<String> = words.map(name).collect();
    words.join("_")
}
