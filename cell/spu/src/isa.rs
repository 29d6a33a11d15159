//! The instruction set: one row for each instruction, its decoder and its encoder.
//!
//! Must stay true: each word of 32 bits decodes to at most one instruction, and encoding that gives
//! the word back but for bits that the instruction ignores. Source: Synergistic Processor Unit
//! Instruction Set Architecture, version 1.2, whose order the table keeps.

use crate::registers::*;
use crate::{double, float};
use sidecore_bare::width::ToUsize;
use std::sync::OnceLock;

/// Layout of an instruction's fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// RB, RA, RT behind 11 bits.
    Rr,
    /// RT behind 4 bits, RB, RA, RC.
    Rrr,
    /// 7 bits, RA, RT behind 11 bits.
    Ri7,
    /// 8 bits, RA, RT behind 10 bits.
    Ri8,
    /// 10 bits, RA, RT behind 8 bits.
    Ri10,
    /// 16 bits and RT behind 9 bits.
    Ri16,
    /// 18 bits and RT behind 7 bits; hints of branches use both for places.
    Ri18,
}

impl Format {
    /// Bits of the operation's code.
    const fn code_bits(self) -> u32 {
        match self {
            Self::Rrr => 4,
            Self::Ri18 => 7,
            Self::Ri10 => 8,
            Self::Ri16 => 9,
            Self::Ri8 => 10,
            Self::Rr | Self::Ri7 => 11,
        }
    }
}

impl Format {
    /// The fields of a word.
    fn read(self, word: u32) -> Fields {
        let register = |shift: u32| (word >> shift & 0x7f).to_le_bytes()[0];
        let signed =
            |shift: u32, bits: u32| (word << (32 - shift - bits)).cast_signed() >> (32 - bits);
        let unsigned = |shift: u32, bits: u32| (word >> shift & ((1 << bits) - 1)).cast_signed();
        let (rt, ra) = (register(0), register(7));
        let two = |immediate: i32| Fields {
            rt,
            ra,
            immediate,
            ..Fields::default()
        };
        let one = |immediate: i32| Fields {
            ra: 0,
            ..two(immediate)
        };
        match self {
            Self::Rr => Fields {
                rb: register(14),
                ..two(0)
            },
            Self::Rrr => Fields {
                rt: register(21),
                ra,
                rb: register(14),
                rc: rt,
                immediate: 0,
            },
            Self::Ri7 => two(unsigned(14, 7)),
            Self::Ri8 => two(unsigned(14, 8)),
            Self::Ri10 => two(signed(14, 10)),
            Self::Ri16 => one(signed(7, 16)),
            Self::Ri18 => one(unsigned(7, 18)),
        }
    }

    /// The bits of fields.
    fn write(self, fields: Fields) -> u32 {
        let register = |number: u8, shift: u32| u32::from(number & 0x7f) << shift;
        let number =
            |shift: u32, bits: u32| (fields.immediate.cast_unsigned() & ((1 << bits) - 1)) << shift;
        let two = register(fields.ra, 7) | register(fields.rt, 0);
        match self {
            Self::Rr => register(fields.rb, 14) | two,
            Self::Rrr => {
                let (first, last) = (register(fields.rt, 21), register(fields.rc, 0));
                first | register(fields.rb, 14) | register(fields.ra, 7) | last
            }
            Self::Ri7 => number(14, 7) | two,
            Self::Ri8 => number(14, 8) | two,
            Self::Ri10 => number(14, 10) | two,
            Self::Ri16 => number(7, 16) | register(fields.rt, 0),
            Self::Ri18 => number(7, 18) | register(fields.rt, 0),
        }
    }
}

/// Computes a register from registers.
pub(crate) type Compute = fn(&mut State, &Fields);

/// A row of the table.
#[derive(Debug)]
pub struct Instruction {
    /// The operation.
    pub op: Op,
    /// Its name in assembly.
    pub name: &'static str,
    /// Its fields' layout.
    pub format: Format,
    /// The operation's code as the first 11 bits of the word, the rest of them 0.
    pub code: u32,
    /// Its computation; nothing for those that touch more than registers.
    pub(crate) compute: Option<Compute>,
}

impl Instruction {
    /// The word with these fields; bits that a field has not room for are lost.
    #[must_use]
    pub fn encode(&self, fields: Fields) -> u32 {
        self.code << 21 | self.format.write(fields)
    }
}

/// The instruction and the fields of a word; nothing for a word that is none.
#[must_use]
pub fn decode(word: u32) -> Option<(&'static Instruction, Fields)> {
    static ROWS: OnceLock<Vec<u8>> = OnceLock::new();
    let rows = ROWS.get_or_init(|| {
        let mut rows = vec![NONE; 1 << 11];
        for (number, row) in INSTRUCTIONS.iter().enumerate() {
            let many = 1_usize << (11 - row.format.code_bits());
            let start = row.code.to_usize();
            rows[start..start + many].fill(u8::try_from(number).unwrap_or(NONE));
        }
        rows
    });
    let row = INSTRUCTIONS.get(usize::from(rows[(word >> 21).to_usize()]))?;
    Some((row, row.format.read(word)))
}

/// The instruction of a name.
#[must_use]
pub fn named(name: &str) -> Option<&'static Instruction> {
    INSTRUCTIONS.iter().find(|row| row.name == name)
}

/// No row of the table, which is shorter.
const NONE: u8 = u8::MAX;

macro_rules! instructions {
    (@compute _) => { None };
    (@compute $function:expr) => { Some($function) };
    ($($op:ident $name:literal $format:ident $code:literal => $compute:tt;)*) => {
        /// The operations.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the table's names are the document's")]
        pub enum Op { $($op),* }
        /// All instructions.
        pub static INSTRUCTIONS: &[Instruction] = &[$(Instruction {
            op: Op::$op,
            name: $name,
            format: Format::$format,
            code: $code,
            compute: instructions!(@compute $compute),
        }),*];
    };
}

instructions! {
    // Loads and stores.
    Lqd "lqd" Ri10 0x1a0 => _;
    Lqx "lqx" Rr 0x1c4 => _;
    Lqa "lqa" Ri16 0x184 => _;
    Lqr "lqr" Ri16 0x19c => _;
    Stqd "stqd" Ri10 0x120 => _;
    Stqx "stqx" Rr 0x144 => _;
    Stqa "stqa" Ri16 0x104 => _;
    Stqr "stqr" Ri16 0x11c => _;
    Cbd "cbd" Ri7 0x1f4 => (|s, f| insertion_at(s, f, 1));
    Cbx "cbx" Rr 0x1d4 => (|s, f| insertion_of(s, f, 1));
    Chd "chd" Ri7 0x1f5 => (|s, f| insertion_at(s, f, 2));
    Chx "chx" Rr 0x1d5 => (|s, f| insertion_of(s, f, 2));
    Cwd "cwd" Ri7 0x1f6 => (|s, f| insertion_at(s, f, 4));
    Cwx "cwx" Rr 0x1d6 => (|s, f| insertion_of(s, f, 4));
    Cdd "cdd" Ri7 0x1f7 => (|s, f| insertion_at(s, f, 8));
    Cdx "cdx" Rr 0x1d7 => (|s, f| insertion_of(s, f, 8));
    // Constants.
    Ilh "ilh" Ri16 0x20c => (|s, f| s.set(f.rt, words_of(half_twice(f.immediate))));
    Ilhu "ilhu" Ri16 0x208 => (|s, f| s.set(f.rt, words_of(bits(f.immediate) << 16)));
    Il "il" Ri16 0x204 => (|s, f| s.set(f.rt, words_of(bits(f.immediate))));
    Ila "ila" Ri18 0x210 => (|s, f| s.set(f.rt, words_of(bits(f.immediate))));
    Iohl "iohl" Ri16 0x304 => (or_low);
    Fsmbi "fsmbi" Ri16 0x194 => (|s, f| s.set(f.rt, byte_mask(bits(f.immediate))));
    // Integers and logic.
    Ah "ah" Rr 0x0c8 => (|s, f| halves(s, f, u16::wrapping_add));
    Ahi "ahi" Ri10 0x0e8 => (|s, f| halves_with(s, f, u16::wrapping_add));
    A "a" Rr 0x0c0 => (|s, f| words(s, f, u32::wrapping_add));
    Ai "ai" Ri10 0x0e0 => (|s, f| numbers(s, f, u32::wrapping_add));
    Sfh "sfh" Rr 0x048 => (|s, f| halves(s, f, |a, b| b.wrapping_sub(a)));
    Sfhi "sfhi" Ri10 0x068 => (|s, f| halves_with(s, f, |a, b| b.wrapping_sub(a)));
    Sf "sf" Rr 0x040 => (|s, f| words(s, f, |a, b| b.wrapping_sub(a)));
    Sfi "sfi" Ri10 0x060 => (|s, f| numbers(s, f, |a, b| b.wrapping_sub(a)));
    Addx "addx" Rr 0x340 => (|s, f| words3(s, f, |a, b, t| a.wrapping_add(b).wrapping_add(t & 1)));
    Cg "cg" Rr 0x0c2 => (|s, f| words(s, f, |a, b| carry(a, b, 0)));
    Cgx "cgx" Rr 0x342 => (|s, f| words3(s, f, |a, b, t| carry(a, b, t & 1)));
    Sfx "sfx" Rr 0x341 => (|s, f| words3(s, f, |a, b, t| b.wrapping_add(!a).wrapping_add(t & 1)));
    Bg "bg" Rr 0x042 => (|s, f| words(s, f, |a, b| carry(!a, b, 1)));
    Bgx "bgx" Rr 0x343 => (|s, f| words3(s, f, |a, b, t| carry(!a, b, t & 1)));
    Mpy "mpy" Rr 0x3c4 => (|s, f| words(s, f, |a, b| product(low(a), low(b))));
    Mpyu "mpyu" Rr 0x3cc => (|s, f| words(s, f, |a, b| (a & 0xffff) * (b & 0xffff)));
    Mpyi "mpyi" Ri10 0x3a0 => (|s, f| numbers(s, f, |a, b| product(low(a), low(b))));
    Mpyui "mpyui" Ri10 0x3a8 => (|s, f| numbers(s, f, |a, b| (a & 0xffff) * (b & 0xffff)));
    Mpya "mpya" Rrr 0x600 => (|s, f| words_by(s, f, add_product));
    Mpyh "mpyh" Rr 0x3c5 => (|s, f| words(s, f, |a, b| product(high(a), low(b)) << 16));
    Mpys "mpys" Rr 0x3c7 => (|s, f| words(s, f, |a, b| algebraic(product(low(a), low(b)), 48)));
    Mpyhh "mpyhh" Rr 0x3c6 => (|s, f| words(s, f, |a, b| product(high(a), high(b))));
    Mpyhha "mpyhha" Rr 0x346 => (|s, f| words3(s, f, add_high_product));
    Mpyhhu "mpyhhu" Rr 0x3ce => (|s, f| words(s, f, |a, b| (a >> 16) * (b >> 16)));
    Mpyhhau "mpyhhau" Rr 0x34e => (|s, f| words3(s, f, add_high_sizes));
    Clz "clz" Rr 0x2a5 => (|s, f| words(s, f, |a, _| a.leading_zeros()));
    Cntb "cntb" Rr 0x2b4 => (|s, f| bytes(s, f, |a, _| a.count_ones().to_le_bytes()[0]));
    Fsmb "fsmb" Rr 0x1b6 => (|s, f| s.set(f.rt, byte_mask(s.word(f.ra))));
    Fsmh "fsmh" Rr 0x1b5 => (|s, f| s.set(f.rt, half_mask(s.word(f.ra))));
    Fsm "fsm" Rr 0x1b4 => (|s, f| s.set(f.rt, word_mask(s.word(f.ra))));
    Gbb "gbb" Rr 0x1b2 => (|s, f| gather(s, f, 1));
    Gbh "gbh" Rr 0x1b1 => (|s, f| gather(s, f, 2));
    Gb "gb" Rr 0x1b0 => (|s, f| gather(s, f, 4));
    Avgb "avgb" Rr 0x0d3 => (|s, f| bytes(s, f, average));
    Absdb "absdb" Rr 0x053 => (|s, f| bytes(s, f, u8::abs_diff));
    Sumb "sumb" Rr 0x253 => (|s, f| words(s, f, |a, b| sum(b) << 16 | sum(a)));
    Xsbh "xsbh" Rr 0x2b6 => (|s, f| halves(s, f, |a, _| signed_byte(a)));
    Xshw "xshw" Rr 0x2ae => (|s, f| words(s, f, |a, _| bits(i32::from(low(a)))));
    Xswd "xswd" Rr 0x2a6 => (|s, f| doubles(s, f, |a| bits64(a << 32) >> 32));
    And "and" Rr 0x0c1 => (|s, f| words(s, f, |a, b| a & b));
    Andc "andc" Rr 0x2c1 => (|s, f| words(s, f, |a, b| a & !b));
    Andbi "andbi" Ri10 0x0b0 => (|s, f| four_bytes(s, f, |a, b| a & b));
    Andhi "andhi" Ri10 0x0a8 => (|s, f| two_halves(s, f, |a, b| a & b));
    Andi "andi" Ri10 0x0a0 => (|s, f| numbers(s, f, |a, b| a & b));
    Or "or" Rr 0x041 => (|s, f| words(s, f, |a, b| a | b));
    Orc "orc" Rr 0x2c9 => (|s, f| words(s, f, |a, b| a | !b));
    Orbi "orbi" Ri10 0x030 => (|s, f| four_bytes(s, f, |a, b| a | b));
    Orhi "orhi" Ri10 0x028 => (|s, f| two_halves(s, f, |a, b| a | b));
    Ori "ori" Ri10 0x020 => (|s, f| numbers(s, f, |a, b| a | b));
    Orx "orx" Rr 0x1f0 => (across);
    Xor "xor" Rr 0x241 => (|s, f| words(s, f, |a, b| a ^ b));
    Xorbi "xorbi" Ri10 0x230 => (|s, f| four_bytes(s, f, |a, b| a ^ b));
    Xorhi "xorhi" Ri10 0x228 => (|s, f| two_halves(s, f, |a, b| a ^ b));
    Xori "xori" Ri10 0x220 => (|s, f| numbers(s, f, |a, b| a ^ b));
    Nand "nand" Rr 0x0c9 => (|s, f| words(s, f, |a, b| !(a & b)));
    Nor "nor" Rr 0x049 => (|s, f| words(s, f, |a, b| !(a | b)));
    Eqv "eqv" Rr 0x249 => (|s, f| words(s, f, |a, b| !(a ^ b)));
    Selb "selb" Rrr 0x400 => (|s, f| words_by(s, f, |a, b, c| (c & b) | (!c & a)));
    Shufb "shufb" Rrr 0x580 => (shuffle);
    // Shifts and rotations.
    Shlh "shlh" Rr 0x05f => (|s, f| halves(s, f, shift_half));
    Shlhi "shlhi" Ri7 0x07f => (|s, f| halves_with(s, f, shift_half));
    Shl "shl" Rr 0x05b => (|s, f| words(s, f, shift));
    Shli "shli" Ri7 0x07b => (|s, f| numbers(s, f, shift));
    Shlqbi "shlqbi" Rr 0x1db => (|s, f| quad(s, f, s.word(f.rb), |a, n| a << (n & 7)));
    Shlqbii "shlqbii" Ri7 0x1fb => (|s, f| quad_by(s, f, |a, n| a << (n & 7)));
    Shlqby "shlqby" Rr 0x1df => (|s, f| quad(s, f, s.word(f.rb), shift_bytes));
    Shlqbyi "shlqbyi" Ri7 0x1ff => (|s, f| quad_by(s, f, shift_bytes));
    Shlqbybi "shlqbybi" Rr 0x1cf => (|s, f| quad(s, f, s.word(f.rb) >> 3, shift_bytes));
    Roth "roth" Rr 0x05c => (|s, f| halves(s, f, |a, n| a.rotate_left(u32::from(n & 15))));
    Rothi "rothi" Ri7 0x07c => (|s, f| halves_with(s, f, |a, n| a.rotate_left(u32::from(n & 15))));
    Rot "rot" Rr 0x058 => (|s, f| words(s, f, |a, n| a.rotate_left(n & 31)));
    Roti "roti" Ri7 0x078 => (|s, f| numbers(s, f, |a, n| a.rotate_left(n & 31)));
    Rotqby "rotqby" Rr 0x1dc => (|s, f| quad(s, f, s.word(f.rb), rotate_bytes));
    Rotqbyi "rotqbyi" Ri7 0x1fc => (|s, f| quad_by(s, f, rotate_bytes));
    Rotqbybi "rotqbybi" Rr 0x1cc => (|s, f| quad(s, f, s.word(f.rb) >> 3, rotate_bytes));
    Rotqbi "rotqbi" Rr 0x1d8 => (|s, f| quad(s, f, s.word(f.rb), |a, n| a.rotate_left(n & 7)));
    Rotqbii "rotqbii" Ri7 0x1f8 => (|s, f| quad_by(s, f, |a, n| a.rotate_left(n & 7)));
    Rothm "rothm" Rr 0x05d => (|s, f| halves(s, f, mask_half));
    Rothmi "rothmi" Ri7 0x07d => (|s, f| halves_with(s, f, mask_half));
    Rotm "rotm" Rr 0x059 => (|s, f| words(s, f, mask));
    Rotmi "rotmi" Ri7 0x079 => (|s, f| numbers(s, f, mask));
    Rotqmby "rotqmby" Rr 0x1dd => (|s, f| quad(s, f, s.word(f.rb), mask_back));
    Rotqmbyi "rotqmbyi" Ri7 0x1fd => (|s, f| quad_by(s, f, mask_back));
    Rotqmbybi "rotqmbybi" Rr 0x1cd => (|s, f| quad(s, f, s.word(f.rb) >> 3, mask_back));
    Rotqmbi "rotqmbi" Rr 0x1d9 => (|s, f| quad(s, f, s.word(f.rb), bits_back));
    Rotqmbii "rotqmbii" Ri7 0x1f9 => (|s, f| quad_by(s, f, bits_back));
    Rotmah "rotmah" Rr 0x05e => (|s, f| halves(s, f, algebraic_half));
    Rotmahi "rotmahi" Ri7 0x07e => (|s, f| halves_with(s, f, algebraic_half));
    Rotma "rotma" Rr 0x05a => (|s, f| words(s, f, algebraic));
    Rotmai "rotmai" Ri7 0x07a => (|s, f| numbers(s, f, algebraic));
    // Comparisons, and halts by them.
    Heq "heq" Rr 0x3d8 => _;
    Heqi "heqi" Ri10 0x3f8 => _;
    Hgt "hgt" Rr 0x258 => _;
    Hgti "hgti" Ri10 0x278 => _;
    Hlgt "hlgt" Rr 0x2d8 => _;
    Hlgti "hlgti" Ri10 0x2f8 => _;
    Ceqb "ceqb" Rr 0x3d0 => (|s, f| bytes(s, f, |a, b| all8(a == b)));
    Ceqbi "ceqbi" Ri10 0x3f0 => (|s, f| bytes_with(s, f, |a, b| all8(a == b)));
    Ceqh "ceqh" Rr 0x3c8 => (|s, f| halves(s, f, |a, b| all16(a == b)));
    Ceqhi "ceqhi" Ri10 0x3e8 => (|s, f| halves_with(s, f, |a, b| all16(a == b)));
    Ceq "ceq" Rr 0x3c0 => (|s, f| words(s, f, |a, b| all(a == b)));
    Ceqi "ceqi" Ri10 0x3e0 => (|s, f| numbers(s, f, |a, b| all(a == b)));
    Cgtb "cgtb" Rr 0x250 => (|s, f| bytes(s, f, above8));
    Cgtbi "cgtbi" Ri10 0x270 => (|s, f| bytes_with(s, f, above8));
    Cgth "cgth" Rr 0x248 => (|s, f| halves(s, f, above16));
    Cgthi "cgthi" Ri10 0x268 => (|s, f| halves_with(s, f, above16));
    Cgt "cgt" Rr 0x240 => (|s, f| words(s, f, above));
    Cgti "cgti" Ri10 0x260 => (|s, f| numbers(s, f, above));
    Clgtb "clgtb" Rr 0x2d0 => (|s, f| bytes(s, f, |a, b| all8(a > b)));
    Clgtbi "clgtbi" Ri10 0x2f0 => (|s, f| bytes_with(s, f, |a, b| all8(a > b)));
    Clgth "clgth" Rr 0x2c8 => (|s, f| halves(s, f, |a, b| all16(a > b)));
    Clgthi "clgthi" Ri10 0x2e8 => (|s, f| halves_with(s, f, |a, b| all16(a > b)));
    Clgt "clgt" Rr 0x2c0 => (|s, f| words(s, f, |a, b| all(a > b)));
    Clgti "clgti" Ri10 0x2e0 => (|s, f| numbers(s, f, |a, b| all(a > b)));
    // Branches.
    Br "br" Ri16 0x190 => _;
    Bra "bra" Ri16 0x180 => _;
    Brsl "brsl" Ri16 0x198 => _;
    Brasl "brasl" Ri16 0x188 => _;
    Bi "bi" Rr 0x1a8 => _;
    Iret "iret" Rr 0x1aa => _;
    Bisled "bisled" Rr 0x1ab => _;
    Bisl "bisl" Rr 0x1a9 => _;
    Brnz "brnz" Ri16 0x108 => _;
    Brz "brz" Ri16 0x100 => _;
    Brhnz "brhnz" Ri16 0x118 => _;
    Brhz "brhz" Ri16 0x110 => _;
    Biz "biz" Rr 0x128 => _;
    Binz "binz" Rr 0x129 => _;
    Bihz "bihz" Rr 0x12a => _;
    Bihnz "bihnz" Rr 0x12b => _;
    // Hints, which change nothing but time.
    Hbr "hbr" Rr 0x1ac => (|_, _| ());
    Hbra "hbra" Ri18 0x080 => (|_, _| ());
    Hbrr "hbrr" Ri18 0x090 => (|_, _| ());
    // Floats.
    Fa "fa" Rr 0x2c4 => (|s, f| float::sum(s, f, false));
    Dfa "dfa" Rr 0x2cc => (|s, f| double::operate(s, f, double::Operation::Add));
    Fs "fs" Rr 0x2c5 => (|s, f| float::sum(s, f, true));
    Dfs "dfs" Rr 0x2cd => (|s, f| double::operate(s, f, double::Operation::Subtract));
    Fm "fm" Rr 0x2c6 => (float::product);
    Dfm "dfm" Rr 0x2ce => (|s, f| double::operate(s, f, double::Operation::Multiply));
    Fma "fma" Rrr 0x700 => (|s, f| float::fused(s, f, false, false));
    Dfma "dfma" Rr 0x35c => (|s, f| double::operate(s, f, double::Operation::Fused(false, false)));
    Fnms "fnms" Rrr 0x680 => (|s, f| float::fused(s, f, true, false));
    Dfnms "dfnms" Rr 0x35e => (|s, f| double::operate(s, f, double::Operation::Fused(true, true)));
    Fms "fms" Rrr 0x780 => (|s, f| float::fused(s, f, false, true));
    Dfms "dfms" Rr 0x35d => (|s, f| double::operate(s, f, double::Operation::Fused(true, false)));
    Dfnma "dfnma" Rr 0x35f => (|s, f| double::operate(s, f, double::Operation::Fused(false, true)));
    Frest "frest" Rr 0x1b8 => (|s, f| float::estimate(s, f, false));
    Frsqest "frsqest" Rr 0x1b9 => (|s, f| float::estimate(s, f, true));
    Fi "fi" Rr 0x3d4 => (|s, f| words(s, f, float::interpolated));
    Csflt "csflt" Ri8 0x3b4 => (|s, f| numbers(s, f, float::of_signed));
    Cflts "cflts" Ri8 0x3b0 => (|s, f| numbers(s, f, float::to_signed));
    Cuflt "cuflt" Ri8 0x3b6 => (|s, f| numbers(s, f, float::of_unsigned));
    Cfltu "cfltu" Ri8 0x3b2 => (|s, f| numbers(s, f, float::to_unsigned));
    Frds "frds" Rr 0x3b9 => (double::rounded);
    Fesd "fesd" Rr 0x3b8 => (double::extended);
    Dfceq "dfceq" Rr 0x3c3 => (|s, f| double::compare(s, f, false, false));
    Dfcmeq "dfcmeq" Rr 0x3cb => (|s, f| double::compare(s, f, false, true));
    Dfcgt "dfcgt" Rr 0x2c3 => (|s, f| double::compare(s, f, true, false));
    Dfcmgt "dfcmgt" Rr 0x2cb => (|s, f| double::compare(s, f, true, true));
    Dftsv "dftsv" Ri7 0x3bf => (double::special);
    Fceq "fceq" Rr 0x3c2 => (|s, f| words(s, f, float::equal));
    Fcmeq "fcmeq" Rr 0x3ca => (|s, f| words(s, f, float::equal_size));
    Fcgt "fcgt" Rr 0x2c2 => (|s, f| words(s, f, float::greater));
    Fcmgt "fcmgt" Rr 0x2ca => (|s, f| words(s, f, float::greater_size));
    Fscrwr "fscrwr" Rr 0x3ba => (|s, f| s.set_status(s.get(f.ra)));
    Fscrrd "fscrrd" Rr 0x398 => (|s, f| s.set(f.rt, s.status()));
    // Control and channels.
    Stop "stop" Rr 0x000 => _;
    Stopd "stopd" Rr 0x140 => _;
    Lnop "lnop" Rr 0x001 => (|_, _| ());
    Nop "nop" Rr 0x201 => (|_, _| ());
    Sync "sync" Rr 0x002 => (|_, _| ());
    Dsync "dsync" Rr 0x003 => (|_, _| ());
    // No register of this kind is defined: all read as 0.
    Mfspr "mfspr" Rr 0x00c => (|s, f| s.set(f.rt, words_of(0)));
    Mtspr "mtspr" Rr 0x10c => (|_, _| ());
    Rdch "rdch" Rr 0x00d => _;
    Rchcnt "rchcnt" Rr 0x00f => _;
    Wrch "wrch" Rr 0x10d => _;
}
