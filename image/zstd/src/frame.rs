//! Headers of frames and of blocks.
//!
//! Why here: the decoder reads them, and so do callers that search for frames without decoding
//! them.
//! Must stay true: bounded work, no allocation. Pure.
//! Source: RFC 8878, sections 3.1.1 and 3.1.2.

use crate::Error;
use sidecore_bare::width::{ToU64, ToUsize};

/// Maximum length of a block's contents, and of its body, in bytes.
pub const BLOCK_BYTES_MAX: usize = 128 << 10;

/// Bytes of the longest header of a frame, magic included.
pub const HEADER_BYTES_MAX: usize = 18;
/// Bytes of a block's header.
pub const BLOCK_HEADER_BYTES: usize = 3;
/// Magic and length of a skippable frame.
const SKIPPABLE_HEADER_BYTES: u64 = 8;

const MAGIC: u32 = 0xFD2F_B528;
/// The first of the sixteen magics of skippable frames.
const SKIPPABLE: u32 = 0x184D_2A50;
const WINDOW_LOG_MAX: u32 = 31;

/// True for the first four bytes of a frame or of a skippable one, as a little-endian number.
#[must_use]
pub const fn is_magic(magic: u32) -> bool {
    magic == MAGIC || magic & !0xF == SKIPPABLE
}

/// The kind of frame at a position in the compressed bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// A frame with blocks.
    Frame(Header),
    /// A skippable frame of this many bytes, header included.
    Skippable(u64),
}

/// A frame's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Length of the header itself, magic included: the first block's header follows.
    pub bytes: usize,
    /// Length of the contents, if the header gives it.
    pub content_bytes: Option<u64>,
    /// The largest contents that a block may have.
    pub block_bytes_max: usize,
    /// Four bytes of checksum follow the last block.
    pub has_checksum: bool,
}

/// Reads the header at the start of `bytes`; [`HEADER_BYTES_MAX`] of them are enough.
///
/// # Errors
/// [`Error`]: no frame begins there, or one that cannot be decoded.
pub fn start(bytes: &[u8]) -> Result<Start, Error> {
    let (magic, rest) = bytes.split_first_chunk::<4>().ok_or(Error::Truncated)?;
    let magic = u32::from_le_bytes(*magic);
    if magic & !0xF == SKIPPABLE {
        let length = rest.first_chunk::<4>().ok_or(Error::Truncated)?;
        let length = u32::from_le_bytes(*length);
        return Ok(Start::Skippable(SKIPPABLE_HEADER_BYTES + u64::from(length)));
    }
    if magic != MAGIC {
        return Err(Error::Magic);
    }
    header(rest).map(Start::Frame)
}

/// Reads the fields after the magic.
fn header(bytes: &[u8]) -> Result<Header, Error> {
    let (&descriptor, mut rest) = bytes.split_first().ok_or(Error::Truncated)?;
    // Section 3.1.1.1.1.4: a set bit is a feature that changes how the rest is read.
    if descriptor & 0x08 != 0 {
        return Err(Error::Reserved);
    }
    let is_single_segment = descriptor & 0x20 != 0;
    let mut window = 0;
    if !is_single_segment {
        let (&byte, after) = rest.split_first().ok_or(Error::Truncated)?;
        rest = after;
        let log = 10 + u32::from(byte >> 3);
        if log > WINDOW_LOG_MAX {
            return Err(Error::Window);
        }
        // Section 3.1.1.1.2: a power of two and a number of eighths of it.
        window = (1_u64 << log) + ((1_u64 << log) / 8) * u64::from(byte & 7);
    }
    let dictionary_bytes = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let dictionary = number(&mut rest, dictionary_bytes)?;
    let content_bytes = match descriptor >> 6 {
        0 if is_single_segment => Some(number(&mut rest, 1)?),
        0 => None,
        // Sizes below 256 have one byte; those of two bytes begin behind them.
        1 => Some(number(&mut rest, 2)? + 256),
        2 => Some(number(&mut rest, 4)?),
        _ => Some(number(&mut rest, 8)?),
    };
    // Without the dictionary the frame would decode to other bytes, or fail at some match.
    if dictionary != 0 {
        return Err(Error::Dictionary);
    }
    // There is no window then: matches may reach back over all of the contents.
    if let (true, Some(content)) = (is_single_segment, content_bytes) {
        window = content;
    }
    Ok(Header {
        bytes: 4 + bytes.len() - rest.len(),
        content_bytes,
        block_bytes_max: window.min(BLOCK_BYTES_MAX.to_u64()).to_usize(),
        has_checksum: descriptor & 4 != 0,
    })
}

fn number(rest: &mut &[u8], count: usize) -> Result<u64, Error> {
    let (bytes, after) = rest.split_at_checked(count).ok_or(Error::Truncated)?;
    *rest = after;
    let mut whole = [0; 8];
    whole[..count].copy_from_slice(bytes);
    Ok(u64::from_le_bytes(whole))
}

/// A block's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHeader {
    /// No block of the frame follows it.
    pub is_last: bool,
    /// Length of its body in the frame.
    pub stored_bytes: usize,
    kind: u32,
    size: usize,
}

impl BlockHeader {
    /// Reads a header of a frame whose blocks have at most `bytes_max` bytes.
    ///
    /// # Errors
    /// [`Error::Reserved`], [`Error::Block`].
    pub fn read(bytes: [u8; BLOCK_HEADER_BYTES], bytes_max: usize) -> Result<Self, Error> {
        let head = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]);
        let size = (head >> 3).to_usize();
        let kind = (head >> 1) & 3;
        if kind == RESERVED {
            return Err(Error::Reserved);
        }
        // Block_Maximum_Size bounds contents and stored bytes alike, so each kind's size.
        if size > bytes_max {
            return Err(Error::Block);
        }
        Ok(Self {
            is_last: head & 1 != 0,
            stored_bytes: if kind == RUN { 1 } else { size },
            kind,
            size,
        })
    }

    /// True if the header alone shows that the block has no contents.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.size == 0
    }
}

/// A block with its body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block<'a> {
    pub(crate) is_last: bool,
    pub(crate) kind: BlockKind<'a>,
    /// Position of the next block, or of the data after the frame's blocks.
    pub(crate) end: usize,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum BlockKind<'a> {
    Raw(&'a [u8]),
    /// One byte, repeated this many times.
    Run(u8, usize),
    Compressed(&'a [u8]),
}

/// Reads the block at `at` of a frame whose blocks have at most `bytes_max` bytes.
pub(crate) fn block(frame: &[u8], at: usize, bytes_max: usize) -> Result<Block<'_>, Error> {
    let rest = frame.get(at..).ok_or(Error::Truncated)?;
    let (head, body) = rest.split_first_chunk().ok_or(Error::Truncated)?;
    let header = BlockHeader::read(*head, bytes_max)?;
    let body = body.get(..header.stored_bytes).ok_or(Error::Truncated)?;
    Ok(Block {
        is_last: header.is_last,
        kind: match header.kind {
            RAW => BlockKind::Raw(body),
            RUN => BlockKind::Run(body[0], header.size),
            _ => BlockKind::Compressed(body),
        },
        end: at + BLOCK_HEADER_BYTES + header.stored_bytes,
    })
}

/// Types of blocks; 2 is the compressed one.
const RAW: u32 = 0;
const RUN: u32 = 1;
const RESERVED: u32 = 3;
