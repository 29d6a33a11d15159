//! `sidecore phylo support` and `concordance`: what is known of a tree's branches.

use super::common::{self, reader};
use crate::values::models;
use crate::{Outcome, output};
use anyhow::Result;
use sidecore_phylo::analysis::supports::Support;
use sidecore_phylo::concordance::Concordance;
use sidecore_phylo::io::data::linkage;
use sidecore_terminal::values::{Offered, named};
use sidecore_workflow::trees::Supported;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Tree (Newick or NEXUS) whose branches are to be supported
    #[arg(long, value_name = "FILE")]
    tree: PathBuf,
    /// Replicates' trees, in Newick or NEXUS
    #[arg(long, value_name = "FILE", required_unless_present = "msa")]
    bootstraps: Option<PathBuf>,
    /// Kind of support
    #[arg(long, value_parser = named(Support::NAMED), default_value = "fbp")]
    support: Support,
    /// Alignment, for all kinds but fbp and tbe
    #[arg(
        long,
        value_name = "FILE",
        requires = "model",
        conflicts_with = "bootstraps"
    )]
    msa: Option<PathBuf>,
    /// Model, or file of partitions, for all kinds but fbp and tbe
    #[arg(long, value_name = "MODEL|FILE", requires = "msa")]
    #[arg(value_parser = Offered(models), hide_possible_values = true)]
    model: Option<String>,
    /// Replicates of sh-alrt, lbp and ufboot
    #[arg(long, value_name = "N", default_value = "1000")]
    #[arg(value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    replicates: u32,
    /// With ufboot: each replicate refines its tree by NNI moves under its own draws of sites
    #[arg(long)]
    bnni: bool,
    /// Seed of these replicates
    #[arg(long, value_name = "S", default_value = "1")]
    seed: u64,
    #[command(flatten)]
    tree_out: common::TreeArgs,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let supported = Supported {
            reader: reader(),
            tree: &self.tree,
            support: self.support,
            bootstraps: self.bootstraps.as_deref(),
            replicates: self.replicates,
            seed: self.seed,
            bnni: self.bnni,
        };
        let data = self.msa.as_ref().zip(self.model.as_ref());
        let data = data.map(|(msa, model)| move || common::data(msa, model));
        let report = supported.find(data, &common::pool(None)?)?;
        self.tree_out.deliver(&report, &report.tree)
    }
}

#[derive(clap::Args)]
pub(crate) struct ConcordanceArgs {
    /// Tree (Newick or NEXUS) whose branches are looked at
    #[arg(long, value_name = "FILE")]
    tree: PathBuf,
    /// Gene trees, in Newick or NEXUS
    #[arg(long, value_name = "FILE", required_unless_present = "msa")]
    genes: Option<PathBuf>,
    /// Alignment of the sites, or a folder of loci
    #[arg(long, value_name = "FILE|FOLDER", requires = "model")]
    msa: Option<PathBuf>,
    /// Model, or file of partitions; for parsimony it says which characters are states
    #[arg(long, value_name = "MODEL|FILE", requires = "msa")]
    #[arg(value_parser = Offered(models), hide_possible_values = true)]
    model: Option<String>,
    /// Site concordance by likelihood, too, with lengths and parameters fitted
    #[arg(long, requires = "msa")]
    likelihood: bool,
    /// Quartets of taxa a branch; all where there are no more than that
    #[arg(long, value_name = "N", default_value = "1000")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    quartets: u32,
    /// Seed of the quartets
    #[arg(long, value_name = "S", default_value = "1")]
    seed: u64,
    /// Write a table of all values to this file, a line a branch, between tabs
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
    #[command(flatten)]
    run: common::TreeRunArgs,
}

impl ConcordanceArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let pool = self.run.pool()?;
        let file = reader().trees(&self.tree)?;
        let tree = file.only()?;
        let mut found = Concordance::new(tree);
        if let Some(path) = &self.genes {
            let genes = reader().gene_trees(path, tree.tip_labels(), None)?;
            found.add_genes(&genes, &pool)?;
        }
        if let (Some(msa), Some(model)) = (&self.msa, &self.model) {
            let data = common::data(msa, model)?;
            let (names, parts) = (data.alignment.names(), data.partitions.parts);
            let own = file.only_of(names)?;
            found.add_sites(names, &parts, (self.quartets, self.seed), &pool)?;
            if self.likelihood {
                let linked = linkage(None, &parts)?;
                found.add_likelihood(names, own, (parts, linked), &pool)?;
            }
        }
        output::wanted(&self.table, || found.table())?;
        self.run.deliver(&found, &found.labelled().to_string())
    }
}
