//! Relaxed PHYLIP: `taxa sites`, then names and sequences with blanks between, either taxon by
//! taxon over any number of lines (sequential) or all taxa in blocks (interleaved).
//!
//! A file does not state which it is. It is read as sequential; if the counts do not match, as
//! interleaved; then both again as strict PHYLIP, where a name has ten columns and may hold blanks.
//! If none matches, the error is that of the relaxed reading that got further. If both relaxed
//! readings match and differ, the file is refused.
//! Source: the format's description with PHYLIP 3.6; RAxML's manual for "relaxed".

use super::{Accept, MsaError, Rows, SITES_MAX, TAXA_MAX, check_declared, name, shown};
use std::borrow::Cow;

pub(super) fn parse(bytes: &[u8], accept: Accept) -> Result<Rows, MsaError> {
    let mut lines = Lines {
        rest: bytes,
        number: 0,
        accept,
    };
    let head = lines.next_filled().unwrap_or_default();
    let bad_head = || MsaError::Format {
        format: "PHYLIP",
        line: 1,
        what: "the first line must be two numbers: taxa and sites".to_owned(),
    };
    let mut words = head
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    let mut number = |max: usize| -> Option<usize> {
        let word = std::str::from_utf8(words.next()?).ok()?;
        word.parse()
            .ok()
            .filter(|number| (1..=max).contains(number))
    };
    let taxa = number(TAXA_MAX).ok_or_else(bad_head)?;
    let sites = number(SITES_MAX).ok_or_else(bad_head)?;
    // PHYLIP's options: the lines themselves show their meaning.
    let option = |word: &[u8]| word.eq_ignore_ascii_case(b"I") || word.eq_ignore_ascii_case(b"S");
    if words.any(|word| !option(word)) {
        return Err(bad_head());
    }
    let sequential = match sequential(lines, taxa, sites, first_word) {
        // With a line a taxon there is one reading.
        Ok(rows) if lines.filled() == taxa => return Ok(rows),
        Ok(rows) => {
            let other = interleaved(lines, taxa, sites, first_word);
            return match other.is_ok_and(|other| other != rows) {
                true => Err(lines.error(
                    "it can be read taxon by taxon and in blocks, with different sequences: write \
                     each sequence in one line",
                )),
                false => Ok(rows),
            };
        }
        Err(error) => error,
    };
    let strictly = || {
        let sequential = self::sequential(lines, taxa, sites, first_columns).ok();
        sequential.or_else(|| interleaved(lines, taxa, sites, first_columns).ok())
    };
    match interleaved(lines, taxa, sites, first_word).or_else(|error| strictly().ok_or(error)) {
        Ok(rows) => Ok(rows),
        // The plainer reading gives the better error, unless it failed at what may be the next
        // taxon.
        Err(other) => Err(match sequential {
            MsaError::Format { .. } => other,
            MsaError::Length {
                found, expected, ..
            } if found > expected => other,
            plain => plain,
        }),
    }
}

fn sequential(
    mut lines: Lines<'_>,
    taxa: usize,
    sites: usize,
    head: Head,
) -> Result<Rows, MsaError> {
    let (mut names, mut rows) = (Vec::new(), Vec::new());
    while names.len() < taxa {
        let Some(line) = lines.next_filled() else {
            return Err(MsaError::TaxonCount {
                found: names.len(),
                expected: taxa,
            });
        };
        let (word, rest) = head(line);
        let taxon = name(&word);
        let mut row = Vec::new();
        lines.append(&mut row, rest)?;
        // A sequence may continue over any number of lines.
        while row.len() < sites {
            let Some(line) = lines.next_filled() else {
                break;
            };
            lines.append(&mut row, line)?;
        }
        if row.len() != sites {
            let taxon = shown(&taxon);
            return Err(MsaError::Length {
                taxon,
                found: row.len(),
                expected: sites,
            });
        }
        names.push(taxon);
        rows.push(row);
    }
    // More data than announced means that the header is wrong, or the reading.
    match lines.next_filled() {
        None => Ok((names, rows)),
        Some(_) => Err(lines.error("more lines than the header has taxa")),
    }
}

fn interleaved(
    mut lines: Lines<'_>,
    taxa: usize,
    sites: usize,
    head: Head,
) -> Result<Rows, MsaError> {
    let (mut names, mut rows) = (Vec::new(), Vec::<Vec<u8>>::new());
    let mut next = 0;
    while let Some(line) = lines.next_filled() {
        if names.len() < taxa {
            let (word, rest) = head(line);
            names.push(name(&word));
            rows.push(Vec::new());
            let row = rows.len() - 1;
            lines.append(&mut rows[row], rest)?;
            continue;
        }
        let row = next;
        let mut rest = line;
        let (word, more) = head(line);
        // Some programs repeat the names.
        if *word == *names[row].as_bytes() && !more.is_empty() {
            rest = more;
        }
        lines.append(&mut rows[row], rest)?;
        next = (row + 1) % taxa;
    }
    check_declared(&names, &rows, Some(taxa), Some(sites))?;
    Ok((names, rows))
}

/// Lines with their numbers.
#[derive(Clone, Copy)]
struct Lines<'a> {
    rest: &'a [u8],
    number: usize,
    accept: Accept,
}

impl<'a> Lines<'a> {
    /// The next line that holds more than blanks, trimmed.
    fn next_filled(&mut self) -> Option<&'a [u8]> {
        while !self.rest.is_empty() {
            let end = self.rest.iter().position(|&byte| byte == b'\n');
            let (line, rest) = match end {
                Some(end) => (&self.rest[..end], &self.rest[end + 1..]),
                None => (self.rest, &[][..]),
            };
            self.rest = rest;
            self.number += 1;
            let line = line.trim_ascii();
            if !line.is_empty() {
                return Some(line);
            }
        }
        None
    }

    /// Number of lines that hold more than blanks.
    fn filled(mut self) -> usize {
        std::iter::from_fn(|| self.next_filled()).count()
    }

    /// Adds a line's characters to a row.
    fn append(&self, row: &mut Vec<u8>, text: &[u8]) -> Result<(), MsaError> {
        for &byte in text {
            if (self.accept)(byte) {
                row.push(byte);
            } else if !byte.is_ascii_whitespace() {
                let character = shown(&String::from_utf8_lossy(&[byte]));
                return Err(self.error(&format!("`{character}` cannot stand in a sequence")));
            }
        }
        Ok(())
    }

    fn error(&self, what: &str) -> MsaError {
        MsaError::Format {
            format: "PHYLIP",
            line: self.number,
            what: what.to_owned(),
        }
    }
}

/// Cuts a line into its taxon's name and characters.
type Head = for<'l> fn(&'l [u8]) -> (Cow<'l, [u8]>, &'l [u8]);

/// Relaxed: the name ends at a blank.
fn first_word(line: &[u8]) -> (Cow<'_, [u8]>, &[u8]) {
    let end = line
        .iter()
        .position(u8::is_ascii_whitespace)
        .unwrap_or(line.len());
    let (word, rest) = line.split_at(end);
    (Cow::Borrowed(word), rest)
}

/// Strict: the name is the first ten columns. Blanks in it become `_`, as Newick has it.
fn first_columns(line: &[u8]) -> (Cow<'_, [u8]>, &[u8]) {
    let (name, rest) = line.split_at(line.len().min(NAME_COLUMNS));
    let mut name = name.trim_ascii().to_vec();
    let blanks = name.iter_mut().filter(|byte| byte.is_ascii_whitespace());
    blanks.for_each(|byte| *byte = b'_');
    (Cow::Owned(name), rest)
}

/// Columns of a name in strict PHYLIP.
const NAME_COLUMNS: usize = 10;
