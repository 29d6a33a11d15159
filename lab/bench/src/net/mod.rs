//! `net bench`: the paper's experiments, the kernel and other stacks, in one run.
//!
//! Why here: every figure that the project states must be made again by one command, as a ratio to
//! a peer that was interleaved with it.
//!
//! - one module a group of measurements, each a plain function over `Bench`; [`Net`]'s
//!   `GROUPS` lists them, and a new one is added there.
//! - `namespace`: networks of the kernel that end with us; `programs`: other programs in them;
//!   `interfaces`: such networks with their interfaces up.
//! - groups, rounds, head and figures: `crate::frame`.
//! - [`report`]: the result, also as Markdown; [`picture`]: the same as a drawing.
//!
//! Must stay true: candidates are interleaved, every round beginning with another; a peer is given
//! its best settings; nothing outside namespaces of our own is touched; everything that is started
//! is ended, whatever happens; nothing waits longer than its limit.
//! Called from one thread, which blocks for minutes. Source: the NetX paper (docs/papers.md).

mod deploy;
mod engines;
mod interfaces;
mod kernel;
mod namespace;
mod pair;
mod papers;
pub mod picture;
mod programs;
pub mod report;
mod rpc;
mod served;
mod sessions;
mod stacks;

pub(crate) use crate::frame::interrupted;
use crate::frame::{self, Frame, Head, Service, from_service, only};
pub use crate::frame::{BenchError, ROUNDS_MAX};
pub(crate) use crate::measure::Better;
use crate::measure::distance::word_round_trip_ns;
use crate::measure::interleave;
use crate::measure::stats::Series;
use report::{Curve, Report};
use sidecore_net::NetError;
use sidecore_net::engine::EngineError;
use sidecore_net::nic::NicError;
use sidecore_net::setup::SetupError;
use sidecore_net::sock::client::ClientError;
use sidecore_net::sock::control::SockError;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Runs a group: puts rows and peers into the report.
type Run = fn(&mut Bench<'_>) -> Result<(), BenchError>;

/// The stack compared with the kernel's, other stacks and the paper's figures.
pub struct Net;

/// A set of measurements that can be asked for alone.
pub type Group = frame::Group<Net>;

impl Service for Net {
    type Run = Run;
    const GROUPS: &'static [Group] = &[
        sessions::GROUP,
        engines::GROUP,
        pair::GROUP,
        rpc::GROUP,
        kernel::BULK,
        kernel::SMOLTCP,
        kernel::FLOOD,
        kernel::LOSSES,
        kernel::BOTTLENECK,
        deploy::GROUP,
        papers::GROUP,
    ];
}

/// Rounds and groups of a run.
#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Few rounds, short ones: a smoke run, not a result.
    pub quick: bool,
    /// Rounds; 5, or 2 where `quick`, unless given.
    pub rounds: Option<usize>,
    /// The groups to run; all where empty.
    pub only: Vec<Group>,
    /// The program that is measured, whose commit the report names.
    pub sidecore: std::path::PathBuf,
    /// Directory for sockets. The caller removes it.
    pub scratch: std::path::PathBuf,
}

from_service!(
    EngineError,
    NetError,
    NicError,
    SetupError,
    SockError,
    ClientError,
);

/// A run under way.
pub struct Bench<'a> {
    frame: Frame<'a, Report>,
    config: &'a Config,
    cpus: Vec<usize>,
    /// Nanoseconds of a word between the two cores and back, before each of the group's turns.
    distances: Vec<f64>,
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

/// Runs the bench. Blocks for half a minute where `quick`, else for some minutes. `cancel` ends it
/// within a second or so. `progress` gets a line now and then.
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
    let mut head = Head::new(&config.sidecore, config.quick, config.rounds);
    head.placement = placement(&cpus);
    let mut bench = Bench {
        frame: Frame::new(Report::new(head), cancel, QUICK_TIME, progress),
        config,
        cpus,
        distances: Vec::new(),
    };
    Group::run_chosen(&config.only, &mut bench, |group, bench| {
        let result = (group.run)(bench);
        bench.tell_distance();
        result
    })?;
    Ok(bench.frame.end())
}

impl Bench<'_> {
    /// The core of engines.
    pub(crate) fn engine_cpu(&self) -> usize {
        self.cpus.first().copied().unwrap_or(0)
    }

    /// The core of an engine's clients: the engine's, where there is only one.
    pub(crate) fn partner_cpu(&self) -> usize {
        self.cpus.get(1).copied().unwrap_or(self.engine_cpu())
    }

    /// Raised when the run is to end; for threads and waits of a group.
    pub(crate) fn cancel(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.frame.cancel)
    }

    /// Interleaves candidates of one metric; see [`Frame::interleave`].
    pub(crate) fn interleave(
        &mut self,
        metric: &str,
        unit: &'static str,
        candidates: &mut [Candidate<'_>],
    ) -> Result<Vec<Option<Series>>, BenchError> {
        self.interleave_of(&[(metric, unit)], candidates).map(only)
    }

    /// As [`Self::interleave`], of several values a round: `metrics` names them.
    pub(crate) fn interleave_of(
        &mut self,
        metrics: &[(&str, &'static str)],
        candidates: &mut [Candidate<'_>],
    ) -> Result<Vec<Option<Vec<Series>>>, BenchError> {
        let cores = [self.engine_cpu(), self.partner_cpu()];
        let distances = &mut self.distances;
        let look = || {
            if cores[0] != cores[1] {
                distances.extend(word_round_trip_ns(cores[0], cores[1])?);
            }
            Ok(())
        };
        let (rounds, cancel) = (self.frame.rounds, Arc::clone(&self.frame.cancel));
        let frame = &mut self.frame;
        frame.interleave(metrics, rounds, &*cancel, candidates, look)
    }

    /// Puts a comparison into the report, where both were measured.
    pub(crate) fn compare(
        &mut self,
        what: &Comparison<'_>,
        here: Option<&Series>,
        there: Option<&Series>,
    ) {
        let what = what.of(self.frame.group);
        self.frame.compare(&what, here, there);
    }

    /// Reports the distance of the cores while the group ran: the speed of a line between them
    /// changes where a virtual machine's cores are moved.
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
        self.frame.report.curves.push(curve);
    }
}

/// An interleaved candidate; each is given the flag that ends the run.
pub(crate) type Candidate<'c> = interleave::Candidate<'c, AtomicBool, BenchError>;

/// A comparison in the group that is running.
pub(crate) struct Comparison<'c> {
    /// The peer.
    pub(crate) name: &'c str,
    /// The measured quantity.
    pub(crate) metric: &'c str,
    /// The unit of both figures.
    pub(crate) unit: &'static str,
    /// The better direction.
    pub(crate) better: Better,
    /// The target for ours divided by the peer's.
    pub(crate) target: Option<f64>,
    /// Anything else a reader must know.
    pub(crate) note: &'c str,
}

impl<'c> Comparison<'c> {
    fn of(&self, group: &'static str) -> crate::measure::report::Comparison<'c> {
        crate::measure::report::Comparison {
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
/// Time between two checks of a wait for a cancelled run.
pub(crate) const CANCEL_POLL: Duration = Duration::from_millis(20);
