//! A ring's orderings, and those of falling asleep: all that two threads must agree on.
//!
//! Why here: `tests/loom.rs` takes this file as it is and tries every interleaving with loom's atomics
//! in place of the processor's. So nothing in it knows of memory that is shared, or of descriptors.
//! Must stay true: partners are the Release of a line's turn and its Acquire, the Release of the
//! reader's position and its Acquire, and the two fences.

use super::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// The other side broke the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Violation;

/// An entry as it lies in memory: seven words, and which turn of the ring they belong to.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub(crate) struct Line {
    words: [AtomicU64; 7],
    turn: AtomicU64,
}

/// Where a ring of `N` lines lies; none where there is no such place.
pub(crate) trait Lines<const N: usize> {
    /// A line, below `N`.
    fn line(&self, index: usize) -> Option<&Line>;
    /// What the reader has taken.
    fn position(&self) -> Option<&AtomicU64>;
}

/// The writing side's state. What it knows it keeps to itself.
#[derive(Debug, Default)]
pub(crate) struct Writer<const N: usize> {
    next: u64,
    /// What the reader has taken, as last seen.
    taken: u64,
}

impl<const N: usize> Writer<N> {
    /// How many entries there is room for, without a look at the reader's position if `wanted` fit.
    #[inline]
    pub(crate) fn room(
        &mut self,
        lines: &impl Lines<N>,
        wanted: usize,
    ) -> Result<usize, Violation> {
        let known = N - (self.next - self.taken) as usize;
        if known >= wanted {
            return Ok(known);
        }
        // Acquire: partner of the reader's Release; it has copied what is written over now.
        let taken = lines.position().ok_or(Violation)?.load(Ordering::Acquire);
        if taken < self.taken || taken > self.next {
            return Err(Violation);
        }
        self.taken = taken;
        Ok(N - (self.next - taken) as usize)
    }

    /// Writes an entry; false where there is no room.
    #[inline]
    pub(crate) fn write(
        &mut self,
        lines: &impl Lines<N>,
        words: &[u64; 7],
    ) -> Result<bool, Violation> {
        if self.room(lines, 1)? == 0 {
            return Ok(false);
        }
        let line = lines.line(self.next as usize % N).ok_or(Violation)?;
        for (word, value) in line.words.iter().zip(words) {
            word.store(*value, Ordering::Relaxed);
        }
        self.next += 1;
        line.turn.store(self.next, Ordering::Release);
        Ok(true)
    }
}

/// The reading side's state.
#[derive(Debug, Default)]
pub(crate) struct Reader<const N: usize> {
    next: u64,
    released: u64,
}

impl<const N: usize> Reader<N> {
    /// The writer hears of so many free places at once.
    const RELEASE_EVERY: u64 = if N < 8 { 1 } else { N as u64 / 8 };

    /// Whether an entry waits.
    #[inline]
    pub(crate) fn is_empty(&self, lines: &impl Lines<N>) -> bool {
        let line = lines.line(self.next as usize % N);
        line.is_none_or(|line| line.turn.load(Ordering::Acquire) != self.next + 1)
    }

    /// Takes the next entry.
    #[inline]
    pub(crate) fn read(&mut self, lines: &impl Lines<N>) -> Option<[u64; 7]> {
        let line = lines.line(self.next as usize % N)?;
        // Any other turn is an old entry, or nonsense of which nothing comes.
        if line.turn.load(Ordering::Acquire) != self.next + 1 {
            return None;
        }
        let mut words = [0; 7];
        for (value, word) in words.iter_mut().zip(&line.words) {
            *value = word.load(Ordering::Relaxed);
        }
        self.next += 1;
        if self.next - self.released >= Self::RELEASE_EVERY {
            if let Some(position) = lines.position() {
                position.store(self.next, Ordering::Release);
            }
            self.released = self.next;
        }
        Some(words)
    }
}

/// Says that this side is about to sleep. What it looks at afterwards decides whether it does.
#[inline]
pub(crate) fn announce_sleep<'a>(words: impl Iterator<Item = &'a AtomicU32>) {
    for word in words {
        word.store(1, Ordering::Relaxed);
    }
    // Partner: the fence in `sleeps`: the other side sees that we sleep, or we see what it wrote.
    fence(Ordering::SeqCst);
}

/// After writing: whether the other side sleeps, or is about to, and must be woken.
#[inline]
pub(crate) fn sleeps(word: Option<&AtomicU32>) -> bool {
    // Partner: the fence in `announce_sleep`.
    fence(Ordering::SeqCst);
    word.is_some_and(|word| word.load(Ordering::Relaxed) != 0)
}
