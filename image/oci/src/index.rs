//! The index of a layer: where decompression can begin, a check of each span of the tar, and the
//! tar's headers.
//!
//! Why here: with it a layer is a file system at once, and a file in it is read by one range of the
//! layer's blob. Made by one pass over the blob; see `build`.
//!
//! Must stay true: an index from elsewhere is only bytes: every number in it is checked before use,
//! and nothing of it takes more memory than `INDEX_BYTES_MAX` and `HEADERS_BYTES_MAX` allow.
//! The metadata that a kernel parses are made here, from the headers, never taken from an index.
//! Equal layers give equal indexes.

use crate::gzip::{Start, inflate_from};
use crate::tar::{Piece, Walker};
use crate::tree::{Collector, Layer};
use prost::Message;
use sidecore_bare::width::{ToU64, ToUsize};
use std::ops::Range;

/// Compression of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    /// None.
    Tar,
    /// gzip, of one member or several.
    Gzip,
    /// zstd, of one frame or several.
    Zstd,
}

impl Codec {
    /// The compression that the first bytes of a layer show.
    #[must_use]
    pub fn of(head: &[u8]) -> Self {
        match head {
            [0x1F, 0x8B, ..] => Self::Gzip,
            [0x28, 0xB5, 0x2F, 0xFD, ..] | [0x50..=0x5F, 0x2A, 0x4D, 0x18, ..] => Self::Zstd,
            _ => Self::Tar,
        }
    }

    fn number(self) -> u32 {
        match self {
            Self::Tar => 0,
            Self::Gzip => 1,
            Self::Zstd => 2,
        }
    }
}

/// An index of a layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Index {
    file: File,
    codec: Codec,
}

/// The index as it is stored.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct File {
    /// SHA-256 of the layer's blob.
    #[prost(bytes, tag = "1")]
    pub(crate) layer: Vec<u8>,
    #[prost(uint32, tag = "2")]
    pub(crate) codec: u32,
    /// First byte of each span in the blob, and the end of the last one.
    #[prost(uint64, repeated, tag = "3")]
    pub(crate) blob_at: Vec<u64>,
    /// First byte of each span in the tar, and the end of the last one.
    #[prost(uint64, repeated, tag = "4")]
    pub(crate) tar_at: Vec<u64>,
    /// Two bytes a span: number of bits of the byte before (255: none are needed, nor a window),
    /// and these bits.
    #[prost(bytes, tag = "5")]
    pub(crate) bits: Vec<u8>,
    /// The window of each span that needs one, compressed with zstd.
    #[prost(bytes, repeated, tag = "6")]
    pub(crate) windows: Vec<Vec<u8>>,
    /// BLAKE3 of each span of the tar, 32 bytes each.
    #[prost(bytes, tag = "7")]
    pub(crate) checks: Vec<u8>,
    /// The tar's headers, compressed with zstd.
    #[prost(bytes, tag = "8")]
    pub(crate) headers: Vec<u8>,
    #[prost(uint64, tag = "9")]
    pub(crate) headers_bytes: u64,
}

/// An index that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IndexError {
    /// It is damaged, of another version, or of another layer.
    #[error("the index of the layer {0}; make it again with `sidecore block index`")]
    Damaged(&'static str),
    /// The tar in it.
    #[error(transparent)]
    Tar(#[from] crate::tar::TarError),
    /// The tree in it.
    #[error(transparent)]
    Tree(#[from] crate::tree::TreeError),
    /// A span whose bytes are not those that the index was made of.
    #[error("span {0} of the layer is damaged: its bytes are not those that were indexed")]
    Span(usize),
}

impl Index {
    pub(crate) fn new(file: File, codec: Codec) -> Self {
        let file = File {
            codec: codec.number(),
            ..file
        };
        Self { file, codec }
    }

    /// The index as bytes.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let body = self.file.encode_to_vec();
        // The hash finds files that a crash or a disk has damaged; it proves nothing against a
        // forger.
        [MAGIC, blake3::hash(&body).as_bytes(), &body].concat()
    }

    /// Reads an index, which must be of the layer with this digest (64 digits).
    ///
    /// # Errors
    /// [`IndexError::Damaged`].
    pub fn read(bytes: &[u8], sha256: &str) -> Result<Self, IndexError> {
        Ok(Self::read_with_hash(bytes, sha256)?.0)
    }

    /// The same, with the BLAKE3 hash of the index as it is stored.
    ///
    /// # Errors
    /// [`IndexError::Damaged`].
    pub(crate) fn read_with_hash(
        bytes: &[u8],
        sha256: &str,
    ) -> Result<(Self, [u8; 32]), IndexError> {
        let damaged = IndexError::Damaged;
        let foreign = || match bytes.starts_with(MAGIC_OF_ALL) {
            true => damaged("is of another version"),
            false => damaged("is none"),
        };
        let body = bytes.strip_prefix(MAGIC).ok_or_else(foreign)?;
        if body.len().to_u64() > INDEX_BYTES_MAX {
            return Err(damaged("is too long or too short"));
        }
        // Before the decoder sees a byte: it would make what it can of damaged ones.
        let split = body.split_first_chunk::<32>();
        let (check, body) = split.ok_or(damaged("is too long or too short"))?;
        if blake3::hash(body) != *check {
            return Err(damaged("is damaged"));
        }
        let file = File::decode(body).map_err(|_| damaged("is damaged"))?;
        let codec = match file.codec {
            0 => Codec::Tar,
            1 => Codec::Gzip,
            2 => Codec::Zstd,
            _ => return Err(damaged("has an unknown compression")),
        };
        let index = Self { file, codec };
        // An index of another layer would be sound in itself, and show another layer's files.
        if index.layer() != sha256 {
            return Err(damaged("is of another layer"));
        }
        index.check()?;
        Ok((index, *check))
    }

    /// Checks all numbers.
    fn check(&self) -> Result<(), IndexError> {
        let file = &self.file;
        let spans = file.blob_at.len().saturating_sub(1);
        // All later look-ups index these lists without a check of their own.
        let is_counted = file.tar_at.len() == spans + 1
            && file.bits.len() == 2 * spans
            && file.checks.len() == 32 * spans
            && file.windows.len() == file.bits.chunks(2).filter(|it| it[0] != FRESH).count();
        let steps = |at: &[u64]| {
            at.first() == Some(&0)
                && at.windows(2).all(|it| {
                    let bytes = it[1].checked_sub(it[0]);
                    bytes.is_some_and(|bytes| bytes <= SPAN_BYTES_MAX)
                })
        };
        let is_sound = is_counted
            && steps(&file.blob_at)
            && steps(&file.tar_at)
            && file.headers_bytes <= HEADERS_BYTES_MAX;
        match is_sound {
            true => Ok(()),
            false => Err(IndexError::Damaged("has impossible numbers")),
        }
    }

    /// The layer's digest: 64 digits.
    #[must_use]
    pub fn layer(&self) -> String {
        hex(&self.file.layer)
    }

    /// Number of spans.
    #[must_use]
    pub fn spans(&self) -> usize {
        self.file.checks.len() / 32
    }

    /// Size of the layer's blob in bytes.
    #[must_use]
    pub fn blob_bytes(&self) -> u64 {
        self.file.blob_at.last().copied().unwrap_or_default()
    }

    /// Size of the tar in bytes.
    #[must_use]
    pub fn tar_bytes(&self) -> u64 {
        self.file.tar_at.last().copied().unwrap_or_default()
    }

    /// True if parts of the layer can be read without all that precedes them.
    #[must_use]
    pub fn is_lazy(&self) -> bool {
        let spans = self.file.tar_at.windows(2);
        let largest = spans.map(|it| it[1] - it[0]).max().unwrap_or_default();
        largest <= SPAN_BYTES_LAZY_MAX
    }

    /// The bytes of the blob that a span needs.
    pub(crate) fn blob_range(&self, spans: Range<usize>) -> Range<u64> {
        self.file.blob_at[spans.start]..self.file.blob_at[spans.end]
    }

    /// The bytes of the tar that a span has.
    pub(crate) fn tar_range(&self, span: usize) -> Range<u64> {
        self.file.tar_at[span]..self.file.tar_at[span + 1]
    }

    /// The spans that hold a range of the tar.
    pub(crate) fn spans_of(&self, tar: Range<u64>) -> Range<usize> {
        // Spans are ascending (see `check`), so that a binary search finds both ends.
        let first = self.file.tar_at.partition_point(|&at| at <= tar.start);
        let end = self.file.tar_at.partition_point(|&at| at < tar.end);
        first.saturating_sub(1)..end.min(self.spans())
    }

    /// Decompresses and checks a span.
    ///
    /// # Errors
    /// [`IndexError::Span`].
    pub(crate) fn open_span(&self, span: usize, blob: &[u8]) -> Result<Vec<u8>, IndexError> {
        let damaged = IndexError::Span(span);
        let tar = self.tar_range(span);
        let mut contents = vec![0; (tar.end - tar.start).to_usize()];
        let is_whole = match self.codec {
            Codec::Tar if blob.len() == contents.len() => {
                contents.copy_from_slice(blob);
                true
            }
            Codec::Tar => false,
            Codec::Gzip => match self.start(span) {
                Some(start) => inflate_from(&start, blob, &mut contents).is_ok(),
                None => false,
            },
            Codec::Zstd => zstd_safe::decompress(&mut contents[..], blob) == Ok(contents.len()),
        };
        // Whatever decompressing made, only contents with the indexed hash are returned.
        let check = &self.file.checks[32 * span..][..32];
        match is_whole && blake3::hash(&contents) == *check {
            true => Ok(contents),
            false => Err(damaged),
        }
    }

    /// The place at which a span begins.
    fn start(&self, span: usize) -> Option<Start> {
        let bits = &self.file.bits[2 * span..][..2];
        if bits[0] == FRESH {
            return Some(Start::Fresh);
        }
        // Windows are stored for the spans that need one alone; the number of those before is the
        // place.
        let before = self.file.bits[..2 * span].chunks(2);
        let window = before.filter(|it| it[0] != FRESH).count();
        // DEFLATE reaches back 32 KiB at most: a longer window is refused for lack of room.
        let mut room = vec![0; 32 << 10];
        let packed = self.file.windows.get(window)?;
        let bytes = zstd_safe::decompress(&mut room[..], packed).ok()?;
        room.truncate(bytes);
        Some(Start::Block {
            bits: bits[1],
            bit_count: bits[0],
            window: room,
        })
    }

    /// Makes the metadata of the layer's file system.
    ///
    /// # Errors
    /// [`IndexError`].
    pub(crate) fn tree(&self) -> Result<Layer, IndexError> {
        self.tree_at(false)
    }

    /// An index with other headers that all spans fit: what a registry may forge.
    #[cfg(test)]
    pub(crate) fn with_headers_twice(&self) -> Self {
        let mut headers = vec![0; self.file.headers_bytes.to_usize()];
        zstd_safe::decompress(&mut headers[..], &self.file.headers).unwrap();
        let mut twice = vec![0; zstd_safe::compress_bound(2 * headers.len())];
        let bytes = zstd_safe::compress(&mut twice[..], &headers.repeat(2), 3).unwrap();
        twice.truncate(bytes);
        let mut index = self.clone();
        index.file.headers = twice;
        index.file.headers_bytes *= 2;
        index
    }

    /// True if a file system can be made of its headers; for the target `layers` of `lab/fuzz`.
    #[doc(hidden)]
    #[must_use]
    pub fn try_tree(&self) -> bool {
        self.tree().is_ok()
    }

    /// The same; with `is_dense` contents begin right behind the metadata.
    ///
    /// # Errors
    /// [`IndexError`].
    pub(crate) fn tree_at(&self, is_dense: bool) -> Result<Layer, IndexError> {
        let mut headers = vec![0; self.file.headers_bytes.to_usize()];
        let found = zstd_safe::decompress(&mut headers[..], &self.file.headers);
        if found != Ok(headers.len()) {
            return Err(IndexError::Damaged("has damaged headers"));
        }
        let mut collector = Collector::new();
        let mut walker = Walker::new(true);
        let tar_bytes = self.tar_bytes();
        walker.push(&headers, &mut |piece| {
            if let Piece::Entry(entry) = piece {
                // A read of such a file would look for spans that the index does not have.
                if entry.data_at.saturating_add(entry.size_bytes) > tar_bytes {
                    return Err(IndexError::Damaged("has a file beyond its end"));
                }
                collector.add(entry)?;
            }
            Ok::<(), IndexError>(())
        })?;
        Ok(collector.finish_at(is_dense, &self.file.layer)?)
    }
}

/// Hexadecimal digits of bytes.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// With a number for what an index is made of: it is proved by one that is made anew.
const MAGIC: &[u8] = b"SCLAYER2";
/// First bytes of an index of any version.
const MAGIC_OF_ALL: &[u8] = b"SCLAYER";
/// In `bits`: the span begins a member or a frame.
pub(crate) const FRESH: u8 = 0xFF;
/// Larger spans are not worth a read by itself.
const SPAN_BYTES_LAZY_MAX: u64 = 32 << 20;
/// Larger spans are not indexed.
pub(crate) const SPAN_BYTES_MAX: u64 = 64 << 20;
/// Size of an index, which holds a window for each span.
pub(crate) const INDEX_BYTES_MAX: u64 = 256 << 20;
/// Headers of a tar.
pub(crate) const HEADERS_BYTES_MAX: u64 = 1 << 30;
