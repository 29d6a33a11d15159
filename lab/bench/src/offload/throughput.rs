//! Empty tasks a second, by every available way.
//!
//! Why here: the cost of a task when no caller waits for a single one.
//! Must stay true: every way uses the same cores, and every task counts itself: a lost task is an
//! error.
//! One thread, and those of the pools. Source: own.

use super::report::Figure;
use super::{Bench, BenchError, Candidate, wrong};
use crossbeam_utils::CachePadded;
use sidecore_offload::{Pool, PoolConfig, TaskOptions, TasksOptions};
use sidecore_sched::ClassId;
use sidecore_sys::{clock, cpu};
use std::sync::atomic::{AtomicU64, Ordering};

/// Measures all ways, interleaved.
pub(crate) fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let cpus = bench.cpus.clone();
    let batch = Batch {
        tasks: 50_000,
        time_ns: bench.choose(40_000_000, 150_000_000),
    };
    let batch = &batch;
    let pool = Pool::start(PoolConfig::default())?;
    let cores = cpus.clone();
    let rayon = rayon::ThreadPoolBuilder::new()
        .num_threads(cpus.len())
        .start_handler(move |index| {
            // A refusal shows as a slow round.
            let _ = cpu::pin(cores[index % cores.len()]);
        })
        .build()
        .map_err(|error| BenchError::Io {
            what: "start rayon's threads".into(),
            source: std::io::Error::other(error),
        })?;
    let mut candidates = vec![
        Candidate::new(CALLS, |()| {
            batch.rate(CALLS, |done| calls(&pool, batch, done))
        }),
        Candidate::new(UNITS, |()| {
            batch.rate(UNITS, |done| units(&pool, batch, done))
        }),
    ];
    candidates.push(Candidate::new(FIBERS, |()| {
        batch.rate(FIBERS, |done| fibers(&pool, batch, done))
    }));
    candidates.push(Candidate::new(RAYON, |()| {
        batch.rate(RAYON, |done| {
            rayon.scope(|scope| {
                for _ in 0..batch.tasks {
                    scope.spawn(|_| count(done));
                }
            });
        })
    }));
    candidates.push(Candidate::new(CROSSBEAM, |()| {
        batch.rate(CROSSBEAM, |done| channel(&cpus, batch, done))
    }));
    bench.say("empty tasks");
    let rounds = bench.choose(3, 7);
    let series = bench.interleave(&[("tasks", "/s")], rounds, &mut candidates)?;
    drop(candidates);
    for ((name, note), series) in WAYS.into_iter().zip(series) {
        if let Some([series]) = series.as_deref() {
            let mut figure = Figure::new(name, series, "/s");
            figure.note = note.to_owned();
            bench.report.throughput.push(figure);
        }
    }
    Ok(())
}

/// Tasks at a time, and their length.
struct Batch {
    tasks: usize,
    time_ns: u64,
}

impl Batch {
    /// Tasks a second; each of `round`'s tasks adds one to what it is given.
    fn rate(&self, who: &str, mut round: impl FnMut(&AtomicU64)) -> Result<Vec<f64>, BenchError> {
        let done = CachePadded::new(AtomicU64::new(0));
        let begun_ns = clock::now_ns();
        let (mut wanted, mut taken_ns) = (0, 0);
        while taken_ns < self.time_ns {
            round(&done);
            taken_ns = clock::now_ns() - begun_ns;
            wanted += self.tasks as u64;
        }
        // The ways themselves order this after their tasks.
        let got = done.load(Ordering::Relaxed);
        if got != wanted {
            return Err(wrong(who, got, wanted));
        }
        Ok(vec![wanted as f64 * 1e9 / taken_ns as f64])
    }
}

fn count(done: &AtomicU64) {
    done.fetch_add(1, Ordering::Relaxed); // A count; the end of the batch orders it.
}

/// One thread, a call after another: each on the engine of its own core.
fn calls(pool: &Pool, batch: &Batch, done: &AtomicU64) {
    for _ in 0..batch.tasks {
        pool.call(|_| count(done));
    }
}

/// One loop whose units are the tasks.
fn units(pool: &Pool, batch: &Batch, done: &AtomicU64) {
    let mut items = vec![(); batch.tasks];
    // A loop that fails leaves units undone, which the count shows.
    let _ = pool.for_each(ClassId(0), &mut items, |_, ()| count(done));
}

/// Tasks on stacks of their own.
fn fibers(pool: &Pool, batch: &Batch, done: &AtomicU64) {
    // Tasks that fail leave themselves uncounted, which shows.
    let _ = pool.tasks(TasksOptions::default(), |scope| {
        for _ in 0..batch.tasks {
            scope.spawn(TaskOptions::default(), |_| count(done));
        }
    });
}

/// A channel that a worker on each core empties.
fn channel(cpus: &[usize], batch: &Batch, done: &AtomicU64) {
    let (sender, receiver) = crossbeam_channel::bounded::<()>(CHANNEL_TASKS);
    std::thread::scope(|scope| {
        for &cpu in cpus {
            let receiver = receiver.clone();
            scope.spawn(move || {
                // A refusal shows as a slow round.
                let _ = cpu::pin(cpu);
                for () in receiver {
                    count(done);
                }
            });
        }
        for _ in 0..batch.tasks {
            // Workers leave only when the sender has.
            let _ = sender.send(());
        }
        drop(sender);
    });
}

const CHANNEL_TASKS: usize = 1024;
const CALLS: &str = "pool, calls";
const UNITS: &str = "pool, units of a loop";
const FIBERS: &str = "pool, tasks as fibers";
const RAYON: &str = "rayon, scope";
const CROSSBEAM: &str = "crossbeam, channel";
/// In the order of the candidates, with what must be known.
const WAYS: [(&str, &str); 5] = [
    (
        CALLS,
        "one thread, one after another, each on the engine of its own core",
    ),
    (UNITS, "one loop on all engines"),
    (
        FIBERS,
        "one scope, spawned from one thread; hosts start and end with it",
    ),
    (RAYON, "one scope, spawned from one thread"),
    (CROSSBEAM, "one sender, a worker on each core"),
];
