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
pub mod shm;

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
