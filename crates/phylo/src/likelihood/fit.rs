//! Model parameters by Brent's method, one after the other.
//!
//! Source: Brent, "Algorithms for minimization without derivatives" (1973), chapter 5.

use super::{Likelihood, LikelihoodError};
use crate::model::Parameter;
use crate::runner::Runner;

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
            if lnl > best_lnl {
                (best, best_lnl) = (Some(libm::exp(found)), lnl);
            }
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

    /// Improves lengths and parameters in turn, coarsely at first, until a round gains less than
    /// `epsilon`; returns the log-likelihood.
    ///
    /// # Errors
    /// As [`Likelihood::evaluate`].
    pub fn optimise(&mut self, epsilon: f64) -> Result<f64, LikelihoodError> {
        let mut lnl = self.evaluate()?;
        let mut tolerance = TOLERANCES[0];
        for _ in 0..ROUNDS_MAX {
            self.optimise_lengths(epsilon, LENGTH_ROUNDS_MAX)?;
            for part in 0..self.parts().len() {
                for parameter in self.parts()[part].model().fitted() {
                    self.optimise_parameter(part, parameter, tolerance)?;
                }
            }
            let better = self.evaluate()?;
            let gain = better - lnl;
            lnl = better;
            if gain < epsilon && tolerance == TOLERANCES[1] {
                break;
            }
            // A coarse round that gains little is followed by fine ones.
            tolerance = if gain < 100.0 * epsilon {
                TOLERANCES[1]
            } else {
                tolerance * 0.5
            };
            tolerance = tolerance.max(TOLERANCES[1]);
        }
        self.optimise_lengths(epsilon, LENGTH_ROUNDS_LAST)
    }
}

/// The largest value of `f` between two ends, from a start between them; and where it is.
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
        // A parabola through the three best, where it is to be trusted; else the golden section.
        let r = (x - w) * (fv - fx);
        let q = (x - v) * (fw - fx);
        let p = (x - v) * q - (x - w) * r;
        let q = 2.0 * (q - r);
        let (p, q) = if q > 0.0 { (-p, q) } else { (p, -q) };
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
/// How well a parameter's logarithm is found in the first and in the last rounds.
const TOLERANCES: [f64; 2] = [0.02, 1e-3];
const EVALUATIONS_MAX: usize = 24;
/// A search looks this factor up and down at first, and moves on when it ends at a side.
const WINDOW: f64 = 2.0;
const WINDOWS_MAX: usize = 8;
const ROUNDS_MAX: usize = 60;
const LENGTH_ROUNDS_MAX: usize = 2;
const LENGTH_ROUNDS_LAST: usize = 32;
