//! `sidecore block pack`.

use crate::Outcome;
use anyhow::Result;

/// Arguments of `block pack`.
#[derive(clap::Args)]
pub(crate) struct Args {}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        anyhow::bail!("`block pack` is not built yet")
    }
}
