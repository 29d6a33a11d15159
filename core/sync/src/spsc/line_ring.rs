//! A ring whose entries are one cache line each: seven words, and which turn of the ring they
//! belong to.
//!
//! Why here: a message between two cores costs the lines that move. The turn lies in the entry's
//! own line, so one line moves a message. The writer reads the reader's position only where the
//! ring seems full, and the reader publishes it once in an eighth of a ring.
//!
//! Must stay true: partners are the Release of a line's turn and its Acquire, and those of the
//! reader's position in `positions`. A turn that is none of the reader's next is an old entry or
//! rubbish: it is not read. Any words may come out of an entry; the caller checks their meaning.
#![cfg_attr(not(loom), allow(unsafe_code))] // Says that a line may lie over shared memory.

use super::positions::{Consumer, Producer, Violation};
use crate::atomic::{AtomicU64, Ordering};
use sidecore_bare::width::{ToU64, ToUsize};

/// Words of an entry.
pub const LINE_WORDS: usize = 7;

/// An entry of the ring in memory, 64 bytes.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Line {
    words: [AtomicU64; LINE_WORDS],
    /// Number of entries written so far, this one included; 0 before the first.
    turn: AtomicU64,
}

impl Default for Line {
    fn default() -> Self {
        Self {
            words: std::array::from_fn(|_| AtomicU64::new(0)),
            turn: AtomicU64::new(0),
        }
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Line>() == 64);

// SAFETY: `repr(C)`, eight atomics that fill its 64 bytes, so no padding; any bytes are valid.
#[cfg(not(loom))]
unsafe impl sidecore_sys::Overlay for Line {}

/// Memory of a ring of `N` lines. `None` if the memory no longer exists, which ends the ring.
pub trait Lines<const N: usize> {
    /// Line number `index`, which is below `N`.
    fn line(&self, index: usize) -> Option<&Line>;
    /// The reader's position.
    fn position(&self) -> Option<&AtomicU64>;
}

/// A ring in memory that processes share.
#[cfg(not(loom))]
#[derive(Debug, Clone, Copy)]
pub struct SharedLines<'m> {
    /// The memory that both sides map.
    pub memory: sidecore_sys::SharedSlice<'m>,
    /// Offset of the first line, in bytes; a multiple of 64.
    pub lines_offset: usize,
    /// Offset of the reader's position, in bytes; a multiple of 8.
    pub position_offset: usize,
}

/// Stand-in under loom, which models no memory of other processes.
#[cfg(loom)]
#[derive(Debug, Clone, Copy)]
pub struct SharedLines<'m>(std::marker::PhantomData<&'m ()>);

#[cfg(not(loom))]
impl<const N: usize> Lines<N> for SharedLines<'_> {
    #[inline]
    fn line(&self, index: usize) -> Option<&Line> {
        let offset = self.lines_offset + index * size_of::<Line>();
        self.memory.overlay(offset)
    }

    #[inline]
    fn position(&self) -> Option<&AtomicU64> {
        self.memory.overlay(self.position_offset)
    }
}

/// The writing end of a ring of `N` lines, a power of two.
#[derive(Debug)]
pub struct Writer<const N: usize>(Producer);

impl<const N: usize> Default for Writer<N> {
    fn default() -> Self {
        const { assert!(N.is_power_of_two(), "a ring of 2^n lines") };
        Self(Producer::new(N.to_u64()))
    }
}

impl<const N: usize> Writer<N> {
    /// Free entries. Looks at the reader's position only where the last copy of it leaves less room
    /// than `wanted`.
    ///
    /// # Errors
    /// [`Violation`] for a position that cannot be, or a ring that lies nowhere.
    #[inline]
    pub fn room(&mut self, lines: &impl Lines<N>, wanted: usize) -> Result<usize, Violation> {
        let known = self.0.known() as usize;
        if known >= wanted {
            return Ok(known);
        }
        let position = lines.position().ok_or(Violation)?;
        Ok(self.0.room(wanted.to_u64(), position)?.to_usize())
    }

    /// Writes an entry; false where there is no room.
    ///
    /// # Errors
    /// As [`Self::room`].
    #[inline]
    pub fn write(
        &mut self,
        lines: &impl Lines<N>,
        words: &[u64; LINE_WORDS],
    ) -> Result<bool, Violation> {
        if self.room(lines, 1)? == 0 {
            return Ok(false);
        }
        let index = self.0.position().to_usize() % N;
        let line = lines.line(index).ok_or(Violation)?;
        for (word, value) in line.words.iter().zip(words) {
            word.store(*value, Ordering::Relaxed);
        }
        self.0.advance(1);
        // Release: partner of the Acquire in `Reader::turn_has_come`, publishes the words.
        line.turn.store(self.0.position(), Ordering::Release);
        self.0.published_by_mark();
        Ok(true)
    }
}

/// The reading end of a ring of `N` lines.
#[derive(Debug)]
pub struct Reader<const N: usize>(Consumer);

impl<const N: usize> Default for Reader<N> {
    fn default() -> Self {
        const { assert!(N.is_power_of_two(), "a ring of 2^n lines") };
        Self(Consumer::new(N.to_u64()))
    }
}

impl<const N: usize> Reader<N> {
    /// Number of entries that the reader releases at once.
    const RELEASE_EVERY: u64 = if N < 8 { 1 } else { N as u64 / 8 };

    /// The next entry's line, if it has been written.
    #[inline]
    fn turn_has_come<'l>(&self, lines: &'l impl Lines<N>) -> Option<&'l Line> {
        let position = self.0.position();
        let line = lines.line(position.to_usize() % N)?;
        // Acquire: partner of the Release in `Writer::write`. Any other turn is an old entry, or
        // rubbish of which nothing comes.
        (line.turn.load(Ordering::Acquire) == position + 1).then_some(line)
    }

    /// True if no entry waits.
    #[inline]
    #[must_use]
    pub fn is_empty(&self, lines: &impl Lines<N>) -> bool {
        self.turn_has_come(lines).is_none()
    }

    /// Takes the next entry. A copy: later writes to the line change nothing.
    #[inline]
    pub fn read(&mut self, lines: &impl Lines<N>) -> Option<[u64; LINE_WORDS]> {
        let line = self.turn_has_come(lines)?;
        let mut words = [0; LINE_WORDS];
        for (value, word) in words.iter_mut().zip(&line.words) {
            *value = word.load(Ordering::Relaxed);
        }
        self.0.advance_by_mark();
        if self.0.unreleased() >= Self::RELEASE_EVERY
            && let Some(position) = lines.position()
        {
            self.0.release(position);
        }
        Some(words)
    }
}
