//! Loops of all sizes: serial, on our engines, by rayon and by OpenMP.
//!
//! Why here: a scheduler that splits a loop must never be slower than the serial loop or the other
//! schedulers; the sizes run from a few tens of nanoseconds to tens of milliseconds, and one class
//! of loops may mix them.
//! Must stay true: a unit is the same chain of dependent multiplications everywhere; all four run
//! the same sequence over and over, one after the other in each round; a candidate that waits
//! actively holds no core while others are measured. Each candidate's callers are on the first
//! core; the others' threads, and our engines, one on each core.
//! One thread, which starts one for each candidate's turn. Source: OpenMP 5.2, OMP_WAIT_POLICY.

use super::report::LoopRow;
use super::roles::stay_on;
use super::work::{chain, measure, steps_of};
use super::{Bench, BenchError, Candidate};
use crate::measure::child::Speaker;
use crate::measure::stats::Series;
use rayon::prelude::*;
use sidecore_offload::{Pool, PoolConfig};
use sidecore_sched::ClassId;
use sidecore_sys::cpu;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Measures all rows.
pub(crate) fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let cpus = bench.cpus.clone();
    let here = cpus.first().copied().unwrap_or(0);
    let pool = Pool::start(PoolConfig {
        engines: cpus.len(),
        cpus: cpus.clone(),
        ..PoolConfig::default()
    })?;
    let rayon = rayon_pool(&cpus)?;
    let openmp = match compile(&bench.config.scratch) {
        Ok(program) => Some(RefCell::new(start(&program, cpus.len(), bench)?)),
        Err(BenchError::Missing(reason)) => {
            bench.missing(&reason);
            None
        }
        Err(error) => return Err(error),
    };
    let cancel = bench.cancel.clone();
    let window_ns = bench.choose(4_000_000, 30_000_000);
    let rounds = bench.choose(2, 7);
    for (index, row) in rows(bench.quick()).into_iter().enumerate() {
        bench.say(&row.name());
        let calls = row.calibrated()?;
        // Classes are few: rows that measure the same kind of thing do not share one.
        let class = ClassId(index as u16);
        let units_max = calls.iter().map(|call| call.units).max().unwrap_or(1);
        let items = || (1..=units_max as u64).collect::<Vec<_>>();
        let (mut serial_items, mut own_items, mut rayon_items) = (items(), items(), items());
        let mut candidates = vec![
            Candidate::new(SIDECORE, |()| {
                on_core(here, || {
                    measure(window_ns, || {
                        for call in &calls {
                            let items = &mut own_items[..call.units];
                            // A failed loop leaves items unchanged, which the check below finds.
                            let own = pool.par_mut(items).class(class);
                            let _ = own.for_each(|item| call.unit(item));
                        }
                    })
                })
            }),
            Candidate::new(SERIAL, |()| {
                on_core(here, || {
                    measure(window_ns, || {
                        for call in &calls {
                            let items = &mut serial_items[..call.units];
                            items.iter_mut().for_each(|item| call.unit(item));
                        }
                    })
                })
            }),
            Candidate::new(RAYON, |()| {
                rayon.install(|| {
                    Ok(vec![measure(window_ns, || {
                        for call in &calls {
                            let items = &mut rayon_items[..call.units];
                            items
                                .par_iter_mut()
                                .with_min_len(call.units_least)
                                .for_each(|item| call.unit(item));
                        }
                    })])
                })
            }),
        ];
        if let Some(openmp) = &openmp {
            let cancel = &cancel;
            let calls = &calls;
            candidates.push(Candidate::new(OPENMP, move |()| {
                let mut peer = openmp.borrow_mut();
                let mut message = vec![window_ns];
                for call in calls {
                    message.extend([call.steps, call.units as u64]);
                }
                peer.tell(&message)?;
                Ok(vec![peer.answer(cancel)?])
            }));
        }
        let series = bench.interleave(&[(&row.name(), "ns")], rounds, &mut candidates)?;
        drop(candidates);
        let series: Vec<Option<Series>> = series
            .into_iter()
            .map(|series| series?.into_iter().next())
            .collect();
        if let [Some(own), Some(serial), Some(rayon), ..] = &series[..] {
            let openmp = series.get(3).and_then(Option::as_ref);
            let (unit_ns, count) = row.size();
            let row = LoopRow::new(&row.name(), unit_ns, count, own, [serial, rayon], openmp);
            bench.report.loops.push(row);
        }
        // Every pass of every candidate did all of its units.
        if own_items.iter().zip(1..).any(|(item, at)| *item == at) {
            return Err(BenchError::Wrong(format!(
                "{}: a unit was left",
                row.name()
            )));
        }
    }
    Ok(())
}

/// A row: the loops of one pass, in their order, each as the nanoseconds of a unit and the number
/// of units.
struct Size {
    loops: Vec<(u64, usize)>,
    name: Option<&'static str>,
}

impl Size {
    fn name(&self) -> String {
        match (self.name, &self.loops[..]) {
            (None, [(unit_ns, units)]) => format!("{units} x {}", time(*unit_ns)),
            (name, _) => name.unwrap_or("a sequence").to_owned(),
        }
    }

    /// Unit and number of units of a row with one size; zeros where sizes are mixed.
    fn size(&self) -> (u64, usize) {
        match (self.name, &self.loops[..]) {
            (None, [size]) => *size,
            _ => (0, 0),
        }
    }

    fn calibrated(&self) -> Result<Vec<Call>, BenchError> {
        let calls = self.loops.iter().map(|&(unit_ns, units)| Call {
            steps: steps_of(unit_ns),
            units,
            // Rayon's users give tiny units a minimum length by hand.
            units_least: (RAYON_LEAST_NS / unit_ns).max(1) as usize,
        });
        Ok(calls.collect())
    }
}

/// One loop of a pass.
struct Call {
    steps: u64,
    units: usize,
    units_least: usize,
}

impl Call {
    /// One unit: a chain of steps, each of which needs the one before.
    #[inline]
    fn unit(&self, item: &mut u64) {
        *item = chain(*item, self.steps);
    }
}

/// Runs `measured` on a thread of its own that is pinned to a core.
pub(super) fn on_core(
    cpu: usize,
    measured: impl FnOnce() -> f64 + Send,
) -> Result<Vec<f64>, BenchError> {
    pinned(cpu, || Ok(vec![measured()]))
}

/// As [`on_core`], for what may fail or has several values.
pub(super) fn pinned<R: Send>(
    cpu: usize,
    measured: impl FnOnce() -> Result<R, BenchError> + Send,
) -> Result<R, BenchError> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            stay_on(&[cpu])?;
            measured()
        });
        match thread.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// Rayon's threads, one pinned to each of these cores.
pub(super) fn rayon_pool(cpus: &[usize]) -> Result<rayon::ThreadPool, BenchError> {
    let cores = cpus.to_vec();
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(cpus.len())
        .start_handler(move |index| {
            // A refusal shows as a slow round.
            let _ = cpu::pin(cores[index % cores.len()]);
        });
    pool.build().map_err(|error| BenchError::Io {
        what: "start rayon's threads".into(),
        source: std::io::Error::other(error),
    })
}

fn start(program: &Path, threads: usize, bench: &Bench<'_>) -> Result<Speaker, BenchError> {
    let mut command = Command::new(program);
    command
        .env("OMP_WAIT_POLICY", "active")
        .env("OMP_PROC_BIND", "true")
        .env("OMP_NUM_THREADS", threads.to_string());
    let mut peer = Speaker::spawn(&mut command)?;
    peer.expect_ready(&bench.cancel)?;
    Ok(peer)
}

/// Builds the peer, where there is a compiler with OpenMP.
fn compile(scratch: &Path) -> Result<PathBuf, BenchError> {
    let (source, program) = (scratch.join("omp_loops.c"), scratch.join("omp_loops"));
    std::fs::write(&source, PEER_SOURCE).map_err(BenchError::io("write a C program"))?;
    let mut command = Command::new("cc");
    command.args(["-O2", "-fopenmp", "-o"]).arg(&program);
    command.arg(&source).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let missing =
        |what: String| BenchError::Missing(format!("OpenMP: {what}: apt install build-essential"));
    match command.status() {
        Err(error) => Err(missing(format!("no C compiler ({error})"))),
        Ok(status) if status.success() => Ok(program),
        Ok(status) => Err(missing(format!("`cc -fopenmp` ended with {status}"))),
    }
}

fn time(ns: u64) -> String {
    match ns {
        0..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{} us", ns / 1_000),
        _ => format!("{} ms", ns / 1_000_000),
    }
}

/// All rows whose serial time is bearable, and those of mixed sizes.
fn rows(quick: bool) -> Vec<Size> {
    let serial_ns_max = if quick { 1_000_000 } else { SERIAL_NS_MAX };
    let mut rows = Vec::new();
    for unit_ns in UNITS_NS {
        for units in COUNTS {
            if unit_ns * units as u64 <= serial_ns_max {
                rows.push(Size {
                    loops: vec![(unit_ns, units)],
                    name: None,
                });
            }
        }
    }
    let mixed = [
        (
            "one class, sizes mixed",
            vec![
                (100, 200),
                (5_000, 100),
                (1_000_000, 2),
                (20, 10_000),
                (10_000, 2),
            ],
        ),
        (
            "one class, 2 units of 10 us to 1 ms",
            vec![(10_000, 2), (1_000_000, 2), (100_000, 2)],
        ),
        (
            "one class, 1,000 x 5 us after 2 x 100 ns",
            vec![(100, 2), (100, 2), (5_000, 1_000)],
        ),
    ];
    rows.extend(mixed.map(|(name, loops)| Size {
        loops,
        name: Some(name),
    }));
    rows
}

const UNITS_NS: [u64; 7] = [20, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000];
const COUNTS: [usize; 6] = [2, 10, 100, 1_000, 10_000, 100_000];
/// Longest serial time of a row.
const SERIAL_NS_MAX: u64 = 20_000_000;
/// Time that rayon's pieces take at least, where units are tiny.
pub(super) const RAYON_LEAST_NS: u64 = 5_000;
const SIDECORE: &str = "sidecore";
const SERIAL: &str = "serial";
const RAYON: &str = "rayon";
const OPENMP: &str = "openmp, active";
const PEER_SOURCE: &str = include_str!("../../peers/omp_loops.c");
