//! Options of sessions, and of UDP sockets.

use super::Stack;
use super::{ListenerId, SessionId, UdpId};
use crate::buffer::pool::BUFFER_BYTES_MAX;
use crate::congestion::Algorithm;
use crate::error::NetError;
use crate::shared::config::Keepalive;
use crate::state::flags::{Flags, SendTail};
use crate::state::hot::State;
use crate::state::window::Scales;
use crate::tcp::Session;
use crate::tcp::open::{FIRST_WINDOW_MAX, scale_for};
use crate::tcp::record_marks::{Stamp, StampKinds};
use crate::wire::Ip;
use std::net::SocketAddr;

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
    /// SYN is sent: also determines the window scale. Later, a smaller value counts once the peer
    /// has used the window that it knows of.
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

impl Stack {
    /// Sets an option of a session.
    ///
    /// # Errors
    /// [`NetError::Gone`], [`NetError::Config`] for a value outside its range.
    pub fn set_option(&mut self, id: SessionId, option: SessionOption) -> Result<(), NetError> {
        let number = self.host.sessions.number(id)?;
        option.check()?;
        self.host
            .sessions
            .access(&mut self.host.common, number)
            .set_option(option);
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
        let options = &mut self.host.sessions.listeners.get(id)?.options;
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
        let number = self.host.sessions.number(id)?;
        let (_, _, cold) = self.host.sessions.store.session(number);
        Ok(cold.marks.take_stamp())
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
            SessionOption::ReceiveBytes(bytes) if self.is_unsaid() => {
                // As in Linux: the smallest window scale for it.
                self.path.receive_bytes = bytes;
                self.path.scales = Scales::new(0, scale_for(bytes));
                if self.hot.state() == State::SynSent {
                    let window = &mut self.hot.receive;
                    window.edge = window.nxt + bytes.min(FIRST_WINDOW_MAX);
                }
            }
            SessionOption::SegmentBytesMax(bytes) => self.cold.mss_max = bytes,
            SessionOption::ReceiveBytes(bytes) => {
                // RFC 9293 section 3.8.6: an advertised window is never shrunk. Its edge does not
                // move back; with a smaller buffer, as in Linux, it stays for a while.
                self.path.receive_bytes = bytes;
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
}

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

/// Has a socket take datagrams of this peer only, or of all again. Others are refused as if there
/// were no socket (ICMP "port unreachable"). Datagrams that were received before stay.
///
/// # Errors
/// [`NetError::Gone`].
pub fn set_udp_peer(
    stack: &mut Stack,
    id: UdpId,
    peer: Option<SocketAddr>,
) -> Result<(), NetError> {
    let socket = stack.host.datagrams.socket(id)?;
    socket.peer = peer.map(|peer| (Ip::from(peer.ip()), peer.port()));
    Ok(())
}

/// Sets the traffic class of a socket's datagrams (IP_TOS, IPV6_TCLASS): RFC 2474's six bits, the
/// others are ignored.
///
/// # Errors
/// [`NetError::Gone`].
pub fn set_udp_class(stack: &mut Stack, id: UdpId, class: u8) -> Result<(), NetError> {
    stack.host.datagrams.socket(id)?.traffic_class = Some(class & !3);
    Ok(())
}
