//! `sidecore phylo support`.

use super::common;
use crate::Outcome;
use crate::values::models;
use anyhow::{Context, Result, bail};
use sidecore_offload::{Pool, PoolConfig};
use sidecore_phylo::analysis::supports::{AlignmentKind, AlignmentSupport, Support, SupportReport};
use sidecore_phylo::io::data::linkage;
use sidecore_phylo::newick::Newick;
use sidecore_phylo::support::{Kind, Reference};
use sidecore_terminal::values::Offered;
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
    #[arg(long, value_parser = common::supports(), default_value = "fbp")]
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
        common::check_bnni(self.bnni, &[self.support])?;
        let file = common::reader().trees(&self.tree)?;
        let tree = file.only()?;
        let (labelled, replicates, values) = match (self.support, &self.bootstraps) {
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
        let report = SupportReport::new(self.support, replicates, values, &labelled);
        common::deliver_tree(self.output.as_deref(), self.json, &report, &report.tree)
    }

    fn of_replicates(
        &self,
        tree: &Newick,
        kind: Kind,
        path: &Path,
    ) -> Result<(Newick, usize, Vec<f64>)> {
        let replicates = common::reader().trees(path)?.newicks;
        let reference = Reference::new(tree).with_context(|| self.tree.display().to_string())?;
        let pool = Pool::start(PoolConfig::default())?;
        let tally = reference.tally_all(&replicates, kind, &pool);
        let tally = tally.with_context(|| path.display().to_string())?;
        let values = reference.values(&tally);
        let values = values.into_iter().map(|(_, value)| value).collect();
        Ok((reference.labelled(&tally), replicates.len(), values))
    }

    fn of_alignment(
        &self,
        tree: &Newick,
        kind: AlignmentKind,
    ) -> Result<(Newick, usize, Vec<f64>)> {
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
        let labelled = common::alignment_support(options, tree, names, parts, &pool)
            .with_context(|| self.tree.display().to_string())?;
        let values = kind.values(&labelled);
        Ok((labelled, self.replicates as usize, values))
    }
}
