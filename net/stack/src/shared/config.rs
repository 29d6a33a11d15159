//! Configuration of a stack.

use crate::buffer::pool::BUFFER_BYTES_MAX;
use crate::congestion::Algorithm;
use crate::error::NetError;
use crate::state::store::Placement;
use crate::wire::ip;
use std::net::IpAddr;

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

/// Configuration of a stack; fixed once the stack exists.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Own addresses.
    pub addresses: Vec<Cidr>,
    /// Routes to other networks.
    pub routes: Vec<Route>,
    /// Stateless address autoconfiguration from router advertisements (RFC 4862).
    pub autoconfigure: bool,
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
    /// Explicit congestion notification (RFC 3168).
    pub ecn: Ecn,
    /// New sessions' congestion control.
    pub congestion: Algorithm,
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
            autoconfigure: false,
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
            ecn: Ecn::default(),
            congestion: Algorithm::default(),
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
        for cidr in &self.addresses {
            let most = if cidr.address.is_ipv4() { 32 } else { 128 };
            if cidr.prefix_bits > most {
                return Err(bad(
                    "prefix_bits",
                    &cidr.prefix_bits,
                    "at most 32, 128 for IPv6",
                ));
            }
        }
        Ok(())
    }
}

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
