//! Oddities of a usable alignment: columns and sequences without a character, sequences that repeat
//! another one, and input that was read as something else.
//!
//! RAxML-NG's treatment: columns without a character are left out, sequences without one and
//! repeated ones are kept; all three give warnings. A character counts as the model reads it: in
//! DNA `N` is missing data as `-` is, and `U` is `T`.

use super::{Alignment, Patterns};
use crate::newick::Newick;
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
    /// Meaningful characters that the alphabets do not have, which are read as unknown. Each with
    /// its count, in the order of the bytes.
    pub unread: Vec<(u8, usize)>,
    /// Codons with a base that is not known, or ambiguous: read as unknown.
    pub unread_codons: usize,
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
    /// Characters were read as unknown.
    Unread {
        /// The number.
        count: usize,
        /// The characters, each with its number.
        characters: String,
    },
    /// Codons were read as unknown.
    UnreadCodons {
        /// The number.
        count: usize,
    },
    /// Cells that have several states at once were read as either of them.
    Polymorphic {
        /// The number.
        count: usize,
    },
    /// Taxa that the file lists have no sequence.
    NoRow {
        /// The number of them, and of all listed.
        count: [usize; 2],
        /// The first of them.
        names: String,
    },
    /// Commands that leave out or weigh characters or taxa were not followed.
    Unapplied {
        /// The number.
        count: usize,
        /// Their names.
        commands: String,
    },
    /// The file has alignments after the first.
    Further {
        /// The number.
        count: usize,
    },
    /// Records of variants that are not single bases were left out.
    NoBases {
        /// The number.
        count: usize,
    },
    /// Names were not UTF-8.
    NotText {
        /// The number.
        count: usize,
        /// The first of them, as they were read.
        names: String,
    },
    /// Branches had no length, and [`LENGTH_DEFAULT`](crate::newick::LENGTH_DEFAULT) was assumed.
    NoLength {
        /// The number of them, and of all.
        count: [usize; 2],
    },
}

impl Warning {
    /// Branches without a length among those of trees as they were read; `None` if all have one.
    #[must_use]
    pub fn no_length<'t>(trees: impl IntoIterator<Item = &'t Newick>) -> Option<Self> {
        let (mut none, mut all) = (0, 0);
        for tree in trees {
            let [own_none, own_all] = tree.branches_without_length();
            (none, all) = (none + own_none, all + own_all);
        }
        (none > 0).then_some(Self::NoLength { count: [none, all] })
    }

    /// Listed taxa without a sequence; `all` is the number of those listed.
    pub(super) fn no_row(taxa: &[&String], all: usize) -> Self {
        Self::NoRow {
            count: [taxa.len(), all],
            names: first(taxa.iter().map(|name| format!("`{}`", super::shown(name)))),
        }
    }

    /// Names that are not UTF-8; `None` if all are.
    pub(super) fn not_text(names: &[String]) -> Option<Self> {
        // What is no UTF-8 was replaced by this character when the file was read.
        let bad = || names.iter().filter(|name| name.contains('\u{FFFD}'));
        let count = bad().count();
        let names = first(bad().map(|name| format!("`{}`", super::shown(name))));
        (count > 0).then_some(Self::NotText { count, names })
    }
}

impl Findings {
    /// Examines all partitions of an alignment together. Reads each pattern once.
    #[must_use]
    pub fn of<'p>(
        alignment: &Alignment,
        parts: impl IntoIterator<Item = &'p Patterns> + Clone,
    ) -> Self {
        let mut found = Self {
            sites: alignment.sites(),
            ..Self::default()
        };
        // Summed over the partitions: one character is one warning.
        let mut unread = [0_usize; 256];
        for part in parts.clone() {
            let sites = part.undetermined_sites();
            found.undetermined_sites.extend_from_slice(sites);
            for &(character, count) in part.unread() {
                unread[usize::from(character)] += count;
            }
            found.unread_codons += part.unread_codons();
        }
        let pairs = (0..=u8::MAX).zip(unread).filter(|(_, count)| *count > 0);
        found.unread = pairs.collect();
        found.undetermined_sites.sort_unstable();
        // Of several equal sequences each names the first: a chain would be hard to follow.
        let mut seen: HashMap<Vec<u8>, usize> = HashMap::new();
        // Sequences are compared by their codes, so that `N` and `-` count as the same.
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

    /// One warning for each kind of oddity found, those of the reading first.
    #[must_use]
    pub fn warnings(&self, alignment: &Alignment) -> Vec<Warning> {
        let name = |taxon: usize| super::shown(&alignment.names()[taxon]);
        // In the order in which a user meets them: the file, its characters, its columns, its rows.
        let mut warnings = alignment.warnings().to_vec();
        if !self.unread.is_empty() {
            let each = self.unread.iter();
            let each = each.map(|&(character, count)| match count {
                1 => format!("`{}`", super::shown(&super::name(&[character]))),
                _ => format!("`{}` ({count})", super::shown(&super::name(&[character]))),
            });
            warnings.push(Warning::Unread {
                count: self.unread.iter().map(|(_, count)| count).sum(),
                characters: each.collect::<Vec<_>>().join(", "),
            });
        }
        if self.unread_codons > 0 {
            let count = self.unread_codons;
            warnings.push(Warning::UnreadCodons { count });
        }
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
            Self::Unread { count, characters } => write!(
                f,
                "characters that the model does not have: {count}, read as unknown: {characters}"
            ),
            Self::UnreadCodons { count } => write!(
                f,
                "codons that are not three known bases: {count}, read as unknown"
            ),
            Self::Polymorphic { count } => write!(
                f,
                "cells of several states at once, `(…)`: {count}, read as either of them, `{{…}}`"
            ),
            Self::NoRow {
                count: [count, of],
                names,
            } => write!(
                f,
                "taxa of TAXLABELS without a row in the matrix: {count} of {of}, left out: {names}"
            ),
            Self::Unapplied { count, commands } => write!(
                f,
                "commands that leave out or weigh characters or taxa: {count}, not followed, all \
                 that the matrix has counts alike: {commands}"
            ),
            Self::Further { count } => {
                write!(
                    f,
                    "alignments in the file after the first: {count}, left out"
                )
            }
            Self::NoBases { count } => {
                write!(
                    f,
                    "records of other variants than single bases: {count}, left out"
                )
            }
            Self::NotText { count, names } => write!(
                f,
                "names that are no UTF-8: {count}, read with a mark in place of what is not: \
                 {names}"
            ),
            Self::NoLength { count: [count, of] } => write!(
                f,
                "branches without a length: {count} of {of}, {} assumed",
                crate::newick::LENGTH_DEFAULT
            ),
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
    // A list of all would be a line of megabytes for a large alignment.
    let mut items = items.peekable();
    let shown: Vec<String> = items.by_ref().take(SHOWN_MAX).collect();
    let more = if items.peek().is_some() { ", …" } else { "" };
    format!("{}{more}", shown.join(", "))
}

/// Items of a list that a warning shows.
const SHOWN_MAX: usize = 5;
