//! `sidecore tour`.

use crate::Outcome;
use anyhow::Result;

/// Arguments of `tour`.
#[derive(clap::Args)]
pub(crate) struct Args {}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        anyhow::bail!("`tour` is not built yet")
    }
}
