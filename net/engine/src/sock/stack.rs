//! Interface between the sockets of other processes and a stack.
//!
//! Why a trait: the rings can be tested without a protocol, and the stack without rings. Must stay
//! true: nothing here waits.

use std::net::SocketAddr;

/// The stack's name of a listener, a session or a UDP socket; never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(pub u64);

/// Why a call failed or a session ended. The numbers are part of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[repr(u32)]
pub enum SocketError {
    /// The peer's answer to our SYN was a reset.
    #[error("connection refused by the peer")]
    Refused = 1,
    /// The peer reset it.
    #[error("connection reset by the peer")]
    Reset = 2,
    /// This side did.
    #[error("connection aborted")]
    Aborted = 3,
    /// The peer did not answer for too long.
    #[error("connection timed out")]
    TimedOut = 4,
    /// No way to the peer.
    #[error("no route to the peer; add an address of its network, or a gateway")]
    Unreachable = 5,
    /// Another socket has the address.
    #[error("the address is in use; choose another port, or close the socket that has it")]
    InUse = 6,
    /// Not an address of this stack.
    #[error("not an address of this stack; `sidecore net status` lists them")]
    NotOurs = 7,
    /// Every session, port or buffer is taken.
    #[error("no session or port is free; close some, or raise `sessions_max`")]
    Full = 8,
    /// Not connected, or not a socket that can do that.
    #[error("the socket is not open for this")]
    NotOpen = 9,
    /// A datagram that no packet holds.
    #[error("the datagram is too long")]
    TooLong = 10,
    /// Something that makes no sense.
    #[error("the request makes no sense")]
    Invalid = 11,
}

impl SocketError {
    /// The error of that number.
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
        ]
        .into_iter()
        .find(|error| *error as u32 == number)
    }
}

/// Options of a session, or of a listener for its sessions. The numbers are part of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SocketOption {
    /// 1: whether small segments go out at once (Nagle's algorithm off).
    NoDelay(bool),
    /// 2: probes after so many seconds of silence; 0 for none.
    KeepaliveIdleSeconds(u32),
    /// 3: how long data may stay unacknowledged, in milliseconds; 0 for the default.
    UserTimeoutMs(u32),
    /// 4: bytes that may be queued and not yet acknowledged, 4,096 to 8 MiB.
    SendBytes(u32),
    /// 5: bytes that may be received and not yet read, 4,096 to 8 MiB: the window, and where the
    /// SYN has not gone its scale.
    ReceiveBytes(u32),
    /// 6: no larger segments than this either way, 88 to 32,767; where the SYN has not gone.
    SegmentBytesMax(u16),
}

impl SocketOption {
    /// The option of that number with that value.
    #[must_use]
    pub fn from_numbers(number: u32, value: u32) -> Option<Self> {
        match number {
            1 => Some(Self::NoDelay(value != 0)),
            2 => Some(Self::KeepaliveIdleSeconds(value)),
            3 => Some(Self::UserTimeoutMs(value)),
            4 => Some(Self::SendBytes(value)),
            5 => Some(Self::ReceiveBytes(value)),
            6 => value.try_into().ok().map(Self::SegmentBytesMax),
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
        }
    }
}

/// Status of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Status {
    /// The handshake is done (and the session may be over since).
    pub connected: bool,
    /// The peer sends no more, and all that it sent was received.
    pub ended: bool,
    /// It is over, and why if not in order.
    pub closed: bool,
    /// See `closed`.
    pub error: Option<SocketError>,
}

/// A stack with sockets. One thread.
pub trait Sockets {
    /// Listens for TCP sessions.
    ///
    /// # Errors
    /// In use, not ours, full.
    fn listen(&mut self, local: SocketAddr, backlog: usize) -> Result<Id, SocketError>;

    /// Opens a TCP session from `port`, 0 for any; how it went shows in its [`Status`].
    ///
    /// # Errors
    /// Unreachable, full, in use.
    fn connect(&mut self, peer: SocketAddr, port: u16) -> Result<Id, SocketError>;

    /// The next session that came to a listener, and its peer.
    fn accept(&mut self, listener: Id) -> Option<(Id, SocketAddr)>;

    /// Queues at most `bytes_max` bytes of a session to be sent, which `source` writes in one or
    /// two pieces; how many there was room for.
    ///
    /// # Errors
    /// Not open.
    fn send(
        &mut self,
        session: Id,
        bytes_max: usize,
        source: &mut dyn FnMut(&mut [u8]),
    ) -> Result<usize, SocketError>;

    /// Hands at most `bytes_max` received bytes of a session to `sink`, in one or two pieces; how
    /// many.
    fn receive(&mut self, session: Id, bytes_max: usize, sink: &mut dyn FnMut(&[u8])) -> usize;

    /// Has `take` carry bytes of a session from its owner to that of the session that reads them,
    /// where both are this stack's and all before was read: it is told of that session and of how
    /// many bytes it takes now, and says how many it were. They are counted on both sides.
    fn carry(&mut self, _session: Id, _take: &mut dyn FnMut(Id, usize) -> usize) -> usize {
        0
    }

    /// Status of a session.
    fn status(&self, session: Id) -> Status;

    /// Sends no more once all that is queued is sent.
    fn shutdown(&mut self, session: Id);

    /// Lets go of a listener, a session or a UDP socket: what is queued is still sent. The name is
    /// not valid any more.
    fn close(&mut self, socket: Id);

    /// Lets go of one and resets a session. The name is not valid any more.
    fn abort(&mut self, socket: Id);

    /// Sets an option of a session, or of a listener for sessions to come.
    ///
    /// # Errors
    /// Not open, invalid.
    fn set(&mut self, socket: Id, option: SocketOption) -> Result<(), SocketError>;

    /// Opens a UDP socket.
    ///
    /// # Errors
    /// In use, not ours, full.
    fn bind_udp(&mut self, local: SocketAddr) -> Result<Id, SocketError>;

    /// Sends a datagram; false where there is no room now.
    ///
    /// # Errors
    /// Unreachable, too long.
    fn send_to(&mut self, socket: Id, peer: SocketAddr, bytes: &[u8]) -> Result<bool, SocketError>;

    /// Hands at most `bytes_max` bytes of the next datagram to `sink`, from byte `from` of it on,
    /// in one or two pieces: who sent it, and how many bytes of it are left behind these. Where
    /// none are left, that was all of it, and what comes next is the datagram after it.
    fn receive_from(
        &mut self,
        socket: Id,
        from: usize,
        bytes_max: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Option<(SocketAddr, usize)>;

    /// The address that a socket has here.
    fn local(&self, socket: Id) -> Option<SocketAddr>;

    /// The next socket with which something happened: sessions to accept, bytes or datagrams to
    /// receive, room to send, an end. One that is not told about again until something happens
    /// after this.
    fn next_ready(&mut self) -> Option<Id>;
}
