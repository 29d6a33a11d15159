//! The fit of one partition's parameters, and its start values.
//!
//! A partition's parameters depend on one another, and on the total tree length. So they are fitted
//! together ([`super::climb`]), with the partition's scale. They change only the partition's own
//! likelihood, so only that is computed.
//!
//! Plain free rates are interchangeable, and a climb finds their values. A mixture's classes
//! differ, and each choice of slow and fast classes has a local maximum of its own, tens of
//! log-likelihoods apart on alignments that the mixture was not made for. So a first fit of a
//! mixture climbs coarsely from each choice of the slowest and the fastest class.

use super::climb::{Bend, climb, maximise};
use super::posteriors::{Posteriors, climb_weights};
use super::{Lengths, Likelihood, LikelihoodError};
use crate::model::{ALPHA_RANGE, Coordinate, Model, SCALER_RANGE};
use crate::runner::Runner;
use std::ops::Range;

/// A fit under way.
pub(super) struct PartFit<'l, R> {
    likelihood: &'l mut Likelihood<R>,
    /// The partition; of several that share their parameters the first.
    part: usize,
    parts: Range<usize>,
    /// Curvature that earlier fits of the same run found.
    bend: &'l mut Bend,
}

impl<'l, R: Runner> PartFit<'l, R> {
    /// For some partitions: one, or several that have one model.
    pub(super) fn new(
        likelihood: &'l mut Likelihood<R>,
        parts: Range<usize>,
        bend: &'l mut Bend,
    ) -> Self {
        Self {
            likelihood,
            part: parts.start,
            parts,
            bend,
        }
    }

    /// Fits the parameters, and the scale if nothing else depends on that, until the predicted gain
    /// of a step is less than `epsilon`.
    pub(super) fn run(mut self, epsilon: f64) -> Result<(), LikelihoodError> {
        // Only a first fit: later fits begin at the values of the one before.
        if self.model().fits_free_rates() && self.bend.is_new() {
            let new = self.model().has_new_classes();
            self.start_free_rates()?;
            if new {
                self.start_mixture()?;
            }
        }
        // A linked partition's scale is fixed; a single partition may scale the whole tree.
        let several = self.likelihood.parts().len() > 1;
        let scaled = self.likelihood.lengths() != Lengths::Linked || !several;
        if self.model().fits_weights() {
            self.fit_class_weights(scaled)?;
        }
        let model = self.model().clone();
        let scale = self.likelihood.parts()[self.part].scale();
        let mut point = model.coordinates();
        if scaled {
            point.push(Coordinate::of(scale, SCALER_RANGE));
        }
        if point.is_empty() {
            return Ok(());
        }
        let before = self.evaluate()?;
        let mut bend = std::mem::take(self.bend);
        let top = climb(&mut point, &mut bend, epsilon, |x| {
            self.move_to(&model, scaled, x);
            self.comparable()
        })?;
        *self.bend = bend;
        // Rounding can make a climb end below its start: then the old values stay.
        if top > before {
            let x: Vec<f64> = point.iter().map(|coordinate| coordinate.at).collect();
            self.move_to(&model, scaled, &x);
        } else {
            self.set_model(model);
            self.set_scale(scale);
        }
        Ok(())
    }

    /// Fits the weights of a mixture's classes by expectation maximisation, all else as it is.
    /// Where the scale is free it keeps the classes' rates as they are, while their mean moves.
    fn fit_class_weights(&mut self, scaled: bool) -> Result<(), LikelihoodError> {
        let before = self.evaluate()?;
        let given = self.model().clone();
        let mut model = given.clone();
        // A class without weight would have no likelihood to tell whether it should have some.
        let least = |weight: &f64| weight.max(WEIGHT_LEAST);
        let weights: Vec<f64> = given.class_weights().iter().map(least).collect();
        model.set_class_weights(&weights);
        self.set_model(model.clone());
        let shares = Posteriors::of(self.likelihood, self.part)?.classes();
        let own = &self.likelihood.parts()[self.part];
        let (scale, counts) = (own.scale(), own.patterns().weights().iter());
        let counts: Vec<f64> = counts.map(|&count| f64::from(count)).collect();
        let weights = climb_weights(&counts, &shares, model.class_weights());
        let rate = model.mean_class_rate();
        model.set_class_weights(&weights);
        if scaled {
            let scale = scale * model.mean_class_rate() / rate;
            self.set_scale(scale);
        }
        if self.evaluate_with(model)? < before {
            self.set_model(given);
            self.set_scale(scale);
        }
        Ok(())
    }

    fn model(&self) -> &Model {
        self.likelihood.parts()[self.part].model()
    }

    fn set_model(&mut self, model: Model) {
        for part in self.parts.clone() {
            self.likelihood.set_model(part, model.clone());
        }
    }

    fn set_scale(&mut self, scale: f64) {
        for part in self.parts.clone() {
            self.likelihood.set_scale(part, scale);
        }
    }

    fn evaluate(&mut self) -> Result<f64, LikelihoodError> {
        self.likelihood.evaluate_parts(self.parts.clone())
    }

    fn evaluate_with(&mut self, model: Model) -> Result<f64, LikelihoodError> {
        self.set_model(model);
        self.evaluate()
    }

    /// The log-likelihood for a climb, which compares values, and which NaN would break: a point
    /// whose likelihood underflows counts as the worst, so that the climb turns back.
    fn comparable(&mut self) -> Result<f64, LikelihoodError> {
        let lnl = self.evaluate()?;
        Ok(if lnl.is_finite() { lnl } else { f64::MIN })
    }

    /// Sets the parameters, and with `scaled` the scale, to a point of the climb.
    fn move_to(&mut self, model: &Model, scaled: bool, x: &[f64]) {
        let mut model = model.clone();
        let (own, scale) = x.split_at(x.len() - usize::from(scaled));
        model.move_to(own);
        self.set_model(model);
        if let [scale] = scale {
            self.set_scale(libm::exp(*scale));
        }
    }

    /// Free rates begin at the best gamma distribution: from equal rates a climb may end at a lower
    /// local maximum.
    fn start_free_rates(&mut self) -> Result<(), LikelihoodError> {
        let given = self.model().clone();
        let before = self.evaluate()?;
        let mut started = given.clone();
        let (best, lnl) = maximise(ALPHA_RANGE.map(libm::log), 0.0, 0.05, |x| {
            started.start_free_rates(libm::exp(x));
            self.evaluate_with(started.clone())
        })?;
        started.start_free_rates(libm::exp(best));
        let better = if lnl > before { started } else { given };
        self.set_model(better);
        Ok(())
    }

    /// Gives a mixture the free rates of the best of these climbs; does nothing for other models,
    /// or where the mixture was fitted before.
    fn start_mixture(&mut self) -> Result<(), LikelihoodError> {
        let given = self.model().clone();
        let mut best = (self.evaluate()?, given.clone());
        for start in given.class_orders() {
            let mut point = start.coordinates();
            let top = climb(&mut point, &mut Bend::default(), MIXTURE_EPSILON, |x| {
                self.move_to(&start, false, x);
                self.comparable()
            })?;
            if top > best.0 {
                let x: Vec<f64> = point.iter().map(|coordinate| coordinate.at).collect();
                let mut model = start;
                model.move_to(&x);
                best = (top, model);
            }
        }
        self.set_model(best.1);
        Ok(())
    }
}

/// Local maxima of a mixture are further apart than this.
const MIXTURE_EPSILON: f64 = 1.0;
/// Small enough to change no likelihood.
const WEIGHT_LEAST: f64 = 1e-9;
