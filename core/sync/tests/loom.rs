//! Every order of the sleep/wake protocol and of the rings, tried by loom.
//!
//! `scripts/check-loom`, or `RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p
//! sidecore-sync --release --test loom`
//!
//! A lost wake-up shows as a deadlock, which loom reports with the order that led to it. Two
//! preemptions suffice for every known kind of lost wake-up; three are tried where that takes
//! seconds.
#![cfg(loom)]
#![allow(clippy::unwrap_used)] // Helper functions of tests.

use loom::sync::Arc;
use loom::thread;
use sidecore_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use sidecore_sync::spsc::lines::{LINE_WORDS, Line, Lines, Reader, Writer};
use sidecore_sync::spsc::{Consumer, Producer, ring};
use sidecore_sync::{Changed, EventCount, MessageCount, Private, Shared, SleepWord};

fn check(switches: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(switches);
    model.check(test);
}

#[test]
fn a_notification_is_never_missed() {
    check(3, || {
        let shared = Arc::new((AtomicU32::new(0), EventCount::<Private>::new()));
        let other = Arc::clone(&shared);
        let notifier = thread::spawn(move || {
            other.0.store(7, Ordering::Relaxed);
            other.1.notify_all();
        });
        let seen = shared.1.wait_until(0, None, || {
            let value = shared.0.load(Ordering::Relaxed);
            (value != 0).then_some(value)
        });
        assert_eq!(seen, Some(7));
        assert!(!shared.1.has_waiters());
        notifier.join().unwrap();
    });
}

#[test]
fn two_sleepers_both_wake() {
    check(2, || {
        let shared = Arc::new((AtomicU32::new(0), EventCount::<Shared>::new()));
        let sleepers: Vec<_> = (0..2)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let set = || (shared.0.load(Ordering::Acquire) == 1).then_some(());
                    shared.1.wait_until(0, None, set);
                })
            })
            .collect();
        shared.0.store(1, Ordering::Release);
        shared.1.notify_all();
        for sleeper in sleepers {
            sleeper.join().unwrap();
        }
    });
}

/// Two tokens, each announced to one: both sleepers get theirs.
#[test]
fn one_notification_a_token_suffices() {
    check(2, || {
        let shared = Arc::new((AtomicU32::new(0), EventCount::<Private>::new()));
        let sleepers: Vec<_> = (0..2)
            .map(|_| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    shared.1.wait_until(0, None, || {
                        let less = |tokens: u32| tokens.checked_sub(1);
                        let tokens = &shared.0;
                        let taken = tokens.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
                        taken.ok()
                    });
                })
            })
            .collect();
        for _ in 0..2 {
            shared.0.fetch_add(1, Ordering::AcqRel);
            shared.1.notify_one();
        }
        for sleeper in sleepers {
            sleeper.join().unwrap();
        }
    });
}

#[test]
fn a_sleep_word_loses_no_wake_up_of_two_wakers() {
    check(3, || {
        let shared = Arc::new((AtomicU32::new(0), SleepWord::<Shared>::new()));
        let wakers: Vec<_> = [1, 2]
            .into_iter()
            .map(|bit| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    shared.0.fetch_or(bit, Ordering::Relaxed);
                    shared.1.notify();
                })
            })
            .collect();
        let is_all = || shared.0.load(Ordering::Relaxed) == 3;
        while !is_all() {
            shared.1.sleep_unless(None, is_all);
        }
        for waker in wakers {
            waker.join().unwrap();
        }
    });
}

/// One sleeper announced at two words, as an engine is to all of its clients; one fence for both.
#[test]
fn a_sleeper_at_two_words_is_woken_at_either() {
    struct Bell(loom::sync::Mutex<bool>, loom::sync::Condvar);
    check(2, || {
        let shared = Arc::new((
            [AtomicU32::new(0), AtomicU32::new(0)],
            [SleepWord::<Shared>::new(), SleepWord::<Shared>::new()],
            Bell(loom::sync::Mutex::new(false), loom::sync::Condvar::new()),
        ));
        let clients: Vec<_> = [0, 1]
            .into_iter()
            .map(|client| {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    shared.0[client].store(1, Ordering::Release);
                    if shared.1[client].claim_after(Changed::publish()) {
                        *shared.2.0.lock().unwrap() = true;
                        shared.2.1.notify_one();
                    }
                })
            })
            .collect();
        let count = || {
            let load = |request: &AtomicU32| request.load(Ordering::Acquire);
            shared.0.iter().map(load).sum::<u32>()
        };
        let mut served = 0;
        while served < 2 {
            SleepWord::announce_sleep_at(&shared.1);
            if count() == served {
                let mut rung = shared.2.0.lock().unwrap();
                while !*rung {
                    rung = shared.2.1.wait(rung).unwrap();
                }
                *rung = false;
            }
            for word in &shared.1 {
                word.cancel_sleep();
            }
            served = count();
        }
        for client in clients {
            client.join().unwrap();
        }
    });
}

#[test]
fn every_post_is_one_message_to_a_reader_that_sleeps_at_once() {
    check(3, || {
        let shared = Arc::new((MessageCount::new(), AtomicU32::new(0), AtomicU32::new(0)));
        let other = Arc::clone(&shared);
        let reader = thread::spawn(move || {
            let mut seen = 0;
            for message in 1..=2 {
                while !other.0.poll(&mut seen) {
                    other.0.sleep(seen);
                }
                assert_eq!(other.1.load(Ordering::Relaxed), message);
                other.2.store(message, Ordering::Release);
            }
        });
        for message in 1..=2 {
            shared.1.store(message, Ordering::Relaxed);
            shared.0.post();
            while shared.2.load(Ordering::Acquire) != message {
                thread::yield_now();
            }
        }
        reader.join().unwrap();
    });
}

#[derive(Default)]
struct Memory {
    lines: [Line; 2],
    position: AtomicU64,
    asleep: SleepWord<Shared>,
}

impl Lines<2> for Memory {
    fn line(&self, index: usize) -> Option<&Line> {
        self.lines.get(index)
    }

    fn position(&self) -> Option<&AtomicU64> {
        Some(&self.position)
    }
}

fn entry(number: u64) -> [u64; LINE_WORDS] {
    [number, 0, 0, 0, 0, 0, number ^ 0x55]
}

/// Three entries through two places: one is written over. The reader sleeps between.
#[test]
fn lines_cross_whole_and_in_order_and_are_not_slept_over() {
    check(3, || {
        let memory = Arc::new(Memory::default());
        let other = Arc::clone(&memory);
        let writing = thread::spawn(move || {
            let mut writer = Writer::<2>::default();
            let mut next = 1;
            while next <= 3 {
                if writer.write(&*other, &entry(next)).unwrap() {
                    next += 1;
                    other.asleep.notify();
                } else {
                    thread::yield_now();
                }
            }
        });
        let mut reader = Reader::<2>::default();
        let mut expected = 1;
        while expected <= 3 {
            match reader.read(&*memory) {
                Some(words) => {
                    assert_eq!(words, entry(expected));
                    expected += 1;
                }
                None => memory
                    .asleep
                    .sleep_unless(None, || !reader.is_empty(&*memory)),
            }
        }
        assert!(reader.is_empty(&*memory));
        writing.join().unwrap();
    });
}

#[derive(Default)]
struct Records {
    records: [AtomicU64; 2],
    producer: AtomicU64,
    consumer: AtomicU64,
    asleep: SleepWord<Shared>,
}

/// Three records through two places, by positions alone.
#[test]
fn records_cross_in_order_and_are_not_slept_over() {
    check(3, || {
        let memory = Arc::new(Records::default());
        let other = Arc::clone(&memory);
        let sending = thread::spawn(move || {
            let mut end = Producer::new(2);
            while end.position() < 3 {
                if end.room(1, &other.consumer).unwrap() > 0 {
                    let record = &other.records[end.position() as usize % 2];
                    record.store(10 + end.position(), Ordering::Relaxed);
                    end.advance(1);
                    end.publish(&other.producer);
                    other.asleep.notify();
                } else {
                    thread::yield_now();
                }
            }
        });
        let mut end = Consumer::new(2);
        while end.position() < 3 {
            if end.available(&memory.producer).unwrap() == 0 {
                memory
                    .asleep
                    .sleep_unless(None, || end.available(&memory.producer).unwrap() > 0);
                continue;
            }
            let record = memory.records[end.position() as usize % 2].load(Ordering::Relaxed);
            assert_eq!(record, 10 + end.position());
            end.advance(1);
            end.release(&memory.consumer);
        }
        sending.join().unwrap();
    });
}

/// Loom's cells notice two ends at one place.
#[test]
fn a_place_of_a_typed_ring_belongs_to_one_end_at_a_time() {
    check(3, || {
        let (mut sender, mut receiver) = ring(2, |_| 0_u64);
        let sending = thread::spawn(move || {
            let mut next = 1;
            while next <= 3 {
                match sender.acquire() {
                    Some(mut place) => {
                        *place = next;
                        place.commit();
                        next += 1;
                    }
                    None => thread::yield_now(),
                }
            }
        });
        let mut expected = 1;
        while expected <= 3 {
            match receiver.wait() {
                Some(place) => {
                    assert_eq!(*place, expected);
                    place.release();
                    expected += 1;
                }
                None => thread::yield_now(),
            }
        }
        sending.join().unwrap();
    });
}
