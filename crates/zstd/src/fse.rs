//! FSE tables: their descriptions, and the states of the decoders made of them.
//!
//! Must stay true: every entry that [`spread`] makes leads to a state of the same table, whatever
//! bits follow; the fast loop of the sequences relies on it. Pure. Source: RFC 8878, section 4.1.

use crate::Error;
use crate::bits::Forward;

/// Symbols at most, of any alphabet.
pub(crate) const SYMBOLS_MAX: usize = 256;

/// Shares of the symbols in a table; -1 stands for "less than one".
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shares {
    pub(crate) log: u32,
    pub(crate) of: [i16; SYMBOLS_MAX],
    /// Symbols that `of` tells of.
    pub(crate) symbols: usize,
}

/// Reads a table's description at the start of `bytes`; returns how many bytes it took. The table
/// has at most `symbols_max` symbols and 2^`log_max` states.
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
    // One more than the states that are left to be given away.
    let mut left = (1_i32 << log) + 1;
    while left > 1 {
        if shares.symbols >= symbols_max {
            return Err(Error::Table);
        }
        // A value from 0 to `left` takes `width` bits, or one less if it is among the small ones.
        let width = left.ilog2() + 1;
        let threshold = 1_i32 << (width - 1);
        let small = 2 * threshold - 1 - left;
        let value = bits.peek(width) as i32;
        let value = if value & (threshold - 1) < small {
            bits.skip(width - 1);
            value & (threshold - 1)
        } else {
            bits.skip(width);
            if value >= threshold { value - small } else { value }
        };
        let share = value - 1;
        left -= share.abs();
        shares.of[shares.symbols] = share as i16;
        shares.symbols += 1;
        if share == 0 {
            loop {
                let more = bits.peek(2) as usize;
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
    if left != 1 {
        return Err(Error::Table);
    }
    Ok((shares, bits.bytes_taken()?))
}

/// Calls `put(state, symbol, bits, base)` for every state of the table: decoding in that state
/// gives `symbol`, and the next state is `base` plus the next `bits` bits.
pub(crate) fn spread(shares: &Shares, mut put: impl FnMut(usize, u8, u32, u32)) {
    let size = 1_usize << shares.log;
    let mut symbols = [0_u8; 512];
    let symbols = &mut symbols[..size];
    let mut next = [0_u32; SYMBOLS_MAX];
    let mut high = size;
    for (symbol, &share) in shares.of[..shares.symbols].iter().enumerate() {
        if share == -1 {
            high -= 1;
            symbols[high] = symbol as u8;
            next[symbol] = 1;
        } else {
            next[symbol] = share as u32;
        }
    }
    let (step, mask) = ((size >> 1) + (size >> 3) + 3, size - 1);
    let mut place = 0;
    for (symbol, &share) in shares.of[..shares.symbols].iter().enumerate() {
        for _ in 0..share.max(0) {
            symbols[place & mask] = symbol as u8;
            place += step;
            while place & mask >= high {
                place += step;
            }
        }
    }
    for (state, &symbol) in symbols.iter().enumerate() {
        let count = next[usize::from(symbol)];
        next[usize::from(symbol)] += 1;
        let bits = shares.log - count.ilog2();
        put(state, symbol, bits, (count << bits) - size as u32);
    }
}
