//! Starts of a fit of lengths and parameters, and the choice of the best.
//!
//! Why here: lengths and parameters depend on one another, and a climb from one start may end on a
//! top hundreds of log-likelihoods below that from another. Right lengths are lost where they are
//! fitted to wrong parameters first; wrong lengths mislead the parameters. So a fit climbs coarsely
//! from several starts and goes on from the best.
//! Must stay true: no fit ends below its start.

use super::{Lengths, Likelihood, LikelihoodError, Part};
use crate::model::Model;
use crate::parsimony::mean_length;
use crate::runner::Runner;
use crate::tree::Tree;

/// A tree with lengths, all parameters, and their log-likelihood.
#[derive(Debug, Clone)]
pub(super) struct Kept {
    tree: Tree,
    models: Vec<(Model, f64)>,
    pub(super) lnl: f64,
}

impl Kept {
    /// The present values, whose log-likelihood is `lnl`.
    pub(super) fn of<R: Runner>(likelihood: &Likelihood<R>, lnl: f64) -> Self {
        let own = |part: &Part| (part.model().clone(), part.scale());
        Self {
            tree: likelihood.tree.clone(),
            models: likelihood.parts.iter().map(own).collect(),
            lnl,
        }
    }

    /// Sets these values again.
    pub(super) fn restore<R: Runner>(&self, likelihood: &mut Likelihood<R>) {
        likelihood.set_tree(self.tree.clone());
        for (part, (model, scale)) in self.models.iter().enumerate() {
            likelihood.set_model(part, model.clone());
            likelihood.set_scale(part, *scale);
        }
    }

    /// Takes the present values if they are better.
    pub(super) fn keep_better<R: Runner>(&mut self, likelihood: &Likelihood<R>, lnl: f64) {
        if lnl > self.lnl {
            *self = Self::of(likelihood, lnl);
        }
    }

    /// True if another fit came to the same top: about as high, and with as long a tree.
    fn is_near(&self, other: &Self) -> bool {
        let [a, b] = [self, other].map(|kept| kept.tree.total_length());
        (self.lnl - other.lnl).abs() < SAME_LNL && (a - b).abs() < SAME_LENGTH * a.max(b)
    }
}

/// The first thing that a round fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum First {
    /// Parameters: the lengths are trusted.
    Parameters,
    /// Lengths: the parameters are trusted.
    Lengths,
}

impl<R: Runner> Likelihood<R> {
    /// Improves lengths and parameters in turn until a round gains less than `epsilon` and little
    /// is left to gain; returns the log-likelihood, which is never below the one at the start.
    /// Blocks.
    ///
    /// Climbs coarsely from the given lengths, and from parsimony's lengths with the model's start
    /// values; if these disagree, from the given parameters, too. The best is fitted to the end.
    ///
    /// # Errors
    /// As [`Likelihood::evaluate`].
    pub fn optimise(&mut self, epsilon: f64) -> Result<f64, LikelihoodError> {
        let start = self.evaluate_once()?;
        let given = Kept::of(self, start);
        let coarse = epsilon.max(START_EPSILON);
        let lnl = self.optimise_by_turns(coarse, First::Parameters)?;
        // From the given lengths first: a tree of the user is most often near its best.
        let mut best = Kept::of(self, lnl);
        start_short(self);
        let lnl = self.optimise_by_turns(coarse, First::Parameters)?;
        let short = Kept::of(self, lnl);
        if !short.is_near(&best) {
            // Two starts that end on one top leave no doubt; else a third one decides, lengths
            // first.
            given.restore(self);
            let lnl = self.optimise_by_turns(coarse, First::Lengths)?;
            best.keep_better(self, lnl);
        }
        if short.lnl > best.lnl {
            best = short;
        }
        best.restore(self);
        // Only the best start is fitted to the end, as the last digits cost most.
        self.optimise_by_turns(epsilon, First::Lengths)
    }

    /// Improves all branch lengths, as [`Likelihood::optimise_lengths`] does, from the given ones
    /// and from parsimony's mean length; the better is kept.
    ///
    /// # Errors
    /// As [`Likelihood::evaluate`].
    pub fn optimise_lengths_anew(
        &mut self,
        epsilon: f64,
        rounds_max: usize,
    ) -> Result<f64, LikelihoodError> {
        let coarse = epsilon.max(START_EPSILON);
        let lnl = self.optimise_lengths(coarse, rounds_max)?;
        let given = Kept::of(self, lnl);
        self.set_tree(short_tree(&self.tree, &self.parts));
        if self.optimise_lengths(coarse, rounds_max)? < given.lnl + SAME_LNL {
            given.restore(self);
        }
        self.optimise_lengths(epsilon, rounds_max)
    }
}

/// Sets all lengths to parsimony's mean, and parameters that are fitted to their start values.
fn start_short<R: Runner>(likelihood: &mut Likelihood<R>) {
    likelihood.set_tree(short_tree(&likelihood.tree, &likelihood.parts));
    for part in 0..likelihood.parts.len() {
        let own = &likelihood.parts[part];
        let model = own.model().at_start(own.patterns());
        likelihood.set_model(part, model);
        if likelihood.lengths != Lengths::Linked {
            likelihood.set_scale(part, 1.0);
        }
    }
}

/// The tree with parsimony's mean length for all branches.
fn short_tree(tree: &Tree, parts: &[Part]) -> Tree {
    let patterns: Vec<_> = parts.iter().map(Part::patterns).collect();
    let mut short = tree.clone();
    short.set_all_lengths(mean_length(tree, &patterns));
    short
}

/// A round of a coarse climb that gains less ends it. Tops that matter are further apart.
const START_EPSILON: f64 = 1.0;
/// Coarse climbs that end this close to one another are on one top.
const SAME_LNL: f64 = 1.0;
const SAME_LENGTH: f64 = 0.02;
