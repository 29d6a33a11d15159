//! Local memory that a message is gathered from or scattered to, and reasons to refuse it.

use crate::Stag;
use arrayvec::ArrayVec;

/// Pieces of memory that one message is gathered from or scattered to.
pub const PIECES_MAX: usize = 8;
/// The longest message, in bytes.
pub const MESSAGE_BYTES_MAX: u32 = 1 << 30;

/// A piece of a local region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Its region.
    pub stag: Stag,
    /// Tagged offset of its first byte.
    pub offset: u64,
    /// Its length.
    pub bytes: u32,
}

/// Consecutive pieces.
pub type Pieces = ArrayVec<Piece, PIECES_MAX>;

/// A buffer for a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receive {
    /// Returned with the completion.
    pub id: u64,
    /// Memory for its bytes.
    pub pieces: Pieces,
}

/// Length of the message in these pieces; none if it exceeds [`MESSAGE_BYTES_MAX`].
#[must_use]
pub fn message_bytes(pieces: &[Piece]) -> Option<u32> {
    // In 64 bits: a few lengths of 32 bits cannot overflow it.
    let sum: u64 = pieces.iter().map(|piece| u64::from(piece.bytes)).sum();
    u32::try_from(sum)
        .ok()
        .filter(|&sum| sum <= MESSAGE_BYTES_MAX)
}

/// A shared receive queue of a domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SharedId {
    pub(crate) index: u32,
    /// Number of earlier queues in its place.
    pub(crate) generation: u32,
}

impl SharedId {
    /// Converts it to a number.
    #[must_use]
    pub fn number(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// The queue with a number.
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        Self {
            index: number as u32,
            generation: (number >> 32) as u32,
        }
    }
}

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
