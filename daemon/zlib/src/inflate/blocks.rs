//! The steps at a block's beginning: its kind, stored bytes, and the lengths of its codes
//! (RFC 1951, 3.2.3 to 3.2.7).

use super::machine::{Machine, Mode, PAUSE, Step};
use super::run::Run;
use super::tables::{self, Kind};
use crate::io::available;
use libz_rs_sys::Z_TREES;
use sidecore_bare::width::ToUsize;
use std::ptr;

impl Run<'_> {
    /// # Safety
    /// As [`Self::step`].
    pub(super) unsafe fn block(&mut self) -> Step {
        // The trailer begins at a byte, whatever the last block's bits left (RFC 1950, 2.2).
        if self.machine.is_last {
            self.drop_to_byte();
            return self.go(Mode::Check);
        }
        // SAFETY: the caller's promise.
        unsafe { self.need(3)? };
        self.machine.is_last = self.bits(1) == 1;
        self.drop_bits(1);
        let kind = self.bits(2);
        self.drop_bits(2);
        // RFC 1951, 3.2.3: stored, fixed codes, codes of its own; 3 is reserved.
        match kind {
            0 => self.go(Mode::Stored),
            1 => {
                let codes = &mut self.machine.codes;
                codes.is_fixed = true;
                codes.literal_bits = tables::FIXED_LITERAL_BITS;
                codes.distance_bits = tables::FIXED_DISTANCE_BITS;
                self.behind_codes()
            }
            2 => self.go(Mode::Table),
            _ => self.bad(c"invalid block type"),
        }
    }

    fn behind_codes(&mut self) -> Step {
        self.machine.mode = Mode::SymbolFirst;
        // Z_TREES stops behind each block's codes, so that a program can note the place.
        if self.flush == Z_TREES { PAUSE } else { Ok(()) }
    }

    /// # Safety
    /// As [`Self::step`].
    pub(super) unsafe fn stored(&mut self) -> Step {
        self.drop_to_byte();
        // SAFETY: the caller's promise.
        unsafe { self.need(32)? };
        let hold = self.machine.hold;
        // The length and its complement: the only check that a stored block has.
        if hold & 0xffff != (hold >> 16) ^ 0xffff {
            return self.bad(c"invalid stored block lengths");
        }
        self.machine.length = self.bits(16);
        self.drop_all_bits();
        self.machine.mode = Mode::CopyFirst;
        if self.flush == Z_TREES { PAUSE } else { Ok(()) }
    }

    /// # Safety
    /// As [`Self::step`].
    pub(super) unsafe fn copy(&mut self) -> Step {
        self.machine.mode = Mode::Copy;
        let length = self.machine.length.to_usize();
        // Before input and room are looked at: an empty block needs neither.
        if length == 0 {
            return self.go(Mode::Type);
        }
        let count = length.min(self.have).min(self.left);
        if count == 0 {
            return PAUSE;
        }
        // SAFETY: both have as many; the program keeps them apart.
        unsafe { ptr::copy_nonoverlapping(self.next, self.put, count) };
        self.next = self.next.wrapping_add(count);
        self.have -= count;
        self.put = self.put.wrapping_add(count);
        self.left -= count;
        self.machine.length -= available(count);
        Ok(())
    }

    /// # Safety
    /// As [`Self::step`].
    pub(super) unsafe fn table(&mut self) -> Step {
        // SAFETY: the caller's promise.
        unsafe { self.need(14)? };
        self.machine.literals = self.bits(5).to_usize() + 257;
        self.drop_bits(5);
        self.machine.distances = self.bits(5).to_usize() + 1;
        self.drop_bits(5);
        self.machine.lengths = self.bits(4).to_usize() + 4;
        self.drop_bits(4);
        // The fields can say 288 and 32: these numbers have no meaning (RFC 1951, 3.2.7).
        if self.machine.literals > 286 || self.machine.distances > 30 {
            return self.bad(c"too many length or distance symbols");
        }
        self.machine.have = 0;
        self.go(Mode::LengthLengths)
    }

    /// # Safety
    /// As [`Self::step`].
    pub(super) unsafe fn length_lengths(&mut self) -> Step {
        while self.machine.have < self.machine.lengths {
            // SAFETY: the caller's promise.
            unsafe { self.need(3)? };
            self.machine.lens[ORDER[self.machine.have]] = self.machine.hold as u16 & 7;
            self.machine.have += 1;
            self.drop_bits(3);
        }
        // Lengths that the block leaves out; those of the block before are still there.
        for &place in &ORDER[self.machine.have..] {
            self.machine.lens[place] = 0;
        }
        let Machine { codes, lens, .. } = &mut *self.machine;
        codes.is_fixed = false;
        let lens = &lens[..ORDER.len()];
        match tables::build(
            Kind::Lengths,
            lens,
            &mut codes.literals,
            tables::LENGTH_ROOT,
        ) {
            Ok(bits) => codes.literal_bits = bits,
            Err(_) => return self.bad(c"invalid code lengths set"),
        }
        self.machine.have = 0;
        self.go(Mode::CodeLengths)
    }

    /// # Safety
    /// As [`Self::step`].
    pub(super) unsafe fn code_lengths(&mut self) -> Step {
        let wanted = self.machine.literals + self.machine.distances;
        // Bits that a program put before the input are no bytes of it that could be given back.
        if self.machine.bits < 8 {
            // SAFETY: the caller's promise.
            unsafe { self.most_code_lengths(wanted) };
        }
        while self.machine.have < wanted {
            // As few bytes as the code needs: a call stops exactly where zlib's does.
            let here = loop {
                let index = self.bits(self.machine.codes.literal_bits);
                let here = self.machine.codes.literals[index.to_usize()];
                if here.bits() <= self.machine.bits {
                    break here;
                }
                // SAFETY: the caller's promise.
                unsafe { self.pull()? };
            };
            let Some((least, extra)) = repetition(here.val()) else {
                self.drop_bits(here.bits());
                self.machine.lens[self.machine.have] = here.val() as u16;
                self.machine.have += 1;
                continue;
            };
            // SAFETY: the caller's promise.
            unsafe { self.need(here.bits() + extra)? };
            // Dropped with all of it there: a call that ends before begins with the code again.
            self.drop_bits(here.bits());
            let have = self.machine.have;
            let repeated = match here.val() {
                16 if have == 0 => return self.bad(c"invalid bit length repeat"),
                16 => self.machine.lens[have - 1],
                _ => 0,
            };
            let count = least + self.bits(extra).to_usize();
            self.drop_bits(extra);
            if have + count > wanted {
                return self.bad(c"invalid bit length repeat");
            }
            self.machine.lens[have..have + count].fill(repeated);
            self.machine.have += count;
        }
        self.symbol_codes(wanted)
    }

    /// Lengths while there is input for several of them at once. What is left is done one by one:
    /// the last bytes, and a repetition that is an error.
    ///
    /// # Safety
    /// As [`Self::step`]; the bit buffer has fewer than 8 bits.
    unsafe fn most_code_lengths(&mut self, wanted: usize) {
        let Machine {
            codes,
            lens,
            have: done,
            hold: held,
            bits: held_bits,
            ..
        } = &mut *self.machine;
        let mask = (1_u64 << codes.literal_bits) - 1;
        let (mut hold, mut bits) = (*held, *held_bits);
        'all: while self.have >= 8 && *done < wanted {
            // SAFETY: there are as many. A byte that is there already is loaded again.
            hold |= u64::from_le(unsafe { self.next.cast::<u64>().read_unaligned() }) << bits;
            let loaded = ((63 - bits) / 8).to_usize();
            self.next = self.next.wrapping_add(loaded);
            self.have -= loaded;
            bits |= 56;
            // Four times a code and its extra bits, of 7 bits each.
            for _ in 0..4 {
                if *done == wanted {
                    break 'all;
                }
                let here = codes.literals[(hold & mask).to_usize()];
                let code = here.bits();
                let Some((least, extra)) = repetition(here.val()) else {
                    lens[*done] = here.val() as u16;
                    *done += 1;
                    hold >>= code;
                    bits -= code;
                    continue;
                };
                let repeated = match (here.val(), *done) {
                    (16, 0) => break 'all,
                    (16, done) => lens[done - 1],
                    _ => 0,
                };
                let count = least + ((hold >> code) & ((1 << extra) - 1)).to_usize();
                if *done + count > wanted {
                    break 'all;
                }
                lens[*done..*done + count].fill(repeated);
                *done += count;
                hold >>= code + extra;
                bits -= code + extra;
            }
        }
        // Whole bytes are the input's again.
        let whole = (bits / 8).to_usize();
        self.next = self.next.wrapping_sub(whole);
        self.have += whole;
        *held_bits = bits & 7;
        *held = hold & ((1 << (bits & 7)) - 1);
    }

    /// The tables of a block's two codes, whose lengths are all there.
    fn symbol_codes(&mut self, wanted: usize) -> Step {
        // Without an end the block's symbols would go on into the next block's bits.
        if self.machine.lens[256] == 0 {
            return self.bad(c"invalid code -- missing end-of-block");
        }
        let Machine {
            codes,
            lens,
            literals,
            ..
        } = &mut *self.machine;
        let (of_literals, of_distances) = lens[..wanted].split_at(*literals);
        let root = tables::LITERAL_ROOT;
        match tables::build(Kind::Literals, of_literals, &mut codes.literals, root) {
            Ok(bits) => codes.literal_bits = bits,
            Err(_) => return self.bad(c"invalid literal/lengths set"),
        }
        let root = tables::DISTANCE_ROOT;
        match tables::build(Kind::Distances, of_distances, &mut codes.distances, root) {
            Ok(bits) => codes.distance_bits = bits,
            Err(_) => return self.bad(c"invalid distances set"),
        }
        self.behind_codes()
    }

    fn drop_to_byte(&mut self) {
        self.drop_bits(self.machine.bits & 7);
    }
}

/// The least count and the extra bits of a repetition of lengths: 16 repeats the last length, 17
/// and 18 are runs of zeros (RFC 1951, 3.2.7).
#[inline(always)]
fn repetition(symbol: usize) -> Option<(usize, u32)> {
    match symbol {
        ..16 => None,
        16 => Some((3, 2)),
        17 => Some((3, 3)),
        _ => Some((11, 7)),
    }
}

/// The order in which the lengths of the lengths' code come (RFC 1951, 3.2.7).
const ORDER: [usize; 19] = [
    16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15,
];
