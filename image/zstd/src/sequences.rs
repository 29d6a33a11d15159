//! The sequences section of a block: its tables, and the sequences decoded to a list.
//!
//! Why here: a sequence costs three table lookups and up to six bit fields, one after the other.
//! That chain bounds the speed of a decoder, and so do branches on fields of zero bits. Here all
//! six fields are taken from one word without a branch, and the chains of two blocks run in
//! parallel ([`decode_two`]): the processor has work while either waits. The sequences are executed
//! later ([`crate::execute`]).
//! Must stay true: **an entry's next state plus its bits is below the table's size**
//! ([`fse::spread`]), and a table that is too small for its lane's array does not exist, so the
//! fast loop's lookups stay inside. It loads 8 bytes only from position [`WHOLE_WORD`] up, and
//! writes within the given `count`. Any thread.
//! Source: RFC 8878, sections 3.1.1.3.2 and 4.1.

// A decoding kernel: words are loaded and entries looked up without individual checks, in turns
// that were counted in advance.
#![allow(unsafe_code)]

use crate::Error;
use crate::bits::{Backward, WHOLE_WORD, WORD_BITS, low_half, word_at};
use crate::fse::{self, Shares};
use sidecore_bare::width::ToUsize;
use std::sync::LazyLock;

/// Maximum number of sequences in a list: more than a block of 128 KiB usually has.
pub(crate) const LIST_MAX: usize = 16 << 10;

/// Literal lengths, offsets, match lengths: in the order of their modes in the header.
const KINDS: usize = 3;
const LITERAL: usize = 0;
const OFFSET: usize = 1;
const MATCH: usize = 2;

const LOG_MAX: [u32; KINDS] = [9, 8, 9];
const SYMBOLS: [usize; KINDS] = [36, 32, 53];
const STATES: usize = 512;

/// A state. From the low end: 8 bits for the number of bits that are added to the value, 8 for the
/// number of bits that are added to the next state, 16 for the next state, 32 for the value. The
/// two lowest fields of several entries can be summed at once.
type Entry = u64;

/// A lane's three tables.
struct Tables {
    entries: [[Entry; STATES]; KINDS],
    logs: [u32; KINDS],
}

/// Tables of two blocks, and the index of the lane whose tables a later block may repeat.
pub(crate) struct Lanes {
    tables: Box<[Tables; 2]>,
    current: Option<[usize; KINDS]>,
}

impl Lanes {
    pub(crate) fn new() -> Self {
        let empty = || Tables {
            entries: [[0; STATES]; KINDS],
            logs: [0; KINDS],
        };
        let tables = Box::new([empty(), empty()]);
        let current = None;
        Self { tables, current }
    }

    /// Drops the tables: another frame begins.
    pub(crate) const fn clear(&mut self) {
        self.current = None;
    }

    /// Reads the header of a sequences section into a lane.
    pub(crate) fn chain<'a>(&mut self, lane: usize, section: &'a [u8]) -> Result<Chain<'a>, Error> {
        let (count, mut rest) = count(section)?;
        let mut chain = Chain {
            bits: Backward { bytes: &[], at: -1 },
            states: [0; KINDS],
            left: count,
        };
        if count == 0 {
            return if rest.is_empty() {
                Ok(chain)
            } else {
                Err(Error::Sequences)
            };
        }
        let (&modes, after) = rest.split_first().ok_or(Error::Sequences)?;
        // Section 3.1.1.3.2.1: the two lowest bits must be zero.
        if modes & 3 != 0 {
            return Err(Error::Reserved);
        }
        rest = after;
        let mut current = self.current.unwrap_or([lane; KINDS]);
        // The descriptions follow in this order, each behind the end of the one before.
        for kind in [LITERAL, OFFSET, MATCH] {
            let mode = (modes >> (6 - 2 * kind)) & 3;
            let taken = self.table(kind, mode, rest, lane, current[kind])?;
            current[kind] = lane;
            rest = &rest[taken..];
        }
        self.current = Some(current);
        chain.bits = Backward::new(rest).ok_or(Error::Sequences)?;
        // The first states are read in this order; they are updated in another one.
        for kind in [LITERAL, OFFSET, MATCH] {
            chain.states[kind] = chain.bits.take(self.tables[lane].logs[kind]).to_usize();
        }
        if chain.bits.is_overrun() {
            return Err(Error::Sequences);
        }
        Ok(chain)
    }
}

impl Lanes {
    /// Sets a lane's table of one kind by its mode and its description at the start of `rest`;
    /// returns the bytes of that. The table to repeat is in lane `latest`.
    fn table(
        &mut self,
        kind: usize,
        mode: u8,
        rest: &[u8],
        lane: usize,
        latest: usize,
    ) -> Result<usize, Error> {
        match mode {
            0 => {
                self.tables[lane].copy(kind, &PREDEFINED);
                Ok(0)
            }
            1 => {
                let &symbol = rest.first().ok_or(Error::Table)?;
                self.tables[lane].set_run(kind, symbol)?;
                Ok(1)
            }
            2 => {
                let (shares, taken) = fse::read_shares(rest, SYMBOLS[kind], LOG_MAX[kind])?;
                self.tables[lane].set(kind, &shares);
                Ok(taken)
            }
            _ => {
                // There is nothing to repeat before the frame's first block with sequences.
                if self.current.is_none() {
                    return Err(Error::Table);
                }
                if latest != lane {
                    let [first, second] = &mut *self.tables;
                    let (to, from) = match lane {
                        0 => (first, &*second),
                        _ => (second, &*first),
                    };
                    to.copy(kind, from);
                }
                Ok(0)
            }
        }
    }
}

impl Tables {
    fn copy(&mut self, kind: usize, from: &Self) {
        let log = from.logs[kind];
        self.logs[kind] = log;
        let size = 1 << log;
        self.entries[kind][..size].copy_from_slice(&from.entries[kind][..size]);
    }

    /// A table of one state that has `symbol` and never leaves.
    fn set_run(&mut self, kind: usize, symbol: u8) -> Result<(), Error> {
        if usize::from(symbol) >= SYMBOLS[kind] {
            return Err(Error::Table);
        }
        self.logs[kind] = 0;
        self.entries[kind][0] = VALUES[kind][usize::from(symbol)];
        Ok(())
    }

    /// Sets a table; `shares` must be within the symbols and states of the kind.
    fn set(&mut self, kind: usize, shares: &Shares) {
        self.logs[kind] = shares.log;
        let (entries, values) = (&mut self.entries[kind], &VALUES[kind]);
        fse::spread(shares, |state, symbol, bits, base| {
            let value = values[usize::from(symbol) % SYMBOLS_ROUND];
            entries[state % STATES] = value | u64::from(bits) << 8 | u64::from(base) << 16;
        });
    }
}

/// Reads the number of sequences; returns the rest of the section, too.
fn count(section: &[u8]) -> Result<(usize, &[u8]), Error> {
    // The first byte tells how many there are; 255 adds to a value that two bytes hold.
    Ok(match *section {
        [first @ 0..=127, ref rest @ ..] => (usize::from(first), rest),
        [255, low, high, ref rest @ ..] => {
            (usize::from(u16::from_le_bytes([low, high])) + 0x7F00, rest)
        }
        [first @ 128..=254, low, ref rest @ ..] => {
            (usize::from(u16::from_be_bytes([first - 128, low])), rest)
        }
        _ => return Err(Error::Sequences),
    })
}

/// A block's sequences, decoded in part.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chain<'a> {
    bits: Backward<'a>,
    /// States of the next sequence.
    states: [usize; KINDS],
    /// Sequences to come.
    pub(crate) left: usize,
}

impl Chain<'_> {
    /// True when the stream ended where the last sequence did.
    pub(crate) const fn is_done(&self) -> bool {
        self.left == 0 && self.bits.is_done()
    }
}

/// A sequence as coded: the number of literals that come first, the bytes of the match that
/// follows, and the match's offset, where 1 to 3 name earlier offsets and other values are 3 more
/// than an offset. The last word is not used. Plain words, so that new lists are untouched pages;
/// four of them, so that sums add whole sequences at once.
pub(crate) type Sequence = [u32; 4];

/// Sums of the literals and of the match bytes of some sequences; the caller ensures that they do
/// not overflow.
pub(crate) fn sums(sequences: &[Sequence]) -> (usize, usize) {
    let mut sums = [0_u32; 4];
    for sequence in sequences {
        for (sum, word) in sums.iter_mut().zip(sequence) {
            *sum = sum.wrapping_add(*word);
        }
    }
    (sums[0].to_usize(), sums[1].to_usize())
}

/// Sequences of two blocks, up to [`LIST_MAX`] of each.
pub(crate) struct Lists(Box<[Sequence]>);

impl Lists {
    pub(crate) fn new() -> Self {
        Self(vec![[0; 4]; 2 * LIST_MAX].into())
    }

    /// The first `count` sequences of a lane.
    pub(crate) fn of(&self, lane: usize, count: usize) -> &[Sequence] {
        &self.0[lane * LIST_MAX..][..count]
    }
}

/// Decodes the sequences of two blocks, at most [`LIST_MAX`] each, into their lanes.
pub(crate) fn decode_two(
    lanes: &Lanes,
    chains: &mut [Chain<'_>; 2],
    lists: &mut Lists,
) -> Result<(), Error> {
    debug_assert!(chains.iter().all(|chain| chain.left <= LIST_MAX));
    let done = turns_of::<2>(&lanes.tables[..], chains, &mut lists.0);
    for (lane, chain) in chains.iter_mut().enumerate() {
        let end = done + chain.left;
        one_lane(lanes, lane, chain, lists, done..end)?;
    }
    Ok(())
}

/// Decodes the next sequences of the block in lane 0, at most [`LIST_MAX`]; returns how many.
pub(crate) fn decode_one(
    lanes: &Lanes,
    chain: &mut Chain<'_>,
    lists: &mut Lists,
) -> Result<usize, Error> {
    let count = chain.left.min(LIST_MAX);
    one_lane(lanes, 0, chain, lists, 0..count)?;
    Ok(count)
}

/// Decodes sequences to the places `range` of a lane.
fn one_lane(
    lanes: &Lanes,
    lane: usize,
    chain: &mut Chain<'_>,
    lists: &mut Lists,
    range: std::ops::Range<usize>,
) -> Result<(), Error> {
    let tables = &lanes.tables[lane];
    let mut index = range.start;
    while index < range.end {
        // Sequences after this range must not be decoded with it.
        let behind = chain.left - (range.end - index);
        chain.left -= behind;
        let is_last_range = behind == 0;
        // A last sequence reads no states; elsewhere the careful step handles one more than
        // necessary.
        let places = &mut lists.0[lane * LIST_MAX + index..(lane + 1) * LIST_MAX];
        let chains = std::slice::from_mut(chain);
        index += turns_of::<1>(std::slice::from_ref(tables), chains, places);
        let chain = &mut chains[0];
        if index < range.end {
            let is_last = is_last_range && chain.left == 1;
            lists.0[lane * LIST_MAX + index] = careful(tables, chain, is_last)?;
            index += 1;
        }
        chain.left += behind;
    }
    Ok(())
}

/// Decodes one sequence of any length, at any position of the stream.
fn careful(tables: &Tables, chain: &mut Chain<'_>, is_last: bool) -> Result<Sequence, Error> {
    let entry = |kind: usize| tables.entries[kind][chain.states[kind] % STATES];
    let entries: [Entry; KINDS] = [entry(LITERAL), entry(OFFSET), entry(MATCH)];
    let mut value = |kind: usize| {
        let more = chain.bits.take(low_half(entries[kind]) & 63);
        (entries[kind] >> 32) + more
    };
    // Section 3.1.1.3.2.1.2: the bits of the offset come first. With a stream that is read
    // backwards, the order of these calls is the format.
    let (offset, matched, literals) = (value(OFFSET), value(MATCH), value(LITERAL));
    if !is_last {
        for kind in [LITERAL, MATCH, OFFSET] {
            let more = chain.bits.take(low_half(entries[kind] >> 8) & 63);
            chain.states[kind] = next(entries[kind]) + more.to_usize();
        }
    }
    if chain.bits.is_overrun() {
        return Err(Error::Sequences);
    }
    chain.left -= 1;
    // No value has more than 32 bits: that of an offset is below 2^31 and has 31 added.
    Ok([low_half(literals), low_half(matched), low_half(offset), 0])
}

/// Decodes sequences of N blocks in parallel while all of them have whole words to read and one
/// more sequence after that; returns how many of each. Lane 0 is written to `places`, each further
/// lane [`LIST_MAX`] places later.
fn turns_of<const N: usize>(
    tables: &[Tables],
    chains: &mut [Chain<'_>],
    places: &mut [Sequence],
) -> usize {
    let (Some(tables), Some(chains)) = (tables.first_chunk(), chains.first_chunk_mut()) else {
        return 0;
    };
    let Some(room) = places.len().checked_sub((N - 1) * LIST_MAX) else {
        return 0;
    };
    let left = chains.iter().map(|chain| chain.left).min().unwrap_or(0);
    let count = left.saturating_sub(1).min(room);
    let places = places.as_mut_ptr();
    #[cfg(target_arch = "x86_64")]
    if crate::has_bmi2() {
        // SAFETY: the processor has BMI2; there are `count` places in each lane.
        return unsafe { turns_bmi2::<N>(tables, chains, places, count) };
    }
    // SAFETY: there are `count` places in each lane.
    unsafe { turns::<N, Plain>(tables, chains, places, count) }
}

/// Extracts the low bits of a word.
trait Cut {
    /// The low `count` bits of `word`; `count` is taken modulo 256, and below 64 then.
    fn low(word: u64, count: u64) -> u64;
}

struct Plain;

impl Cut for Plain {
    #[inline(always)]
    fn low(word: u64, count: u64) -> u64 {
        word & !(u64::MAX << (count & 63))
    }
}

/// With BMI2's instruction, which uses only the low eight bits of the count.
#[cfg(target_arch = "x86_64")]
struct Bmi2;

#[cfg(target_arch = "x86_64")]
impl Cut for Bmi2 {
    #[inline(always)]
    fn low(word: u64, count: u64) -> u64 {
        // SAFETY: only `turns_bmi2` uses this, whose caller made sure of BMI2.
        unsafe { std::arch::x86_64::_bzhi_u64(word, low_half(count)) }
    }
}

/// # Safety
/// As [`turns`]; the processor has BMI2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "bmi1,bmi2")]
unsafe fn turns_bmi2<const N: usize>(
    tables: &[Tables; N],
    chains: &mut [Chain<'_>; N],
    places: *mut Sequence,
    count: usize,
) -> usize {
    // SAFETY: the caller's promise.
    unsafe { turns::<N, Bmi2>(tables, chains, places, count) }
}

/// See [`turns_of`].
///
/// # Safety
/// `count` sequences may be written at `places`, and as many [`LIST_MAX`] further on for each more
/// lane.
#[inline(always)]
unsafe fn turns<const N: usize, C: Cut>(
    tables: &[Tables; N],
    chains: &mut [Chain<'_>; N],
    mut places: *mut Sequence,
    count: usize,
) -> usize {
    // The word at a position ends with the position's byte.
    let bases = (chains.each_ref()).map(|chain| chain.bits.bytes.as_ptr().wrapping_sub(7));
    let mut at = chains.each_ref().map(|chain| chain.bits.at);
    let mut states = chains.each_ref().map(|chain| chain.states);
    let mut done = 0;
    'all: while done < count {
        let lowest = at.iter().copied().min().unwrap_or(-1);
        if lowest < WHOLE_WORD {
            break;
        }
        let turns = ((lowest - WHOLE_WORD) / WORD_BITS as isize + 1).cast_unsigned();
        for _ in 0..turns.min(count - done) {
            let mut found = [[0 as Entry; KINDS]; N];
            let mut widths = [0_u64; N];
            for k in 0..N {
                for kind in 0..KINDS {
                    let entries = &tables[k].entries[kind];
                    // SAFETY: states are below their table's size (the module's head).
                    found[k][kind] = unsafe { *entries.get_unchecked(states[k][kind]) };
                }
                let sum = (found[k][0].wrapping_add(found[k][1])).wrapping_add(found[k][2]);
                // At most 31 + 16 + 16 and 9 + 8 + 9: neither sum overflows.
                widths[k] = (sum & 0xFF) + ((sum >> 8) & 0xFF);
            }
            // Rare: a far offset with long lengths. The careful step takes its fields one by one.
            if widths.iter().any(|&width| width > u64::from(WORD_BITS)) {
                break 'all;
            }
            for k in 0..N {
                // SAFETY: at[k] is at least 56 by the count of turns, and its byte is in the
                // stream: it only goes down.
                let word = unsafe { word_at(bases[k], at[k] >> 3) } << (!at[k] & 7);
                at[k] -= widths[k].to_usize().cast_signed();
                // The sequence's bits at the low end. With no bits at all every field is empty.
                let mut bits = word >> (widths[k].wrapping_neg() & 63);
                let mut take = |count: u64| {
                    let value = C::low(bits, count);
                    bits >>= count & 63;
                    value
                };
                let [literal, offset, matched] = found[k];
                states[k][OFFSET] = next(offset) + take(offset >> 8).to_usize();
                states[k][MATCH] = next(matched) + take(matched >> 8).to_usize();
                states[k][LITERAL] = next(literal) + take(literal >> 8).to_usize();
                let literals = (literal >> 32) + take(literal);
                let length = (matched >> 32) + take(matched);
                let value = (offset >> 32) + take(offset);
                // SAFETY: fewer than `count` stand before it, the caller's promise; what is there
                // is a sequence, and its last field stays as it is.
                let place = unsafe { &mut *places.add(k * LIST_MAX) };
                (place[0], place[1], place[2]) =
                    (low_half(literals), low_half(length), low_half(value));
            }
            // SAFETY: as above; at most one past the lane's end.
            places = unsafe { places.add(1) };
            done += 1;
        }
    }
    for (k, chain) in chains.iter_mut().enumerate() {
        chain.bits.at = at[k];
        chain.states = states[k];
        chain.left -= done;
    }
    done
}

#[inline(always)]
fn next(entry: Entry) -> usize {
    (entry >> 16).to_usize() & 0xFFFF
}

/// Room for any kind's symbols, a power of two.
const SYMBOLS_ROUND: usize = 64;

/// Each symbol's value and number of added bits, as in an [`Entry`].
static VALUES: [[Entry; SYMBOLS_ROUND]; KINDS] = values();

const fn values() -> [[Entry; SYMBOLS_ROUND]; KINDS] {
    let mut values = [[0; SYMBOLS_ROUND]; KINDS];
    let mut code = 0;
    while code < SYMBOLS[OFFSET] {
        values[OFFSET][code] = (1 << code) << 32 | code as u64;
        code += 1;
    }
    // Section 3.1.1.3.2.1.1: the first codes are their own values; the bits of the others.
    const LITERAL_BITS: [u64; 20] = [
        1, 1, 1, 1, 2, 2, 3, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
    ];
    const MATCH_BITS: [u64; 21] = [
        1, 1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16,
    ];
    fill(&mut values[LITERAL], 16, 0, &LITERAL_BITS);
    fill(&mut values[MATCH], 32, 3, &MATCH_BITS);
    values
}

/// `first` codes for `base` and up, then one for each of `bits`.
const fn fill(values: &mut [Entry; SYMBOLS_ROUND], first: usize, base: u64, bits: &[u64]) {
    let (mut code, mut value) = (0, base);
    while code < first + bits.len() {
        let width = if code < first { 0 } else { bits[code - first] };
        values[code] = value << 32 | width;
        value += 1 << width;
        code += 1;
    }
}

/// The tables of section 3.1.1.3.2.2.
static PREDEFINED: LazyLock<Tables> = LazyLock::new(|| {
    const LITERAL_SHARES: [i16; 36] = [
        4, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 3, 2, 1, 1, 1,
        1, 1, -1, -1, -1, -1,
    ];
    const OFFSET_SHARES: [i16; 29] = [
        1, 1, 1, 1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1,
    ];
    const MATCH_SHARES: [i16; 53] = [
        1, 4, 3, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
        1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1,
    ];
    let mut tables = Tables {
        entries: [[0; STATES]; KINDS],
        logs: [0; KINDS],
    };
    for (kind, log, of) in [
        (LITERAL, 6, &LITERAL_SHARES[..]),
        (OFFSET, 5, &OFFSET_SHARES[..]),
        (MATCH, 6, &MATCH_SHARES[..]),
    ] {
        let mut shares = Shares {
            log,
            of: [0; fse::SYMBOLS_MAX],
            symbols: of.len(),
        };
        shares.of[..of.len()].copy_from_slice(of);
        tables.set(kind, &shares);
    }
    tables
});
