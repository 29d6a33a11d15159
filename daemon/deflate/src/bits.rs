//! Reader of a DEFLATE stream's bits, least significant first (RFC 1951, 3.1.1). Pure.

use sidecore_bare::width::ToUsize;

/// Bits of a byte slice. Beyond its end come zeros, which [`Bits::is_past_end`] tells.
pub(crate) struct Bits<'a> {
    bytes: &'a [u8],
    /// Offset of the next byte that is not in `held`.
    next: usize,
    held: u64,
    held_bits: u32,
}

impl<'a> Bits<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self {
            bytes,
            next: 0,
            held: 0,
            held_bits: 0,
        }
    }

    /// Makes at least 56 bits available to [`Self::peek`] and [`Self::skip`].
    #[inline]
    pub(crate) fn refill(&mut self) {
        if let Some(word) = self.bytes[self.next.min(self.bytes.len())..].first_chunk::<8>() {
            // Whole bytes only: those whose bits are held already are not counted twice.
            self.held |= u64::from_le_bytes(*word) << self.held_bits;
            self.next += (63 - self.held_bits.to_usize()) / 8;
            self.held_bits |= 56;
        } else {
            // Zeros beyond the end: a caller notices by the position, once for many symbols.
            while self.held_bits < 56 {
                let byte = self.bytes.get(self.next).copied().unwrap_or(0);
                self.held |= u64::from(byte) << self.held_bits;
                self.held_bits += 8;
                self.next += 1;
            }
        }
    }

    /// The next `count` bits, at most 32, of those that [`Self::refill`] made available.
    #[inline]
    pub(crate) fn peek(&self, count: u32) -> usize {
        (self.held & ((1 << count) - 1)).to_usize()
    }

    #[inline]
    pub(crate) fn skip(&mut self, count: u32) {
        self.held >>= count;
        self.held_bits -= count;
    }

    /// The next `count` bits, at most 32.
    #[inline]
    pub(crate) fn take(&mut self, count: u32) -> usize {
        self.refill();
        let value = self.peek(count);
        self.skip(count);
        value
    }

    /// Bits read so far.
    pub(crate) fn position(&self) -> usize {
        self.next * 8 - self.held_bits.to_usize()
    }

    /// True once more bits were read than there are.
    pub(crate) fn is_past_end(&self) -> bool {
        self.position() > self.bytes.len() * 8
    }

    /// Goes to the next byte's first bit, then `bytes` further.
    pub(crate) fn skip_to_byte_and(&mut self, bytes: usize) {
        let at = self.position().div_ceil(8).saturating_add(bytes);
        self.next = at;
        self.held = 0;
        self.held_bits = 0;
    }
}
