//! Headers of zstd's frames and blocks.
//!
//! Why here: walks over a file search for frames without decoding them.
//! Must stay true: bounded work, no allocation. Pure.
//! Source: RFC 8878, sections 3.1.1 and 3.1.2.

use sidecore_bare::width::ToUsize;
use zstd_safe::zstd_sys::ZSTD_ErrorCode;

/// libzstd's code for contents that are longer than the output: the negative number.
pub const NO_ROOM: usize = (ZSTD_ErrorCode::ZSTD_error_dstSize_tooSmall as usize).wrapping_neg();

/// Maximum length of a block's contents, and of its body, in bytes.
pub(crate) const BLOCK_BYTES_MAX: usize = 128 << 10;

/// Bytes of the longest header of a frame, magic included.
pub(crate) const HEADER_BYTES_MAX: usize = 18;
/// Bytes of a block's header.
pub(crate) const BLOCK_HEADER_BYTES: usize = 3;
/// Magic and length of a skippable frame.
const SKIPPABLE_HEADER_BYTES: u64 = 8;

const MAGIC: u32 = 0xFD2F_B528;
/// The first of the sixteen magics of skippable frames.
const SKIPPABLE: u32 = 0x184D_2A50;
const WINDOW_LOG_MAX: u32 = 31;

/// Why no frame begins where one is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The bytes end before the header does.
    Truncated,
    /// Neither a frame nor a skippable frame begins here.
    Magic,
    /// A bit that RFC 8878 reserves is set, or a block has the reserved type.
    Reserved,
    /// The frame needs a dictionary, and images have none.
    Dictionary,
    /// The window is larger than 2 GiB.
    Window,
    /// A block is longer than its frame allows.
    Block,
}

/// True for the first four bytes of a frame or of a skippable one, as a little-endian number.
#[must_use]
pub const fn is_magic(magic: u32) -> bool {
    magic == MAGIC || magic & !0xF == SKIPPABLE
}

/// The kind of frame at a position in the compressed bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// A frame with blocks.
    Frame(Header),
    /// A skippable frame of this many bytes, header included.
    Skippable(u64),
}

/// A frame's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    /// Length of the header itself, magic included: the first block's header follows.
    pub(crate) bytes: usize,
    /// Length of the contents, if the header gives it.
    pub(crate) content_bytes: Option<u64>,
    /// Four bytes of checksum follow the last block.
    pub(crate) has_checksum: bool,
}

/// Reads the header at the start of `bytes`; [`HEADER_BYTES_MAX`] of them are enough.
///
/// # Errors
/// [`Fault`]: no frame begins there, or one that cannot be decoded.
pub(crate) fn start(bytes: &[u8]) -> Result<Start, Fault> {
    let (magic, rest) = bytes.split_first_chunk::<4>().ok_or(Fault::Truncated)?;
    let magic = u32::from_le_bytes(*magic);
    if magic & !0xF == SKIPPABLE {
        let length = rest.first_chunk::<4>().ok_or(Fault::Truncated)?;
        let length = u32::from_le_bytes(*length);
        return Ok(Start::Skippable(SKIPPABLE_HEADER_BYTES + u64::from(length)));
    }
    if magic != MAGIC {
        return Err(Fault::Magic);
    }
    header(rest).map(Start::Frame)
}

/// Reads the fields after the magic.
fn header(bytes: &[u8]) -> Result<Header, Fault> {
    let (&descriptor, mut rest) = bytes.split_first().ok_or(Fault::Truncated)?;
    // Section 3.1.1.1.1.4: a set bit is a feature that changes how the rest is read.
    if descriptor & 0x08 != 0 {
        return Err(Fault::Reserved);
    }
    let is_single_segment = descriptor & 0x20 != 0;
    if !is_single_segment {
        let (&byte, after) = rest.split_first().ok_or(Fault::Truncated)?;
        rest = after;
        // Section 3.1.1.1.2: its logarithm, and eighths of it.
        if 10 + u32::from(byte >> 3) > WINDOW_LOG_MAX {
            return Err(Fault::Window);
        }
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
        return Err(Fault::Dictionary);
    }
    Ok(Header {
        bytes: 4 + bytes.len() - rest.len(),
        content_bytes,
        has_checksum: descriptor & 4 != 0,
    })
}

fn number(rest: &mut &[u8], count: usize) -> Result<u64, Fault> {
    let (bytes, after) = rest.split_at_checked(count).ok_or(Fault::Truncated)?;
    *rest = after;
    let mut whole = [0; 8];
    whole[..count].copy_from_slice(bytes);
    Ok(u64::from_le_bytes(whole))
}

/// A block's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockHeader {
    /// No block of the frame follows it.
    pub(crate) is_last: bool,
    /// Length of its body in the frame.
    pub(crate) stored_bytes: usize,
    size: usize,
}

impl BlockHeader {
    /// Reads a header of a frame whose blocks have at most `bytes_max` bytes.
    ///
    /// # Errors
    /// [`Fault::Reserved`], [`Fault::Block`].
    pub(crate) fn read(bytes: [u8; BLOCK_HEADER_BYTES], bytes_max: usize) -> Result<Self, Fault> {
        let head = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]);
        let size = (head >> 3).to_usize();
        let kind = (head >> 1) & 3;
        if kind == RESERVED {
            return Err(Fault::Reserved);
        }
        // Block_Maximum_Size bounds contents and stored bytes alike, so each kind's size.
        if size > bytes_max {
            return Err(Fault::Block);
        }
        Ok(Self {
            is_last: head & 1 != 0,
            stored_bytes: if kind == RUN { 1 } else { size },
            size,
        })
    }

    /// True if the header alone shows that the block has no contents.
    #[must_use]
    pub(crate) const fn is_empty(&self) -> bool {
        self.size == 0
    }
}

/// Types of blocks with a meaning of their own here; 0 is the raw, 2 the compressed one.
const RUN: u32 = 1;
const RESERVED: u32 = 3;
