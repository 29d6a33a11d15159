//! `sidecore phylo evaluate` and `test`: given trees under a model.

use super::common::{self, reader};
use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_phylo::evaluation::Fit;
use sidecore_phylo::io::data::linkage;
use sidecore_phylo::topology::{self, SiteTable, Verdict, compare, fitted_sites};
use sidecore_terminal::progress::{advance, counted};
use sidecore_terminal::values::{named, number};
use sidecore_workflow::given::{Evaluated, Given, Wanted};
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    data: common::DataArgs,
    /// Tree or trees, in Newick or NEXUS, with the alignment's taxa; each is evaluated by itself
    #[arg(long, value_name = "FILE")]
    tree: PathBuf,
    #[command(flatten)]
    profiles: common::ModelArgs,
    /// Parameters to fit: none, branch lengths, or these and the model's free parameters
    #[arg(long, value_parser = named(Fit::NAMED), default_value = "none")]
    opt: Fit,
    /// Stop fitting when a round gains less than this in log-likelihood
    #[arg(long, value_name = "GAIN", default_value = "0.001")]
    #[arg(value_parser = number(|it| (1e-9..=1e3).contains(&it), GAIN))]
    epsilon: f64,
    /// Write each site's log-likelihood to this file: line N is column N of the alignment; 0 where
    /// no taxon has a character; of several trees, one after the other, with tabs between
    #[arg(long, value_name = "FILE")]
    site_lnl: Option<PathBuf>,
    #[command(flatten)]
    tables: common::SiteTables,
    /// Write the trees with the lengths used to this file, a line each; of unlinked lengths a line
    /// for each partition
    #[arg(long, value_name = "FILE")]
    tree_out: Option<PathBuf>,
    /// Count the tree's terrace: the trees that no partition tells from it, since each lacks some
    /// of the taxa; they tie where partitions have lengths of their own (--brlen unlinked)
    #[arg(long)]
    terrace: bool,
    #[command(flatten)]
    run: common::RunArgs,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        // Before the files are read, which may take minutes: --engines may be refused.
        let pool = self.run.pool()?;
        let given = Given {
            reader: reader(),
            pool: &pool,
            msa: &self.data.msa,
            model: &self.data.model,
            trees: &self.tree,
            has_profiles: self.profiles.has_profiles(),
            fit: self.opt,
            epsilon: self.epsilon,
            lengths: self.profiles.brlen,
            wanted: Wanted {
                sites: self.site_lnl.is_some(),
                classes: self.tables.site_posteriors.is_some(),
                rates: self.tables.site_rates.is_some(),
                terrace: self.terrace,
            },
        };
        let profiles = || self.profiles.profiles(&self.data, self.run.engines);
        let found = given.evaluate(common::choose_model, profiles)?;
        output::wanted(&self.site_lnl, || found.site_table())?;
        output::wanted(&self.tree_out, || found.trees())?;
        self.tables
            .write(|| found.class_table(), || found.rate_table())?;
        output::report(self.run.json, &found, Evaluated::text)
    }
}

const GAIN: &str = "a number from 0.000000001 to 1000";

#[derive(clap::Args)]
pub(crate) struct TestArgs {
    #[command(flatten)]
    data: common::DataArgs,
    /// Trees to compare, in Newick or NEXUS, with the alignment's taxa
    #[arg(long, value_name = "FILE")]
    trees: PathBuf,
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
    #[command(flatten)]
    run: common::RunArgs,
}

impl TestArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let pool = self.run.pool()?;
        let data = self.data.read()?;
        let trees = reader().trees_of(&self.trees, data.alignment.names(), false)?;
        let shown = || self.trees.display().to_string();
        if trees.len() < 2 {
            let trees = trees.len();
            return Err(topology::TopologyError::TooFew { trees }).with_context(shown);
        }
        let cells = (trees.len() as u64).saturating_mul(data.alignment.sites() as u64);
        common::memory().check_work("the trees' sites", cells.saturating_mul(SITE_BYTES))?;
        let parts = data.partitions.parts;
        let lengths = linkage(None, &parts).with_context(|| self.data.model.clone())?;
        let sites = counted(2 * trees.len() as u64, "likelihoods", |bar| {
            fitted_sites(parts, lengths, trees, &pool, || bar.inc(1))
        })?;
        let table = SiteTable::new(&sites)?;
        let options = topology::Options {
            replicates: self.replicates as usize,
            seed: self.seed,
        };
        let verdicts = counted(0, "replicates", |bar| {
            compare(&table, &options, &pool, |done, all| advance(bar, done, all))
        });
        let report = Json {
            trees: verdicts.with_context(shown)?,
            sites: table.sites(),
            replicates: self.replicates,
            seed: self.seed,
        };
        output::report(self.run.json, &report, |report| {
            topology::text(&report.trees)
        })
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
