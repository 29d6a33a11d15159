//! `sidecore phylo concordance`.

use super::common;
use crate::values::models;
use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_phylo::concordance::Concordance;
use sidecore_phylo::evaluation;
use sidecore_phylo::io::data::linkage;
use sidecore_phylo::likelihood::{Likelihood, Options};
use sidecore_phylo::msa::Patterns;
use sidecore_phylo::newick::Newick;
use sidecore_phylo::tree::Tree;
use sidecore_terminal::values::Offered;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub(crate) struct Args {
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

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let file = common::reader().trees(&self.tree)?;
        let tree = file.only()?;
        let mut found = Concordance::new(tree);
        if let Some(path) = &self.genes {
            let genes = common::reader().gene_trees(path, tree.tip_labels(), None)?;
            found.add_genes(&genes, &self.run.pool()?)?;
        }
        if let (Some(msa), Some(model)) = (&self.msa, &self.model) {
            self.add_sites(tree, msa, model, &mut found)?;
        }
        output::wanted(&self.table, || found.table())?;
        self.run.deliver(&found, &found.labelled().to_string())
    }

    fn add_sites(
        &self,
        tree: &Newick,
        msa: &Path,
        model: &str,
        found: &mut Concordance<'_>,
    ) -> Result<()> {
        let data = common::data(msa, model)?;
        let names = data.alignment.names();
        let own =
            Tree::from_newick(tree, names).with_context(|| self.tree.display().to_string())?;
        let pool = self.run.pool()?;
        let parts = data.partitions.parts;
        let patterns: Vec<&Patterns> = parts.iter().map(|part| &part.patterns).collect();
        found.add_sites(names, &patterns, (self.quartets, self.seed), &pool)?;
        if self.likelihood {
            let linked = linkage(None, &parts)?;
            let mut likelihood = Likelihood::partitioned(own, parts, &pool, Options::default())?;
            likelihood.set_lengths(linked);
            evaluation::Fit::All.apply(&mut likelihood, EPSILON)?;
            let fitted = (likelihood.tree(), likelihood.parts());
            found.add_likelihood(names, fitted, &pool)?;
        }
        Ok(())
    }
}

/// Gain in log-likelihood below which the fit ends.
const EPSILON: f64 = 0.01;
