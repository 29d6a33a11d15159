//! `sidecore phylo simulate`.

use super::common::reader;
use crate::values::models;
use crate::{Outcome, output};
use anyhow::Result;
use sidecore_sys::width::ToUsize;
use sidecore_terminal::values::{Offered, number};
use sidecore_workflow::given::{Along, evolve};
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
        let along = match &self.tree {
            Some(path) => Along::File(path),
            None => Along::Random {
                taxa: self.taxa.unwrap_or(4).to_usize(),
                branch_mean: self.branch_mean,
            },
        };
        let sites = self.sites.to_usize();
        let (alignment, tree) = evolve(reader(), along, &self.model, sites, self.seed)?;
        output::file(&self.output, alignment.to_phylip())?;
        output::wanted(&self.tree_out, || format!("{tree}\n"))?;
        Ok(Outcome::Done)
    }
}
