//! The linkage of the branch lengths of partitions.

/// Linkage of the branch lengths of partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lengths {
    /// All have the tree's, times the scale that each was given.
    #[default]
    Linked,
    /// Likewise, and the scales are fitted; their mean, weighted by sites, is 1.
    Scaled,
    /// Each partition has lengths of its own; the tree's are their mean, weighted by sites.
    Unlinked,
}
