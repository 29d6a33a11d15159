//! Rings in shared memory between a supervised program's sockets and its supervisor.
//!
//! Why here: the supervisor of `sidecore net run` and the preload library of programs share one
//! layout, and rules for writing it; neither may trust the other's bytes. README.md has the layout
//! and the requests.
//!
//! Must stay true: no access leaves the mapping, whatever the other side writes; nothing here makes
//! a system call or waits, except for a copy by another thread of the same program.

mod name;
mod process;
mod request;
mod stream;

pub use name::{ADDRESS_BYTES, BY_ITSELF, HELLO_BYTES, Hello, Hint, MARK, NAME_BYTES, Name, Role};
pub use process::{Process, STREAMS, WAITERS};
pub use request::{
    ATTACH, GROW, LEVEL, LISTENER_CLOSED, TAKE_BACK, UPGRADE, VERSION, WAITER, WORDS,
};
pub use stream::{Broken, Held, Lock, Served, Stream, StreamState};

/// Bytes of a process's segment.
pub const SEGMENT_BYTES: usize = 16 << 10;
/// Bytes of each of a stream's rings.
pub const RING_BYTES: usize = 32 << 10;
/// Bytes of each large ring, for a stream with much data.
pub const LARGE_RING_BYTES: usize = 512 << 10;
/// Bytes of a stream's large rings.
pub const LARGE_BYTES: usize = 2 * LARGE_RING_BYTES;
/// Streams that share one block of memory.
pub const SLAB_STREAMS: u32 = 8;
/// Bytes of that block.
pub const SLAB_BYTES: usize = SLAB_STREAMS as usize * STREAM_BYTES;
/// Bytes of a stream's memory.
pub const STREAM_BYTES: usize = (4 << 10) + 2 * RING_BYTES;

#[cfg(test)]
mod tests;
