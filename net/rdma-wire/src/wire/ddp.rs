//! Headers of DDP (RFC 5041, section 4) and of RDMAP within them (RFC 5040, section 4; RFC 7306,
//! sections 5 and 6).

use super::{word32, word64};
use crate::Stag;

/// A tagged segment's header, in bytes.
pub(crate) const TAGGED_BYTES: usize = 14;
/// An untagged segment's header, in bytes.
pub(crate) const UNTAGGED_BYTES: usize = 18;
/// A read request's own header, in bytes.
pub const READ_BYTES: usize = 28;
/// An atomic request's own header, in bytes.
pub const ATOMIC_BYTES: usize = 52;
/// An atomic response's own header, in bytes.
pub(crate) const ATOMIC_RESPONSE_BYTES: usize = 12;
/// Immediate data, in bytes.
pub(crate) const IMMEDIATE_BYTES: usize = 8;

/// Queue of sends and of immediate data.
pub(crate) const QUEUE_SEND: u32 = 0;
/// Queue of read requests and of atomic requests.
pub(crate) const QUEUE_REQUEST: u32 = 1;
/// Queue of terminate messages.
pub(crate) const QUEUE_TERMINATE: u32 = 2;
/// Queue of atomic responses.
pub(crate) const QUEUE_ATOMIC_RESPONSE: u32 = 3;
/// Number of untagged queues.
pub(crate) const QUEUES: usize = 4;

const TAGGED: u8 = 0x80;
const LAST: u8 = 0x40;
const DDP_VERSION_MASK: u8 = 0x03;
const DDP_VERSION: u8 = 1;
const RDMAP_VERSION_MASK: u8 = 0xc0;
const RDMAP_VERSION: u8 = 0x40;
const OPCODE_MASK: u8 = 0x0f;

/// Messages of RDMAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// Writes bytes to a region of the receiver.
    Write = 0,
    /// Requests bytes of a region.
    ReadRequest = 1,
    /// The requested bytes.
    ReadResponse = 2,
    /// Sends bytes to the receiver's next buffer.
    Send = 3,
    /// The same; invalidates a steering tag of the receiver.
    SendInvalidate = 4,
    /// As [`Self::Send`]; requests an event.
    SendSolicited = 5,
    /// Both.
    SendSolicitedInvalidate = 6,
    /// The sender found a fault and ends the stream.
    Terminate = 7,
    /// Eight bytes in the receiver's next completion.
    Immediate = 8,
    /// The same; requests an event.
    ImmediateSolicited = 9,
    /// Changes a word of a region.
    AtomicRequest = 10,
    /// The old word.
    AtomicResponse = 11,
}

impl Opcode {
    /// The message with that number.
    #[must_use]
    pub fn of(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::Write,
            1 => Self::ReadRequest,
            2 => Self::ReadResponse,
            3 => Self::Send,
            4 => Self::SendInvalidate,
            5 => Self::SendSolicited,
            6 => Self::SendSolicitedInvalidate,
            7 => Self::Terminate,
            8 => Self::Immediate,
            9 => Self::ImmediateSolicited,
            10 => Self::AtomicRequest,
            11 => Self::AtomicResponse,
            _ => return None,
        })
    }

    /// Its untagged queue; none for tagged messages.
    #[must_use]
    pub fn queue(self) -> Option<u32> {
        Some(match self {
            Self::Write | Self::ReadResponse => return None,
            Self::ReadRequest | Self::AtomicRequest => QUEUE_REQUEST,
            Self::Terminate => QUEUE_TERMINATE,
            Self::AtomicResponse => QUEUE_ATOMIC_RESPONSE,
            Self::Send
            | Self::SendInvalidate
            | Self::SendSolicited
            | Self::SendSolicitedInvalidate
            | Self::Immediate
            | Self::ImmediateSolicited => QUEUE_SEND,
        })
    }

    /// True if it requests an event from the receiver.
    #[must_use]
    pub fn is_solicited(self) -> bool {
        matches!(
            self,
            Self::SendSolicited | Self::SendSolicitedInvalidate | Self::ImmediateSolicited
        )
    }

    /// True if it invalidates a steering tag.
    #[must_use]
    pub fn invalidates(self) -> bool {
        matches!(self, Self::SendInvalidate | Self::SendSolicitedInvalidate)
    }
}

/// Destination of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// A region.
    Tagged {
        /// Its steering tag.
        stag: Stag,
        /// Tagged offset of the first byte.
        offset: u64,
    },
    /// A buffer of a queue.
    Untagged {
        /// The steering tag to invalidate, if the message has one; else 0.
        invalidate: Stag,
        /// The queue.
        queue: u32,
        /// Number of the message in the queue, from 1.
        msn: u32,
        /// Offset in the message.
        offset: u32,
    },
}

/// A segment's header. Versions and opcode are as received: the receiver decides which fault is
/// reported first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The last segment of its message.
    pub last: bool,
    /// True if DDP's version is supported.
    pub ddp_version: bool,
    /// True if RDMAP's version is supported.
    pub rdmap_version: bool,
    /// The message's number.
    pub opcode: u8,
    /// Its destination.
    pub target: Target,
}

impl Header {
    /// A header with the supported versions.
    #[must_use]
    pub fn new(last: bool, opcode: Opcode, target: Target) -> Self {
        Self {
            last,
            ddp_version: true,
            rdmap_version: true,
            opcode: opcode as u8,
            target,
        }
    }

    /// Parses the header at the front of `bytes`; returns the payload, too.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (&ddp, &rdmap) = (bytes.first()?, bytes.get(1)?);
        let (target, count) = if ddp & TAGGED != 0 {
            let target = Target::Tagged {
                stag: Stag(word32(bytes, 2)?),
                offset: word64(bytes, 6)?,
            };
            (target, TAGGED_BYTES)
        } else {
            let target = Target::Untagged {
                invalidate: Stag(word32(bytes, 2)?),
                queue: word32(bytes, 6)?,
                msn: word32(bytes, 10)?,
                offset: word32(bytes, 14)?,
            };
            (target, UNTAGGED_BYTES)
        };
        let header = Self {
            last: ddp & LAST != 0,
            ddp_version: ddp & DDP_VERSION_MASK == DDP_VERSION,
            rdmap_version: rdmap & RDMAP_VERSION_MASK == RDMAP_VERSION,
            opcode: rdmap & OPCODE_MASK,
            target,
        };
        Some((header, &bytes[count..]))
    }

    /// Length of the header, in bytes.
    #[must_use]
    pub fn count(&self) -> usize {
        match self.target {
            Target::Tagged { .. } => TAGGED_BYTES,
            Target::Untagged { .. } => UNTAGGED_BYTES,
        }
    }

    /// Writes the header to the front of `bytes`, which has room for it.
    pub(crate) fn write(&self, bytes: &mut [u8]) {
        let ddp = if self.ddp_version { DDP_VERSION } else { 0 } | if self.last { LAST } else { 0 };
        let rdmap = if self.rdmap_version { RDMAP_VERSION } else { 0 };
        bytes[1] = rdmap | self.opcode & OPCODE_MASK;
        match self.target {
            Target::Tagged { stag, offset } => {
                bytes[0] = ddp | TAGGED;
                bytes[2..6].copy_from_slice(&stag.0.to_be_bytes());
                bytes[6..14].copy_from_slice(&offset.to_be_bytes());
            }
            Target::Untagged {
                invalidate,
                queue,
                msn,
                offset,
            } => {
                bytes[0] = ddp;
                bytes[2..6].copy_from_slice(&invalidate.0.to_be_bytes());
                bytes[6..10].copy_from_slice(&queue.to_be_bytes());
                bytes[10..14].copy_from_slice(&msn.to_be_bytes());
                bytes[14..18].copy_from_slice(&offset.to_be_bytes());
            }
        }
    }

    /// The header's bytes.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.count()];
        self.write(&mut bytes);
        bytes
    }
}

/// A read request: from a region of the receiver to one of the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadRequest {
    /// Region of the request's sender.
    pub sink: Stag,
    /// Tagged offset in it.
    pub sink_offset: u64,
    /// Number of bytes requested.
    pub count: u32,
    /// Region of the request's receiver.
    pub source: Stag,
    /// Tagged offset in it.
    pub source_offset: u64,
}

impl ReadRequest {
    /// Parses a request of exactly its length.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        (bytes.len() == READ_BYTES).then_some(())?;
        Some(Self {
            sink: Stag(word32(bytes, 0)?),
            sink_offset: word64(bytes, 4)?,
            count: word32(bytes, 12)?,
            source: Stag(word32(bytes, 16)?),
            source_offset: word64(bytes, 20)?,
        })
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; READ_BYTES] {
        let mut bytes = [0; READ_BYTES];
        bytes[0..4].copy_from_slice(&self.sink.0.to_be_bytes());
        bytes[4..12].copy_from_slice(&self.sink_offset.to_be_bytes());
        bytes[12..16].copy_from_slice(&self.count.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.source.0.to_be_bytes());
        bytes[20..28].copy_from_slice(&self.source_offset.to_be_bytes());
        bytes
    }
}

/// An atomic request (RFC 7306, section 5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtomicRequest {
    /// The operation's number.
    pub operation: u8,
    /// Returned with the response.
    pub identifier: u32,
    /// Region of the receiver.
    pub stag: Stag,
    /// Tagged offset in it.
    pub offset: u64,
    /// The number to add or to swap in.
    pub operand: u64,
    /// The highest bits of the fields of an addition, or the bits to swap.
    pub operand_mask: u64,
    /// The number to compare with.
    pub compare: u64,
    /// The bits to compare.
    pub compare_mask: u64,
}

/// An addition's number.
pub(crate) const FETCH_ADD: u8 = 0;
/// A swap's number.
pub(crate) const SWAP: u8 = 1;
/// A comparing swap's number.
pub(crate) const COMPARE_SWAP: u8 = 2;

impl AtomicRequest {
    /// Parses a request of exactly its length.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        (bytes.len() == ATOMIC_BYTES).then_some(())?;
        Some(Self {
            operation: bytes[3] & OPCODE_MASK,
            identifier: word32(bytes, 4)?,
            stag: Stag(word32(bytes, 8)?),
            offset: word64(bytes, 12)?,
            operand: word64(bytes, 20)?,
            operand_mask: word64(bytes, 28)?,
            compare: word64(bytes, 36)?,
            compare_mask: word64(bytes, 44)?,
        })
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; ATOMIC_BYTES] {
        let mut bytes = [0; ATOMIC_BYTES];
        bytes[3] = self.operation & OPCODE_MASK;
        bytes[4..8].copy_from_slice(&self.identifier.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.stag.0.to_be_bytes());
        bytes[12..20].copy_from_slice(&self.offset.to_be_bytes());
        bytes[20..28].copy_from_slice(&self.operand.to_be_bytes());
        bytes[28..36].copy_from_slice(&self.operand_mask.to_be_bytes());
        bytes[36..44].copy_from_slice(&self.compare.to_be_bytes());
        bytes[44..52].copy_from_slice(&self.compare_mask.to_be_bytes());
        bytes
    }

    /// The new word for `word`; none if the operation is unknown.
    #[must_use]
    pub fn apply(&self, word: u64) -> Option<u64> {
        Some(match self.operation {
            FETCH_ADD => add_fields(word, self.operand, self.operand_mask),
            SWAP => word & !self.operand_mask | self.operand & self.operand_mask,
            COMPARE_SWAP if (word ^ self.compare) & self.compare_mask != 0 => word,
            COMPARE_SWAP => word & !self.operand_mask | self.operand & self.operand_mask,
            _ => return None,
        })
    }
}

/// Adds field by field: a set bit of `ends` is the highest of its field, where a carry is dropped.
fn add_fields(word: u64, operand: u64, ends: u64) -> u64 {
    // Without their highest bits the fields keep their carries to themselves; the highest bits are
    // added without a carry. The carry of the topmost bit is lost anyway.
    (word & !ends).wrapping_add(operand & !ends) ^ (word ^ operand) & ends
}

/// An atomic response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtomicResponse {
    /// Identifier of the request.
    pub identifier: u32,
    /// The old word.
    pub original: u64,
}

impl AtomicResponse {
    /// Parses a response of exactly its length.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        (bytes.len() == ATOMIC_RESPONSE_BYTES).then_some(())?;
        Some(Self {
            identifier: word32(bytes, 0)?,
            original: word64(bytes, 4)?,
        })
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> [u8; ATOMIC_RESPONSE_BYTES] {
        let mut bytes = [0; ATOMIC_RESPONSE_BYTES];
        bytes[..4].copy_from_slice(&self.identifier.to_be_bytes());
        bytes[4..].copy_from_slice(&self.original.to_be_bytes());
        bytes
    }
}
