//! How a stack is set up.

use crate::buffer::pool::BUFFER_BYTES_MAX;
use crate::error::NetError;
use crate::state::store::Placement;
use crate::tcp::cold::Keepalive;
use crate::tcp::congestion::Algorithm;
use sidecore_sys::HugePages;
use std::net::IpAddr;

/// An address and the length of its network's prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cidr {
    /// The address.
    pub address: IpAddr,
    /// Bits that its network shares.
    pub prefix_bits: u8,
}

/// A network behind a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    /// The network; with 0 bits, all.
    pub network: Cidr,
    /// Who knows the way; on one of our networks.
    pub gateway: IpAddr,
}

/// All that a stack is told when it is made.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// Ours.
    pub addresses: Vec<Cidr>,
    /// Beyond our own networks.
    pub routes: Vec<Route>,
    /// Whether router advertisements give us addresses and routes (RFC 4862).
    pub autoconfigure: bool,
    /// Where all randomness comes from; secret where outsiders are about.
    pub seed: u64,
    /// Sessions at once.
    pub sessions_max: usize,
    /// Where they lie.
    pub placement: Placement,
    /// All buffers together, in bytes.
    pub buffers_bytes: usize,
    /// Which huge pages control blocks, the table and buffers try for. What a machine wants is the
    /// caller's to know (`sidecore tlb --learn`): the core looks at no file.
    pub huge_pages: HugePages,
    /// A session's send ring, in bytes.
    pub send_bytes: u32,
    /// A session's receive ring, in bytes: its window.
    pub receive_bytes: u32,
    /// What our window is shifted by (RFC 7323), 0 to 14.
    pub window_scale: u8,
    /// Whether window scaling is offered.
    pub window_scaling: bool,
    /// Whether timestamps are (RFC 7323).
    pub timestamps: bool,
    /// Whether SACK is (RFC 2018).
    pub sack: bool,
    /// New sessions' congestion control.
    pub congestion: Algorithm,
    /// Whether new sessions do without Nagle's algorithm.
    pub no_delay: bool,
    /// How long an acknowledgment may wait, in microseconds (RFC 9293 section 3.8.6.3: below 500 ms).
    pub delayed_ack_us: u32,
    /// Two maximum segment lifetimes, in milliseconds.
    pub time_wait_ms: u32,
    /// What keepalive does where a session asks for it.
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
            huge_pages: HugePages::Transparent,
            send_bytes: 1 << 20,
            receive_bytes: 1 << 20,
            window_scale: 8,
            window_scaling: true,
            timestamps: true,
            sack: true,
            congestion: Algorithm::default(),
            no_delay: false,
            delayed_ack_us: 40_000,
            time_wait_ms: 60_000,
            keepalive: Keepalive::default(),
        }
    }
}

impl Config {
    /// Refuses what makes no sense.
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
        if self.delayed_ack_us > 500_000 {
            return Err(bad(
                "delayed_ack_us",
                &self.delayed_ack_us,
                "at most 500000 (RFC 9293)",
            ));
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
