//! `sidecore block mount`.

use crate::Outcome;
use anyhow::Result;

/// Arguments of `block mount`.
#[derive(clap::Args)]
pub(crate) struct Args {}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        anyhow::bail!("`block mount` is not built yet")
    }
}
