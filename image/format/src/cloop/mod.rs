//! cloop: the compressed loop images of Knoppix and Debian, with every header that was ever in use.
//!
//! Why here: the documents' device served such images; cloop-utils still make them. All integers
//! are big-endian, except those of V1.0. The variants differ in the place of the header, the
//! contents of the table, and the codecs. The variant follows from an image's signature and, for
//! the old ones, from the first words of its table.
//! Must stay true: the device's size is blocks times block size (the last block is padded), except
//! for the CLOOP3 tail format, which stores the size. Writing is in [`mod@write`].
//! Source: the headers of the drivers from 0.68 to 5.3; `docs/formats/cloop.md` is the map.

pub(super) mod write;

use super::read_at::Bytes;
use super::{Builder, Format, FormatError, Frame, FrameCheck, Index, next_raw_bytes};
use crate::codec::CodecId;
use sidecore_bare::width::ToUsize;
use std::ops::Range;

/// The variant of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Variant {
    /// `V2.0` or `V4.0`, or one of the old ones: header in front.
    HeadFirst,
    /// `V2.0` or `V4.0`: blocks, table, header.
    HeadLast,
    /// Ends in `\nCLOOP3\n`.
    Cloop3,
    /// 0.68: no signature; recognized by its first offset.
    Unsigned,
}

/// True when the file is a cloop image.
pub(super) fn probe(bytes: &Bytes<'_>) -> Result<Option<Variant>, FormatError> {
    // The tail first: such a file may begin with any bytes, even with another variant's preamble.
    if bytes.tail::<8>()?.is_some_and(|tail| tail == CLOOP3_END) {
        return Ok(Some(Variant::Cloop3));
    }
    if let Some(head) = bytes.array::<HEAD>(0)? {
        let signature = &head[SIGNATURE_AT - 1..SIGNATURE_AT + 4];
        if let [b'#', b'V', b'1'..=b'4', b'.', _] = signature {
            return Ok(Some(Variant::HeadFirst));
        }
        let (block_bytes, blocks) = (be32(&head[128..]), be32(&head[132..]));
        let first = bytes.array::<4>(HEAD_BYTES)?.map(|word| be32(&word));
        let expected = u64::from(blocks) * 4 + 0x8C;
        // Without a signature, three facts have to agree, so that a shell script is not taken for
        // an image.
        if head.starts_with(b"#!")
            && block_bytes_fit(block_bytes)
            && first.map(u64::from) == Some(expected)
        {
            return Ok(Some(Variant::Unsigned));
        }
    }
    if let Some(head) = bytes.tail::<HEAD>()?
        && matches!(
            &head[SIGNATURE_AT - 1..SIGNATURE_AT + 4],
            b"#V2.0" | b"#V4.0"
        )
    {
        return Ok(Some(Variant::HeadLast));
    }
    Ok(None)
}

/// Reads the header and the table of a variant that [`probe`] found.
pub(super) fn parse(bytes: &Bytes<'_>, variant: Variant) -> Result<Index, FormatError> {
    match variant {
        Variant::Cloop3 => return parse_cloop3(bytes),
        Variant::Unsigned => {
            let head = Head::read(bytes, 0, "cloop 0.68")?;
            return Offsets::of(head, HEAD_BYTES, Entry::Be32).parse(bytes);
        }
        Variant::HeadLast => {
            let at = bytes.size.saturating_sub(HEAD_BYTES);
            let v4 = bytes.array::<HEAD>(at)?.is_some_and(|head| is_v4(&head));
            let head = Head::read(
                bytes,
                at,
                if v4 {
                    "cloop V4.0 (head last)"
                } else {
                    "cloop V2.0 (head last)"
                },
            )?;
            let table = at.checked_sub((u64::from(head.blocks) + 1) * 8);
            let table = table.ok_or_else(|| head.too_many(bytes, 8))?;
            let entry = if v4 { Entry::Flagged } else { Entry::Be64 };
            return Offsets {
                end_max: table,
                ..Offsets::of(head, table, entry)
            }
            .parse(bytes);
        }
        Variant::HeadFirst => {}
    }
    let head = bytes.array::<HEAD>(0)?.unwrap_or([0; HEAD]);
    if is_v4(&head) {
        let head = Head::read(bytes, 0, "cloop V4.0")?;
        return Offsets::of(head, HEAD_BYTES, Entry::Flagged).parse(bytes);
    }
    // No image has that many blocks: the writer did not know their number yet.
    if be32(&head[132..]) == u32::MAX {
        return parse_sizes_last(bytes);
    }
    parse_by_first_words(bytes)
}

/// The old variants, which differ only in the first words of their tables.
fn parse_by_first_words(bytes: &Bytes<'_>) -> Result<Index, FormatError> {
    let Some(words) = bytes.array::<16>(HEAD_BYTES)? else {
        return Err(cut_short("cloop", "the table", HEAD_BYTES + 16, bytes.size));
    };
    // The first block begins right after the table, below 4 GiB: one half of an offset of 64 bits
    // is 0, and which half gives the byte order. With 32 bits neither of the two words is 0.
    let (first, second, third) = (be32(&words), be32(&words[4..]), be32(&words[8..]));
    match (first, second, third) {
        (0, _, 0) => {
            let head = Head::read(bytes, 0, "cloop V2.0")?;
            Offsets::of(head, HEAD_BYTES, Entry::Be64).parse(bytes)
        }
        (0, ..) => parse_scattered(bytes),
        (_, 0, _) => {
            let head = Head::read(bytes, 0, "cloop V1.0")?;
            Offsets::of(head, HEAD_BYTES, Entry::Le64).parse(bytes)
        }
        _ => {
            let head = Head::read(bytes, 0, "cloop 0.68")?;
            Offsets::of(head, HEAD_BYTES, Entry::Be32).parse(bytes)
        }
    }
}

/// Block size and number of blocks, checked as far as possible on their own.
#[derive(Debug, Clone, Copy)]
struct Head {
    variant: &'static str,
    block_bytes: u32,
    blocks: u32,
}

impl Head {
    fn read(bytes: &Bytes<'_>, at: u64, variant: &'static str) -> Result<Self, FormatError> {
        let Some(head) = bytes.array::<HEAD>(at)? else {
            return Err(cut_short(variant, "the head", at + HEAD_BYTES, bytes.size));
        };
        Self::new(variant, be32(&head[128..]), be32(&head[132..]))
    }

    fn new(variant: &'static str, block_bytes: u32, blocks: u32) -> Result<Self, FormatError> {
        if !block_bytes_fit(block_bytes) {
            return Err(FormatError::Field {
                format: variant,
                field: "the block size in bytes",
                value: block_bytes.into(),
                limit: "it must be a multiple of 512 up to 16 MiB",
            });
        }
        // A device without a block cannot be exported.
        if blocks == 0 {
            return Err(FormatError::Empty { format: variant });
        }
        Ok(Self {
            variant,
            block_bytes,
            blocks,
        })
    }

    fn too_many(&self, bytes: &Bytes<'_>, entry_bytes: u64) -> FormatError {
        FormatError::TooManyFrames {
            format: self.variant,
            frames: self.blocks.into(),
            has: bytes.size,
            room: bytes.size.saturating_sub(HEAD_BYTES) / entry_bytes,
        }
    }

    fn table(&self, frame: u64, reason: &'static str, value: u64) -> FormatError {
        FormatError::Table {
            format: self.variant,
            frame,
            frames: self.blocks.into(),
            reason,
            value,
        }
    }

    fn builder(&self, bytes: &Bytes<'_>) -> Builder {
        Builder::new(Format::Cloop, self.variant, bytes.size, self.blocks.into())
    }

    fn frame(&self, offset: u64, stored_bytes: u32, codec: CodecId) -> Frame {
        Frame {
            offset,
            stored_bytes,
            raw_bytes: self.block_bytes,
            raw_offset: 0,
            number: 0,
            codec,
            check: FrameCheck::None,
        }
    }
}

/// Encoding of offsets in a table.
#[derive(Debug, Clone, Copy)]
enum Entry {
    Be32,
    Le64,
    Be64,
    /// Big-endian, with the compressor in the upper four bits.
    Flagged,
}

impl Entry {
    fn bytes(self) -> u64 {
        match self {
            Self::Be32 => 4,
            _ => 8,
        }
    }
}

/// A table with one offset more than there are blocks; block `i` lies from entry `i` to entry `i +
/// 1`.
#[derive(Debug)]
struct Offsets {
    head: Head,
    table: u64,
    entry: Entry,
    /// No block may reach past this byte.
    end_max: u64,
}

impl Offsets {
    fn of(head: Head, table: u64, entry: Entry) -> Self {
        Self {
            head,
            table,
            entry,
            end_max: u64::MAX,
        }
    }

    fn parse(&self, bytes: &Bytes<'_>) -> Result<Index, FormatError> {
        let entries = u64::from(self.head.blocks) + 1;
        let table_end = self.table + entries * self.entry.bytes();
        if table_end > bytes.size {
            return Err(self.head.too_many(bytes, self.entry.bytes()));
        }
        // With the table in front, blocks begin after it.
        let start_min = if self.table < self.end_max && self.end_max == u64::MAX {
            table_end
        } else {
            0
        };
        let mut before: Option<(u64, u8)> = None;
        let mut lzo = false;
        let mut builder = self.head.builder(bytes);
        let mut each = |i: u64, offset: u64, flag: u8| {
            // A block ends where the next one begins: it is known one entry later.
            if let Some((start, codec)) = before.replace((offset, flag)) {
                let block = i - 1;
                let stored = self.block_bytes(bytes, block, start..offset, start_min)?;
                let codec = codec_of(codec).ok_or(FormatError::UnknownCodec {
                    format: self.head.variant,
                    frame: block,
                    codec,
                })?;
                lzo |= codec == CodecId::Lzo1x;
                return builder.push(self.head.frame(start, stored, codec), false);
            }
            Ok(())
        };
        match self.entry {
            Entry::Be32 => bytes.records::<4>(self.table, entries, |i, entry| {
                each(i, be32(entry).into(), 0)
            })?,
            Entry::Le64 => bytes.records::<8>(self.table, entries, |i, entry| {
                each(i, u64::from_le_bytes(*entry), 0)
            })?,
            Entry::Be64 => bytes.records::<8>(self.table, entries, |i, entry| {
                each(i, u64::from_be_bytes(*entry), 0)
            })?,
            Entry::Flagged => bytes.records::<8>(self.table, entries, |i, entry| {
                let entry = u64::from_be_bytes(*entry);
                each(i, entry & OFFSET_MASK, (entry >> 60) as u8)
            })?,
        }
        if lzo {
            builder.set_format(Format::CloopLzo);
        }
        builder.finish()
    }

    /// The compressed size of a block, once its place was found to be possible.
    fn block_bytes(
        &self,
        bytes: &Bytes<'_>,
        block: u64,
        place: Range<u64>,
        start_min: u64,
    ) -> Result<u32, FormatError> {
        let Some(stored) = place.end.checked_sub(place.start) else {
            let reason = "the next block begins before it; offset";
            return Err(self.head.table(block, reason, place.end));
        };
        if place.start < start_min {
            let reason = "begins inside the table; offset";
            return Err(self.head.table(block, reason, place.start));
        }
        if place.end > self.end_max {
            let reason = "ends inside the table; offset";
            return Err(self.head.table(block, reason, place.end));
        }
        if place.end > bytes.size {
            let what = "a block that the table speaks of";
            return Err(cut_short(self.head.variant, what, place.end, bytes.size));
        }
        // The builder refuses a size that has no room in 32 bits as it does any too large one.
        Ok(u32::try_from(stored).unwrap_or(u32::MAX))
    }
}

/// Accelerated Knoppix: `{u64 offset, u32 size, u32 order}` per block, blocks in the order in which
/// a boot reads them.
fn parse_scattered(bytes: &Bytes<'_>) -> Result<Index, FormatError> {
    let head = Head::read(bytes, 0, "cloop V2 (accelerated Knoppix)")?;
    let blocks = u64::from(head.blocks);
    let table_end = HEAD_BYTES + blocks * 16;
    if table_end > bytes.size {
        return Err(head.too_many(bytes, 16));
    }
    let mut builder = head.builder(bytes);
    let mut spans = Vec::new();
    bytes.records::<16>(HEAD_BYTES, blocks, |i, entry| {
        let (offset, size) = (be64(entry), be32(&entry[8..]));
        if offset < table_end {
            return Err(head.table(i, "begins inside the table; offset", offset));
        }
        spans.push((offset, size, i));
        builder.push(head.frame(offset, size, CodecId::Zlib), false)
    })?;
    // Blocks are in the order of a boot; only sorted can overlaps be seen in one pass.
    spans.sort_unstable();
    for pair in spans.windows(2) {
        let [(offset, size, _), (next, _, frame)] = [pair[0], pair[1]];
        if offset + u64::from(size) > next {
            return Err(head.table(frame, "overlaps another block; offset", next));
        }
    }
    builder.finish()
}

/// V3.0 without a number of blocks in the header: blocks after the header, then a table of sizes,
/// and the number last.
fn parse_sizes_last(bytes: &Bytes<'_>) -> Result<Index, FormatError> {
    const VARIANT: &str = "cloop V3.0 (sizes last)";
    let (Some(front), Some(tail)) = (bytes.array::<HEAD>(0)?, bytes.tail::<8>()?) else {
        return Err(cut_short(VARIANT, "the head", HEAD_BYTES + 8, bytes.size));
    };
    if be32(&tail) != 4 {
        return Err(FormatError::NoIndex {
            format: VARIANT,
            at: "the end of the file",
            reason: "the width of the table's entries is not 4: the image is cut short or damaged",
            next: "fetch or pack it again",
        });
    }
    // The head was written before the blocks were counted; the count is the last word of the file.
    let head = Head::new(VARIANT, be32(&front[128..]), be32(&tail[4..]))?;
    let blocks = u64::from(head.blocks);
    let table = bytes
        .size
        .checked_sub(8 + blocks * 4)
        .filter(|&table| table >= HEAD_BYTES);
    let table = table.ok_or_else(|| head.too_many(bytes, 4))?;
    let mut builder = head.builder(bytes);
    let mut offset = HEAD_BYTES;
    bytes.records::<4>(table, blocks, |i, entry| {
        let stored = be32(entry);
        let start = offset;
        offset += u64::from(stored);
        if offset > table {
            return Err(head.table(i, "ends inside the table; offset", offset));
        }
        builder.push(head.frame(start, stored, CodecId::Zlib), false)
    })?;
    builder.finish()
}

/// The tail format of the CLOOP3 tools: blocks, padding, one table, its offset, a version and the
/// signature.
fn parse_cloop3(bytes: &Bytes<'_>) -> Result<Index, FormatError> {
    const VARIANT: &str = "cloop V3 (CLOOP3 tail)";
    let tail = bytes.tail::<20>()?;
    let Some(tail) = tail else {
        return Err(cut_short(VARIANT, "the tail", 20, bytes.size));
    };
    let (table, version) = (be64(&tail), be32(&tail[8..]));
    if version != 3 {
        return Err(FormatError::Field {
            format: VARIANT,
            field: "the version",
            value: version.into(),
            limit: "only 3 is known",
        });
    }
    let Some(front) = bytes.array::<16>(table)? else {
        return Err(cut_short(
            VARIANT,
            "the table",
            table.saturating_add(16),
            bytes.size,
        ));
    };
    let head = Head::new(VARIANT, be32(&front[4..]), be32(&front))?;
    let (blocks, raw_bytes) = (u64::from(head.blocks), be64(&front[8..]));
    let (offsets, flags) = (table + 16, table + 16 + (blocks + 1) * 8);
    if flags + blocks * 4 + 20 > bytes.size {
        return Err(head.too_many(bytes, 12));
    }
    // Divided rather than multiplied: a hostile size must not overflow.
    if raw_bytes.div_ceil(head.block_bytes.into()) != blocks {
        return Err(FormatError::Field {
            format: VARIANT,
            field: "the size of the contents in bytes",
            value: raw_bytes,
            limit: "which is not blocks times the block size",
        });
    }
    // Offsets and flags are two tables of one image, walked in parallel. A block that is not valid
    // ends the walk before more of a table is read, which may be a hole of the file.
    let mut builder = head.builder(bytes);
    let mut before = None;
    let mut piece = vec![0; FLAGS_AT_ONCE.min(blocks).to_usize() * 4];
    bytes.records::<8>(offsets, blocks + 1, |i, entry| {
        let end = be64(entry);
        if before.is_some_and(|before| end < before) || end > table {
            return Err(head.table(i, "descends or reaches into the table; offset", end));
        }
        let Some(start) = before.replace(end) else {
            return Ok(());
        };
        let block = i - 1;
        if block.is_multiple_of(FLAGS_AT_ONCE) {
            piece.truncate(FLAGS_AT_ONCE.min(blocks - block).to_usize() * 4);
            bytes.fill(&mut piece, flags + block * 4)?;
        }
        let at = (block % FLAGS_AT_ONCE).to_usize() * 4;
        let flag = be32(&piece[at..]);
        let codec = cloop3_codec_of(flag).ok_or(FormatError::UnknownCodec {
            format: VARIANT,
            frame: block,
            codec: u8::try_from(flag).unwrap_or(u8::MAX),
        })?;
        let stored = u32::try_from(end - start).unwrap_or(u32::MAX);
        let left = raw_bytes - block * u64::from(head.block_bytes);
        let raw = next_raw_bytes(left, head.block_bytes);
        builder.push(
            Frame {
                raw_bytes: raw,
                ..head.frame(start, stored, codec)
            },
            false,
        )
    })?;
    builder.finish()
}

fn is_v4(head: &[u8; HEAD]) -> bool {
    head[SIGNATURE_AT..].starts_with(b"V4.0")
}

fn codec_of(flag: u8) -> Option<CodecId> {
    match flag {
        0 => Some(CodecId::Zlib),
        1 => Some(CodecId::Store),
        2 => Some(CodecId::Xz),
        3 => Some(CodecId::Lz4Block),
        4 => Some(CodecId::Lzo1x),
        _ => None,
    }
}

/// Compressors of a CLOOP3 block are bits, of which one is set.
fn cloop3_codec_of(flag: u32) -> Option<CodecId> {
    match flag {
        0 => Some(CodecId::Store),
        0b0_0010 => Some(CodecId::Zlib),
        0b0_0100 => Some(CodecId::Lzo1x),
        0b0_1000 => Some(CodecId::Xz),
        0b1_0000 => Some(CodecId::Lz4Block),
        _ => None,
    }
}

fn block_bytes_fit(block_bytes: u32) -> bool {
    block_bytes != 0 && block_bytes.is_multiple_of(512) && block_bytes <= BLOCK_BYTES_MAX
}

fn cut_short(format: &'static str, what: &'static str, needs: u64, has: u64) -> FormatError {
    FormatError::CutShort {
        format,
        what,
        needs,
        has,
    }
}

fn be32(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

fn be64(bytes: &[u8]) -> u64 {
    u64::from(be32(bytes)) << 32 | u64::from(be32(&bytes[4..]))
}

/// Preamble, block size, number of blocks.
const HEAD: usize = HEAD_BYTES as usize;
const HEAD_BYTES: u64 = 136;
/// A block is decompressed as a whole.
const BLOCK_BYTES_MAX: u32 = 16 << 20;
/// Compressors of blocks that are read at once.
const FLAGS_AT_ONCE: u64 = 16 << 10;
const SIGNATURE_AT: usize = 0x0B;
const OFFSET_MASK: u64 = (1 << 60) - 1;
const CLOOP3_END: [u8; 8] = *b"\nCLOOP3\n";

#[cfg(test)]
mod tests {
    use super::be64;

    #[test]
    fn the_first_byte_weighs_most() {
        assert_eq!(be64(&[1, 2, 3, 4, 5, 6, 7, 8]), 0x0102_0304_0506_0708);
    }
}
