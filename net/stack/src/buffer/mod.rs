//! Buffers on demand: an idle session holds none.
//!
//! Why here: 100,000 idle sessions must cost no more than their control blocks, and the buffers of
//! the few busy ones must stay in the core's cache. Buffers of six sizes are cut from slabs and
//! handed out last-in-first-out, so the buffer freed last, which is still cached, is used next.
//! Must stay true: the pool never grows beyond its bound; an allocated slab is never freed.

pub(crate) mod pool;
pub(crate) mod ring;
pub(crate) mod slab;
