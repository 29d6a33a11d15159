//! `sidecore phylo models`.

use super::common;
use crate::{Outcome, output};
use anyhow::Result;
use sidecore_phylo::msa::GeneticCode;
use sidecore_phylo::selection::{self, Criterion};
use sidecore_sys::width::ToUsize;
use sidecore_terminal::values::{named, number};
use sidecore_workflow::choice::{Choice, Kind, Scheme};
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Alignment (PHYLIP, FASTA, NEXUS, Clustal, Stockholm, MSF, VCF or MAPLE's), plain or packed;
    /// `-` is standard input, a folder has an alignment for each locus
    #[arg(long, value_name = "FILE")]
    msa: PathBuf,
    /// Kind of data, of an alignment without partitions
    #[arg(long, default_value = "auto", value_parser = named(Kind::NAMED))]
    data: Kind,
    /// Genetic code of codons, as NCBI numbers them
    #[arg(long, value_name = "N", default_value = "1")]
    code: GeneticCode,
    /// File of partitions (RAxML's lines or NEXUS sets): a model for each; of their models only
    /// the kind of data is looked at
    #[arg(long, value_name = "FILE")]
    partitions: Option<PathBuf>,
    /// Merge partitions as long as that scores better; greedy unless a scheme is named
    #[arg(long, value_name = "SCHEME", value_parser = named(Scheme::NAMED))]
    #[arg(num_args = 0..=1, default_value = "none", default_missing_value = "greedy")]
    merge: Scheme,
    /// Share of the pairs that rcluster and rclusterf try in a round, those most alike in rate and
    /// in the spread of rates across sites; 10 unless given
    #[arg(long, value_name = "PERCENT")]
    #[arg(value_parser = number(|it| it > 0.0 && it <= 100.0, PERCENT))]
    rcluster: Option<f64>,
    /// The most pairs that they try in a round; unless given 1,000, or 10 for each partition
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rcluster_max: Option<u32>,
    /// Information criterion
    #[arg(long, default_value = "bic", value_parser = named(Criterion::NAMED))]
    criterion: Criterion,
    /// The most categories of free rates (+R); 0 leaves these out
    #[arg(long, value_name = "N", default_value = "8")]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=10))]
    free_rates_max: u8,
    /// The most classes of a mixture, of proteins: profiles (C10 to C60), stock mixtures and lists
    /// of matrices are tried with the best matrix and rates; 0 leaves mixtures out
    #[arg(long, value_name = "N", default_value = "0")]
    #[arg(value_parser = clap::value_parser!(u8).range(0..=64))]
    classes_max: u8,
    /// Tree to fit on, in Newick or NEXUS
    #[arg(long, value_name = "FILE")]
    tree: Option<PathBuf>,
    /// Seed of the parsimony tree
    #[arg(long, value_name = "S", default_value = "1")]
    seed: u64,
    /// Lines of the table
    #[arg(long, value_name = "N", default_value = "10")]
    top: usize,
    /// Write the best model to this file, as a file of partitions that --model takes
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    run: common::RunArgs,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let pool = self.run.pool()?;
        let choice = Choice {
            msa: &self.msa,
            kind: self.data,
            code: self.code,
            partitions: self.partitions.as_deref(),
            scheme: self.merge,
            percent: self.rcluster,
            pairs_max: self.rcluster_max.map(ToUsize::to_usize),
            options: selection::Options {
                criterion: self.criterion,
                free_rates_max: self.free_rates_max.into(),
                classes_max: self.classes_max.into(),
            },
            tree: self.tree.as_deref(),
            seed: self.seed,
        };
        let chosen = choice.make(common::reader(), &pool)?;
        output::wanted(&self.output, || chosen.lines.clone())?;
        self.run
            .form
            .report(&chosen, |chosen| chosen.text(self.top))
    }
}

const PERCENT: &str = "not a percentage above 0, up to 100";
