//! `sidecore tlb`.
//!
//! Why here: arguments and printing; what is measured, and how, is in `sidecore_tlb`.
//! Must stay true: results alone go to standard output; Ctrl-C ends the run in order, so that
//! settings that were changed are put back.

use crate::output::Outputs;
use crate::signals::{SIGHUP, SIGINT, SIGTERM, raise_on};
use crate::{Outcome, output};
use anyhow::Result;
use sidecore_engine::page_advice::PageAdvice;
use sidecore_tlb::{Config, markdown, picture, run, terminal};
use std::io::IsTerminal;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Fewer points: under ten seconds; a smoke run
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    outputs: Outputs,
    /// Get huge pages that the machine's settings do not provide now: changes the settings for a
    /// moment and puts them back (needs root)
    #[arg(long)]
    reserve: bool,
    /// The core to measure on [default: the last one that is allowed]
    #[arg(long, value_name = "N")]
    core: Option<usize>,
    /// Measure the levels for loads from small pages only
    #[arg(long)]
    levels_only: bool,
    /// Save the measured page sizes and touch costs: pools and the daemon allocate their memory by
    /// them from then on
    #[arg(long, conflicts_with_all = ["levels_only", "quick"])]
    learn: bool,
    /// Remove the saved measurements, and measure nothing
    #[arg(long, conflicts_with = "learn")]
    forget: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        if self.forget {
            output::line(&match PageAdvice::forget()? {
                Some(path) => format!("removed {}", path.display()),
                None => "nothing was kept".to_owned(),
            })?;
            return Ok(Outcome::Done);
        }
        let cancel = raise_on(&[SIGINT, SIGTERM, SIGHUP])?;
        // Before a minute is spent: a file that cannot be written is reported now.
        self.outputs.files.begin()?;
        let config = Config {
            quick: self.quick,
            reserve: self.reserve,
            core: self.core,
            levels_only: self.levels_only,
            seed: 0,
        };
        let watched = std::io::stderr().is_terminal();
        let report = run(&config, &cancel, &mut |line| {
            if watched {
                output::note!("{line}");
            }
        })?;
        let files = &self.outputs.files;
        files.write(|| report.tsv(), || Ok(picture::draw(&report)?))?;
        if self.learn {
            let path = report.learned.save()?;
            output::note!(
                "kept in {}: pools that start from now on use it",
                path.display()
            );
        }
        self.outputs
            .print(&report, markdown::render, terminal::text)?;
        Ok(Outcome::of(!report.levels.is_empty()))
    }
}
