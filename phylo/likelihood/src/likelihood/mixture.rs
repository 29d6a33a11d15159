//! Start values for the free rates of a mixture whose classes have a matrix each.
//!
//! Why here: plain free rates are interchangeable, and a climb finds their values. A mixture's
//! classes differ, and each choice of slow and fast classes has a local maximum of its own, tens of
//! log-likelihoods apart on alignments that the mixture was not made for. So a first fit climbs
//! coarsely from each choice of the slowest and the fastest class.

use super::climb::{Bend, climb};
use super::{Likelihood, LikelihoodError};
use crate::runner::Runner;

impl<R: Runner> Likelihood<R> {
    /// Gives a partition's mixture the free rates of the best of these climbs; does nothing for
    /// other models, or where the mixture was fitted before.
    pub(super) fn start_mixture(&mut self, part: usize) -> Result<(), LikelihoodError> {
        let given = self.parts()[part].model().clone();
        let mut best = (self.evaluate_part(part)?, given.clone());
        for start in given.class_orders() {
            let mut point = start.coordinates();
            let top = climb(&mut point, &mut Bend::default(), EPSILON, |x| {
                let mut model = start.clone();
                model.move_to(x);
                self.set_model(part, model);
                let lnl = self.evaluate_part(part)?;
                // The climb compares values, which NaN would break.
                Ok::<_, LikelihoodError>(if lnl.is_finite() { lnl } else { f64::MIN })
            })?;
            if top > best.0 {
                let x: Vec<f64> = point.iter().map(|coordinate| coordinate.at).collect();
                let mut model = start;
                model.move_to(&x);
                best = (top, model);
            }
        }
        self.set_model(part, best.1);
        Ok(())
    }
}

/// Local maxima are further apart than this.
const EPSILON: f64 = 1.0;
