//! Code of floats, where it is exact; other operands go to the interpreter.
//!
//! With rounding to zero this machine's single precision gives the SPU's bits, where operands and
//! result are normal numbers below the largest, or zeros that were not rounded to. Its double
//! precision gives them under the same condition, and raises nothing but the flag of inexact
//! results.
//!
//! Must stay true: what is checked is checked in every lane; zeros of single precision are
//! positive. Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1,
//! section 11.5.

use super::status;
use super::x86::{Arithmetic, If, Operand, RAX, Vector, Xmm};
use super::{Block, DOUBLE, FIRST_KEPT, Frame, HOST, SINGLE, constant, control, field, register};
use crate::isa::Op;
use crate::registers::Fields;
use std::mem::offset_of;

/// Zeros that a result may be without a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Zeros {
    /// Any: a sum of numbers is zero only where it is exactly.
    Sum,
    /// Indices of factors.
    Product,
    /// Indices of factors and of third operands.
    Fused,
}

/// Code behind the block for an instruction that the first check does not let pass.
#[derive(Debug)]
pub(super) struct Slow {
    jump: usize,
    resume: usize,
    word: u32,
    kept: Vec<(u8, Xmm)>,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    /// Zeros are looked at again: operands and result.
    Single(Vec<Xmm>, Xmm, Zeros),
    /// The interpreter.
    Double,
    /// Each doubleword is computed alone, to see which of them is inexact.
    Inexact(Vector, Zeros),
}

/// The flag of inexact results.
const INEXACT: i32 = 1 << 11;
/// The same of this machine's.
const INEXACT_HERE: i32 = 0x20;

impl Block {
    /// Translates an instruction of floats; false where the interpreter is to run it.
    pub(super) fn float(&mut self, op: Op, fields: &Fields) -> bool {
        self.single(op, fields)
            || self.double(op, fields)
            || self.converted(op, fields)
            || self.compared(op, fields)
    }

    fn single(&mut self, op: Op, fields: &Fields) -> bool {
        let (vector, zeros) = match op {
            Op::Fa => (Vector::ADD_SINGLE, Zeros::Sum),
            Op::Fs => (Vector::SUB_SINGLE, Zeros::Sum),
            Op::Fm => (Vector::MUL_SINGLE, Zeros::Product),
            Op::Fma => (Vector::FUSED_SINGLE, Zeros::Fused),
            Op::Fms => (Vector::FUSED_SUB_SINGLE, Zeros::Fused),
            Op::Fnms => (Vector::FUSED_NEGATED_SINGLE, Zeros::Fused),
            _ => return false,
        };
        self.want(SINGLE);
        let mut operands = vec![self.read(fields.ra), self.read(fields.rb)];
        if zeros == Zeros::Fused {
            operands.push(self.read(fields.rc));
        }
        let to = self.define(fields.rt);
        // Computed first, and checked with the result: nearly all operands are plain numbers.
        self.operation(vector, to, &operands);
        // Doubled, numbers lose their sign; moved, those that are not plain come first.
        for (number, from) in (0..).zip(operands.iter().chain([&to])) {
            let moved = u8::from(number > 0);
            self.code.two(Vector::ADD32, moved, *from, *from);
            self.code
                .vector(Vector::ADD32, moved, moved, constant(SINGLE_MOVE));
            if number > 0 {
                self.code.two(Vector::MIN_SIGNED32, 0, 0, 1);
            }
        }
        self.code
            .vector(Vector::GREATER32, 0, 0, constant(SINGLE_BEFORE));
        self.code.signs(Vector::WORD_SIGNS, RAX, 0);
        let jump = self.jump_unless(0xf);
        self.slow_from(jump, Kind::Single(operands, to, zeros));
        self.write(fields.rt, to);
        true
    }

    /// A jump that is taken where not all signs are in `RAX`.
    fn jump_unless(&mut self, signs: i32) -> usize {
        let rax = Operand::General(RAX);
        self.code.arithmetic_number(Arithmetic::Compare, rax, signs);
        self.code.jump(Some(If::NotZero))
    }

    /// `to` of two or three operands.
    fn operation(&mut self, vector: Vector, to: Xmm, operands: &[Xmm]) {
        let [a, b, rest @ ..] = operands else { return };
        if let [c] = rest {
            self.code.load(to, Operand::Register(*c));
        }
        self.code.two(vector, to, *a, *b);
    }

    fn double(&mut self, op: Op, fields: &Fields) -> bool {
        let (vector, zeros) = match op {
            Op::Dfa => (Vector::ADD_DOUBLE, Zeros::Sum),
            Op::Dfs => (Vector::SUB_DOUBLE, Zeros::Sum),
            Op::Dfm => (Vector::MUL_DOUBLE, Zeros::Product),
            Op::Dfma | Op::Dfnma => (Vector::FUSED_DOUBLE, Zeros::Fused),
            Op::Dfms | Op::Dfnms => (Vector::FUSED_SUB_DOUBLE, Zeros::Fused),
            _ => return false,
        };
        self.want(DOUBLE);
        let [a, b] = [self.read(fields.ra), self.read(fields.rb)];
        let third = (zeros == Zeros::Fused).then(|| self.read(fields.rt));
        // The result's register is known to what the interpreter's call brings back.
        let to = self.define(fields.rt);
        // This machine has one rounding for both lanes.
        self.code.compare_byte(field(offset_of!(Frame, apart)), 0);
        let apart = self.code.jump(Some(If::NotZero));
        // This machine's doubles have their last word first.
        self.code.words(0, a, 0xb1);
        self.code.words(1, b, 0xb1);
        let mut operands = vec![0, 1];
        if let Some(third) = third {
            self.code.words(2, third, 0xb1);
            operands.push(2);
        }
        self.operation(vector, 3, &operands);
        self.check(true, &operands, 3, zeros);
        self.code.signs(Vector::DOUBLE_SIGNS, RAX, 7);
        let unusual = self.jump_unless(3);
        self.code.get(RAX, status(1));
        self.code.arithmetic(Arithmetic::And, RAX, status(2));
        let rax = Operand::General(RAX);
        self.code.arithmetic_number(Arithmetic::And, rax, INEXACT);
        let inexact = self.code.jump(Some(If::Zero));
        self.slow_from(inexact, Kind::Inexact(vector, zeros));
        if matches!(op, Op::Dfnms | Op::Dfnma) {
            let signs = Operand::Constant([0, 1 << 31, 0, 1 << 31]);
            self.code.vector(Vector::XOR, 3, 3, signs);
        }
        self.code.words(to, 3, 0xb1);
        self.write(fields.rt, to);
        for jump in [apart, unusual] {
            self.slow_from(jump, Kind::Double);
        }
        true
    }

    /// A jump to slow code that comes back here.
    fn slow_from(&mut self, jump: usize, kind: Kind) {
        let kept = (FIRST_KEPT..).zip(self.kept);
        let kept = kept.filter_map(|(xmm, number)| Some((number?, xmm)));
        self.slow.push(Slow {
            jump,
            resume: self.code.len(),
            word: self.word,
            kept: kept.collect(),
            kind,
        });
    }

    /// Vector register 7: lanes in which the result is the SPU's, and raises no flag but that of
    /// inexact ones. Uses 4 to 6.
    fn check(&mut self, wide: bool, operands: &[Xmm], result: Xmm, zeros: Zeros) {
        let (add, greater, equal) = if wide {
            (Vector::ADD64, Vector::GREATER64, Vector::EQUAL64)
        } else {
            (Vector::ADD32, Vector::GREATER32, Vector::EQUAL32)
        };
        let (moved, before) = if wide {
            (both(DOUBLE_MOVE), both(DOUBLE_BEFORE))
        } else {
            (constant(SINGLE_MOVE), constant(SINGLE_BEFORE))
        };
        // A result that is the least normal number may have been rounded up to it.
        let before_result = if wide {
            both(DOUBLE_BEFORE + 2)
        } else {
            before
        };
        let results = operands.len();
        for (number, operand) in operands.iter().chain([&result]).enumerate() {
            let code = &mut self.code;
            code.two(Vector::XOR, 5, 5, 5);
            code.two(add, 4, *operand, *operand);
            code.two(equal, 5, 4, 5);
            code.vector(add, 4, 4, moved);
            let least = if number == results {
                if zeros != Zeros::Sum {
                    code.two(Vector::AND, 5, 5, 6);
                }
                before_result
            } else {
                // 6: zeros that let the result be one.
                match number {
                    0 => code.load(6, Operand::Register(5)),
                    1 => code.two(Vector::OR, 6, 6, 5),
                    _ => code.two(Vector::AND, 6, 6, 5),
                }
                before
            };
            code.vector(greater, 4, 4, least);
            code.two(Vector::OR, 4, 4, 5);
            match number {
                0 => code.load(7, Operand::Register(4)),
                _ => code.two(Vector::AND, 7, 7, 4),
            }
        }
    }

    /// Code that is seldom reached.
    pub(super) fn slowly(&mut self, slow: &Slow) {
        self.code.bind(slow.jump);
        match &slow.kind {
            Kind::Single(operands, to, zeros) => {
                self.check(false, operands, *to, *zeros);
                self.code.signs(Vector::WORD_SIGNS, RAX, 7);
                let unusual = self.jump_unless(0xf);
                // Zeros get the positive sign.
                self.code.two(Vector::XOR, 4, 4, 4);
                self.code.two(Vector::ADD_SINGLE, *to, *to, 4);
                self.code.jump_back(None, slow.resume);
                self.code.bind(unusual);
                self.interpreted(slow, SINGLE);
            }
            Kind::Double => self.interpreted(slow, DOUBLE),
            Kind::Inexact(vector, zeros) => self.inexact(*vector, *zeros),
        }
        self.code.jump_back(None, slow.resume);
    }

    /// Calls the interpreter, and loads what registers held.
    fn interpreted(&mut self, slow: &Slow, mode: u8) {
        // The helper is Rust code, which counts on the usual rounding.
        self.code.load_control(control(HOST));
        self.call_helper(slow.word);
        self.code.load_control(control(mode));
        for (number, xmm) in &slow.kept {
            self.code.load(*xmm, register(*number, 0));
        }
    }

    /// Raises the flag of inexact results in the doublewords that have it not, where it is due.
    fn inexact(&mut self, vector: Vector, zeros: Zeros) {
        let scratch = field(offset_of!(Frame, scratch));
        for (slice, order) in [(1, 0x44), (2, 0xee)] {
            self.code.test_bits(status(slice), INEXACT);
            let raised = self.code.jump(Some(If::NotZero));
            // It clears this machine's flags: the one that is looked at below is of this operation.
            self.code.load_control(control(DOUBLE));
            // The doubleword twice, so that the other one raises nothing.
            self.code.words(4, 0, order);
            self.code.words(5, 1, order);
            if zeros == Zeros::Fused {
                self.code.words(7, 2, order);
            }
            self.code.two(vector, 7, 4, 5);
            self.code.save_control(scratch);
            self.code.test_bits(scratch, INEXACT_HERE);
            let exact = self.code.jump(Some(If::Zero));
            self.code
                .arithmetic_number(Arithmetic::Or, status(slice), INEXACT);
            self.code.bind(exact);
            self.code.bind(raised);
        }
    }

    /// Integers from and to single precision, without a scale.
    fn converted(&mut self, op: Op, fields: &Fields) -> bool {
        match (op, fields.immediate) {
            (Op::Csflt, 155) => {
                self.want(SINGLE);
                let a = self.read(fields.ra);
                let to = self.define(fields.rt);
                let from = Operand::Register(a);
                self.code.vector(Vector::OF_INTEGERS, to, 0, from);
                self.write(fields.rt, to);
            }
            (Op::Cflts, 173) => {
                let a = self.read(fields.ra);
                let to = self.define(fields.rt);
                let from = Operand::Register(a);
                self.code.vector(Vector::TO_INTEGERS, to, 0, from);
                // This machine gives the least number for all that are too large.
                self.code
                    .vector(Vector::GREATER32, 0, a, constant(0x4eff_ffff));
                self.code.two(Vector::XOR, to, to, 0);
                self.write(fields.rt, to);
            }
            _ => return false,
        }
        true
    }

    fn compared(&mut self, op: Op, fields: &Fields) -> bool {
        let (vector, signed) = match op {
            Op::Fceq => (Vector::EQUAL32, true),
            Op::Fcmeq => (Vector::EQUAL32, false),
            Op::Fcgt => (Vector::GREATER32, true),
            Op::Fcmgt => (Vector::GREATER32, false),
            _ => return false,
        };
        let [a, b] = [self.read(fields.ra), self.read(fields.rb)];
        let to = self.define(fields.rt);
        let code = &mut self.code;
        for (place, from) in [(0, a), (1, b)] {
            // Sizes; those below the normal ones are zeros.
            code.vector(Vector::AND, place, from, constant(0x7fff_ffff));
            code.vector(Vector::GREATER32, 2, place, constant(0x7f_ffff));
            code.two(Vector::AND, place, place, 2);
            if signed {
                code.two(Vector::SIGN32, place, place, from);
            }
        }
        code.two(vector, to, 0, 1);
        self.write(fields.rt, to);
        true
    }
}

/// Two equal doublewords.
fn both(number: u64) -> Operand {
    let [a, b, c, d, e, f, g, h] = number.to_le_bytes();
    let [low, high] = [[a, b, c, d], [e, f, g, h]].map(u32::from_le_bytes);
    Operand::Constant([low, high, low, high])
}

/// Added to a doubled number: normal ones but the largest are above the next constant then, as
/// numbers with a sign.
const SINGLE_MOVE: u32 = 0x8100_0002;
const SINGLE_BEFORE: u32 = 0x8200_0001;
const DOUBLE_MOVE: u64 = 0x8020_0000_0000_0002;
const DOUBLE_BEFORE: u64 = 0x8040_0000_0000_0001;
