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
use crate::forward::adler32_of;
use crate::memory::{Bytes, Memory, Window};
use libc::{c_int, c_long};
use libz_rs_sys::*;
use sidecore_bare::width::ToU64;
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
    pub(super) has_dictionary: bool,
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
    #[inline]
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
        // The first value of Adler-32 is 1, that of CRC-32 is 0.
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
        // 0, or 8 to 15.
        let size = size.cast_unsigned();
        if self.window_bits != size {
            self.window.bytes.give_back();
        }
        (self.wrap, self.window_bits) = (wrap, size);
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
        // As the steps would have left them, for calls that ask.
        if self.wrap != 0 {
            self.flags = c_int::from(is_gzip) * 8;
            self.check = check;
        }
        self.total = written.to_u64();
    }

    /// `inflateMark`.
    pub(super) fn mark(&self) -> c_long {
        let part = match self.mode {
            // Of a stored block the bytes to come, of a match those that were copied.
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
                let value = i64::from(value).cast_unsigned() & ((1 << bits) - 1);
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
        // The header names the dictionary by its checksum (RFC 1950, 2.2).
        if self.mode == Mode::Dictionary && adler32_of(1, dictionary) != self.check {
            return Z_DATA_ERROR;
        }
        // The window is where matches that go back before the first byte look.
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
                self.have = search(self.have, &self.hold.to_le_bytes()[..1]).0;
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
        // Without a header the rest is read as a raw stream; with one its checksum cannot be right
        // any more.
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
        // A zero instead of 0xff: the last zeros may begin the pattern anew.
        have = match bytes[next] {
            byte if byte == wanted => have + 1,
            0 => 4 - have,
            _ => 0,
        };
        next += 1;
    }
    (have, next)
}

const _: () = assert!(mem::size_of::<Machine>() < 12 << 10, "as zlib's, about");
