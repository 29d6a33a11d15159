//! The directory of a run's datagram sockets, and frames: datagrams without calls of the
//! supervisor.
//!
//! A program's UDP socket receives from sockets of the supervisor on the kernel's loopback. The
//! directory has the addresses for which these stand, so that the library in the program can
//! receive by the kernel alone. It sends by *frames* to a socket of the supervisor, the *desk*: a
//! destination in front of the payload.
//!
//! A socket may have a stream's two large rings, too. In them a datagram is a [`Head`] and its
//! payload, written at once.
//!
//! Must stay true: only the supervisor writes the directory (the kernel refuses others a mapping
//! for writing); any bytes in it, and any frame, can be read; what is not found is left to calls.

use crate::{Broken, Held, Served, Stream};
use sidecore_bare::width::ToUsize;
use sidecore_sys::SharedSlice;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// View of the directory.
#[derive(Debug, Clone, Copy)]
pub struct Directory<'m>(SharedSlice<'m>);

/// The place of a socket in the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Its number, below [`PLACES`].
    pub number: u32,
    /// The count of sockets that had the number.
    pub generation: u32,
}

/// Calls about a socket that the library may make past the supervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PlaceState {
    /// [`OPEN`], [`IS_V6`], [`IS_MAPPED`], [`SENDS_V4`], [`SENDS_V6`], [`WRITES`].
    pub flags: u16,
    /// The desk's port, 0 without one.
    pub desk_port: u16,
}

/// It may receive; without this flag the others have no meaning.
pub const OPEN: u16 = 1;
/// It is a socket of IPv6.
pub const IS_V6: u16 = 2;
/// Its loopback is IPv4's all the same.
pub const IS_MAPPED: u16 = 4;
/// It may send frames to destinations of IPv4.
pub const SENDS_V4: u16 = 8;
/// It may send frames to destinations of IPv6.
pub const SENDS_V6: u16 = 16;
/// It may send to its peer.
pub const WRITES: u16 = 32;

impl Place {
    /// The place as one number, never 0.
    #[must_use]
    pub fn bits(self) -> u64 {
        u64::from(self.generation) << 32 | (u64::from(self.number) + 1)
    }

    /// The place with these bits; none for 0.
    #[must_use]
    pub fn of_bits(bits: u64) -> Option<Self> {
        let number = (bits & u64::from(u32::MAX)).checked_sub(1)?;
        Some(Self {
            number: u32::try_from(number).ok()?,
            generation: u32::try_from(bits >> 32).ok()?,
        })
    }
}

impl PlaceState {
    /// True if all of these flags are set.
    #[must_use]
    pub fn has(self, flags: u16) -> bool {
        self.flags & flags == flags
    }

    /// The desk's address.
    #[must_use]
    pub fn desk(self) -> Option<SocketAddr> {
        let ip: IpAddr = match (self.has(IS_V6), self.has(IS_MAPPED)) {
            (false, _) => Ipv4Addr::LOCALHOST.into(),
            (true, true) => Ipv4Addr::LOCALHOST.to_ipv6_mapped().into(),
            (true, false) => Ipv6Addr::LOCALHOST.into(),
        };
        (self.desk_port > 0).then_some(SocketAddr::new(ip, self.desk_port))
    }
}

impl<'m> Directory<'m> {
    /// A view of memory of [`DIRECTORY_BYTES`]; none if it is shorter.
    #[must_use]
    pub fn over(memory: SharedSlice<'m>) -> Option<Self> {
        (memory.len() >= DIRECTORY_BYTES).then_some(Self(memory))
    }

    /// Library: what it may do with a socket now; none if another socket has the place.
    #[must_use]
    pub fn state(self, place: Place) -> Option<PlaceState> {
        let at = place_at(place.number)?;
        let word = self.0.load_u64(at);
        let [flags_low, flags_high, port_low, port_high, generation @ ..] = word.to_le_bytes();
        let is_its = u32::from_le_bytes(generation) == place.generation;
        is_its.then_some(PlaceState {
            flags: u16::from_le_bytes([flags_low, flags_high]),
            desk_port: u16::from_le_bytes([port_low, port_high]),
        })
    }

    /// Supervisor: changes what the library may do with the socket in this place, which another
    /// one loses.
    pub fn set_state(self, place: Place, state: PlaceState) {
        let word = u64::from(place.generation) << 32
            | u64::from(state.desk_port) << 16
            | u64::from(state.flags);
        if let Some(at) = place_at(place.number) {
            self.store(at, word);
        }
    }

    /// Library: the source and the destination of datagrams that come from this address of the
    /// loopback; none: it is none of the supervisor's.
    #[must_use]
    pub fn way(self, at: SocketAddr) -> Option<(SocketAddr, IpAddr)> {
        let mut number = self.index(at);
        for _ in 0..CHANGES_MAX {
            if let Some(way) = self.way_in(number.checked_sub(1)?, at) {
                return Some(way);
            }
            // The address may have got another way between the two, and its former one been reused.
            let now = self.index(at);
            if now == number {
                break;
            }
            number = now;
        }
        None
    }

    /// A way, if it is that of an address.
    fn way_in(self, way: u16, at: SocketAddr) -> Option<(SocketAddr, IpAddr)> {
        let start = way_at(u32::from(way))?;
        let before = self.0.load_u64(start);
        let words: [u64; 7] = std::array::from_fn(|word| self.0.load_u64(start + 8 + word * 8));
        // It is being written for another address: the one that had it is gone.
        if !before.is_multiple_of(2) || self.0.load_u64(start) != before {
            return None;
        }
        let [at_high, at_low, from_high, from_low, to_high, to_low, ports] = words;
        let port = |shift: u32| u16::try_from((ports >> shift) & 0xffff).unwrap_or(0);
        let is_its = (ip_of(at_high, at_low), port(0)) == (plain_ip(at.ip()), at.port());
        let from = SocketAddr::new(ip_of(from_high, from_low), port(16));
        is_its.then_some((from, ip_of(to_high, to_low)))
    }

    /// Supervisor: writes a way that no address has now, and gives it to `at`.
    pub fn set_way(self, way: u16, at: SocketAddr, from: SocketAddr, to: IpAddr) {
        let Some(start) = way_at(u32::from(way)) else {
            return;
        };
        let count = self.0.load_u64(start) & !1;
        // Odd while it is written.
        self.store(start, count.wrapping_add(1));
        fence(Ordering::SeqCst);
        let ports = u64::from(from.port()) << 16 | u64::from(at.port());
        let ips = [at.ip(), from.ip(), to].map(halves_of);
        let words = ips.into_iter().flatten().chain([ports]);
        for (number, word) in words.enumerate() {
            self.store(start + 8 + number * 8, word);
        }
        self.store(start, count.wrapping_add(2));
        self.set_index(at, way.saturating_add(1));
    }

    /// Supervisor: this address has no way any more.
    pub fn clear_way(self, at: SocketAddr) {
        self.set_index(at, 0);
    }

    /// Library: true if the stack is known to reach this host.
    #[must_use]
    pub fn reaches(self, peer: IpAddr) -> bool {
        let (at, mark) = reach_at(peer);
        self.0.load_u64(at) == mark
    }

    /// Supervisor: the stack reaches this host, or no more. Of many hosts some are forgotten.
    pub fn set_reaches(self, peer: IpAddr, reaches: bool) {
        let (at, mark) = reach_at(peer);
        if reaches {
            self.store(at, mark);
        } else if self.0.load_u64(at) == mark {
            self.store(at, 0);
        }
    }

    /// Four ports share a word.
    fn index(self, at: SocketAddr) -> u16 {
        let (start, shift) = index_at(at);
        u16::try_from((self.0.load_u64(start) >> shift) & 0xffff).unwrap_or(0)
    }

    fn set_index(self, at: SocketAddr, value: u16) {
        let (start, shift) = index_at(at);
        // One thread of the supervisor writes.
        let others = self.0.load_u64(start) & !(0xffff_u64 << shift);
        self.store(start, others | u64::from(value) << shift);
    }

    fn store(self, at: usize, value: u64) {
        if let Some(word) = self.0.overlay::<AtomicU64>(at) {
            // Release: partner of the Acquire in `SharedSlice::load_u64`.
            word.store(value, Ordering::Release);
        }
    }
}

/// The head of a payload that the library sends to the desk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Destination of the datagram; its port is not 0.
    pub peer: SocketAddr,
    /// Bytes of each datagram if the payload is several (UDP_SEGMENT), else 0.
    pub segment_bytes: u16,
}

impl Frame {
    /// As it is sent.
    #[must_use]
    pub fn bytes(self) -> [u8; FRAME_BYTES] {
        let mut bytes = [0; FRAME_BYTES];
        bytes[..4].copy_from_slice(&FRAME_MARK);
        bytes[4..6].copy_from_slice(&self.peer.port().to_le_bytes());
        bytes[6..8].copy_from_slice(&self.segment_bytes.to_le_bytes());
        bytes[8..].copy_from_slice(&octets(self.peer.ip()));
        bytes
    }

    /// The frame of a message, and its payload; none if it is malformed.
    #[must_use]
    pub fn read(message: &[u8]) -> Option<(Self, &[u8])> {
        let (bytes, payload) = message.split_first_chunk::<FRAME_BYTES>()?;
        let number = |at: usize| Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let octets: [u8; 16] = *bytes.get(8..)?.first_chunk()?;
        let ip = plain_ip(Ipv6Addr::from(octets).into());
        let frame = Self {
            peer: SocketAddr::new(ip, number(4)?),
            segment_bytes: number(6)?,
        };
        let is_whole = bytes.starts_with(&FRAME_MARK) && frame.peer.port() > 0;
        is_whole.then_some((frame, payload))
    }
}

/// Flags of a grant of rings to a datagram socket: it is one of IPv6 ([`RINGS_OF_V6`]), and the
/// control messages that its program has asked for.
pub const RINGS_OF_V6: u32 = 1;
/// IP_PKTINFO.
pub const TELLS_PLACE: u32 = 2;
/// IP_RECVTTL.
pub const TELLS_HOPS: u32 = 4;
/// IP_RECVTOS.
pub const TELLS_CLASS: u32 = 8;
/// IPV6_RECVPKTINFO.
pub const TELLS_PLACE_V6: u32 = 16;
/// IPV6_RECVHOPLIMIT.
pub const TELLS_HOPS_V6: u32 = 32;
/// IPV6_RECVTCLASS.
pub const TELLS_CLASS_V6: u32 = 64;
/// All of these but the first.
pub const TELLS: u32 = 0x7e;

/// The head of a datagram in a ring; its payload follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Bytes of the payload, at most [`PAYLOAD_BYTES_MAX`].
    pub bytes: usize,
    /// To the program: the source. From it: the destination, or port 0 for the socket's peer.
    pub peer: SocketAddr,
    /// To the program: the destination. From it: [`Self::with_classes`].
    pub to: IpAddr,
    /// From the program: bytes of each datagram if the payload is several (UDP_SEGMENT), else 0. To
    /// it: [`Self::with_marks`].
    pub segment_bytes: u16,
}

impl Head {
    /// To the program: the hop limit and the traffic class with which the datagram came.
    #[must_use]
    pub fn with_marks(self, hops: u8, class: u8) -> Self {
        let segment_bytes = u16::from_le_bytes([class, hops]);
        Self {
            segment_bytes,
            ..self
        }
    }

    /// Hop limit and traffic class, as of [`Self::with_marks`].
    #[must_use]
    pub fn marks(self) -> (u8, u8) {
        let [class, hops] = self.segment_bytes.to_le_bytes();
        (hops, class)
    }

    /// From the program: the traffic classes that the datagram is to have over IPv4 and over IPv6;
    /// none: the socket's. The program may not know the family of its peer.
    #[must_use]
    pub fn with_classes(self, [v4, v6]: [Option<u8>; 2]) -> Self {
        let given = u8::from(v4.is_some()) | u8::from(v6.is_some()) << 1;
        let [v4, v6] = [v4, v6].map(Option::unwrap_or_default);
        let to = IpAddr::V4(Ipv4Addr::new(0, given, v4, v6));
        Self { to, ..self }
    }

    /// The class of [`Self::with_classes`] to this host.
    #[must_use]
    pub fn class_to(self, host: IpAddr) -> Option<u8> {
        let IpAddr::V4(ip) = self.to else {
            return None;
        };
        match (ip.octets(), host) {
            ([0, 1 | 3, v4, _], IpAddr::V4(_)) => Some(v4),
            ([0, 2 | 3, _, v6], IpAddr::V6(_)) => Some(v6),
            _ => None,
        }
    }

    /// As it is in a ring.
    #[must_use]
    pub fn bytes(self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        let length = u32::try_from(self.bytes).unwrap_or(u32::MAX);
        bytes[..4].copy_from_slice(&length.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.peer.port().to_le_bytes());
        bytes[6..8].copy_from_slice(&self.segment_bytes.to_le_bytes());
        bytes[8..24].copy_from_slice(&octets(self.peer.ip()));
        bytes[24..].copy_from_slice(&octets(self.to));
        bytes
    }

    /// The head with these bytes; none if its payload would be too long.
    #[must_use]
    pub fn read(bytes: &[u8; HEAD_BYTES]) -> Option<Self> {
        let length = u32::from_le_bytes(*bytes.first_chunk()?).to_usize();
        let number = |at: usize| Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let ip = |at: usize| {
            let octets: [u8; 16] = *bytes.get(at..)?.first_chunk()?;
            Some(plain_ip(Ipv6Addr::from(octets).into()))
        };
        let head = Self {
            bytes: length,
            peer: SocketAddr::new(ip(8)?, number(4)?),
            to: ip(24)?,
            segment_bytes: number(6)?,
        };
        (length <= PAYLOAD_BYTES_MAX).then_some(head)
    }

    /// Library: the head of the next datagram, which stays in the ring; none if there is none. The
    /// payload is there, [`HEAD_BYTES`] on.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn next(held: &mut Held<'_>) -> Result<Option<Self>, Broken> {
        let there = held.readable()?;
        if there == 0 {
            return Ok(None);
        }
        let mut bytes = [0; HEAD_BYTES];
        let read = held.read(&mut bytes, true, 0)?;
        // From the copy alone: the memory may change.
        let head = Self::read(&bytes).ok_or(Broken)?;
        let is_whole = read == HEAD_BYTES && there >= HEAD_BYTES + head.bytes;
        if is_whole {
            Ok(Some(head))
        } else {
            Err(Broken)
        }
    }

    /// Supervisor: the next datagram of the program, whose payload is copied to the beginning of
    /// `payload`, which has [`PAYLOAD_BYTES_MAX`] bytes; none if there is none.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn take(
        stream: Stream<'_>,
        served: &mut Served,
        payload: &mut [u8],
    ) -> Result<Option<Self>, Broken> {
        let there = stream.waiting(served)?;
        if there == 0 {
            return Ok(None);
        }
        let mut bytes = [0; HEAD_BYTES];
        if stream.take(served, &mut bytes)? < HEAD_BYTES {
            return Err(Broken);
        }
        let head = Self::read(&bytes).ok_or(Broken)?;
        let room = payload.get_mut(..head.bytes).ok_or(Broken)?;
        // Less than that was announced, or taken away again.
        if there < HEAD_BYTES + head.bytes || stream.take(served, room)? < head.bytes {
            return Err(Broken);
        }
        Ok(Some(head))
    }

    /// Supervisor: gives the program a datagram; false if there is no room for it.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn give(
        self,
        stream: Stream<'_>,
        served: &mut Served,
        payload: &[u8],
    ) -> Result<bool, Broken> {
        stream.give_all(served, &[&self.bytes(), payload])
    }

    /// The first datagram of those in a copy of a ring, and what follows; none if it is not whole.
    #[must_use]
    pub fn split(bytes: &[u8]) -> Option<(Self, &[u8], &[u8])> {
        let (head, rest) = bytes.split_first_chunk()?;
        let head = Self::read(head)?;
        let (payload, rest) = rest.split_at_checked(head.bytes)?;
        Some((head, payload, rest))
    }
}

/// An address from `struct sockaddr`, and true if its family is AF_INET6.
#[must_use]
pub fn read_name(name: &[u8]) -> Option<(SocketAddr, bool)> {
    let family = u16::from_ne_bytes(*name.first_chunk()?);
    let port = u16::from_be_bytes(*name.get(2..)?.first_chunk()?);
    let (ip, is_v6) = match family {
        AF_INET if name.len() >= V4_BYTES => {
            let octets: [u8; 4] = *name.get(4..)?.first_chunk()?;
            (IpAddr::from(Ipv4Addr::from(octets)), false)
        }
        AF_INET6 => {
            let octets: [u8; 16] = *name.get(8..)?.first_chunk()?;
            (IpAddr::from(Ipv6Addr::from(octets)), true)
        }
        _ => return None,
    };
    Some((SocketAddr::new(ip, port), is_v6))
}

/// `struct sockaddr_in6` where `is_v6` (IPv4 as an IPv4-mapped address), else `struct sockaddr_in`;
/// its length.
#[must_use]
pub fn write_name(address: SocketAddr, is_v6: bool) -> ([u8; NAME_BYTES], usize) {
    let mut name = [0; NAME_BYTES];
    let family = if is_v6 { AF_INET6 } else { AF_INET };
    name[..2].copy_from_slice(&family.to_ne_bytes());
    name[2..4].copy_from_slice(&address.port().to_be_bytes());
    match (plain_ip(address.ip()), is_v6) {
        (IpAddr::V4(ip), false) => name[4..8].copy_from_slice(&ip.octets()),
        // An IPv4 socket has no such peer.
        (IpAddr::V6(_), false) => {}
        (IpAddr::V4(ip), true) => name[8..24].copy_from_slice(&ip.to_ipv6_mapped().octets()),
        (IpAddr::V6(ip), true) => name[8..24].copy_from_slice(&ip.octets()),
    }
    (name, if is_v6 { NAME_BYTES } else { V4_BYTES })
}

/// The same address; an IPv4-mapped IPv6 address becomes IPv4.
#[must_use]
pub fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(plain_ip(address.ip()), address.port())
}

/// Places of sockets.
pub const PLACES: u32 = 1024;
/// Ways at most: one for each place, and one for each of the supervisor's senders.
pub const WAYS: u16 = 2048;
/// Bytes of `struct sockaddr_in6`, the longest name.
pub const NAME_BYTES: usize = 28;
/// Bytes of a frame.
pub const FRAME_BYTES: usize = 24;
/// Longest payload behind a frame: UDP's limit of IPv4 for both.
pub const FRAMED_BYTES_MAX: usize = 65_507 - FRAME_BYTES;
/// Bytes of a [`Head`].
pub const HEAD_BYTES: usize = 40;
/// Longest payload behind a [`Head`]: UDP's limit of IPv6.
pub const PAYLOAD_BYTES_MAX: usize = 65_527;
/// Datagrams of one payload at most (UDP_MAX_SEGMENTS of Linux before 6.9).
pub const SEGMENTS_MAX: usize = 64;
/// Bytes of the directory.
pub const DIRECTORY_BYTES: usize = WAY_TABLE + WAYS as usize * WAY_BYTES;

fn place_at(number: u32) -> Option<usize> {
    (number < PLACES).then(|| PLACE_TABLE + number.to_usize() * 8)
}

fn way_at(number: u32) -> Option<usize> {
    (number < u32::from(WAYS)).then(|| WAY_TABLE + number.to_usize() * WAY_BYTES)
}

/// The word with the way of an address, and the way's place in it.
fn index_at(at: SocketAddr) -> (usize, u32) {
    let family = usize::from(plain_ip(at.ip()).is_ipv6());
    let port = usize::from(at.port());
    let start = INDEX_TABLE + family * INDEX_BYTES + port / 4 * 8;
    (start, u32::from(at.port() % 4) * 16)
}

/// The word of a host, and what is in it if the host is reached: a hash, because a false answer
/// costs one datagram.
fn reach_at(peer: IpAddr) -> (usize, u64) {
    let [high, low] = halves_of(peer);
    let mixed = (high.rotate_left(32) ^ low).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mark = (mixed ^ (mixed >> 29)).max(1);
    let number = (mark >> 48).to_usize() % REACHED;
    (REACH_TABLE + number * 8, mark)
}

/// The octets of an address; IPv4 as an IPv4-mapped one.
fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

fn halves_of(ip: IpAddr) -> [u64; 2] {
    let bits = u128::from_be_bytes(octets(ip));
    let half = |bits: u128| u64::try_from(bits & u128::from(u64::MAX)).unwrap_or(0);
    [half(bits >> 64), half(bits)]
}

fn ip_of(high: u64, low: u64) -> IpAddr {
    plain_ip(Ipv6Addr::from(u128::from(high) << 64 | u128::from(low)).into())
}

/// The same address; an IPv4-mapped IPv6 address becomes IPv4.
fn plain_ip(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(ip, IpAddr::V4),
        IpAddr::V4(_) => ip,
    }
}

/// Ways that one look-up follows an address to.
const CHANGES_MAX: usize = 16;
const FRAME_MARK: [u8; 4] = *b"sdcF";
const PLACE_TABLE: usize = 0;
const REACH_TABLE: usize = PLACE_TABLE + PLACES as usize * 8;
/// Hosts that the stack is known to reach.
const REACHED: usize = 1024;
const INDEX_TABLE: usize = REACH_TABLE + REACHED * 8;
/// One family's ports.
const INDEX_BYTES: usize = 2 * 65_536;
const WAY_TABLE: usize = INDEX_TABLE + 2 * INDEX_BYTES;
const WAY_BYTES: usize = 64;
/// Families of `struct sockaddr`.
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;
/// Bytes of `struct sockaddr_in`.
const V4_BYTES: usize = 16;
