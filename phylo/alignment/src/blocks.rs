//! Clustal (`.aln`), Stockholm and MSF: blocks of lines `name characters`, every sequence once a
//! block.
//!
//! A block ends at a line that is blank (or, in Clustal, one that begins with a blank: marks of
//! conservation). The first block gives the names and their order; each line of a later block must
//! have the name at its place.
//! Sources: the output of Clustal W and Omega, of MUSCLE, T-Coffee and Kalign in "Clustal format"
//! (their first lines differ); Pfam's description of Stockholm 1.0. Stockholm's annotations (`#=`)
//! are skipped, and only the first alignment of a file is read.
//!
//! MSF, the format of GCG, lists the names in a header that ends at `//`. Only these begin a line
//! of a block, so that nothing is read as a taxon that is none. Lines of numbers over a block are
//! skipped; `.` and `~` are gaps. Source: the output of GCG's PileUp, of MUSCLE (`-msf`) and of
//! Clustal.

use super::{MsaError, Rows, is_sequence, name, shown};
use std::collections::HashMap;

/// One of the two formats without a list of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Clustal,
    Stockholm,
}

impl Format {
    /// Recognises the format by the file's first line.
    pub(super) fn of(start: &[u8]) -> Option<Self> {
        let line = start.split(|&byte| byte == b'\n').next()?;
        let line = line.to_ascii_uppercase();
        let has = |word: &[u8]| line.windows(word.len()).any(|part| part == word);
        if line.starts_with(b"# STOCKHOLM") {
            Some(Self::Stockholm)
        } else if has(b"CLUSTAL") || has(b"MULTIPLE SEQUENCE ALIGNMENT") {
            Some(Self::Clustal)
        } else {
            None
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Clustal => "Clustal",
            Self::Stockholm => "Stockholm",
        }
    }
}

/// Number of alignments in a file; the first is read.
pub(super) fn alignments(bytes: &[u8], format: Format) -> usize {
    let begins = |line: &&[u8]| Format::of(line) == Some(Format::Stockholm);
    let lines = bytes
        .split(|&byte| byte == b'\n')
        .filter(|line| line.starts_with(b"#"));
    match format {
        Format::Stockholm => lines.filter(begins).count(),
        Format::Clustal => 1,
    }
}

pub(super) fn parse(bytes: &[u8], format: Format) -> Result<Rows, MsaError> {
    let (mut names, mut rows) = (Vec::<String>::new(), Vec::<Vec<u8>>::new());
    // The next line's place in its block; None while the first block is read.
    let mut place: Option<usize> = None;
    let mut header = true;
    for (number, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
        let error = |what: String| MsaError::Format {
            format: format.name(),
            line: number + 1,
            what,
        };
        // A blank line ends a block, but blank lines before the first one do not.
        if line.trim_ascii().is_empty() || is_conservation(line, format) {
            if place.unwrap_or(rows.len()) > 0 {
                check_whole(place, &names).map_err(error)?;
                place = Some(0);
            }
            continue;
        }
        if std::mem::take(&mut header) {
            continue;
        }
        if format == Format::Stockholm {
            // Annotations of Stockholm are lines of their own; `//` ends the alignment.
            match line {
                [b'#', ..] => continue,
                [b'/', b'/', ..] => break,
                _ => {}
            }
        }
        let line = line.trim_ascii();
        let end = line.iter().position(u8::is_ascii_whitespace);
        let Some(end) = end else {
            return Err(error("a name without characters after it".to_owned()));
        };
        let (word, characters) = (name(&line[..end]), &line[end..]);
        let row = match &mut place {
            None => {
                names.push(word);
                rows.push(Vec::new());
                rows.len() - 1
            }
            Some(next) => {
                let row = *next;
                // Later blocks repeat the names in order: another name means a missing or an extra
                // row.
                if names.get(row) != Some(&word) {
                    let expected = names.get(row).map_or_else(
                        || "a blank line, as the first block has no more".to_owned(),
                        |name| format!("`{}`, as in the first block", shown(name)),
                    );
                    let found = shown(&word);
                    return Err(error(format!("`{found}` where {expected}, must stand")));
                }
                *next += 1;
                row
            }
        };
        append(&mut rows[row], characters, format).map_err(error)?;
    }
    Ok((names, rows))
}

/// A block may end only when it had every sequence.
fn check_whole(place: Option<usize>, names: &[String]) -> Result<(), String> {
    match place {
        Some(next @ 1..) if next < names.len() => {
            let missing = shown(&names[next]);
            Err(format!("the block ends before `{missing}`"))
        }
        _ => Ok(()),
    }
}

/// Marks under a block of Clustal's.
fn is_conservation(line: &[u8], format: Format) -> bool {
    let mark = |byte: &u8| byte.is_ascii_whitespace() || b"*:.".contains(byte);
    format == Format::Clustal && line[0].is_ascii_whitespace() && line.iter().all(mark)
}

fn append(row: &mut Vec<u8>, text: &[u8], format: Format) -> Result<(), String> {
    let mut words = text.split(u8::is_ascii_whitespace);
    while let Some(word) = words.find(|word| !word.is_empty()) {
        // Clustal may count the characters so far at a line's end.
        if format == Format::Clustal && word.iter().all(u8::is_ascii_digit) {
            return match words.all(<[u8]>::is_empty) {
                true => Ok(()),
                false => Err("characters after the line's count".to_owned()),
            };
        }
        for &byte in word {
            // Both `.` and `_` are gaps to Stockholm's programs.
            let byte = match byte {
                b'.' | b'_' if format == Format::Stockholm => b'-',
                other => other,
            };
            if !is_sequence(byte) {
                let character = shown(&String::from_utf8_lossy(&[byte]));
                return Err(format!("`{character}` cannot stand in a sequence"));
            }
            row.push(byte);
        }
    }
    Ok(())
}

/// True of a file whose first lines have MSF's mark.
pub(super) fn is_msf(start: &[u8]) -> bool {
    let lines = start.split(|&byte| byte == b'\n').take(HEAD_LINES);
    lines.into_iter().any(|line| {
        let has = |word: &[u8]| line.windows(word.len()).any(|part| part == word);
        has(b"MSF:") && has(b"Check:")
    })
}

pub(super) fn parse_msf(bytes: &[u8]) -> Result<Rows, MsaError> {
    let (mut names, mut rows) = (Vec::<String>::new(), Vec::<Vec<u8>>::new());
    let mut places: HashMap<Vec<u8>, usize> = HashMap::new();
    let mut header = true;
    for (number, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
        let error = |what: String| MsaError::Format {
            format: "MSF",
            line: number + 1,
            what,
        };
        let mut words = line
            .split(u8::is_ascii_whitespace)
            .filter(|word| !word.is_empty());
        let Some(first) = words.next() else {
            continue;
        };
        if header {
            header = first != b"//";
            if first == b"Name:" {
                let word = words
                    .next()
                    .ok_or_else(|| error("`Name:` without a name".to_owned()))?;
                if places.insert(word.to_vec(), names.len()).is_some() {
                    let word = shown(&name(word));
                    return Err(error(format!("the name `{word}` twice")));
                }
                names.push(name(word));
                rows.push(Vec::new());
            }
            continue;
        }
        let Some(&row) = places.get(first) else {
            // Numbers of columns.
            if std::iter::once(first)
                .chain(words)
                .all(|word| word.iter().all(u8::is_ascii_digit))
            {
                continue;
            }
            let first = shown(&name(first));
            return Err(error(format!("`{first}` is none of the header's names")));
        };
        for &byte in words.flatten() {
            let byte = match byte {
                b'.' | b'~' => b'-',
                other => other,
            };
            if !is_sequence(byte) {
                let character = shown(&name(&[byte]));
                return Err(error(format!("`{character}` cannot stand in a sequence")));
            }
            rows[row].push(byte);
        }
    }
    match header {
        true => Err(MsaError::Format {
            format: "MSF",
            line: 1,
            what: "the header does not end with `//`".to_owned(),
        }),
        false => Ok((names, rows)),
    }
}

/// Lines in which the mark stands.
const HEAD_LINES: usize = 20;

#[cfg(test)]
mod tests {
    use crate::Alignment;

    const HEAD: &str = "!!AA_MULTIPLE_ALIGNMENT 1.0\n\n x.msf  MSF: 7  Type: P  Check: 1 ..\n\n \
                        Name: one  Len: 7  Check: 1  Weight: 1.0\n Name: two oo Len: 7\n \
                        Name: 3  Len: 7\n\n";

    #[test]
    fn blocks_are_joined_and_gaps_read() {
        let text = format!(
            "{HEAD}//\n\n     1   5\none  MKV LU\ntwo  .~V LC\n3 MKILC\n\n6 7\none AA\n\
                            two A.\n3 C-\n"
        );
        let found = Alignment::parse(text.as_bytes()).unwrap();
        assert_eq!(found.names(), ["one", "two", "3"]);
        let rows = [0, 1, 2].map(|taxon| String::from_utf8_lossy(found.row(taxon)));
        assert_eq!(rows, ["MKVLUAA", "--VLCA-", "MKILCC-"]);
    }

    #[test]
    fn wrong_files_are_refused_with_the_line() {
        for (rest, said) in [
            ("", "does not end with `//`"),
            ("//\nfour MKV\n", "`four` is none of the header's names"),
            ("//\none M1V\n", "`1` cannot stand"),
            (" Name: one\n//\n", "the name `one` twice"),
            (" Name:\n//\n", "without a name"),
            ("//\none MKV\n", "`two` has 0 characters"),
        ] {
            let text = format!("{HEAD}{rest}");
            let error = Alignment::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(said) && !error.contains('\n'), "{error}");
        }
    }
}
