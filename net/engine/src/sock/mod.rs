//! Sockets for other processes, over shared memory.
//!
//! Top-down: [`server`] is the engine's side, which serves all attached processes in one round of
//! its loop; [`control`] admits them and detects their end; [`client`] is the application's side.
//! They share one segment per process: two rings of descriptors, and chunks of payload
//! ([`layout`]). [`Sockets`] is the interface to the stack.
//!
//! Why here: an application sends and receives without system calls, and has no descriptor per
//! socket. Must stay true: the engine copies every word out of shared memory once and checks the
//! copy; if a process violates the protocol or dies, its own sessions are reset, with no effect on
//! other processes; a slow process does not prolong a round. README.md next to this file has the
//! protocol.

mod adapter;
pub mod client;
pub mod control;
pub mod layout;
#[doc(hidden)]
pub mod mailbox; // with `ring` for the target `sockets` of `lab/fuzz`, which plays applications
#[doc(hidden)]
pub mod ring;
pub mod server;
mod stack;
pub(crate) mod taps;

pub(crate) use adapter::id_of;
pub use stack::{Id, SocketError, SocketOption, Sockets, Status};
