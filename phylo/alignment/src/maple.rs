//! MAPLE's format: a reference, and for each sequence only the sites at which it differs.
//!
//! ```text
//! >reference
//! ACGTACGT
//! >first
//! T    4
//! -    7    2
//! ```
//! A line has a character, the site (from 1) and perhaps a number of sites. The reference is no
//! taxon. Why here: genomes of an outbreak are kept so; a search takes them as an alignment. Must
//! stay true: the sequences take more memory than the file, so their size is checked before it is
//! allocated. Source: De Maio and others, "Maximum likelihood pandemic-scale phylogenetics", Nature
//! Genetics 55 (2023), 746-752, and the format's description with MAPLE.

use super::{MsaError, Rows, is_sequence, name, shown};

/// True of a file whose second record begins with a difference.
pub(super) fn is(start: &[u8]) -> bool {
    // A sequence may be the reference itself, without a line: the first that has one decides.
    let Some(at) = start.windows(2).position(|pair| pair == b"\n>") else {
        return false;
    };
    let lines = start[at + 1..].split(|&byte| byte == b'\n');
    let first = lines
        .filter(|line| !line.starts_with(b">"))
        .find(|line| !line.is_empty());
    first.is_some_and(|line| difference(line).is_some())
}

/// The sequences, written out, if they have no more than `max` characters.
pub(super) fn parse(bytes: &[u8], max: u64) -> Result<Rows, MsaError> {
    let taxa = bytes.windows(2).filter(|pair| pair == b"\n>").count();
    let mut reference: Vec<u8> = Vec::new();
    let (mut names, mut rows) = (Vec::<String>::new(), Vec::<Vec<u8>>::new());
    let mut heads = 0;
    for (number, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
        let error = |what: String| MsaError::Format {
            format: "MAPLE",
            line: number + 1,
            what,
        };
        let line = line.trim_ascii();
        if let Some(head) = line.strip_prefix(b">") {
            heads += 1;
            if heads == 1 {
                continue;
            }
            if heads == 2 {
                check_size(reference.len(), taxa, max).map_err(error)?;
            }
            let word = head.trim_ascii().split(u8::is_ascii_whitespace).next();
            let word = word.filter(|word| !word.is_empty());
            let word = word.ok_or_else(|| error("a sequence without a name".to_owned()))?;
            names.push(name(word));
            rows.push(reference.clone());
        } else if heads == 1 {
            let bad = line.iter().find(|&&byte| !is_sequence(byte));
            if let Some(&bad) = bad {
                let bad = shown(&name(&[bad]));
                return Err(error(format!("`{bad}` cannot stand in a sequence")));
            }
            reference.extend_from_slice(line);
        } else if !line.is_empty() {
            let bad =
                || error("a line must be a character, a site and perhaps a number".to_owned());
            let (character, [first, count]) = difference(line).ok_or_else(bad)?;
            let row = rows.last_mut().ok_or_else(bad)?;
            let last = first
                .checked_add(count)
                .filter(|&end| first > 0 && end <= row.len() + 1);
            let Some(end) = last else {
                let sites = row.len();
                return Err(error(format!(
                    "site {first} and {count} sites: there are {sites}"
                )));
            };
            row[first - 1..end - 1].fill(character);
        }
    }
    Ok((names, rows))
}

fn check_size(sites: usize, taxa: usize, max: u64) -> Result<(), String> {
    let need = u64::try_from(sites.saturating_mul(taxa)).unwrap_or(u64::MAX);
    match need > max {
        true => Err(format!(
            "{taxa} sequences of {sites} sites take {} MiB, {} MiB are allowed: give --memory to \
             allow more",
            need >> 20,
            max >> 20
        )),
        false => Ok(()),
    }
}

/// Character, first site and number of sites of a line.
fn difference(line: &[u8]) -> Option<(u8, [usize; 2])> {
    let mut words = line
        .split(u8::is_ascii_whitespace)
        .filter(|word| !word.is_empty());
    let &[character] = words.next()? else {
        return None;
    };
    let number = |word: &[u8]| -> Option<usize> { std::str::from_utf8(word).ok()?.parse().ok() };
    let first = number(words.next()?)?;
    let count = match words.next() {
        Some(word) => number(word)?,
        None => 1,
    };
    (is_sequence(character) && words.next().is_none()).then_some((character, [first, count]))
}

#[cfg(test)]
mod tests {
    use crate::Alignment;

    const GENOMES: &str = ">reference\nacgt\nacgt\n>same\n>one x\nt\t4\n-\t7\t2\n>two\nN 1 3\n";

    #[test]
    fn differences_are_written_out() {
        let found = Alignment::parse(GENOMES.as_bytes()).unwrap();
        assert_eq!(found.names(), ["same", "one", "two"]);
        let rows = [0, 1, 2].map(|taxon| String::from_utf8_lossy(found.row(taxon)));
        assert_eq!(rows, ["acgtacgt", "acgtac--", "NNNtacgt"]);
    }

    #[test]
    fn sizes_are_bounded_and_wrong_lines_named() {
        let error = Alignment::parse_within(GENOMES.as_bytes(), 23).unwrap_err();
        assert!(error.to_string().contains("--memory"), "{error}");
        assert!(Alignment::parse_within(GENOMES.as_bytes(), 24).is_ok());
        for (line, said) in [
            ("t\t9", "site 9 and 1 sites: there are 8"),
            ("t\t0", "site 0"),
            ("t\t8\t18446744073709551615", "there are 8"),
            ("tt\t8", "a line must be"),
            ("t\t1\t1\t1", "a line must be"),
            (">", "without a name"),
        ] {
            let text = format!("{GENOMES}{line}\n");
            let error = Alignment::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(said) && !error.contains('\n'), "{error}");
        }
    }
}
