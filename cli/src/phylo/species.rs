//! `sidecore phylo species`.

use super::common::{self, reader};
use super::concordance::gene_trees;
use crate::Outcome;
use anyhow::Result;
use sidecore_phylo::species::{Branch, score_tree, species_tree};
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(after_help = "\
The tree that shares the most quartets with the gene trees, which is consistent under the \
multispecies coalescent (ASTRAL's criterion). With up to 11 taxa it is the best of all trees; \
with more, of the trees whose branches occur in the gene trees, and of their neighbours. Labels \
of inner nodes are local posterior probabilities, lengths are coalescent units (Sayyari and \
Mirarab 2016). Gene trees may lack taxa; their roots and lengths are not looked at. Exit status: \
0 done, 2 a tree cannot be read or the tips do not go together.")]
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
        let (genes, found) = match &self.score {
            Some(path) => {
                let file = reader().trees(path)?;
                let tree = file.only()?;
                let genes = gene_trees(&self.genes, tree.tip_labels(), self.contract)?;
                let found = score_tree(&genes, tree, &pool)?;
                (genes, found)
            }
            None => {
                let genes = gene_trees(&self.genes, Vec::new(), self.contract)?;
                let found = species_tree(&genes, &pool)?;
                (genes, found)
            }
        };
        let share = match found.all {
            0 => 0.0,
            all => found.shared as f64 / all as f64,
        };
        let text = found.tree.to_string();
        let report = Json {
            trees: genes.trees(),
            taxa: genes.taxa(),
            quartets: found.all,
            quartets_shared: found.shared,
            quartets_share: share,
            exact: found.is_exact,
            branches: found.branches,
            tree: &text,
        };
        common::deliver_tree(self.output.as_deref(), self.json, &report, &text)
    }
}

#[derive(serde::Serialize)]
struct Json<'t> {
    trees: usize,
    taxa: usize,
    quartets: u128,
    quartets_shared: u128,
    quartets_share: f64,
    exact: bool,
    branches: Vec<Branch>,
    tree: &'t str,
}
