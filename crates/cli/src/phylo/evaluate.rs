//! `sidecore phylo evaluate`.

use super::common;
use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_offload::Pool;
use sidecore_phylo::likelihood::{LENGTH_MIN, Lengths, Likelihood, Options};
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
(--opt all) or stays at its start. A file of lines `MODEL, NAME = 1-500` makes partitions. Exit \
status: 0 done, 2 something cannot be read or does not go together.")]
pub(crate) struct Args {
    /// Alignment: PHYLIP, FASTA or NEXUS
    #[arg(long, value_name = "FILE")]
    msa: PathBuf,
    /// Tree in Newick, with the alignment's taxa
    #[arg(long, value_name = "FILE")]
    tree: PathBuf,
    /// Model, or file of partitions
    #[arg(long, value_name = "MODEL|FILE")]
    model: String,
    /// What is fitted: nothing, branch lengths, or these and the model's free parameters
    #[arg(long, value_enum, default_value = "none")]
    opt: Fit,
    /// How partitions share branch lengths: all alike, or each with a factor of its own
    #[arg(long, value_enum, default_value = "linked")]
    brlen: Share,
    /// Stop fitting when a round gains less than this in log-likelihood
    #[arg(long, value_name = "GAIN", default_value = "0.001", value_parser = gain)]
    epsilon: f64,
    /// Write each site's log-likelihood to this file, one a line
    #[arg(long, value_name = "FILE")]
    site_lnl: Option<PathBuf>,
    /// Write the tree with the lengths used to this file
    #[arg(long, value_name = "FILE")]
    tree_out: Option<PathBuf>,
    /// How many engines share the loops; one for each core unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    engines: Option<u16>,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Fit {
    /// Nothing: the tree and the model as given
    None,
    /// Branch lengths
    Branches,
    /// Branch lengths and the model's free parameters
    All,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Share {
    /// One length a branch
    Linked,
    /// One length a branch, times a factor that is fitted for each partition (--opt all)
    Scaled,
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

    fn with(&self, runner: impl Runner, engines: usize) -> Result<Outcome> {
        let began = Instant::now();
        let alignment = common::alignment(&self.msa)?;
        let msa = || self.msa.display().to_string();
        let parts = common::parts(&alignment, &self.model).with_context(msa)?;
        let newick = common::newick(&self.tree)?;
        let tree = Tree::from_newick(&newick, alignment.names())
            .with_context(|| self.tree.display().to_string())?;
        let short = tree
            .edges()
            .filter(|&edge| tree.length(edge) < LENGTH_MIN)
            .count();
        if short > 0 {
            tracing::warn!("{short} branches are shorter than {LENGTH_MIN}: set to that");
        }
        let mut likelihood = Likelihood::partitioned(tree, parts, runner, Options::default())?;
        if self.brlen == Share::Scaled {
            likelihood.set_lengths(Lengths::Scaled);
        }
        let lnl = match self.opt {
            Fit::None => likelihood.evaluate()?,
            Fit::Branches => likelihood.optimise_lengths(self.epsilon, LENGTH_ROUNDS_MAX)?,
            Fit::All => likelihood.optimise(self.epsilon)?,
        };
        if let Some(path) = &self.site_lnl {
            let mut text = String::new();
            for lnl in likelihood.site_log_likelihoods()? {
                writeln!(text, "{lnl:.9}")?;
            }
            std::fs::write(path, text).with_context(|| format!("cannot write {path:?}"))?;
        }
        let newick = likelihood.tree().to_newick(alignment.names());
        if let Some(path) = &self.tree_out {
            std::fs::write(path, format!("{newick}\n"))
                .with_context(|| format!("cannot write {path:?}"))?;
        }
        let models: Vec<String> = likelihood
            .parts()
            .iter()
            .map(|part| part.model().to_string())
            .collect();
        let report = Json {
            lnl,
            taxa: alignment.names().len(),
            sites: alignment.sites(),
            patterns: likelihood
                .parts()
                .iter()
                .map(|part| part.patterns().len())
                .sum(),
            models,
            scales: likelihood.parts().iter().map(|part| part.scale()).collect(),
            tree_length: likelihood
                .tree()
                .edges()
                .map(|edge| likelihood.tree().length(edge))
                .sum(),
            engines,
            wall_s: began.elapsed().as_secs_f64(),
        };
        if self.json {
            output::json(&report)?;
            return Ok(Outcome::Done);
        }
        output::line(&format!("log-likelihood  {lnl:.6}"))?;
        for (model, scale) in report.models.iter().zip(&report.scales) {
            output::line(&match self.brlen {
                Share::Linked => format!("model           {model}"),
                Share::Scaled => format!("model           {model}, lengths times {scale:.6}"),
            })?;
        }
        output::line(&format!(
            "alignment       {} taxa, {} sites, {} patterns",
            report.taxa, report.sites, report.patterns
        ))?;
        output::line(&format!("tree length     {:.6}", report.tree_length))?;
        Ok(Outcome::Done)
    }
}

#[derive(serde::Serialize)]
struct Json {
    lnl: f64,
    taxa: usize,
    sites: usize,
    patterns: usize,
    models: Vec<String>,
    scales: Vec<f64>,
    tree_length: f64,
    engines: usize,
    wall_s: f64,
}

const LENGTH_ROUNDS_MAX: usize = 64;
