//! `sidecore phylo ancestors` and `place`: inner nodes, and other sequences, on a given tree.

use super::common::{self, reader};
use crate::values::models;
use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_offload::Pool;
use sidecore_phylo::ancestors::{AncestralSequences, ancestors_bytes};
use sidecore_phylo::evaluation::Fit;
use sidecore_phylo::io::data::{TreeFile, linkage};
use sidecore_phylo::likelihood::{Lengths, Likelihood, PartOptions};
use sidecore_phylo::placement::{Placements, Queries, place, placement_bytes};
use sidecore_phylo::tree::Tree;
use sidecore_terminal::values::{Offered, named};
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    data: common::DataArgs,
    /// Tree, in Newick or NEXUS, with the alignment's taxa
    #[arg(long, value_name = "FILE")]
    tree: PathBuf,
    #[command(flatten)]
    fit: FitArgs,
    /// Write the probabilities to this file, separated by tabs
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write the tree with the inner nodes' names to this file
    #[arg(long, value_name = "FILE")]
    tree_out: Option<PathBuf>,
    /// Write the most probable sequences to this file, as FASTA
    #[arg(long, value_name = "FILE")]
    fasta: Option<PathBuf>,
    /// Write the changes on each branch to this file, a line each, between tabs
    #[arg(long, value_name = "FILE")]
    mutations: Option<PathBuf>,
    #[command(flatten)]
    run: common::RunArgs,
}

/// The fit before a command's own work.
#[derive(clap::Args)]
struct FitArgs {
    /// Parameters to fit: none, branch lengths, or these and the model's free parameters
    #[arg(long, value_parser = named(Fit::NAMED), default_value = "all")]
    opt: Fit,
}

impl FitArgs {
    /// The fitted likelihood of a tree, and its logarithm. Warns of lengths that `file` lacks.
    fn fitted<'p>(
        &self,
        (file, tree): (&TreeFile, Tree),
        parts: (Vec<PartOptions>, Lengths),
        pool: &'p Pool,
    ) -> Result<(Likelihood<&'p Pool>, f64)> {
        if self.opt == Fit::Nothing {
            file.warn_of_lengths(reader());
        }
        Ok(self.opt.likelihood(tree, parts, EPSILON, pool)?)
    }
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let pool = self.run.pool()?;
        let data = self.data.read()?;
        let file = reader().trees(&self.tree)?;
        let names = data.alignment.names();
        let tree = file.only_of(names)?;
        let parts = data.partitions.parts;
        let copies =
            u64::from(self.output.is_some()) + u64::from(self.run.json || self.fasta.is_some());
        let need = ancestors_bytes(tree.taxa(), &parts, copies);
        common::memory().check_work("the inner nodes' states", need)?;
        let lengths = linkage(None, &parts).with_context(|| self.data.model.clone())?;
        let (likelihood, lnl) = self.fit.fitted((&file, tree), (parts, lengths), &pool)?;
        let mut table = String::new();
        let found = AncestralSequences::new(
            (likelihood.tree(), lnl),
            names,
            likelihood.parts(),
            data.alignment.sites(),
            self.output.is_some().then_some(&mut table),
        );
        output::wanted(&self.output, || table)?;
        output::wanted(&self.tree_out, || format!("{}\n", found.tree))?;
        output::wanted(&self.fasta, || found.to_fasta())?;
        output::wanted(&self.mutations, || {
            found.mutations(likelihood.tree(), names, likelihood.parts())
        })?;
        // Byte-exact, and so outside the text.
        output::report(self.run.json, &found, AncestralSequences::text)?;
        if !self.run.json && self.tree_out.is_none() {
            output::result(&found.tree)?;
        }
        Ok(Outcome::Done)
    }
}

/// Gain in log-likelihood below which the fit ends.
const EPSILON: f64 = 0.001;

#[derive(clap::Args)]
pub(crate) struct PlaceArgs {
    /// Alignment of the tree's taxa and of the sequences to be placed; plain or packed
    #[arg(long, value_name = "FILE")]
    msa: PathBuf,
    /// Tree, in Newick or NEXUS
    #[arg(long, value_name = "FILE")]
    tree: PathBuf,
    /// Model, or file of partitions (RAxML's lines or NEXUS sets)
    #[arg(long, value_name = "MODEL|FILE")]
    #[arg(value_parser = Offered(models), hide_possible_values = true)]
    model: String,
    #[command(flatten)]
    fit: FitArgs,
    /// Places of a sequence that are reported, at most
    #[arg(long, value_name = "N", default_value = "7")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1000))]
    keep: u16,
    /// Write jplace to this file, not to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    run: common::RunArgs,
}

impl PlaceArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let pool = self.run.pool()?;
        let alignment = reader().alignment(&self.msa)?;
        let file = reader().trees(&self.tree)?;
        let newick = file.only()?;
        let queries =
            Queries::new(&alignment, newick).with_context(|| self.msa.display().to_string())?;
        let reference = &queries.reference;
        let tree = file.only_of(reference.names())?;
        let parts = reader().parts(reference, &self.msa, &self.model)?;
        let lengths = linkage(None, &parts).with_context(|| self.model.clone())?;
        let (likelihood, _) = self.fit.fitted((&file, tree), (parts, lengths), &pool)?;
        let fitted = (likelihood.tree(), likelihood.parts());
        common::memory().check_work("the places", placement_bytes(&queries, fitted.1))?;
        let found: Placements = place(&queries, fitted, self.keep.into(), &pool)?;
        let text = serde_json::to_string(&found)?;
        common::deliver_tree(self.output.as_deref(), self.run.json, &found, &text)
    }
}
