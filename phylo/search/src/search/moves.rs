//! SPR moves of one subtree at a time: its candidate places, and their gain.

use super::Search;
use super::state::{Close, Exact, Phase};
use crate::likelihood::{LikelihoodError, Refined};
use crate::runner::Runner;
use crate::tree::{EdgeId, HalfId, Tree};

impl<R: Runner> Search<'_, R> {
    /// Moves the subtree behind `half` to the best place within the radius, if that gains.
    pub(super) fn try_subtree(&mut self, half: HalfId) -> Result<(), LikelihoodError> {
        let slow = self.state.phase == Phase::Slow;
        let constraint = self.options.constraint.as_ref();
        let allowed =
            constraint.map(|constraint| constraint.edges_for_subtree(self.likelihood.tree(), half));
        // Quiet until something near it changes; `wake` undoes this.
        self.state.quiet[half.index()] = true;
        let lnl = self.state.lnl.0;
        // The walk does not continue behind branches that lose more than the cut-off, which is
        // learnt from the losses below.
        let floor = lnl - self.state.cutoff.0;
        let mut found = std::mem::take(&mut self.found);
        self.likelihood
            .score_insertions(half, self.state.radius, &mut found, |tried| {
                tried.lnl > floor
            })?;
        let losses = &mut self.state.losses;
        for tried in found.tried.iter().filter(|tried| tried.lnl < lnl) {
            losses.0.0 += lnl - tried.lnl;
            losses.1 += 1;
        }
        let margin = if slow { SLOW_MARGIN } else { FAST_MARGIN };
        let may = |edge: EdgeId| allowed.as_ref().is_none_or(|allowed| allowed[edge.index()]);
        let mut places: Vec<usize> = (0..found.tried.len())
            .filter(|&k| found.tried[k].lnl > lnl - margin && may(found.tried[k].edge))
            .collect();
        // The best few by their fast scores are refined; the rest would rarely win.
        places.sort_by(|&a, &b| found.tried[b].lnl.total_cmp(&found.tried[a].lnl));
        places.truncate(if slow { SLOW_PLACES } else { FAST_PLACES });
        let mut refined = Vec::with_capacity(places.len());
        for k in places {
            refined.push(self.likelihood.refine_insertion(&found, k, 1)?);
        }
        // Handed back, so that its memory is used for the next subtree.
        self.found = found;
        let best = refined.iter().max_by(|a, b| a.lnl.total_cmp(&b.lnl));
        let Some(&best) = best else {
            self.state.runner_up[half.index()] = None;
            return Ok(());
        };
        if best.lnl > lnl + GAIN_MIN {
            return self.go(half, &best);
        }
        let close = |place: &Refined, lnl| Close {
            half,
            edge: place.edge,
            lnl: Exact(lnl),
        };
        self.state.runner_up[half.index()] = Some(close(&best, lnl - best.lnl));
        if slow {
            // All of them: with more lengths fitted, another than the best may turn out to gain.
            for place in refined.iter().filter(|near| near.lnl > lnl - CLOSE_MARGIN) {
                self.remember(close(place, place.lnl));
            }
        }
        Ok(())
    }

    /// Makes a move, and fits the lengths near both places.
    fn go(&mut self, half: HalfId, to: &Refined) -> Result<(), LikelihoodError> {
        let gap = self.likelihood.apply_insertion(half, to);
        let tree = self.likelihood.tree();
        let [a, b] = tree.others(half);
        let edges = [gap, tree.edge(a), tree.edge(b), tree.edge(half)];
        for edge in edges {
            self.likelihood.optimise_length(edge)?;
        }
        let stem = self.likelihood.tree().edge(half);
        self.state.lnl = Exact(self.likelihood.evaluate_at(stem)?);
        self.state.moves += 1;
        // Nodes near both places may be moved again.
        self.wake(half);
        let end = self.likelihood.tree().ends(gap)[0];
        self.wake(end);
        Ok(())
    }

    /// Gives a move that nearly gained a second chance, with more lengths fitted.
    pub(super) fn try_closely(&mut self, close: Close) -> Result<(), LikelihoodError> {
        let Close { half, edge, .. } = close;
        if !self.is_possible(half, edge) {
            return Ok(());
        }
        let tree = self.likelihood.tree();
        // Kept to restore: the move is made in the tree itself and undone if it does not gain.
        let before = self.state.lnl.0;
        let lengths = tree.all_lengths();
        let pruned = self.likelihood.prune(half);
        let grafted = self.likelihood.regraft(pruned, edge);
        // Lengths near the old and the new place change most.
        let mut near = self.likelihood.tree().around(half, CLOSE_RADIUS);
        let gap = self.likelihood.tree().ends(pruned.edges[0])[0];
        near.extend(self.likelihood.tree().around(gap, CLOSE_RADIUS));
        near.sort_unstable();
        near.dedup();
        for _ in 0..CLOSE_ROUNDS {
            for &edge in &near {
                self.likelihood.optimise_length(edge)?;
            }
        }
        let stem = self.likelihood.tree().edge(half);
        let lnl = self.likelihood.evaluate_at(stem)?;
        if lnl > before + GAIN_MIN {
            self.state.lnl = Exact(lnl);
            self.state.moves += 1;
            self.wake(half);
            self.wake(gap);
            return Ok(());
        }
        let pruned = self.likelihood.ungraft(grafted);
        self.likelihood.unprune(pruned);
        self.likelihood.restore_lengths(lengths);
        Ok(())
    }

    /// True if the subtree behind `half` can be inserted into a branch, and is allowed to.
    pub(super) fn is_possible(&self, half: HalfId, edge: EdgeId) -> bool {
        let tree = self.likelihood.tree();
        let [a, b] = tree.others(half);
        let own = [a, b, half].map(|own| tree.edge(own));
        let constraint = self.options.constraint.as_ref();
        !own.contains(&edge)
            && !within(tree, tree.back(half), edge)
            && constraint
                .is_none_or(|constraint| constraint.edges_for_subtree(tree, half)[edge.index()])
    }

    fn remember(&mut self, close: Close) {
        let list = &mut self.state.close;
        let at = list.partition_point(|other| other.lnl < close.lnl);
        list.insert(at, close);
        if list.len() > self.likelihood.tree().taxa().max(CLOSE_MIN) {
            list.remove(0);
        }
    }

    /// Subtrees near a changed place are to be tried again.
    pub(super) fn wake(&mut self, half: HalfId) {
        let tree = self.likelihood.tree();
        let wake = match self.state.phase {
            Phase::Perturb => WAKE_RADIUS_PERTURB,
            _ => WAKE_RADIUS,
        };
        for edge in tree.around(half, wake) {
            for end in tree.ends(edge) {
                self.state.quiet[end.index()] = false;
            }
        }
    }
}

/// True if a branch is within the subtree behind a half-edge.
fn within(tree: &Tree, half: HalfId, edge: EdgeId) -> bool {
    let mut path = vec![half];
    while let Some(half) = path.pop() {
        if tree.is_tip(half) {
            continue;
        }
        for other in tree.others(half) {
            if tree.edge(other) == edge {
                return true;
            }
            path.push(tree.back(other));
        }
    }
    false
}

/// The least gain for which a subtree is moved.
const GAIN_MIN: f64 = 1e-3;
/// Margin below the present log-likelihood within which an insertion is refined, and the most
/// refinements.
const FAST_MARGIN: f64 = 10.0;
const SLOW_MARGIN: f64 = 30.0;
const FAST_PLACES: usize = 2;
const SLOW_PLACES: usize = 6;
/// Moves that lose less get a second chance at the end of the round, about as many as there are
/// taxa. A wider margin seldom gains more.
const CLOSE_MARGIN: f64 = 4.0;
const CLOSE_MIN: usize = 20;
const CLOSE_RADIUS: usize = 2;
const CLOSE_ROUNDS: usize = 2;
/// Radius around a change, in nodes, within which subtrees are tried again.
const WAKE_RADIUS: usize = 5;
/// The same in a perturbation, which is to stay small.
const WAKE_RADIUS_PERTURB: usize = 2;
