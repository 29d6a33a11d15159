//! Opening a session: our SYN and its reply, the peer's SYN and the rest of the handshake.
//!
//! Source: RFC 9293 sections 3.5 and 3.10.7.2 to 3.10.7.4, RFC 7323 sections 1.3 and 2, RFC 6928.

use super::Session;
use super::opening::Opening;
use crate::congestion::initial_window;
use crate::error::SessionError;
use crate::state::hot::{EcnFlags, Flags, State, Timer};
use crate::wire::ip;
use crate::wire::sequence::{before, before_or_at};
use crate::wire::tcp::{ACK, HEADER_BYTES, Options, RST, SYN, Segment, TIMESTAMPS_BYTES};

/// MSS of a peer whose SYN has no MSS option: RFC 9293 section 3.7.1, RFC 8200 section 5.
const MSS_DEFAULT_V4: u16 = 536;
const MSS_DEFAULT_V6: u16 = 1220;
/// A peer cannot make us send smaller segments than this (CVE-2019-11479).
const MSS_MIN: u16 = 48;
/// Segments of a young session that are acknowledged at once.
const QUICK_FIRST: u8 = 16;

impl Session<'_> {
    /// Initializes a session whose addresses and next hop are set.
    pub(crate) fn prepare(&mut self) {
        let ends = self.path.ends();
        let config = &self.common.config;
        self.path.send_bytes = config.send_bytes;
        self.path.receive_bytes = config.receive_bytes;
        self.cold.keepalive = config.keepalive;
        self.cold.quick = QUICK_FIRST;
        self.cold.opened_ns = self.common.now_ns;
        self.hot.ts_offset = self.common.secrets.timestamp_offset(&ends);
        self.cold.iss = self.common.secrets.isn(&ends, self.common.now_ns);
        self.hot.snd_una = self.cold.iss;
        self.path.small_end = self.cold.iss;
        self.cold.flight_end = self.cold.iss;
        self.hot.snd_nxt = self.cold.iss.wrapping_add(1);
        self.cold.scaling = config.window_scaling;
        self.hot.rcv_scale = config.window_scale;
        self.hot.set(Flags::QUICK);
        if config.no_delay {
            self.hot.set(Flags::NO_DELAY);
        }
        let (unsent_low, congestion) = (config.unsent_low_bytes, config.congestion);
        self.choose_congestion(congestion);
        self.set_unsent_low(unsent_low);
        // Until the peer announces its MSS.
        self.hot.mss = self.largest_mss();
        self.hot.cwnd = initial_window(u32::from(self.hot.mss));
    }

    /// Our largest MSS: of the path, or the application's limit (`TCP_MAXSEG`).
    pub(crate) fn largest_mss(&self) -> u16 {
        let path = self.path.mtu - ip::header_bytes(&self.path.local) as u16 - HEADER_BYTES as u16;
        match self.cold.mss_max {
            0 => path,
            requested => path.min(requested),
        }
    }

    /// Before our SYN is sent: sets the receive buffer, and the smallest window scale for it, as in
    /// Linux.
    pub(crate) fn set_first_window(&mut self, bytes: u32) {
        self.path.receive_bytes = bytes;
        self.hot.rcv_scale = scale_for(bytes);
        if self.hot.state() == State::SynSent {
            self.hot.rcv_edge = bytes.min(0xffff);
        }
    }

    /// True if our first SYN has not been sent yet, so that options announced in it may change.
    pub(crate) fn is_unsaid(&self) -> bool {
        self.hot.state() == State::Closed
            || self.hot.state() == State::SynSent
                && self.hot.has(Flags::SEND_SYN)
                && self.path.retries == 0
    }

    /// Sets the payload of a full segment, from the path, the peer's MSS and our options: RFC 6691.
    pub(crate) fn set_mss(&mut self) {
        let mut mss = self.largest_mss().min(self.cold.peer_mss.max(MSS_MIN));
        if self.hot.has(Flags::TIMESTAMPS) {
            mss -= TIMESTAMPS_BYTES as u16;
        }
        self.hot.mss = mss;
    }

    /// Begins an active open: RFC 9293 section 3.10.1.
    pub(crate) fn begin_connect(&mut self) {
        self.hot.set_state(State::SynSent);
        self.hot.rcv_edge = 0xffff.min(self.path.receive_bytes);
        self.hot.set(Flags::SEND_SYN);
        self.make_ready();
    }

    /// Negotiates the options of both SYNs.
    fn agree(&mut self, options: &Options, sequence: u32, opening: Opening) {
        self.agree_ecn(opening);
        let config = &self.common.config;
        let v4 = self.path.local.is_v4();
        let default = if v4 { MSS_DEFAULT_V4 } else { MSS_DEFAULT_V6 };
        self.cold.peer_mss = options.mss.unwrap_or(default);
        let timestamps = options.timestamps.filter(|_| config.timestamps);
        let sack = options.sack_permitted && config.sack;
        // RFC 7323 section 2.2: windows are scaled only if both SYNs have the option.
        match options.scale.filter(|_| config.window_scaling) {
            Some(scale) => self.hot.snd_scale = scale,
            None => {
                self.cold.scaling = false;
                self.hot.snd_scale = 0;
                self.hot.rcv_scale = 0;
            }
        }
        self.hot.clear(Flags::TIMESTAMPS | Flags::SACK);
        if let Some((value, _)) = timestamps {
            self.hot.set(Flags::TIMESTAMPS);
            self.hot.ts_recent = value;
        }
        if sack {
            self.hot.set(Flags::SACK);
        }
        self.cold.irs = sequence;
        self.hot.rcv_nxt = sequence.wrapping_add(1);
        self.hot.rcv_acked = self.hot.rcv_nxt;
        // The window of a SYN is never scaled, so the peer knows of no more than this.
        let window = self.path.receive_bytes.min(0xffff);
        self.hot.rcv_edge = self.hot.rcv_nxt.wrapping_add(window);
        self.hot.last_received_ms = self.common.now_ms;
        self.set_mss();
        self.hot.cwnd = initial_window(u32::from(self.hot.mss));
    }

    /// A listener's reply to a SYN: RFC 9293 section 3.10.7.2, third.
    pub(crate) fn begin_accept(&mut self, segment: &Segment<'_>) {
        self.agree(&segment.options, segment.sequence, Opening::of(segment));
        self.hot.set_state(State::SynReceived);
        // RFC 7323 section 2.2: not scaled in a SYN.
        self.hot.snd_wnd = u32::from(segment.window);
        self.hot.snd_wl1 = segment.sequence;
        self.hot.snd_wl2 = self.cold.iss;
        self.hot.set(Flags::SEND_SYN | Flags::EMBRYO);
        self.make_ready();
    }

    /// Creates the session of a valid SYN cookie; the segment is the last of the handshake.
    /// `opening`: of the SYN, as far as the cookie contains it.
    pub(crate) fn begin_cookie(
        &mut self,
        options: &Options,
        opening: Opening,
        segment: &Segment<'_>,
    ) {
        self.cold.iss = segment.acknowledgment.wrapping_sub(1);
        self.hot.snd_una = self.cold.iss;
        self.path.small_end = self.cold.iss;
        self.hot.snd_nxt = segment.acknowledgment;
        self.agree(options, segment.sequence.wrapping_sub(1), opening);
        self.hot.set_state(State::SynReceived);
        self.hot.set(Flags::EMBRYO);
    }

    /// RFC 9293 section 3.10.7.3.
    pub(crate) fn input_syn_sent(&mut self, segment: &Segment<'_>) {
        let ack = segment.acknowledgment;
        if segment.has(ACK) && (before_or_at(ack, self.cold.iss) || before(self.hot.snd_nxt, ack)) {
            if !segment.has(RST) {
                let hop = (self.path.neighbor, self.path.neighbor_generation);
                let ends = self.path.ends();
                self.common.send_reset(&ends, hop, ack, None);
            }
            return;
        }
        if segment.has(RST) {
            if segment.has(ACK) {
                self.common.counters.resets_received += 1;
                self.finish(Some(SessionError::Refused));
            }
            return;
        }
        if !segment.has(SYN) {
            return;
        }
        // The echoed timestamp is not checked here; Linux drops a SYN-ACK that echoes one that was
        // never sent (RFC 7323 section 3.2).
        self.agree(&segment.options, segment.sequence, Opening::of(segment));
        self.hot.snd_wnd = u32::from(segment.window);
        self.cold.window_max = self.hot.snd_wnd;
        self.hot.snd_wl1 = segment.sequence;
        self.hot.snd_wl2 = ack;
        if segment.has(ACK) {
            self.sample_opening(segment);
            self.hot.snd_una = ack;
            self.established();
            self.opening_marked(segment.ace());
            self.acknowledge_now();
        } else {
            // Simultaneous open: RFC 9293 section 3.5, figure 7.
            self.hot.set_state(State::SynReceived);
            self.hot.set(Flags::SEND_SYN);
            self.make_ready();
        }
    }

    /// The acknowledgment of our SYN-ACK; false if the segment is to be dropped.
    pub(crate) fn input_final_ack(&mut self, segment: &Segment<'_>) -> bool {
        let ack = segment.acknowledgment;
        if ack != self.cold.iss.wrapping_add(1) {
            // RFC 9293 section 3.10.7.4, fifth.
            let hop = (self.path.neighbor, self.path.neighbor_generation);
            let ends = self.path.ends();
            self.common.send_reset(&ends, hop, ack, None);
            return false;
        }
        // A session created from a cookie has not sent anything.
        if self.hot.sent_us != 0 {
            self.sample_opening(segment);
        }
        self.hot.snd_una = ack;
        self.hot.snd_wnd = u32::from(segment.window) << self.hot.snd_scale;
        self.cold.window_max = self.hot.snd_wnd;
        self.hot.snd_wl1 = segment.sequence;
        self.hot.snd_wl2 = ack;
        let marked = self.take_final_ack(segment);
        self.established();
        if marked {
            self.opening_marked(segment.ace());
        }
        true
    }

    /// The first round trip: of our SYN, or by its echo if it was retransmitted.
    fn sample_opening(&mut self, segment: &Segment<'_>) {
        let stamps = segment.options.timestamps;
        let stamps = stamps.filter(|_| self.hot.has(Flags::TIMESTAMPS));
        match (self.path.retries, stamps) {
            (0, _) => self.sample_rtt(self.common.now_us.wrapping_sub(self.hot.sent_us)),
            (_, Some((_, echo))) => self.sample_echo(echo),
            _ => {}
        }
    }

    fn established(&mut self) {
        self.hot.snd_nxt = self.hot.snd_una;
        self.hot.set_state(State::Established);
        self.hot.set_timer(Timer::None);
        self.hot.timer_at = 0;
        // RFC 6298 section 5.7: the SYN's back-off ends, but data then starts with 3 s.
        if self.path.retries > 0 && self.hot.srtt_us == 0 {
            self.hot.rttvar_us = super::rtt::TIMEOUT_AFTER_LOST_SYN_US;
        }
        // RFC 6928 section 2: one segment initially if more than one SYN was lost.
        if self.path.retries > 1 {
            self.hot.cwnd = u32::from(self.hot.mss);
        }
        self.path.retries = 0;
        self.hot.clear(Flags::SEND_SYN);
        self.common.counters.opened += 1;
        if self.hot.has_ecn(EcnFlags::NEGOTIATED) {
            self.common.counters.ecn_sessions += 1;
            self.common.counters.accurate_ecn_sessions += u64::from(self.is_accurate());
        }
        self.hot.duplicates = 0;
        if self.hot.has(Flags::FIN_QUEUED) {
            self.hot.set_state(State::FinWait1);
        }
        if self.hot.has(Flags::EMBRYO) {
            self.common.newly_established.push(self.number);
        }
        self.watch_keepalive();
        self.notify();
        if self.hot.tx.len() > 0 || self.hot.has(Flags::FIN_QUEUED) {
            self.make_ready();
        }
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
        if self.hot.in_flight() > 0 && self.hot.state().is_synchronized() {
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

/// The smallest window scale that can advertise a whole buffer: RFC 7323 section 2.
pub(crate) fn scale_for(bytes: u32) -> u8 {
    let bits = u32::BITS - bytes.leading_zeros();
    bits.saturating_sub(16).min(14) as u8
}
