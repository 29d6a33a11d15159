//! Executes sequences: copies literals and matches to the output.
//!
//! Why here: copies of fixed width, of which only the needed part counts, need no branch for the
//! usual lengths; the choice among earlier offsets has no branch either.
//! Must stay true: **the margin**. The fast loop executes a sequence only if [`OUTPUT_MARGIN`]
//! bytes of the output lie after its end, and writes no further; literals have
//! [`literals::MARGIN`](crate::literals::MARGIN) readable bytes after them. [`Output::carry_out`]
//! checks in advance that a block's sequences take no more literals than there are. Bytes after
//! `written` are scratch. Any thread.
//! Source: RFC 8878, sections 3.1.1.4 and 3.1.1.5.

// Copies of fixed width that may run past the requested length, within the margins checked here.
#![allow(unsafe_code)]

use crate::Error;
use crate::literals;
use crate::sequences::{self, Sequence};
use sidecore_bare::width::ToUsize;
use std::hint::{black_box, select_unpredictable};

/// Bytes after a sequence's end that its copies may overwrite.
const OUTPUT_MARGIN: usize = 64;
/// Literals that are copied without a check of their number.
const SHORT_LITERALS: usize = 32;
/// Bytes of a match that are copied without such a check.
const SHORT_MATCH: usize = 32;
/// Bytes that one copy moves.
const WIDTH: usize = 16;

/// The offsets that a frame starts with.
pub(crate) const FIRST_OFFSETS: [u32; 3] = [1, 4, 8];

/// A frame's contents so far, and the room for the rest.
pub(crate) struct Output<'o> {
    pub(crate) bytes: &'o mut [u8],
    /// The first byte of the frame's contents; at most `written`.
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

    /// Appends one byte `count` times.
    pub(crate) fn fill(&mut self, byte: u8, count: usize) -> Result<(), Error> {
        self.room(count)?.fill(byte);
        self.written += count;
        Ok(())
    }

    fn room(&mut self, count: usize) -> Result<&mut [u8], Error> {
        let rest = &mut self.bytes[self.written..];
        rest.get_mut(..count).ok_or(Error::Full)
    }

    /// Executes sequences. `room` is the number of bytes that the block may still produce; it is
    /// decreased.
    pub(crate) fn carry_out(
        &mut self,
        sequences: &[Sequence],
        literals: &mut Literals<'_>,
        recent: &mut [u32; 3],
        room: &mut usize,
    ) -> Result<(), Error> {
        // Neither sum overflows: 2^14 sequences of less than 2^18.
        let (taken, matched) = sequences::sums(sequences);
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
        let margin = self.bytes.len() - self.written - (taken + matched);
        let (fast, last) = sequences.split_at(sequences.len() - within_margin(sequences, margin));
        // SAFETY: as many literals as are taken are there, with their margin; the output has room
        // for all that is written, and its margin behind the last of these.
        unsafe { self.fast(fast, literals, recent)? };
        for &sequence in last {
            self.careful(sequence, literals, recent)?;
        }
        Ok(())
    }

    /// Executes sequences that end before the margin at the output's end.
    ///
    /// # Safety
    /// They do; `literals` has as many literals left as they take, and [`literals::MARGIN`] bytes
    /// behind all of them.
    unsafe fn fast(
        &mut self,
        sequences: &[Sequence],
        literals: &mut Literals<'_>,
        recent: &mut [u32; 3],
    ) -> Result<(), Error> {
        #[cfg(target_arch = "x86_64")]
        if crate::has_avx2() {
            // SAFETY: the processor has AVX2; the rest as this function's.
            return unsafe { self.fast_avx2(sequences, literals, recent) };
        }
        // SAFETY: as this function's.
        unsafe { self.turns(sequences, literals, recent) }
    }

    /// # Safety
    /// As [`Self::fast`]; the processor has AVX2.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx,avx2,bmi1,bmi2")]
    unsafe fn fast_avx2(
        &mut self,
        sequences: &[Sequence],
        literals: &mut Literals<'_>,
        recent: &mut [u32; 3],
    ) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe { self.turns(sequences, literals, recent) }
    }

    /// # Safety
    /// As [`Self::fast`].
    #[inline(always)]
    unsafe fn turns(
        &mut self,
        sequences: &[Sequence],
        literals: &mut Literals<'_>,
        recent: &mut [u32; 3],
    ) -> Result<(), Error> {
        let (bytes, source) = (self.bytes.as_mut_ptr(), literals.bytes.as_ptr());
        // SAFETY: `start` is in the output, `taken` in the literals.
        let mut hot = unsafe {
            Hot {
                base: bytes.add(self.start),
                at: (self.written - self.start).cast_signed(),
                from: source.add(literals.taken),
                recent: *recent,
            }
        };
        // SAFETY: as this function's.
        unsafe { hot.turns(sequences)? };
        self.written = self.start + hot.at.cast_unsigned();
        // SAFETY: the pointer has only been moved within the literals.
        literals.taken = unsafe { hot.from.offset_from_unsigned(source) };
        *recent = hot.recent;
        Ok(())
    }

    /// Executes one sequence without writing past its end; its literals and its room are checked.
    fn careful(
        &mut self,
        sequence: Sequence,
        literals: &mut Literals<'_>,
        recent: &mut [u32; 3],
    ) -> Result<(), Error> {
        let [count, matched, value, _] = sequence;
        let (count, matched) = (count.to_usize(), matched.to_usize());
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
        };
        let offset = offset.to_usize();
        // The literals come first, so the match may begin among them.
        let end = literals.taken + count;
        self.put(&literals.bytes[literals.taken..end])?;
        literals.taken = end;
        // Zero comes of a repeated offset of 1 minus 1, which only a damaged block asks for.
        if offset == 0 || offset > self.written - self.start {
            return Err(Error::Offset);
        }
        let from = self.written - offset;
        if offset >= matched {
            self.bytes.copy_within(from..from + matched, self.written);
        } else {
            // A match that overlaps its own output repeats what it has just written.
            for index in 0..matched {
                self.bytes[self.written + index] = self.bytes[from + index];
            }
        }
        self.written += matched;
        Ok(())
    }
}

/// The number of sequences at the end that come too close to the output's end, which lies `behind`
/// bytes after all of them.
fn within_margin(sequences: &[Sequence], mut behind: usize) -> usize {
    let mut count = 0;
    for sequence in sequences.iter().rev() {
        if behind >= OUTPUT_MARGIN {
            break;
        }
        behind += (sequence[0] + sequence[1]).to_usize();
        count += 1;
    }
    count
}

/// The state of the fast loop.
struct Hot {
    /// The frame's first byte.
    base: *mut u8,
    /// Bytes after `base` that are final.
    at: isize,
    /// The next literal.
    from: *const u8,
    recent: [u32; 3],
}

impl Hot {
    /// # Safety
    /// As [`Output::fast`].
    #[inline(always)]
    unsafe fn turns(&mut self, sequences: &[Sequence]) -> Result<(), Error> {
        let base = self.base;
        let (mut at, mut from) = (self.at, self.from);
        let [mut first, mut second, mut third] = self.recent;
        for sequence in sequences {
            let &[count, matched, value, _] = sequence;
            let (count, matched) = (count.to_usize(), matched.to_usize());
            let match_at = at + count.cast_signed();
            // SAFETY: the literals are there with their margin, and so is the output's room.
            unsafe { copy_exact::<SHORT_LITERALS>(from, base.offset(at)) };
            // Section 3.1.1.5: without literals, the values 1 to 3 mean the next offset in order.
            let choice = value.wrapping_sub(1).wrapping_add(u32::from(count == 0));
            let old = select_unpredictable(choice == 1, second, first);
            let old = select_unpredictable(choice == 2, third, old);
            let mut offset = select_unpredictable(value > 3, value.wrapping_sub(3), old);
            third = select_unpredictable(choice >= 2, second, third);
            second = select_unpredictable(choice >= 1, first, second);
            if choice == 3 {
                // Either a new offset, 1, or the last offset minus 1. The black box keeps this
                // comparison inside the branch: a branch on the value alone would be hard to
                // predict.
                offset = black_box(if value > 3 { 1 } else { first.wrapping_sub(1) });
                if offset == 0 {
                    return Err(Error::Offset);
                }
            }
            first = offset;
            if count > SHORT_LITERALS {
                // SAFETY: as above: the last copy begins before the literals' end.
                unsafe {
                    let to = base.offset(at);
                    copy_behind::<SHORT_LITERALS>(from, to, SHORT_LITERALS, count);
                }
            }
            // SAFETY: the block takes no more literals than there are.
            from = unsafe { from.add(count) };
            let offset = offset.to_usize();
            let match_from = match_at - offset.cast_signed();
            if match_from < 0 {
                return Err(Error::Offset);
            }
            // SAFETY: the match begins in the frame, and its room is there with its margin.
            unsafe {
                let (match_from, match_to) = (base.offset(match_from), base.offset(match_at));
                if offset >= WIDTH {
                    copy(match_from, match_to);
                    copy(match_from.add(WIDTH), match_to.add(WIDTH));
                    if matched > SHORT_MATCH {
                        copy_behind::<WIDTH>(match_from, match_to, SHORT_MATCH, matched);
                    }
                } else {
                    repeat(match_to, offset, matched);
                }
            }
            at = match_at + matched.cast_signed();
        }
        (self.at, self.from) = (at, from);
        self.recent = [first, second, third];
        Ok(())
    }
}

/// # Safety
/// [`WIDTH`] bytes are readable at `from` and writable at `to`.
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe { copy_exact::<WIDTH>(from, to) }
}

/// Copies `N` bytes; all are read before any is written.
///
/// # Safety
/// They are readable at `from` and writable at `to`.
#[inline(always)]
unsafe fn copy_exact<const N: usize>(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        let bytes = from.cast::<[u8; N]>().read();
        to.cast::<[u8; N]>().write(bytes);
    }
}

/// Copies bytes `copied` to `count`, N at a time, and at most N - 1 more. If the ranges overlap,
/// `from` is at least N before `to`.
///
/// # Safety
/// The bytes and their margins are there.
#[inline(always)]
unsafe fn copy_behind<const N: usize>(
    from: *const u8,
    to: *mut u8,
    mut copied: usize,
    count: usize,
) {
    // Usually one or two steps: a step that the compiler does not know keeps it from unrolling
    // this, which would cost the surrounding loop registers.
    let step = black_box(N);
    while copied < count {
        // SAFETY: begins below `count`, and ends within the margins.
        unsafe { copy_exact::<N>(from.add(copied), to.add(copied)) };
        copied += step;
    }
}

/// Repeats the `offset` bytes (1 to 15) before `to` over `count` bytes and at most 31 more.
///
/// # Safety
/// The bytes before `to` are there, and [`OUTPUT_MARGIN`] bytes behind `count`.
#[cold]
#[inline(never)]
unsafe fn repeat(to: *mut u8, offset: usize, count: usize) {
    let (mut at, mut distance) = (0, offset);
    // Each copy has as many right bytes as the distance; the distance then doubles.
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
