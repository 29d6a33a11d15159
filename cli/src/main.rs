//! The one binary, `sidecore`: parses, calls, prints. No logic of its own.
//!
//! Exit status: 0 done, 1 ran and found a problem, 2 could not run, 130 stopped by a signal with
//! work left that the same command resumes. `--json` writes one object to standard output and
//! nothing else there; progress and logs go to standard error. A broken pipe is quiet.

#[cfg(feature = "bench")]
mod bench;
mod block;
mod cell;
mod daemon;
mod live;
mod manual;
mod net;
#[cfg(not(feature = "bench"))]
mod no_bench {
    //! The stand-in for every `bench` command in a program without the feature `bench`, as it is
    //! shipped. Must stay true: one line, exit status 2, whatever the arguments.

    use crate::Outcome;
    use anyhow::Result;
    use std::ffi::OsString;

    /// Arguments of a command that is not in this program.
    #[derive(clap::Args)]
    #[command(after_help = NEEDS)]
    pub(crate) struct Args {
        #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
        rest: Vec<OsString>,
    }

    impl Args {
        /// Prints how to get the command.
        pub(crate) fn run(self) -> Result<Outcome> {
            drop(self.rest);
            anyhow::bail!(NEEDS)
        }
    }

    const NEEDS: &str = "this program has no benches: their peers are not shipped; the package \
        sidecore-cli of the crate registry has them, docs/benchmarks.md their figures";
}
mod offload;
mod output;
mod papers;
mod phylo;
mod rdma;
mod signals;
mod snapshotter;
mod spe;
mod tlb;
mod tour;
mod trace;
mod ui;
mod values;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use sidecore_terminal::print::is_broken_pipe;
use sidecore_terminal::usage;
use std::process::ExitCode;

/// Mounts compressed disk images, runs a TCP stack and infers trees on cores set aside for it; your
/// programs stay unchanged.
#[derive(Parser)]
#[command(
    name = "sidecore",
    version = env!("SIDECORE_VERSION"),
    arg_required_else_help = true,
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

// In the order of a newcomer's interest; research last. A doc comment here would be the program's.
#[derive(Subcommand)]
enum Command {
    /// Compressed images: pack, mount, attach, serve, measure.
    #[command(subcommand)]
    Block(block::Command),
    /// Versions of many images that share what is equal: add, list, get, check, copy, collect.
    #[command(subcommand)]
    Store(block::StoreCommand),
    /// containerd's remote snapshotter: containers start before their images are here.
    Snapshotter(snapshotter::Args),
    /// Phylogenies by maximum likelihood: search, evaluate, simulate, compare, measure.
    Phylo(phylo::Args),
    /// The TCP/IP stack on one engine: run it, run unmodified programs on it, look at it.
    #[command(subcommand)]
    Net(net::Command),
    /// RDMA over TCP (iWARP): the exchange of rdmacm-utils' rping, both sides.
    #[command(subcommand)]
    Rdma(rdma::Command),
    /// Own the machine's engines and serve other processes, in the foreground.
    Daemon(daemon::Args),
    /// Use a daemon's engines: zlib of unmodified programs, calls by hand, benchmarks.
    #[command(subcommand)]
    Offload(offload::Command),
    /// Live statistics of a daemon's engines and clients.
    Top(daemon::TopArgs),
    /// One page in the browser: live images, engines, stacks and searches, and trees.
    Ui(ui::Args),
    /// A guided tour on this machine's own files: images, trees, the stack or engines.
    Tour(tour::Args),
    /// List the devices and facilities of this machine, with the command that provides each one it
    /// lacks.
    Doctor(tour::DoctorArgs),
    /// Recordings of --trace-events: sum up which thread ran what, and when.
    #[command(subcommand)]
    Trace(trace::Command),
    /// Write the manual's pages, one for each command.
    Man(manual::Pages),
    /// Print a completion script for a shell.
    Completions(manual::Completions),
    /// Research: cost of address translation on this machine, by levels, for loads and DMA.
    Tlb(tlb::Args),
    /// Research: scheduling on the Cell processor, in virtual time, next to published figures.
    #[command(subcommand)]
    Cell(cell::Command),
    /// Research: unmodified programs of the Cell, by drivers that compile SPU and PPU source here.
    #[command(subcommand)]
    Spe(spe::Command),
    /// Research: every figure of the source documents on one page, with this machine's.
    Papers(papers::Args),
}

/// Runs what a command line named: each variant of the command's enum has arguments that run.
macro_rules! run_each {
    ($command:expr; $($name:ident)+) => {
        match $command { $(Self::$name(named) => named.run(),)+ }
    };
}
pub(crate) use run_each;

impl Command {
    fn run(self) -> anyhow::Result<Outcome> {
        run_each!(self; Block Store Cell Daemon Snapshotter Top Offload Tlb Net Rdma Phylo Spe
            Doctor Trace Man Completions Papers Tour Ui)
    }
}

/// Outcome of a command that ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// Succeeded: exit status 0.
    Done,
    /// Ran and found a problem, which it has printed: exit status 1.
    Problem,
    /// A signal stopped it; it has printed how to resume: exit status 130.
    Stopped,
}

impl Outcome {
    /// A problem unless all is well.
    fn of(is_well: bool) -> Self {
        match is_well {
            true => Self::Done,
            false => Self::Problem,
        }
    }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let name = arguments.next();
    if let Some(ended) = block::by_name(name.as_deref()) {
        return ended;
    }
    if let Some(driver) = spe::driver(name) {
        return spe::drive(driver, arguments.collect());
    }
    output::start_logging();
    let matches = values::parse();
    let cli = match matches.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(error) => return ExitCode::from(usage::end(&error, &Cli::command())),
    };
    match cli.command.run() {
        Ok(Outcome::Done) => ExitCode::SUCCESS,
        Ok(Outcome::Problem) => ExitCode::from(1),
        Ok(Outcome::Stopped) => ExitCode::from(130),
        Err(error) if is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            crate::output::note!("sidecore: {}", output::chain(&error));
            ExitCode::from(2)
        }
    }
}
