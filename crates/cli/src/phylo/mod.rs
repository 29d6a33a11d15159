//! `sidecore phylo`: one file a command.

#[cfg(feature = "bench")]
mod bench;
mod common;
mod compare;
mod evaluate;
mod search;
mod simulate;
mod support;

use crate::Outcome;
#[cfg(not(feature = "bench"))]
use crate::no_bench as bench;
use anyhow::Result;
use clap::Subcommand;

/// The commands on alignments and trees.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// The log-likelihood of a tree; its lengths and the model's parameters fitted if wanted.
    Evaluate(evaluate::Args),
    /// The tree of the highest likelihood: searches, bootstraps and support, resumable.
    Search(search::Args),
    /// Write how well replicates support a tree's branches on that tree.
    Support(support::Args),
    /// Evolve an alignment along a tree.
    Simulate(simulate::Args),
    /// Distances of two trees.
    Compare(compare::Args),
    /// Measure on this machine.
    Bench(bench::Args),
}

impl Command {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        match self {
            Self::Evaluate(args) => args.run(),
            Self::Search(args) => args.run(),
            Self::Support(args) => args.run(),
            Self::Simulate(args) => args.run(),
            Self::Compare(args) => args.run(),
            Self::Bench(args) => args.run(),
        }
    }
}
