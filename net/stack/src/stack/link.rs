//! Hosts on the link: ARP, neighbour discovery, and addresses from router advertisements.
//!
//! Source: RFC 826, RFC 5227 (announcing), RFC 4861, RFC 4862, RFC 4291 appendix A.

use crate::shared::Common;
use crate::shared::config::Ipv4Source;
use crate::shared::frames::Address;
use crate::shared::interface::{
    ADDRESSES_MAX, ALL_NODES, ALL_ROUTERS, Gateway, Network, end_ns, link_local, solicited_node,
};
use crate::shared::neighbors::Question;
use crate::wire::arp::{self, Arp};
use crate::wire::ip::{self, Packet};
use crate::wire::mld;
use crate::wire::ndisc::{self, Message, NeighborFlags, Prefix};
use crate::wire::{BROADCAST, Ip, Mac, group_mac};
use dhcp::Dhcp;

mod dhcp {
    //! The IPv4 address by DHCP: how it is got, renewed and given up.
    //!
    //! Must stay true: an answer counts in the state that waits for it only, and with the number of
    //! the last request; no address is used longer than it was granted. Source: RFC 2131 sections
    //! 4.1 and 4.4.

    use super::{ADDRESSES_MAX, Address, BROADCAST, Common, Gateway, Network};
    use crate::checksum::{Sum, pseudo};
    use crate::wire::udp::dhcp::{
        Answer, BYTES, CLIENT_PORT, Kind, SERVER_PORT, Wish, parse, request,
    };
    use crate::wire::udp::{HEADER_BYTES, Udp, length_of};
    use crate::wire::{Ip, ip};
    use zerocopy::IntoBytes;
    use zerocopy::network_endian::U16;

    /// The client.
    #[derive(Debug, Default)]
    pub(super) struct Dhcp {
        state: State,
        transaction: u32,
        /// Requests without an answer.
        tries: u8,
        next_ns: Option<u64>,
        /// Time of the first request that an answer may be to: times that are granted begin here.
        asked_ns: u64,
    }

    #[derive(Debug, Clone, Copy, Default)]
    enum State {
        #[default]
        Off,
        /// Servers are asked for offers.
        Selecting,
        /// A server is asked for what it has offered.
        Requesting(Answer),
        /// The address is ours until `end_ns`.
        Bound {
            granted: Answer,
            rebind_ns: u64,
            end_ns: u64,
        },
    }

    impl Dhcp {
        pub(super) fn next_ns(&self) -> Option<u64> {
            self.next_ns
        }

        pub(super) fn begin(&mut self, common: &mut Common) {
            self.state = State::Selecting;
            self.transaction = random(common);
            self.tries = 0;
            self.next_ns = Some(common.now_ns);
        }

        /// Sends what is due.
        pub(super) fn run(&mut self, common: &mut Common) {
            let now_ns = common.now_ns;
            if self.next_ns.is_none_or(|at| now_ns < at) {
                return;
            }
            match self.state {
                State::Off => self.next_ns = None,
                State::Selecting => self.ask(common, &Wish::Discover),
                State::Requesting(offer) if self.tries < TRIES_MAX => {
                    let (address, server) = (offer.address, offer.server);
                    self.ask(common, &Wish::Select { address, server });
                }
                State::Requesting(_) => self.begin(common),
                State::Bound {
                    granted, end_ns, ..
                } if end_ns <= now_ns => {
                    common.give_up(&granted);
                    self.begin(common);
                }
                State::Bound {
                    granted,
                    rebind_ns,
                    end_ns,
                } => {
                    self.transaction = random(common);
                    self.asked_ns = now_ns;
                    let address = granted.address;
                    let server = Some(granted.server).filter(|_| now_ns < rebind_ns);
                    common.push_request(&Wish::Renew { address }, self.transaction, server);
                    self.tries = self.tries.saturating_add(1);
                    // Section 4.4.5: again after half of the time that is left, a minute at least.
                    let until_ns = if now_ns < rebind_ns {
                        rebind_ns
                    } else {
                        end_ns
                    };
                    let wait_ns = ((until_ns - now_ns) / 2).max(RENEW_NS_MIN);
                    self.next_ns = Some((now_ns + wait_ns).min(until_ns));
                }
            }
        }

        /// Sends a request to all, and again after 4 to 64 s (section 4.1).
        fn ask(&mut self, common: &mut Common, wish: &Wish) {
            common.push_request(wish, self.transaction, None);
            if self.tries == 0 {
                self.asked_ns = common.now_ns;
            }
            let wait_ns = ASK_NS << self.tries.min(DOUBLINGS_MAX);
            self.tries = self.tries.saturating_add(1);
            self.next_ns = Some(common.now_ns + wait_ns + common.random.below(SPREAD_NS));
        }

        pub(super) fn arrive(&mut self, common: &mut Common, payload: &[u8]) {
            let Some(answer) = parse(payload, &common.interface.mac) else {
                return;
            };
            // An answer to no request, or to an earlier one.
            if answer.transaction != self.transaction || self.tries == 0 {
                return;
            }
            match (self.state, answer.kind) {
                (State::Selecting, Kind::Offer) => {
                    self.state = State::Requesting(answer);
                    self.tries = 0;
                    self.next_ns = Some(common.now_ns);
                }
                (State::Requesting(offer), Kind::Grant) if offer.address == answer.address => {
                    self.bind(common, answer);
                }
                (State::Requesting(offer), Kind::Refusal) if offer.server == answer.server => {
                    self.begin(common);
                    // One that offers and refuses is not asked again at once.
                    self.next_ns = Some(common.now_ns + ASK_NS);
                }
                (
                    State::Bound {
                        granted, rebind_ns, ..
                    },
                    _,
                ) if common.now_ns < rebind_ns && answer.server != granted.server => {
                    // Section 4.4.5: until then its own server alone renews it.
                }
                (State::Bound { granted, .. }, Kind::Grant)
                    if granted.address == answer.address =>
                {
                    common.give_up(&granted);
                    self.bind(common, answer);
                }
                (State::Bound { granted, .. }, Kind::Refusal) => {
                    common.give_up(&granted);
                    self.begin(common);
                }
                _ => {}
            }
        }

        fn bind(&mut self, common: &mut Common, granted: Answer) {
            let at = |seconds: u32| self.asked_ns + u64::from(seconds) * 1_000_000_000;
            let (renew_ns, end_ns) = (at(granted.renew_s), at(granted.lease_s));
            self.state = State::Bound {
                granted,
                rebind_ns: at(granted.rebind_s),
                end_ns,
            };
            self.tries = 0;
            // Not at once, whatever the server says: each answer would be followed by a request.
            let next_ns = renew_ns.max(common.now_ns + SPREAD_NS);
            self.next_ns = Some(next_ns.min(end_ns));
            common.take_on(&granted);
        }
    }

    impl Common {
        /// An address and its router are ours.
        fn take_on(&mut self, granted: &Answer) {
            let address = Ip::v4(granted.address);
            let prefix_bits = granted.prefix_bits;
            if self.interface.networks.len() < ADDRESSES_MAX {
                let network = Network {
                    address,
                    prefix_bits,
                };
                self.interface.networks.push(network);
            }
            if let Some(router) = granted.router {
                self.interface.gateways.push(Gateway {
                    network: Network {
                        address: Ip::v4([0; 4]),
                        prefix_bits: 0,
                    },
                    router: Ip::v4(router),
                    is_learnt: true,
                });
            }
            self.announce(&address);
        }

        /// They are no longer ours.
        fn give_up(&mut self, granted: &Answer) {
            let address = Ip::v4(granted.address);
            let networks = &mut self.interface.networks;
            // The last: the same one may be configured.
            if let Some(place) = networks.iter().rposition(|own| own.address == address) {
                networks.remove(place);
            }
            if !self.interface.is_ours(&address) {
                self.neighbors.disown(&address, self.interface.mac);
            }
            let router = granted.router.map(Ip::v4);
            let gateways = &mut self.interface.gateways;
            gateways.retain(|gateway| !gateway.is_learnt || Some(gateway.router) != router);
        }

        /// Sends a request to a server, or to all if there is none or its neighbour is not known.
        fn push_request(&mut self, wish: &Wish, transaction: u32, server: Option<[u8; 4]>) {
            let server = server.map(Ip::v4);
            let hop = server.and_then(|server| self.interface.next_hop(&server));
            let mac = hop.and_then(|hop| self.neighbors.known(&hop, self.now_ns));
            let all = (BROADCAST, Ip::v4([255; 4]));
            let (mac, destination) = mac.zip(server).unwrap_or(all);
            let source = match wish {
                Wish::Renew { address } => Ip::v4(*address),
                Wish::Discover | Wish::Select { .. } => Ip::v4([0; 4]),
            };
            let address = Address {
                mac,
                source,
                destination,
                protocol: ip::UDP,
                hops: self.config.hops,
                class: 0,
            };
            let len = HEADER_BYTES + BYTES;
            let header = Udp {
                source: U16::new(CLIENT_PORT),
                destination: U16::new(SERVER_PORT),
                bytes: U16::new(length_of(len)),
                checksum: [0; 2],
            };
            let message = request(wish, transaction, &self.interface.mac);
            self.push_packet(&address, len, |bytes| {
                bytes[..HEADER_BYTES].copy_from_slice(header.as_bytes());
                bytes[HEADER_BYTES..].copy_from_slice(&message);
                let sum = pseudo(&source, &destination, ip::UDP)
                    .plus_len(len)
                    .plus(Sum::of(bytes));
                bytes[6..8].copy_from_slice(&sum.field());
            });
        }
    }

    /// The number of a request.
    fn random(common: &mut Common) -> u32 {
        // The upper half of 64 bits always fits.
        u32::try_from(common.random.bits() >> 32).unwrap_or_default()
    }

    /// The first wait for an answer, how often it doubles, and what is added at random.
    const ASK_NS: u64 = 4_000_000_000;
    const DOUBLINGS_MAX: u8 = 4;
    const SPREAD_NS: u64 = 1_000_000_000;
    /// Requests for one offer.
    const TRIES_MAX: u8 = 4;
    /// The least time between two requests for a longer time.
    const RENEW_NS_MIN: u64 = 60_000_000_000;
}

/// RFC 4861 section 10: RTR_SOLICITATION_INTERVAL and MAX_RTR_SOLICITATIONS.
const SOLICIT_NS: u64 = 4_000_000_000;
const SOLICITS_MAX: u8 = 3;
/// RFC 4861 section 6.1.2 and 7.1: messages that passed a router are rejected.
const HOPS_ON_LINK: u8 = 255;

/// State of stateless address autoconfiguration (RFC 4862), its router solicitations, and of DHCP.
#[derive(Debug, Default)]
pub(crate) struct Autoconfiguration {
    solicits: u8,
    next_ns: Option<u64>,
    dhcp: Dhcp,
}

impl Autoconfiguration {
    pub(crate) fn next_ns(&self) -> Option<u64> {
        let both = [self.next_ns, self.dhcp.next_ns()];
        both.into_iter().flatten().min()
    }

    /// Processes a datagram to DHCP's port, whose checksum is correct.
    pub(crate) fn arrive_dhcp(&mut self, common: &mut Common, payload: &[u8]) {
        self.dhcp.arrive(common, payload);
    }

    /// Configures the link: link-local address, groups of the addresses, the first router
    /// solicitation.
    pub(crate) fn begin(&mut self, common: &mut Common) {
        if common.config.autoconfigure {
            let own = Network {
                address: link_local(&common.interface.mac),
                prefix_bits: 64,
            };
            common.interface.networks.push(own);
            self.next_ns = Some(0);
        }
        if common.config.ipv4 == Ipv4Source::Dhcp {
            self.dhcp.begin(common);
        }
        // Copied, because announcing needs all of the interface; this is rare.
        let networks = common.interface.networks.clone();
        for network in networks {
            common.announce(&network.address);
        }
    }

    /// Solicits routers, or asks for an address, when it is time.
    pub(crate) fn run(&mut self, common: &mut Common) {
        while let Some(ended) = common.interface.end_learnt(common.now_ns) {
            common.neighbors.disown(&ended, common.interface.mac);
        }
        self.dhcp.run(common);
        let Some(at) = self.next_ns else {
            return;
        };
        let now_ns = common.now_ns;
        if now_ns < at {
            return;
        }
        // RFC 4861 section 6.3.7.
        self.solicits += 1;
        let again = self.solicits < SOLICITS_MAX;
        self.next_ns = again.then_some(now_ns + SOLICIT_NS);
        let address = Address {
            mac: group_mac(&ALL_ROUTERS),
            source: link_local(&common.interface.mac),
            destination: ALL_ROUTERS,
            protocol: ip::ICMPV6,
            hops: HOPS_ON_LINK,
            class: 0,
        };
        let (own, to) = (&address.source, &address.destination);
        let message = ndisc::router_solicitation(own, to, common.interface.mac);
        common.push_discovery(&address, &message);
    }

    /// Processes a neighbour discovery message with a correct checksum.
    pub(crate) fn arrive_discovery(
        &mut self,
        common: &mut Common,
        packet: &Packet,
        message: &Message<'_>,
        from: Mac,
    ) {
        if packet.hops != HOPS_ON_LINK {
            common.counters.malformed += 1;
            return;
        }
        match *message {
            Message::NeighborSolicitation { target, source } => {
                if !common.interface.is_ours(&target) {
                    return;
                }
                if packet.source.is_unspecified() {
                    // RFC 4861 section 7.1.1: only to the target's group, and without an address.
                    if source.is_some() || packet.destination != solicited_node(&target) {
                        common.counters.malformed += 1;
                        return;
                    }
                    // RFC 4862 section 5.4.3: another host wants our address; it is in use.
                    let mac = group_mac(&ALL_NODES);
                    common.push_advertisement(&target, &ALL_NODES, mac, false);
                    return;
                }
                // A reply never goes to a group, whatever the option contains.
                let mac = source.filter(|mac| mac[0] & 1 == 0);
                let mac = mac.unwrap_or(from);
                let now_ns = common.now_ns;
                common.neighbors.learn(&packet.source, mac, true, now_ns);
                common.push_advertisement(&target, &packet.source, mac, true);
            }
            Message::NeighborAdvertisement { flags, .. }
                if flags.solicited && packet.destination.is_multicast() =>
            {
                // RFC 4861 section 7.1.2: a solicited reply is unicast.
                common.counters.malformed += 1;
            }
            Message::NeighborAdvertisement { target, mac, .. }
                if !common.interface.is_ours(&target) =>
            {
                let (mac, now_ns) = (mac.unwrap_or(from), common.now_ns);
                common.neighbors.learn(&target, mac, false, now_ns);
            }
            Message::RouterAdvertisement {
                router_s,
                source,
                options,
            } if common.config.autoconfigure && packet.source.is_link_local_v6() => {
                self.next_ns = None;
                if let Some(mac) = source {
                    let now_ns = common.now_ns;
                    common.neighbors.learn(&packet.source, mac, true, now_ns);
                }
                common.note_router(&packet.source, router_s.into());
                for prefix in options.prefixes() {
                    // RFC 4862 section 5.5.3.
                    if prefix.autonomous && prefix.bits == 64 {
                        common.add_from_prefix(&prefix);
                    }
                }
            }
            _ => {}
        }
    }
}

impl Common {
    /// RFC 4861 section 6.3.4: adds a default router for some time, or removes it.
    fn note_router(&mut self, router: &Ip, lifetime_s: u32) {
        let all = Network {
            address: super::sharing::ANY_V6,
            prefix_bits: 0,
        };
        let gateways = &mut self.interface.gateways;
        // An advertisement is about the default router only: configured routes stay.
        gateways.retain(|gateway| !gateway.is_learnt || gateway.router != *router);
        if lifetime_s > 0 && gateways.len() < ADDRESSES_MAX {
            gateways.push(Gateway {
                network: all,
                router: *router,
                is_learnt: true,
            });
            let end_ns = end_ns(self.now_ns, lifetime_s);
            self.interface.set_end(router, Some(end_ns));
        } else {
            self.interface.set_end(router, None);
        }
    }

    /// RFC 4862 section 5.5.3 (d): the prefix, and our interface identifier.
    fn add_from_prefix(&mut self, option: &Prefix) {
        let prefix = &option.prefix;
        let mut address = link_local(&self.interface.mac);
        address.0[..8].copy_from_slice(&prefix.0[..8]);
        let ends_ns = end_ns(self.now_ns, option.valid_s);
        if let Some(before_ns) = self.interface.end_of(&address) {
            // Section 5.5.3 (e): a forged message cannot end an address within two hours.
            let soon_ns = end_ns(self.now_ns, SOON_S).min(before_ns);
            let ends_ns = ends_ns.max(soon_ns);
            self.interface.set_end(&address, Some(ends_ns));
            return;
        }
        let networks = &mut self.interface.networks;
        let known = networks.iter().any(|own| own.address == address);
        if option.valid_s == 0 || prefix.is_link_local_v6() || prefix.is_multicast() || known {
            return;
        }
        // A router that advertises without end must not fill the table of addresses.
        if networks.len() < ADDRESSES_MAX {
            networks.push(Network {
                address,
                // RFC 5942 section 4: other addresses of the prefix are on the link only if the
                // router says so.
                prefix_bits: if option.on_link { 64 } else { 128 },
            });
            self.interface.set_end(&address, Some(ends_ns));
            self.announce(&address);
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
            self.counters.malformed += 1;
            return;
        };
        let stranger = Ip::v4(sender);
        // RFC 5227 section 2.1.1: a probe has no sender. Group addresses belong to no station.
        let martian = sender != [0; 4] && stranger.is_martian_source();
        if martian || sender_mac[0] & 1 != 0 {
            self.counters.martians += 1;
            return;
        }
        let ours = self.interface.is_ours(&Ip::v4(target));
        if sender != [0; 4] && !self.interface.is_ours(&Ip::v4(sender)) {
            let now_ns = self.now_ns;
            // Updated if known; added only if the packet is addressed to us.
            self.neighbors
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

    /// Requests a neighbour's address: from all, or from the one that had the address.
    pub(crate) fn ask(&mut self, question: &Question) {
        let Some(source) = self.interface.source_for(&question.ip) else {
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
            class: 0,
        };
        let (own, to) = (&address.source, &address.destination);
        let message = ndisc::neighbor_solicitation(own, to, &ip, self.interface.mac);
        self.push_discovery(&address, &message);
    }

    fn push_discovery(&mut self, address: &Address, message: &[u8]) {
        self.push_packet(address, message.len(), |bytes| {
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
            class: 0,
        };
        let flags = NeighborFlags {
            router: false,
            solicited,
            replaces: true,
        };
        let message = ndisc::neighbor_advertisement(own, to, flags, self.interface.mac);
        self.push_discovery(&address, &message);
    }
}

/// RFC 4862 section 5.5.3 (e).
const SOON_S: u32 = 7200;
