//! `sidecore phylo evaluate`.

use super::common::{self, Data};
use super::limits;
use crate::{Outcome, output};
use anyhow::Result;
use sidecore_offload::Pool;
use sidecore_phylo::likelihood::{LENGTH_MIN, Lengths, Likelihood, Options, PartOptions};
use sidecore_phylo::runner::{Runner, Serial, pool_config};
use sidecore_phylo::tree::Tree;
use sidecore_sched::Equi;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Instant;

/// Arguments of `phylo evaluate`.
#[derive(clap::Args)]
#[command(after_help = "\
A model is written as RAxML-NG writes it: `GTR+G`, `HKY+F+I`, `LG+G4`; values in braces are fixed: \
`GTR{1/2/1/1/2/1}+FU{0.3/0.2/0.2/0.3}+G4m{0.5}`. What has no fixed value is counted (+F), fitted \
(--opt all) or stays at its start. Other data: `BIN`, `MULTI5_MK` (2 to 64 states), `GTGTR4` \
(genotypes); `+ASC_LEWIS` for alignments of variable sites alone. A file of lines `MODEL, NAME = \
1-500` makes partitions; `+B` fits a partition's scaler, `DNA` is GTR+F+G. Exit status: 0 done, 2 \
something cannot be read or does not go together.")]
pub(crate) struct Args {
    /// Alignment: PHYLIP, FASTA, NEXUS, Clustal or Stockholm; plain, gzip or zstd
    #[arg(long, value_name = "FILE")]
    msa: PathBuf,
    /// Tree or trees, in Newick or NEXUS, with the alignment's taxa; each is evaluated by itself
    #[arg(long, value_name = "FILE")]
    tree: PathBuf,
    /// Model, or file of partitions (RAxML's lines or NEXUS sets), or auto for the one of the best
    /// BIC
    #[arg(long, value_name = "MODEL|FILE")]
    model: String,
    /// Parameters to fit: none, branch lengths, or these and the model's free parameters
    #[arg(long, value_enum, default_value = "none")]
    opt: common::Fit,
    /// Branch lengths of partitions: all alike (linked), each with a factor of its own (scaled), or
    /// all their own (unlinked); scaled unless given, or a partition's model has +B{…}
    #[arg(long, value_enum, value_name = "LINKAGE")]
    brlen: Option<common::Share>,
    /// Stop fitting when a round gains less than this in log-likelihood
    #[arg(long, value_name = "GAIN", default_value = "0.001", value_parser = gain)]
    epsilon: f64,
    /// Write each site's log-likelihood to this file: line N is column N of the alignment; 0 where
    /// no taxon has a character; of several trees, one after the other, with tabs between
    #[arg(long, value_name = "FILE")]
    site_lnl: Option<PathBuf>,
    /// Write the trees with the lengths used to this file, a line each; of unlinked lengths a line
    /// for each partition
    #[arg(long, value_name = "FILE")]
    tree_out: Option<PathBuf>,
    /// Number of engines that share the loops; one for each core unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    engines: Option<u16>,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

fn gain(text: &str) -> Result<f64, String> {
    let gain: Option<f64> = text.parse().ok();
    gain.filter(|gain| (1e-9..=1e3).contains(gain))
        .ok_or_else(|| "a number from 0.000000001 to 1000".to_owned())
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let engines = common::engines(self.engines)?;
        if engines == 1 {
            return self.with(Serial, 1);
        }
        let pool = Pool::start(pool_config(engines, &[], Box::new(Equi::default())))?;
        self.with(&pool, engines)
    }

    fn with(&self, runner: impl Runner + Clone, engines: usize) -> Result<Outcome> {
        let began = Instant::now();
        let Data {
            alignment,
            parts,
            findings,
            ..
        } = Data::read(&self.msa, &self.model)?;
        let lengths = common::lengths(self.brlen, &parts, &self.model)?;
        // All trees are validated before the first is evaluated.
        let trees = match self.opt {
            common::Fit::None => common::measured_trees(&self.tree, alignment.names())?,
            _ => common::alignment_trees(&self.tree, alignment.names())?,
        };
        if self.site_lnl.is_some() {
            let cells = (trees.len() as u64).saturating_mul(alignment.sites() as u64);
            limits::check_work("each tree's sites", cells.saturating_mul(SITE_BYTES))?;
        }
        let edges = |tree: &Tree| {
            tree.edges()
                .filter(|&e| tree.length(e) < LENGTH_MIN)
                .count()
        };
        let short: usize = trees.iter().map(edges).sum();
        if short > 0 {
            tracing::warn!("{short} branches are shorter than {LENGTH_MIN}: set to that");
        }
        let mut evaluated = Vec::new();
        for tree in trees {
            let parts = parts.clone();
            evaluated.push(self.one(tree, parts, lengths, runner.clone(), alignment.names())?);
        }
        self.write(&evaluated, alignment.sites())?;
        let values = evaluated.iter().map(|one| one.report.lnl);
        // The first of the best, so that the file's order breaks ties.
        let best = values.enumerate().fold(0, |best, (at, lnl)| {
            if lnl > evaluated[best].report.lnl {
                at
            } else {
                best
            }
        });
        let own = &evaluated[best];
        let report = Json {
            lnl: own.report.lnl,
            taxa: alignment.names().len(),
            sites: alignment.sites(),
            undetermined_sites: findings.undetermined_sites.len(),
            undetermined_taxa: findings.undetermined_taxa.len(),
            identical_taxa: findings.identical_taxa.len(),
            patterns: parts.iter().map(|part| part.patterns.len()).sum(),
            models: own.report.models.clone(),
            scales: own.report.scales.clone(),
            tree_length: own.report.tree_length,
            best_tree: best + 1,
            trees: evaluated.into_iter().map(|one| one.report).collect(),
            engines,
            wall_s: began.elapsed().as_secs_f64(),
        };
        match self.json {
            true => output::json(&report)?,
            false => report.print()?,
        }
        Ok(Outcome::Done)
    }

    /// One tree, on its own likelihood: parameters fitted to another tree do not affect it.
    fn one(
        &self,
        tree: Tree,
        parts: Vec<PartOptions>,
        lengths: Lengths,
        runner: impl Runner,
        names: &[String],
    ) -> Result<Evaluated> {
        let mut likelihood = Likelihood::partitioned(tree, parts, runner, Options::default())?;
        likelihood.set_lengths(lengths);
        let lnl = self.opt.apply(&mut likelihood, self.epsilon)?;
        let sites = match self.site_lnl {
            Some(_) => likelihood.site_log_likelihoods()?,
            None => Vec::new(),
        };
        let (tree, parts) = (likelihood.tree(), likelihood.parts());
        let newicks = match lengths {
            Lengths::Unlinked => (0..parts.len())
                .map(|part| tree.of_part(part, parts[part].scale()).to_newick(names))
                .collect(),
            _ => vec![tree.to_newick(names)],
        };
        Ok(Evaluated {
            newicks,
            sites,
            report: TreeJson {
                lnl,
                tree_length: tree.edges().map(|edge| tree.length(edge)).sum(),
                models: parts.iter().map(|part| part.model_text()).collect(),
                scales: parts.iter().map(|part| part.scale()).collect(),
            },
        })
    }

    /// Writes the requested files.
    fn write(&self, evaluated: &[Evaluated], sites: usize) -> Result<()> {
        if let Some(path) = &self.site_lnl {
            let mut text = String::new();
            for site in 0..sites {
                for (at, one) in evaluated.iter().enumerate() {
                    let tab = if at == 0 { "" } else { "\t" };
                    write!(text, "{tab}{:.9}", one.sites[site])?;
                }
                text.push('\n');
            }
            output::file(path, &text)?;
        }
        if let Some(path) = &self.tree_out {
            let newicks = evaluated.iter().flat_map(|one| &one.newicks);
            let text: String = newicks.map(|newick| format!("{newick}\n")).collect();
            output::file(path, &text)?;
        }
        Ok(())
    }
}

#[derive(serde::Serialize)]
struct Json {
    lnl: f64,
    taxa: usize,
    /// All columns of the file.
    sites: usize,
    /// The number of these columns in which no taxon has a character: they are left out.
    undetermined_sites: usize,
    undetermined_taxa: usize,
    identical_taxa: usize,
    patterns: usize,
    models: Vec<String>,
    scales: Vec<f64>,
    tree_length: f64,
    /// Number of the best of `trees`, from 1: the fields above are of this one.
    best_tree: usize,
    trees: Vec<TreeJson>,
    engines: usize,
    wall_s: f64,
}

/// One of the file's trees.
#[derive(serde::Serialize)]
struct TreeJson {
    lnl: f64,
    tree_length: f64,
    models: Vec<String>,
    scales: Vec<f64>,
}

/// A tree, evaluated.
struct Evaluated {
    /// The tree; of unlinked lengths one with each partition's.
    newicks: Vec<String>,
    /// Each column's log-likelihood, if requested.
    sites: Vec<f64>,
    report: TreeJson,
}

impl Json {
    fn print(&self) -> Result<()> {
        if self.trees.len() > 1 {
            for (at, tree) in self.trees.iter().enumerate() {
                output::line(&format!(
                    "tree {:<10} {:.6}, length {:.6}",
                    at + 1,
                    tree.lnl,
                    tree.tree_length
                ))?;
            }
            output::line(&format!("best            tree {}", self.best_tree))?;
        }
        output::line(&format!("log-likelihood  {:.6}", self.lnl))?;
        for model in &self.models {
            output::line(&format!("model           {model}"))?;
        }
        output::line(&format!(
            "alignment       {} taxa, {} sites, {} patterns",
            self.taxa, self.sites, self.patterns
        ))?;
        output::line(&format!("tree length     {:.6}", self.tree_length))?;
        Ok(())
    }
}

/// Bytes of a site's log-likelihood and its text.
const SITE_BYTES: u64 = 8 + 20;
