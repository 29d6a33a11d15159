//! zstd frames (RFC 8878) by libzstd.
//!
//! Why here: the default codec. libzstd's streaming call swallows a whole frame as soon as it sees
//! all of it, so a reader of 4 KiB would wait for 64; this wrapper feeds libzstd exactly one block
//! at a time and so can stop after any block, with no copy and no allocation: the context lives in
//! a workspace of known size, small enough ([`workspace_bytes`], about 94 KiB) to stand in an
//! engine's local store beside a frame and its contents.
//! Must stay true: between two calls that continue a frame, the bytes already inflated are where
//! they were (matches reach back into them); `Position` notices when they are not, and refuses
//! before libzstd is called.
//! Called from: one thread at a time; values move between threads.
//! Source: RFC 8878, sections 3.1.1 and 3.1.2; zstd.h, "Buffer-less streaming decompression".
#![allow(unsafe_code)] // C surface: libzstd through zstd-sys

use super::{CodecError, CodecId, Deflater, Inflater, Position, corrupt};
use zstd_safe::zstd_sys as sys;
use zstd_safe::{CCtx, CParameter};

/// Bytes of memory that one inflater needs besides the frame and its contents.
#[must_use]
pub(crate) fn workspace_bytes() -> usize {
    // SAFETY: takes nothing, returns a constant of the library's build.
    unsafe { sys::ZSTD_estimateDCtxSize() }
}

/// Inflates zstd frames, block by block.
pub(crate) struct ZstdInflater {
    /// Points into `workspace`, which therefore must neither move its contents nor be freed before.
    context: *mut sys::ZSTD_DCtx,
    /// Never touched by us after start-up; `u64`s for the alignment that libzstd asks for.
    _workspace: Box<[u64]>,
    position: Position,
    /// True when libzstd stands inside a frame (its header has been asked for).
    inside: bool,
}

// SAFETY: the context is reached through this value alone and libzstd keeps no thread-local state.
unsafe impl Send for ZstdInflater {}

impl ZstdInflater {
    /// Makes the context. With `verified`, the caller has checked the compressed bytes already: the
    /// frames' own checksums of their contents are then not computed again.
    #[must_use]
    pub(crate) fn new(verified: bool) -> Self {
        let mut workspace = vec![0_u64; workspace_bytes().div_ceil(8)].into_boxed_slice();
        // SAFETY: the workspace is 8-byte aligned, as long as we say, and outlives the context
        // (same struct; moving the Box does not move what it points to).
        let context =
            unsafe { sys::ZSTD_initStaticDCtx(workspace.as_mut_ptr().cast(), workspace.len() * 8) };
        assert!(
            !context.is_null(),
            "libzstd refused a workspace of the size that it named itself"
        );
        let mut inflater = Self {
            context,
            _workspace: workspace,
            position: Position::default(),
            inside: false,
        };
        inflater.set_verified(verified);
        inflater
    }

    /// Says whether the compressed bytes of the frames to come have been checked already.
    pub(crate) fn set_verified(&mut self, verified: bool) {
        // A parameter may only be set between frames.
        self.reset();
        // ZSTD_d_forceIgnoreChecksum stands behind this name in libzstd's stable numbering.
        let parameter = sys::ZSTD_dParameter::ZSTD_d_experimentalParam3;
        // SAFETY: the context is valid (made in `new`); a refused parameter is only reported.
        unsafe {
            sys::ZSTD_DCtx_reset(
                self.context,
                sys::ZSTD_ResetDirective::ZSTD_reset_session_only,
            );
            sys::ZSTD_DCtx_setParameter(self.context, parameter, i32::from(verified));
        }
    }

    /// Begins the next frame at the current position, skipping skippable ones. Returns false at the
    /// end of the input.
    fn begin(&mut self, frame: &[u8]) -> Result<bool, CodecError> {
        while let Some(rest) = frame
            .get(self.position.read..)
            .filter(|rest| !rest.is_empty())
        {
            let Some((head, _)) = rest.split_first_chunk::<8>() else {
                break;
            };
            let magic = u32::from_le_bytes([head[0], head[1], head[2], head[3]]);
            if magic & !0xF != SKIPPABLE_MAGIC {
                break;
            }
            let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
            if rest.len() - 8 < length {
                return Err(corrupt(CodecId::Zstd, "the compressed bytes end too early"));
            }
            self.position.read += 8 + length;
        }
        if self.position.read >= frame.len() {
            return Ok(false);
        }
        // SAFETY: the context is valid.
        check(unsafe { sys::ZSTD_decompressBegin(self.context) })?;
        self.inside = true;
        Ok(true)
    }

    /// Feeds libzstd the one piece that it asks for next. Returns false when the frame is at its
    /// end.
    fn step(&mut self, frame: &[u8], out: &mut [u8]) -> Result<bool, CodecError> {
        // SAFETY: the context is valid.
        let wanted = unsafe { sys::ZSTD_nextSrcSizeToDecompress(self.context) };
        if wanted == 0 {
            self.inside = false;
            return Ok(false);
        }
        let piece = (self.position.read.checked_add(wanted))
            .and_then(|end| frame.get(self.position.read..end))
            .ok_or_else(|| corrupt(CodecId::Zstd, "the compressed bytes end too early"))?;
        let room = &mut out[self.position.written..];
        // SAFETY: both slices are valid for the lengths given. libzstd reads back at most to where
        // this frame's output began, which lies in `out`: `Position` made sure that it is the
        // buffer of the calls before.
        let written = check(unsafe {
            sys::ZSTD_decompressContinue(
                self.context,
                room.as_mut_ptr().cast(),
                room.len(),
                piece.as_ptr().cast(),
                piece.len(),
            )
        });
        let written = match written {
            Err(Refused::Full) => return Err(self.position.too_long(CodecId::Zstd, out.len())),
            other => other?,
        };
        self.position.read += wanted;
        self.position.written += written;
        Ok(true)
    }
}

impl Inflater for ZstdInflater {
    fn codec(&self) -> CodecId {
        CodecId::Zstd
    }

    fn set_verified(&mut self, verified: bool) {
        Self::set_verified(self, verified);
    }

    fn reset(&mut self) {
        self.position = Position::default();
        self.inside = false;
    }

    fn advance(
        &mut self,
        frame: &[u8],
        out: &mut [u8],
        target: usize,
    ) -> Result<usize, CodecError> {
        if let Some(done) = self.position.enter(CodecId::Zstd, frame, out, target)? {
            return Ok(done);
        }
        let result = self.run(frame, out, target);
        self.position.leave(&result);
        result
    }
}

impl ZstdInflater {
    fn run(&mut self, frame: &[u8], out: &mut [u8], target: usize) -> Result<usize, CodecError> {
        loop {
            // When everything is out, the frame's end (and its checksum) still has to be seen.
            if self.position.written >= target && self.position.written < out.len() {
                return Ok(self.position.written);
            }
            if !self.inside && !self.begin(frame)? {
                return self.position.finish(CodecId::Zstd, out.len());
            }
            self.step(frame, out)?;
        }
    }
}

/// Error of libzstd.
enum Refused {
    /// The output is full.
    Full,
    /// Anything else.
    Other(&'static str),
}

impl From<Refused> for CodecError {
    fn from(refused: Refused) -> Self {
        corrupt(
            CodecId::Zstd,
            match refused {
                Refused::Full => "the contents are longer than the image says",
                Refused::Other(reason) => reason,
            },
        )
    }
}

fn check(code: usize) -> Result<usize, Refused> {
    // SAFETY: takes a number.
    if unsafe { sys::ZSTD_isError(code) } == 0 {
        return Ok(code);
    }
    // SAFETY: takes a number.
    match unsafe { sys::ZSTD_getErrorCode(code) } {
        sys::ZSTD_ErrorCode::ZSTD_error_dstSize_tooSmall => Err(Refused::Full),
        _ => Err(Refused::Other(zstd_safe::get_error_name(code))),
    }
}

/// Deflates each frame into one zstd frame that carries its size and a checksum of its contents.
pub(crate) struct ZstdDeflater {
    context: CCtx<'static>,
}

impl ZstdDeflater {
    /// `level` is libzstd's, [`LEVELS`]. Frames are cut into blocks of `block_bytes` (libzstd's 1
    /// KiB to 128 KiB), at whose ends an inflater can stop.
    ///
    /// # Errors
    /// [`CodecError::Deflate`] when libzstd refuses a parameter or has no memory.
    pub(crate) fn new(level: i32, block_bytes: u32) -> Result<Self, CodecError> {
        let refused = |code| CodecError::Deflate {
            codec: CodecId::Zstd,
            reason: zstd_safe::get_error_name(code),
        };
        let mut context = CCtx::try_create().ok_or(CodecError::Deflate {
            codec: CodecId::Zstd,
            reason: "no memory for libzstd's context",
        })?;
        for parameter in [
            CParameter::CompressionLevel(level),
            CParameter::ChecksumFlag(true),
            CParameter::ContentSizeFlag(true),
            CParameter::MaxBlockSize(block_bytes),
        ] {
            context.set_parameter(parameter).map_err(refused)?;
        }
        Ok(Self { context })
    }

    /// Takes no matches shorter than `MIN_MATCH_FAST` bytes: fewer sequences to inflate, for
    /// somewhat larger frames.
    ///
    /// # Errors
    /// [`CodecError::Deflate`] when libzstd refuses.
    pub(crate) fn without_short_matches(mut self) -> Result<Self, CodecError> {
        self.context
            .set_parameter(CParameter::MinMatch(MIN_MATCH_FAST))
            .map_err(|code| CodecError::Deflate {
                codec: CodecId::Zstd,
                reason: zstd_safe::get_error_name(code),
            })?;
        Ok(self)
    }
}

/// Measured on real files at level 9: 5 inflates 14 % faster for 3 % of size, 6 25 % for 6 %.
const MIN_MATCH_FAST: u32 = 6;

impl Deflater for ZstdDeflater {
    fn codec(&self) -> CodecId {
        CodecId::Zstd
    }

    fn deflate(&mut self, raw: &[u8], out: &mut Vec<u8>) -> Result<(), CodecError> {
        out.clear();
        // libzstd's bound counts blocks of 128 KiB; ours are smaller and cost 3 bytes of header
        // each.
        out.reserve(zstd_safe::compress_bound(raw.len()) + raw.len() / 256 + 64);
        self.context
            .compress2(out, raw)
            .map(drop)
            .map_err(|code| CodecError::Deflate {
                codec: CodecId::Zstd,
                reason: zstd_safe::get_error_name(code),
            })
    }
}

/// libzstd's levels that make sense for images.
pub(crate) const LEVELS: std::ops::RangeInclusive<i32> = 1..=22;

/// Size of the blocks in a frame. At 64 KiB frames of real files, blocks of 32 KiB cost 4-8 % of
/// the speed of inflating whole frames and nothing of the ratio, and halve the wait for a 4 KiB
/// read of the first half; 16 KiB cost 14 % and gain no more than 3 us on average.
pub(crate) const BLOCK_BYTES: u32 = 32 << 10;

/// The first of the sixteen magics of skippable frames.
const SKIPPABLE_MAGIC: u32 = 0x184D_2A50;
