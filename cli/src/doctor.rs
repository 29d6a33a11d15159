//! `sidecore doctor`.
//!
//! Why here: arguments and printing; `sidecore_doctor` probes the machine. Must stay true: nothing
//! is changed, and a machine that lacks something is not an error: exit status 0.

use crate::{Outcome, output};
use anyhow::Result;
use sidecore_doctor::{Built, examine};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let report = examine(Built {
            with_mpi: cfg!(feature = "mpi"),
        });
        output::report(self.json, &report, |report| report.text())
    }
}
