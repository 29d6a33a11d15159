//! Zstandard frames (RFC 8878) by libzstd: the kernels `zstd_compress` and `zstd_decompress`.
//!
//! Compressing goes block by block, with a check between blocks whether to go on. An item to be
//! decompressed is all its frames; it is done in one go, within 1 ms, since an item is short and
//! its room bounds the output.

use super::{Codec, Coded, Format, Settings, Work};
use crate::table::{ItemStatus, Stop};
use sidecore_bare::width::ToU64;
use sidecore_engine::KernelError;
use zstd_safe::zstd_sys::ZSTD_EndDirective as End;
use zstd_safe::{CCtx, CParameter, DCtx, InBuffer, OutBuffer, ResetDirective};

/// The highest level: beyond it a block takes some milliseconds.
pub(crate) const LEVEL_MAX: u64 = 9;

/// Compresses: the kernel `zstd_compress`.
pub(crate) type ZstdCompress = Coded<Deflater>;

/// Decompresses: the kernel `zstd_decompress`.
pub(crate) type ZstdDecompress = Coded<Inflater>;

/// An engine's compressor.
#[derive(Default)]
pub(crate) struct Deflater(Option<CCtx<'static>>);

impl std::fmt::Debug for Deflater {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a zstd compressor")
    }
}

impl Codec for Deflater {
    const NAME: &'static str = "zstd_compress";
}

impl Work for Deflater {
    fn work(
        &mut self,
        settings: Settings,
        item: &[u8],
        out: &mut [u8],
        asked: &dyn Fn() -> Result<(), KernelError>,
    ) -> Result<usize, Stop> {
        only_frames(settings)?;
        let level = match settings.level {
            0 => LEVEL_USUAL,
            level => i32::try_from(level.min(LEVEL_MAX)).unwrap_or(LEVEL_USUAL),
        };
        let context = self.0.get_or_insert_with(CCtx::create);
        // Also after a request that was given up in the middle.
        let reset = context.reset(ResetDirective::SessionAndParameters);
        reset
            .and_then(|_| context.set_parameter(CParameter::CompressionLevel(level)))
            .and_then(|_| context.set_parameter(CParameter::ChecksumFlag(true)))
            .and_then(|_| context.set_pledged_src_size(Some(item.len().to_u64())))
            .map_err(unexpected)?;
        let mut output = OutBuffer::around(out);
        let mut pieces = item.chunks(PIECE_BYTES).peekable();
        loop {
            // An empty item is one empty piece: its frame has to be ended, too.
            let piece = pieces.next().unwrap_or_default();
            let is_last = pieces.peek().is_none();
            let directive = if is_last {
                End::ZSTD_e_end
            } else {
                End::ZSTD_e_continue
            };
            let mut input = InBuffer::around(piece);
            loop {
                let before = (input.pos, output.pos());
                let left = context.compress_stream2(&mut output, &mut input, directive);
                let left = left.map_err(unexpected)?;
                let is_taken = input.pos == piece.len();
                if is_taken && (left == 0 || !is_last) {
                    break;
                }
                // No step in either direction: the output is full.
                if (input.pos, output.pos()) == before {
                    return Err(Stop::Item(ItemStatus::NoRoom));
                }
            }
            if is_last {
                return Ok(output.pos());
            }
            asked()?;
        }
    }
}

/// An engine's decompressor.
#[derive(Default)]
pub(crate) struct Inflater(Option<DCtx<'static>>);

impl std::fmt::Debug for Inflater {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a zstd decompressor")
    }
}

impl Codec for Inflater {
    const NAME: &'static str = "zstd_decompress";
}

impl Work for Inflater {
    fn work(
        &mut self,
        settings: Settings,
        item: &[u8],
        out: &mut [u8],
        _asked: &dyn Fn() -> Result<(), KernelError>,
    ) -> Result<usize, Stop> {
        only_frames(settings)?;
        let context = self.0.get_or_insert_with(DCtx::create);
        context.decompress(out, item).map_err(|code| {
            // The library's numbers for errors are negative ones; that of a full output is stable.
            let is_full = code.wrapping_neg() == DESTINATION_TOO_SMALL;
            Stop::Item(if is_full {
                ItemStatus::NoRoom
            } else {
                ItemStatus::Damaged
            })
        })
    }
}

fn only_frames(settings: Settings) -> Result<(), KernelError> {
    if settings.format == Format::Plain {
        return Ok(());
    }
    Err(KernelError::failed("zstd: the one format is 0"))
}

fn unexpected(code: usize) -> KernelError {
    KernelError::failed(format!("zstd: {}", zstd_safe::get_error_name(code)))
}

const LEVEL_USUAL: i32 = 3;
/// A block of the library's.
const PIECE_BYTES: usize = 128 << 10;
/// `ZSTD_error_dstSize_tooSmall`.
const DESTINATION_TOO_SMALL: usize = 70;
