//! `sidecore phylo support` and `concordance`: what is known of a tree's branches.

use super::common::{self, reader};
use crate::values::models;
use crate::{Outcome, output};
use anyhow::{Context, Result, bail};
use sidecore_phylo::analysis::supports::{AlignmentKind, AlignmentSupport, Support, SupportReport};
use sidecore_phylo::concordance::Concordance;
use sidecore_phylo::io::data::linkage;
use sidecore_phylo::newick::Newick;
use sidecore_phylo::support::{Kind, Reference};
use sidecore_sys::width::ToUsize;
use sidecore_terminal::values::{Offered, named};
use sidecore_workflow::setup::check_bnni;
use std::path::{Path, PathBuf};

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
    #[arg(
        long,
        value_name = "N",
        default_value = "1000",
        value_parser = clap::value_parser!(u32).range(100..=1_000_000)
    )]
    replicates: u32,
    /// With ufboot: each replicate refines its tree by NNI moves under its own draws of sites
    #[arg(long)]
    bnni: bool,
    /// Seed of these replicates
    #[arg(long, value_name = "S", default_value = "1")]
    seed: u64,
    /// Write the tree to this file, not to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        check_bnni(self.bnni, &[self.support])?;
        let file = reader().trees(&self.tree)?;
        let tree = file.only()?;
        let report = match (self.support, &self.bootstraps) {
            (Support::Replicates(kind), Some(path)) => self.of_replicates(tree, kind, path)?,
            (Support::Alignment(kind), None) => self.of_alignment(tree, kind)?,
            (Support::Replicates(_), None) => {
                bail!("--support fbp and tbe need --bootstraps, not --msa")
            }
            (Support::Alignment(_), Some(_)) => {
                bail!(
                    "--support {} needs --msa and --model, not --bootstraps",
                    self.support.name()
                )
            }
        };
        common::deliver_tree(self.output.as_deref(), self.json, &report, &report.tree)
    }

    fn of_replicates(&self, tree: &Newick, kind: Kind, path: &Path) -> Result<SupportReport> {
        let replicates = reader().trees(path)?.newicks;
        let reference = Reference::new(tree).with_context(|| self.tree.display().to_string())?;
        let pool = common::pool(None)?;
        let tally = reference.tally_all(&replicates, kind, &pool);
        let tally = tally.with_context(|| path.display().to_string())?;
        let values = reference.values(&tally);
        let values = values.into_iter().map(|(_, value)| value).collect();
        let (count, labelled) = (replicates.len(), reference.labelled(&tally));
        Ok(SupportReport::new(self.support, count, values, &labelled))
    }

    fn of_alignment(&self, tree: &Newick, kind: AlignmentKind) -> Result<SupportReport> {
        let (Some(msa), Some(model)) = (&self.msa, &self.model) else {
            bail!("--support {} needs --msa and --model", self.support.name());
        };
        let data = common::data(msa, model)?;
        let pool = common::pool(None)?;
        let (names, parts) = (data.alignment.names(), data.partitions.parts);
        let options = AlignmentSupport {
            kind,
            replicates: self.replicates,
            seed: self.seed,
            lengths: linkage(None, &parts).with_context(|| model.clone())?,
            bnni: self.bnni,
        };
        let labelled = options
            .on(tree, names, parts, &pool, common::support_bar(kind))
            .with_context(|| self.tree.display().to_string())?;
        let values = kind.values(&labelled);
        let count = self.replicates.to_usize();
        Ok(SupportReport::new(self.support, count, values, &labelled))
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
