//! A block's symbols while there is input and room for more than one of them: most of the work.
//!
//! Why here: with that much of both, nothing is checked per byte. Eight bytes are loaded at once,
//! and matches are copied by 16, beyond their ends, which the next symbol overwrites. Near the ends
//! of input and room a second loop goes on as zlib's own, so that the last symbols are read from
//! the same bytes.
//! Must stay true: on leaving, whole bytes that were not used are the program's again. Writes
//! beyond a match lie inside the room. Any bytes may come in.

use super::machine::Mode;
use super::run::Run;
use super::tables::Code;
use crate::memory::Window;
use sidecore_bare::width::ToUsize;
use std::ffi::CStr;
use std::ptr;

/// Input that one turn of the wide loop may load from: two loads of eight bytes.
const WIDE_INPUT: usize = 16;
/// Room that one turn of the wide loop may write to: three literals, the longest match, and the
/// excess that it writes beyond it.
const WIDE_ROOM: usize = 3 + 258 + 32;
/// As zlib has them, for the second loop.
const INPUT: usize = 6;
const ROOM: usize = 258;

/// A bit buffer of which whole bytes can be given back.
struct Held {
    hold: u64,
    bits: u32,
}

impl Held {
    #[inline(always)]
    fn drop(&mut self, count: u32) {
        self.hold >>= count;
        self.bits = self.bits.wrapping_sub(count);
    }

    #[inline(always)]
    fn peek(&self, count: u32) -> usize {
        (self.hold & ((1 << count) - 1)).to_usize()
    }
}

/// Why a loop ended before its input and room did.
#[derive(Clone, Copy)]
enum End {
    Block,
    Bad(&'static CStr),
}

impl Run<'_> {
    /// Goes on at a symbol's beginning, until the block's end, an error, or the end of the input or
    /// room.
    ///
    /// # Safety
    /// The stream's buffers are as its fields say; the bit buffer has fewer than 8 bits; there are
    /// [`INPUT`] bytes and room for [`ROOM`].
    pub(super) unsafe fn fast(&mut self) {
        let mut held = Held {
            hold: self.machine.hold,
            bits: self.machine.bits,
        };
        // SAFETY: the caller's promise; each loop checks its own bounds.
        let ended = unsafe {
            match self.wide(&mut held) {
                None if self.have >= INPUT && self.left >= ROOM => self.narrow(&mut held),
                ended => ended,
            }
        };
        (self.machine.hold, self.machine.bits) = (held.hold, held.bits);
        match ended {
            None => {}
            Some(End::Block) => self.machine.mode = Mode::Type,
            Some(End::Bad(message)) => {
                self.bad(message).ok();
            }
        }
    }

    /// The first loop, with the processor's instructions for shifts where it has them.
    ///
    /// # Safety
    /// As [`Self::fast`], whatever there is of both.
    unsafe fn wide(&mut self, held: &mut Held) -> Option<End> {
        if self.have < WIDE_INPUT || self.left < WIDE_ROOM {
            return None;
        }
        // SAFETY: the caller's promise; the processor has the features that were checked.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            if std::arch::is_x86_feature_detected!("bmi1")
                && std::arch::is_x86_feature_detected!("bmi2")
            {
                return self.wide_with_shifts(held);
            }
            self.wide_anywhere(held)
        }
    }

    /// # Safety
    /// As [`Self::wide_turns`], on a processor with BMI2.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "bmi1,bmi2")]
    unsafe fn wide_with_shifts(&mut self, held: &mut Held) -> Option<End> {
        // SAFETY: the caller's promise.
        unsafe { self.wide_turns(held) }
    }

    /// # Safety
    /// As [`Self::wide_turns`].
    #[inline(never)]
    unsafe fn wide_anywhere(&mut self, held: &mut Held) -> Option<End> {
        // SAFETY: the caller's promise.
        unsafe { self.wide_turns(held) }
    }

    /// # Safety
    /// As [`Self::fast`]; there are [`WIDE_INPUT`] bytes and room for [`WIDE_ROOM`].
    #[inline(always)]
    unsafe fn wide_turns(&mut self, held: &mut Held) -> Option<End> {
        let start_have = self.have;
        let start_left = self.left;
        let (mut next, mut put) = (self.next, self.put);
        // SAFETY: inside the buffers, by the checks above.
        let (last_next, last_put) = unsafe {
            (
                next.add(self.have - WIDE_INPUT),
                put.add(self.left - WIDE_ROOM),
            )
        };
        // The address of the output's first byte that this call may refer to.
        let begin = put.wrapping_sub(self.room - self.left);
        let window = &self.machine.window;
        let (literals, distances) = self.machine.tables();
        let (literals, distances) = (literals.as_ptr(), distances.as_ptr());
        let codes = &self.machine.codes;
        let (literal_bits, distance_bits) = (codes.literal_bits, codes.distance_bits);
        // In locals, so that they stay in registers: the machine is behind a reference.
        let (mut hold, mut bits) = (held.hold, held.bits);
        // The bits from the symbol in hand on.
        let mut saved;

        macro_rules! refill {
            () => {
                // SAFETY: the loop's condition, at most twice a turn. A byte that is there already
                // is loaded again.
                let more = u64::from_le(unsafe { next.cast::<u64>().read_unaligned() });
                hold |= more.wrapping_shl(bits);
                next = next.wrapping_add(7 - (bits >> 3 & 7).to_usize());
                bits |= 56;
            };
        }
        // Drops a symbol's bits and its extra bits, which `value` finds in `saved`. The lowest byte
        // of `bits` alone counts meanwhile.
        macro_rules! take {
            ($here:expr) => {
                saved = hold;
                hold = hold.wrapping_shr($here.word());
                bits = bits.wrapping_sub($here.word());
            };
        }
        macro_rules! entry {
            ($table:expr, $index:expr) => {
                // SAFETY: `tables` keeps every index that an entry leads to inside the table.
                unsafe { *$table.add($index) }
            };
        }
        macro_rules! literal {
            ($here:expr) => {
                // SAFETY: there is room, by the loop's condition.
                unsafe { *put = $here.literal() };
                put = put.wrapping_add(1);
            };
        }
        let mask = |count: u32| (1_u64 << (count & 63)) - 1;
        let (literal_mask, distance_mask) = (mask(literal_bits), mask(distance_bits));
        macro_rules! next_literal {
            () => {
                entry!(literals, (hold & literal_mask).to_usize())
            };
        }
        // A symbol of the second level, behind the bits of the first.
        macro_rules! follow {
            ($table:expr, $here:expr) => {
                entry!($table, $here.val() + (hold & mask($here.op())).to_usize())
            };
        }
        let value = |here: Code, saved: u64| {
            here.val() + ((saved & mask(here.bits())) >> (here.op() & 15)).to_usize()
        };

        let mut ended = None;
        refill!();
        let mut here: Code = next_literal!();
        while next <= last_next && put <= last_put {
            // Two literals of the first level and a length, or a third, take 40 of the 56 bits. The
            // other 16 are enough to look the next symbol up before there are more.
            take!(here);
            if here.is_literal() {
                literal!(here);
                here = next_literal!();
                take!(here);
                if here.is_literal() {
                    literal!(here);
                    here = next_literal!();
                    take!(here);
                    if here.is_literal() {
                        literal!(here);
                        here = next_literal!();
                        refill!();
                        continue;
                    }
                }
            }
            if !here.is_base() {
                if here.is_link() {
                    here = follow!(literals, here);
                    take!(here);
                    if here.is_literal() {
                        literal!(here);
                        here = next_literal!();
                        refill!();
                        continue;
                    }
                }
                if !here.is_base() {
                    ended = Some(if here.is_end() {
                        End::Block
                    } else {
                        End::Bad(c"invalid literal/length code")
                    });
                    break;
                }
            }
            let len = value(here, saved);

            here = entry!(distances, (hold & distance_mask).to_usize());
            refill!();
            take!(here);
            if !here.is_base() {
                if here.is_link() {
                    here = follow!(distances, here);
                    take!(here);
                }
                if !here.is_base() {
                    ended = Some(End::Bad(c"invalid distance code"));
                    break;
                }
            }
            let distance = value(here, saved);

            // The next symbol's entry is on its way while the match is copied.
            here = next_literal!();
            refill!();
            let made = put.addr() - begin.addr();
            if distance <= made {
                // SAFETY: within the output, with the room that the loop's condition leaves.
                unsafe { copy_match(put, distance, len) };
            // Rare: only the first 32 KiB of a call refer to what an earlier one made.
            } else if window.reaches(distance, made) {
                // SAFETY: there is room.
                unsafe { window.copy(distance - made, put, distance, len) };
            } else {
                ended = Some(End::Bad(c"invalid distance too far back"));
                break;
            }
            put = put.wrapping_add(len);
        }
        bits &= 63;
        // Whole bytes are the input's again.
        next = next.wrapping_sub((bits / 8).to_usize());
        bits &= 7;
        held.hold = hold & mask(bits);
        held.bits = bits;
        self.have = start_have - (next.addr() - self.next.addr());
        self.left = start_left - (put.addr() - self.put.addr());
        (self.next, self.put) = (next, put);
        ended
    }

    /// zlib's loop, step by step.
    ///
    /// # Safety
    /// As [`Self::fast`].
    unsafe fn narrow(&mut self, held: &mut Held) -> Option<End> {
        let machine = &*self.machine;
        let (literals, distances) = machine.tables();
        let codes = &machine.codes;
        let (literal_bits, distance_bits) = (codes.literal_bits, codes.distance_bits);
        let (mut next, mut have) = (self.next, self.have);
        let (mut put, mut left) = (self.put, self.left);

        macro_rules! pull_below {
            ($wanted:expr) => {
                while held.bits < $wanted {
                    // SAFETY: a turn begins with 6 bytes and pulls no more: 15 bits, then 5, 15 and
                    // 13 are 48, of which none is pulled before the last are used.
                    held.hold += u64::from(unsafe { *next }) << held.bits;
                    next = next.wrapping_add(1);
                    have -= 1;
                    held.bits += 8;
                }
            };
        }
        let mut ended = None;
        loop {
            pull_below!(15);
            let mut here = literals[held.peek(literal_bits)];
            if !here.is_literal() && here.is_link() {
                held.drop(here.bits());
                here = literals[here.val() + held.peek(here.op())];
            }
            held.drop(here.code_bits());
            if here.is_literal() {
                // SAFETY: there is room.
                unsafe { *put = here.literal() };
                put = put.wrapping_add(1);
                left -= 1;
            } else if here.is_base() {
                let extra = here.bits() - here.code_bits();
                pull_below!(extra);
                let len = here.val() + held.peek(extra);
                held.drop(extra);
                pull_below!(15);
                here = distances[held.peek(distance_bits)];
                if here.is_link() {
                    held.drop(here.bits());
                    here = distances[here.val() + held.peek(here.op())];
                }
                held.drop(here.code_bits());
                if !here.is_base() {
                    ended = Some(End::Bad(c"invalid distance code"));
                    break;
                }
                let extra = here.bits() - here.code_bits();
                pull_below!(extra);
                let distance = here.val() + held.peek(extra);
                held.drop(extra);
                let made = self.room - left;
                // What is before this call's output lies in the window.
                let back = distance.saturating_sub(made);
                if back > 0 && !machine.window.reaches(distance, made) {
                    ended = Some(End::Bad(c"invalid distance too far back"));
                    break;
                }
                // SAFETY: there is room for the longest match.
                unsafe { machine.window.copy(back, put, distance, len) };
                put = put.wrapping_add(len);
                left -= len;
            } else if here.is_end() {
                ended = Some(End::Block);
                break;
            } else {
                ended = Some(End::Bad(c"invalid literal/length code"));
                break;
            }
            if have < INPUT || left < ROOM {
                break;
            }
        }
        let whole = held.bits / 8;
        held.bits &= 7;
        held.hold &= (1 << held.bits) - 1;
        self.next = next.wrapping_sub(whole.to_usize());
        self.have = have + whole.to_usize();
        (self.put, self.left) = (put, left);
        ended
    }
}

impl Window {
    /// Place of the byte that is `back` bytes before the window's end, and the number of bytes that
    /// follow it without a break.
    pub(super) fn before_next(&self, back: usize) -> (usize, usize) {
        if back > self.next {
            let back = back - self.next;
            (self.size - back, back)
        } else {
            (self.next - back, back)
        }
    }

    /// A match whose first `back` bytes are the window's last; the rest is output, `distance` back.
    ///
    /// # Safety
    /// `len` bytes may be written at `put`, with all of the call's output before it; the window has
    /// `back` bytes.
    unsafe fn copy(&self, mut back: usize, put: *mut u8, distance: usize, len: usize) {
        let mut done = 0;
        while back > 0 && done < len {
            let (from, whole) = self.before_next(back);
            let count = whole.min(len - done);
            // SAFETY: the window has them, and there is room.
            unsafe {
                let from = self.bytes.as_slice().as_ptr().add(from);
                ptr::copy_nonoverlapping(from, put.add(done), count);
            }
            done += count;
            back -= count;
        }
        // Byte by byte: an overlapping match repeats what it has just written.
        for index in done..len {
            // SAFETY: within the call's output.
            unsafe {
                let place = put.add(index);
                *place = *place.sub(distance);
            }
        }
    }
}

/// A match within the output.
///
/// # Safety
/// There are `distance` bytes before `put`, and room for `len` and 31 more behind it.
#[inline(always)]
unsafe fn copy_match(put: *mut u8, distance: usize, len: usize) {
    // SAFETY: the caller's promise. Each load is of bytes that were written, by 16 or 8 bytes that
    // lie at least as far back.
    unsafe {
        let end = put.add(len);
        let mut to = put;
        let mut from = put.sub(distance);
        if distance >= 16 {
            // Most are no longer than that.
            copy_16(from, to);
            copy_16(from.add(16), to.add(16));
            while to.add(32) < end {
                to = to.add(32);
                from = from.add(32);
                copy_16(from, to);
                copy_16(from.add(16), to.add(16));
            }
        } else if distance == 1 {
            let run = [*from; 16];
            while to < end {
                to.cast::<[u8; 16]>().write_unaligned(run);
                to = to.add(16);
            }
        } else {
            // The first 8 bytes make a pattern that repeats at a multiple of the distance.
            let mut step = distance;
            if distance < 8 {
                for index in 0..8 {
                    *to.add(index) = *from.add(index);
                }
                to = to.add(8);
                while step < 8 {
                    step += distance;
                }
                from = to.sub(step);
            }
            while to < end {
                to.cast::<[u8; 8]>()
                    .write_unaligned(from.cast::<[u8; 8]>().read_unaligned());
                to = to.add(8);
                from = from.add(8);
            }
        }
    }
}

/// # Safety
/// Both have 16 bytes.
#[inline(always)]
unsafe fn copy_16(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's promise; all are loaded before any is stored.
    unsafe {
        let bytes = from.cast::<[u8; 16]>().read_unaligned();
        to.cast::<[u8; 16]>().write_unaligned(bytes);
    }
}
