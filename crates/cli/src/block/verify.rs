//! `sidecore block verify`.

use crate::Outcome;
use anyhow::Result;

/// Arguments of `block verify`.
#[derive(clap::Args)]
pub(crate) struct Args {}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        anyhow::bail!("`block verify` is not built yet")
    }
}
