//! `sidecore phylo consensus` and `compare`: what takes trees alone.

use super::common::{self, reader};
use super::limits;
use crate::{Outcome, output};
use anyhow::{Context, Result, bail, ensure};
use sidecore_phylo::compare::{Distance, TreeSet, compare, compare_all};
use sidecore_phylo::consensus::{Rule, consensus_within};
use sidecore_terminal::values::{named, number};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub(crate) struct ConsensusArgs {
    /// File of trees, in Newick or NEXUS
    #[arg(value_name = "TREES")]
    trees: PathBuf,
    /// Branches that the consensus has
    #[arg(long, default_value = "majority", value_parser = named([
        ("strict", "Those of all trees", Rule::Strict),
        ("majority", "Those of more than half of the trees", Rule::Majority),
        ("extended", EXTENDED, Rule::Extended),
    ]))]
    rule: Rule,
    /// Branches that more than this share of the trees has, 0.5 to 1, in place of a rule
    #[arg(long, value_name = "SHARE", conflicts_with = "rule")]
    #[arg(value_parser = number(|it| (0.5..1.0).contains(&it), ABOVE))]
    above: Option<f64>,
    /// Trees at the file's start that are left out (burn-in)
    #[arg(long, value_name = "N", default_value = "0")]
    skip: usize,
    /// Write the tree to this file, not to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

const ABOVE: &str = "a number of at least 0.5 and below 1";
const EXTENDED: &str = "These, then the most frequent of the others as long as they are compatible";

impl ConsensusArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let shown = self.trees.display();
        let file = reader().trees(&self.trees)?;
        let all = &file.newicks;
        ensure!(
            self.skip < all.len(),
            "--skip {}: {shown} has {} trees, and one at least must be left",
            self.skip,
            all.len()
        );
        let rule = self.above.map_or(self.rule, Rule::Above);
        let trees = &all[self.skip..];
        let found =
            consensus_within(trees, rule, file.memory).with_context(|| shown.to_string())?;
        let text = found.tree.to_string();
        common::deliver_tree(self.output.as_deref(), self.json, &found, &text)
    }
}

#[derive(clap::Args)]
pub(crate) struct CompareArgs {
    /// One tree, in Newick or NEXUS; alone, a file of several, which are compared with one another
    #[arg(value_name = "TREE")]
    first: PathBuf,
    /// The other
    #[arg(value_name = "TREE")]
    second: Option<PathBuf>,
    /// Write a line for each pair of a file of trees: their numbers, rf and rf_relative, with tabs
    #[arg(short, long, value_name = "FILE", conflicts_with = "second")]
    output: Option<PathBuf>,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl CompareArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let first = reader().trees(&self.first)?;
        let shown = || self.first.display().to_string();
        if let Some(second) = &self.second {
            let second = reader().trees(second)?;
            let distance = compare(first.only()?, second.only()?)?;
            return output::report(self.json, &distance, Distance::text);
        }
        if first.newicks.len() == 1 {
            bail!("{} has one tree: name another file, too", shown());
        }
        // Distances grow with the square of the trees: the bound is not that of the file's size.
        let memory = limits::memory().of_work();
        let set = compare_all(&first.newicks, memory).with_context(shown)?;
        if let Some(path) = &self.output {
            output::file(path, &set.table())?;
            // Standard output is for one result.
            if path == Path::new("-") {
                return Ok(Outcome::Done);
            }
        }
        output::report(self.json, &set, TreeSet::text)
    }
}
