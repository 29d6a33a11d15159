//! The sidecar index (`.sidx`): a separate file next to a zstd file without an index of its own.
//!
//! Why here: `zstd` and pzstd write files of many frames without a seek table. One walk finds the
//! beginnings of the frames; the sidecar file stores them, and the zstd file stays unchanged.
//! Must stay true: the index is valid only for the file from which it was made. The file's size and
//! the headers of all its frames are compared when it is opened, and a frame's compressed bytes
//! when it is read, before any of it is delivered. Some frames do not state their sizes, so only
//! decompressing them reveals a false size. The author of the index could forge such sizes; so an
//! index is accepted only from users that may write the file itself ([`Index::open_sidecar`]).
//! Source: RFC 8878, section 3.1.1.
//! Map: `docs/formats/seekable-zstd.md`.

use super::read_at::Bytes;
use super::seekable;
use super::sidx::{self, Found};
use super::skippable::{MAGIC, le32, le64};
use super::table::{Entry, Table, Tail};
use super::write::byte_count;
use super::zstd_frame::{
    self, BLOCK_BYTES_MAX, BLOCK_HEADER_BYTES, BlockHeader, Fault, HEADER_BYTES_MAX, Start,
};
use super::{FRAME_BYTES_MAX, FormatError, Index, ReadAt, stored_bytes_limit};
use crate::codec::CodecId;
use sidecore_bare::width::{ToU64, ToUsize};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::Xxh3Default;

/// The format's name for a file with a sidecar index.
pub(super) const NAME: &str = "zstd, its index beside it";

/// Name of the index of the file at `path`.
#[must_use]
pub fn name_of(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".sidx");
    name.into()
}

impl Index {
    /// As [`Self::open`], for the file at `path`. If the file has no index of its own, the sidecar
    /// file ([`name_of`]) is used.
    ///
    /// # Errors
    /// As [`Self::open`]; [`FormatError::Sidecar`] if the sidecar index does not belong to this
    /// file. Blocks on both files.
    pub fn open_sidecar(file: &File, path: &Path) -> Result<Self, FormatError> {
        match Self::open(file) {
            Err(error) if lacks_index(&error) => match File::open(name_of(path)) {
                Ok(sidecar) => open(file, &sidecar),
                Err(_) => Err(error),
            },
            other => other,
        }
    }

    /// Reads the index in `sidecar`. Its author must be a user that may write `file`, or one that
    /// the reader trusts. With `is_near`, the headers of all frames are compared with it. For a
    /// remote file each header would take a round trip; a wrong file is then detected when its
    /// frames are read.
    ///
    /// # Errors
    /// [`FormatError::Sidecar`] if it is damaged, too large or of another file. Blocks on both.
    pub fn read_sidecar(
        file: &dyn ReadAt,
        sidecar: &dyn ReadAt,
        is_near: bool,
    ) -> Result<Self, FormatError> {
        let (file, sidecar) = (Bytes::new(file)?, Bytes::new(sidecar)?);
        match is_near {
            true => read(&file, &sidecar),
            false => read_far(&file, &sidecar),
        }
    }
}

/// True if `error` means that a zstd file has no index of its frames.
#[must_use]
pub fn lacks_index(error: &FormatError) -> bool {
    matches!(error, FormatError::NoIndex { format, .. } if *format == seekable::NAME)
}

/// Reads the index in `sidecar`, which belongs to `file`.
fn open(file: &File, sidecar: &File) -> Result<Index, FormatError> {
    let metadata = |file: &File| {
        file.metadata().map_err(|source| FormatError::Io {
            doing: "read",
            offset: 0,
            source,
        })
    };
    // Of the open files, not of their names, which another user could exchange in between.
    let (of, found) = (metadata(file)?, metadata(sidecar)?);
    let mine = rustix::process::geteuid().as_raw();
    let owner = found.uid();
    if ![of.uid(), mine, 0].contains(&owner) || found.mode() & OTHERS_WRITE != 0 {
        return other("it belongs to another user than the file, or others may write to it");
    }
    read(&Bytes::new(file)?, &Bytes::new(sidecar)?)
}

/// Reads the index in `sidecar`, which belongs to `file`.
///
/// # Errors
/// [`FormatError::Sidecar`] if it is damaged or of another file.
pub(super) fn read(file: &Bytes<'_>, sidecar: &Bytes<'_>) -> Result<Index, FormatError> {
    let (index, heads_check) = read_tables(file.size, sidecar)?;
    let mut heads = Xxh3Default::new();
    let mut end = 0;
    for number in 0..index.frames() {
        let frame = index.frame(number);
        end = frame.offset + u64::from(frame.stored_bytes);
        let mut head = [0; HEADER_BYTES_MAX];
        let head = &mut head[..HEADER_BYTES_MAX.min(frame.stored_bytes.to_usize())];
        file.fill(head, frame.offset)?;
        // A checksum of headers, not of the file: the file may have terabytes.
        heads.update(head);
        let said = contents_at(file, frame.offset, end)?;
        if said.is_some_and(|size| size != u64::from(frame.raw_bytes)) {
            return other("a frame's own head gives it another size");
        }
    }
    if heads.digest() != heads_check {
        return other("its frames have other heads");
    }
    if !holds_nothing_from(file, end)? {
        return other("frames follow that it does not know");
    }
    Ok(index)
}

/// Reads the index in `sidecar`, which belongs to a `file` whose parts each take a round trip.
fn read_far(file: &Bytes<'_>, sidecar: &Bytes<'_>) -> Result<Index, FormatError> {
    // Anyone may have put it next to a remote file, and all of it is kept in memory.
    if sidecar.size > FAR_BYTES_MAX {
        return other("it is larger than 256 MiB");
    }
    let (index, _) = read_tables(file.size, sidecar)?;
    let last = index.frame(index.frames() - 1);
    let end = last.offset + u64::from(last.stored_bytes);
    // Data that writers put at the end are small, and are read in one piece.
    let is_all = match file.size.saturating_sub(end) {
        0 => true,
        1..=FAR_REST_BYTES_MAX => holds_nothing_from(file, end)?,
        _ => false,
    };
    match is_all {
        true => Ok(index),
        false => other("frames follow that it does not know"),
    }
}

/// Reads the index in `sidecar`, for a file of this size, and the checksum of all frames' headers.
fn read_tables(file_bytes: u64, sidecar: &Bytes<'_>) -> Result<(Index, u64), FormatError> {
    let head = sidecar.array::<HEAD_BYTES>(0)?;
    let head = head.filter(|head| {
        head[..4] == MAGIC.to_le_bytes()
            && le32(&head[4..]) == HEAD_CONTENT_BYTES
            && head[8..16] == TAG
    });
    let Some(head) = head else {
        return other("it is no index");
    };
    if head[16..24] != [VERSION, 0, 0, 0, 0, 0, 0, 0] {
        return other("it is newer than this program");
    }
    // The cheapest sign of another file, or of one that was appended to.
    if le64(&head[24..]) != file_bytes {
        return other("the file has another size");
    }
    let index = match sidx::read_sidecar(sidecar, file_bytes, NAME)? {
        Found::Index(index) => *index,
        Found::Damaged(_) | Found::Nothing => return other("it is damaged or cut short"),
    };
    // Frames of zeros are never read, so a false mark would go unnoticed.
    if index.zero_frames() != 0 {
        return other("it declares zeros");
    }
    Ok((index, le64(&head[32..])))
}

fn other<T>(reason: &'static str) -> Result<T, FormatError> {
    Err(FormatError::Sidecar { reason })
}

/// Contents size in the header of the first frame with contents between `offset` and `end`.
fn contents_at(file: &Bytes<'_>, mut offset: u64, end: u64) -> Result<Option<u64>, FormatError> {
    // The walk allows no more of them in front of a frame.
    for _ in 0..=SKIPPED_MAX {
        let mut head = [0; HEADER_BYTES_MAX];
        let bytes = end
            .saturating_sub(offset)
            .min(HEADER_BYTES_MAX.to_u64())
            .to_usize();
        file.fill(&mut head[..bytes], offset)?;
        // For a frame with contents only the header is read: it may have many blocks.
        let header = match zstd_frame::start(&head[..bytes]) {
            Ok(Start::Skippable(bytes)) => {
                offset += bytes;
                continue;
            }
            Ok(Start::Frame(header)) => header,
            Err(_) => break,
        };
        // The usual case, decided by the header alone.
        if header.content_bytes.is_some_and(|size| size > 0) {
            return Ok(header.content_bytes);
        }
        let blocks_at = header.bytes.to_u64();
        if end - offset < blocks_at + BLOCK_HEADER_BYTES.to_u64() {
            break;
        }
        let first = file.array(offset + blocks_at)?.unwrap_or_default();
        if BlockHeader::read(first, usize::MAX).map_or(true, |block| !block.is_empty()) {
            return Ok(header.content_bytes);
        }
        match shape_at(file, offset, end)? {
            Ok(shape) if shape.is_empty => offset += shape.bytes,
            Ok(shape) => return Ok(shape.contents),
            Err(_) => break,
        }
    }
    other("no frame begins where it says")
}

/// True if only skippable and empty frames lie between `offset` and the file's end.
fn holds_nothing_from(file: &Bytes<'_>, mut offset: u64) -> Result<bool, FormatError> {
    while offset < file.size {
        match shape_at(file, offset, file.size)? {
            Ok(shape) if shape.is_empty && shape.bytes <= file.size - offset => {
                offset += shape.bytes;
            }
            _ => return Ok(false),
        }
    }
    Ok(true)
}

/// The frame at `offset`, which must end before `end`.
fn shape_at(
    file: &Bytes<'_>,
    offset: u64,
    end: u64,
) -> Result<Result<Shape, &'static str>, FormatError> {
    Shape::of(&mut |at, bytes| {
        let fits = end.saturating_sub(offset) >= at + bytes.len().to_u64();
        if fits {
            file.fill(bytes, offset + at)?;
        }
        Ok(fits)
    })
}

/// A frame's extent, from its header and its block headers.
struct Shape {
    bytes: u64,
    contents: Option<u64>,
    /// The frame has no contents.
    is_empty: bool,
}

/// Reads bytes at an offset from the frame's first byte into a buffer; false if the file has no
/// such bytes.
type ReadFrame<'r> = dyn FnMut(u64, &mut [u8]) -> Result<bool, FormatError> + 'r;

impl Shape {
    /// The frame that `read` reads, or its fault. At most as many bytes are read as a frame of
    /// [`FRAME_BYTES_MAX`] may have.
    fn of(read: &mut ReadFrame<'_>) -> Result<Result<Self, &'static str>, FormatError> {
        let mut head = [0; HEADER_BYTES_MAX];
        let mut bytes = HEADER_BYTES_MAX;
        // A small frame at the end of the file has fewer bytes than the longest header.
        while bytes > 0 && !read(0, &mut head[..bytes])? {
            bytes -= 1;
        }
        let header = match zstd_frame::start(&head[..bytes]) {
            Ok(Start::Skippable(bytes)) => {
                return Ok(Ok(Self {
                    bytes,
                    contents: Some(0),
                    is_empty: true,
                }));
            }
            Ok(Start::Frame(header)) => header,
            Err(error) => return Ok(Err(fault_of(error))),
        };
        let contents = header.content_bytes;
        let mut at = header.bytes.to_u64();
        if contents.is_some_and(|size| size > FRAME_BYTES_MAX.into()) {
            return Ok(Err(TOO_LARGE));
        }
        let mut is_empty = true;
        loop {
            let mut block = [0; BLOCK_HEADER_BYTES];
            if !read(at, &mut block)? {
                return Ok(Err(CUT_SHORT));
            }
            let Ok(block) = BlockHeader::read(block, BLOCK_BYTES_MAX) else {
                return Ok(Err("has a block of no known kind"));
            };
            at += (BLOCK_HEADER_BYTES + block.stored_bytes).to_u64();
            is_empty &= block.is_empty();
            // Checked at each block: a run of empty blocks would otherwise be followed to the end
            // of the file.
            if at > stored_bytes_limit(FRAME_BYTES_MAX) {
                return Ok(Err(TOO_LARGE));
            }
            if block.is_last {
                break;
            }
        }
        // RFC 8878, section 3.1.1: an optional checksum of four bytes follows the last block.
        let bytes = at + if header.has_checksum { 4 } else { 0 };
        if !read(bytes - 1, &mut [0])? {
            return Ok(Err(CUT_SHORT));
        }
        Ok(Ok(Self {
            bytes,
            contents,
            is_empty,
        }))
    }
}

/// Fault of a frame's head.
fn fault_of(fault: Fault) -> &'static str {
    match fault {
        Fault::Truncated => CUT_SHORT,
        Fault::Magic => "is none of zstd's",
        Fault::Dictionary => "needs a dictionary",
        _ => "has a head that this program does not know",
    }
}

/// A walk over a file from frame to frame, which reads every byte once.
pub struct Scan<'a> {
    file: Bytes<'a>,
    /// Bytes that were read already and belong to the next frame.
    carried: Vec<u8>,
    /// End of the bytes read so far.
    read_to: u64,
    frames: u64,
}

impl<'a> Scan<'a> {
    /// Starts at the file's first byte.
    ///
    /// # Errors
    /// The file's length cannot be read.
    pub fn new(file: &'a dyn ReadAt) -> Result<Self, FormatError> {
        Ok(Self {
            file: Bytes::new(file)?,
            carried: Vec::new(),
            read_to: 0,
            frames: 0,
        })
    }

    /// Size of the file.
    pub fn file_bytes(&self) -> u64 {
        self.file.size
    }

    /// Reads the next frame that has contents into `stored`, with the skippable and empty frames in
    /// front of it; false at the end.
    ///
    /// # Errors
    /// [`FormatError::Scan`]: the bytes there are not a frame, or not one that this program
    /// supports.
    pub fn next(&mut self, stored: &mut Vec<u8>) -> Result<bool, FormatError> {
        stored.clear();
        // The buffers take turns, so that a walk allocates two and no more.
        std::mem::swap(stored, &mut self.carried);
        let start = self.read_to - stored.len().to_u64();
        let refused = |reason| FormatError::Scan {
            frame: self.frames,
            offset: start,
            reason,
        };
        let (mut at, mut skipped) = (0, 0);
        loop {
            if start + at == self.file.size {
                // The remaining frames have no contents.
                return Ok(false);
            }
            let (file, read_to) = (&self.file, &mut self.read_to);
            let mut read = |offset: u64, bytes: &mut [u8]| {
                let from = (at + offset).to_usize();
                let end = from + bytes.len();
                while stored.len() < end {
                    // In pieces: block headers are a few bytes, and a read for each would cost a
                    // system call.
                    let more = (file.size - *read_to).min(PIECE_BYTES).to_usize();
                    if more == 0 {
                        return Ok(false);
                    }
                    let had = stored.len();
                    stored.resize(had + more, 0);
                    file.fill(&mut stored[had..], *read_to)?;
                    *read_to += more.to_u64();
                }
                bytes.copy_from_slice(&stored[from..end]);
                Ok(true)
            };
            let shape = Shape::of(&mut read)?.map_err(refused)?;
            if shape.is_empty {
                skipped += 1;
                if skipped > SKIPPED_MAX || shape.bytes > PIECE_BYTES {
                    // Tables at the end may be large and many. Stored with a frame, they would be
                    // read with it every time.
                    return match holds_nothing_from(&self.file, start + at)? {
                        true => {
                            self.read_to = self.file.size;
                            Ok(false)
                        }
                        false => Err(refused(
                            "has too many bytes in front of it that are no zstd frame's",
                        )),
                    };
                }
            }
            // Only the header of a skippable frame was read; a truncated one is detected below.
            let _ = read(shape.bytes - 1, &mut [0])?;
            at += shape.bytes;
            if start + at > self.file.size {
                return Err(refused(CUT_SHORT));
            }
            if !shape.is_empty {
                break;
            }
        }
        self.carried = stored.split_off(at.to_usize());
        self.frames += 1;
        Ok(true)
    }
}

/// Frames found by a walk, to be written to an index.
#[derive(Default)]
pub struct Walked {
    table: Table,
    heads: Xxh3Default,
}

impl Walked {
    /// The next frame, which decompresses to `raw_bytes`.
    pub fn push(&mut self, stored: &[u8], check: u64, raw_bytes: u32) {
        let head = &stored[..stored.len().min(HEADER_BYTES_MAX)];
        self.heads.update(head);
        let entry = Entry::new(check, byte_count(stored), 0, raw_bytes, false);
        self.table.push(entry);
    }

    /// Number of the frames.
    pub fn frames(&self) -> u64 {
        self.table.count()
    }

    /// Total contents in bytes.
    pub fn raw_bytes(&self) -> u64 {
        self.table.raw_bytes()
    }

    /// Contents of the largest frame in bytes.
    pub fn raw_bytes_max(&self) -> u32 {
        self.table.raw_bytes_max()
    }

    /// Writes the index of the file of `file_bytes`.
    ///
    /// # Errors
    /// [`FormatError::Empty`], [`FormatError::CannotWrite`]; [`FormatError::Write`].
    pub fn write(&self, file_bytes: u64, out: &mut dyn io::Write) -> Result<(), FormatError> {
        if self.table.count() == 0 {
            return Err(FormatError::Empty { format: "zstd" });
        }
        let mut tail = Tail::new(out);
        // A skippable frame, so that zstd's own tools pass over it.
        tail.put(&MAGIC.to_le_bytes())?;
        tail.put(&HEAD_CONTENT_BYTES.to_le_bytes())?;
        tail.put(&TAG)?;
        tail.put(&[VERSION, 0, 0, 0, 0, 0, 0, 0])?;
        tail.put(&file_bytes.to_le_bytes())?;
        tail.put(&self.heads.digest().to_le_bytes())?;
        let index = sidx::Writer::new(CodecId::Zstd, 0, sidx::Shape::Uneven);
        let written = index.finish(&self.table, None, &mut tail)?;
        written.ok_or_else(|| FormatError::CannotWrite {
            format: "zstd",
            what: format!("an index of {} frames", self.table.count()),
            reason: "it is a skippable frame, whose length has 32 bits",
            next: "`sidecore block pack --decompress FILE -o IMAGE` makes fewer ones of them",
        })?;
        tail.end()
    }
}

/// Reason for refusing a frame that would take too much memory.
pub const TOO_LARGE: &str = "inflates to more than 64 MiB, which is read as a whole or not \
     at all; `sidecore block pack --decompress FILE -o IMAGE` makes an image of what is in it";
pub(super) const TAG: [u8; 8] = *b"sidefile";
const VERSION: u8 = 1;
const HEAD_BYTES: usize = 40;
/// All of it but the magic number and this length.
const HEAD_CONTENT_BYTES: u32 = 32;
/// Largest index of a remote file.
const FAR_BYTES_MAX: u64 = 256 << 20;
/// Maximum number of bytes after the last frame of a remote file.
const FAR_REST_BYTES_MAX: u64 = 256 << 10;
const CUT_SHORT: &str = "is cut short";
/// Maximum number of skippable and empty frames in front of a frame; pzstd writes one.
const SKIPPED_MAX: u32 = 8;
/// Bytes of a file that are read at a time.
const PIECE_BYTES: u64 = 64 << 10;
/// Mode bit of a file that others may write to.
const OTHERS_WRITE: u32 = 0o002;
