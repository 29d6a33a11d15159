//! Headers of frames and of blocks.
//!
//! Must stay true: bounded work, no allocation. Pure. Source: RFC 8878, sections 3.1.1 and 3.1.2.

use crate::Error;

/// A block's largest contents in bytes.
pub(crate) const BLOCK_BYTES_MAX: usize = 128 << 10;

const MAGIC: u32 = 0xFD2F_B528;
/// The first of the sixteen magics of skippable frames.
const SKIPPABLE: u32 = 0x184D_2A50;
const WINDOW_LOG_MAX: u32 = 31;

/// What begins at a place of the compressed bytes.
#[derive(Debug)]
pub(crate) enum Start {
    Frame(Header),
    /// A skippable frame of this many bytes, header included.
    Skippable(usize),
}

/// A frame's header.
#[derive(Debug)]
pub(crate) struct Header {
    /// Length of the header itself.
    pub(crate) bytes: usize,
    /// Length of the contents, where it is said.
    pub(crate) content_bytes: Option<u64>,
    /// The largest contents that a block may have.
    pub(crate) block_bytes_max: usize,
    pub(crate) has_checksum: bool,
}

/// Reads the header at the start of `bytes`, which are not empty.
pub(crate) fn start(bytes: &[u8]) -> Result<Start, Error> {
    let (magic, rest) = bytes.split_first_chunk::<4>().ok_or(Error::Truncated)?;
    let magic = u32::from_le_bytes(*magic);
    if magic & !0xF == SKIPPABLE {
        let (length, rest) = rest.split_first_chunk::<4>().ok_or(Error::Truncated)?;
        let length = u32::from_le_bytes(*length) as usize;
        if rest.len() < length {
            return Err(Error::Truncated);
        }
        return Ok(Start::Skippable(8 + length));
    }
    if magic != MAGIC {
        return Err(Error::Magic);
    }
    header(rest).map(Start::Frame)
}

/// Reads what follows the magic.
fn header(bytes: &[u8]) -> Result<Header, Error> {
    let (&descriptor, mut rest) = bytes.split_first().ok_or(Error::Truncated)?;
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
        window = (1_u64 << log) + ((1_u64 << log) / 8) * u64::from(byte & 7);
    }
    let dictionary_bytes = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let dictionary = number(&mut rest, dictionary_bytes)?;
    let content_bytes = match descriptor >> 6 {
        0 if is_single_segment => Some(number(&mut rest, 1)?),
        0 => None,
        1 => Some(number(&mut rest, 2)? + 256),
        2 => Some(number(&mut rest, 4)?),
        _ => Some(number(&mut rest, 8)?),
    };
    if dictionary != 0 {
        return Err(Error::Dictionary);
    }
    if let (true, Some(content)) = (is_single_segment, content_bytes) {
        window = content;
    }
    Ok(Header {
        bytes: 4 + bytes.len() - rest.len(),
        content_bytes,
        block_bytes_max: window.min(BLOCK_BYTES_MAX as u64) as usize,
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

/// A block's header, with its body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block<'a> {
    pub(crate) is_last: bool,
    pub(crate) kind: BlockKind<'a>,
    /// Where the next block, or what follows the frame's blocks, begins.
    pub(crate) end: usize,
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum BlockKind<'a> {
    Raw(&'a [u8]),
    /// One byte, so many times.
    Run(u8, usize),
    Compressed(&'a [u8]),
}

/// Reads the block at `at` of a frame whose blocks have at most `bytes_max` bytes.
pub(crate) fn block(frame: &[u8], at: usize, bytes_max: usize) -> Result<Block<'_>, Error> {
    let rest = frame.get(at..).ok_or(Error::Truncated)?;
    let (head, body) = rest.split_first_chunk::<3>().ok_or(Error::Truncated)?;
    let head = u32::from_le_bytes([head[0], head[1], head[2], 0]);
    let size = (head >> 3) as usize;
    let kind = (head >> 1) & 3;
    if kind == 3 {
        return Err(Error::Reserved);
    }
    if size > bytes_max {
        return Err(Error::Block);
    }
    let stored = if kind == 1 { 1 } else { size };
    let body = body.get(..stored).ok_or(Error::Truncated)?;
    Ok(Block {
        is_last: head & 1 != 0,
        kind: match kind {
            0 => BlockKind::Raw(body),
            1 => BlockKind::Run(body[0], size),
            _ => BlockKind::Compressed(body),
        },
        end: at + 3 + stored,
    })
}
