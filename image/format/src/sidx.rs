//! Our own index frame: data without a place in the standard tables, in a skippable frame that
//! other tools skip.
//!
//! Why here: the seekable zstd table checks a frame's *contents*, so no part of a frame could be
//! delivered before all of it is decompressed; LZ4 has no table at all. This frame holds every
//! frame's size and the XXH3-64 of its *compressed* bytes, marks frames that are all zeros, and has
//! a checksum of its own. It precedes the seek table of a zstd image and ends an LZ4 image or an
//! encrypted one ([`super::lock`]). The bytes are the same, except that an encrypted image's frame
//! has an authentication code as well.
//! Map: `docs/formats/lz4.md`.
//! Must stay true: its own checksum is verified before anything in it is used. The entries are
//! still checked against the file, because anyone can compute a checksum.

mod entries;

use super::layout::Layout;
use super::read_at::{Bytes, PIECE_BYTES};
pub(super) use super::skippable::{MAGIC, SKIPPABLE_BYTES, le32, le64};
use super::table::{Entry, Table, Tail};
use super::{Builder, FRAME_BYTES_MAX, Format, FormatError, Frame, FrameCheck, Index};
use super::{next_raw_bytes, skippable, thin, tree};
use crate::codec::CodecId;
use entries::Entries;
use sidecore_bare::width::ToU64;
use xxhash_rust::xxh3::Xxh3Default;

/// Writes the index of an image.
#[derive(Debug)]
pub(super) struct Writer {
    codec: CodecId,
    frame_bytes: u32,
    shape: Shape,
}

/// Kinds of indexes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    /// All frames but the last are of one size.
    Even,
    /// Entries hold the size of their frame's contents.
    Uneven,
    /// As even; runs of holes have entries, too ([`super::thin`]).
    Thin,
}

impl Shape {
    /// The shape for an image of this layout.
    pub(super) fn of(layout: &Layout) -> Self {
        match (layout.uneven, layout.thin) {
            (true, _) => Self::Uneven,
            (false, true) => Self::Thin,
            (false, false) => Self::Even,
        }
    }
}

impl Writer {
    /// For an image of `codec` ([`CodecId::Zstd`] or [`CodecId::Lz4Frame`]) in frames of
    /// `frame_bytes`, unless its shape is uneven.
    pub(super) fn new(codec: CodecId, frame_bytes: u32, shape: Shape) -> Self {
        Self {
            codec,
            frame_bytes,
            shape,
        }
    }

    /// True for a thin image.
    pub(super) fn is_thin(&self) -> bool {
        self.shape == Shape::Thin
    }

    /// Writes the whole skippable frame and returns its size in bytes. `None` if its 32-bit length
    /// cannot hold all entries. With the start of an authentication code, it writes the frame of an
    /// encrypted image, whose frames are of one size.
    pub(super) fn finish(
        &self,
        table: &Table,
        mac: Option<blake3::Hasher>,
        tail: &mut Tail<'_>,
    ) -> Result<Option<u32>, FormatError> {
        let code = mac.map(|mac| self.code(table, mac));
        let code_bytes = code.map_or(0, |code| code.len().to_u64());
        let (version, entry_bytes) = match (&code, self.shape) {
            (_, Shape::Thin) => (VERSION_THIN, ENTRY_BYTES),
            (Some(_), Shape::Even) => (VERSION_LOCKED, ENTRY_BYTES),
            (None, Shape::Even) => (VERSION, ENTRY_BYTES),
            (None, Shape::Uneven) => (VERSION_UNEVEN, ENTRY_BYTES_UNEVEN),
            // The authentication code does not cover sizes; `pack` refuses this combination.
            (Some(_), Shape::Uneven) => return Ok(None),
        };
        let entries = table.count() * entry_bytes.to_u64();
        let lengths = skippable::lengths(HEAD_BYTES + entries + code_bytes + TAIL_BYTES);
        let codec = codec_number(self.codec);
        let (Some((content_bytes, total_bytes)), Some(codec)) = (lengths, codec) else {
            return Ok(None);
        };
        // Readers take memory for the largest frame by this field.
        let frame_bytes = match self.shape {
            Shape::Uneven => table.raw_bytes_max(),
            Shape::Even | Shape::Thin => self.frame_bytes,
        };
        tail.put(&MAGIC.to_le_bytes())?;
        tail.put(&content_bytes.to_le_bytes())?;
        // The magic number and the length are implied by the place: they are not hashed.
        tail.begin_check()?;
        tail.put(&TAG)?;
        tail.put(&[version, codec, 0, 0])?;
        tail.put(&frame_bytes.to_le_bytes())?;
        tail.put(&table.count().to_le_bytes())?;
        tail.put(&table.raw_bytes().to_le_bytes())?;
        for entry in table.frames() {
            let mut bytes = [0; ENTRY_BYTES_UNEVEN];
            bytes[..ENTRY_BYTES].copy_from_slice(&entry_of(word_of(entry), entry.check));
            bytes[ENTRY_BYTES..].copy_from_slice(&entry.raw_bytes().to_le_bytes());
            tail.put(&bytes[..entry_bytes])?;
        }
        tail.put(code.as_ref().map_or(&[], |code| &code[..]))?;
        let check = tail.check()?;
        tail.put(&check.to_le_bytes())?;
        tail.put(&total_bytes.to_le_bytes())?;
        tail.put(&END_TAG)?;
        Ok(Some(total_bytes))
    }

    fn code(&self, table: &Table, mut hasher: blake3::Hasher) -> [u8; 32] {
        let raw_bytes = table.raw_bytes();
        let frame_bytes = next_raw_bytes(raw_bytes, self.frame_bytes);
        let codec = codec_number(self.codec).unwrap_or(u8::MAX);
        cover_shape(&mut hasher, codec, frame_bytes, table.count(), raw_bytes);
        for entry in table.frames() {
            hasher.update(&entry_of(word_of(entry), entry.check));
        }
        *hasher.finalize().as_bytes()
    }
}

/// Size and zero mark of a frame, as in the table.
fn word_of(entry: &Entry) -> u32 {
    let zero = if entry.is_zero() { ZERO_BIT } else { 0 };
    entry.stored_bytes | zero
}

/// An entry, as in the table.
fn entry_of(word: u32, check: u64) -> [u8; ENTRY_BYTES] {
    let mut bytes = [0; ENTRY_BYTES];
    bytes[..4].copy_from_slice(&word.to_le_bytes());
    bytes[4..].copy_from_slice(&check.to_le_bytes());
    bytes
}

/// Adds to the authentication code of an encrypted image's index the data that are not in its
/// entries; `frame_bytes` is the size of its largest frame.
fn cover_shape(
    hasher: &mut blake3::Hasher,
    codec: u8,
    frame_bytes: u32,
    frames: u64,
    raw_bytes: u64,
) {
    let mut shape = [0; 21];
    shape[0] = codec;
    shape[1..5].copy_from_slice(&frame_bytes.to_le_bytes());
    shape[5..13].copy_from_slice(&frames.to_le_bytes());
    shape[13..].copy_from_slice(&raw_bytes.to_le_bytes());
    hasher.update(&shape);
}

/// Adds all of an index that was read to its authentication code.
pub(super) fn cover_index(index: &Index, hasher: &mut blake3::Hasher) {
    let codec = codec_number(index.codec()).unwrap_or(u8::MAX);
    let (frames, raw_bytes) = (index.frames(), index.raw_bytes());
    let entries = index.stored_frames() + index.holes().len().to_u64();
    cover_shape(hasher, codec, index.frame_bytes(), entries, raw_bytes);
    let mut next = 0;
    while next < frames {
        let holes = index.hole_run(next);
        // Entered as in the table: one entry for a run, whose length stands in place of a checksum.
        if holes > 0 {
            hasher.update(&entry_of(ZERO_BIT, holes));
            next += holes;
            continue;
        }
        let number = next;
        next += 1;
        let frame = index.frame(number);
        let check = match frame.check {
            FrameCheck::Stored(check) | FrameCheck::Sealed(check, _) => check,
            FrameCheck::Raw(_) | FrameCheck::None => 0,
        };
        let zero = if index.is_zero(number) { ZERO_BIT } else { 0 };
        hasher.update(&entry_of(frame.stored_bytes | zero, check));
    }
}

/// Result of the search for an index frame.
#[derive(Debug)]
pub(super) enum Found {
    /// No index frame.
    Nothing,
    /// An index frame whose checksum or fields are not valid, with the reason.
    Damaged(&'static str),
    /// The image's index.
    Index(Box<Index>),
}

/// Looks for an index frame that ends at byte `end` of the file.
///
/// # Errors
/// [`FormatError`]: the index is intact but describes impossible frames.
pub(super) fn read(
    bytes: &Bytes<'_>,
    end: u64,
    format: Format,
    variant: &'static str,
) -> Result<Found, FormatError> {
    let expected = Expected {
        format: Some(format),
        version: VERSION,
        code_bytes: 0,
        first: 0,
        file_bytes: bytes.size,
        is_sidecar: false,
    };
    find(bytes, end, &expected, variant)
}

/// Reads the index at the end of `bytes`, whose frames are in another file, of `file_bytes`.
///
/// # Errors
/// As [`read`].
pub(super) fn read_sidecar(
    bytes: &Bytes<'_>,
    file_bytes: u64,
    variant: &'static str,
) -> Result<Found, FormatError> {
    let expected = Expected {
        format: Some(Format::Zstd),
        version: VERSION,
        code_bytes: 0,
        first: 0,
        file_bytes,
        is_sidecar: true,
    };
    find(bytes, bytes.size, &expected, variant)
}

/// Reads the index at the end of an encrypted image, and its authentication code; its frames begin
/// at byte `first`.
///
/// # Errors
/// As [`read`].
pub(super) fn read_locked(
    bytes: &Bytes<'_>,
    first: u64,
    variant: &'static str,
) -> Result<(Found, [u8; CODE_BYTES]), FormatError> {
    let expected = Expected {
        format: None,
        version: VERSION_LOCKED,
        code_bytes: CODE_BYTES.to_u64(),
        first,
        file_bytes: bytes.size,
        is_sidecar: false,
    };
    let found = find(bytes, bytes.size, &expected, variant)?;
    // The code stands in front of the tail; `find` has hashed it with the entries.
    let code_at = bytes.size.checked_sub(TAIL_BYTES + CODE_BYTES.to_u64());
    let code = code_at.map(|at| bytes.array(at)).transpose()?.flatten();
    Ok((found, code.unwrap_or_default()))
}

/// Properties that an index must match.
struct Expected {
    /// `None` for an encrypted image, where the codec determines it.
    format: Option<Format>,
    version: u8,
    /// Bytes of the authentication code, between entries and tail.
    code_bytes: u64,
    /// Offset of the first frame.
    first: u64,
    /// Size of the file that holds the frames.
    file_bytes: u64,
    /// True if the index is in another file than the frames.
    is_sidecar: bool,
}

/// An index frame with the right checksum; its fields may still be false.
struct Intact {
    /// Its first byte in the file.
    start: u64,
    /// From the magic number to the size of the contents.
    head: [u8; 40],
    shape: Option<Shape>,
}

/// Finds the index frame that ends at byte `end`; the reason in `Err` is that of [`find`].
fn locate(
    bytes: &Bytes<'_>,
    end: u64,
    expected: &Expected,
) -> Result<Result<Intact, Found>, FormatError> {
    let damaged = |reason| Ok(Err(Found::Damaged(reason)));
    let Some(tail_at) = end.checked_sub(TAIL_BYTES) else {
        return Ok(Err(Found::Nothing));
    };
    let Some(tail) = bytes.array::<16>(tail_at)? else {
        return Ok(Err(Found::Nothing));
    };
    if tail[12..] != END_TAG {
        return Ok(Err(Found::Nothing));
    }
    let total_bytes = u64::from(le32(&tail[8..]));
    let Some(start) = end.checked_sub(total_bytes) else {
        return damaged("its length is more than the file's");
    };
    let around = SKIPPABLE_BYTES + HEAD_BYTES + expected.code_bytes + TAIL_BYTES;
    if total_bytes < around {
        return damaged("its length is less than its head's");
    }
    // Before the first read, so that a remote file is asked once for the whole frame.
    bytes.will_read(start..end);
    let Some(head) = bytes.array::<40>(start)? else {
        return damaged("its head lies outside the file");
    };
    let shape = expected.shape_of(head[16]);
    let entry_bytes = match shape {
        Some(Shape::Uneven) => ENTRY_BYTES_UNEVEN,
        // A version that is not known is reported only if the frame is intact; until then its
        // entries are taken to be of the usual size.
        _ => ENTRY_BYTES,
    };
    let frames = le64(&head[24..]);
    if head[..4] != MAGIC.to_le_bytes()
        || u64::from(le32(&head[4..])) != total_bytes - SKIPPABLE_BYTES
        || head[8..16] != TAG
        || frames.checked_mul(entry_bytes.to_u64()) != Some(total_bytes - around)
    {
        return damaged("its head does not agree with its end");
    }
    let mut hasher = Xxh3Default::new();
    let hashed = total_bytes - SKIPPABLE_BYTES - TAIL_BYTES;
    bytes.pieces(start + SKIPPABLE_BYTES, hashed, PIECE_BYTES, |_, piece| {
        hasher.update(piece);
        Ok(())
    })?;
    match hasher.digest() == le64(&tail) {
        true => Ok(Ok(Intact { start, head, shape })),
        false => damaged("its checksum is wrong"),
    }
}

impl Expected {
    /// The kind of an index of this version; `None` for one that is not known here.
    fn shape_of(&self, version: u8) -> Option<Shape> {
        match version {
            // An encrypted image's frames are of one size.
            VERSION_UNEVEN if self.version == VERSION => Some(Shape::Uneven),
            VERSION_THIN if !self.is_sidecar => Some(Shape::Thin),
            version => (version == self.version).then_some(Shape::Even),
        }
    }
}

/// The fields of an index, each checked on its own.
struct Fields {
    shape: Shape,
    format: Format,
    codec: CodecId,
    frame_bytes: u32,
    /// Number of entries.
    frames: u64,
    raw_bytes: u64,
}

impl Fields {
    fn of(
        intact: &Intact,
        expected: &Expected,
        variant: &'static str,
    ) -> Result<Self, FormatError> {
        let head = &intact.head;
        let field = |field, value, limit| FormatError::Field {
            format: variant,
            field,
            value,
            limit,
        };
        let shape = intact.shape.ok_or_else(|| {
            let limit = "this program reads 1, 3 and 4, and 2 and 4 of encrypted images; update it";
            field("the version of the index frame", head[16].into(), limit)
        })?;
        let (format, codec) = match (expected.format, head[17]) {
            (None | Some(Format::Zstd), ZSTD) => (Format::Zstd, CodecId::Zstd),
            (None | Some(Format::Lz4), LZ4) => (Format::Lz4, CodecId::Lz4Frame),
            (_, other) => {
                let limit = "zstd 0 or lz4 1";
                return Err(field("the codec of the index frame", other.into(), limit));
            }
        };
        let frame_bytes = le32(&head[20..]);
        if frame_bytes == 0 || frame_bytes > FRAME_BYTES_MAX {
            let limit = "it must be 1 to 64 MiB";
            return Err(field("the frame size", frame_bytes.into(), limit));
        }
        let (frames, raw_bytes) = (le64(&head[24..]), le64(&head[32..]));
        if frames == 0 {
            return Err(FormatError::Empty { format: variant });
        }
        let limit = match shape {
            Shape::Even if raw_bytes.div_ceil(frame_bytes.into()) != frames => {
                "which is not frames times the frame size"
            }
            Shape::Thin if raw_bytes > THIN_BYTES_MAX => "a device has less than 8 EiB",
            _ => {
                return Ok(Self {
                    shape,
                    format,
                    codec,
                    frame_bytes,
                    frames,
                    raw_bytes,
                });
            }
        };
        Err(field("the size of the contents", raw_bytes, limit))
    }

    /// Contents from frame `number` on, in bytes.
    fn raw_left(&self, number: u64) -> u64 {
        self.raw_bytes
            .saturating_sub(number.saturating_mul(self.frame_bytes.into()))
    }
}

/// Reads the index frame that ends at byte `end`.
fn find(
    bytes: &Bytes<'_>,
    end: u64,
    expected: &Expected,
    variant: &'static str,
) -> Result<Found, FormatError> {
    let intact = match locate(bytes, end, expected)? {
        Ok(intact) => intact,
        Err(found) => return Ok(found),
    };
    let fields = Fields::of(&intact, expected, variant)?;
    let mut builder = Builder::new(fields.format, variant, expected.file_bytes, fields.frames);
    let mut first = expected.first;
    if fields.shape == Shape::Thin {
        builder.set_thin(fields.codec);
        // An encrypted image begins with its lock, which other programs refuse as well.
        if expected.code_bytes == 0 {
            first = check_thin_head(bytes, fields.codec, variant)?;
        }
    }
    // The frames of a sidecar are in another file, whose size is the limit.
    let limit = match expected.is_sidecar {
        true => expected.file_bytes,
        false => intact.start,
    };
    let mut entries = Entries {
        fields: &fields,
        variant,
        builder,
        offset: first,
        limit,
    };
    entries.read(bytes, intact.start + SKIPPABLE_BYTES + HEAD_BYTES)?;
    let mut index = entries.builder.finish()?;
    if index.raw_bytes() != fields.raw_bytes {
        return Err(FormatError::Field {
            format: variant,
            field: "the size of the contents",
            value: fields.raw_bytes,
            limit: "which is not the sum of its frames",
        });
    }
    if !expected.is_sidecar {
        index.set_tree(tree::read(bytes, intact.start, variant)?);
    }
    Ok(Found::Index(Box::new(index)))
}

/// Checks that a thin image begins with a header that other programs refuse; returns the offset of
/// its first frame.
fn check_thin_head(
    bytes: &Bytes<'_>,
    codec: CodecId,
    variant: &'static str,
) -> Result<u64, FormatError> {
    let wanted = thin::head(codec);
    // The largest header is read whichever codec it is: a thin image is longer than any.
    let found = bytes.array::<THIN_HEAD_BYTES_MAX>(0)?;
    match found.is_some_and(|found| found.starts_with(wanted)) {
        true => Ok(wanted.len().to_u64()),
        false => Err(FormatError::NoIndex {
            format: variant,
            at: "the end of the file",
            reason: "it is one of a thin image, and the file does not begin as such",
            next: "fetch it again",
        }),
    }
}

fn codec_number(codec: CodecId) -> Option<u8> {
    match codec {
        CodecId::Zstd => Some(ZSTD),
        CodecId::Lz4Frame => Some(LZ4),
        _ => None,
    }
}

const HEAD_BYTES: u64 = 32;
const TAIL_BYTES: u64 = 16;
const ENTRY_BYTES: usize = 12;
pub(super) const TAG: [u8; 8] = *b"sidecore";
const END_TAG: [u8; 4] = *b"SIDX";
/// All frames but the last are of one size.
const VERSION: u8 = 1;
/// Version of an encrypted image.
const VERSION_LOCKED: u8 = 2;
const CODE_BYTES: usize = 32;
/// Entries hold the size of their frame's contents.
const VERSION_UNEVEN: u8 = 3;
const ENTRY_BYTES_UNEVEN: usize = 16;
/// A thin image, encrypted or not: an entry without compressed bytes is a run of holes.
const VERSION_THIN: u8 = 4;
/// The largest file offset of the operating system.
const THIN_BYTES_MAX: u64 = i64::MAX.cast_unsigned();
const THIN_HEAD_BYTES_MAX: usize = 16;
const ZSTD: u8 = 0;
const LZ4: u8 = 1;
const ZERO_BIT: u32 = 1 << 31;
