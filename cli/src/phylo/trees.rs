//! `sidecore phylo consensus`, `compare` and `draw`: what takes trees alone.

use super::common::{self, reader};
use super::root::roots;
use crate::output::JsonArgs;
use crate::{Outcome, output};
use anyhow::{Context, Result, bail, ensure};
use sidecore_phylo::compare::{Distance, TreeSet, compare, compare_all};
use sidecore_phylo::consensus::{Rule, consensus_within};
use sidecore_plot::{TreeForm, TreeOptions, TreeTheme};
use sidecore_terminal::values::{named, number};
use sidecore_workflow::picture::Drawn;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub(crate) struct ConsensusArgs {
    /// File of trees, in Newick or NEXUS
    #[arg(value_name = "TREES")]
    trees: PathBuf,
    /// Branches that the consensus has
    #[arg(long, default_value = "majority", value_parser = named(Rule::NAMED))]
    rule: Rule,
    /// Branches that more than this share of the trees has, 0.5 to 1, in place of a rule
    #[arg(long, value_name = "SHARE", conflicts_with = "rule")]
    #[arg(value_parser = number(|it| (0.5..1.0).contains(&it), ABOVE))]
    above: Option<f64>,
    /// Trees at the file's start that are left out (burn-in)
    #[arg(long, value_name = "N", default_value = "0")]
    skip: usize,
    #[command(flatten)]
    tree_out: common::TreeArgs,
}

const ABOVE: &str = "a number of at least 0.5 and below 1";

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
        self.tree_out.deliver(&found, &text)
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
    #[command(flatten)]
    form: JsonArgs,
}

impl CompareArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let first = reader().trees(&self.first)?;
        let shown = || self.first.display().to_string();
        if let Some(second) = &self.second {
            let second = reader().trees(second)?;
            let distance = compare(first.only()?, second.only()?)?;
            return self.form.report(&distance, Distance::text);
        }
        if first.newicks.len() == 1 {
            bail!("{} has one tree: name another file, too", shown());
        }
        // Distances grow with the square of the trees: the bound is not that of the file's size.
        let memory = common::memory().of_work();
        let set = compare_all(&first.newicks, memory).with_context(shown)?;
        if let Some(path) = &self.output {
            output::file(path, set.table())?;
            // Standard output is for one result.
            if path == Path::new("-") {
                return Ok(Outcome::Done);
            }
        }
        self.form.report(&set, TreeSet::text)
    }
}

#[derive(clap::Args)]
pub(crate) struct DrawArgs {
    /// Tree, in Newick or NEXUS
    #[arg(value_name = "TREE")]
    tree: PathBuf,
    /// Picture to write: .svg, .html, or by rsvg-convert .png and .pdf
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Shape
    #[arg(long, default_value = "rectangular", value_parser = named(TreeForm::NAMED))]
    form: TreeForm,
    /// Colours
    #[arg(long, default_value = "auto", value_parser = named(TreeTheme::NAMED))]
    theme: TreeTheme,
    /// Which of the file's trees, from 1
    #[arg(long, value_name = "N", default_value = "1")]
    number: usize,
    /// Root to draw it with: midpoint, mad, or tips of an outgroup with `,` between
    #[arg(long, value_name = "midpoint|mad|NAMES")]
    root: Option<String>,
    /// Draw all tips to the same end, without lengths
    #[arg(long)]
    cladogram: bool,
    /// Keep the file's order of branches, not the smaller ones first
    #[arg(long)]
    keep_order: bool,
    #[command(flatten)]
    json: JsonArgs,
}

impl DrawArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        output::check_picture(&self.output)?;
        let drawn = Drawn {
            trees: roots(&self.tree),
            number: self.number,
            root: self.root.as_deref(),
        };
        let (svg, taxa) = drawn.svg(TreeOptions {
            form: self.form,
            theme: self.theme,
            cladogram: self.cladogram,
            keep_order: self.keep_order,
            ..TreeOptions::default()
        })?;
        output::picture(&self.output, &svg)?;
        if self.json.json {
            output::json(&Json {
                taxa,
                file: self.output,
                file_bytes: svg.len(),
            })?;
        }
        Ok(Outcome::Done)
    }
}

#[derive(serde::Serialize)]
struct Json {
    taxa: usize,
    file: PathBuf,
    file_bytes: usize,
}
