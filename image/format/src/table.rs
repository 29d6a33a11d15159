//! Frames of an image that is being written, and the output of its tables.
//!
//! Why here: a zstd image ends with two tables of the same frames, ours and zstd's. Both are made
//! from one list, in which equal frames are counted, not repeated (a sparse disk is mostly one
//! frame of zeros). They are written in pieces of [`PIECE_BYTES`], so that no table is held in
//! memory a second time.
//! Must stay true: [`Table::frames`] returns every frame that was pushed, in order.

use super::FormatError;
use sidecore_bare::width::ToUsize;
use std::io;
use xxhash_rust::xxh3::Xxh3Default;

/// Consecutive equal frames: the data of their table entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    /// XXH3-64 of the compressed bytes.
    pub check: u64,
    /// Compressed bytes.
    pub stored_bytes: u32,
    /// The last four compressed bytes.
    pub stored_end: u32,
    /// Contents in bytes; with [`ZERO_BIT`] if they are all zeros.
    raw: u32,
    /// Number of the frames.
    repeats: u32,
}

impl Entry {
    /// One frame of `raw_bytes`; with `zero`, all of them are zeros.
    pub(super) fn new(
        check: u64,
        stored_bytes: u32,
        stored_end: u32,
        raw_bytes: u32,
        zero: bool,
    ) -> Self {
        Self {
            check,
            stored_bytes,
            stored_end,
            raw: raw_bytes | if zero { ZERO_BIT } else { 0 },
            repeats: 1,
        }
    }

    /// Contents in bytes.
    pub(super) fn raw_bytes(&self) -> u32 {
        self.raw & !ZERO_BIT
    }

    /// A run of `frames` of zeros that are not stored.
    fn holes(frames: u64) -> Self {
        Self::new(frames, 0, 0, 0, true)
    }

    /// Number of frames in a run that is not stored; `None` for a stored one.
    pub(super) fn hole_frames(&self) -> Option<u64> {
        (self.stored_bytes == 0).then_some(self.check)
    }

    /// True when the contents are all zeros.
    pub(super) fn is_zero(&self) -> bool {
        self.raw & ZERO_BIT != 0
    }
}

/// Frames in the order of the file.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// 24 bytes for each frame that differs from the one before it.
    runs: Vec<Entry>,
    count: u64,
    raw_bytes: u64,
    raw_bytes_max: u32,
}

impl Table {
    /// Adds the next frame of the file.
    pub(super) fn push(&mut self, entry: Entry) {
        self.count += 1;
        self.raw_bytes += u64::from(entry.raw_bytes());
        self.raw_bytes_max = self.raw_bytes_max.max(entry.raw_bytes());
        // Equal neighbours, as the frames of a hole are, take one entry.
        match self.runs.last_mut() {
            Some(last)
                if last.repeats < u32::MAX
                    && Entry {
                        repeats: 1,
                        ..*last
                    } == entry =>
            {
                last.repeats += 1;
            }
            _ => self.runs.push(entry),
        }
    }

    /// Adds `frames` with `raw_bytes` of zeros that are not stored.
    pub(super) fn push_holes(&mut self, frames: u64, raw_bytes: u64) {
        self.raw_bytes += raw_bytes;
        match self.runs.last_mut() {
            // Writers may pass a long run in parts; the index holds it as one entry.
            Some(last) if last.hole_frames().is_some() => last.check += frames,
            _ => {
                self.runs.push(Entry::holes(frames));
                self.count += 1;
            }
        }
    }

    /// The frames, in order; a run of holes once.
    pub(super) fn frames(&self) -> impl Iterator<Item = &Entry> {
        (self.runs.iter()).flat_map(|run| std::iter::repeat_n(run, run.repeats.to_usize()))
    }

    /// Number of entries of a table.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Contents of all frames in bytes.
    pub(super) fn raw_bytes(&self) -> u64 {
        self.raw_bytes
    }

    /// Contents of the largest frame in bytes.
    pub(super) fn raw_bytes_max(&self) -> u32 {
        self.raw_bytes_max
    }
}

/// The end of an image that is being written, a piece at a time.
pub(super) struct Tail<'o> {
    out: &'o mut dyn io::Write,
    piece: Vec<u8>,
    hasher: Xxh3Default,
}

impl<'o> Tail<'o> {
    pub(super) fn new(out: &'o mut dyn io::Write) -> Self {
        Self {
            out,
            piece: Vec::with_capacity(PIECE_BYTES),
            hasher: Xxh3Default::new(),
        }
    }

    /// Adds a few bytes, at most [`PIECE_BYTES`].
    pub(super) fn put(&mut self, bytes: &[u8]) -> Result<(), FormatError> {
        // Sent before it grows: the piece's memory was reserved once.
        if self.piece.len() + bytes.len() > PIECE_BYTES {
            self.send()?;
        }
        self.piece.extend_from_slice(bytes);
        Ok(())
    }

    /// Begins a new checksum at the next byte.
    pub(super) fn begin_check(&mut self) -> Result<(), FormatError> {
        self.send()?;
        // Bytes before belong to no checksum, and have just been sent through the hasher.
        self.hasher.reset();
        Ok(())
    }

    /// XXH3-64 of all bytes since [`Self::begin_check`].
    pub(super) fn check(&mut self) -> Result<u64, FormatError> {
        self.send()?;
        Ok(self.hasher.digest())
    }

    /// Writes the remaining bytes.
    pub(super) fn end(mut self) -> Result<(), FormatError> {
        self.send()
    }

    fn send(&mut self) -> Result<(), FormatError> {
        // Hashed as it is written, so that a table of gigabytes is not gone through twice.
        self.hasher.update(&self.piece);
        let written = self.out.write_all(&self.piece);
        written.map_err(FormatError::Write)?;
        self.piece.clear();
        Ok(())
    }
}

/// Frames hold [`super::FRAME_BYTES_MAX`] at most: the bit is free.
const ZERO_BIT: u32 = 1 << 31;
const PIECE_BYTES: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_are_alike_take_the_room_of_one() {
        let zeros = Entry::new(7, 5, 9, 64, true);
        let other = Entry::new(8, 5, 9, 64, false);
        let last = Entry::new(7, 5, 9, 63, true);
        let mut pushed = vec![zeros; 1000];
        pushed.extend([other, other, zeros, last]);
        let mut table = Table::default();
        for entry in &pushed {
            table.push(*entry);
        }
        assert_eq!(table.runs.len(), 4);
        assert_eq!(table.count(), 1004);
        assert_eq!(table.raw_bytes(), 1003 * 64 + 63);
        assert_eq!(table.raw_bytes_max(), 64);
        let frames = table.frames().map(|entry| Entry {
            repeats: 1,
            ..*entry
        });
        assert!(frames.eq(pushed));
        assert!(zeros.is_zero() && !other.is_zero());
        assert_eq!(last.raw_bytes(), 63);
    }

    #[test]
    fn a_tail_is_written_in_pieces_and_checked_from_where_it_is_told() {
        let mut out = Vec::new();
        let mut tail = Tail::new(&mut out);
        let bytes: Vec<u8> = (0..200_000_u32).map(|i| (i % 251) as u8).collect();
        let (before, checked) = bytes.split_at(1000);
        tail.put(before).unwrap();
        tail.begin_check().unwrap();
        for part in checked.chunks(977) {
            tail.put(part).unwrap();
        }
        assert_eq!(tail.check().unwrap(), xxhash_rust::xxh3::xxh3_64(checked));
        tail.put(b"end").unwrap();
        tail.end().unwrap();
        assert!(out == [&bytes, &b"end"[..]].concat());
    }
}
