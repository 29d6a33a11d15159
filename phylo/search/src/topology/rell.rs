//! Sites' log-likelihoods under several trees, and replicates drawn from them.
//!
//! Must stay true: a block of replicates draws from a seed of its own, so the drawing thread does
//! not matter.

use super::TopologyError;
use crate::random::Random;
use crate::runner::{Runner, Work};
use sidecore_bare::width::ToUsize;
use std::collections::HashMap;

/// The log-likelihood of each site under each tree. Sites with equal values under all trees are
/// kept once.
#[derive(Debug, Clone)]
pub struct SiteTable {
    trees: usize,
    /// Pattern by pattern, one value a tree.
    values: Vec<f64>,
    /// For each site its pattern.
    of_site: Vec<u32>,
}

impl SiteTable {
    /// From one list a tree, each with a value a site.
    ///
    /// # Errors
    /// [`TopologyError::TooFew`], [`TopologyError::Sites`], [`TopologyError::Value`].
    pub fn new(sites: &[Vec<f64>]) -> Result<Self, TopologyError> {
        let trees = sites.len();
        if trees < 2 {
            return Err(TopologyError::TooFew { trees });
        }
        let expected = sites[0].len();
        for (tree, own) in sites.iter().enumerate() {
            if own.len() != expected || expected == 0 {
                return Err(TopologyError::Sites {
                    tree: tree + 1,
                    found: own.len(),
                    expected,
                });
            }
            // An infinite or missing value would spread to all sums.
            if let Some(site) = own.iter().position(|value| !value.is_finite()) {
                return Err(TopologyError::Value {
                    tree: tree + 1,
                    site: site + 1,
                    value: own[site],
                });
            }
        }
        // Sites with equal values under all trees are one pattern, which makes resampling cheaper.
        let mut numbers: HashMap<Vec<u64>, u32> = HashMap::new();
        let mut values = Vec::new();
        let of_site = (0..expected).map(|site| {
            let own = sites.iter().map(|tree| tree[site]);
            // Doubles are no keys, and equal bits are equal values here: all are finite.
            let bits = own.clone().map(f64::to_bits).collect();
            let next = numbers.len() as u32;
            *numbers.entry(bits).or_insert_with(|| {
                values.extend(own);
                next
            })
        });
        let of_site = of_site.collect();
        Ok(Self {
            trees,
            values,
            of_site,
        })
    }

    /// Number of trees.
    #[must_use]
    pub fn trees(&self) -> usize {
        self.trees
    }

    /// Number of sites.
    #[must_use]
    pub fn sites(&self) -> usize {
        self.of_site.len()
    }

    /// The trees' log-likelihoods.
    #[must_use]
    pub fn sums(&self) -> Vec<f64> {
        let mut counts = vec![0_u32; self.patterns()];
        for &pattern in &self.of_site {
            counts[pattern.to_usize()] += 1;
        }
        let mut sums = vec![0.0; self.trees];
        self.add(&counts, &mut sums);
        sums
    }

    fn patterns(&self) -> usize {
        self.values.len() / self.trees
    }

    /// Adds each pattern's values, `counts` times each, to the trees' sums.
    fn add(&self, counts: &[u32], sums: &mut [f64]) {
        for (&count, values) in counts.iter().zip(self.values.chunks(self.trees)) {
            if count > 0 {
                let count = f64::from(count);
                for (sum, value) in sums.iter_mut().zip(values) {
                    *sum += count * value;
                }
            }
        }
    }

    /// For each pair of trees 1 over the standard deviation of the difference of their
    /// log-likelihoods; 0 where the difference is constant.
    pub(super) fn difference_weights(&self) -> Vec<f64> {
        let (trees, sites) = (self.trees, self.sites() as f64);
        let mut weights = vec![0.0; trees * trees];
        for a in 0..trees {
            for b in 0..a {
                let difference = |&pattern: &u32| {
                    let own = &self.values[pattern.to_usize() * trees..][..trees];
                    own[a] - own[b]
                };
                // Two passes: with sums of squares the digits of near-equal trees would cancel.
                let mean = self.of_site.iter().map(difference).sum::<f64>() / sites;
                let squares = self.of_site.iter().map(|pattern| {
                    let off = difference(pattern) - mean;
                    off * off
                });
                // The variance of a sum over the sites: that of one site times their number.
                let variance = squares.sum::<f64>() * sites / (sites - 1.0).max(1.0);
                let weight = match variance > 1e-12 {
                    true => 1.0 / variance.sqrt(),
                    false => 0.0,
                };
                weights[a * trees + b] = weight;
                weights[b * trees + a] = weight;
            }
        }
        weights
    }

    /// Replicates with `scale` times the number of sites, their log-likelihoods divided by `scale`.
    pub(super) fn replicates(
        &self,
        scale: f64,
        count: usize,
        seed: u64,
        runner: &impl Runner,
    ) -> Result<Replicates, TopologyError> {
        let draws = (scale * self.sites() as f64).round().max(1.0) as usize;
        // The scale of the whole number of sites drawn.
        let scale = draws as f64 / self.sites() as f64;
        let mut values = vec![0.0; count * self.trees];
        let mut blocks: Vec<(u64, &mut [f64])> =
            (0..).zip(values.chunks_mut(BLOCK * self.trees)).collect();
        runner.run(Work::Support, &mut blocks, |(block, values)| {
            let mut random = Random::new(sidecore_random::mix(seed) ^ *block);
            let mut counts = vec![0_u32; self.patterns()];
            for sums in values.chunks_mut(self.trees) {
                counts.fill(0);
                for _ in 0..draws {
                    let site = random.index(self.of_site.len());
                    counts[self.of_site[site].to_usize()] += 1;
                }
                self.add(&counts, sums);
                sums.iter_mut().for_each(|sum| *sum /= scale);
            }
        })?;
        Ok(Replicates {
            trees: self.trees,
            values,
        })
    }
}

/// The trees' log-likelihoods in each replicate.
#[derive(Debug)]
pub(super) struct Replicates {
    trees: usize,
    values: Vec<f64>,
}

impl Replicates {
    /// Replicate by replicate, one value a tree.
    pub(super) fn rows(&self) -> impl Iterator<Item = &[f64]> {
        self.values.chunks(self.trees)
    }
}

/// Replicates that one engine draws at a time.
const BLOCK: usize = 256;
