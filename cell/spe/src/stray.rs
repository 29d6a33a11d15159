//! Accesses outside of the store, and quadwords that are not aligned, as an SPU does them.
//!
//! Why here: an SPU has no protection. It masks each address with the store's size, and the last
//! four bits of a quadword's. So old programs write through pointers that they never set, or to
//! address 0, and run to their end. Here such an access faults. The handler moves the register that
//! the address is based on, lets the one instruction run by the processor's single step, and
//! restores the register. The handler itself does moves with an absolute address.
//!
//! Must stay true: all of it runs in the signal handler, on the thread that runs the program, and
//! touches that thread's state and the interrupted registers alone. An instruction that this file
//! cannot decode stays a fault.
//!
//! Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, chapter 2 and
//! appendix A; SPU Instruction Set Architecture, section 3 (addresses).

use crate::registers::{Register, Registers, TRAP_FLAG};
use sidecore_bare::width::ToU64;
use std::cell::Cell;

thread_local! {
    /// The register that a single step has moved.
    static STEP: Cell<Option<Step>> = const { Cell::new(None) };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    register: Register,
    after: After,
}

/// Value of the moved register behind the instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum After {
    /// The value that it had before.
    Kept(u64),
    /// The value that the instruction loaded.
    Loaded,
    /// The bits of the mask that the instruction loaded, and the others from before.
    Merged(u64, u64),
    /// The value that the instruction counted it to, moved back.
    Counted(u64),
}

/// An operand in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Operand {
    address: u64,
    /// The register to move.
    register: Register,
    /// Logarithm of the register's factor.
    scale: u32,
    after: After,
}

/// Sets a single step up that does the interrupted access within the store; the address that it had
/// where that is done.
pub(crate) fn redirect(
    code: &[u8],
    registers: &mut Registers,
    store: u64,
    mask: u64,
) -> Option<u64> {
    // A fault within a step is the instruction's second operand, which no register can be moved
    // for.
    if STEP.with(Cell::get).is_some() {
        return None;
    }
    if let Some(address) = fixed(code, registers, store, mask) {
        return Some(address);
    }
    let operand = decode(code, registers)?;
    // Instructions of the general-protection kind may be inside: their operand is not aligned.
    let inside = operand.address & !mask == store & !mask;
    let general = registers[Register::Trap] == GENERAL_PROTECTION;
    let mut target = store | (operand.address & mask);
    if general {
        target &= !15;
    }
    // Not aligned, or elsewhere: otherwise the fault has another cause.
    if target == operand.address || (inside && !general) {
        return None;
    }
    let moved = target.wrapping_sub(operand.address);
    // A factored index cannot be moved by a part of its factor.
    if moved & ((1 << operand.scale) - 1) != 0 {
        return None;
    }
    // The distance has a sign, which a factored register's part of it keeps.
    let by = (moved.cast_signed() >> operand.scale).cast_unsigned();
    let after = match operand.after {
        After::Counted(_) => After::Counted(by),
        other => other,
    };
    registers[operand.register] = registers[operand.register].wrapping_add(by);
    registers[Register::Flags] |= TRAP_FLAG;
    let register = operand.register;
    STEP.with(|step| step.set(Some(Step { register, after })));
    Some(operand.address)
}

/// Puts the register back behind a single step, or where the step faulted in its turn; true where
/// there was a step.
pub(crate) fn finish(registers: &mut Registers, done: bool) -> bool {
    let Some(Step { register, after }) = STEP.with(Cell::take) else {
        return false;
    };
    let now = registers[register];
    registers[register] = match after {
        After::Kept(before) => before,
        After::Merged(mask, before) if done => (before & !mask) | (now & mask),
        // The step faulted in its turn: nothing was loaded, so that all bits are the old ones.
        After::Merged(_, before) => before,
        After::Loaded => now,
        After::Counted(by) => now.wrapping_sub(by),
    };
    registers[Register::Flags] &= !TRAP_FLAG;
    true
}

/// Does a move between memory at an absolute address, as compilers write it for a pointer that was
/// never set, and a register or a number. Returns the address.
fn fixed(code: &[u8], registers: &mut Registers, store: u64, mask: u64) -> Option<u64> {
    let (mut at, mut half, mut short, mut rex) = (0, false, false, None);
    // REX is the last prefix; what stands before it is in any order.
    while rex.is_none() {
        match *code.get(at)? {
            0x66 => half = true,
            0x67 => short = true,
            bits @ 0x40..=0x4f => rex = Some(bits),
            _ => break,
        }
        at += 1;
    }
    let bits = rex.unwrap_or(0);
    let (opcode, modrm) = (*code.get(at)?, *code.get(at + 1)?);
    if !matches!(opcode, 0x88..=0x8b | 0xc6 | 0xc7) {
        return None;
    }
    // SIB 0x25 has neither base nor index; mode 0 with register 5 is relative to the next
    // instruction.
    let (disp_at, relative) = match (modrm & 0xc7, code.get(at + 2)) {
        (4, Some(0x25)) => (at + 3, false),
        (5, _) => (at + 2, true),
        _ => return None,
    };
    // Numbers of 8 bytes do not occur: an immediate of a move to memory has four, extended by its
    // sign.
    let number_at = |at: usize, bytes: usize| {
        let mut number = [0; 4];
        number[..bytes].copy_from_slice(code.get(at..at + bytes)?);
        Some(match bytes {
            1 => i64::from(number[0].cast_signed()),
            2 => i64::from(i16::from_le_bytes([number[0], number[1]])),
            _ => i64::from(i32::from_le_bytes(number)),
        })
    };
    let bytes = match (opcode & 1, half, bits & 8) {
        (0, ..) => 1,
        (_, _, 8) => 8,
        (_, true, _) => 2,
        _ => 4,
    };
    let immediate = opcode >= 0xc6;
    // A relative address counts from behind the immediate, too.
    let end = disp_at + 4 + if immediate { bytes.min(4) } else { 0 };
    let mut address = number_at(disp_at, 4)?.cast_unsigned();
    if relative {
        let next = registers[Register::Rip].wrapping_add(end.to_u64());
        address = address.wrapping_add(next);
    }
    if short {
        address &= 0xffff_ffff;
    }
    let target = store | (address & mask);
    // Inside already, or across the store's end: one copy cannot wrap.
    if address & !mask == store & !mask || (target & mask) + bytes.to_u64() > mask + 1 {
        return None;
    }
    let field = usize::from(modrm >> 3 & 7) | usize::from(bits & 4) << 1;
    // Second bytes of registers.
    if bytes == 1 && rex.is_none() && field >= 4 && !immediate {
        return None;
    }
    let register = NUMBERS[field];
    let place = target as *mut u8;
    let mut value = match immediate {
        true => number_at(disp_at + 4, bytes.min(4))?.cast_unsigned(),
        false => registers[register],
    }
    .to_le_bytes();
    // SAFETY: `bytes` bytes of the store, which stays mapped while its program runs.
    unsafe {
        if matches!(opcode, 0x8a | 0x8b) {
            // A load of 32 bits clears the register's upper half; shorter ones keep the rest.
            if bytes == 4 {
                value = [0; 8];
            }
            std::ptr::copy_nonoverlapping(place, value.as_mut_ptr(), bytes);
            registers[register] = u64::from_le_bytes(value);
        } else {
            std::ptr::copy_nonoverlapping(value.as_ptr(), place, bytes);
        }
    }
    registers[Register::Rip] += end.to_u64();
    Some(address)
}

/// Reads the instruction's operand in memory.
fn decode(code: &[u8], registers: &Registers) -> Option<Operand> {
    let mut bytes = code.iter().copied();
    let mut next = || bytes.next();
    let (mut short, mut half, mut rex) = (false, false, None);
    let mut opcode = next()?;
    loop {
        match opcode {
            // Lock, repeat and segment prefixes do not change the operand's address.
            0x66 => half = true,
            0x67 => short = true,
            0xf2 | 0xf3 | 0xf0 | 0x2e | 0x36 | 0x3e | 0x26 => {}
            0x40..=0x4f => {
                rex = Some(opcode);
                opcode = next()?;
                break;
            }
            _ => break,
        }
        opcode = next()?;
    }
    if matches!(opcode, 0xa4..=0xa7 | 0xaa..=0xaf) {
        return string(opcode, registers);
    }
    // VEX and EVEX prefixes are not decoded: such an instruction stays a fault.
    let map = match opcode {
        0x0f => match next()? {
            0x38 => Map::Three(next()?, true),
            0x3a => Map::Three(next()?, false),
            other => Map::Two(other),
        },
        other => Map::One(other),
    };
    let bits = rex.unwrap_or(0);
    let modrm = next()?;
    let field = usize::from(modrm >> 3 & 7) | usize::from(bits & 4) << 1;
    let (base, index, scale, disp_bytes) = match (modrm >> 6, modrm & 7) {
        // A register operand faults for another reason; a relative one was done by `fixed`.
        (3, _) | (0, 5) => return None,
        (mode, 4) => {
            let sib = next()?;
            let index = usize::from(sib >> 3 & 7) | usize::from(bits & 2) << 2;
            let base = usize::from(sib & 7) | usize::from(bits & 1) << 3;
            // In mode 0, base 5 stands for none, and the displacement has four bytes.
            let none = mode == 0 && sib & 7 == 5;
            (
                (!none).then_some(base),
                (index != 4).then_some(index),
                u32::from(sib >> 6),
                if none { 4 } else { displacement(mode) },
            )
        }
        (mode, rm) => {
            let base = usize::from(rm) | usize::from(bits & 1) << 3;
            (Some(base), None, 0, displacement(mode))
        }
    };
    let mut disp = [0_u8; 4];
    for byte in disp.iter_mut().take(disp_bytes) {
        *byte = next()?;
    }
    let disp = match disp_bytes {
        1 => i64::from(disp[0].cast_signed()),
        4 => i64::from(i32::from_le_bytes(disp)),
        _ => 0,
    };
    let value = |number: usize| registers[NUMBERS[number]];
    let mut address = disp.cast_unsigned().wrapping_add(base.map_or(0, value));
    address = address.wrapping_add(index.map_or(0, value) << scale);
    // A prefix 0x67 makes the sum a word, which is how x32 code wraps at 4 GiB.
    if short {
        address &= 0xffff_ffff;
    }
    let (number, scale) = match (base, index) {
        // A stack pointer elsewhere is a stack that overflowed.
        (Some(STACK_POINTER), None) => return None,
        // Moving it would count twice.
        (Some(base), index) if index == Some(base) => return None,
        (Some(STACK_POINTER) | None, Some(index)) => (index, scale),
        (Some(base), _) => (base, 0),
        (None, None) => return None,
    };
    let before = value(number);
    let after = map.after(field, number, rex.is_some(), half, before)?;
    Some(Operand {
        address,
        register: NUMBERS[number],
        scale,
        after,
    })
}

/// Bytes of a displacement behind a base.
fn displacement(mode: u8) -> usize {
    match mode {
        0 => 0,
        1 => 1,
        _ => 4,
    }
}

/// The string instruction's operand that faulted, by the address that the context has.
fn string(opcode: u8, registers: &Registers) -> Option<Operand> {
    // Source and destination have no encoding of their own; the faulting one is near its register.
    let fault = registers[Register::Fault];
    let near = |register: Register| fault.wrapping_sub(registers[register]) < 8;
    let from = matches!(opcode, 0xa4..=0xa7 | 0xac | 0xad) && near(Register::Rsi);
    let to = matches!(opcode, 0xa4..=0xa7 | 0xaa | 0xab | 0xae | 0xaf) && near(Register::Rdi);
    let register = match (from, to) {
        (true, _) => Register::Rsi,
        (false, true) => Register::Rdi,
        (false, false) => return None,
    };
    Some(Operand {
        address: registers[register],
        register,
        scale: 0,
        after: After::Counted(0),
    })
}

/// An operation, by the map that its code is of.
#[derive(Clone, Copy)]
enum Map {
    One(u8),
    Two(u8),
    /// True for 0F 38, false for 0F 3A.
    Three(u8, bool),
}

impl Map {
    /// Value of the moved register `number` after the instruction, whose other operand is in
    /// `field`. Nothing where the instruction needs the register's value, or is not known.
    fn after(
        self,
        field: usize,
        number: usize,
        rex: bool,
        half: bool,
        before: u64,
    ) -> Option<After> {
        let kept = Some(After::Kept(before));
        let unless = |taken: bool| if taken { None } else { kept };
        let loaded = || match (field == number, half) {
            (false, _) => kept,
            (true, false) => Some(After::Loaded),
            (true, true) => Some(After::Merged(0xffff, before)),
        };
        // Without REX, bytes 4 to 7 are the second ones of registers 0 to 3.
        let second = !rex && field >= 4;
        let byte = if second { field - 4 } else { field };
        match self {
            Map::One(code) => match code {
                0x8b => loaded(),
                0x63 | 0x69 | 0x6b => loaded(),
                // The other bytes of the register are still moved, so they come from before.
                0x8a if byte == number => {
                    Some(After::Merged(if second { 0xff00 } else { 0xff }, before))
                }
                0x8a => kept,
                0x88 | 0x84 | 0x86 => unless(byte == number),
                0x85 | 0x87 | 0x89 => unless(field == number),
                0x00..=0x3b if code & 7 < 4 => {
                    unless(if code & 1 == 0 { byte } else { field } == number)
                }
                0x80
                | 0x81
                | 0x83
                | 0xc0
                | 0xc1
                | 0xc6
                | 0xc7
                | 0xd0
                | 0xd1
                | 0xd8..=0xdf
                | 0xfe => kept,
                // The number of bits is in a register, and so are products and quotients.
                0xd2 | 0xd3 => unless(number == 1),
                0xf6 | 0xf7 => unless(field & 7 >= 4 && (number == 0 || number == 2)),
                0xff => unless(field & 7 >= 2),
                _ => None,
            },
            Map::Two(code) => match code {
                0xb6 | 0xb7 | 0xbe | 0xbf | 0x2c | 0x2d | 0xb8 => loaded(),
                0x40..=0x4f | 0xa3 | 0xab | 0xb3 | 0xbb | 0xaf | 0xbc | 0xbd | 0xc3 => {
                    unless(field == number)
                }
                0x10..=0x17
                | 0x28..=0x2b
                | 0x2e
                | 0x2f
                | 0x51..=0x76
                | 0x7c..=0x7f
                | 0xba
                | 0xc2
                | 0xc4
                | 0xc6
                | 0xd0..=0xfe
                | 0x18
                | 0x0d => kept,
                _ => None,
            },
            Map::Three(0xf0 | 0xf1, true) => unless(field == number),
            Map::Three(..) => kept,
        }
    }
}

/// Places of the registers in the context, by the processor's numbers.
const NUMBERS: [Register; 16] = [
    Register::Rax,
    Register::Rcx,
    Register::Rdx,
    Register::Rbx,
    Register::Rsp,
    Register::Rbp,
    Register::Rsi,
    Register::Rdi,
    Register::R8,
    Register::R9,
    Register::R10,
    Register::R11,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
];
const STACK_POINTER: usize = 4;
/// The trap's number where a quadword is not aligned.
const GENERAL_PROTECTION: u64 = 13;

#[cfg(test)]
mod tests {
    use super::*;

    const STORE: u64 = 0xe000_0000;
    const MASK: u64 = 0x3ffff;

    /// Registers as a page fault leaves them, with these values.
    fn faulted(set: &[(Register, u64)]) -> Registers {
        let mut registers = Registers::default();
        registers[Register::Trap] = 14;
        for (register, value) in set {
            registers[*register] = *value;
        }
        registers
    }

    #[test]
    fn a_store_through_null_goes_to_the_first_byte() {
        // mov %esi,(%eax) with an address of 32 bits.
        let mut registers = faulted(&[(Register::Rax, 0), (Register::Rsi, 5)]);
        let at = redirect(&[0x67, 0x89, 0x30], &mut registers, STORE, MASK);
        assert_eq!(at, Some(0));
        assert_eq!(registers[Register::Rax], STORE);
        assert_ne!(registers[Register::Flags] & TRAP_FLAG, 0);
        // While one step is open there is no second one.
        assert_eq!(
            redirect(&[0x67, 0x89, 0x30], &mut registers, STORE, MASK),
            None
        );
        assert!(finish(&mut registers, true));
        assert_eq!(registers[Register::Rax], 0);
        assert_eq!(registers[Register::Flags] & TRAP_FLAG, 0);
        assert!(!finish(&mut registers, true));
    }

    #[test]
    fn a_load_into_the_register_of_its_address_stays() {
        // movzbl (%eax),%eax; then mov (%eax),%al keeps the other bits.
        let mut registers = faulted(&[(Register::Rax, 0x10_0004)]);
        let at = redirect(&[0x67, 0x0f, 0xb6, 0x00], &mut registers, STORE, MASK);
        assert_eq!(at, Some(0x10_0004));
        assert_eq!(registers[Register::Rax], STORE + 4);
        registers[Register::Rax] = 9;
        finish(&mut registers, true);
        assert_eq!(registers[Register::Rax], 9);
        let mut registers = faulted(&[(Register::Rax, 0x1234)]);
        redirect(&[0x67, 0x8a, 0x00], &mut registers, STORE, MASK).expect("a load of a byte");
        registers[Register::Rax] = STORE + 0x1200 + 0x77;
        finish(&mut registers, true);
        assert_eq!(registers[Register::Rax], 0x1277);
        // Its own value as an operand cannot be had while it is moved.
        let mut registers = faulted(&[]);
        assert_eq!(
            redirect(&[0x67, 0x89, 0x00], &mut registers, STORE, MASK),
            None
        );
    }

    #[test]
    fn quadwords_lose_their_last_bits() {
        // movaps 0x10(%rdi,%rcx,8),%xmm1
        let set = [(Register::Rdi, STORE + 3), (Register::Rcx, 2)];
        let mut registers = faulted(&set);
        registers[Register::Trap] = GENERAL_PROTECTION;
        let code = [0x0f, 0x28, 0x4c, 0xcf, 0x10];
        assert_eq!(
            redirect(&code, &mut registers, STORE, MASK),
            Some(STORE + 0x23)
        );
        assert_eq!(registers[Register::Rdi], STORE);
        finish(&mut registers, true);
        assert_eq!(registers[Register::Rdi], STORE + 3);
        // Aligned and inside: the cause is another.
        let set = [(Register::Rdi, STORE), (Register::Rcx, 2)];
        let mut registers = faulted(&set);
        registers[Register::Trap] = GENERAL_PROTECTION;
        assert_eq!(redirect(&code, &mut registers, STORE, MASK), None);
    }

    #[test]
    fn moves_at_addresses_of_the_instruction_are_done_at_once() {
        let mut memory = vec![0_u8; 2 * (MASK as usize + 1)];
        let store = (memory.as_mut_ptr() as u64 + MASK) & !MASK;
        let word = |place: u64| {
            // SAFETY: a place of the vector, whose half from `store` on has all of the mask's.
            unsafe { ((store + place) as *const u32).read_unaligned() }
        };
        // mov %eax,0x40: an address without a register.
        let mut registers = faulted(&[(Register::Rax, 0x1_2345_6789)]);
        let code = [0x89, 0x04, 0x25, 0x40, 0, 0, 0];
        assert_eq!(redirect(&code, &mut registers, store, MASK), Some(0x40));
        assert_eq!((word(0x40), registers[Register::Rip]), (0x2345_6789, 7));
        // mov 0x40,%r9d; movb $7,0x41
        let code = [0x44, 0x8b, 0x0c, 0x25, 0x40, 0, 0, 0];
        redirect(&code, &mut registers, store, MASK).expect("a load");
        assert_eq!(registers[Register::R9], 0x2345_6789);
        let code = [0xc6, 0x04, 0x25, 0x41, 0, 0, 0, 7];
        redirect(&code, &mut registers, store, MASK).expect("a number is stored");
        assert_eq!((word(0x40), registers[Register::Rip]), (0x2345_0789, 23));
        assert_eq!(registers[Register::Flags], 0);
        drop(memory);
    }

    #[test]
    fn strings_go_on_where_they_were() {
        let set = [
            (Register::Rdi, 0x40),
            (Register::Rsi, STORE),
            (Register::Fault, 0x40),
        ];
        let mut registers = faulted(&set);
        assert_eq!(
            redirect(&[0xf3, 0xa4], &mut registers, STORE, MASK),
            Some(0x40)
        );
        assert_eq!(registers[Register::Rdi], STORE + 0x40);
        registers[Register::Rdi] += 1;
        finish(&mut registers, true);
        assert_eq!(registers[Register::Rdi], 0x41);
        // Stack pointers and registers' own operands are left alone.
        let mut registers = faulted(&[(Register::Rsp, 0x40)]);
        assert_eq!(
            redirect(&[0x89, 0x04, 0x24], &mut registers, STORE, MASK),
            None
        );
    }
}
