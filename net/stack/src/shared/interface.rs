//! Own addresses, and the next hop towards any other.
//!
//! Source: RFC 1122 section 3.3.1, RFC 4861 section 5.2, RFC 6724 section 5 (rules 2, 6 and 8).
//! Among sources that are alike by rules 2 and 6, and always for IPv4, the one in the next hop's
//! network is taken.

use super::config::{Cidr, Config};
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
    pub(crate) cuts_datagrams: bool,
    pub(crate) networks: Vec<Network>,
    pub(crate) gateways: Vec<Gateway>,
    /// Networks, and our addresses that packets to them come from.
    sources: Vec<(Network, Ip)>,
    /// Joined groups, with the number of joins.
    pub(crate) groups: Vec<(Ip, u32)>,
    /// Addresses and routers from advertisements, and their ends; the largest time for none.
    ends: Vec<(Ip, u64)>,
}

impl Interface {
    pub(crate) fn new(nic: &Capabilities, config: &Config) -> Self {
        let network = |cidr: &Cidr| Network {
            address: cidr.address.into(),
            prefix_bits: cidr.prefix_bits,
        };
        Self {
            mac: nic.address,
            mtu_bytes: nic.mtu_bytes,
            super_bytes: nic.super_segment_bytes.min(0xffff),
            completes_checksums: nic.completes_checksums,
            cuts_datagrams: nic.cuts_datagrams,
            networks: config.addresses.iter().map(network).collect(),
            gateways: config
                .routes
                .iter()
                .map(|route| Gateway {
                    network: network(&route.network),
                    router: route.gateway.into(),
                    is_learnt: false,
                })
                .collect(),
            sources: config
                .sources
                .iter()
                .map(|one| (network(&one.network), one.source.into()))
                .collect(),
            groups: Vec::new(),
            ends: Vec::new(),
        }
    }

    /// The end of an address or a router from an advertisement; none for others.
    pub(crate) fn end_of(&self, learnt: &Ip) -> Option<u64> {
        let end = self.ends.iter().find(|(of, _)| of == learnt);
        end.map(|(_, end_ns)| *end_ns)
    }

    /// Sets it. Only an address or a router that is there may have one, which bounds their number.
    pub(crate) fn set_end(&mut self, learnt: &Ip, end_ns: Option<u64>) {
        self.ends.retain(|(of, _)| of != learnt);
        self.ends.extend(end_ns.map(|end_ns| (*learnt, end_ns)));
    }

    /// Removes an address or a router whose time is over, and returns it: RFC 4861 section 6.3.5,
    /// RFC 4862 section 5.5.4.
    pub(crate) fn end_learnt(&mut self, now_ns: u64) -> Option<Ip> {
        let at = self.ends.iter().position(|(_, end_ns)| *end_ns <= now_ns)?;
        let (ended, _) = self.ends.swap_remove(at);
        self.networks.retain(|own| own.address != ended);
        self.gateways
            .retain(|gateway| !gateway.is_learnt || gateway.router != ended);
        Some(ended)
    }

    /// The time when [`Self::end_learnt`] has work.
    pub(crate) fn next_end_ns(&self) -> Option<u64> {
        let ends = self.ends.iter().map(|(_, end_ns)| *end_ns);
        ends.min().filter(|end_ns| *end_ns < u64::MAX)
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
        let preferred = self.sources.iter();
        let preferred = preferred
            .filter(|(network, _)| network.address.shares_prefix(remote, network.prefix_bits))
            .max_by_key(|(network, _)| network.prefix_bits);
        if let Some((_, source)) = preferred {
            return Some(*source);
        }
        let own = self.networks.iter();
        let own = own.filter(|own| own.address.is_v4() == remote.is_v4());
        // From the end: among equals the first that was configured.
        own.rev()
            .max_by_key(|own| suitability(own, remote, &hop))
            .map(|own| own.address)
    }
}

/// Order of our addresses as sources of packets to `remote`, the best last: RFC 6724 section 5, the
/// rule 2 (the least scope that reaches it), 6 and 8. Before the last: routers drop packets whose
/// source is another router's (RFC 2827), so the next hop's network comes first.
fn suitability(own: &Network, remote: &Ip, hop: &Ip) -> (bool, u8, bool, bool, u32) {
    let is_near = own.address.shares_prefix(hop, own.prefix_bits);
    if remote.is_v4() {
        return (true, 0, true, is_near, 0);
    }
    let (scope, wanted) = (scope_of(&own.address), scope_of(remote));
    let reaches = scope >= wanted;
    let scope = if reaches { SCOPE_MAX - scope } else { scope };
    let is_alike = label_of(&own.address) == label_of(remote);
    let different = u128::from_be_bytes(own.address.0) ^ u128::from_be_bytes(remote.0);
    // Rule 8 as RFC 6724 section 2.2 has it: bits behind the prefix do not count.
    let common = different.leading_zeros().min(own.prefix_bits.into());
    (reaches, scope, is_alike, is_near, common)
}

/// RFC 4291 section 2.7, RFC 6724 section 3.1: the scope of an IPv6 address.
fn scope_of(address: &Ip) -> u8 {
    const LINK: u8 = 2;
    const GLOBAL: u8 = 14;
    if address.is_multicast() {
        address.0[1] & SCOPE_MAX
    } else if address.is_link_local_v6() || address.is_loopback() {
        LINK
    } else {
        GLOBAL
    }
}

/// The label of an IPv6 address by the default policy table: RFC 6724 section 2.1.
fn label_of(address: &Ip) -> u8 {
    match address.0 {
        [0xfc | 0xfd, ..] => 13,
        [0x20, 0x02, ..] => 2,
        [0x20, 0x01, 0, 0, ..] => 5,
        _ => 1,
    }
}

/// The largest scope.
const SCOPE_MAX: u8 = 15;

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

/// `fe80::` and the modified EUI-64 of the hardware address: RFC 4291 appendix A.
pub(crate) fn link_local(mac: &Mac) -> Ip {
    let [a, b, c, d, e, f] = *mac;
    let identifier = [a ^ 2, b, c, 0xff, 0xfe, d, e, f];
    let mut address = [0; 16];
    address[..2].copy_from_slice(&[0xfe, 0x80]);
    address[8..].copy_from_slice(&identifier);
    Ip(address)
}

/// The end of a lifetime in seconds; the largest number stands for none (RFC 4861 section 4.6.2).
pub(crate) fn end_ns(now_ns: u64, lifetime_s: u32) -> u64 {
    match lifetime_s {
        u32::MAX => u64::MAX,
        seconds => now_ns + u64::from(seconds) * 1_000_000_000,
    }
}
