//! MSF, the multiple sequence format of GCG: a header that lists the names, then blocks of lines
//! `name characters`.
//!
//! The header ends at `//`. Lines of numbers over a block are skipped; `.` and `~` are gaps.
//! Must stay true: only names of the header begin a line, so that nothing is read as a taxon that
//! is none.
//! Source: the output of GCG's PileUp, of MUSCLE (`-msf`) and of Clustal.

use super::{MsaError, Rows, is_sequence, name, shown};
use std::collections::HashMap;

/// True of a file whose first lines have the format's mark.
pub(super) fn is(start: &[u8]) -> bool {
    let lines = start.split(|&byte| byte == b'\n').take(HEAD_LINES);
    lines.into_iter().any(|line| {
        let has = |word: &[u8]| line.windows(word.len()).any(|part| part == word);
        has(b"MSF:") && has(b"Check:")
    })
}

pub(super) fn parse(bytes: &[u8]) -> Result<Rows, MsaError> {
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
