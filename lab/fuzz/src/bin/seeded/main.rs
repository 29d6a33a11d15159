//! Damaged inputs from a seed for every reader of untrusted bytes, a bounded number of each: a
//! substitute for fuzzing where there is no fuzzer, and in the checks.
//!
//! `cargo run --release -p sidecore-fuzz --bin seeded -- --count 1000000 --seed 1 [RUN...]`
//! `... --bin seeded -- --write-seeds FOLDER` writes the seeds of the corpora into FOLDER.
//!
//! Fails on a panic, on a broken promise, on more memory in use than a run may, and on an input
//! that takes longer than [`HANG_S`] seconds. Every failure prints a command that repeats it.
#![allow(clippy::print_stdout)] // a program for people

mod allocator;
mod runs;

use runs::Run;
use sidecore_block::codec::Deflater;
use sidecore_block::codec::lzo1x::{Deflate, LEVEL_MAX, LEVEL_MIN};
use sidecore_fuzz::lzo1x::{Differ, Random, mutate, random_stream, round_trip};
use sidecore_fuzz::{TARGETS, seeds};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// An input that takes this long hangs, whatever the machine.
const HANG_S: u64 = 20;
const USAGE: &str =
    "usage: seeded [--count N] [--seed N] [--from N] [RUN...] | --write-seeds FOLDER";

struct Options {
    count: u64,
    seed: u64,
    from: u64,
    names: Vec<String>,
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("seeded: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let mut options = Options {
        count: 100_000,
        seed: 1,
        from: 0,
        names: Vec::new(),
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || {
            let value = arguments.next().unwrap_or_default();
            let parsed = value.parse();
            parsed.map_err(|_| format!("{argument} takes a number, not `{value}`; {USAGE}"))
        };
        match argument.as_str() {
            "--count" => options.count = number()?,
            "--seed" => options.seed = number()?,
            "--from" => options.from = number()?,
            "--write-seeds" => {
                let folder = arguments.next().ok_or(USAGE)?;
                return write_seeds(Path::new(&folder))
                    .map_err(|error| format!("{folder}: {error}"));
            }
            _ if argument.starts_with('-') => return Err(format!("unknown `{argument}`; {USAGE}")),
            _ => options.names.push(argument),
        }
    }
    let runs = runs::all();
    let known = |name: &&String| runs.iter().any(|run| run.name == **name);
    if let Some(name) = options.names.iter().find(|name| !known(name)) {
        let names: Vec<&str> = runs.iter().map(|run| run.name.as_str()).collect();
        return Err(format!("no run `{name}`; there are {}", names.join(", ")));
    }
    let wanted = |run: &&Run| options.names.is_empty() || options.names.contains(&run.name);
    runs.iter()
        .filter(wanted)
        .try_for_each(|run| play(run, &options))
}

/// One run on a thread of its own, watched.
fn play(run: &Run, options: &Options) -> Result<(), String> {
    let (from, seed, name) = (options.from, options.seed, &run.name);
    allocator::forget_peak();
    let began = Instant::now();
    let current = AtomicU64::new(from);
    let outcome = std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let mut input = (run.begin)(seed, from);
            let mut taken = 0_u64;
            for number in from..from.saturating_add(options.count) {
                current.store(number, Relaxed);
                taken += u64::from(input(number));
                runs::check_memory(run);
            }
            taken
        });
        let mut last = (from, Instant::now());
        while !worker.is_finished() {
            std::thread::sleep(Duration::from_millis(5));
            let now = current.load(Relaxed);
            if now != last.0 {
                last = (now, Instant::now());
            } else if last.1.elapsed() > Duration::from_secs(HANG_S) {
                eprintln!("seeded: input {now} of {name}, seed {seed}, hangs");
                std::process::abort();
            }
        }
        worker.join()
    });
    let number = current.load(Relaxed);
    let taken = outcome.map_err(|_| {
        // Runs whose inputs follow from one another begin at the stretch.
        let from = number / 10_000 * 10_000;
        format!(
            "input {number} of {name} failed; \
             `seeded {name} --seed {seed} --from {from} --count {}` runs it again",
            number - from + 1
        )
    })?;
    println!(
        "{name}: {} inputs of seed {seed}, {taken} taken, none failed; peak {} KiB; {:.1} s",
        options.count,
        allocator::peak_bytes() >> 10,
        began.elapsed().as_secs_f64()
    );
    Ok(())
}

fn write_seeds(folder: &Path) -> std::io::Result<()> {
    for (name, _) in TARGETS {
        let folder = folder.join(name);
        std::fs::create_dir_all(&folder)?;
        for (number, seed) in seeds::of_target(name)?.iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{number:03}")), seed)?;
        }
    }
    Ok(())
}

/// The fast decompressor against the plain one.
pub(crate) struct Lzo1x {
    differ: Differ,
    deflaters: Vec<Deflate>,
    stream: Vec<u8>,
    data: Vec<u8>,
}

impl Lzo1x {
    pub(crate) fn new() -> Self {
        Self {
            differ: Differ::new(),
            deflaters: (LEVEL_MIN..=LEVEL_MAX).map(Deflate::new).collect(),
            stream: Vec::new(),
            data: Vec::new(),
        }
    }

    /// One case; returns true if its stream was good.
    pub(crate) fn case(&mut self, seed: u64, case: u64) -> bool {
        let mut random = Random(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ case << 20);
        let kind = random.below(64);
        let (mut stream, mut room) = if kind == 0 {
            let raw = random_raw(&mut random);
            let level = random.below(self.deflaters.len());
            let deflater: &mut dyn Deflater = &mut self.deflaters[level];
            round_trip(deflater, &raw, &mut self.stream);
            (self.stream.clone(), raw.len())
        } else if kind < 8 {
            let bytes = (0..random.below(200))
                .map(|_| random.bits() as u8)
                .collect();
            (bytes, random.below(2000))
        } else {
            let longest = if random.once_in(50) { 60_000 } else { 1500 };
            let output_max = 1 + random.below(longest);
            random_stream(&mut random, output_max, 2000)
        };
        if !random.once_in(3) {
            mutate(&mut random, &mut stream);
        }
        if random.once_in(8) {
            room = (room + 40).saturating_sub(random.below(80));
        }
        self.data.clear();
        self.data
            .extend_from_slice(&(room as u32).to_le_bytes()[..3]);
        self.data.push(random.bits() as u8);
        self.data.extend_from_slice(&stream);
        self.differ.compare(&self.data)
    }
}

/// Bytes with repetitions of many lengths and distances.
fn random_raw(random: &mut Random) -> Vec<u8> {
    let longest = if random.once_in(8) { 65_536 } else { 3000 };
    let length = random.below(longest);
    let letters = 1 + random.below(256);
    let mut raw = Vec::with_capacity(length);
    while raw.len() < length {
        if raw.is_empty() || random.once_in(3) {
            for _ in 0..=random.below(30) {
                raw.push(random.below(letters) as u8);
            }
        } else {
            let distance = 1 + random.below(raw.len());
            for _ in 0..=random.below(60) {
                raw.push(raw[raw.len() - distance]);
            }
        }
    }
    raw.truncate(length);
    raw
}
