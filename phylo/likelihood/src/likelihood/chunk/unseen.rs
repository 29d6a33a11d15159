//! Ascertainment correction: the likelihood of patterns that cannot be in the alignment, because
//! only variable sites were collected.
//!
//! They are a chunk of their own, one pattern for each state that all taxa could have; its
//! "log-likelihood" is the correction, so that sums over chunks need not know of it.
//! Must stay true: nothing here depends on how the other patterns were cut. Each pattern's sum
//! table keeps the logarithm of its scale, since the patterns' likelihoods are added.
//! Sources: Lewis, "A likelihood approach to estimating phylogeny from discrete morphological
//! character data", Systematic Biology 50 (2001), 913-925; Leaché, Banbury, Felsenstein, de
//! Oca, Stamatakis, "Short tree, long tree, right tree, wrong tree: new acquisition bias
//! corrections
//! for inferring SNP phylogenies", Systematic Biology 64 (2015), 1032-1047 (the other two).

use crate::kernel::{Derivatives, Quad, Shape, level_scalers};
use crate::likelihood::part::Part;
use crate::model::AscertainmentName;

/// The correction that one partition's unseen patterns make.
#[derive(Debug)]
pub(in crate::likelihood) struct Unseen {
    by: AscertainmentName,
    /// Sites of the partition.
    sites: f64,
    /// Pattern by pattern the logarithm of the sum table's scale.
    lacks: Vec<f64>,
}

impl Unseen {
    /// That of a partition whose model has one.
    pub(in crate::likelihood) fn of(part: &Part) -> Option<Self> {
        let by = part.model().name().ascertainment.clone();
        (by != AscertainmentName::None).then(|| Self {
            by,
            sites: part.sites() as f64,
            lacks: vec![0.0; part.patterns().alphabet().states()],
        })
    }

    /// The correction, from each pattern's log-likelihood.
    pub(super) fn log_likelihood(&self, patterns: &[f64]) -> f64 {
        let sum = || patterns.iter().map(|&lnl| libm::exp(lnl)).sum::<f64>();
        match &self.by {
            AscertainmentName::None => 0.0,
            AscertainmentName::Lewis => -self.sites * libm::log(seen(sum())),
            AscertainmentName::Felsenstein(count) => count * libm::log(sum()),
            AscertainmentName::Stamatakis(counts) => {
                let terms = counts.iter().zip(patterns);
                let some = terms.filter(|(count, _)| **count > 0.0);
                some.map(|(count, lnl)| count * lnl).sum()
            }
        }
    }

    /// Converts each pattern of a sum table to one scale, whose logarithm is kept.
    pub(super) fn level(&mut self, shape: Shape, table: &mut [f64], scalers: Option<&[u16]>) {
        let Some(scalers) = scalers else {
            self.lacks.fill(0.0);
            return;
        };
        let rows = table
            .chunks_mut(shape.span())
            .zip(scalers.chunks(shape.rates));
        for (lacks, (row, scalers)) in self.lacks.iter_mut().zip(rows) {
            *lacks = level_scalers(shape.rates, row, scalers, &[0.0], &[1.0]);
        }
    }

    /// The correction, from the likelihoods that the sum table gave.
    pub(super) fn log_likelihood_of_table(&self, terms: &[Quad]) -> f64 {
        let terms = terms.as_flattened().iter().zip(&self.lacks);
        let patterns: Vec<f64> = terms
            .map(|(term, lacks)| libm::log(*term) + lacks)
            .collect();
        self.log_likelihood(&patterns)
    }

    /// The correction's derivatives by the length of the branch of the sum table.
    pub(super) fn derivatives(&self, shape: Shape, table: &[Quad], powers: &[Quad]) -> Derivatives {
        let span = shape.span();
        let (table, powers) = (table.as_flattened(), powers.as_flattened());
        let patterns = table
            .chunks_exact(span)
            .zip(&self.lacks)
            .map(|(row, lacks)| {
                let order = |order: usize| -> f64 {
                    let powers = &powers[order * span..][..span];
                    row.iter().zip(powers).map(|(x, power)| x * power).sum()
                };
                ([order(0), order(1), order(2)], *lacks)
            });
        // Derivatives of `ln f` from those of `f`.
        let of_logarithm = |[value, first, second]: [f64; 3]| {
            let slope = first / value;
            Derivatives {
                first: slope,
                second: second / value - slope * slope,
            }
        };
        let times = |factor: f64, by: Derivatives| Derivatives {
            first: factor * by.first,
            second: factor * by.second,
        };
        // Stamatakis's correction weighs each unseen pattern by its own count of sites; the scale
        // cancels.
        if let AscertainmentName::Stamatakis(counts) = &self.by {
            let each = counts.iter().zip(patterns);
            let some = each.filter(|(count, _)| **count > 0.0);
            let each = some.map(|(count, (orders, _))| times(*count, of_logarithm(orders)));
            return each.fold(Derivatives::default(), |sum, own| sum + own);
        }
        // The other corrections add likelihoods, so the patterns need a common scale first.
        let mut sums = [0.0; 3];
        for (orders, lacks) in patterns {
            let scale = libm::exp(lacks);
            sums.iter_mut()
                .zip(orders)
                .for_each(|(sum, order)| *sum += scale * order);
        }
        let [value, first, second] = sums;
        match self.by {
            AscertainmentName::Felsenstein(count) => times(count, of_logarithm(sums)),
            _ => times(-self.sites, of_logarithm([seen(value), -first, -second])),
        }
    }
}

/// The likelihood of a pattern that could be seen, from that of all unseen ones. Rounding must not
/// make it 0 on a tree whose branch lengths are 0.
fn seen(unseen: f64) -> f64 {
    (1.0 - unseen).max(f64::EPSILON)
}
