//! Interrupts that are due, taken at the gate and where a program runs.

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
