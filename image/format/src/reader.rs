//! Reading one frame from an image, verified with all checksums of the image.
//!
//! Why here: unpacking, verifying and fuzzing need a whole frame, from any [`ReadAt`]; the device
//! has its own, faster path (mapped files, early delivery) with the same checks.
//! Must stay true: bytes are returned only after every check that the image has for them has
//! passed.
//! Called from: one thread at a time; one reader per engine.

use super::lock::FrameKey;
use super::{Frame, FrameCheck, Index, ReadAt};
use crate::codec::{self, CodecError, CodecId, Inflater};
use sidecore_bare::width::ToUsize;
use std::io;
use std::sync::Arc;
use xxhash_rust::{xxh3::xxh3_64, xxh64::xxh64};

/// Reasons why a frame cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// Its compressed bytes cannot be read.
    #[error("its compressed bytes cannot be read: {0}")]
    Io(#[from] io::Error),
    /// Its compressed bytes are not the ones that were written.
    #[error(
        "the checksum of its {bytes} compressed bytes is {found:016x}, \
         the image says {expected:016x}"
    )]
    StoredCheck {
        /// Their number.
        bytes: u32,
        /// XXH3-64 of the bytes that were read.
        found: u64,
        /// The number in the image's table.
        expected: u64,
    },
    /// It is not the frame that was encrypted under its number.
    #[error("its bytes are not those that were encrypted, or the frame is another one")]
    NotAuthentic,
    /// Its compressed bytes do not match the hash tree.
    #[error("its compressed bytes are not those that the image's trusted root is of")]
    Untrusted,
    /// Its contents are not the ones that were written.
    #[error(
        "the checksum of its {bytes} bytes of contents is {found:08x}, \
         the image says {expected:08x}"
    )]
    RawCheck {
        /// Their number.
        bytes: u32,
        /// Low 32 bits of the XXH64 of the decompressed bytes.
        found: u32,
        /// The number in the image's table.
        expected: u32,
    },
    /// The codec refused it.
    #[error(transparent)]
    Codec(#[from] CodecError),
    /// The image declares it all zeros, and it is not.
    #[error("it is marked as all zeros and is not")]
    NotZero,
}

/// Reads frames; holds the buffers and decompressors for that.
pub struct FrameReader {
    inflaters: [Option<Box<dyn Inflater>>; CodecId::ALL.len()],
    stored: Vec<u8>,
    raw: Vec<u8>,
    /// The last four compressed bytes of the frame that was read.
    stored_end: u32,
    /// The key of an encrypted image.
    lock: Option<Arc<FrameKey>>,
    opened: Vec<u8>,
    thorough: bool,
}

impl FrameReader {
    /// With `thorough`, checksums inside frames are computed even where the image's own check has
    /// passed.
    #[must_use]
    pub fn new(thorough: bool) -> Self {
        Self {
            inflaters: Default::default(),
            stored: Vec::new(),
            raw: Vec::new(),
            stored_end: 0,
            lock: None,
            opened: Vec::new(),
            thorough,
        }
    }

    /// As [`Self::new`], for frames of the image with `index`, from which it takes the key of an
    /// encrypted image.
    #[must_use]
    pub fn of(index: &Index, thorough: bool) -> Self {
        let mut reader = Self::new(thorough);
        reader.unlock_by(index);
        reader
    }

    /// Continues with frames of the image with `index`.
    pub fn unlock_by(&mut self, index: &Index) {
        self.lock = index.key().cloned();
    }

    /// Reads, checks and decompresses `frame`; returns its contents. Blocks on the source.
    ///
    /// # Errors
    /// [`FrameError`]: no bytes of the frame are returned.
    pub fn read(&mut self, source: &dyn ReadAt, frame: &Frame) -> Result<&[u8], FrameError> {
        if frame.is_hole() {
            self.raw.clear();
            self.raw.resize(frame.raw_bytes.to_usize(), 0);
            return Ok(&self.raw);
        }
        // Taken out, because `inflate` borrows all of `self`; put back below, so that its memory is
        // kept.
        let mut stored = std::mem::take(&mut self.stored);
        stored.resize(frame.stored_bytes.to_usize(), 0);
        let read = source.read_exact_at(&mut stored, frame.offset);
        let result = read
            .map_err(FrameError::from)
            .and_then(|()| self.inflate(&stored, frame));
        self.stored = stored;
        result.map(|()| &*self.raw)
    }

    /// As `Self::read_stored`, with the contents in `out`, whose memory is reused.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_stored_to(
        &mut self,
        stored: &[u8],
        frame: &Frame,
        out: &mut Vec<u8>,
    ) -> Result<(), FrameError> {
        std::mem::swap(&mut self.raw, out);
        let read = self.read_stored(stored, frame).map(|_| ());
        std::mem::swap(&mut self.raw, out);
        read
    }

    /// The last four compressed bytes of the frame that was read last, little-endian.
    pub fn stored_end(&self) -> u32 {
        self.stored_end
    }

    /// As [`Self::read`], from the frame's compressed bytes.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn read_stored(
        &mut self,
        stored: &[u8],
        frame: &Frame,
    ) -> Result<&[u8], FrameError> {
        if stored.len() != frame.stored_bytes.to_usize() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        self.inflate(stored, frame).map(|()| &*self.raw)
    }

    /// Checks and decompresses `stored` into `raw`.
    fn inflate(&mut self, stored: &[u8], frame: &Frame) -> Result<(), FrameError> {
        let end = stored.last_chunk::<4>().copied().unwrap_or_default();
        self.stored_end = u32::from_le_bytes(end);
        let mut verified = false;
        if let FrameCheck::Sealed(_, leaf) = frame.check {
            if !leaf.is_of(frame.raw_bytes, stored) {
                return Err(FrameError::Untrusted);
            }
            // The leaf was just checked, so the declaration is trusted: no byte is decompressed.
            if leaf.zero {
                self.raw.clear();
                self.raw.resize(frame.raw_bytes.to_usize(), 0);
                return Ok(());
            }
            verified = true;
        }
        let mut stored = stored;
        // The cipher authenticates the bytes: a checksum of them would say nothing more.
        if let Some(key) = &self.lock {
            let opened = key.decrypt(frame.number, frame.raw_bytes, stored, &mut self.opened);
            stored = opened.map_err(|_| FrameError::NotAuthentic)?;
            verified = true;
        } else if let FrameCheck::Stored(expected) = frame.check {
            let found = xxh3_64(stored);
            if found != expected {
                return Err(FrameError::StoredCheck {
                    bytes: frame.stored_bytes,
                    found,
                    expected,
                });
            }
            verified = true;
        }
        self.raw.resize(frame.raw_bytes.to_usize(), 0);
        let inflater = self.inflaters[frame.codec.index()]
            .get_or_insert_with(|| codec::make_inflater(frame.codec));
        // The seek table's checksum is the one inside the zstd frame: once is enough.
        let checked_after = matches!(frame.check, FrameCheck::Raw(_));
        inflater.set_verified((verified || checked_after) && !self.thorough);
        inflater.inflate(stored, &mut self.raw)?;
        if let FrameCheck::Raw(expected) = frame.check {
            let found = xxh64(&self.raw, 0) as u32;
            if found != expected {
                return Err(FrameError::RawCheck {
                    bytes: frame.raw_bytes,
                    found,
                    expected,
                });
            }
        }
        Ok(())
    }
}
