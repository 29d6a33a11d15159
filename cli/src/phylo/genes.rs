//! `sidecore phylo genes` and `species`: trees of loci, and the tree of many gene trees.

use super::common::{self, Running, TreeRunArgs, reader};
use crate::Outcome;
use crate::output::JsonArgs;
use crate::values::models;
use anyhow::Result;
use sidecore_phylo::analysis::genes::Options;
use sidecore_phylo::analysis::supports::Support;
use sidecore_phylo::species::Weighting;
use sidecore_terminal::values::{Offered, named, range};
use sidecore_workflow::report::GeneReport;
use sidecore_workflow::run;
use sidecore_workflow::setup::alignment_kinds;
use sidecore_workflow::trees::Genes;
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
    #[command(flatten)]
    form: JsonArgs,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let options = self.options()?;
        let loci = reader().gene_loci(&self.msa, &self.model)?;
        common::in_role(&loci.settings(&options).identity(), |role| {
            let stop = common::stop_flag()?;
            let launch = self.running.launch(&self.prefix, &stop);
            let ended = run::genes(&loci, &options, &launch, role)?;
            common::ended(ended, |report| self.form.report(&report, GeneReport::text))
        })
    }

    fn options(&self) -> Result<Options> {
        Ok(Options {
            starts: self.starts,
            bootstraps: self.bootstraps,
            supports: alignment_kinds(&self.support)?,
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
        let genes = Genes {
            reader: reader(),
            trees: &self.genes,
            contract: self.contract,
            weights: self.weights.map(|by| (by, self.support_range)),
        };
        let found = genes.species(self.score.as_deref(), &pool)?;
        self.run.deliver(&found, &found.tree.to_string())
    }
}
