//! Blocks of a squashfs: their codecs, metadata as runs of bytes, and caches of both kinds.
//!
//! Must stay true: a block inflates to at most the size that its kind may have. The caches hold a
//! bounded number of blocks. A thread that wants a block which another one inflates waits for it.

use crate::FilesError;
use crate::le::{le16, le32, le64};
use liblzma::stream::{Action, Status, Stream};
use parking_lot::Mutex;
use sidecore_format::source::BlockSource;
use std::cell::RefCell;
use std::sync::Arc;

/// Compression of the blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Codec {
    Gzip,
    Xz,
    Lz4,
    Zstd,
}

impl Codec {
    pub(super) fn of(number: u16) -> Result<Self, FilesError> {
        Ok(match number {
            1 => Self::Gzip,
            4 => Self::Xz,
            5 => Self::Lz4,
            6 => Self::Zstd,
            2 | 3 => {
                let name = if number == 2 { "LZMA" } else { "LZO" };
                let text = format!("the squashfs is compressed by {name}, which is not read here");
                return Err(FilesError::Unsupported(text));
            }
            _ => {
                let text = format!("the squashfs is compressed by an unknown codec ({number})");
                return Err(FilesError::Unsupported(text));
            }
        })
    }

    /// Inflates `stored` to at most the length of `out`; `None` where it is damaged.
    fn inflate(self, stored: &[u8], out: &mut [u8]) -> Option<usize> {
        match self {
            Self::Gzip => GZIP.with_borrow_mut(|gzip| gzip.zlib_decompress(stored, out).ok()),
            Self::Zstd => ZSTD.with_borrow_mut(|zstd| zstd.decompress(out, stored).ok()),
            Self::Lz4 => lz4_flex::block::decompress_into(stored, out).ok(),
            Self::Xz => xz(stored, out),
        }
    }
}

fn xz(stored: &[u8], out: &mut [u8]) -> Option<usize> {
    // Without the limit a stream could ask for a dictionary of 4 GiB.
    let mut stream = Stream::new_stream_decoder(XZ_BYTES_MAX, 0).ok()?;
    // The second call lets it read the end of a stream whose bytes are all out.
    for _ in 0..2 {
        let read = usize::try_from(stream.total_in()).ok()?;
        let written = usize::try_from(stream.total_out()).ok()?;
        let (input, room) = (stored.get(read..)?, out.get_mut(written..)?);
        if stream.process(input, room, Action::Run).ok()? == Status::StreamEnd {
            return usize::try_from(stream.total_out()).ok();
        }
    }
    None
}

thread_local! {
    static GZIP: RefCell<libdeflater::Decompressor> = RefCell::default();
    static ZSTD: RefCell<zstd_safe::DCtx<'static>> = RefCell::new(zstd_safe::DCtx::create());
}

/// A block whose bytes are there.
type Block = Arc<[u8]>;

/// A slot of a cache: the place of a block, its bytes and its length in the image.
type Slot = Mutex<Option<(u64, Block, u64)>>;

/// Blocks used last, by their places.
struct Cache(Box<[Slot]>);

impl Cache {
    fn new(slots: usize) -> Self {
        Self((0..slots).map(|_| Mutex::default()).collect())
    }

    fn get(
        &self,
        at: u64,
        make: impl FnOnce() -> Result<(Block, u64), FilesError>,
    ) -> Result<(Block, u64), FilesError> {
        // Multiplication spreads places, whose low bits are alike.
        let mixed = at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let index = usize::try_from(mixed).unwrap_or(0) % self.0.len();
        // Held while the block is made, so that two threads do not inflate the same one.
        let mut slot = self.0[index].lock();
        if let Some((place, block, stored)) = &*slot
            && *place == at
        {
            return Ok((Arc::clone(block), *stored));
        }
        let (block, stored) = make()?;
        *slot = Some((at, Arc::clone(&block), stored));
        Ok((block, stored))
    }
}

/// The image's blocks.
pub(super) struct Blocks {
    pub(super) source: Arc<dyn BlockSource>,
    codec: Codec,
    pub(super) block_bytes: u32,
    metadata: Cache,
    fragments: Cache,
}

impl Blocks {
    pub(super) fn new(source: Arc<dyn BlockSource>, codec: Codec, block_bytes: u32) -> Self {
        let fragments = FRAGMENTS_BYTES / u64::from(block_bytes);
        Self {
            source,
            codec,
            block_bytes,
            metadata: Cache::new(METADATA_BLOCKS),
            fragments: Cache::new(usize::try_from(fragments).unwrap_or(0).max(4)),
        }
    }

    fn read(&self, at: u64, out: &mut [u8]) -> Result<(), FilesError> {
        Ok(self.source.read_into(at, out)?)
    }

    /// A block of metadata, and its length in the image with the head.
    fn metadata(&self, at: u64) -> Result<(Block, u64), FilesError> {
        self.metadata.get(at, || {
            let mut head = [0; 2];
            self.read(at, &mut head)?;
            let word = le16(&head, 0);
            let len = word & METADATA_LEN;
            let mut stored = vec![0; len.into()];
            // At most 32 KiB, by the field's 15 bits; what it inflates to is bounded by its buffer.
            self.read(at.saturating_add(2), &mut stored)?;
            let damaged = || FilesError::damaged(at, "a block of the squashfs's metadata");
            let block = match word & METADATA_PLAIN {
                0 => {
                    let mut out = vec![0; METADATA_BYTES];
                    let len = self.codec.inflate(&stored, &mut out).ok_or_else(damaged)?;
                    out.truncate(len);
                    out
                }
                _ => stored,
            };
            // An empty one would let a reader go on without end.
            if block.is_empty() || block.len() > METADATA_BYTES {
                return Err(damaged());
            }
            Ok((block.into(), 2 + u64::from(len)))
        })
    }

    /// A fragment's block.
    pub(super) fn fragment(&self, at: u64, size: u32) -> Result<Block, FilesError> {
        let made = self.fragments.get(at, || {
            let mut out = Vec::new();
            let mut stored = Vec::new();
            self.data(at, size, &mut stored, &mut out)?;
            Ok((out.into(), 0))
        });
        Ok(made?.0)
    }

    /// Puts a block of data into `out`; `stored` is for its bytes in the image.
    pub(super) fn data(
        &self,
        at: u64,
        size: u32,
        stored: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(), FilesError> {
        let damaged = || FilesError::damaged(at, "a block of data");
        let len = size & DATA_LEN;
        // A block that did not shrink is stored plain, so none is longer than the block size.
        if len > self.block_bytes || size & !(DATA_LEN | DATA_PLAIN) != 0 {
            return Err(damaged());
        }
        let (len, room) = (
            usize::try_from(len).unwrap_or(0),
            usize::try_from(self.block_bytes).unwrap_or(0),
        );
        if size & DATA_PLAIN != 0 {
            out.resize(len, 0);
            return self.read(at, out);
        }
        stored.resize(len, 0);
        self.read(at, stored)?;
        out.resize(room, 0);
        let len = self.codec.inflate(stored, out).ok_or_else(damaged)?;
        out.truncate(len);
        Ok(())
    }
}

/// A place in metadata, from which bytes are read in order.
pub(super) struct Cursor<'b> {
    blocks: &'b Blocks,
    at: u64,
    offset: usize,
}

impl<'b> Cursor<'b> {
    /// The bytes from `offset` of the block at `at`.
    pub(super) fn new(blocks: &'b Blocks, at: u64, offset: u64) -> Self {
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        Self { blocks, at, offset }
    }

    /// The bytes at a reference: a block's place behind `table`, and the place in that block.
    pub(super) fn of_reference(blocks: &'b Blocks, table: u64, reference: u64) -> Self {
        let at = table.saturating_add(reference >> 16);
        Self::new(blocks, at, reference & 0xFFFF)
    }

    /// Entry `index`, of `entry_bytes` (a divisor of 8 KiB), in a table whose blocks' places stand
    /// at `table`.
    pub(super) fn of_entry(
        blocks: &'b Blocks,
        table: u64,
        index: u32,
        entry_bytes: u32,
    ) -> Result<Self, FilesError> {
        // Tables are metadata blocks with a list of their places: entries never straddle one, as
        // 8,192 is a multiple of each size.
        let byte = u64::from(index) * u64::from(entry_bytes);
        let per_block = 8192;
        let mut place = [0; 8];
        let at = table.saturating_add(byte / per_block * 8);
        blocks.read(at, &mut place)?;
        Ok(Self::new(blocks, le64(&place, 0), byte % per_block))
    }

    /// Fills `out` with the next bytes.
    pub(super) fn fill(&mut self, out: &mut [u8]) -> Result<(), FilesError> {
        let mut done = 0;
        while done < out.len() {
            let (block, stored) = self.blocks.metadata(self.at)?;
            let Some(rest) = block.get(self.offset..).filter(|rest| !rest.is_empty()) else {
                // A place behind a block's end is damage; one at its end is the next block's
                // beginning.
                if self.offset != block.len() {
                    let what = "a place in the squashfs's metadata";
                    return Err(FilesError::damaged(self.at, what));
                }
                self.at = self.at.saturating_add(stored);
                self.offset = 0;
                continue;
            };
            let len = rest.len().min(out.len() - done);
            out[done..done + len].copy_from_slice(&rest[..len]);
            done += len;
            self.offset += len;
        }
        Ok(())
    }

    /// The next `N` bytes.
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], FilesError> {
        let mut out = [0; N];
        self.fill(&mut out)?;
        Ok(out)
    }

    /// The next 32 bits.
    pub(super) fn u32(&mut self) -> Result<u32, FilesError> {
        Ok(le32(&self.array::<4>()?, 0))
    }
}

/// The most bytes of a metadata block.
pub(super) const METADATA_BYTES: usize = 8192;
const METADATA_LEN: u16 = 0x7FFF;
const METADATA_PLAIN: u16 = 0x8000;
const METADATA_BLOCKS: usize = 1024;
const DATA_LEN: u32 = 0xFF_FFFF;
const DATA_PLAIN: u32 = 0x100_0000;
/// Bytes of fragments that are kept.
const FRAGMENTS_BYTES: u64 = 16 << 20;
/// Memory for one stream: dictionaries are as long as blocks, 1 MiB at most.
const XZ_BYTES_MAX: u64 = 16 << 20;
