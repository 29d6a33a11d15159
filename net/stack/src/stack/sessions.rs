//! Assigning segments to sessions, and sessions to their owners: lookup, listeners, creation and
//! removal.
//!
//! Source: RFC 9293 sections 3.10.7.1 and 3.10.7.2, RFC 4987, RFC 6191 (TIME-WAIT reuse).

use super::arrival::Arrival;
use super::direct_placement::LARGE_BYTES;
use super::options::SessionOption;
use super::{Stack, session};
use crate::buffer::slab::NONE;
use crate::secrets::Ends;
use crate::shared::EventSource;
use crate::shared::config::Ecn;
use crate::stack::listener::Listener;
use crate::state::flags::{Flags, SendTail};
use crate::state::hot::State;
use crate::state::window::field_of;
use crate::tcp::cookie::{self, CookieOptions};
use crate::tcp::ecn::accurate::{asked_by, echo_of};
use crate::tcp::ecn::opening::{ASKS_CLASSIC, Opening, TAKES_CLASSIC};
use crate::tcp::input::Input;
use crate::tcp::open::{mss_of, scale_for};
use crate::timer::clock::before;
use crate::wire::ip::Codepoint;
use crate::wire::tcp::{self, ACK, CWR, ECE, FIN, Options, RST, SYN, Segment, Tcp};
use crate::wire::{Ip, ip};
use std::collections::BTreeMap;
use zerocopy::network_endian::U16;

/// All listeners.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    pub(crate) all: Vec<Listener>,
    pub(crate) by_port: BTreeMap<(Ip, u16), u32>,
    pub(crate) free: Vec<u32>,
}

/// `0.0.0.0` and `::`.
pub(crate) const ANY_V4: Ip = Ip([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0]);
pub(crate) const ANY_V6: Ip = Ip([0; 16]);

/// Flags of a SYN that asks for ECN: RFC 3168 section 6.1.1.
const ECN_SETUP: u8 = ECE | CWR;

impl Listeners {
    /// The listener at an address and port.
    pub(crate) fn find(&self, local: &Ip, port: u16) -> Option<u32> {
        let of = |address: &Ip| self.by_port.get(&(*address, port)).copied();
        let any_v4 = || if local.is_v4() { of(&ANY_V4) } else { None };
        of(local).or_else(any_v4).or_else(|| of(&ANY_V6))
    }
}

impl Stack {
    /// The session with these ends.
    #[inline]
    pub(crate) fn find_session(&mut self, ends: &Ends, hash: u32) -> Option<u32> {
        let store = &self.store;
        self.table
            .find(hash, |number| store.path(number).ends() == *ends)
    }

    /// Processes a segment with a correct checksum; returns its session.
    #[inline]
    pub(crate) fn arrive_segment(&mut self, arrival: &Arrival, bytes: &[u8]) -> Option<u32> {
        let Some(mut segment) = tcp::parse(bytes) else {
            self.common.counters.malformed += 1;
            return None;
        };
        segment.ecn = arrival.ecn;
        match self.find_session(&arrival.ends, arrival.hash) {
            Some(number) => {
                let session = session(&mut self.store, &mut self.common, number);
                if session.hot.state() == State::TimeWait
                    && segment.flags & (SYN | RST | ACK) == SYN
                {
                    self.arrive_in_time_wait(number, arrival, &segment, bytes);
                    return None;
                }
                Input::new(session, &segment).run();
                if segment.payload.len() >= LARGE_BYTES {
                    self.expect_more(number, arrival, &segment);
                }
                if !self.common.newly_established.is_empty() || !self.common.newly_closed.is_empty()
                {
                    self.sweep_sessions();
                }
                Some(number)
            }
            None => {
                self.arrive_stray(arrival, &segment, bytes);
                None
            }
        }
    }

    /// RFC 6191 section 2 and RFC 9293 section 3.6.1: a new session between the same ends, if no
    /// segment of the old one can be mistaken for one of the new.
    fn arrive_in_time_wait(
        &mut self,
        number: u32,
        arrival: &Arrival,
        segment: &Segment<'_>,
        bytes: &[u8],
    ) {
        let mut old = session(&mut self.store, &mut self.common, number);
        let later_clock = match segment.options.timestamps {
            Some((value, _)) if old.hot.has(Flags::TIMESTAMPS) => {
                before(old.hot.timestamps.recent, value)
            }
            _ => false,
        };
        let later_number = old.hot.receive.nxt < segment.sequence;
        let has_listener = self
            .listeners
            .find(&arrival.ends.local, arrival.ends.local_port)
            .is_some();
        if has_listener && (later_clock || later_number) {
            old.finish(None);
            self.sweep_sessions();
            self.arrive_stray(arrival, segment, bytes);
        } else {
            Input::new(old, segment).run();
        }
    }

    /// Processes a segment without a session; `bytes` is the whole segment.
    #[inline(never)]
    fn arrive_stray(&mut self, arrival: &Arrival, segment: &Segment<'_>, bytes: &[u8]) {
        let ends = &arrival.ends;
        let listener = self.listeners.find(&ends.local, ends.local_port);
        let Some(listener) = listener else {
            if !self.pass_on_segment(ends, arrival.mac, arrival.ecn, bytes) {
                self.common.refuse_segment(ends, arrival.mac, segment);
            }
            return;
        };
        // RFC 9293 section 3.10.7.2: check RST first, then ACK, then SYN.
        if segment.has(RST) {
            // A sibling may have the session.
            self.pass_on_segment(ends, arrival.mac, arrival.ecn, bytes);
            return;
        }
        if segment.has(ACK) {
            let opens = !segment.has(SYN) && self.accept_cookie(listener, arrival, segment);
            if !opens && !self.pass_on_segment(ends, arrival.mac, arrival.ecn, bytes) {
                self.common.refuse_segment(ends, arrival.mac, segment);
            }
            return;
        }
        if segment.has(SYN) && ends.local == ends.remote && ends.local_port == ends.remote_port {
            // A listener does not connect, so the segment is forged (CERT advisory CA-1997-28,
            // "land").
            self.common.counters.martians += 1;
        } else if segment.has(SYN) && !segment.has(FIN) {
            // A SYN with FIN is sent by scanners, to pass packet filters that match a plain SYN.
            // Linux drops it, too.
            self.arrive_syn(listener, arrival, segment);
        }
    }

    fn arrive_syn(&mut self, listener: u32, arrival: &Arrival, segment: &Segment<'_>) {
        let of = &self.listeners.all[listener as usize];
        if !of.has_room() {
            // As in Linux: the peer retries, and there may be room then.
            self.common.counters.listen_overflows += 1;
            return;
        }
        if !of.takes_embryo() {
            self.answer_with_cookie(listener, arrival, segment);
            return;
        }
        self.common
            .neighbors
            .suppose_hop(&self.common.interface, arrival, self.common.now_ns);
        let Some(number) = self.open_session(&arrival.ends, arrival.hash) else {
            self.answer_with_cookie(listener, arrival, segment);
            return;
        };
        self.listeners.all[listener as usize].embryos += 1;
        let mut session = session(&mut self.store, &mut self.common, number);
        session.cold.listener = listener;
        for &option in &self.listeners.all[listener as usize].options {
            session.set_option(option);
        }
        Input::new(session, segment).accept();
    }

    /// Creates and prepares a session between these ends, and adds it to the table. Without room,
    /// the oldest session in TIME-WAIT is evicted.
    pub(crate) fn open_session(&mut self, ends: &Ends, hash: u32) -> Option<u32> {
        // Without a route, no number is taken.
        let (neighbor, neighbor_generation) = self.common.find_hop(&ends.remote)?;
        let number = match self.store.take() {
            Some(number) => number,
            None => {
                self.reclaim();
                self.store.take()?
            }
        };
        let mtu = self.common.interface.mtu();
        let headers = ip::header_bytes(&ends.local) + tcp::HEADER_BYTES + tcp::OPTIONS_BYTES_MAX;
        let super_bytes = self.common.interface.super_payload(headers);
        // Numbers are reused, so each field gets a value.
        let (hot, path, cold) = self.store.session(number);
        hot.clear(Flags::DETACHED);
        path.local = ends.local;
        path.remote = ends.remote;
        path.local_port = ends.local_port;
        path.remote_port = ends.remote_port;
        path.hash = hash;
        path.neighbor = neighbor;
        path.neighbor_generation = neighbor_generation;
        path.mtu = mtu;
        path.super_bytes = super_bytes;
        path.retries = 0;
        path.tail = SendTail::EMPTY;
        path.traffic_class = 0;
        *cold = crate::tcp::cold::Cold::default();
        self.table.insert(hash, number);
        session(&mut self.store, &mut self.common, number).prepare();
        Some(number)
    }

    /// Ends the oldest session in TIME-WAIT without an owner.
    fn reclaim(&mut self) {
        while let Some(number) = self.common.time_wait.pop_front() {
            let mut session = session(&mut self.store, &mut self.common, number);
            // Other entries have ended already, or their number was reused.
            if session.hot.state() == State::TimeWait && session.hot.has(Flags::DETACHED) {
                session.finish(None);
                self.sweep_sessions();
                return;
            }
        }
    }

    /// RFC 4987 section 3.6: answers a SYN without keeping state.
    fn answer_with_cookie(&mut self, listener: u32, arrival: &Arrival, segment: &Segment<'_>) {
        let ends = &arrival.ends;
        let common = &mut self.common;
        let options = &segment.options;
        let mss = options.mss.unwrap_or(536);
        let isn = cookie::make(&common.secrets, ends, segment.sequence, mss, common.now_ns);
        let config = &common.config;
        let mut answer = Options {
            mss: Some(mss_of(common.interface.mtu(), &ends.local)),
            ..Options::default()
        };
        let (mut receive_bytes, mut window_scale) = (config.receive_bytes, config.window_scale);
        for option in &self.listeners.all[listener as usize].options {
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
            && config.timestamps
        {
            let clock = common
                .now_ms
                .wrapping_add(common.secrets.timestamp_offset(ends));
            let kept = CookieOptions {
                scale: options.scale.filter(|_| config.window_scaling),
                sack: options.sack_permitted && config.sack,
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
    fn accept_cookie(&mut self, listener: u32, arrival: &Arrival, segment: &Segment<'_>) -> bool {
        let ends = &arrival.ends;
        // Valid for at most 138 s after the last cookie was sent; otherwise any number might be
        // one.
        if self.common.counters.cookies_sent == 0 {
            return false;
        }
        let mss = cookie::check(
            &self.common.secrets,
            ends,
            segment.acknowledgment - 1,
            segment.sequence - 1,
            self.common.now_ns,
        );
        let Some(mss) = mss else { return false };
        // No reset: the peer sends its data again, and the queue may have room by then.
        if !self.listeners.all[listener as usize].has_room() {
            self.common.counters.listen_overflows += 1;
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
        if self.common.config.ecn == Ecn::Accurate {
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
        self.common
            .neighbors
            .suppose_hop(&self.common.interface, arrival, self.common.now_ns);
        let Some(number) = self.open_session(ends, arrival.hash) else {
            return true;
        };
        self.common.counters.cookies_accepted += 1;
        self.listeners.all[listener as usize].embryos += 1;
        let mut session = session(&mut self.store, &mut self.common, number);
        session.cold.listener = listener;
        for &option in &self.listeners.all[listener as usize].options {
            session.set_option(option);
        }
        Input::new(session, segment).accept_cookie(&options, opening);
        self.sweep_sessions();
        true
    }

    /// Puts established sessions into accept queues, and removes closed ones.
    pub(crate) fn sweep_sessions(&mut self) {
        while let Some(number) = self.common.newly_established.pop() {
            let (hot, _, cold) = self.store.session(number);
            let listener = cold.listener;
            if hot.state() == State::Closed || listener == NONE {
                continue;
            }
            let of = &mut self.listeners.all[listener as usize];
            if !of.open {
                // The listener was closed meanwhile; the code below decrements its embryos.
                let error = Some(crate::error::SessionError::Aborted);
                session(&mut self.store, &mut self.common, number).reset(error);
                continue;
            }
            of.embryos -= 1;
            of.waiting.push_back(number);
            cold.queued = true;
            if !of.listed {
                of.listed = true;
                self.common
                    .pending_events
                    .push_back(EventSource::Listener(listener));
            }
        }
        while let Some(number) = self.common.newly_closed.pop() {
            let (hot, path, cold) = self.store.session(number);
            self.table.remove(path.hash, number);
            if hot.has(Flags::EMBRYO) {
                let of = &mut self.listeners.all[cold.listener as usize];
                if cold.queued {
                    of.waiting.retain(|&waiting| waiting != number);
                } else {
                    of.embryos -= 1;
                    // `close_listener` left it to the last embryo to free the slot.
                    if !of.open && of.embryos == 0 {
                        self.listeners.free.push(cold.listener);
                    }
                }
            }
            if hot.has(Flags::DETACHED | Flags::EMBRYO) {
                self.give_session(number);
            }
            // Sessions whose timer has expired are removed from the list.
            while let Some(&oldest) = self.common.time_wait.front()
                && self.store.hot(oldest).state() != State::TimeWait
            {
                self.common.time_wait.pop_front();
            }
        }
    }

    /// Frees the number of a closed session without an owner.
    pub(crate) fn give_session(&mut self, number: u32) {
        let (hot, _, _) = self.store.session(number);
        hot.rx.release(&mut self.common.pool);
        hot.tx.release(&mut self.common.pool);
        let listed = hot.flags_in(Flags::READY | Flags::EVENT);
        let armed = hot.armed;
        self.store.give(number);
        // Lists that still contain the number find a closed session without an owner; it must not
        // be listed twice.
        let hot = self.store.hot_mut(number);
        hot.set(listed | Flags::DETACHED);
        hot.armed = armed;
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
