//! Bits of a stream that is read from its end to its start, and of a table description.
//!
//! Why here: the Huffman and sequence streams are written forwards and read backwards (RFC 8878,
//! section 4.1). Both have a fast loop that reads whole words and a careful one that uses this
//! module.
//! Must stay true: no read outside the slice, whatever the position, except for [`word_at`], whose
//! caller guarantees the position. Pure.

// `word_at` reads where its caller guarantees readable bytes; nothing else here is unsafe.
#![allow(unsafe_code)]

use crate::Error;
use sidecore_bare::width::ToUsize;

/// Minimum number of bits in a word of [`Backward::word`], while the stream has them.
pub(crate) const WORD_BITS: u32 = 57;

/// The lowest position at which a whole word can be loaded; see [`Backward::at`].
pub(crate) const WHOLE_WORD: isize = 56;

/// A stream that is read from its last bit down to its first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backward<'a> {
    pub(crate) bytes: &'a [u8],
    /// Number of the next bit, counted from the first byte's lowest; -1 when all are read.
    pub(crate) at: isize,
}

impl<'a> Backward<'a> {
    /// Starts below the end mark, the highest bit that is set in the last byte.
    pub(crate) fn new(bytes: &'a [u8]) -> Option<Self> {
        // A last byte of zero has no mark: no encoder writes it.
        let last = *bytes.last()?;
        let mark = last.checked_ilog2()?;
        let at = (bytes.len() - 1) * 8 + mark.to_usize();
        Some(Self {
            bytes,
            at: at.cast_signed() - 1,
        })
    }

    /// The next bits, the first of them on top, padded with zeros at the end of the stream.
    pub(crate) fn word(&self) -> u64 {
        if self.at < 0 {
            return 0;
        }
        let (top, shift) = ((self.at >> 3).cast_unsigned(), !self.at & 7);
        let word = match top.checked_sub(7) {
            Some(first) => match self.bytes[first..].first_chunk::<8>() {
                Some(bytes) => u64::from_le_bytes(*bytes),
                None => 0,
            },
            // Near the stream's start, bytes before it read as zeros.
            None => {
                let mut bytes = [0; 8];
                bytes[7 - top..].copy_from_slice(&self.bytes[..=top]);
                u64::from_le_bytes(bytes)
            }
        };
        word << shift
    }

    /// Takes `count` bits, at most 57. Missing bits read as zeros, and [`Self::is_overrun`] reports
    /// them.
    pub(crate) fn take(&mut self, count: u32) -> u64 {
        debug_assert!(count <= WORD_BITS);
        // In two steps: with no bits at all, the shift by 64 would be none.
        let value = (self.word() >> 1) >> (63 - count);
        self.skip(count);
        value
    }

    /// Takes `count` bits that were read from [`Self::word`].
    pub(crate) fn skip(&mut self, count: u32) {
        self.at -= count.to_usize().cast_signed();
    }

    /// True when exactly all bits have been taken.
    pub(crate) const fn is_done(&self) -> bool {
        self.at == -1
    }

    /// True when more bits were taken than the stream has.
    pub(crate) const fn is_overrun(&self) -> bool {
        self.at < -1
    }
}

/// The 8 bytes at `base + at`, the first of them lowest, for the loops that cannot afford a check.
///
/// # Safety
/// They are readable.
#[inline(always)]
pub(crate) unsafe fn word_at(base: *const u8, at: isize) -> u64 {
    // SAFETY: the caller's promise; no alignment is asked for.
    u64::from_le(unsafe { base.wrapping_offset(at).cast::<u64>().read_unaligned() })
}

/// The low half of a word.
#[inline(always)]
pub(crate) const fn low_half(word: u64) -> u32 {
    word as u32
}

/// Bits of a table description, read forwards; zeros after the end.
#[derive(Debug)]
pub(crate) struct Forward<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Forward<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The next `count` bits, at most 16, without taking them.
    pub(crate) fn peek(&self, count: u32) -> u32 {
        let rest = self.bytes.get(self.at / 8..).unwrap_or_default();
        let word = match rest.first_chunk() {
            Some(bytes) => u32::from_le_bytes(*bytes),
            None => {
                let mut bytes = [0; 4];
                bytes[..rest.len()].copy_from_slice(rest);
                u32::from_le_bytes(bytes)
            }
        };
        (word >> (self.at % 8)) & ((1 << count) - 1)
    }

    pub(crate) fn skip(&mut self, count: u32) {
        self.at += count.to_usize();
    }

    /// Number of bytes of which at least a bit was taken.
    ///
    /// # Errors
    /// [`Error::Table`] if more bits were taken than there are.
    pub(crate) fn bytes_taken(&self) -> Result<usize, Error> {
        let taken = self.at.div_ceil(8);
        if taken > self.bytes.len() {
            return Err(Error::Table);
        }
        Ok(taken)
    }
}
