//! Sessions' state: where it lies and how it is found.
//!
//! Why here: what a packet of an established session needs is two lines ([`hot::Hot`]) and one more
//! for its ends ([`hot::Path`]); all else is [`crate::tcp::cold::Cold`]. The first
//! [`LOCAL_SESSIONS`] control blocks lie in the local store, with the lookup tags of as many
//! sessions that were used last; the others lie in main memory and are prefetched, a receive batch
//! at a time, before they are looked at. Where the engine reads memory coherently, a DMA `get` is
//! such a borrow after a prefetch.
//! Source: the fifth document, section 4.3 (its two configurations).

pub(crate) mod hot;
pub(crate) mod store;
pub(crate) mod table;

/// Control blocks that the local store holds: 128 KiB of it.
pub const LOCAL_SESSIONS: usize = 1024;
