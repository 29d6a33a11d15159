//! Image formats: where each frame lies in the file, and how it is compressed.
//!
//! - The crate's root: formats, their index of frames, readers and writers.
//! - [`codec`]: compressing and decompressing one frame.
//! - [`inner`]: making a file system out of a directory before it is packed.
//! - [`trust`]: root hashes and signatures that vouch for an image.
//! - [`secret`]: keys and passphrases that open an encrypted image.
//! - [`source`]: a flat run of bytes, as exports see a device.
//! - [`output`]: a file that gets its name only when it is complete.
//!
//! Why here: devices and `pack` handle frames; only this crate knows bytes on disk.
//! Must stay true: parsers accept any bytes without failing (they are fuzzed); an [`Index`] that
//! was returned is consistent: every frame lies inside the file, raw sizes add up to `raw_bytes`,
//! none exceeds [`FRAME_BYTES_MAX`]. The byte maps are in `docs/formats/`.

pub mod audit;
mod cloop;
pub mod codec;
mod error;
pub mod foreign;
mod index;
mod indexed;
pub mod inner;
pub mod lock;
mod lz4;
pub mod output;
mod raw;
mod read_at;
mod reader;
pub mod secret;
mod seekable;
pub mod sidecar;
mod sidx;
pub mod source;
mod table;
#[cfg(test)]
mod tests;
pub mod thin;
pub mod tree;
pub mod trust;
pub mod write;
pub mod zstd_frame;

use crate::codec::CodecId;
use indexed::IndexedWriter;
use read_at::Bytes;
use std::fmt;
use std::fs::File;
use std::str::FromStr;
use write::{ImageWriter, Layout};

pub use error::FormatError;
use index::Builder;
pub use index::Index;
pub use read_at::ReadAt;
pub use reader::{FrameError, FrameReader};

mod skippable {
    //! Skippable frames of zstd and LZ4, and numbers in them.
    //!
    //! Source: RFC 8878 section 3.1.2; LZ4 Frame Format Description 1.6.4.

    /// One of the sixteen magics of skippable frames; zstd's seek table takes `...5E`, pzstd
    /// `...50`.
    pub(super) const MAGIC: u32 = 0x184D_2A5C;
    /// Magic and length, before the content.
    pub(super) const SKIPPABLE_BYTES: u64 = 8;

    /// The lengths of a skippable frame, as they are written: of its content, and of all of it.
    /// `None` if 32 bits cannot hold them.
    pub(super) fn lengths(content_bytes: u64) -> Option<(u32, u32)> {
        let total = u32::try_from(content_bytes + SKIPPABLE_BYTES).ok()?;
        Some((u32::try_from(content_bytes).ok()?, total))
    }

    /// The little-endian `u32` at the start of `bytes`.
    pub(super) fn le32(bytes: &[u8]) -> u32 {
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    /// The little-endian `u64` at the start of `bytes`.
    pub(super) fn le64(bytes: &[u8]) -> u64 {
        u64::from(le32(bytes)) | u64::from(le32(&bytes[4..])) << 32
    }
}

mod layout {
    //! The layout that an image's writer is asked for.
    //!
    //! Why here: the index and the writers of all formats take it, and need nothing else of one
    //! another.

    /// Layout of an image to be written.
    #[derive(Debug, Clone, Copy)]
    pub struct Layout {
        /// Bytes of the device per frame: a power of two, [`super::FRAME_BYTES_RANGE`].
        pub frame_bytes: u32,
        /// Size of the device, if it is known before the source has been read.
        pub raw_bytes: Option<u64>,
        /// True when the beginning of the output can still be written after all frames.
        pub seekable: bool,
        /// True if frames differ in size; `frame_bytes` is then their average.
        pub uneven: bool,
        /// True if runs of zeros are listed and not stored
        /// ([`super::write::ImageWriter::push_holes`]).
        pub thin: bool,
    }
}

/// Upper bound of a frame's decompressed size. It bounds the memory that a hostile image can make
/// us allocate.
pub const FRAME_BYTES_MAX: u32 = 64 << 20;

/// An image format, as `--format` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// Seekable zstd: the default for new images.
    Zstd,
    /// LZ4 frames with an index in a skippable frame.
    Lz4,
    /// cloop with zlib blocks (V2.0 written; all headers read).
    Cloop,
    /// cloop V4.0 with LZO1X blocks.
    CloopLzo,
    /// The bytes unchanged.
    Raw,
}

/// Checksum that an image carries for a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameCheck {
    /// No checksum (the codec may have one of its own, like zlib).
    None,
    /// XXH3-64 of the *compressed* bytes. Checked before decompressing: bytes may be delivered
    /// while the rest decompresses.
    Stored(u64),
    /// The same, and the frame's leaf in the hash tree with the required root ([`Index::trust`]).
    /// The leaf is checked, before decompressing.
    Sealed(u64, Leaf),
    /// The low 32 bits of XXH64 of the *decompressed* bytes (the standard zstd seek table): the
    /// whole frame must be decompressed first.
    Raw(u32),
}

/// A frame's leaf in a trusted hash tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaf {
    /// Its hash ([`tree::leaf`]).
    pub hash: tree::Hash,
    /// Number of the frame.
    pub number: u64,
    /// True if the frame is declared all zeros: its compressed bytes are not read.
    pub zero: bool,
}

impl Leaf {
    /// True if these are the compressed bytes of the frame, which decompresses to `raw_bytes`.
    #[must_use]
    pub fn is_of(&self, raw_bytes: u32, stored: &[u8]) -> bool {
        tree::leaf(self.number, raw_bytes, self.zero, stored) == self.hash
    }
}

/// One frame of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Its number.
    pub number: u64,
    /// Offset of its compressed bytes in the file; 0 for a hole.
    pub offset: u64,
    /// Their number; 0 for a hole, which is zeros and not stored.
    pub stored_bytes: u32,
    /// Decompressed size in bytes.
    pub raw_bytes: u32,
    /// Offset of the decompressed bytes in the device.
    pub raw_offset: u64,
    /// Its compression.
    pub codec: CodecId,
    /// Its checksum.
    pub check: FrameCheck,
}

impl Frame {
    /// True for a frame of zeros that is not stored.
    #[must_use]
    pub(crate) fn is_hole(&self) -> bool {
        self.stored_bytes == 0
    }
}

/// Upper bound of the compressed bytes of a frame of `raw_bytes`. No codec of ours comes near; a
/// table with a larger value is damaged, and a device that trusted it would read gigabytes for one
/// frame.
#[must_use]
pub(crate) fn stored_bytes_limit(raw_bytes: u32) -> u64 {
    2 * u64::from(raw_bytes) + 4096
}

/// Contents of the next frame, when `left` bytes of the device are left.
#[must_use]
pub(crate) fn next_raw_bytes(left: u64, frame_bytes: u32) -> u32 {
    u32::try_from(left).map_or(frame_bytes, |left| left.min(frame_bytes))
}

impl Format {
    /// All formats, in the order in which they are probed: raw accepts everything that no other
    /// format claims.
    pub const ALL: [Self; 5] = [
        Self::Zstd,
        Self::Lz4,
        Self::CloopLzo,
        Self::Cloop,
        Self::Raw,
    ];

    /// Implementation behind this name.
    fn parts(self) -> &'static dyn ImageFormat {
        match self {
            Self::Zstd => &SeekableZstd,
            Self::Lz4 => &Lz4,
            Self::Cloop => &Cloop { lzo: false },
            Self::CloopLzo => &Cloop { lzo: true },
            Self::Raw => &Raw,
        }
    }

    /// The codec of frames written in this format.
    #[must_use]
    pub fn codec(self) -> CodecId {
        match self {
            Self::Zstd => CodecId::Zstd,
            Self::Lz4 => CodecId::Lz4Frame,
            Self::Cloop => CodecId::Zlib,
            Self::CloopLzo => CodecId::Lzo1x,
            Self::Raw => CodecId::Store,
        }
    }

    /// Begins an image.
    ///
    /// # Errors
    /// [`FormatError::CannotWrite`] when the format cannot hold such an image.
    pub fn writer(self, layout: &Layout) -> Result<Box<dyn ImageWriter>, FormatError> {
        let range = FRAME_BYTES_RANGE;
        if !layout.frame_bytes.is_power_of_two() || !range.contains(&layout.frame_bytes) {
            return Err(FormatError::CannotWrite {
                format: self.name(),
                what: format!("frames of {} bytes", layout.frame_bytes),
                reason: "a frame is a power of two from 4 KiB to 1 MiB",
                next: "take --frame 64KiB, which suits most images",
            });
        }
        if layout.uneven && !matches!(self, Self::Zstd | Self::Lz4) {
            return Err(FormatError::CannotWrite {
                format: self.name(),
                what: "frames of various sizes".to_owned(),
                reason: "the format knows one size for all frames",
                next: "take --format zstd or lz4, or leave out --cdc",
            });
        }
        if layout.thin && (layout.uneven || !matches!(self, Self::Zstd | Self::Lz4)) {
            return Err(FormatError::CannotWrite {
                format: self.name(),
                what: "a thin image".to_owned(),
                reason: "runs of holes have a place in zstd and LZ4 images in frames of one size",
                next: "take --format zstd or lz4 without --cdc, or leave out --thin always",
            });
        }
        if layout.raw_bytes == Some(0) {
            return Err(FormatError::Empty {
                format: self.name(),
            });
        }
        self.parts().writer(layout)
    }

    /// The name for `--format`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Zstd => "zstd",
            Self::Lz4 => "lz4",
            Self::Cloop => "cloop",
            Self::CloopLzo => "cloop-lzo",
            Self::Raw => "raw",
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        (Self::ALL.into_iter().find(|format| format.name() == text))
            .ok_or_else(|| format!("no format `{text}`; take zstd, lz4, cloop, cloop-lzo or raw"))
    }
}

/// An image format. One conformance suite (`tests.rs`) runs over all of them.
trait ImageFormat {
    /// Reads the tables if the file is of this format; `None` if it is something else.
    fn parse(&self, bytes: &Bytes<'_>) -> Result<Option<Index>, FormatError>;

    /// Begins an image of a layout that was checked.
    fn writer(&self, layout: &Layout) -> Result<Box<dyn ImageWriter>, FormatError>;
}

struct SeekableZstd;

impl ImageFormat for SeekableZstd {
    fn parse(&self, bytes: &Bytes<'_>) -> Result<Option<Index>, FormatError> {
        seekable::probe(bytes)?
            .then(|| seekable::parse(bytes))
            .transpose()
    }

    fn writer(&self, layout: &Layout) -> Result<Box<dyn ImageWriter>, FormatError> {
        Ok(Box::new(IndexedWriter::new(&seekable::FORM, layout)))
    }
}

struct Lz4;

impl ImageFormat for Lz4 {
    fn parse(&self, bytes: &Bytes<'_>) -> Result<Option<Index>, FormatError> {
        lz4::probe(bytes)?.then(|| lz4::parse(bytes)).transpose()
    }

    fn writer(&self, layout: &Layout) -> Result<Box<dyn ImageWriter>, FormatError> {
        Ok(Box::new(IndexedWriter::new(&lz4::FORM, layout)))
    }
}

/// Both cloop formats are read by the same parser; they differ in their writers.
struct Cloop {
    lzo: bool,
}

impl ImageFormat for Cloop {
    fn parse(&self, bytes: &Bytes<'_>) -> Result<Option<Index>, FormatError> {
        cloop::probe(bytes)?
            .map(|variant| cloop::parse(bytes, variant))
            .transpose()
    }

    fn writer(&self, layout: &Layout) -> Result<Box<dyn ImageWriter>, FormatError> {
        let format = if self.lzo {
            Format::CloopLzo
        } else {
            Format::Cloop
        };
        Ok(Box::new(cloop::write::CloopWriter::new(format, layout)?))
    }
}

struct Raw;

impl ImageFormat for Raw {
    fn parse(&self, bytes: &Bytes<'_>) -> Result<Option<Index>, FormatError> {
        raw::parse(bytes).map(Some)
    }

    fn writer(&self, _: &Layout) -> Result<Box<dyn ImageWriter>, FormatError> {
        Ok(Box::new(raw::RawWriter))
    }
}

/// The kind of `file`, which begins with `head`, if it is an image that only this program reads:
/// cloop, a thin or an encrypted image.
pub fn kind_of_image(file: &File, head: &[u8]) -> Option<&'static str> {
    if thin::is_thin(head) {
        return Some("thin image");
    }
    if lock::is_locked(head) {
        return Some("encrypted image");
    }
    let bytes = Bytes::new(file).ok()?;
    let is_cloop = cloop::probe(&bytes).ok()?.is_some();
    is_cloop.then_some("cloop image")
}

/// The first bytes of an overlay.
pub const OVERLAY_MAGIC: &[u8; 8] = b"sideover";

/// True when `head`, a file's first bytes, begins an overlay.
#[must_use]
pub fn is_overlay(head: &[u8]) -> bool {
    head.starts_with(OVERLAY_MAGIC)
}

/// The name of an overlay in [`foreign::recognize`].
pub const OVERLAY_KIND: &str = "overlay of this program";

/// Frame sizes that we write.
pub const FRAME_BYTES_RANGE: std::ops::RangeInclusive<u32> = 4 << 10..=1 << 20;

impl Index {
    /// Determines the format of `file` and reads its tables. Files of no known format are raw
    /// images; an overlay is none, since its bytes are no disk.
    ///
    /// # Errors
    /// [`FormatError`], which names the fault and the next step. Blocks on the file.
    pub fn open(file: &File) -> Result<Self, FormatError> {
        Self::read(file)
    }

    /// Uses the bytes of `file` unchanged, whatever their format.
    ///
    /// # Errors
    /// [`FormatError::Empty`], or the system's. Blocks on the file.
    pub fn open_raw(file: &File) -> Result<Self, FormatError> {
        Self::read_raw(file)
    }

    /// As [`Self::open_raw`], from anything with bytes at offsets.
    ///
    /// # Errors
    /// As [`Self::open_raw`].
    pub fn read_raw(source: &dyn ReadAt) -> Result<Self, FormatError> {
        raw::any(&Bytes::new(source)?)
    }

    /// As [`Self::open`], from anything with bytes at offsets.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn read(source: &dyn ReadAt) -> Result<Self, FormatError> {
        let bytes = Bytes::new(source)?;
        // Before the formats that are known by their last bytes: those of an overlay are whatever
        // was written to its disk.
        let head = bytes.array::<{ OVERLAY_MAGIC.len() }>(0)?;
        if head.is_some_and(|head| is_overlay(&head)) {
            return Err(FormatError::Overlay);
        }
        if let Some(index) = lock::parse(&bytes)? {
            return Ok(index);
        }
        for format in Format::ALL {
            if let Some(index) = format.parts().parse(&bytes)? {
                return Ok(index);
            }
        }
        Err(FormatError::Empty { format: "raw" })
    }
}
