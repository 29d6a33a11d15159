//! Decompressing and compressing one frame.
//!
//! Why here: formats determine *which* codec a frame uses, engines run it; both meet at these two
//! traits. LZO1X is ours ([`lzo1x`]); the others wrap well-maintained libraries. One conformance
//! suite (`tests.rs`) runs over all of them.
//! Must stay true: an [`Inflater`] is safe against any input: no panic, no read or write out of
//! bounds, no byte beyond `out`, and time linear in `frame.len() + out.len()`.

pub(crate) mod lz4;
pub mod lzo1x;
mod position;
#[cfg(test)]
mod tests;
mod xz;
mod zlib;
mod zstd;

use position::Position;
use std::fmt;

/// Compression of a frame's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CodecId {
    /// Not compressed.
    Store = 0,
    /// A zlib stream (RFC 1950); Adler-32 inside.
    Zlib = 1,
    /// An xz stream.
    Xz = 2,
    /// A bare LZ4 block.
    Lz4Block = 3,
    /// A whole LZ4 frame.
    Lz4Frame = 4,
    /// A bare LZO1X block, as miniLZO writes it, end marker included.
    Lzo1x = 5,
    /// One or more whole zstd frames (RFC 8878).
    Zstd = 6,
}

impl CodecId {
    /// All codecs, each at the index that is its number.
    pub const ALL: [Self; 7] = [
        Self::Store,
        Self::Zlib,
        Self::Xz,
        Self::Lz4Block,
        Self::Lz4Frame,
        Self::Lzo1x,
        Self::Zstd,
    ];

    /// Its place in [`Self::ALL`], which is its number.
    pub(crate) const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for CodecId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Store => "none",
            Self::Zlib => "zlib",
            Self::Xz => "xz",
            Self::Lz4Block | Self::Lz4Frame => "lz4",
            Self::Lzo1x => "lzo1x",
            Self::Zstd => "zstd",
        })
    }
}

/// Error of a codec.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CodecError {
    /// The compressed bytes are not valid in the codec's format.
    #[error("{codec}: {reason}")]
    Corrupt {
        /// The codec.
        codec: CodecId,
        /// Its own message.
        reason: &'static str,
    },
    /// The frame decompresses to another number of bytes than in the image's tables.
    #[error(
        "{codec}: inflates to {}{got} bytes, the image says {expected}",
        if *.at_least { "at least " } else { "" }
    )]
    Length {
        /// The codec.
        codec: CodecId,
        /// Decompressed bytes (or a lower bound).
        got: usize,
        /// Expected bytes.
        expected: usize,
        /// True when `got` is only a lower bound.
        at_least: bool,
    },
    /// Compressing failed.
    #[error("{codec}: cannot compress: {reason}")]
    Deflate {
        /// The codec.
        codec: CodecId,
        /// Its own message.
        reason: &'static str,
    },
}

/// Decompresses frames of one codec, one after another. Holds the codec's scratch memory: one per
/// engine, made at start-up.
pub trait Inflater: Send {
    /// Which codec this is.
    fn codec(&self) -> CodecId;

    /// Sets if the compressed bytes of the following frames have been checked already
    /// ([`FrameCheck::Stored`]): a codec with a checksum of its own may then skip it. Drops any
    /// frame in progress.
    ///
    /// [`FrameCheck::Stored`]: crate::FrameCheck::Stored
    fn set_verified(&mut self, verified: bool) {
        let _ = verified;
        self.reset();
    }

    /// Drops any frame in progress; the next [`Self::advance`] starts a new one.
    fn reset(&mut self);

    /// Decompresses `frame` into `out` until at least `target` bytes of `out` are final (all of
    /// them for a codec that cannot stop half-way), and returns their number. Called again with
    /// *the same* `frame` and `out` and a larger target, it continues there. `out.len()` is the
    /// frame's exact raw size; when the result equals it the frame is done and has been checked to
    /// end there. `0 < target <= out.len()`.
    ///
    /// # Errors
    /// [`CodecError`]; `out` beyond the bytes already reported as final is then unspecified.
    fn advance(&mut self, frame: &[u8], out: &mut [u8], target: usize)
    -> Result<usize, CodecError>;

    /// Decompresses a whole frame.
    ///
    /// # Errors
    /// As [`Self::advance`].
    fn inflate(&mut self, frame: &[u8], out: &mut [u8]) -> Result<(), CodecError> {
        self.reset();
        // Codecs may assume `0 < target`.
        if out.is_empty() {
            return Ok(());
        }
        // A target of all bytes also makes the codec check the frame's end.
        let target = out.len();
        self.advance(frame, out, target).map(drop)
    }
}

/// Compresses frames of one codec at one level. Holds scratch memory: one per engine.
pub trait Deflater: Send {
    /// Which codec this is.
    fn codec(&self) -> CodecId;

    /// Replaces the contents of `out` by `raw`, compressed as one frame.
    ///
    /// # Errors
    /// [`CodecError::Deflate`].
    fn deflate(&mut self, raw: &[u8], out: &mut Vec<u8>) -> Result<(), CodecError>;
}

/// Makes the decompressor of a codec. Allocates all memory that it will ever need (except for xz):
/// do it at start-up.
#[must_use]
pub fn make_inflater(codec: CodecId) -> Box<dyn Inflater> {
    match codec {
        CodecId::Store => Box::new(StoreInflater::default()),
        CodecId::Zlib => Box::new(zlib::ZlibInflater::default()),
        CodecId::Xz => Box::new(xz::XzInflater::default()),
        CodecId::Lz4Block => Box::new(lz4::Lz4BlockInflater),
        CodecId::Lz4Frame => Box::new(lz4::Lz4FrameInflater::default()),
        CodecId::Lzo1x => Box::new(lzo1x::Inflate::new()),
        CodecId::Zstd => Box::new(zstd::ZstdInflater::new(false)),
    }
}

/// Goal of an image, if a codec leaves a choice at the same level.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tune {
    /// The smallest frames: zstd then also uses a higher level (`default_level_for`).
    #[default]
    Size,
    /// Frames that decompress fast: zstd then uses no short matches, which decompresses about a
    /// quarter faster and takes about 6 % more space.
    Speed,
}

/// As [`make_deflater`], tuned for a goal.
///
/// # Errors
/// As [`make_deflater`].
pub fn make_tuned_deflater(
    codec: CodecId,
    level: Option<i32>,
    tune: Tune,
) -> Result<Box<dyn Deflater>, CodecError> {
    if codec != CodecId::Zstd || tune == Tune::Size {
        let level = level.unwrap_or_else(|| default_level_for(codec, tune));
        return make_deflater(codec, Some(level));
    }
    let level = level.unwrap_or_else(|| default_level_for(codec, tune));
    // Only zstd has a parameter for this; the level is checked by libzstd itself.
    let deflater = zstd::ZstdDeflater::new(level, zstd::BLOCK_BYTES)?;
    Ok(Box::new(deflater.without_short_matches()?))
}

/// Makes the compressor of a codec at a level, [`levels`]; `None` means `default_level`.
///
/// # Errors
/// [`CodecError::Deflate`] when the level is not one of the codec's, or memory is short.
pub fn make_deflater(codec: CodecId, level: Option<i32>) -> Result<Box<dyn Deflater>, CodecError> {
    let level = level.unwrap_or_else(|| default_level(codec));
    if !levels(codec).contains(&level) {
        return Err(CodecError::Deflate {
            codec,
            reason: "it has no such level",
        });
    }
    Ok(match codec {
        CodecId::Store => Box::new(StoreDeflater),
        CodecId::Zlib => Box::new(zlib::ZlibDeflater::new(level)?),
        CodecId::Xz => Box::new(xz::XzDeflater::new(level)),
        CodecId::Lz4Block => Box::new(lz4::Lz4BlockDeflater::new(level)),
        CodecId::Lz4Frame => Box::new(lz4::Lz4FrameDeflater::new(level, lz4::BLOCK_BYTES)?),
        CodecId::Lzo1x => Box::new(lzo1x::Deflate::new(
            u8::try_from(level).unwrap_or(lzo1x::LEVEL_MAX),
        )),
        CodecId::Zstd => Box::new(zstd::ZstdDeflater::new(level, zstd::BLOCK_BYTES)?),
    })
}

/// The levels of a codec; one level for those that have no choice.
#[must_use]
pub fn levels(codec: CodecId) -> std::ops::RangeInclusive<i32> {
    match codec {
        CodecId::Store => 0..=0,
        CodecId::Lzo1x => lzo1x::LEVEL_MIN.into()..=lzo1x::LEVEL_MAX.into(),
        CodecId::Zlib => zlib::LEVELS,
        CodecId::Xz => 0..=9,
        CodecId::Lz4Block | CodecId::Lz4Frame => lz4::LEVELS,
        CodecId::Zstd => zstd::LEVELS,
    }
}

/// The level that is used unless another is given.
#[must_use]
pub(crate) fn default_level(codec: CodecId) -> i32 {
    match codec {
        CodecId::Store => 0,
        CodecId::Lzo1x => lzo1x::LEVEL_DEFAULT.into(),
        CodecId::Zlib => 9,
        CodecId::Xz => 6,
        CodecId::Lz4Block | CodecId::Lz4Frame => 9,
        CodecId::Zstd => 9,
    }
}

/// As [`default_level`], depending on the image's goal. zstd for [`Tune::Size`] takes the level of
/// `mksquashfs`, because users compare with that: 1 GB of real files became 4.9 % smaller than at
/// level 9, in eight times its CPU time, which is as much as `mksquashfs` took.
#[must_use]
pub(crate) fn default_level_for(codec: CodecId, tune: Tune) -> i32 {
    match (codec, tune) {
        (CodecId::Zstd, Tune::Size) => 15,
        _ => default_level(codec),
    }
}

fn corrupt(codec: CodecId, reason: &'static str) -> CodecError {
    CodecError::Corrupt { codec, reason }
}

/// Copies: raw images, and frames that did not shrink, are handled like all others.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct StoreInflater {
    done: usize,
}

impl Inflater for StoreInflater {
    fn codec(&self) -> CodecId {
        CodecId::Store
    }

    fn reset(&mut self) {
        self.done = 0;
    }

    fn advance(
        &mut self,
        frame: &[u8],
        out: &mut [u8],
        target: usize,
    ) -> Result<usize, CodecError> {
        // Stored as it is: both lengths are one.
        if frame.len() != out.len() {
            return Err(CodecError::Length {
                codec: CodecId::Store,
                got: frame.len(),
                expected: out.len(),
                at_least: false,
            });
        }
        let target = target.min(out.len());
        if self.done < target {
            out[self.done..target].copy_from_slice(&frame[self.done..target]);
            self.done = target;
        }
        Ok(self.done)
    }
}

/// Copies.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct StoreDeflater;

impl Deflater for StoreDeflater {
    fn codec(&self) -> CodecId {
        CodecId::Store
    }

    fn deflate(&mut self, raw: &[u8], out: &mut Vec<u8>) -> Result<(), CodecError> {
        out.clear();
        out.extend_from_slice(raw);
        Ok(())
    }
}
