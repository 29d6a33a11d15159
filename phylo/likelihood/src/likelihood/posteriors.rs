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
/// are the classes' shares of each pattern's likelihood at the given weights.
pub(super) fn climb_weights(counts: &[f64], shares: &mut [f64], given: &[f64]) -> Vec<f64> {
    let classes = given.len();
    // Invariable sites keep their share of a pattern, whatever the classes' weights.
    let rest = |own: &[f64]| (1.0 - own.iter().sum::<f64>()).max(0.0);
    let fixed: Vec<f64> = shares.chunks_exact(classes).map(rest).collect();
    let mut weights = given.to_vec();
    for _ in 0..STEPS_MAX {
        let mut sums = vec![0.0; classes];
        for ((own, fixed), count) in shares.chunks_exact(classes).zip(&fixed).zip(counts) {
            let scale = count / (own.iter().sum::<f64>() + fixed);
            let each = sums.iter_mut().zip(own);
            each.for_each(|(sum, share)| *sum += share * scale);
        }
        let total: f64 = sums.iter().sum();
        let mut moved = 0.0_f64;
        // A class of weight 0 has no share, and stays so.
        let factors: Vec<f64> = (sums.iter().zip(&mut weights))
            .map(|(sum, weight)| {
                let next = sum / total;
                let factor = if *weight > 0.0 { next / *weight } else { 0.0 };
                moved = moved.max((next - *weight).abs());
                *weight = next;
                factor
            })
            .collect();
        if moved < STEP_LEAST {
            break;
        }
        for own in shares.chunks_exact_mut(classes) {
            let each = own.iter_mut().zip(&factors);
            each.for_each(|(share, factor)| *share *= factor);
        }
    }
    weights
}

const STEPS_MAX: usize = 2_000;
/// A step that moves no weight further is the last.
const STEP_LEAST: f64 = 1e-7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_climb_to_the_shares_of_pure_patterns() {
        // Three kinds of patterns, each of one class alone; one in ten of the first is invariable.
        let counts = [50.0, 30.0, 20.0];
        let mut shares = vec![0.9, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0];
        let found = climb_weights(&counts, &mut shares, &[0.2, 0.2, 0.6]);
        let sum: f64 = found.iter().sum();
        assert!((sum - 1.0).abs() < 1e-12, "{found:?}");
        assert!((found[1] / found[2] - 1.5).abs() < 1e-6, "{found:?}");
        assert!(found[0] > 0.44 && found[0] < 0.5, "{found:?}");
    }

    #[test]
    fn a_class_of_weight_zero_stays_out() {
        let mut shares = vec![0.5, 0.5, 0.0];
        let found = climb_weights(&[10.0], &mut shares, &[0.5, 0.5, 0.0]);
        assert_eq!(found, [0.5, 0.5, 0.0]);
    }
}
