//! The start frames of MPA: request and reply (RFC 5044, section 7.1; RFC 6581, section 9).

use super::word16;

/// Longest private data of a start frame, in bytes, including the four of the enhanced set-up.
pub(crate) const PRIVATE_BYTES_MAX: usize = 512;
/// Bytes of a start frame before its private data: key, flags, revision, length.
pub(crate) const START_BYTES: usize = 20;
/// The longest start frame, in bytes.
pub(crate) const START_BYTES_MAX: usize = START_BYTES + PRIVATE_BYTES_MAX;
/// Bytes of the enhanced set-up before the private data.
pub(crate) const ENHANCED_BYTES: usize = 4;
/// A depth that stands for "not negotiated" (RFC 6581, section 9.1), and the mask of depths.
pub(crate) const DEPTH_UNKNOWN: u16 = 0x3fff;
/// The oldest and the newest supported revision.
pub(crate) const REVISIONS: std::ops::RangeInclusive<u8> = 1..=2;

const KEY_REQUEST: &[u8; 16] = b"MPA ID Req Frame";
const KEY_REPLY: &[u8; 16] = b"MPA ID Rep Frame";
const MARKERS: u8 = 0x80;
const CRC: u8 = 0x40;
const REJECT: u8 = 0x20;
const ENHANCED: u8 = 0x10;
const FLAG_HIGH: u16 = 0x8000;
const FLAG_LOW: u16 = 0x4000;

/// Side that sends a start frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The side that opened the connection.
    Initiator,
    /// The side that replies.
    Responder,
}

/// The enhanced set-up: depths of reads, and ways to report "ready to receive".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Enhanced {
    /// Peer to peer: the initiator sends a message of no bytes first.
    pub peer_to_peer: bool,
    /// That may be a framed unit without a message.
    pub ready_by_empty: bool,
    /// That may be an RDMA Write.
    pub ready_by_write: bool,
    /// That may be an RDMA Read.
    pub ready_by_read: bool,
    /// Reads that the sender serves at a time.
    pub ird: u16,
    /// Reads that the sender wants to have outstanding.
    pub ord: u16,
}

impl Enhanced {
    fn read(bytes: &[u8]) -> Option<Self> {
        // RFC 6581, section 9.1: A and B above the IRD, C and D above the ORD.
        let (first, second) = (word16(bytes, 0)?, word16(bytes, 2)?);
        Some(Self {
            peer_to_peer: first & FLAG_HIGH != 0,
            ready_by_empty: first & FLAG_LOW != 0,
            ready_by_write: second & FLAG_HIGH != 0,
            ready_by_read: second & FLAG_LOW != 0,
            ird: first & DEPTH_UNKNOWN,
            ord: second & DEPTH_UNKNOWN,
        })
    }

    fn bytes(self) -> [u8; ENHANCED_BYTES] {
        let flag = |is_set: bool, flag: u16| if is_set { flag } else { 0 };
        let first = self.ird.min(DEPTH_UNKNOWN)
            | flag(self.peer_to_peer, FLAG_HIGH)
            | flag(self.ready_by_empty, FLAG_LOW);
        let second = self.ord.min(DEPTH_UNKNOWN)
            | flag(self.ready_by_write, FLAG_HIGH)
            | flag(self.ready_by_read, FLAG_LOW);
        let ([a, b], [c, d]) = (first.to_be_bytes(), second.to_be_bytes());
        [a, b, c, d]
    }
}

/// A start frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Start {
    /// Its sender.
    pub side: Side,
    /// The sender requests markers in received data.
    pub markers: bool,
    /// The sender requests CRCs.
    pub crc: bool,
    /// The responder rejects the connection.
    pub reject: bool,
    /// Revision of the protocol.
    pub revision: u8,
    /// The enhanced set-up, from revision 2 on.
    pub enhanced: Option<Enhanced>,
    /// Bytes for the application.
    pub private_data: Vec<u8>,
}

/// Reasons why bytes are not a valid start frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// Not the key of this side.
    #[error("not a start frame of MPA")]
    Key,
    /// An unsupported revision.
    #[error("revision {0} of MPA, 1 and 2 are spoken")]
    Revision(u8),
    /// Private data beyond the limit.
    #[error("{0} bytes of private data, the limit is {PRIVATE_BYTES_MAX}")]
    TooLong(u16),
    /// An enhanced frame without its depths.
    #[error("an enhanced start frame of {0} bytes of private data, 4 are needed")]
    TooShort(u16),
    /// A request with the reject flag.
    #[error("a request with the reject flag")]
    Reject,
}

impl Start {
    /// Parses the frame of `side` at the front of `bytes`, and returns its length, too; none while
    /// more bytes are needed.
    ///
    /// # Errors
    /// [`StartError`], as early as the bytes show it.
    pub fn read(bytes: &[u8], side: Side) -> Result<Option<(Self, usize)>, StartError> {
        let key = match side {
            Side::Initiator => KEY_REQUEST,
            Side::Responder => KEY_REPLY,
        };
        // As far as it is there: another protocol's first bytes are not waited for.
        let count = bytes.len().min(key.len());
        if bytes[..count] != key[..count] {
            return Err(StartError::Key);
        }
        let (Some(&flags), Some(&revision), Some(length)) =
            (bytes.get(16), bytes.get(17), word16(bytes, 18))
        else {
            return Ok(None);
        };
        if !REVISIONS.contains(&revision) {
            return Err(StartError::Revision(revision));
        }
        let bytes_count = usize::from(length);
        if bytes_count > PRIVATE_BYTES_MAX {
            return Err(StartError::TooLong(length));
        }
        let reject = flags & REJECT != 0;
        if reject && side == Side::Initiator {
            return Err(StartError::Reject);
        }
        // Revision 1 has the bit reserved (RFC 5044, section 7.1.1): it is ignored there.
        let is_enhanced = revision >= 2 && flags & ENHANCED != 0;
        if is_enhanced && bytes_count < ENHANCED_BYTES {
            return Err(StartError::TooShort(length));
        }
        let Some(data) = bytes.get(START_BYTES..START_BYTES + bytes_count) else {
            return Ok(None);
        };
        let (enhanced, data) = if is_enhanced {
            (Enhanced::read(data), &data[ENHANCED_BYTES..])
        } else {
            (None, data)
        };
        let start = Self {
            side,
            markers: flags & MARKERS != 0,
            crc: flags & CRC != 0,
            reject,
            revision,
            enhanced,
            private_data: data.to_vec(),
        };
        Ok(Some((start, START_BYTES + bytes_count)))
    }

    /// The frame's bytes; private data beyond `Start::private_bytes_max` is truncated.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let mut data = Vec::with_capacity(START_BYTES_MAX);
        data.extend_from_slice(match self.side {
            Side::Initiator => KEY_REQUEST,
            Side::Responder => KEY_REPLY,
        });
        data.push(
            flag(self.markers, MARKERS)
                | flag(self.crc, CRC)
                | flag(self.reject, REJECT)
                | flag(self.enhanced.is_some(), ENHANCED),
        );
        data.push(self.revision);
        let private = &self.private_data[..self.private_data.len().min(self.private_bytes_max())];
        let extra = self.enhanced.map_or(0, |_| ENHANCED_BYTES);
        // At most 512.
        let length = u16::try_from(private.len() + extra).unwrap_or(u16::MAX);
        data.extend_from_slice(&length.to_be_bytes());
        if let Some(enhanced) = self.enhanced {
            data.extend_from_slice(&enhanced.bytes());
        }
        data.extend_from_slice(private);
        data
    }

    /// Room for the application's private data.
    #[must_use]
    pub(crate) fn private_bytes_max(&self) -> usize {
        private_bytes_max(self.enhanced.is_some())
    }
}

/// Room for the application's private data in a frame with or without the enhanced set-up.
pub(crate) fn private_bytes_max(is_enhanced: bool) -> usize {
    if is_enhanced {
        PRIVATE_BYTES_MAX - ENHANCED_BYTES
    } else {
        PRIVATE_BYTES_MAX
    }
}
