//! Every order of the loads, stores, sleeps and wake-ups of mailboxes, signals and lines, tried by
//! loom. The event counts that they sleep at have models of their own in `sidecore-sync`.
//!
//! `RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p sidecore-engine --release
//! --test loom`
//!
//! A lost wake-up shows as a deadlock, which loom reports with the order that led to it. The
//! waiters block at once: spinning and yielding only look more often at the same condition.
#![cfg(loom)]
#![allow(clippy::unwrap_used)] // Helper functions of tests.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use sidecore_engine::mail::{Mailbox, Signal, SignalMode};
use sidecore_engine::mfc::Line;
use sidecore_engine::{WaitOptions, Waiter};

fn waiter() -> Waiter {
    Waiter::new(WaitOptions::BLOCK)
}

/// All orders with at most this many preemptions: enough for every known kind of lost wake-up,
/// which takes two, and one more.
fn check(test: impl Fn() + Sync + Send + 'static) {
    check_bounded(3, test);
}

fn check_bounded(switches: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(switches);
    model.check(test);
}

#[test]
fn a_mailbox_of_one_stalls_and_keeps_order() {
    check(|| {
        let mailbox = Arc::new(Mailbox::<1>::new());
        let other = Arc::clone(&mailbox);
        let writer = thread::spawn(move || {
            for word in 1..=2 {
                assert!(other.write(word, &waiter(), None));
            }
        });
        for word in 1..=2 {
            assert_eq!(mailbox.read(&waiter(), None), Some(word));
        }
        assert_eq!(mailbox.try_read(), None);
        writer.join().unwrap();
    });
}

#[test]
fn two_writers_of_one_mailbox_lose_nothing() {
    // Three threads that all block: one switch less, or it takes a minute.
    check_bounded(2, || {
        let mailbox = Arc::new(Mailbox::<1>::new());
        let writers: Vec<_> = (1..=2)
            .map(|word| {
                let mailbox = Arc::clone(&mailbox);
                thread::spawn(move || assert!(mailbox.write(word, &waiter(), None)))
            })
            .collect();
        let first = mailbox.read(&waiter(), None).unwrap();
        let second = mailbox.read(&waiter(), None).unwrap();
        assert_eq!(first + second, 3);
        assert_eq!(mailbox.count(), 0);
        for writer in writers {
            writer.join().unwrap();
        }
    });
}

#[test]
fn two_readers_of_one_mailbox_share_it() {
    check(|| {
        let mailbox = Arc::new(Mailbox::<2>::new());
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let mailbox = Arc::clone(&mailbox);
                thread::spawn(move || mailbox.read(&waiter(), None).unwrap())
            })
            .collect();
        assert!(mailbox.try_write(1) && mailbox.try_write(2));
        let sum: u32 = readers
            .into_iter()
            .map(|reader| reader.join().unwrap())
            .sum();
        assert_eq!(sum, 3);
    });
}

#[test]
fn what_was_written_before_a_word_comes_with_it() {
    check(|| {
        let shared = Arc::new((AtomicU32::new(0), Mailbox::<4>::new()));
        let other = Arc::clone(&shared);
        let writer = thread::spawn(move || {
            other.0.store(5, Ordering::Relaxed);
            assert!(other.1.try_write(1));
        });
        assert_eq!(shared.1.read(&waiter(), None), Some(1));
        assert_eq!(shared.0.load(Ordering::Relaxed), 5);
        writer.join().unwrap();
    });
}

#[test]
fn signals_gather_every_bit() {
    check(|| {
        let signal = Arc::new(Signal::new(SignalMode::Or));
        let senders: Vec<_> = [1, 2]
            .map(|bit| {
                let signal = Arc::clone(&signal);
                thread::spawn(move || signal.send(bit))
            })
            .into_iter()
            .collect();
        let mut bits = 0;
        while bits != 3 {
            bits |= signal.read(&waiter(), None).unwrap();
        }
        for sender in senders {
            sender.join().unwrap();
        }
    });
}

#[test]
fn a_line_is_read_whole() {
    check(|| {
        let line = Arc::new(Line::new([0, 0]));
        let other = Arc::clone(&line);
        let writer = thread::spawn(move || other.write(&[1, 1]));
        let words = line.read();
        assert_eq!(words[0], words[1]);
        writer.join().unwrap();
        assert_eq!(line.read(), [1, 1]);
    });
}
