//! Work that is posted to a pair, and what becomes of it.

use crate::Stag;
use crate::piece::{Piece, Pieces};
use crate::refusal::Fault;
use crate::wire::ddp::{AtomicRequest, COMPARE_SWAP, FETCH_ADD, SWAP};

/// A place in a region of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// Its steering tag.
    pub stag: Stag,
    /// Tagged offset.
    pub offset: u64,
}

/// Change of a word of 8 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atomic {
    /// Adds.
    Add(u64),
    /// Adds fields: each bit of the mask is the highest of one, over which nothing is carried.
    AddFields {
        /// What is added.
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
    /// Replaces it where it is what is expected.
    CompareSwap {
        /// The word that is expected.
        expected: u64,
        /// The word instead.
        new: u64,
    },
    /// Replaces the bits of one mask where those of another are what is expected.
    CompareSwapBits {
        /// The bits that are expected.
        expected: u64,
        /// Those that are looked at.
        compared: u64,
        /// The new bits.
        new: u64,
        /// Those that are replaced.
        swapped: u64,
    },
}

impl Atomic {
    pub(crate) fn request(self, remote: Remote, identifier: u32) -> AtomicRequest {
        let (operation, operand, operand_mask, compare, compare_mask) = match self {
            Self::Add(operand) => (FETCH_ADD, operand, 0, 0, 0),
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
    /// Into the peer's next receive.
    Send {
        /// Bytes of the message.
        pieces: Pieces,
        /// A steering tag of the peer that ends with it.
        invalidate: Option<Stag>,
        /// Asks for an event.
        solicited: bool,
    },
    /// Eight bytes into the peer's next completion of a receive.
    Immediate {
        /// They.
        value: u64,
        /// Asks for an event.
        solicited: bool,
    },
    /// Into a region of the peer.
    Write {
        /// Bytes of the message.
        pieces: Pieces,
        /// Place.
        remote: Remote,
    },
    /// From a region of the peer.
    Read {
        /// Place here.
        into: Piece,
        /// Place there.
        remote: Remote,
    },
    /// Changes an aligned word of a region of the peer; its old value comes with the completion.
    Atomic {
        /// The change.
        atomic: Atomic,
        /// Place.
        remote: Remote,
    },
}

impl Work {
    /// A completion's kind.
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
    /// Comes back with the completion.
    pub id: u64,
    /// The work.
    pub work: Work,
    /// It begins only after all earlier reads and atomics were answered.
    pub fence: bool,
}

/// Work that is done, or will never be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// As posted.
    pub id: u64,
    /// Kind of the work.
    pub kind: Kind,
    /// Outcome.
    pub status: Status,
    /// Length of the message.
    pub bytes: u32,
    /// Immediate data of a receive.
    pub immediate: Option<u64>,
    /// The steering tag of ours that ended with a receive.
    pub invalidated: Option<Stag>,
    /// The peer asks for an event.
    pub solicited: bool,
    /// A word as it was before its change.
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
    /// Done. For sends and writes: given to the stream; for others: answered.
    Done,
    /// The pair ended before.
    Flushed,
    /// Memory of ours was not there any more.
    Local(Fault),
}
