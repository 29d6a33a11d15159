//! Reasons for which access to memory or posted work is refused.

use crate::piece::{MESSAGE_BYTES_MAX, SharedId};

/// Reasons for which a steering tag leads nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// No region has it.
    #[error("no region has this steering tag")]
    Stag,
    /// The region is attached to another pair.
    #[error("the region belongs to another pair")]
    NotAssociated,
    /// The region does not allow it.
    #[error("the region does not allow this use")]
    Access,
    /// The range ends beyond 2^64.
    #[error("the range's end is beyond 64 bits")]
    Wrap,
    /// The range leaves the region.
    #[error("the range leaves its region")]
    Bounds,
}

/// Reasons for which work is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// As much is posted, or completed and not polled, as the pair was made for.
    #[error("the queue has its {0} entries; poll completions first")]
    Full(usize),
    /// A piece of our memory is none.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// Beyond [`MESSAGE_BYTES_MAX`].
    #[error("a message of more than {MESSAGE_BYTES_MAX} bytes")]
    TooLong,
    /// The peer answers no reads.
    #[error("the peer answers no reads or atomics at all")]
    NoReads,
    /// The pair has come to its end.
    #[error("the pair has ended")]
    Ended,
    /// Its receives come from a shared queue.
    #[error("this pair receives from shared queue {0:?}; post there")]
    Shared(SharedId),
}
