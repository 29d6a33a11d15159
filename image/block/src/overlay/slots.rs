//! Slots of an overlay's file: which are in use.
//!
//! Why here: writes never overwrite bytes that a crash may make current again, so slots are
//! allocated and freed all the time. The price is one bit for each slot (32 KiB for each GiB of
//! grains of 4 KiB). Pure.
//! Must stay true: a slot is given out once until it is given back; memory is proportional to the
//! slots in use, not to the number that a file claims.

use sidecore_bare::width::ToUsize;
use std::collections::BTreeMap;

/// A bit for each slot, set while it is in use.
#[derive(Debug, Clone, Default)]
pub(super) struct Slots {
    /// Words of bits, [`CHUNK`] at a time; missing chunks are zeros.
    chunks: BTreeMap<usize, Box<[u64; CHUNK]>>,
    count: u64,
    used: u64,
    /// Position at which the search for a free slot continues.
    hand: u64,
}

impl Slots {
    /// The books of `count` slots, all of them free.
    pub(super) fn new(count: u64) -> Self {
        Self {
            count,
            ..Self::default()
        }
    }

    /// Reads bits, those of word number `first` and later; false if they go past the end.
    pub(super) fn load(&mut self, first: u64, bytes: &[u8]) -> bool {
        let (words, rest) = bytes.as_chunks::<8>();
        for (word, at) in words.iter().zip(first..) {
            let word = u64::from_le_bytes(*word);
            // Zeros allocate nothing.
            if word == 0 {
                continue;
            }
            let last = at * 64 + u64::from(63 - word.leading_zeros());
            if last >= self.count {
                return false;
            }
            self.used += u64::from(word.count_ones());
            *self.word_mut(at) = word;
        }
        rest.is_empty()
    }

    /// Reads the bits of `count` slots.
    #[cfg(test)]
    pub(super) fn decode(bytes: &[u8], count: u64) -> Option<Self> {
        let mut slots = Self::new(count);
        let fits = bytes.len() as u64 == count.div_ceil(64) * 8;
        (fits && slots.load(0, bytes)).then_some(slots)
    }

    /// The bits.
    pub(super) fn encode(&self) -> Vec<u8> {
        let words = (0..self.words()).map(|at| self.word(at));
        words.flat_map(u64::to_le_bytes).collect()
    }

    fn words(&self) -> u64 {
        self.count.div_ceil(64)
    }

    fn word(&self, at: u64) -> u64 {
        let at = at.to_usize();
        let chunk = self.chunks.get(&(at / CHUNK));
        chunk.map_or(0, |chunk| chunk[at % CHUNK])
    }

    fn word_mut(&mut self, at: u64) -> &mut u64 {
        let at = at.to_usize();
        let chunk = self.chunks.entry(at / CHUNK);
        let chunk = chunk.or_insert_with(|| Box::new([0; CHUNK]));
        &mut chunk[at % CHUNK]
    }

    /// Slots that the bits cover: those of the file, in use or not.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Slots in use.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Takes up to `wanted` neighbouring slots, at least one: the first, and how many.
    pub(super) fn take(&mut self, wanted: u64) -> (u64, u64) {
        // A few free slots are not worth a search through all others. Reused blocks of the file are
        // cheaper than new ones, which the file system has to record at each sync.
        let free = self.count - self.used;
        let start = match free > self.count / FREE_SHARE_MIN && free > 0 {
            true => self.next_free(),
            false => None,
        };
        let start = start.unwrap_or(self.count);
        let mut len = 0;
        while len < wanted && !self.is_used(start + len) {
            self.set(start + len);
            len += 1;
        }
        self.hand = start + len;
        (start, len)
    }

    /// Takes `wanted` neighbouring slots at the end of the file.
    pub(super) fn take_run(&mut self, wanted: u64) -> u64 {
        let mut start = self.count;
        while start > 0 && !self.is_used(start - 1) {
            start -= 1;
        }
        (start..start + wanted).for_each(|slot| self.set(slot));
        start
    }

    /// Takes this slot; false if it is in use.
    pub(super) fn claim(&mut self, slot: u64) -> bool {
        let free = !self.is_used(slot);
        if free {
            self.set(slot);
        }
        free
    }

    /// Gives a slot back; false if it was not in use.
    pub(super) fn give_back(&mut self, slot: u64) -> bool {
        if !self.is_used(slot) {
            return false;
        }
        *self.word_mut(slot / 64) &= !(1 << (slot % 64));
        self.used -= 1;
        self.hand = self.hand.min(slot);
        true
    }

    /// True while a slot is in use.
    pub(super) fn is_used(&self, slot: u64) -> bool {
        self.word(slot / 64) >> (slot % 64) & 1 == 1
    }

    fn set(&mut self, slot: u64) {
        *self.word_mut(slot / 64) |= 1 << (slot % 64);
        self.used += 1;
        self.count = self.count.max(slot + 1);
    }

    fn next_free(&mut self) -> Option<u64> {
        let words = self.words();
        let first = self.hand / 64 % words.max(1);
        // The first word is visited twice: its bits below the hand come last.
        for step in 0..=words {
            let at = (first + step) % words.max(1);
            let mut free = !self.word(at);
            if step == 0 {
                free &= u64::MAX << (self.hand % 64);
            }
            let slot = at * 64 + u64::from(free.trailing_zeros());
            if free != 0 && slot < self.count {
                return Some(slot);
            }
        }
        None
    }
}

/// Words of bits in a chunk: those of 128 MiB of grains of 4 KiB.
const CHUNK: usize = 512;
/// Free slots are searched for only while more than one slot in this many is free.
const FREE_SHARE_MIN: u64 = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_given_out_once_until_it_is_given_back() {
        let mut slots = Slots::default();
        assert_eq!(slots.take(3), (0, 3));
        assert_eq!(slots.take(100), (3, 100));
        assert_eq!(slots.take_run(4), 103);
        for slot in 20..40 {
            assert!(slots.give_back(slot));
        }
        assert!(!slots.give_back(20) && !slots.claim(5) && slots.claim(25));
        let mut taken = std::collections::BTreeSet::new();
        while taken.len() < 19 + 30 {
            let (start, len) = slots.take(7);
            assert!(len > 0);
            for slot in start..start + len {
                assert!(taken.insert(slot), "slot {slot} twice");
                assert!(slot >= 107 || ((20..40).contains(&slot) && slot != 25));
            }
        }
        assert!((20..40).filter(|slot| taken.contains(slot)).count() > 10);
        let again = Slots::decode(&slots.encode(), slots.count()).expect("its own bits");
        assert_eq!((again.used(), again.count()), (slots.used(), slots.count()));
        assert!(Slots::decode(&slots.encode(), slots.count() + 64).is_none());
    }

    #[test]
    fn bits_past_the_end_are_refused() {
        assert!(Slots::decode(&[0xFF; 8], 63).is_none());
        assert!(Slots::decode(&[0xFF; 8], 64).is_some());
        assert!(Slots::decode(&[0; 7], 8).is_none());
    }
}
