//! Session options and status.

use super::names::{ListenerId, SessionId};
use super::{Stack, session};
use crate::buffer::pool::BUFFER_BYTES_MAX;
use crate::buffer::slab::NONE;
use crate::congestion::{Algorithm, Congestion, Control};
use crate::error::{NetError, SessionError};
use crate::shared::config::Keepalive;
use crate::state::hot::{EcnFlags, Flags, Path, State};
use crate::tcp::Session;

/// Something to be set on a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionOption {
    /// Without Nagle's algorithm (RFC 9293 section 3.7.4).
    NoDelay(bool),
    /// Only full segments go out, until this is off again.
    Cork(bool),
    /// Probes of a silent peer (RFC 9293 section 3.8.4); none to stop them.
    Keepalive(Option<Keepalive>),
    /// Bytes that may be written and not yet acknowledged, 4,096 to 8 MiB.
    SendBytes(u32),
    /// Bytes that may be received and not yet read, 4,096 to 8 MiB. Of a listener, or before the
    /// SYN has gone: also the window scale that goes with it. Later: only more than before.
    ReceiveBytes(u32),
    /// No larger segments than this either way (TCP_MAXSEG), 88 to 32,767 bytes. It counts for
    /// sessions whose SYN has not gone.
    SegmentBytesMax(u16),
    /// Which congestion control; starts anew.
    Congestion(Algorithm),
    /// Milliseconds that data may stay unacknowledged while the peer is silent (RFC 5482); 0 for
    /// the default.
    UserTimeout(u32),
    /// Acknowledgments at once, for the next segments.
    QuickAck,
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

/// Status of a session, like Linux's `TCP_INFO`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionInfo {
    /// Its state.
    pub state: SessionState,
    /// Payload bytes of a full segment that we send.
    pub mss: u16,
    /// Window scales: the peer's, and ours.
    pub scales: (u8, u8),
    /// Timestamps negotiated, and SACK permitted.
    pub timestamps: bool,
    /// See `timestamps`.
    pub sack: bool,
    /// Explicit congestion notification negotiated (RFC 3168 section 6.1.1).
    pub ecn: bool,
    /// With ECN, the peer has sent data that may be marked.
    pub ecn_seen: bool,
    /// Smoothed round trip and its variation, in microseconds; 0 before the first sample.
    pub rtt_us: u32,
    /// See `rtt_us`.
    pub rttvar_us: u32,
    /// The least round trip seen where several segments were in flight; 0 if none were.
    pub rtt_min_us: u32,
    /// The retransmission timeout, in microseconds.
    pub timeout_us: u32,
    /// Congestion window and slow-start threshold, in bytes.
    pub window: u32,
    /// See `window`.
    pub threshold: u32,
    /// The peer's window, in bytes.
    pub peer_window: u32,
    /// Bytes that were sent and are not acknowledged.
    pub in_flight: u32,
    /// Bytes that were written and not sent.
    pub unsent: u32,
    /// Bytes that were received and not read.
    pub unread: u32,
    /// Segments that were sent again.
    pub retransmitted: u32,
    /// Timeouts in a row.
    pub retries: u8,
    /// Soft error (RFC 9293 section 3.9.2.2) about what is in flight: a router or the peer's host
    /// complains, and the session goes on.
    pub soft_error: Option<SessionError>,
    /// Loss recovery in progress.
    pub recovering: bool,
    /// Which congestion control.
    pub congestion: Algorithm,
    /// Nanoseconds since it was opened.
    pub age_ns: u64,
}

impl Stack {
    /// Sets something on a session.
    ///
    /// # Errors
    /// [`NetError::Gone`], [`NetError::Config`] for a value outside its range.
    pub fn set_option(&mut self, id: SessionId, option: SessionOption) -> Result<(), NetError> {
        let number = self.number(id)?;
        option.check()?;
        session(&mut self.store, &mut self.common, number).set_option(option);
        Ok(())
    }

    /// Sets something on all sessions that will come to a listener, before their SYN is answered.
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

    /// Status of a session.
    ///
    /// # Errors
    /// [`NetError::Gone`].
    pub fn info(&mut self, id: SessionId) -> Result<SessionInfo, NetError> {
        let number = self.number(id)?;
        let session = session(&mut self.store, &mut self.common, number);
        let hot = &*session.hot;
        let unsent = if hot.state().sends() {
            session.unsent()
        } else {
            hot.tx.len()
        };
        Ok(SessionInfo {
            state: state(hot.state()),
            mss: hot.mss,
            scales: (hot.snd_scale, hot.rcv_scale),
            timestamps: hot.has(Flags::TIMESTAMPS),
            sack: hot.has(Flags::SACK),
            ecn: hot.has_ecn(EcnFlags::NEGOTIATED),
            ecn_seen: session.path.ecn & Path::ECT_SEEN != 0,
            rtt_us: hot.srtt_us,
            rttvar_us: hot.rttvar_us,
            rtt_min_us: session.cold.rack.min_rtt_us,
            timeout_us: session.timeout_us(),
            window: hot.cwnd,
            threshold: session.cold.congestion.threshold(),
            peer_window: hot.snd_wnd,
            in_flight: hot.in_flight(),
            unsent: unsent as u32,
            unread: hot.rx.len() as u32,
            retransmitted: session.cold.resent,
            retries: session.path.retries,
            soft_error: session.soft_error(),
            recovering: hot.has(Flags::RECOVERY) && hot.scoreboard != NONE,
            congestion: session.cold.congestion.algorithm(),
            age_ns: session.common.now_ns - session.cold.opened_ns,
        })
    }
}

impl Session<'_> {
    fn switch(&mut self, flags: Flags, on: bool) {
        if on {
            self.hot.set(flags);
        } else {
            self.hot.clear(flags);
        }
    }

    /// Sets what was checked.
    pub(crate) fn set_option(&mut self, option: SessionOption) {
        match option {
            SessionOption::NoDelay(on) => {
                self.switch(Flags::NO_DELAY, on);
                self.make_ready();
            }
            SessionOption::Cork(on) => {
                self.switch(Flags::CORKED, on);
                self.make_ready();
            }
            SessionOption::Keepalive(keepalive) => {
                self.switch(Flags::KEEPALIVE, keepalive.is_some());
                self.cold.keepalive = keepalive.unwrap_or_default();
                let waits = matches!(self.hot.state(), State::TimeWait | State::FinWait2);
                if !waits {
                    self.watch_keepalive();
                }
            }
            SessionOption::SendBytes(bytes) => self.path.send_bytes = bytes,
            SessionOption::ReceiveBytes(bytes) if self.is_unsaid() => self.set_first_window(bytes),
            SessionOption::SegmentBytesMax(bytes) => self.cold.mss_max = bytes,
            SessionOption::ReceiveBytes(bytes) => {
                // RFC 9293 section 3.8.6: a window that was advertised is never taken back.
                self.path.receive_bytes = self.path.receive_bytes.max(bytes);
            }
            SessionOption::Congestion(algorithm) => {
                if self.cold.congestion.algorithm() != algorithm {
                    self.cold.congestion = Congestion::new(algorithm);
                }
            }
            SessionOption::UserTimeout(ms) => self.cold.user_timeout_ms = ms,
            SessionOption::QuickAck => {
                self.hot.set(Flags::QUICK);
                self.cold.quick = u8::MAX;
            }
        }
    }
}

impl SessionOption {
    /// Refuses a value outside its range.
    fn check(self) -> Result<(), NetError> {
        let (what, value, rule, range) = match self {
            Self::SendBytes(bytes) | Self::ReceiveBytes(bytes) => {
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
