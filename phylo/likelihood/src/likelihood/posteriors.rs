//! Posterior probabilities of the categories of rates and of a mixture's classes, site by site, and
//! what follows from them: rates of sites, the weights of many classes, site frequency profiles.
//!
//! Why here: one evaluation gives each category's likelihood of each pattern. With these the
//! weights of any number of classes are fitted without another evaluation, by expectation
//! maximisation.
//! Must stay true: a category's posterior is its share of the pattern's likelihood; what all shares
//! lack to 1 is the share of invariable sites.
//! Sources: Wang, Li, Susko and Roger, BMC Evolutionary Biology 8 (2008), 331 (the weights); Wang,
//! Minh, Susko and Roger, "Modeling site heterogeneity with posterior mean site frequency profiles
//! accelerates accurate phylogenomic estimation", Systematic Biology 67 (2018), 216-235.

use super::chunk::Chunk;
use super::plan::Storage;
use super::{Likelihood, LikelihoodError};
use crate::runner::Runner;
use crate::tree::HalfId;

/// Posterior probabilities at the present tree and parameters of one partition.
#[derive(Debug, Clone)]
pub struct Posteriors {
    /// Pattern by pattern, category by category.
    categories: Vec<f64>,
    rates: Vec<f64>,
    /// The frequencies of each class; one entry of a model without classes.
    frequencies: Vec<Vec<f64>>,
}

impl Posteriors {
    /// Those of a partition. Blocks.
    ///
    /// # Errors
    /// [`LikelihoodError::Offload`].
    pub fn of<R: Runner>(
        likelihood: &mut Likelihood<R>,
        part: usize,
    ) -> Result<Self, LikelihoodError> {
        let edge = likelihood.tree.edge(HalfId(0));
        let own = likelihood.chunks.of_parts(part..part + 1);
        likelihood.parts[part].prepare_evaluate(&likelihood.tree, edge);
        likelihood.run(edge, own, Storage::Scratch, Chunk::evaluate_categories)?;
        let categories = likelihood.chunks.gather_categories(&likelihood.parts, part);
        let own = &likelihood.parts[part];
        let mut frequencies = own.model().class_frequencies();
        if frequencies.is_empty() {
            frequencies.push(&own.process().frequencies);
        }
        let states = own.patterns().alphabet().states();
        let owned = |class: &[f64]| class[..states].to_vec();
        Ok(Self {
            categories,
            rates: own.process().rates.clone(),
            frequencies: frequencies.into_iter().map(owned).collect(),
        })
    }

    /// For each pattern the probability of each category of the process, pattern by pattern. Of a
    /// mixture, a class's categories are neighbours.
    #[must_use]
    pub fn categories(&self) -> &[f64] {
        &self.categories
    }

    /// As [`Posteriors::categories`], summed over the rates of each class; one sum a pattern of a
    /// model without classes.
    #[must_use]
    pub fn classes(&self) -> Vec<f64> {
        let rates = self.rates.len() / self.frequencies.len();
        let sums = self.categories.chunks_exact(rates);
        sums.map(|own| own.iter().sum()).collect()
    }

    /// For each pattern its mean rate, in units of the mean over all sites.
    #[must_use]
    pub fn rates(&self) -> Vec<f64> {
        let mean = |own: &[f64]| {
            own.iter()
                .zip(&self.rates)
                .map(|(share, rate)| share * rate)
                .sum()
        };
        let patterns = self.categories.chunks_exact(self.rates.len());
        patterns.map(mean).collect()
    }

    /// For each pattern the mean of the classes' frequencies: the profiles of a model of site
    /// frequencies. States of a pattern are neighbours.
    #[must_use]
    pub fn frequencies(&self) -> Vec<f64> {
        let mut all = Vec::new();
        for own in self.classes().chunks_exact(self.frequencies.len()) {
            let mut mean = vec![0.0; self.frequencies[0].len()];
            for (share, class) in own.iter().zip(&self.frequencies) {
                let each = mean.iter_mut().zip(class);
                each.for_each(|(mean, frequency)| *mean += share * frequency);
            }
            // Invariable sites are of no class.
            let sum: f64 = mean.iter().sum();
            all.extend(mean.iter().map(|share| share / sum));
        }
        all
    }
}

/// Weights that maximise the likelihood of patterns, of which `counts` are there of each. `shares`
/// are the classes' shares of each pattern's likelihood at the given weights. A class whose given
/// weight is 0 has no share, and stays out.
///
/// Expectation maximisation with extrapolated steps (Varadhan and Roland, Scandinavian Journal of
/// Statistics 35 (2008), 335-353, scheme S3). The maximum is the only one, since the logarithm of
/// the likelihood is concave in the weights; the slopes bound how far it is.
pub(super) fn climb_weights(counts: &[f64], shares: &[f64], given: &[f64]) -> Vec<f64> {
    let classes = given.len();
    // Invariable sites keep their share of a pattern, whatever the classes' weights.
    let rest = |own: &[f64]| (1.0 - own.iter().sum::<f64>()).max(0.0);
    let fixed: Vec<f64> = shares.chunks_exact(classes).map(rest).collect();
    // One step: the next weights, the log-likelihood here, and the most that is left to gain.
    let step = |weights: &[f64]| {
        let (mut sums, mut lnl) = (vec![0.0; classes], 0.0);
        let factors: Vec<f64> = (weights.iter().zip(given))
            .map(|(weight, given)| if *given > 0.0 { weight / given } else { 0.0 })
            .collect();
        for ((own, fixed), count) in shares.chunks_exact(classes).zip(&fixed).zip(counts) {
            let each = own.iter().zip(&factors);
            let whole = fixed
                + each
                    .clone()
                    .map(|(share, factor)| share * factor)
                    .sum::<f64>();
            lnl += count * libm::log(whole);
            let sums = sums.iter_mut().zip(each);
            sums.for_each(|(sum, (share, factor))| *sum += count * share * factor / whole);
        }
        let total: f64 = sums.iter().sum();
        let slopes = sums
            .iter()
            .zip(weights)
            .filter(|(_, weight)| **weight > 0.0);
        let steepest = slopes.map(|(sum, weight)| sum / weight).fold(0.0, f64::max);
        sums.iter_mut().for_each(|sum| *sum /= total);
        (sums, lnl, steepest - total)
    };
    // Off the bounds, where steps are short.
    let each = UNIFORM / classes as f64;
    let start = |weight: &f64| (1.0 - UNIFORM) * weight + each * f64::from(*weight > 0.0);
    let mut weights = to_one(given.iter().map(start).collect());
    for _ in 0..STEPS_MAX {
        let (first, _, left) = step(&weights);
        if left < GAIN_LEAST {
            break;
        }
        let (second, lnl, _) = step(&first);
        let moved: Vec<f64> = first.iter().zip(&weights).map(|(a, b)| a - b).collect();
        let ends = second.iter().zip(&first).zip(&moved);
        let turned: Vec<f64> = ends.map(|((b, a), moved)| b - a - moved).collect();
        let norm = |of: &[f64]| of.iter().map(|value| value * value).sum::<f64>().sqrt();
        let far = (norm(&moved) / norm(&turned).max(f64::MIN_POSITIVE)).clamp(1.0, FAR_MAX);
        let leap = (0..classes).map(|k| {
            let to = weights[k] + 2.0 * far * moved[k] + far * far * turned[k];
            to.max(0.1 * second[k])
        });
        let (third, there, _) = step(&to_one(leap.collect()));
        weights = if there >= lnl { third } else { second };
    }
    weights
}

fn to_one(mut weights: Vec<f64>) -> Vec<f64> {
    let sum: f64 = weights.iter().sum();
    weights.iter_mut().for_each(|weight| *weight /= sum);
    weights
}

const STEPS_MAX: usize = 300;
/// Weights that are at most this far below the best, in log-likelihood, are good enough.
const GAIN_LEAST: f64 = 1e-4;
/// Share of equal weights in the start.
const UNIFORM: f64 = 0.05;
/// The longest leap, in steps.
const FAR_MAX: f64 = 1e4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_climb_to_the_shares_of_pure_patterns() {
        // Three kinds of patterns, each of one class alone; one in ten of the first is invariable.
        let counts = [50.0, 30.0, 20.0];
        let shares = [0.9, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0];
        let found = climb_weights(&counts, &shares, &[0.2, 0.2, 0.6]);
        let sum: f64 = found.iter().sum();
        assert!((sum - 1.0).abs() < 1e-12, "{found:?}");
        assert!((found[1] / found[2] - 1.5).abs() < 1e-6, "{found:?}");
        assert!(found[0] > 0.44 && found[0] < 0.5, "{found:?}");
    }

    #[test]
    fn a_class_of_weight_zero_stays_out() {
        let found = climb_weights(&[10.0], &[0.5, 0.5, 0.0], &[0.5, 0.5, 0.0]);
        assert_eq!(found, [0.5, 0.5, 0.0]);
    }
}
