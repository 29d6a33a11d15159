//! Faults of programs: SIGSEGV, SIGBUS, SIGILL and SIGFPE inside a store end that program, not the
//! process; inside the guarded copy they end the copy.
//!
//! Must stay true: the handler touches only the header of the program that runs on its thread and
//! the interrupted registers; a fault that is not a program's goes to whoever handled the signal
//! before. Threads that run programs call [`prepare_thread`] first.

use crate::store::STORE_BYTES;
use crate::switch::{HEADER_BEFORE, Header, OP_FAULT, copy_recovery, leave_pc};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::{Once, OnceLock};

thread_local! {
    /// Header of the program that this thread is inside of; null while it is in the engine.
    static RUNNING: Cell<*mut Header> = const { Cell::new(std::ptr::null_mut()) };
    static STACK: Cell<*mut c_void> = const { Cell::new(std::ptr::null_mut()) };
}

const SIGNALS: [c_int; 4] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE];
/// Large enough for the registers of every processor extension, and for the handler.
const ALTERNATE_BYTES: usize = 64 * 1024;

type Actions = [libc::sigaction; SIGNALS.len()];

static BEFORE: OnceLock<Actions> = OnceLock::new();

/// Says which program this thread goes into (null: none).
pub(crate) fn set_running(header: *mut Header) {
    RUNNING.with(|running| running.set(header));
}

/// Installs the handlers, once for the process.
pub(crate) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: all zeroes is a sigaction.
        let mut before: Actions = unsafe { std::mem::zeroed() };
        for (signal, old) in SIGNALS.iter().zip(&mut before) {
            // SAFETY: asks for the present action.
            unsafe { libc::sigaction(*signal, std::ptr::null(), old) };
        }
        // Before the handlers are, so that they always find it.
        BEFORE.set(before).ok();
        for signal in SIGNALS {
            // SAFETY: all zeroes is a sigaction; the handler has the form that SA_SIGINFO asks for.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                action.sa_sigaction = on_fault as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                libc::sigemptyset(&mut action.sa_mask);
                libc::sigaction(signal, &action, std::ptr::null_mut());
            }
        }
    });
}

/// Gives this thread a stack for the handler: a program's own may be what overflowed.
pub(crate) fn prepare_thread() {
    install();
    set_running(std::ptr::null_mut());
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new mapping, which stays until `release_thread`.
    unsafe {
        let stack = libc::mmap(std::ptr::null_mut(), ALTERNATE_BYTES, access, flags, -1, 0);
        if stack == libc::MAP_FAILED {
            return;
        }
        let given = libc::stack_t {
            ss_sp: stack,
            ss_flags: 0,
            ss_size: ALTERNATE_BYTES,
        };
        libc::sigaltstack(&given, std::ptr::null_mut());
        STACK.with(|own| own.set(stack));
    }
}

/// Takes the stack back at a thread's end.
pub(crate) fn release_thread() {
    let stack = STACK.with(|own| own.replace(std::ptr::null_mut()));
    if stack.is_null() {
        return;
    }
    let none = libc::stack_t {
        ss_sp: std::ptr::null_mut(),
        ss_flags: libc::SS_DISABLE,
        ss_size: 0,
    };
    // SAFETY: the mapping of `prepare_thread`, no longer the alternate stack.
    unsafe {
        libc::sigaltstack(&none, std::ptr::null_mut());
        libc::munmap(stack, ALTERNATE_BYTES);
    }
}

/// The handler.
extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let registers = context.cast::<libc::ucontext_t>();
    // SAFETY: the kernel's pointers, valid while the handler runs.
    let gregs = unsafe { &mut (*registers).uc_mcontext.gregs };
    let pc = gregs[libc::REG_RIP as usize] as u64;
    if let Some(recovery) = copy_recovery(pc) {
        gregs[libc::REG_RIP as usize] = recovery as i64;
        return;
    }
    let header = RUNNING.with(Cell::get);
    if !header.is_null() && inside(header, pc, gregs[libc::REG_RSP as usize] as u64) {
        // SAFETY: the header of the program on this thread; only this thread uses it now.
        unsafe {
            (*header).op = OP_FAULT;
            (*header).fault_signal = signal as u64;
            (*header).fault_address = (*info).si_addr() as u64;
            (*header).fault_pc = pc;
            (*header).store_stack = gregs[libc::REG_RSP as usize] as u64;
            gregs[libc::REG_RSP as usize] = (*header).host_stack as i64;
        }
        gregs[libc::REG_RIP as usize] = leave_pc() as i64;
        // Alignment checks and single steps that a program switched on end with it.
        gregs[libc::REG_EFL as usize] &= !0x4_0500;
        return;
    }
    pass_on(signal, info, context);
}

/// True where the instruction or the stack pointer is in the store or its guards; a wild jump leaves the latter.
fn inside(header: *mut Header, pc: u64, stack: u64) -> bool {
    let base = header as u64 + HEADER_BEFORE as u64;
    let store = header as u64..base + 2 * STORE_BYTES as u64;
    store.contains(&pc) || store.contains(&stack)
}

/// Does what was done about the signal before this library came.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let index = SIGNALS.iter().position(|own| *own == signal);
    let before = index.and_then(|index| BEFORE.get().map(|before| before[index]));
    match before {
        Some(action) if action.sa_sigaction > libc::SIG_IGN => {
            if action.sa_flags & libc::SA_SIGINFO != 0 {
                // SAFETY: a handler of three arguments, as its flags say.
                let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                    unsafe { std::mem::transmute(action.sa_sigaction) };
                handler(signal, info, context);
            } else {
                // SAFETY: a handler of one argument, as its flags say.
                let handler: extern "C" fn(c_int) =
                    unsafe { std::mem::transmute(action.sa_sigaction) };
                handler(signal);
            }
        }
        // The instruction is executed again and then ends the process, with the right core.
        _ => {
            // SAFETY: sets the default action.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}
