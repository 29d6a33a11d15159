//! The fast loop: one match and the literals after it per turn, almost without branches.
//!
//! Why here: the cost of decompressing LZO1X is mispredicted branches, about two per match in a
//! decoder that branches on the class of each instruction. Here a table maps all four classes to
//! one shape. The literals that follow a match (none, one to three, or a run with an instruction of
//! its own) are one copy of sixteen bytes whatever their number. The remaining branches nearly
//! always go the same way.
//!
//! Must stay true: **the margin invariant** (README.md). At the top of a turn at least
//! [`INPUT_MARGIN`] bytes of the stream and [`OUTPUT_MARGIN`] bytes of the output lie ahead; a turn
//! without a long length reads and writes no further. Bytes of `out` before the cursor that leaves
//! this module are final; those after it are scratch. Malformed instructions are left, with the
//! cursor in front of them, to [`reference::step`](super::reference::step). Any thread.
//!
//! Source: docs/formats/lzo1x.md; the measurements in README.md.

// A SIMD kernel: copies of fixed width that may run past the requested length, within the margins
// checked here.
#![allow(unsafe_code)]

use super::reference::{Cursor, state};
use sidecore_bare::width::ToUsize;
use std::hint::select_unpredictable;

/// Bytes of the stream that must lie ahead for a turn: a match of four bytes (its length in an
/// extra byte), the run byte, sixteen bytes of literals and two more for a run of 17 or 18, read as
/// another sixteen.
pub(super) const INPUT_MARGIN: usize = 4 + 1 + 16 + 16;

/// Bytes of the output that must lie ahead for a turn: 32 of a match, then two copies of sixteen
/// literals.
pub(super) const OUTPUT_MARGIN: usize = 32 + 16 + 16;

/// The longest match that a turn copies without a loop.
const SHORT_MATCH: usize = 32;

/// Runs turns from `cursor` on, until `target` bytes are final or the next instruction needs
/// [`reference::step`](super::reference::step): near the end of a slice, rare, or malformed.
#[inline(never)]
pub(super) fn run(frame: &[u8], out: &mut [u8], cursor: &mut Cursor, target: usize) {
    // This loop handles only matches, not the stream's first byte, nor a run after no literals,
    // which the turn before would have taken.
    let is_match = match cursor.state {
        state::START => false,
        state::NONE => frame.get(cursor.input).is_some_and(|&byte| byte >= 16),
        _ => true,
    };
    let input_room = frame
        .len()
        .checked_sub(cursor.input)
        .is_some_and(|n| n >= INPUT_MARGIN);
    let output_room = out
        .len()
        .checked_sub(cursor.output)
        .is_some_and(|n| n >= OUTPUT_MARGIN);
    if is_match && input_room && output_room {
        // SAFETY: both slices have their margin ahead of the cursor, as checked above.
        unsafe { turns(frame, out, cursor, target) }
    }
}

/// The loop itself.
///
/// # Safety
/// `cursor.input + INPUT_MARGIN <= frame.len()` and `cursor.output + OUTPUT_MARGIN <= out.len()`.
#[inline(always)]
unsafe fn turns(frame: &[u8], out: &mut [u8], cursor: &mut Cursor, target: usize) {
    let input_start = frame.as_ptr();
    let output_start = out.as_mut_ptr();
    let output_stop = target.min(out.len() - OUTPUT_MARGIN + 1);
    // SAFETY: offsets within the slices, by this function's contract and the line above.
    let (mut input, mut output, input_last, output_stop, input_end, output_end) = unsafe {
        (
            input_start.add(cursor.input),
            output_start.add(cursor.output),
            input_start.add(frame.len() - INPUT_MARGIN),
            output_start.add(output_stop).cast_const(),
            input_start.add(frame.len()),
            output_start.add(out.len()).cast_const(),
        )
    };
    let mut after_run = cursor.state == state::RUN;
    let mut literals = usize::from(cursor.state & 3);

    while input <= input_last && output.cast_const() < output_stop {
        // SAFETY: the loop's condition is the margin invariant: INPUT_MARGIN >= 8 bytes may be read
        // at `input`.
        let mut word = u64::from_le(unsafe { input.cast::<u64>().read_unaligned() });
        let first = word as u8;
        let shape = &SHAPES.0[usize::from(after_run)][usize::from(first)];
        let is_three = first.wrapping_sub(16) < 48;
        let mut length = usize::from(shape.length);
        let mut at = input;

        if length > SHORT_MATCH {
            if length != 33 {
                // The length continues in the next byte; in more bytes only for matches of hundreds
                // of bytes.
                word >>= 8;
                let more = word as u8;
                if more == 0 {
                    break;
                }
                length = length - EXTENDED + usize::from(more);
                // SAFETY: one byte of at least INPUT_MARGIN.
                at = unsafe { at.add(1) };
            }
            let distance = shape.distance(word);
            let room = output_end.addr() - output.addr();
            if distance > output.addr() - output_start.addr()
                || distance == MARKER
                || length + OUTPUT_MARGIN > room
            {
                break;
            }
            // SAFETY: `distance` bytes stand before `output`; `length` and the margin fit behind
            // it.
            unsafe { copy_long(output, distance, length) };
        } else {
            let distance = shape.distance(word);
            let from = output.cast_const().wrapping_sub(distance);
            if from < output_start.cast_const() || distance == MARKER {
                break;
            }
            if distance < length {
                // SAFETY: as above; `length` is at most SHORT_MATCH, which is within the margin.
                unsafe { copy_long(output, distance, length) };
            } else {
                // SAFETY: `distance` bytes stand before `output`, 32 may be written from it on: the
                // margin invariant.
                unsafe {
                    copy_16(from, output);
                    copy_16(from.add(16), output.add(16));
                }
            }
        }
        // SAFETY: a short match leaves 32 bytes of the output's margin, a long one the whole; the
        // stream's margin covers the match (at most 4 bytes).
        let to = unsafe {
            at = at.add(2 + usize::from(is_three));
            output.add(length)
        };

        // The literals after the match: 0 to 3 counted in the match, or for 0 perhaps a run. The
        // key is the byte after the match, and from bit 16 on the number of literals.
        let low = word as u32;
        let key = select_unpredictable(is_three, low.rotate_right(24), low.rotate_right(16))
            & 0x0003_00ff;
        if key == 0 {
            // A run whose length continues in the next byte, or in more.
            // SAFETY: 6 bytes of the stream's margin at most.
            let more = usize::from(unsafe { at.add(1).read() });
            let count = 18 + more;
            // SAFETY: as above.
            let from = unsafe { at.add(2) };
            let fits = input_end.addr() - from.addr() >= count + INPUT_MARGIN
                && output_end.addr() - to.addr() >= count + OUTPUT_MARGIN;
            if more == 0 || !fits {
                (input, output, after_run, literals) = (at, to, false, 0);
                break;
            }
            // SAFETY: `count` and a margin fit on both sides.
            unsafe {
                copy_literals(from, to, count);
                input = from.add(count);
                output = to.add(count);
            }
            after_run = true;
            continue;
        }
        after_run = key < 16;
        literals = select_unpredictable(after_run, key + 3, key >> 16).to_usize();
        // SAFETY: at most 5 bytes used of the stream's margin and 32 of the output's: 32 are left
        // for literals, of which there are at most 18.
        unsafe {
            at = at.add(usize::from(after_run));
            copy_16(at, to);
            if literals > 16 {
                copy_16(at.add(16), to.add(16));
            }
            input = at.add(literals);
            output = to.add(literals);
        }
    }

    cursor.input = input.addr() - input_start.addr();
    cursor.output = output.addr() - output_start.addr();
    cursor.state = if after_run {
        state::RUN
    } else {
        literals as u8
    };
}

/// Sixteen bytes in one register. (An array of bytes would go through the stack.)
#[cfg(target_arch = "x86_64")]
type Lane = std::arch::x86_64::__m128i;
#[cfg(not(target_arch = "x86_64"))]
type Lane = u128;

/// Copies sixteen bytes, all read before any is written.
///
/// # Safety
/// Sixteen bytes may be read at `from` and written at `to`.
#[inline(always)]
unsafe fn copy_16(from: *const u8, to: *mut u8) {
    // SAFETY: the caller's word; no alignment is asked for.
    unsafe {
        to.cast::<Lane>()
            .write_unaligned(from.cast::<Lane>().read_unaligned())
    }
}

/// Copies `count` literals.
///
/// # Safety
/// `count + 31` bytes may be read at `from` and written at `to`; the two do not overlap.
#[inline(always)]
unsafe fn copy_literals(from: *const u8, to: *mut u8, count: usize) {
    let mut done = 0;
    while done < count {
        // SAFETY: `done < count`, so this ends before `count + 31`.
        unsafe {
            copy_16(from.add(done), to.add(done));
            copy_16(from.add(done + 16), to.add(done + 16));
        }
        done += 32;
    }
}

/// Copies a match that may be long or overlap its own output.
///
/// # Safety
/// `distance` is at least 1, that many bytes may be read before `to`, and `length + 31` written
/// from it on.
#[inline(always)]
unsafe fn copy_long(to: *mut u8, mut distance: usize, length: usize) {
    let mut done = 0;
    // Sixteen bytes copied from a smaller distance repeat `distance` valid ones; then twice as many
    // repeat, and so on.
    while distance < 16 && done < length {
        // SAFETY: `done < length`; all bytes of `to` before `done`, and `distance` before those,
        // are readable.
        unsafe { copy_16(to.add(done).cast_const().sub(distance), to.add(done)) };
        done += distance;
        distance *= 2;
    }
    while done < length {
        // SAFETY: as above, and with `distance >= 16` each copy reads only what is final.
        unsafe {
            let from = to.add(done).cast_const().sub(distance);
            copy_16(from, to.add(done));
            copy_16(from.add(16), to.add(done + 16));
        }
        done += 32;
    }
}

/// Added to a length that continues in the next byte, to distinguish it from a complete one.
const EXTENDED: usize = 100;

/// The distance of an end marker; a match may have it too. Rare enough to leave both to the slow
/// step.
const MARKER: usize = 0x4000;

/// Match that a first byte encodes. Eight bytes, read field by field, which is cheaper than
/// extracting the fields with shifts.
#[derive(Clone, Copy)]
#[repr(C)]
struct Shape {
    /// Bits of the shifted word that hold the distance.
    mask: u32,
    /// Added to the distance.
    base: u16,
    /// The length; above [`SHORT_MATCH`] it is 33, or [`EXTENDED`] was added.
    length: u8,
    /// Bits to shift the word by.
    shift: u8,
}

impl Shape {
    #[inline(always)]
    fn distance(&self, word: u64) -> usize {
        let field = (word >> (self.shift & 63)) as u32 & self.mask;
        field.to_usize() + usize::from(self.base)
    }
}

/// A shape for each first byte, after no run and after a run.
#[repr(align(64))]
struct Shapes([[Shape; 256]; 2]);

static SHAPES: Shapes = Shapes([shapes(false), shapes(true)]);

const fn shapes(after_run: bool) -> [Shape; 256] {
    let mut table = [Shape {
        mask: 0,
        base: 0,
        length: 0,
        shift: 0,
    }; 256];
    let mut index = 0;
    while index < 256 {
        let first = index as u8;
        let near = (first >> 2) as u16;
        let (shift, length, mask, base) = match first {
            // After a run of literals these stand for a match of three bytes, 2049 or more back;
            // after a match for two bytes, close by.
            0..16 if after_run => (6, 3, 0x3fc, 2049 + near),
            0..16 => (6, 2, 0x3fc, 1 + near),
            16..32 => (
                10,
                short_length(first & 7, 7),
                0x3fff,
                0x4000 + ((first as u16 & 8) << 11),
            ),
            32..64 => (10, short_length(first & 31, 31), 0x3fff, 1),
            _ => (5, (first >> 5) + 1, 0x7f8, 1 + (near & 7)),
        };
        table[index] = Shape {
            mask,
            base,
            length,
            shift,
        };
        index += 1;
    }
    table
}

const fn short_length(field: u8, all_ones: u8) -> u8 {
    if field == 0 {
        EXTENDED as u8 + all_ones + 2
    } else {
        field + 2
    }
}
