//! Steps of a traversal and the branch at its end: the format of a plan, which chunks and parts
//! execute.
//!
//! Must stay true: plain data that names half-edges, branches and places by number; the tables and
//! CLVs behind the numbers belong to a part and to a chunk.

use crate::tree::EdgeId;

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
    pub(super) classes: bool,
}

/// The two ends of a branch; the near one is never a tip.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ends {
    pub(super) near: Child,
    pub(super) far: Child,
}
