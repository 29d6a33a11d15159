//! `sidecore net`: the protocol stack.

mod drill;
mod run;
mod status;
mod up;

use crate::Outcome;
#[cfg(feature = "bench")]
use crate::bench::NetArgs as BenchArgs;
#[cfg(not(feature = "bench"))]
use crate::no_bench::Args as BenchArgs;
use anyhow::Result;
use clap::Subcommand;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run a stack on a NIC, in the foreground, for applications of other processes.
    Up(up::Args),
    /// Echo all input, TCP and UDP, as an application of a running stack.
    Echo(up::ServerArgs),
    /// Discard all input, as an application of a running stack.
    Discard(up::ServerArgs),
    /// Send as fast as the peer reads, as an application of a running stack.
    Source(up::ServerArgs),
    /// Answer HTTP requests, `/` and `/bytes/N`, as an application of a running stack.
    Http(up::ServerArgs),
    /// Let iperf3 measure a running stack, as an application of it.
    Iperf3(up::ServerArgs),
    /// Run an unmodified program whose sockets are the stack's.
    Run(run::Args),
    /// Statistics of a running stack.
    Status(status::Args),
    /// The TCP sessions of a running stack, each with its state, times, windows and process.
    Sessions(status::SessionsArgs),
    /// Write the frames of a running stack's NIC to a file, as pcapng.
    Capture(status::CaptureArgs),
    /// Compare the stack with the kernel's and with the paper's figures, in one run.
    Bench(BenchArgs),
    /// Play scripts of packets, calls and times against the stack, in virtual time.
    Drill(drill::Args),
}

impl Command {
    pub(crate) fn run(self) -> Result<Outcome> {
        use sidecore_net_apps::Service;
        match self {
            Self::Up(args) => args.run(),
            Self::Echo(args) => args.run(Service::Echo),
            Self::Discard(args) => args.run(Service::Discard),
            Self::Source(args) => args.run(Service::Source),
            Self::Http(args) => args.run(Service::Http),
            Self::Iperf3(args) => args.run(Service::Iperf3),
            Self::Run(args) => args.run(),
            Self::Status(args) => args.run(),
            Self::Sessions(args) => args.run(),
            Self::Capture(args) => args.run(),
            Self::Bench(args) => args.run(),
            Self::Drill(args) => args.run(),
        }
    }
}
