//! `sidecore block info`.

use crate::Outcome;
use anyhow::Result;

/// Arguments of `block info`.
#[derive(clap::Args)]
pub(crate) struct Args {}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        anyhow::bail!("`block info` is not built yet")
    }
}
