//! `sidecore phylo genes` and `species`: trees of loci, and the tree of many gene trees.

use super::common::{self, Progress, Running, TreeRunArgs, reader};
use crate::values::models;
use crate::{Outcome, output};
use anyhow::{Result, bail};
use sidecore_offload::Pool;
use sidecore_phylo::analysis::genes::Options;
use sidecore_phylo::analysis::supports::Support;
use sidecore_phylo::io::data::TreeFile;
use sidecore_phylo::newick::Newick;
use sidecore_phylo::species::{Weighting, score_tree, species_tree, weighted_species_tree};
use sidecore_terminal::values::{Offered, named};
use sidecore_workflow::report::GeneReport;
use sidecore_workflow::run;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder with an alignment for each locus, or one alignment; plain or packed
    #[arg(long, value_name = "FOLDER|FILE")]
    msa: PathBuf,
    /// Model of every locus, file of partitions (RAxML's lines or NEXUS sets), or auto for the one
    /// of the best BIC of each
    #[arg(long, value_name = "MODEL|FILE", default_value = "auto")]
    #[arg(value_parser = Offered(models), hide_possible_values = true)]
    model: String,
    /// Prefix of the names of all written files
    #[arg(long, value_name = "PREFIX")]
    prefix: PathBuf,
    /// Searches a locus, of which the best counts
    #[arg(long, value_name = "N", default_value = "1")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000))]
    starts: u32,
    /// Bootstraps a locus
    #[arg(long, value_name = "N", default_value = "0")]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=10_000))]
    bootstraps: u32,
    /// Kinds of support by a locus' alignment; with several, and bootstraps, labels have a `/`
    /// between the values, bootstraps last
    #[arg(long, value_parser = named(Support::NAMED), value_name = "KINDS", value_delimiter = ',')]
    support: Vec<Support>,
    /// Seed of all random numbers
    #[arg(long, value_name = "S", default_value = "1")]
    seed: u64,
    #[command(flatten)]
    running: Running,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let options = self.options()?;
        let loci = reader().gene_loci(&self.msa, &self.model)?;
        common::in_role(&loci.settings(&options).identity(), |role| {
            let stop = common::stop_flag()?;
            let launch = self.running.launch(&self.prefix, &stop);
            let ended = run::genes(&loci, &options, &launch, role, &mut Progress::new(false))?;
            common::ended(ended, |report| {
                output::report(self.json, &report, GeneReport::text)
            })
        })
    }

    fn options(&self) -> Result<Options> {
        let mut supports = Vec::new();
        for support in &self.support {
            match support {
                Support::Alignment(kind) => supports.push(*kind),
                Support::Replicates(_) => bail!(
                    "--support {}: of bootstraps, which --bootstraps N writes on the trees; give \
                     sh-alrt, abayes, lbp or ufboot",
                    support.name()
                ),
            }
        }
        Ok(Options {
            starts: self.starts,
            bootstraps: self.bootstraps,
            supports,
            seed: self.seed,
        })
    }
}

#[derive(clap::Args)]
pub(crate) struct SpeciesArgs {
    /// Gene trees, in Newick or NEXUS
    #[arg(value_name = "TREES")]
    genes: PathBuf,
    /// Remove branches of gene trees whose label is a number below this, such as 10 of bootstraps
    #[arg(long, value_name = "SUPPORT")]
    contract: Option<f64>,
    /// Weigh the gene trees' quartets
    #[arg(long, value_name = "WEIGHTS", value_parser = named(Weighting::NAMED))]
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

impl SpeciesArgs {
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
