//! Distances between the taxa of gene trees, in branches.
//!
//! Why here: they say where the species tree begins, and where a taxon is joined to a tree.

use crate::quartets::GeneTrees;
use crate::taxa::TaxonSet;

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
