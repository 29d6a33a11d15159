//! Writers of image formats: the bytes around the frames, without I/O.
//!
//! Why here: [`crate::pack`] moves bytes and knows no format; writers know formats and move no
//! bytes, so that they can be tested on plain memory. The order is: the bytes of
//! [`ImageWriter::start`], every frame's compressed bytes (reported by [`ImageWriter::push`]), then
//! what [`ImageWriter::finish`] returns.

use super::FormatError;
use super::sidx::Entry;
use crate::codec::CodecId;

/// Layout of an image to be written.
#[derive(Debug, Clone, Copy)]
pub struct Layout {
    /// Bytes of the device per frame: a power of two, [`super::FRAME_BYTES_RANGE`].
    pub frame_bytes: u32,
    /// Size of the device, where it is known before the source has been read.
    pub raw_bytes: Option<u64>,
    /// True when the front of the output can still be written when all frames are out.
    pub seekable: bool,
}

/// One frame, deflated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packed {
    /// Compressed bytes.
    pub stored_bytes: u32,
    /// Contents, in bytes.
    pub raw_bytes: u32,
    /// True when the contents are all zeros.
    pub zero: bool,
    /// XXH3-64 of the compressed bytes.
    pub stored_check: u64,
    /// The last four compressed bytes, little-endian: in a zstd frame, the checksum of the
    /// contents.
    pub stored_end: u32,
}

impl Packed {
    /// Describes `stored`, which holds `raw` compressed. Runs where the frame was deflated, on an
    /// engine.
    #[must_use]
    pub fn of(stored: &[u8], raw: &[u8]) -> Self {
        let end = stored.last_chunk::<4>().copied().unwrap_or_default();
        Self {
            stored_bytes: stored.len() as u32,
            raw_bytes: raw.len() as u32,
            zero: is_zero(raw),
            stored_check: xxhash_rust::xxh3::xxh3_64(stored),
            stored_end: u32::from_le_bytes(end),
        }
    }

    pub(super) fn entry(&self) -> Entry {
        Entry {
            stored_bytes: self.stored_bytes,
            zero: self.zero,
            check: self.stored_check,
        }
    }
}

/// Bytes that follow the last frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ending {
    /// Comes after it.
    pub tail: Vec<u8>,
    /// Replaces the bytes at the front of the file. Only when the layout was seekable.
    pub front: Option<Vec<u8>>,
}

/// Writes the heads and tables of one image.
pub trait ImageWriter: Send {
    /// The codec of its frames.
    fn codec(&self) -> CodecId;

    /// True when the last frame's contents have to be filled up with zeros to the frame size.
    fn pads_last_frame(&self) -> bool {
        false
    }

    /// The bytes in front of the first frame. Called once, first.
    fn start(&mut self) -> Vec<u8> {
        Vec::new()
    }

    /// The next frame's compressed bytes have been written.
    ///
    /// # Errors
    /// [`FormatError::CannotWrite`] when the format cannot count so many.
    fn push(&mut self, frame: &Packed) -> Result<(), FormatError>;

    /// The bytes that end the image. Called once, last.
    ///
    /// # Errors
    /// [`FormatError::CannotWrite`] when the table has no room for so many frames.
    fn finish(&mut self) -> Result<Ending, FormatError>;
}

/// True when all bytes are zero.
#[must_use]
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<64>();
    words.iter().all(|word| word == &[0; 64]) && rest.iter().all(|&byte| byte == 0)
}
