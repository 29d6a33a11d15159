//! One ring of descriptors between two processes: one writes, one reads.
//!
//! An entry is one line: seven words, and an eighth that says which turn of the ring they belong to.
//! So a message moves one line from core to core; the reader's position is only looked at when the
//! writer believes that the ring is full.
//!
//! Must stay true: what is read out of shared memory is copied once and means nothing until it was
//! checked; a position that makes no sense is a [`Violation`]. Partners: the Release of the eighth
//! word and its Acquire; the Release of the reader's position and its Acquire.
#![allow(unsafe_code)] // says that an entry is made of atomics

use super::layout::{ENTRIES, ENTRY_BYTES, Entry};
use sidecore_sys::{Overlay, SharedSlice};
use std::sync::atomic::{AtomicU64, Ordering};

/// The other side broke the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Violation;

/// An entry as it lies in memory.
#[repr(C, align(64))]
struct Line {
    words: [AtomicU64; 7],
    turn: AtomicU64,
}

const _: () = assert!(size_of::<Line>() == ENTRY_BYTES);

// SAFETY: `repr(C)`, eight atomics that fill its 64 bytes, so no padding; any bytes are valid.
unsafe impl Overlay for Line {}

/// The writing side's state. What it knows it keeps to itself.
#[derive(Debug)]
pub(crate) struct Writer {
    /// Where the entries and the reader's position lie.
    place: (usize, usize),
    next: u64,
    /// What the reader has taken, as last seen.
    taken: u64,
}

impl Writer {
    pub(crate) fn new(place: (usize, usize)) -> Self {
        Self {
            place,
            next: 0,
            taken: 0,
        }
    }

    /// How many entries there is room for, without a look at the reader's position if `wanted` fit.
    #[inline]
    pub(crate) fn room(
        &mut self,
        memory: SharedSlice<'_>,
        wanted: usize,
    ) -> Result<usize, Violation> {
        let known = ENTRIES - (self.next - self.taken) as usize;
        if known >= wanted {
            return Ok(known);
        }
        let position: &AtomicU64 = memory.overlay(self.place.1).ok_or(Violation)?;
        let taken = position.load(Ordering::Acquire);
        if taken < self.taken || taken > self.next {
            return Err(Violation);
        }
        self.taken = taken;
        Ok(ENTRIES - (self.next - taken) as usize)
    }

    /// Writes an entry; false where there is no room.
    #[inline]
    pub(crate) fn write(
        &mut self,
        memory: SharedSlice<'_>,
        entry: &Entry,
    ) -> Result<bool, Violation> {
        if self.room(memory, 1)? == 0 {
            return Ok(false);
        }
        let at = self.place.0 + (self.next as usize % ENTRIES) * ENTRY_BYTES;
        let line: &Line = memory.overlay(at).ok_or(Violation)?;
        for (word, value) in line.words.iter().zip(entry.encode()) {
            word.store(value, Ordering::Relaxed);
        }
        self.next += 1;
        line.turn.store(self.next, Ordering::Release);
        Ok(true)
    }
}

/// The reading side's state.
#[derive(Debug)]
pub(crate) struct Reader {
    place: (usize, usize),
    next: u64,
    released: u64,
}

impl Reader {
    pub(crate) fn new(place: (usize, usize)) -> Self {
        Self {
            place,
            next: 0,
            released: 0,
        }
    }

    /// Whether an entry waits.
    #[inline]
    pub(crate) fn is_empty(&self, memory: SharedSlice<'_>) -> bool {
        self.line(memory)
            .is_none_or(|line| line.turn.load(Ordering::Acquire) != self.next + 1)
    }

    /// Takes the next entry.
    #[inline]
    pub(crate) fn read(&mut self, memory: SharedSlice<'_>) -> Option<Entry> {
        let line = self.line(memory)?;
        // Any other turn is an old entry, or nonsense of which nothing comes.
        if line.turn.load(Ordering::Acquire) != self.next + 1 {
            return None;
        }
        let mut words = [0; 7];
        for (value, word) in words.iter_mut().zip(&line.words) {
            *value = word.load(Ordering::Relaxed);
        }
        self.next += 1;
        if self.next - self.released >= RELEASE_EVERY {
            self.release(memory);
        }
        Some(Entry::decode(words))
    }

    fn release(&mut self, memory: SharedSlice<'_>) {
        if let Some(position) = memory.overlay::<AtomicU64>(self.place.1) {
            position.store(self.next, Ordering::Release);
        }
        self.released = self.next;
    }

    #[inline]
    fn line<'m>(&self, memory: SharedSlice<'m>) -> Option<&'m Line> {
        memory.overlay(self.place.0 + (self.next as usize % ENTRIES) * ENTRY_BYTES)
    }
}

/// The writer hears of so many free places at once.
const RELEASE_EVERY: u64 = (ENTRIES / 8) as u64;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sock::layout::{CHUNKS, REQUESTS};
    use sidecore_sys::{SharedMap, Sharing};

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
