//! Oddities of an alignment that can be worked with: columns and sequences without a character, and
//! sequences that repeat another one.
//!
//! RAxML-NG's treatment: columns without a character are left out, sequences without one and
//! repeated ones are kept; all three are warned of. A character counts as the model reads it: in
//! DNA `N` says as little as `-`, and `U` is `T`.

use super::{Alignment, Patterns};
use std::collections::HashMap;
use std::fmt;

/// Oddities of an alignment under its partitions' alphabets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Findings {
    /// Columns in which no taxon has a character, from 0, in ascending order.
    pub undetermined_sites: Vec<u32>,
    /// Taxa without a character, by their place in the alignment.
    pub undetermined_taxa: Vec<usize>,
    /// Taxa whose sequence is that of an earlier one: the later and the earlier, by their places.
    pub identical_taxa: Vec<[usize; 2]>,
    /// Number of all columns.
    pub sites: usize,
}

/// One kind of oddity, counted; prints as one line.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// Columns without a character were left out.
    UndeterminedSites {
        /// The number of them, and of all columns.
        count: [usize; 2],
        /// The first of them as ranges, from 1.
        ranges: String,
    },
    /// Taxa without a character were kept.
    UndeterminedTaxa {
        /// The number.
        count: usize,
        /// The first of them.
        names: String,
    },
    /// Taxa that repeat an earlier one were kept.
    IdenticalTaxa {
        /// The number.
        count: usize,
        /// The first of them, each with the one that it repeats.
        names: String,
    },
}

impl Findings {
    /// Looks at all partitions of an alignment together. Reads each pattern once.
    #[must_use]
    pub fn of<'p>(
        alignment: &Alignment,
        parts: impl IntoIterator<Item = &'p Patterns> + Clone,
    ) -> Self {
        let mut found = Self {
            sites: alignment.sites(),
            ..Self::default()
        };
        for part in parts.clone() {
            let sites = part.undetermined_sites();
            found.undetermined_sites.extend_from_slice(sites);
        }
        found.undetermined_sites.sort_unstable();
        let mut seen: HashMap<Vec<u8>, usize> = HashMap::new();
        for taxon in 0..alignment.names().len() {
            let mut codes = Vec::new();
            let mut has_character = false;
            for part in parts.clone() {
                let own = part.codes(taxon);
                let unknown = part.alphabet().unknown();
                has_character |= own.iter().any(|&code| code != unknown);
                codes.extend_from_slice(own);
            }
            if !has_character {
                found.undetermined_taxa.push(taxon);
            } else if let Some(&earlier) = seen.get(&codes) {
                found.identical_taxa.push([taxon, earlier]);
            } else {
                seen.insert(codes, taxon);
            }
        }
        found
    }

    /// One warning for each kind of oddity that there is.
    #[must_use]
    pub fn warnings(&self, alignment: &Alignment) -> Vec<Warning> {
        let name = |taxon: usize| super::shown(&alignment.names()[taxon]);
        let mut warnings = Vec::new();
        if !self.undetermined_sites.is_empty() {
            warnings.push(Warning::UndeterminedSites {
                count: [self.undetermined_sites.len(), self.sites],
                ranges: first(site_ranges(&self.undetermined_sites).map(|[from, to]| {
                    match from == to {
                        true => from.to_string(),
                        false => format!("{from}-{to}"),
                    }
                })),
            });
        }
        if !self.undetermined_taxa.is_empty() {
            let names = self.undetermined_taxa.iter();
            warnings.push(Warning::UndeterminedTaxa {
                count: self.undetermined_taxa.len(),
                names: first(names.map(|&taxon| format!("`{}`", name(taxon)))),
            });
        }
        if !self.identical_taxa.is_empty() {
            let pairs = self.identical_taxa.iter();
            warnings.push(Warning::IdenticalTaxa {
                count: self.identical_taxa.len(),
                names: first(pairs.map(|&[later, earlier]| {
                    format!("`{}` (as `{}`)", name(later), name(earlier))
                })),
            });
        }
        warnings
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UndeterminedSites {
                count: [count, of],
                ranges,
            } => write!(
                f,
                "columns without a character in any taxon: {count} of {of}, left out: {ranges}"
            ),
            Self::UndeterminedTaxa { count, names } => write!(
                f,
                "sequences without a character: {count}, kept, may stand anywhere in a tree: \
                 {names}"
            ),
            Self::IdenticalTaxa { count, names } => {
                write!(
                    f,
                    "sequences that repeat an earlier one: {count}, kept: {names}"
                )
            }
        }
    }
}

/// Runs of neighbouring sites, given in ascending order from 0; each as its first and last site
/// from 1, as files of partitions have them.
pub fn site_ranges(sites: &[u32]) -> impl Iterator<Item = [u32; 2]> + '_ {
    sites
        .chunk_by(|a, b| a + 1 == *b)
        .map(|run| [run[0] + 1, run[run.len() - 1] + 1])
}

/// The first few of a list, for a message of one line.
fn first(items: impl Iterator<Item = String>) -> String {
    let mut items = items.peekable();
    let shown: Vec<String> = items.by_ref().take(SHOWN_MAX).collect();
    let more = if items.peek().is_some() { ", …" } else { "" };
    format!("{}{more}", shown.join(", "))
}

/// Items of a list that a warning shows.
const SHOWN_MAX: usize = 5;
