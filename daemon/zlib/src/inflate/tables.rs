//! Decoding tables of a block's codes, from the codes' lengths (RFC 1951, 3.2.2). Pure.
//!
//! Why here: programs see which sets of lengths zlib refuses, and at which bits a damaged stream
//! stops. So the tables are built as zlib's `inftrees.c` builds them. Only the first level is
//! wider, which has no visible effect. Must stay true: whatever the lengths, each index that an
//! entry leads to lies inside the table.

use sidecore_bare::width::ToUsize;

/// An entry of a table.
///
/// `op`: 0 for a literal; 16 and the number of extra bits for a base; 32 and 64 for the block's
/// end; 64 for no code; else the index bits of a second level, which begins at `val`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C, align(4))]
pub(super) struct Code {
    /// Bits of the code, or of its part in this level.
    pub(super) bits: u8,
    pub(super) op: u8,
    pub(super) val: u16,
}

impl Code {
    /// A literal's byte, which is all of its value.
    #[inline(always)]
    pub(super) fn literal(self) -> u8 {
        self.val as u8
    }
}

/// Codes whose lengths a block gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The lengths of the other two.
    Lengths,
    Literals,
    Distances,
}

/// No table can be made of these lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Invalid;

/// Builds a table with at most `root` index bits in its first level; returns those it has.
pub(super) fn build(
    kind: Kind,
    lens: &[u16],
    table: &mut [Code],
    root: u32,
) -> Result<u32, Invalid> {
    let mut count = [0_u16; BITS_MAX + 1];
    for &len in lens {
        count[usize::from(len)] += 1;
    }
    let Some(max) = (1..=BITS_MAX).rev().find(|&len| count[len] != 0) else {
        // No code at all: an error only where one is needed.
        table[..2].fill(NO_CODE);
        return Ok(1);
    };
    let min = (1..=max).find(|&len| count[len] != 0).unwrap_or(max);
    let root = root.to_usize().clamp(min, max);

    let mut left = 1_i32;
    for &codes in &count[1..] {
        left = left * 2 - i32::from(codes);
        if left < 0 {
            return Err(Invalid);
        }
    }
    // RFC 1951, 3.2.7: only a code of one symbol may leave a bit unused.
    if left > 0 && (kind == Kind::Lengths || max != 1) {
        return Err(Invalid);
    }

    // Symbols by length, and among those of one length by number.
    let mut offsets = [0_u16; BITS_MAX + 2];
    for len in 1..=BITS_MAX {
        offsets[len + 1] = offsets[len] + count[len];
    }
    let mut work = [0_u16; SYMBOLS_MAX];
    for (symbol, &len) in lens.iter().enumerate() {
        if len != 0 {
            work[usize::from(offsets[usize::from(len)])] = symbol as u16;
            offsets[usize::from(len)] += 1;
        }
    }

    let (mut huff, mut sym, mut len) = (0_usize, 0, min);
    let (mut next, mut curr, mut drop) = (0, root, 0);
    let (mut low, mut used) = (usize::MAX, 1 << root);
    let mask = used - 1;
    loop {
        // In the second level the first level's bits are dropped already.
        let here = Code {
            bits: (len - drop) as u8,
            ..entry(kind, work[sym])
        };
        let step = 1 << (len - drop);
        let level = table.get_mut(next..next + (1 << curr)).ok_or(Invalid)?;
        for place in level[huff >> drop..].iter_mut().step_by(step) {
            *place = here;
        }
        // The code is counted upwards in its bits' order of arrival.
        let mut bit = 1 << (len - 1);
        while huff & bit != 0 {
            bit >>= 1;
        }
        huff = if bit == 0 {
            0
        } else {
            (huff & (bit - 1)) + bit
        };

        sym += 1;
        count[len] -= 1;
        if count[len] == 0 {
            if len == max {
                break;
            }
            len = usize::from(lens[usize::from(work[sym])]);
        }
        if len > root && huff & mask != low {
            if drop == 0 {
                drop = root;
            }
            next += 1 << curr;
            curr = len - drop;
            let mut left = 1_i32 << curr;
            while curr + drop < max {
                left -= i32::from(count[curr + drop]);
                if left <= 0 {
                    break;
                }
                curr += 1;
                left <<= 1;
            }
            used += 1 << curr;
            // Sets of lengths that zlib accepts fit: the sizes are those of `enough.c`.
            if used > table.len() {
                return Err(Invalid);
            }
            low = huff & mask;
            table[low] = Code {
                op: curr as u8,
                bits: root as u8,
                val: next as u16,
            };
        }
    }
    if huff != 0 {
        // One code of one bit: the other bit has no code.
        table[next + huff] = Code {
            bits: (len - drop) as u8,
            ..NO_CODE
        };
    }
    Ok(root as u32)
}

/// Meaning of a symbol, without its bits.
fn entry(kind: Kind, symbol: u16) -> Code {
    let code = |op, val| Code { bits: 0, op, val };
    let index = usize::from(symbol);
    match kind {
        Kind::Literals if index == END_OF_BLOCK => code(32 + 64, 0),
        Kind::Literals if index > END_OF_BLOCK => {
            let (base, extra) = LENGTHS[index - END_OF_BLOCK - 1];
            code(16 + extra, base)
        }
        Kind::Lengths | Kind::Literals => code(0, symbol),
        Kind::Distances => {
            let (base, extra) = DISTANCES[index];
            code(16 + extra, base)
        }
    }
}

/// The tables of RFC 1951, 3.2.6, of [`FIXED_LITERAL_BITS`] and [`FIXED_DISTANCE_BITS`].
pub(super) fn fixed() -> &'static Fixed {
    static FIXED: std::sync::OnceLock<Fixed> = std::sync::OnceLock::new();
    FIXED.get_or_init(|| {
        let mut lens = [8_u16; 288];
        lens[144..256].fill(9);
        lens[256..280].fill(7);
        let mut fixed = Fixed {
            literals: [Code::default(); 1 << FIXED_LITERAL_BITS],
            distances: [Code::default(); 1 << FIXED_DISTANCE_BITS],
        };
        // Both sets are complete; the symbols that no stream may have are in the tables too.
        let built = build(
            Kind::Literals,
            &lens,
            &mut fixed.literals,
            FIXED_LITERAL_BITS,
        );
        debug_assert!(built.is_ok(), "the literals' lengths make a code");
        let built = build(
            Kind::Distances,
            &[5; 32],
            &mut fixed.distances,
            FIXED_DISTANCE_BITS,
        );
        debug_assert!(built.is_ok(), "the distances' lengths make a code");
        fixed
    })
}

pub(super) struct Fixed {
    pub(super) literals: [Code; 1 << FIXED_LITERAL_BITS],
    pub(super) distances: [Code; 1 << FIXED_DISTANCE_BITS],
}

/// Index bits of the first levels.
pub(super) const LENGTH_ROOT: u32 = 7;
pub(super) const LITERAL_ROOT: u32 = 10;
pub(super) const DISTANCE_ROOT: u32 = 9;
pub(super) const FIXED_LITERAL_BITS: u32 = 9;
pub(super) const FIXED_DISTANCE_BITS: u32 = 5;
/// The most entries that valid lengths need, by zlib's `examples/enough.c`: 286 symbols with
/// [`LITERAL_ROOT`], 30 with [`DISTANCE_ROOT`].
pub(super) const LITERAL_ENTRIES: usize = 1332;
pub(super) const DISTANCE_ENTRIES: usize = 592;

const BITS_MAX: usize = 15;
const SYMBOLS_MAX: usize = 288;
const END_OF_BLOCK: usize = 256;
const NO_CODE: Code = Code {
    bits: 1,
    op: 64,
    val: 0,
};
/// As an extra, no code: 16 and this is zlib's 64 and more, which no base has.
const NONE: u8 = 64 - 16;
/// Base and extra bits of each length's symbol, from 257 on; the last two are invalid.
const LENGTHS: [(u16, u8); 31] = [
    (3, 0),
    (4, 0),
    (5, 0),
    (6, 0),
    (7, 0),
    (8, 0),
    (9, 0),
    (10, 0),
    (11, 1),
    (13, 1),
    (15, 1),
    (17, 1),
    (19, 2),
    (23, 2),
    (27, 2),
    (31, 2),
    (35, 3),
    (43, 3),
    (51, 3),
    (59, 3),
    (67, 4),
    (83, 4),
    (99, 4),
    (115, 4),
    (131, 5),
    (163, 5),
    (195, 5),
    (227, 5),
    (258, 0),
    (0, NONE),
    (0, NONE),
];
/// Base and extra bits of each distance's symbol; the last two are invalid.
const DISTANCES: [(u16, u8); 32] = [
    (1, 0),
    (2, 0),
    (3, 0),
    (4, 0),
    (5, 1),
    (7, 1),
    (9, 2),
    (13, 2),
    (17, 3),
    (25, 3),
    (33, 4),
    (49, 4),
    (65, 5),
    (97, 5),
    (129, 6),
    (193, 6),
    (257, 7),
    (385, 7),
    (513, 8),
    (769, 8),
    (1025, 9),
    (1537, 9),
    (2049, 10),
    (3073, 10),
    (4097, 11),
    (6145, 11),
    (8193, 12),
    (12289, 12),
    (16385, 13),
    (24577, 13),
    (0, NONE),
    (0, NONE),
];
