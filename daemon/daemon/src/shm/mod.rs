//! The data that crosses between processes: the layout of shared memory and the messages before it.
//!
//! - [`slot`]: one client's request packet and completion at one engine, and their protocol.
//! - [`ring`]: jobs, the asynchronous requests: a client's two rings, for all engines.
//! - [`layout`]: the layouts of a client's segment and of the activity page, and the limits.
//! - [`activity`]: the daemon's published state for all clients, read-only for them.
//! - [`session`]: a client's segment as the daemon sees it: hostile memory.
//! - `load`: the requests of one user that engines serve at this moment.
//! - `segment`: the same segment as its client sees it: an arena of buffers.
//! - [`introduction`]: the messages over the socket.
//!
//! The protocol in prose, with the byte maps, is in docs/daemon.md. Must stay true: the daemon
//! copies every index and length out of a segment once and checks the copy; no reference to plain
//! bytes of a segment exists in the daemon.

#[cfg(not(loom))]
pub mod activity;
#[cfg(not(loom))]
pub mod introduction;
#[cfg(not(loom))]
pub mod layout;
#[cfg(not(loom))]
pub(crate) mod load;
#[cfg_attr(
    loom,
    expect(dead_code, reason = "the model plays both sides by itself")
)]
pub mod ring;
#[cfg(not(loom))]
pub(crate) mod segment;
#[cfg(not(loom))]
pub mod session;
pub mod slot;

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
