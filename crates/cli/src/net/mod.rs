//! `sidecore net`: the protocol stack.

mod drill;

use crate::Outcome;
use anyhow::Result;
use clap::Subcommand;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Play scripts of packets, calls and times against the stack, in virtual time.
    Drill(drill::Args),
}

impl Command {
    pub(crate) fn run(self) -> Result<Outcome> {
        match self {
            Self::Drill(args) => args.run(),
        }
    }
}
