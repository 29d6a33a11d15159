//! `sidecore phylo test`.

use super::common;
use super::limits;
use crate::values::models;
use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_phylo::io::data::linkage;
use sidecore_phylo::topology::{self, SiteTable, Verdict, compare, fitted_sites};
use sidecore_terminal::progress::{self, Shape};
use sidecore_terminal::values::Offered;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Alignment (PHYLIP, FASTA, NEXUS, Clustal, Stockholm, MSF, VCF or MAPLE's), plain or packed;
    /// `-` is standard input, a folder has an alignment for each locus
    #[arg(long, value_name = "FILE")]
    msa: PathBuf,
    /// Trees to compare, in Newick or NEXUS, with the alignment's taxa
    #[arg(long, value_name = "FILE")]
    trees: PathBuf,
    /// Model, or file of partitions (RAxML's lines or NEXUS sets)
    #[arg(long, value_name = "MODEL|FILE")]
    #[arg(value_parser = Offered(models), hide_possible_values = true)]
    model: String,
    /// Replicates; the AU test makes as many of each of ten sizes
    #[arg(
        long,
        value_name = "N",
        default_value = "50000",
        value_parser = clap::value_parser!(u32).range(100..=1_000_000)
    )]
    replicates: u32,
    /// Seed of the replicates
    #[arg(long, value_name = "S", default_value = "1")]
    seed: u64,
    /// Number of engines that share the loops; one for each core unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    engines: Option<u16>,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let pool = common::pool(self.engines)?;
        let data = common::data(&self.msa, &self.model)?;
        let trees = common::reader().trees_of(&self.trees, data.alignment.names())?;
        let shown = || self.trees.display().to_string();
        if trees.len() < 2 {
            let trees = trees.len();
            return Err(topology::TopologyError::TooFew { trees }).with_context(shown);
        }
        let cells = (trees.len() as u64).saturating_mul(data.alignment.sites() as u64);
        limits::check_work("the trees' sites", cells.saturating_mul(SITE_BYTES))?;
        let bar = progress::bar(Shape::Count, 2 * trees.len() as u64).with_message("likelihoods");
        let parts = data.partitions.parts;
        let lengths = linkage(None, &parts).with_context(|| self.model.clone())?;
        let sites = fitted_sites(parts, lengths, trees, &pool, || bar.inc(1));
        bar.finish_and_clear();
        let table = SiteTable::new(&sites?)?;
        let options = topology::Options {
            replicates: self.replicates as usize,
            seed: self.seed,
        };
        let bar = progress::bar(Shape::Count, 0).with_message("replicates");
        let verdicts = compare(&table, &options, &pool, |done, all| {
            bar.set_length(all as u64);
            bar.set_position(done as u64);
        });
        bar.finish_and_clear();
        let verdicts = verdicts.with_context(shown)?;
        let report = Json {
            trees: verdicts,
            sites: table.sites(),
            replicates: self.replicates,
            seed: self.seed,
        };
        output::report(self.json, &report, |report| topology::text(&report.trees))
    }
}

#[derive(serde::Serialize)]
struct Json {
    trees: Vec<Verdict>,
    sites: usize,
    replicates: u32,
    seed: u64,
}

/// Of a site's log-likelihood, kept three times.
const SITE_BYTES: u64 = 24;
