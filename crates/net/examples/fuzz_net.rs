//! Damages the frames of real sessions and gives them to a stack, and lets a hostile application write
//! what it likes into its rings: the bounded run that stands for fuzzing in the checks.
//!
//! `cargo run --release -p sidecore-net --example fuzz_net -- --inputs 10000000 --seed 1`
//!
//! Fails on a panic, on a malformed frame that the stack sends and on an input that takes longer than
//! [`HANG_S`] seconds. Inputs come in runs of [`RUN`], each with its own seed, odd ones of frames and
//! even ones of requests; every failure prints the seed of its run, and `--seed SEED --inputs 10000`
//! does it again.
#![allow(clippy::print_stdout)] // a program for people

use sidecore_net::fuzzing::{Target, requests};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Inputs of one run.
const RUN: u64 = 10_000;
/// A run that makes no progress for this long hangs, whatever the machine.
const HANG_S: u64 = 20;

fn main() {
    let option = |names: &[&str], default: u64| {
        let mut arguments = std::env::args();
        match arguments
            .find(|argument| names.contains(&argument.as_str()))
            .and_then(|_| arguments.next())
        {
            None => default,
            Some(value) => value.parse().unwrap_or_else(|_| {
                eprintln!("fuzz_net: {} takes a number, not `{value}`", names[0]);
                std::process::exit(2)
            }),
        }
    };
    let (inputs, first) = (
        option(&["--inputs", "--count"], 1_000_000),
        option(&["--seed"], 1),
    );
    let began = Instant::now();
    let done = AtomicU64::new(0);
    let seed = AtomicU64::new(first);
    let ok = std::thread::scope(|scope| {
        let worker = scope.spawn(|| run(inputs, first, &done, &seed));
        let mut last = (0, Instant::now());
        let mut said = Instant::now();
        while !worker.is_finished() {
            std::thread::sleep(Duration::from_millis(20));
            let now = done.load(Relaxed);
            if now != last.0 {
                last = (now, Instant::now());
            } else if last.1.elapsed() > Duration::from_secs(HANG_S) {
                eprintln!("fuzz_net: the run of seed {} hangs", seed.load(Relaxed));
                std::process::abort();
            }
            if said.elapsed() > Duration::from_secs(10) {
                said = Instant::now();
                let rate = now as f64 / began.elapsed().as_secs_f64();
                println!("{now} inputs, {rate:.0}/s");
            }
        }
        worker.join().is_ok()
    });
    let seconds = began.elapsed().as_secs_f64();
    let count = done.load(Relaxed);
    if ok {
        println!("{count} inputs in {seconds:.1} s, seeds from {first}: no panic");
    } else {
        let seed = seed.load(Relaxed);
        eprintln!("fuzz_net: the run of seed {seed} failed; again: --seed {seed} --inputs {RUN}");
        std::process::exit(1);
    }
}

fn run(inputs: u64, first: u64, done: &AtomicU64, seed: &AtomicU64) {
    let mut left = inputs;
    let mut number = first;
    while left > 0 {
        seed.store(number, Relaxed);
        let count = left.min(RUN);
        if number.is_multiple_of(2) {
            let mut target = requests::Target::new(number);
            inputs_of(count, done, || target.input());
        } else {
            let mut target = Target::new(number);
            inputs_of(count, done, || target.input());
        }
        left = left.saturating_sub(RUN);
        number += 1;
    }
}

fn inputs_of(count: u64, done: &AtomicU64, mut input: impl FnMut()) {
    for _ in 0..count {
        input();
        done.fetch_add(1, Relaxed);
    }
}
