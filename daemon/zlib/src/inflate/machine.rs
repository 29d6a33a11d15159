//! A stream's state while it inflates, and the steps from one mode to the next.
//!
//! Why here: zlib's contract covers where a call stops, how much input it has taken by then, and
//! its report of the place (`data_type`, `inflateMark`, flushes that stop at blocks and trees). No
//! other inflater's steps end at the same bits. The modes are those of zlib's `inflate.c`; symbols
//! are decoded by `codes` and `fast`, gzip headers read by `header`.
//!
//! Must stay true: bytes are pulled one by one, as they are needed, and never kept beyond the seven
//! bits that a byte may have left. Nothing is read beyond the input or written beyond the room. The
//! window is allocated when a call first leaves output behind that later ones may refer to.
//! Source: RFC 1950, 1951, 1952; zlib 1.2.13 and 1.3.

use super::tables::{self, Code};
use super::window::Window;
use crate::forward;
use crate::memory::{Bytes, Memory};
use libc::{c_char, c_int, c_long};
use libz_rs_sys::*;
use std::ffi::CStr;
use std::{mem, ptr};

/// The place in a stream. The order is zlib's, and is relied on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mode {
    Head,
    Flags,
    Time,
    Os,
    ExtraLength,
    Extra,
    Name,
    Comment,
    HeaderCheck,
    DictionaryId,
    Dictionary,
    /// Before a block; flushes may stop here.
    Type,
    TypeDo,
    Stored,
    /// Behind a stored block's lengths, before its first byte.
    CopyFirst,
    Copy,
    Table,
    LengthLengths,
    CodeLengths,
    /// Behind a block's codes, before its first symbol.
    SymbolFirst,
    Symbol,
    LengthExtra,
    Distance,
    DistanceExtra,
    Match,
    Literal,
    Check,
    Length,
    Done,
    Bad,
    NoMemory,
    Sync,
}

/// A call's end before its loop's: its code; whether its results are counted.
#[derive(Debug, Clone, Copy)]
pub(super) enum Leave {
    /// With everything that a call counts.
    Counted(c_int),
    /// At once, as zlib does where a dictionary is needed.
    AtOnce(c_int),
}

pub(super) type Step = Result<(), Leave>;

/// Out of input or room: completed work is counted.
pub(super) const PAUSE: Step = Err(Leave::Counted(Z_OK));

/// The state between two calls.
pub(super) struct Machine {
    pub(super) mode: Mode,
    pub(super) is_last: bool,
    /// Bit 0: zlib's wrapper is read, bit 1: gzip's, bit 2: checksums are compared.
    pub(super) wrap: c_int,
    has_dictionary: bool,
    /// Of a gzip header; 0 for zlib's, -1 before any.
    pub(super) flags: c_int,
    pub(super) check: u32,
    /// Bytes put out, for gzip's trailer.
    pub(super) total: u64,
    pub(super) head: *mut gz_header,
    pub(super) window_bits: u32,
    pub(super) window: Window,
    pub(super) hold: u64,
    pub(super) bits: u32,
    pub(super) length: u32,
    pub(super) offset: u32,
    pub(super) extra: u32,
    pub(super) codes: Codes,
    pub(super) literals: usize,
    pub(super) distances: usize,
    pub(super) lengths: usize,
    pub(super) have: usize,
    pub(super) lens: [u16; 320],
    /// Bits that the symbol in hand took; -1 between blocks.
    pub(super) back: c_int,
    /// The length of the match in hand.
    pub(super) was: u32,
}

/// The codes of the block in hand.
#[derive(Clone)]
pub(super) struct Codes {
    pub(super) is_fixed: bool,
    pub(super) literal_bits: u32,
    pub(super) distance_bits: u32,
    pub(super) literals: [Code; tables::LITERAL_ENTRIES],
    pub(super) distances: [Code; tables::DISTANCE_ENTRIES],
}

impl Machine {
    pub(super) fn new(memory: Memory) -> Self {
        Self {
            mode: Mode::Head,
            is_last: false,
            wrap: 0,
            has_dictionary: false,
            flags: -1,
            check: 0,
            total: 0,
            head: ptr::null_mut(),
            window_bits: 0,
            window: Window {
                bytes: Bytes::new(memory),
                size: 0,
                have: 0,
                next: 0,
                distance_max: usize::MAX,
            },
            hold: 0,
            bits: 0,
            length: 0,
            offset: 0,
            extra: 0,
            codes: Codes {
                is_fixed: false,
                literal_bits: 0,
                distance_bits: 0,
                literals: [Code::default(); tables::LITERAL_ENTRIES],
                distances: [Code::default(); tables::DISTANCE_ENTRIES],
            },
            literals: 0,
            distances: 0,
            lengths: 0,
            have: 0,
            lens: [0; 320],
            back: -1,
            was: 0,
        }
    }

    /// `inflateResetKeep`.
    pub(super) fn reset_keep(&mut self, stream: &mut z_stream) {
        (stream.total_in, stream.total_out) = (0, 0);
        self.total = 0;
        stream.msg = ptr::null_mut();
        if self.wrap != 0 {
            stream.adler = (self.wrap & 1) as _;
        }
        self.mode = Mode::Head;
        self.is_last = false;
        self.has_dictionary = false;
        self.flags = -1;
        self.head = ptr::null_mut();
        (self.hold, self.bits) = (0, 0);
        self.back = -1;
    }

    /// `inflateReset`.
    pub(super) fn reset(&mut self, stream: &mut z_stream) {
        (self.window.size, self.window.have, self.window.next) = (0, 0, 0);
        self.reset_keep(stream);
    }

    /// For a raw stream after another, with a window that holds nothing.
    pub(super) fn begin_raw(&mut self) {
        self.mode = Mode::TypeDo;
        self.is_last = false;
        (self.hold, self.bits) = (0, 0);
        (self.window.size, self.window.have, self.window.next) = (0, 0, 0);
    }

    /// `inflateReset2`; false for a window that zlib refuses.
    pub(super) fn reset_to(&mut self, stream: &mut z_stream, window_bits: c_int) -> bool {
        let (wrap, size) = match window_bits {
            ..-15 => return false,
            -15..0 => (0, -window_bits),
            0..48 => ((window_bits >> 4) + 5, window_bits & 15),
            _ => return false,
        };
        if size != 0 && !(8..=15).contains(&size) {
            return false;
        }
        if self.window_bits != size as u32 {
            self.window.bytes.give_back();
        }
        (self.wrap, self.window_bits) = (wrap, size as u32);
        self.reset(stream);
        true
    }

    /// True where nothing was read, and no setting of reading changed.
    pub(super) fn is_fresh(&self) -> bool {
        self.mode == Mode::Head
            && self.bits == 0
            && self.window.have == 0
            && self.head.is_null()
            && (self.wrap == 0 || self.wrap & 4 != 0)
    }

    /// The place behind a stream that was inflated without these steps, in one call.
    pub(super) fn set_done(&mut self, is_gzip: bool, check: u32, written: usize) {
        self.mode = Mode::Done;
        self.is_last = true;
        if self.wrap != 0 {
            self.flags = c_int::from(is_gzip) * 8;
            self.check = check;
        }
        self.total = written as u64;
    }

    /// `inflateMark`.
    pub(super) fn mark(&self) -> c_long {
        let part = match self.mode {
            Mode::Copy => self.length,
            Mode::Match => self.was - self.length,
            _ => 0,
        };
        (c_long::from(self.back) << 16) + c_long::from(part)
    }

    /// `inflatePrime`.
    pub(super) fn prime(&mut self, bits: c_int, value: c_int) -> c_int {
        match u32::try_from(bits) {
            Err(_) => (self.hold, self.bits) = (0, 0),
            Ok(0) => {}
            Ok(bits) if bits > 16 || self.bits + bits > 32 => return Z_STREAM_ERROR,
            Ok(bits) => {
                let value = i64::from(value) as u64 & ((1 << bits) - 1);
                self.hold += value << self.bits;
                self.bits += bits;
            }
        }
        Z_OK
    }

    /// `inflateSetDictionary`.
    pub(super) fn set_dictionary(&mut self, dictionary: &[u8]) -> c_int {
        if self.wrap != 0 && self.mode != Mode::Dictionary {
            return Z_STREAM_ERROR;
        }
        // SAFETY: a slice.
        if self.mode == Mode::Dictionary && unsafe { adler32(1, dictionary) } != self.check {
            return Z_DATA_ERROR;
        }
        if !self.window.put(dictionary, self.window_bits) {
            self.mode = Mode::NoMemory;
            return Z_MEM_ERROR;
        }
        self.has_dictionary = true;
        Z_OK
    }

    /// `inflateSync`.
    ///
    /// # Safety
    /// The stream's input is as its fields say.
    pub(super) unsafe fn sync(&mut self, stream: &mut z_stream) -> c_int {
        if stream.avail_in == 0 && self.bits < 8 {
            return Z_BUF_ERROR;
        }
        if self.mode != Mode::Sync {
            self.mode = Mode::Sync;
            // As zlib does it: the bits before a byte's end are cut off at the wrong side, which
            // makes no byte of the pattern.
            self.hold <<= self.bits & 7;
            self.bits -= self.bits & 7;
            self.have = 0;
            while self.bits >= 8 {
                self.have = search(self.have, &[self.hold as u8]).0;
                self.hold >>= 8;
                self.bits -= 8;
            }
        }
        // SAFETY: the caller's promise.
        let input = unsafe { crate::io::input(stream) };
        let (have, searched) = search(self.have, input);
        self.have = have;
        crate::io::consume(stream, searched);
        if self.have != 4 {
            return Z_DATA_ERROR;
        }
        if self.flags == -1 {
            self.wrap = 0;
        } else {
            self.wrap &= !4;
        }
        let (flags, totals) = (self.flags, (stream.total_in, stream.total_out));
        self.reset(stream);
        (stream.total_in, stream.total_out) = totals;
        self.flags = flags;
        self.mode = Mode::Type;
        Z_OK
    }

    /// A copy in the same kind of memory.
    pub(super) fn duplicate(&self) -> Option<Self> {
        Some(Self {
            window: Window {
                bytes: self.window.bytes.duplicate().ok()?,
                ..self.window
            },
            codes: self.codes.clone(),
            ..*self
        })
    }

    /// The tables of the block in hand.
    pub(super) fn tables(&self) -> (&[Code], &[Code]) {
        if self.codes.is_fixed {
            let fixed = tables::fixed();
            return (&fixed.literals, &fixed.distances);
        }
        (&self.codes.literals, &self.codes.distances)
    }
}

/// Looks for the end of a flush, 0, 0, 0xff, 0xff, of which `have` bytes were found before. Returns
/// the number found now, and the number of bytes searched.
fn search(mut have: usize, bytes: &[u8]) -> (usize, usize) {
    let mut next = 0;
    while next < bytes.len() && have < 4 {
        let wanted = if have < 2 { 0 } else { 0xff };
        have = match bytes[next] {
            byte if byte == wanted => have + 1,
            0 => 4 - have,
            _ => 0,
        };
        next += 1;
    }
    (have, next)
}

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
    if machine.mode == Mode::Type {
        machine.mode = Mode::TypeDo;
    }
    let taken_from = stream.avail_in;
    let room = stream.avail_out as usize;
    let mut run = Run {
        flush,
        next: stream.next_in,
        have: stream.avail_in as usize,
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
    let room = run.room;
    let code = match leave {
        Leave::AtOnce(code) => return code,
        Leave::Counted(code) => code,
    };
    let made = room - stream.avail_out as usize;
    // SAFETY: this call wrote these bytes.
    let out = unsafe { written(stream, made) };
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
    stream.data_type = machine.bits as c_int
        + if machine.is_last { 64 } else { 0 }
        + match machine.mode {
            Mode::Type => 128,
            Mode::SymbolFirst | Mode::CopyFirst => 256,
            _ => 0,
        };
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
    machine.total = machine.total.wrapping_add(made as u64);
    if machine.wrap & 4 != 0 && made > 0 {
        // SAFETY: they were written.
        let out = unsafe { written(stream, made) };
        // SAFETY: a slice.
        machine.check = unsafe {
            match machine.flags {
                0 => adler32(machine.check, out),
                _ => crc32(machine.check, out),
            }
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
        (self.stream.next_in, self.stream.avail_in) = (self.next, self.have as u32);
        (self.stream.next_out, self.stream.avail_out) = (self.put, self.left as u32);
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
        self.machine.hold as u32 & ((1 << count) - 1)
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
        if self.machine.wrap & 2 != 0 && hold == 0x8b1f {
            if self.machine.window_bits == 0 {
                self.machine.window_bits = 15;
            }
            self.machine.check = 0;
            self.check_header(2);
            self.drop_all_bits();
            return self.go(Mode::Flags);
        }
        // SAFETY: null, or the argument of `inflateGetHeader`.
        if let Some(head) = unsafe { self.machine.head.as_mut() } {
            head.done = -1;
        }
        let both = (u64::from(self.bits(8)) << 8).wrapping_add(hold >> 8);
        if self.machine.wrap & 1 == 0 || both % 31 != 0 {
            return self.bad(c"incorrect header check");
        }
        if self.bits(4) != Z_DEFLATED as u32 {
            return self.bad(c"unknown compression method");
        }
        self.drop_bits(4);
        let window_bits = self.bits(4) + 8;
        if self.machine.window_bits == 0 {
            self.machine.window_bits = window_bits;
        }
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
        self.set_check((self.machine.hold as u32).swap_bytes());
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
            self.restore();
            count_out(self.machine, self.stream, self.room - self.left);
            self.room = self.left;
            let hold = self.machine.hold;
            let given = match self.machine.flags {
                0 => u64::from((hold as u32).swap_bytes()),
                _ => hold,
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
        // SAFETY: a slice.
        self.machine.check = unsafe { crc32(self.machine.check, &held[..bytes]) };
    }
}

/// # Safety
/// None: a slice.
unsafe fn adler32(check: u32, bytes: &[u8]) -> u32 {
    // SAFETY: a slice.
    unsafe { forward::adler32_z(check.into(), bytes.as_ptr(), bytes.len()) as u32 }
}

/// # Safety
/// None: a slice.
pub(super) unsafe fn crc32(check: u32, bytes: &[u8]) -> u32 {
    // SAFETY: a slice.
    unsafe { forward::crc32_z(check.into(), bytes.as_ptr(), bytes.len()) as u32 }
}

const _: () = assert!(mem::size_of::<Machine>() < 12 << 10, "as zlib's, about");
