//! Code of loads, stores, comparisons that halt, and branches.
//!
//! Must stay true: what leaves a block says where, and how many instructions of it ran.

use super::x86::{Arithmetic, If, Operand, RAX, STORE, TABLES, Vector};
use super::{Block, Left, SWAP, register};
use crate::isa::Op;
use crate::registers::{Fields, MASK, bits};

impl Block {
    /// The address of a load or a store: a number, or in `RAX`.
    fn address(&mut self, op: Op, fields: &Fields) -> Option<Operand> {
        let number = bits(fields.immediate);
        let fixed = match op {
            Op::Lqa | Op::Stqa => number << 2,
            Op::Lqr | Op::Stqr => self.pc.wrapping_add(number << 2),
            Op::Lqd | Op::Stqd | Op::Lqx | Op::Stqx => {
                self.code.get(RAX, register(fields.ra, 0));
                let more = if matches!(op, Op::Lqx | Op::Stqx) {
                    Some(register(fields.rb, 0))
                } else {
                    None
                };
                if let Some(more) = more {
                    self.code.arithmetic(Arithmetic::Add, RAX, more);
                } else if number != 0 {
                    let number = (number << 4).cast_signed();
                    self.code
                        .arithmetic_number(Arithmetic::Add, Operand::General(RAX), number);
                }
                // Loads and stores move whole quadwords: the lowest four bits of an address do not
                // count.
                let mask = (MASK & !15).cast_signed();
                self.code
                    .arithmetic_number(Arithmetic::And, Operand::General(RAX), mask);
                return Some(Operand::Memory(STORE, 0, true));
            }
            _ => return None,
        };
        let fixed = (fixed & MASK & !15).cast_signed();
        Some(Operand::Memory(STORE, fixed, false))
    }

    pub(super) fn memory(&mut self, op: Op, fields: &Fields) -> bool {
        let Some(address) = self.address(op, fields) else {
            return false;
        };
        let swap = Operand::Memory(TABLES, SWAP, false);
        if matches!(op, Op::Lqd | Op::Lqx | Op::Lqa | Op::Lqr) {
            let to = self.define(fields.rt);
            self.code.load(to, address);
            self.code.vector(Vector::SHUFFLE8, to, to, swap);
            self.write(fields.rt, to);
            return true;
        }
        let value = self.read(fields.rt);
        self.code.vector(Vector::SHUFFLE8, 0, value, swap);
        self.code.save(address, 0);
        self.check_own_code(address);
        true
    }

    /// After a store: leaves where it may have changed what is left of the block.
    fn check_own_code(&mut self, address: Operand) {
        let Operand::Memory(_, fixed, indexed) = address else {
            return;
        };
        let next = self.pc + 4;
        // Nothing of this block is left, and the next one compares its own words.
        if self.ran == self.length {
            return;
        }
        let (from, end) = (next & !15, self.start + 4 * self.length);
        if indexed {
            let from = from.cast_signed();
            self.code
                .arithmetic_number(Arithmetic::Subtract, Operand::General(RAX), from);
            // Counted from the first quadword, one comparison without signs covers both ends.
            let bytes = (end - (next & !15)).cast_signed();
            self.code
                .arithmetic_number(Arithmetic::Compare, Operand::General(RAX), bytes);
            self.leave_if(If::Below, self.ran, next, Left::Missing);
        } else if (from..end).contains(&fixed.cast_unsigned()) {
            let jump = self.code.jump(None);
            self.exits.push((jump, self.ran, next, Left::Missing));
        }
    }

    /// Comparisons that halt: where one does, the interpreter does it.
    pub(super) fn halt(&mut self, op: Op, fields: &Fields) -> bool {
        let condition = match op {
            Op::Heq | Op::Heqi => If::Zero,
            Op::Hgt | Op::Hgti => If::Greater,
            Op::Hlgt | Op::Hlgti => If::Above,
            _ => return false,
        };
        self.code.get(RAX, register(fields.ra, 0));
        if matches!(op, Op::Heq | Op::Hgt | Op::Hlgt) {
            let other = register(fields.rb, 0);
            self.code.arithmetic(Arithmetic::Compare, RAX, other);
        } else {
            let number = fields.immediate;
            self.code
                .arithmetic_number(Arithmetic::Compare, Operand::General(RAX), number);
        }
        // As if it had not run: the interpreter runs it again, and reports the halt.
        self.leave_if(condition, self.ran - 1, self.pc, Left::Interpret);
        true
    }

    /// The last instruction of a block.
    pub(super) fn branch(&mut self, op: Op, fields: &Fields) -> bool {
        let next = (self.pc + 4) & MASK;
        let number = bits(fields.immediate) << 2;
        let absolute = number & MASK & !3;
        let relative = self.pc.wrapping_add(number) & MASK & !3;
        match op {
            Op::Br => self.go(relative),
            Op::Bra => self.go(absolute),
            Op::Brsl | Op::Brasl => {
                self.link(fields.rt, next);
                self.go(if op == Op::Brsl { relative } else { absolute });
            }
            Op::Bi => {
                self.code.get(RAX, register(fields.ra, 0));
                self.go_to_register();
            }
            Op::Bisl => {
                self.code.get(RAX, register(fields.ra, 0));
                // The target is in `RAX` already: the link may go to the register that had it.
                self.link(fields.rt, next);
                self.go_to_register();
            }
            Op::Brnz | Op::Brz | Op::Brhnz | Op::Brhz => {
                let not = self.condition(op, fields.rt);
                self.go(relative);
                self.code.bind(not);
                self.go(next);
            }
            Op::Biz | Op::Binz | Op::Bihz | Op::Bihnz => {
                let not = self.condition(op, fields.rt);
                self.code.get(RAX, register(fields.ra, 0));
                self.go_to_register();
                self.code.bind(not);
                self.go(next);
            }
            Op::Sync => self.go(next),
            _ => return false,
        }
        true
    }

    /// A jump that is taken where the branch is not.
    fn condition(&mut self, op: Op, rt: u8) -> usize {
        let half = matches!(op, Op::Brhnz | Op::Brhz | Op::Bihz | Op::Bihnz);
        let zero = matches!(op, Op::Brz | Op::Brhz | Op::Biz | Op::Bihz);
        // Of the preferred word's halves the right one counts.
        let mask = if half { 0xffff } else { -1 };
        self.code.test_bits(register(rt, 0), mask);
        self.code
            .jump(Some(if zero { If::NotZero } else { If::Zero }))
    }

    /// Puts the address behind a call into a register.
    fn link(&mut self, rt: u8, next: u32) {
        let to = self.define(rt);
        self.code.load(to, Operand::Constant([next, 0, 0, 0]));
        self.write(rt, to);
    }
}
