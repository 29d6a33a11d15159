//! The stand-in for every `bench` command in a program that was built without the feature `bench`.
//!
//! Why here: the shipped program has no peers; the command prints how to get a build that has it.
//! Must stay true: one line, exit status 2, whatever the arguments.

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
