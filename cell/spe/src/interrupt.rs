//! Interrupts of programs: an event that the mask lets through makes a program with enabled
//! interrupts continue in its handler, wherever it is in its store. The host's orders to stop, to
//! go on and to end reach a program in the same way.
//!
//! A program enables interrupts by giving the gate the address of its library's entry, which saves
//! all registers, calls the handler, and returns by `ret 128`. So an interrupt is a return address
//! below the red zone, and a jump. The engine does it where the program is in the gate; the handler
//! of a signal to the engine's thread does it where the program runs. Taking one disables them, as
//! on an SPU. A signal that finds the engine outside of the program does nothing; the context sends
//! another one a little later, as long as the interrupt is due.
//!
//! A program that is ordered to stop waits within the signal's handler, with all its registers as
//! they are; one that is in the gate stops there ([`crate::context`]). One that is ordered to end
//! leaves its store as by a fault.
//!
//! Must stay true: the thread of [`Interrupts`] is that of an engine which is inside of the
//! program, and engines pass [`retire`] before they end, so that no signal reaches another thread
//! of the number. The signal's handler touches the header, the store and the interrupted registers
//! alone.
//! Source: SPU ISA, "Interrupts".

use crate::registers::{Register, Registers, TRAP_FLAG};
use crate::switch::{Header, Interrupts, OP_FAULT, leave_pc};
use parking_lot::Mutex;
use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::Duration;

/// An interrupt that is due and was not taken is announced again after this time.
pub(crate) const AGAIN: Duration = Duration::from_micros(500);
/// Bytes below the stack pointer that code may use without moving it (System V ABI, x86-64).
const RED_ZONE: u64 = 128;
/// Room that an interrupt's first frame needs at most, with the gate's registers.
const FRAME: u64 = RED_ZONE + 64;

/// Held while a signal is sent, and passed by engines that end.
static SENDS: Mutex<()> = Mutex::new(());
/// Engines whose thread waits within a program that was ordered to stop.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// The host's order to a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    Run,
    Hold,
    End,
}

/// Values of a header's order; the last one is that of a program whose engine waits in its handler.
const RUN: u32 = 0;
const HOLD: u32 = 1;
const END: u32 = 2;
const HELD_INSIDE: u32 = 3;

/// Engines that wait within programs and can run no other one.
pub(crate) fn held() -> usize {
    // Relaxed: a count for the warden, which looks again.
    HELD.load(Ordering::Relaxed)
}

impl Interrupts {
    /// Gives an order. None but a reset follows an end.
    pub(crate) fn set_order(&self, order: Order) {
        let (value, wakes) = match order {
            Order::Run => (RUN, true),
            Order::Hold => (HOLD, false),
            Order::End => (END, true),
        };
        // Release: partners with the Acquire in `order`.
        let update = self
            .order
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |now| {
                let stays = now == END || (value == HOLD && now == HELD_INSIDE);
                (!stays).then_some(value)
            });
        if update.is_ok() && wakes {
            wake(&self.order);
        }
    }

    /// Forgets all orders: a new program is there, or the order to end was obeyed.
    pub(crate) fn forget_order(&self) {
        self.order.store(RUN, Ordering::Release);
    }

    /// The order that the program has not obeyed yet, or that holds it.
    pub(crate) fn order(&self) -> Order {
        match self.order.load(Ordering::Acquire) {
            RUN => Order::Run,
            END => Order::End,
            _ => Order::Hold,
        }
    }

    /// True where an order is still to reach the running program.
    pub(crate) fn has_news(&self) -> bool {
        matches!(self.order.load(Ordering::Acquire), HOLD | END)
    }

    /// Waits while the program is to stop; what is ordered then. Called by the signal's handler.
    fn obey(&self) -> Order {
        let inside =
            self.order
                .compare_exchange(HOLD, HELD_INSIDE, Ordering::AcqRel, Ordering::Acquire);
        if inside.is_ok() {
            HELD.fetch_add(1, Ordering::Relaxed);
            while self.order.load(Ordering::Acquire) == HELD_INSIDE {
                wait(&self.order, HELD_INSIDE);
            }
            HELD.fetch_sub(1, Ordering::Relaxed);
        }
        self.order()
    }

    /// Sends a signal to the engine that is inside of the program, if one is.
    pub(crate) fn announce(&self) {
        let _sends = SENDS.lock();
        let thread = self.thread.load(Ordering::SeqCst);
        if thread != 0 {
            // SAFETY: a signal to a thread of ours, which has not passed `retire`.
            unsafe {
                libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGTRAP);
            }
        }
    }

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
        self.announce();
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

/// Waits while the word has the value. Interrupted waits return as well.
fn wait(word: &AtomicU32, value: u32) {
    let operation = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let none = std::ptr::null::<libc::timespec>();
    // SAFETY: a word that lives as long as the store, whose engine waits here.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, none) };
}

fn wake(word: &AtomicU32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel looks at the address alone.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, 1) };
}

/// This thread's number.
fn own_thread() -> i64 {
    thread_local!(static OWN: Cell<i64> = const { Cell::new(0) });
    OWN.with(|own| {
        if own.get() == 0 {
            // SAFETY: a number of this thread's.
            own.set(unsafe { libc::syscall(libc::SYS_gettid) });
        }
        own.get()
    })
}

/// An engine goes into the program, which stands in the gate; [`outside`] is to be called behind
/// it.
///
/// # Safety
/// `header` is that of a live store whose context this engine has.
pub(crate) unsafe fn inside(header: *mut Header) {
    // SAFETY: the caller's promise.
    let own = unsafe { &(*header).interrupts };
    if !own.are_enabled() {
        // An order is announced until it is obeyed, so no fence is needed.
        own.thread.store(own_thread(), Ordering::Release);
        return;
    }
    // Before the look: an event behind it finds the thread.
    own.thread.store(own_thread(), Ordering::SeqCst);
    // SAFETY: the caller's promise.
    unsafe { at_gate(header) };
}

/// The engine left the program.
///
/// # Safety
/// As for [`inside`].
pub(crate) unsafe fn outside(header: *mut Header) {
    // SAFETY: the caller's promise.
    // Release: before the lock of `retire`, behind which no sender finds the thread.
    unsafe { (*header).interrupts.thread.store(0, Ordering::Release) };
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

/// Obeys an order, and takes an interrupt that is due, where the program runs.
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
    // SAFETY: the caller's promise; the context is not destroyed while its program runs.
    if unsafe { (*header).interrupts.obey() } == Order::End {
        // SAFETY: only this thread uses these fields now.
        unsafe {
            (*header).op = OP_FAULT;
            (*header).fault_signal = libc::SIGKILL;
            (*header).fault_pc = pc;
            (*header).store_stack = stack;
            registers[Register::Rsp] = (*header).host_stack;
        }
        registers[Register::Rip] = leave_pc();
        // Alignment checks that a program switched on end with it.
        registers[Register::Flags] &= !0x4_0500;
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
    fn an_engine_is_inside_between_two_calls_of_the_gate() {
        let store = at_the_gate(0x8000);
        for entry in [0, ENTRY] {
            interrupts(&store).set(entry);
            // SAFETY: a live store, which this thread has.
            unsafe {
                inside(store.header());
                assert_eq!(
                    interrupts(&store).thread.load(Ordering::SeqCst),
                    own_thread()
                );
                outside(store.header());
            }
            assert_eq!(interrupts(&store).thread.load(Ordering::SeqCst), 0);
        }
        retire();
    }

    /// Those of a program that runs in its store.
    fn registers_at(store: &Store) -> Registers {
        let mut registers = Registers::default();
        registers[Register::Rip] = store.base() + 0x400;
        registers[Register::Rsp] = store.base() + 0x9000;
        registers
    }

    #[test]
    fn an_order_holds_a_program_in_its_handler_until_the_next() {
        let store = Store::new().unwrap();
        let own = interrupts(&store);
        own.set_order(Order::Hold);
        assert_eq!((own.order(), own.has_news()), (Order::Hold, true));
        std::thread::scope(|scope| {
            let held = scope.spawn(|| {
                let mut registers = registers_at(&store);
                // SAFETY: the header of our own store.
                unsafe { in_program(store.header(), &mut registers) };
                registers[Register::Rip]
            });
            while own.has_news() {
                std::thread::yield_now();
            }
            // A second stop changes nothing; it waits, and is counted.
            own.set_order(Order::Hold);
            assert_eq!((own.order(), own.has_news()), (Order::Hold, false));
            assert!(super::held() > 0 && !held.is_finished());
            own.set_order(Order::Run);
            assert_eq!(held.join().unwrap(), store.base() + 0x400);
        });
        // One that ends leaves its store, whatever is ordered behind that.
        own.set_order(Order::End);
        own.set_order(Order::Run);
        let mut registers = registers_at(&store);
        // SAFETY: the header of our own store.
        unsafe { in_program(store.header(), &mut registers) };
        assert_eq!(registers[Register::Rip], leave_pc());
        own.forget_order();
        assert_eq!(own.order(), Order::Run);
    }
}
