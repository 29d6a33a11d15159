//! Changes of branch lengths, topology and parameters, and the CLVs that each of them invalidates.
//!
//! Why here: every change of a likelihood's tree or model marks the invalid CLVs, in one place.
//! Must stay true: a direction is marked whenever anything behind it has changed. No CLV beyond a
//! marked one is valid, so that the walk stops at the first marked one. Nothing here computes a
//! CLV.

use super::{LENGTH_MAX, LENGTH_MIN, Likelihood};
use crate::model::{Model, Parameter};
use crate::runner::Runner;
use crate::tree::{EdgeId, Grafted, HalfId, Nni, Pruned};

#[cfg(doc)]
use crate::tree::Tree;

impl<R: Runner> Likelihood<R> {
    /// Sets a branch's length, clamped to [`LENGTH_MIN`]..=[`LENGTH_MAX`].
    pub fn set_length(&mut self, edge: EdgeId, length: f64) {
        let length = length.clamp(LENGTH_MIN, LENGTH_MAX);
        if length == self.tree.length(edge) {
            return;
        }
        self.tree.set_length(edge, length);
        self.parts
            .iter_mut()
            .for_each(|part| part.forget_edge(edge));
        self.mark_around(edge, false);
    }

    /// As [`Tree::nni`].
    pub fn nni(&mut self, edge: EdgeId, second: bool) -> Option<Nni> {
        let nni = self.tree.nni(edge, second)?;
        self.after_nni(nni);
        Some(nni)
    }

    /// As [`Tree::undo_nni`].
    pub fn undo_nni(&mut self, nni: Nni) {
        self.tree.undo_nni(nni);
        self.after_nni(nni);
    }

    /// As [`Tree::prune`]. No evaluation is allowed until the subtree is regrafted or restored.
    pub fn prune(&mut self, half: HalfId) -> Pruned {
        // Marked while the walk can still pass through the node that is about to be removed.
        self.mark_node(half);
        let pruned = self.tree.prune(half);
        self.after_move(&pruned.edges);
        self.mark_around(pruned.edges[0], true);
        pruned
    }

    /// As [`Tree::unprune`].
    pub fn unprune(&mut self, pruned: Pruned) {
        self.mark_around(pruned.edges[0], true);
        self.tree.unprune(pruned);
        self.after_move(&pruned.edges);
        self.mark_node(pruned.half);
    }

    /// As [`Tree::regraft`].
    pub fn regraft(&mut self, pruned: Pruned, target: EdgeId) -> Grafted {
        self.mark_around(target, true);
        let grafted = self.tree.regraft(pruned, target);
        self.after_move(&[target, pruned.edges[1]]);
        self.mark_node(pruned.half);
        grafted
    }

    /// As [`Tree::ungraft`].
    pub fn ungraft(&mut self, grafted: Grafted) -> Pruned {
        self.mark_node(grafted.half());
        let target = grafted.target;
        let pruned = self.tree.ungraft(grafted);
        self.after_move(&[target, pruned.edges[1]]);
        self.mark_around(target, true);
        pruned
    }

    /// Sets a parameter of a partition's model.
    pub fn set_parameter(&mut self, part: usize, parameter: Parameter, value: f64) {
        self.parts[part].set_parameter(parameter, value);
        self.refresh_fixed(part);
        // Chunks of other partitions would stay valid; their flags are shared.
        self.forget_values();
    }

    /// Gives a partition another model of the same alphabet and number of categories.
    pub fn set_model(&mut self, part: usize, model: Model) {
        self.parts[part].set_model(model);
        self.refresh_fixed(part);
        self.forget_values();
    }

    pub(super) fn refresh_fixed(&mut self, part: usize) {
        let own = self.chunks.iter_mut().filter(|chunk| chunk.part() == part);
        own.for_each(|chunk| chunk.set_fixed(self.parts[part].process()));
    }

    fn after_nni(&mut self, nni: Nni) {
        for half in nni.halves() {
            self.mark_node(half);
        }
        // The inner branch's own two directions have other subtrees behind them now.
        let _ = self.sum_table.take();
    }

    fn after_move(&mut self, edges: &[EdgeId]) {
        for part in &mut self.parts {
            edges.iter().for_each(|&edge| part.forget_edge(edge));
        }
        self.sum_table = None;
    }

    /// Marks all directions that have the branch behind them, from either side.
    pub(super) fn mark_around(&mut self, edge: EdgeId, topology: bool) {
        for end in self.tree.ends(edge) {
            self.mark_beyond(end, topology);
        }
        self.sum_table = None;
    }

    /// Marks a node's three directions, and all that have the node behind them.
    pub(super) fn mark_node(&mut self, half: HalfId) {
        let [b, c] = self.tree.others(half);
        for own in [half, b, c] {
            self.mark(own, true);
            let back = self.tree.back(own);
            if back != own {
                self.mark_beyond(back, true);
            }
        }
        self.sum_table = None;
    }

    /// Marks the directions that see the branch of `half` from the side of `half`'s node.
    fn mark_beyond(&mut self, half: HalfId, topology: bool) {
        let mut path = std::mem::take(&mut self.scratch.path);
        path.push(half);
        while let Some(half) = path.pop() {
            if self.tree.is_tip(half) {
                continue;
            }
            for other in self.tree.others(half) {
                // Directions beyond a marked one are marked already.
                if self.mark(other, topology) {
                    let back = self.tree.back(other);
                    // A free half-edge points to itself.
                    if back != other {
                        path.push(back);
                    }
                }
            }
        }
        self.scratch.path = path;
    }

    /// Marks one direction; true if it was not marked before.
    fn mark(&mut self, half: HalfId, topology: bool) -> bool {
        let Some(at) = half.index().checked_sub(self.tree.taxa()) else {
            return false;
        };
        let values = std::mem::replace(&mut self.values_valid[at], false);
        if topology {
            std::mem::replace(&mut self.classes_valid[at], false)
        } else {
            values
        }
    }
}
