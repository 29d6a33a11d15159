//! Buffers on demand: a session that waits for something holds none.
//!
//! Why here: 100,000 idle sessions must cost no more than their control blocks, and the buffers of
//! the few busy ones must stay in the core's cache. Buffers of six sizes are cut from slabs and
//! handed out last-in-first-out, so the one that was just freed, and is still cached, goes out
//! next.
//! Must stay true: the pool never grows beyond its bound; a slab, once there, stays.

pub(crate) mod pool;
pub(crate) mod ring;
pub(crate) mod slab;
