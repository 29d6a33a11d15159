//! Chunks of files' contents in a scratch file; equal ones are stored once.
//!
//! Must stay true: two chunks share a place only if their bytes were compared; a hash is only a
//! hint where to look. Every chunk is whole blocks.
//!
//! Takes about 40 bytes of memory for each stored chunk.

use sidecore_bare::width::{ToU64, ToUsize};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use xxhash_rust::xxh3::xxh3_128;

/// See the module.
pub(super) struct Chunks<'f> {
    file: &'f File,
    /// Places by hash (XXH3-128), in bytes.
    places: HashMap<u128, u64>,
    /// End of the last chunk.
    end: u64,
    /// Bytes that are not written to the file yet, and their place there.
    waiting: Vec<u8>,
    waiting_at: u64,
    /// A chunk read from the file for comparison.
    stored: Vec<u8>,
}

impl<'f> Chunks<'f> {
    /// Chunks in `file`, from byte `at` on.
    pub(super) fn new(file: &'f File, at: u64) -> Self {
        Self {
            file,
            places: HashMap::new(),
            end: at,
            waiting: Vec::with_capacity(2 * WAITING_BYTES),
            waiting_at: at,
            stored: Vec::new(),
        }
    }

    /// End of the last chunk.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// Place of a chunk of whole blocks, which is written unless an equal one was before.
    pub(super) fn keep(&mut self, bytes: &[u8]) -> io::Result<u64> {
        let hash = xxh3_128(bytes);
        if let Some(&at) = self.places.get(&hash) {
            if self.is_stored(at, bytes)? {
                return Ok(at);
            }
        } else {
            // On a collision the first chunk keeps the entry: the other is stored again each time.
            self.places.insert(hash, self.end);
        }
        let at = self.end;
        self.put(at, bytes)?;
        self.end += bytes.len().to_u64();
        Ok(at)
    }

    fn is_stored(&mut self, at: u64, bytes: &[u8]) -> io::Result<bool> {
        // A chunk with the same hash may be shorter, and the last one in the file.
        if at + bytes.len().to_u64() > self.end {
            return Ok(false);
        }
        // Not written yet: compared in memory.
        if let Some(within) = at.checked_sub(self.waiting_at) {
            return Ok(self.waiting[within.to_usize()..].starts_with(bytes));
        }
        // Compared in full: a hash that others can make collide must not mix two files.
        self.stored.resize(bytes.len(), 0);
        if at + bytes.len().to_u64() > self.waiting_at {
            self.flush()?;
        }
        self.file.read_exact_at(&mut self.stored, at)?;
        Ok(self.stored == bytes)
    }

    /// Writes bytes at a place that was never written. Bytes that begin shortly after the last ones
    /// are written together with them; the gap between them must stay unused.
    pub(super) fn put(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let gap = at.checked_sub(self.waiting_at + self.waiting.len().to_u64());
        match gap.filter(|&gap| gap < GAP_BYTES_MAX && self.waiting.len() < WAITING_BYTES) {
            Some(gap) => self.waiting.resize(self.waiting.len() + gap.to_usize(), 0),
            None => {
                self.flush()?;
                self.waiting_at = at;
            }
        }
        self.waiting.extend_from_slice(bytes);
        Ok(())
    }

    /// Writes all pending bytes.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.file.write_all_at(&self.waiting, self.waiting_at)?;
        self.waiting_at += self.waiting.len().to_u64();
        self.waiting.clear();
        Ok(())
    }
}

/// Bytes that are written at once.
const WAITING_BYTES: usize = 1 << 20;
/// Inodes begin at multiples of this: a smaller gap between two of them is padding.
const GAP_BYTES_MAX: u64 = 32;
