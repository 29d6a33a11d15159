//! `sidecore block umount`.

use crate::Outcome;
use anyhow::Result;

/// Arguments of `block umount`.
#[derive(clap::Args)]
pub(crate) struct Args {}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        anyhow::bail!("`block umount` is not built yet")
    }
}
