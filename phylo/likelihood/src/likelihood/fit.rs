//! Fits of model parameters: all of a partition's together, or one by itself.
//!
//! A partition's parameters depend on one another, and on the total tree length. So they are fitted
//! together ([`super::climb`]), with the partition's scale. A partition's parameters change only
//! its own likelihood, so only that is computed.
//! Source for one parameter: Brent, "Algorithms for minimization without derivatives" (1973),
//! chapter 5.

use super::climb::{Bend, climb};
use super::{LENGTH_MAX, LENGTH_MIN, Likelihood, LikelihoodError, Part};
use crate::model::{ALPHA_RANGE, Coordinate, Model, Parameter, SCALER_RANGE};
use crate::parsimony::mean_length;
use crate::runner::Runner;

/// Linkage of the branch lengths of partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lengths {
    /// All have the tree's, times the scale that each was given.
    #[default]
    Linked,
    /// Likewise, and the scales are fitted; their mean, weighted by sites, is 1.
    Scaled,
    /// Each partition has lengths of its own; the tree's are their mean, weighted by sites.
    Unlinked,
}

impl<R: Runner> Likelihood<R> {
    /// Improves one parameter until its logarithm is known to `tolerance`; returns the
    /// log-likelihood. Blocks.
    ///
    /// # Errors
    /// As [`Likelihood::evaluate`].
    pub fn optimise_parameter(
        &mut self,
        part: usize,
        parameter: Parameter,
        tolerance: f64,
    ) -> Result<f64, LikelihoodError> {
        let before = self.parts()[part].model().clone();
        let start = self.evaluate_once()?;
        let [least, most] = before.range(parameter);
        let mut at = before.value(parameter).clamp(least, most);
        let (mut best, mut best_lnl) = (None, start);
        // Parameters span decades: the search is along their logarithms.
        for _ in 0..WINDOWS_MAX {
            let window = [(at / WINDOW).max(least), (at * WINDOW).min(most)].map(libm::log);
            let (found, lnl) = maximise(window, libm::log(at), tolerance, |x| {
                let mut model = before.clone();
                model.set(parameter, libm::exp(x));
                self.set_model(part, model);
                self.evaluate_once()
            })?;
            // Kept apart from `at`: a later window may end lower than an earlier one.
            if lnl > best_lnl {
                (best, best_lnl) = (Some(libm::exp(found)), lnl);
            }
            // A maximum at the end of a window that is not the parameter's bound lies beyond the
            // window.
            let inside = |end: f64, bound: f64| (found - end).abs() > 0.05 || end == bound;
            at = libm::exp(found);
            if inside(window[0], libm::log(least)) && inside(window[1], libm::log(most)) {
                break;
            }
        }
        let mut model = before;
        if let Some(value) = best {
            model.set(parameter, value);
        }
        self.set_model(part, model);
        self.evaluate_once()
    }

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
        let each = epsilon / bends.len() as f64;
        for (part, bend) in bends.iter_mut().enumerate() {
            self.optimise_part(part, each, bend)?;
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
        self.optimise_part(part, epsilon, &mut Bend::default())?;
        self.level_scales();
        self.evaluate_once()
    }

    /// Fits a partition's parameters, and its scale if nothing else depends on that.
    fn optimise_part(
        &mut self,
        part: usize,
        epsilon: f64,
        bend: &mut Bend,
    ) -> Result<(), LikelihoodError> {
        // A linked partition's scale is fixed; a single partition may scale the whole tree.
        let scaled = self.lengths != Lengths::Linked || self.parts().len() == 1;
        // Only a first fit: later fits begin at the values of the one before.
        if self.parts()[part].model().fits_free_rates() && bend.is_new() {
            let new = self.parts()[part].model().has_new_classes();
            self.start_free_rates(part)?;
            if new {
                self.start_mixture(part)?;
            }
        }
        let model = self.parts()[part].model().clone();
        let scale = self.parts()[part].scale();
        let mut point = model.coordinates();
        if scaled {
            point.push(Coordinate::of(scale, SCALER_RANGE));
        }
        if point.is_empty() {
            return Ok(());
        }
        let before = self.evaluate_part(part)?;
        let top = climb(&mut point, bend, epsilon, |x| {
            self.move_part(part, &model, scaled, x);
            let lnl = self.evaluate_part(part)?;
            // A point whose likelihood underflows counts as the worst, so that the climb turns
            // back.
            Ok::<_, LikelihoodError>(if lnl.is_finite() { lnl } else { f64::MIN })
        })?;
        // Rounding can make a climb end below its start: then the old values stay.
        if top > before {
            let x: Vec<f64> = point.iter().map(|coordinate| coordinate.at).collect();
            self.move_part(part, &model, scaled, &x);
        } else {
            self.set_model(part, model);
            self.set_scale(part, scale);
        }
        Ok(())
    }

    fn move_part(&mut self, part: usize, model: &Model, scaled: bool, x: &[f64]) {
        let mut model = model.clone();
        let (own, scale) = x.split_at(x.len() - usize::from(scaled));
        model.move_to(own);
        self.set_model(part, model);
        if let [scale] = scale {
            self.set_scale(part, libm::exp(*scale));
        }
    }

    /// Free rates begin at the best gamma distribution: from equal rates a climb may end at a lower
    /// local maximum.
    fn start_free_rates(&mut self, part: usize) -> Result<(), LikelihoodError> {
        let given = self.parts()[part].model().clone();
        let before = self.evaluate_part(part)?;
        let mut started = given.clone();
        let (best, lnl) = maximise(ALPHA_RANGE.map(libm::log), 0.0, 0.05, |x| {
            started.start_free_rates(libm::exp(x));
            self.set_model(part, started.clone());
            self.evaluate_part(part)
        })?;
        started.start_free_rates(libm::exp(best));
        self.set_model(part, if lnl > before { started } else { given });
        Ok(())
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

/// The largest value of `f` between two ends, from a start between them; and its position.
fn maximise<E>(
    [mut a, mut b]: [f64; 2],
    start: f64,
    tolerance: f64,
    mut f: impl FnMut(f64) -> Result<f64, E>,
) -> Result<(f64, f64), E> {
    let mut x = start.clamp(a, b);
    let mut fx = f(x)?;
    let (mut w, mut fw, mut v, mut fv) = (x, fx, x, fx);
    let (mut step, mut before) = (0.0_f64, 0.0_f64);
    for _ in 0..EVALUATIONS_MAX {
        let middle = 0.5 * (a + b);
        if (x - middle).abs() + 0.5 * (b - a) <= 2.0 * tolerance {
            break;
        }
        // A parabola through the three best, if it can be trusted; else the golden section.
        let r = (x - w) * (fv - fx);
        let q = (x - v) * (fw - fx);
        let p = (x - v) * q - (x - w) * r;
        let q = 2.0 * (q - r);
        let (p, q) = if q > 0.0 { (-p, q) } else { (p, -q) };
        // Brent's conditions: inside the bracket, and shorter than half of the step before the
        // last.
        let trusted = before.abs() > tolerance
            && p.abs() < (0.5 * q * before).abs()
            && p > q * (a - x)
            && p < q * (b - x);
        if trusted {
            before = step;
            step = p / q;
            if (x + step) - a < 2.0 * tolerance || b - (x + step) < 2.0 * tolerance {
                step = tolerance.copysign(middle - x);
            }
        } else {
            before = if x < middle { b - x } else { a - x };
            step = GOLDEN * before;
        }
        // Steps below the tolerance would compare rounding errors.
        let u = x + if step.abs() >= tolerance {
            step
        } else {
            tolerance.copysign(step)
        };
        let fu = f(u)?;
        if fu >= fx {
            if u < x {
                b = x
            } else {
                a = x
            }
            (v, fv, w, fw, x, fx) = (w, fw, x, fx, u, fu);
        } else {
            if u < x {
                a = u
            } else {
                b = u
            }
            if fu >= fw || w == x {
                (v, fv, w, fw) = (w, fw, u, fu);
            } else if fu >= fv || v == x || v == w {
                (v, fv) = (u, fu);
            }
        }
    }
    Ok((x, fx))
}

/// The golden section.
const GOLDEN: f64 = 0.381_966_011_250_105;
/// Parameters need no better precision than lengths: to this share of the gain of the lengths.
const COARSE: f64 = 0.01;
const EVALUATIONS_MAX: usize = 24;
/// A search looks this factor up and down at first, and moves the window when it ends at a side.
const WINDOW: f64 = 2.0;
const WINDOWS_MAX: usize = 8;
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
