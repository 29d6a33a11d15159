//! `sidecore phylo evaluate` and `test`: given trees under a model.

use super::common::{self, reader};
use crate::{Outcome, output};
use anyhow::Result;
use sidecore_phylo::evaluation::Fit;
use sidecore_phylo::topology;
use sidecore_sys::width::ToUsize;
use sidecore_terminal::values::{named, number};
use sidecore_workflow::given::{Evaluated, Given, Wanted};
use sidecore_workflow::trees::Tested;
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
        self.run.form.report(&found, Evaluated::text)
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
    #[arg(long, value_name = "N", default_value = "50000")]
    #[arg(value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
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
        let options = topology::Options {
            replicates: self.replicates.to_usize(),
            seed: self.seed,
        };
        let data = self.data.read()?;
        let tested = Tested::new(reader(), data, &self.trees, &options, &pool)?;
        self.run.form.report(&tested, Tested::text)
    }
}
