//! Branch lengths by Newton and Raphson.
//!
//! Source: the Cell paper's makenewz; the derivatives come from a sum table in the eigenvectors'
//! space, so that an iteration costs a fraction of a newview.

use super::{Lengths, Likelihood, LikelihoodError};
use crate::kernel::Derivatives;
use crate::runner::Runner;
use crate::tree::{EdgeId, Walk};

pub use crate::tree::LENGTH_MAX;
pub use crate::tree::LENGTH_MIN;

impl<R: Runner> Likelihood<R> {
    /// Sets one branch to its best length, the others fixed, and returns it. Blocks. Where lengths
    /// are unlinked, to the best of each partition; the mean is returned.
    ///
    /// # Errors
    /// [`LikelihoodError::Offload`].
    pub fn optimise_length(&mut self, edge: EdgeId) -> Result<f64, LikelihoodError> {
        // A node of many neighbours stays one.
        if self.tree().is_joint(edge) {
            return Ok(self.tree().length(edge));
        }
        if self.lengths == Lengths::Unlinked && self.parts().len() > 1 {
            // A common length would not be the best of any partition.
            return self.optimise_unlinked_length(edge);
        }
        // All partitions' slopes are added: the common length is the best of their sum.
        let length = self.tree().length(edge);
        let length = best_length(length, |length| self.derivatives(edge, length))?;
        self.set_length(edge, length);
        Ok(self.tree().length(edge))
    }

    /// Improves all branch lengths, round by round, until a round gains less than `epsilon` or
    /// `rounds_max` are over; returns the log-likelihood, which is never below the one at the
    /// start.
    ///
    /// # Errors
    /// As [`Likelihood::evaluate`].
    pub fn optimise_lengths(
        &mut self,
        epsilon: f64,
        rounds_max: usize,
    ) -> Result<f64, LikelihoodError> {
        let mut lnl = self.evaluate()?;
        // Depth first: consecutive branches are adjacent, so few CLVs have to be recomputed.
        let mut rounds = std::mem::take(&mut self.rounds);
        let (walk, edges) = (&mut rounds.walk, &mut rounds.edges);
        self.tree.edges_depth_first_into(walk, edges);
        for _ in 0..rounds_max {
            self.tree.all_lengths_into(&mut rounds.before);
            for &edge in &rounds.edges {
                self.optimise_length(edge)?;
            }
            let mut better = self.evaluate()?;
            // Each branch alone climbed, with the others as they then were: their sum may still
            // fall.
            if better < lnl {
                self.restore_lengths(rounds.before.clone());
                // A branch may have come to another top of its own, which is lower.
                if lnl - better > LOSS && self.lengths != Lengths::Unlinked {
                    better = optimise_lengths_with_care(self, &rounds.edges)?.max(lnl);
                } else {
                    better = lnl;
                }
            }
            let gain = better - lnl;
            lnl = better;
            if gain < epsilon {
                break;
            }
        }
        self.rounds = rounds;
        Ok(lnl)
    }
}

/// A round over all lengths that leaves each one as it was where the new one is worse.
fn optimise_lengths_with_care<R: Runner>(
    likelihood: &mut Likelihood<R>,
    edges: &[EdgeId],
) -> Result<f64, LikelihoodError> {
    for &edge in edges {
        let before = likelihood.tree().length(edge);
        let lnl = likelihood.evaluate_length(edge, before)?;
        let after = likelihood.optimise_length(edge)?;
        if after != before && likelihood.evaluate_length(edge, after)? < lnl {
            likelihood.set_length(edge, before);
        }
    }
    likelihood.evaluate()
}

/// Scratch of rounds over all lengths; kept, so that a round allocates nothing.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    walk: Walk,
    /// The order of the branches.
    edges: Vec<EdgeId>,
    /// Lengths and factors before the round.
    before: (Vec<f64>, Vec<Vec<f64>>),
}

/// The best length, from a start, where `slope` gives the derivatives at a length.
pub(crate) fn best_length<E>(
    mut length: f64,
    mut slope: impl FnMut(f64) -> Result<Derivatives, E>,
) -> Result<f64, E> {
    let (mut low, mut high) = (LENGTH_MIN, LENGTH_MAX);
    for iteration in 0..ITERATIONS_MAX {
        let slope = slope(length)?;
        // A length that is good enough stays as it is, and all CLVs that depend on it stay valid.
        let gain = slope.first * slope.first / (-2.0 * slope.second);
        if iteration == 0 && slope.second < 0.0 && gain <= LOSS {
            break;
        }
        // The sign of the slope gives the side of the best length.
        if slope.first > 0.0 {
            low = length;
        } else {
            // The bracket never widens, which ends the loop also where Newton's steps go in
            // circles.
            high = length;
        }
        let mut next = if slope.second < 0.0 {
            length - slope.first / slope.second
        } else if slope.first > 0.0 {
            // Not concave here: too far down the slope; the branch grows by factors.
            length * 4.0
        } else {
            length * 0.25
        };
        if !(next > low && next < high) {
            next = outside(next, length, low, high);
        }
        let step = (next - length).abs() / next;
        let lost = slope.second.min(0.0).abs() * (next * step * step).powi(2);
        length = next;
        let near = step <= STEP_RELATIVE || slope.second < 0.0 && step < 0.1 && lost <= LOSS;
        if near || high - low <= STEP_RELATIVE * low {
            break;
        }
    }
    Ok(length)
}

/// A step that left the bracket: to the range's end if it pointed beyond it, else to the middle.
fn outside(next: f64, length: f64, low: f64, high: f64) -> f64 {
    if next <= LENGTH_MIN && low == LENGTH_MIN {
        return if length == LENGTH_MIN {
            LENGTH_MIN
        } else {
            (length * 0.1).max(LENGTH_MIN)
        };
    }
    if next >= LENGTH_MAX && high == LENGTH_MAX {
        return if length == LENGTH_MAX {
            LENGTH_MAX
        } else {
            (length * 10.0).min(LENGTH_MAX)
        };
    }
    // The geometric mean, since lengths range over orders of magnitude.
    (low * high).sqrt()
}

/// A step this small, relative to the length, ends the search: the error after it is its square,
/// far below a visible change of the log-likelihood.
const STEP_RELATIVE: f64 = 1e-3;
/// A larger step ends it as well, if the curvature predicts a remaining loss of log-likelihood of
/// about this much. The relative error after a step of `s` is about `s` squared, and it costs half
/// the curvature times the square of that error.
const LOSS: f64 = 1e-6;
/// Newton's method needs three to six.
const ITERATIONS_MAX: usize = 40;
