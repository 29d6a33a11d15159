//! Counters: what they count, waiting for a number, errors.

use super::*;

fn value(cntr: *mut fid_cntr) -> u64 {
    op!(cntr, ops.read())
}

#[test]
fn a_counter_is_set_added_to_and_waited_for() {
    let world = World::open();
    let cntr = world.cntr();
    assert_eq!((value(cntr), op!(cntr, ops.readerr())), (0, 0));
    assert_eq!(op!(cntr, ops.add(5)), 0);
    assert_eq!(op!(cntr, ops.add(u64::MAX)), 0);
    assert_eq!(value(cntr), 4, "it wraps");
    assert_eq!(op!(cntr, ops.set(9)), 0);
    assert_eq!(value(cntr), 9);
    assert_eq!(op!(cntr, ops.adderr(2)), 0);
    assert_eq!(op!(cntr, ops.readerr()), 2);
    assert_eq!(op!(cntr, ops.seterr(1)), 0);
    assert_eq!((value(cntr), op!(cntr, ops.readerr())), (9, 1));
    // Reached, late, and errors from before, which end no wait.
    assert_eq!(op!(cntr, ops.wait(9, 0)), 0);
    assert_eq!(op!(cntr, ops.wait(10, 0)), -libc::ETIMEDOUT);
    let begun = Instant::now();
    assert_eq!(op!(cntr, ops.wait(10, 20)), -libc::ETIMEDOUT);
    assert!(begun.elapsed() >= Duration::from_millis(20));
    assert_eq!(close(cntr), 0);
}

/// A counter for another thread.
#[derive(Clone, Copy)]
struct Shared(*mut fid_cntr);

// SAFETY: threads may share objects: the provider offers FI_THREAD_SAFE.
unsafe impl Send for Shared {}

impl Shared {
    fn add(self, value: u64) -> c_int {
        op!(self.0, ops.add(value))
    }

    fn add_error(self) -> c_int {
        op!(self.0, ops.adderr(1))
    }
}

#[test]
fn a_waiter_wakes_at_its_number_or_at_a_new_error() {
    let world = World::open();
    let cntr = world.cntr();
    let shared = Shared(cntr);
    let adder = std::thread::spawn(move || {
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(5));
            assert_eq!(shared.add(1), 0);
        }
    });
    assert_eq!(op!(cntr, ops.wait(3, LONG_MS)), 0);
    adder.join().expect("it adds");
    let failing = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(shared.add_error(), 0);
    });
    assert_eq!(op!(cntr, ops.wait(100, LONG_MS)), -FI_EAVAIL);
    failing.join().expect("it adds");
    assert_eq!(close(cntr), 0);
}

#[test]
fn each_kind_of_operation_counts_where_it_is_bound() {
    let kinds = [FI_SEND, FI_RECV, FI_READ, FI_WRITE];
    let counters = std::cell::RefCell::new(Vec::new());
    let two = Two::bound(0, |world, ep| {
        for kind in kinds {
            let cntr = world.cntr();
            assert_eq!(bind(ep, cntr, kind), 0);
            counters.borrow_mut().push(cntr);
        }
    });
    let counters = counters.into_inner();
    let (client, server) = counters.split_at(4);
    let values = |of: &[*mut fid_cntr]| [0, 1, 2, 3].map(|index| value(of[index]));
    let mut there = [0_u64; 2];
    let mr = two
        .world
        .memory(&mut there, FI_REMOTE_READ | FI_REMOTE_WRITE);
    // SAFETY: a region.
    let key = unsafe { (*mr).key };
    let base = there.as_ptr().addr().try_into().expect("64 bits");
    let mut into = [0_u8; 8];
    for _ in 0..2 {
        assert_eq!(two.receive(two.server, &mut into, null_mut()), 0);
        assert_eq!(two.send(two.client, b"x", null_mut()), 0);
    }
    let word = [1_u64];
    let bytes = word.as_ptr().cast();
    assert_eq!(
        op!(two.client, rma.inject(bytes, 8, 0, base, key)),
        0,
        "counted, too"
    );
    let mut back = [0_u64; 2];
    let target = back.as_mut_ptr().cast();
    let read = op!(
        two.client,
        rma.read(target, 16, null_mut(), 0, base, key, null_mut())
    );
    assert_eq!(read, 0);
    assert_eq!(op!(client[2], ops.wait(1, LONG_MS)), 0);
    assert_eq!(op!(server[1], ops.wait(2, LONG_MS)), 0);
    assert_eq!(values(client), [2, 0, 1, 1]);
    assert_eq!(values(server), [0, 2, 0, 0]);
    // What is flushed counts as an error.
    assert_eq!(two.receive(two.server, &mut into, null_mut()), 0);
    assert_eq!(op!(two.client, cm.shutdown(0)), 0);
    let begun = Instant::now();
    while op!(server[1], ops.readerr()) == 0 {
        assert!(begun.elapsed() < LONG, "its receive is flushed");
    }
    assert_eq!((value(server[1]), op!(server[1], ops.readerr())), (2, 1));
    assert_eq!(close(mr), 0);
    drop(two);
    for cntr in counters {
        assert_eq!(close(cntr), 0);
    }
}
