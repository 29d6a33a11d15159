//! Cold part of a session's state: opening, closing, loss recovery, options.

use super::chronograph::Chronograph;
use super::ecn::accurate::EcnCounters;
use super::flight::Flight;
use super::keepalive::Keepalive;
use super::keepalive::UserTimeout;
use super::model::Model;
use super::pacing::Pacer;
use super::prr::Prr;
use super::rack::Rack;
use super::record_marks::Marks;
use super::undo::Undo;
use crate::buffer::NONE;
use crate::congestion::Congestion;
use crate::error::SessionError;
use crate::wire::sequence::{Range, Sequence};

/// The cold part of a control block.
///
/// The first line has the fields that requests and their replies use nevertheless: it is prefetched
/// with the hot part.
#[derive(Debug, Clone)]
#[repr(C, align(64))]
pub(crate) struct Cold {
    /// Record marks and bytes to be timestamped.
    pub(crate) marks: Marks,
    pub(crate) rack: Rack,
    /// Duplicate range to report by D-SACK (RFC 2883).
    pub(crate) duplicate: Option<Range>,
    pub(crate) error: Option<SessionError>,
    /// Remaining acknowledgments of quick-ACK mode.
    pub(crate) quick: u8,
    /// The recovery was entered by a retransmission timeout.
    pub(crate) after_timeout: bool,
    /// In the listener's accept queue.
    pub(crate) queued: bool,

    pub(crate) congestion: Congestion,
    /// BBR's model of the path, once data was sent with it.
    pub(crate) model: Model,
    /// Busy and limited times.
    pub(crate) chronograph: Option<Box<Chronograph>>,
    /// Time of opening.
    pub(crate) opened_ns: u64,
    pub(crate) pacer: Pacer,
    pub(crate) undo: Undo,
    pub(crate) prr: Prr,
    /// Counters of marked packets, and the end of the reduced window.
    pub(crate) ecn: EcnCounters,
    /// ISS and IRS: our initial sequence number, and the peer's.
    pub(crate) iss: Sequence,
    pub(crate) irs: Sequence,
    /// End of the current loss recovery (RFC 6675's RecoveryPoint).
    pub(crate) recover: Sequence,
    /// The largest window that the peer ever offered.
    pub(crate) window_max: u32,
    /// MSS of the peer's SYN.
    pub(crate) peer_mss: u16,
    /// Upper bound of the MSS in both directions, set by the application (`TCP_MAXSEG`); 0 for
    /// none.
    pub(crate) mss_max: u16,
    /// Window scaling is offered and, after both SYNs, agreed on.
    pub(crate) scaling: bool,
    /// Timeouts of a SYN or SYN-ACK that the NIC had not taken: those of the path's `retries` that
    /// were no retransmissions.
    pub(crate) syns_refused: u8,
    /// Time of the last reply to an out-of-window segment without data.
    pub(crate) unacceptable_answered_ms: Option<u32>,
    pub(crate) soft_error: SoftError,
    /// The listener of a session in its accept queue; none otherwise.
    pub(crate) listener: u32,
    /// Time of the last data segment sent.
    pub(crate) last_sent_us: u32,
    pub(crate) keepalive: Keepalive,
    pub(crate) user_timeout: UserTimeout,
    /// Retransmitted segments.
    pub(crate) resent: u32,
    /// Most bytes in flight lately: slow start at most doubles the used window.
    pub(crate) flight: Flight,
    /// Bound of unsent bytes (`TCP_NOTSENT_LOWAT`), where [`SendTail::LOW_WATER`] is set.
    ///
    /// [`SendTail::LOW_WATER`]: crate::state::flags::SendTail::LOW_WATER
    pub(crate) unsent_low: u32,
    /// Largest reordering distance seen, in bytes, and number of reorderings.
    pub(crate) reordering_bytes: u32,
    pub(crate) reorderings: u32,
}

impl Default for Cold {
    fn default() -> Self {
        Self {
            congestion: Congestion::default(),
            model: Model::default(),
            rack: Rack::default(),
            prr: Prr::default(),
            undo: Undo::default(),
            pacer: Pacer::default(),
            ecn: EcnCounters::default(),
            iss: Sequence::default(),
            irs: Sequence::default(),
            recover: Sequence::default(),
            window_max: 0,
            peer_mss: 0,
            mss_max: 0,
            scaling: false,
            quick: 0,
            after_timeout: false,
            duplicate: None,
            unacceptable_answered_ms: None,
            error: None,
            soft_error: SoftError::default(),
            listener: NONE,
            queued: false,
            syns_refused: 0,
            last_sent_us: 0,
            opened_ns: 0,
            keepalive: Keepalive::default(),
            user_timeout: UserTimeout::default(),
            resent: 0,
            flight: Flight::default(),
            unsent_low: u32::MAX,
            marks: Marks::default(),
            chronograph: None,
            reordering_bytes: 0,
            reorderings: 0,
        }
    }
}

/// The last soft error (RFC 9293 section 3.9.2.2), and SND.UNA at that time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SoftError(Option<(SessionError, Sequence)>);

impl SoftError {
    pub(super) fn note(&mut self, error: SessionError, una: Sequence) {
        self.0 = Some((error, una));
    }

    /// The error, unless data was acknowledged since: then the problem has passed.
    pub(crate) fn get(&self, una: Sequence) -> Option<SessionError> {
        let (error, at) = self.0?;
        (at == una).then_some(error)
    }
}

const _: () = assert!(
    std::mem::offset_of!(Cold, congestion) == 64,
    "what every request looks at is one line"
);

/// With the hot part, the ends and two table entries: the cost of an idle session.
const _: () = assert!(
    size_of::<Cold>() + 128 + 64 + 4 * 8 + 64 <= 1024,
    "an idle session costs at most 1 KiB"
);
