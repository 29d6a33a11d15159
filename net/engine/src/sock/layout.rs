//! Layout of a segment, and format of its descriptors. README.md has the same as a byte map.
//!
//! Must stay true: a change here changes [`VERSION`] and README.md; decoding accepts any words.
//!
//! ```
//! use sidecore_net::sock::layout::{Entry, Request};
//!
//! let entry = Entry {
//!     kind: Request::Connect.number(),
//!     tag: 7,
//!     ..Entry::default()
//! };
//! let entry = entry.at("10.77.0.2:80".parse()?);
//! let read = Entry::decode(entry.encode());
//! assert_eq!(Request::from_number(read.kind), Some(Request::Connect));
//! assert_eq!(read.socket_address(), "10.77.0.2:80".parse()?);
//! # Ok::<(), std::net::AddrParseError>(())
//! ```

use serde::Serialize;
use sidecore_bare::width::ToUsize;
use sidecore_sys::SharedSlice;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};

/// First word of every message and segment.
pub const MAGIC: u64 = u64::from_le_bytes(*b"SIDENET1");
/// Version of this layout. Both sides must have the same.
pub const VERSION: u32 = 5;

/// Asks for a page of the sessions from the number in the first four bytes on; the answer is JSON.
pub(crate) const KIND_SESSIONS: u32 = 3;
/// Asks for the frames of the engine's NIC ([`crate::capture`]); answered as a wish to attach.
pub(crate) const KIND_CAPTURE: u32 = 4;
/// Offset of the word by which the engine announces a sleep.
pub(crate) const ENGINE_ASLEEP: usize = 128;
/// Offset of the word by which the process announces a sleep.
pub(crate) const CLIENT_ASLEEP: usize = 256;
/// Offset of the counters of [`RingStatus`], a word each; a process without them leaves zeros.
const RING_STATUS: usize = 640;
/// Ring of requests: its offset, and the offset of the engine's read position.
pub const REQUESTS: (usize, usize) = (4096, 384);
/// Ring of events: its offset, and the offset of the process's read position.
pub const EVENTS: (usize, usize) = (4096 + ENTRIES * ENTRY_BYTES, 512);
/// Offset of the chunks: first those to send from, then those to receive into.
pub const CHUNKS: usize = 4096 + 2 * ENTRIES * ENTRY_BYTES;

/// Entries of each ring.
pub const ENTRIES: usize = 2048;
/// Bytes of an entry: one cache line.
pub const ENTRY_BYTES: usize = 64;
/// Bytes of a chunk.
pub const CHUNK_BYTES: usize = 16 << 10;
/// The most chunks of one direction.
pub const CHUNKS_MAX: u32 = 4096;
/// The lower bits of a socket's number are its place in the engine's table, small numbers first;
/// the upper ones are a generation that distinguishes successive sockets in one place.
pub(crate) const PLACE_BITS: u32 = 20;
/// Flag in `give`: the chunk is returned, but its bytes were only moved to private memory and still
/// count as unread.
pub const KEPT: u32 = 1 << 31;
/// In `argument` of a datagram that is sent or received: the next entry of this socket continues
/// it.
pub(crate) const MORE: u32 = 1;
/// In `argument` of a request to send bytes of a session: those that the stack has no room for are
/// returned by [`Event::Unsent`], and the chunk does not wait for the peer. An engine without it
/// keeps the chunk until all of it is sent.
pub(crate) const RETURNS: u32 = 2;
/// In `bytes` of a request to listen, or for a UDP socket: it may share its address with others of
/// this user that allow it, too (`SO_REUSEPORT`).
pub(crate) const SHARES: u32 = 1;
/// Bytes of a datagram, at most: its length has 16 bits (RFC 768).
const DATAGRAM_BYTES_MAX: usize = (1 << 16) - 1;
/// Chunks of a datagram, at most: all but the last are full.
pub(crate) const DATAGRAM_CHUNKS_MAX: usize = DATAGRAM_BYTES_MAX.div_ceil(CHUNK_BYTES);
/// Flag in the request to attach: the process is to be woken by a descriptor, which the reply
/// carries.
pub(crate) const WISH_WAKE_DESCRIPTOR: u32 = 1;
/// No chunk.
pub const NO_CHUNK: u32 = u32::MAX;

/// Bytes of a segment with `chunks` chunks for each direction.
#[must_use]
pub fn segment_bytes(chunks: u32) -> usize {
    CHUNKS + 2 * chunks.to_usize() * CHUNK_BYTES
}

/// Offset of a chunk in the segment, numbered through both directions.
pub(crate) fn chunk_offset(chunk: u32) -> usize {
    CHUNKS + chunk.to_usize() * CHUNK_BYTES
}

/// Bytes in one chunk, as an entry has them.
pub(crate) fn entry_bytes(bytes: usize) -> u32 {
    debug_assert!(bytes <= CHUNK_BYTES, "more than a chunk holds");
    bytes as u32
}

/// A process's own account of the rings that programs have with it, for the status; all 0 where it
/// supervises none. The engine shows what it reads, and relies on nothing of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct RingStatus {
    /// Sessions whose bytes pass by rings now.
    pub sessions: u64,
    /// Datagram sockets whose datagrams do.
    pub datagram_sockets: u64,
    /// Sockets that were given rings.
    pub granted: u64,
    /// Requests that were put off: others came before them, or bytes have to pass first.
    pub put_off: u64,
    /// Refused: the socket, its options or its process are used in ways that rings do not serve.
    pub refused_use: u64,
    /// Refused: the process, or the run, has as many as it may.
    pub refused_limit: u64,
    /// Refused: no memory, maps or descriptors were left.
    pub refused_memory: u64,
}

impl RingStatus {
    fn words(&mut self) -> [&mut u64; 7] {
        [
            &mut self.sessions,
            &mut self.datagram_sockets,
            &mut self.granted,
            &mut self.put_off,
            &mut self.refused_use,
            &mut self.refused_limit,
            &mut self.refused_memory,
        ]
    }

    /// Writes it to the process's segment.
    pub(crate) fn show(mut self, memory: SharedSlice<'_>) {
        for (at, word) in (RING_STATUS..).step_by(8).zip(self.words()) {
            if let Some(place) = memory.overlay::<AtomicU64>(at) {
                // Relaxed: each is a figure by itself.
                place.store(*word, Ordering::Relaxed);
            }
        }
    }

    /// The account that the process has written.
    pub(crate) fn of(memory: SharedSlice<'_>) -> Self {
        let mut status = Self::default();
        for (at, word) in (RING_STATUS..).step_by(8).zip(status.words()) {
            *word = memory.load_u64(at);
        }
        status
    }
}

/// Request of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Request {
    /// `address`, `argument`: the backlog; `bytes` may be `SHARES`. Answered by [`Event::Opened`].
    Listen = 1,
    /// `address`: the peer's; `argument`: the local port, 0 for any; `bytes`: the receive buffer
    /// ([`ReceiveBytes`](crate::sock::stack::SocketOption::ReceiveBytes)), 0 for the stack's.
    /// Answered by [`Event::Opened`], later [`Event::Connected`] or [`Event::Closed`].
    Connect = 2,
    /// `address`; `bytes` may be `SHARES`. Answered by [`Event::Opened`].
    BindUdp = 3,
    /// `bytes` of `chunk`; for UDP to `address`, and `argument` may be `MORE`; for a session it may
    /// be `RETURNS`. Answered by [`Event::Sent`] or [`Event::Unsent`], for each chunk.
    Send = 4,
    /// Returns the receive chunk `give`. Every request may do so.
    Give = 5,
    /// Ends sending after the previous requests.
    Shutdown = 6,
    /// Closes the socket after the previous requests.
    Close = 7,
    /// Closes the socket now; a session is reset.
    Abort = 8,
    /// `argument`: the option's number; `bytes`: its value.
    Option = 9,
    /// `argument` chunks that were returned with [`KEPT`] have been read.
    Credit = 10,
    /// A UDP socket takes datagrams from `address` only; from all if its port is 0.
    Peer = 11,
    /// Answered by [`Event::Acknowledged`] if that is so.
    Acknowledged = 12,
}

impl Request {
    /// The request with that number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        [
            Self::Listen,
            Self::Connect,
            Self::BindUdp,
            Self::Send,
            Self::Give,
            Self::Shutdown,
            Self::Close,
            Self::Abort,
            Self::Option,
            Self::Credit,
            Self::Peer,
            Self::Acknowledged,
        ]
        .into_iter()
        .find(|request| request.number() == number)
    }

    /// Its number in an entry.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }
}

/// Event from the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Event {
    /// `tag` of the request, `socket`, `address`: the local one; or an error in `argument`.
    Opened = 1,
    /// A session is open.
    Connected = 2,
    /// `argument`: the listener; `socket`: its new session; `address`: the peer's; the words of
    /// tag, bytes, chunk and give: the local one, in that order (`Entry::local_ip`).
    Accepted = 3,
    /// `bytes` in `chunk`; for UDP from `address`, `argument` may be `MORE`, and `tag` has the hop
    /// limit and the traffic class (`Entry::marked`), which engines before did not set.
    Received = 4,
    /// `chunk` is returned to the process; an error in `argument` if it was not sent.
    Sent = 5,
    /// The peer sends no more.
    Ended = 6,
    /// The session is over; an error in `argument`. The number stays valid until it is closed.
    Closed = 7,
    /// `chunk` is returned to the process after `bytes` bytes of it: there was no room for the
    /// rest. Once there is, [`Event::Room`] follows.
    Unsent = 8,
    /// A session has room for bytes that were returned.
    Room = 9,
    /// An ICMP error about a datagram to `address`: its type and code are the upper and the lower
    /// byte of `tag`, `argument` is an MTU or a place. `bytes` in `chunk` are 16 of the error's
    /// sender and the first of the payload. Only with the option
    /// [`Refusals`](crate::sock::stack::SocketOption::Refusals).
    Refused = 10,
    /// The peer has acknowledged all that was sent on a session, its end included.
    Acknowledged = 11,
}

impl Event {
    /// The event with that number.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        [
            Self::Opened,
            Self::Connected,
            Self::Accepted,
            Self::Received,
            Self::Sent,
            Self::Ended,
            Self::Closed,
            Self::Unsent,
            Self::Room,
            Self::Refused,
            Self::Acknowledged,
        ]
        .into_iter()
        .find(|event| event.number() == number)
    }

    /// Its number in an entry.
    #[must_use]
    pub const fn number(self) -> u32 {
        self as u32
    }
}

/// A descriptor: one entry of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// A [`Request`] or an [`Event`].
    pub kind: u32,
    /// Returned with the answer.
    pub tag: u32,
    /// The number of a socket.
    pub socket: u32,
    /// Payload bytes in the chunk.
    pub bytes: u32,
    /// The chunk with the payload.
    pub chunk: u32,
    /// A receive chunk that is returned, or [`NO_CHUNK`].
    pub give: u32,
    /// An address, IPv4 as an IPv4-mapped one.
    pub address: [u8; 16],
    /// A port.
    pub port: u16,
    /// Argument; its meaning depends on the kind.
    pub argument: u32,
}

impl Default for Entry {
    fn default() -> Self {
        Self {
            kind: 0,
            tag: 0,
            socket: 0,
            bytes: 0,
            chunk: NO_CHUNK,
            give: NO_CHUNK,
            address: [0; 16],
            port: 0,
            argument: 0,
        }
    }
}

impl Entry {
    /// Sets this address.
    #[must_use]
    pub fn at(mut self, address: SocketAddr) -> Self {
        self.address = octets_of(address.ip());
        self.port = address.port();
        self
    }

    /// Its address.
    #[must_use]
    pub fn socket_address(&self) -> SocketAddr {
        SocketAddr::new(ip_of(self.address), self.port)
    }

    /// Sets hop limit and traffic class of a received datagram.
    #[must_use]
    pub(crate) fn marked(self, hops: u8, class: u8) -> Self {
        let tag = u32::from_le_bytes([class, hops, 1, 0]);
        Self { tag, ..self }
    }

    /// Those of [`Self::marked`].
    #[must_use]
    pub(crate) fn marks(&self) -> Option<(u8, u8)> {
        match self.tag.to_le_bytes() {
            [class, hops, 1, 0] => Some((hops, class)),
            _ => None,
        }
    }

    /// Sets this local address, in place of tag, bytes, chunk and give.
    #[must_use]
    pub(crate) fn with_local(mut self, ip: IpAddr) -> Self {
        let octets = octets_of(ip);
        // The words of tag, bytes, chunk and give are free in this event.
        let (words, _) = octets.as_chunks::<4>();
        let [tag, bytes, chunk, give] = [0, 1, 2, 3].map(|at| u32::from_le_bytes(words[at]));
        (self.tag, self.bytes) = (tag, bytes);
        (self.chunk, self.give) = (chunk, give);
        self
    }

    /// The local address that [`Self::with_local`] stored.
    #[must_use]
    pub(crate) fn local_ip(&self) -> IpAddr {
        let mut octets = [0; 16];
        let words = [self.tag, self.bytes, self.chunk, self.give];
        for (target, word) in octets.chunks_exact_mut(4).zip(words) {
            target.copy_from_slice(&word.to_le_bytes());
        }
        ip_of(octets)
    }

    /// Encodes it as seven words of memory.
    #[inline]
    #[must_use]
    pub fn encode(&self) -> [u64; 7] {
        let two = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        let (low, high) = self.address.split_at(8);
        let word = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
        [
            two(self.kind, self.tag),
            two(self.socket, self.bytes),
            two(self.chunk, self.give),
            word(low),
            word(high),
            two(self.port.into(), self.argument),
            // Free; the line's eighth word is the ring's.
            0,
        ]
    }

    /// Decodes seven arbitrary words.
    #[inline]
    #[must_use]
    pub fn decode(words: [u64; 7]) -> Self {
        let mut address = [0; 16];
        address[..8].copy_from_slice(&words[3].to_le_bytes());
        address[8..].copy_from_slice(&words[4].to_le_bytes());
        // Low, then high half, as `encode` joins them.
        let two = |word: u64| (word as u32, (word >> 32) as u32);
        let ((kind, tag), (socket, bytes)) = (two(words[0]), two(words[1]));
        let ((chunk, give), (port, argument)) = (two(words[2]), two(words[5]));
        Self {
            kind,
            tag,
            socket,
            bytes,
            chunk,
            give,
            address,
            // Bits above the port have no meaning, and no entry is invalid.
            port: port as u16,
            argument,
        }
    }
}

/// An address as entries have it: IPv4 as an IPv4-mapped one.
pub(crate) fn octets_of(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// The address that [`octets_of`] has encoded.
pub(crate) fn ip_of(octets: [u8; 16]) -> IpAddr {
    let ip = Ipv6Addr::from(octets);
    ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidecore_sys::{SharedMap, Sharing};

    #[test]
    fn an_account_of_rings_comes_back_and_leaves_the_rest() {
        let map = SharedMap::create("test", 4096, Sharing::ReadWrite).unwrap();
        assert_eq!(RingStatus::of(map.slice()), RingStatus::default());
        let mut status = RingStatus::default();
        for (number, word) in (1..).zip(status.words()) {
            *word = number;
        }
        status.show(map.slice());
        assert_eq!(RingStatus::of(map.slice()), status);
        assert_eq!((status.sessions, status.refused_memory), (1, 7));
        let words = (0..4096).step_by(8).map(|at| map.slice().load_u64(at));
        assert_eq!(words.sum::<u64>(), (1..=7).sum::<u64>());
    }

    #[test]
    fn entries_come_back_as_they_were() {
        for address in ["192.0.2.7:80", "[2001:db8::1]:65535", "0.0.0.0:0"] {
            let address: SocketAddr = address.parse().unwrap();
            let entry = Entry {
                kind: Event::Received.number(),
                tag: 1,
                socket: u32::MAX,
                bytes: 3,
                chunk: 4,
                give: 5,
                argument: 6,
                ..Entry::default()
            }
            .at(address);
            assert_eq!(entry.socket_address(), address);
            assert_eq!(Entry::decode(entry.encode()), entry);
            assert_eq!(entry.with_local(address.ip()).local_ip(), address.ip());
        }
        let any = Entry::decode([u64::MAX; 7]);
        assert_eq!(Entry::decode(any.encode()), any);
        assert_eq!(Request::from_number(any.kind), None);
        assert_eq!(Event::from_number(0), None);
    }
}
