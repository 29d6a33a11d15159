//! Many threads that call at once: the waiting time of each, compared with rayon's.
//!
//! Why here: a scheduler of engines must starve no caller; the 99th percentile shows it.
//! Must stay true: each caller does one call after another and times every one of them; both pools
//! have a thread, or an engine, on each core; callers are bound to none.
//! One thread, and the callers. Source: own.

use super::loops::rayon_pool;
use super::report::CallersRow;
use super::work::{HostWork, percentile};
use super::{Bench, BenchError, Candidate};
use crate::measure::stats::Series;
use sidecore_offload::{Pool, PoolConfig};
use sidecore_sys::clock;
use std::sync::Barrier;

/// Measures all numbers of callers.
pub(crate) fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let cpus = bench.cpus.clone();
    let pool = Pool::start(PoolConfig {
        engines: cpus.len(),
        cpus: cpus.clone(),
        ..PoolConfig::default()
    })?;
    let rayon = rayon_pool(&cpus)?;
    let length_ns = bench.choose(100_000_000, 500_000_000);
    let rounds = bench.choose(2, 7);
    for work_ns in WORK_NS {
        let work = HostWork::calibrate(work_ns);
        for callers in CALLERS {
            bench.say(&format!("{callers} callers"));
            let mut candidates = vec![
                Candidate::new(SIDECORE, |()| {
                    timed(callers, length_ns, || pool.call(|_core| work.run()))
                }),
                Candidate::new(RAYON, |()| {
                    timed(callers, length_ns, || rayon.install(|| work.run()))
                }),
            ];
            let metrics = [
                ("p50", "ns"),
                ("p99", "ns"),
                ("calls", "/s"),
                ("least", "x"),
            ];
            let series = bench.interleave(&metrics, rounds, &mut candidates)?;
            drop(candidates);
            let series: Vec<Vec<Series>> = series.into_iter().flatten().collect();
            if let [own, peer] = &series[..] {
                let row = CallersRow::new(callers, work_ns, own, peer);
                bench.report.callers.push(row);
            }
        }
    }
    Ok(())
}

/// Median and 99th percentile of the calls' times, calls in a second, and the calls of the caller
/// with the fewest, divided by those of the one with the most.
fn timed(callers: usize, length_ns: u64, call: impl Fn() + Sync) -> Result<Vec<f64>, BenchError> {
    let begin = Barrier::new(callers);
    let (begin, call) = (&begin, &call);
    let taken: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let one = move || {
            // Reserved before the clock starts: a growing vector would show in the 99th percentile.
            let mut taken_ns = Vec::with_capacity(CALLS_KEPT_MAX / callers);
            begin.wait();
            let begun_ns = clock::now_ns();
            let mut before_ns = begun_ns;
            while before_ns - begun_ns < length_ns && taken_ns.len() < taken_ns.capacity() {
                call();
                let after_ns = clock::now_ns();
                taken_ns.push(after_ns - before_ns);
                before_ns = after_ns;
            }
            taken_ns
        };
        let threads: Vec<_> = (0..callers).map(|_| scope.spawn(one)).collect();
        let ended = threads.into_iter().map(|thread| match thread.join() {
            Ok(taken) => taken,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        ended.collect()
    });
    let counts = taken.iter().map(Vec::len);
    let (least, most) = (counts.clone().min(), counts.max());
    let mut all: Vec<u64> = taken.into_iter().flatten().collect();
    all.sort_unstable();
    Ok(vec![
        percentile(&all, 50) as f64,
        percentile(&all, 99) as f64,
        all.len() as f64 * 1e9 / length_ns as f64,
        least.unwrap_or(0) as f64 / most.unwrap_or(1).max(1) as f64,
    ])
}

/// Numbers of threads.
const CALLERS: [usize; 3] = [1, 8, 64];
/// Work of a call.
const WORK_NS: [u64; 2] = [1_000, 20_000];
/// Calls whose times are kept.
const CALLS_KEPT_MAX: usize = 1 << 21;
const SIDECORE: &str = "sidecore";
const RAYON: &str = "rayon";
