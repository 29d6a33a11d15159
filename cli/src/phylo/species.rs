//! `sidecore phylo species`.

use super::common::{self, reader};
use crate::Outcome;
use anyhow::Result;
use sidecore_phylo::species::{score_tree, species_tree};
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Gene trees, in Newick or NEXUS
    #[arg(value_name = "TREES")]
    genes: PathBuf,
    /// Remove branches of gene trees whose label is a number below this, such as 10 of bootstraps
    #[arg(long, value_name = "SUPPORT")]
    contract: Option<f64>,
    /// Score this tree, in place of searching one
    #[arg(long, value_name = "FILE")]
    score: Option<PathBuf>,
    /// Write the tree to this file, not to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Number of engines; one for each core unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    engines: Option<u16>,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let pool = common::pool(self.engines)?;
        let genes = |labels| reader().gene_trees(&self.genes, labels, self.contract);
        let found = match &self.score {
            Some(path) => {
                let file = reader().trees(path)?;
                let tree = file.only()?;
                score_tree(&genes(tree.tip_labels())?, tree, &pool)?
            }
            None => species_tree(&genes(Vec::new())?, &pool)?,
        };
        let text = found.tree.to_string();
        common::deliver_tree(self.output.as_deref(), self.json, &found, &text)
    }
}
