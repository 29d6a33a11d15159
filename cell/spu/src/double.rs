//! Double precision as the SPU has it: that of IEEE 754 with four roundings, except that operands
//! below the normal ones count as zeros, and that a result that is no number is always the same
//! one.
//!
//! Must stay true: no float of this machine's is computed with. Source: SPU Instruction Set
//! Architecture 1.2, section 9.2.

use crate::float::{Number, TOP, bits_of};
use crate::registers::{Fields, Quadword, State, all, bits};

/// Flags of a doubleword's results, at their place in the second or third word of the status.
mod flag {
    pub(super) const OVERFLOW: u32 = 1 << 13;
    pub(super) const UNDERFLOW: u32 = 1 << 12;
    pub(super) const INEXACT: u32 = 1 << 11;
    pub(super) const INVALID: u32 = 1 << 10;
    pub(super) const NAN: u32 = 1 << 9;
    pub(super) const DENORMAL: u32 = 1 << 8;
}

/// Rounding of double precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rounding {
    Nearest,
    Zero,
    Up,
    Down,
}

impl Rounding {
    fn of(state: &State, slice: usize) -> Self {
        match state.rounding(slice) {
            0 => Self::Nearest,
            1 => Self::Zero,
            2 => Self::Up,
            _ => Self::Down,
        }
    }
}

/// Operations of double precision.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Operation {
    Add,
    Subtract,
    Multiply,
    /// Product and RT: whether RT is subtracted, and whether the result is negated.
    Fused(bool, bool),
}

/// The result of an operation on something that is no number.
const NAN: u64 = 0x7ff8 << 48;
const INFINITY: u64 = 0x7ff << 52;
const ONE: u64 = 0x3ff << 52;

/// A doubleword.
#[derive(Debug, Clone, Copy)]
enum Value {
    Nan {
        signals: bool,
    },
    Infinite {
        negative: bool,
    },
    /// Exponent of the last bit, and mantissa: zeros have none.
    Finite {
        negative: bool,
        exponent: i32,
        mantissa: u64,
    },
}

impl Value {
    fn read(double: u64, flags: &mut u32) -> Self {
        let negative = double >> 63 == 1;
        let fraction = double & ((1 << 52) - 1);
        match exponent_of(double) {
            0 => {
                // Such an operand counts as a zero; only the flag says that it was none.
                if fraction != 0 {
                    *flags |= flag::DENORMAL;
                }
                Self::Finite {
                    negative,
                    exponent: 0,
                    mantissa: 0,
                }
            }
            0x7ff if fraction == 0 => Self::Infinite { negative },
            0x7ff => Self::Nan {
                // Signalling ones have a 0 as the first bit of the fraction.
                signals: fraction >> 51 == 0,
            },
            exponent => Self::Finite {
                negative,
                // Less the bias of 1023 and the fraction's 52 bits: the exponent of the last bit.
                exponent: exponent - 1075,
                mantissa: fraction | 1 << 52,
            },
        }
    }

    fn negated(self) -> Self {
        match self {
            Self::Nan { .. } => self,
            Self::Infinite { negative } => Self::Infinite {
                negative: !negative,
            },
            Self::Finite {
                negative,
                exponent,
                mantissa,
            } => Self::Finite {
                negative: !negative,
                exponent,
                mantissa,
            },
        }
    }
}

fn exponent_of(double: u64) -> i32 {
    let [a, b, ..] = double.to_be_bytes();
    i32::from(u16::from_be_bytes([a, b]) >> 4 & 0x7ff)
}

/// An operation of double precision on both doublewords.
pub(crate) fn operate(state: &mut State, fields: &Fields, operation: Operation) {
    let [a, b, t] = [fields.ra, fields.rb, fields.rt].map(|number| state.get(number).doubles());
    let mut flags = [0; 2];
    let result = std::array::from_fn(|slice| {
        let rounding = Rounding::of(state, slice);
        let raised = &mut flags[slice];
        let [a, b, t] = [a[slice], b[slice], t[slice]];
        match operation {
            // A sum is a product with one: all operations take one path, and round once.
            Operation::Add => combined(a, ONE, Some((b, false)), rounding, raised),
            Operation::Subtract => combined(a, ONE, Some((b, true)), rounding, raised),
            Operation::Multiply => combined(a, b, None, rounding, raised),
            Operation::Fused(minus, negated) => {
                let value = combined(a, b, Some((t, minus)), rounding, raised);
                // What is no number keeps its sign.
                if negated && value != NAN {
                    value ^ 1 << 63
                } else {
                    value
                }
            }
        }
    });
    state.set(fields.rt, Quadword::of_doubles(result));
    state.raise_doubles(flags);
}

/// The product of two, and a third added or subtracted, rounded once.
fn combined(
    a: u64,
    b: u64,
    third: Option<(u64, bool)>,
    rounding: Rounding,
    flags: &mut u32,
) -> u64 {
    let (a, b) = (Value::read(a, flags), Value::read(b, flags));
    let third = third.map(|(word, minus)| {
        let value = Value::read(word, flags);
        if minus { value.negated() } else { value }
    });
    let operands = [Some(a), Some(b), third];
    let signals = |value: &Option<Value>| matches!(value, Some(Value::Nan { signals: true }));
    // Before infinities: an operand that is no number decides alone.
    if operands
        .iter()
        .any(|value| matches!(value, Some(Value::Nan { .. })))
    {
        let invalid = operands.iter().any(signals);
        *flags |= flag::NAN | if invalid { flag::INVALID } else { 0 };
        return NAN;
    }
    let Some(product) = multiplied(a, b) else {
        *flags |= flag::INVALID;
        return NAN;
    };
    match (product, third) {
        (Product::Infinite(sign), Some(Value::Infinite { negative })) if sign != negative => {
            *flags |= flag::INVALID;
            NAN
        }
        (Product::Infinite(negative), _) | (_, Some(Value::Infinite { negative })) => {
            INFINITY | u64::from(negative) << 63
        }
        (
            Product::Finite(number),
            Some(Value::Finite {
                negative,
                exponent,
                mantissa,
            }),
        ) => {
            let sum = number.plus(Number::new(negative, exponent, mantissa.into()));
            // A sum of zeros of two signs, or of numbers that cancel each other.
            let cancels = sum.mantissa == 0 && (number.negative != negative);
            let negative = if cancels {
                rounding == Rounding::Down
            } else {
                sum.negative
            };
            rounded_double(Number { negative, ..sum }, rounding, flags)
        }
        (Product::Finite(number), _) => rounded_double(number, rounding, flags),
    }
}

enum Product {
    Infinite(bool),
    Finite(Number),
}

/// The exact product; nothing for infinity times zero.
fn multiplied(a: Value, b: Value) -> Option<Product> {
    let sign = |value: Value| match value {
        Value::Nan { .. } => false,
        Value::Infinite { negative } | Value::Finite { negative, .. } => negative,
    };
    let negative = sign(a) != sign(b);
    match (a, b) {
        (
            Value::Finite {
                exponent: a_exponent,
                mantissa: a,
                ..
            },
            Value::Finite {
                exponent: b_exponent,
                mantissa: b,
                ..
            },
        ) => Some(Product::Finite(Number::new(
            negative,
            a_exponent + b_exponent,
            u128::from(a) * u128::from(b),
        ))),
        (Value::Infinite { .. }, Value::Finite { mantissa: 0, .. })
        | (Value::Finite { mantissa: 0, .. }, Value::Infinite { .. }) => None,
        _ => Some(Product::Infinite(negative)),
    }
}

/// A format of IEEE 754.
struct Shape {
    /// Bits of the fraction.
    fraction: u32,
    /// The largest exponent, of infinities.
    last: i32,
    /// True where numbers below the normal ones become zeros.
    flushes: bool,
}

fn rounded_double(number: Number, rounding: Rounding, flags: &mut u32) -> u64 {
    let shape = Shape {
        fraction: 52,
        last: 0x7ff,
        flushes: false,
    };
    number.rounded(&shape, rounding, flags)
}

impl Number {
    /// The bits in a format.
    fn rounded(self, shape: &Shape, rounding: Rounding, flags: &mut u32) -> u64 {
        // The largest exponent is all ones, so their count is the field's width.
        let sign = u64::from(self.negative) << (shape.fraction + shape.last.count_ones());
        if self.mantissa == 0 {
            return sign;
        }
        // Of the first one, with the bias of the format.
        let exponent = self.exponent + TOP.cast_signed() + shape.last / 2;
        let tiny = exponent < 1;
        if tiny && shape.flushes {
            *flags |= flag::UNDERFLOW | flag::INEXACT;
            return sign;
        }
        // Numbers below the normal ones lose the bits that their exponent is short of.
        let below = if tiny {
            (1 - exponent).min(64).cast_unsigned()
        } else {
            0
        };
        // No shift may take all of the 128 bits.
        let cut = (TOP - shape.fraction + below).min(127);
        let kept = self.mantissa >> cut;
        let rest = self.mantissa ^ kept << cut;
        let half = 1_u128 << (cut - 1);
        let up = match rounding {
            // A tie goes to the even number.
            Rounding::Nearest => rest > half || rest == half && kept & 1 == 1,
            Rounding::Zero => false,
            Rounding::Up => rest != 0 && !self.negative,
            Rounding::Down => rest != 0 && self.negative,
        };
        if rest != 0 {
            *flags |= flag::INEXACT | if tiny { flag::UNDERFLOW } else { 0 };
        }
        // The first one of a normal number counts as one of the exponent; a carry does the rest.
        let mantissa = u64::try_from(kept + u128::from(up)).unwrap_or(0);
        let before = u64::from((exponent - 1).max(0).cast_unsigned());
        let value = (before << shape.fraction) + mantissa;
        let infinity = u64::from(shape.last.cast_unsigned()) << shape.fraction;
        if value < infinity {
            return sign | value;
        }
        *flags |= flag::OVERFLOW | flag::INEXACT;
        // A rounding towards zero ends at the largest number, not beyond it.
        let largest = match rounding {
            Rounding::Nearest => false,
            Rounding::Zero => true,
            Rounding::Up => self.negative,
            Rounding::Down => !self.negative,
        };
        sign | (infinity - u64::from(largest))
    }
}

/// `frds`: doublewords in single precision of IEEE 754.
pub(crate) fn rounded(state: &mut State, fields: &Fields) {
    let doubles = state.get(fields.ra).doubles();
    let shape = Shape {
        fraction: 23,
        last: 0xff,
        flushes: true,
    };
    let mut flags = [0; 2];
    let result = std::array::from_fn(|slice| {
        let raised = &mut flags[slice];
        let single = match Value::read(doubles[slice], raised) {
            Value::Nan { signals } => {
                *raised |= flag::NAN | if signals { flag::INVALID } else { 0 };
                0x7fc0_0000
            }
            Value::Infinite { negative } => 0x7f80_0000 | u64::from(negative) << 31,
            Value::Finite {
                negative,
                exponent,
                mantissa,
            } => {
                let number = Number::new(negative, exponent, mantissa.into());
                number.rounded(&shape, Rounding::of(state, slice), raised)
            }
        };
        // The float is in the first word of its doubleword.
        single << 32
    });
    state.set(fields.rt, Quadword::of_doubles(result));
    state.raise_doubles(flags);
}

/// `fesd`: single precision of IEEE 754 as doublewords.
pub(crate) fn extended(state: &mut State, fields: &Fields) {
    let Quadword(words) = state.get(fields.ra);
    let mut flags = [0; 2];
    let result = std::array::from_fn(|slice| {
        // Only the first word of a doubleword is read.
        let word = words[2 * slice];
        let sign = u64::from(word >> 31) << 63;
        let fraction = word & 0x7f_ffff;
        match bits_of(word, 23, 8) {
            0 => {
                flags[slice] = if fraction == 0 { 0 } else { flag::DENORMAL };
                sign
            }
            255 if fraction == 0 => sign | INFINITY,
            255 => {
                flags[slice] = flag::NAN
                    | if fraction >> 22 == 0 {
                        flag::INVALID
                    } else {
                        0
                    };
                NAN
            }
            // The biases differ by 896, and the fractions by 29 bits.
            exponent => sign | u64::from(exponent + 896) << 52 | u64::from(fraction) << 29,
        }
    });
    state.set(fields.rt, Quadword::of_doubles(result));
    state.raise_doubles(flags);
}

/// `dfceq` and its like: masks of doublewords.
pub(crate) fn compare(state: &mut State, fields: &Fields, greater: bool, magnitude: bool) {
    let [a, b] = [fields.ra, fields.rb].map(|number| state.get(number).doubles());
    let mut flags = [0; 2];
    let result = std::array::from_fn(|slice| {
        let raised = &mut flags[slice];
        let mut key = |double: u64| match Value::read(double, raised) {
            Value::Nan { signals } => {
                // An order of what is no number is invalid even where nothing signals.
                *raised |= flag::NAN | if signals || greater { flag::INVALID } else { 0 };
                None
            }
            // Both zeros are equal, and so are numbers that count as zeros.
            Value::Finite { mantissa: 0, .. } => Some(0),
            _ => {
                // Without its sign a double's bits are in the order of its values.
                let size = (double & !(1 << 63)).cast_signed();
                Some(if double >> 63 == 1 && !magnitude {
                    -size
                } else {
                    size
                })
            }
        };
        let truth = match (key(a[slice]), key(b[slice])) {
            (Some(a), Some(b)) => {
                if greater {
                    a > b
                } else {
                    a == b
                }
            }
            _ => false,
        };
        if truth { u64::MAX } else { 0 }
    });
    state.set(fields.rt, Quadword::of_doubles(result));
    state.raise_doubles(flags);
}

/// `dftsv`: masks of doublewords that are of one of the chosen kinds.
pub(crate) fn special(state: &mut State, fields: &Fields) {
    let doubles = state.get(fields.ra).doubles();
    let result = doubles.map(|double| {
        let negative = u32::from(double >> 63 == 1);
        let fraction = double & ((1 << 52) - 1);
        // The field's bits: no number, both infinities, both zeros,
        // both kinds below the normal ones.
        let kind = match (exponent_of(double), fraction) {
            (0x7ff, 0) => 0x20 >> negative,
            (0x7ff, _) => 0x40,
            (0, 0) => 0x08 >> negative,
            (0, _) => 0x02 >> negative,
            _ => 0,
        };
        let mask = u64::from(all(bits(fields.immediate) & kind != 0));
        mask << 32 | mask
    });
    state.set(fields.rt, Quadword::of_doubles(result));
}
