//! The pointers to a layer's leaves.
//!
//! Why here: a thin device of many TiB has millions of leaves, nearly all of which are absent or
//! zeros; a pointer takes 24 bytes.
//! Must stay true: memory is proportional to the pointers that differ from their neighbours, not to
//! the device's size.

use super::format::{ENTRY_BYTES, Entry};
use sidecore_bare::width::{ToU64, ToUsize};

/// An entry for each leaf.
#[derive(Debug)]
pub(super) struct Pointers {
    chunks: Vec<Chunk>,
    count: u64,
}

/// Neighbouring pointers.
#[derive(Debug, Clone)]
enum Chunk {
    /// All equal; never [`Entry::Data`].
    Same(Entry),
    /// One for each leaf.
    Each(Box<[Entry]>),
}

impl Pointers {
    /// `count` absent pointers.
    pub(super) fn new(count: u64) -> Self {
        let chunks = count.to_usize().div_ceil(CHUNK);
        Self {
            chunks: vec![Chunk::Same(Entry::Absent); chunks],
            count,
        }
    }

    /// Makes it a list of `count` pointers. New ones are absent, or zeros as their neighbours are.
    pub(super) fn resize(&mut self, count: u64) {
        let chunks = count.to_usize().div_ceil(CHUNK);
        self.chunks.resize(chunks, Chunk::Same(Entry::Absent));
        self.count = count;
    }

    /// Pointer number `at`.
    pub(super) fn get(&self, at: u64) -> Entry {
        let (chunk, within) = place(at);
        match &self.chunks[chunk] {
            Chunk::Same(entry) => *entry,
            Chunk::Each(entries) => entries[within],
        }
    }

    /// Replaces pointer number `at`.
    pub(super) fn set(&mut self, at: u64, new: Entry) {
        let (chunk, within) = place(at);
        let chunk = &mut self.chunks[chunk];
        if let Chunk::Same(entry) = *chunk {
            if entry == new {
                return;
            }
            *chunk = Chunk::Each(vec![entry; CHUNK].into());
        }
        if let Chunk::Each(entries) = chunk {
            entries[within] = new;
            // A writer that zeroes a device goes over its leaves in order.
            if within == CHUNK - 1
                && let Some(same) = same(entries)
            {
                *chunk = Chunk::Same(same);
            }
        }
    }

    /// Takes pointers of a snapshot, those from number `first`, which begins a chunk; false where
    /// they are not valid.
    pub(super) fn load(&mut self, first: u64, bytes: &[u8]) -> bool {
        let (encoded, rest) = bytes.as_chunks::<ENTRY_BYTES>();
        let end = first + encoded.len().to_u64();
        let (at, within) = place(first);
        if !rest.is_empty() || end > self.count || within != 0 {
            return false;
        }
        for (chunk, encoded) in self.chunks[at..].iter_mut().zip(encoded.chunks(CHUNK)) {
            let mut entries = [Entry::Absent; CHUNK];
            for (entry, bytes) in entries.iter_mut().zip(encoded) {
                match Entry::decode(bytes) {
                    Some(decoded) => *entry = decoded,
                    None => return false,
                }
            }
            // A chunk of equal entries takes no memory of its own.
            *chunk = match same(&entries[..encoded.len()]) {
                Some(same) => Chunk::Same(same),
                None => Chunk::Each(entries.into()),
            };
        }
        true
    }

    /// The bytes of all.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.count.to_usize() * ENTRY_BYTES);
        for at in 0..self.count {
            bytes.extend_from_slice(&self.get(at).encode());
        }
        bytes
    }
}

/// The chunk of pointer number `at`, and its place there.
fn place(at: u64) -> (usize, usize) {
    let at = at.to_usize();
    (at / CHUNK, at % CHUNK)
}

/// The common entry, if all are equal and none has data.
fn same(entries: &[Entry]) -> Option<Entry> {
    let first = *entries.first()?;
    let is_plain = !matches!(first, Entry::Data { .. });
    (is_plain && entries.iter().all(|entry| *entry == first)).then_some(first)
}

/// Pointers that are kept as one where they are equal.
pub(super) const CHUNK: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pointers_are_what_was_put_there_and_stretches_take_no_room() {
        let count = 3 * CHUNK as u64 + 17;
        let mut pointers = Pointers::new(count);
        let data = |slot| Entry::Data { slot, check: 7 };
        let mut wanted = vec![Entry::Absent; count as usize];
        for at in [5, CHUNK as u64, count - 1] {
            pointers.set(at, data(at));
            wanted[at as usize] = data(at);
        }
        for at in 2 * CHUNK as u64..3 * CHUNK as u64 {
            pointers.set(at, Entry::Zero);
            wanted[at as usize] = Entry::Zero;
        }
        assert!(matches!(pointers.chunks[2], Chunk::Same(Entry::Zero)));
        assert!((0..count).all(|at| pointers.get(at) == wanted[at as usize]));
        let bytes = pointers.encode();
        let mut again = Pointers::new(count);
        for (number, piece) in bytes.chunks(CHUNK * ENTRY_BYTES).enumerate() {
            assert!(again.load((number * CHUNK) as u64, piece));
        }
        assert!((0..count).all(|at| again.get(at) == wanted[at as usize]));
        assert!(matches!(again.chunks[2], Chunk::Same(Entry::Zero)));
        assert!(!again.load(0, &[0xFF; ENTRY_BYTES]));
        assert!(!again.load(4 * CHUNK as u64, &[0; ENTRY_BYTES]));
    }
}
