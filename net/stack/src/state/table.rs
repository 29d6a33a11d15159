//! From the ends of a session to its number: tags in the local store, backed by the whole table.
//!
//! Must stay true: a tag is only a hint; the caller compares the ends of a found session. The whole
//! table is at most half full, so that an unsuccessful search ends soon.

use crate::error::NetError;
use crate::memory::{MemorySource, Use};
use sidecore_bare::width::ToUsize;
use sidecore_bare::{Memory, plain, prefetch};

/// Entries of the tags in the local store: 8 bytes each.
const FRONT: usize = 2 * super::LOCAL_SESSIONS;
/// No session: fresh memory is an empty table.
const EMPTY: u64 = 0;

/// The table. An entry is a hash (upper half) and a session's number, counted from 1 (lower half).
#[derive(Debug)]
pub(crate) struct Table {
    front: Box<[u64; FRONT]>,
    region: Memory,
    mask: usize,
    shift: u32,
    count: usize,
    /// Searches that the tags answered, and all searches.
    pub(crate) front_hits: u64,
    pub(crate) searches: u64,
}

#[inline]
fn entry_of(hash: u32, session: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(session + 1)
}

#[inline]
fn hash_of(entry: u64) -> u32 {
    (entry >> 32) as u32
}

#[inline]
fn session_of(entry: u64) -> u32 {
    (entry as u32).wrapping_sub(1)
}

impl Table {
    /// A table for up to `sessions_max` sessions.
    ///
    /// # Errors
    /// [`NetError::Memory`].
    pub(crate) fn new(
        sessions_max: usize,
        source: &mut dyn MemorySource,
    ) -> Result<Self, NetError> {
        let size = (sessions_max * 2).next_power_of_two().max(1024);
        Ok(Self {
            front: Box::new([EMPTY; FRONT]),
            region: source.provide(size * size_of::<u64>(), Use::Sparse)?,
            mask: size - 1,
            shift: 32 - size.trailing_zeros(),
            count: 0,
            front_hits: 0,
            searches: 0,
        })
    }

    #[inline]
    fn home(&self, hash: u32) -> usize {
        (hash >> self.shift).to_usize()
    }

    #[inline]
    fn entry(&self, at: usize) -> u64 {
        let bytes = &self.region.bytes()[at * 8..at * 8 + 8];
        plain::values_of(bytes).map_or(EMPTY, |entry: &[u64]| entry[0])
    }

    fn set(&mut self, at: usize, entry: u64) {
        let bytes = &mut self.region.bytes_mut()[at * 8..at * 8 + 8];
        bytes.copy_from_slice(&entry.to_ne_bytes());
    }

    /// Prefetches the entry of a hash.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u32) {
        if hash_of(self.front[hash.to_usize() % FRONT]) != hash {
            prefetch::for_read(&self.region.bytes()[self.home(hash) * 8..], 8);
        }
    }

    /// The session of a hash for which `is_it` holds.
    #[inline]
    pub(crate) fn find(&mut self, hash: u32, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        self.searches += 1;
        let front = self.front[hash.to_usize() % FRONT];
        if hash_of(front) == hash && front != EMPTY && is_it(session_of(front)) {
            self.front_hits += 1;
            return Some(session_of(front));
        }
        let mut at = self.home(hash);
        loop {
            let entry = self.entry(at);
            if entry == EMPTY {
                return None;
            }
            if hash_of(entry) == hash && is_it(session_of(entry)) {
                // The next segment is probably of the same session.
                self.front[hash.to_usize() % FRONT] = entry;
                return Some(session_of(entry));
            }
            at = (at + 1) & self.mask;
        }
    }

    /// A session with this hash, probably the right one: for a prefetch.
    #[inline]
    pub(crate) fn guess(&self, hash: u32) -> Option<u32> {
        let front = self.front[hash.to_usize() % FRONT];
        if hash_of(front) == hash && front != EMPTY {
            return Some(session_of(front));
        }
        let home = self.home(hash);
        // The next entry, too: it is usually in the same line.
        [home, (home + 1) & self.mask]
            .into_iter()
            .map(|at| self.entry(at))
            .find(|&entry| hash_of(entry) == hash && entry != EMPTY)
            .map(session_of)
    }

    /// Adds a session. There is room: the store's bound is half of the table.
    pub(crate) fn insert(&mut self, hash: u32, session: u32) {
        debug_assert!(self.count * 2 <= self.mask, "more than half full");
        let mut at = self.home(hash);
        while self.entry(at) != EMPTY {
            at = (at + 1) & self.mask;
        }
        self.set(at, entry_of(hash, session));
        self.count += 1;
    }

    /// Removes a session and closes the gap.
    pub(crate) fn remove(&mut self, hash: u32, session: u32) {
        let wanted = entry_of(hash, session);
        if self.front[hash.to_usize() % FRONT] == wanted {
            self.front[hash.to_usize() % FRONT] = EMPTY;
        }
        let mask = self.mask;
        let mut at = self.home(hash);
        while self.entry(at) != wanted {
            if self.entry(at) == EMPTY {
                return;
            }
            at = (at + 1) & mask;
        }
        // Found: nothing was counted for an absent one above.
        self.count -= 1;
        // Later entries move up unless that puts them before their home.
        let mut next = (at + 1) & mask;
        loop {
            let entry = self.entry(next);
            if entry == EMPTY {
                break;
            }
            let home = self.home(hash_of(entry));
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(at) & mask) {
                self.set(at, entry);
                at = next;
            }
            next = (next + 1) & mask;
        }
        self.set(at, EMPTY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Heap;
    use sidecore_random::Random;
    use std::collections::HashMap;

    #[test]
    fn finds_what_a_map_finds() {
        let mut random = Random::new(2);
        let mut table = Table::new(512, &mut Heap).expect("memory");
        let mut model: HashMap<u32, u32> = HashMap::new();
        let sessions = if cfg!(miri) { 300 } else { 20_000 };
        for session in 0..sessions {
            // Few homes, so that runs grow long; distinct hashes, so that the model can be a map.
            let hash = (random.below(8) as u32) << 29 | session & 0xffff;
            if model.len() < 500 && !model.contains_key(&hash) {
                table.insert(hash, session);
                model.insert(hash, session);
            }
            if random.below(3) > 0 {
                let at = random.below(model.len() as u64) as usize;
                let (hash, number) = model.iter().nth(at).map(|(h, n)| (*h, *n)).expect("some");
                assert_eq!(table.find(hash, |found| found == number), Some(number));
                table.remove(hash, number);
                model.remove(&hash);
                assert_eq!(table.find(hash, |_| true), None);
            }
        }
        for (hash, number) in model {
            assert_eq!(table.find(hash, |_| true), Some(number));
        }
        assert!(table.front_hits < table.searches);
    }
}
