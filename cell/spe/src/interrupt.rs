//! Interrupts of programs: an event that the mask lets through makes a program with enabled
//! interrupts continue in its handler, wherever it is in its store.
//!
//! A program enables interrupts by giving the gate the address of its library's entry, which saves
//! all registers, calls the handler, and returns by `ret 128`. So an interrupt is a return address
//! below the red zone, and a jump. The engine does it where the program is in the gate; the handler
//! of a signal to the engine's thread does it where the program runs. Taking one disables them, as
//! on an SPU. A signal that finds the engine outside of the program does nothing; the context sends
//! another one a little later, as long as the interrupt is due.
//!
//! Must stay true: the thread of [`Interrupts`] is that of an engine which is inside of the
//! program, and engines pass [`retire`] before they end, so that no signal reaches another thread
//! of the number. The signal's handler touches the header, the store and the interrupted registers
//! alone.
//! Source: SPU ISA, "Interrupts".

use crate::registers::{Register, Registers, TRAP_FLAG};
use crate::switch::{Header, Interrupts};
use parking_lot::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// An interrupt that is due and was not taken is announced again after this time.
pub(crate) const AGAIN: Duration = Duration::from_micros(500);
/// Bytes below the stack pointer that code may use without moving it (System V ABI, x86-64).
const RED_ZONE: u64 = 128;
/// Room that an interrupt's first frame needs at most, with the gate's registers.
const FRAME: u64 = RED_ZONE + 64;

/// Held while a signal is sent, and passed by engines that end.
static SENDS: Mutex<()> = Mutex::new(());

impl Interrupts {
    /// Enables interrupts by the library's entry, or disables them (0); returns the previous entry.
    pub(crate) fn set(&self, entry: u64) -> u64 {
        if entry == 0 {
            self.due.store(0, Ordering::SeqCst);
        }
        self.entry.swap(entry, Ordering::SeqCst)
    }

    pub(crate) fn are_enabled(&self) -> bool {
        self.entry.load(Ordering::SeqCst) != 0
    }

    /// An event is to interrupt the program: at once where an engine is inside of it.
    pub(crate) fn raise(&self) {
        self.due.store(1, Ordering::SeqCst);
        let _sends = SENDS.lock();
        let thread = self.thread.load(Ordering::SeqCst);
        if thread != 0 {
            // SAFETY: a signal to a thread of ours, which has not passed `retire`.
            unsafe {
                libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGTRAP);
            }
        }
    }

    /// The entry, if an interrupt is due and they are enabled; they are disabled then.
    fn take(&self) -> Option<u64> {
        if self.due.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let entry = self.entry.swap(0, Ordering::SeqCst);
        if entry != 0 {
            self.due.store(0, Ordering::SeqCst);
        }
        Some(entry).filter(|entry| *entry != 0)
    }
}

/// An engine goes into the program, which stands in the gate; true where [`outside`] is to be
/// called behind it.
///
/// # Safety
/// `header` is that of a live store whose context this engine has.
pub(crate) unsafe fn inside(header: *mut Header) -> bool {
    // SAFETY: the caller's promise.
    let own = unsafe { &(*header).interrupts };
    if !own.are_enabled() {
        return false;
    }
    // SAFETY: a number of this thread's.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) };
    // Before the look: an event behind it finds the thread.
    own.thread.store(thread, Ordering::SeqCst);
    // SAFETY: the caller's promise.
    unsafe { at_gate(header) };
    true
}

/// The engine left the program.
///
/// # Safety
/// As for [`inside`].
pub(crate) unsafe fn outside(header: *mut Header) {
    // SAFETY: the caller's promise.
    unsafe { (*header).interrupts.thread.store(0, Ordering::SeqCst) };
}

/// An engine ends: no signal to its thread is under way behind this.
pub(crate) fn retire() {
    drop(SENDS.lock());
}

/// Takes an interrupt that is due before the gate returns. The gate's frame is put below that of
/// the interrupt, with the entry as its return address.
///
/// # Safety
/// As for [`inside`].
unsafe fn at_gate(header: *mut Header) {
    // SAFETY: the caller's promise; no other thread changes the field while this engine has it.
    let stack = unsafe { (*header).store_stack };
    if !has_room(header, stack) {
        return;
    }
    // SAFETY: the caller's promise.
    let Some(entry) = (unsafe { (*header).interrupts.take() }) else {
        return;
    };
    // Six registers and where the gate returns to.
    // SAFETY: the frame that the program left at the gate, in its store.
    let [registers @ .., resume] = unsafe { (stack as *const [u64; 7]).read() };
    let resume_at = stack + 56 - RED_ZONE - 8;
    let frame = resume_at - 56;
    // SAFETY: room below the stack pointer, checked above.
    unsafe {
        (resume_at as *mut u64).write(resume);
        (frame as *mut [u64; 6]).write(registers);
        ((frame + 48) as *mut u64).write(entry);
        (*header).store_stack = frame;
    }
}

/// Takes an interrupt that is due where the program runs.
///
/// # Safety
/// Called by the signal's handler, with the header of the program on this thread.
pub(crate) unsafe fn in_program(header: *mut Header, registers: &mut Registers) {
    let (pc, stack) = (registers[Register::Rip], registers[Register::Rsp]);
    // In the gate, or within a step of ours: another signal comes.
    let steps = registers[Register::Flags] & TRAP_FLAG != 0;
    if !Header::store(header).contains(&pc) || steps {
        return;
    }
    if !has_room(header, stack) {
        return;
    }
    // SAFETY: the caller's promise.
    let Some(entry) = (unsafe { (*header).interrupts.take() }) else {
        return;
    };
    let resume_at = stack - RED_ZONE - 8;
    // SAFETY: room below the stack pointer, checked above.
    unsafe { (resume_at as *mut u64).write(pc) };
    registers[Register::Rsp] = resume_at;
    registers[Register::Rip] = entry;
}

/// True where an interrupt's frame fits below the stack pointer.
fn has_room(header: *mut Header, stack: u64) -> bool {
    let store = Header::store(header);
    (store.start + FRAME..store.end).contains(&stack)
}

#[cfg(test)]
mod tests;
