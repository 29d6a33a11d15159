//! The switch between a thread's stack and a program's stack in its local store.
//!
//! A program is a coroutine: [`enter`] goes on with it and returns when the program calls the gate.
//! Nothing of the program's is kept on a thread, so any engine may go on with any context.
//!
//! Must stay true: the header lies [`HEADER_BEFORE`] bytes below the store, because the gate finds
//! it from the stack pointer alone. The fields keep their order, because the assembly knows it. The
//! program uses no thread-local storage. Source: System V ABI, x86-64, for the registers that a
//! call keeps.

use sidecore_bare::width::ToU64;
use std::arch::global_asm;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};

/// Bytes of a local store.
pub(crate) const STORE_BYTES: usize = 256 * 1024;

/// State of one program's interrupts, in its header; `interrupt` has the operations on it.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Interrupts {
    /// Entry of the program's library while interrupts are enabled, else 0.
    pub(crate) entry: AtomicU64,
    /// 1 while an event waits to interrupt.
    pub(crate) due: AtomicU64,
    /// The engine's thread while it is inside of the program, else 0; wide, as the kernel's calls
    /// take and give it.
    pub(crate) thread: AtomicI64,
    /// The host's order; `interrupt` has its values.
    pub(crate) order: AtomicU32,
}

/// Words that the gate and the engine exchange; the host's page below a store's lower guard.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct Header {
    /// The engine's stack while the program runs.
    pub(crate) host_stack: u64,
    /// The program's stack while the engine runs.
    pub(crate) store_stack: u64,
    /// The operation that the program asks for, or [`OP_FAULT`].
    pub(crate) op: u64,
    /// Its arguments.
    pub(crate) args: [u64; 4],
    /// Argument of `channel`: the context.
    pub(crate) context: *const c_void,
    /// Function that the gate calls for an operation on a mailbox before it leaves the program.
    pub(crate) channel: Option<Channel>,
    /// End of the program's data, as an address; and that of the word that holds the heap's, or 0.
    pub(crate) data_end: u64,
    pub(crate) break_at: u64,
    /// The signal that ended the program, where `op` is [`OP_FAULT`].
    pub(crate) fault_signal: c_int,
    /// The address that could not be accessed, and the instruction's.
    pub(crate) fault_address: u64,
    /// The faulting instruction's address.
    pub(crate) fault_pc: u64,
    /// 1 once the whole store may be executed.
    pub(crate) executable: u64,
    /// 1 once an access outside of the store was reported.
    pub(crate) strayed: u64,
    /// The context's number, for reports about it.
    pub(crate) id: u64,
    pub(crate) interrupts: Interrupts,
}

impl Header {
    /// Addresses of the store that a header belongs to, found as the gate finds them.
    pub(crate) fn store(header: *mut Header) -> Range<u64> {
        let base = address(header) + HEADER_BEFORE.to_u64();
        base..base + STORE_BYTES.to_u64()
    }
}

/// The number by which programs and the kernel name a place of this process.
pub(crate) fn address<T>(of: *const T) -> u64 {
    of.expose_provenance().to_u64()
}

/// The lower word of a register or an address, which is all that an SPU's word has of it.
pub(crate) const fn low(value: u64) -> u32 {
    value as u32
}

/// Performs an operation on a channel at once, if that can be done: context, operation, channel,
/// value. Called on the engine's stack.
pub(crate) type Channel = extern "sysv64" fn(*const c_void, u64, u64, u64) -> Performed;

/// Outcome of [`Channel`], in rax and rdx.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Performed {
    pub(crate) value: u64,
    /// 0 where the engine must be asked.
    pub(crate) done: u64,
}

/// Distance of the header below its store, far from where a stack that overflows may write.
pub(crate) const HEADER_BEFORE: usize = 256 * 1024;
/// Operation number that a fault leaves; no program can ask for it by accident.
pub(crate) const OP_FAULT: u64 = u64::MAX;

global_asm!(
    ".text",
    ".balign 16",
    // (header: rdi, value: rsi): saves the callee-saved registers, goes on with the program.
    ".globl sidecore_spe_enter",
    ".hidden sidecore_spe_enter",
    "sidecore_spe_enter:",
    "push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov [rdi], rsp",
    "mov rsp, [rdi + 8]",
    "mov rax, rsi",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
    ".balign 16",
    // (op, a, b, c, d): called by the program on its own stack.
    ".globl sidecore_spe_gate",
    ".hidden sidecore_spe_gate",
    "sidecore_spe_gate:",
    "mov rax, rsp",
    "and rax, -0x40000",
    "sub rax, 0x40000",
    "mov edi, edi",
    "mov [rax + 16], rdi",
    "mov [rax + 24], rsi",
    "mov [rax + 32], rdx",
    "mov [rax + 40], rcx",
    "mov [rax + 48], r8",
    // Reading, writing, counting channels 28 to 30: tried before the program is left. The engine's
    // stack is 8 bytes off a multiple of 16, as `enter` leaves it.
    "cmp rdi, 3",
    "ja 2f",
    "lea r9, [rsi - 28]",
    "cmp r9, 2",
    "ja 2f",
    "mov [rax + 8], rsp",
    "mov rsp, [rax]",
    "push rax",
    "mov rcx, rdx",
    "mov rdx, rsi",
    "mov rsi, rdi",
    "mov rdi, [rax + 56]",
    "call [rax + 64]",
    "pop rcx",
    "mov rsp, [rcx + 8]",
    "test edx, edx",
    "jz 3f",
    "ret",
    "3: mov rax, rcx",
    "2: push rbx",
    "push rbp",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "mov [rax + 8], rsp",
    "mov rsp, [rax]",
    // A fault's handler comes in here with the stack of `enter` restored.
    ".globl sidecore_spe_leave",
    ".hidden sidecore_spe_leave",
    "sidecore_spe_leave:",
    "cld",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
    ".balign 16",
    // The first frame's return address: moves kept registers to the arguments of `_start`.
    ".globl sidecore_spe_start",
    ".hidden sidecore_spe_start",
    "sidecore_spe_start:",
    "mov rdi, rbx",
    "mov rsi, rbp",
    "mov rdx, r12",
    "mov rcx, r13",
    "mov r8, r14",
    "xor ebp, ebp",
    "and rsp, -16",
    "jmp r15",
    ".balign 16",
    // (to: rdi, from: rsi, bytes: rdx) -> 1, or 0 where memory could not be accessed. Naturally
    // aligned sizes up to 8 are one access each, as the hardware's are.
    ".globl sidecore_spe_copy",
    ".hidden sidecore_spe_copy",
    "sidecore_spe_copy:",
    "mov rcx, rdx",
    "cmp rdx, 16",
    "ja 2f",
    "je 5f",
    "cmp rdx, 4",
    "je 3f",
    "cmp rdx, 8",
    "je 4f",
    "cmp rdx, 2",
    "je 6f",
    "2: rep movsb",
    "mov eax, 1",
    "ret",
    "3: mov eax, [rsi]",
    "mov [rdi], eax",
    "mov eax, 1",
    "ret",
    "4: mov rax, [rsi]",
    "mov [rdi], rax",
    "mov eax, 1",
    "ret",
    "5: movdqu xmm0, [rsi]",
    "movdqu [rdi], xmm0",
    "mov eax, 1",
    "ret",
    "6: mov ax, [rsi]",
    "mov [rdi], ax",
    "mov eax, 1",
    "ret",
    ".balign 16",
    // (at: rdi, old: rsi, new: rdx) -> 1 exchanged, 2 another value there, 0 no access.
    ".globl sidecore_spe_exchange",
    ".hidden sidecore_spe_exchange",
    "sidecore_spe_exchange:",
    "mov rax, rsi",
    "lock cmpxchg [rdi], rdx",
    "mov eax, 1",
    "je 2f",
    "mov eax, 2",
    "2: ret",
    ".globl sidecore_spe_copy_failed",
    ".hidden sidecore_spe_copy_failed",
    "sidecore_spe_copy_failed:",
    "xor eax, eax",
    "ret",
);

unsafe extern "C" {
    fn sidecore_spe_enter(header: *mut Header, value: u64);
    fn sidecore_spe_gate();
    fn sidecore_spe_leave();
    fn sidecore_spe_start();
    fn sidecore_spe_copy(to: u64, from: u64, bytes: u64) -> u32;
    fn sidecore_spe_exchange(at: u64, old: u64, new: u64) -> u32;
    fn sidecore_spe_copy_failed();
}

/// Goes on with the program: the gate returns `value` to it. Returns at its next call of the gate,
/// or at a fault.
///
/// # Safety
/// `header` belongs to a live store whose program was prepared and stands in the gate; no other
/// thread goes on with it; this thread has the fault handler's alternate stack.
pub(crate) unsafe fn enter(header: *mut Header, value: u64) {
    // SAFETY: the caller's promise.
    unsafe { sidecore_spe_enter(header, value) }
}

/// Copies between the store and memory of the process. False where either cannot be accessed.
///
/// # Safety
/// The program owns both ranges, as C programs own the memory that they name; the fault handler is
/// installed.
pub(crate) unsafe fn copy(to: u64, from: u64, bytes: u64) -> bool {
    // SAFETY: the caller's promise; a fault inside is turned into a return of 0.
    unsafe { sidecore_spe_copy(to, from, bytes) == 1 }
}

/// Outcome of [`exchange`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exchange {
    Done,
    Other,
    NoAccess,
}

/// Atomic compare-and-exchange of an aligned word of the process.
///
/// # Safety
/// As for [`copy`]; `at` is a multiple of 8.
pub(crate) unsafe fn exchange(at: u64, old: u64, new: u64) -> Exchange {
    // SAFETY: the caller's promise; a fault inside is turned into a return of 0.
    match unsafe { sidecore_spe_exchange(at, old, new) } {
        1 => Exchange::Done,
        2 => Exchange::Other,
        _ => Exchange::NoAccess,
    }
}

/// Arguments of a program's entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    pub(crate) entry: u64,
    pub(crate) args: [u64; 3],
    pub(crate) registers: u64,
}

impl Start {
    /// The first frame, lowest address first: the registers that `enter` pops, then its return
    /// address.
    pub(crate) fn frame(&self) -> [u64; 7] {
        let gate = address(sidecore_spe_gate as *const ());
        let start = address(sidecore_spe_start as *const ());
        let [first, second, third] = self.args;
        // Popped into r15, r14, r13, r12, rbp, rbx.
        [
            self.entry,
            self.registers,
            gate,
            third,
            second,
            first,
            start,
        ]
    }
}

/// Instruction at which a fault's handler leaves the program.
pub(crate) fn leave_pc() -> u64 {
    address(sidecore_spe_leave as *const ())
}

/// Instruction at which a fault inside [`copy`] or [`exchange`] goes on, if `pc` is inside.
pub(crate) fn copy_recovery(pc: u64) -> Option<u64> {
    let begin = address(sidecore_spe_copy as *const ());
    let end = address(sidecore_spe_copy_failed as *const ());
    (begin..end).contains(&pc).then_some(end)
}
