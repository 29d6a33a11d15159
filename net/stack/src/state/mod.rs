//! Memory and look-up of the sessions' state.
//!
//! Why here: a packet of an established session needs two lines ([`hot::Hot`]) and one more for its
//! ends ([`hot::Path`]); everything else is [`crate::tcp::cold::Cold`]. The first
//! [`LOCAL_SESSIONS`] control blocks are in the local store, with the lookup tags of as many
//! recently used sessions; the others are in main memory and are prefetched, a receive batch at a
//! time, before they are used. On an engine with coherent memory, a DMA `get` is such a borrow
//! after a prefetch.
//! Source: the fifth document, section 4.3 (its two configurations).

pub(crate) mod ecn;
pub(crate) mod flags;
pub(crate) mod hot;
pub(crate) mod rtt;
pub(crate) mod store;
pub(crate) mod table;
pub(crate) mod timestamps;
pub(crate) mod window;

/// Control blocks that the local store holds: 128 KiB of it.
pub const LOCAL_SESSIONS: usize = 1024;
