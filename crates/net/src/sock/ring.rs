//! One ring of descriptors between two processes: one writes, one reads.
//!
//! An entry is one line: seven words, and an eighth that says which turn of the ring they belong to.
//! So a message moves one line from core to core; the reader's position is only looked at when the
//! writer believes that the ring is full. How is in `order`; here is where it lies.
//!
//! Must stay true: what is read out of shared memory is copied once and means nothing until it was
//! checked; a position that makes no sense is a [`Violation`].
#![allow(unsafe_code)] // says that an entry is made of atomics

use super::layout::{ENTRIES, ENTRY_BYTES, Entry};
use super::order::{self, Line, Lines};
use sidecore_sys::{Overlay, SharedSlice};
use std::sync::atomic::AtomicU64;

pub(crate) use super::order::Violation;

const _: () = assert!(size_of::<Line>() == ENTRY_BYTES);

// SAFETY: `repr(C)`, eight atomics that fill its 64 bytes, so no padding; any bytes are valid.
unsafe impl Overlay for Line {}

/// A ring in shared memory: where its entries lie, and the reader's position.
struct Place<'m> {
    memory: SharedSlice<'m>,
    place: (usize, usize),
}

impl Lines<ENTRIES> for Place<'_> {
    #[inline]
    fn line(&self, index: usize) -> Option<&Line> {
        self.memory.overlay(self.place.0 + index * ENTRY_BYTES)
    }

    #[inline]
    fn position(&self) -> Option<&AtomicU64> {
        self.memory.overlay(self.place.1)
    }
}

/// The writing side's state.
#[derive(Debug)]
pub(crate) struct Writer {
    place: (usize, usize),
    state: order::Writer<ENTRIES>,
}

impl Writer {
    pub(crate) fn new(place: (usize, usize)) -> Self {
        Self {
            place,
            state: order::Writer::default(),
        }
    }

    /// How many entries there is room for, without a look at the reader's position if `wanted` fit.
    #[inline]
    pub(crate) fn room(
        &mut self,
        memory: SharedSlice<'_>,
        wanted: usize,
    ) -> Result<usize, Violation> {
        let place = self.place;
        self.state.room(&Place { memory, place }, wanted)
    }

    /// Writes an entry; false where there is no room.
    #[inline]
    pub(crate) fn write(
        &mut self,
        memory: SharedSlice<'_>,
        entry: &Entry,
    ) -> Result<bool, Violation> {
        let place = self.place;
        self.state.write(&Place { memory, place }, &entry.encode())
    }
}

/// The reading side's state.
#[derive(Debug)]
pub(crate) struct Reader {
    place: (usize, usize),
    state: order::Reader<ENTRIES>,
}

impl Reader {
    pub(crate) fn new(place: (usize, usize)) -> Self {
        Self {
            place,
            state: order::Reader::default(),
        }
    }

    /// Whether an entry waits.
    #[inline]
    pub(crate) fn is_empty(&self, memory: SharedSlice<'_>) -> bool {
        let place = self.place;
        self.state.is_empty(&Place { memory, place })
    }

    /// Takes the next entry.
    #[inline]
    pub(crate) fn read(&mut self, memory: SharedSlice<'_>) -> Option<Entry> {
        let place = self.place;
        self.state.read(&Place { memory, place }).map(Entry::decode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sock::layout::{CHUNKS, REQUESTS};
    use sidecore_sys::{SharedMap, Sharing};
    use std::sync::atomic::Ordering;

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
