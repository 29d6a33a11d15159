//! The numbers and the byte layouts of the NBD protocol.
//!
//! Why here: everything that must agree with the peer bit by bit is in one place, without state and
//! without I/O.
//! Must stay true: all integers are big-endian; nothing here allocates.
//! Any thread may call it.
//! Source: the NBD protocol document (`doc/proto.md` of the reference implementation); section
//! names are cited.

use arrayvec::ArrayVec;
use sidecore_bare::width::ToUsize;

/// The server's greeting ("Newstyle negotiation").
pub(crate) const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`: second word of the greeting, and first of every option.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454F_5054;
/// First word of every reply to an option ("Fixed newstyle negotiation").
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// First word of a request ("Request message").
pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
/// First word of a simple reply ("Simple reply message").
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First word of a structured reply chunk ("Structured reply chunk message").
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// First word of an extended request ("Extended request message").
pub(crate) const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
/// First word of a chunk with an extended header ("Extended reply chunk message").
pub const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// Bytes of an extended request on the wire, and of an extended chunk's header.
pub const EXTENDED_BYTES: usize = 32;
/// Bytes of a request on the wire, without a payload.
pub const REQUEST_BYTES: usize = 28;
/// Bytes of the greeting.
pub const GREETING_BYTES: usize = 18;
/// Bytes of an option's header.
pub const OPTION_BYTES: usize = 16;
/// Bytes of the header of a reply to an option.
pub(crate) const OPTION_REPLY_BYTES: usize = 20;
/// Bytes of a simple reply without data.
pub(crate) const SIMPLE_REPLY_BYTES: usize = 16;
/// Bytes of a chunk's header.
pub const CHUNK_BYTES: usize = 20;
/// The longest string that the protocol allows ("Conventions").
pub(crate) const STRING_BYTES_MAX: usize = 4096;

/// "Handshake flags" and, with the same values, "Client flags".
pub(crate) mod handshake_flag {
    /// Both sides know options other than `EXPORT_NAME`.
    pub(crate) const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// No 124 zero bytes after `EXPORT_NAME`.
    pub(crate) const NO_ZEROES: u16 = 1 << 1;
}

/// "Transmission flags".
pub(crate) mod transmission_flag {
    /// Always set.
    pub(crate) const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub(crate) const READ_ONLY: u16 = 1 << 1;
    /// `CMD_FLUSH` is understood.
    pub(crate) const SEND_FLUSH: u16 = 1 << 2;
    /// The flag `FUA` is understood.
    pub(crate) const SEND_FUA: u16 = 1 << 3;
    /// `CMD_TRIM` is understood.
    pub(crate) const SEND_TRIM: u16 = 1 << 5;
    /// `CMD_WRITE_ZEROES` is understood.
    pub(crate) const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// Reads may ask for one content chunk.
    pub(crate) const SEND_DF: u16 = 1 << 7;
    /// Several connections see the same bytes.
    pub(crate) const CAN_MULTI_CONN: u16 = 1 << 8;
    /// `CMD_CACHE` is understood.
    pub(crate) const SEND_CACHE: u16 = 1 << 10;
}

/// The flags that every client gets.
#[must_use]
pub(super) fn transmission_flags(structured: bool, writable: bool) -> u16 {
    // "NBD_FLAG_CAN_MULTI_CONN: ... a flush on one connection is effective on all": there is one
    // device behind them all, which caches no writes.
    let mut flags = transmission_flag::HAS_FLAGS
        | transmission_flag::CAN_MULTI_CONN
        | transmission_flag::SEND_CACHE;
    flags |= match writable {
        false => transmission_flag::READ_ONLY,
        true => {
            transmission_flag::SEND_FLUSH
                | transmission_flag::SEND_FUA
                | transmission_flag::SEND_TRIM
                | transmission_flag::SEND_WRITE_ZEROES
        }
    };
    if structured {
        // "MUST leave this flag clear if structured replies have not been negotiated".
        flags |= transmission_flag::SEND_DF;
    }
    flags
}

/// "Option types".
pub mod option {
    /// Choose an export and begin; the protocol has no error reply.
    pub const EXPORT_NAME: u32 = 1;
    /// Disconnect.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Encrypt from here on.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and begin.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List the metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
    /// Use headers with lengths of 64 bits.
    pub const EXTENDED_HEADERS: u32 = 11;
}

/// "Option reply types".
pub mod reply {
    /// Done.
    pub const ACK: u32 = 1;
    /// One export.
    pub const SERVER: u32 = 2;
    /// One piece of information on an export.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub(crate) const META_CONTEXT: u32 = 4;
    /// The option is unknown.
    pub(crate) const ERR_UNSUP: u32 = (1 << 31) + 1;
    /// Begin with TLS.
    pub(crate) const ERR_TLS_REQD: u32 = (1 << 31) + 5;
    /// The option is malformed or out of place.
    pub(crate) const ERR_INVALID: u32 = (1 << 31) + 3;
    /// There is no such export.
    pub(crate) const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    /// The client has not asked for the block sizes, and they are not the usual ones.
    pub(crate) const ERR_BLOCK_SIZE_REQD: u32 = (1 << 31) + 8;
    /// The option's data is too long.
    pub(crate) const ERR_TOO_BIG: u32 = (1 << 31) + 9;
    /// Extended headers take the option's place.
    pub(crate) const ERR_EXT_HEADER_REQD: u32 = (1 << 31) + 10;
}

/// Kinds of information in a reply of type `INFO`.
pub mod info {
    /// Size and transmission flags.
    pub(crate) const EXPORT: u16 = 0;
    /// Canonical name.
    pub const NAME: u16 = 1;
    /// Text for users.
    pub(crate) const DESCRIPTION: u16 = 2;
    /// Smallest, preferred and largest request.
    pub(crate) const BLOCK_SIZE: u16 = 3;
}

/// "Request types".
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write; the only one with a payload.
    pub const WRITE: u16 = 1;
    /// Disconnect.
    pub const DISC: u16 = 2;
    /// Make writes durable; offered where the export takes writes.
    pub const FLUSH: u16 = 3;
    /// Discard a range.
    pub const TRIM: u16 = 4;
    /// Read a range into the server's cache.
    pub const CACHE: u16 = 5;
    /// Write zeros.
    pub const WRITE_ZEROES: u16 = 6;
    /// Asks for the extents of data and of zeros.
    pub const BLOCK_STATUS: u16 = 7;
}

/// "Command flags".
pub mod command_flag {
    /// Force unit access: the reply comes once the change is durable.
    pub const FUA: u16 = 1 << 0;
    /// Zeros are to be written, not a hole.
    pub const NO_HOLE: u16 = 1 << 1;
    /// Don't fragment: at most one content chunk.
    pub const DF: u16 = 1 << 2;
    /// At most one extent.
    pub const REQ_ONE: u16 = 1 << 3;
    /// The length is that of a payload, which follows (with extended headers alone).
    pub const PAYLOAD_LEN: u16 = 1 << 5;
}

/// "Structured reply types" and their one flag.
pub mod chunk {
    /// Flag: the last chunk of this reply.
    pub const DONE: u16 = 1 << 0;
    /// No content.
    pub const NONE: u16 = 0;
    /// Bytes at an offset.
    pub const OFFSET_DATA: u16 = 1;
    /// Zeros at an offset (a client must know it; this server does not send it).
    pub(crate) const OFFSET_HOLE: u16 = 2;
    /// Extents.
    pub const BLOCK_STATUS: u16 = 5;
    /// Extents with lengths of 64 bits.
    pub const BLOCK_STATUS_EXT: u16 = 6;
    /// The request failed.
    pub const ERROR: u16 = (1 << 15) + 1;
    /// The request failed at an offset.
    pub const ERROR_OFFSET: u16 = (1 << 15) + 2;
}

/// Flags of the `base:allocation` context ("Metadata contexts").
pub mod state {
    /// Not allocated.
    pub const HOLE: u32 = 1 << 0;
    /// Reads as zeros.
    pub const ZERO: u32 = 1 << 1;
    /// Written since the checkpoint (of `qemu:dirty-bitmap`, defined by QEMU's
    /// page on NBD).
    pub const DIRTY: u32 = 1 << 0;
}

/// "Error values": the only ones allowed on the wire.
pub mod errno {
    /// Operation not permitted.
    pub const EPERM: u32 = 1;
    /// Input/output error.
    pub const EIO: u32 = 5;
    /// Invalid argument.
    pub const EINVAL: u32 = 22;
    /// No space left on device.
    pub const ENOSPC: u32 = 28;
    /// Value too large.
    pub const EOVERFLOW: u32 = 75;
}

/// A request's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// `command_flag`s.
    pub flags: u16,
    /// A `command`.
    pub command: u16,
    /// The client's mark, given back in every reply (the document's "handle", later "cookie").
    pub cookie: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes; below 4 GiB without extended headers.
    pub len: u64,
}

impl Request {
    /// Reads a header of [`Headers::request_bytes`] bytes; `None` where the magic is wrong.
    #[must_use]
    pub fn decode(bytes: &[u8], headers: Headers) -> Option<Self> {
        let mut fields = Fields(bytes);
        let magic = fields.u32()?;
        let is_extended = headers == Headers::Extended;
        let request = Self {
            flags: fields.u16()?,
            command: fields.u16()?,
            cookie: fields.u64()?,
            offset: fields.u64()?,
            len: match is_extended {
                true => fields.u64()?,
                false => fields.u32()?.into(),
            },
        };
        let expected = match is_extended {
            true => EXTENDED_REQUEST_MAGIC,
            false => REQUEST_MAGIC,
        };
        (magic == expected).then_some(request)
    }

    /// Writes an extended header.
    #[must_use]
    pub fn encode_extended(&self) -> [u8; EXTENDED_BYTES] {
        let mut bytes = [0; EXTENDED_BYTES];
        bytes[..24].copy_from_slice(&self.encode()[..24]);
        bytes[..4].copy_from_slice(&EXTENDED_REQUEST_MAGIC.to_be_bytes());
        bytes[24..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    /// Writes a header; a length that does not fit becomes the longest.
    #[must_use]
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.flags.to_be_bytes());
        bytes[6..8].copy_from_slice(&self.command.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_be_bytes());
        let len = u32::try_from(self.len).unwrap_or(u32::MAX);
        bytes[24..28].copy_from_slice(&len.to_be_bytes());
        bytes
    }
}

/// A simple reply's header.
#[must_use]
pub(crate) fn simple_reply(cookie: u64, error: u32) -> [u8; SIMPLE_REPLY_BYTES] {
    let mut bytes = [0; SIMPLE_REPLY_BYTES];
    bytes[0..4].copy_from_slice(&SIMPLE_REPLY_MAGIC.to_be_bytes());
    bytes[4..8].copy_from_slice(&error.to_be_bytes());
    bytes[8..16].copy_from_slice(&cookie.to_be_bytes());
    bytes
}

/// The headers of requests and replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Headers {
    /// Replies without chunks.
    Simple,
    /// Replies in chunks.
    Structured,
    /// The same, with lengths of 64 bits and in requests as well.
    Extended,
}

impl Headers {
    /// True if reads are answered in chunks.
    pub(crate) fn has_chunks(self) -> bool {
        self != Self::Simple
    }

    /// Bytes of a request's header.
    #[must_use]
    pub fn request_bytes(self) -> usize {
        match self {
            Self::Extended => EXTENDED_BYTES,
            _ => REQUEST_BYTES,
        }
    }
}

/// The request that a reply answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct To {
    /// The connection's headers.
    pub headers: Headers,
    /// The client's mark.
    pub cookie: u64,
    /// The request's offset, which an extended header repeats.
    pub offset: u64,
}

/// Bytes of a header.
pub(crate) type Head = ArrayVec<u8, { EXTENDED_BYTES + 8 }>;

/// A chunk's header.
#[must_use]
pub(crate) fn chunk_head(to: To, flags: u16, kind: u16, payload_bytes: u32) -> Head {
    let mut head = Head::new();
    let mut put = |bytes: &[u8]| head.extend(bytes.iter().copied());
    let is_extended = to.headers == Headers::Extended;
    let magic = match is_extended {
        true => EXTENDED_REPLY_MAGIC,
        false => STRUCTURED_REPLY_MAGIC,
    };
    put(&magic.to_be_bytes());
    put(&flags.to_be_bytes());
    put(&kind.to_be_bytes());
    put(&to.cookie.to_be_bytes());
    if is_extended {
        put(&to.offset.to_be_bytes());
        put(&u64::from(payload_bytes).to_be_bytes());
    } else {
        put(&payload_bytes.to_be_bytes());
    }
    head
}

/// The header of a chunk of `data_bytes` bytes of data from `offset`.
#[must_use]
pub(crate) fn data_chunk(to: To, flags: u16, offset: u64, data_bytes: u32) -> Head {
    let mut head = chunk_head(to, flags, chunk::OFFSET_DATA, data_bytes + 8);
    head.extend(offset.to_be_bytes());
    head
}

/// Big-endian fields, read one after the other; `None` once the bytes have run out.
#[derive(Debug, Clone, Copy)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// The next `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(head)
    }

    /// The next 16 bits.
    pub fn u16(&mut self) -> Option<u16> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u16::from_be_bytes(*head))
    }

    /// The next 32 bits.
    pub fn u32(&mut self) -> Option<u32> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*head))
    }

    /// The next 64 bits.
    pub fn u64(&mut self) -> Option<u64> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_be_bytes(*head))
    }

    /// A string behind its 32-bit length, at most [`STRING_BYTES_MAX`] long, UTF-8 without NUL
    /// ("Conventions").
    pub fn string(&mut self) -> Option<&'a str> {
        let len = self.u32()?.to_usize();
        if len > STRING_BYTES_MAX {
            return None;
        }
        text(self.bytes(len)?)
    }

    /// True when every byte has been read.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The bytes as one of the protocol's strings: UTF-8 without NUL ("Conventions").
#[must_use]
pub fn text(bytes: &[u8]) -> Option<&str> {
    if bytes.len() > STRING_BYTES_MAX || bytes.contains(&0) {
        return None;
    }
    std::str::from_utf8(bytes).ok()
}
