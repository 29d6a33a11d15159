//! Rings in shared memory between a supervised program's sockets and its supervisor.
//!
//! Why here: the supervisor of `sidecore net run` and the preload library of programs share one
//! layout, and rules for writing it; neither may trust the other's bytes. README.md has the layout
//! and the requests.
//!
//! [`datagram`] is the same for UDP, whose datagrams go by the kernel's loopback.
//!
//! Must stay true: no access leaves the mapping, whatever the other side writes; nothing here makes
//! a system call or waits, except for a copy by another thread of the same program.

pub mod datagram;
mod name;
mod process;
mod stream;

pub use name::{ADDRESS_BYTES, BY_ITSELF, HELLO_BYTES, Hello, Hint, MARK, NAME_BYTES, Name, Role};
pub use positions::Broken;
pub use process::{Process, STREAMS, WAITERS};
pub use request::{
    ATTACH, DATAGRAM_RINGS, DATAGRAMS, GROW, LEVEL, LINGER, LISTENER_CLOSED, TAKE_BACK, UPGRADE,
    VERSION, WAITER, WORDS,
};
pub use stream::{Held, Lock, Served, Stream, StreamState};

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

mod request {
    //! Numbers of the requests (README.md).

    /// Option level of the requests: not used by the kernel.
    pub const LEVEL: i32 = 0x5349_4452;
    /// Version of the layout, in [`ATTACH`] and in its reply.
    pub const VERSION: u32 = 5;
    /// Requests a segment, with the library's [`VERSION`], which libraries before 3 did not pass.
    pub const ATTACH: i32 = 1;
    /// Requests a waiter.
    pub const WAITER: i32 = 2;
    /// Requests a stream's rings.
    pub const UPGRADE: i32 = 3;
    /// Gives a stream's rings back.
    pub const TAKE_BACK: i32 = 4;
    /// Requests a stream's large rings.
    pub const GROW: i32 = 5;
    /// Reports that a descriptor of a listener was closed, by its inode; the request itself uses no
    /// descriptor.
    pub const LISTENER_CLOSED: i32 = 6;
    /// Waits for the end of a session that was closed, by its inode, as long as SO_LINGER says.
    pub const LINGER: i32 = 7;
    /// Requests a place for a datagram socket in the run's directory, with 1 if this process has
    /// the directory already. What was sent before is taken first: the library repeats the request
    /// before it sends more than the supervisor's sockets hold.
    pub const DATAGRAMS: i32 = 8;
    /// Requests rings for a datagram socket, which has a place in the directory.
    pub const DATAGRAM_RINGS: i32 = 9;
    /// Words of 32 bits in each request's value.
    pub const WORDS: usize = 4;
}

mod positions {
    //! Distances between positions that two sides publish.

    /// The other side's position is invalid.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Broken;

    /// Bytes from one position to a later one, at most a ring's size.
    pub(crate) fn between(from: u64, to: u64, room: usize) -> Result<usize, Broken> {
        let bytes = to.wrapping_sub(from);
        match usize::try_from(bytes) {
            Ok(bytes) if bytes <= room => Ok(bytes),
            _ => Err(Broken),
        }
    }

    /// As [`between`], of positions that both advance meanwhile; and the ring's size. More than
    /// that may have passed between the two loads, so a pair that cannot be is loaded again.
    pub(crate) fn between_moving(
        from: impl Fn() -> u64,
        to: impl Fn() -> u64,
        room: impl Fn() -> Result<usize, Broken>,
    ) -> Result<(usize, usize), Broken> {
        let mut first = from();
        // Bounded, because the other side may change its position at will.
        for _ in 0..LOADS_MAX {
            let last = to();
            // After the position, which is published after it.
            let room = room()?;
            if let Ok(bytes) = between(first, last, room) {
                return Ok((bytes, room));
            }
            let before = std::mem::replace(&mut first, from());
            if first == before {
                return Err(Broken);
            }
        }
        Err(Broken)
    }

    /// Loads of two positions, each of which another thread has overtaken by a ring's size.
    const LOADS_MAX: usize = 64;
}

#[cfg(test)]
mod tests;
