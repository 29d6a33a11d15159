//! From the ends of a session to its number: tags in the local store, and the whole table behind.
//!
//! Must stay true: a tag says "perhaps"; whoever finds a number compares the ends. The whole table
//! is at most half full, so a search that fails ends soon.

/// Entries of the tags in the local store: 8 bytes each.
const FRONT: usize = 2 * super::LOCAL_SESSIONS;
const EMPTY: u64 = u64::MAX;

/// The table. An entry is a hash (upper half) and a session's number (lower half).
#[derive(Debug)]
pub(crate) struct Table {
    front: Box<[u64; FRONT]>,
    entries: Vec<u64>,
    shift: u32,
    count: usize,
    /// Searches that the tags answered, and all.
    pub(crate) front_hits: u64,
    pub(crate) searches: u64,
}

impl Table {
    /// For up to `sessions_max`.
    pub(crate) fn new(sessions_max: usize) -> Self {
        let size = (sessions_max * 2).next_power_of_two().max(1024);
        Self {
            front: Box::new([EMPTY; FRONT]),
            entries: vec![EMPTY; size],
            shift: 32 - size.trailing_zeros(),
            count: 0,
            front_hits: 0,
            searches: 0,
        }
    }

    #[inline]
    fn home(&self, hash: u32) -> usize {
        (hash >> self.shift) as usize
    }

    /// Brings the entry of a hash near.
    #[inline]
    pub(crate) fn prefetch(&self, hash: u32) {
        if (self.front[hash as usize % FRONT] >> 32) as u32 != hash {
            let entry = &self.entries[self.home(hash)];
            sidecore_sys::prefetch::for_read(zerocopy::IntoBytes::as_bytes(entry), 8);
        }
    }

    /// The session of a hash for which `is_it` holds.
    #[inline]
    pub(crate) fn find(&mut self, hash: u32, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        self.searches += 1;
        let front = self.front[hash as usize % FRONT];
        if (front >> 32) as u32 == hash && front != EMPTY && is_it(front as u32) {
            self.front_hits += 1;
            return Some(front as u32);
        }
        let mut at = self.home(hash);
        loop {
            let entry = self.entries[at];
            if entry == EMPTY {
                return None;
            }
            if (entry >> 32) as u32 == hash && is_it(entry as u32) {
                self.front[hash as usize % FRONT] = entry;
                return Some(entry as u32);
            }
            at = (at + 1) & (self.entries.len() - 1);
        }
    }

    /// A session of this hash, probably the one: for a prefetch.
    #[inline]
    pub(crate) fn guess(&self, hash: u32) -> Option<u32> {
        let front = self.front[hash as usize % FRONT];
        if (front >> 32) as u32 == hash && front != EMPTY {
            return Some(front as u32);
        }
        let entry = self.entries[self.home(hash)];
        ((entry >> 32) as u32 == hash && entry != EMPTY).then_some(entry as u32)
    }

    /// Enters a session. There is room: the store's bound is half of the table.
    pub(crate) fn insert(&mut self, hash: u32, session: u32) {
        debug_assert!(self.count * 2 < self.entries.len(), "more than half full");
        let mut at = self.home(hash);
        while self.entries[at] != EMPTY {
            at = (at + 1) & (self.entries.len() - 1);
        }
        self.entries[at] = u64::from(hash) << 32 | u64::from(session);
        self.count += 1;
    }

    /// Takes a session out and closes the gap.
    pub(crate) fn remove(&mut self, hash: u32, session: u32) {
        let wanted = u64::from(hash) << 32 | u64::from(session);
        if self.front[hash as usize % FRONT] == wanted {
            self.front[hash as usize % FRONT] = EMPTY;
        }
        let mask = self.entries.len() - 1;
        let mut at = self.home(hash);
        while self.entries[at] != wanted {
            if self.entries[at] == EMPTY {
                return;
            }
            at = (at + 1) & mask;
        }
        self.count -= 1;
        // Entries behind move up as long as that does not put them before their home.
        let mut next = (at + 1) & mask;
        while self.entries[next] != EMPTY {
            let home = self.home((self.entries[next] >> 32) as u32);
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(at) & mask) {
                self.entries[at] = self.entries[next];
                at = next;
            }
            next = (next + 1) & mask;
        }
        self.entries[at] = EMPTY;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use std::collections::HashMap;

    #[test]
    fn finds_what_a_map_finds() {
        let mut random = Random::new(2);
        let mut table = Table::new(512);
        let mut model: HashMap<u32, u32> = HashMap::new();
        for session in 0..20_000_u32 {
            // Few homes, so that runs grow long; hashes differ so that the model can be a map.
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
