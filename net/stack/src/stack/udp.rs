//! UDP: datagrams to and from sockets. Source: RFC 768, RFC 1122 section 4.1, RFC 8085.
//!
//! A socket's received datagrams are stored consecutively in a ring of bytes; a sent datagram is
//! put into the queue of whole frames at once, if the neighbour is known.

use super::UdpId;
use super::sharing::{Ports, Sharing};
use super::{Host, Stack};
use crate::buffer::ring::Ring;
use crate::error::NetError;
use crate::secrets::Ends;
use crate::shared::config::Ipv4Source;
use crate::shared::config::filter::{RuleProtocol, Verdict};
use crate::shared::frames::Address;
use crate::shared::{Common, EventSource};
use crate::wire::fragment::PACKET_BYTES_MAX;
use crate::wire::ip::{self, Packet};
use crate::wire::udp::dhcp::CLIENT_PORT;
use crate::wire::udp::{self, HEADER_BYTES};
use crate::wire::{BROADCAST, Ip, Mac, group_mac};
use refusals::Refusals;
use sidecore_bare::width::ToUsize;
use std::collections::VecDeque;
use std::net::SocketAddr;

pub(crate) mod refusals {
    //! Datagrams that were refused: ICMP errors of both families about them.
    //!
    //! A socket asks for them by [`want_refusals`]. Must stay true: what a socket keeps is
    //! bounded, whatever is forged; a refusal is about a datagram from an address and a port of a
    //! socket that exists and, if the socket has a peer, to that peer.
    //! Source: RFC 1122 section 4.1.3.3, RFC 4443 sections 2.4(d) and 3.1.

    use super::{Datagrams, HEADER_BYTES};
    use crate::error::{IcmpError, NetError};
    use crate::secrets::Ends;
    use crate::shared::{Common, EventSource};
    use crate::stack::Stack;
    use crate::stack::UdpId;
    use crate::wire::ip::Packet;
    use sidecore_bare::width::ToUsize;
    use std::collections::VecDeque;
    use std::net::SocketAddr;

    /// A datagram that was refused.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Refusal {
        /// Its destination.
        pub peer: SocketAddr,
        /// The first bytes of its payload, as far as the error quotes them.
        pub payload: Vec<u8>,
        /// The reason.
        pub error: IcmpError,
    }

    /// The refusals of one socket.
    #[derive(Debug, Default)]
    pub(super) struct Refusals {
        is_wanted: bool,
        queue: VecDeque<Refusal>,
    }

    impl Refusals {
        pub(super) fn clear(&mut self) {
            *self = Self::default();
        }
    }

    impl Datagrams {
        /// Processes an error about a datagram of ours: `about` is its IP header, `start` what
        /// follows, as far as it is quoted.
        pub(crate) fn arrive_error(
            &mut self,
            common: &mut Common,
            about: &Packet,
            start: &[u8],
            error: &IcmpError,
        ) {
            let Some(header) = start.first_chunk::<HEADER_BYTES>() else {
                return;
            };
            let half = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
            let ends = Ends {
                local: about.source,
                remote: about.destination,
                local_port: half(0),
                remote_port: half(2),
            };
            // RFC 5927 section 4: only a packet that we may have sent.
            if !common.interface.is_ours(&ends.local) {
                return;
            }
            let Some(number) = self.taker(common, &ends) else {
                return;
            };
            let socket = &mut self.sockets[number.to_usize()];
            let refusals = &mut socket.refusals;
            if !refusals.is_wanted || refusals.queue.len() == QUEUE_MAX {
                return;
            }
            // The quoted packet may be padded, or be cut off.
            let end = usize::from(half(4)).clamp(HEADER_BYTES, start.len());
            refusals.queue.push_back(Refusal {
                peer: SocketAddr::new(ends.remote.to_std(), ends.remote_port),
                payload: start[HEADER_BYTES..end].to_vec(),
                error: *error,
            });
            if !socket.listed {
                socket.listed = true;
                common.pending_events.push_back(EventSource::Udp(number));
            }
        }
    }

    /// Keeps refusals of this socket's datagrams, or no longer.
    ///
    /// # Errors
    /// [`NetError::Gone`].
    pub fn want_refusals(stack: &mut Stack, id: UdpId, is_wanted: bool) -> Result<(), NetError> {
        let refusals = &mut stack.host.datagrams.socket(id)?.refusals;
        refusals.clear();
        refusals.is_wanted = is_wanted;
        Ok(())
    }

    /// True if [`next_refusal`] has one.
    #[must_use]
    pub fn has_refusal(stack: &Stack, id: UdpId) -> bool {
        let socket = stack.host.datagrams.sockets.get(id.number.to_usize());
        let socket = socket.filter(|it| it.open && it.generation == id.generation);
        socket.is_some_and(|it| !it.refusals.queue.is_empty())
    }

    /// The next datagram of a socket that was refused.
    pub fn next_refusal(stack: &mut Stack, id: UdpId) -> Option<Refusal> {
        let socket = stack.host.datagrams.socket(id).ok()?;
        socket.refusals.queue.pop_front()
    }

    /// Refusals that a socket keeps; later ones are dropped until these are taken.
    const QUEUE_MAX: usize = 8;
}

/// Received bytes that a socket queues.
const QUEUE_BYTES: usize = 256 << 10;
/// Received datagrams that a socket queues.
const QUEUE_DATAGRAMS: usize = 1024;
/// Datagrams that wait for a neighbour's address, of all sockets together.
const WAITING_MAX: usize = 64;
/// Longest time that they wait.
const WAITING_NS: u64 = 3_000_000_000;

#[derive(Debug)]
pub(super) struct Socket {
    generation: u32,
    open: bool,
    address: Ip,
    port: u16,
    queue: VecDeque<Queued>,
    ring: Ring,
    refusals: Refusals,
    /// The only source of datagrams that it takes.
    pub(super) peer: Option<(Ip, u16)>,
    /// Traffic class of its datagrams; the configured one if it has none.
    pub(super) traffic_class: Option<u8>,
    listed: bool,
}

/// A received datagram, whose bytes are in the socket's ring.
#[derive(Debug, Clone, Copy)]
struct Queued {
    from: SocketAddr,
    to: SocketAddr,
    bytes: usize,
    hops: u8,
    class: u8,
}

/// A part of a received datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramPart {
    /// The datagram's source.
    pub peer: SocketAddr,
    /// Bytes of it behind this part.
    pub left: usize,
    /// Hop limit with which it arrived.
    pub hops: u8,
    /// Traffic class with which it arrived: RFC 2474's six bits, and the two of ECN.
    pub class: u8,
}

/// All UDP sockets.
#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    sockets: Vec<Socket>,
    ports: Ports,
    free: Vec<u32>,
    /// Deadline, neighbour, and frames of each waiting datagram.
    waiting: VecDeque<(u64, Ip, Vec<Vec<u8>>)>,
    next_port: u16,
}

impl Datagrams {
    /// Takes a socket's pending event: its generation, or none if it was closed meanwhile.
    pub(crate) fn take_event(&mut self, number: u32) -> Option<u32> {
        let socket = self.sockets.get_mut(number.to_usize())?;
        socket.listed = false;
        socket.open.then_some(socket.generation)
    }

    pub(super) fn socket(&mut self, id: UdpId) -> Result<&mut Socket, NetError> {
        self.sockets
            .get_mut(id.number.to_usize())
            .filter(|socket| socket.open && socket.generation == id.generation)
            .ok_or(NetError::Gone)
    }

    /// Local address of a socket.
    pub(crate) fn address(&self, id: UdpId) -> Option<SocketAddr> {
        let socket = self.sockets.get(id.number.to_usize())?;
        (socket.open && socket.generation == id.generation)
            .then(|| SocketAddr::new(socket.address.to_std(), socket.port))
    }

    /// Sends datagrams whose neighbour is known now, and drops those that waited too long.
    pub(crate) fn resolve(&mut self, common: &mut Common) {
        for _ in 0..self.waiting.len() {
            let Some((until_ns, hop, frames)) = self.waiting.pop_front() else {
                return;
            };
            let now_ns = common.now_ns;
            match common.neighbors.known(&hop, now_ns) {
                Some(mac) => common.push_waiting(&mac, frames),
                None if now_ns < until_ns => {
                    self.waiting.push_back((until_ns, hop, frames));
                }
                None => common.counters.datagrams_dropped += 1,
            }
        }
    }

    /// Time when [`Self::resolve`] drops a datagram.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.waiting.front().map(|(until_ns, ..)| *until_ns)
    }

    /// The socket of ours at these ends, unless it takes datagrams of another peer only.
    fn taker(&self, common: &Common, ends: &Ends) -> Option<u32> {
        let hash = common.secrets.lookup(ends);
        let takes = |number: u32| {
            let peer = self.sockets[number.to_usize()].peer;
            peer.is_none_or(|peer| peer == (ends.remote, ends.remote_port))
        };
        self.ports
            .find_for(&ends.local, ends.local_port, hash, takes)
    }

    /// True if a socket receives datagrams to this address and port.
    pub(crate) fn is_taken(&self, local: &Ip, port: u16) -> bool {
        self.ports.is_taken(local, port)
    }
}

impl Stack {
    /// A UDP socket at one of our addresses or at all (`0.0.0.0`, `::`); port 0: any free one.
    ///
    /// # Errors
    /// [`NetError::AddressInUse`], [`NetError::AddressNotOurs`], [`NetError::NoPort`].
    pub fn bind_udp(&mut self, address: SocketAddr) -> Result<UdpId, NetError> {
        self.bind_udp_shared(address, Sharing::Alone)
    }

    /// As [`Stack::bind_udp`], at an address and port that other sockets may have, too: each
    /// datagram is for one of them, chosen by a hash of its ends.
    ///
    /// # Errors
    /// As [`Stack::bind_udp`].
    pub fn bind_udp_shared(
        &mut self,
        address: SocketAddr,
        sharing: Sharing,
    ) -> Result<UdpId, NetError> {
        let ip = Ip::from(address.ip());
        if !ip.is_unspecified() && !ip.is_multicast() && !self.host.common.interface.is_ours(&ip) {
            return Err(NetError::AddressNotOurs(address));
        }
        let mut port = address.port();
        if port == 0 {
            // Searched in the upper half of the ports; each shard peer gives others.
            let free = (0..=u16::MAX).find_map(|_| {
                self.host.datagrams.next_port =
                    self.host.datagrams.next_port.wrapping_add(1) | 0x8000;
                let port = self.host.datagrams.next_port;
                let free = self.host.datagrams.ports.takes(ip, port, Sharing::Alone);
                (free && self.host.shard.may_give(port)).then_some(port)
            });
            port = free.ok_or(NetError::NoPort(address))?;
        } else if !self.host.datagrams.ports.takes(ip, port, sharing) {
            return Err(NetError::AddressInUse(address));
        }
        let datagrams = &mut self.host.datagrams;
        let number = datagrams.free.pop().unwrap_or_else(|| {
            datagrams.sockets.push(Socket {
                generation: 0,
                open: false,
                address: ip,
                port: 0,
                queue: VecDeque::new(),
                ring: Ring::EMPTY,
                refusals: Refusals::default(),
                peer: None,
                traffic_class: None,
                listed: false,
            });
            datagrams.sockets.len() as u32 - 1
        });
        let socket = &mut datagrams.sockets[number.to_usize()];
        // Identifiers of the earlier socket with this number become invalid.
        socket.generation = socket.generation.wrapping_add(1);
        socket.open = true;
        socket.peer = None;
        socket.traffic_class = None;
        socket.address = ip;
        socket.port = port;
        let generation = socket.generation;
        datagrams.ports.add(ip, port, number, sharing);
        Ok(UdpId { number, generation })
    }

    /// Closes a UDP socket; received datagrams are dropped.
    ///
    /// # Errors
    /// [`NetError::Gone`].
    pub fn close_udp(&mut self, id: UdpId) -> Result<(), NetError> {
        let socket = self.host.datagrams.socket(id)?;
        socket.open = false;
        socket.queue.clear();
        socket.refusals.clear();
        socket.ring.release(&mut self.host.common.pool);
        let (address, port) = (socket.address, socket.port);
        self.host.datagrams.ports.remove(address, port, id.number);
        self.host.datagrams.free.push(id.number);
        Ok(())
    }

    /// Local address of a UDP socket.
    ///
    /// # Errors
    /// [`NetError::Gone`].
    pub fn udp_address(&self, id: UdpId) -> Result<SocketAddr, NetError> {
        self.host.datagrams.address(id).ok_or(NetError::Gone)
    }

    /// Sends a datagram of at most 65,507 bytes, over IPv6 65,527; in fragments if the MTU of the
    /// link or path is smaller. It is sent by the next [`Stack::transmit`].
    ///
    /// # Errors
    /// [`NetError::NoRoute`], [`NetError::TooLong`], [`NetError::QueueFull`], [`NetError::Gone`].
    pub fn send_to(&mut self, id: UdpId, to: SocketAddr, payload: &[u8]) -> Result<(), NetError> {
        let socket = self.host.datagrams.socket(id)?;
        let (own, port, class) = (socket.address, socket.port, socket.traffic_class);
        let class = class.unwrap_or(self.host.common.config.traffic_class);
        let destination = Ip::from(to.ip());
        let way = self.host.way(own, &destination);
        let (source, hop) = way.ok_or(NetError::NoRoute(to.ip()))?;
        let head = if source.is_v4() { ip::V4_BYTES } else { 0 };
        let limit = PACKET_BYTES_MAX - head - HEADER_BYTES;
        if payload.len() > limit {
            return Err(NetError::TooLong {
                bytes: payload.len(),
                limit,
            });
        }
        let mac = self.host.mac(&hop, &destination);
        let address = Address {
            mac: mac.unwrap_or_default(),
            source,
            destination,
            protocol: ip::UDP,
            // RFC 1112 section 6.1: datagrams to groups stay on the link unless requested
            // otherwise.
            hops: if destination.is_multicast() {
                1
            } else {
                self.host.common.config.hops
            },
            class,
        };
        // To find the frames of this datagram again, of which there may be several.
        let queued = self.host.common.control.len();
        let ports = (port, to.port());
        let common = &mut self.host.common;
        // A frame that waits for its neighbour is kept as bytes alone.
        if !common.push_datagram(&address, ports, payload, mac.is_some()) {
            return Err(NetError::QueueFull);
        }
        if mac.is_none() {
            // Removed from the queue again, until the neighbour is known (RFC 1122 section
            // 2.3.2.2).
            let frames = self.host.common.control.take_back(queued);
            let until_ns = self.host.common.now_ns + WAITING_NS;
            let waiting = &mut self.host.datagrams.waiting;
            if waiting.len() == WAITING_MAX {
                return Err(NetError::QueueFull);
            }
            waiting.push_back((until_ns, hop, frames));
        }
        self.host.common.counters.datagrams_sent += 1;
        Ok(())
    }

    /// The next datagram: its source, its destination address here, and its length; `bytes` gets as
    /// much of it as fits, the rest is lost. None if there is none.
    ///
    /// # Errors
    /// [`NetError::Gone`].
    pub fn receive_from(
        &mut self,
        id: UdpId,
        bytes: &mut [u8],
    ) -> Result<Option<(SocketAddr, SocketAddr, usize)>, NetError> {
        let pool = &mut self.host.common.pool;
        let socket = self.host.datagrams.socket(id)?;
        let Some(Queued {
            from,
            to,
            bytes: len,
            ..
        }) = socket.queue.pop_front()
        else {
            return Ok(None);
        };
        let [first, second] = socket.ring.pieces(pool, 0, len);
        let a = first.len().min(bytes.len());
        let b = second.len().min(bytes.len() - a);
        bytes[..a].copy_from_slice(&first[..a]);
        bytes[a..a + b].copy_from_slice(&second[..b]);
        socket.ring.consume(pool, len, false);
        Ok(Some((from, to, len)))
    }

    /// As [`Self::receive_from`], a part of the datagram at a time: at most `bytes_max` bytes from
    /// byte `from` on. The datagram is removed once none are left.
    pub fn receive_part(
        &mut self,
        id: UdpId,
        from: usize,
        bytes_max: usize,
        sink: &mut dyn FnMut(&[u8]),
    ) -> Option<DatagramPart> {
        let pool = &mut self.host.common.pool;
        let socket = self.host.datagrams.socket(id).ok()?;
        let queued = *socket.queue.front()?;
        let len = queued.bytes;
        let from = from.min(len);
        let part = bytes_max.min(len - from);
        for piece in socket.ring.pieces(pool, from, part) {
            if !piece.is_empty() {
                sink(piece);
            }
        }
        let left = len - from - part;
        if left == 0 {
            // All of it at once: parts that were read stay in the ring until the last.
            socket.queue.pop_front();
            socket.ring.consume(pool, len, false);
        }
        Some(DatagramPart {
            peer: queued.from,
            left,
            hops: queued.hops,
            class: queued.class,
        })
    }
}

impl Host {
    /// Source and next hop of a datagram from a socket at `own`; none without a route.
    fn way(&self, own: Ip, destination: &Ip) -> Option<(Ip, Ip)> {
        let interface = &self.common.interface;
        // A socket's own address, unless its time is over; or the one that suits the destination.
        let source = if own.is_unspecified() || own.is_multicast() {
            interface.source_for(destination)?
        } else {
            Some(own).filter(|own| own.is_v4() == destination.is_v4() && interface.is_ours(own))?
        };
        if interface.is_broadcast(destination) {
            return Some((source, *destination));
        }
        Some((source, interface.next_hop(destination)?))
    }

    /// The hardware address for a datagram; none while the neighbour is being asked.
    fn mac(&mut self, hop: &Ip, destination: &Ip) -> Option<Mac> {
        let interface = &self.common.interface;
        // Groups and broadcasts have fixed ones; only a neighbour has to be asked.
        if interface.is_broadcast(destination) {
            Some(BROADCAST)
        } else if destination.is_multicast() {
            Some(group_mac(destination))
        } else if interface.is_ours(destination) {
            Some(interface.mac)
        } else {
            self.common.neighbors.known(hop, self.common.now_ns)
        }
    }

    pub(crate) fn arrive_udp(
        &mut self,
        packet: &Packet,
        whole: &[u8],
        bytes: &[u8],
        from: Mac,
        to_us: bool,
        verify: bool,
    ) {
        let parsed = udp::parse(bytes, &packet.source, &packet.destination, verify);
        let Some((header, payload)) = parsed else {
            self.common.counters.bad_checksums += 1;
            return;
        };
        let port = header.destination.get();
        let ends = Ends {
            local: packet.destination,
            remote: packet.source,
            local_port: port,
            remote_port: header.source.get(),
        };
        if port == CLIENT_PORT && self.common.config.ipv4 == Ipv4Source::Dhcp {
            self.autoconfiguration
                .arrive_dhcp(&mut self.common, payload);
            return;
        }
        let verdict = self.common.verdict(Some(RuleProtocol::Udp), &ends);
        let taker = self.datagrams.taker(&self.common, &ends);
        let taker = taker.filter(|&number| {
            // A socket's own peer needs no rule.
            let socket = &self.datagrams.sockets[number.to_usize()];
            verdict == Verdict::Allow || socket.peer.is_some()
        });
        let Some(number) = taker else {
            let interface = &self.common.interface;
            // A shard peer may have the socket.
            let class = ip::class_of(whole);
            if to_us && self.shard.pass_on(interface, packet, (from, class), bytes) {
                return;
            }
            self.common.count_verdict(verdict);
            if to_us && verdict != Verdict::Drop {
                // RFC 1122 section 4.1.3.1.
                self.common.push_unreachable(packet, whole, from, 3);
            }
            return;
        };
        let socket = &mut self.datagrams.sockets[number.to_usize()];
        let room = QUEUE_BYTES - socket.ring.len();
        // Both are limited, because an empty datagram takes no bytes.
        let fits = socket.queue.len() < QUEUE_DATAGRAMS && payload.len() <= room;
        let pool = &mut self.common.pool;
        if !fits || socket.ring.append(pool, payload, QUEUE_BYTES) != payload.len() {
            self.common.counters.datagrams_dropped += 1;
            return;
        }
        socket.queue.push_back(Queued {
            from: SocketAddr::new(packet.source.to_std(), header.source.get()),
            to: SocketAddr::new(packet.destination.to_std(), port),
            bytes: payload.len(),
            hops: packet.hops,
            class: ip::class_of(whole),
        });
        self.common.counters.datagrams_received += 1;
        if !socket.listed {
            socket.listed = true;
            self.common
                .pending_events
                .push_back(EventSource::Udp(number));
        }
    }
}
