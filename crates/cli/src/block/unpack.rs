//! `sidecore block unpack`.

use crate::Outcome;
use anyhow::Result;

/// Arguments of `block unpack`.
#[derive(clap::Args)]
pub(crate) struct Args {}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        anyhow::bail!("`block unpack` is not built yet")
    }
}
