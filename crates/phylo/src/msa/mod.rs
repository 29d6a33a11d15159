//! Alignments: reading them, checking them, and compressing them to site patterns.
//!
//! Top-down: [`Alignment::parse`] takes a file's bytes in any of the formats; [`Alignment::check`]
//! says what a user should know; [`Patterns`] is what the likelihood works on, made for one
//! alphabet and one set of sites ([`partitions`]).
//! Must stay true: parsers take any bytes, never panic, and use memory in proportion to them, not to
//! the numbers that they hold.

mod alphabet;
mod fasta;
mod nexus;
pub mod partitions;
mod patterns;
mod phylip;

pub use alphabet::Alphabet;
pub use patterns::Patterns;

use std::collections::HashMap;

/// What is wrong with an alignment. Sites and lines are counted from 1.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MsaError {
    /// Not in one of the formats.
    #[error("not an alignment: it begins neither as PHYLIP, FASTA (`>`) nor NEXUS (`#NEXUS`)")]
    UnknownFormat,
    /// It breaks its format's rules.
    #[error("{format}, line {line}: {what}")]
    Format {
        /// PHYLIP, FASTA or NEXUS.
        format: &'static str,
        /// The line.
        line: usize,
        /// What is wrong there.
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
    /// Another number of taxa than the header says.
    #[error("{found} taxa are there, the header says {expected}")]
    TaxonCount {
        /// How many there are.
        found: usize,
        /// How many there should be.
        expected: usize,
    },
    /// Two sequences with one name.
    #[error("two sequences are called `{taxon}`: rename one of them")]
    DuplicateName {
        /// The name.
        taxon: String,
    },
    /// Too few taxa.
    #[error("{found} taxa: a tree needs at least {min}")]
    TooFewTaxa {
        /// How many there are.
        found: usize,
        /// How many are needed.
        min: usize,
    },
    /// More taxa or sites than this program counts.
    #[error("{found} {what}: at most {max} are supported")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many there may be.
        max: usize,
    },
    /// No columns.
    #[error("the alignment has no sites")]
    Empty,
    /// A character that the alphabet does not have.
    #[error("`{taxon}`, site {site}: `{character}` is no {alphabet} character")]
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
    /// A column of gaps.
    #[error("site {site} has no character in any taxon ({count} such sites): remove them")]
    GapColumn {
        /// The first such site.
        site: usize,
        /// How many there are.
        count: usize,
    },
}

/// The fewest taxa of an unrooted tree with an inner branch.
pub const TAXA_MIN: usize = 4;
/// The most taxa.
pub const TAXA_MAX: usize = 1 << 20;
/// The most sites.
pub const SITES_MAX: usize = 1 << 30;

/// Sequences of one length, as they were read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alignment {
    names: Vec<String>,
    rows: Vec<Vec<u8>>,
}

/// What a user should know of an alignment that can be worked with.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// Two taxa have the same sequence.
    Identical {
        /// The one.
        first: String,
        /// The other.
        second: String,
    },
    /// A taxon has gaps only.
    AllGaps {
        /// The taxon.
        taxon: String,
    },
}

impl std::fmt::Display for Warning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Identical { first, second } => {
                write!(f, "`{first}` and `{second}` have identical sequences")
            }
            Self::AllGaps { taxon } => write!(f, "`{taxon}` has no character but gaps"),
        }
    }
}

impl Alignment {
    /// Reads PHYLIP (relaxed; sequential or interleaved), FASTA or a NEXUS data block: whichever it
    /// is.
    ///
    /// # Errors
    /// [`MsaError`]: not in a format, unequal lengths, duplicate names, fewer than [`TAXA_MIN`] taxa.
    pub fn parse(bytes: &[u8]) -> Result<Self, MsaError> {
        let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
        let start = bytes.trim_ascii_start();
        let (names, rows) = match start.first() {
            Some(b'>') => fasta::parse(bytes)?,
            Some(b'#') if start.len() >= 6 && start[..6].eq_ignore_ascii_case(b"#NEXUS") => {
                nexus::parse(bytes)?
            }
            Some(b'0'..=b'9') => phylip::parse(bytes)?,
            _ => return Err(MsaError::UnknownFormat),
        };
        Self::new(names, rows)
    }

    /// From names and sequences.
    ///
    /// # Errors
    /// As [`Alignment::parse`].
    pub fn new(names: Vec<String>, rows: Vec<Vec<u8>>) -> Result<Self, MsaError> {
        limit("taxa", names.len(), TAXA_MAX)?;
        let mut seen = HashMap::with_capacity(names.len());
        for name in &names {
            if seen.insert(name.as_str(), ()).is_some() {
                return Err(MsaError::DuplicateName { taxon: shown(name) });
            }
        }
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
        Ok(Self { names, rows })
    }

    /// The taxa's names, in the file's order.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// How many columns there are.
    #[must_use]
    pub fn sites(&self) -> usize {
        self.rows[0].len()
    }

    /// A taxon's characters, as they were read.
    #[must_use]
    pub fn row(&self, taxon: usize) -> &[u8] {
        &self.rows[taxon]
    }

    /// What a user should know: identical sequences, empty ones. Reads everything once.
    #[must_use]
    pub fn check(&self) -> Vec<Warning> {
        let mut warnings = Vec::new();
        let mut seen: HashMap<Vec<u8>, usize> = HashMap::new();
        for (taxon, row) in self.rows.iter().enumerate() {
            if row.iter().all(|c| matches!(c, b'-' | b'?' | b'.')) {
                warnings.push(Warning::AllGaps {
                    taxon: self.names[taxon].clone(),
                });
            } else if let Some(first) = seen.insert(row.to_ascii_uppercase(), taxon) {
                warnings.push(Warning::Identical {
                    first: self.names[first].clone(),
                    second: self.names[taxon].clone(),
                });
            }
        }
        warnings
    }

    /// Writes it as relaxed PHYLIP, one line a taxon.
    #[must_use]
    pub fn to_phylip(&self) -> Vec<u8> {
        let mut out = format!("{} {}\n", self.names.len(), self.sites()).into_bytes();
        for (name, row) in self.names.iter().zip(&self.rows) {
            out.extend_from_slice(name.as_bytes());
            out.push(b' ');
            out.extend_from_slice(row);
            out.push(b'\n');
        }
        out
    }
}

/// Names and rows, as the formats' parsers give them.
type Rows = (Vec<String>, Vec<Vec<u8>>);

/// Whether there are as many taxa, and characters of each, as the file's header says; None where it
/// says nothing.
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

fn limit(what: &'static str, found: usize, max: usize) -> Result<(), MsaError> {
    if found > max {
        Err(MsaError::TooMany { what, found, max })
    } else {
        Ok(())
    }
}

/// A name from bytes; what is no UTF-8 is shown as such.
fn name(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A name short and plain enough for a message of one line.
fn shown(name: &str) -> String {
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

/// A character that can stand in a sequence of some alphabet.
fn is_sequence(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || matches!(byte, b'-' | b'?' | b'*' | b'.' | b'~' | b'!')
}

#[cfg(test)]
mod tests;
