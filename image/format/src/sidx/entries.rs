//! The entries of an index, read in pieces and made into frames.

use super::*;

/// The entries of an index, which become frames one after another.
pub(super) struct Entries<'f> {
    pub(super) fields: &'f Fields,
    pub(super) variant: &'static str,
    pub(super) builder: Builder,
    /// Offset of the next stored frame: entries hold sizes, not offsets.
    pub(super) offset: u64,
    /// No frame may end behind this byte.
    pub(super) limit: u64,
}

impl Entries<'_> {
    /// Reads all entries, from byte `at` of the file on.
    pub(super) fn read(&mut self, bytes: &Bytes<'_>, at: u64) -> Result<(), FormatError> {
        let fields = self.fields;
        if fields.shape == Shape::Uneven {
            return bytes.records::<ENTRY_BYTES_UNEVEN>(at, fields.frames, |i, entry| {
                self.stored(i, le32(entry), le64(&entry[4..]), le32(&entry[12..]))
            });
        }
        // The number of the next frame; a thin image has fewer entries than frames.
        let mut number = 0_u64;
        bytes.records::<ENTRY_BYTES>(at, fields.frames, |i, entry| {
            let (word, check) = (le32(entry), le64(&entry[4..]));
            // No frame has zero compressed bytes: the word marks a run, whose length stands in
            // place of the checksum.
            if fields.shape == Shape::Thin && word == ZERO_BIT {
                return self.holes(&mut number, check);
            }
            let raw_bytes = next_raw_bytes(fields.raw_left(number), fields.frame_bytes);
            number += 1;
            self.stored(i, word, check, raw_bytes)
        })
    }

    pub(super) fn holes(&mut self, number: &mut u64, count: u64) -> Result<(), FormatError> {
        let fields = self.fields;
        let frames = fields.raw_bytes.div_ceil(fields.frame_bytes.into());
        let end = number.checked_add(count).filter(|&end| end <= frames);
        let end = end.ok_or(FormatError::Table {
            format: self.variant,
            frame: *number,
            frames,
            reason: "a run of holes goes past the end of the contents",
            value: count,
        })?;
        // Only the last frame is shorter, so the difference of what is left is exact.
        let raw_bytes = fields.raw_left(*number) - fields.raw_left(end);
        *number = end;
        self.builder
            .push_holes(count, raw_bytes, fields.frame_bytes)
    }

    pub(super) fn stored(
        &mut self,
        i: u64,
        word: u32,
        check: u64,
        raw_bytes: u32,
    ) -> Result<(), FormatError> {
        // The highest bit says that all of the frame is zeros.
        let stored_bytes = word & !ZERO_BIT;
        let frame = Frame {
            offset: self.offset,
            stored_bytes,
            raw_bytes,
            raw_offset: 0,
            number: 0,
            codec: self.fields.codec,
            check: FrameCheck::Stored(check),
        };
        self.offset += u64::from(stored_bytes);
        if self.offset > self.limit {
            return Err(FormatError::Table {
                format: self.variant,
                frame: i,
                frames: self.fields.frames,
                reason: "ends inside the index or behind the file",
                value: self.offset,
            });
        }
        self.builder.push(frame, word & ZERO_BIT != 0)
    }
}
