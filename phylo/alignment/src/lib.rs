//! Alignments: reading them, checking them, and compressing them to site patterns.
//!
//! Top-down: [`Alignment::parse`] takes a file's bytes in any of the formats. [`Patterns`] is the
//! input of the likelihood, made for one alphabet and one set of sites.
//! [`Findings`] are oddities of a usable alignment that a user should know. [`newick`]: trees as
//! text. [`packed`]: files that were compressed.
//! Must stay true: parsers take any bytes and never panic. Their memory is proportional to the
//! bytes, not to the numbers that these state.

mod alphabet;
mod blocks;
mod codon;
mod fasta;
mod findings;
mod loci;
mod maple;
pub mod newick;
mod nexus;
pub mod packed;
mod patterns;
mod phylip;
mod vcf;

pub use alphabet::{Alphabet, MULTISTATE_MAX};
pub use codon::GeneticCode;
pub use findings::{Findings, Warning, site_ranges};
pub(crate) use nexus::quoted_end;
pub use nexus::without_comments;
pub use patterns::{Patterns, SiteProfiles};

use std::borrow::Cow;
use std::collections::HashMap;

/// Errors of an alignment. Sites and lines are counted from 1.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MsaError {
    /// Not in one of the formats.
    #[error(
        "not an alignment: it begins neither as PHYLIP (two numbers), FASTA (`>`), NEXUS \
         (`#NEXUS`), Clustal (`CLUSTAL`), Stockholm (`# STOCKHOLM`), MSF nor VCF"
    )]
    UnknownFormat,
    /// It breaks its format's rules.
    #[error("{format}, line {line}: {what}")]
    Format {
        /// The format's name.
        format: &'static str,
        /// The line.
        line: usize,
        /// The reason.
        what: String,
    },
    /// Sequences of different lengths.
    #[error("`{taxon}` has {found} characters, {expected} are expected; is the file an alignment?")]
    Length {
        /// The sequence.
        taxon: String,
        /// Its length.
        found: usize,
        /// That of the others, or of the header.
        expected: usize,
    },
    /// Another number of taxa than in the header.
    #[error("{found} taxa are there, the header says {expected}")]
    TaxonCount {
        /// Number found.
        found: usize,
        /// Number expected.
        expected: usize,
    },
    /// Names that several sequences have.
    #[error("names of several sequences, rename all but one of each: {count}: {names}")]
    DuplicateNames {
        /// Number of such names.
        count: usize,
        /// All of them in the file's order, each with the number of its sequences.
        names: String,
    },
    /// Too few taxa.
    #[error("{found} taxa: a tree needs at least {min}")]
    TooFewTaxa {
        /// Number found.
        found: usize,
        /// Number needed.
        min: usize,
    },
    /// More taxa or sites than this program counts.
    #[error("{found} {what}: at most {max} are supported")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// Number found.
        found: usize,
        /// The limit.
        max: usize,
    },
    /// No columns.
    #[error("the alignment has no sites")]
    Empty,
    /// A character that the alphabet does not have.
    #[error(
        "`{taxon}`, site {site}: `{character}` is no {alphabet} character, \
         the model is for {alphabet}"
    )]
    IllegalCharacter {
        /// The sequence.
        taxon: String,
        /// The site.
        site: usize,
        /// The character.
        character: String,
        /// DNA or protein.
        alphabet: Alphabet,
    },
    /// A dot whose meaning the format does not define.
    #[error(
        "`{taxon}`, site {site}: `.` is a gap to some programs and the first sequence's \
         character to others; write `-` or the character"
    )]
    Dot {
        /// The sequence.
        taxon: String,
        /// The site.
        site: usize,
    },
    /// Columns that do not make whole codons.
    #[error(
        "{columns} columns are no whole number of codons: a codon model takes the alignment or \
         partition three columns at a time, in their order"
    )]
    Codons {
        /// Number of columns.
        columns: usize,
    },
    /// No column has a character.
    #[error("no site has a character in any taxon: there is nothing to infer from")]
    Undetermined,
}

/// The fewest taxa of an unrooted tree with an inner node.
pub(crate) const TAXA_MIN: usize = 3;
/// The most taxa.
pub(crate) const TAXA_MAX: usize = 1 << 20;
/// The most sites.
pub(crate) const SITES_MAX: usize = 1 << 30;

/// Sequences of one length, as they were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alignment {
    names: Vec<String>,
    rows: Vec<Vec<u8>>,
    /// Characters of cells with several states; a byte from [`SET_FIRST`] on in a row stands for
    /// the set at its place.
    sets: Vec<Vec<u8>>,
    /// Names and columns of the loci that were joined.
    loci: Vec<(String, usize)>,
    /// Warnings about input that was read as something else.
    warnings: Vec<Warning>,
}

impl Alignment {
    /// Reads PHYLIP (relaxed or strict; sequential or interleaved), FASTA, a NEXUS data block,
    /// Clustal, Stockholm, MSF, VCF or MAPLE's format: whichever it is.
    ///
    /// # Errors
    /// [`MsaError`]: not in a format, unequal lengths, duplicate names, fewer than `TAXA_MIN`
    /// taxa.
    pub fn parse(bytes: &[u8]) -> Result<Self, MsaError> {
        Self::parse_within(bytes, WRITTEN_OUT_MAX)
    }

    /// As [`Alignment::parse`]. `memory`: the most bytes that sequences may take which a file holds
    /// as differences.
    ///
    /// # Errors
    /// As [`Alignment::parse`].
    pub fn parse_within(bytes: &[u8], memory: u64) -> Result<Self, MsaError> {
        let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
        let bytes = &*with_line_feeds(bytes);
        // Digits and signs are states of multistate data, and a mistake in all others. Files that
        // cannot be read without them are read with them, and a model without such states reports
        // the error.
        match Self::parse_with(bytes, memory, is_sequence) {
            Err(error @ (MsaError::Format { .. } | MsaError::Length { .. })) => {
                Self::parse_with(bytes, memory, is_multistate).map_err(|_| error)
            }
            parsed => parsed,
        }
    }

    fn parse_with(bytes: &[u8], memory: u64, accept: Accept) -> Result<Self, MsaError> {
        let start = bytes.trim_ascii_start();
        let (mut warnings, mut sets) = (Vec::new(), Vec::new());
        let (names, rows) = match start.first() {
            Some(b'>') if maple::is(start) => maple::parse(start, memory)?,
            Some(b'>') => without_dots(fasta::parse(bytes, accept)?, Dots::Unclear)?,
            Some(b'#') if start.len() >= 6 && start[..6].eq_ignore_ascii_case(b"#NEXUS") => {
                let found = nexus::parse(bytes, accept)?;
                (warnings, sets) = (found.warnings, found.sets);
                without_dots(found.rows, found.dots)?
            }
            Some(b'#') if vcf::is(start) => {
                let (rows, count) = vcf::parse(start)?;
                warnings.extend((count > 0).then_some(Warning::NoBases { count }));
                rows
            }
            Some(b'0'..=b'9') => without_dots(phylip::parse(bytes, accept)?, Dots::Match)?,
            _ => match blocks::Format::of(start) {
                Some(format) => {
                    let count = blocks::alignments(bytes, format).saturating_sub(1);
                    warnings.extend((count > 0).then_some(Warning::Further { count }));
                    without_dots(blocks::parse(bytes, format)?, Dots::Unclear)?
                }
                None if blocks::is_msf(start) => blocks::parse_msf(start)?,
                None => return Err(MsaError::UnknownFormat),
            },
        };
        warnings.extend(Warning::not_text(&names));
        Ok(Self {
            warnings,
            sets,
            ..Self::new(names, rows)?
        })
    }

    /// From names and sequences.
    ///
    /// # Errors
    /// As [`Alignment::parse`].
    pub fn new(names: Vec<String>, rows: Vec<Vec<u8>>) -> Result<Self, MsaError> {
        // Bounds first: what follows takes time and memory in proportion.
        limit("taxa", names.len(), TAXA_MAX)?;
        // A tree refers to taxa by their names alone.
        check_distinct(&names)?;
        let sites = rows.first().map_or(0, Vec::len);
        limit("sites", sites, SITES_MAX)?;
        check_declared(&names, &rows, None, Some(sites))?;
        if names.len() < TAXA_MIN {
            return Err(MsaError::TooFewTaxa {
                found: names.len(),
                min: TAXA_MIN,
            });
        }
        if sites == 0 {
            return Err(MsaError::Empty);
        }
        Ok(Self {
            names,
            rows,
            sets: Vec::new(),
            loci: Vec::new(),
            warnings: Vec::new(),
        })
    }

    /// Warnings about input that was read as something else; [`Findings::warnings`] includes these.
    #[must_use]
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// The taxa's names, in the file's order.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Number of columns.
    #[must_use]
    pub fn sites(&self) -> usize {
        self.rows[0].len()
    }

    /// A taxon's characters, as they were read.
    #[must_use]
    pub fn row(&self, taxon: usize) -> &[u8] {
        &self.rows[taxon]
    }

    /// The characters of a cell's states where it has several; empty for all other cells.
    pub(crate) fn set_of(&self, cell: u8) -> &[u8] {
        let set = cell.checked_sub(SET_FIRST);
        let set = set.and_then(|place| self.sets.get(usize::from(place)));
        set.map_or(&[], Vec::as_slice)
    }

    /// The number of states that an alphabet of multistate data needs for this alignment: one more
    /// than the place of its last state, and at least 2. `None` if a character is no such state.
    #[must_use]
    pub fn multistates(&self) -> Option<u8> {
        let mut used = [false; 256];
        self.rows
            .iter()
            .flatten()
            .for_each(|&cell| used[usize::from(cell)] = true);
        let cells = (0..=u8::MAX).filter(|&cell| used[usize::from(cell)]);
        let mut most = 2;
        let all = Alphabet::Multistate(MULTISTATE_MAX as u8);
        for cell in cells {
            let set = self.set_of(cell);
            let members = if set.is_empty() {
                std::slice::from_ref(&cell)
            } else {
                set
            };
            for &member in members {
                match all.code(member)? {
                    unknown if unknown == all.unknown() => {}
                    state => most = most.max(state + 1),
                }
            }
        }
        Some(most)
    }

    /// The likely alphabet: DNA where nine of ten characters are nucleotides or gaps, else protein.
    #[must_use]
    pub fn likely_alphabet(&self) -> Alphabet {
        let (mut plain, mut all) = (0_usize, 0_usize);
        for row in &self.rows {
            all += row.len();
            plain += row.iter().filter(|c| b"ACGTUNacgtun-?".contains(c)).count();
        }
        // Ambiguous bases are letters of amino acids, too: a few of them must not decide.
        match plain * 10 >= all * 9 {
            true => Alphabet::Dna,
            false => Alphabet::Protein,
        }
    }

    /// Writes it as relaxed PHYLIP, one line a taxon; a cell of several states as `{AG}`.
    #[must_use]
    pub fn to_phylip(&self) -> Vec<u8> {
        let mut out = format!("{} {}\n", self.names.len(), self.sites()).into_bytes();
        for (name, row) in self.names.iter().zip(&self.rows) {
            out.extend_from_slice(name.as_bytes());
            out.push(b' ');
            for &cell in row {
                match self.set_of(cell) {
                    [] => out.push(cell),
                    set => out.extend([b"{", set, b"}"].concat()),
                }
            }
            out.push(b'\n');
        }
        out
    }
}

/// In old Macintosh files lines end with a carriage return alone.
fn with_line_feeds(bytes: &[u8]) -> Cow<'_, [u8]> {
    if bytes.contains(&b'\n') || !bytes.contains(&b'\r') {
        return Cow::Borrowed(bytes);
    }
    // One byte for one, so that places in error messages stay.
    let end = |&byte: &u8| if byte == b'\r' { b'\n' } else { byte };
    Cow::Owned(bytes.iter().map(end).collect())
}

/// Meaning of `.` in a file whose first sequence has none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Dots {
    /// The character of the first sequence: PHYLIP's definition.
    Match,
    /// A gap to some programs, the first sequence's character to others.
    Unclear,
}

/// Replaces `.` by its meaning. If the first sequence has dots, they are gaps in all sequences: the
/// first cannot refer to itself.
fn without_dots((names, mut rows): Rows, dots: Dots) -> Result<Rows, MsaError> {
    let Some((first, others)) = rows.split_first_mut() else {
        return Ok((names, rows));
    };
    if first.contains(&b'.') {
        let cells = first.iter_mut().chain(others.iter_mut().flatten());
        cells
            .filter(|cell| **cell == b'.')
            .for_each(|cell| *cell = b'-');
        return Ok((names, rows));
    }
    for (row, name) in others.iter_mut().zip(&names[1..]) {
        for (site, cell) in row
            .iter_mut()
            .enumerate()
            .filter(|(_, cell)| **cell == b'.')
        {
            // Only a format that defines dots as matches resolves them; otherwise a dot could also
            // be a gap.
            match first.get(site).filter(|_| dots == Dots::Match) {
                Some(&same) => *cell = same,
                None => {
                    return Err(MsaError::Dot {
                        taxon: shown(name),
                        site: site + 1,
                    });
                }
            }
        }
    }
    Ok((names, rows))
}

/// Names and rows, as the formats' parsers give them.
type Rows = (Vec<String>, Vec<Vec<u8>>);

/// Checks the numbers of taxa and characters against those of the file's header; `None` where it
/// gives none.
fn check_declared(
    names: &[String],
    rows: &[Vec<u8>],
    taxa: Option<usize>,
    sites: Option<usize>,
) -> Result<(), MsaError> {
    if let Some(expected) = taxa.filter(|&taxa| taxa != names.len()) {
        let found = names.len();
        return Err(MsaError::TaxonCount { found, expected });
    }
    let Some(expected) = sites else {
        return Ok(());
    };
    match names
        .iter()
        .zip(rows)
        .find(|(_, row)| row.len() != expected)
    {
        None => Ok(()),
        Some((taxon, row)) => Err(MsaError::Length {
            taxon: shown(taxon),
            found: row.len(),
            expected,
        }),
    }
}

/// Refuses duplicate names. All are reported at once, so that one repair is enough.
fn check_distinct(names: &[String]) -> Result<(), MsaError> {
    let mut counts: HashMap<&str, usize> = HashMap::with_capacity(names.len());
    for name in names {
        *counts.entry(name).or_default() += 1;
    }
    if counts.len() == names.len() {
        return Ok(());
    }
    let twice = |name: &&String| counts.get(name.as_str()).is_some_and(|&count| count > 1);
    // Each name once, where it first occurs; a map's own order would change from run to run.
    let mut seen = std::collections::HashSet::new();
    let texts: Vec<String> = names
        .iter()
        .filter(twice)
        .filter(|name| seen.insert(name.as_str()))
        .map(|name| format!("`{}` ({})", shown(name), counts[name.as_str()]))
        .collect();
    Err(MsaError::DuplicateNames {
        count: texts.len(),
        names: texts.join(", "),
    })
}

fn limit(what: &'static str, found: usize, max: usize) -> Result<(), MsaError> {
    if found > max {
        Err(MsaError::TooMany { what, found, max })
    } else {
        Ok(())
    }
}

/// A name from bytes; invalid UTF-8 is replaced by a mark.
fn name(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A name short and plain enough for a message of one line.
#[must_use]
pub fn shown(name: &str) -> String {
    let mut text: String = name
        .chars()
        .take(SHOWN_MAX)
        .flat_map(char::escape_debug)
        .collect();
    if name.chars().nth(SHOWN_MAX).is_some() {
        text.push('…');
    }
    text
}

const SHOWN_MAX: usize = 60;
/// Bytes that sequences may take which a file holds as differences, unless a caller says otherwise.
const WRITTEN_OUT_MAX: u64 = 1 << 30;

/// The first byte that stands for a set of states; no character of any alphabet is beyond ASCII.
const SET_FIRST: u8 = 128;

/// Decides which characters can occur in a sequence.
type Accept = fn(u8) -> bool;

/// A character of multistate data, or of any other.
fn is_multistate(byte: u8) -> bool {
    byte.is_ascii_graphic()
}

/// A character that can stand in a sequence of DNA or protein.
fn is_sequence(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || matches!(byte, b'-' | b'?' | b'*' | b'.' | b'~' | b'!')
}

/// Runs the README's example.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
mod tests;
