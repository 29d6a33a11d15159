//! Decoding tables of a block's codes, from the codes' lengths (RFC 1951, 3.2.2). Pure.
//!
//! Why here: programs see which sets of lengths zlib refuses, and at which bits a damaged stream
//! stops. So the tables are built as zlib's `inftrees.c` builds them. Only the first level is
//! wider, which has no visible effect. Must stay true: whatever the lengths, each index that an
//! entry leads to lies inside the table.

use sidecore_bare::width::ToUsize;
use std::ops::RangeInclusive;

/// An entry of a table in one word, so that one shift and one subtraction drop a symbol's bits with
/// its extra bits.
///
/// From the lowest bit on: 8 bits of [`Self::bits`], 8 of [`Self::op`], 16 of [`Self::val`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub(super) struct Code(u32);

impl Code {
    const fn new(bits: u8, op: u8, val: u16) -> Self {
        Self(bits as u32 | (op as u32) << 8 | (val as u32) << 16)
    }

    /// An entry of a symbol whose code has `len` bits in this level. A base has them twice: alone,
    /// and with its extra bits.
    #[inline(always)]
    fn with_bits(self, len: usize) -> Self {
        let in_op = self.0 >> 4 & 0x100;
        Self(self.0 + len as u32 * (1 + in_op))
    }

    /// Bits of the code, or of its part in this level, and the extra bits of a base.
    #[inline(always)]
    pub(super) fn bits(self) -> u32 {
        self.0 & 0xff
    }

    /// A number whose lowest byte is [`Self::bits`], for instructions that look at no more of it.
    #[inline(always)]
    pub(super) fn word(self) -> u32 {
        self.0
    }

    /// Bits of the code, or of its part in this level, alone.
    #[inline(always)]
    pub(super) fn code_bits(self) -> u32 {
        if self.is_base() {
            self.op() & 15
        } else {
            self.bits()
        }
    }

    /// 0 for a literal; 16 and the bits of the code for a base; 32 and 64 for the block's end; 64
    /// for no code; else the index bits of a second level, which begins at `val`.
    #[inline(always)]
    pub(super) fn op(self) -> u32 {
        self.0 >> 8 & 0xff
    }

    /// A base, a literal, or the place of a second level.
    #[inline(always)]
    pub(super) fn val(self) -> usize {
        (self.0 >> 16).to_usize()
    }

    /// A literal's byte, which is all of its value.
    #[inline(always)]
    pub(super) fn literal(self) -> u8 {
        self.val() as u8
    }

    #[inline(always)]
    pub(super) fn is_literal(self) -> bool {
        self.0 & 0xff00 == 0
    }

    /// A length's or a distance's.
    #[inline(always)]
    pub(super) fn is_base(self) -> bool {
        self.0 & 0x1000 != 0
    }

    /// True where a second level has the symbol; of an entry that is no literal.
    #[inline(always)]
    pub(super) fn is_link(self) -> bool {
        self.0 & 0xf000 == 0
    }

    /// True for the block's end; of an entry that is no base.
    #[inline(always)]
    pub(super) fn is_end(self) -> bool {
        self.0 & 0x2000 != 0
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
    let meanings: &[Code] = match kind {
        // Of the lengths' code the first symbols are as literals.
        Kind::Lengths | Kind::Literals => &LITERAL_MEANINGS,
        Kind::Distances => &DISTANCE_MEANINGS,
    };
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
    if left > 0 {
        // One code of one bit: the other bit has no code.
        table[0] = meanings[usize::from(work[0])].with_bits(1);
        table[1] = NO_CODE;
        return Ok(1);
    }
    let (huff, rest) = first_level(meanings, &count, &work, table, min..=root);
    let symbols: usize = count[1..].iter().copied().map(usize::from).sum();
    let rest = work[..symbols].get(rest..).unwrap_or_default();
    let rest = rest
        .iter()
        .map(|&symbol| (meanings[usize::from(symbol)], lens[usize::from(symbol)]));
    second_levels(rest, count, table, root..=max, huff)?;
    Ok(root as u32)
}

/// Fills the first level with a complete code's symbols that fit into it. Returns the next code and
/// the number of these symbols.
fn first_level(
    meanings: &[Code],
    count: &[u16],
    symbols: &[u16],
    table: &mut [Code],
    lens: RangeInclusive<usize>,
) -> (usize, usize) {
    let (mut huff, mut done) = (0, 0);
    let (mut size, root) = (1_usize << *lens.start(), *lens.end());
    for len in lens {
        let next = done + usize::from(count[len]);
        for &symbol in &symbols[done..next] {
            table[huff] = meanings[usize::from(symbol)].with_bits(len);
            huff = next_code(huff, size);
        }
        done = next;
        // A bit more comes in at the top of an index: what is there repeats. Places without a code
        // so far are those of longer codes.
        if len < root {
            table.copy_within(..size, size);
            size *= 2;
        }
    }
    (huff, done)
}

/// Fills second levels with the symbols of a complete code that are longer than the first level's
/// index, each with its length, from the code `huff` on.
fn second_levels(
    rest: impl Iterator<Item = (Code, u16)>,
    mut count: [u16; BITS_MAX + 1],
    table: &mut [Code],
    levels: RangeInclusive<usize>,
    mut huff: usize,
) -> Result<(), Invalid> {
    let (root, max) = (*levels.start(), *levels.end());
    let mut used = 1_usize << root;
    let mask = used - 1;
    let (mut low, mut start, mut bits) = (usize::MAX, 0_usize, 0_usize);
    for (meaning, len) in rest {
        let len = usize::from(len);
        if huff & mask != low {
            low = huff & mask;
            // As wide as the codes that begin so need.
            bits = len - root;
            let mut left = 1_i32 << bits;
            while bits + root < max {
                left -= i32::from(count[bits + root]);
                if left <= 0 {
                    break;
                }
                bits += 1;
                left <<= 1;
            }
            start = used;
            used += 1 << bits;
            // Sets of lengths that zlib accepts fit: the sizes are those of `enough.c`.
            if used > table.len() {
                return Err(Invalid);
            }
            table[low] = Code::new(root as u8, bits as u8, start as u16);
        }
        // The first level's bits are dropped already.
        let here = meaning.with_bits(len - root);
        let level = table.get_mut(start..start + (1 << bits)).ok_or(Invalid)?;
        let places = level.get_mut(huff >> root..).ok_or(Invalid)?;
        for place in places.iter_mut().step_by(1 << (len - root)) {
            *place = here;
        }
        count[len] -= 1;
        huff = next_code(huff, 1 << len);
    }
    Ok(())
}

/// The code that follows, of as many bits as `size` has places. Its first bit is the lowest, as
/// codes arrive: so the highest bit that is not set is set, and those above it are cleared.
#[inline(always)]
fn next_code(huff: usize, size: usize) -> usize {
    let free = !huff & (size - 1);
    match free.checked_ilog2() {
        Some(highest) => {
            let bit = 1_usize << highest;
            (huff & (bit - 1)) | bit
        }
        // It was the last one.
        None => 0,
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
const NO_CODE: Code = Code::new(1, 64, 0);
/// As an extra: no code.
const NONE: u8 = u8::MAX;
/// Entries of symbols without their codes' bits.
static LITERAL_MEANINGS: [Code; SYMBOLS_MAX] = {
    let mut all = [Code::new(0, 0, 0); SYMBOLS_MAX];
    let mut symbol = 0;
    while symbol < END_OF_BLOCK {
        all[symbol] = Code::new(0, 0, symbol as u16);
        symbol += 1;
    }
    all[END_OF_BLOCK] = Code::new(0, 32 + 64, 0);
    let mut index = 0;
    while index < LENGTHS.len() {
        all[END_OF_BLOCK + 1 + index] = base(LENGTHS[index]);
        index += 1;
    }
    all
};
static DISTANCE_MEANINGS: [Code; 32] = {
    let mut all = [Code::new(0, 0, 0); 32];
    let mut index = 0;
    while index < DISTANCES.len() {
        all[index] = base(DISTANCES[index]);
        index += 1;
    }
    all
};

const fn base((base, extra): (u16, u8)) -> Code {
    match extra {
        NONE => Code::new(0, 64, 0),
        extra => Code::new(extra, 16, base),
    }
}

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

#[cfg(test)]
mod tests {
    //! Tables against codes that are counted out symbol by symbol (RFC 1951, 3.2.2).

    use super::*;
    use proptest::prelude::*;
    use sidecore_random::choices::Choices;

    /// Lengths of a complete code of `used` symbols among `all`: some of its codes are long.
    fn lengths(choices: &mut Choices, used: usize, all: usize) -> Vec<u16> {
        let mut leaves = vec![1_u16, 1];
        while leaves.len() < used {
            let at = match choices.below(3) {
                0 => leaves.len() - 1,
                _ => choices.below(leaves.len() as u64) as usize,
            };
            if leaves[at] < 15 {
                leaves[at] += 1;
                leaves.push(leaves[at]);
            }
        }
        let mut lens = vec![0; all];
        for leaf in leaves {
            let mut at = choices.below(all as u64) as usize;
            while lens[at] != 0 {
                at = (at + 1) % all;
            }
            lens[at] = leaf;
        }
        lens
    }

    /// The symbol that each 15 bits begin with.
    fn symbols(lens: &[u16]) -> Vec<usize> {
        let mut all = vec![usize::MAX; 1 << 15];
        let mut code = 0_usize;
        for len in 1..=15 {
            for (symbol, _) in lens.iter().enumerate().filter(|&(_, &of)| of == len) {
                let first = (code as u16).reverse_bits() >> (16 - len);
                for bits in (usize::from(first)..1 << 15).step_by(1 << len) {
                    all[bits] = symbol;
                }
                code += 1;
            }
            code <<= 1;
        }
        all
    }

    /// The table's entry for these bits, and the bits of all levels.
    fn look_up(table: &[Code], root: u32, bits: usize) -> (Code, u32) {
        let first = table[bits & ((1 << root) - 1)];
        if first.is_literal() || !first.is_link() {
            return (first, first.code_bits());
        }
        let rest = bits >> first.code_bits() & ((1 << first.op()) - 1);
        let here = table[first.val() + rest];
        (here, first.code_bits() + here.code_bits())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        #[test]
        fn every_symbol_is_found_with_its_bits(seed: u64, used in 2usize..=286) {
            let choices = &mut Choices::seeded(seed);
            let lens = lengths(choices, used, 286);
            let mut table = [Code::default(); LITERAL_ENTRIES];
            let root = build(Kind::Literals, &lens, &mut table, LITERAL_ROOT).unwrap();
            for (bits, symbol) in symbols(&lens).into_iter().enumerate() {
                let (here, len) = look_up(&table, root, bits);
                prop_assert_eq!(len, u32::from(lens[symbol]), "{:b}", bits);
                match symbol {
                    END_OF_BLOCK => prop_assert!(here.is_end() && !here.is_base()),
                    ..END_OF_BLOCK => {
                        prop_assert!(here.is_literal());
                        prop_assert_eq!(usize::from(here.literal()), symbol);
                    }
                    _ => {
                        let extra = (here.bits() - here.code_bits()) as u8;
                        let meaning = (here.val() as u16, extra);
                        prop_assert_eq!(meaning, LENGTHS[symbol - END_OF_BLOCK - 1]);
                        prop_assert!(here.is_base());
                    }
                }
            }
        }

        #[test]
        fn every_distance_is_found_with_its_bits(seed: u64, used in 2usize..=30) {
            let lens = lengths(&mut Choices::seeded(seed), used, 30);
            let mut table = [Code::default(); DISTANCE_ENTRIES];
            let root = build(Kind::Distances, &lens, &mut table, DISTANCE_ROOT).unwrap();
            for (bits, symbol) in symbols(&lens).into_iter().enumerate() {
                let (here, len) = look_up(&table, root, bits);
                prop_assert_eq!(len, u32::from(lens[symbol]), "{:b}", bits);
                let extra = (here.bits() - here.code_bits()) as u8;
                prop_assert_eq!((here.val() as u16, extra), DISTANCES[symbol]);
                prop_assert!(here.is_base());
            }
        }

        #[test]
        fn what_is_no_complete_code_is_refused(
            seed: u64,
            used in 3usize..=200,
            place in any::<prop::sample::Index>(),
        ) {
            let lens = lengths(&mut Choices::seeded(seed), used, 286);
            let taken: Vec<usize> = (0..286).filter(|&symbol| lens[symbol] != 0).collect();
            let mut table = [Code::default(); LITERAL_ENTRIES];
            let mut refuses = |lens: &[u16]| {
                build(Kind::Literals, lens, &mut table, LITERAL_ROOT) == Err(Invalid)
            };
            let mut less = lens.clone();
            less[taken[place.index(used)]] = 0;
            prop_assert!(refuses(&less));
            let mut more = lens.clone();
            let free = (0..286).find(|&symbol| lens[symbol] == 0);
            more[free.unwrap()] = 15;
            prop_assert!(refuses(&more));
        }
    }

    #[test]
    fn a_code_of_one_symbol_leaves_a_bit_without_meaning() {
        let mut table = [Code::default(); DISTANCE_ENTRIES];
        let mut lens = [0; 30];
        lens[7] = 1;
        assert_eq!(
            build(Kind::Distances, &lens, &mut table, DISTANCE_ROOT),
            Ok(1)
        );
        assert_eq!(
            (table[0].val(), table[0].bits(), table[0].code_bits()),
            (13, 3, 1)
        );
        assert_eq!(table[1], NO_CODE);
        lens[7] = 2;
        assert_eq!(
            build(Kind::Distances, &lens, &mut table, DISTANCE_ROOT),
            Err(Invalid)
        );
        assert_eq!(
            build(Kind::Distances, &[0; 30], &mut table, DISTANCE_ROOT),
            Ok(1)
        );
        assert_eq!(table[..2], [NO_CODE, NO_CODE]);
    }
}
