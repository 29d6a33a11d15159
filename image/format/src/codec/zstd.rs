//! zstd frames (RFC 8878), by libzstd.
//!
//! Why here: the default codec. A frame that is wanted whole is one call. For its first bytes the
//! frame is fed block by block, into the output itself (libzstd's stable output): no copy, and a
//! stop after any block. A decoder of ours, two blocks at a time, was 1.10 to 1.12 times as fast
//! for frames of 64 KiB, and 0.93 times for 4 KiB: too little for a second parser of hostile bytes.
//! Must stay true: libzstd keeps the address of the output between two calls that continue a frame
//! (matches reach back into it); `Position` detects other buffers before libzstd is called.
//! Called from: one thread at a time; values move between threads.
//! Source: RFC 8878, sections 3.1.1 and 3.1.2; zstd.h of libzstd 1.5.

use super::{CodecError, CodecId, Deflater, Inflater, Position, corrupt};
use crate::zstd_frame::NO_ROOM;
use crate::zstd_frame::{self, BLOCK_HEADER_BYTES, HEADER_BYTES_MAX, Start};
use zstd_safe::{CCtx, CParameter, DCtx, DParameter, InBuffer, OutBuffer, ResetDirective};

/// Decompresses zstd frames, block by block.
pub(crate) struct ZstdInflater {
    context: DCtx<'static>,
    position: Position,
    /// Bytes that libzstd takes next: up to the end of a block. 0 between two frames.
    wanted: usize,
}

/// The largest window of RFC 8878: none is allocated, as the output is the window.
const WINDOW_LOG_MAX: u32 = 31;

impl ZstdInflater {
    /// Makes the decoder. With `verified`, the caller has checked the compressed bytes already: the
    /// frames' own checksums of their contents are then not computed again.
    ///
    /// # Panics
    /// Without memory for libzstd's context.
    #[must_use]
    pub(crate) fn new(verified: bool) -> Self {
        let mut inflater = Self {
            context: DCtx::create(),
            position: Position::default(),
            wanted: 0,
        };
        inflater.set(DParameter::StableOutBuffer(true));
        inflater.set(DParameter::WindowLogMax(WINDOW_LOG_MAX));
        inflater.set_verified(verified);
        inflater
    }

    fn set(&mut self, parameter: DParameter) {
        // Refused only inside a frame and outside the parameter's range; both are ruled out.
        let set = self.context.set_parameter(parameter);
        debug_assert!(set.is_ok(), "a parameter of libzstd, between two frames");
    }
}

impl Inflater for ZstdInflater {
    fn codec(&self) -> CodecId {
        CodecId::Zstd
    }

    fn set_verified(&mut self, verified: bool) {
        self.reset();
        self.set(DParameter::ForceIgnoreChecksum(verified));
    }

    fn reset(&mut self) {
        self.position = Position::default();
        self.wanted = 0;
        // Never refused: a session can be ended at any time.
        let _ = self.context.reset(ResetDirective::SessionOnly);
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
        let result = if self.position.read == 0 && target >= out.len() {
            self.run_whole(frame, out)
        } else {
            self.run(frame, out, target)
        };
        self.position.leave(&result);
        result
    }
}

impl ZstdInflater {
    /// All frames at once: libzstd's fastest way.
    fn run_whole(&mut self, frame: &[u8], out: &mut [u8]) -> Result<usize, CodecError> {
        let done = self.context.decompress(out, frame);
        self.position.written = done.map_err(|code| self.refused(code, out.len()))?;
        self.position.read = frame.len();
        self.position.finish(CodecId::Zstd, out.len())
    }

    /// As far as `target`, block by block; to the end of `frame` if that is all of `out`.
    fn run(&mut self, frame: &[u8], out: &mut [u8], target: usize) -> Result<usize, CodecError> {
        let expected = out.len();
        loop {
            let (read, written) = (self.position.read, self.position.written);
            // Not for a target of all contents: a checksum or skippable frames may follow them.
            if written >= target && written < expected {
                return Ok(written);
            }
            if self.wanted == 0 {
                if read == frame.len() {
                    return self.position.finish(CodecId::Zstd, expected);
                }
                self.wanted = first_bytes(&frame[read..]);
            }
            let end = match frame.len() {
                all if target >= expected => all,
                all => all.min(read.saturating_add(self.wanted)),
            };
            if end == read {
                return Err(corrupt(CodecId::Zstd, "the compressed bytes end too early"));
            }
            let mut input = InBuffer {
                src: &frame[..end],
                pos: read,
            };
            let mut output = OutBuffer::around_pos(&mut *out, written);
            let wanted = self.context.decompress_stream(&mut output, &mut input);
            self.position.written = output.pos();
            self.position.read = input.pos;
            self.wanted = wanted.map_err(|code| self.refused(code, expected))?;
            // No input that libzstd could refuse to take is known; a loop without end must not be.
            if self.position.read == read && self.position.written == written {
                return Err(corrupt(CodecId::Zstd, "the decoder makes no progress"));
            }
        }
    }

    /// libzstd's error code, with its own message.
    fn refused(&self, code: usize, expected: usize) -> CodecError {
        if code == NO_ROOM {
            return self.position.too_long(CodecId::Zstd, expected);
        }
        corrupt(CodecId::Zstd, zstd_safe::get_error_name(code))
    }
}

/// Bytes that libzstd takes first of what begins with a frame: all of its header, and that of its
/// first block. Of a header that comes in two pieces, libzstd decodes a whole frame that the second
/// one begins with.
fn first_bytes(frames: &[u8]) -> usize {
    match zstd_frame::start(frames) {
        Ok(Start::Frame(header)) => header.bytes + BLOCK_HEADER_BYTES,
        // What follows a skippable frame is left; libzstd says what is wrong with the others.
        Ok(Start::Skippable(_)) | Err(_) => HEADER_BYTES_MAX,
    }
}

/// Compresses each frame into one zstd frame that carries its size and a checksum of its contents.
pub(crate) struct ZstdDeflater {
    context: CCtx<'static>,
}

impl ZstdDeflater {
    /// `level` is libzstd's, [`LEVELS`]. Frames are cut into blocks of `block_bytes` (libzstd's 1
    /// KiB to 128 KiB), at whose ends a decompressor can stop.
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
        // The size in the header lets readers check tables; the checksum is the one of the seek
        // table.
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

    /// Uses no matches shorter than `MIN_MATCH_FAST` bytes: fewer sequences to decompress, for
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

/// Measured on real files at level 9: 5 decompresses 14 % faster for 3 % of size, 6 decompresses 25
/// % faster for 6 %.
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

/// libzstd's useful levels for images.
pub(crate) const LEVELS: std::ops::RangeInclusive<i32> = 1..=22;

/// Size of the blocks in a frame. In 64 KiB frames of real files, blocks of 32 KiB cost 4-8 % of
/// the speed of decompressing whole frames and no compression ratio. They halve the wait for a 4
/// KiB read of the first half. Blocks of 16 KiB cost 14 % and save at most 3 us on average.
pub(crate) const BLOCK_BYTES: u32 = 32 << 10;
