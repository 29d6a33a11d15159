//! Own addresses, and the next hop towards any other.
//!
//! Source: RFC 1122 section 3.3.1, RFC 4861 section 5.2, RFC 6724 (partly: the source shares its
//! network with the next hop).

use super::config::{Cidr, Route};
use crate::frame::Capabilities;
use crate::wire::ip::{self, Packet};
use crate::wire::{Ip, Mac};

/// Addresses of a stack, at most; more are rejected.
pub(crate) const ADDRESSES_MAX: usize = 64;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Network {
    pub(crate) address: Ip,
    pub(crate) prefix_bits: u8,
}

/// A network behind a router.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Gateway {
    pub(crate) network: Network,
    pub(crate) router: Ip,
    /// From the router's advertisement, not configured.
    pub(crate) is_learnt: bool,
}

/// The interface: hardware address, IP addresses, groups and routes.
#[derive(Debug)]
pub(crate) struct Interface {
    pub(crate) mac: Mac,
    pub(crate) mtu_bytes: usize,
    pub(crate) super_bytes: usize,
    pub(crate) completes_checksums: bool,
    pub(crate) networks: Vec<Network>,
    pub(crate) gateways: Vec<Gateway>,
    /// Joined groups, with the number of joins.
    pub(crate) groups: Vec<(Ip, u32)>,
}

impl Interface {
    pub(crate) fn new(nic: &Capabilities, addresses: &[Cidr], routes: &[Route]) -> Self {
        let network = |cidr: &Cidr| Network {
            address: cidr.address.into(),
            prefix_bits: cidr.prefix_bits,
        };
        Self {
            mac: nic.address,
            mtu_bytes: nic.mtu_bytes,
            super_bytes: nic.super_segment_bytes.min(0xffff),
            completes_checksums: nic.completes_checksums,
            networks: addresses.iter().map(network).collect(),
            gateways: routes
                .iter()
                .map(|route| Gateway {
                    network: network(&route.network),
                    router: route.gateway.into(),
                    is_learnt: false,
                })
                .collect(),
            groups: Vec::new(),
        }
    }

    /// The link's MTU as packets count it: none has more than 64 KiB.
    pub(crate) fn mtu(&self) -> u16 {
        u16::try_from(self.mtu_bytes).unwrap_or(u16::MAX)
    }

    /// Payload bytes of a super-segment with headers of this length; 0 for none.
    pub(crate) fn super_payload(&self, headers: usize) -> u16 {
        u16::try_from(self.super_bytes.saturating_sub(headers)).unwrap_or(u16::MAX)
    }

    /// True if `address` is one of the interface's unicast addresses.
    #[inline]
    pub(crate) fn is_ours(&self, address: &Ip) -> bool {
        self.networks.iter().any(|own| own.address == *address)
    }

    /// True if `address` is a group joined by the interface, or the broadcast address.
    pub(crate) fn is_for_us_too(&self, address: &Ip) -> bool {
        if address.is_v4() {
            self.is_broadcast(address)
                || self.groups.iter().any(|(group, _)| group == address)
                || address.last_four() == [224, 0, 0, 1]
        } else {
            // RFC 4291 section 2.8: all nodes, and each address's solicited-node group.
            *address == ALL_NODES
                || self.groups.iter().any(|(group, _)| group == address)
                || self
                    .networks
                    .iter()
                    .any(|own| !own.address.is_v4() && solicited_node(&own.address) == *address)
        }
    }

    /// True for IPv4's limited broadcast address, and for the broadcast address of one of our
    /// networks.
    pub(crate) fn is_broadcast(&self, address: &Ip) -> bool {
        address.is_v4()
            && (address.last_four() == [255; 4]
                || self.networks.iter().any(|own| is_broadcast(own, address)))
    }

    /// True if no honest neighbour sends packets with this source. `from_self`: it was sent by this
    /// stack itself, where its own addresses are valid.
    #[inline]
    pub(crate) fn is_martian(&self, packet: &Packet, from_self: bool) -> bool {
        let source = &packet.source;
        source.is_martian_source()
            // RFC 4291 section 2.5.2: only in messages that get no reply.
            || source.is_unspecified() && packet.protocol != ip::ICMPV6
            || !from_self && self.is_ours(source)
            || self.networks.iter().any(|own| is_broadcast(own, source))
    }

    /// The next hop of a packet to `remote`.
    pub(crate) fn next_hop(&self, remote: &Ip) -> Option<Ip> {
        if remote.is_loopback() && !self.is_ours(remote) {
            // RFC 1122 section 3.2.1.3 (g), RFC 4291 section 2.5.3: never on the wire.
            return None;
        }
        if remote.is_multicast() || self.is_broadcast(remote) || self.is_on_link(remote) {
            return Some(*remote);
        }
        // The longest prefix.
        self.gateways
            .iter()
            .filter(|gateway| {
                let network = &gateway.network;
                network.address.shares_prefix(remote, network.prefix_bits)
            })
            .max_by_key(|gateway| gateway.network.prefix_bits)
            .map(|gateway| gateway.router)
    }

    pub(crate) fn is_on_link(&self, remote: &Ip) -> bool {
        remote.is_link_local_v6() && self.networks.iter().any(|own| !own.address.is_v4())
            || self
                .networks
                .iter()
                .any(|own| own.address.shares_prefix(remote, own.prefix_bits))
    }

    /// The source address for packets to `remote`.
    pub(crate) fn source_for(&self, remote: &Ip) -> Option<Ip> {
        let hop = self.next_hop(remote)?;
        let family = || {
            self.networks
                .iter()
                .filter(|own| own.address.is_v4() == remote.is_v4())
        };
        family()
            .find(|own| own.address.shares_prefix(&hop, own.prefix_bits))
            .or_else(|| {
                family().find(|own| own.address.is_link_local_v6() == remote.is_link_local_v6())
            })
            .or_else(|| family().next())
            .map(|own| own.address)
    }
}

/// `ff02::1`.
pub(crate) const ALL_NODES: Ip = Ip([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
/// `ff02::2`.
pub(crate) const ALL_ROUTERS: Ip = Ip([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);

/// RFC 4291 section 2.7.1.
pub(crate) fn solicited_node(address: &Ip) -> Ip {
    let [_, b, c, d] = address.last_four();
    Ip([0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, b, c, d])
}

fn is_broadcast(own: &Network, address: &Ip) -> bool {
    own.address.is_v4()
        && own.prefix_bits < 31
        && own.address.shares_prefix(address, own.prefix_bits)
        && u32::from_be_bytes(address.last_four())
            | (u32::MAX << (32 - u32::from(own.prefix_bits).max(1)))
            == u32::MAX
}
