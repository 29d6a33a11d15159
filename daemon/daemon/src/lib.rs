//! Engines of one process that serve others over shared memory.
//!
//! - [`Daemon`] owns a machine's engines. It is started with [`DaemonOptions`] and serves the
//!   kernels of a [`Registry`](served::Registry).
//! - [`client`] attaches to it: calls, jobs, loops spread over several engines. Without a daemon
//!   a client runs the same kernels on its own thread.
//! - [`served`] defines kernels: types with a name, a local store, and a function that runs on an
//!   engine or on a client's thread.
//!
//! `shm` holds the layout of shared memory and the messages before it; docs/daemon.md is the
//! protocol in prose.

#[cfg(not(loom))]
pub mod client;
#[cfg(not(loom))]
pub mod served;
#[cfg(not(loom))]
mod server;
#[cfg_attr(loom, allow(dead_code))]
#[doc(hidden)]
pub mod shm {
    //! The data that crosses between processes: the layout of shared memory and the messages before
    //! it.
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
    //! copies every index and length out of a segment once and checks the copy; no reference to
    //! plain bytes of a segment exists in the daemon.

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
}

// An engine without its thread, and the memory that a client shares with it: for the target
// `daemon` of `lab/fuzz`, which plays a client that writes anywhere.
#[cfg(not(loom))]
pub use server::{
    Allow, CLIENTS_MAX, ClientStatus, Daemon, DaemonError, DaemonOptions, ENGINES_MAX, EngineState,
    EngineStatus, KernelStatus, PROTOCOL_VERSION, Running, Status, UserStatus, default_socket,
    find_socket,
};
#[cfg(not(loom))]
#[doc(hidden)]
pub use server::{
    engine::{Bench, Server},
    roster::Roster,
};

/// The crate that kernels are written with, for programs that depend on this one alone.
pub use sidecore_engine as engine;

/// The README's example, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
