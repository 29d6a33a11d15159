//! `sidecore phylo date`.

use super::common::{TreeRunArgs, reader};
use super::limits;
use super::root::outgroup;
use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_phylo::dating::{
    ClockOptions, Dated, Dates, DatingError, date, dating_bytes, without_outgroup,
};
use sidecore_phylo::newick::Newick;
use sidecore_sys::width::{ToU64, ToUsize};
use sidecore_terminal::values::number;
use std::path::PathBuf;

#[derive(clap::Args)]
#[command(
    group = clap::ArgGroup::new("known").required(true).args(["dates", "dates_in_names"]),
    group = clap::ArgGroup::new("of").required(true).args(["sites", "msa"])
)]
pub(crate) struct Args {
    /// Rooted tree with lengths, in Newick or NEXUS
    #[arg(value_name = "TREE")]
    tree: PathBuf,
    /// Dates of tips and ancestors, a line each
    #[arg(long, value_name = "FILE")]
    dates: Option<PathBuf>,
    /// Take the dates from the ends of the tips' names, behind `|`, `@`, `_` or `/`
    #[arg(long)]
    dates_in_names: bool,
    /// Number of the alignment's sites
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    sites: Option<u32>,
    /// Alignment whose sites are counted
    #[arg(long, value_name = "FILE")]
    msa: Option<PathBuf>,
    /// Root the tree by these tips, and remove them: names with `,` between, or @FILE with a name
    /// a line
    #[arg(long, value_name = "NAMES|@FILE")]
    outgroup: Option<String>,
    /// Rate that is known, in place of the best one
    #[arg(long, value_name = "RATE")]
    #[arg(value_parser = number(|it| (1e-15..=1e9).contains(&it), "a number from 1e-15 to 1e9"))]
    rate: Option<f64>,
    /// Replicates of the lengths, for intervals
    #[arg(long, value_name = "N", default_value = "0")]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=100_000))]
    replicates: u32,
    /// Standard deviation of the branches' rates in the replicates, as a share of the rate
    #[arg(long, value_name = "SHARE", default_value = "0.2")]
    #[arg(value_parser = number(|it| (0.0..=10.0).contains(&it), "a number from 0 to 10"))]
    spread: f64,
    /// Seed of the replicates
    #[arg(long, value_name = "S", default_value = "1")]
    seed: u64,
    /// Write a table of all dates to this file, a line a node, between tabs
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
    #[command(flatten)]
    run: TreeRunArgs,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let pool = self.run.pool()?;
        let file = reader().trees(&self.tree)?;
        let mut tree = file.only()?.clone();
        let shown = || self.tree.display().to_string();
        if let Some(names) = &self.outgroup {
            tree = without_outgroup(&tree, outgroup(names)?).with_context(shown)?;
        }
        let known = self.known(&tree)?;
        let sites = match (self.sites, &self.msa) {
            (Some(sites), _) => sites.to_usize(),
            (None, Some(msa)) => reader().alignment(msa)?.sites(),
            // One of both is required.
            (None, None) => 1,
        };
        let need = dating_bytes(&tree, pool.engines().to_u64(), self.replicates);
        limits::check_work("dating the tree", need)?;
        let options = ClockOptions {
            rate: self.rate,
            replicates: self.replicates,
            spread: self.spread,
            seed: self.seed,
            ..ClockOptions::new(sites)
        };
        let found: Dated = date(&tree, &known, &options, &pool).with_context(shown)?;
        output::wanted(&self.table, || found.table())?;
        if found.dates_unused > 0 {
            let count = found.dates_unused;
            tracing::warn!("dates of names that the tree does not have: {count}");
        }
        self.run.deliver(&found, &found.tree.to_string())
    }

    /// The dates that are given.
    fn known(&self, tree: &Newick) -> Result<Dates> {
        let found: Result<Dates, DatingError> = match &self.dates {
            Some(path) => Dates::parse(&reader().text(path)?),
            None => Dates::of_names(tree),
        };
        let source = self.dates.as_ref().unwrap_or(&self.tree);
        found.with_context(|| source.display().to_string())
    }
}
