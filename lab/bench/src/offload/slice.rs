//! The kernel's time slice: the time for which a process keeps a core that another equally wants.
//!
//! Why here: the papers' spinning processes lose their engines' time to it (10 ms there). The
//! kernel reveals its setting only to root and only through debugfs, while a process's share also
//! depends on the timer's tick. Measured, any user can see it.
//! Must stay true: both sides only compute, on one core, at the same weight; what is shorter than
//! a gap (an interrupt, a kernel thread) ends no slice; the first and the last slice of a round are
//! cut off by it, and do not count. One thread, which keeps a core busy. Source: the
//! scheduling paper, section 4; Linux `Documentation/scheduler/sched-eevdf.rst`.

use super::children;
use super::report::Figure;
use super::roles::{Role, stay_on};
use super::{Bench, BenchError, Candidate, interrupted};
use crate::measure::stats::median;
use sidecore_sys::clock;
use std::sync::atomic::AtomicBool;

/// Measures a few times.
pub(crate) fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let cpu = bench.cpus.first().copied().unwrap_or(0);
    let (program, cancel) = (bench.config.sidecore.clone(), bench.cancel.clone());
    let length_ns = bench.choose(300_000_000, 1_000_000_000);
    bench.say("two that compute, on one core");
    let _other = children::start(&program, &Role::Hog { cpu }, &cancel)?;
    let mut candidates = vec![Candidate::new(NAME, |()| {
        Ok(vec![slice_ms(cpu, length_ns, &cancel)?])
    })];
    let rounds = bench.choose(3, 5);
    let series = bench.interleave(&[("slice", "ms")], rounds, &mut candidates)?;
    drop(candidates);
    if let Some([series]) = series.first().and_then(Option::as_deref) {
        let mut figure = Figure::new(NAME, series, "ms");
        figure.note = "the median slice of each round; the papers' kernel: 10 ms".into();
        bench.report.slice.push(figure);
    }
    Ok(())
}

/// The median slice in milliseconds that this much time shows. The thread is one of its own, so
/// that only it is pinned.
fn slice_ms(cpu: usize, length_ns: u64, cancel: &AtomicBool) -> Result<f64, BenchError> {
    let moments = std::thread::scope(|scope| {
        let looking = scope.spawn(|| -> Result<Vec<[u64; 2]>, BenchError> {
            stay_on(&[cpu])?;
            runs(length_ns, cancel)
        });
        match looking.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })?;
    // The round cuts off the first and the last slice.
    let inner = moments.get(1..moments.len().saturating_sub(1));
    let slices: Vec<f64> = inner
        .unwrap_or_default()
        .iter()
        .map(|[from, until]| (until - from) as f64 * 1e-6)
        .collect();
    if slices.is_empty() {
        let reason = "the kernel did not let two processes take turns on one core";
        return Err(BenchError::Missing(reason.into()));
    }
    Ok(median(&slices))
}

/// Start and end of this thread's slices, until the given time is over.
fn runs(length_ns: u64, cancel: &AtomicBool) -> Result<Vec<[u64; 2]>, BenchError> {
    let mut runs = Vec::with_capacity((length_ns / GAP_NS) as usize + 1);
    let begun = clock::now_ns();
    let (mut from, mut last) = (begun, begun);
    while last < begun + length_ns {
        let now = clock::now_ns();
        if now - last > GAP_NS {
            interrupted(cancel)?;
            runs.push([from, last]);
            from = now;
        }
        last = now;
    }
    runs.push([from, last]);
    Ok(runs)
}

/// A gap shorter than this is not a turn of the other process.
const GAP_NS: u64 = 300_000;
const NAME: &str = "a process keeps its core, while another wants it";
