//! Decoding, moving and putting back, on instructions as compilers write them.

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
