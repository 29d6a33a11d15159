//! The steps at a block's beginning: its kind, stored bytes, and the lengths of its codes
//! (RFC 1951, 3.2.3 to 3.2.7).

use super::machine::{Machine, Mode, PAUSE, Run, Step};
use super::tables::{self, Kind};
use libz_rs_sys::Z_TREES;
use std::ptr;

impl Run<'_> {
    /// # Safety
    /// As [`Self::step`].
    pub(super) unsafe fn block(&mut self) -> Step {
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
        if self.flush == Z_TREES { PAUSE } else { Ok(()) }
    }

    /// # Safety
    /// As [`Self::step`].
    pub(super) unsafe fn stored(&mut self) -> Step {
        self.drop_to_byte();
        // SAFETY: the caller's promise.
        unsafe { self.need(32)? };
        let hold = self.machine.hold;
        if hold & 0xffff != (hold >> 16) ^ 0xffff {
            return self.bad(c"invalid stored block lengths");
        }
        self.machine.length = hold as u32 & 0xffff;
        self.drop_all_bits();
        self.machine.mode = Mode::CopyFirst;
        if self.flush == Z_TREES { PAUSE } else { Ok(()) }
    }

    /// # Safety
    /// As [`Self::step`].
    pub(super) unsafe fn copy(&mut self) -> Step {
        self.machine.mode = Mode::Copy;
        let length = self.machine.length as usize;
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
        self.machine.length -= count as u32;
        Ok(())
    }

    /// # Safety
    /// As [`Self::step`].
    pub(super) unsafe fn table(&mut self) -> Step {
        // SAFETY: the caller's promise.
        unsafe { self.need(14)? };
        self.machine.literals = self.bits(5) as usize + 257;
        self.drop_bits(5);
        self.machine.distances = self.bits(5) as usize + 1;
        self.drop_bits(5);
        self.machine.lengths = self.bits(4) as usize + 4;
        self.drop_bits(4);
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
            self.machine.lens[ORDER[self.machine.have]] = self.bits(3) as u16;
            self.machine.have += 1;
            self.drop_bits(3);
        }
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
        while self.machine.have < wanted {
            let here = loop {
                let index = self.bits(self.machine.codes.literal_bits);
                let here = self.machine.codes.literals[index as usize];
                if u32::from(here.bits) <= self.machine.bits {
                    break here;
                }
                // SAFETY: the caller's promise.
                unsafe { self.pull()? };
            };
            let (least, extra) = match here.val {
                ..16 => {
                    self.drop_bits(here.bits.into());
                    self.machine.lens[self.machine.have] = here.val;
                    self.machine.have += 1;
                    continue;
                }
                16 => (3, 2),
                17 => (3, 3),
                _ => (11, 7),
            };
            // SAFETY: the caller's promise.
            unsafe { self.need(u32::from(here.bits) + extra)? };
            self.drop_bits(here.bits.into());
            let have = self.machine.have;
            let repeated = match here.val {
                16 if have == 0 => return self.bad(c"invalid bit length repeat"),
                16 => self.machine.lens[have - 1],
                _ => 0,
            };
            let count = least + self.bits(extra) as usize;
            self.drop_bits(extra);
            if have + count > wanted {
                return self.bad(c"invalid bit length repeat");
            }
            self.machine.lens[have..have + count].fill(repeated);
            self.machine.have += count;
        }
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

/// The order in which the lengths of the lengths' code come (RFC 1951, 3.2.7).
const ORDER: [usize; 19] = [
    16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15,
];
