//! Terminate messages and their faults (RFC 5040, section 4.8; RFC 5041, section 8.2; RFC 5044,
//! section 8; RFC 6581, section 10).

use super::ddp::{Header, READ_BYTES, TAGGED_BYTES, UNTAGGED_BYTES};
use super::word16;

const CONTROL_BYTES: usize = 4;
const HAS_LENGTH: u8 = 0x80;
const HAS_DDP: u8 = 0x40;
const HAS_RDMAP: u8 = 0x20;

/// Faults with a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Cause {
    /// RDMAP cannot continue.
    LocalCatastrophic,
    /// A request names no region.
    RequestStag,
    /// A request leaves its region.
    RequestBounds,
    /// The region does not allow the access.
    AccessRights,
    /// A request names a region of other streams.
    RequestNotAssociated,
    /// A request's offset wraps.
    RequestWrap,
    /// The steering tag cannot be invalidated by this peer.
    CannotInvalidate,
    /// A protection error, unspecified.
    ProtectionUnspecified,
    /// Another version of RDMAP.
    RdmapVersion,
    /// An unexpected message.
    UnexpectedOpcode,
    /// This stream cannot continue.
    StreamCatastrophic,
    /// No stream can continue.
    GlobalCatastrophic,
    /// An operation error, unspecified.
    OperationUnspecified,
    /// DDP cannot continue.
    DdpCatastrophic,
    /// A segment names no region.
    TaggedStag,
    /// A segment leaves its region.
    TaggedBounds,
    /// A segment names a region of other streams.
    TaggedNotAssociated,
    /// A segment's offset wraps.
    TaggedWrap,
    /// A tagged segment of another version of DDP.
    TaggedVersion,
    /// No such queue.
    InvalidQueue,
    /// There is no buffer for the message.
    NoBuffer,
    /// A message number out of sequence.
    InvalidMsn,
    /// A segment offset out of sequence.
    InvalidOffset,
    /// Longer than the buffer.
    TooLong,
    /// An untagged segment of another version of DDP.
    UntaggedVersion,
    /// The connection is lost.
    StreamLost,
    /// A wrong CRC.
    Crc,
    /// A marker and a length that contradict each other, or a unit without a segment.
    Framing,
    /// An invalid start frame.
    StartFrame,
    /// MPA cannot continue.
    MpaCatastrophic,
    /// Fewer outstanding reads than the peer requires.
    InsufficientReads,
    /// No common way to report "ready to receive".
    NoReadyToReceive,
}

/// Each fault with its layer, type and code.
pub(crate) const CAUSES: [(Cause, [u8; 3]); 32] = [
    (Cause::LocalCatastrophic, [0, 0, 0x00]),
    (Cause::RequestStag, [0, 1, 0x00]),
    (Cause::RequestBounds, [0, 1, 0x01]),
    (Cause::AccessRights, [0, 1, 0x02]),
    (Cause::RequestNotAssociated, [0, 1, 0x03]),
    (Cause::RequestWrap, [0, 1, 0x04]),
    (Cause::CannotInvalidate, [0, 1, 0x09]),
    (Cause::ProtectionUnspecified, [0, 1, 0xff]),
    (Cause::RdmapVersion, [0, 2, 0x05]),
    (Cause::UnexpectedOpcode, [0, 2, 0x06]),
    (Cause::StreamCatastrophic, [0, 2, 0x07]),
    (Cause::GlobalCatastrophic, [0, 2, 0x08]),
    (Cause::OperationUnspecified, [0, 2, 0xff]),
    (Cause::DdpCatastrophic, [1, 0, 0x00]),
    (Cause::TaggedStag, [1, 1, 0x00]),
    (Cause::TaggedBounds, [1, 1, 0x01]),
    (Cause::TaggedNotAssociated, [1, 1, 0x02]),
    (Cause::TaggedWrap, [1, 1, 0x03]),
    (Cause::TaggedVersion, [1, 1, 0x04]),
    (Cause::InvalidQueue, [1, 2, 0x01]),
    (Cause::NoBuffer, [1, 2, 0x02]),
    (Cause::InvalidMsn, [1, 2, 0x03]),
    (Cause::InvalidOffset, [1, 2, 0x04]),
    (Cause::TooLong, [1, 2, 0x05]),
    (Cause::UntaggedVersion, [1, 2, 0x06]),
    (Cause::StreamLost, [2, 0, 0x01]),
    (Cause::Crc, [2, 0, 0x02]),
    (Cause::Framing, [2, 0, 0x03]),
    (Cause::StartFrame, [2, 0, 0x04]),
    (Cause::MpaCatastrophic, [2, 0, 0x05]),
    (Cause::InsufficientReads, [2, 0, 0x06]),
    (Cause::NoReadyToReceive, [2, 0, 0x07]),
];

impl Cause {
    /// Its layer, type and code.
    #[must_use]
    pub fn numbers(self) -> [u8; 3] {
        // Every cause is in the table; a test checks that.
        let entry = CAUSES.iter().find(|entry| entry.0 == self);
        entry.map_or([0; 3], |entry| entry.1)
    }

    /// The fault with this layer, type and code.
    #[must_use]
    pub fn of(numbers: [u8; 3]) -> Option<Self> {
        let entry = CAUSES.iter().find(|entry| entry.1 == numbers)?;
        Some(entry.0)
    }
}

/// A terminate message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terminate {
    /// Layer, type and code.
    pub numbers: [u8; 3],
    /// Length of the segment at fault, in bytes.
    pub segment_bytes: Option<u16>,
    /// Its DDP header.
    pub ddp: Vec<u8>,
    /// Its RDMAP header, if it is a read request.
    pub rdmap: Vec<u8>,
}

impl Terminate {
    /// A fault without a segment.
    #[must_use]
    pub fn new(cause: Cause) -> Self {
        Self {
            numbers: cause.numbers(),
            segment_bytes: None,
            ddp: Vec::new(),
            rdmap: Vec::new(),
        }
    }

    /// A fault of `segment`, a DDP segment with its header; `is_read` if it is a read request.
    #[must_use]
    pub fn blaming(cause: Cause, segment: &[u8], is_read: bool) -> Self {
        let mut terminate = Self::new(cause);
        // Without a header there is nothing to blame: the fault alone is reported.
        let Some((_, payload)) = Header::read(segment) else {
            return terminate;
        };
        let (header, _) = segment.split_at(segment.len() - payload.len());
        terminate.segment_bytes = Some(u16::try_from(segment.len()).unwrap_or(u16::MAX));
        terminate.ddp = header.to_vec();
        if is_read && let Some(request) = payload.get(..READ_BYTES) {
            terminate.rdmap = request.to_vec();
        }
        terminate
    }

    /// The fault, if its numbers are known.
    #[must_use]
    pub fn cause(&self) -> Option<Cause> {
        Cause::of(self.numbers)
    }

    /// Parses a message; announced headers that are missing are left empty.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let control = bytes.get(..CONTROL_BYTES)?;
        let mut terminate = Self {
            numbers: [control[0] >> 4, control[0] & 0x0f, control[1]],
            segment_bytes: None,
            ddp: Vec::new(),
            rdmap: Vec::new(),
        };
        let mut at = CONTROL_BYTES;
        // The length comes with the header, even if only the header's bit is set.
        if control[2] & (HAS_LENGTH | HAS_DDP) != 0 {
            terminate.segment_bytes = word16(bytes, at);
            at += 2;
        }
        if control[2] & HAS_DDP != 0 {
            // The blamed header says itself how long it is: its first bit is DDP's tagged flag.
            let is_tagged = bytes.get(at).is_some_and(|first| first & 0x80 != 0);
            let count = if is_tagged {
                TAGGED_BYTES
            } else {
                UNTAGGED_BYTES
            };
            terminate.ddp = bytes.get(at..at + count).unwrap_or_default().to_vec();
            at += count;
        }
        if control[2] & HAS_RDMAP != 0 {
            terminate.rdmap = bytes.get(at..at + READ_BYTES).unwrap_or_default().to_vec();
        }
        Some(terminate)
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let [layer, kind, code] = self.numbers;
        let mut contents = 0;
        if self.segment_bytes.is_some() {
            contents |= HAS_LENGTH;
        }
        if !self.ddp.is_empty() {
            contents |= HAS_DDP;
        }
        if !self.rdmap.is_empty() {
            contents |= HAS_RDMAP;
        }
        let mut bytes = vec![layer << 4 | kind & 0x0f, code, contents, 0];
        if let Some(count) = self.segment_bytes {
            bytes.extend_from_slice(&count.to_be_bytes());
        }
        bytes.extend_from_slice(&self.ddp);
        bytes.extend_from_slice(&self.rdmap);
        bytes
    }
}
