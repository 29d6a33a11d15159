//! `sidecore phylo simulate`.

use super::common::{self, reader};
use crate::values::models;
use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_phylo::io::data::{check_lengths, model_name};
use sidecore_phylo::model::Model;
use sidecore_phylo::simulate::{numbered_names, simulate, simulation_bytes, tree_of_seed};
use sidecore_sys::width::ToUsize;
use sidecore_terminal::values::{Offered, number};
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("along").required(true).args(["tree", "taxa"])))]
pub(crate) struct Args {
    /// Tree in Newick to evolve along
    #[arg(long, value_name = "FILE")]
    tree: Option<PathBuf>,
    /// Make a random tree of this many taxa instead, named t1 to tN
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(4..=100_000))]
    taxa: Option<u32>,
    /// Mean length of the random tree's branches
    #[arg(long, value_name = "LENGTH", default_value = "0.1")]
    #[arg(value_parser = number(|it| (1e-6..=10.0).contains(&it), "a number from 0.000001 to 10"))]
    branch_mean: f64,
    /// Number of sites
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    sites: u32,
    /// Model, such as `GTR{1/2/1/1/2/1}+G4m{0.5}`
    #[arg(long, value_name = "MODEL")]
    #[arg(value_parser = Offered(models), hide_possible_values = true)]
    model: String,
    /// Seed of all random numbers
    #[arg(long, value_name = "S", default_value = "1")]
    seed: u64,
    /// File to write, in PHYLIP
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Write the tree to this file as well
    #[arg(long, value_name = "FILE")]
    tree_out: Option<PathBuf>,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let model = Model::without_alignment(model_name(&self.model)?);
        let (tree, names) = match &self.tree {
            Some(path) => {
                let file = reader().trees(path)?;
                let names = file.only()?.tip_labels();
                let tree = file.only_of(&names)?;
                check_lengths(&tree).with_context(|| path.display().to_string())?;
                file.warn_of_lengths(reader());
                (tree, names)
            }
            None => {
                let taxa = self.taxa.unwrap_or(4).to_usize();
                let tree = tree_of_seed(taxa, self.branch_mean, self.seed);
                (tree, numbered_names(taxa))
            }
        };
        let (taxa, sites) = (tree.taxa(), self.sites.to_usize());
        let what = format!("an alignment of {taxa} taxa");
        common::memory().check_work(&what, simulation_bytes(&model, taxa, sites))?;
        let alignment = simulate(&tree, &names, &model, sites, self.seed)?;
        output::bytes(&self.output, &alignment.to_phylip())?;
        output::wanted(&self.tree_out, || format!("{}\n", tree.to_newick(&names)))?;
        Ok(Outcome::Done)
    }
}
