//! `sidecore offload ...`: benchmarks of off-loading, and calls by hand.

#[cfg(feature = "bench")]
mod bench;
mod call;
#[cfg(feature = "bench")]
mod peer;

use crate::Outcome;
#[cfg(not(feature = "bench"))]
use crate::no_bench as bench;
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
    #[cfg(feature = "bench")]
    #[command(hide = true)]
    Peer(peer::Args),
}

impl Command {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        match self {
            Self::Bench(args) => args.run(),
            Self::Call(args) => args.run(),
            #[cfg(feature = "bench")]
            Self::Peer(args) => args.run(),
        }
    }
}
