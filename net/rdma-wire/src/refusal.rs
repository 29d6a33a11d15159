//! Reasons to refuse access to memory or posted work.

use crate::piece::{MESSAGE_BYTES_MAX, SharedId};

/// Reasons to reject a steering tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// No region has this tag.
    #[error("no region has this steering tag")]
    Stag,
    /// The region is attached to another pair.
    #[error("the region belongs to another pair")]
    NotAssociated,
    /// The region does not allow the access.
    #[error("the region does not allow this use")]
    Access,
    /// The range ends beyond 2^64.
    #[error("the range's end is beyond 64 bits")]
    Wrap,
    /// The range leaves the region.
    #[error("the range leaves its region")]
    Bounds,
}

/// Reasons to refuse posted work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The bound of posted work, including completions that were not polled, is reached.
    #[error("the queue has its {0} entries; poll completions first")]
    Full(usize),
    /// A piece of local memory is invalid.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// Longer than [`MESSAGE_BYTES_MAX`].
    #[error("a message of more than {MESSAGE_BYTES_MAX} bytes")]
    TooLong,
    /// The peer serves no reads.
    #[error("the peer answers no reads or atomics at all")]
    NoReads,
    /// The pair has ended.
    #[error("the pair has ended")]
    Ended,
    /// Its receives come from a shared queue.
    #[error("this pair receives from shared queue {0:?}; post there")]
    Shared(SharedId),
}
