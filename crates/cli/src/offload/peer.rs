//! `sidecore offload peer`: another process of the bench, started by it.

use crate::Outcome;
use anyhow::Result;
use sidecore_offload::bench;

/// Arguments of `offload peer`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What to be, as the bench writes it.
    #[arg(value_name = "ROLE")]
    role: String,
}

impl Args {
    /// Plays the role until standard input ends.
    pub(crate) fn run(self) -> Result<Outcome> {
        bench::play(&self.role)?;
        Ok(Outcome::Done)
    }
}
