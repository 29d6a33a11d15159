//! A line of 128 bytes that engines and hosts share and change atomically.
//!
//! Why here: the Cell's engines agree on work by atomic lines: an engine reads and reserves a line,
//! and its write succeeds if there was no other write since. Here the line carries a version that
//! every write advances; the reservation is the version that was read. Must stay true: a reader
//! sees one write whole, never parts of two. Any thread; a reader waits while a write is under way
//! (nanoseconds, unless the writer lost its core). Source: Cell Broadband Engine Architecture, "MFC
//! Atomic Update Commands" (getllar, putllc, putlluc).

use crossbeam_utils::CachePadded;
use sidecore_sync::atomic::{AtomicU64, Ordering, fence, spin};

/// Words in a line; fewer where loom looks at every order of their loads and stores.
const WORDS: usize = if cfg!(loom) { 2 } else { 16 };

/// The contents of a line: 16 words of 64 bits.
pub type LineWords = [u64; WORDS];

/// A shared line.
#[derive(Debug)]
#[repr(align(128))]
pub struct Line {
    words: [AtomicU64; WORDS],
    /// Odd while a write is under way; grows by 2 with each.
    version: CachePadded<AtomicU64>,
}

impl Default for Line {
    fn default() -> Self {
        Self::new([0; WORDS])
    }
}

impl Line {
    /// A line with these contents.
    #[must_use]
    pub fn new(words: LineWords) -> Self {
        Self {
            words: words.map(AtomicU64::new),
            version: CachePadded::new(AtomicU64::new(0)),
        }
    }

    /// Reads the whole line atomically.
    #[must_use]
    pub fn read(&self) -> LineWords {
        self.read_versioned().0
    }

    /// Writes it whole, whatever it held; every reservation of it is lost. (On the Cell:
    /// `putlluc`.)
    pub fn write(&self, words: &LineWords) {
        loop {
            let version = self.version.load(Ordering::Relaxed);
            if version.is_multiple_of(2) && self.write_if(version, words) {
                return;
            }
            spin();
        }
    }

    /// Reads the whole line atomically, with its version.
    pub(crate) fn read_versioned(&self) -> (LineWords, u64) {
        loop {
            // Acquire, from the Release at the end of `write_if`: the words of that version or of a
            // later one.
            let before = self.version.load(Ordering::Acquire);
            if before.is_multiple_of(2) {
                let words = std::array::from_fn(|index| self.words[index].load(Ordering::Relaxed));
                // Partner: the Release fence in `write_if`. A word of a later write shows its odd
                // version here.
                fence(Ordering::Acquire);
                if self.version.load(Ordering::Relaxed) == before {
                    return (words, before);
                }
            }
            spin();
        }
    }

    /// Writes the whole line if its version is still `version`; true if it was written.
    pub(crate) fn write_if(&self, version: u64, words: &LineWords) -> bool {
        let claimed = self.version.compare_exchange(
            version,
            version + 1,
            Ordering::Acquire,
            Ordering::Relaxed,
        );
        if claimed.is_err() {
            return false;
        }
        fence(Ordering::Release);
        for (word, &value) in self.words.iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        self.version.store(version + 2, Ordering::Release);
        true
    }

    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_line_holds_what_was_written_last_and_a_stale_version_writes_nothing() {
        let words = |first: u64| std::array::from_fn(|index| first + index as u64);
        let line = Line::new(words(100));
        assert_eq!(line.read(), words(100));
        line.write(&words(200));
        let (read, version) = line.read_versioned();
        assert_eq!((read, line.read()), (words(200), words(200)));
        assert!(line.write_if(version, &words(300)));
        assert_eq!(line.read(), words(300));
        assert!(!line.write_if(version, &words(400)));
        assert_eq!(line.read(), words(300));
        // Each write has a version of its own, an even one: no write is under way.
        let (_, later) = line.read_versioned();
        assert_eq!((later, later % 2), (version + 2, 0));
        assert_eq!(line.address(), std::ptr::from_ref(&line).addr());
    }

    #[test]
    fn readers_never_see_half_a_write() {
        let line = Line::default();
        std::thread::scope(|scope| {
            for writer in 1..=2u64 {
                let line = &line;
                scope.spawn(move || {
                    for round in 0..5_000 {
                        line.write(&[writer << 32 | round; 16]);
                    }
                });
            }
            for _ in 0..20_000 {
                let words = line.read();
                assert!(words.iter().all(|&word| word == words[0]), "{words:x?}");
            }
        });
    }
}
