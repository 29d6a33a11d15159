//! Opening a session: its initial state, and the sizes that both ends agree on.
//!
//! Source: RFC 9293 sections 3.7.1 and 3.10.1, RFC 6691, RFC 7323 section 2, RFC 6928.

use super::Session;
use super::ecn::Side;
use crate::congestion::initial_window;
use crate::state::flags::Flags;
use crate::state::hot::State;
use crate::state::window::Scales;
use crate::wire::Ip;
use crate::wire::ip::{V4_BYTES, V6_BYTES};
use crate::wire::tcp::{HEADER_BYTES, TIMESTAMPS_BYTES};

/// A peer cannot make us send smaller segments than this (CVE-2019-11479).
const MSS_MIN: u16 = 48;
/// The largest window of a SYN, which is never scaled (RFC 7323 section 2.2).
pub(crate) const FIRST_WINDOW_MAX: u32 = 0xffff;
/// Segments of a young session that are acknowledged at once.
const QUICK_FIRST: u8 = 16;

impl Session<'_> {
    /// Initializes a session whose addresses and next hop are set.
    pub(crate) fn prepare(&mut self) {
        let ends = self.path.ends();
        let config = &self.common.config;
        self.path.send_bytes = config.send_bytes;
        self.path.receive_bytes = config.receive_bytes;
        self.cold.keepalive.configure(config.keepalive);
        self.cold.quick = QUICK_FIRST;
        self.cold.opened_ns = self.common.now_ns;
        self.hot.timestamps.offset = self.common.secrets.timestamp_offset(&ends);
        self.cold.iss = self.common.secrets.isn(&ends, self.common.now_ns);
        self.hot.send.una = self.cold.iss;
        self.path.small_end = self.cold.iss;
        self.cold.flight.restart(self.cold.iss);
        self.hot.send.nxt = self.cold.iss + 1;
        self.cold.scaling = config.offers.window_scaling;
        self.path.scales = Scales::new(0, config.window_scale);
        self.hot.set(Flags::QUICK);
        if config.no_delay {
            self.hot.set(Flags::NO_DELAY);
        }
        let (unsent_low, congestion) = (config.unsent_low_bytes, config.congestion);
        self.choose_congestion(congestion);
        self.set_unsent_low(unsent_low);
        // Until the peer announces its MSS.
        self.hot.mss = self.largest_mss();
        self.hot.send.cwnd = initial_window(u32::from(self.hot.mss));
    }

    /// Our largest MSS: of the path, or the application's limit (`TCP_MAXSEG`).
    pub(crate) fn largest_mss(&self) -> u16 {
        let path = mss_of(self.path.mtu, &self.path.local);
        match self.cold.mss_max {
            0 => path,
            requested => path.min(requested),
        }
    }

    /// Our side of the negotiation of ECN.
    pub(crate) fn side(&self) -> Side {
        Side {
            config: self.common.config.ecn,
            state: self.hot.state(),
            retries: syns_resent(self),
        }
    }

    /// True if our first SYN has not been sent yet, so that options announced in it may change.
    pub(crate) fn is_unsaid(&self) -> bool {
        self.hot.state() == State::Closed
            || self.hot.state() == State::SynSent
                && self.hot.has(Flags::SEND_SYN)
                && syns_resent(self) == 0
    }

    /// Sets the payload of a full segment, from the path, the peer's MSS and our options: RFC 6691.
    pub(crate) fn set_mss(&mut self) {
        let mut mss = self.largest_mss().min(self.cold.peer_mss.max(MSS_MIN));
        if self.hot.has(Flags::TIMESTAMPS) {
            mss -= TIMESTAMPS_BYTES;
        }
        self.hot.mss = mss;
    }

    /// Begins an active open: RFC 9293 section 3.10.1.
    pub(crate) fn begin_connect(&mut self) {
        self.hot.set_state(State::SynSent);
        self.hot.receive.edge =
            self.hot.receive.nxt + self.path.receive_bytes.min(FIRST_WINDOW_MAX);
        self.hot.set(Flags::SEND_SYN);
        self.make_ready();
    }

    /// The path MTU has become smaller: RFC 8201 section 4, RFC 1191 section 6.3.
    pub(crate) fn path_shrank(&mut self, mtu: u16) {
        let least = if self.path.local.is_v4() { 552 } else { 1280 };
        let mtu = mtu.max(least);
        if mtu >= self.path.mtu {
            return;
        }
        self.path.mtu = mtu;
        // The NIC must not cut into the old size.
        self.set_mss();
        if self.hot.send.in_flight() > 0 && self.hot.state().is_synchronized() {
            // Larger segments will never arrive. Not a sign of congestion: the window stays.
            let mss = u32::from(self.hot.mss);
            let scoreboard = self.scoreboard();
            for index in 0..scoreboard.records.len() {
                if scoreboard.records[index].range.len() > mss {
                    scoreboard.lose(index);
                }
            }
            self.make_ready();
        }
        self.common.counters.paths_shrunk += 1;
    }
}

/// Retransmissions of our SYN or SYN-ACK that the NIC has taken.
pub(crate) fn syns_resent(session: &Session<'_>) -> u8 {
    session
        .path
        .retries
        .saturating_sub(session.cold.syns_refused)
}

/// The smallest window scale that can advertise a whole buffer: RFC 7323 section 2.
pub(crate) fn scale_for(bytes: u32) -> u8 {
    (0..SCALE_MAX)
        .find(|&scale| bytes >> scale <= FIRST_WINDOW_MAX)
        .unwrap_or(SCALE_MAX)
}

/// MSS of a path between addresses of this one's family: RFC 9293 section 3.7.1.
pub(crate) fn mss_of(mtu: u16, local: &Ip) -> u16 {
    let ip_bytes = if local.is_v4() { V4_BYTES } else { V6_BYTES };
    mtu - (ip_bytes + HEADER_BYTES) as u16
}

/// RFC 7323 section 2.3.
const SCALE_MAX: u8 = 14;
