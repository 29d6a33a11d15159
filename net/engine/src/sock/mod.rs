//! Sockets for other processes, over shared memory.
//!
//! Top-down: [`server`] is the engine's side, which serves all attached processes in one round of
//! its loop; [`control`] lets them in and notices when they die; [`client`] is the application's
//! side. Between them lies one segment a process: two rings of descriptors and chunks that hold
//! payload ([`layout`]). What the stack must be able to do for it is [`Sockets`].
//!
//! Why here: an application that sends and receives makes no system call and has no descriptor a
//! socket. Must stay true: the engine copies every word out of shared memory once and checks the
//! copy; a process that breaks the rules or dies has its own sessions reset, and nothing else
//! happens; no round is longer because a process is slow. The protocol is README.md beside this
//! file.

mod adapter;
pub mod client;
pub mod control;
pub mod layout;
pub(crate) mod mailbox;
pub(crate) mod ring;
pub mod server;
mod stack;

pub use stack::{Id, SocketError, SocketOption, Sockets, Status};
