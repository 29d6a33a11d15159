//! Sets of taxa, the clades of a tree, and taxa by their distances in gene trees.
//!
//! Why here: quartets, concordance and the species tree compare clades by whole words of bits.
//! Must stay true: sets that are compared have room for the same number of taxa.

use crate::newick::Newick;
use crate::quartets::GeneTrees;
use sidecore_bare::width::ToUsize;

/// A set of taxa, by number.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaxonSet(Box<[u64]>);

impl TaxonSet {
    /// The empty set, with room for this many taxa.
    #[must_use]
    pub fn empty(taxa: usize) -> Self {
        Self(vec![0; taxa.div_ceil(64)].into())
    }

    /// The taxa `0..taxa`.
    #[must_use]
    pub fn all(taxa: usize) -> Self {
        let mut set = Self::empty(taxa);
        (0..taxa).for_each(|taxon| set.insert(taxon));
        set
    }

    /// Adds a taxon.
    pub fn insert(&mut self, taxon: usize) {
        self.0[taxon / 64] |= 1 << (taxon % 64);
    }

    /// True if it has a taxon.
    #[must_use]
    pub fn has(&self, taxon: usize) -> bool {
        self.0[taxon / 64] >> (taxon % 64) & 1 == 1
    }

    /// Number of taxa.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones().to_usize()).sum()
    }

    /// True of the set without taxa.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|&word| word == 0)
    }

    /// The taxa, in order.
    pub fn taxa(&self) -> impl Iterator<Item = usize> + '_ {
        (0..64 * self.0.len()).filter(|&taxon| self.has(taxon))
    }

    /// Adds all taxa of another set.
    pub fn add(&mut self, other: &Self) {
        let pairs = self.0.iter_mut().zip(&other.0);
        pairs.for_each(|(to, from)| *to |= from);
    }

    /// The taxa that both have.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let pairs = self.0.iter().zip(&other.0);
        Self(pairs.map(|(a, b)| a & b).collect())
    }

    /// The taxa that the other one lacks.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        let pairs = self.0.iter().zip(&other.0);
        Self(pairs.map(|(a, b)| a & !b).collect())
    }

    /// True if the other one has all of these.
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
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

/// Mean numbers of branches between taxa in the gene trees.
pub(crate) struct Distances {
    taxa: usize,
    values: Vec<f64>,
}

impl Distances {
    pub(crate) fn of(genes: &GeneTrees) -> Self {
        let taxa = genes.taxa();
        let (mut sums, mut counts) = (vec![0_u32; taxa * taxa], vec![0_u32; taxa * taxa]);
        for gene in &genes.genes {
            let own: Vec<usize> = gene.taxa.taxa().collect();
            // Two taxa are apart by the inner branches between them: those whose side has one.
            for (at, &a) in own.iter().enumerate() {
                for &b in &own[at + 1..] {
                    counts[a * taxa + b] += 1;
                }
            }
            for split in gene.splits() {
                let (inside, outside): (Vec<usize>, Vec<usize>) =
                    own.iter().partition(|&&taxon| split.has(taxon));
                for &a in &inside {
                    for &b in &outside {
                        sums[a.min(b) * taxa + a.max(b)] += 1;
                    }
                }
            }
        }
        let pairs = sums.iter().zip(&counts);
        // Taxa that never occur together are as far apart as can be.
        let mean = |(&sum, &count): (&u32, &u32)| match count {
            0 => f64::INFINITY,
            _ => f64::from(sum) / f64::from(count),
        };
        Self {
            taxa,
            values: pairs.map(mean).collect(),
        }
    }

    fn between(&self, a: usize, b: usize) -> f64 {
        self.values[a.min(b) * self.taxa + a.max(b)]
    }

    /// Of some taxa the nearest one.
    pub(crate) fn nearest(&self, taxon: usize, of: &TaxonSet) -> Option<usize> {
        of.taxa()
            .min_by(|&a, &b| self.between(taxon, a).total_cmp(&self.between(taxon, b)))
    }

    /// The clades of the tree that joins the nearest clusters (mean distance of their taxa).
    pub(crate) fn clusters(&self) -> Vec<TaxonSet> {
        let singles = (0..self.taxa).map(|taxon| {
            let mut set = TaxonSet::empty(self.taxa);
            set.insert(taxon);
            set
        });
        let mut open: Vec<(TaxonSet, Vec<f64>)> = singles
            .enumerate()
            .map(|(a, set)| {
                let row = (0..self.taxa).map(|b| {
                    // Finite, so that means of it stay numbers.
                    self.between(a, b).min(self.taxa as f64)
                });
                (set, row.collect())
            })
            .collect();
        let mut clades = Vec::new();
        while open.len() > 3 {
            let pairs = (0..open.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
            let nearest = pairs.min_by(|&(a, b), &(c, d)| open[a].1[b].total_cmp(&open[c].1[d]));
            let Some((a, b)) = nearest else { break };
            let (taken, row) = open.swap_remove(a);
            // The last one has moved to the place of the removed one.
            let moved = open.len();
            let (own, other) = (open[b].0.len() as f64, taken.len() as f64);
            open[b].0.add(&taken);
            clades.push(open[b].0.clone());
            for (at, (_, values)) in open.iter_mut().enumerate() {
                if a < moved {
                    values[a] = values[moved];
                }
                values.truncate(moved);
                let far = row[if at == a { moved } else { at }];
                if at != b {
                    values[b] = (own * values[b] + other * far) / (own + other);
                }
            }
            let column: Vec<f64> = open.iter().map(|(_, values)| values[b]).collect();
            for (at, value) in column.into_iter().enumerate() {
                if at != b {
                    open[b].1[at] = value;
                }
            }
        }
        clades
    }
}
