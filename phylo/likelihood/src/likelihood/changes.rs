//! Changes of branch lengths, topology and parameters, and the CLVs that each of them invalidates.
//!
//! Why here: every change of a likelihood's tree or model marks the invalid CLVs, in one place.
//! Must stay true: what is behind a direction changes only together with its mark
//! ([`super::validity`]). Nothing here computes a CLV.

use super::validity::Change;
use super::{LENGTH_MAX, LENGTH_MIN, Likelihood};
use crate::model::Model;
use crate::runner::Runner;
use crate::tree::{EdgeId, Grafted, HalfId, Nni, Pruned};

#[cfg(doc)]
use crate::tree::Tree;

impl<R: Runner> Likelihood<R> {
    /// Sets a branch's length, clamped to [`LENGTH_MIN`]..=`LENGTH_MAX`.
    pub fn set_length(&mut self, edge: EdgeId, length: f64) {
        let length = length.clamp(LENGTH_MIN, LENGTH_MAX);
        if length == self.tree.length(edge) {
            return;
        }
        self.tree.set_length(edge, length);
        self.parts
            .iter_mut()
            .for_each(|part| part.forget_edge(edge));
        self.validity.mark_around(&self.tree, edge, Change::Length);
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
        self.validity.mark_node(&self.tree, half);
        let pruned = self.tree.prune(half);
        self.after_move(&pruned.edges);
        self.validity
            .mark_around(&self.tree, pruned.edges[0], Change::Topology);
        pruned
    }

    /// As [`Tree::unprune`].
    pub fn unprune(&mut self, pruned: Pruned) {
        self.validity
            .mark_around(&self.tree, pruned.edges[0], Change::Topology);
        self.tree.unprune(pruned);
        self.after_move(&pruned.edges);
        self.validity.mark_node(&self.tree, pruned.half);
    }

    /// As [`Tree::regraft`].
    pub fn regraft(&mut self, pruned: Pruned, target: EdgeId) -> Grafted {
        self.validity
            .mark_around(&self.tree, target, Change::Topology);
        let grafted = self.tree.regraft(pruned, target);
        self.after_move(&[target, pruned.edges[1]]);
        self.validity.mark_node(&self.tree, pruned.half);
        grafted
    }

    /// As [`Tree::ungraft`].
    pub fn ungraft(&mut self, grafted: Grafted) -> Pruned {
        self.validity.mark_node(&self.tree, grafted.half());
        let target = grafted.target;
        let pruned = self.tree.ungraft(grafted);
        self.after_move(&[target, pruned.edges[1]]);
        self.validity
            .mark_around(&self.tree, target, Change::Topology);
        pruned
    }

    /// Gives a partition another model of the same alphabet and number of categories.
    pub fn set_model(&mut self, part: usize, model: Model) {
        self.parts[part].set_model(model);
        self.chunks.refresh_invariable(&self.parts, part);
        // Chunks of other partitions would stay valid; their flags are shared.
        self.validity.forget_clvs();
    }

    fn after_nni(&mut self, nni: Nni) {
        // The inner branch's own two directions have other subtrees behind them now.
        for half in nni.halves() {
            self.validity.mark_node(&self.tree, half);
        }
    }

    fn after_move(&mut self, edges: &[EdgeId]) {
        for part in &mut self.parts {
            edges.iter().for_each(|&edge| part.forget_edge(edge));
        }
        self.validity.forget_sum_table();
    }
}
