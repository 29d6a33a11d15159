//! NEXUS: the matrix of a DATA or CHARACTERS block.
//!
//! Understood: DIMENSIONS NTAX NCHAR, FORMAT GAP MISSING MATCHCHAR INTERLEAVE, quoted names,
//! comments in brackets. Other blocks and commands are passed over.
//! Source: Maddison, Swofford, Maddison, "NEXUS: an extensible file format for systematic
//! information", Systematic Biology 46 (1997), 590-621.

use super::{Accept, Dots, MsaError, Rows, check_declared, name, shown};
use std::collections::HashMap;

/// The matrix, and the meaning of dots in it. Where a file names its gap and that is no dot, a dot
/// can only be the first sequence's character.
pub(super) fn parse(bytes: &[u8], accept: Accept) -> Result<(Rows, Dots), MsaError> {
    let text = without_comments(bytes)?;
    let mut tokens = Tokens { text: &text, at: 0 };
    let mut format = Format::default();
    let mut in_data = false;
    while let Some(word) = tokens.word() {
        if is(word, "BEGIN") {
            let block = tokens.word().unwrap_or_default();
            in_data = is(block, "DATA") || is(block, "CHARACTERS");
            tokens.skip_command();
        } else if in_data && is(word, "DIMENSIONS") {
            tokens.options(|key, value| match value.and_then(number) {
                Some(count) if is(key, "NTAX") => format.taxa = Some(count),
                Some(count) if is(key, "NCHAR") => format.sites = Some(count),
                _ => {}
            });
        } else if in_data && is(word, "FORMAT") {
            tokens.options(|key, value| {
                let symbol = value.and_then(|value| value.first().copied());
                match symbol {
                    Some(symbol) if is(key, "GAP") => {
                        (format.gap, format.dots) = (symbol, Dots::Match);
                    }
                    Some(symbol) if is(key, "MISSING") => format.missing = symbol,
                    Some(symbol) if is(key, "MATCHCHAR") => format.matching = Some(symbol),
                    Some(answer) if is(key, "INTERLEAVE") => {
                        format.interleave = !answer.eq_ignore_ascii_case(&b'n');
                    }
                    None if is(key, "INTERLEAVE") => format.interleave = true,
                    _ => {}
                }
            });
        } else if in_data && is(word, "MATRIX") {
            return Ok((matrix(tokens, &format, accept)?, format.dots));
        } else if word != b";" && !is(word, "#NEXUS") {
            tokens.skip_command();
        }
    }
    Err(MsaError::Format {
        format: "NEXUS",
        line: 1,
        what: "no MATRIX in a DATA or CHARACTERS block".to_owned(),
    })
}

struct Format {
    taxa: Option<usize>,
    sites: Option<usize>,
    gap: u8,
    missing: u8,
    matching: Option<u8>,
    interleave: bool,
    dots: Dots,
}

impl Default for Format {
    fn default() -> Self {
        Self {
            taxa: None,
            sites: None,
            gap: b'-',
            missing: b'?',
            matching: None,
            interleave: false,
            dots: Dots::Unclear,
        }
    }
}

fn matrix(mut tokens: Tokens<'_>, format: &Format, accept: Accept) -> Result<Rows, MsaError> {
    let (mut names, mut rows) = (Vec::<String>::new(), Vec::<Vec<u8>>::new());
    let mut known: HashMap<String, usize> = HashMap::new();
    loop {
        tokens.skip_blanks();
        if tokens.peek() == Some(b';') {
            break;
        }
        let Some(word) = tokens.label() else {
            return Err(tokens.error("the matrix does not end with `;`"));
        };
        let taxon = name(&word);
        // Only blocks repeat names; elsewhere whoever gets the rows finds all repeated ones.
        let earlier = known.get(&taxon).filter(|_| format.interleave);
        let row = earlier.copied().unwrap_or_else(|| {
            known.insert(taxon.clone(), rows.len());
            names.push(taxon);
            rows.push(Vec::new());
            rows.len() - 1
        });
        loop {
            let whole = !format.interleave && format.sites == Some(rows[row].len());
            match tokens.peek() {
                None | Some(b';') => break,
                Some(_) if whole => break,
                Some(b'\n') if format.interleave || format.sites.is_none() => break,
                Some(byte) if byte.is_ascii_whitespace() => {}
                Some(byte) => {
                    let site = rows[row].len();
                    let byte = translate(byte, format, || {
                        rows.first()
                            .filter(|_| row > 0)
                            .and_then(|first| first.get(site))
                            .copied()
                    });
                    let byte = byte.ok_or_else(|| tokens.error("no character to match here"))?;
                    if !accept(byte) {
                        let character = shown(&String::from_utf8_lossy(&[byte]));
                        let what = format!("`{character}` cannot stand in a sequence");
                        return Err(tokens.error(&what));
                    }
                    rows[row].push(byte);
                }
            }
            tokens.at += 1;
        }
    }
    check_declared(&names, &rows, format.taxa, format.sites)?;
    Ok((names, rows))
}

fn translate(byte: u8, format: &Format, first: impl FnOnce() -> Option<u8>) -> Option<u8> {
    if Some(byte) == format.matching {
        first()
    } else if byte == format.gap {
        Some(b'-')
    } else if byte == format.missing {
        Some(b'?')
    } else {
        Some(byte)
    }
}

struct Tokens<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Tokens<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn skip_blanks(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    /// The next word, or the single character `;`, `=` or `,`.
    fn word(&mut self) -> Option<&'a [u8]> {
        self.skip_blanks();
        let start = self.at;
        if matches!(self.peek()?, b';' | b'=' | b',') {
            self.at += 1;
            return Some(&self.text[start..self.at]);
        }
        while self
            .peek()
            .is_some_and(|b| !b.is_ascii_whitespace() && !matches!(b, b';' | b'='))
        {
            self.at += 1;
        }
        Some(&self.text[start..self.at])
    }

    /// A taxon's name: a word, or in quotes, where two quotes stand for one.
    fn label(&mut self) -> Option<Vec<u8>> {
        let quote = self.peek()?;
        if !matches!(quote, b'\'' | b'"') {
            return self.word().map(<[u8]>::to_vec);
        }
        self.at += 1;
        let mut label = Vec::new();
        loop {
            let byte = self.peek()?;
            self.at += 1;
            if byte != quote {
                label.push(byte);
            } else if self.peek() == Some(quote) {
                label.push(quote);
                self.at += 1;
            } else {
                // A name with blanks could not be written in Newick or PHYLIP.
                label
                    .iter_mut()
                    .filter(|b| b.is_ascii_whitespace())
                    .for_each(|b| *b = b'_');
                return Some(label);
            }
        }
    }

    fn skip_command(&mut self) {
        while let Some(byte) = self.peek() {
            self.at += 1;
            if byte == b';' {
                break;
            }
        }
    }

    /// Reads `key` and `key = value` up to the end of the command.
    fn options(&mut self, mut each: impl FnMut(&[u8], Option<&[u8]>)) {
        let mut key: Option<&[u8]> = None;
        while let Some(word) = self.word() {
            match word {
                b";" => break,
                b"=" => {
                    let value = self.word();
                    if let Some(key) = key.take() {
                        each(key, value);
                    }
                    if value == Some(b";") {
                        break;
                    }
                }
                word => {
                    if let Some(key) = key.replace(word) {
                        each(key, None);
                    }
                }
            }
        }
        if let Some(key) = key {
            each(key, None);
        }
    }

    fn error(&self, what: &str) -> MsaError {
        let line = 1 + self.text[..self.at]
            .iter()
            .filter(|&&byte| byte == b'\n')
            .count();
        MsaError::Format {
            format: "NEXUS",
            line,
            what: what.to_owned(),
        }
    }
}

/// Comments blanked out, lines kept. They nest.
pub(super) fn without_comments(bytes: &[u8]) -> Result<Vec<u8>, MsaError> {
    let mut depth = 0_usize;
    let mut line = 1;
    let mut opened = 1;
    let mut text = Vec::with_capacity(bytes.len());
    for &byte in bytes {
        match byte {
            b'[' => {
                if depth == 0 {
                    opened = line;
                }
                depth += 1;
                text.push(b' ');
            }
            b']' if depth > 0 => {
                depth -= 1;
                text.push(b' ');
            }
            b'\n' => {
                line += 1;
                text.push(b'\n');
            }
            _ => text.push(if depth > 0 { b' ' } else { byte }),
        }
    }
    if depth > 0 {
        let what = "a comment is not closed".to_owned();
        return Err(MsaError::Format {
            format: "NEXUS",
            line: opened,
            what,
        });
    }
    Ok(text)
}

fn is(word: &[u8], name: &str) -> bool {
    word.eq_ignore_ascii_case(name.as_bytes())
}

fn number(word: &[u8]) -> Option<usize> {
    std::str::from_utf8(word).ok()?.parse().ok()
}
