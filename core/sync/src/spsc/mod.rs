//! Bounded rings of one producer and one consumer, whose two ends distrust one another.
//!
//! - [`Producer`] and [`Consumer`]: the positions of both ends, wherever they and the entries lie.
//!   For records of any size in memory that the caller lays out.
//! - [`lines`]: entries of one cache line each, in shared memory or elsewhere: a message moves one
//!   line from core to core.
//! - [`ring`]: values of a type, in this process: acquire, commit, wait, release.
//!
//! All three are the same protocol: an end knows its own position, which no other memory can
//! change, and keeps the last copy of the other's. It reads the other's only where the copy does
//! not suffice. Such a read copies the position once and checks the copy: positions never fall, a
//! consumer is never ahead of its producer, a producer never more than the capacity ahead of its
//! consumer. So no value that the other side writes makes this side index out of bounds or loop.
//!
//! Must stay true: one thread at a time at each end. Positions are 64 bits wide and do not wrap in
//! any machine's life. README.md has the picture.

mod line_ring;
mod positions;
mod typed;

pub use positions::{Consumer, Producer, Violation};

/// Rings whose entries are a cache line each.
pub mod lines {
    pub use super::line_ring::{LINE_WORDS, Line, Lines, Reader, SharedLines, Writer};
}

pub use typed::{Acquired, Receiver, Sender, Waited, ring};
