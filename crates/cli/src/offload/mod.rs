//! `sidecore offload ...`: benchmarks of off-loading, calls by hand, and programs that off-load.

#[cfg(feature = "bench")]
mod bench;
mod call;
#[cfg(feature = "bench")]
mod peer;
mod run;

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
    /// Run a program whose calls to zlib use a daemon's engines.
    Run(run::Args),
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
            Self::Run(args) => args.run(),
            #[cfg(feature = "bench")]
            Self::Peer(args) => args.run(),
        }
    }
}
