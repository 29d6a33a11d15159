//! Who is on the link: ARP, neighbour discovery, and addresses from router advertisements.
//!
//! Source: RFC 826, RFC 5227 (announcing), RFC 4861, RFC 4862, RFC 4291 appendix A.

use super::Stack;
use super::frames::Address;
use super::interface::{ADDRESSES_MAX, ALL_NODES, ALL_ROUTERS, Network, solicited_node};
use super::neighbors::Question;
use crate::wire::ethernet::{self, Ethernet};
use crate::wire::ip::{self, Packet};
use crate::wire::{BROADCAST, Ip, Mac, group_mac};
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, EthernetAddress, Icmpv6Packet, Icmpv6Repr,
    NdiscNeighborFlags, NdiscPrefixInfoFlags, NdiscRepr, RawHardwareAddress,
};
use std::net::Ipv6Addr;
use zerocopy::IntoBytes;

/// RFC 4861 section 10: RTR_SOLICITATION_INTERVAL and MAX_RTR_SOLICITATIONS.
const SOLICIT_NS: u64 = 4_000_000_000;
const SOLICITS_MAX: u8 = 3;
/// RFC 4861 section 6.1.2 and 7.1: nothing that passed a router is believed.
const HOPS_ON_LINK: u8 = 255;

/// What is asked of routers.
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
    /// What a stack does first: link-local address, groups of its addresses, a question for routers.
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

    /// Tells the link that an address is ours: RFC 5227 section 2.3, RFC 4861 section 7.2.6; and
    /// joins its solicited-node group (RFC 4291 section 2.8).
    fn announce(&mut self, address: &Ip) {
        if address.is_v4() {
            let own = address.last_four();
            self.push_arp(ArpOperation::Request, BROADCAST, [0; 6], own, own);
        } else {
            self.report_group(&solicited_node(address), true);
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
        let own = hardware(self.common.interface.mac);
        self.push_discovery(&address, &NdiscRepr::RouterSolicit { lladdr: Some(own) });
    }

    /// An ARP packet: RFC 826's algorithm.
    pub(crate) fn arrive_arp(&mut self, bytes: &[u8]) {
        let packet = ArpPacket::new_checked(bytes).and_then(|packet| ArpRepr::parse(&packet));
        let Ok(ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr,
            source_protocol_addr,
            target_protocol_addr,
            ..
        }) = packet
        else {
            self.common.counters.malformed += 1;
            return;
        };
        let sender = source_protocol_addr.octets();
        let target = target_protocol_addr.octets();
        let ours = self.common.interface.is_ours(&Ip::v4(target));
        if sender != [0; 4] && !self.common.interface.is_ours(&Ip::v4(sender)) {
            let now_ns = self.common.now_ns;
            let mac = source_hardware_addr.0;
            // Merged where it is known; added only if we are the one spoken to.
            self.common
                .neighbors
                .learn(&Ip::v4(sender), mac, ours, now_ns);
        }
        if ours && operation == ArpOperation::Request {
            let mac = source_hardware_addr.0;
            self.push_arp(ArpOperation::Reply, mac, mac, target, sender);
        }
    }

    fn push_arp(
        &mut self,
        operation: ArpOperation,
        to: Mac,
        target_mac: Mac,
        source: [u8; 4],
        target: [u8; 4],
    ) {
        let own = self.common.interface.mac;
        let packet = ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr: EthernetAddress(own),
            source_protocol_addr: source.into(),
            target_hardware_addr: EthernetAddress(target_mac),
            target_protocol_addr: target.into(),
        };
        let len = ethernet::HEADER_BYTES + packet.buffer_len();
        if let Some(frame) = self.common.control.push(len) {
            let (head, body) = frame.split_at_mut(ethernet::HEADER_BYTES);
            head.copy_from_slice(Ethernet::new(to, own, ethernet::ARP).as_bytes());
            packet.emit(&mut ArpPacket::new_unchecked(body));
        }
    }

    /// Asks for a neighbour: of all, or of the one that had the address.
    pub(crate) fn ask(&mut self, question: &Question) {
        let Some(source) = self.common.interface.source_for(&question.ip) else {
            return;
        };
        let ip = question.ip;
        if ip.is_v4() {
            let to = question.mac.unwrap_or(BROADCAST);
            let target = ip.last_four();
            self.push_arp(
                ArpOperation::Request,
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
        let own = hardware(self.common.interface.mac);
        self.push_discovery(
            &address,
            &NdiscRepr::NeighborSolicit {
                target_addr: Ipv6Addr::from(ip.0),
                lladdr: Some(own),
            },
        );
    }

    fn push_discovery(&mut self, address: &Address, message: &NdiscRepr<'_>) {
        let message = Icmpv6Repr::Ndisc(*message);
        let from = Ipv6Addr::from(address.source.0);
        let to = Ipv6Addr::from(address.destination.0);
        self.common
            .push_packet(address, message.buffer_len(), |bytes| {
                let mut packet = Icmpv6Packet::new_unchecked(bytes);
                message.emit(&from, &to, &mut packet, &ChecksumCapabilities::default());
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
        let mut flags = NdiscNeighborFlags::OVERRIDE;
        flags.set(NdiscNeighborFlags::SOLICITED, solicited);
        let lladdr = Some(hardware(self.common.interface.mac));
        self.push_discovery(
            &address,
            &NdiscRepr::NeighborAdvert {
                flags,
                target_addr: Ipv6Addr::from(own.0),
                lladdr,
            },
        );
    }

    /// A message of neighbour discovery whose checksum is right.
    pub(crate) fn arrive_discovery(&mut self, packet: &Packet, message: &NdiscRepr<'_>, from: Mac) {
        if packet.hops != HOPS_ON_LINK {
            self.common.counters.malformed += 1;
            return;
        }
        match *message {
            NdiscRepr::NeighborSolicit {
                target_addr,
                lladdr,
            } => {
                let target = Ip(target_addr.octets());
                if !self.common.interface.is_ours(&target) {
                    return;
                }
                if packet.source.is_unspecified() {
                    // RFC 4862 section 5.4.3: somebody wants our address; it is taken.
                    let mac = group_mac(&ALL_NODES);
                    self.push_advertisement(&target, &ALL_NODES, mac, false);
                    return;
                }
                let mac = lladdr.and_then(mac_of).unwrap_or(from);
                let now_ns = self.common.now_ns;
                self.common
                    .neighbors
                    .learn(&packet.source, mac, true, now_ns);
                self.push_advertisement(&target, &packet.source, mac, true);
            }
            NdiscRepr::NeighborAdvert {
                target_addr,
                lladdr,
                ..
            } => {
                let target = Ip(target_addr.octets());
                if let Some(mac) = lladdr.and_then(mac_of).or(Some(from))
                    && !self.common.interface.is_ours(&target)
                {
                    let now_ns = self.common.now_ns;
                    self.common.neighbors.learn(&target, mac, false, now_ns);
                }
            }
            NdiscRepr::RouterAdvert {
                router_lifetime,
                lladdr,
                prefix_info,
                ..
            } if self.common.config.autoconfigure && packet.source.is_link_local_v6() => {
                self.autoconfiguration.next_ns = None;
                let now_ns = self.common.now_ns;
                if let Some(mac) = lladdr.and_then(mac_of) {
                    self.common
                        .neighbors
                        .learn(&packet.source, mac, true, now_ns);
                }
                // RFC 4861 section 6.3.4: a default router, or no longer one.
                let all = Network {
                    address: super::sessions::ANY_V6,
                    prefix_bits: 0,
                };
                let gateways = &mut self.common.interface.gateways;
                gateways.retain(|(_, gateway)| *gateway != packet.source);
                if router_lifetime.secs() > 0 && gateways.len() < ADDRESSES_MAX {
                    gateways.push((all, packet.source));
                }
                if let Some(prefix) = prefix_info {
                    // RFC 4862 section 5.5.3.
                    let wanted = prefix.flags.contains(NdiscPrefixInfoFlags::ADDRCONF)
                        && prefix.prefix_len == 64
                        && prefix.valid_lifetime.secs() > 0;
                    if wanted {
                        self.add_from_prefix(&Ip(prefix.prefix.octets()));
                    }
                }
            }
            _ => {}
        }
    }

    /// RFC 4862 section 5.5.3 (d): the prefix, and our interface identifier.
    fn add_from_prefix(&mut self, prefix: &Ip) {
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
                prefix_bits: 64,
            });
            self.announce(&address);
        }
    }

    /// Our addresses now, with those that routers gave us.
    #[must_use]
    pub fn own_addresses(&self) -> Vec<(std::net::IpAddr, u8)> {
        let own = self.common.interface.networks.iter();
        own.map(|own| (own.address.to_std(), own.prefix_bits))
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

fn hardware(mac: Mac) -> RawHardwareAddress {
    RawHardwareAddress::from_bytes(&mac)
}

fn mac_of(address: RawHardwareAddress) -> Option<Mac> {
    Mac::try_from(address.as_bytes()).ok()
}
