//! `sidecore block bench`, `net bench` and `offload bench`.
//!
//! Why here: arguments, printing and the picture; what is measured, and how, is in
//! `sidecore_bench`. Must stay true: results alone go to standard output; Ctrl-C ends the run in
//! order.

use crate::output::JsonArgs;
use crate::output::{Files, Outputs};
use crate::signals::{SIGHUP, SIGINT, SIGTERM, raise_on};
use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_bench::{BenchError, Measured, block, net, offload};
use sidecore_terminal::values::one_of;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

#[derive(clap::Args)]
pub(crate) struct BlockArgs {
    /// Read this image over NBD and FUSE, instead of one of this machine's files
    #[arg(value_name = "IMAGE")]
    image: Option<PathBuf>,
    /// Small inputs and few rounds: under a minute; a smoke run, not a result
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    form: Form,
    /// Run only these: lzo, stages, paper, nbd, fuse, mount
    #[arg(long, value_name = "GROUP,...", value_delimiter = ',')]
    #[arg(value_parser = one_of::<block::Group>(block::Group::names()))]
    #[arg(hide_possible_values = true)]
    only: Vec<block::Group>,
    /// Directory for the inputs (about 6 GB, with --quick 0.6 GB), which are removed at the end
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
}

#[derive(clap::Args)]
pub(crate) struct NetArgs {
    /// Few rounds, short ones: under a minute; a smoke run, not a result
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    form: Form,
    #[arg(long, value_name = "GROUP,...", value_delimiter = ',', help = net_groups())]
    #[arg(value_parser = one_of::<net::Group>(net::Group::names()), hide_possible_values = true)]
    only: Vec<net::Group>,
}

#[derive(clap::Args)]
pub(crate) struct OffloadArgs {
    /// Few rounds, short ones: under 20 seconds; a smoke run, not a result
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    form: JsonArgs,
    /// Run only these: trips, edtlp, throughput, sharing, idle, slice, loops, callers, patterns,
    /// async, strangers, streaming, zlib, kernels
    #[arg(long, value_name = "GROUP,...", value_delimiter = ',')]
    #[arg(value_parser = one_of::<offload::Group>(offload::Group::names()))]
    #[arg(hide_possible_values = true)]
    only: Vec<offload::Group>,
    /// Numbers of workers in group edtlp, 1 to 64 [default: 1 to 8; with --quick 1, 4, 8]
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    workers: Vec<u16>,
    #[command(flatten)]
    files: Files,
}

/// Form of a measurement and of its report.
#[derive(clap::Args)]
struct Form {
    #[command(flatten)]
    outputs: Outputs,
    /// Rounds; 5, with --quick 2, unless given
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=block::ROUNDS_MAX as i64))]
    rounds: Option<u16>,
}

fn net_groups() -> String {
    let names: Vec<_> = net::Group::names().collect();
    format!("Run only these: {}", names.join(", "))
}

/// Measures by `run`, which gets this program, a directory for sockets and the flag that a signal
/// raises; writes the files, and prints the report by `print`.
fn measure<R: Measured>(
    files: &Files,
    run: impl FnOnce(PathBuf, &Path, Arc<AtomicBool>) -> Result<R, BenchError>,
    print: impl FnOnce(&R) -> Result<()>,
) -> Result<Outcome> {
    let cancel = raise_on(&[SIGINT, SIGTERM, SIGHUP])?;
    // Before anything is measured: a file that cannot be written is refused now.
    files.begin()?;
    let program = std::env::current_exe().context("cannot find this program")?;
    let scratch = tempfile::Builder::new().prefix("sidecore-bench-").tempdir();
    let scratch = scratch.context("cannot make a directory for sockets")?;
    let report = run(program, scratch.path(), cancel)?;
    files.write(|| report.tsv(), || Ok(report.draw()?))?;
    print(&report)?;
    Ok(Outcome::of(report.failures().is_empty()))
}

/// Shows a line of progress.
fn note(line: &str) {
    output::note!("{line}");
}

impl BlockArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let outputs = &self.form.outputs;
        let run = |sidecore, _: &Path, cancel| {
            let config = block::Config {
                image: self.image,
                quick: self.quick,
                rounds: self.form.rounds.map(usize::from),
                only: self.only,
                sidecore,
                scratch: self.scratch,
            };
            block::run(&config, cancel, &mut note)
        };
        measure(&outputs.files, run, |report| {
            outputs.print(report, block::report::render, block::report::people)
        })
    }
}

impl NetArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let outputs = &self.form.outputs;
        let run = |sidecore, scratch: &Path, cancel| {
            let config = net::Config {
                quick: self.quick,
                rounds: self.form.rounds.map(usize::from),
                only: self.only,
                sidecore,
                scratch: scratch.to_owned(),
            };
            net::run(&config, cancel, &mut note)
        };
        measure(&outputs.files, run, |report| {
            outputs.print(report, net::report::render, net::report::people)
        })
    }
}

impl OffloadArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let run = |sidecore, scratch: &Path, cancel| {
            let config = offload::Config {
                quick: self.quick,
                only: self.only,
                workers: self.workers.iter().copied().map(usize::from).collect(),
                sidecore,
                scratch: scratch.to_owned(),
            };
            offload::run(&config, cancel, &mut note)
        };
        measure(&self.files, run, |report| {
            self.form.report(report, offload::tables::text).map(drop)
        })
    }
}

#[derive(clap::Args)]
pub(crate) struct Peer {
    /// Role to play, in the bench's notation.
    #[arg(value_name = "ROLE")]
    role: String,
}

impl Peer {
    /// Plays the role until standard input ends.
    pub(crate) fn run(self) -> Result<Outcome> {
        offload::play(&self.role)?;
        Ok(Outcome::Done)
    }
}
