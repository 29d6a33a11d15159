//! `sidecore net bench`.
//!
//! Why here: arguments, printing and the picture; what is measured, and how, is in
//! `sidecore_bench::net`.
//! Must stay true: results alone go to standard output; Ctrl-C ends the run in order.

use crate::figures::Outputs;
use crate::signals::{SIGHUP, SIGINT, SIGTERM, raise_on};
use crate::{Outcome, output};
use anyhow::{Context, Result};
use clap::builder::ValueParser;
use sidecore_bench::net::{self as bench, Config, Group, ROUNDS_MAX, picture, report};
use sidecore_terminal::values::one_of;

#[derive(clap::Args)]
#[command(after_help = "\
Beside every figure stands its ratio to a peer that was interleaved with it, and the paper's \
figure where it has one. Peers of the kernel's are in network namespaces that end with the bench: \
they need root, iperf3, wrk and nginx; what is missing is said with its package, and the rest \
runs. Two cores are kept busy meanwhile.

Exit status: 0 measured (also where a target was missed), 1 something failed or \
answered wrongly, 2 could not run.")]
pub(crate) struct Args {
    /// Few rounds, short ones: under a minute; a smoke run, not a result
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    outputs: Outputs,
    /// Rounds; 5, with --quick 2, unless given
    #[arg(long, value_name = "N", value_parser = rounds())]
    rounds: Option<u16>,
    #[arg(long, value_name = "GROUP,...", value_delimiter = ',', help = only())]
    #[arg(value_parser = one_of::<Group>(Group::names()), hide_possible_values = true)]
    only: Vec<Group>,
}

fn rounds() -> ValueParser {
    clap::value_parser!(u16).range(1..=ROUNDS_MAX as i64).into()
}

fn only() -> String {
    let names: Vec<_> = Group::names().collect();
    format!("Run only these: {}", names.join(", "))
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let cancel = raise_on(&[SIGINT, SIGTERM, SIGHUP])?;
        self.outputs.files.begin()?;
        let scratch = tempfile::Builder::new()
            .prefix("sidecore-bench-")
            .tempdir()
            .context("cannot make a directory for sockets")?;
        let config = Config {
            quick: self.quick,
            rounds: self.rounds.map(usize::from),
            only: self.only.clone(),
            sidecore: std::env::current_exe().context("cannot find this program")?,
            scratch: scratch.path().to_owned(),
        };
        let report = bench::run(&config, cancel, &mut |line| output::note!("{line}"))?;
        let files = &self.outputs.files;
        files.write(|| report.tsv(), || Ok(picture::draw(&report)?))?;
        self.outputs
            .print(&report, report::render, report::people)?;
        Ok(Outcome::of(report.figures.failures.is_empty()))
    }
}
