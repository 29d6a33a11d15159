//! Fits of all partitions' parameters and of the branch lengths, in turn.
//!
//! Must stay true: a fit begins without knowledge of an earlier one, so that a search that is
//! resumed from a checkpoint gets the same bits.

use super::climb::Bend;
use super::part_fit::PartFit;
use super::{LENGTH_MAX, LENGTH_MIN, Lengths, Likelihood, LikelihoodError, Part};
use crate::model::SCALER_RANGE;
use crate::parsimony::mean_length;
use crate::runner::Runner;

impl<R: Runner> Likelihood<R> {
    /// Sets the linkage of the partitions' branch lengths.
    pub fn set_lengths(&mut self, lengths: Lengths) {
        self.lengths = lengths;
    }

    /// Linkage of the partitions' lengths.
    #[must_use]
    pub fn lengths(&self) -> Lengths {
        self.lengths
    }

    /// Sets the scale of a partition's branch lengths, clamped to 0.01..=100.
    pub fn set_scale(&mut self, part: usize, scale: f64) {
        let scale = scale.clamp(SCALER_RANGE[0], SCALER_RANGE[1]);
        self.parts[part].set_scale(scale);
        self.forget_values();
    }

    /// Improves all parameters of all partitions, and the total tree length, until the predicted
    /// gain of a step is less than `epsilon`; returns the log-likelihood. Blocks.
    ///
    /// # Errors
    /// As [`Likelihood::evaluate`].
    pub fn optimise_models(&mut self, epsilon: f64) -> Result<f64, LikelihoodError> {
        let mut bends = vec![Bend::default(); self.parts().len()];
        self.optimise_models_with(epsilon, &mut bends)
    }

    /// `bends` carries curvature from one call to the next within one fit. It is not kept beyond
    /// the fit: a search that is resumed from a checkpoint must get the same bits.
    fn optimise_models_with(
        &mut self,
        epsilon: f64,
        bends: &mut [Bend],
    ) -> Result<f64, LikelihoodError> {
        // Repeats are found here, for all partitions.
        self.evaluate_once()?;
        // The partitions' gains add up: together they may miss `epsilon`, not each.
        let each = epsilon / bends.len() as f64;
        for (part, bend) in bends.iter_mut().enumerate() {
            PartFit::new(self, part, bend).run(each)?;
        }
        self.level_scales();
        self.evaluate_once()
    }

    /// As [`Likelihood::optimise_models`], of one partition alone.
    ///
    /// # Errors
    /// As [`Likelihood::evaluate`].
    pub fn optimise_model(&mut self, part: usize, epsilon: f64) -> Result<f64, LikelihoodError> {
        self.evaluate_once()?;
        PartFit::new(self, part, &mut Bend::default()).run(epsilon)?;
        self.level_scales();
        self.evaluate_once()
    }

    /// Makes the scales' mean 1 and moves the factor into the tree's lengths.
    fn level_scales(&mut self) {
        if self.lengths == Lengths::Unlinked && self.parts().len() > 1 {
            return self.fold_scales();
        }
        let sites: Vec<f64> = self
            .parts()
            .iter()
            .map(|part| part.sites() as f64)
            .collect();
        let scales = self.parts().iter().map(|part| part.scale());
        let sum: f64 = scales.zip(&sites).map(|(scale, sites)| scale * sites).sum();
        let mean = sum / sites.iter().sum::<f64>();
        let bound = self.lengths == Lengths::Linked && self.parts().len() > 1;
        if bound || mean == 1.0 {
            return;
        }
        for edge in self.tree.edges() {
            let length = (self.tree.length(edge) * mean).clamp(LENGTH_MIN, LENGTH_MAX);
            self.tree.set_length(edge, length);
        }
        // A single partition's scale is the tree's length, which has just taken it.
        let one = self.parts.len() == 1;
        for part in &mut self.parts {
            let scale = part.scale() / mean;
            part.set_scale(if one { 1.0 } else { scale });
        }
        // All transition probabilities depend on lengths times scales.
        self.forget_values();
    }

    /// Improves lengths and parameters in turn until a round gains less than `epsilon`; returns the
    /// log-likelihood. If the lengths come out far longer than parsimony suggests, a second fit
    /// starts from parsimony's lengths ([`Likelihood::reconsider_lengths`]).
    ///
    /// # Errors
    /// As [`Likelihood::evaluate`].
    pub fn optimise(&mut self, epsilon: f64) -> Result<f64, LikelihoodError> {
        let lnl = self.optimise_from_here(epsilon)?;
        match self.reconsider_lengths()? {
            true => self.optimise_from_here(epsilon),
            false => Ok(lnl),
        }
    }

    fn optimise_from_here(&mut self, epsilon: f64) -> Result<f64, LikelihoodError> {
        let mut lnl = self.evaluate_once()?;
        let mut bends = vec![Bend::default(); self.parts().len()];
        for _ in 0..ROUNDS_MAX {
            let lengths = self.optimise_lengths(epsilon, LENGTH_ROUNDS_MAX)?;
            // Parameters are fitted no finer than the lengths still improve.
            let coarse = (COARSE * (lengths - lnl)).max(0.1 * epsilon);
            let better = self.optimise_models_with(coarse, &mut bends)?;
            let gain = better - lnl;
            lnl = better;
            if gain < epsilon {
                break;
            }
        }
        Ok(lnl)
    }

    /// Fits lengths and parameters from parsimony's lengths, if the present tree is more than three
    /// times as long: the present fit may be at a lower local maximum. The better fit is kept; true
    /// if that is the new one. Blocks.
    ///
    /// # Errors
    /// As [`Likelihood::evaluate`].
    pub fn reconsider_lengths(&mut self) -> Result<bool, LikelihoodError> {
        let patterns: Vec<_> = self.parts.iter().map(Part::patterns).collect();
        let length = mean_length(&self.tree, &patterns);
        let branches = self.tree.edges().count() as f64;
        // No long tree, no doubt: the common case costs only a parsimony length.
        if self.tree.total_length() <= LONG * length * branches {
            return Ok(false);
        }
        let before = self.evaluate()?;
        let (tree, parts) = (self.tree.clone(), self.parts.len());
        let models: Vec<_> = self.parts.iter().map(|part| part.model().clone()).collect();
        let scales: Vec<_> = self.parts.iter().map(Part::scale).collect();
        let mut short = tree.clone();
        short.set_all_lengths(length);
        // From parsimony's lengths a climb cannot stay on the top of the long ones.
        self.set_tree(short);
        let mut lnl = f64::NEG_INFINITY;
        for _ in 0..RECONSIDERED_MAX {
            self.optimise_lengths(RECONSIDERED_EPSILON, LENGTH_ROUNDS_MAX)?;
            for part in 0..parts {
                self.optimise_model(part, RECONSIDERED_EPSILON)?;
            }
            let better = self.evaluate()?;
            if better > before + RECONSIDERED_EPSILON {
                return Ok(true);
            }
            // A fit that gains no more and is still worse will not overtake.
            if better - lnl < RECONSIDERED_EPSILON {
                break;
            }
            lnl = better;
        }
        self.set_tree(tree);
        for (part, (model, scale)) in models.into_iter().zip(scales).enumerate() {
            self.set_model(part, model);
            self.set_scale(part, scale);
        }
        Ok(false)
    }
}

/// Parameters need no better precision than lengths: to this share of the gain of the lengths.
const COARSE: f64 = 0.01;
/// Ratio to a tree's length by parsimony above which its lengths are doubted. Evolution hides
/// changes from parsimony: right trees of real alignments are up to 2.2 times as long, wrong ones
/// were 4 times.
const LONG: f64 = 3.0;
/// A lower local maximum is hundreds below; a gain below this does not count.
const RECONSIDERED_EPSILON: f64 = 1.0;
const RECONSIDERED_MAX: usize = 8;
const ROUNDS_MAX: usize = 60;
const LENGTH_ROUNDS_MAX: usize = 2;

#[cfg(test)]
#[path = "fit_tests.rs"]
mod tests;
