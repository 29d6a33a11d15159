//! An encoder of the x86-64 instructions that translated code is made of.
//!
//! Must stay true: code is independent of its place; constants lie behind it and are addressed from
//! the instruction. Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2,
//! sections 2.1 to 2.3.

/// A vector instruction: its prefix, its map of opcodes, its opcode, and its bit W.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Vector(u8, u8, u8, bool);

/// General registers by their numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct General(pub(super) u8);

pub(super) const RAX: General = General(0);
pub(super) const RCX: General = General(1);
pub(super) const RSI: General = General(6);
pub(super) const RDI: General = General(7);
/// The frame.
pub(super) const FRAME: General = General(3);
/// The local store.
pub(super) const STORE: General = General(5);
/// The tables of [`super::tables`].
pub(super) const TABLES: General = General(12);
/// Addresses of blocks by the address of their first instruction.
pub(super) const ENTRIES: General = General(13);
/// Instructions that may still run.
pub(super) const BUDGET: General = General(14);

/// A vector register.
pub(super) type Xmm = u8;

/// The last operand of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operand {
    /// A vector register.
    Register(Xmm),
    /// A general register.
    General(General),
    /// Memory at a base, a number, and `RAX` where that is said.
    Memory(General, i32, bool),
    /// A constant behind the code.
    Constant([u32; 4]),
}

/// Conditions of jumps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum If {
    Below = 2,
    Zero = 4,
    NotZero = 5,
    Above = 7,
    Less = 12,
    Greater = 15,
}

macro_rules! vectors {
    ($($name:ident $prefix:literal $map:literal $code:literal $wide:literal;)*) => {
        impl Vector { $(pub(super) const $name: Self = Self($prefix, $map, $code, $wide != 0);)* }
    };
}

vectors! {
    LOAD 1 1 0x6f 0; LOAD_ANY 2 1 0x6f 0; SAVE 1 1 0x7f 0;
    TO_XMM 1 1 0x6e 0;
    ADD8 1 1 0xfc 0; ADD16 1 1 0xfd 0; ADD32 1 1 0xfe 0; ADD64 1 1 0xd4 0;
    SUB8 1 1 0xf8 0; SUB16 1 1 0xf9 0; SUB32 1 1 0xfa 0;
    AND 1 1 0xdb 0; AND_NOT 1 1 0xdf 0; OR 1 1 0xeb 0; XOR 1 1 0xef 0;
    EQUAL8 1 1 0x74 0; EQUAL16 1 1 0x75 0; EQUAL32 1 1 0x76 0; EQUAL64 1 2 0x29 0;
    GREATER8 1 1 0x64 0; GREATER16 1 1 0x65 0; GREATER32 1 1 0x66 0; GREATER64 1 2 0x37 0;
    MAX8 1 1 0xde 0; MIN8 1 1 0xda 0; MIN16 1 2 0x3a 0; MIN32 1 2 0x3b 0; MIN_SIGNED32 1 2 0x39 0;
    MULTIPLY16 1 1 0xd5 0; MULTIPLY32 1 2 0x40 0; PAIRS16 1 1 0xf5 0; PAIRS8 1 2 0x04 0;
    AVERAGE8 1 1 0xe0 0; SHUFFLE8 1 2 0x00 0; SHUFFLE32 1 1 0x70 0; SIGN32 1 2 0x0a 0;
    BLEND8 1 3 0x4c 0; BLEND16 1 3 0x0e 0; PACK16 1 1 0x63 0;
    LEFT32 1 2 0x47 0; RIGHT32 1 2 0x45 0; SIGNED_RIGHT32 1 2 0x46 0;
    LEFT64 1 1 0xf3 0; RIGHT64 1 1 0xd3 0;
    SHIFTS16 1 1 0x71 0; SHIFTS32 1 1 0x72 0; SHIFTS64 1 1 0x73 0;
    BYTE_SIGNS 1 1 0xd7 0; WORD_SIGNS 0 1 0x50 0; DOUBLE_SIGNS 1 1 0x50 0; TEST 1 2 0x17 0;
    ADD_SINGLE 0 1 0x58 0; SUB_SINGLE 0 1 0x5c 0; MUL_SINGLE 0 1 0x59 0;
    ADD_DOUBLE 1 1 0x58 0; SUB_DOUBLE 1 1 0x5c 0; MUL_DOUBLE 1 1 0x59 0;
    FUSED_SINGLE 1 2 0xb8 0; FUSED_SUB_SINGLE 1 2 0xba 0; FUSED_NEGATED_SINGLE 1 2 0xbc 0;
    FUSED_DOUBLE 1 2 0xb8 1; FUSED_SUB_DOUBLE 1 2 0xba 1;
    OF_INTEGERS 0 1 0x5b 0; TO_INTEGERS 2 1 0x5b 0;
}

/// Shifts by a number in the instruction, which share their opcodes.
pub(super) const RIGHT: u8 = 2;
pub(super) const SIGNED_RIGHT: u8 = 4;
pub(super) const LEFT: u8 = 6;
/// Of a whole register by bytes; with [`Vector::SHIFTS64`].
pub(super) const BYTES_RIGHT: u8 = 3;
pub(super) const BYTES_LEFT: u8 = 7;

/// Code that grows.
#[derive(Debug, Default)]
pub(super) struct Code {
    bytes: Vec<u8>,
    constants: Vec<[u32; 4]>,
    /// Places that hold a distance to a constant: place, bytes of the instruction behind it,
    /// number.
    distances: Vec<(usize, i32, usize)>,
}

impl Code {
    /// Bytes so far.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whole code with its constants.
    pub(super) fn finish(mut self) -> Vec<u8> {
        self.bytes
            // Breakpoints, should control ever run off the end; constants lie at a multiple of
            // their size.
            .resize(self.bytes.len().next_multiple_of(16), 0xcc);
        let first = self.bytes.len();
        for constant in &self.constants {
            self.bytes
                .extend(constant.iter().flat_map(|word| word.to_le_bytes()));
        }
        for (place, behind, number) in std::mem::take(&mut self.distances) {
            let distance = distance(place + 4, first + 16 * number) - behind;
            self.put(place, distance);
        }
        self.bytes
    }

    fn put(&mut self, place: usize, value: i32) {
        if let Some(four) = self.bytes.get_mut(place..place + 4) {
            four.copy_from_slice(&value.to_le_bytes());
        }
    }

    fn number(&mut self, value: i32) {
        self.bytes.extend(value.to_le_bytes());
    }

    fn constant(&mut self, words: [u32; 4]) -> usize {
        // Instructions of a block share their masks.
        let known = self.constants.iter().position(|known| *known == words);
        known.unwrap_or_else(|| {
            self.constants.push(words);
            self.constants.len() - 1
        })
    }

    /// The bytes behind an opcode; `behind` follow them.
    fn operand(&mut self, register: u8, operand: Operand, behind: i32) {
        let field = (register & 7) << 3;
        match operand {
            Operand::Register(number) | Operand::General(General(number)) => {
                self.bytes.push(0xc0 | field | number & 7);
            }
            Operand::Memory(General(base), distance, indexed) => {
                // A base of four or twelve has a second byte, as one with an index has.
                let second = indexed || base & 7 == 4;
                let last = if second { 4 } else { base & 7 };
                let index = if indexed { RAX.0 } else { 4 };
                let short = i8::try_from(distance).is_ok();
                self.bytes
                    .push(if short { 0x40 } else { 0x80 } | field | last);
                if second {
                    self.bytes.push(index << 3 | base & 7);
                }
                let [low, ..] = distance.to_le_bytes();
                if short {
                    self.bytes.push(low);
                } else {
                    self.number(distance);
                }
            }
            Operand::Constant(words) => {
                let number = self.constant(words);
                self.bytes.push(field | 5);
                self.distances.push((self.bytes.len(), behind, number));
                self.number(0);
            }
        }
    }

    fn vector_of(&mut self, vector: Vector, to: u8, first: u8, last: Operand, behind: i32) {
        let Vector(prefix, map, opcode, wide) = vector;
        let base = match last {
            Operand::Register(number) | Operand::General(General(number)) => number,
            Operand::Memory(General(number), ..) => number,
            Operand::Constant(_) => 0,
        };
        // The high bits of registers are stored inverted; an index is below eight.
        let high = (!to & 8) << 4 | 0x40 | (!base & 8) << 2;
        let last_byte = u8::from(wide) << 7 | (!first & 15) << 3 | prefix;
        self.bytes.extend([0xc4, high | map, last_byte, opcode]);
        self.operand(to, last, behind);
    }

    /// `to` of two operands.
    pub(super) fn vector(&mut self, vector: Vector, to: Xmm, first: Xmm, last: Operand) {
        self.vector_of(vector, to, first, last, 0);
    }

    /// `to` of two registers.
    pub(super) fn two(&mut self, vector: Vector, to: Xmm, first: Xmm, last: Xmm) {
        self.vector(vector, to, first, Operand::Register(last));
    }

    /// `to` of two operands and a byte.
    pub(super) fn with_byte(
        &mut self,
        vector: Vector,
        to: Xmm,
        first: Xmm,
        last: Operand,
        byte: u8,
    ) {
        self.vector_of(vector, to, first, last, 1);
        self.bytes.push(byte);
    }

    /// `to`: words of `from` in another order.
    pub(super) fn words(&mut self, to: Xmm, from: Xmm, order: u8) {
        self.with_byte(Vector::SHUFFLE32, to, 0, Operand::Register(from), order);
    }

    /// `to`: `from` shifted by a number.
    pub(super) fn shifted(&mut self, width: Vector, kind: u8, to: Xmm, from: Xmm, count: u8) {
        self.with_byte(width, kind, to, Operand::Register(from), count);
    }

    /// `to`: a vector, or memory.
    pub(super) fn load(&mut self, to: Xmm, from: Operand) {
        let of = match from {
            Operand::Constant(_) => Vector::LOAD_ANY,
            _ => Vector::LOAD,
        };
        self.vector(of, to, 0, from);
    }

    /// Puts a vector into memory.
    pub(super) fn save(&mut self, to: Operand, from: Xmm) {
        self.vector(Vector::SAVE, from, 0, to);
    }

    /// A general register of the signs of elements.
    pub(super) fn signs(&mut self, vector: Vector, to: General, from: Xmm) {
        self.vector(vector, to.0, 0, Operand::Register(from));
    }

    /// An instruction of general registers.
    fn general(&mut self, wide: bool, opcode: &[u8], register: u8, last: Operand, behind: i32) {
        let base = match last {
            Operand::General(General(number)) | Operand::Memory(General(number), ..) => number,
            _ => 0,
        };
        let prefix = 0x40 | u8::from(wide) << 3 | (register & 8) >> 1 | base >> 3;
        // Without 64 bits or a high register it would say nothing.
        if prefix != 0x40 {
            self.bytes.push(prefix);
        }
        self.bytes.extend(opcode);
        self.operand(register, last, behind);
    }

    /// 32 bits of memory or a register.
    pub(super) fn get(&mut self, to: General, from: Operand) {
        self.general(false, &[0x8b], to.0, from, 0);
    }

    /// 64 bits of memory or a register.
    pub(super) fn get64(&mut self, to: General, from: Operand) {
        self.general(true, &[0x8b], to.0, from, 0);
    }

    /// 32 bits into memory.
    pub(super) fn set(&mut self, to: Operand, from: General) {
        self.general(false, &[0x89], from.0, to, 0);
    }

    /// 64 bits into memory.
    pub(super) fn set64(&mut self, to: Operand, from: General) {
        self.general(true, &[0x89], from.0, to, 0);
    }

    /// A number into 32 bits of memory.
    pub(super) fn set_number(&mut self, to: Operand, value: i32) {
        self.general(false, &[0xc7], 0, to, 4);
        self.number(value);
    }

    /// A number into a byte of memory.
    pub(super) fn set_byte(&mut self, to: Operand, value: u8) {
        self.general(false, &[0xc6], 0, to, 1);
        self.bytes.push(value);
    }

    /// A number.
    pub(super) fn number_in(&mut self, to: General, value: i32) {
        self.bytes.push(0xb8 | to.0 & 7);
        self.number(value);
    }

    /// `to` and an operand, by one of the eight arithmetic instructions.
    pub(super) fn arithmetic(&mut self, kind: Arithmetic, to: General, last: Operand) {
        let opcode = kind as u8 * 8 + 3;
        self.general(false, &[opcode], to.0, last, 0);
    }

    /// The same with a number.
    pub(super) fn arithmetic_number(&mut self, kind: Arithmetic, to: Operand, value: i32) {
        self.general(false, &[0x81], kind as u8, to, 4);
        self.number(value);
    }

    /// The same of 64 bits.
    pub(super) fn arithmetic64(&mut self, kind: Arithmetic, to: General, value: i32) {
        self.general(true, &[0x81], kind as u8, Operand::General(to), 4);
        self.number(value);
    }

    /// Compares a byte of memory with a number.
    pub(super) fn compare_byte(&mut self, with: Operand, value: u8) {
        self.general(false, &[0x80], Arithmetic::Compare as u8, with, 1);
        self.bytes.push(value);
    }

    /// Tests bits of memory.
    pub(super) fn test_bits(&mut self, of: Operand, bits: i32) {
        self.general(false, &[0xf7], 0, of, 4);
        self.number(bits);
    }

    /// Tests 64 bits of a register for zero.
    pub(super) fn test64(&mut self, register: General) {
        self.general(true, &[0x85], register.0, Operand::General(register), 0);
    }

    /// The negative of `RAX`.
    pub(super) fn negate(&mut self) {
        self.bytes.extend([0xf7, 0xd8]);
    }

    /// Shifts `RAX`.
    pub(super) fn shift_left(&mut self, count: u8) {
        self.bytes.extend([0xc1, 0xe0, count]);
    }

    /// Shifts `RAX`.
    pub(super) fn shift_right(&mut self, count: u8) {
        self.bytes.extend([0xc1, 0xe8, count]);
    }

    /// Zeros in front of the first one of memory, in `RAX`.
    pub(super) fn leading_zeros(&mut self, of: Operand) {
        self.bytes.push(0xf3);
        self.general(false, &[0x0f, 0xbd], RAX.0, of, 0);
    }

    /// Sets the control of floats.
    pub(super) fn load_control(&mut self, of: Operand) {
        self.general(false, &[0x0f, 0xae], 2, of, 0);
    }

    /// Keeps the control of floats.
    pub(super) fn save_control(&mut self, to: Operand) {
        self.general(false, &[0x0f, 0xae], 3, to, 0);
    }

    /// Calls what memory points to.
    pub(super) fn call(&mut self, to: Operand) {
        self.general(false, &[0xff], 2, to, 0);
    }

    /// Jumps to what memory or a register points to.
    pub(super) fn jump_to(&mut self, to: Operand) {
        self.general(false, &[0xff], 4, to, 0);
    }

    /// Other bytes.
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend(bytes);
    }

    /// A jump to a place that [`Code::bind`] gives it; nothing for one that always jumps.
    pub(super) fn jump(&mut self, condition: Option<If>) -> usize {
        match condition {
            Some(condition) => self.bytes.extend([0x0f, 0x80 | condition as u8]),
            None => self.bytes.push(0xe9),
        }
        self.number(0);
        self.bytes.len() - 4
    }

    /// Lets a jump arrive here.
    pub(super) fn bind(&mut self, jump: usize) {
        self.put(jump, distance(jump + 4, self.bytes.len()));
    }

    /// A jump back, or to a known place.
    pub(super) fn jump_back(&mut self, condition: Option<If>, to: usize) {
        let jump = self.jump(condition);
        self.put(jump, distance(jump + 4, to));
    }
}

/// Arithmetic of general registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arithmetic {
    Add = 0,
    Or = 1,
    And = 4,
    Subtract = 5,
    Compare = 7,
}

fn distance(from: usize, to: usize) -> i32 {
    // Code is far shorter than these numbers reach.
    let of = |place: usize| i32::try_from(place).unwrap_or(i32::MAX);
    of(to).wrapping_sub(of(from))
}
