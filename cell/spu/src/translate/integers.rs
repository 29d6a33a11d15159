//! Code of constants, integers, logic, comparisons and shuffles.
//!
//! Must stay true: vector registers 0 to 7 are an instruction's own. A register's words lie in
//! order, the bytes of each with the last one first, so that elements within a word need no care.

use super::x86::{Arithmetic, LEFT, Operand, RAX, RIGHT, SIGNED_RIGHT, TABLES, Vector, Xmm};
use super::{Block, INSERT, constant, register};
use crate::isa::Op;
use crate::registers::{Fields, Quadword, bits, byte_four, byte_mask, half_twice};

/// Operand of an instruction with a number: none, or equal words.
type Number = Option<u32>;

impl Block {
    /// Translates an instruction of integers; false where there is no code for it here.
    pub(super) fn integer(&mut self, op: Op, fields: &Fields) -> bool {
        self.nothing(op)
            || self.simple(op, fields)
            || self.constants(op, fields)
            || self.carries(op, fields)
            || self.products(op, fields)
            || self.elements(op, fields)
            || self.comparisons(op, fields)
            || self.shifts(op, fields)
            || self.quadword_shifts(op, fields)
            || self.quadword_bits(op, fields)
            || self.masks(op, fields)
            || self.insertions(op, fields)
            || self.chosen(op, fields)
    }

    fn nothing(&mut self, op: Op) -> bool {
        matches!(
            op,
            Op::Nop | Op::Lnop | Op::Dsync | Op::Hbr | Op::Hbra | Op::Hbrr | Op::Mtspr
        )
    }

    /// Those that one instruction of x86 does.
    fn simple(&mut self, op: Op, fields: &Fields) -> bool {
        let number = bits(fields.immediate);
        let twice = half_twice(fields.immediate);
        let four = byte_four(fields.immediate);
        // Vector, number, and true where the operands are exchanged.
        let (vector, number, exchanged): (Vector, Number, bool) = match op {
            Op::Ah => (Vector::ADD16, None, false),
            Op::Ahi => (Vector::ADD16, Some(twice), false),
            Op::A => (Vector::ADD32, None, false),
            Op::Ai => (Vector::ADD32, Some(number), false),
            Op::Sfh => (Vector::SUB16, None, true),
            Op::Sfhi => (Vector::SUB16, Some(twice), true),
            Op::Sf => (Vector::SUB32, None, true),
            Op::Sfi => (Vector::SUB32, Some(number), true),
            Op::Avgb => (Vector::AVERAGE8, None, false),
            Op::And => (Vector::AND, None, false),
            Op::Andbi => (Vector::AND, Some(four), false),
            Op::Andhi => (Vector::AND, Some(twice), false),
            Op::Andi => (Vector::AND, Some(number), false),
            Op::Andc => (Vector::AND_NOT, None, true),
            Op::Or => (Vector::OR, None, false),
            Op::Orbi => (Vector::OR, Some(four), false),
            Op::Orhi => (Vector::OR, Some(twice), false),
            Op::Ori => (Vector::OR, Some(number), false),
            Op::Xor => (Vector::XOR, None, false),
            Op::Xorbi => (Vector::XOR, Some(four), false),
            Op::Xorhi => (Vector::XOR, Some(twice), false),
            Op::Xori => (Vector::XOR, Some(number), false),
            Op::Ceqb => (Vector::EQUAL8, None, false),
            Op::Ceqbi => (Vector::EQUAL8, Some(four), false),
            Op::Ceqh => (Vector::EQUAL16, None, false),
            Op::Ceqhi => (Vector::EQUAL16, Some(twice), false),
            Op::Ceq => (Vector::EQUAL32, None, false),
            Op::Ceqi => (Vector::EQUAL32, Some(number), false),
            Op::Cgtb => (Vector::GREATER8, None, false),
            Op::Cgtbi => (Vector::GREATER8, Some(four), false),
            Op::Cgth => (Vector::GREATER16, None, false),
            Op::Cgthi => (Vector::GREATER16, Some(twice), false),
            Op::Cgt => (Vector::GREATER32, None, false),
            Op::Cgti => (Vector::GREATER32, Some(number), false),
            _ => return false,
        };
        let a = self.read(fields.ra);
        let b = match number {
            Some(number) => {
                self.code.load(0, constant(number));
                0
            }
            None => self.read(fields.rb),
        };
        let to = self.define(fields.rt);
        let (first, last) = if exchanged { (b, a) } else { (a, b) };
        self.code.two(vector, to, first, last);
        self.write(fields.rt, to);
        true
    }

    fn constants(&mut self, op: Op, fields: &Fields) -> bool {
        let number = bits(fields.immediate);
        let Quadword(words) = match op {
            Op::Il | Op::Ila => Quadword([number; 4]),
            Op::Ilh => Quadword([half_twice(fields.immediate); 4]),
            Op::Ilhu => Quadword([number << 16; 4]),
            Op::Fsmbi => byte_mask(number),
            Op::Mfspr => Quadword([0; 4]),
            Op::Iohl => {
                let old = self.read(fields.rt);
                let to = self.define(fields.rt);
                self.code
                    .vector(Vector::OR, to, old, constant(number & 0xffff));
                self.write(fields.rt, to);
                return true;
            }
            _ => return false,
        };
        let to = self.define(fields.rt);
        if words == [0; 4] {
            // Needs no constant behind the code.
            self.code.two(Vector::XOR, to, to, to);
        } else {
            self.code.load(to, Operand::Constant(words));
        }
        self.write(fields.rt, to);
        true
    }

    /// `to`: all bits of `from` turned over.
    fn not(&mut self, to: Xmm, from: Xmm) {
        self.code.vector(Vector::XOR, to, from, constant(u32::MAX));
    }

    fn carries(&mut self, op: Op, fields: &Fields) -> bool {
        if !matches!(
            op,
            Op::Addx | Op::Sfx | Op::Cg | Op::Cgx | Op::Bg | Op::Bgx | Op::Nand | Op::Nor | Op::Eqv
        ) && op != Op::Orc
        {
            return false;
        }
        let (a, b) = (self.read(fields.ra), self.read(fields.rb));
        let extended = matches!(op, Op::Addx | Op::Sfx | Op::Cgx | Op::Bgx);
        if extended {
            let t = self.read(fields.rt);
            self.code.vector(Vector::AND, 0, t, constant(1));
        }
        let to = self.define(fields.rt);
        let code = &mut self.code;
        match op {
            Op::Addx => {
                code.two(Vector::ADD32, to, a, b);
                code.two(Vector::ADD32, to, to, 0);
            }
            Op::Sfx => {
                // B plus A's complement plus the carry: the complement is -A - 1.
                code.two(Vector::SUB32, to, b, a);
                code.two(Vector::ADD32, to, to, 0);
                code.vector(Vector::ADD32, to, to, constant(u32::MAX));
            }
            // A sum carries where B is above the complement of A; a difference where it is not
            // below A.
            Op::Cg | Op::Cgx => {
                code.vector(Vector::XOR, 1, a, constant(u32::MAX));
                self.carry(to, b, 1, extended);
            }
            Op::Bgx => self.carry(to, b, a, true),
            Op::Bg => {
                // 1 where B is not below A, which then is the smaller one.
                code.two(Vector::MIN32, to, a, b);
                code.two(Vector::EQUAL32, to, to, a);
                code.shifted(Vector::SHIFTS32, RIGHT, to, to, 31);
            }
            Op::Nand => {
                code.two(Vector::AND, to, a, b);
                self.not(to, to);
            }
            Op::Nor => {
                code.two(Vector::OR, to, a, b);
                self.not(to, to);
            }
            Op::Orc => {
                self.not(0, b);
                self.code.two(Vector::OR, to, a, 0);
            }
            _ => {
                code.two(Vector::XOR, to, a, b);
                self.not(to, to);
            }
        }
        self.write(fields.rt, to);
        true
    }

    /// `to`: 1 where B is above a word, or equal to it where vector register 0 has a 1.
    fn carry(&mut self, to: Xmm, b: Xmm, other: Xmm, extended: bool) {
        let code = &mut self.code;
        code.two(Vector::MIN32, 2, b, other);
        code.two(Vector::EQUAL32, 2, 2, b);
        // A comparison's -1 becomes 0 and its 0 becomes 1: B is above where it is not the smaller
        // one.
        code.vector(Vector::ADD32, 2, 2, constant(1));
        if extended {
            code.two(Vector::EQUAL32, 3, b, other);
            code.two(Vector::AND, 3, 3, 0);
            code.two(Vector::OR, 2, 2, 3);
        }
        code.load(to, Operand::Register(2));
    }

    fn products(&mut self, op: Op, fields: &Fields) -> bool {
        let low = constant(0xffff);
        let number = match op {
            Op::Mpyi | Op::Mpyui => Some(bits(fields.immediate) & 0xffff),
            Op::Mpy | Op::Mpyu | Op::Mpya | Op::Mpyh | Op::Mpys => None,
            Op::Mpyhh | Op::Mpyhha | Op::Mpyhhu | Op::Mpyhhau => None,
            _ => return false,
        };
        let a = self.read(fields.ra);
        let b = match number {
            Some(number) => {
                self.code.load(1, constant(number));
                1
            }
            None => self.read(fields.rb),
        };
        let third = match op {
            Op::Mpya => Some(fields.rc),
            Op::Mpyhha | Op::Mpyhhau => Some(fields.rt),
            _ => None,
        };
        let third = third.map(|third| self.read(third));
        let to = self.define(fields.rt);
        let code = &mut self.code;
        match op {
            Op::Mpyh => {
                code.shifted(Vector::SHIFTS32, RIGHT, 0, a, 16);
                // Only the lower half of the product counts, where signs make no difference.
                code.two(Vector::MULTIPLY16, 0, 0, b);
                code.shifted(Vector::SHIFTS32, LEFT, to, 0, 16);
                self.write(fields.rt, to);
                return true;
            }
            Op::Mpyhh | Op::Mpyhha | Op::Mpyhhu | Op::Mpyhhau => {
                code.shifted(Vector::SHIFTS32, RIGHT, 0, a, 16);
                code.shifted(Vector::SHIFTS32, RIGHT, 1, b, 16);
            }
            _ => {
                code.vector(Vector::AND, 0, a, low);
                if number.is_none() {
                    code.vector(Vector::AND, 1, b, low);
                }
            }
        }
        let unsigned = matches!(op, Op::Mpyu | Op::Mpyui | Op::Mpyhhu | Op::Mpyhhau);
        // Pairs of halves: the left ones are zero.
        let vector = if unsigned {
            Vector::MULTIPLY32
        } else {
            Vector::PAIRS16
        };
        code.two(vector, to, 0, 1);
        if let Some(third) = third {
            code.two(Vector::ADD32, to, to, third);
        }
        if op == Op::Mpys {
            code.shifted(Vector::SHIFTS32, SIGNED_RIGHT, to, to, 16);
        }
        self.write(fields.rt, to);
        true
    }

    /// Those that look at bytes, or at the sign of an element.
    fn elements(&mut self, op: Op, fields: &Fields) -> bool {
        match op {
            Op::Clz => return self.leading_zeros(fields),
            Op::Absdb | Op::Sumb => {}
            Op::Cntb | Op::Xsbh | Op::Xshw | Op::Xswd | Op::Orx => {}
            _ => return false,
        }
        let a = self.read(fields.ra);
        let b = if matches!(op, Op::Absdb | Op::Sumb) {
            self.read(fields.rb)
        } else {
            a
        };
        let to = self.define(fields.rt);
        let code = &mut self.code;
        match op {
            Op::Absdb => {
                code.two(Vector::MAX8, 0, a, b);
                code.two(Vector::MIN8, 1, a, b);
                code.two(Vector::SUB8, to, 0, 1);
            }
            Op::Sumb => {
                for (sum, from) in [(0, a), (1, b)] {
                    // Sums of neighbours, twice: bytes to halves, then halves to words.
                    code.vector(Vector::PAIRS8, sum, from, constant(0x0101_0101));
                    code.vector(Vector::PAIRS16, sum, sum, constant(0x0001_0001));
                }
                code.shifted(Vector::SHIFTS32, LEFT, 1, 1, 16);
                code.two(Vector::OR, to, 0, 1);
            }
            Op::Cntb => {
                // Ones of a number of four bits.
                let ones = [0x0201_0100, 0x0302_0201, 0x0302_0201, 0x0403_0302];
                code.load(0, Operand::Constant(ones));
                code.vector(Vector::AND, 1, a, constant(0x0f0f_0f0f));
                // There are no shifts of bytes: what comes from the neighbour is masked off below.
                code.shifted(Vector::SHIFTS16, RIGHT, 2, a, 4);
                code.vector(Vector::AND, 2, 2, constant(0x0f0f_0f0f));
                code.two(Vector::SHUFFLE8, 1, 0, 1);
                code.two(Vector::SHUFFLE8, 2, 0, 2);
                code.two(Vector::ADD8, to, 1, 2);
            }
            Op::Xsbh => {
                // To the left end and back: the shift to the right brings the sign along.
                code.shifted(Vector::SHIFTS16, LEFT, 0, a, 8);
                code.shifted(Vector::SHIFTS16, SIGNED_RIGHT, to, 0, 8);
            }
            Op::Xshw => {
                code.shifted(Vector::SHIFTS32, LEFT, 0, a, 16);
                code.shifted(Vector::SHIFTS32, SIGNED_RIGHT, to, 0, 16);
            }
            Op::Xswd => {
                code.shifted(Vector::SHIFTS32, SIGNED_RIGHT, 0, a, 31);
                code.words(0, 0, 0xf5);
                // Halves of the second and the fourth word.
                code.with_byte(Vector::BLEND16, to, 0, Operand::Register(a), 0xcc);
            }
            _ => {
                // Or-ed with the halves exchanged, then with neighbours exchanged, each word is
                // that of all four.
                code.words(0, a, 0x4e);
                code.two(Vector::OR, 0, 0, a);
                code.words(1, 0, 0xb1);
                code.two(Vector::OR, 0, 0, 1);
                let first = Operand::Constant([u32::MAX, 0, 0, 0]);
                code.vector(Vector::AND, to, 0, first);
            }
        }
        self.write(fields.rt, to);
        true
    }

    fn leading_zeros(&mut self, fields: &Fields) -> bool {
        for word in 0..4 {
            // AVX2 counts no zeros. The frame has every register's value (`write`), so words come
            // from there.
            self.code.leading_zeros(register(fields.ra, word));
            self.code.set(register(fields.rt, word), RAX);
        }
        let to = self.define(fields.rt);
        self.code.load(to, register(fields.rt, 0));
        true
    }

    /// Comparisons without signs: A is above B where it is not the smaller one.
    fn comparisons(&mut self, op: Op, fields: &Fields) -> bool {
        let (least, equal, number) = match op {
            Op::Clgtb => (Vector::MIN8, Vector::EQUAL8, None),
            Op::Clgtbi => (
                Vector::MIN8,
                Vector::EQUAL8,
                Some(byte_four(fields.immediate)),
            ),
            Op::Clgth => (Vector::MIN16, Vector::EQUAL16, None),
            Op::Clgthi => (
                Vector::MIN16,
                Vector::EQUAL16,
                Some(half_twice(fields.immediate)),
            ),
            Op::Clgt => (Vector::MIN32, Vector::EQUAL32, None),
            Op::Clgti => (Vector::MIN32, Vector::EQUAL32, Some(bits(fields.immediate))),
            _ => return false,
        };
        let a = self.read(fields.ra);
        let other = match number {
            Some(number) => constant(number),
            None => Operand::Register(self.read(fields.rb)),
        };
        let to = self.define(fields.rt);
        self.code.vector(least, 0, a, other);
        self.code.two(equal, 0, 0, a);
        self.not(to, 0);
        self.write(fields.rt, to);
        true
    }

    /// Masks of bits, and bits of elements.
    fn masks(&mut self, op: Op, fields: &Fields) -> bool {
        let width = match op {
            Op::Fsmb | Op::Gbb => 1,
            Op::Fsmh | Op::Gbh => 2,
            Op::Fsm | Op::Gb => 4,
            _ => return false,
        };
        let a = self.read(fields.ra);
        let to = self.define(fields.rt);
        let code = &mut self.code;
        if matches!(op, Op::Fsmb | Op::Fsmh | Op::Fsm) {
            // Each byte gets the one that has its bit, and compares it with that bit.
            let last = 16 / width - 1;
            let bit = |byte: usize| last - (byte ^ 3) / width;
            let of = |each: &dyn Fn(usize) -> usize| {
                Operand::Constant(std::array::from_fn(|word| {
                    let bytes = std::array::from_fn(|byte| each(4 * word + byte).to_le_bytes()[0]);
                    u32::from_le_bytes(bytes)
                }))
            };
            let bits = of(&|byte| 1 << (bit(byte) & 7));
            code.load(0, of(&|byte| bit(byte) / 8));
            code.two(Vector::SHUFFLE8, 0, a, 0);
            code.vector(Vector::AND, 0, 0, bits);
            code.vector(Vector::EQUAL8, to, 0, bits);
        } else {
            // The result has the bit of the first element first; x86 gathers from the last one.
            code.words(0, a, 0x1b);
            match op {
                Op::Gbb => {
                    // The last bit of each byte becomes its sign, which alone is gathered.
                    code.shifted(Vector::SHIFTS16, LEFT, 0, 0, 7);
                    code.signs(Vector::BYTE_SIGNS, RAX, 0);
                }
                Op::Gbh => {
                    code.shifted(Vector::SHIFTS16, LEFT, 0, 0, 15);
                    code.two(Vector::XOR, 1, 1, 1);
                    code.two(Vector::PACK16, 0, 0, 1);
                    code.signs(Vector::BYTE_SIGNS, RAX, 0);
                }
                _ => {
                    code.shifted(Vector::SHIFTS32, LEFT, 0, 0, 31);
                    code.signs(Vector::WORD_SIGNS, RAX, 0);
                }
            }
            code.vector(Vector::TO_XMM, to, 0, Operand::General(RAX));
        }
        self.write(fields.rt, to);
        true
    }

    /// Patterns that put an element into its place.
    fn insertions(&mut self, op: Op, fields: &Fields) -> bool {
        let table = match op {
            Op::Cbd | Op::Cbx => 0,
            Op::Chd | Op::Chx => 1,
            Op::Cwd | Op::Cwx => 2,
            Op::Cdd | Op::Cdx => 3,
            _ => return false,
        };
        self.code.get(RAX, register(fields.ra, 0));
        let rax = Operand::General(RAX);
        if matches!(op, Op::Cbx | Op::Chx | Op::Cwx | Op::Cdx) {
            let other = register(fields.rb, 0);
            self.code.arithmetic(Arithmetic::Add, RAX, other);
        } else {
            let number = fields.immediate;
            self.code.arithmetic_number(Arithmetic::Add, rax, number);
        }
        self.table_row(15);
        let to = self.define(fields.rt);
        let row = Operand::Memory(TABLES, INSERT + 256 * table, true);
        self.code.load(to, row);
        self.write(fields.rt, to);
        true
    }

    /// Bits or bytes of two registers by a third.
    fn chosen(&mut self, op: Op, fields: &Fields) -> bool {
        if !matches!(op, Op::Selb | Op::Shufb) {
            return false;
        }
        let [a, b, c] = [fields.ra, fields.rb, fields.rc].map(|number| self.read(number));
        let to = self.define(fields.rt);
        let code = &mut self.code;
        if op == Op::Selb {
            code.two(Vector::AND, 0, c, b);
            code.two(Vector::AND_NOT, 1, c, a);
            code.two(Vector::OR, to, 0, 1);
        } else {
            // Within a word, bytes count from the other end here.
            code.vector(Vector::XOR, 0, c, constant(0x0303_0303));
            // Patterns from 0x80 on give 0 on x86, as the SPU has it for those below 0xc0.
            code.two(Vector::SHUFFLE8, 1, a, 0);
            code.two(Vector::SHUFFLE8, 2, b, 0);
            // The bit that says which register, where a sign is.
            code.shifted(Vector::SHIFTS16, LEFT, 3, c, 3);
            code.with_byte(Vector::BLEND8, 1, 1, Operand::Register(2), 3 << 4);
            // Bytes that patterns above 0xbf stand for, by their first four bits.
            code.shifted(Vector::SHIFTS16, RIGHT, 0, c, 4);
            code.vector(Vector::AND, 0, 0, constant(0x0f0f_0f0f));
            code.load(2, Operand::Constant([0, 0, 0, 0x8080_ffff]));
            code.two(Vector::SHUFFLE8, 2, 2, 0);
            code.two(Vector::OR, to, 1, 2);
        }
        self.write(fields.rt, to);
        true
    }
}
