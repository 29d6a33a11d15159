//! FSE tables: their descriptions, and the decoding states built from them.
//!
//! Must stay true: every entry that [`spread`] makes leads to a state of the same table, whatever
//! bits follow; the fast loop of the sequences relies on it. Pure.
//! Source: RFC 8878, section 4.1.

use crate::Error;
use crate::bits::Forward;
use sidecore_bare::width::ToUsize;

/// Maximum number of symbols, of any alphabet.
pub(crate) const SYMBOLS_MAX: usize = 256;

/// Maximum number of states.
const STATES_MAX: usize = 512;
/// Symbols that [`spread`] writes at once.
const ROW_WIDTH: usize = 8;

/// Shares of the symbols in a table; -1 means "less than one".
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shares {
    pub(crate) log: u32,
    pub(crate) of: [i16; SYMBOLS_MAX],
    /// Number of symbols in `of`.
    pub(crate) symbols: usize,
}

/// Reads a table's description at the start of `bytes`; returns the number of bytes that it takes.
/// The table has at most `symbols_max` symbols and 2^`log_max` states.
pub(crate) fn read_shares(
    bytes: &[u8],
    symbols_max: usize,
    log_max: u32,
) -> Result<(Shares, usize), Error> {
    let mut bits = Forward::new(bytes);
    let log = bits.peek(4) + 5;
    bits.skip(4);
    if log > log_max {
        return Err(Error::Table);
    }
    let mut shares = Shares {
        log,
        of: [0; SYMBOLS_MAX],
        symbols: 0,
    };
    // One more than the states that are still to be assigned.
    let mut left = (1_i32 << log) + 1;
    while left > 1 {
        if shares.symbols >= symbols_max {
            return Err(Error::Table);
        }
        let share = read_value(&mut bits, left) - 1;
        left -= share.abs();
        shares.of[shares.symbols] = i16::try_from(share).map_err(|_| Error::Table)?;
        shares.symbols += 1;
        if share == 0 {
            // Section 4.1.1: the number of further zeros follows in steps of up to three.
            loop {
                let more = bits.peek(2).to_usize();
                bits.skip(2);
                shares.symbols += more;
                if shares.symbols > symbols_max {
                    return Err(Error::Table);
                }
                if more != 3 {
                    break;
                }
            }
        }
    }
    // The last share took more states than there are.
    if left != 1 {
        return Err(Error::Table);
    }
    Ok((shares, bits.bytes_taken()?))
}

/// Reads a value from 0 to `left`: it takes as many bits as `left` has, or one less if it is among
/// the small ones, which the unused codes of the full width stand for.
fn read_value(bits: &mut Forward<'_>, left: i32) -> i32 {
    let width = left.ilog2() + 1;
    let threshold = 1_i32 << (width - 1);
    let small = 2 * threshold - 1 - left;
    let value = bits.peek(width).cast_signed();
    if value & (threshold - 1) < small {
        bits.skip(width - 1);
        return value & (threshold - 1);
    }
    bits.skip(width);
    // The codes above the threshold moved down by the number of small ones.
    if value >= threshold {
        value - small
    } else {
        value
    }
}

/// Calls `put(state, symbol, bits, base)` for every state of the table: decoding in that state
/// gives `symbol`, and the next state is `base` plus the next `bits` bits.
#[inline(always)]
pub(crate) fn spread(shares: &Shares, mut put: impl FnMut(usize, u8, u32, u32)) {
    let size = 1_usize << shares.log;
    let mask = size - 1;
    // The symbols one after the other, each repeated by its share; eight at a time, so that the
    // usual shares need no loop.
    let mut row = [0_u8; STATES_MAX + ROW_WIDTH];
    let mut next = [0_u16; SYMBOLS_MAX];
    let mut symbols = [0_u8; STATES_MAX];
    let (mut filled, mut high) = (0, size);
    for (symbol, &share) in (0..=u8::MAX).zip(&shares.of[..shares.symbols]) {
        // Symbols of less than one state are at the table's end, each with a whole state.
        if share == -1 {
            high -= 1;
            symbols[high] = symbol;
            next[usize::from(symbol)] = 1;
            continue;
        }
        let share = share.cast_unsigned();
        next[usize::from(symbol)] = share;
        let end = filled + usize::from(share);
        while filled < end {
            row[filled..filled + ROW_WIDTH].fill(symbol);
            filled += ROW_WIDTH;
        }
        filled = end;
    }
    // The RFC's step is odd, so it comes to every state once before it returns to the first.
    let step = (size >> 1) + (size >> 3) + 3;
    let mut place = 0;
    if high == size {
        for &symbol in &row[..size] {
            symbols[place & mask & (STATES_MAX - 1)] = symbol;
            place += step;
        }
    } else {
        for &symbol in &row[..high] {
            symbols[place & mask & (STATES_MAX - 1)] = symbol;
            place += step;
            while place & mask >= high {
                place += step;
            }
        }
    }
    for (state, &symbol) in symbols[..size].iter().enumerate() {
        let count = &mut next[usize::from(symbol)];
        let own = u32::from(*count);
        *count += 1;
        // At least 1, since the symbol has a share.
        let bits = shares.log - (own | 1).ilog2();
        put(
            state,
            symbol,
            bits,
            (own << bits).wrapping_sub(1 << shares.log),
        );
    }
}
