//! Registers of problem-state areas, with a target that records.

use super::*;
use parking_lot::Mutex;
use std::sync::Arc;

/// A context that records writes and has words to be read.
#[derive(Debug, Default)]
struct Recorder {
    writes: Mutex<Vec<(usize, u32)>>,
    words: Mutex<Vec<u32>>,
}

impl Target for Recorder {
    fn write_register(&self, register: Register, value: u32) {
        let index = match register {
            Register::Signal(index) => index,
            Register::InMailbox => 9,
        };
        self.writes.lock().push((index, value));
    }

    fn read_mailbox(&self) -> Option<u32> {
        self.words.lock().pop()
    }
}

fn areas() -> (Arc<Recorder>, Areas) {
    let recorder = Arc::new(Recorder::default());
    let weak: Weak<Recorder> = Arc::downgrade(&recorder);
    let areas = Areas::new(weak).unwrap();
    (recorder, areas)
}

#[test]
fn areas_are_pages_below_4_gib() {
    let (_recorder, areas) = areas();
    let addresses = Kind::ALL.map(|kind| areas.address(kind));
    assert!(addresses.windows(2).all(|pair| pair[1] == pair[0] + PAGE));
    assert!(addresses[4] + PAGE < 1 << 32 && addresses[0].is_multiple_of(SHADOW));
}

#[test]
fn registers_are_found_by_their_addresses_alone() {
    let (recorder, areas) = areas();
    let registers = [
        (Kind::Signal1, SIGNAL, 0),
        (Kind::Signal2, SIGNAL, 1),
        (Kind::Control, IN_MAILBOX, 9),
    ];
    for (kind, offset, index) in registers {
        let write = find(areas.address(kind) + offset, 5).expect("a register");
        write.deliver();
        assert_eq!(recorder.writes.lock().pop(), Some((index, 5)));
        // Not at other offsets, nor in other areas.
        assert!(find(areas.address(kind) + offset + 4, 5).is_none());
        assert!(find(areas.address(kind), 5).is_none());
    }
    assert!(find(areas.address(Kind::Sync) + SIGNAL, 5).is_none());
    assert!(find(areas.address(Kind::Command) + SIGNAL, 5).is_none());
    // Behind the last area, and where there is none.
    assert!(find(areas.address(Kind::Signal2) + PAGE + SIGNAL, 5).is_none());
    assert!(find(0, 5).is_none() && find(u64::MAX, 5).is_none());
}

#[test]
fn words_are_shown_in_the_second_pages() {
    let (recorder, areas) = areas();
    let control = areas.address(Kind::Control);
    areas.show_mailboxes(0x0403);
    assert_eq!(read(control + MAILBOX_STATUS), Some(0x0403));
    assert_eq!(memory(control + 8), control + 8 + SHADOW);
    assert_eq!(memory(0x1234), 0x1234);
    // A read of the outbound mailbox takes its word; of an empty one it is 0.
    recorder.words.lock().push(7);
    assert_eq!(read(control + OUT_MAILBOX), Some(7));
    assert_eq!(read(control + OUT_MAILBOX), Some(0));
    // The queue of the host's commands is always empty, and all tags are done.
    let command = areas.address(Kind::Command);
    assert_eq!(
        read(command + QUEUE_STATUS),
        Some(QUEUE_EMPTY | PROXY_QUEUE)
    );
    assert_eq!(read(command + TAG_STATUS), Some(u32::MAX));
    assert_eq!(read(4), None);
}

#[test]
fn areas_end_with_their_context() {
    let (recorder, areas) = areas();
    let signal = areas.address(Kind::Signal1) + SIGNAL;
    let write = find(signal, 1).expect("a register");
    drop(recorder);
    // The context is gone: its registers are no more, and a write under way goes nowhere.
    write.deliver();
    assert_eq!(read(signal), None);
    drop(areas);
    assert!(find(signal, 1).is_none());
}
