//! Damages small alignments, trees, partition files, model names and checkpoints and reads them: the bounded run
//! that stands for fuzzing in the checks.
//!
//! `cargo run --release -p sidecore-phylo --example fuzz_phylo -- --count 1000000 --seed 1`
//!
//! Reads `--count` inputs of each kind. Fails on a panic, on a broken promise, on more than
//! [`MEMORY_BYTES_MAX`] of memory in use and on an input that takes longer than [`HANG_S`] seconds.
//! Every failure prints the seed and the number of the input; `--from N` starts there again.
#![allow(unsafe_code)] // the counting allocator
#![allow(clippy::print_stdout)] // a program for people

use sidecore_phylo::fuzzing::{KINDS, Kind, mutate, read, seeds};
use sidecore_phylo::random::Random;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Memory that may be in use at any time: inputs have up to 8 KiB, protein models need a megabyte.
const MEMORY_BYTES_MAX: usize = 16 << 20;
/// An input that takes this long hangs, whatever the machine.
const HANG_S: u64 = 20;

struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: hands everything on to the system's allocator and only counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let in_use = IN_USE.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(in_use, Relaxed);
        // SAFETY: the caller's promise, handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let in_use = IN_USE.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(in_use, Relaxed);
        // SAFETY: the caller's promise, handed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise, handed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() {
    let option = |name: &str, default: u64| {
        let mut arguments = std::env::args();
        match arguments
            .find(|argument| argument == name)
            .and_then(|_| arguments.next())
        {
            None => default,
            Some(value) => value.parse().unwrap_or_else(|_| {
                eprintln!("fuzz_phylo: {name} takes a number, not `{value}`");
                std::process::exit(2)
            }),
        }
    };
    let (count, seed) = (option("--count", 100_000), option("--seed", 1));
    let from = option("--from", 0);
    for kind in KINDS {
        let began = Instant::now();
        let current = AtomicU64::new(from);
        let outcome = std::thread::scope(|scope| {
            let worker = scope.spawn(|| run(kind, from, count, seed, &current));
            let mut last = (from, Instant::now());
            while !worker.is_finished() {
                std::thread::sleep(Duration::from_millis(20));
                let now = current.load(Relaxed);
                if now != last.0 {
                    last = (now, Instant::now());
                } else if last.1.elapsed() > Duration::from_secs(HANG_S) {
                    eprintln!("fuzz_phylo: {kind:?} {now} of seed {seed} hangs");
                    std::process::abort();
                }
            }
            worker.join()
        });
        let Ok(taken) = outcome else {
            let number = current.load(Relaxed);
            eprintln!(
                "fuzz_phylo: {kind:?} {number} of seed {seed} failed; \
                 --seed {seed} --from {number} --count 1 runs it again"
            );
            std::process::exit(1);
        };
        println!(
            "{kind:?}: {count} inputs of seed {seed}, {taken} taken, none broke a promise; \
             peak {} KiB; {:.0} s",
            PEAK.load(Relaxed) >> 10,
            began.elapsed().as_secs_f64()
        );
    }
}

fn run(kind: Kind, from: u64, count: u64, seed: u64, current: &AtomicU64) -> u64 {
    let seeds = seeds(kind);
    let mut taken = 0;
    for number in from..from + count {
        current.store(number, Relaxed);
        // Each input has a seed of its own, so that any one can be made again.
        let mut random = Random::new(seed.wrapping_mul(0x1_0000_0001) ^ number << 20);
        let input = mutate(
            kind,
            &seeds[(number % seeds.len() as u64) as usize],
            &mut random,
        );
        taken += u64::from(read(kind, &input));
        let peak = PEAK.load(Relaxed);
        assert!(peak <= MEMORY_BYTES_MAX, "{peak} bytes of memory in use");
    }
    taken
}
