//! `sidecore phylo species`.

use super::common::{TreeRunArgs, reader};
use crate::Outcome;
use anyhow::Result;
use sidecore_offload::Pool;
use sidecore_phylo::io::data::TreeFile;
use sidecore_phylo::newick::Newick;
use sidecore_phylo::species::{Weighting, score_tree, species_tree, weighted_species_tree};
use sidecore_terminal::values::named;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Gene trees, in Newick or NEXUS
    #[arg(value_name = "TREES")]
    genes: PathBuf,
    /// Remove branches of gene trees whose label is a number below this, such as 10 of bootstraps
    #[arg(long, value_name = "SUPPORT")]
    contract: Option<f64>,
    /// Weigh the gene trees' quartets
    #[arg(long, value_name = "WEIGHTS", value_parser = named([
        ("support", "More, the surer the branches between the two pairs are", Weighting::Support),
        ("lengths", "Less, the longer the branches around these are", Weighting::Lengths),
        ("both", "The product", Weighting::Both),
    ]))]
    weights: Option<Weighting>,
    /// Labels of branches without support and with full support, such as 0.333,1 of aBayes; 0,1
    /// unless given, or 0,100 where a label is above 1
    #[arg(long, value_name = "MIN,MAX", value_parser = range, requires = "weights")]
    support_range: Option<[f64; 2]>,
    /// Score this tree, in place of searching one
    #[arg(long, value_name = "FILE")]
    score: Option<PathBuf>,
    #[command(flatten)]
    run: TreeRunArgs,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let pool = self.run.pool()?;
        if let Some(by) = self.weights {
            return self.weighted(by, &pool);
        }
        let genes = |labels| reader().gene_trees(&self.genes, labels, self.contract);
        let found = match &self.score {
            Some(path) => {
                let file = reader().trees(path)?;
                let tree = file.only()?;
                score_tree(&genes(tree.tip_labels())?, tree, &pool)?
            }
            None => species_tree(&genes(Vec::new())?, &pool)?,
        };
        self.run.deliver(&found, &found.tree.to_string())
    }

    /// The same with weights of the quartets.
    fn weighted(&self, by: Weighting, pool: &Pool) -> Result<Outcome> {
        let scored = match &self.score {
            Some(path) => Some(reader().trees(path)?),
            None => None,
        };
        let tree = scored.as_ref().map(TreeFile::only).transpose()?;
        let labels = tree.map(Newick::tip_labels).unwrap_or_default();
        let weights = (by, self.support_range);
        let read = reader().weighted_gene_trees(&self.genes, labels, self.contract, weights);
        let (genes, weights) = read?;
        let found = weighted_species_tree(&genes, &weights, tree, pool)?;
        self.run.deliver(&found, &found.tree.to_string())
    }
}

/// The ends of a range.
fn range(text: &str) -> Result<[f64; 2], String> {
    let ends = text.split_once(',').and_then(|(least, most)| {
        let ends: [f64; 2] = [least.trim().parse().ok()?, most.trim().parse().ok()?];
        ends.iter().all(|end| end.is_finite()).then_some(ends)
    });
    ends.ok_or_else(|| "not two numbers with a comma between, such as 0,100".to_owned())
}
