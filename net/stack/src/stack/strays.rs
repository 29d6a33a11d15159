//! Segments without a session: SYNs for listeners, and acknowledgments of SYN cookies.
//!
//! Source: RFC 9293 sections 3.10.7.1 and 3.10.7.2, RFC 4987, RFC 6191 (TIME-WAIT reuse).

use super::options::SessionOption;
use super::sessions::Arrival;
use super::sessions::{Arrived, Sessions, session};
use crate::shared::Common;
use crate::shared::config::Ecn;
use crate::shared::config::filter::{RuleProtocol, Verdict};
use crate::state::flags::Flags;
use crate::state::window::field_of;
use crate::tcp::cookie::{self, CookieOptions};
use crate::tcp::ecn::accurate::{asked_by, echo_of};
use crate::tcp::ecn::{ASKS_CLASSIC, Opening, TAKES_CLASSIC};
use crate::tcp::input::Input;
use crate::tcp::open::{mss_of, scale_for};
use crate::timer::before;
use crate::wire::ip::Codepoint;
use crate::wire::tcp::{ACK, CWR, ECE, FIN, Options, RST, SYN, Segment, Tcp};
use zerocopy::network_endian::U16;

/// Flags of a SYN that asks for ECN: RFC 3168 section 6.1.1.
const ECN_SETUP: u8 = ECE | CWR;

impl Sessions {
    /// RFC 6191 section 2 and RFC 9293 section 3.6.1: a new session between the same ends, if no
    /// segment of the old one can be mistaken for one of the new.
    pub(super) fn arrive_in_time_wait(
        &mut self,
        common: &mut Common,
        number: u32,
        arrival: &Arrival,
        segment: &Segment<'_>,
    ) -> Arrived {
        let is_allowed = common.verdict(Some(RuleProtocol::Tcp), &arrival.ends) == Verdict::Allow;
        let mut old = session(&mut self.store, common, number);
        let later_clock = match segment.options.timestamps {
            Some((value, _)) if old.hot.has(Flags::TIMESTAMPS) => {
                before(old.hot.timestamps.recent, value)
            }
            _ => false,
        };
        let later_number = old.hot.receive.nxt < segment.sequence;
        let has_listener = is_allowed
            && self
                .listeners
                .ports
                .is_taken(&arrival.ends.local, arrival.ends.local_port);
        if has_listener && (later_clock || later_number) {
            old.finish(None);
            self.sweep_all(common);
            return self.arrive_stray(common, arrival, segment);
        }
        Input::new(old, segment).run();
        Arrived::Taken
    }

    /// Processes a segment without a session.
    #[inline(never)]
    pub(super) fn arrive_stray(
        &mut self,
        common: &mut Common,
        arrival: &Arrival,
        segment: &Segment<'_>,
    ) -> Arrived {
        let ends = &arrival.ends;
        let (local, port) = (&ends.local, ends.local_port);
        let Some(listener) = self.listeners.find(local, port, arrival.hash) else {
            return Arrived::Stray;
        };
        if common.verdict(Some(RuleProtocol::Tcp), ends) != Verdict::Allow {
            // As without a listener: a peer of this shard may have the session.
            return Arrived::Stray;
        }
        // RFC 9293 section 3.10.7.2: check RST first, then ACK, then SYN. A peer of this shard may
        // have the session of the first two.
        if segment.has(RST) {
            return Arrived::Stray;
        }
        if segment.has(ACK) {
            let opens = !segment.has(SYN) && self.accept_cookie(common, listener, arrival, segment);
            return if opens {
                Arrived::Taken
            } else {
                Arrived::Stray
            };
        }
        if segment.has(SYN) && ends.local == ends.remote && ends.local_port == ends.remote_port {
            // A listener does not connect, so the segment is forged (CERT advisory CA-1997-28,
            // "land").
            common.counters.martians += 1;
        } else if segment.has(SYN) && !segment.has(FIN) {
            // A SYN with FIN is sent by scanners, to pass packet filters that match a plain SYN.
            // Linux drops it, too.
            self.arrive_syn(common, listener, arrival, segment);
        }
        Arrived::Taken
    }

    fn arrive_syn(
        &mut self,
        common: &mut Common,
        listener: u32,
        arrival: &Arrival,
        segment: &Segment<'_>,
    ) {
        let of = self.listeners.at(listener);
        if !of.has_room() {
            // As in Linux: the peer retries, and there may be room then.
            common.counters.listen_overflows += 1;
            return;
        }
        let is_full =
            common.pool.is_short() && common.shares.is_full(&common.pool, &arrival.ends.remote);
        if is_full || common.pool.is_exhausted() {
            // As a full accept queue: a session could neither receive nor send, or its peers have
            // their part.
            common.counters.no_memory += 1;
            return;
        }
        if !of.takes_embryo() {
            self.answer_with_cookie(common, listener, arrival, segment);
            return;
        }
        common
            .neighbors
            .suppose_hop(&common.interface, arrival, common.now_ns);
        let Some(number) = self.open(common, &arrival.ends, arrival.hash) else {
            // The table is full. A cookie would promise a session that cannot be had; the peer
            // tries again, as with a full accept queue.
            common.counters.listen_overflows += 1;
            return;
        };
        self.listeners.at_mut(listener).embryos += 1;
        let mut session = session(&mut self.store, common, number);
        session.cold.listener = listener;
        for &option in &self.listeners.at(listener).options {
            session.set_option(option);
        }
        Input::new(session, segment).accept();
    }

    /// RFC 4987 section 3.6: answers a SYN without keeping state.
    fn answer_with_cookie(
        &self,
        common: &mut Common,
        listener: u32,
        arrival: &Arrival,
        segment: &Segment<'_>,
    ) {
        let ends = &arrival.ends;
        let options = &segment.options;
        let mss = options.mss.unwrap_or(536);
        let isn = cookie::make(&common.secrets, ends, segment.sequence, mss, common.now_ns);
        let config = &common.config;
        let mut answer = Options {
            mss: Some(mss_of(common.interface.mtu(), &ends.local)),
            ..Options::default()
        };
        let (mut receive_bytes, mut window_scale) = (config.receive_bytes, config.window_scale);
        for option in &self.listeners.at(listener).options {
            match *option {
                SessionOption::ReceiveBytes(bytes) => {
                    (receive_bytes, window_scale) = (bytes, scale_for(bytes));
                }
                SessionOption::SegmentBytesMax(bytes) => answer.mss = answer.mss.min(Some(bytes)),
                _ => {}
            }
        }
        // RFC 9768 section 5.1: the final ACK shows that the SYN asked for accurate ECN.
        let accurate = config.ecn == Ecn::Accurate && !matches!(segment.ace(), 0 | ASKS_CLASSIC);
        let mut ace = if accurate { echo_of(segment.ecn) } else { 0 };
        // A cookie has no room for the options, so they travel in the timestamp, which the peer
        // echoes.
        if let Some((value, _)) = options.timestamps
            && config.offers.timestamps
        {
            let clock = common
                .now_ms
                .wrapping_add(common.secrets.timestamp_offset(ends));
            let kept = CookieOptions {
                scale: options.scale.filter(|_| config.offers.window_scaling),
                sack: options.sack_permitted && config.offers.sack,
                ecn: segment.flags & ECN_SETUP == ECN_SETUP && config.ecn != Ecn::Off && !accurate,
            };
            if kept.ecn {
                ace = TAKES_CLASSIC;
            }
            answer.timestamps = Some((cookie::stamp(clock, kept), value));
            answer.sack_permitted = kept.sack;
            answer.scale = kept.scale.map(|_| window_scale);
        }
        let mut fields = Tcp {
            source: U16::new(0),
            destination: U16::new(0),
            sequence: isn.into(),
            acknowledgment: (segment.sequence + 1).into(),
            offset: 0,
            flags: SYN | ACK,
            // RFC 7323 section 2.2: the window of a SYN is never scaled.
            window: U16::new(field_of(receive_bytes)),
            checksum: [0; 2],
            urgent: U16::new(0),
        };
        fields.set_ace(ace);
        if common.push_segment(ends, arrival.mac, &fields, &answer) {
            common.counters.cookies_sent += 1;
        }
    }

    /// Turns the acknowledgment of a cookie into a session; false if it is invalid.
    fn accept_cookie(
        &mut self,
        common: &mut Common,
        listener: u32,
        arrival: &Arrival,
        segment: &Segment<'_>,
    ) -> bool {
        let ends = &arrival.ends;
        // Valid for at most 138 s after the last cookie was sent; otherwise any number might be
        // one.
        if common.counters.cookies_sent == 0 {
            return false;
        }
        let mss = cookie::check(
            &common.secrets,
            ends,
            segment.acknowledgment - 1,
            segment.sequence - 1,
            common.now_ns,
        );
        let Some(mss) = mss else { return false };
        // No reset: the peer sends its data again, and the queue may have room by then.
        if !self.listeners.at(listener).has_room() {
            common.counters.listen_overflows += 1;
            return true;
        }
        let mut options = Options {
            mss: Some(mss),
            ..Options::default()
        };
        let mut opening = Opening {
            answer: false,
            bits: 0,
            codepoint: Codepoint::NotEct,
        };
        if common.config.ecn == Ecn::Accurate {
            opening.bits = asked_by(segment).unwrap_or(0);
        }
        // The echoed timestamp carries the options of the SYN.
        if let Some((value, echo)) = segment.options.timestamps {
            let kept = cookie::options_in(echo);
            options.timestamps = Some((value, echo));
            options.scale = kept.scale;
            options.sack_permitted = kept.sack;
            if kept.ecn && opening.bits == 0 {
                opening.bits = ASKS_CLASSIC;
            }
        }
        common
            .neighbors
            .suppose_hop(&common.interface, arrival, common.now_ns);
        let Some(number) = self.open(common, ends, arrival.hash) else {
            // The table is full: the peer, for which the session exists, gets a reset.
            common.counters.listen_overflows += 1;
            return false;
        };
        common.counters.cookies_accepted += 1;
        self.listeners.at_mut(listener).embryos += 1;
        let mut session = session(&mut self.store, common, number);
        session.cold.listener = listener;
        for &option in &self.listeners.at(listener).options {
            session.set_option(option);
        }
        Input::new(session, segment).accept_cookie(&options, opening);
        self.sweep_all(common);
        true
    }
}

impl crate::shared::neighbors::Neighbors {
    /// Learns the sender's next hop from its SYN where it is unknown.
    fn suppose_hop(
        &mut self,
        of: &crate::shared::interface::Interface,
        arrival: &Arrival,
        now_ns: u64,
    ) {
        if let Some(hop) = of.next_hop(&arrival.ends.remote) {
            self.suppose(&hop, arrival.mac, now_ns);
        }
    }
}
