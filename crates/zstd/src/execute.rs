//! Carries out sequences: literals and matches into the output.
//!
//! Why here: copies of fixed width, of which only the wanted part counts, need no branch for the
//! usual lengths, and which earlier offset is meant is chosen without one.
//! Must stay true: **the margin**. The fast loop carries a sequence out only if [`OUTPUT_MARGIN`]
//! bytes of the output lie behind its end, and writes no further; literals have
//! [`literals::MARGIN`](crate::literals::MARGIN) readable bytes behind them. That a block's
//! sequences take no more literals than there are is checked before ([`Output::carry_out`]).
//! Bytes behind `written` are scratch. Any thread. Source: RFC 8878, sections 3.1.1.4 and 3.1.1.5.

// Copies of fixed width that may run past what was asked for, within the margins checked here.
#![allow(unsafe_code)]

use crate::Error;
use crate::literals;
use std::hint::select_unpredictable;

/// Bytes behind a sequence's end that its copies may overwrite.
const OUTPUT_MARGIN: usize = 64;
/// Literals that are copied without a look at how many there are.
const SHORT_LITERALS: usize = 16;
/// Bytes of a match that are copied likewise.
const SHORT_MATCH: usize = 32;
/// Bytes that one copy moves.
const WIDTH: usize = 16;

/// The offsets that a frame starts with.
pub(crate) const FIRST_OFFSETS: [u32; 3] = [1, 4, 8];

/// A frame's contents so far, and the room for the rest.
pub(crate) struct Output<'o> {
    pub(crate) bytes: &'o mut [u8],
    /// Where the frame's contents begin; at most `written`.
    pub(crate) start: usize,
    /// Bytes that are final; at most all.
    pub(crate) written: usize,
}

/// Literals of a block, in order.
pub(crate) struct Literals<'l> {
    /// [`literals::MARGIN`] bytes more than there are literals.
    pub(crate) bytes: &'l [u8],
    /// Literals that have been taken.
    pub(crate) taken: usize,
    /// All literals.
    pub(crate) count: usize,
}

impl Output<'_> {
    /// Appends bytes as they are.
    pub(crate) fn put(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.room(bytes.len())?.copy_from_slice(bytes);
        self.written += bytes.len();
        Ok(())
    }

    /// Appends one byte many times.
    pub(crate) fn fill(&mut self, byte: u8, count: usize) -> Result<(), Error> {
        self.room(count)?.fill(byte);
        self.written += count;
        Ok(())
    }

    fn room(&mut self, count: usize) -> Result<&mut [u8], Error> {
        let rest = &mut self.bytes[self.written..];
        rest.get_mut(..count).ok_or(Error::Full)
    }

    /// Carries out sequences: their lengths (literals low, match high) and their offset values.
    /// `room` is what the block may still give; it is counted down.
    pub(crate) fn carry_out(
        &mut self,
        (lengths, offsets): (&[u64], &[u32]),
        literals: &mut Literals<'_>,
        recent: &mut [u32; 3],
        room: &mut usize,
    ) -> Result<(), Error> {
        debug_assert_eq!(lengths.len(), offsets.len());
        // Neither half runs over: 2^14 sequences of less than 2^18.
        let sum = lengths.iter().copied().fold(0, u64::wrapping_add);
        let (taken, matched) = (sum as u32 as usize, (sum >> 32) as usize);
        if taken > literals.count - literals.taken {
            return Err(Error::Sequences);
        }
        if taken + matched > *room {
            return Err(Error::Block);
        }
        if taken + matched > self.bytes.len() - self.written {
            return Err(Error::Full);
        }
        *room -= taken + matched;
        debug_assert!(literals.bytes.len() >= literals.count + literals::MARGIN);
        // SAFETY: as many literals as are taken are there, with their margin; the output has room
        // for all that is written.
        let done = unsafe { self.fast(lengths, offsets, literals, recent)? };
        for (&length, &value) in lengths[done..].iter().zip(&offsets[done..]) {
            self.careful(length, value, literals, recent)?;
        }
        Ok(())
    }

    /// Carries out sequences until one ends within the margin before the output's end; returns how
    /// many.
    ///
    /// # Safety
    /// `literals` has as many literals left as `lengths` takes, and [`literals::MARGIN`] bytes
    /// behind all of them.
    #[inline(never)]
    unsafe fn fast(
        &mut self,
        lengths: &[u64],
        offsets: &[u32],
        literals: &mut Literals<'_>,
        recent: &mut [u32; 3],
    ) -> Result<usize, Error> {
        let Some(limit) = self.bytes.len().checked_sub(OUTPUT_MARGIN) else {
            return Ok(0);
        };
        let base = self.bytes.as_mut_ptr();
        let source = literals.bytes.as_ptr();
        let (mut at, mut taken) = (self.written, literals.taken);
        let [mut first, mut second, mut third] = *recent;
        let mut done = 0;
        for (&length, &value) in lengths.iter().zip(offsets) {
            let (count, matched) = (length as u32 as usize, (length >> 32) as usize);
            let match_at = at + count;
            let end = match_at + matched;
            if end > limit {
                break;
            }
            // Section 3.1.1.5: without literals, the values 1 to 3 mean the next in order.
            let choice = value.wrapping_sub(1) + u32::from(count == 0);
            let old = select_unpredictable(choice == 1, second, first);
            let old = select_unpredictable(choice == 2, third, old);
            let old = select_unpredictable(choice == 3, first.wrapping_sub(1), old);
            let offset = select_unpredictable(value > 3, value.wrapping_sub(3), old);
            third = select_unpredictable(choice >= 2, second, third);
            second = select_unpredictable(choice >= 1, first, second);
            first = offset;
            // SAFETY: the literals are there with their margin; the output's margin is behind
            // `end`.
            unsafe {
                copy(source.add(taken), base.add(at));
                if count > SHORT_LITERALS {
                    let mut copied = WIDTH;
                    while copied < count {
                        copy(source.add(taken + copied), base.add(at + copied));
                        copied += WIDTH;
                    }
                }
            }
            taken += count;
            let offset = offset as usize;
            // An offset of 0 is none: it becomes the largest.
            if offset.wrapping_sub(1) >= match_at - self.start {
                return Err(Error::Offset);
            }
            // SAFETY: `offset` bytes back is in the frame; the margin is behind `end`.
            unsafe {
                let (to, from) = (base.add(match_at), base.add(match_at - offset));
                if offset >= WIDTH {
                    copy(from, to);
                    copy(from.add(WIDTH), to.add(WIDTH));
                    if matched > SHORT_MATCH {
                        let mut copied = SHORT_MATCH;
                        while copied < matched {
                            copy(from.add(copied), to.add(copied));
                            copy(from.add(copied + WIDTH), to.add(copied + WIDTH));
                            copied += 2 * WIDTH;
                        }
                    }
                } else {
                    repeat(to, offset, matched);
                }
            }
            at = end;
            done += 1;
        }
        self.written = at;
        literals.taken = taken;
        *recent = [first, second, third];
        Ok(done)
    }

    /// Carries out one sequence without a byte too many; its literals and its room are there.
    fn careful(
        &mut self,
        length: u64,
        value: u32,
        literals: &mut Literals<'_>,
        recent: &mut [u32; 3],
    ) -> Result<(), Error> {
        let (count, matched) = (length as u32 as usize, (length >> 32) as usize);
        let offset = match (value.wrapping_sub(1)) + u32::from(count == 0) {
            _ if value > 3 => {
                let offset = value - 3;
                *recent = [offset, recent[0], recent[1]];
                offset
            }
            0 => recent[0],
            1 => {
                recent.swap(0, 1);
                recent[0]
            }
            2 => {
                recent.rotate_right(1);
                recent[0]
            }
            _ => {
                let offset = recent[0].wrapping_sub(1);
                *recent = [offset, recent[0], recent[1]];
                offset
            }
        } as usize;
        let end = literals.taken + count;
        self.put(&literals.bytes[literals.taken..end])?;
        literals.taken = end;
        if offset == 0 || offset > self.written - self.start {
            return Err(Error::Offset);
        }
        let from = self.written - offset;
        if offset >= matched {
            self.bytes.copy_within(from..from + matched, self.written);
        } else {
            for index in 0..matched {
                self.bytes[self.written + index] = self.bytes[from + index];
            }
        }
        self.written += matched;
        Ok(())
    }
}

/// # Safety
/// [`WIDTH`] bytes are readable at `from` and writable at `to`.
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's promise; all is read before anything is written.
    unsafe {
        let bytes = from.cast::<[u8; WIDTH]>().read();
        to.cast::<[u8; WIDTH]>().write(bytes);
    }
}

/// Repeats the `offset` bytes (1 to 15) before `to` over `count` bytes and at most 31 more.
///
/// # Safety
/// The bytes before `to` are there, and [`OUTPUT_MARGIN`] bytes behind `count`.
unsafe fn repeat(to: *mut u8, offset: usize, count: usize) {
    let (mut at, mut distance) = (0, offset);
    // Of each copy as many bytes are right as the distance has, and then twice as many repeat.
    while distance < WIDTH {
        // SAFETY: at is below 16 + 15 here; the margin is behind it.
        unsafe { copy(to.add(at).sub(distance), to.add(at)) };
        at += distance;
        distance *= 2;
    }
    while at < count {
        // SAFETY: begins below `count`, and ends within the margin.
        unsafe { copy(to.add(at).sub(distance), to.add(at)) };
        at += WIDTH;
    }
}
