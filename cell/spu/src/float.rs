//! Single precision as the SPU has it.
//!
//! It has no infinities, no numbers below the normal ones, truncates, and counts the largest
//! exponent as numbers; zeros that it computes are positive.
//!
//! Must stay true: this machine's doubles compute only what they hold exactly, or with the rest of
//! a rounding to nearest, which Rust's floats always have. Source: SPU Instruction Set Architecture
//! 1.2, section 9. The tables of the two estimates are computed, as the document has none: their
//! last bits may be another chip's.

use crate::registers::{Fields, Quadword, State, all, bits};
use sidecore_bare::width::ToUsize;
use std::sync::OnceLock;

/// A finite number: mantissa times a power of two, the mantissa's first one at [`TOP`] or all zero.
/// The last bit also says that something was cut off below.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Number {
    pub(crate) negative: bool,
    pub(crate) exponent: i32,
    pub(crate) mantissa: u128,
}

/// Place of a mantissa's first one: above it is room for a carry.
pub(crate) const TOP: u32 = 125;

impl Number {
    pub(crate) fn new(negative: bool, exponent: i32, mantissa: u128) -> Self {
        if mantissa == 0 {
            return Self {
                negative,
                exponent: 0,
                mantissa,
            };
        }
        // At most one bit above the top: the carry of a sum.
        let number = if mantissa >> TOP > 1 {
            // The bit that falls out stays in the last one.
            (exponent + 1, mantissa >> 1 | mantissa & 1)
        } else {
            let up = mantissa.leading_zeros() - (127 - TOP);
            (exponent - up.cast_signed(), mantissa << up)
        };
        Self {
            negative,
            exponent: number.0,
            mantissa: number.1,
        }
    }

    /// The exact sum, but for its last bit.
    pub(crate) fn plus(self, other: Self) -> Self {
        if self.mantissa == 0 || other.mantissa == 0 {
            return if self.mantissa == 0 { other } else { self };
        }
        // Both first ones are at the top, so this is the order of the sizes.
        let larger = (self.exponent, self.mantissa) >= (other.exponent, other.mantissa);
        let (large, small) = if larger { (self, other) } else { (other, self) };
        let down = (large.exponent - small.exponent).cast_unsigned();
        // All of it lies below the last bit, and still is not nothing.
        let (kept, cut) = if down > TOP {
            (0, true)
        } else {
            let kept = small.mantissa >> down;
            (kept, kept << down != small.mantissa)
        };
        let shifted = kept | u128::from(cut);
        let mantissa = if large.negative == small.negative {
            large.mantissa + shifted
        } else {
            large.mantissa - shifted
        };
        Self::new(large.negative, large.exponent, mantissa)
    }
}

/// Flags of one word's results of single precision.
mod single {
    pub(super) const OVERFLOW: u32 = 4;
    pub(super) const UNDERFLOW: u32 = 2;
    /// The result is not the one of IEEE 754.
    pub(super) const DIFFERS: u32 = 1;
}

/// A word's sign, exponent of the last bit, and mantissa.
fn unpacked(word: u32) -> (bool, i32, u64) {
    let exponent = bits_of(word, 23, 8);
    // Numbers below the normal ones count as zeros.
    let mantissa = if exponent == 0 {
        0
    } else {
        word & 0x7f_ffff | 0x80_0000
    };
    (
        word >> 31 == 1,
        // Less the bias of 127 and the fraction's 23 bits.
        exponent.cast_signed() - 150,
        mantissa.into(),
    )
}

/// A word's value, which a double of this machine's holds exactly, as it does the product of two.
#[inline]
fn wide(word: u32) -> f64 {
    let exponent = u64::from(bits_of(word, 23, 8));
    let size = if exponent == 0 {
        0
    } else {
        (exponent + 896) << 52 | u64::from(word & 0x7f_ffff) << 29
    };
    f64::from_bits(u64::from(word >> 31) << 63 | size)
}

/// The bits of a sum whose first 24 bits are those of the exact one.
#[inline]
fn exact_sum(a: f64, b: f64) -> u64 {
    let sum = a + b;
    // What the rounding of the sum left out (Knuth, TAOCP 2, 4.2.2, theorem B).
    let part = sum - a;
    let rest = (a - (sum - part)) + (b - part);
    let bits = sum.to_bits();
    // A sum that was rounded away from zero to a number of few bits lies above the exact one.
    let above = ((rest < 0.0) & (sum > 0.0)) | ((rest > 0.0) & (sum < 0.0));
    bits - u64::from(above & (bits & 0x1fff_ffff == 0))
}

/// The word of a double's bits, cut off behind 24 bits, and its flags.
fn cut(bits: u64) -> (u32, u32) {
    // Computed zeros are positive.
    if bits << 1 == 0 {
        return (0, 0);
    }
    let top = high_half(bits);
    let exponent = bits_of(top, 20, 11).cast_signed() - 896;
    let sign = top & 0x8000_0000;
    // Both halves hold a part of the fraction.
    let fraction = (top & 0xf_ffff) << 3 | bits_of(low_half(bits), 29, 3);
    of_parts(sign, exponent, fraction)
}

#[inline]
fn high_half(bits: u64) -> u32 {
    low_half(bits >> 32)
}

#[inline]
fn low_half(bits: u64) -> u32 {
    let [.., a, b, c, d] = bits.to_be_bytes();
    u32::from_be_bytes([a, b, c, d])
}

/// The word of a number, and its flags.
fn packed(number: Number) -> (u32, u32) {
    if number.mantissa == 0 {
        return (0, 0);
    }
    let exponent = number.exponent + TOP.cast_signed() + 127;
    let sign = u32::from(number.negative) << 31;
    // Below 24 bits, as the first one stands at the top.
    let fraction = u32::try_from(number.mantissa >> (TOP - 23)).unwrap_or(0) & 0x7f_ffff;
    of_parts(sign, exponent, fraction)
}

/// The word of a sign, an exponent of any size and a fraction, and its flags.
fn of_parts(sign: u32, exponent: i32, fraction: u32) -> (u32, u32) {
    match exponent {
        ..1 => (0, single::UNDERFLOW | single::DIFFERS),
        1..255 => (sign | exponent.cast_unsigned() << 23 | fraction, 0),
        // The last exponent is one of numbers here, not of infinities.
        255 => (sign | 255 << 23 | fraction, single::DIFFERS),
        256.. => (sign | 0x7fff_ffff, single::OVERFLOW | single::DIFFERS),
    }
}

/// The flag of an operand that IEEE 754 reads in another way.
fn differs(word: u32) -> u32 {
    let exponent = bits_of(word, 23, 8);
    let other = exponent == 255 || exponent == 0 && word & 0x7f_ffff != 0;
    if other { single::DIFFERS } else { 0 }
}

pub(crate) const fn bits_of(word: u32, shift: u32, count: u32) -> u32 {
    word >> shift & ((1 << count) - 1)
}

/// True for words that are normal numbers in both formats, or plain zeros.
#[inline]
fn is_plain(word: u32) -> bool {
    let size = word & 0x7fff_ffff;
    // One comparison for both ends: numbers below the normal ones wrap around.
    (size == 0) | (size.wrapping_sub(0x80_0000) < 0x7f00_0000)
}

/// RT of three registers by a function of doubles that gives a double's bits.
#[inline]
fn singles(state: &mut State, to: u8, from: [u8; 3], each: impl Fn([f64; 3]) -> u64) {
    let [a, b, c] = from.map(|number| state.get(number).0);
    let mut plain = true;
    let (mut doubles, mut quick) = ([0; 4], [0; 4]);
    for word in 0..4 {
        let (a, b, c) = (a[word], b[word], c[word]);
        let bits = each([wide(a), wide(b), wide(c)]);
        // Most words need nothing but their first bits, and raise no flag.
        let size = (bits << 1 >> 30).wrapping_sub(896 << 23);
        plain &= is_plain(a) & is_plain(b) & is_plain(c);
        // As `is_plain`, but a result of zero takes the slow way, which drops its sign.
        plain &= size.wrapping_sub(0x80_0000) < 0x7f00_0000;
        doubles[word] = bits;
        quick[word] = high_half(bits) & 0x8000_0000 | low_half(size);
    }
    if plain {
        state.set(to, Quadword(quick));
        return;
    }
    let mut flags = [0; 4];
    let result = std::array::from_fn(|word| {
        let (value, raised) = cut(doubles[word]);
        flags[word] = raised | differs(a[word]) | differs(b[word]) | differs(c[word]);
        value
    });
    state.set(to, Quadword(result));
    state.raise(flags);
}

/// `fa`, and `fs` where `minus`.
pub(crate) fn sum(state: &mut State, fields: &Fields, minus: bool) {
    let from = [fields.ra, fields.rb, fields.rb];
    singles(state, fields.rt, from, |[a, b, _]| {
        exact_sum(a, if minus { -b } else { b })
    });
}

/// `fm`.
pub(crate) fn product(state: &mut State, fields: &Fields) {
    let from = [fields.ra, fields.rb, fields.rb];
    singles(state, fields.rt, from, |[a, b, _]| (a * b).to_bits());
}

/// `fma`; `fnms` where the product is negated, `fms` where RC is.
pub(crate) fn fused(state: &mut State, fields: &Fields, product: bool, third: bool) {
    let signed = |value: f64, negated: bool| if negated { -value } else { value };
    let from = [fields.ra, fields.rb, fields.rc];
    singles(state, fields.rt, from, |[a, b, c]| {
        exact_sum(signed(a * b, product), signed(c, third))
    });
}

/// `fceq`.
pub(crate) fn equal(a: u32, b: u32) -> u32 {
    all(order(a) == order(b))
}

/// `fcmeq`.
pub(crate) fn equal_size(a: u32, b: u32) -> u32 {
    all(size(a) == size(b))
}

/// `fcgt`.
pub(crate) fn greater(a: u32, b: u32) -> u32 {
    all(order(a) > order(b))
}

/// `fcmgt`.
pub(crate) fn greater_size(a: u32, b: u32) -> u32 {
    all(size(a) > size(b))
}

/// A float's place in the order of numbers; both zeros have one.
fn order(word: u32) -> i32 {
    let size = size(word).cast_signed();
    if word >> 31 == 1 { -size } else { size }
}

/// A float without its sign.
fn size(word: u32) -> u32 {
    if bits_of(word, 23, 8) == 0 {
        0
    } else {
        word & 0x7fff_ffff
    }
}

/// `csflt`.
pub(crate) fn of_signed(word: u32, scale: u32) -> u32 {
    let value = i64::from(word.cast_signed());
    // The instruction has 155 less the scale.
    let exponent = bits_to_scale(scale) - 155;
    packed(Number::new(
        value < 0,
        exponent,
        value.unsigned_abs().into(),
    ))
    .0
}

/// `cuflt`.
pub(crate) fn of_unsigned(word: u32, scale: u32) -> u32 {
    packed(Number::new(false, bits_to_scale(scale) - 155, word.into())).0
}

/// `cflts`.
pub(crate) fn to_signed(word: u32, scale: u32) -> u32 {
    let (negative, size) = whole(word, scale);
    let size = i64::try_from(size).unwrap_or(i64::MAX);
    let value = if negative { -size } else { size };
    let value = value.clamp(i32::MIN.into(), i32::MAX.into());
    bits(i32::try_from(value).unwrap_or(0))
}

/// `cfltu`.
pub(crate) fn to_unsigned(word: u32, scale: u32) -> u32 {
    match whole(word, scale) {
        (true, _) => 0,
        (false, size) => u32::try_from(size).unwrap_or(u32::MAX),
    }
}

/// Sign and whole part of a float times two to the scale.
fn whole(word: u32, scale: u32) -> (bool, u128) {
    let (negative, exponent, mantissa) = unpacked(word);
    // The instruction has 173 less the scale.
    let exponent = exponent + 173 - bits_to_scale(scale);
    let mantissa = u128::from(mantissa);
    let size = if exponent >= 0 {
        // All that is beyond a word is one to the callers.
        mantissa << exponent.min(64)
    } else {
        mantissa.checked_shr(exponent.unsigned_abs()).unwrap_or(0)
    };
    (negative, size)
}

fn bits_to_scale(scale: u32) -> i32 {
    scale.cast_signed()
}

/// `frest`, and `frsqest` where `root`: a base and a step for `fi` in each word.
pub(crate) fn estimate(state: &mut State, fields: &Fields, root: bool) {
    static LINES: OnceLock<[[u32; 32]; 3]> = OnceLock::new();
    let lines = LINES.get_or_init(|| {
        [None, Some(false), Some(true)].map(|root| std::array::from_fn(|at| line(at, root)))
    });
    let Quadword(words) = state.get(fields.ra);
    let of = |word: u32| {
        let exponent = bits_of(word, 23, 8).cast_signed();
        // `frsqest` takes the size of its operand.
        let sign = if root { 0 } else { word & 0x8000_0000 };
        if exponent == 0 {
            // Divided by zero: the largest number.
            return sign | 0x7fff_ffff;
        }
        let interval = bits_of(word, 18, 5).to_usize();
        let (exponent, fraction) = if root {
            // The mantissa of an odd power of two counts twice.
            let twice = exponent & 1 == 0;
            (
                (380 - exponent) >> 1,
                lines[1 + usize::from(twice)][interval],
            )
        } else {
            (253 - exponent, lines[0][interval])
        };
        match exponent {
            ..1 => sign,
            exponent => sign | exponent.cast_unsigned() << 23 | fraction,
        }
    };
    let zeros = words.map(|word| bits_of(word, 23, 8) == 0);
    state.set(fields.rt, Quadword(words.map(of)));
    state.divided(zeros);
}

/// Base (13 bits) and step (10 bits) of the straight line through one of 32 intervals of a
/// mantissa: of twice its reciprocal, or of twice its root's reciprocal, where the mantissa of an
/// odd exponent counts twice.
fn line(interval: usize, root: Option<bool>) -> u32 {
    let first = (0..interval).map(|_| 1.0).sum::<f64>();
    let mantissa = |at: f64| (32.0 + first + at) / 32.0;
    let of = |at: f64| match root {
        None => 2.0 / mantissa(at),
        Some(twice) => 2.0 / (mantissa(at) * if twice { 2.0 } else { 1.0 }).sqrt(),
    };
    let (start, middle, end) = (of(0.0), of(0.5), of(1.0));
    // A line through both ends lies above the curve: half of its largest distance is taken off.
    let excess = ((start + end) / 2.0 - middle) / 2.0;
    let slope = (start - end) * 2.0;
    let step = (slope * 8192.0).floor();
    // `fi` counts from the even interval of each two.
    let before = if interval & 1 == 1 {
        step / 8192.0 / 2.0
    } else {
        0.0
    };
    let base = ((start - excess + before - 1.0) * 8192.0)
        .round()
        .min(8191.0);
    field(base) << 10 | field(step).min(1023)
}

/// A number of few bits that a float of this machine's holds exactly.
fn field(value: f64) -> u32 {
    (0..1 << 14)
        .find(|number| f64::from(*number) >= value)
        .unwrap_or(0)
}

/// `fi`: the line of an estimate at the mantissa's place.
pub(crate) fn interpolated(word: u32, estimate: u32) -> u32 {
    let base = 1 << 32 | u64::from(bits_of(estimate, 10, 13)) << 19;
    let step = u64::from(estimate & 0x3ff) * u64::from(word & 0x7_ffff);
    let (negative, exponent, _) = unpacked(estimate);
    // An estimate of zero has no line.
    if exponent == -150 {
        return 0;
    }
    let value = base.saturating_sub(step);
    packed(Number::new(negative, exponent + 23 - 32, value.into())).0
}
