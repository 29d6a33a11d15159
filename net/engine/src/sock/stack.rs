//! Interface between the sockets of other processes and a stack.
//!
//! Why a trait: the rings can be tested without a protocol, and the stack without rings. Must stay
//! true: nothing here blocks.

use crate::{DatagramPart, Refusal};
use std::net::SocketAddr;

/// The stack's name of a listener, a session or a UDP socket; never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(pub u64);

/// The reason why a call failed or a session ended. The numbers are part of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[repr(u32)]
pub enum SocketError {
    /// The peer answered our SYN with a reset.
    #[error("connection refused by the peer")]
    Refused = 1,
    /// The peer reset the session.
    #[error("connection reset by the peer")]
    Reset = 2,
    /// This side aborted it.
    #[error("connection aborted")]
    Aborted = 3,
    /// The peer did not answer for too long.
    #[error("connection timed out")]
    TimedOut = 4,
    /// No route to the peer.
    #[error("no route to the peer; add an address of its network, or a gateway")]
    Unreachable = 5,
    /// Another socket has the address.
    #[error("the address is in use; choose another port, or close the socket that has it")]
    InUse = 6,
    /// Not an address of this stack.
    #[error("not an address of this stack; `sidecore net status` lists them")]
    NotOurs = 7,
    /// All sessions, ports or buffers are in use.
    #[error("no session or port is free; close some, or raise `sessions_max`")]
    Full = 8,
    /// Not connected, or the socket does not support the operation.
    #[error("the socket is not open for this")]
    NotOpen = 9,
    /// A datagram longer than a packet can hold.
    #[error("the datagram is too long")]
    TooLong = 10,
    /// An invalid argument.
    #[error("the request makes no sense")]
    Invalid = 11,
    /// A router has no route to the peer.
    #[error("a router has no route to the peer's network")]
    NetworkUnreachable = 12,
    /// A router's rules forbid it.
    #[error("a router's rules forbid the connection")]
    Prohibited = 13,
    /// The peer's host has no TCP.
    #[error("the peer's host has no TCP")]
    NoProtocol = 14,
}

impl SocketError {
    /// The error with that number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        [
            Self::Refused,
            Self::Reset,
            Self::Aborted,
            Self::TimedOut,
            Self::Unreachable,
            Self::InUse,
            Self::NotOurs,
            Self::Full,
            Self::NotOpen,
            Self::TooLong,
            Self::Invalid,
            Self::NetworkUnreachable,
            Self::Prohibited,
            Self::NoProtocol,
        ]
        .into_iter()
        .find(|error| error.number() == number)
    }

    /// Its number in the protocol; never 0, which stands for no error.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }
}

const _: () = assert!(SocketError::Refused.number() != 0, "0 stands for no error");

/// Options of a session, of a listener for its sessions, or of a UDP socket. The numbers are part
/// of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SocketOption {
    /// 1: whether small segments go out at once (Nagle's algorithm off).
    NoDelay(bool),
    /// 2: probes after this time of silence, in seconds; 0 for none.
    KeepaliveIdleSeconds(u32),
    /// 3: time that data may stay unacknowledged, in milliseconds; 0 for the default.
    UserTimeoutMs(u32),
    /// 4: bytes that may be queued and not yet acknowledged, 4,096 to 8 MiB.
    SendBytes(u32),
    /// 5: bytes that may be received and not yet read, 4,096 to 8 MiB: the window and, before the
    /// SYN is sent, its scale.
    ReceiveBytes(u32),
    /// 6: largest segment in both directions, 88 to 32,767; only before the SYN is sent.
    SegmentBytesMax(u16),
    /// 7: of a UDP socket, report ICMP errors about its datagrams.
    Refusals(bool),
    /// 8: traffic class of sent packets (IP_TOS, IPV6_TCLASS), without the two bits of ECN.
    TrafficClass(u8),
}

impl SocketOption {
    /// The option with that number and value.
    #[must_use]
    pub fn from_numbers(number: u32, value: u32) -> Option<Self> {
        match number {
            1 => Some(Self::NoDelay(value != 0)),
            2 => Some(Self::KeepaliveIdleSeconds(value)),
            3 => Some(Self::UserTimeoutMs(value)),
            4 => Some(Self::SendBytes(value)),
            5 => Some(Self::ReceiveBytes(value)),
            6 => value.try_into().ok().map(Self::SegmentBytesMax),
            7 => Some(Self::Refusals(value != 0)),
            8 => value.try_into().ok().map(Self::TrafficClass),
            _ => None,
        }
    }

    /// Its number and value.
    #[must_use]
    pub fn numbers(self) -> (u32, u32) {
        match self {
            Self::NoDelay(on) => (1, on.into()),
            Self::KeepaliveIdleSeconds(seconds) => (2, seconds),
            Self::UserTimeoutMs(milliseconds) => (3, milliseconds),
            Self::SendBytes(bytes) => (4, bytes),
            Self::ReceiveBytes(bytes) => (5, bytes),
            Self::SegmentBytesMax(bytes) => (6, bytes.into()),
            Self::Refusals(on) => (7, on.into()),
            Self::TrafficClass(class) => (8, class.into()),
        }
    }
}

/// Status of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Status {
    /// The handshake is complete (and the session may be over since).
    pub connected: bool,
    /// The peer sends no more, and all its data was received.
    pub ended: bool,
    /// It is over; `error` has the reason unless it ended in order.
    pub closed: bool,
    /// See `closed`.
    pub error: Option<SocketError>,
}

/// A stack with sockets. One thread.
pub trait Sockets {
    /// Listens for TCP sessions; with an `owner`, it may share the address with
    /// other listeners of that owner.
    ///
    /// # Errors
    /// In use, not ours, full.
    fn listen(
        &mut self,
        local: SocketAddr,
        backlog: usize,
        owner: Option<u32>,
    ) -> Result<Id, SocketError>;

    /// Opens a TCP session from `port`, 0 for any; its [`Status`] shows the result.
    ///
    /// # Errors
    /// Unreachable, full, in use.
    fn connect(&mut self, peer: SocketAddr, port: u16) -> Result<Id, SocketError>;

    /// The next session in a listener's accept queue, and its peer.
    fn accept(&mut self, listener: Id) -> Option<(Id, SocketAddr)>;

    /// Queues at most `bytes_max` bytes of a session to send, which `source` writes in one or two
    /// pieces; the number of bytes that there was room for.
    ///
    /// # Errors
    /// Not open.
    fn send(
        &mut self,
        session: Id,
        bytes_max: usize,
        source: &mut dyn FnMut(&mut [u8]),
    ) -> Result<usize, SocketError>;

    /// True if a session has room for some more bytes, or is over; else it becomes ready once it
    /// has.
    fn takes_bytes(&mut self, _session: Id) -> bool {
        true
    }

    /// Passes at most `bytes_max` received bytes of a session to `sink`, in one or two pieces;
    /// their number.
    fn receive(&mut self, session: Id, bytes_max: usize, sink: &mut dyn FnMut(&[u8])) -> usize;

    /// Lets `take` copy bytes of a session from its owner to the owner of the session at its other
    /// end, if both belong to this stack and everything before was read. `take` gets that session
    /// and the number of bytes it accepts now, and returns the number copied. They are counted on
    /// both sides.
    fn carry(&mut self, _session: Id, _take: &mut dyn FnMut(Id, usize) -> usize) -> usize {
        0
    }

    /// Status of a session.
    fn status(&self, session: Id) -> Status;

    /// True once the peer has acknowledged all that was sent on a session, its end included.
    fn is_acknowledged(&mut self, _session: Id) -> bool {
        true
    }

    /// Ends sending once all queued data is sent.
    fn shutdown(&mut self, session: Id);

    /// Closes a listener, a session or a UDP socket: queued data is still sent. The name becomes
    /// invalid.
    fn close(&mut self, socket: Id);

    /// Closes a socket at once and resets a session. The name becomes invalid.
    fn abort(&mut self, socket: Id);

    /// Sets an option of a session, or of a listener for its future sessions.
    ///
    /// # Errors
    /// Not open, invalid.
    fn set(&mut self, socket: Id, option: SocketOption) -> Result<(), SocketError>;

    /// Opens a UDP socket; `owner` as in [`Self::listen`].
    ///
    /// # Errors
    /// In use, not ours, full.
    fn bind_udp(&mut self, local: SocketAddr, owner: Option<u32>) -> Result<Id, SocketError>;

    /// Sends a datagram; false where there is no room now.
    ///
    /// # Errors
    /// Unreachable, too long.
    fn send_to(&mut self, socket: Id, peer: SocketAddr, bytes: &[u8]) -> Result<bool, SocketError>;

    /// Passes at most `bytes_max` bytes of the next datagram to `sink`, from its byte `from` on, in
    /// one or two pieces. If none are left, the next call returns the next datagram.
    fn receive_from(
        &mut self,
        socket: Id,
        from: usize,
        bytes_max: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Option<DatagramPart>;

    /// Lets a UDP socket take datagrams of this peer only, or of all again; others are refused.
    fn set_peer(&mut self, _socket: Id, _peer: Option<SocketAddr>) {}

    /// True if [`Self::next_refusal`] has one.
    fn has_refusal(&self, _socket: Id) -> bool {
        false
    }

    /// The next datagram of this socket that was refused. Needs [`SocketOption::Refusals`].
    fn next_refusal(&mut self, _socket: Id) -> Option<Refusal> {
        None
    }

    /// Bytes of the stack's buffers that a socket holds.
    fn held_bytes(&self, _socket: Id) -> usize {
        0
    }

    /// The local address of a socket.
    fn local(&self, socket: Id) -> Option<SocketAddr>;

    /// The next socket whose state changed: sessions to accept, bytes or datagrams to receive, room
    /// to send, an end. It is returned again only after a later change.
    fn next_ready(&mut self) -> Option<Id>;
}
