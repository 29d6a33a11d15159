//! `sidecore phylo`: one file a command, or a few that belong together.

mod ancestors;
#[cfg(feature = "bench")]
mod bench;
mod common;
mod evaluate;
mod genes;
mod models;
mod outbreak;
mod root;
mod search;
mod simulate;
mod support;
mod trees;

#[cfg(not(feature = "bench"))]
use crate::no_bench as bench;
use crate::signals::{SIGXFSZ, raise_on};
use crate::{Outcome, run_each};
use anyhow::Result;
use clap::Subcommand;
use sidecore_sys::preload::Library;
use std::ffi::OsString;
use std::path::Path;

/// A file of trees for the page of `sidecore ui`: its name, and the trees.
pub(crate) fn trees_as_text(path: &Path) -> Result<(String, String)> {
    Ok(sidecore_workflow::trees::shown(common::reader(), path)?)
}

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    limits: common::Limits,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        // Past the file size limit a write then fails as on a full disk; by default SIGXFSZ kills
        // the process.
        raise_on(&[SIGXFSZ])?;
        self.limits.begin()?;
        self.command.run()
    }
}

/// The commands on alignments and trees.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// The log-likelihood of a tree; its lengths and the model's parameters fitted if wanted.
    Evaluate(evaluate::Args),
    /// The tree of the highest likelihood: searches, bootstraps and support, resumable.
    Search(search::Args),
    /// A tree for each locus, with supports; resumable.
    Genes(genes::Args),
    /// One tree of many gene trees, by their quartets.
    Species(genes::SpeciesArgs),
    /// Shares of gene trees and sites that agree with a tree's branches.
    Concordance(support::ConcordanceArgs),
    /// Write how well replicates support a tree's branches on that tree.
    Support(support::Args),
    /// Evolve an alignment along a tree.
    Simulate(simulate::Args),
    /// Distances of two trees, or of all pairs of a file's trees.
    Compare(trees::CompareArgs),
    /// The substitution model that an alignment asks for, by BIC, AICc or AIC.
    Models(models::Args),
    /// States of a tree's inner nodes, with their probabilities.
    Ancestors(ancestors::Args),
    /// The tree of many near-identical genomes, such as an outbreak's.
    Outbreak(outbreak::Args),
    /// The branches of a tree that other sequences could stem from.
    Place(ancestors::PlaceArgs),
    /// Test which of several trees an alignment excludes: KH, SH, ELW, AU.
    Test(evaluate::TestArgs),
    /// One tree of many: strict, majority rule, extended majority rule.
    Consensus(trees::ConsensusArgs),
    /// Root trees by an outgroup, at the midpoint, or by minimal ancestor deviation.
    Root(root::Args),
    /// Dates of a tree's nodes, by a clock fitted to its lengths.
    Date(root::DateArgs),
    /// Draw a tree as SVG.
    Draw(trees::DrawArgs),
    /// Run MrBayes, BEAST or another program that uses BEAGLE on Sidecore's kernels.
    Beagle(BeagleArgs),
    /// Measure on this machine.
    Bench(bench::Args),
}

impl Command {
    fn run(self) -> Result<Outcome> {
        run_each!(self; Evaluate Search Genes Species Concordance Support Simulate Compare Models
            Ancestors Outbreak Place Test Consensus Root Date Draw Beagle Bench)
    }
}

#[derive(clap::Args)]
pub(crate) struct BeagleArgs {
    /// The most cores for likelihoods [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    engines: Option<u16>,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

impl BeagleArgs {
    /// Becomes the program, so that its exit status, signals, terminal and children are its own;
    /// returns only where that could not be started.
    pub(crate) fn run(self) -> Result<Outcome> {
        let engines = self.engines.map(|engines| engines.to_string().into());
        match LIBRARY.exec(&self.command, ("SIDECORE_BEAGLE_ENGINES", engines))? {}
    }
}

// Programs load it by its soname, which the file's name need not be: the dynamic linker compares
// sonames.
const LIBRARY: Library = Library {
    name: "libhmsbeagle.so",
    installed_name: Some("libhmsbeagle.so.1"),
    variable: "SIDECORE_BEAGLE_LIBRARY",
};
