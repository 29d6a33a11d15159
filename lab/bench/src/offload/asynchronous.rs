//! Jobs compared with blocking calls: one thread, two engines of a daemon, kernels of 20 us.
//!
//! Why here: a thread that waits for each answer keeps at most one engine busy, with gaps; the
//! rings exist to keep two busy, and this shows how many open jobs that takes. Must stay true: both
//! ways send the same kernel to the same daemon from one thread; the engines' busy share comes from
//! the daemon's own counters; every outcome is checked. On fewer than three cores the thread shares
//! one with an engine, and sleeps instead of spinning. One thread. Source: own.

use super::work::percentile;
use super::{Bench, BenchError, Candidate, wrong};
use crate::measure::stats::{Outcome, Series};
use serde::Serialize;
use sidecore_daemon::client::{Args, Client, ClientError, ClientOptions, Job, KernelId};
use sidecore_daemon::served::Registry;
use sidecore_daemon::{Daemon, DaemonOptions};
use sidecore_sys::{clock, cpu};
use std::time::Duration;

/// One depth compared with blocking calls.
#[derive(Debug, Clone, Serialize)]
pub struct JobsRow {
    /// Jobs that are open at once.
    pub depth: usize,
    /// Time of a kernel in microseconds.
    pub kernel_us: u64,
    /// Jobs in a second.
    pub per_s: f64,
    /// Share of the time for which the two engines were busy, in percent.
    pub busy_percent: f64,
    /// Median time from submission to outcome in microseconds.
    pub p50_us: f64,
    /// Blocking calls of the same thread in a second.
    pub calls_per_s: f64,
    /// Share of the time for which the two engines were busy with those, in percent.
    pub calls_busy_percent: f64,
    /// Jobs in a second divided by calls in the same round: the median of the rounds.
    pub ratio: f64,
    /// Largest of these ratios less the smallest, divided by the median.
    pub ratio_spread: f64,
    /// Rounds measured.
    pub rounds: usize,
}

/// Measures all depths.
pub(crate) fn run(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let cpus = cpu::allowed()?;
    let measured = on_first_core(bench);
    // Threads of other groups inherit this thread's cores.
    cpu::stay_on(&cpus)?;
    measured
}

fn on_first_core(bench: &mut Bench<'_>) -> Result<(), BenchError> {
    let daemon = Daemon::start(DaemonOptions {
        socket: bench.config.scratch.join("async.sock"),
        engines: ENGINES,
        oversubscribe: bench.cpus.len() < ENGINES,
        registry: Registry::with_spin_us(),
        ..DaemonOptions::default()
    })?;
    let defaults = ClientOptions::patient();
    // On fewer cores a client that spins would take an engine's core.
    let spin = if bench.cpus.len() > ENGINES {
        defaults.spin
    } else {
        Duration::ZERO
    };
    let client = Client::attach_with(
        daemon.socket(),
        ClientOptions {
            registry: Registry::with_spin_us(),
            spin,
            ..defaults
        },
    )?;
    let kernel = client.kernel("spin_us")?;
    // The engines have the last cores, as the daemon places them.
    cpu::pin(cpu::allowed()?.first().copied().unwrap_or(0)).ok();
    let way = Way {
        client: &client,
        kernel,
        length_ns: bench.choose(50_000_000, 400_000_000),
    };
    let rounds = bench.choose(2, 7);
    for depth in DEPTHS {
        bench.say(&format!("{depth} open jobs"));
        let mut candidates = vec![
            Candidate::new(JOBS, |()| way.jobs(depth)),
            Candidate::new(CALLS, |()| way.calls()),
        ];
        let metrics = [("rate", "/s"), ("busy", "%"), ("p50", "ns")];
        let series = bench.interleave(&metrics, rounds, &mut candidates)?;
        drop(candidates);
        let series: Vec<Vec<Series>> = series.into_iter().flatten().collect();
        if let [jobs, calls] = &series[..] {
            bench.report.jobs.push(JobsRow::new(depth, jobs, calls));
        }
    }
    Ok(())
}

/// One thread's ways to two engines.
struct Way<'a> {
    client: &'a Client,
    kernel: KernelId,
    length_ns: u64,
}

impl Way<'_> {
    /// Keeps `depth` jobs open: rate, busy share, median time of a job.
    fn jobs(&self, depth: usize) -> Result<Vec<f64>, BenchError> {
        let mut begun_ns = vec![0; depth];
        let mut taken_ns = Vec::new();
        self.measure(|end_ns| {
            let submit = |place: usize, begun_ns: &mut [u64]| {
                begun_ns[place] = clock::now_ns();
                let job = Job::new(self.kernel).words(&[KERNEL_US]);
                let posted = self.client.post(job.token(place as u64));
                posted.map_err(|refused| refused.error)
            };
            for place in 0..depth {
                submit(place, &mut begun_ns)?;
            }
            // Until all are done, so that no job reaches into the next sample.
            while let Some(outcome) = self.client.wait(None) {
                let now_ns = clock::now_ns();
                outcome.result?;
                let place = outcome.token as usize;
                taken_ns.push(now_ns - begun_ns[place]);
                if now_ns < end_ns {
                    submit(place, &mut begun_ns)?;
                }
            }
            Ok(taken_ns)
        })
    }

    /// One call after another: the same.
    fn calls(&self) -> Result<Vec<f64>, BenchError> {
        let mut taken_ns = Vec::new();
        self.measure(|end_ns| {
            loop {
                let begun_ns = clock::now_ns();
                self.client
                    .call(self.kernel, Args::new().words(&[KERNEL_US]))?;
                let now_ns = clock::now_ns();
                taken_ns.push(now_ns - begun_ns);
                if now_ns >= end_ns {
                    return Ok(taken_ns);
                }
            }
        })
    }

    /// Runs `work` for about the given time, and returns its figures.
    fn measure(
        &self,
        work: impl FnOnce(u64) -> Result<Vec<u64>, ClientError>,
    ) -> Result<Vec<f64>, BenchError> {
        let (busy_before, host_before) = (self.busy_ns()?, self.client.counters().on_host);
        let begun_ns = clock::now_ns();
        let mut taken_ns = work(begun_ns + self.length_ns)?;
        let elapsed_ns = clock::now_ns() - begun_ns;
        let on_host = self.client.counters().on_host - host_before;
        // A job that the host did says nothing about the engines.
        if on_host > 0 {
            return Err(wrong("the count of jobs that no engine did", on_host, 0));
        }
        let busy_ns = self.busy_ns()? - busy_before;
        taken_ns.sort_unstable();
        Ok(vec![
            taken_ns.len() as f64 * 1e9 / elapsed_ns as f64,
            busy_ns as f64 * 100.0 / (elapsed_ns * ENGINES as u64) as f64,
            percentile(&taken_ns, 50) as f64,
        ])
    }

    /// Engine time that this client has had.
    fn busy_ns(&self) -> Result<u64, BenchError> {
        let status = self.client.status()?;
        let of_clients = status.clients.iter().map(|client| client.busy_us);
        Ok(of_clients.sum::<u64>() * 1000)
    }
}

impl JobsRow {
    /// Computes a row; each series is rate, busy share, median time.
    fn new(depth: usize, jobs: &[Series], calls: &[Series]) -> Self {
        let outcome = Outcome::of(&jobs[0], &calls[0]);
        Self {
            depth,
            kernel_us: KERNEL_US,
            per_s: jobs[0].median(),
            busy_percent: jobs[1].median(),
            p50_us: jobs[2].median() * 1e-3,
            calls_per_s: calls[0].median(),
            calls_busy_percent: calls[1].median(),
            ratio: outcome.ratio,
            ratio_spread: outcome.spread,
            rounds: outcome.rounds,
        }
    }
}

const ENGINES: usize = 2;
const DEPTHS: [usize; 4] = [1, 16, 256, 1000];
const KERNEL_US: u64 = 20;
const JOBS: &str = "jobs";
const CALLS: &str = "calls";
