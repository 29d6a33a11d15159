//! One call: the steps from one mode to the next, with the program's buffers.
//!
//! Must stay true: as [`machine`](super::machine) says. The steps of gzip headers are in `header`,
//! those of blocks in `blocks`, those of symbols in `codes` and `fast`.

use super::machine::{Leave, Machine, Mode, PAUSE, Step};
use crate::forward::{adler32_of, crc32_of};
use crate::io::available;
use libc::{c_char, c_int};
use libz_rs_sys::*;
use sidecore_bare::width::{ToU64, ToUsize};
use std::ffi::CStr;

/// One call: the state, the stream, and where the call is in both buffers.
pub(super) struct Run<'a> {
    pub(super) machine: &'a mut Machine,
    pub(super) stream: &'a mut z_stream,
    pub(super) flush: c_int,
    pub(super) next: *const u8,
    pub(super) have: usize,
    pub(super) put: *mut u8,
    pub(super) left: usize,
    /// The room from which this call's output is counted.
    pub(super) room: usize,
}

/// `inflate`, whose stream and buffers were looked at.
///
/// # Safety
/// The stream's buffers are as its fields say.
pub(super) unsafe fn run(machine: &mut Machine, stream: &mut z_stream, flush: c_int) -> c_int {
    // A call that stopped before a block goes on with it, whatever it flushes now.
    if machine.mode == Mode::Type {
        machine.mode = Mode::TypeDo;
    }
    let taken_from = stream.avail_in;
    let room = stream.avail_out.to_usize();
    let mut run = Run {
        flush,
        next: stream.next_in,
        have: stream.avail_in.to_usize(),
        put: stream.next_out,
        left: room,
        room,
        machine,
        stream,
    };
    let leave = loop {
        // SAFETY: the caller's promise.
        if let Err(leave) = unsafe { run.step() } {
            break leave;
        }
    };
    run.restore();
    // Not that of the stream: `check` may have counted a part of the output already.
    let room = run.room;
    let code = match leave {
        Leave::AtOnce(code) => return code,
        Leave::Counted(code) => code,
    };
    let made = room - stream.avail_out.to_usize();
    // SAFETY: this call wrote these bytes.
    let out = unsafe { written(stream, made) };
    // zlib's condition: a finished or damaged stream needs no window any more.
    let keeps = machine.mode < Mode::Bad && (machine.mode < Mode::Check || flush != Z_FINISH);
    if (machine.window.size != 0 || (made > 0 && keeps))
        && !machine.window.put(out, machine.window_bits)
    {
        machine.mode = Mode::NoMemory;
        return Z_MEM_ERROR;
    }
    let taken = taken_from.wrapping_sub(stream.avail_in);
    stream.total_in = stream.total_in.wrapping_add(taken.into());
    count_out(machine, stream, made);
    // zlib's manual, `inflate`: unused bits, 64 in the last block, 128 between blocks, 256 behind
    // a block's codes.
    stream.data_type = machine.bits.cast_signed()
        + if machine.is_last { 64 } else { 0 }
        + match machine.mode {
            Mode::Type => 128,
            Mode::SymbolFirst | Mode::CopyFirst => 256,
            _ => 0,
        };
    // No progress is an error that the program may go on from.
    if ((taken == 0 && made == 0) || flush == Z_FINISH) && code == Z_OK {
        return Z_BUF_ERROR;
    }
    code
}

/// The last `made` bytes before `next_out`.
///
/// # Safety
/// They were written.
unsafe fn written<'a>(stream: &z_stream, made: usize) -> &'a [u8] {
    if made == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(stream.next_out.wrapping_sub(made), made) }
}

/// Counts the last `made` bytes before `next_out`, which this call wrote, and their checksum.
fn count_out(machine: &mut Machine, stream: &mut z_stream, made: usize) {
    stream.total_out = stream.total_out.wrapping_add(made as _);
    machine.total = machine.total.wrapping_add(made.to_u64());
    if machine.wrap & 4 != 0 && made > 0 {
        // SAFETY: they were written.
        let out = unsafe { written(stream, made) };
        machine.check = match machine.flags {
            0 => adler32_of(machine.check, out),
            _ => crc32_of(machine.check, out),
        };
        stream.adler = machine.check.into();
    }
}

impl Run<'_> {
    /// # Safety
    /// The stream's buffers are as its fields say.
    pub(super) unsafe fn step(&mut self) -> Step {
        // SAFETY: the caller's promise, for all of them.
        unsafe {
            match self.machine.mode {
                Mode::Head => self.head(),
                Mode::Flags
                | Mode::Time
                | Mode::Os
                | Mode::ExtraLength
                | Mode::Extra
                | Mode::Name
                | Mode::Comment
                | Mode::HeaderCheck => self.gzip_header(),
                Mode::DictionaryId => self.dictionary_id(),
                Mode::Dictionary => self.dictionary(),
                Mode::Type if matches!(self.flush, Z_BLOCK | Z_TREES) => PAUSE,
                Mode::Type | Mode::TypeDo => self.block(),
                Mode::Stored => self.stored(),
                Mode::CopyFirst | Mode::Copy => self.copy(),
                Mode::Table => self.table(),
                Mode::LengthLengths => self.length_lengths(),
                Mode::CodeLengths => self.code_lengths(),
                Mode::SymbolFirst
                | Mode::Symbol
                | Mode::LengthExtra
                | Mode::Distance
                | Mode::DistanceExtra
                | Mode::Match
                | Mode::Literal => self.symbols(),
                Mode::Check => self.check(),
                Mode::Length => self.length(),
                Mode::Done => Err(Leave::Counted(Z_STREAM_END)),
                Mode::Bad => Err(Leave::Counted(Z_DATA_ERROR)),
                Mode::NoMemory => Err(Leave::AtOnce(Z_MEM_ERROR)),
                Mode::Sync => Err(Leave::AtOnce(Z_STREAM_ERROR)),
            }
        }
    }

    /// Gives the stream its buffers back as they are now.
    pub(super) fn restore(&mut self) {
        (self.stream.next_in, self.stream.avail_in) = (self.next, available(self.have));
        (self.stream.next_out, self.stream.avail_out) = (self.put, available(self.left));
    }

    /// The stream is damaged here.
    pub(super) fn bad(&mut self, message: &'static CStr) -> Step {
        self.stream.msg = message.as_ptr() as *mut c_char;
        self.machine.mode = Mode::Bad;
        Ok(())
    }

    pub(super) fn go(&mut self, mode: Mode) -> Step {
        self.machine.mode = mode;
        Ok(())
    }

    /// One more byte in the bit buffer.
    ///
    /// # Safety
    /// As [`Self::step`].
    #[inline]
    pub(super) unsafe fn pull(&mut self) -> Step {
        if self.have == 0 {
            return PAUSE;
        }
        // SAFETY: there is one.
        let byte = unsafe { *self.next };
        self.next = self.next.wrapping_add(1);
        self.have -= 1;
        self.machine.hold += u64::from(byte) << self.machine.bits;
        self.machine.bits += 8;
        Ok(())
    }

    /// At least `count` bits in the buffer.
    ///
    /// # Safety
    /// As [`Self::step`].
    #[inline]
    pub(super) unsafe fn need(&mut self, count: u32) -> Step {
        while self.machine.bits < count {
            // SAFETY: the caller's promise.
            unsafe { self.pull()? };
        }
        Ok(())
    }

    #[inline]
    pub(super) fn bits(&self, count: u32) -> u32 {
        self.held_word() & ((1 << count) - 1)
    }

    /// The lower half of the bit buffer: no step asks for more than 32 bits.
    #[inline]
    pub(super) fn held_word(&self) -> u32 {
        self.machine.hold as u32
    }

    #[inline]
    pub(super) fn drop_bits(&mut self, count: u32) {
        self.machine.hold >>= count;
        self.machine.bits -= count;
    }

    #[inline]
    pub(super) fn drop_all_bits(&mut self) {
        (self.machine.hold, self.machine.bits) = (0, 0);
    }

    /// # Safety
    /// As [`Self::step`].
    unsafe fn head(&mut self) -> Step {
        if self.machine.wrap == 0 {
            return self.go(Mode::TypeDo);
        }
        // SAFETY: the caller's promise.
        unsafe { self.need(16)? };
        let hold = self.machine.hold;
        // The two bytes of gzip's magic number, the first in the lower half.
        if self.machine.wrap & 2 != 0 && hold == 0x8b1f {
            if self.machine.window_bits == 0 {
                self.machine.window_bits = 15;
            }
            self.machine.check = 0;
            self.check_header(2);
            self.drop_all_bits();
            return self.go(Mode::Flags);
        }
        // It is no gzip stream, which the program learns by `done`.
        // SAFETY: null, or the argument of `inflateGetHeader`.
        if let Some(head) = unsafe { self.machine.head.as_mut() } {
            head.done = -1;
        }
        let both = (u64::from(self.bits(8)) << 8).wrapping_add(hold >> 8);
        // RFC 1950, 2.2: both bytes as one number are a multiple of 31.
        if self.machine.wrap & 1 == 0 || both % 31 != 0 {
            return self.bad(c"incorrect header check");
        }
        if self.bits(4) != Z_DEFLATED.cast_unsigned() {
            return self.bad(c"unknown compression method");
        }
        self.drop_bits(4);
        let window_bits = self.bits(4) + 8;
        if self.machine.window_bits == 0 {
            self.machine.window_bits = window_bits;
        }
        // A stream may refer farther back than the program's window reaches.
        if window_bits > 15 || window_bits > self.machine.window_bits {
            return self.bad(c"invalid window size");
        }
        self.machine.flags = 0;
        self.set_check(1);
        let has_dictionary = self.machine.hold & 0x200 != 0;
        self.drop_all_bits();
        self.go(if has_dictionary {
            Mode::DictionaryId
        } else {
            Mode::Type
        })
    }

    pub(super) fn set_check(&mut self, check: u32) {
        self.machine.check = check;
        self.stream.adler = check.into();
    }

    /// # Safety
    /// As [`Self::step`].
    unsafe fn dictionary_id(&mut self) -> Step {
        // SAFETY: the caller's promise.
        unsafe { self.need(32)? };
        self.set_check(self.held_word().swap_bytes());
        self.drop_all_bits();
        self.go(Mode::Dictionary)
    }

    fn dictionary(&mut self) -> Step {
        if !self.machine.has_dictionary {
            return Err(Leave::AtOnce(Z_NEED_DICT));
        }
        self.set_check(1);
        self.go(Mode::Type)
    }

    /// # Safety
    /// As [`Self::step`].
    unsafe fn check(&mut self) -> Step {
        if self.machine.wrap != 0 {
            // SAFETY: the caller's promise.
            unsafe { self.need(32)? };
            // Counted before it is compared, up to this very byte.
            self.restore();
            count_out(self.machine, self.stream, self.room - self.left);
            self.room = self.left;
            // zlib's trailer begins with the highest byte, gzip's with the lowest (RFC 1950, 2.2;
            // RFC 1952, 2.3.1).
            let given = match self.machine.flags {
                0 => u64::from(self.held_word().swap_bytes()),
                _ => self.machine.hold,
            };
            if self.machine.wrap & 4 != 0 && given != u64::from(self.machine.check) {
                return self.bad(c"incorrect data check");
            }
            self.drop_all_bits();
        }
        self.go(Mode::Length)
    }

    /// # Safety
    /// As [`Self::step`].
    unsafe fn length(&mut self) -> Step {
        if self.machine.wrap != 0 && self.machine.flags != 0 {
            // SAFETY: the caller's promise.
            unsafe { self.need(32)? };
            // gzip has the length modulo 2^32.
            let total = self.machine.total & 0xffff_ffff;
            if self.machine.wrap & 4 != 0 && self.machine.hold != total {
                return self.bad(c"incorrect length check");
            }
            self.drop_all_bits();
        }
        self.go(Mode::Done)
    }

    /// The header's checksum, continued with the first bytes of the bit buffer.
    pub(super) fn check_header(&mut self, bytes: usize) {
        let held = self.machine.hold.to_le_bytes();
        self.machine.check = crc32_of(self.machine.check, &held[..bytes]);
    }
}
