//! Steps of a traversal, and the validity of what they compute: the CLVs, the site repeats and the
//! sum table, direction by direction.
//!
//! Why here: chunks and parts execute steps, which name half-edges, branches and places by number.
//! A change of the tree marks what it makes invalid, and a plan looks up what is valid;
//! neither looks at a CLV itself.
//! Must stay true: a direction is marked whenever anything behind it has changed. No CLV beyond a
//! marked one is valid, so that the walk stops at the first marked one. Valid CLVs were computed
//! from valid CLVs, even if those are no longer kept.

use crate::tree::{EdgeId, HalfId, Tree};

/// Aspect of a tree that a change affects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    /// Lengths alone: site repeats stay valid.
    Length,
    /// The topology: site repeats and CLVs.
    Topology,
}

/// Valid site repeats and CLVs of a tree's directions (inner half-edges, counted from the first).
#[derive(Debug)]
pub(super) struct Validity {
    taxa: usize,
    /// For each direction: true if its site repeats match the tree.
    repeats: Vec<bool>,
    /// For each direction: true if its CLV, as last computed, is still right.
    clvs: Vec<bool>,
    /// For each inner node the direction whose CLV is kept; `None` at first.
    held: Vec<Option<usize>>,
    /// The branch that the sum tables were made for, if they are still right.
    sum_table: Option<EdgeId>,
    /// Scratch memory of a walk.
    path: Vec<HalfId>,
}

impl Validity {
    /// Nothing is valid.
    pub(super) fn new(tree: &Tree) -> Self {
        let directions = tree.inner_halves();
        Self {
            taxa: tree.taxa(),
            repeats: vec![false; directions],
            clvs: vec![false; directions],
            held: vec![None; directions / 3],
            sum_table: None,
            path: Vec::new(),
        }
    }

    /// True if a direction's CLV has to be computed: it is invalid, or its node keeps that of
    /// another direction.
    pub(super) fn lacks_clv(&self, direction: usize) -> bool {
        !self.clvs[direction] || self.held[direction / 3] != Some(direction)
    }

    /// Marks a direction's CLV as valid and kept.
    pub(super) fn keep_clv(&mut self, direction: usize) {
        self.clvs[direction] = true;
        self.held[direction / 3] = Some(direction);
    }

    /// The kept CLV of a node is overwritten by one that is not kept.
    pub(super) fn lose_clv(&mut self, node: usize) {
        self.held[node] = None;
    }

    /// Marks a direction's site repeats as valid; true if they have to be found for that.
    pub(super) fn renew_repeats(&mut self, direction: usize) -> bool {
        !std::mem::replace(&mut self.repeats[direction], true)
    }

    /// True if the sum tables are those of a branch.
    pub(super) fn has_sum_table(&self, edge: EdgeId) -> bool {
        self.sum_table == Some(edge)
    }

    /// The sum tables are those of a branch now.
    pub(super) fn keep_sum_table(&mut self, edge: EdgeId) {
        self.sum_table = Some(edge);
    }

    /// The sum tables' memory is used for something else, or their branch has changed.
    pub(super) fn forget_sum_table(&mut self) {
        self.sum_table = None;
    }

    /// Invalidates all CLVs, as a change of every parameter does.
    pub(super) fn forget_clvs(&mut self) {
        self.clvs.fill(false);
        self.sum_table = None;
    }

    /// Invalidates all site repeats and CLVs, as a new topology does.
    pub(super) fn forget_all(&mut self) {
        self.repeats.fill(false);
        self.forget_clvs();
    }

    /// Marks all directions that have the branch behind them, from either side.
    pub(super) fn mark_around(&mut self, tree: &Tree, edge: EdgeId, change: Change) {
        for end in tree.ends(edge) {
            self.mark_beyond(tree, end, change);
        }
        self.sum_table = None;
    }

    /// Marks a node's three directions, and all that have the node behind them, for a change of
    /// the topology.
    pub(super) fn mark_node(&mut self, tree: &Tree, half: HalfId) {
        let [b, c] = tree.others(half);
        for own in [half, b, c] {
            self.mark(own, Change::Topology);
            let back = tree.back(own);
            if back != own {
                self.mark_beyond(tree, back, Change::Topology);
            }
        }
        self.sum_table = None;
    }

    /// Marks the directions that see the branch of `half` from the side of `half`'s node.
    fn mark_beyond(&mut self, tree: &Tree, half: HalfId, change: Change) {
        self.path.push(half);
        while let Some(half) = self.path.pop() {
            if tree.is_tip(half) {
                continue;
            }
            for other in tree.others(half) {
                // Directions beyond a marked one are marked already.
                if self.mark(other, change) {
                    let back = tree.back(other);
                    // A free half-edge points to itself.
                    if back != other {
                        self.path.push(back);
                    }
                }
            }
        }
    }

    /// Marks one direction; true if it was not marked before.
    fn mark(&mut self, half: HalfId, change: Change) -> bool {
        let Some(at) = half.index().checked_sub(self.taxa) else {
            return false;
        };
        let was_valid = std::mem::replace(&mut self.clvs[at], false);
        match change {
            Change::Length => was_valid,
            // An invalid CLV does not end this walk: the repeats beyond it may still be valid.
            Change::Topology => std::mem::replace(&mut self.repeats[at], false),
        }
    }
}

/// One side of a step or of a branch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Child {
    pub(super) tip: bool,
    /// The taxon, or the inner half-edge counted from the first one.
    pub(super) at: usize,
    /// Place of an inner node's CLV: its own, or a scratch place.
    pub(super) place: usize,
    pub(super) edge: EdgeId,
}

impl Child {
    /// A half-edge whose CLV is kept. An inner node has one place, for the CLV of one of its three
    /// directions.
    pub(super) fn kept(tree: &Tree, half: HalfId) -> Self {
        Self::placed(tree, half, |node| node)
    }

    /// A half-edge whose node's CLV is at the place that `place` gives.
    pub(super) fn placed(tree: &Tree, half: HalfId, place: impl FnOnce(usize) -> usize) -> Self {
        let (tip, edge) = (tree.is_tip(half), tree.edge(half));
        let (at, place) = match half.index().checked_sub(tree.taxa()) {
            Some(at) => (at, place(at / 3)),
            None => (half.index(), half.index()),
        };
        Self {
            tip,
            at,
            place,
            edge,
        }
    }
}

/// One newview of a traversal.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    /// The inner half-edge whose CLV is computed.
    pub(super) target: usize,
    /// Place of the result.
    pub(super) place: usize,
    pub(super) left: Child,
    pub(super) right: Child,
    /// True if its site repeats have to be found again.
    pub(super) repeats: bool,
}

/// The two ends of a branch; the near one is never a tip.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ends {
    pub(super) near: Child,
    pub(super) far: Child,
}

/// Places for CLVs that are used once, behind those of the nodes. A walk in post-order, larger
/// child first, needs as many as the number of taxa has binary digits, and one for the other end.
pub(super) const SCRATCH_PLACES: usize = 24;
