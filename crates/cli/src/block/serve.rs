//! `sidecore block serve`.

use crate::Outcome;
use anyhow::Result;

/// Arguments of `block serve`.
#[derive(clap::Args)]
pub(crate) struct Args {}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        anyhow::bail!("`block serve` is not built yet")
    }
}
