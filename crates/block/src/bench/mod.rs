//! `block bench`: the papers' experiments, and the peers, in one run on this machine's own files.
//!
//! Why here: every figure that the project states must be made again by one command, as a ratio to
//! a peer that ran in turns with it.
//!
//! - [`corpus`]: the trees that are packed, made from this machine's files.
//! - `inputs`: images of them, in our formats and the peers', made when first needed and compared
//!   with the source once.
//! - `tools`: other programs: found, started, waited for, ended.
//! - one file a group of measurements: `lzo`, `nbd`, `scaling`, `fuse`, `mount`, `stages`, `paper`.
//! - [`figures`]: what the papers report.
//! - turns, medians, spreads, rows and peers are `sidecore_measure`'s.
//! - [`report`]: what comes out; [`markdown`]: the same, for `docs/results`.
//!
//! Must stay true: a peer is given its best settings and the same image contents; no measurement
//! runs on bytes that were not compared; everything that is started is ended and unmounted,
//! whatever happens; nothing runs longer than its limit.
//! Called from one thread, which blocks for minutes.
//! Source: papers/000 and papers/002 (the user-mode SPE driver of 2007).

pub mod corpus;
pub mod figures;
mod fuse;
mod inputs;
mod lzo;
pub mod markdown;
mod mount;
mod nbd;
mod paper;
pub mod report;
mod scaling;
mod stages;
mod tools;

#[cfg(test)]
mod tests;

use crate::device::DeviceError;
use crate::pack::PackError;
use crate::ways::nbd::NbdError;
use inputs::Inputs;
use report::Report;
use sidecore_measure::Row;
use sidecore_measure::report::Comparison;
use sidecore_measure::stats::Series;
use sidecore_measure::turns::{self, Collected};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tools::Runner;

/// A set of measurements that can be asked for alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Group {
    /// Our LZO1X beside liblzo2.
    Lzo,
    /// NBD servers, and how they scale with engines.
    Nbd,
    /// The FUSE file.
    Fuse,
    /// Mounted trees.
    Mount,
    /// Where the time of a block goes.
    Stages,
    /// The papers' other figures.
    Paper,
}

impl Group {
    /// All groups, in the order in which they run.
    pub const ALL: [Self; 6] = [
        Self::Lzo,
        Self::Stages,
        Self::Paper,
        Self::Nbd,
        Self::Fuse,
        Self::Mount,
    ];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lzo => "lzo",
            Self::Nbd => "nbd",
            Self::Fuse => "fuse",
            Self::Mount => "mount",
            Self::Stages => "stages",
            Self::Paper => "paper",
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
    /// Takes the large corpus's place in the groups `nbd` and `fuse`.
    pub image: Option<PathBuf>,
    /// Small inputs and few rounds: a taste, not a result.
    pub quick: bool,
    /// Rounds; 5, or 2 where `quick`, unless given.
    pub rounds: Option<usize>,
    /// The groups to run; all where empty.
    pub only: Vec<Group>,
    /// The `sidecore` program, for servers and mounts as people run them.
    pub sidecore: PathBuf,
    /// Where the inputs are made; the system's directory for temporary files unless given.
    pub scratch: Option<PathBuf>,
}

/// Why a measurement, or the whole run, could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// Something that this machine does not have. Reported as a row, not as a failure.
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
    /// Bytes that came out are not those that went in.
    #[error("{what} does not deliver the bytes that were packed: {detail}")]
    WrongBytes {
        /// Which server or image.
        what: String,
        /// Where it differs.
        detail: String,
    },
    /// Not enough room for the inputs.
    #[error(
        "the inputs need {needed_bytes} bytes in {}, {free_bytes} are free; \
         choose another place with --scratch, or run --quick", .directory.display()
    )]
    Space {
        /// Where.
        directory: PathBuf,
        /// How much.
        needed_bytes: u64,
        /// How much there is.
        free_bytes: u64,
    },
    /// The operating system refused something.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What it said.
        source: std::io::Error,
    },
    /// Packing an input failed.
    #[error(transparent)]
    Pack(#[from] PackError),
    /// An image could not be opened.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The engines could not be started, or a kernel failed.
    #[error(transparent)]
    Engines(#[from] sidecore_offload::OffloadError),
    /// Memory or a map was refused.
    #[error(transparent)]
    System(#[from] sidecore_sys::SysError),
    /// A read through the device failed.
    #[error(transparent)]
    Read(#[from] crate::source::ReadError),
    /// A codec failed.
    #[error(transparent)]
    Codec(#[from] crate::codec::CodecError),
    /// A server broke the protocol.
    #[error(transparent)]
    Nbd(#[from] NbdError),
    /// Somebody wants this to end.
    #[error("interrupted; everything was ended and removed")]
    Interrupted,
}

impl BenchError {
    fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

/// A run under way.
pub(crate) struct Bench<'a> {
    config: &'a Config,
    rounds: usize,
    runner: Runner,
    inputs: Inputs,
    report: Report,
    progress: &'a mut dyn FnMut(&str),
    group: &'static str,
    began: Instant,
}

/// Runs the bench. Blocks for up to a minute where `quick`, else for some minutes. `cancel` ends it
/// within a second or so. `progress` gets a line now and then.
///
/// # Errors
/// [`BenchError::Space`], [`BenchError::Interrupted`], or what kept the inputs from
/// being made. What goes wrong in one group is in the report, and the others still run.
pub fn run(
    config: &Config,
    cancel: Arc<AtomicBool>,
    progress: &mut dyn FnMut(&str),
) -> Result<Report, BenchError> {
    let rounds = config.rounds.unwrap_or(if config.quick { 2 } else { 5 });
    let rounds = rounds.clamp(1, ROUNDS_MAX);
    let base = config.scratch.clone().unwrap_or_else(std::env::temp_dir);
    let runner = Runner::new(&base, cancel)?;
    let inputs = Inputs::new(config, &base, runner.directory())?;
    let mut bench = Bench {
        config,
        rounds,
        inputs,
        report: Report::new(
            sidecore_sys::Machine::look(&config.sidecore),
            rounds,
            config.quick,
        ),
        runner,
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
            Group::Lzo => lzo::run(&mut bench),
            Group::Nbd => nbd::run(&mut bench).and_then(|()| scaling::run(&mut bench)),
            Group::Fuse => fuse::run(&mut bench),
            Group::Mount => mount::run(&mut bench),
            Group::Stages => stages::run(&mut bench),
            Group::Paper => paper::run(&mut bench),
        };
        match result {
            Ok(()) => {}
            Err(error @ (BenchError::Interrupted | BenchError::Space { .. })) => return Err(error),
            Err(BenchError::Missing(reason)) => bench.missing(group.name(), "the group", &reason),
            Err(error) => bench.failed(&error),
        }
        bench.runner.check()?;
    }
    bench.report.inputs = bench.inputs.describe();
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

    /// Runs contestants in turns, every round in another order, and keeps the samples. A
    /// contestant that fails is out, with the reason in the report.
    fn contest<'c>(
        &mut self,
        metric: &str,
        unit: &'static str,
        contestants: &mut [Contestant<'c>],
    ) -> Result<Vec<Option<Series>>, BenchError> {
        self.say(metric);
        let (began, quick, runner) = (self.began, self.quick(), &self.runner);
        let before = |round, _| {
            runner.check()?;
            // A taste may not take longer because the machine is busy.
            Ok(round == 0 || !quick || began.elapsed() <= QUICK_TIME)
        };
        let ends = |error: &BenchError| matches!(error, BenchError::Interrupted);
        let all = turns::take(self.rounds, 1, runner, contestants, before, ends)?;
        let collected = Collected::of(self.group, &[(metric, unit)], all);
        self.report.figures.samples.extend(collected.samples);
        for (name, error) in collected.out {
            match error {
                BenchError::Missing(reason) => self.missing(&name, metric, &reason),
                error => self.failed(&error),
            }
        }
        let only = |series: Option<Vec<Series>>| series?.into_iter().next();
        Ok(collected.series.into_iter().map(only).collect())
    }

    /// Puts a comparison into the report, where both were measured.
    fn compare(&mut self, what: &Comparison<'_>, here: Option<&Series>, there: Option<&Series>) {
        if let (Some(here), Some(there)) = (here, there) {
            self.report.figures.compare(what, here, there);
        }
    }

    /// Puts one of our own figures into the report, beside the papers' where they have one.
    fn row(
        &mut self,
        name: &str,
        paper: Option<f64>,
        here: &Series,
        unit: &'static str,
    ) -> &mut Row {
        let group = self.group;
        self.report.figures.row(group, name, paper, here, unit)
    }

    /// Says that something could not be measured because this machine lacks it.
    fn missing(&mut self, name: &str, metric: &str, reason: &str) {
        let group = self.group;
        self.report.figures.missing(group, name, metric, reason);
    }

    /// Says that a measurement failed: the run's exit status is 1.
    fn failed(&mut self, error: &BenchError) {
        self.say(&format!("failed: {error}"));
        self.report
            .figures
            .failures
            .push(format!("{}: {error}", self.group));
    }
}

/// One of those who are measured in turns.
pub(crate) type Contestant<'c> = turns::Contestant<'c, Runner, BenchError>;

/// The size of a file in bytes.
fn file_bytes(path: &Path) -> Result<u64, BenchError> {
    let metadata = std::fs::metadata(path);
    let metadata = metadata.map_err(BenchError::io(format!("look at {}", path.display())))?;
    Ok(metadata.len())
}

fn interrupted(cancel: &AtomicBool) -> Result<(), BenchError> {
    if cancel.load(Ordering::Relaxed) {
        return Err(BenchError::Interrupted);
    }
    Ok(())
}

/// A quick run that took longer than this goes on with one round each.
const QUICK_TIME: Duration = Duration::from_secs(30);
/// More rounds than this would take hours.
pub const ROUNDS_MAX: usize = 101;
