//! Session options and status.

use super::names::{ListenerId, SessionId};
use super::{Stack, session};
use crate::buffer::pool::BUFFER_BYTES_MAX;
use crate::buffer::slab::NONE;
use crate::congestion::{Algorithm, Control};
use crate::error::{NetError, SessionError};
use crate::ranges::scoreboard::Fate;
use crate::shared::config::Keepalive;
use crate::state::ecn::EcnState;
use crate::state::flags::{Flags, SendTail};
use crate::state::hot::{State, Timer};
use crate::tcp::Session;
use crate::tcp::chronograph::Times;
use crate::tcp::record_marks::{Stamp, StampKinds};

/// An option of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionOption {
    /// Disables Nagle's algorithm (RFC 9293 section 3.7.4).
    NoDelay(bool),
    /// Sends full segments only, until this is off again.
    Cork(bool),
    /// Probes of an idle peer (RFC 9293 section 3.8.4); none to stop them.
    Keepalive(Option<Keepalive>),
    /// Bytes that may be written and not yet acknowledged, 4,096 to 8 MiB.
    SendBytes(u32),
    /// The same as counted on Linux (`SO_SNDBUF`, doubled): each super-segment takes 1,280 bytes in
    /// addition to its own, and a write that begins below the bound completes its super-segment.
    SendMemory(u32),
    /// Bytes that may be received and not yet read, 4,096 to 8 MiB. On a listener, or before the
    /// SYN is sent: also determines the window scale. Later: can only be raised.
    ReceiveBytes(u32),
    /// Largest segment in both directions (TCP_MAXSEG), 88 to 32,767 bytes. Applies to sessions
    /// whose SYN was not sent yet.
    SegmentBytesMax(u16),
    /// The congestion control algorithm, which restarts.
    Congestion(Algorithm),
    /// Milliseconds that data may stay unacknowledged while the peer is silent (RFC 5482); 0 for
    /// the default.
    UserTimeout(u32),
    /// Immediate acknowledgments, for the next segments.
    QuickAck,
    /// Bytes that may be written and not yet sent, in addition to those that can be sent now
    /// (TCP_NOTSENT_LOWAT): a write stops after the super-segment that reaches it. 0 for the
    /// configured bound, `u32::MAX` for none.
    UnsentLow(u32),
    /// Timestamps of future writes (SO_TIMESTAMPING); see [`Stack::next_stamp`].
    Stamps(StampKinds),
    /// Traffic class of sent packets (IP_TOS, IPV6_TCLASS): RFC 2474's six bits, the others are
    /// ignored.
    TrafficClass(u8),
}

/// RFC 9293 section 3.3.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are the RFC's")]
pub enum SessionState {
    Closed,
    SynSent,
    SynReceived,
    Established,
    FinWait1,
    FinWait2,
    CloseWait,
    Closing,
    LastAck,
    TimeWait,
}

/// Phase of loss recovery: Linux's `tcpi_ca_state`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RepairPhase {
    /// Nothing is missing, as far as known.
    #[default]
    Open,
    /// Reordering or duplicates were detected; nothing is considered lost.
    Disorder,
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
    pub state: SessionState,
    /// Payload bytes of a full segment that is sent.
    pub mss: u16,
    /// Window scales: the peer's, and ours.
    pub scales: (u8, u8),
    /// Timestamps negotiated, and SACK permitted.
    pub timestamps: bool,
    /// See `timestamps`.
    pub sack: bool,
    /// Explicit congestion notification negotiated (RFC 3168 section 6.1.1).
    pub ecn: bool,
    /// Both ends count marks (RFC 9768 section 3.1).
    pub accurate_ecn: bool,
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
    /// Of these, unanswered probes of a zero window.
    pub window_probes: u8,
    /// Soft error (RFC 9293 section 3.9.2.2) about data in flight: reported by a router or the
    /// peer's host; the session continues.
    pub soft_error: Option<SessionError>,
    /// Loss recovery in progress.
    pub recovering: bool,
    /// The phase of loss recovery.
    pub phase: RepairPhase,
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
}

impl Stack {
    /// Sets an option of a session.
    ///
    /// # Errors
    /// [`NetError::Gone`], [`NetError::Config`] for a value outside its range.
    pub fn set_option(&mut self, id: SessionId, option: SessionOption) -> Result<(), NetError> {
        let number = self.number(id)?;
        option.check()?;
        session(&mut self.store, &mut self.common, number).set_option(option);
        Ok(())
    }

    /// Sets an option of all future sessions of a listener, before their SYN is answered.
    ///
    /// # Errors
    /// As [`Stack::set_option`].
    pub fn set_listener_option(
        &mut self,
        id: ListenerId,
        option: SessionOption,
    ) -> Result<(), NetError> {
        option.check()?;
        let options = &mut self.listener(id)?.options;
        let kind = std::mem::discriminant(&option);
        options.retain(|one| std::mem::discriminant(one) != kind);
        options.push(option);
        Ok(())
    }

    /// The oldest timestamp that was not taken yet; see [`SessionOption::Stamps`].
    ///
    /// # Errors
    /// [`NetError::Gone`].
    pub fn next_stamp(&mut self, id: SessionId) -> Result<Option<Stamp>, NetError> {
        let number = self.number(id)?;
        let (_, _, cold) = self.store.session(number);
        Ok(cold.marks.take_stamp())
    }

    /// Status of a session. The first call starts the counters of busy and limited times.
    ///
    /// # Errors
    /// [`NetError::Gone`].
    pub fn info(&mut self, id: SessionId) -> Result<SessionInfo, NetError> {
        let number = self.number(id)?;
        let mut session = session(&mut self.store, &mut self.common, number);
        session.start_chronograph();
        let now_ns = session.common.now_ns;
        let chronograph = session.cold.chronograph.as_mut();
        let times = chronograph.map_or_else(Times::default, |it| it.times(now_ns));
        let board = session.board();
        let (hot, scales) = (&*session.hot, session.path.scales);
        let recovering = hot.has(Flags::RECOVERY) && hot.send.in_flight() > 0;
        let cold = &*session.cold;
        let phase = match (recovering, cold.after_timeout || session.path.retries > 0) {
            (true, true) => RepairPhase::Loss,
            (true, false) => RepairPhase::Recovery,
            (false, _) if board.sacked > 0 || hot.duplicates > 0 => RepairPhase::Disorder,
            (false, _) => RepairPhase::Open,
        };
        let probing = hot.timer() == Timer::Persist;
        let unsent = if hot.state().sends() {
            session.hot.unsent()
        } else {
            hot.tx.len()
        };
        Ok(SessionInfo {
            state: state(hot.state()),
            mss: hot.mss,
            scales: (scales.send(), scales.receive()),
            timestamps: hot.has(Flags::TIMESTAMPS),
            sack: hot.has(Flags::SACK),
            ecn: hot.ecn.is_negotiated(),
            accurate_ecn: hot.ecn.is_accurate(),
            ecn_seen: hot.ecn.has(EcnState::ECT_SEEN),
            rtt_us: hot.rtt.smoothed_us,
            rttvar_us: hot.rtt.variation_us,
            rtt_min_us: session.cold.rack.min_rtt_us(),
            timeout_us: session.timeout_us(),
            window: hot.send.cwnd,
            threshold: session.cold.congestion.threshold(),
            peer_window: hot.send.wnd,
            in_flight: hot.send.in_flight(),
            unsent: unsent as u32,
            unread: hot.rx.len() as u32,
            retransmitted: session.cold.resent,
            retries: session.path.retries,
            window_probes: if probing { session.path.retries } else { 0 },
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
            soft_error: session.soft_error(),
            recovering: hot.has(Flags::RECOVERY) && hot.scoreboard != NONE,
            congestion: session.cold.congestion.algorithm(),
            age_ns: session.common.now_ns - session.cold.opened_ns,
        })
    }
}

impl Session<'_> {
    /// Sets a validated option.
    pub(crate) fn set_option(&mut self, option: SessionOption) {
        match option {
            SessionOption::NoDelay(on) => {
                self.hot.switch(Flags::NO_DELAY, on);
                if on && self.hot.tx.len() > 0 {
                    // tcp(7): an explicit flush of data that is held back, even by a cork.
                    self.path.tail.set(SendTail::FLUSH);
                }
                self.make_ready();
            }
            SessionOption::Cork(on) => {
                self.hot.switch(Flags::CORKED, on);
                self.make_ready();
            }
            SessionOption::Keepalive(keepalive) => {
                self.hot.switch(Flags::KEEPALIVE, keepalive.is_some());
                self.cold.keepalive.configure(keepalive.unwrap_or_default());
                // In these states, the same timer ends the session.
                let waits = matches!(self.hot.state(), State::TimeWait | State::FinWait2);
                if !waits {
                    self.watch_keepalive();
                }
            }
            SessionOption::SendBytes(bytes) => {
                self.path.send_bytes = bytes;
                self.path.tail.clear(SendTail::SIZED);
            }
            SessionOption::SendMemory(bytes) => {
                self.path.send_bytes = bytes;
                self.path.tail.set(SendTail::SIZED);
            }
            SessionOption::ReceiveBytes(bytes) if self.is_unsaid() => self.set_first_window(bytes),
            SessionOption::SegmentBytesMax(bytes) => self.cold.mss_max = bytes,
            SessionOption::ReceiveBytes(bytes) => {
                // RFC 9293 section 3.8.6: an advertised window is never shrunk.
                self.path.receive_bytes = self.path.receive_bytes.max(bytes);
            }
            SessionOption::Congestion(algorithm) => {
                if self.cold.congestion.algorithm() != algorithm {
                    self.choose_congestion(algorithm);
                }
            }
            SessionOption::UserTimeout(ms) => self.cold.user_timeout.set(ms),
            SessionOption::UnsentLow(bytes) => {
                let default = self.common.config.unsent_low_bytes;
                self.set_unsent_low(if bytes == 0 { default } else { bytes });
            }
            SessionOption::Stamps(kinds) => {
                self.path.tail.set(SendTail::MARKED);
                self.cold.marks.set_stamps(kinds, self.hot.send.una);
            }
            // RFC 3168 section 5: the two lowest bits belong to ECN, not to applications.
            SessionOption::TrafficClass(class) => self.path.traffic_class = class & !3,
            SessionOption::QuickAck => {
                self.hot.set(Flags::QUICK);
                self.cold.quick = u8::MAX;
            }
        }
    }

    /// Counts the segments in flight.
    fn board(&self) -> Board {
        let mss = u32::from(self.hot.mss).max(1);
        let synchronized = self.hot.state().is_synchronized();
        if self.hot.scoreboard == NONE || !synchronized {
            let flying = if synchronized {
                self.hot.send.in_flight()
            } else {
                0
            };
            return Board {
                all: flying.div_ceil(mss),
                ..Board::default()
            };
        }
        let recovering = self.hot.has(Flags::RECOVERY);
        let mut board = Board::default();
        for record in &self.common.scoreboards.get(self.hot.scoreboard).records {
            let segments = record.range.len().div_ceil(mss);
            board.all += segments;
            match record.fate {
                Fate::Sacked => board.sacked += segments,
                Fate::Lost => board.lost += segments,
                Fate::Flying if record.again => {
                    board.again += segments;
                    // Known to be lost once; a probe outside of recovery shows no loss.
                    board.lost += if recovering { segments } else { 0 };
                }
                Fate::Flying => {}
            }
        }
        board
    }
}

/// Counts of the segments in flight, by their fate.
#[derive(Debug, Clone, Copy, Default)]
struct Board {
    all: u32,
    sacked: u32,
    lost: u32,
    again: u32,
}

/// Reordering distance, in segments, before any is seen: RFC 5681's threshold of duplicates.
const REORDERING_MIN: u32 = 3;

impl SessionOption {
    /// Rejects a value outside its range.
    fn check(self) -> Result<(), NetError> {
        let (what, value, rule, range) = match self {
            Self::SendBytes(bytes) | Self::SendMemory(bytes) | Self::ReceiveBytes(bytes) => {
                let rule = "4096 to 8388608 bytes";
                (
                    "a session's buffer",
                    bytes,
                    rule,
                    4096..=BUFFER_BYTES_MAX as u32,
                )
            }
            Self::SegmentBytesMax(bytes) => {
                let rule = "88 to 32767 bytes";
                ("the largest segment", bytes.into(), rule, 88..=32_767)
            }
            _ => return Ok(()),
        };
        if range.contains(&value) {
            return Ok(());
        }
        let value = value.to_string();
        Err(NetError::Config { what, value, rule })
    }
}

fn state(state: State) -> SessionState {
    match state {
        State::SynSent => SessionState::SynSent,
        State::SynReceived => SessionState::SynReceived,
        State::Established => SessionState::Established,
        State::FinWait1 => SessionState::FinWait1,
        State::FinWait2 => SessionState::FinWait2,
        State::CloseWait => SessionState::CloseWait,
        State::Closing => SessionState::Closing,
        State::LastAck => SessionState::LastAck,
        State::TimeWait => SessionState::TimeWait,
        State::Closed => SessionState::Closed,
    }
}
