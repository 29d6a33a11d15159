//! Options that a run's results depend on.

use super::super::common;
use crate::values::models;
use anyhow::Result;
use sidecore_phylo::analysis::plan::Bootstraps;
use sidecore_phylo::analysis::supports::Support;
use sidecore_phylo::io::setup::{Choices, RunSetup};
use sidecore_phylo::likelihood::Lengths;
use sidecore_terminal::values::Offered;
use std::path::PathBuf;

/// Options that a run's results depend on.
#[derive(clap::Args)]
pub(super) struct Options {
    /// Alignment (PHYLIP, FASTA, NEXUS, Clustal, Stockholm, MSF, VCF or MAPLE's), plain or packed;
    /// `-` is standard input, a folder has an alignment for each locus
    #[arg(long, value_name = "FILE")]
    msa: PathBuf,
    /// Model as RAxML-NG writes it, such as GTR+G, or file of partitions (RAxML's lines or NEXUS
    /// sets), or auto for the one of the best BIC
    #[arg(long, value_name = "MODEL|FILE")]
    #[arg(value_parser = Offered(models), hide_possible_values = true)]
    model: String,
    /// Branch lengths of partitions: all alike (linked), each with a factor of its own (scaled), or
    /// all their own (unlinked); scaled unless given, or a partition's model has +B{…}
    #[arg(long, value_parser = common::linkages(), value_name = "LINKAGE")]
    brlen: Option<Lengths>,
    #[command(flatten)]
    pmsf: common::Pmsf,
    /// Prefix of the names of all written files
    #[arg(long, value_name = "PREFIX")]
    pub(super) prefix: PathBuf,
    /// Searches; 10 unless given, or as many as --start-trees has
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    starts: Option<u32>,
    /// Starting trees: mixed (by parsimony and random in turn), parsimony, random, or a
    /// file of trees in Newick or NEXUS
    #[arg(long, value_name = "KIND|FILE", default_value = "mixed")]
    start_trees: String,
    /// Bootstraps: how many, or auto to stop when they have converged
    #[arg(long, value_name = "N|auto", value_parser = amount)]
    bootstraps: Option<Amount>,
    /// Make rapid bootstraps, in chains of lazy searches
    #[arg(long)]
    rapid: bool,
    /// Make jackknife replicates in place of bootstraps: each keeps this share of the sites, once
    #[arg(long, value_name = "SHARE", value_parser = kept, conflicts_with = "rapid")]
    jackknife: Option<f64>,
    /// The most bootstraps of auto
    #[arg(
        long,
        value_name = "N",
        default_value = "1000",
        value_parser = clap::value_parser!(u32).range(50..=100_000)
    )]
    bootstraps_max: u32,
    /// Searches, bootstraps until they have converged, and support
    #[arg(long)]
    all: bool,
    /// Kinds of support; fbp and tbe are of bootstraps, the others of the alignment itself
    #[arg(
        long,
        value_parser = common::supports(),
        value_name = "KINDS",
        value_delimiter = ',',
        default_value = "fbp"
    )]
    pub(super) support: Vec<Support>,
    /// With --support ufboot: each replicate refines its tree by NNI moves under its own draws of
    /// sites, which keeps supports from being too high where the model fits badly
    #[arg(long)]
    pub(super) bnni: bool,
    /// Write the best tree without its inner branches of no length, too, to
    /// PREFIX.bestTreeCollapsed: near-identical sequences have many such
    #[arg(long)]
    pub(super) polytomies: bool,
    /// Tree of any shape, perhaps of some taxa only, whose branches every tree must have
    #[arg(long, value_name = "FILE")]
    constraint: Option<PathBuf>,
    /// Seed of all random numbers
    #[arg(long, value_name = "S", default_value = "1")]
    seed: u64,
    #[command(flatten)]
    pub(super) tables: common::SiteTables,
}

#[derive(Debug, Clone, Copy)]
enum Amount {
    Exactly(u32),
    Auto,
}

fn kept(text: &str) -> Result<f64, String> {
    let share: Option<f64> = text.parse().ok();
    let share = share.filter(|share| *share > 0.0 && *share < 1.0);
    share.ok_or_else(|| "a number above 0 and below 1, such as 0.5".to_owned())
}

fn amount(text: &str) -> Result<Amount, String> {
    if text == "auto" {
        return Ok(Amount::Auto);
    }
    let count: Option<u32> = text.parse().ok();
    let count = count.filter(|count| *count <= 100_000);
    count
        .map(Amount::Exactly)
        .ok_or_else(|| "`auto`, or a number from 0 to 100000".to_owned())
}

impl Options {
    /// The alignment and the model, for the run's status.
    pub(super) fn subject(&self) -> [String; 2] {
        let path = std::path::absolute(&self.msa).unwrap_or_else(|_| self.msa.clone());
        [path.display().to_string(), self.model.clone()]
    }

    /// Reads the run's files.
    pub(super) fn read(&self) -> Result<RunSetup> {
        common::check_bnni(self.bnni, &self.support)?;
        let site_frequencies = self.pmsf.text(&self.msa, &self.model, None)?;
        let choices = Choices {
            msa: &self.msa,
            model: &self.model,
            site_frequencies: site_frequencies.as_deref(),
            lengths: self.brlen,
            starts: self.starts,
            start_trees: &self.start_trees,
            bootstraps: match self.bootstraps {
                Some(Amount::Exactly(count)) => Bootstraps::Exactly(count),
                Some(Amount::Auto) => Bootstraps::UntilConverged,
                None if self.all => Bootstraps::UntilConverged,
                None => Bootstraps::Exactly(0),
            },
            bootstraps_max: self.bootstraps_max,
            rapid: self.rapid,
            jackknife: self.jackknife,
            constraint: self.constraint.as_deref(),
            seed: self.seed,
        };
        let setup = RunSetup::read(common::reader(), &choices, common::choose_model)?;
        Ok(setup)
    }
}
