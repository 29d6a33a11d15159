//! `sidecore offload peer`: another process of the bench, started by it.

use crate::Outcome;
use anyhow::Result;
use sidecore_bench::offload as bench;

/// Arguments of `offload peer`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Role to play, in the bench's notation.
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
