//! One block of a stream: raw bytes in, a byte-aligned piece of a DEFLATE stream out.
//!
//! Why here: blocks refer to nothing before them, so that any engine may do any of them, and a
//! decoder may begin at any. That costs a few thousandths of the size at [`BLOCK_BYTES`] (measured:
//! docs/zlib.md), which the better parser behind it more than makes good. Every block but the last
//! ends with an empty stored block, as a full flush of zlib does. Pure.

use crate::seam::Seams;
use libdeflater::{CompressionLvl, Compressor};

/// Raw bytes of a block, at most.
pub const BLOCK_BYTES: usize = 192 << 10;

/// The highest level; 0 stores.
pub const LEVEL_MAX: u8 = 9;

/// For each of zlib's levels, a fast one of the library whose output is about as large as zlib's,
/// at most a hundredth larger (measured: docs/zlib.md).
const LIBRARY_LEVELS: [u8; LEVEL_MAX as usize + 1] = [0, 1, 1, 2, 3, 5, 5, 6, 7, 8];

/// The highest of [`LIBRARY_LEVELS`].
const LIBRARY_LEVEL_MAX: usize = 8;

/// The most bytes that a block of `raw_bytes` becomes: stored, and some room for the library.
#[must_use]
pub const fn block_bytes_max(raw_bytes: usize) -> usize {
    stored_bytes(raw_bytes) + SLACK_BYTES
}

/// Makes blocks. Keeps a compressor, some 100 KiB to 1 MiB, for each of the library's seven levels
/// that it has used or was prepared for.
#[derive(Default)]
pub struct Deflater {
    /// By the library's level. None is dropped for another: streams of two levels would allocate
    /// at each block, and a program may have forbidden itself that.
    compressors: [Option<Compressor>; LIBRARY_LEVEL_MAX + 1],
    seams: Option<Box<Seams>>,
}

impl Deflater {
    /// Deflates `raw` into `out`; returns the bytes written. `raw` has at most [`BLOCK_BYTES`]
    /// unless it is a stream of its own. `level` is 0 to [`LEVEL_MAX`]; more is as [`LEVEL_MAX`].
    /// `None` where `out` is shorter than [`block_bytes_max`].
    ///
    /// The last block ends the stream; any other ends at a byte's end with an empty stored block.
    pub fn block(&mut self, raw: &[u8], level: u8, is_last: bool, out: &mut [u8]) -> Option<usize> {
        if out.len() < block_bytes_max(raw.len()) {
            return None;
        }
        let stored_bytes = stored_bytes(raw.len());
        let level = level.min(LEVEL_MAX);
        // As zlib ends a stream: BGZF's readers compare the bytes of an empty member at the end.
        if raw.is_empty() && is_last && level > 0 {
            out[..EMPTY_LAST.len()].copy_from_slice(&EMPTY_LAST);
            return Some(EMPTY_LAST.len());
        }
        let made = (level > 0)
            .then(|| self.compressed(raw, level, is_last, out))
            .flatten();
        // Incompressible bytes, level 0, and a seam that does not fit: all are stored.
        Some(match made {
            Some(bytes) if bytes < stored_bytes => bytes,
            _ => store(raw, is_last, out),
        })
    }

    /// Allocates what blocks of this level need, so that they need no memory later.
    pub fn prepare(&mut self, level: u8) {
        let level = level.min(LEVEL_MAX);
        if level > 0 {
            self.compressor(level);
            self.seams.get_or_insert_default();
        }
    }

    /// The compressor of a level; `None` where the library has no such level.
    fn compressor(&mut self, level: u8) -> Option<&mut Compressor> {
        let library_level = *LIBRARY_LEVELS.get(usize::from(level))?;
        let kept = self.compressors.get_mut(usize::from(library_level))?;
        if kept.is_none() {
            let library_level = CompressionLvl::new(library_level.into()).ok()?;
            *kept = Some(Compressor::new(library_level));
        }
        kept.as_mut()
    }

    fn compressed(
        &mut self,
        raw: &[u8],
        level: u8,
        is_last: bool,
        out: &mut [u8],
    ) -> Option<usize> {
        let bytes = self.compressor(level)?.deflate_compress(raw, out).ok()?;
        if is_last {
            return Some(bytes);
        }
        let seams = self.seams.get_or_insert_default();
        let seam = seams.find(&out[..bytes])?;
        // The library only makes whole streams: its final block becomes one that is not.
        out[seam.final_mark / 8] &= !(1 << (seam.final_mark % 8));
        // Three zero bits: a stored block that is not the final one. Then to the byte's end, zeros.
        let end = (seam.end + 3).div_ceil(8);
        // The library may have filled all of the room.
        out.get_mut(bytes..end.max(bytes))?.fill(0);
        out.get_mut(end..end + 4)?.copy_from_slice(&EMPTY_STORED);
        Some(end + 4)
    }
}

impl std::fmt::Debug for Deflater {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let levels = self.compressors.iter().flatten().count();
        f.debug_struct("Deflater").field("levels", &levels).finish()
    }
}

/// Stored blocks (RFC 1951, 3.2.4); they end at a byte's end and need no seam.
fn store(raw: &[u8], is_last: bool, out: &mut [u8]) -> usize {
    let mut at = 0;
    let mut parts = raw.chunks(STORED_BYTES_MAX).peekable();
    if raw.is_empty() {
        out[..5].copy_from_slice(&[u8::from(is_last), 0, 0, 0xff, 0xff]);
        return 5;
    }
    while let Some(part) = parts.next() {
        // At most STORED_BYTES_MAX.
        let length = u16::try_from(part.len()).unwrap_or(u16::MAX);
        // At a byte's beginning already, so the block's type fills the byte with zeros.
        out[at] = u8::from(is_last && parts.peek().is_none());
        out[at + 1..at + 3].copy_from_slice(&length.to_le_bytes());
        out[at + 3..at + 5].copy_from_slice(&(!length).to_le_bytes());
        out[at + 5..at + 5 + part.len()].copy_from_slice(part);
        at += 5 + part.len();
    }
    at
}

/// Bytes of `raw_bytes` in stored blocks.
const fn stored_bytes(raw_bytes: usize) -> usize {
    let blocks = raw_bytes.div_ceil(STORED_BYTES_MAX);
    raw_bytes + 5 * if blocks == 0 { 1 } else { blocks }
}

const STORED_BYTES_MAX: usize = 0xffff;
const EMPTY_STORED: [u8; 4] = [0, 0, 0xff, 0xff];
/// The last block, with fixed codes, of which it has the end alone.
const EMPTY_LAST: [u8; 2] = [3, 0];
/// A seam takes up to 5 bytes; and some room for the library.
const SLACK_BYTES: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_bytes_end_a_stream_as_zlib_ends_one() {
        let mut out = [0; 100];
        for level in 1..=LEVEL_MAX {
            let bytes = Deflater::default().block(&[], level, true, &mut out);
            assert_eq!((bytes, &out[..2]), (Some(2), &[3, 0][..]));
        }
    }

    #[test]
    fn each_level_keeps_its_compressor() {
        let raw = b"a few bytes of text, and a few more of it. ".repeat(20);
        let mut deflater = Deflater::default();
        (0..=LEVEL_MAX).for_each(|level| deflater.prepare(level));
        // Levels 1 and 2 are one of the library's, 5 and 6 too; 0 needs none.
        assert_eq!(deflater.compressors.iter().flatten().count(), 7);
        for level in (1..=LEVEL_MAX).chain((1..=LEVEL_MAX).rev()) {
            let (mut kept, mut new) = ([0; 1000], [0; 1000]);
            let bytes = deflater.block(&raw, level, false, &mut kept).unwrap();
            let expected = Deflater::default().block(&raw, level, false, &mut new);
            assert_eq!(kept[..bytes], new[..expected.unwrap()], "level {level}");
        }
        assert_eq!(deflater.compressors.iter().flatten().count(), 7);
    }

    #[test]
    fn a_stream_that_fills_its_room_gets_no_seam() {
        let raw = b"a few bytes of text";
        let mut deflater = Deflater::default();
        let mut out = [0; 100];
        let bytes = deflater.compressed(raw, 6, true, &mut out).unwrap();
        assert_eq!(deflater.compressed(raw, 6, false, &mut out[..bytes]), None);
    }
}
