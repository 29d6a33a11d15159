//! The socket of a tunnel, and its peers by the networks behind them.
//!
//! Must stay true: what waits to be sent is bounded; one network is behind one peer.

use super::{PeerOptions, WireguardOptions};
use crate::Cidr;
use crate::nic::{ETHERNET_BYTES_MAX, NicError};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustix::net::sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size};
use sidecore_net_stack::wire::Ip;
use sidecore_sys::message::{DATAGRAMS_MAX, send_datagrams};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;

/// The socket, and datagrams that wait to be sent.
pub(super) struct Outbox {
    pub(super) socket: UdpSocket,
    /// The socket takes both families, and IPv4 in mapped addresses.
    is_v6: bool,
    /// The longest datagram.
    pub(super) slot_bytes: usize,
    staged: Box<[u8]>,
    ends: Vec<(SocketAddr, usize)>,
}

impl Outbox {
    pub(super) fn open(options: &WireguardOptions) -> Result<Self, NicError> {
        let failed = |error| {
            let (name, listen) = (&options.name, options.listen);
            let what = format!(
                "cannot receive on UDP {listen} for `{name}`; another program may have that port \
                 (`nic.listen_port`)"
            );
            NicError::Os { what, error }
        };
        let socket = UdpSocket::bind(options.listen).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        // If this is refused, a burst loses more.
        set_socket_recv_buffer_size(&socket, BUFFER_BYTES).ok();
        set_socket_send_buffer_size(&socket, BUFFER_BYTES).ok();
        // A packet, the protocol's 32 bytes, and the padding of others.
        let slot_bytes = (options.mtu_bytes + ETHERNET_BYTES_MAX + 64).next_multiple_of(64);
        Ok(Self {
            socket,
            is_v6: options.listen.is_ipv6(),
            slot_bytes,
            staged: vec![0; DATAGRAMS_MAX * slot_bytes].into(),
            ends: Vec::with_capacity(DATAGRAMS_MAX),
        })
    }

    /// True if a datagram finds room, after what waits was sent if need be.
    pub(super) fn has_room(&mut self) -> bool {
        if self.ends.len() == DATAGRAMS_MAX {
            self.send();
        }
        self.ends.len() < DATAGRAMS_MAX
    }

    /// Stages a datagram; one that finds no room is lost.
    pub(super) fn put(&mut self, to: SocketAddr, datagram: &[u8]) {
        if !self.has_room() || datagram.len() > self.slot_bytes {
            return;
        }
        let to = match to {
            SocketAddr::V4(v4) if self.is_v6 => {
                SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port())
            }
            to => to,
        };
        // Slots of one size: the kernel takes all of them by one system call, without a copy in
        // between.
        let at = self.ends.len() * self.slot_bytes;
        self.staged[at..at + datagram.len()].copy_from_slice(datagram);
        self.ends.push((to, datagram.len()));
    }

    /// True if the kernel has taken all.
    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Sends staged datagrams, as far as the kernel takes them.
    pub(super) fn send(&mut self) {
        while !self.ends.is_empty() {
            let mut datagrams = [(NOWHERE, NOTHING); DATAGRAMS_MAX];
            let slots = self.staged.chunks_exact(self.slot_bytes);
            for (datagram, (slot, (to, length))) in datagrams.iter_mut().zip(slots.zip(&self.ends))
            {
                *datagram = (*to, &slot[..*length]);
            }
            let sent = send_datagrams(self.socket.as_fd(), &datagrams[..self.ends.len()]);
            // A full socket: they stay for the next round, and a datagram that finds no slot then
            // is lost.
            let Ok(sent @ 1..) = sent else {
                return;
            };
            let rest = sent * self.slot_bytes..self.ends.len() * self.slot_bytes;
            // Order is kept: the peer's window takes late packets, but a bounded number of them.
            self.staged.copy_within(rest, 0);
            self.ends.drain(..sent);
        }
    }
}

/// Peers by the networks behind them: the longest prefix decides.
pub(super) struct Routes {
    /// By family and length, the longest first.
    lengths: Vec<Length>,
}

/// Networks with prefixes of one length.
struct Length {
    is_v4: bool,
    /// Of 128 bits: IPv4 addresses are mapped.
    bits: u32,
    /// Sorted, with the index of the peer.
    networks: Vec<(u128, usize)>,
}

impl Routes {
    pub(super) fn new(peers: &[PeerOptions]) -> Result<Self, NicError> {
        let mut routes = Self {
            lengths: Vec::new(),
        };
        if peers.len() > PEERS_MAX {
            let reason = format!("a tunnel has {PEERS_MAX} peers at most");
            return Err(NicError::Options(reason));
        }
        for (index, peer) in peers.iter().enumerate() {
            let key = peer.public_key;
            if peers[..index].iter().any(|other| other.public_key == key) {
                let reason = format!("two peers have the key {}", STANDARD.encode(key));
                return Err(NicError::Options(reason));
            }
            for network in &peer.allowed {
                routes.insert(network, index)?;
            }
        }
        routes
            .lengths
            // The first hit of a search is the longest prefix.
            .sort_by_key(|length| std::cmp::Reverse(length.bits));
        Ok(routes)
    }

    fn insert(&mut self, network: &Cidr, peer: usize) -> Result<(), NicError> {
        let (address, bits) = (network.address, network.prefix_bits);
        let is_v4 = address.is_ipv4();
        let (bits_max, unused) = if is_v4 { (32, 96) } else { (128, 0) };
        if bits > bits_max {
            let reason = format!("{address}/{bits} has more bits than its address");
            return Err(NicError::Options(reason));
        }
        let bits = u32::from(bits) + unused;
        let known = self.lengths.iter().position(|length| {
            let of = (length.is_v4, length.bits);
            of == (is_v4, bits)
        });
        let known = known.unwrap_or_else(|| {
            self.lengths.push(Length {
                is_v4,
                bits,
                networks: Vec::new(),
            });
            self.lengths.len() - 1
        });
        let networks = &mut self.lengths[known].networks;
        let key = prefix(&Ip::from(address), bits);
        match networks.binary_search_by_key(&key, |(key, _)| *key) {
            // Listed twice for one peer, it does no harm.
            Ok(at) if networks[at].1 == peer => Ok(()),
            Ok(_) => {
                let bits = network.prefix_bits;
                let reason = format!("{address}/{bits} is behind two peers (`nic.peers.allowed`)");
                Err(NicError::Options(reason))
            }
            Err(at) => {
                networks.insert(at, (key, peer));
                Ok(())
            }
        }
    }

    /// The peer that `address` is behind.
    pub(super) fn find(&self, address: &Ip) -> Option<usize> {
        let is_v4 = address.is_v4();
        let mut lengths = self.lengths.iter().filter(|length| length.is_v4 == is_v4);
        lengths.find_map(|length| {
            let key = prefix(address, length.bits);
            let found = length.networks.binary_search_by_key(&key, |(key, _)| *key);
            Some(length.networks[found.ok()?].1)
        })
    }
}

/// The first `bits` of an address, 0 to 128; the others are 0.
fn prefix(address: &Ip, bits: u32) -> u128 {
    // A shift by all bits, for a prefix of none, would be an overflow.
    let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
    u128::from_be_bytes(address.0) & mask
}

/// No address: port 0 is never a sender's.
pub(super) const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
/// A datagram without bytes.
const NOTHING: &[u8] = &[];
/// The most peers of one tunnel.
const PEERS_MAX: usize = 1024;
/// The socket's buffers.
const BUFFER_BYTES: usize = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use sidecore_random::SplitMix;

    fn peer(number: u8, allowed: Vec<Cidr>) -> PeerOptions {
        PeerOptions {
            public_key: [number; 32],
            preshared_key: None,
            endpoint: None,
            allowed,
            keepalive_s: None,
        }
    }

    /// An address of few bits that vary, so that prefixes cover one another.
    fn address(random: &mut SplitMix) -> IpAddr {
        let bits = random.bits() & 0x8181_8181;
        let bytes = u32::try_from(bits).unwrap().to_be_bytes();
        if random.happens(0.5) {
            return IpAddr::from(bytes);
        }
        let mut long = [0; 16];
        long[..2].copy_from_slice(&bytes[..2]);
        long[14..].copy_from_slice(&bytes[2..]);
        IpAddr::from(long)
    }

    #[test]
    fn the_longest_prefix_is_found_as_by_a_look_at_all() {
        let mut random = SplitMix::new(3);
        for _ in 0..200 {
            let mut peers: Vec<PeerOptions> = (0..4).map(|it| peer(it, Vec::new())).collect();
            for index in 0..20 {
                let address = address(&mut random);
                let bits = random.below(if address.is_ipv4() { 33 } else { 129 });
                let network = Cidr {
                    address,
                    prefix_bits: u8::try_from(bits).unwrap(),
                };
                peers[index % 4].allowed.push(network);
                if Routes::new(&peers).is_err() {
                    peers[index % 4].allowed.pop();
                }
            }
            let routes = Routes::new(&peers).unwrap();
            for _ in 0..50 {
                let wanted = Ip::from(address(&mut random));
                let all = peers.iter().enumerate().flat_map(|(index, peer)| {
                    peer.allowed.iter().map(move |network| (index, network))
                });
                let fitting = all.filter(|(_, network)| {
                    wanted.shares_prefix(&Ip::from(network.address), network.prefix_bits)
                });
                let best = fitting.max_by_key(|(_, network)| network.prefix_bits);
                assert_eq!(routes.find(&wanted), best.map(|(index, _)| index));
            }
        }
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        let network = |text: &str, prefix_bits| Cidr {
            address: text.parse().unwrap(),
            prefix_bits,
        };
        let twice = |one, other| {
            let peers = [peer(1, vec![one]), peer(2, vec![other])];
            Routes::new(&peers).err().map(|error| error.to_string())
        };
        let said = twice(network("10.0.0.1", 24), network("10.0.0.2", 24)).unwrap();
        assert!(said.contains("two peers"), "{said}");
        assert!(twice(network("10.0.0.1", 24), network("10.0.0.2", 25)).is_none());
        assert!(twice(network("0.0.0.0", 0), network("::", 0)).is_none());
        let said = twice(network("10.0.0.1", 33), network("::", 0)).unwrap();
        assert!(said.contains("more bits"), "{said}");
        let same = [peer(1, Vec::new()), peer(1, Vec::new())];
        assert!(Routes::new(&same).is_err());
    }
}
