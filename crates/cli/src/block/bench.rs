//! `sidecore block bench`.

use crate::Outcome;
use anyhow::Result;

/// Arguments of `block bench`.
#[derive(clap::Args)]
pub(crate) struct Args {}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        anyhow::bail!("`block bench` is not built yet")
    }
}
