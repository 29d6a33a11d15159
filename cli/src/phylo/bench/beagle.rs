//! `sidecore phylo bench beagle`.

use crate::phylo::beagle::LIBRARY;
use crate::signals::{SIGINT, SIGTERM, raise_on};
use crate::{Outcome, output};
use anyhow::Result;
use sidecore_bench::measure::quiet::Noise;
use sidecore_bench::phylo::beagle::{BeagleOptions, BeagleRow, beagle, shapes, text, work};
use sidecore_measure::Machine;
use sidecore_terminal::progress::{Shape, bar};
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = "\
Each library is loaded by a process of its own; both traverse one tree with the same data, in \
rounds that alternate, and must agree on the log-likelihood. With one engine neither library \
starts a thread; with more, BEAGLE may start its own. About two minutes, ten seconds with \
--quick. Exit status: 0 measured, 1 a library failed or both differ, 2 could not run.")]
pub(crate) struct Args {
    /// The library to compare with
    #[arg(long, value_name = "FILE", default_value = "libhmsbeagle.so.1")]
    peer: PathBuf,
    /// Engines of Sidecore's library
    #[arg(long, value_name = "N", default_value = "1")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    engines: u16,
    /// Rounds, of which medians are taken
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: Option<u16>,
    /// Three shapes, short runs: a smoke run
    #[arg(long)]
    quick: bool,
    /// Answer a bench's questions about this library
    #[arg(long, value_name = "FILE", hide = true)]
    library: Option<PathBuf>,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

/// The report in JSON.
#[derive(serde::Serialize)]
struct Report {
    machine: Machine,
    engines: u16,
    rows: Vec<BeagleRow>,
    noise: Noise,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        if let Some(library) = &self.library {
            let (input, output) = (std::io::stdin().lock(), std::io::stdout());
            work(library, self.engines, self.quick, input, output)?;
            return Ok(Outcome::Done);
        }
        let stop = raise_on(&[SIGINT, SIGTERM])?;
        let options = BeagleOptions {
            program: std::env::current_exe()?,
            ours: LIBRARY.locate()?,
            peer: self.peer,
            engines: self.engines,
            rounds: self
                .rounds
                .map_or(if self.quick { 3 } else { 7 }, usize::from),
            is_quick: self.quick,
        };
        let bar = bar(Shape::Count, shapes(self.quick).len() as u64).with_message("traversals");
        let (rows, noise) = beagle(&options, &stop, &|| bar.inc(1))?;
        bar.finish_and_clear();
        let failed = rows.iter().any(|row| row.error.is_some());
        let report = Report {
            machine: Machine::of_this_program(),
            engines: self.engines,
            rows,
            noise,
        };
        output::report(self.json, &report, |report| {
            text(&report.rows, &report.noise)
        })?;
        Ok(Outcome::of(!failed))
    }
}
