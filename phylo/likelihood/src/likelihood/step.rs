//! Steps of a traversal and the branch at its end: what a plan says, and chunks and parts follow.
//!
//! Must stay true: plain values that name half-edges, branches and places by number; the tables and
//! values they stand for are a part's and a chunk's own.

use crate::tree::EdgeId;

/// One side of a step or of a branch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Child {
    pub(super) tip: bool,
    /// The taxon, or the inner half-edge counted from the first one.
    pub(super) at: usize,
    /// Place of an inner node's values: its own, or a scratch place.
    pub(super) place: usize,
    pub(super) edge: EdgeId,
}

/// One newview of a traversal.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    /// The inner half-edge whose values are made.
    pub(super) target: usize,
    /// Place that the values go to.
    pub(super) place: usize,
    pub(super) left: Child,
    pub(super) right: Child,
    /// True if its repeats are to be found anew.
    pub(super) classes: bool,
}

/// The two ends of a branch; the near one is never a tip.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ends {
    pub(super) near: Child,
    pub(super) far: Child,
}
