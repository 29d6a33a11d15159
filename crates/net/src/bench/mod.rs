//! `net bench`: the paper's experiments, the kernel and other stacks, in one run.
//!
//! Why here: every figure that the project states must be made again by one command, as a ratio to
//! a peer that ran in turns with it.
//!
//! - one module a group of measurements, each a plain function over `Bench`; `GROUPS` lists
//!   them, and a new one is added there.
//! - `namespace`: networks of the kernel that end with us; `programs`: other programs in them.
//! - [`report`]: what comes out; [`markdown`]: the same, for `docs/results`.
//!
//! Must stay true: contestants run in turns, every round beginning with another; a peer is given
//! its best settings; nothing outside namespaces of our own is touched; everything that is started
//! is ended, whatever happens; nothing waits longer than its limit.
//! Called from one thread, which blocks for minutes. Source: papers/004 (NetX on one SPE, 2009).

mod kernel;
pub mod markdown;
mod namespace;
mod pair;
mod papers;
mod programs;
pub mod report;
mod rpc;
mod served;
mod sessions;
mod stacks;

use crate::engine::EngineError;
use crate::error::NetError;
use crate::nic::NicError;
use crate::setup::SetupError;
use crate::sock::client::ClientError;
use crate::sock::control::SockError;
use report::{Curve, Report};
pub(crate) use sidecore_measure::Better;
use sidecore_measure::Row;
use sidecore_measure::child::ChildError;
use sidecore_measure::distance::word_round_trip_ns;
use sidecore_measure::stats::Series;
use sidecore_measure::turns::{self, Collected};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Runs a group: puts rows and peers into the report.
type Run = fn(&mut Bench<'_>) -> Result<(), BenchError>;

/// A set of measurements that can be asked for alone.
#[derive(Debug, Clone, Copy)]
pub struct Group {
    name: &'static str,
    run: Run,
}

/// All groups, in the order in which they run.
const GROUPS: &[Group] = &[
    sessions::GROUP,
    pair::GROUP,
    rpc::GROUP,
    kernel::BULK,
    kernel::SMOLTCP,
    kernel::FLOOD,
    kernel::LOSSES,
    papers::GROUP,
];

impl Group {
    /// All groups' names, in the order in which they run.
    pub fn names() -> impl Iterator<Item = &'static str> {
        GROUPS.iter().map(|group| group.name)
    }

    /// Its name on the command line.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }
}

impl std::str::FromStr for Group {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = GROUPS.iter().find(|group| group.name == text);
        found.copied().ok_or_else(|| {
            let names: Vec<_> = Self::names().collect();
            format!("no group `{text}`; choose from {}", names.join(", "))
        })
    }
}

/// What to measure, and how.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Few rounds, short ones: a taste, not a result.
    pub quick: bool,
    /// Rounds; 5, or 2 where `quick`, unless given.
    pub rounds: Option<usize>,
    /// The groups to run; all where empty.
    pub only: Vec<Group>,
    /// The program that is measured, whose commit the report names.
    pub sidecore: std::path::PathBuf,
    /// Where sockets lie; removed by the caller.
    pub scratch: std::path::PathBuf,
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
    #[error("{0}")]
    Wrong(String),
    /// The operating system refused something.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What it said.
        source: std::io::Error,
    },
    /// A NIC.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// A stack.
    #[error(transparent)]
    Stack(#[from] NetError),
    /// An engine could not come up.
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// An engine ended.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Nobody could attach to an engine.
    #[error(transparent)]
    Sock(#[from] SockError),
    /// A socket of an engine.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A process of the bench's own.
    #[error(transparent)]
    Child(ChildError),
    /// A core, memory or a namespace was refused.
    #[error(transparent)]
    System(#[from] sidecore_sys::SysError),
    /// Somebody wants this to end.
    #[error("interrupted; everything was ended and removed")]
    Interrupted,
}

impl From<ChildError> for BenchError {
    fn from(error: ChildError) -> Self {
        match error {
            ChildError::Interrupted => Self::Interrupted,
            error => Self::Child(error),
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
    rounds: usize,
    cancel: Arc<AtomicBool>,
    cpus: Vec<usize>,
    report: Report,
    progress: &'a mut dyn FnMut(&str),
    group: &'static str,
    /// How far apart the two cores were before the group's turns, in nanoseconds.
    distances: Vec<f64>,
    began: Instant,
}

/// Runs the bench. Blocks for half a minute where `quick`, else for some minutes. `cancel` ends it
/// within a second or so. `progress` gets a line now and then.
///
/// # Errors
/// [`BenchError::Interrupted`], or what kept it from beginning. What goes wrong in one group is in
/// the report, and the others still run.
pub fn run(
    config: &Config,
    cancel: Arc<AtomicBool>,
    progress: &mut dyn FnMut(&str),
) -> Result<Report, BenchError> {
    let rounds = config.rounds.unwrap_or(if config.quick { 2 } else { 5 });
    let rounds = rounds.clamp(1, ROUNDS_MAX);
    let cpus = sidecore_sys::machine::apart(&sidecore_sys::cpu::allowed()?);
    let machine = sidecore_sys::Machine::look(&config.sidecore);
    let report = Report::new(machine, rounds, config.quick, placement(&cpus));
    let mut bench = Bench {
        config,
        rounds,
        cancel,
        cpus,
        report,
        progress,
        group: "",
        distances: Vec::new(),
        began: Instant::now(),
    };
    let chosen = |group: &&Group| {
        config.only.is_empty() || config.only.iter().any(|only| only.name == group.name)
    };
    for group in GROUPS.iter().filter(chosen) {
        bench.group = group.name;
        bench.say("starting");
        match (group.run)(&mut bench) {
            Ok(()) => {}
            Err(BenchError::Interrupted) => return Err(BenchError::Interrupted),
            Err(BenchError::Missing(reason)) => bench.missing("the group", group.name, &reason),
            Err(error) => bench.failed(&error),
        }
        bench.tell_distance();
        bench.check()?;
    }
    bench.report.seconds = bench.began.elapsed().as_secs_f64();
    Ok(bench.report)
}

impl Bench<'_> {
    /// Tells whoever watches.
    pub(crate) fn say(&mut self, what: &str) {
        let seconds = self.began.elapsed().as_secs();
        (self.progress)(&format!("{seconds:4} s  {}: {what}", self.group));
    }

    /// Whether few and short rounds are wanted.
    pub(crate) fn quick(&self) -> bool {
        self.config.quick
    }

    /// One of two, as the run is quick or not.
    pub(crate) fn choose<T>(&self, quick: T, full: T) -> T {
        if self.quick() { quick } else { full }
    }

    /// The core of engines.
    pub(crate) fn engine_cpu(&self) -> usize {
        self.cpus.first().copied().unwrap_or(0)
    }

    /// The core of whoever talks to an engine: the engine's, where there is only one.
    pub(crate) fn partner_cpu(&self) -> usize {
        self.cpus.get(1).copied().unwrap_or(self.engine_cpu())
    }

    /// Raised when the run is to end; for threads and waits of a group.
    pub(crate) fn cancel(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.cancel)
    }

    /// Whether to go on.
    ///
    /// # Errors
    /// [`BenchError::Interrupted`].
    pub(crate) fn check(&self) -> Result<(), BenchError> {
        interrupted(&self.cancel)
    }

    /// Runs contestants in turns, every round beginning with another one, and keeps what each
    /// gave. A contestant that fails is out (none), with the reason in the report.
    pub(crate) fn contest(
        &mut self,
        metric: &str,
        unit: &'static str,
        contestants: &mut [Contestant<'_>],
    ) -> Result<Vec<Option<Series>>, BenchError> {
        let series = self.contest_of(&[(metric, unit)], contestants)?;
        let only = |series: Option<Vec<Series>>| series?.into_iter().next();
        Ok(series.into_iter().map(only).collect())
    }

    /// As [`Self::contest`], of several values a round: `metrics` names them.
    pub(crate) fn contest_of(
        &mut self,
        metrics: &[(&str, &'static str)],
        contestants: &mut [Contestant<'_>],
    ) -> Result<Vec<Option<Vec<Series>>>, BenchError> {
        let head = metrics.first().map_or("", |(metric, _)| metric);
        self.say(head);
        let (began, quick, cancel) = (self.began, self.quick(), Arc::clone(&self.cancel));
        let cores = [self.engine_cpu(), self.partner_cpu()];
        let mut distances = std::mem::take(&mut self.distances);
        let before = |round, _| {
            interrupted(&cancel)?;
            if cores[0] != cores[1] {
                distances.extend(word_round_trip_ns(cores[0], cores[1])?);
            }
            // A taste may not take longer because the machine is busy.
            Ok(round == 0 || !quick || began.elapsed() <= QUICK_TIME)
        };
        let ends = |error: &BenchError| matches!(error, BenchError::Interrupted);
        let (rounds, values) = (self.rounds, metrics.len());
        let all = turns::take(rounds, values, &*cancel, contestants, before, ends);
        self.distances = distances;
        let all = all?;
        let collected = Collected::of(self.group, metrics, all);
        self.report.figures.samples.extend(collected.samples);
        for (name, error) in collected.out {
            match error {
                BenchError::Missing(reason) => self.missing(&name, head, &reason),
                error => self.failed(&error),
            }
        }
        Ok(collected.series)
    }

    /// Puts a comparison into the report, where both were measured.
    pub(crate) fn compare(
        &mut self,
        what: &Comparison<'_>,
        here: Option<&Series>,
        there: Option<&Series>,
    ) {
        if let (Some(here), Some(there)) = (here, there) {
            let what = what.of(self.group);
            self.report.figures.compare(&what, here, there);
        }
    }

    /// Puts one of our own figures into the report, beside the paper's where it has one.
    pub(crate) fn row(
        &mut self,
        name: impl Into<String>,
        paper: Option<f64>,
        here: &Series,
        unit: &'static str,
    ) -> &mut Row {
        let group = self.group;
        self.report.figures.row(group, name, paper, here, unit)
    }

    /// Says how far apart the cores were while the group ran: what passes between them runs at
    /// another speed where a virtual machine's cores are moved.
    fn tell_distance(&mut self) {
        let distances = std::mem::take(&mut self.distances);
        if !distances.is_empty() {
            let name = "the machine: a word from one core to the other and back";
            let least = distances.iter().copied().fold(f64::INFINITY, f64::min);
            let largest = distances.iter().copied().fold(0.0, f64::max);
            let note = format!("before each turn, from {least:.0} to {largest:.0}");
            self.row(name, None, &Series::new(distances), "ns")
                .note(note);
        }
    }

    /// Puts a curve into the report.
    pub(crate) fn curve(&mut self, curve: Curve) {
        self.report.curves.push(curve);
    }

    /// Says that something could not be measured because this machine lacks it.
    pub(crate) fn missing(&mut self, name: &str, metric: &str, reason: &str) {
        self.say(&format!("not measured: {reason}"));
        let group = self.group;
        self.report.figures.missing(group, name, metric, reason);
    }

    /// Says that a measurement failed: the run's exit status is 1.
    pub(crate) fn failed(&mut self, error: &BenchError) {
        self.say(&format!("failed: {error}"));
        let line = format!("{}: {error}", self.group);
        self.report.figures.failures.push(line);
    }
}

/// One of those who are measured in turns; each is given the flag that ends the run.
pub(crate) type Contestant<'c> = turns::Contestant<'c, AtomicBool, BenchError>;

/// What is compared, in the group that is running.
pub(crate) struct Comparison<'c> {
    /// The peer.
    pub(crate) name: &'c str,
    /// What was measured.
    pub(crate) metric: &'c str,
    /// Of both.
    pub(crate) unit: &'static str,
    /// Which direction is better.
    pub(crate) better: Better,
    /// What is wanted of ours divided by the peer's.
    pub(crate) target: Option<f64>,
    /// Whatever else one must know.
    pub(crate) note: &'c str,
}

impl<'c> Comparison<'c> {
    fn of(&self, group: &'static str) -> sidecore_measure::report::Comparison<'c> {
        sidecore_measure::report::Comparison {
            group,
            name: self.name,
            metric: self.metric,
            unit: self.unit,
            better: self.better,
            target: self.target,
            note: self.note,
        }
    }
}

fn placement(cpus: &[usize]) -> String {
    let engine = cpus.first().copied().unwrap_or(0);
    match cpus.get(1) {
        Some(partner) => format!(
            "each of two stacks, and each side of a peer's, has a core to itself: {engine} and \
             {partner}; an engine that serves applications is on core {engine}, its applications \
             on core {partner}; what is measured alone is on core {engine}"
        ),
        None => format!("everything on core {engine}, the only one"),
    }
}

pub(crate) fn interrupted(cancel: &AtomicBool) -> Result<(), BenchError> {
    // Nothing hangs on it but the end.
    if cancel.load(Ordering::Relaxed) {
        return Err(BenchError::Interrupted);
    }
    Ok(())
}

/// Sleeps; cancelled, it ends soon, as [`BenchError::Interrupted`].
pub(crate) fn sleep(time: Duration, cancel: &AtomicBool) -> Result<(), BenchError> {
    let until = Instant::now() + time;
    loop {
        interrupted(cancel)?;
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(CANCEL_POLL));
    }
}

/// A quick run that took longer than this goes on with one round each.
const QUICK_TIME: Duration = Duration::from_secs(20);
/// More rounds than this would take hours.
pub const ROUNDS_MAX: usize = 101;
/// How often a wait looks whether the run was cancelled.
pub(crate) const CANCEL_POLL: Duration = Duration::from_millis(20);
