//! What a session needs rarely: opening, closing, loss, options.

use super::congestion::Congestion;
use super::prr::Prr;
use super::rack::Rack;
use super::sequence::Range;
use super::undo::Undo;
use crate::buffer::slab::NONE;
use crate::error::SessionError;

/// The cold part of a control block.
#[derive(Debug, Clone)]
pub(crate) struct Cold {
    pub(crate) congestion: Congestion,
    pub(crate) rack: Rack,
    pub(crate) prr: Prr,
    pub(crate) undo: Undo,
    /// Our initial sequence number, and the peer's.
    pub(crate) iss: u32,
    pub(crate) irs: u32,
    /// Where the current repair ends (RFC 6675's RecoveryPoint).
    pub(crate) recover: u32,
    /// The largest window that the peer ever offered.
    pub(crate) window_max: u32,
    /// What the peer's SYN said.
    pub(crate) peer_mss: u16,
    /// No larger segments either way, as the application has it (TCP_MAXSEG); 0 for no wish.
    pub(crate) mss_max: u16,
    /// Window scaling is offered, and once both SYNs have gone, agreed on.
    pub(crate) scaling: bool,
    /// Keepalive probes without an answer.
    pub(crate) alive_probes: u8,
    /// Acknowledgments that still go out at once.
    pub(crate) quick: u8,
    /// The repair was begun by a timeout.
    pub(crate) after_timeout: bool,
    /// A duplicate to report (RFC 2883).
    pub(crate) duplicate: Option<Range>,
    pub(crate) error: Option<SessionError>,
    /// Of a session that waits for `accept`; none otherwise.
    pub(crate) listener: u32,
    /// In the listener's queue.
    pub(crate) queued: bool,
    /// When it last sent data.
    pub(crate) spoke_us: u32,
    /// When it was opened.
    pub(crate) opened_ns: u64,
    pub(crate) keepalive: Keepalive,
    /// How long data may stay unacknowledged, in milliseconds; 0 for the default.
    pub(crate) user_timeout_ms: u32,
    /// Segments that were sent again.
    pub(crate) resent: u32,
}

/// RFC 9293 section 3.8.4 and RFC 1122 section 4.2.3.6: off unless asked for, two hours at least by
/// default.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keepalive {
    /// Silence before the first probe, in seconds.
    pub idle_s: u32,
    /// Between probes, in seconds.
    pub interval_s: u32,
    /// Probes before the session is given up.
    pub probes: u8,
}

impl Default for Keepalive {
    fn default() -> Self {
        Self {
            idle_s: 7200,
            interval_s: 75,
            probes: 9,
        }
    }
}

impl Default for Cold {
    fn default() -> Self {
        Self {
            congestion: Congestion::default(),
            rack: Rack::default(),
            prr: Prr::default(),
            undo: Undo::default(),
            iss: 0,
            irs: 0,
            recover: 0,
            window_max: 0,
            peer_mss: 0,
            mss_max: 0,
            scaling: false,
            alive_probes: 0,
            quick: 0,
            after_timeout: false,
            duplicate: None,
            error: None,
            listener: NONE,
            queued: false,
            spoke_us: 0,
            opened_ns: 0,
            keepalive: Keepalive::default(),
            user_timeout_ms: 0,
            resent: 0,
        }
    }
}

/// With the hot part, the ends and two entries of the table: what an idle session costs.
const _: () = assert!(
    size_of::<Cold>() + 128 + 64 + 4 * 8 + 64 <= 1024,
    "an idle session costs at most 1 KiB"
);
