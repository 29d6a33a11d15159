//! Branch lengths of partitions that have lengths of their own.
//!
//! A branch of the tree has the partitions' mean length, weighted by sites, and each partition a
//! factor of it ([`Tree::factor`]). Each partition's best length is found by itself. Insertions are
//! scored with the branches' present factors, and only accepted ones are fitted again.
//! Must stay true: tree and factors change together, and the CLVs that depend on the branch are
//! marked.

use super::branches::best_length;
use super::chunk::Chunk;
use super::climb::{Bend, climb};
use super::validity::Change;
use super::{LENGTH_MAX, LENGTH_MIN, Likelihood, LikelihoodError, Part};
use crate::kernel::Derivatives;
use crate::model::Model;
use crate::runner::{Runner, Work};
use crate::tree::EdgeId;

#[cfg(doc)]
use crate::tree::Tree;

impl<R: Runner> Likelihood<R> {
    /// Sets a branch's length in each partition to its best, and returns their mean.
    pub(super) fn optimise_unlinked_length(
        &mut self,
        edge: EdgeId,
    ) -> Result<f64, LikelihoodError> {
        self.make_sum_table(edge)?;
        let mut own = Vec::with_capacity(self.parts.len());
        let mut moved = false;
        for number in 0..self.parts.len() {
            let part = &self.parts[number];
            let start = part.length(&self.tree, edge) * part.scale();
            let start = start.clamp(LENGTH_MIN, LENGTH_MAX);
            let best = best_length(start, |length| self.own_slope(number, length))?;
            moved |= best != start;
            own.push(best);
        }
        // Lengths that are good enough stay, to the last bit, and so do all CLVs.
        if moved {
            self.set_own_lengths(edge, &own);
        }
        Ok(self.tree.length(edge))
    }

    /// The derivatives of one partition's log-likelihood by its own length, by the present tables.
    fn own_slope(&mut self, number: usize, length: f64) -> Result<Derivatives, LikelihoodError> {
        let own = self.chunks.of_parts(number..number + 1);
        let part = &mut self.parts[number];
        part.prepare_powers(length / part.scale());
        let (parts, work) = (&self.parts, Work::Derivatives);
        self.chunks.run(parts, work, own, 0.5, Chunk::derivatives)?;
        Ok(self.chunks.sum_slopes(number..number + 1, |_| 1.0))
    }

    /// Sets a branch's length in each partition.
    fn set_own_lengths(&mut self, edge: EdgeId, own: &[f64]) {
        // The tree's own length is the mean over sites; factors lead from it to the partitions.
        let sites: Vec<f64> = self.parts.iter().map(|part| part.sites() as f64).collect();
        let sum: f64 = own
            .iter()
            .zip(&sites)
            .map(|(length, sites)| length * sites)
            .sum();
        let mean = (sum / sites.iter().sum::<f64>()).clamp(LENGTH_MIN, LENGTH_MAX);
        self.tree.set_length(edge, mean);
        for (number, length) in own.iter().enumerate() {
            let factor = length / (mean * self.parts[number].scale());
            self.tree
                .set_factor([number, self.parts.len()], edge, factor);
            self.parts[number].forget_edge(edge);
        }
        self.validity.mark_around(&self.tree, edge, Change::Length);
    }

    /// Moves the scales that a fit of parameters left into the lengths, which are free.
    pub(super) fn fold_scales(&mut self) {
        if self.parts.iter().all(|part| part.scale() == 1.0) {
            return;
        }
        let own = |edge| {
            let of = |part: &Part| part.length(&self.tree, edge) * part.scale();
            let lengths = self.parts.iter().map(of);
            let lengths = lengths.map(|length| length.clamp(LENGTH_MIN, LENGTH_MAX));
            (edge, lengths.collect())
        };
        let all: Vec<(EdgeId, Vec<f64>)> = self
            .tree
            .edges()
            .filter(|&edge| !self.tree.is_joint(edge))
            .map(own)
            .collect();
        self.parts.iter_mut().for_each(|part| part.set_scale(1.0));
        for (edge, own) in all {
            self.set_own_lengths(edge, &own);
        }
        self.forget_values();
    }

    /// Takes lengths and factors that this tree had before.
    pub fn restore_lengths(&mut self, (lengths, factors): (Vec<f64>, Vec<Vec<f64>>)) {
        let edges: Vec<EdgeId> = self.tree.edges().collect();
        let parts = 0..self.parts.len();
        let before = self.tree.clone();
        self.tree.restore_factors(factors);
        for (edge, length) in edges.into_iter().zip(lengths) {
            // Matrices and CLVs made with other factors are not valid any more.
            let same = |part| before.factor(part, edge) == self.tree.factor(part, edge);
            if !parts.clone().all(same) {
                self.parts
                    .iter_mut()
                    .for_each(|part| part.forget_edge(edge));
                self.validity.mark_around(&self.tree, edge, Change::Length);
            }
            self.set_length(edge, length);
        }
    }
}

/// A likelihood whose partitions are classes of the same sites, each with a share of every site.
#[derive(Debug)]
pub struct SiteClasses<'a, R: Runner>(pub &'a mut Likelihood<R>);

impl<R: Runner> SiteClasses<'_, R> {
    /// With `one` the classes share one model, and differ in lengths alone.
    pub fn link_models(self, one: bool) {
        self.0.one_model = one;
    }

    /// The log-likelihood of each pattern in a class.
    ///
    /// # Errors
    /// As [`Likelihood::evaluate`].
    pub fn log_likelihoods(self, class: usize) -> Result<Vec<f64>, LikelihoodError> {
        self.0.evaluate_parts(class..class + 1)?;
        Ok(self.0.chunks.pattern_log_likelihoods(&self.0.parts, class))
    }

    /// Weights of a class's patterns in place of the numbers of their sites: for expectation
    /// maximisation. Not of a likelihood that several processes share.
    ///
    /// # Panics
    /// When they are fewer than the patterns.
    pub fn set_weights(self, class: usize, weights: &[f64]) {
        self.0.chunks.set_weights(class, weights);
        self.0.validity.forget_sum_table();
    }
}

/// Fits one model for several likelihoods of one partition each, whose log-likelihoods add up: of
/// one alignment on different trees. All get the model. Gives the sum, which is never below that of
/// the first one's model. Blocks.
///
/// # Errors
/// As [`Likelihood::evaluate`].
///
/// # Panics
/// When there is no likelihood.
pub fn optimise_shared_model<R: Runner>(
    all: &mut [Likelihood<R>],
    epsilon: f64,
) -> Result<f64, LikelihoodError> {
    let first = all[0].parts()[0].model().clone();
    let before = sum_under(all, &first)?;
    let mut point = first.coordinates();
    if point.is_empty() {
        return Ok(before);
    }
    let mut at = |x: &[f64]| {
        let mut model = first.clone();
        model.move_to(x);
        sum_under(all, &model)
    };
    let top = climb(&mut point, &mut Bend::default(), epsilon, &mut at)?;
    let x: Vec<f64> = point.iter().map(|coordinate| coordinate.at).collect();
    if top > before {
        let found = at(&x)?;
        if found > before {
            return Ok(found);
        }
    }
    sum_under(all, &first)
}

/// Gives all likelihoods a model; the sum of their log-likelihoods, or the least number where one
/// has none, so that a climb turns back.
fn sum_under<R: Runner>(all: &mut [Likelihood<R>], model: &Model) -> Result<f64, LikelihoodError> {
    let mut sum = 0.0;
    for one in all.iter_mut() {
        one.set_model(0, model.clone());
        sum += match one.evaluate_once() {
            Err(LikelihoodError::Impossible { .. }) => return Ok(f64::MIN),
            lnl => lnl?,
        };
    }
    Ok(sum)
}
