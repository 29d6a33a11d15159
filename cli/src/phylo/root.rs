//! `sidecore phylo root` and `date`: roots of trees, and dates of rooted ones.

use super::common::{self, TreeRunArgs, reader};
use crate::output::JsonArgs;
use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_phylo::dating::{ClockOptions, Dates, without_outgroup};
use sidecore_phylo::rooting::{Method, ModelRoots, Rootstrap};
use sidecore_phylo::topology;
use sidecore_sys::width::ToUsize;
use sidecore_terminal::values::number;
use sidecore_workflow::trees::{Roots, outgroup};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
#[command(
    group = clap::ArgGroup::new("method")
        .required(true)
        .args(["outgroup", "midpoint", "mad", "model", "rootstrap"])
)]
pub(crate) struct Args {
    /// File of trees, in Newick or NEXUS; each gets a root
    #[arg(value_name = "TREES")]
    trees: PathBuf,
    /// Tips that all others stand apart from: names with `,` between, or @FILE with a name a line
    #[arg(long, value_name = "NAMES|@FILE")]
    outgroup: Option<String>,
    /// In the middle of the longest path between two tips
    #[arg(long)]
    midpoint: bool,
    /// By minimal ancestor deviation (Tria, Landan and Dagan 2017)
    #[arg(long)]
    mad: bool,
    /// At the branch that a nonreversible model finds best: UNREST or NONREV{FILE}, perhaps with
    /// +I, +G or +R
    #[arg(long, value_name = "MODEL", requires = "msa")]
    model: Option<String>,
    /// Alignment for --model
    #[arg(long, value_name = "FILE", requires = "model")]
    msa: Option<PathBuf>,
    /// Rooted replicates, in Newick or NEXUS: the share of them whose root is on each branch
    #[arg(long, value_name = "FILE")]
    rootstrap: Option<PathBuf>,
    /// Replicates of the tests of --model
    #[arg(long, value_name = "N", default_value = "10000", requires = "model")]
    #[arg(value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    replicates: u32,
    /// Seed of these replicates
    #[arg(long, value_name = "S", default_value = "1", requires = "model")]
    seed: u64,
    /// Write the trees to this file, not to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    form: JsonArgs,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let roots = roots(&self.trees);
        if let (Some(model), Some(msa)) = (&self.model, &self.msa) {
            let options = topology::Options {
                replicates: self.replicates.to_usize(),
                seed: self.seed,
            };
            let found = roots.by_model(model, msa, &options, &common::pool(None)?)?;
            if let Some(best) = found.best() {
                output::wanted(&self.output, || format!("{best}\n"))?;
            }
            return self.form.report(&found, ModelRoots::text);
        }
        if let Some(path) = &self.rootstrap {
            let found = roots.rootstrap(path)?;
            output::wanted(&self.output, || format!("{}\n", found.tree))?;
            return self.form.report(&found, Rootstrap::text);
        }
        let method = match (&self.outgroup, self.midpoint) {
            (Some(names), _) => Method::Outgroup(outgroup(reader(), names)?),
            (None, true) => Method::Midpoint,
            (None, false) => Method::Mad,
        };
        let found = roots.by(&method)?;
        output::wanted(&self.output, || format!("{}\n", found.lines().join("\n")))?;
        if self.form.json {
            output::json(&found)?;
        } else if self.output.is_none() {
            output::lines(&found.lines())?;
        }
        Ok(Outcome::Done)
    }
}

/// Trees that get roots, within the limits of the command.
pub(super) fn roots(trees: &Path) -> Roots<'_> {
    Roots {
        reader: reader(),
        trees,
        is_timed: common::is_timed(),
    }
}

#[derive(clap::Args)]
#[command(
    group = clap::ArgGroup::new("known").required(true).args(["dates", "dates_in_names"]),
    group = clap::ArgGroup::new("of").required(true).args(["sites", "msa"])
)]
pub(crate) struct DateArgs {
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

impl DateArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let pool = self.run.pool()?;
        let file = reader().trees(&self.tree)?;
        let mut tree = file.only()?.clone();
        let shown = || self.tree.display().to_string();
        if let Some(names) = &self.outgroup {
            tree = without_outgroup(&tree, outgroup(reader(), names)?).with_context(shown)?;
        }
        let known = match &self.dates {
            Some(path) => reader().dates(path)?,
            None => Dates::of_names(&tree).with_context(shown)?,
        };
        let sites = match (self.sites, &self.msa) {
            (Some(sites), _) => sites.to_usize(),
            (None, Some(msa)) => reader().alignment(msa)?.sites(),
            // One of both is required.
            (None, None) => 1,
        };
        let options = ClockOptions {
            rate: self.rate,
            replicates: self.replicates,
            spread: self.spread,
            seed: self.seed,
            ..ClockOptions::new(sites)
        };
        let found = reader().dated((&tree, &self.tree), &known, &options, &pool)?;
        output::wanted(&self.table, || found.table())?;
        self.run.deliver(&found, &found.tree.to_string())
    }
}
