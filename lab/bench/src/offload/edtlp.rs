//! Event-driven task parallelism: N workers, eight virtual engines, one or two cores.
//!
//! Why here: the papers' MPI processes spun while their SPE worked, so that the kernel's quantum
//! went to waste; tasks that yield while they wait fill that time. Compared here: processes that
//! spin, processes that sleep, and our tasks as fibers, on the same cores.
//! Must stay true: all candidates do the same steps of host work and wait for the same virtual
//! engines; a row's candidates are interleaved under the same load; a worker that claims more
//! cycles than fit into the time is an error. One thread, which sleeps while others are measured.
//! Source: the scheduling paper (docs/papers.md), sections 4 and 5.

use super::children;
use super::report::EdtlpRow;
use super::roles::{Role, Worker};
use super::work::{Counted, HostWork, Window};
use super::{Bench, BenchError, Candidate, wrong};
use crate::measure::child::Speaker;
use crate::measure::stats::{Outcome, Series};
use sidecore_sys::clock;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Measures all rows.
pub(crate) fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let work = HostWork::calibrate(HOST_NS);
    if bench.cpus.len() < 2 {
        bench.missing("rows of two worker cores: this process may use one core");
    }
    let usual = bench.choose(QUICK_WORKERS.as_slice(), FULL_WORKERS.as_slice());
    let workers = match bench.config.workers.as_slice() {
        [] => usual,
        asked => asked,
    };
    for hog in [false, true] {
        for worker_cores in 1..=bench.cpus.len().min(2) {
            let cpus = bench.cpus[..worker_cores].to_vec();
            let with = if hog { ", beside a hog" } else { "" };
            bench.say(&format!("workers on {worker_cores} core(s){with}"));
            let _hogs = if hog { hogs(bench, &cpus)? } else { Vec::new() };
            for &workers in workers {
                row(bench, &cpus, workers, hog, work)?;
            }
        }
    }
    Ok(())
}

/// A process that keeps each of these cores busy, until dropped.
fn hogs(bench: &Bench<'_>, cpus: &[usize]) -> Result<Vec<Speaker>, BenchError> {
    let roles: Vec<Role> = cpus.iter().map(|&cpu| Role::Hog { cpu }).collect();
    children::start_all(&bench.config.sidecore, roles.iter(), &bench.cancel)
}

fn row(
    bench: &mut Bench<'_>,
    cpus: &[usize],
    workers: usize,
    hog: bool,
    work: HostWork,
) -> Result<(), BenchError> {
    let worker = Worker {
        cpus: cpus.to_vec(),
        work,
        engine_ns: ENGINE_NS,
    };
    let measure = Measure {
        program: &bench.config.sidecore,
        cancel: Arc::clone(&bench.cancel),
        workers,
        warm_ns: bench.choose(10_000_000, 30_000_000),
        counted_ns: bench.choose(70_000_000, 220_000_000),
    };
    let measure = &measure;
    let spin = vec![Role::Spin(worker.clone()); workers];
    let block = vec![Role::Block(worker.clone()); workers];
    let fibers = vec![Role::Fibers { worker, workers }];
    let at = |who: &str| {
        let hog = if hog { ", hog" } else { "" };
        format!("{who}, {workers} workers, {} cores{hog}", cpus.len())
    };
    let mut candidates = vec![
        Candidate::new(at("spinning"), |()| measure.cycle_us(&spin)),
        Candidate::new(at("fibers"), |()| measure.cycle_us(&fibers)),
        Candidate::new(at("blocking"), |()| measure.cycle_us(&block)),
    ];
    let rounds = bench.choose(2, 3);
    let metrics = [("cycle", "us"), ("cycle, p99 of the worst worker", "us")];
    let series = bench.interleave(&metrics, rounds, &mut candidates)?;
    let [Some(spin), Some(fibers), Some(block)] = series.as_slice() else {
        return Ok(());
    };
    let (cycle, p99) = (0, 1);
    let to_spin = Outcome::of(&spin[cycle], &fibers[cycle]);
    let to_block = Outcome::of(&fibers[cycle], &block[cycle]);
    let median = |series: &[Series], which: usize| series[which].median();
    bench.report.edtlp.push(EdtlpRow {
        workers,
        worker_cores: cpus.len(),
        hog,
        spin_us: median(spin, cycle),
        edtlp_us: median(fibers, cycle),
        block_us: median(block, cycle),
        ratio: to_spin.ratio,
        ratio_spread: to_spin.spread,
        to_block: to_block.ratio,
        to_block_spread: to_block.spread,
        edtlp_spread: fibers[cycle].spread(),
        spin_p99_us: median(spin, p99),
        edtlp_p99_us: median(fibers, p99),
        block_p99_us: median(block, p99),
        rounds: to_spin.rounds,
    });
    Ok(())
}

/// Measurement of one sample of a row.
struct Measure<'a> {
    program: &'a Path,
    cancel: Arc<AtomicBool>,
    workers: usize,
    warm_ns: u64,
    counted_ns: u64,
}

impl Measure<'_> {
    /// Starts processes in these roles, lets them work, and gives the microseconds of one worker's
    /// cycle and the worst worker's 99th percentile.
    fn cycle_us(&self, roles: &[Role]) -> Result<Vec<f64>, BenchError> {
        let mut peers = children::start_all(self.program, roles.iter(), &self.cancel)?;
        let begin_ns = clock::now_ns() + START_NS;
        let window = Window {
            begin_ns,
            from_ns: begin_ns + self.warm_ns,
            until_ns: begin_ns + self.warm_ns + self.counted_ns,
        };
        for peer in &mut peers {
            peer.tell(&window)?;
        }
        let mut counted: Vec<Counted> = Vec::with_capacity(self.workers);
        for peer in &mut peers {
            counted.extend(peer.answer::<Vec<Counted>>(&self.cancel)?);
        }
        let most = window.counted_ns() / ENGINE_NS + 1;
        for worker in &counted {
            if worker.cycles > most {
                return Err(wrong("a worker's count of cycles", worker.cycles, most));
            }
        }
        if counted.len() != self.workers {
            return Err(wrong(
                "the number of workers",
                counted.len() as u64,
                self.workers as u64,
            ));
        }
        let cycles: u64 = counted.iter().map(|worker| worker.cycles).sum();
        let p99_ns = counted.iter().map(|worker| worker.p99_ns).max();
        // A worker without a finished cycle took at least the whole time for one.
        let worker_ns = window.counted_ns() as f64 * self.workers as f64;
        let cycle_us = worker_ns / cycles.max(1) as f64 / 1000.0;
        Ok(vec![cycle_us, p99_ns.unwrap_or(0) as f64 / 1000.0])
    }
}

/// Time of the host's share of a cycle, in nanoseconds.
const HOST_NS: u64 = 11_000;
/// Time of the engine's share of a cycle, in nanoseconds.
const ENGINE_NS: u64 = 96_000;
/// Time between the start command and the workers' beginning, in nanoseconds.
const START_NS: u64 = 3_000_000;
const QUICK_WORKERS: [usize; 3] = [1, 4, 8];
const FULL_WORKERS: [usize; 8] = [1, 2, 3, 4, 5, 6, 7, 8];
