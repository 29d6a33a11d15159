//! Writes LZO1X instructions: the only place that knows the encoding of literals and matches.
//!
//! Why here: both parsers use it, so that their requests (and the strong one's prices) can be
//! checked against one text. It picks the shortest encoding; among equally short ones, the one that
//! the fast loop handles without a branch.
//!
//! Must stay true: calls alternate, `literals` before each `copy` and before `end` (with an empty
//! slice if there are none); a length of 2 is requested only where [`Emitter::after`] allows it.
//! Any thread.
//!
//! Source: docs/formats/lzo1x.md.

use super::reference::{state, state_after};
use sidecore_bare::width::ToUsize;

/// Largest distance of a match of two bytes, which must follow one to three literals.
pub(super) const REACH_PAIR: usize = 0x400;
/// Largest distance of a match of 3 to 8 bytes that takes two bytes of stream.
pub(super) const REACH_SHORT: usize = 0x800;
/// Largest distance of a match of three bytes that follows a literal run.
pub(super) const REACH_AFTER_RUN: usize = 0xc00;
/// Largest distance of a match of up to 33 bytes that takes three bytes of stream.
pub(super) const REACH_MIDDLE: usize = 0x4000;
/// Largest distance of any match.
pub(super) const REACH_FAR: usize = 0xbfff;

/// The longest match that two bytes of stream can encode.
pub(super) const LENGTH_SHORT: usize = 8;
/// The longest match that three bytes can encode within [`REACH_MIDDLE`].
pub(super) const LENGTH_MIDDLE: usize = 33;
/// The longest match that three bytes can encode beyond it.
pub(super) const LENGTH_FAR: usize = 9;
/// The longest literal run whose length its instruction byte holds.
pub(super) const LENGTH_RUN: usize = 18;

/// Literals that the stream's first byte can count.
const FIRST_RUN_MAX: usize = 238;

/// Appends one stream to a buffer.
pub(super) struct Emitter<'a> {
    out: &'a mut Vec<u8>,
    /// The byte whose two low bits count the literals after the last match.
    count_at: usize,
    after: u8,
}

impl<'a> Emitter<'a> {
    pub(super) fn new(out: &'a mut Vec<u8>) -> Self {
        Self {
            out,
            count_at: 0,
            after: state::START,
        }
    }

    /// Literals between two matches, before the first or after the last.
    pub(super) fn literals(&mut self, bytes: &[u8]) {
        let count = bytes.len();
        self.after = match (self.after, count) {
            // An empty frame: nothing can match before the first literal.
            (state::START, 0) => state::START,
            (state::START, 1..=FIRST_RUN_MAX) => {
                self.out.push(17 + low_byte(count));
                state_after(count)
            }
            // Too few for an instruction of their own: counted in the two free bits of the match
            // before.
            (_, 0..=3) => {
                self.out[self.count_at] |= low_byte(count);
                state_after(count)
            }
            _ => {
                self.length(0, count - 3, LENGTH_RUN - 3);
                state::RUN
            }
        };
        self.out.extend_from_slice(bytes);
    }

    /// A match of `length` bytes that lie `distance` bytes back.
    pub(super) fn copy(&mut self, length: usize, distance: usize) {
        debug_assert!(
            distance <= REACH_FAR && length >= 2,
            "length {length} distance {distance}"
        );
        let near = distance - 1;
        // Only after one to three literals: otherwise these bits are a literal run or a match of
        // three.
        if length == 2 {
            debug_assert!(matches!(self.after, 1..=3) && distance <= REACH_PAIR);
            self.count_at = self.out.len();
            self.out
                .extend([low_byte(near << 2 & 12), low_byte(near >> 2)]);
        } else if length <= LENGTH_SHORT && distance <= REACH_SHORT {
            self.count_at = self.out.len();
            let first = (length - 1) << 5 | (near & 7) << 2;
            self.out.extend([low_byte(first), low_byte(near >> 3)]);
        // After a run the same bits mean a distance beyond what two bytes usually reach.
        } else if length == 3 && self.after == state::RUN && distance <= REACH_AFTER_RUN {
            let near = near - REACH_SHORT;
            self.count_at = self.out.len();
            self.out
                .extend([low_byte(near << 2 & 12), low_byte(near >> 2)]);
        } else if distance <= REACH_MIDDLE {
            self.length(0x20, length - 2, LENGTH_MIDDLE - 2);
            self.distance(near);
        } else {
            // Bit 14 of the distance is in the instruction byte; 0 here would be the end marker.
            let far = distance - REACH_MIDDLE;
            self.length(0x10 | low_byte(far >> 11 & 8), length - 2, LENGTH_FAR - 2);
            self.distance(far);
        }
        self.after = state::NONE;
    }

    /// The end marker.
    pub(super) fn end(self) {
        self.out.extend_from_slice(&[0x11, 0, 0]);
    }

    /// An instruction byte with a length, which continues in further bytes if it is above
    /// `all_ones`.
    fn length(&mut self, instruction: u8, length: usize, all_ones: usize) {
        if length <= all_ones {
            self.out.push(instruction | low_byte(length));
            return;
        }
        let more = length - all_ones;
        // The last byte holds 1 to 255: a zero would read as 255 and "continue".
        let zeros = (more - 1) / 255;
        self.out.push(instruction);
        self.out.resize(self.out.len() + zeros, 0);
        self.out.push(low_byte(more - 255 * zeros));
    }

    fn distance(&mut self, field: usize) {
        self.count_at = self.out.len();
        // The two low bits are left for the number of literals that follow.
        let [low, high, ..] = (field << 2).to_le_bytes();
        self.out.extend([low, high]);
    }
}

/// The low eight bits, where the value fits or its other bits go elsewhere.
fn low_byte(value: usize) -> u8 {
    value.to_le_bytes()[0]
}

/// Length of the common run of bytes at `a` and at `b > a`, up to the end.
pub(super) fn common_length(raw: &[u8], a: usize, b: usize) -> usize {
    let ours = &raw[b..];
    let theirs = &raw[a..][..ours.len()];
    let mut equal = 0;
    // Eight bytes at a time; the lowest set bit of the difference lies in the first that differs.
    for (x, y) in ours.chunks_exact(8).zip(theirs.chunks_exact(8)) {
        let differ = word(x) ^ word(y);
        if differ != 0 {
            return equal + (differ.trailing_zeros() / 8).to_usize();
        }
        equal += 8;
    }
    equal
        + ours[equal..]
            .iter()
            .zip(&theirs[equal..])
            .take_while(|(x, y)| x == y)
            .count()
}

fn word(bytes: &[u8]) -> u64 {
    bytes.try_into().map_or(0, u64::from_le_bytes)
}

/// Four bytes at `at`, padded with zeros at the end.
#[inline]
pub(super) fn quad(raw: &[u8], at: usize) -> u32 {
    raw[at..]
        .first_chunk::<4>()
        .map_or(0, |bytes| u32::from_le_bytes(*bytes))
}
