//! Configuration of a stack.

use crate::buffer::pool::BUFFER_BYTES_MAX;
use crate::congestion::Algorithm;
use crate::error::NetError;
use crate::state::store::Placement;
use crate::wire::{Mac, ip};
use filter::Rule;
use std::net::IpAddr;

pub(crate) mod filter {
    //! The packet filter: packets that may open something.
    //!
    //! Segments of sessions that exist, and datagrams of a socket's own peer, pass without a look
    //! at the rules. So answers to what the stack has opened need no rule, and the path of data
    //! costs nothing. ARP, neighbour discovery, groups and ICMP errors pass as well: without them
    //! a link does not work, and each has checks of its own.
    //!
    //! Must stay true: the verdict depends on the packet and the configuration only, so that all
    //! stacks of a shard come to the same one.

    use super::Cidr;
    use crate::secrets::Ends;
    use crate::wire::Ip;

    /// The fate of a packet.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Verdict {
        /// It is processed.
        Allow,
        /// It is dropped in silence.
        Drop,
        /// It is answered as if no socket were there: by a reset, or "port unreachable". Other
        /// packets than TCP's and UDP's are dropped.
        Reject,
    }

    /// A protocol that rules can name.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum RuleProtocol {
        /// TCP.
        Tcp,
        /// UDP.
        Udp,
        /// Echo requests of ICMP and ICMPv6.
        Echo,
    }

    /// A rule: it fits a packet that has all that it names.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Rule {
        /// The fate of packets that it fits.
        pub verdict: Verdict,
        /// Sources.
        pub from: Option<Cidr>,
        /// Destinations: addresses of ours, and groups.
        pub to: Option<Cidr>,
        /// The protocol.
        pub protocol: Option<RuleProtocol>,
        /// Our ports, the first and the last; such a rule fits TCP and UDP only.
        pub ports: Option<(u16, u16)>,
        /// The same for the peer's port.
        pub peer_ports: Option<(u16, u16)>,
    }

    impl Rule {
        fn fits(&self, protocol: Option<RuleProtocol>, ends: &Ends) -> bool {
            let has_ports = matches!(protocol, Some(RuleProtocol::Tcp | RuleProtocol::Udp));
            let is_in = |network: Option<Cidr>, address: &Ip| {
                network.is_none_or(|network| {
                    Ip::from(network.address).shares_prefix(address, network.prefix_bits)
                })
            };
            let is_among = |ports: Option<(u16, u16)>, port: u16| {
                ports.is_none_or(|(first, last)| has_ports && (first..=last).contains(&port))
            };
            (self.protocol.is_none() || self.protocol == protocol)
                && is_among(self.ports, ends.local_port)
                && is_among(self.peer_ports, ends.remote_port)
                && is_in(self.from, &ends.remote)
                && is_in(self.to, &ends.local)
        }
    }

    /// The verdict about a packet; `protocol` is none for one that rules cannot name.
    pub(crate) fn judge(rules: &[Rule], protocol: Option<RuleProtocol>, ends: &Ends) -> Verdict {
        let found = rules.iter().find(|rule| rule.fits(protocol, ends));
        found.map_or(Verdict::Allow, |rule| rule.verdict)
    }
}

/// An address and its prefix length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cidr {
    /// The address.
    pub address: IpAddr,
    /// Prefix length of its network, in bits.
    pub prefix_bits: u8,
}

/// A network behind a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The network; with 0 bits, the default route.
    pub network: Cidr,
    /// The next hop; in one of our networks.
    pub gateway: IpAddr,
}

/// A preferred source address: packets to `network` leave from `source` unless a socket has an
/// address of its own. The longest prefix decides; without one, RFC 6724 section 5 does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PreferredSource {
    /// The destinations.
    pub network: Cidr,
    /// One of our addresses.
    pub source: IpAddr,
}

/// A neighbour with a fixed hardware address: it is never asked for, and no message replaces it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FixedNeighbor {
    /// Its address.
    pub address: IpAddr,
    /// Its hardware address.
    pub mac: Mac,
}

/// Use of explicit congestion notification by TCP (RFC 3168, RFC 9768), as Linux's `tcp_ecn`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ecn {
    /// Neither offered nor accepted: Linux's 0.
    Off,
    /// Accepted where the peer's SYN offers it, and never offered: Linux's 2.
    #[default]
    Passive,
    /// Offered in our SYNs, too: Linux's 1.
    Active,
    /// Offered in our SYNs and accepted, with counted marks if the peer supports it (RFC 9768), and
    /// as in RFC 3168 otherwise: Linux's 3.
    Accurate,
}

/// The model that TCP follows where Linux differs from the standards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Behaviour {
    /// The RFCs.
    #[default]
    Standard,
    /// Linux:
    ///
    /// - HyStart (Ha and Rhee, 2011) ends the first slow start, instead of HyStart++ (RFC 9406).
    /// - An echoed mark lowers the window by each acknowledgment of a round trip (RFC 9937's
    ///   rate reduction), instead of at once (RFC 3168 section 6.1.2).
    /// - A paced super-segment leaves whole, and the next one when its time is over, instead of a
    ///   token bucket.
    /// - The last segment of each burst has PSH, also if the link does not cut super-segments.
    /// - An acknowledgment of data that was never sent is dropped in silence, instead of answered
    ///   (RFC 9293 section 3.10.7.4).
    Linux,
}

/// The source of a stack's IPv4 addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ipv4Source {
    /// The configuration.
    #[default]
    Configuration,
    /// A DHCP server (RFC 2131), in addition to the configuration. Of several stacks with the same
    /// addresses only the first would ask: it is for a stack that is alone.
    Dhcp,
}

/// Configuration of a stack; fixed once the stack exists.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Own addresses.
    pub addresses: Vec<Cidr>,
    /// Routes to other networks.
    pub routes: Vec<Route>,
    /// Source addresses by destination.
    pub sources: Vec<PreferredSource>,
    /// Neighbours that are not asked for.
    pub neighbors: Vec<FixedNeighbor>,
    /// The packet filter: the first rule that fits decides; without one a packet is allowed.
    pub filter: Vec<Rule>,
    /// Stateless address autoconfiguration from router advertisements (RFC 4862).
    pub autoconfigure: bool,
    /// The source of the IPv4 addresses.
    pub ipv4: Ipv4Source,
    /// Seed of all random numbers; must be secret in an open network.
    pub seed: u64,
    /// Sessions at the same time.
    pub sessions_max: usize,
    /// Memory of the control blocks.
    pub placement: Placement,
    /// Bytes of all buffers together.
    pub buffers_bytes: usize,
    /// A session's send ring, in bytes.
    pub send_bytes: u32,
    /// A session's receive ring, in bytes: its window.
    pub receive_bytes: u32,
    /// Window scale that we announce (RFC 7323 section 2), 0 to 14.
    pub window_scale: u8,
    /// TCP's options that our SYNs offer, and that are accepted.
    pub offers: Offers,
    /// Hop limit of sent packets (RFC 9293 section 3.9.2, RFC 1122 section 3.2.1.7), 1 to 255.
    pub hops: u8,
    /// Traffic class of sent packets, unless a socket has its own: RFC 2474's six bits, the two of
    /// ECN are zero.
    pub traffic_class: u8,
    /// Explicit congestion notification (RFC 3168).
    pub ecn: Ecn,
    /// New sessions' congestion control.
    pub congestion: Algorithm,
    /// The model that TCP follows where Linux differs from the standards.
    pub behaviour: Behaviour,
    /// Paces windows of more than ten segments over the round trip, on paths of a millisecond or
    /// more.
    pub pacing: bool,
    /// Disables Nagle's algorithm on new sessions (`TCP_NODELAY`).
    pub no_delay: bool,
    /// Delayed-ACK timeout, in microseconds (RFC 9293 section 3.8.6.3: below 500 ms).
    pub delayed_ack_us: u32,
    /// Restarts with the initial congestion window after a pause of a retransmission timeout (RFC
    /// 5681 section 4.1).
    pub restart_after_idle: bool,
    /// Bound of written and unsent bytes of new sessions (`TCP_NOTSENT_LOWAT`); `u32::MAX` for no
    /// bound except the send buffer.
    pub unsent_low_bytes: u32,
    /// Segments that a super-segment may always carry. Beyond that, it carries the amount that the
    /// session sends in about a millisecond.
    pub burst_segments_min: u16,
    /// Two maximum segment lifetimes, in milliseconds.
    pub time_wait_ms: u32,
    /// Keepalive parameters of sessions that enable it.
    pub keepalive: Keepalive,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            addresses: Vec::new(),
            routes: Vec::new(),
            sources: Vec::new(),
            neighbors: Vec::new(),
            filter: Vec::new(),
            autoconfigure: false,
            ipv4: Ipv4Source::default(),
            seed: 0,
            sessions_max: 131_072,
            placement: Placement::default(),
            buffers_bytes: 1 << 30,
            send_bytes: 1 << 20,
            receive_bytes: 1 << 20,
            // 16 MiB, twice the largest buffer.
            window_scale: 8,
            offers: Offers::default(),
            hops: ip::HOPS,
            traffic_class: 0,
            ecn: Ecn::default(),
            congestion: Algorithm::default(),
            behaviour: Behaviour::default(),
            pacing: true,
            no_delay: false,
            // Linux's TCP_DELACK_MIN.
            delayed_ack_us: 40_000,
            restart_after_idle: true,
            unsent_low_bytes: u32::MAX,
            burst_segments_min: 2,
            // Linux's TCP_TIMEWAIT_LEN; RFC 9293 section 3.4.2 has an MSL of two minutes.
            time_wait_ms: 60_000,
            keepalive: Keepalive::default(),
        }
    }
}

impl Config {
    /// Rejects an invalid configuration.
    pub(crate) fn check(&self) -> Result<(), NetError> {
        let bad = |what, value: &dyn ToString, rule| NetError::Config {
            what,
            value: value.to_string(),
            rule,
        };
        let rings = 4096..=BUFFER_BYTES_MAX as u32;
        if !rings.contains(&self.send_bytes) {
            return Err(bad("send_bytes", &self.send_bytes, "4096 to 8388608"));
        }
        if !rings.contains(&self.receive_bytes) {
            return Err(bad("receive_bytes", &self.receive_bytes, "4096 to 8388608"));
        }
        if self.window_scale > 14 {
            return Err(bad(
                "window_scale",
                &self.window_scale,
                "0 to 14 (RFC 7323)",
            ));
        }
        if !(1..=1 << 24).contains(&self.sessions_max) {
            return Err(bad("sessions_max", &self.sessions_max, "1 to 16777216"));
        }
        if self.delayed_ack_us >= 500_000 {
            return Err(bad(
                "delayed_ack_us",
                &self.delayed_ack_us,
                "less than 500000 (RFC 9293)",
            ));
        }
        if self.hops == 0 {
            return Err(bad("hops", &self.hops, "1 to 255"));
        }
        self.check_link()
    }

    /// The same for what is about addresses.
    fn check_link(&self) -> Result<(), NetError> {
        let bad = |what, value: &dyn ToString, rule| NetError::Config {
            what,
            value: value.to_string(),
            rule,
        };
        if self.traffic_class & 3 != 0 {
            let rule = "without the two bits of ECN (RFC 3168)";
            return Err(bad("traffic_class", &self.traffic_class, rule));
        }
        let of_rules = self.filter.iter().flat_map(|rule| [rule.from, rule.to]);
        let of_sources = self.sources.iter().map(|one| one.network);
        let networks = self.addresses.iter().copied().chain(of_sources);
        for cidr in networks.chain(of_rules.flatten()) {
            let most = if cidr.address.is_ipv4() { 32 } else { 128 };
            if cidr.prefix_bits > most {
                return Err(bad(
                    "prefix_bits",
                    &cidr.prefix_bits,
                    "at most 32, 128 for IPv6",
                ));
            }
        }
        for one in &self.sources {
            let is_ours = self.addresses.iter().any(|own| own.address == one.source);
            if !is_ours || one.source.is_ipv4() != one.network.address.is_ipv4() {
                let rule = "one of `addresses`, of the network's family";
                return Err(bad("a preferred source", &one.source, rule));
            }
        }
        for one in &self.neighbors {
            let is_ours = self.addresses.iter().any(|own| own.address == one.address);
            if is_ours || one.address.is_multicast() || one.address.is_unspecified() {
                let rule = "the address of another host on the link";
                return Err(bad("a neighbor", &one.address, rule));
            }
            if one.mac[0] & 1 != 0 {
                let rule = "a hardware address that is no group's";
                return Err(bad("a neighbor", &format!("{:02x?}", one.mac), rule));
            }
        }
        for (what, count) in [
            ("the number of rules", self.filter.len()),
            ("the number of neighbors", self.neighbors.len()),
            ("the number of preferred sources", self.sources.len()),
        ] {
            if count > ENTRIES_MAX {
                return Err(bad(what, &count, "at most 1024"));
            }
        }
        Ok(())
    }
}

/// Rules, fixed neighbours and preferred sources, at most, of each: each packet that opens
/// something is compared with the rules one by one.
const ENTRIES_MAX: usize = 1024;

/// TCP's options in a SYN; all are offered by default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Offers {
    /// Window scaling (RFC 7323 section 2).
    pub window_scaling: bool,
    /// Timestamps (RFC 7323 section 3).
    pub timestamps: bool,
    /// Selective acknowledgments (RFC 2018 section 2).
    pub sack: bool,
}

impl Default for Offers {
    fn default() -> Self {
        Self {
            window_scaling: true,
            timestamps: true,
            sack: true,
        }
    }
}

/// RFC 9293 section 3.8.4 and RFC 1122 section 4.2.3.6: off by default, with a default of at least
/// two hours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// Silence before the first probe, in seconds.
    pub idle_s: u32,
    /// Interval between probes, in seconds.
    pub interval_s: u32,
    /// Probes before the session is aborted.
    pub probes: u8,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self {
            idle_s: 7200,
            interval_s: 75,
            probes: 9,
        }
    }
}
