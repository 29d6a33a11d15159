//! A block's symbols one by one, wherever input or room may end in the middle of one.

use super::machine::{Machine, Mode, PAUSE, Step};
use super::run::Run;
use super::tables::Code;
use crate::io::available;
use sidecore_bare::width::ToUsize;
use std::ptr;

/// The two codes of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    Literals,
    Distances,
}

impl Run<'_> {
    /// # Safety
    /// The stream's buffers are as its fields say.
    pub(super) unsafe fn symbols(&mut self) -> Step {
        // SAFETY: the caller's promise, for all of them.
        unsafe {
            match self.machine.mode {
                Mode::SymbolFirst => self.go(Mode::Symbol),
                // zlib's own condition. Bits that a program put before the input are no bytes of it
                // that could be given back.
                Mode::Symbol if self.have >= 6 && self.left >= 258 && self.machine.bits < 8 => {
                    self.fast();
                    // What `inflateMark` reports: the fast loop has no symbol in hand.
                    if self.machine.mode == Mode::Type {
                        self.machine.back = -1;
                    }
                    Ok(())
                }
                Mode::Symbol => self.symbol(),
                Mode::LengthExtra => self.length_extra(),
                Mode::Distance => self.distance(),
                Mode::DistanceExtra => self.distance_extra(),
                Mode::Match => self.matched(),
                _ => self.literal(),
            }
        }
    }

    /// The next code, dropped from the bit buffer.
    ///
    /// # Safety
    /// As [`Self::symbols`].
    unsafe fn code(&mut self, which: Which) -> Result<Code, super::machine::Leave> {
        let codes = &self.machine.codes;
        let root = match which {
            Which::Literals => codes.literal_bits,
            Which::Distances => codes.distance_bits,
        };
        let entry = |machine: &Machine, index: usize| {
            let (literals, distances) = machine.tables();
            match which {
                Which::Literals => literals[index],
                Which::Distances => distances[index],
            }
        };
        // Looked up with the bits that are there; an entry that is longer asks for one more byte.
        let mut here;
        loop {
            here = entry(self.machine, self.bits(root).to_usize());
            if here.code_bits() <= self.machine.bits {
                break;
            }
            // SAFETY: the caller's promise.
            unsafe { self.pull()? };
        }
        if !here.is_literal() && here.is_link() {
            // The second level has the codes that are longer than the first one's index.
            let (first, bits) = (here, here.code_bits());
            loop {
                let index = self.bits(bits + first.op()) >> bits;
                here = entry(self.machine, first.val() + index.to_usize());
                if bits + here.code_bits() <= self.machine.bits {
                    break;
                }
                // SAFETY: the caller's promise.
                unsafe { self.pull()? };
            }
            self.drop_bits(bits);
            self.machine.back += bits.cast_signed();
        }
        self.drop_bits(here.code_bits());
        self.machine.back += here.code_bits().cast_signed();
        Ok(here)
    }

    /// # Safety
    /// As [`Self::symbols`].
    unsafe fn symbol(&mut self) -> Step {
        self.machine.back = 0;
        // SAFETY: the caller's promise.
        let here = unsafe { self.code(Which::Literals)? };
        self.machine.length = available(here.val());
        if here.is_literal() {
            self.go(Mode::Literal)
        } else if here.is_base() {
            // The number of extra bits is in the entry itself (RFC 1951, 3.2.5).
            self.machine.extra = here.bits() - here.code_bits();
            self.go(Mode::LengthExtra)
        } else if here.is_end() {
            self.machine.back = -1;
            self.go(Mode::Type)
        } else {
            self.bad(c"invalid literal/length code")
        }
    }

    /// # Safety
    /// As [`Self::symbols`].
    unsafe fn length_extra(&mut self) -> Step {
        // SAFETY: the caller's promise.
        self.machine.length += unsafe { self.extra_bits()? };
        // `inflateMark` reports how much of a match a call has copied.
        self.machine.was = self.machine.length;
        self.go(Mode::Distance)
    }

    /// # Safety
    /// As [`Self::symbols`].
    unsafe fn extra_bits(&mut self) -> Result<u32, super::machine::Leave> {
        let extra = self.machine.extra;
        // SAFETY: the caller's promise.
        unsafe { self.need(extra)? };
        let more = self.bits(extra);
        self.drop_bits(extra);
        self.machine.back += extra.cast_signed();
        Ok(more)
    }

    /// # Safety
    /// As [`Self::symbols`].
    unsafe fn distance(&mut self) -> Step {
        // SAFETY: the caller's promise.
        let here = unsafe { self.code(Which::Distances)? };
        if !here.is_base() {
            return self.bad(c"invalid distance code");
        }
        self.machine.offset = available(here.val());
        self.machine.extra = here.bits() - here.code_bits();
        self.go(Mode::DistanceExtra)
    }

    /// # Safety
    /// As [`Self::symbols`].
    unsafe fn distance_extra(&mut self) -> Step {
        // SAFETY: the caller's promise.
        self.machine.offset += unsafe { self.extra_bits()? };
        self.go(Mode::Match)
    }

    /// # Safety
    /// As [`Self::symbols`].
    unsafe fn matched(&mut self) -> Step {
        if self.left == 0 {
            return PAUSE;
        }
        let made = self.room - self.left;
        let offset = self.machine.offset.to_usize();
        let mut count = self.machine.length.to_usize().min(self.left);
        // Before this call's output: in the window, if it goes back as far.
        if offset > made {
            let back = offset - made;
            let window = &self.machine.window;
            if !window.reaches(offset, made) {
                return self.bad(c"invalid distance too far back");
            }
            let (from, whole) = window.before_next(back);
            // The window is a ring: the rest is copied in the next turn.
            count = count.min(whole);
            // SAFETY: the window has them, and there is room.
            unsafe {
                let from = window.bytes.as_slice().as_ptr().add(from);
                ptr::copy_nonoverlapping(from, self.put, count);
            }
        } else {
            // Byte by byte: a match may go on into itself.
            for index in 0..count {
                // SAFETY: within this call's output, and there is room.
                unsafe {
                    let place = self.put.add(index);
                    *place = *place.sub(offset);
                }
            }
        }
        self.put = self.put.wrapping_add(count);
        self.left -= count;
        self.machine.length -= available(count);
        if self.machine.length == 0 {
            return self.go(Mode::Symbol);
        }
        Ok(())
    }

    /// # Safety
    /// As [`Self::symbols`].
    unsafe fn literal(&mut self) -> Step {
        if self.left == 0 {
            return PAUSE;
        }
        // SAFETY: there is room.
        unsafe { *self.put = self.machine.length.to_le_bytes()[0] };
        self.put = self.put.wrapping_add(1);
        self.left -= 1;
        self.go(Mode::Symbol)
    }
}
