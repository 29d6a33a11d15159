//! Damages small images of every format and reads them: the bounded run that stands for fuzzing in
//! the checks.
//!
//! `cargo run --release -p sidecore-block --example fuzz_images -- --count 1000000 --seed 1`
//!
//! Fails on a panic, on wrong bytes, on more than [`MEMORY_BYTES_MAX`] of memory in use and on an
//! image that takes longer than [`HANG_S`] seconds. Every failure prints the seed and the number of
//! the image; `--from N` starts there again.
#![allow(unsafe_code)] // the counting allocator
#![allow(clippy::print_stdout)] // a program for people

use sidecore_block::format::fuzzing::{Mutator, Reader, fuzz_image, seeds};
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Memory of Rust's allocator that may be in use at any time. One frame of 16 MiB raw, its 32 MiB
/// stored at most, and the index; the codecs' own C allocations are bounded by their own limits
/// (xz: 80 MiB).
const MEMORY_BYTES_MAX: usize = 64 << 20;
/// An image that takes this long hangs, whatever the machine.
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
                eprintln!("fuzz_images: {name} takes a number, not `{value}`");
                std::process::exit(2)
            }),
        }
    };
    let (count, seed, from) = (
        option("--count", 100_000),
        option("--seed", 1),
        option("--from", 0),
    );
    let began = Instant::now();
    let current = AtomicU64::new(from);
    let outcome = std::thread::scope(|scope| {
        let worker = scope.spawn(|| run(from, count, seed, &current));
        let mut last = (from, Instant::now());
        while !worker.is_finished() {
            std::thread::sleep(Duration::from_millis(20));
            let now = current.load(Relaxed);
            if now != last.0 {
                last = (now, Instant::now());
            } else if last.1.elapsed() > Duration::from_secs(HANG_S) {
                eprintln!("fuzz_images: image {now} of seed {seed} hangs");
                std::process::abort();
            }
        }
        worker.join()
    });
    let Ok(totals) = outcome else {
        let image = current.load(Relaxed);
        eprintln!(
            "fuzz_images: image {image} of seed {seed} failed; \
             --seed {seed} --from {image} --count 1 runs it again"
        );
        std::process::exit(1);
    };
    println!(
        "{count} images of seed {seed}: {} opened, {} frames handed out, {} refused, \
         none wrong, {} displaced; \
         peak {} KiB; {:.0} s",
        totals.opened,
        totals.good_frames,
        totals.bad_frames,
        totals.displaced,
        PEAK.load(Relaxed) >> 10,
        began.elapsed().as_secs_f64()
    );
}

#[derive(Default)]
struct Totals {
    opened: u64,
    good_frames: u64,
    bad_frames: u64,
    displaced: u64,
}

fn run(from: u64, count: u64, seed: u64, current: &AtomicU64) -> Totals {
    let seeds = seeds();
    let mut reader = Reader::default();
    let mut totals = Totals::default();
    for number in from..from + count {
        current.store(number, Relaxed);
        // Each image has a seed of its own, so that any one can be made again without those before
        // it.
        let mut mutator = Mutator::new(seed.wrapping_mul(0x1_0000_0001) ^ number << 20);
        let image = &seeds[(number % seeds.len() as u64) as usize];
        let mutant = mutator.mutate(image);
        let walk = if mutant.resealed {
            reader.walk(mutant.data, &mut |_, _, _| {})
        } else {
            image.check(&mut reader, mutant.data)
        };
        if number % 1024 == 0 {
            // The same bytes once more, as a fuzzer would bring them.
            fuzz_image(mutant.data);
        }
        totals.opened += u64::from(walk.opened);
        totals.good_frames += walk.good_frames;
        totals.bad_frames += walk.bad_frames;
        totals.displaced += walk.displaced;
        let few = 2 + 2 * (number - from) / 1_000_000;
        assert!(
            totals.displaced <= few,
            "{} frames displaced",
            totals.displaced
        );
        let peak = PEAK.load(Relaxed);
        assert!(
            peak <= MEMORY_BYTES_MAX,
            "{peak} bytes in use, the bound is {MEMORY_BYTES_MAX}"
        );
    }
    totals
}
