//! All parameters of a model at once, and the tree's length with them.
//!
//! Why here: parameters hang together (the rates with one another, the gamma distribution's shape
//! with the lengths of all branches), so that fitting them one after the other creeps. A climb by
//! Broyden's, Fletcher's, Goldfarb's and Shanno's method along their logarithms takes a tenth of the
//! evaluations. Slopes are differences.
//! Must stay true: what is returned is never below what was there; the same state gives the same
//! numbers.
//! Source: Nocedal and Wright, "Numerical optimization" (2006), chapter 6.

use super::{LENGTH_MAX, LENGTH_MIN, Likelihood, LikelihoodError};
use crate::model::Model;
use crate::runner::Runner;

impl<R: Runner> Likelihood<R> {
    /// Improves all fitted parameters of a partition and the common factor of all branch lengths,
    /// until a step gains less than `epsilon`; returns the log-likelihood. Blocks for some ten
    /// evaluations a parameter.
    ///
    /// # Errors
    /// As [`Likelihood::evaluate`].
    pub fn optimise_model(&mut self, part: usize, epsilon: f64) -> Result<f64, LikelihoodError> {
        let model = self.parts[part].model().clone();
        let mut start = model.logarithms();
        if start.is_empty() {
            return self.evaluate();
        }
        // The last place is the tree's length.
        start.push(0.0);
        let lengths: Vec<f64> = self
            .tree
            .edges()
            .map(|edge| self.tree.length(edge))
            .collect();
        let before = self.evaluate()?;
        let mut climb = Climb {
            at: start,
            value: before,
        };
        let mut value = |x: &[f64]| self.evaluate_with(part, &model, &lengths, x);
        climb.run(epsilon, &mut value)?;
        let best = climb.at;
        let after = self.evaluate_with(part, &model, &lengths, &best)?;
        if after >= before {
            return Ok(after);
        }
        self.set_model(part, model);
        self.set_lengths(&lengths, 1.0);
        self.evaluate()
    }

    fn evaluate_with(
        &mut self,
        part: usize,
        model: &Model,
        lengths: &[f64],
        x: &[f64],
    ) -> Result<f64, LikelihoodError> {
        let (own, scale) = x.split_at(x.len() - 1);
        self.set_model(part, model.with_logarithms(own));
        self.set_lengths(lengths, libm::exp(scale[0]));
        self.evaluate()
    }

    fn set_lengths(&mut self, lengths: &[f64], factor: f64) {
        for (edge, length) in self.tree.edges().zip(lengths) {
            let length = (length * factor).clamp(LENGTH_MIN, LENGTH_MAX);
            if length != self.tree.length(edge) {
                self.tree.set_length(edge, length);
                self.parts
                    .iter_mut()
                    .for_each(|part| part.forget_edge(edge));
            }
        }
        self.forget_values();
    }
}

/// A climb: where it is, and how high.
struct Climb {
    at: Vec<f64>,
    value: f64,
}

impl Climb {
    fn run<E>(
        &mut self,
        epsilon: f64,
        f: &mut impl FnMut(&[f64]) -> Result<f64, E>,
    ) -> Result<(), E> {
        let n = self.at.len();
        let (mut slope, bend) = self.slope_and_bend(f)?;
        // The inverse of the curvature, row by row.
        let first = |inverse: &mut Vec<f64>| {
            inverse.clear();
            inverse.resize(n * n, 0.0);
            for k in 0..n {
                inverse[k * n + k] = 1.0 / bend[k];
            }
        };
        let mut inverse = Vec::new();
        first(&mut inverse);
        let mut fresh = true;
        for _ in 0..STEPS_MAX {
            let mut step: Vec<f64> = (0..n)
                .map(|i| dot(&inverse[i * n..][..n], &slope))
                .collect();
            if dot(&step, &slope) <= 0.0 {
                first(&mut inverse);
                step = (0..n).map(|k| slope[k] / bend[k]).collect();
                fresh = true;
            }
            let longest = step.iter().fold(0.0_f64, |most, step| most.max(step.abs()));
            if longest > STEP_LONGEST {
                step.iter_mut()
                    .for_each(|step| *step *= STEP_LONGEST / longest);
            }
            // What a parabola promises is not worth another slope.
            if 0.5 * dot(&step, &slope) < 0.1 * epsilon {
                break;
            }
            let before = self.value;
            if !self.walk(&mut step, &slope, f)? {
                if fresh {
                    break;
                }
                first(&mut inverse);
                fresh = true;
                continue;
            }
            if self.value - before < epsilon {
                break;
            }
            let next = self.slope(f)?;
            let change: Vec<f64> = slope
                .iter()
                .zip(&next)
                .map(|(old, new)| old - new)
                .collect();
            update(&mut inverse, &step, &change);
            (slope, fresh) = (next, false);
        }
        Ok(())
    }

    /// Goes along a step, or a part of it, if that leads up; the step becomes what was gone.
    fn walk<E>(
        &mut self,
        step: &mut [f64],
        slope: &[f64],
        f: &mut impl FnMut(&[f64]) -> Result<f64, E>,
    ) -> Result<bool, E> {
        let rise = dot(step, slope);
        let mut part = 1.0;
        for _ in 0..HALVINGS_MAX {
            let to: Vec<f64> = self
                .at
                .iter()
                .zip(&*step)
                .map(|(x, s)| x + part * s)
                .collect();
            let value = f(&to)?;
            if value > self.value + 1e-4 * part * rise {
                step.iter_mut().for_each(|step| *step *= part);
                (self.at, self.value) = (to, value);
                return Ok(true);
            }
            // The top of the parabola through both values and the slope.
            let drop = self.value + part * rise - value;
            part = (0.5 * part * part * rise / drop).clamp(0.1 * part, 0.5 * part);
        }
        Ok(false)
    }

    fn slope<E>(&self, f: &mut impl FnMut(&[f64]) -> Result<f64, E>) -> Result<Vec<f64>, E> {
        let mut x = self.at.clone();
        let mut slope = Vec::with_capacity(x.len());
        for k in 0..x.len() {
            x[k] = self.at[k] + DIFFERENCE;
            slope.push((f(&x)? - self.value) / DIFFERENCE);
            x[k] = self.at[k];
        }
        Ok(slope)
    }

    /// Slopes, and how much each bends down, at least a little.
    fn slope_and_bend<E>(
        &self,
        f: &mut impl FnMut(&[f64]) -> Result<f64, E>,
    ) -> Result<(Vec<f64>, Vec<f64>), E> {
        let mut x = self.at.clone();
        let (mut slope, mut bend) = (Vec::new(), Vec::new());
        for k in 0..x.len() {
            x[k] = self.at[k] + WIDE;
            let above = f(&x)?;
            x[k] = self.at[k] - WIDE;
            let below = f(&x)?;
            x[k] = self.at[k];
            let own = (above - below) / (2.0 * WIDE);
            let second = (2.0 * self.value - above - below) / (WIDE * WIDE);
            // Where it bends up, a step of a fifth of the longest.
            let least = own.abs() / (0.2 * STEP_LONGEST);
            slope.push(own);
            bend.push(if second > 0.0 {
                second.max(BEND_LEAST)
            } else {
                least.max(BEND_LEAST)
            });
        }
        Ok((slope, bend))
    }
}

/// The method's update of the inverse curvature, for a step up and by how much the slope fell.
fn update(inverse: &mut [f64], step: &[f64], change: &[f64]) {
    let n = step.len();
    let along = dot(step, change);
    if along <= 1e-12 {
        return;
    }
    let turned: Vec<f64> = (0..n)
        .map(|i| dot(&inverse[i * n..][..n], change))
        .collect();
    let factor = (1.0 + dot(change, &turned) / along) / along;
    for i in 0..n {
        for j in 0..n {
            inverse[i * n + j] +=
                factor * step[i] * step[j] - (turned[i] * step[j] + step[i] * turned[j]) / along;
        }
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Steps of logarithms for slopes: for the first, that also shows the curvature, and for later ones.
const WIDE: f64 = 1e-3;
const DIFFERENCE: f64 = 1e-5;
/// No parameter changes by more than this factor's logarithm in a step.
const STEP_LONGEST: f64 = 1.5;
const BEND_LEAST: f64 = 1e-2;
const STEPS_MAX: usize = 40;
const HALVINGS_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn climbs_a_bent_ridge() {
        // The classic bent valley, turned over: its top, 0, is at (1, 1).
        let mut evaluations = 0;
        let mut f = |x: &[f64]| {
            evaluations += 1;
            let (a, b) = (1.0 - x[0], x[1] - x[0] * x[0]);
            Ok::<f64, ()>(-(a * a + 100.0 * b * b))
        };
        let mut climb = Climb {
            at: vec![-1.2, 1.0],
            value: f(&[-1.2, 1.0]).unwrap(),
        };
        climb.run(1e-12, &mut f).unwrap();
        assert!(climb.value > -1e-4, "{} {:?}", climb.value, climb.at);
        assert!(evaluations < 400, "{evaluations}");
    }
}
