//! `sidecore offload bench`.
//!
//! Why here: arguments, printing and the picture; what is measured, and how, is in
//! `sidecore_bench::offload`.
//! Must stay true: results alone go to standard output; Ctrl-C ends the run in order.

use crate::figures::Files;
use crate::signals::{SIGHUP, SIGINT, SIGTERM, raise_on};
use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_bench::offload::{self as bench, Config, Group, picture, tables};
use sidecore_terminal::values::one_of;

#[derive(clap::Args)]
#[command(after_help = "\
The candidates of a group are interleaved in the same rounds, so that a ratio is of one moment of \
one machine. Engines of the scheduling rows are virtual: they take their 96 us without a core. \
What this machine lacks (a second core, a compiler with OpenMP) is said, and the rest runs.

Exit status: 0 measured (also where a target was missed), 1 something failed or \
answered wrongly, 2 could not run.")]
pub(crate) struct Args {
    /// Few rounds, short ones: under 20 seconds; a smoke run, not a result
    #[arg(long)]
    quick: bool,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
    /// Run only these: trips, edtlp, throughput, sharing, idle, slice, loops, callers, async,
    /// strangers, streaming, zlib, kernels
    #[arg(long, value_name = "GROUP,...", value_delimiter = ',')]
    #[arg(value_parser = one_of::<Group>(Group::names()), hide_possible_values = true)]
    only: Vec<Group>,
    /// Numbers of workers in group edtlp, 1 to 64 [default: 1 to 8; with --quick 1, 4, 8]
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    workers: Vec<u16>,
    #[command(flatten)]
    files: Files,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let cancel = raise_on(&[SIGINT, SIGTERM, SIGHUP])?;
        self.files.begin()?;
        let scratch = tempfile::Builder::new()
            .prefix("sidecore-bench-")
            .tempdir()
            .context("cannot make a directory for sockets")?;
        let config = Config {
            quick: self.quick,
            only: self.only.clone(),
            workers: self.workers.iter().copied().map(usize::from).collect(),
            sidecore: std::env::current_exe().context("cannot find this program")?,
            scratch: scratch.path().to_owned(),
        };
        let report = bench::run(&config, cancel, &mut |line| output::note!("{line}"))?;
        let draw = || Ok(picture::draw(&report)?);
        self.files.write(|| report.tsv(), draw)?;
        if self.json {
            output::json(&report)?;
        } else {
            output::show(&tables::text(&report))?;
        }
        Ok(Outcome::of(report.figures.failures.is_empty()))
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
        bench::play(&self.role)?;
        Ok(Outcome::Done)
    }
}
