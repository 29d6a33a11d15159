//! The registers of an interrupted thread, as a signal's handler gets them from the kernel.
//!
//! Why here: the handlers of faults, strays and interrupts read and write them by name; the kernel
//! keeps them in an array of signed words whose places `libc` numbers.

use std::ops::{Index, IndexMut};

/// A register, or a word that the kernel adds: the trap's number, its error and its address.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Register {
    R8 = libc::REG_R8,
    R9 = libc::REG_R9,
    R10 = libc::REG_R10,
    R11 = libc::REG_R11,
    R12 = libc::REG_R12,
    R13 = libc::REG_R13,
    R14 = libc::REG_R14,
    R15 = libc::REG_R15,
    Rdi = libc::REG_RDI,
    Rsi = libc::REG_RSI,
    Rbp = libc::REG_RBP,
    Rbx = libc::REG_RBX,
    Rdx = libc::REG_RDX,
    Rax = libc::REG_RAX,
    Rcx = libc::REG_RCX,
    Rsp = libc::REG_RSP,
    Rip = libc::REG_RIP,
    /// The processor's flags.
    Flags = libc::REG_EFL,
    /// Bits of a page fault's error.
    Error = libc::REG_ERR,
    /// The trap's number.
    Trap = libc::REG_TRAPNO,
    /// The address that a page fault was about.
    Fault = libc::REG_CR2,
}

/// The kernel's `gregset_t`, whose signed words hold addresses and bits: unsigned here.
#[repr(transparent)]
#[derive(Debug, Default)]
pub(crate) struct Registers([u64; WORDS]);

/// Words of a `gregset_t` on x86-64.
const WORDS: usize = 23;

/// The processor's flag of single steps.
pub(crate) const TRAP_FLAG: u64 = 0x100;

impl Registers {
    /// Those of a signal's context.
    ///
    /// # Safety
    /// The pointer is a handler's third argument, and the handler runs.
    pub(crate) unsafe fn of<'a>(context: *mut libc::ucontext_t) -> &'a mut Registers {
        // SAFETY: the caller's promise.
        let words: &mut [libc::greg_t; WORDS] = unsafe { &mut (*context).uc_mcontext.gregs };
        // SAFETY: as many words; signed and unsigned ones have one layout.
        unsafe { &mut *(&raw mut *words).cast::<Registers>() }
    }
}

impl Register {
    const fn place(self) -> usize {
        self as usize
    }
}

impl Index<Register> for Registers {
    type Output = u64;

    fn index(&self, register: Register) -> &u64 {
        &self.0[register.place()]
    }
}

impl IndexMut<Register> for Registers {
    fn index_mut(&mut self, register: Register) -> &mut u64 {
        &mut self.0[register.place()]
    }
}
