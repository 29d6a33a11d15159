//! Sets of taxa, the clades of a tree, and taxa by their distances in gene trees.
//!
//! Why here: quartets, concordance and the species tree compare clades by whole words of bits.
//! Must stay true: sets that are compared have room for the same number of taxa.

use crate::newick::Newick;
use sidecore_bare::width::ToUsize;

/// A set of taxa, by number.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TaxonSet(Box<[u64]>);

impl TaxonSet {
    /// The empty set, with room for this many taxa.
    #[must_use]
    pub(crate) fn empty(taxa: usize) -> Self {
        Self(vec![0; taxa.div_ceil(64)].into())
    }

    /// The taxa `0..taxa`.
    #[must_use]
    pub(crate) fn all(taxa: usize) -> Self {
        let mut set = Self::empty(taxa);
        (0..taxa).for_each(|taxon| set.insert(taxon));
        set
    }

    /// Adds a taxon.
    pub(crate) fn insert(&mut self, taxon: usize) {
        self.0[taxon / 64] |= 1 << (taxon % 64);
    }

    /// True if it has a taxon.
    #[must_use]
    pub(crate) fn has(&self, taxon: usize) -> bool {
        self.0[taxon / 64] >> (taxon % 64) & 1 == 1
    }

    /// Number of taxa.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones().to_usize()).sum()
    }

    /// True of the set without taxa.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    /// The taxa, in order.
    pub(crate) fn taxa(&self) -> impl Iterator<Item = usize> + '_ {
        (0..64 * self.0.len()).filter(|&taxon| self.has(taxon))
    }

    /// Adds all taxa of another set.
    pub(crate) fn add(&mut self, other: &Self) {
        let pairs = self.0.iter_mut().zip(&other.0);
        pairs.for_each(|(to, from)| *to |= from);
    }

    /// The taxa that both have.
    #[must_use]
    pub(crate) fn and(&self, other: &Self) -> Self {
        let pairs = self.0.iter().zip(&other.0);
        Self(pairs.map(|(a, b)| a & b).collect())
    }

    /// The taxa that the other one lacks.
    #[must_use]
    pub(crate) fn without(&self, other: &Self) -> Self {
        let pairs = self.0.iter().zip(&other.0);
        Self(pairs.map(|(a, b)| a & !b).collect())
    }

    /// True if the other one has all of these.
    #[must_use]
    pub(crate) fn is_within(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).all(|(a, b)| a & !b == 0)
    }

    /// Number of the taxa that both have.
    pub(crate) fn shared(&self, other: &Self) -> u64 {
        let pairs = self.0.iter().zip(&other.0);
        pairs.map(|(a, b)| u64::from((a & b).count_ones())).sum()
    }
}

/// The taxa below each node of a tree.
pub(crate) fn clades(
    tree: &Newick,
    taxa: usize,
    number: impl Fn(&str) -> Option<usize>,
) -> Vec<TaxonSet> {
    let nodes = tree.nodes();
    let mut below = vec![TaxonSet::empty(taxa); nodes.len()];
    // Children come after their parents.
    for node in (0..nodes.len()).rev() {
        if nodes[node].children.is_empty()
            && let Some(taxon) = number(&nodes[node].label)
        {
            below[node].insert(taxon);
        }
        if let Some(parent) = nodes[node].parent {
            let (above, own) = below.split_at_mut(node);
            above[parent].add(&own[0]);
        }
    }
    below
}
