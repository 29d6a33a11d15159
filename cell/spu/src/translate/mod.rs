//! Translation of basic blocks to x86-64 code with AVX2 and FMA; the code is bytes here.
//!
//! A block begins with a comparison of its own words with those in the store, so that code which a
//! program, a transfer or the host has changed is never run as it was. It ends with a jump through
//! a table of blocks. All that is rare comes back to the host: channels, stops, halts, interrupts.
//! An instruction without code of its own calls the interpreter for it.
//!
//! Must stay true: the same words give the same bytes. A block changes registers and the store as
//! the interpreter does, and nothing else; registers are in the frame whenever it calls or leaves.
//! The caller of the code keeps the promises of [`Frame`]. Source: SPU Instruction Set Architecture
//! 1.2.

mod floats;
mod flow;
mod integers;
mod shifts;
mod x86;

use crate::isa::{Instruction, Op, decode};
use crate::registers::{Fields, MASK, STORE_BYTES, State, Store, insertion};
use sidecore_bare::width::ToUsize;
use std::mem::offset_of;
use std::sync::OnceLock;
use x86::{Arithmetic, BUDGET, Code, ENTRIES, FRAME, If, Operand, RAX, RDI, RSI};
use x86::{RCX, STORE, TABLES, Vector, Xmm};

/// Registers and all else that translated code reaches by one pointer.
///
/// Its pointers are addresses. The caller of the code sets them: `store` to 256 KiB of readable and
/// writable memory aligned to 16 bytes, `tables` to [`tables`], `entries` to one pointer for each
/// word of the store (0 or a block of that address), `leave` to the end of [`gate`], and `helper`
/// to a C function of the frame's address and a word that calls [`Frame::interpret`].
#[derive(Debug, Clone)]
#[repr(C)]
pub struct Frame {
    pub(crate) state: State,
    /// See [`Frame`]; so are the next four.
    pub store: usize,
    /// See [`Frame`].
    pub tables: usize,
    /// See [`Frame`].
    pub entries: usize,
    /// See [`Frame`].
    pub leave: usize,
    /// See [`Frame`].
    pub helper: usize,
    /// Instructions that may still run.
    pub budget: i64,
    pub(crate) pc: u32,
    host_control: u32,
    single_control: u32,
    double_control: u32,
    scratch: u32,
    /// Control that holds now: the host's (0), or one of the two.
    mode: u8,
    /// 1 where both doublewords are not rounded alike.
    apart: u8,
}

impl Frame {
    pub(crate) fn new(pc: u32) -> Self {
        Self {
            state: State::default(),
            store: 0,
            tables: 0,
            entries: 0,
            leave: 0,
            helper: 0,
            budget: 0,
            pc,
            host_control: NEAREST,
            single_control: NEAREST | 3 << 13,
            double_control: NEAREST,
            scratch: 0,
            mode: 0,
            apart: 0,
        }
    }

    /// Runs one instruction that only computes; others change nothing.
    pub fn interpret(&mut self, word: u32) {
        if let Some((row, fields)) = decode(word)
            && let Some(compute) = row.compute
        {
            compute(&mut self.state, &fields);
            self.follow_status();
        }
    }

    /// Takes over the rounding that the program's status says.
    pub fn follow_status(&mut self) {
        let [left, right] = [0, 1].map(|slice| self.state.rounding(slice));
        self.apart = (left != right).into();
        // x86 counts: nearest, down, up, to zero.
        let control = match left {
            0 => 0,
            1 => 3,
            2 => 2,
            _ => 1,
        };
        self.double_control = NEAREST | control << 13;
    }
}

/// All exceptions of floats masked, rounding to nearest.
const NEAREST: u32 = 0x1f80;

/// Reasons for which translated code comes back, as it returns them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Left {
    /// No block at the program counter.
    Missing = 0,
    /// The interpreter is to run the next instruction.
    Interpret = 1,
    /// The words of the block at the program counter are others now.
    Stale = 2,
    /// The next block has more instructions than may still run.
    Budget = 3,
}

impl Left {
    /// The reason of a returned number.
    #[must_use]
    pub fn of(number: i32) -> Self {
        match number {
            0 => Self::Missing,
            2 => Self::Stale,
            3 => Self::Budget,
            _ => Self::Interpret,
        }
    }
}

/// Code by which the host enters blocks, and the offset at which blocks leave it.
///
/// It is a C function of the frame's address and the block's that returns a number of [`Left`].
#[must_use]
pub fn gate() -> (Vec<u8>, usize) {
    let mut code = Code::default();
    // push rbx, rbp, r12, r13, r14, r15; sub rsp, 8
    code.raw(&[0x53, 0x55, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57]);
    // With the return address and six pushes the stack is 8 bytes off the multiple of 16 that calls
    // need.
    code.raw(&[0x48, 0x83, 0xec, 0x08]);
    code.get64(FRAME, Operand::General(RDI));
    // The host's rounding holds again while helpers run, and once the code is left.
    code.save_control(field(offset_of!(Frame, host_control)));
    code.set_byte(field(offset_of!(Frame, mode)), 0);
    for (register, offset) in [
        (STORE, offset_of!(Frame, store)),
        (TABLES, offset_of!(Frame, tables)),
        (ENTRIES, offset_of!(Frame, entries)),
        (BUDGET, offset_of!(Frame, budget)),
    ] {
        code.get64(register, field(offset));
    }
    code.jump_to(Operand::General(RSI));
    let leave = code.len();
    code.set64(field(offset_of!(Frame, budget)), BUDGET);
    code.load_control(field(offset_of!(Frame, host_control)));
    code.raw(&[0x48, 0x83, 0xc4, 0x08]);
    code.raw(&[
        0x41, 0x5f, 0x41, 0x5e, 0x41, 0x5d, 0x41, 0x5c, 0x5d, 0x5b, 0xc3,
    ]);
    (code.finish(), leave)
}

/// Orders of bytes that code looks up; its first is aligned as vectors are.
#[derive(Debug)]
#[repr(C, align(16))]
pub struct Tables([[u8; 16]; ROWS]);

const SWAP: i32 = 0;
const INSERT: i32 = 16;
const SHIFT_LEFT: i32 = INSERT + 4 * 256;
const SHIFT_RIGHT: i32 = SHIFT_LEFT + 512;
const ROTATE: i32 = SHIFT_RIGHT + 512;
const ROWS: usize = 1 + 4 * 16 + 32 + 32 + 16;

/// The tables that a frame points to.
#[must_use]
pub fn tables() -> &'static Tables {
    static TABLES: OnceLock<Tables> = OnceLock::new();
    TABLES.get_or_init(|| {
        // A register's bytes lie word by word with the last one first.
        let order = |of: &dyn Fn(u8) -> Option<u8>| {
            let mut row = [0x80; 16];
            for (place, byte) in (0_u8..).zip(&mut row) {
                *byte = of(place ^ 3).map_or(0x80, |from| from & 15 ^ 3);
            }
            row
        };
        let mut rows = vec![order(&|place| Some(place ^ 3))];
        for width in [1, 2, 4, 8] {
            rows.extend((0..16).map(|address| {
                let words = insertion(address, width).0;
                std::array::from_fn(|byte| words[byte / 4].to_le_bytes()[byte % 4])
            }));
        }
        let inside = |place: u8| (place < 16).then_some(place);
        rows.extend((0..32).map(|n| order(&|place| inside(place + n))));
        rows.extend((0..32).map(|n| order(&|place| place.checked_sub(n).and_then(inside))));
        rows.extend((0..16).map(|n| order(&|place| Some(place + n))));
        let mut all = [[0; 16]; ROWS];
        all.copy_from_slice(&rows);
        Tables(all)
    })
}

/// Instructions of a block at most.
const BLOCK_MAX: u32 = 64;
/// A block's code at most: a caller that has as much room has enough.
pub const BLOCK_BYTES_MAX: usize = 48 * 1024;

/// The code of the block at an address of the store: at most [`BLOCK_BYTES_MAX`] bytes, to be put
/// anywhere at a multiple of 16.
#[must_use]
pub fn block(store: &impl Store, address: u32) -> Vec<u8> {
    let start = address & MASK & !3;
    let words = body(store, start);
    let mut block = Block::new(start, words.len());
    block.begin(&words);
    let mut open = true;
    for (place, word) in (start..).step_by(4).zip(&words) {
        block.pc = place;
        block.word = *word;
        block.ran += 1;
        // Only the instruction in the making keeps its operands' registers from being given out.
        block.pinned = 0;
        if let Some((row, fields)) = decode(*word) {
            open = block.instruction(row, &fields);
        }
    }
    if open {
        let behind = start + 4 * block.length;
        match store_word(store, behind & MASK).map(kind) {
            Some(Kind::Interpreted) => block.leave(behind & MASK, Left::Interpret),
            _ => block.go(behind & MASK),
        }
    }
    block.end()
}

fn store_word(store: &impl Store, address: u32) -> Option<u32> {
    (address.to_usize() < STORE_BYTES).then(|| store.fetch(address))
}

/// The words of the block that begins at an address.
fn body(store: &impl Store, start: u32) -> Vec<u32> {
    let mut words = Vec::new();
    let end = (MASK + 1).min(start + 4 * BLOCK_MAX);
    for place in (start..end).step_by(4) {
        let word = store.fetch(place);
        let kind = kind(word);
        // The block ends in front of it, and the host gets control there.
        if kind == Kind::Interpreted {
            break;
        }
        words.push(word);
        if kind == Kind::Last {
            break;
        }
    }
    words
}

/// Part of an instruction in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Inside,
    Last,
    /// Not in a block: the interpreter runs it.
    Interpreted,
}

fn kind(word: u32) -> Kind {
    let Some((row, fields)) = decode(word) else {
        return Kind::Interpreted;
    };
    match row.op {
        Op::Stop | Op::Stopd | Op::Rdch | Op::Rchcnt | Op::Wrch => Kind::Interpreted,
        Op::Iret | Op::Bisled => Kind::Interpreted,
        // Feature bits that enable or disable interrupts.
        Op::Bi | Op::Bisl | Op::Biz | Op::Binz | Op::Bihz | Op::Bihnz if fields.rb & 0x30 != 0 => {
            Kind::Interpreted
        }
        Op::Br | Op::Bra | Op::Brsl | Op::Brasl | Op::Bi | Op::Bisl => Kind::Last,
        Op::Brnz | Op::Brz | Op::Brhnz | Op::Brhz => Kind::Last,
        Op::Biz | Op::Binz | Op::Bihz | Op::Bihnz => Kind::Last,
        // What follows is read from the store again.
        Op::Sync => Kind::Last,
        _ => Kind::Inside,
    }
}

/// Modes of floats.
const HOST: u8 = 0;
const SINGLE: u8 = 1;
const DOUBLE: u8 = 2;

/// Vector registers below are for an instruction's own use, those from here on hold registers.
const FIRST_KEPT: Xmm = 8;

/// A block in the making.
struct Block {
    code: Code,
    start: u32,
    length: u32,
    /// Instructions up to the one in the making.
    ran: u32,
    pc: u32,
    word: u32,
    /// Register whose value a vector register holds, which the frame has as well.
    kept: [Option<u8>; 8],
    /// Vector registers of the instruction in the making, a bit each.
    pinned: u32,
    turn: u8,
    mode: Option<u8>,
    /// Jumps to the exits at the block's end: place, instructions that ran, address, reason.
    exits: Vec<(usize, u32, u32, Left)>,
    missing: Vec<usize>,
    slow: Vec<floats::Slow>,
}

fn field(offset: usize) -> Operand {
    Operand::Memory(FRAME, i32::try_from(offset).unwrap_or(0), false)
}

/// A register's place in the frame, by its word.
fn register(number: u8, word: usize) -> Operand {
    field(offset_of!(Frame, state) + 16 * usize::from(number & 127) + 4 * word)
}

/// A word of the status.
fn status(word: usize) -> Operand {
    field(offset_of!(Frame, state) + offset_of!(State, status) + 4 * word)
}

/// Four equal words behind the code.
fn constant(word: u32) -> Operand {
    Operand::Constant([word; 4])
}

impl Block {
    fn new(start: u32, length: usize) -> Self {
        Self {
            code: Code::default(),
            start,
            length: u32::try_from(length).unwrap_or(0),
            ran: 0,
            pc: start,
            word: 0,
            kept: [None; 8],
            pinned: 0,
            turn: 0,
            mode: None,
            exits: Vec::new(),
            missing: Vec::new(),
            slow: Vec::new(),
        }
    }

    /// Charges the block, and compares its words with the store's.
    fn begin(&mut self, words: &[u32]) {
        let length = self.length.cast_signed();
        if length == 0 {
            return;
        }
        // The whole block is charged at once; what leaves it early gives the rest back (`end`).
        self.code.arithmetic64(Arithmetic::Subtract, BUDGET, length);
        let jump = self.code.jump(Some(If::Less));
        self.exits.push((jump, 0, self.start, Left::Budget));
        let place = self.start.cast_signed();
        // The store has the SPU's order of bytes.
        let swapped: Vec<u32> = words.iter().map(|word| word.swap_bytes()).collect();
        // A comparison of four words would reach behind the block, and perhaps behind the store.
        if swapped.len() < 4 {
            for (at, word) in (place..).step_by(4).zip(&swapped) {
                let in_store = Operand::Memory(STORE, at, false);
                let word = word.cast_signed();
                self.code
                    .arithmetic_number(Arithmetic::Compare, in_store, word);
                let jump = self.code.jump(Some(If::NotZero));
                self.exits.push((jump, 0, self.start, Left::Stale));
            }
            return;
        }
        // The last four may overlap those before them.
        let last = swapped.len() - 4;
        let firsts = (0..last).step_by(4).chain([last]);
        for (number, first) in firsts.enumerate() {
            let four = swapped[first..].first_chunk().copied().unwrap_or_default();
            let at = place + 4 * i32::try_from(first).unwrap_or(0);
            let to = u8::from(number > 0);
            self.code.load(to, Operand::Constant(four));
            let in_store = Operand::Memory(STORE, at, false);
            self.code.vector(Vector::XOR, to, to, in_store);
            if number > 0 {
                self.code.two(Vector::OR, 0, 0, 1);
            }
        }
        self.code.two(Vector::TEST, 0, 0, 0);
        let jump = self.code.jump(Some(If::NotZero));
        self.exits.push((jump, 0, self.start, Left::Stale));
    }

    /// Translates one; false where the block has ended with it.
    fn instruction(&mut self, row: &Instruction, fields: &Fields) -> bool {
        if self.memory(row.op, fields) || self.halt(row.op, fields) {
            return true;
        }
        if self.branch(row.op, fields) {
            return false;
        }
        if !self.integer(row.op, fields) && !self.float(row.op, fields) {
            self.call();
        }
        true
    }

    /// The vector register of a register's value.
    fn read(&mut self, number: u8) -> Xmm {
        let known = (FIRST_KEPT..)
            .zip(self.kept)
            .find(|kept| kept.1 == Some(number));
        if let Some((xmm, _)) = known {
            // It must not be given out for the result while this instruction still reads it.
            self.pinned |= 1 << xmm;
            return xmm;
        }
        let xmm = self.free();
        self.code.load(xmm, register(number, 0));
        self.keep(xmm, Some(number));
        xmm
    }

    /// A vector register for a new value of a register; [`Block::write`] ends with it.
    fn define(&mut self, number: u8) -> Xmm {
        let xmm = self.free();
        for kept in &mut self.kept {
            // A later read must not find the old value.
            if *kept == Some(number) {
                *kept = None;
            }
        }
        self.keep(xmm, Some(number));
        xmm
    }

    fn keep(&mut self, xmm: Xmm, number: Option<u8>) {
        if let Some(kept) = self.kept.get_mut(usize::from(xmm - FIRST_KEPT)) {
            *kept = number;
        }
    }

    /// One that the instruction in the making does not use: the one that was given out first.
    fn free(&mut self) -> Xmm {
        for _ in 0..8 {
            let xmm = FIRST_KEPT + self.turn;
            self.turn = (self.turn + 1) & 7;
            if self.pinned >> xmm & 1 == 0 {
                self.pinned |= 1 << xmm;
                return xmm;
            }
        }
        FIRST_KEPT
    }

    fn write(&mut self, number: u8, xmm: Xmm) {
        self.code.save(register(number, 0), xmm);
    }

    /// Lets floats be rounded as a mode has it.
    fn want(&mut self, mode: u8) {
        if self.mode == Some(mode) {
            return;
        }
        let now = field(offset_of!(Frame, mode));
        // At a block's beginning the mode is what the block before has left; only there it is
        // looked up.
        let skip = self.mode.is_none().then(|| {
            self.code.compare_byte(now, mode);
            self.code.jump(Some(If::Zero))
        });
        self.code.load_control(control(mode));
        self.code.set_byte(now, mode);
        if let Some(skip) = skip {
            self.code.bind(skip);
        }
        self.mode = Some(mode);
    }

    /// Calls the interpreter for the instruction.
    fn call(&mut self) {
        self.want(HOST);
        self.call_helper(self.word);
        // The interpreter may have written any register, and a C function preserves no vector
        // register.
        self.kept = [None; 8];
    }

    fn call_helper(&mut self, word: u32) {
        self.code.get64(RDI, Operand::General(FRAME));
        self.code.number_in(RSI, word.cast_signed());
        self.code.call(field(offset_of!(Frame, helper)));
    }

    /// Goes on at an address.
    fn go(&mut self, to: u32) {
        if to == self.start && self.length > 0 {
            // Its own code; the mode of floats may be another than at the beginning.
            self.code.jump_back(None, 0);
            return;
        }
        let pc = field(offset_of!(Frame, pc));
        self.code.set_number(pc, to.cast_signed());
        let entry = Operand::Memory(ENTRIES, 2 * to.cast_signed(), false);
        self.code.get64(RCX, entry);
        self.follow();
    }

    /// Goes on at the address in `RAX`.
    fn go_to_register(&mut self) {
        let address = (MASK & !3).cast_signed();
        self.code
            .arithmetic_number(Arithmetic::And, Operand::General(RAX), address);
        self.code.set(field(offset_of!(Frame, pc)), RAX);
        // An entry of 8 bytes for each word of 4.
        self.code.shift_left(1);
        self.code.get64(RCX, Operand::Memory(ENTRIES, 0, true));
        self.follow();
    }

    fn follow(&mut self) {
        self.code.test64(RCX);
        let missing = self.code.jump(Some(If::Zero));
        self.missing.push(missing);
        self.code.jump_to(Operand::General(RCX));
    }

    fn leave(&mut self, at: u32, reason: Left) {
        let pc = field(offset_of!(Frame, pc));
        self.code.set_number(pc, at.cast_signed());
        self.leave_with(reason);
    }

    fn leave_with(&mut self, reason: Left) {
        self.code.number_in(RAX, reason as i32);
        self.code.jump_to(field(offset_of!(Frame, leave)));
    }

    /// Leaves the block where a condition holds, as after `ran` instructions.
    fn leave_if(&mut self, condition: If, ran: u32, at: u32, reason: Left) {
        let jump = self.code.jump(Some(condition));
        self.exits.push((jump, ran, at, reason));
    }

    /// Code that is seldom reached, behind the rest.
    fn end(mut self) -> Vec<u8> {
        for slow in std::mem::take(&mut self.slow) {
            self.slowly(&slow);
        }
        for (jump, ran, at, reason) in std::mem::take(&mut self.exits) {
            self.code.bind(jump);
            let rest = (self.length - ran).cast_signed();
            self.code.arithmetic64(Arithmetic::Add, BUDGET, rest);
            self.leave(at, reason);
        }
        for jump in std::mem::take(&mut self.missing) {
            self.code.bind(jump);
        }
        self.leave_with(Left::Missing);
        self.code.finish()
    }
}

fn control(mode: u8) -> Operand {
    field(match mode {
        SINGLE => offset_of!(Frame, single_control),
        DOUBLE => offset_of!(Frame, double_control),
        _ => offset_of!(Frame, host_control),
    })
}
