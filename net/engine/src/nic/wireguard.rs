//! WireGuard: tunnels to peers through a UDP socket of the kernel, as a NIC.
//!
//! Handshakes, sessions, replay protection, cookies and timers are `boringtun`'s, a tunnel for each
//! peer. Here are the socket, the choice of the peer (by receiver index, by static key, by allowed
//! networks), and the link layer that the stack expects and a tunnel has not: packets get Ethernet
//! headers, and every neighbour that the stack asks for is at one address.
//!
//! Why here: a stack in user space reaches a private network without the kernel's module. Must stay
//! true: a packet comes up only if its source is allowed for the peer that sent it (cryptokey
//! routing); an endpoint changes by authenticated datagrams alone; datagrams wait in a queue of
//! their peer, so that a flood costs only its sender. One thread. Source: J. A. Donenfeld,
//! *WireGuard: Next Generation Kernel Network Tunnel*, NDSS 2017.

mod paths;

use super::neighbor::{self, kind_and_body};
use super::{
    Capabilities, Nic, NicError, NicReport, Outgoing, PeerReport, Received, ReceivedChecksum,
    TransmitChecksum, checksum,
};
use crate::Cidr;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use boringtun::noise::errors::WireGuardError;
use boringtun::noise::handshake::parse_handshake_anon;
use boringtun::noise::rate_limiter::RateLimiter;
use boringtun::noise::{Packet, Tunn, TunnResult};
use boringtun::x25519::{PublicKey, StaticSecret};
use paths::{NOWHERE, Outbox, Routes};
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_net_stack::wire::ethernet::{self, Ethernet};
use sidecore_net_stack::wire::{Ip, Mac, ip};
use sidecore_sys::clock;
use sidecore_sys::message::{DATAGRAMS_MAX, receive_datagrams};
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use zeroize::Zeroizing;

/// Options of a tunnel.
pub(crate) struct WireguardOptions {
    /// A name for messages.
    pub name: String,
    /// The private key of this end (X25519).
    pub private_key: Zeroizing<[u8; 32]>,
    /// Local address of the datagrams; port 0: any.
    pub listen: SocketAddr,
    /// Our hardware address towards the stack.
    pub address: [u8; 6],
    /// The longest packet, in bytes.
    pub mtu_bytes: usize,
    /// The other ends.
    pub peers: Vec<PeerOptions>,
}

/// Options of a peer.
pub(crate) struct PeerOptions {
    /// Its public key.
    pub public_key: [u8; 32],
    /// A secret that both ends share, in addition to their keys.
    pub preshared_key: Option<Zeroizing<[u8; 32]>>,
    /// Its address and port; none until it sends something.
    pub endpoint: Option<SocketAddr>,
    /// Networks behind it.
    pub allowed: Vec<Cidr>,
    /// Seconds between datagrams that keep its path open; none, or 0: only with data.
    pub keepalive_s: Option<u16>,
}

/// A peer and its tunnel.
struct Peer {
    tunnel: Tunn,
    public_key: [u8; 32],
    endpoint: Option<SocketAddr>,
    allowed: Vec<Cidr>,
    keeps_alive: bool,
    /// A path that is to be kept open has been opened.
    has_begun: bool,
    /// Datagrams that have not been decrypted, and their senders.
    waiting: VecDeque<(SocketAddr, Vec<u8>)>,
    dropped: u64,
}

/// A tunnel.
pub(crate) struct Wireguard {
    private_key: StaticSecret,
    public_key: PublicKey,
    limiter: Arc<RateLimiter>,
    peers: Vec<Peer>,
    routes: Routes,
    outbox: Outbox,
    capabilities: Capabilities,
    slots: Box<[u8]>,
    found: [(usize, SocketAddr); DATAGRAMS_MAX],
    /// A frame for the stack: its header, and a decrypted packet.
    plain: Box<[u8]>,
    /// A datagram that is made.
    sealed: Box<[u8]>,
    /// A frame of the stack in one piece.
    whole: Vec<u8>,
    /// Answers to the stack's questions for neighbours.
    answers: VecDeque<Vec<u8>>,
    /// Buffers for reuse.
    spare: Vec<Vec<u8>>,
    /// The peer with which the next round begins.
    next: usize,
    timers_ns: u64,
    /// Datagrams of no peer, and packets to none.
    dropped: u64,
}

impl Wireguard {
    /// Opens the socket.
    ///
    /// # Errors
    /// [`NicError::Os`] if the port is taken; [`NicError::Options`] for an MTU out of range, too
    /// many peers, a key that two peers have, and a network that two peers have.
    pub(crate) fn open(options: &WireguardOptions) -> Result<Self, NicError> {
        let mtu_bytes = options.mtu_bytes;
        if !MTU_BYTES.contains(&mtu_bytes) {
            let reason = format!("an MTU of {mtu_bytes} bytes is not allowed; 1280 to 9000 are");
            return Err(NicError::Options(reason));
        }
        let routes = Routes::new(&options.peers)?;
        let outbox = Outbox::open(options)?;
        let private_key = StaticSecret::from(*options.private_key);
        let public_key = PublicKey::from(&private_key);
        // An initiation is counted here, to find its peer, and once more as it is opened.
        let limiter = Arc::new(RateLimiter::new(&public_key, 2 * HANDSHAKES_A_SECOND));
        let peers = (0..).zip(&options.peers).map(|(index, peer)| Peer {
            tunnel: Tunn::new(
                private_key.clone(),
                PublicKey::from(peer.public_key),
                peer.preshared_key.as_deref().copied(),
                peer.keepalive_s,
                index,
                Some(Arc::clone(&limiter)),
            ),
            public_key: peer.public_key,
            endpoint: peer.endpoint,
            allowed: peer.allowed.clone(),
            keeps_alive: peer.keepalive_s.is_some_and(|seconds| seconds > 0),
            has_begun: false,
            waiting: VecDeque::new(),
            dropped: 0,
        });
        let peers = peers.collect();
        let slot_bytes = outbox.slot_bytes;
        Ok(Self {
            private_key,
            public_key,
            limiter,
            peers,
            routes,
            outbox,
            capabilities: Capabilities::plain(options.address, mtu_bytes),
            slots: vec![0; DATAGRAMS_MAX * slot_bytes].into(),
            found: [(0, NOWHERE); DATAGRAMS_MAX],
            plain: vec![0; ethernet::HEADER_BYTES + slot_bytes].into(),
            sealed: vec![0; slot_bytes].into(),
            whole: Vec::new(),
            answers: VecDeque::new(),
            spare: Vec::new(),
            next: 0,
            timers_ns: 0,
            dropped: 0,
        })
    }

    /// The address at which datagrams are received.
    ///
    /// # Errors
    /// The system's.
    #[cfg(test)]
    pub(crate) fn local_address(&self) -> std::io::Result<SocketAddr> {
        self.outbox.socket.local_addr()
    }

    /// Reads what the socket has, a few batches at most, into the peers' queues.
    fn read(&mut self) {
        let slot_bytes = self.outbox.slot_bytes;
        for _ in 0..BATCHES_A_ROUND {
            let socket = self.outbox.socket.as_fd();
            // Bounded rounds: a flood must not keep the engine from its timers and other links.
            let read = receive_datagrams(socket, &mut self.slots, slot_bytes, &mut self.found);
            // An error of the network that was reported late is as good as a loss.
            let count = read.unwrap_or(0);
            for slot in 0..count {
                let (length, from) = self.found[slot];
                self.sort(slot * slot_bytes, length, canonical(from));
            }
            if count < DATAGRAMS_MAX {
                return;
            }
        }
    }

    /// Puts a datagram into its peer's queue; handshakes, of which there are few, are answered.
    fn sort(&mut self, at: usize, length: usize, from: SocketAddr) {
        let datagram = &self.slots[at..at + length];
        match Tunn::parse_incoming_packet(datagram) {
            Ok(Packet::PacketData(data)) => match self.peers.get_mut(peer_of(data.receiver_idx)) {
                // Unopened: decryption costs most, and happens in `deliver`, where peers have
                // turns.
                Some(peer) if peer.waiting.len() < WAITING_MAX => {
                    let mut bytes = self.spare.pop().unwrap_or_default();
                    bytes.clear();
                    bytes.extend_from_slice(datagram);
                    peer.waiting.push_back((from, bytes));
                }
                Some(peer) => peer.dropped += 1,
                None => self.dropped += 1,
            },
            Ok(_) => {
                // Their lengths were checked: the longest one has 148 bytes.
                let mut message = [0; HANDSHAKE_BYTES_MAX];
                let length = length.min(HANDSHAKE_BYTES_MAX);
                message[..length].copy_from_slice(&datagram[..length]);
                let message = &message[..length];
                match self.peer_of_handshake(message, from) {
                    // No packet comes of it.
                    Some(index) => {
                        self.open_datagram(index, message, from);
                    }
                    None => self.dropped += 1,
                }
            }
            Err(_) => self.dropped += 1,
        }
    }

    /// The peer that a message of a handshake is from.
    fn peer_of_handshake(&mut self, message: &[u8], from: SocketAddr) -> Option<usize> {
        let index = match Tunn::parse_incoming_packet(message).ok()? {
            Packet::HandshakeInit(init) => {
                // Before any work for it: its MAC, and under load its cookie.
                let mut reply = [0; COOKIE_REPLY_BYTES];
                let verified = self
                    .limiter
                    .verify_packet(Some(from.ip()), message, &mut reply);
                match verified {
                    Ok(_) => {}
                    Err(TunnResult::WriteToNetwork(cookie)) => {
                        self.outbox.put(from, cookie);
                        return None;
                    }
                    Err(_) => return None,
                }
                // The initiator's key is encrypted: finding its peer costs one exchange, hence the
                // checks before it.
                let half = parse_handshake_anon(&self.private_key, &self.public_key, &init);
                let key = half.ok()?.peer_static_public;
                self.peers.iter().position(|peer| peer.public_key == key)?
            }
            Packet::HandshakeResponse(response) => peer_of(response.receiver_idx),
            Packet::PacketCookieReply(reply) => peer_of(reply.receiver_idx),
            Packet::PacketData(_) => return None,
        };
        (index < self.peers.len()).then_some(index)
    }

    /// Opens a datagram of a peer: the length of the packet that is in `plain` then, behind an
    /// Ethernet header. Answers of the protocol are staged.
    fn open_datagram(&mut self, index: usize, datagram: &[u8], from: SocketAddr) -> Option<usize> {
        let peer = &mut self.peers[index];
        let room = &mut self.plain[ethernet::HEADER_BYTES..];
        // Behind room for a header, so that the packet need not move.
        let opened = peer.tunnel.decapsulate(Some(from.ip()), datagram, room);
        let (length, source, kind) = match opened {
            TunnResult::WriteToTunnelV4(packet, source) => {
                (packet.len(), IpAddr::V4(source), ethernet::IPV4)
            }
            TunnResult::WriteToTunnelV6(packet, source) => {
                (packet.len(), IpAddr::V6(source), ethernet::IPV6)
            }
            TunnResult::Done => {
                // A keepalive is authenticated; a cookie is not this peer's for certain.
                if datagram.first() == Some(&DATA) {
                    peer.endpoint = Some(from);
                }
                return None;
            }
            TunnResult::WriteToNetwork(answer) => {
                // A request for a cookie does not authenticate its sender.
                if answer.first() != Some(&COOKIE_REPLY) {
                    peer.endpoint = Some(from);
                }
                self.outbox.put(from, answer);
                self.send_queued(index);
                return None;
            }
            TunnResult::Err(_) => {
                peer.dropped += 1;
                return None;
            }
        };
        peer.endpoint = Some(from);
        // Cryptokey routing: an authenticated peer may still not speak for another one's networks.
        if self.routes.find(&Ip::from(source)) != Some(index) {
            peer.dropped += 1;
            return None;
        }
        let header = Ethernet::new(self.capabilities.address, PEER_ADDRESS, kind);
        self.plain[..ethernet::HEADER_BYTES].copy_from_slice(&header.to_bytes());
        Some(length)
    }

    /// Sends what has waited for a session.
    fn send_queued(&mut self, index: usize) {
        let peer = &mut self.peers[index];
        let Some(endpoint) = peer.endpoint else {
            return;
        };
        // `boringtun` hands out one queued packet a call, for an empty datagram.
        for _ in 0..QUEUED_MAX {
            match peer.tunnel.decapsulate(None, &[], &mut self.sealed) {
                TunnResult::WriteToNetwork(datagram) => self.outbox.put(endpoint, datagram),
                _ => return,
            };
        }
    }

    /// Passes packets on, a datagram of each peer in turn.
    fn deliver(&mut self, budget: usize, sink: &mut dyn FnMut(Received<'_>)) -> usize {
        let (mut count, mut empty) = (0, 0);
        // Datagrams that lead to nothing are bounded, too.
        for _ in 0..budget.saturating_mul(2).saturating_add(self.peers.len()) {
            if count == budget || empty == self.peers.len() {
                break;
            }
            let index = self.next % self.peers.len();
            // Also behind an empty queue: the round goes on where it was, so that none is served
            // twice in a row.
            self.next = index + 1;
            let Some((from, datagram)) = self.peers[index].waiting.pop_front() else {
                empty += 1;
                continue;
            };
            empty = 0;
            if let Some(length) = self.open_datagram(index, &datagram, from) {
                count += 1;
                sink(Received {
                    bytes: &mut self.plain[..ethernet::HEADER_BYTES + length],
                    checksum: ReceivedChecksum::Unknown,
                    segment_bytes: None,
                });
            }
            if self.spare.len() < WAITING_MAX {
                self.spare.push(datagram);
            }
        }
        count
    }

    /// Rekeys, keepalives and repeated handshakes.
    fn run_timers(&mut self, now_ns: u64) {
        self.timers_ns = now_ns.saturating_add(TIMERS_NS);
        self.limiter.reset_count();
        for peer in &mut self.peers {
            let mut due = peer.tunnel.update_timers(&mut self.sealed);
            let is_expired = matches!(due, TunnResult::Err(WireGuardError::ConnectionExpired));
            // It gives up after 90 s, and begins with the first keepalive; a path that is to be
            // kept open is opened at once, and tried for ever.
            let has_begun = std::mem::replace(&mut peer.has_begun, true);
            if peer.keeps_alive && (is_expired || !has_begun) {
                due = peer
                    .tunnel
                    .format_handshake_initiation(&mut self.sealed, false);
            }
            if let (TunnResult::WriteToNetwork(datagram), Some(endpoint)) = (due, peer.endpoint) {
                self.outbox.put(endpoint, datagram);
            }
        }
    }

    /// Copies a frame of the stack into one piece, with a whole checksum.
    fn gather(&mut self, frame: &Outgoing<'_>) {
        self.whole.clear();
        match frame.checksum {
            TransmitChecksum::Complete => {
                for piece in [frame.header, frame.payload[0], frame.payload[1]] {
                    self.whole.extend_from_slice(piece);
                }
            }
            // Our capabilities do not request this; such a frame is served anyway.
            TransmitChecksum::Partial { start, offset } => {
                self.whole = checksum::complete(frame, start, offset);
            }
        }
    }
}

impl Nic for Wireguard {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn receive(
        &mut self,
        budget: usize,
        sink: &mut dyn FnMut(Received<'_>),
    ) -> Result<usize, NicError> {
        let now_ns = clock::now_ns();
        if now_ns >= self.timers_ns {
            self.run_timers(now_ns);
        }
        let mut count = 0;
        while count < budget
            && let Some(mut frame) = self.answers.pop_front()
        {
            count += 1;
            sink(Received {
                bytes: &mut frame,
                checksum: ReceivedChecksum::Unknown,
                segment_bytes: None,
            });
        }
        if budget > 0 {
            self.read();
        }
        Ok(count + self.deliver(budget - count, sink))
    }

    fn transmit(&mut self, frame: &Outgoing<'_>) -> Result<bool, NicError> {
        // It can never be sent, so it is dropped: the stack must not keep it.
        if frame.len() > self.capabilities.frame_bytes_max() {
            return Ok(true);
        }
        self.gather(frame);
        let (kind, body) = kind_and_body(&self.whole);
        if let Some(answer) = neighbor::answer(PEER_ADDRESS, kind, body) {
            if self.answers.len() < ANSWERS_MAX {
                self.answers.push_back(answer);
            }
            return Ok(true);
        }
        // Groups, and what is no packet, go nowhere: a tunnel has no link.
        let Some(destination) = destination(kind, body).filter(|it| !it.is_multicast()) else {
            return Ok(true);
        };
        // Before the encryption: it takes a counter, and a packet that is kept would take a second
        // one.
        if !self.outbox.has_room() {
            return Ok(false);
        }
        let peer = self.routes.find(&destination);
        let Some(peer) = peer.map(|index| &mut self.peers[index]) else {
            self.dropped += 1;
            return Ok(true);
        };
        let Some(endpoint) = peer.endpoint else {
            peer.dropped += 1;
            return Ok(true);
        };
        match peer.tunnel.encapsulate(body, &mut self.sealed) {
            TunnResult::WriteToNetwork(datagram) => self.outbox.put(endpoint, datagram),
            TunnResult::Err(_) => peer.dropped += 1,
            // It waits for the end of the handshake.
            _ => {}
        }
        Ok(true)
    }

    fn flush(&mut self) -> Result<(), NicError> {
        self.outbox.send();
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.outbox.socket.as_fd())
    }

    fn arm(&mut self) -> Result<bool, NicError> {
        let is_empty = self.peers.iter().all(|peer| peer.waiting.is_empty());
        // Nothing reports when a full socket takes datagrams again: the engine goes round.
        Ok(is_empty && self.answers.is_empty() && self.outbox.is_empty())
    }

    fn report(&self) -> Option<NicReport> {
        let peers = self.peers.iter().take(PEERS_REPORTED).map(|peer| {
            let (handshake, sent, received, ..) = peer.tunnel.stats();
            let networks = peer.allowed.iter().take(NETWORKS_REPORTED);
            PeerReport {
                public_key: STANDARD.encode(peer.public_key),
                endpoint: peer.endpoint.map(|endpoint| endpoint.to_string()),
                allowed: networks
                    .map(|network| format!("{}/{}", network.address, network.prefix_bits))
                    .collect(),
                handshake_age_s: handshake.map(|age| age.as_secs()),
                rx_bytes: received.to_u64(),
                tx_bytes: sent.to_u64(),
                dropped: peer.dropped,
            }
        });
        Some(NicReport {
            kind: "wireguard",
            peers: peers.collect(),
            dropped: self.dropped,
            ..NicReport::default()
        })
    }
}

/// The index of the peer in a receiver's index: the upper 24 bits.
fn peer_of(receiver: u32) -> usize {
    (receiver >> 8).to_usize()
}

/// The destination of a packet in a frame of this type.
fn destination(kind: u16, body: &[u8]) -> Option<Ip> {
    let header_bytes = match kind {
        ethernet::IPV4 => ip::V4_BYTES,
        ethernet::IPV6 => ip::V6_BYTES,
        _ => return None,
    };
    let (_, destination, _) = ip::ends(body.get(..header_bytes)?)?;
    Some(destination)
}

/// An IPv4 address as such, also where the socket has it mapped.
fn canonical(from: SocketAddr) -> SocketAddr {
    match from.ip().to_canonical() {
        ip if ip.is_ipv4() => SocketAddr::new(ip, from.port()),
        _ => from,
    }
}

/// The hardware address of every neighbour.
const PEER_ADDRESS: Mac = [0x02, 0x51, 0x57, 0x47, 0xff, 0xff];
/// MTUs: IPv6 needs 1280 (RFC 8200 section 5).
const MTU_BYTES: std::ops::RangeInclusive<usize> = 1280..=9000;
/// Datagrams of one peer that wait to be opened, at most.
const WAITING_MAX: usize = 256;
/// Packets of one peer that `boringtun` keeps until there is a session, at most.
const QUEUED_MAX: usize = 256;
/// Answers to the stack's questions that wait, at most.
const ANSWERS_MAX: usize = 64;
/// Batches of datagrams that one round reads.
const BATCHES_A_ROUND: usize = 8;
/// Handshakes a second beyond which senders have to prove their address.
const HANDSHAKES_A_SECOND: u64 = 100;
/// Peers, and networks of each, in a report: 70 KB of the 128 KiB that an answer may have.
const PEERS_REPORTED: usize = 128;
const NETWORKS_REPORTED: usize = 8;
/// Time between two looks at the tunnels' timers, which count in seconds.
const TIMERS_NS: u64 = 250_000_000;
/// Types of messages, in the first byte.
const COOKIE_REPLY: u8 = 3;
const DATA: u8 = 4;
const COOKIE_REPLY_BYTES: usize = 64;
/// A handshake's first message.
const HANDSHAKE_BYTES_MAX: usize = 148;

#[cfg(test)]
mod tests;
