//! RDMA over TCP: put, get and send between memories of two processes, on the standard wire
//! (iWARP).
//!
//! - [`Adapter`]: registered memory of this process, and who may do what with it.
//! - [`Connection`]: a queue pair on a [`Stream`]: a kernel's TCP socket ([`TcpStream`]) or a
//!   session of the stack ([`StackStream`]).
//! - [`ping`]: the exchange of rdmacm-utils' `rping`, both sides of it; [`server`]: at addresses.
//!
//! Why here: the paper's "RDMA API" beside its socket API, with peers that others wrote. Must stay
//! true: the protocol is `sidecore-rdma-wire`'s alone; here are sockets, clocks and waiting. A peer
//! reaches what [`Adapter::register`] gave it the right to, and nothing else. One thread; calls
//! that wait take a time limit.
//!
//! [`TcpStream`]: std::net::TcpStream

mod adapter;
mod connection;
pub mod ping;
pub mod server;
mod stream;

pub use adapter::{Adapter, Region};
pub use connection::{Connection, Request};
pub use sidecore_rdma_wire::{
    Access, Atomic, Completion, End, Kind, Options, Piece, Pieces, Post, Receive, Remote, Stag,
    State, Status, Work,
};
pub use stream::{StackStream, Stream};

use sidecore_rdma_wire::{DomainFull, PostError, StartFault};
use std::time::Duration;

/// Reasons for which a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RdmaError {
    /// Of the socket.
    #[error("the connection: {0}")]
    Io(#[from] std::io::Error),
    /// Memory cannot be registered.
    #[error(transparent)]
    Memory(#[from] DomainFull),
    /// Work is not taken.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The start failed here.
    #[error(transparent)]
    Start(#[from] StartFault),
    /// The connection has come to its end.
    #[error("the connection has ended: {0:?}")]
    Ended(End),
    /// Work is over without having been done.
    #[error("the work is over without having been done: {0:?}")]
    Undone(Status),
    /// Nothing happened in time.
    #[error("nothing happened within {0:?}")]
    Late(Duration),
    /// The peer does not speak the exchange that was expected.
    #[error("the peer's message {0}")]
    Unexpected(&'static str),
}

/// The README's example, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
