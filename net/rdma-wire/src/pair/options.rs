//! Properties of a pair, chosen by its owner before the start.

use crate::domain::PairId;
use crate::piece::SharedId;

/// Most entries of a send or receive queue.
pub const DEPTH_MAX: usize = 1 << 14;
/// Most outstanding reads and atomics, each way.
pub(crate) const IRD_MAX: u16 = 256;
/// The smallest limit of a unit's length, in bytes: a terminate message fits.
pub const SEGMENT_BYTES_MIN: usize = 128;
/// The largest one, in bytes.
pub const SEGMENT_BYTES_MAX: usize = 66_560;

/// Set-up that an initiator offers. A responder accepts each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Setup {
    /// Revision 1 of MPA (RFC 5044): depths of reads are not negotiated, the initiator sends first.
    Basic,
    /// Revision 2 (RFC 6581) with the depths of reads; the initiator sends first.
    Enhanced,
    /// Revision 2, and the initiator sends a message of no bytes at once, so that the responder may
    /// send first.
    PeerToPeer(ReadyBy),
}

/// Messages of no bytes by which an initiator may report "ready to receive".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadyBy {
    /// An RDMA Write or an RDMA Read, as the responder chooses (RFC 6581's flags C and D).
    Message,
    /// A unit of no bytes only (flag B).
    EmptyUnit,
}

/// Properties of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Requests CRCs; they are used if one side requests them.
    pub crc: bool,
    /// Requests markers in received data.
    pub markers: bool,
    /// Set-up that is offered as the initiator.
    pub setup: Setup,
    /// Unsolicited immediate data completes without a receive; each is 8 bytes, and at most as many
    /// wait to be polled as there may be receives.
    pub immediate_without_receive: bool,
    /// Reads and atomics of the peer in progress at a time, at most 256.
    pub ird: u16,
    /// Reads and atomics that are outstanding at a time, at most 256.
    pub ord: u16,
    /// Entries of the send queue, at most [`DEPTH_MAX`].
    pub send_depth: usize,
    /// Entries of the receive queue, at most [`DEPTH_MAX`].
    pub receive_depth: usize,
    /// Receives come from this shared queue of the domain.
    pub shared: Option<SharedId>,
    /// A message without a receive waits, and the stream behind it, until one is posted; otherwise
    /// it ends the pair. TCP's flow control then slows the sender (RFC 5041 leaves buffering to the
    /// receiver).
    pub waits_for_receives: bool,
    /// Longest unit to send, in bytes: if it fits into a segment of TCP, each segment can be placed
    /// alone. [`SEGMENT_BYTES_MIN`] to [`SEGMENT_BYTES_MAX`].
    pub segment_bytes: usize,
    /// The owner that regions of one owner are checked against ([`Registration::pair`]): several
    /// pairs may have one, as in a protection domain of verbs. By default each is its own.
    ///
    /// [`Registration::pair`]: crate::Registration::pair
    pub owner: Option<PairId>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            crc: true,
            markers: false,
            setup: Setup::Enhanced,
            immediate_without_receive: false,
            ird: 16,
            ord: 16,
            send_depth: 128,
            receive_depth: 128,
            shared: None,
            waits_for_receives: false,
            // An Ethernet frame of 1500 bytes without the headers of IPv4 and of TCP with
            // timestamps: each segment of TCP then begins with a unit.
            segment_bytes: 1448,
            owner: None,
        }
    }
}

impl Options {
    /// The same within the limits: each queue of a pair has a fixed bound.
    pub(super) fn bounded(mut self) -> Self {
        self.ird = self.ird.min(IRD_MAX);
        self.ord = self.ord.min(IRD_MAX);
        self.send_depth = self.send_depth.clamp(1, DEPTH_MAX);
        self.receive_depth = self.receive_depth.clamp(1, DEPTH_MAX);
        self.segment_bytes = self
            .segment_bytes
            .clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
        self
    }
}
