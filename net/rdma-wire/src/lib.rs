//! iWARP without I/O: from a stream's bytes to placements in registered memory, completions and the
//! bytes to send.
//!
//! - [`Pair`]: a queue pair on one stream. Its owner passes received bytes ([`Pair::receive`]),
//!   takes the bytes to send ([`Pair::transmit`]: one framed unit a call, which can be a segment of
//!   TCP), posts work and polls completions.
//! - [`Domain`]: a protection domain, the regions that peers may name by steering tags, and the
//!   shared receive queues.
//! - [`Memory`]: the bytes themselves, which this crate never holds.
//! - [`wire`]: the formats alone.
//!
//! Why here: the engine, a kernel socket and a fuzzer run the same code. Must stay true: no I/O, no
//! clock, no thread; data is placed only as its steering tag, bounds, rights and pair allow; every
//! queue has a fixed bound; a peer's fault ends its own pair only, with the terminate code that the
//! RFCs specify. One thread. Sources: RFC 5040 (RDMAP), RFC 5041 (DDP), RFC 5044 (MPA), RFC 6581
//! (connection set-up), RFC 7306 (atomics, immediate data).

mod domain;
#[doc(hidden)]
pub mod framing; // for the target `rdma` of `lab/fuzz`, which writes a peer's units
mod memory;
mod pair;
mod piece;
mod work;

pub mod wire {
    //! The formats on the wire: parsers of arbitrary bytes, and writers.
    //!
    //! Must stay true: parsing never panics; a written value is parsed as the same value.

    pub mod ddp;
    pub mod mpa;
    pub mod terminate;
    #[cfg(test)]
    mod tests;

    /// `N` bytes at `at`, or none if the bytes end before.
    pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
        bytes.get(at..at.checked_add(N)?)?.try_into().ok()
    }

    pub(crate) fn word16(bytes: &[u8], at: usize) -> Option<u16> {
        array(bytes, at).map(u16::from_be_bytes)
    }

    pub(crate) fn word32(bytes: &[u8], at: usize) -> Option<u32> {
        array(bytes, at).map(u32::from_be_bytes)
    }

    pub(crate) fn word64(bytes: &[u8], at: usize) -> Option<u64> {
        array(bytes, at).map(u64::from_be_bytes)
    }

    /// Length of a segment or of a part of one, whose own field has 16 bits (RFC 5044, section
    /// 4.1).
    pub(crate) fn segment_length(bytes: &[u8]) -> u32 {
        u32::try_from(bytes.len()).unwrap_or(u32::MAX)
    }
}

pub use domain::{
    Access, Domain, DomainFull, PairId, RECEIVES_MAX, REGIONS_MAX, Registration, SHARED_QUEUES_MAX,
};
pub use memory::{Buffers, Gone, Memory, RegionId};
pub use pair::{
    DEPTH_MAX, End, Options, Pair, Part, ReadyBy, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, Setup,
    StartFault, State,
};
pub use piece::{
    Fault, MESSAGE_BYTES_MAX, PIECES_MAX, Piece, Pieces, PostError, Receive, SharedId,
    message_bytes,
};
pub use work::{Atomic, Completion, Kind, Post, Remote, Status, Work};

/// A steering tag: gives access to a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Stag(pub u32);

/// The README's example, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
