//! `sidecore phylo root`.

use super::common::{self, reader};
use super::limits;
use crate::{Outcome, output};
use anyhow::{Context, Result, ensure};
use sidecore_phylo::io::data::rooted_model;
use sidecore_phylo::io::input;
use sidecore_phylo::newick::Newick;
use sidecore_phylo::rooted::{RootedModel, all_roots_bytes};
use sidecore_phylo::rooting::{
    Method, ModelRoots, Rooted, Rootstrap, by_model, check_steps, root, root_bytes, rootstrap,
};
use sidecore_phylo::topology;
use sidecore_terminal::progress::{advance, counted};
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
    #[arg(
        long,
        value_name = "N",
        default_value = "10000",
        requires = "model",
        value_parser = clap::value_parser!(u32).range(100..=1_000_000)
    )]
    replicates: u32,
    /// Seed of these replicates
    #[arg(long, value_name = "S", default_value = "1", requires = "model")]
    seed: u64,
    /// Write the trees to this file, not to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        if let (Some(model), Some(msa)) = (&self.model, &self.msa) {
            return self.by_model(model, msa);
        }
        if let Some(path) = &self.rootstrap {
            return self.count_roots(path);
        }
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
        output::wanted(&self.output, || format!("{}\n", lines.join("\n")))?;
        if self.json {
            output::json(&Json { trees })?;
        } else if self.output.is_none() {
            output::lines(&lines)?;
        }
        Ok(Outcome::Done)
    }

    /// Each branch as the root under a nonreversible model.
    fn by_model(&self, model: &str, msa: &Path) -> Result<Outcome> {
        // Models of populations are reversible: they tell no root from another.
        let name = rooted_model(model)?.filter(|name| !name.is_of_populations());
        let name = name.with_context(|| {
            format!(
                "--model {model}: the place of a root needs a nonreversible model, UNREST or \
                 NONREV{{FILE}}"
            )
        })?;
        let (alignment, patterns, _) = common::patterns(msa, name.alphabet())?;
        let file = reader().trees(&self.trees)?;
        let tree = file.only()?;
        let start = RootedModel::new(name.clone(), &patterns);
        let nodes = tree.nodes().len() + 1;
        let need = all_roots_bytes(nodes, patterns.len(), alignment.sites(), &start);
        limits::check_work("the likelihoods of the roots", need)?;
        let options = topology::Options {
            replicates: self.replicates as usize,
            seed: self.seed,
        };
        let (pool, names) = (common::pool(None)?, alignment.names());
        let found = counted(0, "roots", |bar| {
            let progress = |done, all| advance(bar, done, all);
            by_model(tree, names, &patterns, name, &options, &pool, progress)
        });
        let found = found.with_context(|| self.trees.display().to_string())?;
        if let Some(best) = found.best() {
            output::wanted(&self.output, || format!("{best}\n"))?;
        }
        output::report(self.json, &found, ModelRoots::text)
    }

    /// Roots of replicates on the branches of a tree.
    fn count_roots(&self, path: &Path) -> Result<Outcome> {
        let file = reader().trees(&self.trees)?;
        let replicates = reader().trees(path)?;
        let found = rootstrap(file.only()?, &replicates.newicks);
        let found = found.with_context(|| path.display().to_string())?;
        output::wanted(&self.output, || format!("{}\n", found.tree))?;
        output::report(self.json, &found, Rootstrap::text)
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
