//! Steps of a traversal and the branch at its end: the format of a plan, which chunks and parts
//! execute.
//!
//! Must stay true: plain data that names half-edges, branches and places by number; the tables and
//! CLVs behind the numbers belong to a part and to a chunk.

use crate::tree::{EdgeId, HalfId, Tree};

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
