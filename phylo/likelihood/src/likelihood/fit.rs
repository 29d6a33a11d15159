//! Fits of all partitions' parameters and of the branch lengths, in turn.
//!
//! Must stay true: a fit begins without knowledge of an earlier one, so that a search that is
//! resumed from a checkpoint gets the same bits.

use super::climb::Bend;
use super::part_fit::PartFit;
use super::starts::{First, Kept};
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
        // The scale is in every transition matrix, and in no site repeat.
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
        let lnl = self.evaluate_once()?;
        let before = Kept::of(self, lnl);
        // The partitions' gains add up: together they may miss `epsilon`, not each.
        let each = epsilon / bends.len() as f64;
        let count = bends.len();
        for (part, bend) in bends.iter_mut().enumerate() {
            match (self.one_model, part) {
                (false, _) => PartFit::new(self, part..part + 1, bend).run(each)?,
                (true, 0) => PartFit::new(self, 0..count, bend).run(epsilon)?,
                (true, _) => {}
            }
        }
        self.level_scales();
        self.end_fit(&before)
    }

    /// The log-likelihood after a fit of parameters, which is undone if it lost: lengths that a
    /// scale moved beyond their bounds can lose more than the parameters gained.
    fn end_fit(&mut self, before: &Kept) -> Result<f64, LikelihoodError> {
        let lnl = self.evaluate_once()?;
        if lnl >= before.lnl {
            return Ok(lnl);
        }
        before.restore(self);
        self.evaluate_once()
    }

    /// As [`Likelihood::optimise_models`], of one partition alone.
    ///
    /// # Errors
    /// As [`Likelihood::evaluate`].
    pub fn optimise_model(&mut self, part: usize, epsilon: f64) -> Result<f64, LikelihoodError> {
        let lnl = self.evaluate_once()?;
        let before = Kept::of(self, lnl);
        PartFit::new(self, part..part + 1, &mut Bend::default()).run(epsilon)?;
        self.level_scales();
        self.end_fit(&before)
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
        // Scales that were given are not fitted: the tree's lengths are fitted to them as they are.
        let bound = self.lengths == Lengths::Linked && self.parts().len() > 1;
        if bound || mean == 1.0 {
            return;
        }
        for edge in self.tree.edges() {
            if self.tree.is_joint(edge) {
                continue;
            }
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

    /// As [`Likelihood::optimise`], but climbs only from the present values: for a fit that goes on
    /// from a good one. If the lengths come out far longer than parsimony suggests, a second fit
    /// starts from parsimony's lengths ([`Likelihood::reconsider_lengths`]).
    ///
    /// # Errors
    /// As [`Likelihood::evaluate`].
    pub fn optimise_onward(&mut self, epsilon: f64) -> Result<f64, LikelihoodError> {
        let lnl = self.optimise_by_turns(epsilon, First::Lengths)?;
        match self.reconsider_lengths()? {
            true => self.optimise_by_turns(epsilon, First::Lengths),
            false => Ok(lnl),
        }
    }

    /// Rounds of lengths and parameters until one gains less than `epsilon`, and those to come are
    /// predicted to. Never ends below its start.
    pub(super) fn optimise_by_turns(
        &mut self,
        epsilon: f64,
        first: First,
    ) -> Result<f64, LikelihoodError> {
        let mut lnl = self.evaluate_once()?;
        let mut best = Kept::of(self, lnl);
        let mut bends = vec![Bend::default(); self.parts().len()];
        if first == First::Parameters {
            lnl = self.optimise_models_with(epsilon, &mut bends)?;
            // The first fit of parameters may gain more than all turns that follow keep.
            best.keep_better(self, lnl);
        }
        let mut last_gain = f64::INFINITY;
        for _ in 0..ROUNDS_MAX {
            let lengths = self.optimise_lengths(epsilon, LENGTH_ROUNDS_MAX)?;
            // Parameters are fitted no finer than the lengths still improve.
            let coarse = (COARSE * (lengths - lnl)).max(0.1 * epsilon);
            let better = self.optimise_models_with(coarse, &mut bends)?;
            best.keep_better(self, better);
            let gain = better - lnl;
            lnl = better;
            // Gains of blocks in turn fall like a geometric series: this is the sum of its rest.
            let left = gain * gain / (last_gain - gain).max(f64::MIN_POSITIVE);
            if gain < 0.1 * epsilon || gain < epsilon && left < epsilon {
                break;
            }
            last_gain = gain;
        }
        // Clamped lengths, a longer branch's other top, or rounding can lose what was gained.
        if lnl < best.lnl {
            best.restore(self);
            lnl = self.evaluate_once()?;
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
        let lnl = self.evaluate()?;
        let before = Kept::of(self, lnl);
        let mut short = self.tree.clone();
        short.set_all_lengths(length);
        // From parsimony's lengths a climb cannot stay on the top of the long ones.
        self.set_tree(short);
        let mut lnl = f64::NEG_INFINITY;
        for _ in 0..RECONSIDERED_MAX {
            self.optimise_lengths(RECONSIDERED_EPSILON, LENGTH_ROUNDS_MAX)?;
            for part in 0..self.parts.len() {
                self.optimise_model(part, RECONSIDERED_EPSILON)?;
            }
            let better = self.evaluate()?;
            if better > before.lnl + RECONSIDERED_EPSILON {
                return Ok(true);
            }
            // A fit that gains no more and is still worse will not overtake.
            if better - lnl < RECONSIDERED_EPSILON {
                break;
            }
            lnl = better;
        }
        before.restore(self);
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
