//! DEFLATE streams (RFC 1951), bare or as zlib (RFC 1950) and gzip (RFC 1952) wrap them, by
//! libdeflate: the kernels `deflate_compress` and `deflate_decompress`.
//!
//! Why here: libdeflate is the fastest there is for whole buffers. It cannot be interrupted, so the
//! longest item to be compressed is short. A gzip item is its first member; bytes after it are
//! ignored.

use super::{Codec, Coded, Format, Settings, Work};
use crate::table::{ItemStatus, Stop};
use libdeflater::{CompressionLvl, Compressor, DecompressionError, Decompressor};
use sidecore_bare::width::ToUsize;
use sidecore_engine::KernelError;

/// The longest item that is compressed: some 2 ms at level 6.
pub(crate) const ITEM_BYTES_MAX: usize = 128 << 10;

/// The highest level.
pub(crate) const LEVEL_MAX: u64 = 9;

/// Compresses: the kernel `deflate_compress`.
pub(crate) type DeflateCompress = Coded<Deflater>;

/// Decompresses: the kernel `deflate_decompress`.
pub(crate) type DeflateDecompress = Coded<Inflater>;

/// An engine's compressors, each made at its first use.
#[derive(Default)]
pub(crate) struct Deflater([Option<Compressor>; LEVELS]);

impl std::fmt::Debug for Deflater {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "compressors of {} levels",
            self.0.iter().flatten().count()
        )
    }
}

impl Codec for Deflater {
    const NAME: &'static str = "deflate_compress";
    const ITEM_BYTES_MAX: usize = ITEM_BYTES_MAX;
}

impl Work for Deflater {
    fn work(
        &mut self,
        settings: Settings,
        item: &[u8],
        out: &mut [u8],
        _asked: &dyn Fn() -> Result<(), KernelError>,
    ) -> Result<usize, Stop> {
        let level = match settings.level {
            0 => LEVEL_USUAL,
            level => level.min(LEVEL_MAX),
        };
        // Made once for each level: its tables are some hundred KiB.
        let compressor = self.0[level.to_usize()].get_or_insert_with(|| {
            let level = i32::try_from(level).unwrap_or_default();
            Compressor::new(CompressionLvl::new(level).unwrap_or_default())
        });
        let made = match settings.format {
            Format::Plain => compressor.deflate_compress(item, out),
            Format::Zlib => compressor.zlib_compress(item, out),
            Format::Gzip => compressor.gzip_compress(item, out),
            Format::Block => return Err(no_blocks().into()),
        };
        // Compressing has no other failure.
        made.map_err(|_| Stop::Item(ItemStatus::NoRoom))
    }
}

/// An engine's decompressor.
#[derive(Default)]
pub(crate) struct Inflater(Decompressor);

impl std::fmt::Debug for Inflater {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a decompressor")
    }
}

impl Codec for Inflater {
    const NAME: &'static str = "deflate_decompress";
}

impl Work for Inflater {
    fn work(
        &mut self,
        settings: Settings,
        item: &[u8],
        out: &mut [u8],
        _asked: &dyn Fn() -> Result<(), KernelError>,
    ) -> Result<usize, Stop> {
        let made = match settings.format {
            Format::Plain => self.0.deflate_decompress(item, out),
            Format::Zlib => self.0.zlib_decompress(item, out),
            Format::Gzip => self.0.gzip_decompress(item, out),
            Format::Block => return Err(no_blocks().into()),
        };
        made.map_err(|error| match error {
            DecompressionError::BadData => Stop::Item(ItemStatus::Damaged),
            DecompressionError::InsufficientSpace => Stop::Item(ItemStatus::NoRoom),
        })
    }
}

fn no_blocks() -> KernelError {
    KernelError::failed("deflate: formats are 0 (raw), 1 (zlib) and 2 (gzip)")
}

const LEVEL_USUAL: u64 = 6;
/// Levels 0 to [`LEVEL_MAX`].
const LEVELS: usize = 10;
