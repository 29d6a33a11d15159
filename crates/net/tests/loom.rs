//! Every interleaving of the rings between applications and the engine, and of the link between two
//! stacks, tried by loom: nothing is torn, lost or read twice, and no side sleeps over what the other
//! wrote.
//!
//! `RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p sidecore-net --release --test loom`
//!
//! The sources are the crate's own, with loom's atomics in place of the processor's. A lost wake-up
//! shows as a deadlock.
#![cfg(loom)]
#![allow(clippy::unwrap_used, dead_code, unreachable_pub)] // Helper functions of tests.

mod atomic {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

#[path = "../src/sock/order.rs"]
mod ring;

#[path = "../src/nic/pair/order.rs"]
mod link;

use atomic::{AtomicU32, AtomicU64, Ordering};
use link::Words;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use ring::{Line, Lines, Reader, Writer, announce_sleep, sleeps};

/// All orders with at most this many switches of a thread that could have gone on.
fn check(switches: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(switches);
    model.check(test);
}

/// What a sleeper waits for and a waker rings: an eventfd, a futex.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    rings: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.rings.notify_one();
    }

    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.rings.wait(rung).unwrap();
        }
        *rung = false;
    }
}

#[derive(Default)]
struct Shared {
    lines: [Line; 2],
    position: AtomicU64,
    asleep: AtomicU32,
    bell: Bell,
}

impl Lines<2> for Shared {
    fn line(&self, index: usize) -> Option<&Line> {
        self.lines.get(index)
    }

    fn position(&self) -> Option<&AtomicU64> {
        Some(&self.position)
    }
}

fn entry(number: u64) -> [u64; 7] {
    [number, 0, 0, 0, 0, 0, number ^ 0x55]
}

#[test]
fn entries_cross_whole_and_in_order_and_are_not_slept_over() {
    check(3, || {
        let shared = Arc::new(Shared::default());
        let other = Arc::clone(&shared);
        // Three through two places: one is written over.
        let writing = thread::spawn(move || {
            let mut writer = Writer::<2>::default();
            let mut next = 1;
            while next <= 3 {
                if writer.write(&*other, &entry(next)).unwrap() {
                    next += 1;
                    if sleeps(Some(&other.asleep)) {
                        other.asleep.store(0, Ordering::Relaxed);
                        other.bell.ring();
                    }
                } else {
                    thread::yield_now();
                }
            }
        });
        let mut reader = Reader::<2>::default();
        let mut expected = 1;
        while expected <= 3 {
            match reader.read(&*shared) {
                Some(words) => {
                    assert_eq!(words, entry(expected));
                    expected += 1;
                }
                None => {
                    announce_sleep([&shared.asleep].into_iter());
                    if reader.is_empty(&*shared) {
                        shared.bell.wait();
                    }
                    shared.asleep.store(0, Ordering::Relaxed);
                }
            }
        }
        assert!(reader.is_empty(&*shared));
        writing.join().unwrap();
    });
}

/// A link of two records.
#[derive(Default)]
struct Link {
    records: [AtomicU64; 2],
    sender: AtomicU64,
    receiver: AtomicU64,
    asleep: AtomicU32,
    bell: Bell,
}

impl Link {
    fn words(&self) -> Words<'_> {
        Words {
            sender: &self.sender,
            receiver: &self.receiver,
            asleep: &self.asleep,
        }
    }
}

#[test]
fn frames_cross_in_order_and_are_not_slept_over() {
    check(3, || {
        let link = Arc::new(Link::default());
        let other = Arc::clone(&link);
        let sending = thread::spawn(move || {
            let words = other.words();
            let mut written = 0;
            while written < 3 {
                if written - words.read(written, 2).unwrap() < 2 {
                    other.records[written as usize % 2].store(10 + written, Ordering::Relaxed);
                    written += 1;
                    if words.publish(written) {
                        other.bell.ring();
                    }
                } else {
                    thread::yield_now();
                }
            }
        });
        let words = link.words();
        let mut read = 0;
        while read < 3 {
            if words.written(read, 2).unwrap() == read {
                words.fall_asleep();
                if words.written(read, 2).unwrap() == read {
                    link.bell.wait();
                }
                words.wake_up();
                continue;
            }
            let record = link.records[read as usize % 2].load(Ordering::Relaxed);
            assert_eq!(record, 10 + read);
            read += 1;
            words.release(read);
        }
        sending.join().unwrap();
    });
}
