//! `sidecore phylo consensus`.

use super::common::{self, reader};
use crate::Outcome;
use anyhow::{Context, Result, ensure};
use sidecore_phylo::consensus::{Rule, consensus_within};
use sidecore_terminal::values::named;
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
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
    #[arg(long, value_name = "SHARE", value_parser = share, conflicts_with = "rule")]
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

const EXTENDED: &str = "These, then the most frequent of the others as long as they are compatible";

fn share(text: &str) -> Result<f64, String> {
    let share: Option<f64> = text.parse().ok();
    share
        .filter(|share| (0.5..1.0).contains(share))
        .ok_or_else(|| "a number of at least 0.5 and below 1".to_owned())
}

impl Args {
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
