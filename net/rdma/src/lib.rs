//! RDMA over TCP: put, get and send between memories of two processes, on the standard wire
//! (iWARP).
//!
//! - [`Adapter`]: registered memory of this process, and who may do what with it.
//! - [`Connection`]: a queue pair on a [`Stream`]: a kernel's TCP socket ([`TcpStream`]) or a
//!   session of the stack ([`StackStream`]).
//! - [`Device`]: listeners, many connections, completion queues and events in the manner of verbs,
//!   polled or waited for.
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
mod device;
mod flow;
pub mod ping;
mod regions;
pub mod server;
mod stream;

pub use adapter::{Adapter, Region};
pub use connection::{Connection, Request};
pub use device::{
    BACKLOG_MAX, CONNECTIONS_MAX, ConnectionId, Device, Event, ListenerId, QUEUE_DEPTH_MAX,
    QUEUES_MAX, QueueId, Queued, Queues, Transport,
};
pub use sidecore_rdma_wire::{
    Access, Atomic, Completion, End, Kind, Options, Piece, Pieces, Post, Receive, Remote, Stag,
    State, Status, Work,
};
pub use sidecore_rdma_wire::{
    DomainFull, PostError, RECEIVES_MAX, SHARED_QUEUES_MAX, SharedId, StartFault,
};
pub use stream::{Sent, StackStream, Stream};

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
    /// The engine of the stack does not take us.
    #[error(transparent)]
    Engine(#[from] sidecore_net::sock::control::SockError),
    /// A listener, connection or queue of another device, or one that is closed.
    #[error("there is no such {0} (any more)")]
    Unknown(&'static str),
    /// As many as there may be.
    #[error("the device has its {1} {0}")]
    TooMany(&'static str, usize),
    /// A client that never introduced itself: it was silent for too long, or made room for another.
    #[error("it did not introduce itself in time")]
    NotIntroduced,
    /// A client for whom no place is left among those that are served.
    #[error("all places are taken, in all or for this address")]
    NoPlace,
    /// The peer does not speak the exchange that was expected.
    #[error("the peer's message {0}")]
    Unexpected(&'static str),
}

/// The README's example, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
