//! Errors, each with the remedy.

use crate::memory::MemoryError;
use std::net::{IpAddr, SocketAddr};

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
    /// The next hop does not answer, or a router reports that it cannot reach the host.
    #[error("no route to the peer's host")]
    Unreachable,
    /// A router reports that there is no route.
    #[error("no route to the peer's network")]
    NetworkUnreachable,
    /// A router reports that its rules forbid it (ICMPv6).
    #[error("a router's rules forbid the connection")]
    Prohibited,
    /// The peer's host reports that it has no TCP.
    #[error("the peer's host has no TCP")]
    NoProtocol,
}

/// An ICMP error about a packet of ours; ICMPv6's if its sender's address is of IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct IcmpError {
    /// Its type.
    pub kind: u8,
    /// Its code.
    pub code: u8,
    /// The MTU of the next link if the packet was too large; the place of the fault in the packet
    /// if it was invalid; else 0.
    pub info: u32,
    /// Its sender: a router, or the destination.
    pub from: IpAddr,
}

impl IcmpError {
    /// The MTU of the next link if the packet was too large: RFC 1191, RFC 4443 section 3.2.
    pub(crate) fn mtu(&self) -> Option<u32> {
        let is_too_big = match self.from {
            IpAddr::V4(_) => (self.kind, self.code) == (3, 4),
            IpAddr::V6(_) => self.kind == 2,
        };
        is_too_big.then_some(self.info)
    }

    /// True if it ends a session that is being opened: the destination is unreachable. A source
    /// route that failed (code 5 of IPv4) does not: RFC 1122 section 4.2.3.9.
    pub(crate) fn ends_opening(&self) -> bool {
        match self.from {
            IpAddr::V4(_) => self.kind == 3 && !matches!(self.code, 4 | 5),
            IpAddr::V6(_) => self.kind == 1,
        }
    }

    /// Its meaning for a session, as in Linux. A port that is unreachable refuses: the host is
    /// there.
    pub(crate) fn reason(&self) -> SessionError {
        match (self.from, self.kind, self.code) {
            (IpAddr::V4(_), 3, 0 | 6 | 9 | 11) => SessionError::NetworkUnreachable,
            (IpAddr::V4(_), 3, 2) => SessionError::NoProtocol,
            (IpAddr::V4(_), 3, 3) => SessionError::Refused,
            (IpAddr::V6(_), 1, 0) => SessionError::NetworkUnreachable,
            (IpAddr::V6(_), 1, 1 | 5 | 6) => SessionError::Prohibited,
            (IpAddr::V6(_), 1, 4) => SessionError::Refused,
            _ => SessionError::Unreachable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, Ipv6Addr};

    fn error(from: IpAddr, [kind, code]: [u8; 2]) -> IcmpError {
        IcmpError {
            kind,
            code,
            info: 1400,
            from,
        }
    }

    #[test]
    fn the_meaning_of_a_type_and_a_code_is_its_familys() {
        use SessionError::{NetworkUnreachable, NoProtocol, Prohibited, Refused, Unreachable};
        let v4 = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let v6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
        for (from, about, reason, ends_opening, is_too_big) in [
            (v4, [3, 0], NetworkUnreachable, true, false),
            (v4, [3, 1], Unreachable, true, false),
            (v4, [3, 2], NoProtocol, true, false),
            (v4, [3, 3], Refused, true, false),
            (v4, [3, 4], Unreachable, false, true),
            (v4, [3, 5], Unreachable, false, false),
            (v4, [3, 13], Unreachable, true, false),
            (v4, [11, 0], Unreachable, false, false),
            (v4, [12, 0], Unreachable, false, false),
            (v6, [1, 0], NetworkUnreachable, true, false),
            (v6, [1, 1], Prohibited, true, false),
            (v6, [1, 3], Unreachable, true, false),
            (v6, [1, 4], Refused, true, false),
            (v6, [2, 0], Unreachable, false, true),
            // "Time exceeded", which the same numbers mean no more than that.
            (v6, [3, 0], Unreachable, false, false),
            (v6, [4, 3], Unreachable, false, false),
        ] {
            let error = error(from, about);
            assert_eq!(error.reason(), reason, "{error:?}");
            assert_eq!(error.ends_opening(), ends_opening, "{error:?}");
            assert_eq!(error.mtu(), is_too_big.then_some(1400), "{error:?}");
        }
    }
}
