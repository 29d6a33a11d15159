//! LZ4 frames and bare blocks: the kernels `lz4_compress` and `lz4_decompress`.
//!
//! Why here: by a library without unsafe code, since items are untrusted bytes. Frames are made of
//! independent blocks of 64 KiB with a checksum of the whole, as `lz4 -B4 -BI` makes them, and any
//! frame is read; between blocks it checks whether to go on. An item is one frame, or one block.
//! Source: the LZ4 frame and block format descriptions.

use super::{Codec, Coded, Format, Settings, Work};
use crate::table::{ItemStatus, Stop};
use lz4_flex::block;
use lz4_flex::frame::{BlockMode, BlockSize, FrameDecoder, FrameEncoder, FrameInfo};
use sidecore_bare::width::ToU64;
use sidecore_engine::KernelError;
use std::io::{ErrorKind, Read, Write};

/// Compresses: the kernel `lz4_compress`.
pub(crate) type Lz4Compress = Coded<Deflater>;

/// Decompresses: the kernel `lz4_decompress`.
pub(crate) type Lz4Decompress = Coded<Inflater>;

/// Makes frames and blocks; there is one level.
#[derive(Debug, Default)]
pub(crate) struct Deflater;

impl Codec for Deflater {
    const NAME: &'static str = "lz4_compress";

    fn scratch_bytes(bytes: usize, room: usize) -> usize {
        // The library wants room for the worst case before it begins.
        room.max(block::get_maximum_output_size(bytes))
    }
}

impl Work for Deflater {
    fn work(
        &mut self,
        settings: Settings,
        item: &[u8],
        out: &mut [u8],
        asked: &dyn Fn() -> Result<(), KernelError>,
    ) -> Result<usize, Stop> {
        if is_block(settings)? {
            let made = block::compress_into(item, out);
            return made.map_err(|_| Stop::Item(ItemStatus::NoRoom));
        }
        let mut info = FrameInfo::new();
        info.content_size = Some(item.len().to_u64());
        info.block_size = BlockSize::Max64KB;
        info.block_mode = BlockMode::Independent;
        info.content_checksum = true;
        // The encoder moves `rest` along as it writes: the difference is what it made.
        let room = out.len();
        let mut rest = out;
        let mut encoder = FrameEncoder::with_frame_info(info, &mut rest);
        for piece in item.chunks(PIECE_BYTES) {
            let written = encoder.write_all(piece);
            written.map_err(|_| Stop::Item(ItemStatus::NoRoom))?;
            asked()?;
        }
        let finished = encoder.try_finish();
        finished.map_err(|_| Stop::Item(ItemStatus::NoRoom))?;
        drop(encoder);
        Ok(room - rest.len())
    }
}

/// Reads frames and blocks.
#[derive(Debug, Default)]
pub(crate) struct Inflater;

impl Codec for Inflater {
    const NAME: &'static str = "lz4_decompress";
}

impl Work for Inflater {
    fn work(
        &mut self,
        settings: Settings,
        item: &[u8],
        out: &mut [u8],
        asked: &dyn Fn() -> Result<(), KernelError>,
    ) -> Result<usize, Stop> {
        if is_block(settings)? {
            return block::decompress_into(item, out).map_err(|error| match error {
                block::DecompressError::OutputTooSmall { .. } => Stop::Item(ItemStatus::NoRoom),
                _ => Stop::Item(ItemStatus::Damaged),
            });
        }
        let damaged = Stop::Item(ItemStatus::Damaged);
        let mut decoder = FrameDecoder::new(item);
        let (mut done, mut more) = (0, [0]);
        loop {
            let is_full = done == out.len();
            // A full output is the end only where the frame ends too.
            let place = if is_full {
                &mut more[..]
            } else {
                &mut out[done..]
            };
            match decoder.read(place) {
                Ok(0) => break,
                Ok(_) if is_full => return Err(Stop::Item(ItemStatus::NoRoom)),
                Ok(bytes) => done += bytes,
                // Part of the contract of `Read`, though a slice has no interrupts.
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(damaged),
            }
            asked()?;
        }
        // An empty item has no frame, and an item is one frame.
        if item.is_empty() || !decoder.get_ref().is_empty() {
            return Err(damaged);
        }
        Ok(done)
    }
}

fn is_block(settings: Settings) -> Result<bool, KernelError> {
    match settings.format {
        Format::Plain => Ok(false),
        Format::Block => Ok(true),
        _ => Err(KernelError::failed(
            "lz4: formats are 0 (frame) and 3 (block)",
        )),
    }
}

const PIECE_BYTES: usize = 64 << 10;
