//! Huffman trees of literals, and the streams coded by them.
//!
//! Why here: four streams are decoded at once, each five symbols per loaded word, so that four
//! chains of table lookups run in parallel. The low bits of an entry hold the symbol's code length,
//! so that it shifts the word without masking.
//! Must stay true: **a turn of the fast loop** loads 8 bytes of each stream, with at least 57 bits
//! to come, and writes five symbols for each; `turns` is counted so that all of them fit. The rest
//! goes through [`Backward`], which cannot leave its slice. No stream writes outside its segment.
//! Any thread.
//! Source: RFC 8878, sections 4.2 and 3.1.1.3.1.6.

// A decoding kernel: words are loaded and symbols stored without individual checks, in turns that
// were counted in advance.
#![allow(unsafe_code)]

use crate::Error;
use crate::bits::{Backward, WHOLE_WORD, WORD_BITS, word_at};
use crate::fse;
use sidecore_bare::width::ToUsize;

/// The longest code that libzstd accepts; RFC 8878 allows 11.
const LOG_MAX: u8 = 12;
/// The longest code length at which five codes fit in a word.
const LOG_FAST: u8 = 11;
/// Symbols of each stream in a turn.
const TURN_SYMBOLS: usize = 5;
const TURN_BITS: isize = TURN_SYMBOLS.cast_signed() * LOG_FAST as isize;
/// Maximum number of explicit weights; the last one follows from them.
const WEIGHTS_MAX: usize = 255;
const WEIGHT_LOG_MAX: u32 = 6;
/// States of the table of the weights, at most.
const WEIGHT_STATES: usize = 1 << WEIGHT_LOG_MAX;
/// Weights per loaded word, an even number.
const WEIGHTS_A_WORD: usize = (WORD_BITS / WEIGHT_LOG_MAX / 2 * 2) as usize;

/// Weights of the symbols, zeros after the last.
type Weights = [u8; WEIGHTS_MAX + 1];
/// Room for the weights 0 to [`LOG_MAX`], a power of two.
const WEIGHTS: usize = 16;
/// Symbols are counted in quarters.
const QUARTERS: usize = 4;
/// The number of symbols of each weight, quarter by quarter.
type Ranks = [[u16; WEIGHTS]; QUARTERS];

/// A tree as a table, indexed by the next `log` bits.
pub(crate) struct Tree {
    /// Code length in the low byte, symbol in the high one.
    entries: Box<[u16; 1 << LOG_MAX]>,
    /// 0 while there is no tree.
    log: u8,
}

impl Tree {
    pub(crate) fn new() -> Self {
        let entries = Box::new([0; 1 << LOG_MAX]);
        Self { entries, log: 0 }
    }

    pub(crate) const fn is_there(&self) -> bool {
        self.log != 0
    }

    /// Drops the tree.
    pub(crate) const fn clear(&mut self) {
        self.log = 0;
    }

    /// Reads a tree's description at the start of `bytes`; returns the number of bytes that it
    /// takes.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        self.log = 0;
        let mut weights: Weights = [0; WEIGHTS_MAX + 1];
        let (count, taken) = read_weights(bytes, &mut weights)?;
        if weights.iter().any(|&weight| weight > LOG_MAX) {
            return Err(Error::Tree);
        }
        let quarter = (count + 1).div_ceil(QUARTERS);
        let mut ranks = Ranks::default();
        for_quarters(quarter, &weights, |own, _, weight| ranks[own][weight] += 1);
        let number = |ranks: &Ranks, weight: usize| -> u32 {
            ranks.iter().map(|own| u32::from(own[weight])).sum()
        };
        let total: u32 = (1..WEIGHTS)
            .map(|weight| number(&ranks, weight) << (weight - 1))
            .sum();
        let log = total.checked_ilog2().ok_or(Error::Tree)? + 1;
        // The last weight is not stored: it fills the codes up to the next power of two.
        let rest = (1 << log) - total;
        if log > u32::from(LOG_MAX) || !rest.is_power_of_two() {
            return Err(Error::Tree);
        }
        let (log, last) = (narrow(log)?, narrow(rest.ilog2() + 1)?);
        weights[count] = last;
        // It was counted above as a symbol without a code.
        ranks[count / quarter][0] -= 1;
        ranks[count / quarter][usize::from(last)] += 1;
        let longest = number(&ranks, 1);
        if longest < 2 || longest % 2 != 0 {
            return Err(Error::Tree);
        }
        self.fill(&weights, quarter, &ranks, log);
        self.log = log;
        Ok(taken)
    }

    /// Codes ascend with the weight, and with the symbol among equal weights.
    fn fill(&mut self, weights: &Weights, quarter: usize, ranks: &Ranks, log: u8) {
        // Sorted by weight, so that the symbols of one weight are one loop with one width.
        let mut starts = [0_u16; WEIGHTS + 1];
        let mut places = *ranks;
        let mut next = 0;
        for weight in 0..WEIGHTS {
            starts[weight] = next;
            for own in &mut places {
                next += std::mem::replace(&mut own[weight], next);
            }
        }
        starts[WEIGHTS] = next;
        let mut sorted = [0_u8; WEIGHTS_MAX + 1];
        for_quarters(quarter, weights, |own, symbol, weight| {
            let place = &mut places[own][weight];
            sorted[usize::from(*place) % (WEIGHTS_MAX + 1)] = symbol;
            *place += 1;
        });
        let mut rest = &mut self.entries[..1 << log];
        for (weight, bits) in (1..).zip((1..=log).rev()) {
            let symbols = &sorted[usize::from(starts[weight])..usize::from(starts[weight + 1])];
            let entries = symbols
                .iter()
                .map(|&symbol| u16::from_le_bytes([bits, symbol]));
            let (own, after) = rest.split_at_mut(symbols.len() << (weight - 1));
            rest = after;
            match weight {
                1 => put::<1>(own, entries),
                2 => put::<2>(own, entries),
                3 => put::<4>(own, entries),
                4 => put::<8>(own, entries),
                _ => {
                    let width = 1 << (weight - 1);
                    for (entry, places) in entries.zip(own.chunks_exact_mut(width)) {
                        let (wide, _) = places.as_chunks_mut::<16>();
                        wide.iter_mut().for_each(|places| *places = [entry; 16]);
                    }
                }
            }
        }
    }

    /// Decodes one stream into `out`, which it fills exactly.
    pub(crate) fn one_stream(&self, bytes: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let stream = Backward::new(bytes).ok_or(Error::Literals)?;
        self.finish(stream, out)
    }

    /// Decodes four streams after their table of lengths into `out`.
    pub(crate) fn four_streams(&self, bytes: &[u8], out: &mut [u8]) -> Result<(), Error> {
        let (lengths, mut rest) = bytes.split_first_chunk::<6>().ok_or(Error::Literals)?;
        let mut streams = [Backward { bytes: &[], at: -1 }; 4];
        for (index, stream) in streams.iter_mut().enumerate() {
            let length = match lengths.get(2 * index..2 * index + 2) {
                Some(length) => usize::from(u16::from_le_bytes([length[0], length[1]])),
                None => rest.len(),
            };
            let (own, after) = rest.split_at_checked(length).ok_or(Error::Literals)?;
            *stream = Backward::new(own).ok_or(Error::Literals)?;
            rest = after;
        }
        let segment = out.len().div_ceil(4);
        if 3 * segment > out.len() {
            return Err(Error::Literals);
        }
        let mut done = 0;
        if self.log <= LOG_FAST {
            // SAFETY: three segments and a fourth that is not longer make up `out`.
            done = unsafe { self.turns(&mut streams, out, segment) };
        }
        let mut rest = out;
        for stream in streams {
            let length = segment.min(rest.len());
            let (own, after) = rest.split_at_mut(length);
            self.finish(stream, &mut own[done..])?;
            rest = after;
        }
        Ok(())
    }

    /// Decodes `out.len()` symbols, after which the stream must end.
    fn finish(&self, mut stream: Backward<'_>, out: &mut [u8]) -> Result<(), Error> {
        let shift = 64 - self.log;
        let per_word = if self.log <= LOG_FAST {
            TURN_SYMBOLS
        } else {
            4
        };
        for symbols in out.chunks_mut(per_word) {
            let mut word = stream.word();
            for symbol in symbols {
                let entry = self.entries[(word >> shift).to_usize() & ((1 << LOG_MAX) - 1)];
                let [bits, decoded] = entry.to_le_bytes();
                *symbol = decoded;
                word <<= bits & 63;
                stream.at -= isize::from(bits & 63);
            }
            if stream.is_overrun() {
                return Err(Error::Literals);
            }
        }
        if stream.is_done() {
            Ok(())
        } else {
            Err(Error::Literals)
        }
    }

    /// Decodes as many symbols of all four streams as whole turns allow; returns how many of each.
    ///
    /// # Safety
    /// Segments 0 to 2 of `out` have `segment` bytes, and segment 3 has the rest.
    unsafe fn turns(
        &self,
        streams: &mut [Backward<'_>; 4],
        out: &mut [u8],
        segment: usize,
    ) -> usize {
        #[cfg(target_arch = "x86_64")]
        if crate::has_bmi2() {
            // SAFETY: the processor has BMI2; as this function's.
            return unsafe { turns_bmi2(&self.entries, self.log, streams, out, segment) };
        }
        // SAFETY: as this function's.
        unsafe { turns(&self.entries, self.log, streams, out, segment) }
    }
}

/// Calls `each(quarter, symbol, weight)` for `quarter` symbols of each quarter, one of every
/// quarter in turn: updates in one quarter do not wait for those in another.
#[inline(always)]
fn for_quarters(quarter: usize, weights: &Weights, mut each: impl FnMut(usize, u8, usize)) {
    for index in 0..quarter {
        for own in 0..QUARTERS {
            // At most 255: taking the low byte spares the check of the bounds.
            let [symbol, ..] = (own * quarter + index).to_le_bytes();
            let weight = usize::from(weights[usize::from(symbol)]);
            each(own, symbol, weight % WEIGHTS);
        }
    }
}

/// Writes each entry to its `N` places.
fn put<const N: usize>(places: &mut [u16], entries: impl Iterator<Item = u16>) {
    let (places, _) = places.as_chunks_mut::<N>();
    for (places, entry) in places.iter_mut().zip(entries) {
        *places = [entry; N];
    }
}

/// # Safety
/// As [`turns`]; the processor has BMI2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "bmi1,bmi2")]
unsafe fn turns_bmi2(
    entries: &[u16; 1 << LOG_MAX],
    log: u8,
    streams: &mut [Backward<'_>; 4],
    out: &mut [u8],
    segment: usize,
) -> usize {
    // SAFETY: the caller's promise.
    unsafe { turns(entries, log, streams, out, segment) }
}

/// See [`Tree::turns`].
///
/// # Safety
/// As [`Tree::turns`]; `log` is the table's, 1 to 11.
#[inline(always)]
unsafe fn turns(
    entries: &[u16; 1 << LOG_MAX],
    log: u8,
    streams: &mut [Backward<'_>; 4],
    out: &mut [u8],
    segment: usize,
) -> usize {
    let shift = 64 - log;
    let shortest = out.len() - 3 * segment;
    let bases = streams.map(|stream| stream.bytes.as_ptr());
    let mut at = streams.map(|stream| stream.at);
    let mut done = 0;
    let out = out.as_mut_ptr();
    loop {
        let lowest = at[0].min(at[1]).min(at[2]).min(at[3]);
        if lowest < WHOLE_WORD {
            break;
        }
        let turns = ((lowest - WHOLE_WORD) / TURN_BITS + 1).cast_unsigned();
        let turns = turns.min((shortest - done) / TURN_SYMBOLS);
        if turns == 0 {
            break;
        }
        for _ in 0..turns {
            let mut words = [0_u64; 4];
            let mut used = [0_u32; 4];
            for k in 0..4 {
                // SAFETY: at[k] is at least 56, so 8 bytes end with the byte that has bit at[k],
                // and that byte is in the stream: at[k] only goes down.
                let word = unsafe { word_at(bases[k], (at[k] >> 3) - 7) };
                words[k] = word << (!at[k] & 7);
            }
            for j in 0..TURN_SYMBOLS {
                for k in 0..4 {
                    let index = (words[k] >> shift).to_usize();
                    // SAFETY: `log` bits are left, and the table has 2^log entries. The segment has
                    // `done` + 5 symbols, by the count of turns.
                    let entry = unsafe { *entries.get_unchecked(index) };
                    // SAFETY: as above.
                    unsafe { *out.add(k * segment + done + j) = entry.to_le_bytes()[1] };
                    // The symbol above the length does not have to be masked out: the mask of the
                    // shift leaves the length alone.
                    words[k] <<= entry & 63;
                    used[k] += u32::from(entry);
                }
            }
            for k in 0..4 {
                // The sum of the symbols lies above the low byte.
                at[k] -= isize::from(used[k].to_le_bytes()[0]);
            }
            done += TURN_SYMBOLS;
        }
    }
    for (stream, at) in streams.iter_mut().zip(at) {
        stream.at = at;
    }
    done
}

fn narrow(number: u32) -> Result<u8, Error> {
    u8::try_from(number).map_err(|_| Error::Tree)
}

/// Reads the explicit weights, all but the last; returns their number, and the bytes that the
/// description takes.
fn read_weights(bytes: &[u8], weights: &mut Weights) -> Result<(usize, usize), Error> {
    let (&head, rest) = bytes.split_first().ok_or(Error::Tree)?;
    if head >= 128 {
        let count = usize::from(head) - 127;
        let packed = rest.get(..count.div_ceil(2)).ok_or(Error::Tree)?;
        for (index, weight) in weights[..count].iter_mut().enumerate() {
            let both = packed[index / 2];
            *weight = if index % 2 == 0 { both >> 4 } else { both & 15 };
        }
        return Ok((count, 1 + packed.len()));
    }
    let packed = rest.get(..usize::from(head)).ok_or(Error::Tree)?;
    let count = read_packed_weights(packed, weights)?;
    Ok((count, 1 + packed.len()))
}

/// Two FSE states alternate until one of them runs out of bits; the other then gives the last
/// symbol.
fn read_packed_weights(packed: &[u8], weights: &mut Weights) -> Result<usize, Error> {
    let (shares, taken) = fse::read_shares(packed, fse::SYMBOLS_MAX, WEIGHT_LOG_MAX)?;
    // Symbol, bits and base.
    let mut states = [(0_u8, 0_u32, 0_u64); WEIGHT_STATES];
    fse::spread(&shares, |state, symbol, bits, base| {
        states[state % WEIGHT_STATES] = (symbol, bits, base.into());
    });
    let look_up = |state: u64| states[state.to_usize() % WEIGHT_STATES];
    let mut stream = Backward::new(&packed[taken..]).ok_or(Error::Tree)?;
    let mut own = stream.take(shares.log);
    let mut other = stream.take(shares.log);
    if stream.is_overrun() {
        return Err(Error::Tree);
    }
    let mut count = 0;
    // As many as a word has bits for; the number is even, so the order of the two states stays the
    // same.
    while stream.at >= WHOLE_WORD {
        let Some(places) = weights[..WEIGHTS_MAX - 1].get_mut(count..count + WEIGHTS_A_WORD) else {
            break;
        };
        let mut word = stream.word();
        for place in places {
            let (symbol, bits, base) = look_up(own);
            *place = symbol;
            own = base + ((word >> 1) >> (63 - bits));
            word <<= bits;
            stream.skip(bits);
            std::mem::swap(&mut own, &mut other);
        }
        count += WEIGHTS_A_WORD;
    }
    // A round may give two weights; the table has room for one more than the maximum.
    while count < WEIGHTS_MAX - 1 {
        let (symbol, bits, base) = look_up(own);
        weights[count] = symbol;
        count += 1;
        own = base + stream.take(bits);
        if stream.is_overrun() {
            weights[count] = look_up(other).0;
            return Ok(count + 1);
        }
        std::mem::swap(&mut own, &mut other);
    }
    Err(Error::Tree)
}
