//! Cost of handing a message over while no thread sleeps, in each way that this crate has.
//!
//! `cargo run --release -p sidecore-sync --example notify_cost`
//!
//! One thread, in turns, medians of nanoseconds: a plain store; a message posted; the same as a
//! release store followed by the look at a sleep word and at an event count.
#![allow(clippy::print_stdout)] // A program for people.

use sidecore_sync::{EventCount, MessageCount, Private, SleepWord};
use sidecore_sys::clock;
use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering};

const ROUNDS: u32 = 20_000;
const SAMPLES: usize = 201;

fn main() {
    let (store, messages) = (AtomicU32::new(0), MessageCount::new());
    let (count, asleep) = (AtomicU32::new(0), SleepWord::<Private>::new());
    let (other, events) = (AtomicU32::new(0), EventCount::<Private>::new());
    let mut samples = [const { Vec::new() }; 4];
    for _ in 0..SAMPLES {
        samples[0].push(time(|round| store.store(round, Ordering::Release)));
        samples[1].push(time(|_| messages.post()));
        samples[2].push(time(|round| {
            count.store(round, Ordering::Release);
            asleep.notify();
        }));
        samples[3].push(time(|round| {
            other.store(round, Ordering::Release);
            events.notify_all();
        }));
    }
    let names = [
        "store",
        "MessageCount::post",
        "store, SleepWord",
        "store, EventCount",
    ];
    for (name, samples) in names.into_iter().zip(&mut samples) {
        samples.sort_by(f64::total_cmp);
        println!("{name:20} {:6.2} ns", samples[SAMPLES / 2]);
    }
}

/// Nanoseconds that a round takes.
fn time(work: impl Fn(u32)) -> f64 {
    let begun_ns = clock::now_ns();
    for round in 0..ROUNDS {
        work(black_box(round));
    }
    (clock::now_ns() - begun_ns) as f64 / f64::from(ROUNDS)
}
