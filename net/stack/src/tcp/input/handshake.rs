//! The handshake: the peer's SYN, the reply to ours, and the acknowledgment that completes it.
//!
//! Source: RFC 9293 sections 3.5 and 3.10.7.2 to 3.10.7.4, RFC 7323 sections 1.3 and 2, RFC 6928.

use super::Input;
use crate::congestion::initial_window;
use crate::error::SessionError;
use crate::state::flags::Flags;
use crate::state::hot::State;
use crate::state::window::Scales;
use crate::tcp::ecn::Opening;
use crate::tcp::open::FIRST_WINDOW_MAX;
use crate::wire::sequence::Sequence;
use crate::wire::tcp::{ACK, Options, RST, SYN};

/// MSS of a peer whose SYN has no MSS option: RFC 9293 section 3.7.1, RFC 8200 section 5.
const MSS_DEFAULT_V4: u16 = 536;
const MSS_DEFAULT_V6: u16 = 1220;

impl Input<'_, '_> {
    /// Negotiates the options of both SYNs.
    fn agree(&mut self, options: &Options, sequence: Sequence, opening: Opening) {
        let side = self.session.side();
        let marks = self.session.ecn().agree(side, opening);
        self.session.common.counters.ecn_ce_received += u64::from(marks);
        let config = &self.session.common.config;
        let v4 = self.session.path.local.is_v4();
        let default = if v4 { MSS_DEFAULT_V4 } else { MSS_DEFAULT_V6 };
        self.session.cold.peer_mss = options.mss.unwrap_or(default);
        let timestamps = options.timestamps.filter(|_| config.offers.timestamps);
        let sack = options.sack_permitted && config.offers.sack;
        // RFC 7323 section 2.2: windows are scaled only if both SYNs have the option.
        match options.scale.filter(|_| config.offers.window_scaling) {
            Some(scale) => {
                self.session.path.scales = Scales::new(scale, self.session.path.scales.receive());
            }
            None => {
                self.session.cold.scaling = false;
                self.session.path.scales = Scales::default();
            }
        }
        self.session.hot.clear(Flags::TIMESTAMPS | Flags::SACK);
        if let Some((value, _)) = timestamps {
            self.session.hot.set(Flags::TIMESTAMPS);
            self.session.hot.timestamps.recent = value;
        }
        if sack {
            self.session.hot.set(Flags::SACK);
        }
        self.session.cold.irs = sequence;
        self.session.hot.receive.nxt = sequence + 1;
        self.session.hot.receive.acked = self.session.hot.receive.nxt;
        // The window of a SYN is never scaled, so the peer knows of no more than this.
        let window = self.session.path.receive_bytes.min(FIRST_WINDOW_MAX);
        self.session.hot.receive.edge = self.session.hot.receive.nxt + window;
        self.session.hot.last_received_ms = self.session.common.now_ms;
        self.session.set_mss();
        self.session.hot.send.cwnd = initial_window(u32::from(self.session.hot.mss));
    }

    /// A listener's reply to a SYN: RFC 9293 section 3.10.7.2, third.
    pub(crate) fn accept(mut self) {
        let segment = self.segment;
        self.agree(&segment.options, segment.sequence, Opening::of(segment));
        self.session.hot.set_state(State::SynReceived);
        // RFC 7323 section 2.2: not scaled in a SYN.
        let window = u32::from(segment.window);
        self.session
            .hot
            .send
            .set(window, segment.sequence, self.session.cold.iss);
        self.session.hot.set(Flags::SEND_SYN | Flags::EMBRYO);
        self.session.make_ready();
    }

    /// Creates the session of a valid SYN cookie; the segment is the last of the handshake.
    /// `opening`: of the SYN, as far as the cookie contains it.
    pub(crate) fn accept_cookie(mut self, options: &Options, opening: Opening) {
        let segment = self.segment;
        self.session.cold.iss = segment.acknowledgment - 1;
        self.session.hot.send.una = self.session.cold.iss;
        self.session.path.small_end = self.session.cold.iss;
        self.session.hot.send.nxt = segment.acknowledgment;
        self.agree(options, segment.sequence - 1, opening);
        self.session.hot.set_state(State::SynReceived);
        self.session.hot.set(Flags::EMBRYO);
        // The acknowledgment may carry data already.
        self.run();
    }

    /// RFC 9293 section 3.10.7.3.
    pub(super) fn syn_sent(&mut self) {
        let segment = self.segment;
        let ack = segment.acknowledgment;
        if segment.has(ACK) && (ack <= self.session.cold.iss || self.session.hot.send.nxt < ack) {
            if !segment.has(RST) {
                let (ends, hop) = (self.session.path.ends(), self.session.path.hop());
                self.session.common.send_reset(&ends, hop, ack);
            }
            return;
        }
        if segment.has(RST) {
            if segment.has(ACK) {
                self.session.common.counters.resets_received += 1;
                self.session.finish(Some(SessionError::Refused));
            }
            return;
        }
        if !segment.has(SYN) {
            return;
        }
        // The echoed timestamp is not checked here; Linux drops a SYN-ACK that echoes one that was
        // never sent (RFC 7323 section 3.2).
        self.agree(&segment.options, segment.sequence, Opening::of(segment));
        self.take_first_window(u32::from(segment.window));
        if segment.has(ACK) {
            self.sample_opening();
            self.session.hot.send.una = ack;
            self.established();
            self.opening_marked();
            self.session.acknowledge_now();
        } else {
            // Simultaneous open: RFC 9293 section 3.5, figure 7.
            self.session.hot.set_state(State::SynReceived);
            self.session.hot.set(Flags::SEND_SYN);
            self.session.make_ready();
        }
    }

    /// The acknowledgment of our SYN-ACK; false if the segment is to be dropped.
    pub(super) fn final_ack(&mut self) -> bool {
        let segment = self.segment;
        let ack = segment.acknowledgment;
        if ack != self.session.cold.iss + 1 {
            // RFC 9293 section 3.10.7.4, fifth.
            let (ends, hop) = (self.session.path.ends(), self.session.path.hop());
            self.session.common.send_reset(&ends, hop, ack);
            return false;
        }
        // A session created from a cookie has not sent anything.
        if self.session.hot.sent_us != 0 {
            self.sample_opening();
        }
        self.session.hot.send.una = ack;
        self.take_first_window(u32::from(segment.window) << self.session.path.scales.send());
        let marked = self.session.ecn().take_final_ack(segment);
        self.established();
        if marked {
            self.opening_marked();
        }
        true
    }

    /// The first window of the peer, which is the largest that it ever offered.
    fn take_first_window(&mut self, window: u32) {
        let segment = self.segment;
        let (sequence, ack) = (segment.sequence, segment.acknowledgment);
        // RFC 9293 section 3.10.7.4, fifth: SND.WND, SND.WL1 and SND.WL2 are of this segment.
        self.session.hot.send.set(window, sequence, ack);
        self.session.cold.window_max = window;
    }

    /// The first round trip: of our SYN, or by its echo if it was retransmitted.
    fn sample_opening(&mut self) {
        let (now_us, now_ms) = (self.session.common.now_us, self.session.common.now_ms);
        let stamps = self.segment.stamps(self.session.hot.has(Flags::TIMESTAMPS));
        let hot = &mut *self.session.hot;
        match (self.session.path.retries, stamps) {
            (0, _) => hot.rtt.sample(now_us.wrapping_sub(hot.sent_us)),
            (_, Some((_, echo))) => {
                let age_ms = hot.timestamps.at(now_ms).wrapping_sub(echo);
                hot.rtt.sample_echo(age_ms);
            }
            _ => {}
        }
    }

    /// Accurate ECN (RFC 9768 section 3.2.2.2): if our SYN, or our SYN-ACK, was marked, the first
    /// window is reduced like any other.
    fn opening_marked(&mut self) {
        let bits = self.segment.ace();
        if self.session.ecn().is_opening_marked(bits) {
            let window = self.session.hot.send.cwnd;
            self.reduce_by_echo(window, window);
        }
    }

    fn established(&mut self) {
        self.session.hot.send.nxt = self.session.hot.send.una;
        self.session.hot.set_state(State::Established);
        self.session.hot.stop_timer();
        // RFC 6298 section 5.7: the SYN's back-off ends, but data then starts with 3 s.
        if self.session.path.retries > 0 {
            self.session.hot.rtt.syn_was_lost();
        }
        // RFC 6928 section 2: one segment initially if more than one SYN was lost.
        if self.session.path.retries > 1 {
            self.session.hot.send.cwnd = u32::from(self.session.hot.mss);
        }
        self.session.path.retries = 0;
        self.session.hot.clear(Flags::SEND_SYN);
        self.session.common.counters.opened += 1;
        let ecn = self.session.hot.ecn;
        if ecn.is_negotiated() {
            self.session.common.counters.ecn_sessions += 1;
            self.session.common.counters.accurate_ecn_sessions += u64::from(ecn.is_accurate());
        }
        self.session.hot.duplicates = 0;
        if self.session.hot.has(Flags::FIN_QUEUED) {
            self.session.hot.set_state(State::FinWait1);
        }
        if self.session.hot.has(Flags::EMBRYO) {
            self.session
                .common
                .newly_established
                .push(self.session.number);
        }
        self.session.watch_keepalive();
        self.session.notify();
        if self.session.hot.tx.len() > 0 || self.session.hot.has(Flags::FIN_QUEUED) {
            self.session.make_ready();
        }
    }
}
