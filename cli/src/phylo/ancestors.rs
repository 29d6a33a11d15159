//! `sidecore phylo ancestors` and `place`: inner nodes, and other sequences, on a given tree.

use super::common::{self, reader};
use crate::values::models;
use crate::{Outcome, output};
use anyhow::Result;
use sidecore_phylo::ancestors::AncestralSequences;
use sidecore_phylo::evaluation::Fit;
use sidecore_terminal::values::{Offered, named};
use sidecore_workflow::trees::{Fitted, StatesWanted};
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

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let pool = self.run.pool()?;
        let data = self.data.read()?;
        let fitted = Fitted {
            reader: reader(),
            pool: &pool,
            tree: &self.tree,
            model: &self.data.model,
            fit: self.fit.opt,
        };
        let wanted = StatesWanted {
            table: self.output.is_some(),
            sequences: self.run.form.json || self.fasta.is_some(),
            mutations: self.mutations.is_some(),
        };
        let found = fitted.ancestors(data, wanted)?;
        let sequences = &found.sequences;
        output::wanted(&self.output, || found.table)?;
        output::wanted(&self.tree_out, || format!("{}\n", sequences.tree))?;
        output::wanted(&self.fasta, || sequences.to_fasta())?;
        output::wanted(&self.mutations, || found.mutations)?;
        // Byte-exact, and so outside the text.
        self.run.form.report(sequences, AncestralSequences::text)?;
        if !self.run.form.json && self.tree_out.is_none() {
            output::result(&sequences.tree)?;
        }
        Ok(Outcome::Done)
    }
}

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
        let fitted = Fitted {
            reader: reader(),
            pool: &pool,
            tree: &self.tree,
            model: &self.model,
            fit: self.fit.opt,
        };
        let found = fitted.place(&self.msa, self.keep.into())?;
        let text = serde_json::to_string(&found)?;
        common::deliver_tree(self.output.as_deref(), self.run.form, &found, &text)
    }
}
