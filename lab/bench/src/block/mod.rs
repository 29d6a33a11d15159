//! `block bench`: the papers' experiments, and the peers, in one run on this machine's own files.
//!
//! Why here: every figure that the project states must be made again by one command, as a ratio to
//! a peer that was interleaved with it.
//!
//! - `corpus`: the trees that are packed, made from this machine's files.
//! - `inputs`: images of them, in our formats and the peers', made when first needed and compared
//!   with the source once.
//! - `tools`: other programs: found, started, waited for, ended.
//! - one file a group of measurements: `lzo`, `nbd`, `scaling`, `fuse`, `mount`, `stages`, `paper`.
//! - [`figures`]: the papers' figures.
//! - groups, rounds, head and figures: `crate::frame`.
//! - [`report`]: the result, also as Markdown; [`picture`]: the same as a drawing.
//!
//! Must stay true: a peer is given its best settings and the same image contents; no measurement
//! runs on bytes that were not compared; everything that is started is ended and unmounted,
//! whatever happens; nothing runs longer than its limit.
//! Called from one thread, which blocks for minutes.
//! Source: the block device paper of 2007 and its slides (docs/papers.md).

mod corpus;
pub mod figures;
mod fuse;
mod inputs;
mod lzo;
mod mount;
mod nbd;
mod paper;
pub mod picture;
pub mod report;
mod scaling;
mod stages;
mod tools;

use crate::frame::{self, Frame, Head, Service, from_service, interrupted, only};
pub use crate::frame::{BenchError, ROUNDS_MAX};
use crate::measure::interleave;
use crate::measure::report::Comparison;
use crate::measure::stats::Series;
use inputs::Inputs;
use report::Report;
use sidecore_block::codec::CodecError;
use sidecore_block::device::DeviceError;
use sidecore_block::pack::PackError;
use sidecore_block::source::ReadError;
use sidecore_export::nbd::NbdError;
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use tools::Runner;

/// Measures one group.
type Run = fn(&mut Bench<'_>) -> Result<(), BenchError>;

/// Compressed images compared with other formats, servers and file systems.
pub struct Block;

/// A set of measurements that can be asked for alone.
pub type Group = frame::Group<Block>;

impl Service for Block {
    type Run = Run;
    const GROUPS: &'static [Group] = &[
        Group::new("lzo", lzo::run),
        Group::new("stages", stages::run),
        Group::new("paper", paper::run),
        Group::new("nbd", |bench| {
            nbd::run(bench)?;
            scaling::run(bench)
        }),
        Group::new("fuse", |bench| {
            fuse::run(bench)?;
            fuse::faults(bench)
        }),
        Group::new("mount", mount::run),
    ];
}

/// Inputs, rounds and groups of a run.
#[derive(Debug, Clone)]
pub struct Config {
    /// Takes the large corpus's place in the groups `nbd` and `fuse`.
    pub image: Option<PathBuf>,
    /// Small inputs and few rounds: a smoke run, not a result.
    pub quick: bool,
    /// Rounds; 5, or 2 where `quick`, unless given.
    pub rounds: Option<usize>,
    /// The groups to run; all where empty.
    pub only: Vec<Group>,
    /// The `sidecore` program, for servers and mounts as people run them.
    pub sidecore: PathBuf,
    /// Directory for the inputs; the system's one for temporary files unless given.
    pub scratch: Option<PathBuf>,
}

from_service!(CodecError, DeviceError, NbdError, PackError, ReadError,);

/// A run under way.
pub struct Bench<'a> {
    frame: Frame<'a, Report>,
    config: &'a Config,
    runner: Runner,
    inputs: Inputs,
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

/// Runs the bench. Blocks for up to a minute where `quick`, else for some minutes. `cancel` ends it
/// within a second or so. `progress` gets a line now and then.
///
/// # Errors
/// [`BenchError::Space`], [`BenchError::Interrupted`], or the error that kept the inputs from
/// being made. A failure of one group is in the report, and the others still run.
pub fn run(
    config: &Config,
    cancel: Arc<AtomicBool>,
    progress: &mut dyn FnMut(&str),
) -> Result<Report, BenchError> {
    let base = config.scratch.clone().unwrap_or_else(std::env::temp_dir);
    let runner = Runner::new(&base, Arc::clone(&cancel))?;
    let inputs = Inputs::new(config, &base, runner.directory())?;
    let head = Head::new(&config.sidecore, config.quick, config.rounds);
    let mut bench = Bench {
        frame: Frame::new(Report::new(head), cancel, QUICK_TIME, progress),
        config,
        runner,
        inputs,
    };
    Group::run_chosen(&config.only, &mut bench, |group, bench| (group.run)(bench))?;
    bench.report.head.inputs = bench.inputs.describe();
    Ok(bench.frame.end())
}

impl Bench<'_> {
    /// Interleaves candidates of one metric; see [`Frame::interleave`].
    fn interleave(
        &mut self,
        metric: &str,
        unit: &'static str,
        candidates: &mut [Candidate<'_>],
    ) -> Result<Vec<Option<Series>>, BenchError> {
        let (metrics, rounds, runner) = ([(metric, unit)], self.frame.rounds, &self.runner);
        let all = self
            .frame
            .interleave(&metrics, rounds, runner, candidates, || Ok(()));
        all.map(only)
    }
}

/// An interleaved candidate.
pub(crate) type Candidate<'c> = interleave::Candidate<'c, Runner, BenchError>;

/// The size of a file in bytes.
fn file_bytes(path: &Path) -> Result<u64, BenchError> {
    let metadata = std::fs::metadata(path);
    let metadata = metadata.map_err(BenchError::io(format!("look at {}", path.display())))?;
    Ok(metadata.len())
}

/// A quick run that took longer than this goes on with one round each.
const QUICK_TIME: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    //! Tests of the bench's groups, programs and inputs.

    use super::tools::Runner;
    use super::{BenchError, Group, corpus};
    use std::process::Command;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    fn runner(base: &tempfile::TempDir) -> Runner {
        Runner::new(base.path(), Arc::default()).unwrap()
    }

    #[test]
    fn groups_are_known_by_their_names() {
        for name in Group::names() {
            assert_eq!(name.parse::<Group>().unwrap().name, name);
        }
        assert!(
            "everything"
                .parse::<Group>()
                .unwrap_err()
                .contains("stages")
        );
    }

    #[test]
    fn a_runner_removes_its_directory_and_ends_its_servers() {
        let base = tempfile::tempdir().unwrap();
        let directory;
        let pid;
        {
            let runner = runner(&base);
            directory = runner.directory().to_owned();
            let mut command = Command::new("sh");
            command.args(["-c", "echo $$; exec sleep 600"]);
            let server = runner
                .serve(&mut command, None, |said| said.contains('\n'))
                .unwrap();
            pid = server.said().trim().to_owned();
            assert!(std::path::Path::new(&format!("/proc/{pid}")).exists());
            drop(server);
        }
        assert!(!directory.exists());
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn a_failing_program_is_an_error_with_its_last_words() {
        let base = tempfile::tempdir().unwrap();
        let runner = runner(&base);
        let mut command = Command::new("sh");
        let error = runner
            .time(command.args(["-c", "echo oh dear >&2; exit 3"]))
            .unwrap_err();
        assert!(error.to_string().contains("oh dear"), "{error}");
        let mut command = Command::new("sh");
        let error = runner
            .serve(command.args(["-c", "exit 4"]), None, |_| false)
            .err()
            .unwrap();
        assert!(error.to_string().contains("exit status: 4"), "{error}");
    }

    #[test]
    fn a_cancelled_run_stops_waiting() {
        let base = tempfile::tempdir().unwrap();
        let cancel = Arc::new(AtomicBool::new(false));
        let runner = Runner::new(base.path(), cancel.clone()).unwrap();
        cancel.store(true, Ordering::Relaxed);
        let error = runner.time(Command::new("sleep").arg("600")).unwrap_err();
        assert!(matches!(error, BenchError::Interrupted));
    }

    #[test]
    fn a_tool_that_is_missing_is_no_failure() {
        let error = super::tools::tool("no-such-program").unwrap_err();
        assert!(matches!(error, BenchError::Missing(_)), "{error}");
    }

    #[test]
    fn the_same_machine_gives_the_same_tree() {
        let base = tempfile::tempdir().unwrap();
        let make = |name: &str| {
            let directory = base.path().join(name);
            corpus::large(&directory, 4 << 20, &AtomicBool::new(false)).unwrap()
        };
        let (one, two) = (make("one"), make("two"));
        assert!(one.bytes > 3 << 20, "{one:?}");
        assert!(one.bytes <= 4 << 20, "{one:?}");
        let mut command = Command::new("diff");
        let same = command
            .arg("-r")
            .arg(&one.directory)
            .arg(&two.directory)
            .status()
            .unwrap();
        assert!(same.success());
    }
}
