//! Errors, each with the remedy.

use crate::memory::MemoryError;
use std::net::SocketAddr;

/// Error of a call to the stack.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetError {
    /// No memory is available for the local store or the sessions.
    #[error("the stack's memory: {0}")]
    Memory(#[from] MemoryError),
    /// An invalid configuration.
    #[error("{what} is {value}, allowed is {rule}")]
    Config {
        /// The name of the item.
        what: &'static str,
        /// The value given.
        value: String,
        /// The allowed values.
        rule: &'static str,
    },
    /// Another socket has the address.
    #[error("{0} is in use; choose another port, or close the socket that has it")]
    AddressInUse(SocketAddr),
    /// Not an address of this stack.
    #[error(
        "{0} is not an address of this stack; add it to the configuration or use 0.0.0.0 or ::"
    )]
    AddressNotOurs(SocketAddr),
    /// No route to the address.
    #[error("no route to {0}; add an address of its network, or a gateway")]
    NoRoute(std::net::IpAddr),
    /// All local ports towards this peer are in use.
    #[error("no free port towards {0}; close sessions or use another local address")]
    NoPort(SocketAddr),
    /// All sessions are in use.
    #[error("all {0} sessions are in use; raise `sessions_max`")]
    Sessions(usize),
    /// An identifier that is no longer valid.
    #[error("this socket is closed")]
    Gone,
    /// The session is not (or no longer) connected.
    #[error("the session is not connected")]
    NotConnected,
    /// The sending side was shut down.
    #[error("the sending side is shut down")]
    ShutDown,
    /// The session ended with this error.
    #[error("the session ended: {0}")]
    Ended(#[from] SessionError),
    /// A datagram longer than a packet can hold.
    #[error("a datagram of {bytes} bytes does not fit into {limit}; send smaller ones")]
    TooLong {
        /// Its payload.
        bytes: usize,
        /// The largest that fits.
        limit: usize,
    },
    /// The queue of datagrams is full.
    #[error("the queue of datagrams is full; call again after the next transmit")]
    QueueFull,
}

/// The reason why a session ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The peer answered our SYN with a reset, or its port was reported unreachable.
    #[error("connection refused by the peer")]
    Refused,
    /// The peer reset the session.
    #[error("connection reset by the peer")]
    Reset,
    /// This side reset it, because its owner closed it with unread data or died.
    #[error("connection aborted")]
    Aborted,
    /// The peer did not answer for too long.
    #[error("connection timed out")]
    TimedOut,
    /// The next hop does not answer, or a router reports that there is no route.
    #[error("no route to the peer's host")]
    Unreachable,
}
