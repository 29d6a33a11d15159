//! `offload bench`: what it costs to reach an engine, and what a scheduler of tasks gains, beside
//! what others do, in one run.
//!
//! Why here: every figure that the project states must be made again by one command, as a ratio to
//! a peer that ran in turns with it.
//!
//! - one file a group: `trips` (round trips), `edtlp` (tasks beside processes), `throughput`,
//!   `sharing` (two processes on the same cores), `idle`, `slice` (the kernel's time slice).
//! - `children`, `peers`: other processes, from the measuring side and from their own; `work`: what
//!   they do and count.
//! - turns, medians and spreads are `sidecore_measure`'s.
//! - [`report`]: what comes out; [`tables`]: the same for people and for `docs/results`.
//!
//! Must stay true: contestants run in turns, every round beginning with another; every process that
//! is started is ended, whatever happens; nothing waits longer than its limit.
//! Called from one thread, which blocks for minutes.
//! Source: papers/001 (the multigrain scheduler of 2007).

mod children;
mod edtlp;
mod idle;
mod peers;
pub mod report;
mod sharing;
mod slice;
pub mod tables;
mod throughput;
mod trips;
mod work;

pub use peers::play;

use crate::OffloadError;
use crate::client::ClientError;
use crate::daemon::DaemonError;
use report::Report;
use sidecore_measure::child::ChildError;
use sidecore_measure::stats::Series;
use sidecore_measure::turns::{self, Collected};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// A set of measurements that can be asked for alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// A word to another core and back.
    Trips,
    /// Tasks as fibers beside processes that spin or block.
    Edtlp,
    /// Empty tasks a second.
    Throughput,
    /// Two processes on the same cores.
    Sharing,
    /// What costs something that has nothing to do.
    Idle,
    /// How long the kernel leaves a core to one of two.
    Slice,
}

impl Group {
    /// All groups, in the order in which they run.
    pub const ALL: [Self; 6] = [
        Self::Trips,
        Self::Throughput,
        Self::Sharing,
        Self::Idle,
        Self::Slice,
        Self::Edtlp,
    ];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Trips => "trips",
            Self::Edtlp => "edtlp",
            Self::Throughput => "throughput",
            Self::Sharing => "sharing",
            Self::Idle => "idle",
            Self::Slice => "slice",
        }
    }
}

impl std::str::FromStr for Group {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|group| group.name() == text);
        found.ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|group| group.name()).collect();
            format!("no group `{text}`; choose from {}", names.join(", "))
        })
    }
}

/// What to measure, and how.
#[derive(Debug, Clone)]
pub struct Config {
    /// Few rounds, short ones: a taste, not a result.
    pub quick: bool,
    /// The groups to run; all where empty.
    pub only: Vec<Group>,
    /// Numbers of workers in [`Group::Edtlp`]; a usual choice where empty.
    pub workers: Vec<usize>,
    /// The `sidecore` program, which plays the other processes.
    pub sidecore: PathBuf,
    /// Where sockets and compiled peers lie; removed at the end.
    pub scratch: PathBuf,
}

/// Why a measurement, or the whole run, could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// Something that this machine does not have. Said in the report, no failure.
    #[error("{0}")]
    Missing(String),
    /// A program failed, or took longer than it may.
    #[error("`{command}` {what}")]
    Program {
        /// The command line.
        command: String,
        /// How it ended, and what it said.
        what: String,
    },
    /// A contestant did not do what it was measured for.
    #[error("{who} answered {got}, not {wanted}")]
    Wrong {
        /// Which contestant.
        who: String,
        /// What it answered.
        got: u64,
        /// What was right.
        wanted: u64,
    },
    /// The operating system refused something.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What it said.
        source: std::io::Error,
    },
    /// The engines could not be started, or a kernel failed.
    #[error(transparent)]
    Engines(#[from] OffloadError),
    /// The daemon could not be started.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// The daemon could not be reached, or a call of it failed.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A core or memory was refused.
    #[error(transparent)]
    System(#[from] sidecore_sys::SysError),
    /// Somebody wants this to end.
    #[error("interrupted; everything was ended and removed")]
    Interrupted,
}

impl From<ChildError> for BenchError {
    fn from(error: ChildError) -> Self {
        match error {
            ChildError::Program { command, what } => Self::Program { command, what },
            ChildError::Io { what, source } => Self::Io { what, source },
            ChildError::Interrupted => Self::Interrupted,
        }
    }
}

impl BenchError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

/// A run under way.
pub(crate) struct Bench<'a> {
    config: &'a Config,
    cancel: Arc<AtomicBool>,
    /// The cores of this run: the callers', then one that shares no execution unit with it, then
    /// the others.
    cpus: Vec<usize>,
    report: Report,
    progress: &'a mut dyn FnMut(&str),
    group: &'static str,
    began: Instant,
}

/// Runs the bench. Blocks for some ten seconds where `quick`, else for some minutes. `cancel` ends
/// it within a second or so. `progress` gets a line now and then.
///
/// # Errors
/// [`BenchError::Interrupted`], or what kept it from beginning. What goes wrong in one group is in
/// [`Report::failures`], and the others still run.
pub fn run(
    config: &Config,
    cancel: Arc<AtomicBool>,
    progress: &mut dyn FnMut(&str),
) -> Result<Report, BenchError> {
    let cpus = sidecore_sys::machine::apart(&sidecore_sys::cpu::allowed()?);
    let mut report = Report::new(sidecore_sys::Machine::look(&config.sidecore), config.quick);
    report.placement = placement(&cpus);
    report.method = METHOD.into();
    let mut bench = Bench {
        config,
        cancel,
        cpus,
        report,
        progress,
        group: "",
        began: Instant::now(),
    };
    let groups = Group::ALL
        .into_iter()
        .filter(|group| config.only.is_empty() || config.only.contains(group));
    for group in groups {
        bench.group = group.name();
        bench.say("starting");
        let result = match group {
            Group::Trips => trips::run(&mut bench),
            Group::Edtlp => edtlp::run(&mut bench),
            Group::Throughput => throughput::run(&mut bench),
            Group::Sharing => sharing::run(&mut bench),
            Group::Idle => idle::run(&mut bench),
            Group::Slice => slice::run(&mut bench),
        };
        match result {
            Ok(()) => {}
            Err(BenchError::Interrupted) => return Err(BenchError::Interrupted),
            Err(BenchError::Missing(reason)) => bench.missing(&reason),
            Err(error) => bench.failed(&error),
        }
        interrupted(&bench.cancel)?;
    }
    bench.report.judge();
    bench.report.seconds = bench.began.elapsed().as_secs_f64();
    Ok(bench.report)
}

impl Bench<'_> {
    /// Tells whoever watches.
    fn say(&mut self, what: &str) {
        let seconds = self.began.elapsed().as_secs();
        (self.progress)(&format!("{seconds:4} s  {}: {what}", self.group));
    }

    fn quick(&self) -> bool {
        self.config.quick
    }

    /// One of two, as the run is quick or not.
    fn choose<T>(&self, quick: T, full: T) -> T {
        if self.quick() { quick } else { full }
    }

    /// Runs contestants in turns, every round beginning with another one, and keeps what each
    /// gave: several values a round, named by `metrics`. A contestant that fails is out, with the
    /// reason in the report.
    fn contest<'c>(
        &mut self,
        metrics: &[(&str, &'static str)],
        rounds: usize,
        contestants: &mut [Contestant<'c>],
    ) -> Result<Vec<Option<Vec<Series>>>, BenchError> {
        let cancel = &self.cancel;
        let before = |_, _| interrupted(cancel).map(|()| true);
        let ends = |error: &BenchError| matches!(error, BenchError::Interrupted);
        let all = turns::take(rounds, metrics.len(), &(), contestants, before, ends)?;
        let collected = Collected::of(self.group, metrics, all);
        self.report.samples.extend(collected.samples);
        for (_, error) in collected.out {
            match error {
                BenchError::Missing(reason) => self.missing(&reason),
                error => self.failed(&error),
            }
        }
        Ok(collected.series)
    }

    /// Says that something could not be measured because this machine lacks it.
    fn missing(&mut self, reason: &str) {
        self.say(&format!("not measured: {reason}"));
        let line = format!("{}: {reason}", self.group);
        self.report.missing.push(line);
    }

    /// Says that a measurement failed: the run's exit status is 1.
    fn failed(&mut self, error: &BenchError) {
        self.say(&format!("failed: {error}"));
        let line = format!("{}: {error}", self.group);
        self.report.failures.push(line);
    }
}

/// One of those who are measured in turns.
pub(crate) type Contestant<'c> = turns::Contestant<'c, (), BenchError>;

fn placement(cpus: &[usize]) -> String {
    let caller = cpus.first().copied().unwrap_or(0);
    match cpus.get(1) {
        Some(partner) => format!(
            "callers on core {caller}, the engine or partner they reach on core {partner}, each \
             pinned; workers on core {caller}, or on cores {caller} and {partner}; a hog is pinned \
             to each worker core; virtual engines take no core"
        ),
        None => format!("everything on core {caller}, the only one"),
    }
}

pub(crate) fn interrupted(cancel: &AtomicBool) -> Result<(), BenchError> {
    // Nothing hangs on it but the end.
    if cancel.load(Ordering::Relaxed) {
        return Err(BenchError::Interrupted);
    }
    Ok(())
}

const METHOD: &str = "in each round all contestants of a group run one after another, beginning \
    with another one each time; a figure is the median of the rounds, its spread the largest round \
    less the smallest, divided by it; a ratio is the median of the rounds' own ratios";
