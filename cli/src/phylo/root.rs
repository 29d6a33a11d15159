//! `sidecore phylo root`.

use super::common::reader;
use super::limits;
use crate::{Outcome, output};
use anyhow::{Context, Result, ensure};
use sidecore_phylo::io::input;
use sidecore_phylo::newick::Newick;
use sidecore_phylo::rooting::{Method, Rooted, check_steps, root, root_bytes};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
#[command(
    group = clap::ArgGroup::new("method").required(true).args(["outgroup", "midpoint", "mad"])
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
    /// Write the trees to this file, not to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let method = match (&self.outgroup, self.midpoint) {
            (Some(names), _) => Method::Outgroup(outgroup(names)?),
            (None, true) => Method::Midpoint,
            (None, false) => Method::Mad,
        };
        let mut trees = Vec::new();
        let file = reader().trees(&self.trees)?;
        input::check("rooting the trees", root_bytes(&file.newicks), file.memory)?;
        if method == Method::Mad {
            check_time(&self.trees, &file.newicks)?;
        }
        for (index, tree) in file.newicks.iter().enumerate() {
            let rooted = root(tree, &method);
            let shown = || format!("{}, tree {}", self.trees.display(), index + 1);
            trees.push(rooted.with_context(shown)?);
        }
        let lines: Vec<String> = trees.iter().map(|it| it.tree.to_string()).collect();
        if let Some(path) = &self.output {
            output::file(path, &format!("{}\n", lines.join("\n")))?;
        }
        if self.json {
            output::json(&Json { trees })?;
        } else if self.output.is_none() {
            output::lines(&lines)?;
        }
        Ok(Outcome::Done)
    }
}

/// Refuses trees that take long, unless the user has said how long it may take.
pub(super) fn check_time(path: &Path, trees: &[Newick]) -> Result<()> {
    match limits::is_timed() {
        true => Ok(()),
        false => check_steps(trees).with_context(|| path.display().to_string()),
    }
}

/// The names of an outgroup.
pub(super) fn outgroup(names: &str) -> Result<Vec<String>> {
    let text = match names.strip_prefix('@') {
        Some(path) => reader().text(path.as_ref())?,
        None => names.replace(',', "\n"),
    };
    let names = text.lines().map(str::trim).filter(|name| !name.is_empty());
    let names: Vec<String> = names.map(str::to_owned).collect();
    ensure!(!names.is_empty(), "--outgroup names no tip");
    Ok(names)
}

#[derive(serde::Serialize)]
struct Json {
    trees: Vec<Rooted>,
}
