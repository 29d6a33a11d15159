//! Seekable zstd: zstd frames, and a table of their sizes in a skippable frame at the end of the
//! file.
//!
//! Why here: the default for new images. Any `zstd -d` unpacks them. Files that other programs
//! wrote by the same specification are read, whatever the sizes of their frames and with or without
//! checksums.
//! Must stay true: the table's entries cover *every* frame of the file, ours included: our index
//! frame is entered as a frame that decompresses to nothing, as the specification requires.
//! Source: zstd's contrib/seekable_format/zstd_seekable_compression_format.md, version 0.1.0.
//! Map: `docs/formats/seekable-zstd.md`.

use super::indexed::{Form, Written};
use super::read_at::Bytes;
use super::sidx::{self, Found, le32};
use super::table::Tail;
use super::{Builder, Format, FormatError, Frame, FrameCheck, Index};
use crate::codec::CodecId;
use sidecore_bare::width::{ToU64, ToUsize};

pub(super) const NAME: &str = "seekable zstd";

/// True when the file begins or ends like one of this format.
pub(super) fn probe(bytes: &Bytes<'_>) -> Result<bool, FormatError> {
    // Either end is enough: an image that was cut short should be reported as such, not taken for
    // raw
    // bytes.
    let ends = (bytes.tail::<4>()?).is_some_and(|tail| tail == FOOTER_MAGIC.to_le_bytes());
    if ends || begins_frame(bytes, 0)? {
        return Ok(true);
    }
    // pzstd puts a skippable frame of a few bytes in front of each frame.
    let Some(head) = bytes.array::<8>(0)? else {
        return Ok(false);
    };
    Ok(head[..4] == PZSTD_MAGIC.to_le_bytes()
        && begins_frame(bytes, sidx::SKIPPABLE_BYTES + u64::from(le32(&head[4..])))?)
}

fn begins_frame(bytes: &Bytes<'_>, offset: u64) -> Result<bool, FormatError> {
    Ok((bytes.array::<4>(offset)?).is_some_and(|head| head == FRAME_MAGIC.to_le_bytes()))
}

/// Reads the tables.
pub(super) fn parse(bytes: &Bytes<'_>) -> Result<Index, FormatError> {
    let table = Table::find(bytes)?;
    // Our index first: its checksums are of compressed bytes, so that parts can be delivered early.
    if let Some(index) = parse_index_frame(bytes, &table)? {
        return Ok(index);
    }
    let mut builder = Builder::new(Format::Zstd, NAME, bytes.size, table.frames);
    let mut offset = 0_u64;
    let mut each = |i: u64, stored_bytes: u32, raw_bytes: u32, check: FrameCheck| {
        let frame = Frame {
            offset,
            stored_bytes,
            raw_bytes,
            raw_offset: 0,
            number: 0,
            codec: CodecId::Zstd,
            check,
        };
        offset += u64::from(stored_bytes);
        if offset > table.start {
            return Err(FormatError::Table {
                format: NAME,
                frame: i,
                frames: table.frames,
                reason: "ends inside the seek table",
                value: offset,
            });
        }
        // Skippable and empty frames have entries too, without contents. An entry that falsely
        // declares a frame empty would move all those after it.
        if raw_bytes != 0 {
            return builder.push(frame, false);
        }
        match contents_size(bytes, &frame)? {
            Ok(Some(0)) => Ok(()),
            _ => Err(FormatError::Table {
                format: NAME,
                frame: i,
                frames: table.frames,
                reason: "is not empty, though its entry says so; offset",
                value: frame.offset,
            }),
        }
    };
    let entries = table.start + sidx::SKIPPABLE_BYTES;
    if table.is_checked() {
        bytes.records::<12>(entries, table.frames, |i, entry| {
            each(
                i,
                le32(entry),
                le32(&entry[4..]),
                FrameCheck::Raw(le32(&entry[8..])),
            )
        })?;
    } else {
        bytes.records::<8>(entries, table.frames, |i, entry| {
            each(i, le32(entry), le32(&entry[4..]), FrameCheck::None)
        })?;
    }
    let index = builder.finish()?;
    // A false size in one entry moves all later frames, and the sum then misses the table.
    if offset != table.start {
        return Err(FormatError::Table {
            format: NAME,
            frame: table.frames - 1,
            frames: table.frames,
            reason: "the last frame does not end where the seek table begins but at byte",
            value: offset,
        });
    }
    // Frames of one size vouch for each other; the check of headers costs a read per frame.
    if !index.is_even() {
        compare_sizes(bytes, &index)?;
    }
    Ok(index)
}

/// Reads the image by our index frame, in front of the seek table; `None` if it has to be read by
/// the seek table.
fn parse_index_frame(bytes: &Bytes<'_>, table: &Table) -> Result<Option<Index>, FormatError> {
    match sidx::read(bytes, table.start, Format::Zstd, NAME)? {
        Found::Index(index) => return Ok(Some(*index)),
        Found::Nothing => {}
        // A thin image has an empty seek table: nothing else describes its frames.
        Found::Damaged(reason) if table.frames == 0 => {
            return Err(FormatError::NoIndex {
                format: NAME,
                at: "the end of the file",
                reason,
                next: "fetch it again",
            });
        }
        Found::Damaged(reason) => tracing::warn!(
            "{NAME}: the index frame is damaged ({reason}); going on with the seek table"
        ),
    }
    Ok(None)
}

/// The size of its contents that a frame's own header gives.
fn contents_size(
    bytes: &Bytes<'_>,
    frame: &Frame,
) -> Result<Result<Option<u64>, zstd_safe::ContentSizeError>, FormatError> {
    let mut head = [0; FRAME_HEAD_BYTES_MAX];
    let head = &mut head[..FRAME_HEAD_BYTES_MAX.min(frame.stored_bytes.to_usize())];
    bytes.fill(head, frame.offset)?;
    Ok(zstd_safe::get_frame_content_size(head))
}

/// The seek table has no checksum of itself: a damaged size would move everything after it. Equal
/// sizes can only be right; others are compared with the sizes in the frames' own headers. A writer
/// puts the size in all its frames or in none. Only in the second case, or if headers are intact
/// and agree, can the places of frames be relied on.
fn compare_sizes(bytes: &Bytes<'_>, index: &Index) -> Result<(), FormatError> {
    let mut silent = None;
    let mut spoken = false;
    let table = |frame, reason, value| {
        Err(FormatError::Table {
            format: NAME,
            frame,
            frames: index.frames(),
            reason,
            value,
        })
    };
    for i in 0..index.frames() {
        let frame = index.frame(i);
        match contents_size(bytes, &frame)? {
            Ok(Some(size)) if size == u64::from(frame.raw_bytes) => spoken = true,
            Ok(Some(size)) => {
                let reason = "the frame's own head gives it another size than the table, bytes";
                return table(i, reason, size);
            }
            Ok(None) => silent = Some((i, frame.offset)),
            Err(_) => {
                let reason = "no frame begins where the table says, so sizes cannot be compared";
                return table(i, reason, frame.offset);
            }
        }
    }
    // One program wrote all frames: it gives the sizes of all or of none.
    match silent {
        Some((i, offset)) if spoken => table(
            i,
            "the frame does not say its size, though others do",
            offset,
        ),
        _ => Ok(()),
    }
}

/// Position of the seek table.
pub(super) struct Table {
    /// First byte of its skippable frame.
    pub(super) start: u64,
    /// Number of entries.
    pub(super) frames: u64,
    /// Bit 7: entries have checksums.
    pub(super) descriptor: u8,
}

impl Table {
    pub(super) fn is_checked(&self) -> bool {
        self.descriptor & CHECKED_BIT != 0
    }

    /// Reads the end of the file, which gives the start of the table.
    pub(super) fn find(bytes: &Bytes<'_>) -> Result<Self, FormatError> {
        let footer = bytes
            .tail::<9>()?
            .filter(|footer| footer[5..] == FOOTER_MAGIC.to_le_bytes());
        let Some(footer) = footer else {
            return Err(FormatError::NoIndex {
                format: NAME,
                at: "the end of the file",
                reason: "the image is cut short, or was written without a seek table",
                next: "fetch it again, or have `sidecore block index FILE` find its frames",
            });
        };
        let (frames, descriptor) = (u64::from(le32(&footer)), footer[4]);
        if descriptor & RESERVED_BITS != 0 {
            return Err(FormatError::Field {
                format: NAME,
                field: "the seek table's descriptor",
                value: descriptor.into(),
                limit: "bits 2 to 6 must be 0",
            });
        }
        // The descriptor decides the width of entries, hence where the table begins.
        let checked = descriptor & CHECKED_BIT != 0;
        let entry_bytes = if checked { 12 } else { 8 };
        let content = frames * entry_bytes + u64::from(FOOTER_BYTES);
        let Some(start) = bytes.size.checked_sub(content + sidx::SKIPPABLE_BYTES) else {
            let around = u64::from(FOOTER_BYTES) + sidx::SKIPPABLE_BYTES;
            let room = bytes.size.saturating_sub(around);
            return Err(FormatError::TooManyFrames {
                format: NAME,
                frames,
                has: bytes.size,
                room: room / entry_bytes,
            });
        };
        // The footer alone may be chance: the head must be where the footer says.
        let head = bytes.array::<8>(start)?.unwrap_or_default();
        if head[..4] != TABLE_MAGIC.to_le_bytes() || u64::from(le32(&head[4..])) != content {
            return Err(FormatError::NoIndex {
                format: NAME,
                at: "where the footer says that the seek table begins",
                reason: "something else stands there, so one of the two is damaged",
                next: "fetch it again, or unpack it with `zstd -d` and pack the result",
            });
        }
        Ok(Self {
            start,
            frames,
            descriptor,
        })
    }
}

/// The form for writing: the standard seek table follows our index frame.
pub(super) const FORM: Form = Form {
    name: NAME,
    codec: CodecId::Zstd,
    limit: "the seek table is a skippable frame, whose length has 32 bits",
    close: put_seek_table,
};

fn put_seek_table(written: &Written<'_>, tail: &mut Tail<'_>) -> Result<bool, FormatError> {
    // For an encrypted image a seek table would promise frames that zstd can read.
    if written.is_locked {
        return Ok(true);
    }
    // For a thin image it would leave out the holes. Such an image has a table without entries, by
    // which older versions of this program find the index, whose version they refuse.
    if written.is_thin {
        put_table_head(FOOTER_BYTES, tail)?;
        put_footer(0, tail)?;
        return Ok(true);
    }
    // Our own frames, which have no contents.
    let own = written.tree_bytes.into_iter().chain([written.index_bytes]);
    let entries = written.table.count() + own.clone().count().to_u64();
    let Ok(content) = u32::try_from(entries * 12 + u64::from(FOOTER_BYTES)) else {
        return Ok(false);
    };
    let entries = u32::try_from(entries).ok();
    let Some(entries) = entries.filter(|&entries| entries <= FRAMES_MAX) else {
        return Ok(false);
    };
    put_table_head(content, tail)?;
    for frame in written.table.frames() {
        let (raw_bytes, check) = (frame.raw_bytes(), frame.stored_end);
        tail.put(&entry_of(frame.stored_bytes, raw_bytes, check))?;
    }
    // The specification wants an entry for each frame of the file, ours too, or offsets would not
    // add up.
    for bytes in own {
        tail.put(&entry_of(bytes, 0, NOTHING_CHECK))?;
    }
    put_footer(entries, tail)?;
    Ok(true)
}

fn put_table_head(content_bytes: u32, tail: &mut Tail<'_>) -> Result<(), FormatError> {
    tail.put(&TABLE_MAGIC.to_le_bytes())?;
    tail.put(&content_bytes.to_le_bytes())
}

fn put_footer(entries: u32, tail: &mut Tail<'_>) -> Result<(), FormatError> {
    tail.put(&entries.to_le_bytes())?;
    tail.put(&[CHECKED_BIT])?;
    tail.put(&FOOTER_MAGIC.to_le_bytes())
}

/// An entry of the seek table.
fn entry_of(stored_bytes: u32, raw_bytes: u32, check: u32) -> [u8; 12] {
    let mut entry = [0; 12];
    for (bytes, field) in (entry.as_chunks_mut().0.iter_mut()).zip([stored_bytes, raw_bytes, check])
    {
        *bytes = field.to_le_bytes();
    }
    entry
}

/// Maximum number of entries in the specification.
const FRAMES_MAX: u32 = 0x800_0000;
/// The low 32 bits of the XXH64 of no bytes at all.
pub(super) const NOTHING_CHECK: u32 = 0x51D8_E999;
pub(super) const FRAME_MAGIC: u32 = 0xFD2F_B528;
const PZSTD_MAGIC: u32 = 0x184D_2A50;
pub(super) const TABLE_MAGIC: u32 = 0x184D_2A5E;
pub(super) const FOOTER_MAGIC: u32 = 0x8F92_EAB1;
pub(super) const CHECKED_BIT: u8 = 1 << 7;
/// RFC 8878, section 3.1.1.1, and the magic number before it.
const FRAME_HEAD_BYTES_MAX: usize = 18;
const RESERVED_BITS: u8 = 0b0111_1100;
const FOOTER_BYTES: u32 = 9;
