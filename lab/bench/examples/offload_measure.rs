//! Measures switches and off-loads relative to a bare shared cache line, in one run.
//!
//! `cargo run --release -p sidecore-bench --example offload_measure`
//!
//! Prints medians and 99th percentiles in nanoseconds. The line's two threads and the pool's host
//! and engine are pinned to the same two cores. Absolute values hold for this machine at this
//! moment; compare the ratios to the bare line.
#![allow(clippy::print_stdout, clippy::unwrap_used)] // A program for people.

use sidecore_engine::{Ctx, Kernel, KernelError};
use sidecore_offload::{Pool, PoolConfig, TaskOptions, TasksOptions, task};
use sidecore_sys::{clock, cpu};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

struct Empty;

impl Kernel for Empty {
    type Args<'j> = ();
    type Out = ();
    type State = ();

    fn run<'c, 'j: 'c>(_: &mut Ctx<'c, Self>, _: Self::Args<'j>) -> Result<(), KernelError> {
        Ok(())
    }
}

#[repr(align(128))]
struct Line(AtomicU64);

const ROUNDS: usize = 200_000;

fn main() {
    let cpus = cpu::allowed().unwrap();
    let (here, there) = (cpus[0], cpus[cpus.len() - 1]);
    let _ = clock::cycles_per_us();
    for _ in 0..3 {
        let line = show("bare shared line, round trip", bare_line(here, there));
        show("fiber switch (two tasks taking turns)", switch(here));
        show("off-load, same core (a call)", off_load(here, here, false));
        let packet = show(
            "off-load, other core (a packet), task",
            off_load(here, there, true),
        );
        show(
            "off-load, other core (a packet), thread",
            from_thread(here, there),
        );
        println!("{:44} {:8.2}", "packet / bare line", packet / line);
        for hog in [false, true] {
            for workers in [1, 4, 8] {
                let cycle_us = edtlp(here, workers, hog);
                let beside = if hog { ", CPU hog beside" } else { "" };
                println!(
                    "11 us host + 96 us away, {workers} tasks{beside:17} {cycle_us:8.1} us a cycle"
                );
            }
        }
        println!();
    }
}

/// Microseconds a cycle takes for tasks on one core that each work 11 us and are away for 96 us,
/// alone or next to a thread that never stops.
fn edtlp(here: usize, workers: usize, hog: bool) -> f64 {
    const CYCLES: u32 = 2_000;
    let pool = pool(here, false);
    let stop = AtomicU64::new(0);
    std::thread::scope(|scope| {
        if hog {
            scope.spawn(|| {
                cpu::pin(here).unwrap();
                while stop.load(Ordering::Relaxed) == 0 {
                    std::hint::spin_loop();
                }
            });
        }
        let begun_ns = clock::now_ns();
        let options = TasksOptions {
            live_max: Some(workers),
            ..options(here)
        };
        let done = pool.tasks(options, |scope| {
            for _ in 0..workers {
                scope.spawn(TaskOptions::default(), |_| {
                    for _ in 0..CYCLES {
                        let begun_ns = clock::now_ns();
                        while clock::now_ns() - begun_ns < 11_000 {
                            std::hint::spin_loop();
                        }
                        task::sleep_until(clock::now_ns() + 96_000).unwrap();
                    }
                });
            }
        });
        done.unwrap();
        stop.store(1, Ordering::Relaxed);
        (clock::now_ns() - begun_ns) as f64 / 1e3 / f64::from(CYCLES)
    })
}

fn show(what: &str, mut samples_ns: Vec<f64>) -> f64 {
    samples_ns.sort_by(f64::total_cmp);
    let at = |share: f64| samples_ns[((samples_ns.len() - 1) as f64 * share) as usize];
    println!("{what:44} {:8.1} median {:8.1} p99", at(0.5), at(0.99));
    at(0.5)
}

/// Times `round` in groups, so that reading the clock does not count.
fn time(mut round: impl FnMut()) -> Vec<f64> {
    const GROUP: usize = 10;
    let per_ns = 1_000.0 / clock::cycles_per_us();
    (0..ROUNDS / GROUP)
        .map(|_| {
            let before = clock::cycles();
            for _ in 0..GROUP {
                round();
            }
            clock::cycles().wrapping_sub(before) as f64 * per_ns / GROUP as f64
        })
        .collect()
}

fn bare_line(here: usize, there: usize) -> Vec<f64> {
    let (request, reply) = (Line(AtomicU64::new(0)), Line(AtomicU64::new(0)));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            cpu::pin(there).unwrap();
            let mut seen = 0;
            while seen != u64::MAX {
                let now = request.0.load(Ordering::Acquire);
                if now == seen {
                    std::hint::spin_loop();
                    continue;
                }
                seen = now;
                reply.0.store(now, Ordering::Release);
            }
        });
        scope
            .spawn(|| {
                cpu::pin(here).unwrap();
                let mut next = 0;
                let samples = time(|| {
                    next += 1;
                    request.0.store(next, Ordering::Release);
                    while reply.0.load(Ordering::Acquire) != next {
                        std::hint::spin_loop();
                    }
                });
                request.0.store(u64::MAX, Ordering::Release);
                samples
            })
            .join()
            .unwrap()
    })
}

fn pool(engine: usize, dedicated: bool) -> Pool {
    Pool::start(PoolConfig {
        engines: 1,
        cpus: vec![engine],
        dedicated,
        grace: Duration::from_millis(10),
        ..PoolConfig::default()
    })
    .unwrap()
}

fn options(host: usize) -> TasksOptions {
    TasksOptions {
        hosts: 1,
        cpus: vec![host],
        live_max: Some(2),
        ..TasksOptions::default()
    }
}

fn switch(here: usize) -> Vec<f64> {
    let pool = pool(here, false);
    let done = AtomicU64::new(0);
    pool.tasks(options(here), |scope| {
        let other = scope.spawn(TaskOptions::default(), |_| {
            while done.load(Ordering::Relaxed) == 0 {
                task::yield_now();
            }
        });
        let timed = scope.spawn(TaskOptions::default(), |_| {
            // There and back: two switches of fibers, each by way of the host.
            let samples = time(task::yield_now).into_iter().map(|ns| ns / 2.0);
            done.store(1, Ordering::Relaxed);
            samples.collect()
        });
        let samples = timed.join().unwrap();
        other.join().unwrap();
        samples
    })
    .unwrap()
}

fn off_load(here: usize, there: usize, dedicated: bool) -> Vec<f64> {
    let pool = pool(there, dedicated);
    pool.tasks(options(here), |scope| {
        scope
            .spawn(TaskOptions::default(), |_| {
                time(|| pool.run::<Empty>(()).unwrap())
            })
            .join()
            .unwrap()
    })
    .unwrap()
}

fn from_thread(here: usize, there: usize) -> Vec<f64> {
    let pool = pool(there, true);
    std::thread::scope(|scope| {
        scope
            .spawn(|| {
                cpu::pin(here).unwrap();
                time(|| pool.run::<Empty>(()).unwrap())
            })
            .join()
            .unwrap()
    })
}
