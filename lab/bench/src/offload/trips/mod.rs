//! Round trips: a word to another core and back, by every available way, relative to the bare
//! shared line.
//!
//! Why here: the cost of an off-load bounds how small a task may be; and it cannot be less than
//! moving one cache line to another core and back.
//! Must stay true: every way carries a number there and the same number back, and it is checked;
//! only the way that is measured has a thread that spins.
//! One thread, pinned while it measures. Source: own. The ways of others are in `others`.
//!
//! Ours are the public interface that programs use, nothing below it; the engine has a core of its
//! own, and has gone to sleep whenever another way is measured.

mod others;

use super::report::Trip;
use super::roles::{Role, Served};
use super::work::percentile;
use super::{Bench, BenchError, Candidate, children, wrong};
use crate::measure::child::Speaker;
use rustix::thread::CpuSet;
use sidecore_daemon::client::{Args, Client, ClientOptions, KernelId};
use sidecore_offload::{Pool, PoolConfig};
use sidecore_sys::{clock, cpu};
use std::time::Duration;

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
    let same = SameProcess::start(plan)?;
    let cross = CrossProcess::start(bench, plan)?;
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

/// A pool of this process whose engine is on the partner's core.
pub(super) struct SameProcess(Pool);

impl SameProcess {
    pub(super) fn start(plan: &Plan) -> Result<Self, BenchError> {
        Ok(Self(Pool::start(PoolConfig {
            engines: 1,
            cpus: vec![plan.partner],
            dedicated: true,
            ..PoolConfig::default()
        })?))
    }

    /// Empty off-loads, which carry a number there and back.
    pub(super) fn sample(&self, plan: &Plan) -> Result<Vec<f64>, BenchError> {
        plan.sample(SAME, |number| {
            // An error is no number of a trip.
            self.0.off_load(move |_| number).unwrap_or(u64::MAX)
        })
    }
}

/// A daemon in another process whose engine is on the partner's core.
pub(super) struct CrossProcess {
    client: Client,
    empty: KernelId,
    _daemon: Speaker,
}

impl CrossProcess {
    pub(super) fn start(bench: &Bench<'_>, plan: &Plan) -> Result<Self, BenchError> {
        let socket = bench.config.scratch.join("trips.sock");
        let daemon = Role::Daemon(Served {
            socket: socket.clone(),
            cpus: vec![plan.partner],
            grace_ms: Some(GRACE_MS),
            allow_uids: Vec::new(),
        });
        let daemon = children::start(&bench.config.sidecore, &daemon, &bench.cancel)?;
        // What is measured is the engine.
        let client = Client::attach_with(&socket, ClientOptions::patient())?;
        let empty = client.kernel("empty")?;
        Ok(Self {
            client,
            empty,
            _daemon: daemon,
        })
    }

    /// Empty calls. They carry nothing; the check is that an engine answered each of them.
    pub(super) fn sample(&self, plan: &Plan) -> Result<Vec<f64>, BenchError> {
        let before = self.client.counters();
        let sampled = plan.sample(CROSS, |number| {
            match self.client.call(self.empty, Args::new()) {
                Ok(_) => number,
                Err(_) => u64::MAX,
            }
        })?;
        let on_host = self.client.counters().on_host - before.on_host;
        if on_host > 0 {
            return Err(wrong("the count of calls that no engine did", on_host, 0));
        }
        // The next way has the core for itself.
        std::thread::sleep(Duration::from_millis(3 * GRACE_MS));
        Ok(sampled)
    }
}

/// Short: the engine must not poll while another way is measured.
const GRACE_MS: u64 = 1;
