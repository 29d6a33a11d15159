//! Code of shifts and rotations: of elements, and of the register as a whole.
//!
//! Must stay true: as for [`super::integers`]: vector registers 0 to 7 are an instruction's own.

use super::x86::{
    Arithmetic, BYTES_LEFT, BYTES_RIGHT, LEFT, Operand, RAX, RIGHT, SIGNED_RIGHT, TABLES, Vector,
    Xmm,
};
use super::{Block, ROTATE, SHIFT_LEFT, SHIFT_RIGHT, constant, register};
use crate::isa::Op;
use crate::registers::{Fields, bits};

impl Block {
    pub(super) fn shifts(&mut self, op: Op, fields: &Fields) -> bool {
        let count = fields.immediate.to_le_bytes()[0];
        let back = count.wrapping_neg();
        // Counts beyond an element's width give zeros, or its sign, on both machines.
        let (width, kind, count) = match op {
            Op::Shlhi => (Vector::SHIFTS16, LEFT, count & 31),
            Op::Shli => (Vector::SHIFTS32, LEFT, count & 63),
            Op::Rothmi => (Vector::SHIFTS16, RIGHT, back & 31),
            Op::Rotmi => (Vector::SHIFTS32, RIGHT, back & 63),
            Op::Rotmahi => (Vector::SHIFTS16, SIGNED_RIGHT, back & 31),
            Op::Rotmai => (Vector::SHIFTS32, SIGNED_RIGHT, back & 63),
            Op::Rothi => return self.rotated(fields, Vector::SHIFTS16, count & 15, 16),
            Op::Roti => return self.rotated(fields, Vector::SHIFTS32, count & 31, 32),
            _ => return self.shifts_of_registers(op, fields),
        };
        let a = self.read(fields.ra);
        let to = self.define(fields.rt);
        self.code.shifted(width, kind, to, a, count);
        self.write(fields.rt, to);
        true
    }

    fn rotated(&mut self, fields: &Fields, width: Vector, count: u8, all: u8) -> bool {
        let a = self.read(fields.ra);
        let to = self.define(fields.rt);
        self.code.shifted(width, LEFT, 0, a, count);
        self.code.shifted(width, RIGHT, 1, a, all - count);
        self.code.two(Vector::OR, to, 0, 1);
        self.write(fields.rt, to);
        true
    }

    fn shifts_of_registers(&mut self, op: Op, fields: &Fields) -> bool {
        let vector = match op {
            Op::Shl | Op::Rot | Op::Shlh | Op::Roth => Vector::LEFT32,
            Op::Rotm | Op::Rothm => Vector::RIGHT32,
            Op::Rotma | Op::Rotmah => Vector::SIGNED_RIGHT32,
            _ => return false,
        };
        let (a, b) = (self.read(fields.ra), self.read(fields.rb));
        let to = self.define(fields.rt);
        let code = &mut self.code;
        match op {
            Op::Shl => {
                code.vector(Vector::AND, 0, b, constant(63));
                code.two(vector, to, a, 0);
            }
            Op::Rot => {
                code.vector(Vector::AND, 0, b, constant(31));
                code.load(1, constant(32));
                code.two(Vector::SUB32, 1, 1, 0);
                code.two(vector, 0, a, 0);
                code.two(Vector::RIGHT32, 1, a, 1);
                code.two(Vector::OR, to, 0, 1);
            }
            Op::Rotm | Op::Rotma => {
                code.two(Vector::XOR, 0, 0, 0);
                code.two(Vector::SUB32, 0, 0, b);
                code.vector(Vector::AND, 0, 0, constant(63));
                code.two(vector, to, a, 0);
            }
            _ => self.shift_halves(op, vector, to, [a, b]),
        }
        self.write(fields.rt, to);
        true
    }

    /// Halves by counts of their own: each in the upper part of a word, and its count in words.
    fn shift_halves(&mut self, op: Op, vector: Vector, to: Xmm, [a, b]: [Xmm; 2]) {
        let code = &mut self.code;
        let mut counts = b;
        if op == Op::Rothm || op == Op::Rotmah {
            code.two(Vector::XOR, 0, 0, 0);
            code.two(Vector::SUB16, 0, 0, b);
            counts = 0;
        }
        let mask = constant(if op == Op::Roth { 15 } else { 31 });
        code.shifted(Vector::SHIFTS32, RIGHT, 1, counts, 16);
        code.vector(Vector::AND, 1, 1, mask);
        code.vector(Vector::AND, 2, counts, mask);
        // 3 and 4: the left and the right halves.
        code.vector(Vector::AND, 3, a, constant(0xffff_0000));
        code.shifted(Vector::SHIFTS32, LEFT, 4, a, 16);
        if op == Op::Roth {
            for half in [3, 4] {
                // The half twice in its word: what is shifted out on the left comes from the copy.
                code.shifted(Vector::SHIFTS32, RIGHT, 5, half, 16);
                code.two(Vector::OR, half, half, 5);
            }
        }
        code.two(vector, 3, 3, 1);
        code.two(vector, 4, 4, 2);
        code.vector(Vector::AND, 3, 3, constant(0xffff_0000));
        code.shifted(Vector::SHIFTS32, RIGHT, 4, 4, 16);
        code.two(Vector::OR, to, 3, 4);
    }

    /// Shifts of the whole register by bytes: an order of bytes from a table.
    pub(super) fn quadword_shifts(&mut self, op: Op, fields: &Fields) -> bool {
        let (table, mask) = match op {
            Op::Shlqby | Op::Shlqbyi | Op::Shlqbybi => (SHIFT_LEFT, 31),
            Op::Rotqby | Op::Rotqbyi | Op::Rotqbybi => (ROTATE, 15),
            Op::Rotqmby | Op::Rotqmbyi | Op::Rotqmbybi => (SHIFT_RIGHT, 31),
            _ => return false,
        };
        let a = self.read(fields.ra);
        let to = self.define(fields.rt);
        let order = if matches!(op, Op::Shlqbyi | Op::Rotqbyi | Op::Rotqmbyi) {
            let number = fields.immediate;
            let count = if table == SHIFT_RIGHT {
                -number
            } else {
                number
            };
            Operand::Memory(TABLES, table + 16 * (count & mask), false)
        } else {
            self.code.get(RAX, register(fields.rb, 0));
            if matches!(op, Op::Shlqbybi | Op::Rotqbybi | Op::Rotqmbybi) {
                self.code.shift_right(3);
            }
            if table == SHIFT_RIGHT {
                self.code.negate();
            }
            self.table_row(mask);
            Operand::Memory(TABLES, table, true)
        };
        self.code.vector(Vector::SHUFFLE8, to, a, order);
        self.write(fields.rt, to);
        true
    }

    /// Makes an offset into a table of the number in `RAX`.
    pub(super) fn table_row(&mut self, mask: i32) {
        let rax = Operand::General(RAX);
        self.code.arithmetic_number(Arithmetic::And, rax, mask);
        self.code.shift_left(4);
    }

    /// Shifts of the whole register by less than a byte.
    pub(super) fn quadword_bits(&mut self, op: Op, fields: &Fields) -> bool {
        let left = match op {
            Op::Shlqbi | Op::Shlqbii | Op::Rotqbi | Op::Rotqbii => true,
            Op::Rotqmbi | Op::Rotqmbii => false,
            _ => return false,
        };
        let a = self.read(fields.ra);
        let fixed = matches!(op, Op::Shlqbii | Op::Rotqbii | Op::Rotqmbii);
        if fixed {
            let count = if left {
                fields.immediate
            } else {
                -fields.immediate
            };
            self.code
                .load(2, Operand::Constant([bits(count) & 7, 0, 0, 0]));
        } else {
            self.code.get(RAX, register(fields.rb, 0));
            if !left {
                self.code.negate();
            }
            let rax = Operand::General(RAX);
            self.code.arithmetic_number(Arithmetic::And, rax, 7);
            self.code.vector(Vector::TO_XMM, 2, 0, rax);
        }
        let to = self.define(fields.rt);
        let code = &mut self.code;
        // x86 shifts doublewords: bits that cross between them are shifted the other way by the
        // rest of 64.
        code.load(3, Operand::Constant([64, 0, 0, 0]));
        code.two(Vector::SUB32, 3, 3, 2);
        // The last word first: as x86 has a number of 128 bits.
        code.words(0, a, 0x1b);
        match op {
            Op::Rotqbi | Op::Rotqbii => code.words(1, 0, 0x4e),
            _ if left => code.shifted(Vector::SHIFTS64, BYTES_LEFT, 1, 0, 8),
            _ => code.shifted(Vector::SHIFTS64, BYTES_RIGHT, 1, 0, 8),
        }
        let (here, other) = if left {
            (Vector::LEFT64, Vector::RIGHT64)
        } else {
            (Vector::RIGHT64, Vector::LEFT64)
        };
        code.two(here, 0, 0, 2);
        code.two(other, 1, 1, 3);
        code.two(Vector::OR, 0, 0, 1);
        code.words(to, 0, 0x1b);
        self.write(fields.rt, to);
        true
    }
}
