//! `sidecore offload …`: how work gets to engines, measured.

mod bench;
mod call;
mod peer;

use crate::Outcome;
use anyhow::Result;
use clap::Subcommand;

/// Commands about off-loading.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Round trips, tasks beside processes, throughput: beside what others do, in one run.
    Bench(bench::Args),
    /// Call a kernel of a daemon, to try it out.
    Call(call::Args),
    /// Another process of the bench; it starts these itself.
    #[command(hide = true)]
    Peer(peer::Args),
}

impl Command {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        match self {
            Self::Bench(args) => args.run(),
            Self::Call(args) => args.run(),
            Self::Peer(args) => args.run(),
        }
    }
}
