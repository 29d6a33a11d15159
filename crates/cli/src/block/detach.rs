//! `sidecore block detach`.

use crate::Outcome;
use anyhow::Result;

/// Arguments of `block detach`.
#[derive(clap::Args)]
pub(crate) struct Args {}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        anyhow::bail!("`block detach` is not built yet")
    }
}
