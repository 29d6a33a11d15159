//! Status of a session, like Linux's `TCP_INFO`, and the addresses of a stack.

use super::SessionId;
use super::Stack;
use crate::buffer::NONE;
use crate::congestion::{Algorithm, Control};
use crate::error::{NetError, SessionError};
use crate::ranges::scoreboard::Segments;
use crate::shared::interface::Network;
use crate::shared::shares::{prefix_bits, prefix_of};
use crate::state::ecn::EcnState;
use crate::state::flags::Flags;
use crate::state::hot::{State, Timer};
use crate::tcp::Session;
use crate::tcp::chronograph::Times;
use crate::tcp::pacing::Rate;
use crate::wire::Ip;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// Addresses with the lengths of their prefixes.
#[derive(Debug, Clone, Default)]
pub struct Networks {
    /// Our current addresses, including those from routers and servers.
    pub own: Vec<(IpAddr, u8)>,
    /// Networks that packets can be sent to, as an address in each: those on our links, and those
    /// behind gateways.
    pub reachable: Vec<(IpAddr, u8)>,
}

impl Stack {
    /// Our addresses, and the networks that packets can be sent to.
    #[must_use]
    pub fn networks(&self) -> Networks {
        let interface = &self.host.common.interface;
        let shown = |network: &Network| (network.address.to_std(), network.prefix_bits);
        let behind = interface.gateways.iter().map(|gateway| &gateway.network);
        Networks {
            own: interface.networks.iter().map(shown).collect(),
            reachable: interface.networks.iter().chain(behind).map(shown).collect(),
        }
    }
}

/// Explicit congestion notification of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EcnMode {
    /// None.
    #[default]
    Off,
    /// Marks are echoed (RFC 3168 section 6.1.1).
    Classic,
    /// Both ends count marks (RFC 9768 section 3.1).
    Accurate,
}

impl EcnMode {
    fn of(ecn: EcnState) -> Self {
        match (ecn.is_negotiated(), ecn.is_accurate()) {
            (false, _) => Self::Off,
            (true, false) => Self::Classic,
            (true, true) => Self::Accurate,
        }
    }

    /// True if ECN is in use, in either form.
    #[must_use]
    pub fn is_on(self) -> bool {
        self != Self::Off
    }
}

/// Phase of loss recovery: Linux's `tcpi_ca_state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RecoveryPhase {
    /// Nothing is missing, as far as known.
    #[default]
    Open,
    /// Reordering or duplicates were detected; nothing is considered lost.
    Disorder,
    /// The window is being reduced because of marks (RFC 3168).
    Reduction,
    /// Fast recovery (RFC 6675, RFC 6582).
    Recovery,
    /// After a retransmission timeout (RFC 6298).
    Loss,
}

/// Status of a session, like Linux's `TCP_INFO`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionInfo {
    /// TCP state.
    pub state: State,
    /// Payload bytes of a full segment that is sent.
    pub mss: u16,
    /// Window scales: the peer's, and ours.
    pub scales: (u8, u8),
    /// Timestamps negotiated, and SACK permitted.
    pub timestamps: bool,
    /// See `timestamps`.
    pub sack: bool,
    /// Explicit congestion notification that was negotiated.
    pub ecn: EcnMode,
    /// With ECN, the peer has sent ECN-capable data.
    pub ecn_seen: bool,
    /// Smoothed round trip and its variation, in microseconds; 0 before the first sample.
    pub rtt_us: u32,
    /// See `rtt_us`.
    pub rttvar_us: u32,
    /// Minimum round trip with several segments in flight; 0 if there were none.
    pub rtt_min_us: u32,
    /// The retransmission timeout, in microseconds.
    pub timeout_us: u32,
    /// Congestion window and slow-start threshold, in bytes.
    pub window: u32,
    /// See `window`.
    pub threshold: u32,
    /// The peer's window, in bytes.
    pub peer_window: u32,
    /// Bytes sent and not acknowledged.
    pub in_flight: u32,
    /// Bytes written and not sent.
    pub unsent: u32,
    /// Bytes received and not read.
    pub unread: u32,
    /// Segments retransmitted.
    pub retransmitted: u32,
    /// Consecutive timeouts.
    pub retries: u8,
    /// Of these, unanswered probes of a zero window, and attempts that the NIC had no room for.
    pub window_probes: u8,
    /// Number of times that the timeout was doubled.
    pub backoffs: u8,
    /// Soft error (RFC 9293 section 3.9.2.2) about data in flight: reported by a router or the
    /// peer's host; the session continues.
    pub soft_error: Option<SessionError>,
    /// Loss recovery in progress.
    pub recovering: bool,
    /// The phase of loss recovery.
    pub phase: RecoveryPhase,
    /// Segments sent and not acknowledged.
    pub segments_unacked: u32,
    /// Of these, segments that the peer reported by SACK.
    pub segments_sacked: u32,
    /// Segments considered lost, retransmitted or not.
    pub segments_lost: u32,
    /// Segments retransmitted and not acknowledged.
    pub segments_resent: u32,
    /// Largest reordering distance seen, in segments; at least 3 (RFC 5681's threshold of
    /// duplicates).
    pub reordering_segments: u32,
    /// Reorderings seen.
    pub reorderings: u32,
    /// MSS that our SYN announced.
    pub mss_announced: u16,
    /// Path MTU, in bytes.
    pub path_mtu: u16,
    /// Window last advertised to the peer, in bytes.
    pub receive_window: u32,
    /// Milliseconds since the last acceptable segment.
    pub silent_ms: u32,
    /// Payload bytes sent, acknowledged and received since the beginning, modulo 2^32; a FIN counts
    /// as one.
    pub sent_bytes: u32,
    /// See `sent_bytes`.
    pub acked_bytes: u32,
    /// See `sent_bytes`.
    pub received_bytes: u32,
    /// Microseconds with data to send or unacknowledged, since the first request for this status.
    pub busy_us: u64,
    /// Of these, those in which the peer's window was the limit.
    pub window_limited_us: u64,
    /// Those in which the application waited for room in the send buffer, with nothing left to
    /// send.
    pub buffer_limited_us: u64,
    /// The congestion control algorithm.
    pub congestion: Algorithm,
    /// Nanoseconds since it was opened.
    pub age_ns: u64,
    /// Pacing rate, in bytes a second; none if its segments are not paced.
    pub pacing_bytes_per_s: Option<u64>,
    /// Bytes of buffers that it holds.
    pub buffer_bytes: usize,
}

/// Sessions with their status, in the order of their numbers.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SessionPage {
    /// Each with our address and the peer's.
    pub sessions: Vec<(SessionId, [SocketAddr; 2], SessionInfo)>,
    /// The begin of the next page; none: this is the last.
    pub next: Option<u32>,
}

/// A session in a list of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionSummary {
    /// Our address.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
    /// TCP state.
    pub state: State,
    /// Payload bytes received and sent since the beginning, modulo 2^32; a FIN counts as one.
    pub received_bytes: u32,
    /// See `received_bytes`.
    pub sent_bytes: u32,
    /// Smoothed round trip, in microseconds; 0 before the first sample.
    pub rtt_us: u32,
    /// Congestion window, in bytes.
    pub window_bytes: u32,
    /// Segments retransmitted.
    pub retransmitted: u32,
}

/// Memory of the sessions of one listener, or of the peers of one prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holding {
    /// The listener's address and port, or the prefix with port 0.
    pub of: SocketAddr,
    /// Bits of the prefix, 24 or 56; of a listener, 0.
    pub prefix_bits: u8,
    /// Sessions, in any state.
    pub sessions: usize,
    /// Bytes of buffers that they hold.
    pub buffer_bytes: usize,
}

impl Stack {
    /// Up to `most` sessions, in no order. Changes nothing; of very many, the first
    /// 16,384 numbers are looked through.
    #[must_use]
    pub fn list_sessions(&self, most: usize) -> Vec<SessionSummary> {
        let store = &self.host.sessions.store;
        let numbers = (0..store.known().min(LISTED_MAX)).filter_map(|number| {
            let (hot, path, cold) = (store.hot(number), store.path(number), store.cold(number));
            let state = hot.state();
            (state != State::Closed).then(|| SessionSummary {
                local: SocketAddr::new(path.local.to_std(), path.local_port),
                remote: SocketAddr::new(path.remote.to_std(), path.remote_port),
                state,
                received_bytes: hot.receive.nxt - 1 - cold.irs,
                sent_bytes: hot.send.nxt - 1 - cold.iss,
                rtt_us: hot.rtt.smoothed_us,
                window_bytes: hot.send.cwnd,
                retransmitted: cold.resent,
            })
        });
        numbers.take(most).collect()
    }

    /// Status of a session. The first call starts the counters of busy and limited times.
    ///
    /// # Errors
    /// [`NetError::Gone`].
    pub fn info(&mut self, id: SessionId) -> Result<SessionInfo, NetError> {
        let number = self.host.sessions.number(id)?;
        let mut session = self.host.sessions.access(&mut self.host.common, number);
        session.start_chronograph();
        Ok(describe(&mut session))
    }
}

/// Up to `most` sessions from the number `from` on, in any state but closed. Looks through 65,536
/// numbers at most, and changes nothing.
pub fn session_page(stack: &mut Stack, from: u32, most: usize) -> SessionPage {
    let host = &mut stack.host;
    let known = host.sessions.store.known();
    let end = known.min(from.saturating_add(COUNTED_MAX));
    let mut sessions = Vec::new();
    let mut number = from;
    while number < end && sessions.len() < most {
        let (hot, path) = (
            host.sessions.store.hot(number),
            host.sessions.store.path(number),
        );
        if hot.state() != State::Closed {
            let ends = [
                (path.local, path.local_port),
                (path.remote, path.remote_port),
            ];
            let ends = ends.map(|(ip, port)| SocketAddr::new(ip.to_std(), port));
            let id = host.sessions.id(number);
            let mut session = host.sessions.access(&mut host.common, number);
            sessions.push((id, ends, describe(&mut session)));
        }
        number += 1;
    }
    SessionPage {
        sessions,
        next: (number < known).then_some(number),
    }
}

/// Status of a session.
fn describe(session: &mut Session<'_>) -> SessionInfo {
    let now_ns = session.common.now_ns;
    let chronograph = session.cold.chronograph.as_mut();
    let times = chronograph.map_or_else(Times::default, |it| it.times(now_ns));
    let session = &*session;
    let board = segments(session);
    let (hot, scales) = (&*session.hot, session.path.scales);
    // As in Linux, an empty flight has nothing to recover.
    let recovering = hot.has(Flags::RECOVERY) && hot.send.in_flight() > 0;
    let cold = &*session.cold;
    let phase = match (recovering, cold.after_timeout || session.path.retries > 0) {
        (true, true) => RecoveryPhase::Loss,
        (true, false) => RecoveryPhase::Recovery,
        (false, _) if cold.prr.is_for_marks() => RecoveryPhase::Reduction,
        (false, _) if board.sacked > 0 || hot.duplicates > 0 => RecoveryPhase::Disorder,
        (false, _) => RecoveryPhase::Open,
    };
    // Persist alone backs off without data in flight, so the retries are probes then.
    let refused = hot.has(Flags::REFUSED);
    let probing = refused || hot.timer() == Timer::Persist;
    // In other states numbers in flight are a SYN or a FIN, not bytes of the ring.
    let unsent = if hot.state().sends() {
        session.hot.unsent()
    } else {
        hot.tx.len()
    };
    SessionInfo {
        state: hot.state(),
        mss: hot.mss,
        scales: (scales.send(), scales.receive()),
        timestamps: hot.has(Flags::TIMESTAMPS),
        sack: hot.has(Flags::SACK),
        ecn: EcnMode::of(hot.ecn),
        ecn_seen: hot.ecn.has(EcnState::ECT_SEEN),
        rtt_us: hot.rtt.smoothed_us,
        rttvar_us: hot.rtt.variation_us,
        rtt_min_us: session.cold.rack.min_rtt_us(),
        timeout_us: session.timeout_us(),
        window: hot.send.cwnd,
        threshold: session.cold.congestion.threshold(),
        peer_window: hot.send.wnd,
        in_flight: hot.send.in_flight(),
        unsent: count_of(unsent),
        unread: count_of(hot.rx.len()),
        retransmitted: session.cold.resent,
        retries: session.path.retries,
        window_probes: if probing { session.path.retries } else { 0 },
        backoffs: if refused { 0 } else { session.path.retries },
        phase,
        segments_unacked: board.all,
        segments_sacked: board.sacked,
        segments_lost: board.lost,
        segments_resent: board.again,
        reordering_segments: cold
            .reordering_bytes
            .div_ceil(u32::from(hot.mss.max(1)))
            .max(REORDERING_MIN),
        reorderings: cold.reorderings,
        mss_announced: session.largest_mss(),
        path_mtu: session.path.mtu,
        receive_window: hot.receive.left(),
        silent_ms: hot.silent_ms(session.common.now_ms),
        sent_bytes: hot.send.nxt - 1 - cold.iss,
        acked_bytes: hot.send.una - 1 - cold.iss,
        received_bytes: hot.receive.nxt - 1 - cold.irs,
        busy_us: times.busy_us,
        window_limited_us: times.window_us,
        buffer_limited_us: times.buffer_us,
        soft_error: cold.soft_error.get(hot.send.una),
        recovering: hot.has(Flags::RECOVERY) && hot.scoreboard != NONE,
        congestion: session.cold.congestion.algorithm(),
        age_ns: session.common.now_ns - session.cold.opened_ns,
        pacing_bytes_per_s: session
            .may_be_paced()
            .then(|| session.pacing_rate())
            .flatten()
            .map(Rate::bytes_per_s),
        buffer_bytes: hot.rx.held_bytes() + hot.tx.held_bytes(),
    }
}

/// The listeners, and the prefixes of peers, whose sessions hold the most memory: up to `most`
/// of each, those with most first. Counted over the first 65,536 sessions.
#[must_use]
pub fn holders(stack: &Stack, most: usize) -> [Vec<Holding>; 2] {
    let store = &stack.host.sessions.store;
    // Sessions of a listener that is closed by now count by their prefix alone.
    let ports = &stack.host.sessions.listeners.ports;
    let is_listened_at = |local: &Ip, port| ports.is_taken(local, port);
    let (mut listeners, mut prefixes) = (BTreeMap::new(), BTreeMap::new());
    for number in 0..store.known().min(COUNTED_MAX) {
        let (hot, path) = (store.hot(number), store.path(number));
        if hot.state() == State::Closed {
            continue;
        }
        let bytes = hot.rx.held_bytes() + hot.tx.held_bytes();
        let count = |all: &mut BTreeMap<SocketAddr, Holding>, of, prefix_bits| {
            let holding = all.entry(of).or_insert(Holding {
                of,
                prefix_bits,
                sessions: 0,
                buffer_bytes: 0,
            });
            holding.sessions += 1;
            holding.buffer_bytes += bytes;
        };
        let prefix = SocketAddr::new(prefix_of(&path.remote).to_std(), 0);
        count(&mut prefixes, prefix, prefix_bits(&path.remote));
        if is_listened_at(&path.local, path.local_port) {
            let local = SocketAddr::new(path.local.to_std(), path.local_port);
            count(&mut listeners, local, 0);
        }
    }
    [listeners, prefixes].map(|all| {
        let mut all: Vec<Holding> = all.into_values().collect();
        all.sort_by_key(|it| std::cmp::Reverse((it.buffer_bytes, it.sessions)));
        all.truncate(most);
        all
    })
}

/// Counts of the segments in flight.
fn segments(session: &Session<'_>) -> Segments {
    let (hot, mss) = (&*session.hot, u32::from(session.hot.mss).max(1));
    if !hot.state().is_synchronized() {
        return Segments::default();
    }
    if hot.scoreboard == NONE {
        return Segments {
            all: hot.send.in_flight().div_ceil(mss),
            ..Segments::default()
        };
    }
    let scoreboard = session.common.scoreboards.get(hot.scoreboard);
    scoreboard.segments(mss, hot.has(Flags::RECOVERY))
}

/// A length of a ring, which holds less than 4 GiB.
fn count_of(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Sessions whose memory is counted by holder.
const COUNTED_MAX: u32 = 1 << 16;
/// Numbers of sessions that a list looks through: a megabyte of control blocks.
const LISTED_MAX: u32 = 1 << 14;
/// Reordering distance, in segments, before any is seen: RFC 5681's threshold of duplicates.
const REORDERING_MIN: u32 = 3;
