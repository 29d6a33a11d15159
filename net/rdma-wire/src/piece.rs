//! Local memory that a message is gathered from or scattered to.

use crate::Stag;
use arrayvec::ArrayVec;

/// Pieces of memory that one message is gathered from or scattered to.
pub const PIECES_MAX: usize = 4;
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
    // In 64 bits: four lengths of 32 bits cannot overflow it.
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
