//! Work posted to a pair, and its completions.

use crate::Stag;
use crate::piece::{Fault, Piece, Pieces};
use crate::wire::ddp::{AtomicRequest, COMPARE_SWAP, FETCH_ADD, SWAP};

/// A location in a region of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// Its steering tag.
    pub stag: Stag,
    /// Tagged offset.
    pub offset: u64,
}

/// Atomic change of a word of 8 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atomic {
    /// Adds.
    Add(u64),
    /// Adds fields: each bit of the mask is the highest bit of a field, where a carry is dropped.
    AddFields {
        /// The value to add.
        value: u64,
        /// The mask.
        mask: u64,
    },
    /// Replaces the bits of a mask.
    Swap {
        /// The new bits.
        new: u64,
        /// The mask.
        mask: u64,
    },
    /// Replaces the word if it has the expected value.
    CompareSwap {
        /// The expected word.
        expected: u64,
        /// The new word.
        new: u64,
    },
    /// Replaces the bits of one mask if those of another have the expected value.
    CompareSwapBits {
        /// The expected bits.
        expected: u64,
        /// The mask of bits to compare.
        compared: u64,
        /// The new bits.
        new: u64,
        /// The mask of bits to replace.
        swapped: u64,
    },
}

impl Atomic {
    pub(crate) fn request(self, remote: Remote, identifier: u32) -> AtomicRequest {
        let (operation, operand, operand_mask, compare, compare_mask) = match self {
            Self::Add(operand) => (FETCH_ADD, operand, 0, 0, 0),
            // RFC 7306, section 5.1.1: the mask of an addition marks the fields' highest bits.
            Self::AddFields { value, mask } => (FETCH_ADD, value, mask, 0, 0),
            Self::Swap { new, mask } => (SWAP, new, mask, 0, 0),
            Self::CompareSwap { expected, new } => {
                (COMPARE_SWAP, new, u64::MAX, expected, u64::MAX)
            }
            Self::CompareSwapBits {
                expected,
                compared,
                new,
                swapped,
            } => (COMPARE_SWAP, new, swapped, expected, compared),
        };
        AtomicRequest {
            operation,
            identifier,
            stag: remote.stag,
            offset: remote.offset,
            operand,
            operand_mask,
            compare,
            compare_mask,
        }
    }
}

/// Work for the send queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// Sends to the peer's next receive.
    Send {
        /// Bytes of the message.
        pieces: Pieces,
        /// A steering tag of the peer to invalidate.
        invalidate: Option<Stag>,
        /// Requests an event.
        solicited: bool,
    },
    /// Eight bytes in the peer's next completion of a receive.
    Immediate {
        /// The eight bytes.
        value: u64,
        /// Requests an event.
        solicited: bool,
    },
    /// Writes to a region of the peer.
    Write {
        /// Bytes of the message.
        pieces: Pieces,
        /// Destination.
        remote: Remote,
    },
    /// Reads from a region of the peer.
    Read {
        /// Local destination.
        into: Piece,
        /// Remote source.
        remote: Remote,
    },
    /// Changes an aligned word of a region of the peer; the completion has its old value.
    Atomic {
        /// The change.
        atomic: Atomic,
        /// Location of the word.
        remote: Remote,
    },
}

impl Work {
    /// The kind of its completion.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Send { .. } => Kind::Send,
            Self::Immediate { .. } => Kind::Immediate,
            Self::Write { .. } => Kind::Write,
            Self::Read { .. } => Kind::Read,
            Self::Atomic { .. } => Kind::Atomic,
        }
    }

    pub(crate) fn pieces(&self) -> &[Piece] {
        match self {
            Self::Send { pieces, .. } | Self::Write { pieces, .. } => pieces,
            Self::Read { into, .. } => std::slice::from_ref(into),
            Self::Immediate { .. } | Self::Atomic { .. } => &[],
        }
    }

    pub(crate) fn is_answered(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Atomic { .. })
    }
}

/// Work with its number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Post {
    /// Returned with the completion.
    pub id: u64,
    /// The work.
    pub work: Work,
    /// Starts only after all earlier reads and atomics have completed.
    pub fence: bool,
}

/// The completion of work, done or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The number given at posting.
    pub id: u64,
    /// Kind of the work.
    pub kind: Kind,
    /// Outcome.
    pub status: Status,
    /// Length of the message.
    pub bytes: u32,
    /// Immediate data of a receive.
    pub immediate: Option<u64>,
    /// The local steering tag that a receive has invalidated.
    pub invalidated: Option<Stag>,
    /// The peer requested an event.
    pub solicited: bool,
    /// The old word of an atomic.
    pub original: Option<u64>,
}

/// Kinds of completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// [`Work::Send`].
    Send,
    /// [`Work::Immediate`].
    Immediate,
    /// [`Work::Write`].
    Write,
    /// [`Work::Read`].
    Read,
    /// [`Work::Atomic`].
    Atomic,
    /// A [`Receive`](crate::Receive).
    Receive,
}

/// Outcomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Done. For sends and writes: passed to the stream; for others: the response has arrived.
    Done,
    /// The pair ended before it was done.
    Flushed,
    /// Local memory was gone.
    Local(Fault),
}
