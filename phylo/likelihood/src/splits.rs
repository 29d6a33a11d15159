//! Splits: the bipartition of the taxa by a branch.
//!
//! Why here: distances, support and convergence all count splits.
//! Must stay true: a split is kept as the side that does not have taxon 0, so two splits are equal
//! when their bits are; hashes only find candidates.
//!
//! ```
//! use sidecore_likelihood::newick::Newick;
//! use sidecore_likelihood::splits::{self, Taxa};
//!
//! let tree = Newick::parse("((a,b),c,(d,e));")?;
//! let taxa = Taxa::of(&tree)?;
//! let splits = splits::of(&tree, &taxa);
//! let inner = splits.iter().filter(|split| !split.is_trivial(taxa.len()));
//! assert_eq!(inner.count(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::newick::Newick;
use std::collections::HashMap;

/// Errors that keep trees from being compared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompareError {
    /// They do not have the same tips.
    #[error("only one of the trees has the tip `{label}`")]
    Tips {
        /// The tip.
        label: String,
    },
    /// A tip occurs twice.
    #[error("a tree has the tip `{label}` twice")]
    Twice {
        /// The tip.
        label: String,
    },
    /// Too few taxa for a tree.
    #[error("a tree of {taxa} taxa has no inner node: at least 3 are needed")]
    TooSmall {
        /// The number.
        taxa: usize,
    },
}

/// Errors that keep the trees of a set from being compared, from having a consensus, or from having
/// their quartets counted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SetError {
    /// No trees.
    #[error("a consensus of no trees: at least one is needed")]
    Empty,
    /// Too few trees for a pair.
    #[error("{trees} trees: two at least are compared with one another")]
    Few {
        /// The number.
        trees: usize,
    },
    /// A tree of other taxa than the first's, or of too few.
    #[error("tree {number}: {source}")]
    Tree {
        /// Its number, from 1.
        number: usize,
        /// The reason.
        source: CompareError,
    },
    /// The splits and distances need more memory than is allowed.
    #[error(
        "the branches of {number} trees and the distances of all take more than {mib} MiB of \
         memory, which is what is allowed: give --memory to allow more"
    )]
    Memory {
        /// Trees up to the one that is too many.
        number: usize,
        /// The limit.
        mib: u64,
    },
    /// The trees' splits need more memory than is allowed.
    #[error(
        "up to tree {number} the branches' sets of taxa take more than {mib} MiB of memory, which \
         is what is allowed: give --memory to allow more"
    )]
    Splits {
        /// The tree's number, from 1.
        number: usize,
        /// The limit.
        mib: u64,
    },
    /// A tip occurs twice.
    #[error("tree {tree} has the tip `{label}` twice")]
    Twice {
        /// Number of the tree, from 1.
        tree: usize,
        /// The tip.
        label: String,
    },
    /// Too few taxa in all trees together.
    #[error("the trees have {taxa} taxa together, and 4 are needed for a quartet")]
    FewTaxa {
        /// The number.
        taxa: usize,
    },
    /// More taxa than counts of quartets can hold.
    #[error("the trees have {taxa} taxa together, more than {most}")]
    ManyTaxa {
        /// The number.
        taxa: usize,
        /// The limit.
        most: usize,
    },
    /// The caller stopped it.
    #[error("stopped")]
    Stopped,
}

/// The taxa of a set of trees: a number for each label.
#[derive(Debug, Clone)]
pub struct Taxa(HashMap<String, usize>);

impl Taxa {
    /// The splits of a tree, numbered in its order.
    ///
    /// # Errors
    /// [`CompareError::Twice`], [`CompareError::TooSmall`].
    pub fn of(tree: &Newick) -> Result<Self, CompareError> {
        let taxa = Self::any(tree)?;
        match taxa.len() {
            0..3 => Err(CompareError::TooSmall { taxa: taxa.len() }),
            _ => Ok(taxa),
        }
    }

    fn any(tree: &Newick) -> Result<Self, CompareError> {
        let mut taxa = HashMap::new();
        for tip in tree.tips() {
            let label = tree.nodes()[tip].label.clone();
            let number = taxa.len();
            if taxa.insert(label.clone(), number).is_some() {
                return Err(CompareError::Twice { label });
            }
        }
        Ok(Self(taxa))
    }

    /// The number.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if a tree has exactly these tips.
    ///
    /// # Errors
    /// [`CompareError::Tips`], [`CompareError::Twice`].
    pub fn check(&self, tree: &Newick) -> Result<(), CompareError> {
        let other = Self::any(tree)?;
        let only = |from: &Self, not: &Self| {
            let missing = from.0.keys().filter(|label| !not.0.contains_key(*label));
            // The least, since the order of a map's keys changes from run to run.
            missing.min().cloned()
        };
        match only(self, &other).or_else(|| only(&other, self)) {
            Some(label) => Err(CompareError::Tips { label }),
            None => Ok(()),
        }
    }

    /// A label's number.
    pub fn number(&self, label: &str) -> usize {
        self.0[label]
    }
}

/// The taxa on the side of a branch that does not have taxon 0.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Split(Box<[u64]>);

impl Split {
    fn new(mut set: Vec<u64>, taxa: usize) -> Self {
        // Both sides describe one bipartition: the one without taxon 0 stands for it.
        if set[0] & 1 == 1 {
            set.iter_mut().for_each(|word| *word = !*word);
            // Bits beyond the last taxon stay 0, so that equal splits have equal words.
            if !taxa.is_multiple_of(64)
                && let Some(last) = set.last_mut()
            {
                *last &= (1 << (taxa % 64)) - 1;
            }
        }
        Self(set.into())
    }

    /// Number of taxa of that side.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a size, not a collection")]
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// True if a taxon is on that side.
    #[must_use]
    pub fn has(&self, taxon: usize) -> bool {
        self.0[taxon / 64] >> (taxon % 64) & 1 == 1
    }

    /// True of a split that every tree has: the branch leads to a tip, or is above all taxa.
    #[must_use]
    pub fn is_trivial(&self, taxa: usize) -> bool {
        let len = self.len();
        // A tip's branch is in every tree, seen from either side.
        len <= 1 || len + 1 >= taxa
    }

    /// True if a tree can have both.
    #[must_use]
    pub fn is_compatible(&self, other: &Self) -> bool {
        // Neither side has taxon 0, so that their complements always share a taxon.
        let (mut both, mut only_self, mut only_other) = (0, 0, 0);
        for (a, b) in self.0.iter().zip(&other.0) {
            both |= a & b;
            only_self |= a & !b;
            only_other |= b & !a;
        }
        both == 0 || only_self == 0 || only_other == 0
    }
}

/// For each node of a tree the split that the branch above it makes; the root's has no taxon.
///
/// # Panics
/// When the tree has a tip that is not in `taxa`: see [`Taxa::check`].
#[must_use]
pub fn of(tree: &Newick, taxa: &Taxa) -> Vec<Split> {
    let words = taxa.len().div_ceil(64);
    let nodes = tree.nodes();
    let mut below = vec![vec![0_u64; words]; nodes.len()];
    // Children come after their parents.
    for node in (0..nodes.len()).rev() {
        if nodes[node].children.is_empty() {
            let taxon = taxa.number(&nodes[node].label);
            below[node][taxon / 64] |= 1 << (taxon % 64);
        }
        if let Some(parent) = nodes[node].parent {
            // A parent comes before its children, so each is in a half of its own.
            let (above, own) = below.split_at_mut(node);
            let pairs = above[parent].iter_mut().zip(&own[0]);
            pairs.for_each(|(to, from)| *to |= from);
        }
    }
    let splits = below.into_iter().map(|set| Split::new(set, taxa.len()));
    splits.collect()
}

/// The side of a branch without taxon 0, by three numbers: the least and the largest number of a
/// taxon on it, and the number of its taxa.
///
/// In the tree that numbered the taxa each such side is a run of numbers. So a split of another
/// tree is also one of that tree if it is a run, too, and the ends are the same. Equality of splits
/// then takes memory and time proportional to the nodes, not to their squares.
/// Source: Day, "Optimal algorithms for comparing trees with labeled leaves", Journal of
/// Classification 2 (1985), 7-28.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// The least number.
    pub first: u32,
    /// The largest number.
    pub last: u32,
    /// The taxa on it.
    pub len: u32,
}

impl Span {
    /// The root's: no taxon.
    const EMPTY: Self = Self {
        first: u32::MAX,
        last: 0,
        len: 0,
    };

    fn add(&mut self, other: Self) {
        self.first = self.first.min(other.first);
        self.last = self.last.max(other.last);
        self.len += other.len;
    }

    /// True if every number between the ends is on it.
    pub fn is_run(self) -> bool {
        self.len > 0 && self.last - self.first + 1 == self.len
    }

    /// True if a taxon is on it; of runs only.
    pub fn has(self, taxon: u32) -> bool {
        (self.first..=self.last).contains(&taxon)
    }

    /// As [`Split::is_trivial`].
    pub fn is_trivial(self, taxa: usize) -> bool {
        let len = self.len as usize;
        len <= 1 || len + 1 >= taxa
    }
}

/// For each node of a tree the span of the branch above it, in the numbers of `taxa`.
///
/// # Panics
/// When the tree has a tip that is not in `taxa`: see [`Taxa::check`].
pub fn spans(tree: &Newick, taxa: &Taxa) -> Vec<Span> {
    let nodes = tree.nodes();
    let mut below = vec![Span::EMPTY; nodes.len()];
    let mut above_first = None;
    // Children come after their parents.
    for node in (0..nodes.len()).rev() {
        if nodes[node].children.is_empty() {
            let taxon = u32::try_from(taxa.number(&nodes[node].label)).unwrap_or(u32::MAX);
            below[node].add(Span {
                first: taxon,
                last: taxon,
                len: 1,
            });
            if taxon == 0 {
                // The only tip whose branches upwards have to be turned.
                above_first = Some(node);
            }
        }
        if let Some(parent) = nodes[node].parent {
            let own = below[node];
            below[parent].add(own);
        }
    }
    // A branch above taxon 0 has it below: its other side is that of its parent's branch plus the
    // taxa below its siblings.
    let mut path = Vec::new();
    while let Some(node) = above_first {
        path.push(node);
        above_first = nodes[node].parent;
    }
    // The root has no branch above it.
    below[0] = Span::EMPTY;
    let mut beyond = Span::EMPTY;
    // From the root down: what is beyond grows by the siblings on each step.
    for step in path.windows(2).rev() {
        let &[node, parent] = step else { continue };
        let siblings = nodes[parent]
            .children
            .iter()
            .filter(|&&child| child != node);
        siblings.for_each(|&child| beyond.add(below[child]));
        below[node] = beyond;
    }
    below
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use crate::tree::random_tree;

    #[test]
    fn spans_say_what_sets_say() {
        let mut random = Random::new(9);
        for taxa in [4_usize, 5, 17, 90] {
            let names: Vec<String> = (0..taxa).map(|k| format!("t{k}")).collect();
            let mut tree = || Newick::parse(&random_tree(taxa, 0.1, &mut random).to_newick(&names));
            let trees = [tree().unwrap(), tree().unwrap()];
            let numbers = Taxa::of(&trees[0]).unwrap();
            let [one, two] = trees.each_ref().map(|tree| {
                let both = of(tree, &numbers).into_iter().zip(spans(tree, &numbers));
                both.collect::<Vec<(Split, Span)>>()
            });
            for (split, span) in one.iter().chain(&two) {
                assert_eq!(split.len(), span.len as usize);
                let on: Vec<u32> = (0..taxa)
                    .filter(|&k| split.has(k))
                    .map(|k| k as u32)
                    .collect();
                if let [first, .., last] | [first @ last] = on[..] {
                    assert_eq!((span.first, span.last), (first, last));
                }
            }
            // All of the first tree's are runs; and equal where the sets are.
            assert!(
                one.iter()
                    .all(|(split, span)| span.is_run() || split.len() == 0)
            );
            for (split, span) in &one {
                for (other, its) in two.iter().filter(|(_, its)| its.is_run()) {
                    assert_eq!(split == other, span == its);
                }
            }
            for (other, _) in two.iter().filter(|(_, its)| !its.is_run() && its.len > 0) {
                assert!(one.iter().all(|(split, _)| split != other));
            }
        }
    }

    #[test]
    fn compatible_by_definition() {
        let names: Vec<String> = (0..70).map(|k| format!("t{k}")).collect();
        let mut random = Random::new(3);
        let mut tree = || Newick::parse(&random_tree(70, 0.1, &mut random).to_newick(&names));
        let (one, two) = (tree().unwrap(), tree().unwrap());
        let taxa = Taxa::of(&one).unwrap();
        let (one, two) = (of(&one, &taxa), of(&two, &taxa));
        let sides = |split: &Split| {
            let side = |yes| (0..70).filter(move |&k| split.has(k) == yes).collect();
            [side(true), side(false)] as [std::collections::HashSet<usize>; 2]
        };
        let mut conflicts = 0;
        for a in &one {
            assert!(one.iter().all(|b| a.is_compatible(b)));
            for b in &two {
                let (a_sides, b_sides) = (sides(a), sides(b));
                let apart = |a| b_sides.iter().any(|b| b.is_disjoint(a));
                let expected = a_sides.iter().any(apart);
                assert_eq!(a.is_compatible(b), expected);
                conflicts += usize::from(!expected);
            }
        }
        assert!(conflicts > 100);
    }
}
