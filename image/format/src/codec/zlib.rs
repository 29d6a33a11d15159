//! zlib streams (RFC 1950) by libdeflate.
//!
//! Why here: cloop's first codec. libdeflate inflates whole buffers about 2.5 times as fast as
//! zlib; it cannot stop half-way. Its compressor makes streams that zlib reads.
//! Must stay true: bytes after the end of a stream are ignored, as zlib (and so the cloop driver)
//! ignores them; the contents are checked by the stream's Adler-32 all the same.

use super::{CodecError, CodecId, Deflater, Inflater, corrupt};
use libdeflater::{CompressionLvl, Compressor, DecompressionError, Decompressor};

/// Inflates zlib streams, always as a whole.
#[derive(Default)]
pub(crate) struct ZlibInflater {
    decompressor: Decompressor,
}

impl Inflater for ZlibInflater {
    fn codec(&self) -> CodecId {
        CodecId::Zlib
    }

    fn reset(&mut self) {}

    fn advance(&mut self, frame: &[u8], out: &mut [u8], _: usize) -> Result<usize, CodecError> {
        let expected = out.len();
        let length = |got, at_least| CodecError::Length {
            codec: CodecId::Zlib,
            got,
            expected,
            at_least,
        };
        match self.decompressor.zlib_decompress(frame, out) {
            Ok(written) if written == expected => Ok(written),
            Ok(written) => Err(length(written, false)),
            Err(DecompressionError::InsufficientSpace) => Err(length(expected + 1, true)),
            Err(DecompressionError::BadData) => {
                Err(corrupt(CodecId::Zlib, "the stream is damaged or cut short"))
            }
        }
    }
}

/// Deflates each frame into one zlib stream.
pub(crate) struct ZlibDeflater {
    compressor: Compressor,
}

impl ZlibDeflater {
    /// `level` is libdeflate's, [`LEVELS`].
    ///
    /// # Errors
    /// [`CodecError::Deflate`] for another level.
    pub(crate) fn new(level: i32) -> Result<Self, CodecError> {
        let level = CompressionLvl::new(level).map_err(|_| CodecError::Deflate {
            codec: CodecId::Zlib,
            reason: "libdeflate has levels 1 to 12",
        })?;
        Ok(Self {
            compressor: Compressor::new(level),
        })
    }
}

impl Deflater for ZlibDeflater {
    fn codec(&self) -> CodecId {
        CodecId::Zlib
    }

    fn deflate(&mut self, raw: &[u8], out: &mut Vec<u8>) -> Result<(), CodecError> {
        out.clear();
        out.resize(self.compressor.zlib_compress_bound(raw.len()), 0);
        let written = self
            .compressor
            .zlib_compress(raw, out)
            .map_err(|_| CodecError::Deflate {
                codec: CodecId::Zlib,
                reason: "libdeflate ran out of the room that it asked for",
            })?;
        out.truncate(written);
        Ok(())
    }
}

/// libdeflate's levels.
pub(crate) const LEVELS: std::ops::RangeInclusive<i32> = 1..=12;
