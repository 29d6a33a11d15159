//! `offload bench`: the cost of reaching an engine, and the gain of a task scheduler, compared with
//! other libraries, in one run.
//!
//! Why here: every figure that the project states must be made again by one command, as a ratio to
//! a peer that was interleaved with it.
//!
//! - one file a group: `trips` (round trips), `edtlp` (tasks compared with processes),
//!   `throughput`, `sharing` (two processes on the same cores), `idle`, `slice` (the kernel's time
//!   slice), `loops` (split loops of all sizes), `callers` (many threads that call at once),
//!   `async` (jobs compared with blocking calls), `strangers` (hostile users, clients without cores
//!   of their own), `streaming` (a kernel's DMA compared with a plain loop), `zlib` (programs that
//!   use it), `kernels` (built-in ones compared with their libraries, loaded ones with built-in
//!   ones), `patterns` (the suites EPCC syncbench and Task Bench: `overheads`, `graphs`).
//! - `children`, `peers`: other processes, from the measuring side and from their own; `work`:
//!   their loops and counts.
//! - groups, rounds, head and samples: `crate::frame`.
//! - [`report`]: the result; [`tables`], [`picture`]: the same for people.
//!
//! Must stay true: candidates are interleaved, every round beginning with another; every process
//! that is started is ended, whatever happens; nothing waits longer than its limit. Called from one
//! thread, which blocks for minutes.
//! Source: the scheduling paper of 2007 (docs/papers.md).

mod asynchronous;
mod callers;
mod children;
mod edtlp;
mod graphs;
mod idle;
mod kernels;
mod loops;
mod overheads;
mod patterns;
mod peers;
pub mod picture;
pub mod report;
mod roles;
mod sharing;
mod slice;
mod strangers;
mod streaming;
pub mod tables;
mod throughput;
mod trips;
mod work;
mod zlib;

pub use peers::play;

pub use crate::frame::BenchError;
pub(crate) use crate::frame::interrupted;
use crate::frame::{self, Frame, Head, Service, from_service};
use crate::measure::interleave;
use crate::measure::stats::Series;
use report::Report;
use sidecore_daemon::DaemonError;
use sidecore_daemon::client::ClientError;
use sidecore_offload::OffloadError;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Measures one group.
type Run = fn(&mut Bench<'_>) -> Result<(), BenchError>;

/// Off-loading compared with other ways to another core, and tasks with processes.
pub struct Offload;

/// A set of measurements that can be asked for alone.
pub type Group = frame::Group<Offload>;

impl Service for Offload {
    type Run = Run;
    const GROUPS: &'static [Group] = &[
        Group::new("trips", trips::run),
        Group::new("throughput", throughput::run),
        Group::new("sharing", sharing::run),
        Group::new("idle", idle::run),
        Group::new("slice", slice::run),
        Group::new("loops", loops::run),
        Group::new("callers", callers::run),
        Group::new("patterns", patterns::run),
        Group::new("async", asynchronous::run),
        Group::new("strangers", strangers::run),
        Group::new("streaming", streaming::run),
        Group::new("edtlp", edtlp::run),
        Group::new("zlib", zlib::run),
        Group::new("kernels", kernels::run),
    ];
}

/// Rounds and groups of a run.
#[derive(Debug, Clone)]
pub struct Config {
    /// Few rounds, short ones: a smoke run, not a result.
    pub quick: bool,
    /// The groups to run; all where empty.
    pub only: Vec<Group>,
    /// Numbers of workers in group `edtlp`; a usual choice where empty.
    pub workers: Vec<usize>,
    /// The `sidecore` program, which plays the other processes.
    pub sidecore: PathBuf,
    /// Directory for sockets and compiled peers. The caller removes it.
    pub scratch: PathBuf,
}

from_service!(ClientError, DaemonError, OffloadError);

/// A run under way.
pub struct Bench<'a> {
    frame: Frame<'a, Report>,
    config: &'a Config,
    /// The cores of this run: the callers', then one that shares no execution unit with it, then
    /// the others.
    cpus: Vec<usize>,
}

impl<'a> Deref for Bench<'a> {
    type Target = Frame<'a, Report>;

    fn deref(&self) -> &Self::Target {
        &self.frame
    }
}

impl DerefMut for Bench<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.frame
    }
}

/// Runs the bench. Blocks for some ten seconds where `quick`, else for some minutes. `cancel` ends
/// it within a second or so. `progress` gets a line now and then.
///
/// # Errors
/// [`BenchError::Interrupted`], or the error that kept it from beginning. A failure of one group is
/// in the report, and the others still run.
pub fn run(
    config: &Config,
    cancel: Arc<AtomicBool>,
    progress: &mut dyn FnMut(&str),
) -> Result<Report, BenchError> {
    let cpus = sidecore_sys::machine::apart(&sidecore_sys::cpu::allowed()?);
    // The most that a group has; each row says its own.
    let rounds = if config.quick { 3 } else { 9 };
    let mut head = Head::new(&config.sidecore, config.quick, Some(rounds));
    head.placement = placement(&cpus);
    head.method = METHOD.into();
    let mut bench = Bench {
        frame: Frame::new(Report::new(head), cancel, Duration::MAX, progress),
        config,
        cpus,
    };
    Group::run_chosen(&config.only, &mut bench, |group, bench| (group.run)(bench))?;
    bench.report.judge();
    Ok(bench.frame.end())
}

impl Bench<'_> {
    /// Interleaves candidates for `rounds` rounds; see [`Frame::interleave`].
    fn interleave(
        &mut self,
        metrics: &[(&str, &'static str)],
        rounds: usize,
        candidates: &mut [Candidate<'_>],
    ) -> Result<Vec<Option<Vec<Series>>>, BenchError> {
        self.frame
            .interleave(metrics, rounds, &(), candidates, || Ok(()))
    }

    /// Records that something could not be measured because this machine lacks it.
    fn missing(&mut self, reason: &str) {
        self.frame.missing("", "", reason);
    }
}

/// An interleaved candidate.
pub(crate) type Candidate<'c> = interleave::Candidate<'c, (), BenchError>;

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

/// A candidate's wrong answer.
pub(crate) fn wrong(who: &str, got: u64, wanted: u64) -> BenchError {
    BenchError::Wrong(format!("{who} answered {got}, not {wanted}"))
}

const METHOD: &str = "interleaved candidates: each round of a group runs all of them one after \
    another, beginning with another one each time; a figure is the median of the rounds, its \
    spread the largest round less the smallest, divided by it; a ratio is the median of the \
    rounds' own ratios; a round with foreign load is repeated";
