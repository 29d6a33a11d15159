//! `sidecore block bench`.
//!
//! Why here: arguments, printing and the picture; what is measured, and how, is in
//! `sidecore_bench::block`.
//! Must stay true: results alone go to standard output; Ctrl-C ends the run in order.

use crate::figures::Outputs;
use crate::signals::{SIGHUP, SIGINT, SIGTERM, raise_on};
use crate::{Outcome, output};
use anyhow::{Context, Result};
use clap::builder::ValueParser;
use sidecore_bench::block::{
    self as bench, BenchError, Config, Group, ROUNDS_MAX, picture, report,
};
use sidecore_terminal::values::one_of;
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = "\
Beside every figure stands its ratio to a peer that was interleaved with it, and the papers' \
figure where they have one. Needs the peers' programs, and root for mounts and cold caches; what \
is missing is said with its package, and the rest runs. The kernel's caches are dropped now and \
then: other programs slow down meanwhile.

Exit status: 0 measured (also where a target was missed), 1 something failed or \
delivered wrong bytes, 2 could not run.")]
pub(crate) struct Args {
    /// Read this image over NBD and FUSE, instead of one of this machine's files
    #[arg(value_name = "IMAGE")]
    image: Option<PathBuf>,
    /// Small inputs and few rounds: under a minute; a smoke run, not a result
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    outputs: Outputs,
    /// Rounds; 5, with --quick 2, unless given
    #[arg(long, value_name = "N", value_parser = rounds())]
    rounds: Option<u16>,
    /// Run only these: lzo, stages, paper, nbd, fuse, mount
    #[arg(long, value_name = "GROUP,...", value_delimiter = ',')]
    #[arg(value_parser = one_of::<Group>(Group::names()), hide_possible_values = true)]
    only: Vec<Group>,
    /// Directory for the inputs (about 6 GB, with --quick 0.6 GB), which are removed at the end
    #[arg(long, value_name = "DIR")]
    scratch: Option<PathBuf>,
}

fn rounds() -> ValueParser {
    clap::value_parser!(u16).range(1..=ROUNDS_MAX as i64).into()
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let cancel = raise_on(&[SIGINT, SIGTERM, SIGHUP])?;
        self.outputs.files.begin()?;
        let config = Config {
            image: self.image.clone(),
            quick: self.quick,
            rounds: self.rounds.map(usize::from),
            only: self.only.clone(),
            sidecore: std::env::current_exe().context("cannot find this program")?,
            scratch: self.scratch.clone(),
        };
        let report = match bench::run(&config, cancel, &mut |line| output::note!("{line}")) {
            Err(BenchError::Missing(reason)) => anyhow::bail!(reason),
            other => other?,
        };
        let files = &self.outputs.files;
        files.write(|| report.tsv(), || Ok(picture::draw(&report)?))?;
        self.outputs
            .print(&report, report::render, report::people)?;
        Ok(Outcome::of(report.figures.failures.is_empty()))
    }
}
