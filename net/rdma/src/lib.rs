//! RDMA over TCP: put, get and send between memories of two processes, on the standard wire
//! (iWARP).
//!
//! - [`Adapter`]: registered memory of this process, and its access rights.
//! - [`Connection`]: a queue pair on a [`Stream`]: a kernel TCP socket ([`TcpStream`]) or a session
//!   of the stack (`StackStream`).
//! - [`Device`]: listeners, many connections, completion queues and events in the manner of verbs,
//!   for polling or waiting.
//! - [`ping`]: the exchange of rdmacm-utils' `rping`, both sides of it; [`server`]: at addresses.
//!
//! Why here: the paper's "RDMA API" in addition to its socket API, compatible with other
//! implementations. Must stay true: the protocol is entirely in `sidecore-rdma-wire`; this crate
//! has sockets, clocks and waiting. A peer reaches only memory that [`Adapter::register`] gave it
//! the right to. One thread; calls that block take a time limit.
//!
//! [`TcpStream`]: std::net::TcpStream

mod adapter;
mod connection;
mod device;
mod flow;
pub mod ping;
mod regions;
pub mod server;
mod stream;

pub use adapter::{Adapter, Region};
pub use connection::{Connection, Request};
pub use device::{
    BACKLOG_MAX, ConnectionId, Device, Event, ListenerId, QUEUE_DEPTH_MAX, QUEUES_MAX, QueueId,
    Queued, Queues, Transport,
};
pub use sidecore_rdma_wire::{
    Access, Atomic, Completion, End, Fault, Kind, Options, Piece, Pieces, Post, ReadyBy, Receive,
    Remote, Setup, Stag, State, Status, Work,
};
pub use sidecore_rdma_wire::{
    DomainFull, MESSAGE_BYTES_MAX, PIECES_MAX, PairId, PostError, RECEIVES_MAX, SHARED_QUEUES_MAX,
    SharedId, StartFault, message_bytes,
};
pub(crate) use stream::StackStream;
pub use stream::{Sent, Stream};

use std::time::Duration;

/// Reasons for which a call failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RdmaError {
    /// An error of the socket.
    #[error("the connection: {0}")]
    Io(#[from] std::io::Error),
    /// Memory cannot be registered.
    #[error(transparent)]
    Memory(#[from] DomainFull),
    /// Work is refused.
    #[error(transparent)]
    Post(#[from] PostError),
    /// The start failed on this side.
    #[error(transparent)]
    Start(#[from] StartFault),
    /// The connection has ended.
    #[error("the connection has ended: {0:?}")]
    Ended(End),
    /// Work was flushed or failed.
    #[error("the work is over without having been done: {0:?}")]
    Undone(Status),
    /// The time limit was reached.
    #[error("nothing happened within {0:?}")]
    Late(Duration),
    /// The engine of the stack does not admit this process.
    #[error(transparent)]
    Engine(#[from] sidecore_net::sock::control::SockError),
    /// A listener, connection or queue of another device, or a closed one.
    #[error("there is no such {0} (any more)")]
    Unknown(&'static str),
    /// The limit was reached.
    #[error("the device has its {1} {0}")]
    TooMany(&'static str, usize),
    /// A client that did not introduce itself: it was silent for too long, or was evicted.
    #[error("it did not introduce itself in time")]
    NotIntroduced,
    /// A client without a place among those being served.
    #[error("all places are taken, in all or for this address")]
    NoPlace,
    /// The peer does not follow the expected exchange.
    #[error("the peer's message {0}")]
    Unexpected(&'static str),
}

/// The README's example, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
