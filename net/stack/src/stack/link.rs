//! Hosts on the link: ARP, neighbour discovery, and addresses from router advertisements.
//!
//! Source: RFC 826, RFC 5227 (announcing), RFC 4861, RFC 4862, RFC 4291 appendix A.

use super::Stack;
use crate::shared::frames::Address;
use crate::shared::interface::{ADDRESSES_MAX, ALL_NODES, ALL_ROUTERS, Network, solicited_node};
use crate::shared::neighbors::Question;
use crate::wire::arp::{self, Arp};
use crate::wire::ethernet::{self, Ethernet};
use crate::wire::ip::{self, Packet};
use crate::wire::mld;
use crate::wire::ndisc::{self, Message, NeighborFlags, Prefix};
use crate::wire::{BROADCAST, Ip, Mac, group_mac};
use zerocopy::IntoBytes;

/// RFC 4861 section 10: RTR_SOLICITATION_INTERVAL and MAX_RTR_SOLICITATIONS.
const SOLICIT_NS: u64 = 4_000_000_000;
const SOLICITS_MAX: u8 = 3;
/// RFC 4861 section 6.1.2 and 7.1: messages that passed a router are rejected.
const HOPS_ON_LINK: u8 = 255;

/// State of stateless address autoconfiguration (RFC 4862): router solicitations.
#[derive(Debug, Default)]
pub(crate) struct Autoconfiguration {
    solicits: u8,
    next_ns: Option<u64>,
}

impl Autoconfiguration {
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.next_ns
    }
}

impl Stack {
    /// Configures the link: link-local address, groups of the addresses, the first router
    /// solicitation.
    pub(crate) fn begin_link(&mut self) {
        if self.common.config.autoconfigure {
            let own = Network {
                address: link_local(&self.common.interface.mac),
                prefix_bits: 64,
            };
            self.common.interface.networks.push(own);
            self.autoconfiguration.next_ns = Some(0);
        }
        let networks = self.common.interface.networks.clone();
        for network in networks {
            self.announce(&network.address);
        }
    }

    /// Announces one of our addresses on the link: RFC 5227 section 2.3, RFC 4861 section 7.2.6;
    /// and joins its solicited-node group (RFC 4291 section 2.8).
    fn announce(&mut self, address: &Ip) {
        if address.is_v4() {
            let own = address.last_four();
            self.push_arp(arp::Operation::Request, BROADCAST, [0; 6], own, own);
        } else {
            self.report_group(&solicited_node(address), mld::Record::Joined);
            self.push_advertisement(address, &ALL_NODES, group_mac(&ALL_NODES), false);
        }
    }

    pub(crate) fn run_link_timers(&mut self) {
        let Some(at) = self.autoconfiguration.next_ns else {
            return;
        };
        let now_ns = self.common.now_ns;
        if now_ns < at {
            return;
        }
        // RFC 4861 section 6.3.7.
        self.autoconfiguration.solicits += 1;
        let again = self.autoconfiguration.solicits < SOLICITS_MAX;
        self.autoconfiguration.next_ns = again.then_some(now_ns + SOLICIT_NS);
        let address = Address {
            mac: group_mac(&ALL_ROUTERS),
            source: link_local(&self.common.interface.mac),
            destination: ALL_ROUTERS,
            protocol: ip::ICMPV6,
            hops: HOPS_ON_LINK,
        };
        let (own, to) = (&address.source, &address.destination);
        let message = ndisc::router_solicitation(own, to, self.common.interface.mac);
        self.push_discovery(&address, &message);
    }

    /// An ARP packet: RFC 826's algorithm.
    pub(crate) fn arrive_arp(&mut self, bytes: &[u8]) {
        let Some(Arp {
            operation,
            sender_mac,
            sender,
            target,
            ..
        }) = Arp::parse(bytes)
        else {
            self.common.counters.malformed += 1;
            return;
        };
        let stranger = Ip::v4(sender);
        // RFC 5227 section 2.1.1: a probe has no sender. Group addresses belong to no station.
        let martian = sender != [0; 4] && stranger.is_martian_source();
        if martian || sender_mac[0] & 1 != 0 {
            self.common.counters.martians += 1;
            return;
        }
        let ours = self.common.interface.is_ours(&Ip::v4(target));
        if sender != [0; 4] && !self.common.interface.is_ours(&Ip::v4(sender)) {
            let now_ns = self.common.now_ns;
            // Updated if known; added only if the packet is addressed to us.
            self.common
                .neighbors
                .learn(&Ip::v4(sender), sender_mac, ours, now_ns);
        }
        if ours && operation == arp::Operation::Request {
            self.push_arp(
                arp::Operation::Reply,
                sender_mac,
                sender_mac,
                target,
                sender,
            );
        }
    }

    fn push_arp(
        &mut self,
        operation: arp::Operation,
        to: Mac,
        target_mac: Mac,
        source: [u8; 4],
        target: [u8; 4],
    ) {
        let own = self.common.interface.mac;
        let packet = Arp {
            operation,
            sender_mac: own,
            sender: source,
            target_mac,
            target,
        };
        let len = ethernet::HEADER_BYTES + arp::BYTES;
        if let Some(frame) = self.common.control.push(len) {
            let (head, body) = frame.split_at_mut(ethernet::HEADER_BYTES);
            head.copy_from_slice(Ethernet::new(to, own, ethernet::ARP).as_bytes());
            body.copy_from_slice(&packet.to_bytes());
        }
    }

    /// Requests a neighbour's address: from all, or from the one that had the address.
    pub(crate) fn ask(&mut self, question: &Question) {
        let Some(source) = self.common.interface.source_for(&question.ip) else {
            return;
        };
        let ip = question.ip;
        if ip.is_v4() {
            let to = question.mac.unwrap_or(BROADCAST);
            let target = ip.last_four();
            self.push_arp(
                arp::Operation::Request,
                to,
                [0; 6],
                source.last_four(),
                target,
            );
            return;
        }
        // RFC 4861 section 7.2.2.
        let group = solicited_node(&ip);
        let address = Address {
            mac: question.mac.unwrap_or(group_mac(&group)),
            source,
            destination: if question.mac.is_some() { ip } else { group },
            protocol: ip::ICMPV6,
            hops: HOPS_ON_LINK,
        };
        let (own, to) = (&address.source, &address.destination);
        let message = ndisc::neighbor_solicitation(own, to, &ip, self.common.interface.mac);
        self.push_discovery(&address, &message);
    }

    fn push_discovery(&mut self, address: &Address, message: &[u8]) {
        self.common.push_packet(address, message.len(), |bytes| {
            bytes.copy_from_slice(message)
        });
    }

    fn push_advertisement(&mut self, own: &Ip, to: &Ip, mac: Mac, solicited: bool) {
        let address = Address {
            mac,
            source: *own,
            destination: *to,
            protocol: ip::ICMPV6,
            hops: HOPS_ON_LINK,
        };
        let flags = NeighborFlags {
            router: false,
            solicited,
            replaces: true,
        };
        let message = ndisc::neighbor_advertisement(own, to, flags, self.common.interface.mac);
        self.push_discovery(&address, &message);
    }

    /// Processes a neighbour discovery message with a correct checksum.
    pub(crate) fn arrive_discovery(&mut self, packet: &Packet, message: &Message<'_>, from: Mac) {
        if packet.hops != HOPS_ON_LINK {
            self.common.counters.malformed += 1;
            return;
        }
        match *message {
            Message::NeighborSolicitation { target, source } => {
                if !self.common.interface.is_ours(&target) {
                    return;
                }
                if packet.source.is_unspecified() {
                    // RFC 4861 section 7.1.1: only to the target's group, and without an address.
                    if source.is_some() || packet.destination != solicited_node(&target) {
                        self.common.counters.malformed += 1;
                        return;
                    }
                    // RFC 4862 section 5.4.3: another host wants our address; it is in use.
                    let mac = group_mac(&ALL_NODES);
                    self.push_advertisement(&target, &ALL_NODES, mac, false);
                    return;
                }
                // A reply never goes to a group, whatever the option contains.
                let mac = source.filter(|mac| mac[0] & 1 == 0);
                let mac = mac.unwrap_or(from);
                let now_ns = self.common.now_ns;
                self.common
                    .neighbors
                    .learn(&packet.source, mac, true, now_ns);
                self.push_advertisement(&target, &packet.source, mac, true);
            }
            Message::NeighborAdvertisement { flags, .. }
                if flags.solicited && packet.destination.is_multicast() =>
            {
                // RFC 4861 section 7.1.2: a solicited reply is unicast.
                self.common.counters.malformed += 1;
            }
            Message::NeighborAdvertisement { target, mac, .. }
                if !self.common.interface.is_ours(&target) =>
            {
                let (mac, now_ns) = (mac.unwrap_or(from), self.common.now_ns);
                self.common.neighbors.learn(&target, mac, false, now_ns);
            }
            Message::RouterAdvertisement {
                router_s,
                source,
                options,
            } if self.common.config.autoconfigure && packet.source.is_link_local_v6() => {
                self.autoconfiguration.next_ns = None;
                let now_ns = self.common.now_ns;
                if let Some(mac) = source {
                    self.common
                        .neighbors
                        .learn(&packet.source, mac, true, now_ns);
                }
                // RFC 4861 section 6.3.4: adds or removes a default router.
                let all = Network {
                    address: super::sessions::ANY_V6,
                    prefix_bits: 0,
                };
                let gateways = &mut self.common.interface.gateways;
                gateways.retain(|(_, gateway)| *gateway != packet.source);
                if router_s > 0 && gateways.len() < ADDRESSES_MAX {
                    gateways.push((all, packet.source));
                }
                for prefix in options.prefixes() {
                    // RFC 4862 section 5.5.3.
                    if prefix.autonomous && prefix.bits == 64 && prefix.valid_s > 0 {
                        self.add_from_prefix(&prefix);
                    }
                }
            }
            _ => {}
        }
    }

    /// RFC 4862 section 5.5.3 (d): the prefix, and our interface identifier.
    fn add_from_prefix(&mut self, told: &Prefix) {
        let prefix = &told.prefix;
        let mut address = link_local(&self.common.interface.mac);
        address.0[..8].copy_from_slice(&prefix.0[..8]);
        let networks = &mut self.common.interface.networks;
        let known = networks.iter().any(|own| own.address == address);
        if prefix.is_link_local_v6() || prefix.is_multicast() || known {
            return;
        }
        if networks.len() < ADDRESSES_MAX {
            networks.push(Network {
                address,
                // RFC 5942 section 4: other addresses of the prefix are on the link only if the
                // router says so.
                prefix_bits: if told.on_link { 64 } else { 128 },
            });
            self.announce(&address);
        }
    }

    /// Our current addresses, including those from routers.
    #[must_use]
    pub fn own_addresses(&self) -> Vec<(std::net::IpAddr, u8)> {
        let own = self.common.interface.networks.iter();
        own.map(|own| (own.address.to_std(), own.prefix_bits))
            .collect()
    }

    /// Networks that packets can be sent to, as an address in each and its prefix length: those on
    /// our links, and those behind gateways.
    #[must_use]
    pub fn reachable_networks(&self) -> Vec<(std::net::IpAddr, u8)> {
        let interface = &self.common.interface;
        let behind = interface.gateways.iter().map(|(network, _)| network);
        let all = interface.networks.iter().chain(behind);
        all.map(|network| (network.address.to_std(), network.prefix_bits))
            .collect()
    }
}

/// `fe80::` and the modified EUI-64 of the hardware address: RFC 4291 appendix A.
fn link_local(mac: &Mac) -> Ip {
    let [a, b, c, d, e, f] = *mac;
    Ip([
        0xfe,
        0x80,
        0,
        0,
        0,
        0,
        0,
        0,
        a ^ 2,
        b,
        c,
        0xff,
        0xfe,
        d,
        e,
        f,
    ])
}
