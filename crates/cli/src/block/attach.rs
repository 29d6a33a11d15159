//! `sidecore block attach`.

use crate::Outcome;
use anyhow::Result;

/// Arguments of `block attach`.
#[derive(clap::Args)]
pub(crate) struct Args {}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        anyhow::bail!("`block attach` is not built yet")
    }
}
