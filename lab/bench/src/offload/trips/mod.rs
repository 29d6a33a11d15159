//! Round trips: a word to another core and back, by every available way, relative to the bare
//! shared line.
//!
//! Why here: the cost of an off-load bounds how small a task may be; and it cannot be less than
//! moving one cache line to another core and back.
//! Must stay true: every way carries a number there and the same number back, and it is checked;
//! only the way that is measured has a thread that spins.
//! One thread, pinned while it measures. Source: own. The ways of others are in `others`, ours in
//! `ours`.

mod others;
mod ours;

use super::report::Trip;
use super::work::percentile;
use super::{Bench, BenchError, Candidate, wrong};
use rustix::thread::CpuSet;
use sidecore_sys::{clock, cpu};

/// Measures all ways, interleaved.
pub(crate) fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let &[caller, partner, ..] = bench.cpus.as_slice() else {
        let reason = "a round trip needs two cores, this process may use one".into();
        return Err(BenchError::Missing(reason));
    };
    let plan = Plan {
        caller,
        partner,
        trips: bench.choose(5_000, 20_000),
        limit_ns: bench.choose(60_000_000, 200_000_000),
    };
    let rounds = bench.choose(3, 9);
    let plan = &plan;
    let same = ours::SameProcess::start(plan)?;
    let cross = ours::CrossProcess::start(bench, plan)?;
    let mut candidates = vec![
        Candidate::new(BARE, move |()| others::spinning_line(plan)),
        Candidate::new("two_lines", move |()| others::two_lines(plan)),
        Candidate::new(SAME, |()| same.sample(plan)),
        Candidate::new(CROSS, |()| cross.sample(plan)),
        Candidate::new("futex", move |()| others::futex(plan)),
        Candidate::new("eventfd", move |()| others::eventfd(plan)),
        Candidate::new("crossbeam", move |()| others::crossbeam(plan)),
        Candidate::new("rayon", move |()| others::rayon(plan)),
    ];
    bench.say("round trips");
    // Only for the measurement: processes of other groups would inherit the core.
    let pinned = Pinned::to(caller)?;
    let series = bench.interleave(&[("median", "ns"), ("p99", "ns")], rounds, &mut candidates);
    drop(candidates);
    drop(pinned);
    let series = series?;
    let Some(bare) = series[0].as_ref().map(|both| both[0].clone()) else {
        return Ok(());
    };
    for (name, both) in NAMES.into_iter().zip(series) {
        let [medians, p99s] = both.as_deref().unwrap_or_default() else {
            continue;
        };
        let trip = Trip::new(name, medians, p99s, &bare);
        bench.report.round_trip_ns.push(trip);
    }
    Ok(())
}

/// Cores and numbers of a measurement.
pub(super) struct Plan {
    /// The core that asks.
    caller: usize,
    /// The core that answers.
    partner: usize,
    /// Trips in a round.
    trips: usize,
    /// Time limit of a round, in nanoseconds; a round of a slow way has fewer trips.
    limit_ns: u64,
}

impl Plan {
    /// Makes trips: `trip` takes a number there and gives what came back. The median and the 99th
    /// percentile in nanoseconds.
    fn sample(&self, who: &str, mut trip: impl FnMut(u64) -> u64) -> Result<Vec<f64>, BenchError> {
        let mut number = 0;
        let mut one = || {
            number += 1;
            let begun = clock::cycles();
            let got = trip(number);
            let taken = clock::cycles().wrapping_sub(begun);
            if got == number {
                return Ok(taken);
            }
            Err(wrong(who, got, number))
        };
        let begun_ns = clock::now_ns();
        for _ in 0..self.trips / 10 {
            one()?;
            if clock::now_ns() - begun_ns > self.limit_ns / 4 {
                break;
            }
        }
        let mut taken = Vec::with_capacity(self.trips);
        let begun_ns = clock::now_ns();
        while taken.len() < self.trips
            && (taken.len() % LOOK_TRIPS != 0 || clock::now_ns() - begun_ns < self.limit_ns)
        {
            taken.push(one()?);
        }
        taken.sort_unstable();
        let per_ns = clock::cycles_per_us() / 1000.0;
        let at = |percent| percentile(&taken, percent) as f64 / per_ns;
        Ok(vec![at(50), at(99)])
    }
}

/// This thread on one core, until dropped.
pub(in crate::offload) struct Pinned(CpuSet);

impl Pinned {
    pub(in crate::offload) fn to(core: usize) -> Result<Self, BenchError> {
        let before = rustix::thread::sched_getaffinity(None);
        let before = before.map_err(|error| BenchError::io("ask for the cores")(error.into()))?;
        cpu::pin(core)?;
        Ok(Self(before))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // It was allowed before.
        let _ = rustix::thread::sched_setaffinity(None, &self.0);
    }
}

/// Name of the way that all others are compared with.
const BARE: &str = "spinning_line";
const SAME: &str = "same_process";
const CROSS: &str = "cross_process";
/// In the order of the candidates.
const NAMES: [&str; 8] = [
    BARE,
    "two_lines",
    SAME,
    CROSS,
    "futex",
    "eventfd",
    "crossbeam",
    "rayon",
];
/// Looking at the clock costs about as much as a tenth of a trip.
const LOOK_TRIPS: usize = 32;
