//! Errors, each with the remedy.

use crate::memory::MemoryError;
use std::net::SocketAddr;

/// Error of a call to the stack.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetError {
    /// Memory for the local store or the sessions cannot be had.
    #[error("the stack's memory: {0}")]
    Memory(#[from] MemoryError),
    /// A configuration that makes no sense.
    #[error("{what} is {value}, allowed is {rule}")]
    Config {
        /// Which item.
        what: &'static str,
        /// The value given.
        value: String,
        /// The allowed values.
        rule: &'static str,
    },
    /// Another socket has it.
    #[error("{0} is in use; choose another port, or close the socket that has it")]
    AddressInUse(SocketAddr),
    /// Not one of this stack's.
    #[error(
        "{0} is not an address of this stack; add it to the configuration or use 0.0.0.0 or ::"
    )]
    AddressNotOurs(SocketAddr),
    /// No way there.
    #[error("no route to {0}; add an address of its network, or a gateway")]
    NoRoute(std::net::IpAddr),
    /// Every local port towards this peer is taken.
    #[error("no free port towards {0}; close sessions or use another local address")]
    NoPort(SocketAddr),
    /// All sessions are in use.
    #[error("all {0} sessions are in use; raise `sessions_max`")]
    Sessions(usize),
    /// A name that is not, or no longer, one of a socket.
    #[error("this socket is closed")]
    Gone,
    /// The session is not (or no longer) open for this.
    #[error("the session is not connected")]
    NotConnected,
    /// The sending side was shut down.
    #[error("the sending side is shut down")]
    ShutDown,
    /// The session ended with this.
    #[error("the session ended: {0}")]
    Ended(#[from] SessionError),
    /// A datagram that no packet holds.
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

/// Why a session ended before its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// The peer's answer to our SYN was a reset.
    #[error("connection refused by the peer")]
    Refused,
    /// The peer reset it.
    #[error("connection reset by the peer")]
    Reset,
    /// We did, because its owner let go of unread data or died.
    #[error("connection aborted")]
    Aborted,
    /// The peer did not answer for too long.
    #[error("connection timed out")]
    TimedOut,
    /// The next hop does not answer, or a router says that there is no way.
    #[error("no route to the peer's host")]
    Unreachable,
}
