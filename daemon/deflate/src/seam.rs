//! Finds where the final block of a DEFLATE stream begins and where the stream ends, in bits.
//!
//! Why here: libdeflate, the fastest library, marks the last block of its output as the stream's
//! final one, and fills its last byte with zeros. So that another block can follow, that mark is
//! cleared and an empty stored block is written right behind the last bit; no library reports these
//! two places. They are found by reading the code lengths and counting through the symbols. Nothing
//! is inflated; this costs a few hundredths of deflating.
//!
//! Must stay true: any bytes may come in; whatever is not a complete stream gives `None`.
//! Source: RFC 1951, 3.2.3 to 3.2.7. Pure.

use sidecore_bare::width::ToUsize;

/// Places in a DEFLATE stream, in bits from its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seam {
    /// The bit BFINAL of the final block.
    pub(crate) final_mark: usize,
    /// The first bit behind the stream.
    pub(crate) end: usize,
}

/// Tables of one reader, kept from stream to stream.
pub(crate) struct Seams {
    literals: Table,
    distances: Table,
    lengths: Table,
}

impl Default for Seams {
    fn default() -> Self {
        Self {
            literals: Table::new(LITERAL_BITS_MAX),
            distances: Table::new(LITERAL_BITS_MAX),
            lengths: Table::new(LENGTH_CODE_BITS_MAX),
        }
    }
}

impl Seams {
    /// Reads a whole stream. `None` where it is damaged or not complete.
    pub(crate) fn find(&mut self, stream: &[u8]) -> Option<Seam> {
        let mut bits = Bits::new(stream);
        loop {
            let mark = bits.position();
            let is_final = bits.take(1) == 1;
            match bits.take(2) {
                0 => stored(&mut bits)?,
                1 => {
                    self.fixed_codes()?;
                    self.skip_symbols(&mut bits)?;
                }
                2 => {
                    self.read_codes(&mut bits)?;
                    self.skip_symbols(&mut bits)?;
                }
                _ => return None,
            }
            if bits.is_past_end() {
                return None;
            }
            if is_final {
                return Some(Seam {
                    final_mark: mark,
                    end: bits.position(),
                });
            }
        }
    }

    /// The codes of RFC 1951, 3.2.6.
    fn fixed_codes(&mut self) -> Option<()> {
        let mut lengths = [8_u8; 288];
        lengths[144..256].fill(9);
        lengths[256..280].fill(7);
        self.literals.build(&lengths, literal_entry)?;
        // 30 of 32 codes: the other two have no meaning, and end the search where they occur.
        self.distances.build(&[5; 30], distance_entry)
    }

    /// The codes that a block with codes of its own begins with (RFC 1951, 3.2.7).
    fn read_codes(&mut self, bits: &mut Bits<'_>) -> Option<()> {
        let literals = bits.take(5) + 257;
        let distances = bits.take(5) + 1;
        let count = bits.take(4) + 4;
        let mut code_lengths = [0_u8; 19];
        for &place in &LENGTH_CODE_ORDER[..count] {
            code_lengths[place] = bits.take(3).to_le_bytes()[0];
        }
        self.lengths
            .build(&code_lengths, |symbol| symbol * SYMBOL_UNIT)?;
        let mut lengths = [0_u8; 286 + 32 + 138];
        let mut filled = 0;
        while filled < literals + distances {
            // A symbol of 7 bits and a repetition of 7 more: one refill has them.
            bits.refill();
            let entry = self.lengths.entry(bits)?;
            bits.skip(entry & BITS);
            let (value, times) = match entry / SYMBOL_UNIT {
                symbol @ 0..16 => (symbol.to_le_bytes()[0], 1),
                16 => (
                    *lengths.get(filled.checked_sub(1)?)?,
                    3 + bits.peek_and_skip(2),
                ),
                17 => (0, 3 + bits.peek_and_skip(3)),
                _ => (0, 11 + bits.peek_and_skip(7)),
            };
            // A repetition may go on from the literals' lengths into the distances'.
            lengths.get_mut(filled..filled + times)?.fill(value);
            filled += times;
        }
        // Zeros beyond the end decode to something, so the end is looked at once, here.
        if literals > 286 || filled != literals + distances || bits.is_past_end() {
            return None;
        }
        self.literals.build(&lengths[..literals], literal_entry)?;
        self.distances
            .build(&lengths[literals..filled], distance_entry)
    }

    /// Skips the symbols of a block, its end included.
    fn skip_symbols(&self, bits: &mut Bits<'_>) -> Option<()> {
        loop {
            bits.refill();
            // Three literals, or a length and its distance, take at most 50 of the 56 bits there.
            for _ in 0..3 {
                // The values of extra bits do not matter: nothing is decoded here.
                let entry = self.literals.entry(bits)?;
                bits.skip(entry & BITS);
                if entry & KIND == LITERAL {
                    continue;
                }
                if entry & KIND == END {
                    return Some(());
                }
                bits.refill();
                let distance = self.distances.entry(bits)?;
                bits.skip(distance & BITS);
                break;
            }
            if bits.is_past_end() {
                return None;
            }
        }
    }
}

impl Bits<'_> {
    /// Bits that a refill before has made available.
    fn peek_and_skip(&mut self, count: u32) -> usize {
        let value = self.peek(count);
        self.skip(count);
        value
    }
}

fn stored(bits: &mut Bits<'_>) -> Option<()> {
    bits.skip_to_byte_and(0);
    let length = bits.take(16);
    let inverse = bits.take(16);
    // RFC 1951, 3.2.4: the length's complement, the only check that a stored block has.
    if length ^ inverse != 0xffff {
        return None;
    }
    bits.skip_to_byte_and(length);
    Some(())
}

/// A canonical Huffman code: a table, looked up by the next bits of the stream, and a list of the
/// longer codes. A table for the longest ones would cost more than the search for its block.
struct Table {
    bits_max: u32,
    /// Bits that the table looks at.
    bits: u32,
    entries: Vec<u32>,
    /// Of each length: its first code, the number of its codes, and the place of the first one in
    /// `longer`.
    first: [u32; 16],
    counts: [u32; 16],
    places: [u32; 16],
    longer: Vec<u32>,
}

impl Table {
    fn new(bits_max: u32) -> Self {
        Self {
            bits_max,
            bits: 1,
            entries: vec![0; 1 << bits_max.min(TABLE_BITS_MAX)],
            first: [0; 16],
            counts: [0; 16],
            places: [0; 16],
            longer: vec![0; LITERALS_MAX],
        }
    }

    /// Makes the table of the code with these lengths (RFC 1951, 3.2.2). A code of one symbol may
    /// be incomplete, as may an empty one; looking up bits without a symbol gives `None` later.
    fn build(&mut self, lengths: &[u8], entry: impl Fn(u32) -> u32) -> Option<()> {
        let mut counts = [0_u32; 16];
        for &length in lengths {
            *counts.get_mut(usize::from(length))? += 1;
        }
        // Symbols of length 0 do not occur.
        counts[0] = 0;
        let lengths_used = (1..16_u32).zip(&counts[1..]).rev();
        let longest = lengths_used.into_iter().find(|(_, count)| **count > 0);
        let longest = longest.map_or(1, |(bits, _)| bits);
        if longest > self.bits_max {
            return None;
        }
        self.bits = longest.min(TABLE_BITS_MAX);
        let (mut code, mut place) = (0, 0);
        for bits in 1..16 {
            code = (code + counts[bits - 1]) << 1;
            self.first[bits] = code;
            // More codes of this length than are left: two symbols would share bits.
            if u64::from(code) + u64::from(counts[bits]) > 1 << bits {
                return None;
            }
            self.places[bits] = place;
            if bits > self.bits.to_usize() {
                place += counts[bits];
            }
        }
        self.counts = counts;
        let size = 1_usize << self.bits;
        self.entries[..size].fill(0);
        let mut next = self.first;
        for (symbol, &length) in (0..).zip(lengths) {
            if length == 0 {
                continue;
            }
            let at = usize::from(length);
            let code = next[at];
            next[at] += 1;
            let length = u32::from(length);
            let value = entry(symbol) + length;
            if length > self.bits {
                let place = self.places[at] + code - self.first[at];
                *self.longer.get_mut(place.to_usize())? = value;
                continue;
            }
            // Codes come with their most significant bit first.
            let first = (code.reverse_bits() >> (32 - length)).to_usize();
            // Every value of the bits behind a short code leads to it, too.
            for place in self.entries[first..size].iter_mut().step_by(1 << length) {
                *place = value;
            }
        }
        Some(())
    }

    /// The entry of the next symbol; `None` where the bits are no symbol's.
    #[inline]
    fn entry(&self, bits: &Bits<'_>) -> Option<u32> {
        match *self.entries.get(bits.peek(self.bits))? {
            0 => self.longer_entry(bits),
            entry => Some(entry),
        }
    }

    /// The same for a symbol that is not in the table.
    #[cold]
    fn longer_entry(&self, bits: &Bits<'_>) -> Option<u32> {
        for length in self.bits + 1..=self.bits_max {
            let at = length.to_usize();
            let code = u32::try_from(bits.peek(length)).ok()?.reverse_bits() >> (32 - length);
            // Codes of one length follow one another, and shorter ones come before (RFC 1951,
            // 3.2.2).
            if let Some(index) = code.checked_sub(self.first[at])
                && index < self.counts[at]
            {
                let place = (self.places[at] + index).to_usize();
                return self.longer.get(place).copied();
            }
        }
        None
    }
}

/// Kinds and extra bits of literals and lengths, to which a code's bits are added: RFC 1951, 3.2.5.
fn literal_entry(symbol: u32) -> u32 {
    match symbol {
        0..256 => LITERAL,
        256 => END,
        257..265 | 285.. => LENGTH,
        _ => LENGTH + (symbol - 261) / 4,
    }
}

/// The same for distances.
fn distance_entry(symbol: u32) -> u32 {
    match symbol {
        0..4 => LENGTH,
        _ => LENGTH + symbol / 2 - 1,
    }
}

// An entry: the bits of the code and those behind it, its kind, and the symbol of a lengths' code.
// Never 0: a code has a bit.
const BITS: u32 = 0x1f;
const KIND: u32 = 0x60;
const LITERAL: u32 = 0x00;
const LENGTH: u32 = 0x20;
const END: u32 = 0x40;
const SYMBOL_UNIT: u32 = 0x80;
/// Bits of a table: codes of more are a few in a hundred symbols at most.
const TABLE_BITS_MAX: u32 = 11;
const LITERALS_MAX: usize = 288;
const LITERAL_BITS_MAX: u32 = 15;
const LENGTH_CODE_BITS_MAX: u32 = 7;
const LENGTH_CODE_ORDER: [usize; 19] = [
    16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15,
];

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
