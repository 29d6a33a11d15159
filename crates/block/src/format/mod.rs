//! Image formats: where each frame lies in the file, and how it is compressed.
//!
//! Why here: everything above ([`crate::device`], [`crate::pack`]) speaks frames; only this folder knows bytes on disk.
//! Must stay true: parsers take any bytes (they are fuzzed); an [`Index`] that was returned is consistent: every frame
//! lies inside the file, raw sizes add up to `raw_bytes`, none exceeds [`FRAME_BYTES_MAX`].
//! The byte maps are in `docs/formats/`.

mod error;
mod index;
mod raw;
mod read_at;
mod seekable;
mod sidx;

use crate::codec::CodecId;
use read_at::Bytes;
use std::fs::File;

pub use error::FormatError;
pub use index::{Builder, Index};
pub use read_at::ReadAt;

/// No frame may inflate to more than this. Bounds what a hostile image can make us allocate.
pub const FRAME_BYTES_MAX: u32 = 16 << 20;

/// An image format, as `--format` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// Seekable zstd: the default for new images.
    Zstd,
    /// LZ4 frames with an index in a skippable frame.
    Lz4,
    /// cloop with zlib blocks (V2.0 written; all heads read).
    Cloop,
    /// cloop V4.0 with LZO1X blocks.
    CloopLzo,
    /// The bytes as they are.
    Raw,
}

/// What an image carries to check a frame with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameCheck {
    /// Nothing (the codec may still carry a checksum of its own, as zlib does).
    None,
    /// XXH3-64 of the *compressed* bytes. Checked before inflating: bytes may be delivered while the rest inflates.
    Stored(u64),
    /// The low 32 bits of XXH64 of the *inflated* bytes (the standard zstd seek table): whole frame first.
    Raw(u32),
}

/// One frame of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Where its compressed bytes begin in the file.
    pub offset: u64,
    /// How many there are.
    pub stored_bytes: u32,
    /// How many bytes come out.
    pub raw_bytes: u32,
    /// Where those stand in the device.
    pub raw_offset: u64,
    /// How it is compressed.
    pub codec: CodecId,
    /// What to check it with.
    pub check: FrameCheck,
}

/// The most compressed bytes that a frame of `raw_bytes` may have. No codec of ours comes near; a table that says more
/// is damaged, and a device that believed it would read gigabytes for one frame.
#[must_use]
pub fn stored_bytes_limit(raw_bytes: u32) -> u64 {
    2 * u64::from(raw_bytes) + 4096
}

impl Index {
    /// Finds out what kind of image `file` is and reads its tables. Files of no known kind are raw images.
    ///
    /// # Errors
    /// [`FormatError`], which says what is wrong and what to do. Blocks on the file.
    pub fn open(file: &File) -> Result<Self, FormatError> {
        Self::read(file)
    }

    /// As [`Self::open`], from anything with bytes at offsets.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn read(source: &dyn ReadAt) -> Result<Self, FormatError> {
        let bytes = Bytes::new(source)?;
        if seekable::probe(&bytes)? {
            return seekable::parse(&bytes);
        }
        raw::parse(&bytes)
    }
}
