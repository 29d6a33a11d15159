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
mod lzo1x;
mod runs;

use runs::Run;
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
