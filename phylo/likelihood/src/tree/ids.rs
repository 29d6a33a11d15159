//! Numbers of a tree's half-edges, branches and nodes: 32 bits each, so that a large tree and its
//! copies in a search stay small.

use sidecore_bare::width::ToUsize;

/// A half-edge: a node's side of one of its branches.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Default,
    serde::Serialize,
    serde::Deserialize,
)]
pub struct HalfId(pub u32);

/// A branch.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub struct EdgeId(pub u32);

/// A node: tips first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NodeId(u32);

impl HalfId {
    /// The half-edge of an index.
    #[must_use]
    pub fn new(index: usize) -> Self {
        Self(number(index))
    }

    /// As an index.
    #[must_use]
    pub fn index(self) -> usize {
        self.0.to_usize()
    }
}

impl EdgeId {
    /// The branch of an index.
    #[must_use]
    pub fn new(index: usize) -> Self {
        Self(number(index))
    }

    /// The first `count` branches.
    pub(crate) fn first(count: usize) -> impl Iterator<Item = Self> {
        (0..number(count)).map(Self)
    }

    /// As an index.
    #[must_use]
    pub fn index(self) -> usize {
        self.0.to_usize()
    }
}

impl NodeId {
    pub(super) fn new(index: usize) -> Self {
        Self(number(index))
    }

    /// As an index.
    #[must_use]
    pub(crate) fn index(self) -> usize {
        self.0.to_usize()
    }
}

fn number(index: usize) -> u32 {
    // A tree with more nodes would take hundreds of gigabytes: nothing that reads or makes one
    // comes near.
    debug_assert!(index <= u32::MAX.to_usize(), "{index} half-edges");
    index as u32
}
