//! Files as streams: decompressed bytes, lines, and the records that begin with `>`.
//!
//! Why here: `sidecore-phylo` reads whole files, and here the lists are a small part of one.
//! Must stay true: windows, lines and sequences are bounded; any bytes are taken or refused.

use crate::OutbreakError;
use crate::genome::SITES_MAX;
use sidecore_bare::width::ToU64;
use sidecore_likelihood::msa::{Alphabet, packed};
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// An opened file.
pub(crate) type Stream<'s> = Box<dyn BufRead + 's>;

/// Opens a file, decompressed if it is compressed.
pub(crate) fn open<'s>(path: &Path) -> io::Result<Stream<'s>> {
    let file = sidecore_sys::input::open(path)?;
    packed::reader(BufReader::with_capacity(PIECE_BYTES, file))
}

/// Lines of a file.
pub(crate) struct Lines<'s> {
    pub(crate) stream: Stream<'s>,
    pub(crate) path: &'s Path,
    /// Number of the last line, from 1.
    pub(crate) number: u64,
}

impl Lines<'_> {
    /// Reads a line, without its end; false behind the last one.
    pub(crate) fn read(&mut self, line: &mut Vec<u8>) -> Result<bool, OutbreakError> {
        line.clear();
        let mut stream = self.stream.by_ref().take(LINE_BYTES_MAX);
        let read = stream.read_until(b'\n', line);
        let read = read.map_err(|source| OutbreakError::Io {
            path: self.path.to_owned(),
            source,
        })?;
        self.number += 1;
        if read.to_u64() == LINE_BYTES_MAX {
            return Err(self.wrong("text", "the line is too long".to_owned()));
        }
        while line.last().is_some_and(u8::is_ascii_whitespace) {
            line.pop();
        }
        Ok(read > 0)
    }

    /// Reads the first line that is not empty; an empty one at the end.
    pub(crate) fn first(&mut self, line: &mut Vec<u8>) -> Result<(), OutbreakError> {
        while self.read(line)? && line.is_empty() {}
        if let Some(rest) = line.strip_prefix(b"\xEF\xBB\xBF") {
            *line = rest.to_vec();
        }
        Ok(())
    }

    pub(crate) fn wrong(&self, format: &'static str, what: String) -> OutbreakError {
        OutbreakError::Format {
            format,
            line: self.number,
            what,
        }
    }

    /// The name in a line that begins with `>`.
    pub(crate) fn name(&self, line: &[u8]) -> Result<String, OutbreakError> {
        let words = line[1..].split(u8::is_ascii_whitespace);
        let mut words = words.filter(|word| !word.is_empty());
        let word = words.next();
        let word = word.ok_or_else(|| self.wrong("FASTA", "a sequence without a name".into()))?;
        Ok(String::from_utf8_lossy(word).into_owned())
    }
}

/// The first record of a file that begins with `>`, and what was read to see how it goes on.
pub(crate) struct Start {
    pub(crate) name: String,
    pub(crate) sequence: Vec<u8>,
    /// Names behind the first record's.
    pub(crate) heads: Vec<String>,
    /// The first line behind those.
    pub(crate) line: Vec<u8>,
    pub(crate) is_maple: bool,
}

impl Start {
    pub(crate) fn read(lines: &mut Lines<'_>, head: &[u8]) -> Result<Self, OutbreakError> {
        let mut start = Self {
            // The reference of MAPLE's format may have no name.
            name: lines.name(head).unwrap_or_else(|_| "reference".to_owned()),
            sequence: Vec::new(),
            heads: Vec::new(),
            line: Vec::new(),
            is_maple: true,
        };
        let mut line = Vec::new();
        while lines.read(&mut line)? {
            if line.is_empty() {
                continue;
            }
            if line.starts_with(b">") {
                start.heads.push(lines.name(&line)?);
                check_taxa(start.heads.len())?;
            } else if start.heads.is_empty() {
                append(&mut start.sequence, &line, lines)?;
            } else {
                start.is_maple = difference(&line).is_some();
                start.line = line;
                break;
            }
        }
        if start.heads.is_empty() {
            start.is_maple = false;
        }
        if start.sequence.is_empty() {
            return Err(lines.wrong("FASTA", format!("`{}` has no sequence", start.name)));
        }
        Ok(start)
    }

    /// All records of a FASTA file.
    pub(crate) fn records(
        self,
        lines: &mut Lines<'_>,
        each: &mut dyn FnMut(String, Vec<u8>) -> Result<(), OutbreakError>,
    ) -> Result<(), OutbreakError> {
        each(self.name, self.sequence)?;
        let mut heads = self.heads.into_iter();
        let Some(mut name) = heads.next() else {
            return Ok(());
        };
        if heads.next().is_some() {
            return Err(lines.wrong("FASTA", format!("`{name}` has no sequence")));
        }
        let (mut row, mut line) = (Vec::new(), self.line);
        loop {
            if line.starts_with(b">") {
                let next = lines.name(&line)?;
                each(std::mem::replace(&mut name, next), std::mem::take(&mut row))?;
            } else {
                append(&mut row, &line, lines)?;
            }
            if !lines.read(&mut line)? {
                return each(name, row);
            }
        }
    }
}

/// Adds a line to a sequence.
fn append(sequence: &mut Vec<u8>, line: &[u8], lines: &Lines<'_>) -> Result<(), OutbreakError> {
    match line.iter().any(u8::is_ascii_whitespace) {
        true => sequence.extend(line.iter().filter(|byte| !byte.is_ascii_whitespace())),
        false => sequence.extend_from_slice(line),
    }
    match sequence.len() > SITES_MAX {
        true => Err(lines.wrong("FASTA", format!("more than {SITES_MAX} sites"))),
        false => Ok(()),
    }
}

/// Sites with one character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) set: u8,
    /// From 1.
    pub(crate) first: u32,
    pub(crate) count: u32,
}

/// A line's sites; none where it is no such line.
pub(crate) fn difference(line: &[u8]) -> Option<Run> {
    let words = line.split(u8::is_ascii_whitespace);
    let mut words = words.filter(|word| !word.is_empty());
    let &[character] = words.next()? else {
        return None;
    };
    let set = Alphabet::Dna.code(character)?;
    let first = number(words.next()?)?;
    let count = match words.next() {
        Some(word) => number(word)?,
        None => 1,
    };
    let run = Run { set, first, count };
    words.next().is_none().then_some(run)
}

pub(crate) fn number(word: &[u8]) -> Option<u32> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

/// A sequence as sets of bases.
pub(crate) fn codes(sequence: &[u8], name: &str) -> Result<Vec<u8>, OutbreakError> {
    let code = |(site, &byte): (usize, &u8)| {
        Alphabet::Dna
            .code(byte)
            .ok_or_else(|| illegal(name, site, byte))
    };
    sequence.iter().enumerate().map(code).collect()
}

/// Memory that lists may still take.
pub(crate) struct Budget {
    left: u64,
    max: u64,
}

impl Budget {
    pub(crate) fn new(max: u64, sites: usize) -> Self {
        Self {
            left: max.saturating_sub((sites * SITE_BYTES).to_u64()),
            max,
        }
    }

    pub(crate) fn take(&mut self, bytes: usize) -> Result<(), OutbreakError> {
        let left = self.left.checked_sub(bytes.to_u64());
        self.left = left.ok_or(OutbreakError::Memory { max: self.max })?;
        Ok(())
    }
}

pub(crate) fn input(what: &str) -> OutbreakError {
    OutbreakError::Input {
        what: what.to_owned(),
    }
}

pub(crate) fn illegal(name: &str, site: usize, byte: u8) -> OutbreakError {
    let character = char::from(byte).escape_default();
    input(&format!(
        "`{name}`, site {}: `{character}` is no base",
        site + 1
    ))
}

pub(crate) fn check_taxa(taxa: usize) -> Result<(), OutbreakError> {
    match taxa > TAXA_MAX {
        true => Err(input(&format!("more than {TAXA_MAX} genomes"))),
        false => Ok(()),
    }
}

/// The most genomes.
const TAXA_MAX: usize = 1 << 24;
/// The longest line: a genome of the most sites, or a VCF's record of the most samples.
const LINE_BYTES_MAX: u64 = 1 << 28;
/// Memory of a site of the reference.
pub(crate) const SITE_BYTES: usize = 20;
const PIECE_BYTES: usize = 128 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compressed_files_are_read_as_plain_ones() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("packed");
        let read = |bytes: &[u8]| -> io::Result<Vec<u8>> {
            std::fs::write(&file, bytes).unwrap();
            let mut all = Vec::new();
            open(&file)?.read_to_end(&mut all).map(|_| all)
        };
        assert_eq!(read(TEXT).unwrap(), TEXT);
        assert_eq!(read(&GZIP).unwrap(), TEXT);
        assert_eq!(read(&[GZIP, GZIP].concat()).unwrap(), [TEXT, TEXT].concat());
        assert!(read(&GZIP[..GZIP.len() - 9]).is_err());
        assert_eq!(read(b"").unwrap(), b"");
    }

    const TEXT: &[u8] = b">r\nACGT\n";
    /// The text as a gzip member of one stored block.
    const GZIP: [u8; 31] =
        *b"\x1F\x8B\x08\0\0\0\0\0\0\xFF\x01\x08\0\xF7\xFF>r\nACGT\nc\x10\xEC\x88\x08\0\0\0";
}
