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
mod tests {
    use super::*;
    use crate::store::Store;

    const ENTRY: u64 = 0x5000;

    /// A store whose program stands in the gate, with a frame of 1 to 7 at `stack`.
    fn at_the_gate(stack: u64) -> Store {
        let store = Store::new().unwrap();
        let frame: Vec<u8> = (1..=7_u64).flat_map(u64::to_le_bytes).collect();
        assert!(store.write(stack as usize, &frame));
        // SAFETY: the header of our own store, which no engine has.
        unsafe { (*store.header()).store_stack = store.base() + stack };
        store
    }

    fn interrupts(store: &Store) -> &Interrupts {
        // SAFETY: as long as the store lives.
        unsafe { &(*store.header()).interrupts }
    }

    fn stack(store: &Store) -> u64 {
        // SAFETY: the header of our own store.
        unsafe { (*store.header()).store_stack }
    }

    fn wide(store: &Store, at: u64) -> u64 {
        u64::from(store.word(at)) | u64::from(store.word(at + 4)) << 32
    }

    #[test]
    fn taking_one_disables_them() {
        let own = Interrupts::default();
        assert!(!own.are_enabled());
        own.raise();
        assert_eq!(own.take(), None);
        assert_eq!(own.set(ENTRY), 0);
        assert!(own.are_enabled());
        // One that was due when they were enabled is taken.
        assert_eq!((own.take(), own.take()), (Some(ENTRY), None));
        assert!(!own.are_enabled());
        // Disabling them takes back what was due.
        own.set(ENTRY);
        own.raise();
        assert_eq!(own.set(0), ENTRY);
        own.set(ENTRY);
        assert_eq!(own.take(), None);
    }

    #[test]
    fn at_the_gate_the_frame_is_put_below() {
        let store = at_the_gate(0x8000);
        // Not enabled, nothing due: the frame stays.
        // SAFETY: a live store, which this thread has.
        unsafe { at_gate(store.header()) };
        assert_eq!(stack(&store), store.base() + 0x8000);
        interrupts(&store).set(ENTRY);
        interrupts(&store).raise();
        // SAFETY: as above.
        unsafe { at_gate(store.header()) };
        let resume_at = 0x8000 + 56 - RED_ZONE - 8;
        assert_eq!(stack(&store), store.base() + resume_at - 56);
        // The gate pops the registers and returns to the entry; that returns to where the gate was
        // called, over the red zone.
        for (index, register) in (1..=6).enumerate() {
            assert_eq!(wide(&store, resume_at - 56 + 8 * index as u64), register);
        }
        assert_eq!(wide(&store, resume_at - 8), ENTRY);
        assert_eq!(wide(&store, resume_at), 7);
    }

    #[test]
    fn where_there_is_no_room_it_stays_due() {
        let store = at_the_gate(FRAME - 16);
        interrupts(&store).set(ENTRY);
        interrupts(&store).raise();
        // SAFETY: a live store, which this thread has.
        unsafe { at_gate(store.header()) };
        assert_eq!(stack(&store), store.base() + FRAME - 16);
        assert_eq!(interrupts(&store).take(), Some(ENTRY));
        for (stack, fits) in [
            (0, false),
            (FRAME - 1, false),
            (FRAME, true),
            (1 << 18, false),
        ] {
            assert_eq!(
                has_room(store.header(), store.base() + stack),
                fits,
                "{stack}"
            );
        }
    }

    #[test]
    fn a_running_program_goes_on_in_its_handler() {
        let store = Store::new().unwrap();
        let own = interrupts(&store);
        own.set(ENTRY);
        own.raise();
        let (pc, stack) = (store.base() + 0x400, store.base() + 0x9000);
        let mut registers = Registers::default();
        registers[Register::Rsp] = stack;
        // In the gate, or within a single step, it comes later.
        for (pc, flags) in [(0x1000, 0), (pc, TRAP_FLAG)] {
            registers[Register::Rip] = pc;
            registers[Register::Flags] = flags;
            // SAFETY: the header of our own store; the registers are our own.
            unsafe { in_program(store.header(), &mut registers) };
            assert_eq!(
                (registers[Register::Rip], registers[Register::Rsp]),
                (pc, stack)
            );
        }
        registers[Register::Rip] = pc;
        registers[Register::Flags] = 0;
        // SAFETY: as above.
        unsafe { in_program(store.header(), &mut registers) };
        assert_eq!(registers[Register::Rip], ENTRY);
        assert_eq!(registers[Register::Rsp], stack - RED_ZONE - 8);
        assert_eq!(wide(&store, 0x9000 - RED_ZONE - 8), pc);
        // It is taken once.
        // SAFETY: as above.
        unsafe { in_program(store.header(), &mut registers) };
        assert_eq!(registers[Register::Rip], ENTRY);
    }

    #[test]
    fn an_engine_is_inside_only_with_interrupts() {
        let store = at_the_gate(0x8000);
        // SAFETY: a live store, which this thread has.
        unsafe {
            assert!(!inside(store.header()));
            assert_eq!(interrupts(&store).thread.load(Ordering::SeqCst), 0);
            interrupts(&store).set(ENTRY);
            assert!(inside(store.header()));
            assert_ne!(interrupts(&store).thread.load(Ordering::SeqCst), 0);
            outside(store.header());
        }
        assert_eq!(interrupts(&store).thread.load(Ordering::SeqCst), 0);
        retire();
    }
}
