//! `sidecore offload ...`: benchmarks of off-loading, calls by hand, and programs that off-load.

mod call;
mod inflate_frame;

use crate::Outcome;
#[cfg(feature = "bench")]
use crate::bench::OffloadArgs as BenchArgs;
#[cfg(not(feature = "bench"))]
use crate::no_bench::Args as BenchArgs;
use anyhow::Result;
use clap::Subcommand;
use inflate_frame::InflateFrame;
use sidecore_daemon::served::{Registry, RegistryError};

/// Commands about off-loading.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Round trips, tasks, throughput: compared with other libraries and with processes, in one
    /// run.
    Bench(BenchArgs),
    /// Call a kernel of a daemon, to try it out.
    Call(call::Args),
    /// List a daemon's kernels, with their versions and hashes.
    Kernels(call::KernelsArgs),
    /// Run a program whose calls to zlib use a daemon's engines.
    Run(call::RunArgs),
    /// The process that runs an object's kernels; a daemon starts it.
    #[command(hide = true)]
    Host,
    /// Another process of the bench; it starts these itself.
    #[cfg(feature = "bench")]
    #[command(hide = true)]
    Peer(crate::bench::Peer),
}

impl Command {
    pub(crate) fn run(self) -> Result<Outcome> {
        match self {
            Self::Bench(args) => args.run(),
            Self::Call(args) => args.run(),
            Self::Kernels(args) => args.run(),
            Self::Run(args) => args.run(),
            Self::Host => sidecore_loader::serve_as_host(),
            #[cfg(feature = "bench")]
            Self::Peer(args) => args.run(),
        }
    }
}

/// The kernels that `sidecore daemon` has built in; `spin_us` on request.
pub(crate) fn built_in(spin_us: bool) -> Result<Registry, RegistryError> {
    let registry = if spin_us {
        Registry::with_spin_us()
    } else {
        Registry::builtin()
    };
    let registry = registry.with::<InflateFrame>()?;
    sidecore_kernels::register(sidecore_deflate::served::register(registry)?)
}
