//! One ring of descriptors between two processes: one writes, one reads.
//!
//! An entry is one line of `sidecore_sync::spsc::lines`: seven words, and an eighth with the turn
//! of the ring they belong to. A message thus moves one cache line from core to core.
//!
//! Must stay true: a value from shared memory is copied once and is not used before it was checked;
//! an invalid position is a [`Violation`].

use super::layout::{ENTRIES, ENTRY_BYTES, Entry};
use sidecore_sync::spsc::lines::{self, Line, SharedLines};
use sidecore_sys::SharedSlice;

pub use sidecore_sync::spsc::Violation;

const _: () = assert!(size_of::<Line>() == ENTRY_BYTES);

/// Offsets of the lines and of the reader's position, in bytes.
type Offsets = (usize, usize);

#[inline]
fn lines(memory: SharedSlice<'_>, (lines_offset, position_offset): Offsets) -> SharedLines<'_> {
    SharedLines {
        memory,
        lines_offset,
        position_offset,
    }
}

/// The writing side's state.
#[derive(Debug)]
pub struct Writer {
    offsets: Offsets,
    end: lines::Writer<ENTRIES>,
}

impl Writer {
    /// One end of the ring at `offsets`, as [`super::layout`] gives them.
    #[must_use]
    pub fn new(offsets: Offsets) -> Self {
        Self {
            offsets,
            end: lines::Writer::default(),
        }
    }

    /// Free entries; the reader's position is not read if `wanted` are known to be free.
    #[inline]
    pub(crate) fn room(
        &mut self,
        memory: SharedSlice<'_>,
        wanted: usize,
    ) -> Result<usize, Violation> {
        self.end.room(&lines(memory, self.offsets), wanted)
    }

    /// Writes an entry; false if there is no room.
    #[inline]
    pub fn write(&mut self, memory: SharedSlice<'_>, entry: &Entry) -> Result<bool, Violation> {
        let lines = lines(memory, self.offsets);
        self.end.write(&lines, &entry.encode())
    }
}

/// The reading side's state.
#[derive(Debug)]
pub struct Reader {
    offsets: Offsets,
    end: lines::Reader<ENTRIES>,
}

impl Reader {
    /// One end of the ring at `offsets`, as [`super::layout`] gives them.
    #[must_use]
    pub fn new(offsets: Offsets) -> Self {
        Self {
            offsets,
            end: lines::Reader::default(),
        }
    }

    /// True if no entry waits.
    #[inline]
    pub(crate) fn is_empty(&self, memory: SharedSlice<'_>) -> bool {
        self.end.is_empty(&lines(memory, self.offsets))
    }

    /// Takes the next entry.
    #[inline]
    pub fn read(&mut self, memory: SharedSlice<'_>) -> Option<Entry> {
        let words = self.end.read(&lines(memory, self.offsets))?;
        Some(Entry::decode(words))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sock::layout::{CHUNKS, REQUESTS};
    use sidecore_sys::{SharedMap, Sharing};
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn a_million_entries_cross_two_threads_in_order() {
        let map = SharedMap::create("test", CHUNKS, Sharing::ReadWrite).unwrap();
        let count = 1_000_000u32;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut writer = Writer::new(REQUESTS);
                for tag in 0..count {
                    let entry = Entry {
                        tag,
                        argument: tag ^ 0x5555,
                        ..Entry::default()
                    };
                    while !writer.write(map.slice(), &entry).unwrap() {
                        std::thread::yield_now();
                    }
                }
            });
            let mut reader = Reader::new(REQUESTS);
            for tag in 0..count {
                let entry = loop {
                    if let Some(entry) = reader.read(map.slice()) {
                        break entry;
                    }
                    std::hint::spin_loop();
                };
                assert_eq!((entry.tag, entry.argument), (tag, tag ^ 0x5555));
            }
            assert!(reader.is_empty(map.slice()));
        });
    }

    #[test]
    fn a_full_ring_says_so_and_a_false_position_is_noticed() {
        let map = SharedMap::create("test", CHUNKS, Sharing::ReadWrite).unwrap();
        let mut writer = Writer::new(REQUESTS);
        for _ in 0..ENTRIES {
            assert!(writer.write(map.slice(), &Entry::default()).unwrap());
        }
        assert!(!writer.write(map.slice(), &Entry::default()).unwrap());
        let position: &AtomicU64 = map.slice().overlay(REQUESTS.1).unwrap();
        for (value, expected) in [
            (10, Ok(10)),
            (9, Err(Violation)),
            (ENTRIES as u64 + 1, Err(Violation)),
            (u64::MAX, Err(Violation)),
        ] {
            position.store(value, Ordering::Release);
            assert_eq!(writer.room(map.slice(), ENTRIES), expected);
        }
    }
}
