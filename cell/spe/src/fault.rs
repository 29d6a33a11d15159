//! Faults of programs: SIGSEGV, SIGBUS, SIGILL and SIGFPE inside a store end that program, not the
//! process; inside the guarded copy they end the copy. Accesses outside of the store are done
//! within it, as an SPU does them ([`crate::stray`]), unless SIDECORE_SPE_STRICT is set. The host's
//! accesses to problem-state areas reach the registers ([`crate::area`]). A SIGTRAP that is sent to
//! an engine's thread is an interrupt of its program's ([`crate::interrupt`]).
//!
//! Must stay true: the handler touches only the header of the program that runs on its thread and
//! the interrupted registers; a fault that is not a program's goes to the signal's previous
//! handler. Threads that run programs call [`prepare_thread`] first.

use crate::interrupt;
use crate::registers::{Register, Registers};
use crate::store::{STORE_BYTES, STORE_MASK};
use crate::switch::{Header, OP_FAULT, address, copy_recovery, leave_pc};
use crate::{area, stray};
use parking_lot::Mutex;
use sidecore_bare::width::{ToU64, ToUsize};
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

thread_local! {
    /// Header of the program that this thread is inside of; null while it is in the engine.
    static RUNNING: Cell<*mut Header> = const { Cell::new(std::ptr::null_mut()) };
    static STACK: Cell<*mut c_void> = const { Cell::new(std::ptr::null_mut()) };
}

/// Signals of faults, and of single steps.
pub(crate) const SIGNALS: [c_int; 5] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
];
/// Large enough for the registers of every processor extension, and for the handler.
const ALTERNATE_BYTES: usize = 64 * 1024;

/// Actions for each signal before ours; written once for each change, never freed.
static BEFORE: [AtomicPtr<libc::sigaction>; SIGNALS.len()] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; SIGNALS.len()];

/// True where an access outside of the store ends the program.
static STRICT: AtomicBool = AtomicBool::new(false);
/// A stack pointer this near to the store's begin is a stack that overflows.
const STACK_NEAR: u64 = 16 * 1024;
/// The bit of a page fault's error that says that an instruction was fetched.
const ERROR_FETCH: u64 = 0x10;
/// Below it lies a program's description, and no code.
const FIRST_CODE: u64 = 64;
/// Bytes of an instruction at most.
const INSTRUCTION_BYTES: usize = 15;

/// Says which program this thread goes into (null: none).
pub(crate) fn set_running(header: *mut Header) {
    RUNNING.with(|running| running.set(header));
}

/// Sees to it that the handlers are ours. A program that installed its own meanwhile keeps it: ours
/// passes on to it. Called before each run, so that the order does not matter.
pub(crate) fn install() {
    static CHANGE: Mutex<()> = Mutex::new(());
    let _change = CHANGE.lock();
    let strict = std::env::var_os("SIDECORE_SPE_STRICT").is_some_and(|value| value != "0");
    // Relaxed: a setting, the same for every run.
    STRICT.store(strict, Ordering::Relaxed);
    for (index, signal) in SIGNALS.iter().enumerate() {
        // SAFETY: all zeroes is a sigaction; the handler has the form that SA_SIGINFO asks for.
        unsafe {
            let mut present: libc::sigaction = std::mem::zeroed();
            libc::sigaction(*signal, std::ptr::null(), &mut present);
            let own = (on_fault as *const ()).expose_provenance();
            if present.sa_sigaction == own {
                continue;
            }
            // Left to the process: a handler may be reading the old one at any time.
            let kept = Box::into_raw(Box::new(present));
            // Release partners with the Acquire in `before`.
            BEFORE[index].store(kept, Ordering::Release);
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = own;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(*signal, &action, std::ptr::null_mut());
        }
    }
}

/// The action that stood before ours.
fn before(signal: c_int) -> Option<&'static libc::sigaction> {
    let index = SIGNALS.iter().position(|own| *own == signal)?;
    // SAFETY: null, or kept for ever by `install`.
    unsafe { BEFORE[index].load(Ordering::Acquire).as_ref() }
}

/// Sends a signal to this thread if the program has a handler for it; false if it has none.
pub(crate) fn raise_handled(signal: c_int) -> bool {
    let handled = before(signal).is_some_and(|action| action.sa_sigaction > libc::SIG_IGN);
    if handled {
        // SAFETY: the handler is the program's, which requested such signals.
        unsafe { libc::raise(signal) };
    }
    handled
}

/// Gives this thread a stack for the handler: a program's own stack may have overflowed.
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
    // SAFETY: the kernel's pointer, valid while the handler runs.
    let registers = unsafe { Registers::of(context.cast()) };
    let pc = registers[Register::Rip];
    if let Some(recovery) = copy_recovery(pc) {
        registers[Register::Rip] = recovery;
        return;
    }
    let header = RUNNING.with(Cell::get);
    // SAFETY: the kernel's pointer.
    let sent = signal == libc::SIGTRAP && unsafe { (*info).si_code } == libc::SI_TKILL;
    if sent && STACK.with(|own| !own.get().is_null()) {
        if !header.is_null() {
            // SAFETY: the header of the program on this thread.
            unsafe { interrupt::in_program(header, registers) };
        }
        return;
    }
    if header.is_null() && registers_of_an_area(signal, registers) {
        return;
    }
    if !header.is_null() {
        // A single step that is done, or that faulted in its turn.
        let stepped = stray::finish(registers, signal == libc::SIGTRAP);
        if stepped && signal == libc::SIGTRAP {
            return;
        }
        // SAFETY: the header of the program on this thread.
        if !stepped && signal == libc::SIGSEGV && unsafe { strays(header, registers) } {
            return;
        }
    }
    // SAFETY: the kernel's pointers; the header of the program on this thread.
    if !header.is_null() && unsafe { foreign_code(header, signal, info, registers) } {
        return;
    }
    if !header.is_null() && inside(header, pc, registers[Register::Rsp]) {
        // SAFETY: the header of the program on this thread; only this thread uses it now.
        unsafe {
            (*header).op = OP_FAULT;
            (*header).fault_signal = signal;
            (*header).fault_address = address((*info).si_addr());
            (*header).fault_pc = pc;
            (*header).store_stack = registers[Register::Rsp];
            registers[Register::Rsp] = (*header).host_stack;
        }
        registers[Register::Rip] = leave_pc();
        // Alignment checks and single steps that a program switched on end with it.
        registers[Register::Flags] &= !0x4_0500;
        return;
    }
    pass_on(signal, info, context);
}

/// Does a plain access of the host's to a problem-state area; false where it is none.
fn registers_of_an_area(signal: c_int, registers: &mut Registers) -> bool {
    // SAFETY: this thread's own error number, which the interrupted code may be about to read.
    let error = unsafe { *libc::__errno_location() };
    let stepped = stray::finish(registers, signal == libc::SIGTRAP);
    let done = if signal == libc::SIGTRAP && stepped {
        area::stepped();
        true
    } else {
        !stepped && signal == libc::SIGSEGV && area::redirect(registers)
    };
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = error };
    done
}

/// Sets an access outside of the store up to be done within it; false where it is a fault.
///
/// # Safety
/// Called by the handler, with the header of the program on this thread.
unsafe fn strays(header: *mut Header, registers: &mut Registers) -> bool {
    let store = Header::store(header);
    let base = store.start;
    let pc = registers[Register::Rip];
    let stack = registers[Register::Rsp];
    let below = address(header)..base;
    let fault = registers[Register::Fault];
    let overflows = below.contains(&fault) && stack < base + STACK_NEAR;
    // Data that was jumped to is another case.
    let fetch = registers[Register::Error] & ERROR_FETCH != 0;
    // A function by its place in the store, as hosts read it from the program's symbols.
    // Relaxed: a setting.
    let strict = STRICT.load(Ordering::Relaxed);
    if fetch && pc == fault && (FIRST_CODE..=STORE_MASK).contains(&pc) && !strict {
        registers[Register::Rip] = base + pc;
        return store.contains(&stack);
    }
    if strict || overflows || fetch || !store.contains(&pc) || !store.contains(&stack) {
        return false;
    }
    let bytes = INSTRUCTION_BYTES.min((store.end - pc).to_usize());
    // SAFETY: the program's code, in its store; only a program that changes itself, on this thread,
    // could write to it while it is read.
    let code = unsafe { std::slice::from_raw_parts(pc as *const u8, bytes) };
    let Some(address) = stray::redirect(code, registers, base, STORE_MASK) else {
        return false;
    };
    // SAFETY: the header is ours, and this thread is inside of its program.
    unsafe {
        if (*header).strayed == 0 {
            (*header).strayed = 1;
            report((*header).id, base, pc - base, address);
        }
    }
    true
}

/// Says once for a context where it went astray; without memory of the process, as handlers must.
fn report(id: u64, base: u64, pc: u64, address: u64) {
    let within = (base..=base + STORE_MASK).contains(&address);
    let (what, last) = match within {
        true => ("access to a quadword that is not aligned", 15),
        false => ("access outside of the local store", 0),
    };
    let mut line = [0_u8; 200];
    let room = line.len();
    let mut rest = &mut line[..];
    let _ = writeln!(
        rest,
        "libspe2: context {id}: {what} at 0x{pc:05x}, address \
         0x{address:x}: done at 0x{:05x}, as an SPU does (said once)",
        address & STORE_MASK & !last
    );
    let bytes = room - rest.len();
    // SAFETY: as many bytes of the buffer as were written.
    unsafe { libc::write(2, line.as_ptr().cast(), bytes) };
}

/// Handles execution in a part of the store that is not the program's code. Old programs build the
/// SPU's stop instruction in data and call it: those few instructions are done here. All else is
/// made executable: code that a program copied, or a compiler's trampoline.
///
/// # Safety
/// Called by the handler, with the header of the program on this thread.
unsafe fn foreign_code(
    header: *mut Header,
    signal: c_int,
    info: *mut libc::siginfo_t,
    registers: &mut Registers,
) -> bool {
    let whole = Header::store(header);
    let base = whole.start;
    let store = base..whole.end - 16;
    let mut pc = registers[Register::Rip];
    // SAFETY: the kernel's pointer.
    let address = address(unsafe { (*info).si_addr() });
    if signal != libc::SIGSEGV || address != pc || !store.contains(&pc) {
        return false;
    }
    let stack = registers[Register::Rsp];
    let stack_ok = (base + 65..store.end).contains(&stack);
    while store.contains(&pc) && pc.is_multiple_of(4) && stack_ok {
        // SAFETY: an aligned word of the store.
        let word = unsafe { (pc as *const u32).read_volatile() };
        match word >> 21 {
            // nop and lnop.
            0x201 | 0x001 => pc += 4,
            // bi $0: back to the caller.
            0x1a8 if word & 0x3fff == 0 => {
                // SAFETY: the stack is in the store.
                registers[Register::Rip] = unsafe { (stack as *const u64).read() };
                registers[Register::Rsp] = stack + 8;
                return true;
            }
            0 => {
                let code = u64::from(word & 0x3fff);
                // A callback's message follows; the program goes on behind it.
                let message = pc + 4;
                let next = if code & 0x3f00 == 0x2100 {
                    pc + 8
                } else {
                    pc + 4
                };
                // As if the gate had been called from there.
                let kept = [
                    registers[Register::R15],
                    registers[Register::R14],
                    registers[Register::R13],
                    registers[Register::R12],
                    registers[Register::Rbp],
                    registers[Register::Rbx],
                    next,
                ];
                let frame = stack - 56;
                // SAFETY: room below the stack pointer, checked above; the header is ours.
                unsafe {
                    (frame as *mut [u64; 7]).write(kept);
                    (*header).store_stack = frame;
                    (*header).op = 4;
                    (*header).args = [code, message - base, 0, 0];
                    registers[Register::Rsp] = (*header).host_stack;
                }
                registers[Register::Rip] = leave_pc();
                return true;
            }
            _ => break,
        }
    }
    // SAFETY: the store of the program on this thread.
    unsafe {
        if (*header).executable == 1 {
            return false;
        }
        (*header).executable = 1;
        let access = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        libc::mprotect(base as *mut c_void, STORE_BYTES, access) == 0
    }
}

/// True where the instruction or the stack pointer is in the store or its guards; a wild jump
/// leaves the latter.
fn inside(header: *mut Header, pc: u64, stack: u64) -> bool {
    let own = Header::store(header);
    let around = address(header)..own.end + STORE_BYTES.to_u64();
    around.contains(&pc) || around.contains(&stack)
}

/// Passes the signal to the handler that was installed before this library's.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    match before(signal) {
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
            if signal == libc::SIGTRAP {
                // A trap is behind its instruction, which is not executed again.
                // SAFETY: a signal to this thread, for the default action.
                unsafe { libc::raise(signal) };
            }
        }
    }
}
