//! Runs mutated NBD dialogues: `fuzz_nbd [--count N] [--seed S]`. A failure leaves its dialogue in
//! a file.
//!
//! Why here: the bounded run of the fuzz target, without a fuzzer to install.
//! Must stay true: the same count and seed run the same dialogues.
//! Source: own.

#![allow(clippy::print_stdout)] // A program for people.

use sidecore_block::ways::nbd::fuzzing::{fuzz_dialogue, mutate, seeds};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut count, mut seed) = (100_000_u64, 1_u64);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let value = args
            .next()
            .ok_or("usage: fuzz_nbd [--count N] [--seed S]")?;
        match arg.as_str() {
            "--count" => count = value.parse()?,
            "--seed" => seed = value.parse()?,
            _ => return Err("usage: fuzz_nbd [--count N] [--seed S]".into()),
        }
    }
    let seeds = seeds();
    let began = Instant::now();
    let (mut slowest_us, mut sent) = (0, 0);
    for index in 0..count {
        // Each dialogue has a number of its own to begin from, so that one can be run again alone.
        let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index);
        let data = mutate(&seeds, &mut random);
        let start = Instant::now();
        match std::panic::catch_unwind(|| fuzz_dialogue(&data)) {
            Ok(bytes) => sent += bytes,
            Err(_) => {
                let path = std::env::temp_dir().join(format!("fuzz_nbd-{seed}-{index}"));
                std::fs::write(&path, &data)?;
                let path = path.display();
                return Err(format!("seed {seed}, dialogue {index} failed; kept in {path}").into());
            }
        }
        slowest_us = slowest_us.max(start.elapsed().as_micros());
    }
    let seconds = began.elapsed().as_secs_f64();
    println!(
        "{count} dialogues from seed {seed} in {seconds:.1} s: no fault, slowest {slowest_us} us, \
         {sent} bytes sent"
    );
    Ok(())
}
