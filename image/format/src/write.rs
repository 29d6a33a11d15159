//! Writers of image formats: the bytes around the frames, without I/O.
//!
//! Why here: `pack` moves bytes and knows no format; writers know formats and move no bytes, so
//! that they can be tested in memory. The order is: the bytes of [`ImageWriter::start`], every
//! frame's compressed bytes (reported by [`ImageWriter::push`]), then the output of
//! [`ImageWriter::finish`].

use super::FormatError;
pub use super::layout::Layout;
use super::lock::Locker;
use super::table::{Entry, Tail};
use super::tree::{self, Hash, Signer};
use crate::codec::CodecId;
use std::io;

/// One frame, compressed.
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
    /// Its leaf in the image's hash tree, if the image will have one.
    pub leaf: Option<Hash>,
}

impl Packed {
    /// Describes `stored`, the compressed bytes of `raw`. Runs where the frame was compressed, on
    /// an engine.
    #[must_use]
    pub fn of(stored: &[u8], raw: &[u8]) -> Self {
        let end = stored.last_chunk::<4>().copied().unwrap_or_default();
        Self {
            stored_bytes: byte_count(stored),
            raw_bytes: byte_count(raw),
            zero: is_zero(raw),
            stored_check: xxhash_rust::xxh3::xxh3_64(stored),
            stored_end: u32::from_le_bytes(end),
            leaf: None,
        }
    }

    /// The same contents, with the bytes `stored` in the image.
    #[must_use]
    pub fn with_stored(self, stored: &[u8]) -> Self {
        let end = stored.last_chunk::<4>().copied().unwrap_or_default();
        Self {
            stored_bytes: byte_count(stored),
            stored_check: xxhash_rust::xxh3::xxh3_64(stored),
            stored_end: u32::from_le_bytes(end),
            ..self
        }
    }

    /// The same, with the leaf of frame `number`, whose compressed bytes are `stored`.
    #[must_use]
    pub fn with_leaf(mut self, number: u64, stored: &[u8]) -> Self {
        self.leaf = Some(tree::leaf(number, self.raw_bytes, self.zero, stored));
        self
    }

    pub(super) fn entry(&self) -> Entry {
        let Self {
            stored_bytes,
            raw_bytes,
            ..
        } = *self;
        Entry::new(
            self.stored_check,
            stored_bytes,
            self.stored_end,
            raw_bytes,
            self.zero,
        )
    }
}

/// The end of an image, once its tail is written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ending {
    /// Replaces the bytes at the beginning of the file. Only if the layout is seekable.
    pub front: Option<Vec<u8>>,
    /// The root of the hash tree, if there is one.
    pub root: Option<Hash>,
}

/// A hash tree that is being written, and the signer of its root.
pub(super) struct Seal {
    tree: tree::Writer,
    signer: Signer,
}

impl Seal {
    /// For an image of this layout.
    pub(super) fn new(signer: Signer, is_thin: bool) -> Self {
        Self {
            tree: tree::Writer::new(is_thin),
            signer,
        }
    }

    /// Adds the leaf of the next frame.
    ///
    /// # Errors
    /// [`FormatError::CannotWrite`] if the frame has no leaf.
    pub(super) fn push(&mut self, frame: &Packed, format: &'static str) -> Result<(), FormatError> {
        let leaf = frame.leaf.ok_or_else(|| FormatError::CannotWrite {
            format,
            what: "a frame without a leaf".to_owned(),
            reason: "the image is to have a hash tree",
            next: "this is a defect of the program; report it",
        })?;
        self.tree.push(leaf, frame.raw_bytes);
        Ok(())
    }

    /// Adds a run of holes, for which there are no leaves.
    pub(super) fn push_holes(&mut self, frames: u64, raw_bytes: u64, frame_bytes: u32) {
        self.tree.push_holes(frames, raw_bytes, frame_bytes);
    }

    /// Writes the tree; returns its root, and its bytes.
    ///
    /// # Errors
    /// [`FormatError::CannotWrite`] if there are too many frames; [`FormatError::Write`].
    pub(super) fn finish(
        &mut self,
        format: &'static str,
        tail: &mut Tail<'_>,
    ) -> Result<(Hash, u32), FormatError> {
        let finished = self.tree.finish(&mut *self.signer, tail)?;
        finished.ok_or_else(|| FormatError::CannotWrite {
            format,
            what: "a hash tree of so many frames".to_owned(),
            reason: "it is a skippable frame, whose length has 32 bits",
            next: "take a larger --frame",
        })
    }
}

/// Writes the headers and tables of one image.
pub trait ImageWriter: Send {
    /// The codec of its frames.
    fn codec(&self) -> CodecId;

    /// True when the last frame's contents are padded with zeros to the frame size.
    fn pads_last_frame(&self) -> bool {
        false
    }

    /// Adds a hash tree of the frames' leaves to the image; `signer` signs its root. False if the
    /// format has no place for one. Called before the first frame.
    fn seal(&mut self, _signer: Signer) -> bool {
        false
    }

    /// Makes the image an encrypted one, whose frames are passed encrypted; false if the format has
    /// no place for that. Called before [`Self::start`].
    fn lock(&mut self, _lock: Locker) -> bool {
        false
    }

    /// The bytes before the first frame. Called once, first.
    fn start(&mut self) -> Vec<u8> {
        Vec::new()
    }

    /// Reports that the next frame's compressed bytes have been written.
    ///
    /// # Errors
    /// [`FormatError::CannotWrite`] if the format cannot count that many frames.
    fn push(&mut self, frame: &Packed) -> Result<(), FormatError>;

    /// Reports that the next `frames`, with `raw_bytes` of zeros, are not stored. Only for a thin
    /// image.
    ///
    /// # Errors
    /// [`FormatError::CannotWrite`] if the format does not support holes.
    fn push_holes(&mut self, frames: u64, raw_bytes: u64) -> Result<(), FormatError> {
        let _ = raw_bytes;
        Err(FormatError::CannotWrite {
            format: "image",
            what: format!("{frames} frames that are not stored"),
            reason: "the format has no room for holes",
            next: "this is a defect of the program; report it",
        })
    }

    /// Writes the bytes that follow the last frame to `tail`, in pieces. Called once, last.
    ///
    /// # Errors
    /// [`FormatError::CannotWrite`] if the table cannot hold all frames; [`FormatError::Write`]
    /// with the error of `tail`.
    fn finish(&mut self, tail: &mut dyn io::Write) -> Result<Ending, FormatError>;
}

/// Number of a frame's bytes, as tables hold it. Frames are far below 4 GiB; one above would get a
/// size that no parser accepts, not a small one.
pub(crate) fn byte_count(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

/// True when all bytes are zero.
#[must_use]
pub fn is_zero(bytes: &[u8]) -> bool {
    // Comparisons of arrays become vector instructions; a loop that ends early does not.
    let (words, rest) = bytes.as_chunks::<64>();
    words.iter().all(|word| word == &[0; 64]) && rest.iter().all(|&byte| byte == 0)
}
