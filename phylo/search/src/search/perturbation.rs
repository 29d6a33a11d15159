//! Perturbations: away from a tree that no single move improves, and uphill again.
//!
//! A few moves of small loss are made near one another, and only subtrees around them are tried
//! again. The result is kept if it is better than the best tree; else the search goes back. So a
//! trial's cost is that of its neighbourhood, whatever the size of the tree.
//! Why these moves: a random one is nearly always absurd, and the first subtrees tried undo it; a
//! move of small loss is almost supported by the data. Trials begin all over the tree in turn: a
//! subtree with which one began is drawn less often, until there is a gain. A trial ends at once
//! where it comes to a tree that it or another saw since the last gain, most often the one that it
//! left: from there it would go the same way again. The patience depends on the data: a quarter of
//! it while no trial has gained, as on data with one clear maximum; all of it from the first gain
//! on.

use super::state::{Best, Close, Exact};
use super::{PRUNINGS, Phase, Search};
use crate::likelihood::LikelihoodError;
use crate::random::index;
use crate::runner::Runner;

impl<R: Runner> Search<'_, R> {
    /// One step of the phase: a perturbation, a few prunings, or the end of a trial.
    pub(super) fn perturb(&mut self) -> Result<(), LikelihoodError> {
        if self.state.best.is_none() {
            return self.leave();
        }
        if self.state.at < self.state.order.len() {
            return self.prune_on_trial();
        }
        let tree = self.likelihood.tree();
        let ends = tree.edges_depth_first().into_iter();
        let awake = ends
            .flat_map(|edge| tree.ends(edge))
            .filter(|&half| !tree.is_tip(half) && !self.state.quiet[half.index()]);
        self.state.order = awake.collect();
        self.state.at = 0;
        self.state.round += 1;
        if self.state.order.is_empty() || self.state.round > ROUNDS_MAX {
            return self.arrive(true);
        }
        Ok(())
    }

    /// A few prunings; the trial ends where it comes to a tree that was seen before.
    fn prune_on_trial(&mut self) -> Result<(), LikelihoodError> {
        for _ in 0..PRUNINGS {
            let Some(&half) = self.state.order.get(self.state.at) else {
                break;
            };
            self.state.at += 1;
            let moves = self.state.moves;
            self.try_subtree(half)?;
            if self.state.moves != moves && !self.is_new() {
                return self.arrive(false);
            }
        }
        Ok(())
    }

    /// False where the tree has a topology from which an earlier trial failed, or that of the tree
    /// which all of them left. Remembers it.
    fn is_new(&mut self) -> bool {
        let shape = self.likelihood.tree().topology();
        let Err(at) = self.state.seen.binary_search(&shape) else {
            return false;
        };
        self.state.seen.insert(at, shape);
        true
    }

    /// Makes some moves of small loss, or ends the phase when enough have failed.
    fn leave(&mut self) -> Result<(), LikelihoodError> {
        let taxa = self.likelihood.tree().taxa() as u32;
        // A gain shows that the data have several local maxima; most easy data have one.
        // So have near-identical sequences, whose gains are small and rare.
        let several = self.state.rugged || self.near.is_some();
        let share = if several { 1 } else { EASY_SHARE };
        let patience = (self.options.perturbations * taxa).div_ceil(100 * share);
        let seeds: Vec<Close> = self.state.runner_up.iter().flatten().copied().collect();
        if self.state.failures >= patience || seeds.is_empty() {
            self.enter(Phase::Last);
            return Ok(());
        }
        self.state.best = Some(Best {
            tree: self.likelihood.tree().clone(),
            lnl: self.state.lnl,
            runner_up: self.state.runner_up.clone(),
        });
        // The best tree counts as seen, so that no trial leads back to it at once.
        if self.state.seen.is_empty() {
            self.is_new();
        }
        self.state.round = 0;
        for _ in 0..DRAWS_MAX {
            self.displace(&seeds)?;
            if self.is_new() {
                return Ok(());
            }
            // These moves led to a known tree: draw again from the best one.
            if let Some(best) = &self.state.best {
                self.likelihood.set_tree(best.tree.clone());
                self.state.lnl = best.lnl;
            }
        }
        self.arrive(false)
    }

    /// Makes one of `seeds` and some moves near it.
    fn displace(&mut self, seeds: &[Close]) -> Result<(), LikelihoodError> {
        self.state.quiet.fill(true);
        let seed = self.draw(seeds);
        self.state.tries[seed.half.index()] += 1;
        self.push(seed)?;
        for _ in 0..1 + self.state.random.below(MORE_MAX) {
            let tree = self.likelihood.tree();
            let near: Vec<Close> = tree
                .around(seed.half, NEAR)
                .into_iter()
                .flat_map(|edge| tree.ends(edge))
                .filter_map(|half| self.state.runner_up[half.index()])
                .filter(|second| second.half != seed.half)
                .collect();
            if near.is_empty() {
                break;
            }
            let more = self.draw(&near);
            self.push(more)?;
        }
        // Evaluated here, not at the first taxon: only CLVs of the neighbourhood are computed
        // again.
        let here = self.likelihood.tree().edge(seed.half);
        self.state.lnl = Exact(self.likelihood.evaluate_at(here)?);
        Ok(())
    }

    /// Draws a move: more often those of small loss, and those with which no trial began yet.
    fn draw(&mut self, from: &[Close]) -> Close {
        let weights: Vec<f64> = from
            .iter()
            .map(|close| {
                let tries = self.state.tries[close.half.index()];
                let likely = libm::exp(-close.lnl.0.max(0.0) / TEMPERATURE) + 1e-9;
                likely / f64::from(1 + tries)
            })
            .collect();
        from[index(&mut self.state.random, &weights)]
    }

    /// Makes a move, whatever its loss.
    fn push(&mut self, close: Close) -> Result<(), LikelihoodError> {
        let Close { half, edge, .. } = close;
        if !self.is_possible(half, edge) {
            return Ok(());
        }
        let pruned = self.likelihood.prune(half);
        let _ = self.likelihood.regraft(pruned, edge);
        let tree = self.likelihood.tree();
        let [a, b] = tree.others(half).map(|own| tree.edge(own));
        for edge in [tree.edge(half), a, b, pruned.edges[0]] {
            self.likelihood.optimise_length(edge)?;
        }
        // Nodes near both places may be moved again.
        self.wake(half);
        let end = self.likelihood.tree().ends(pruned.edges[0])[0];
        self.wake(end);
        Ok(())
    }

    /// Keeps the result of a trial, or goes back. `fit`: its tree is new, and worth fitting all
    /// lengths.
    fn arrive(&mut self, fit: bool) -> Result<(), LikelihoodError> {
        let Some(best) = self.state.best.take() else {
            return Ok(());
        };
        if fit && self.state.lnl.0 > best.lnl.0 - WORTH_FITTING {
            let lnl = self.likelihood.optimise_lengths(self.options.epsilon, 1)?;
            self.state.lnl = Exact(lnl);
        }
        self.state.order.clear();
        if self.state.lnl.0 > best.lnl.0 + GAIN_MIN {
            // A gain by better lengths alone is kept, but does not reset the patience.
            if self.state.lnl.0 > best.lnl.0 + self.options.epsilon {
                self.state.failures = 0;
                self.state.rugged = true;
                self.state.tries.fill(0);
                self.state.seen.clear();
            } else {
                self.state.failures += 1;
            }
            return Ok(());
        }
        self.state.failures += 1;
        // Equal trees are many where sequences hardly differ: the search walks among them.
        if self.near.is_some() && self.state.lnl.0 >= best.lnl.0 {
            return Ok(());
        }
        self.likelihood.set_tree(best.tree);
        (self.state.lnl, self.state.runner_up) = (best.lnl, best.runner_up);
        Ok(())
    }
}

/// Divisor of the patience until a perturbation has gained something.
const EASY_SHARE: u32 = 4;
/// Times that a trial's moves are drawn again where they lead to a tree that was seen before.
const DRAWS_MAX: usize = 4;
/// Moves besides the first one: at most this number.
const MORE_MAX: u64 = 3;
/// Distance from the first move, in nodes.
const NEAR: usize = 4;
/// A move that loses this much more log-likelihood is drawn e times less often.
const TEMPERATURE: f64 = 5.0;
/// A trial that ends further below the best is not worth fitting all lengths.
const WORTH_FITTING: f64 = 1.0;
/// The least gain that counts.
const GAIN_MIN: f64 = 0.01;
/// Rounds end by themselves; this only makes that visible.
const ROUNDS_MAX: u32 = 20;
