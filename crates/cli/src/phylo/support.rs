//! `sidecore phylo support`.

use super::common;
use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_offload::{Pool, PoolConfig};
use sidecore_phylo::support::{Kind, Reference};
use std::path::PathBuf;

/// Arguments of `phylo support`.
#[derive(clap::Args)]
#[command(after_help = "\
fbp: the share of the replicates that have a branch's split, in per cent (Felsenstein). tbe: 1 \
minus the mean share of taxa to be moved until they have it, from 0 to 1 (Lemoine and others). \
Both are written as labels of inner nodes. Exit status: 0 done, 2 a tree cannot be read or the \
tips differ.")]
pub(crate) struct Args {
    /// Tree (Newick or NEXUS) whose branches are to be supported
    #[arg(long, value_name = "FILE")]
    tree: PathBuf,
    /// Replicates' trees, in Newick or NEXUS
    #[arg(long, value_name = "FILE")]
    bootstraps: PathBuf,
    /// Kind of support
    #[arg(long, value_enum, default_value = "fbp")]
    support: Support,
    /// Write the tree to this file, not to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

/// Kinds of support.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Support {
    /// Felsenstein's bootstrap proportions
    Fbp,
    /// Transfer bootstrap expectation
    Tbe,
}

impl Support {
    pub(super) fn kind(self) -> Kind {
        match self {
            Self::Fbp => Kind::Fbp,
            Self::Tbe => Kind::Tbe,
        }
    }
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let tree = common::newick(&self.tree)?;
        let shown = self.bootstraps.display();
        let replicates = common::trees(&self.bootstraps)?;
        let reference = Reference::new(&tree).with_context(|| self.tree.display().to_string())?;
        let pool = Pool::start(PoolConfig::default())?;
        let kind = self.support.kind();
        let tally = reference.tally_all(&replicates, kind, &pool);
        let tally = tally.with_context(|| shown.to_string())?;
        let labelled = reference.labelled(&tally).to_string();
        if let Some(path) = &self.output {
            output::file(path, &format!("{labelled}\n"))?;
        }
        let values = reference.values(&tally);
        let values: Vec<f64> = values.into_iter().map(|(_, value)| value).collect();
        if self.json {
            output::json(&Json {
                kind,
                replicates: replicates.len(),
                branches: values.len(),
                mean: values.iter().sum::<f64>() / values.len().max(1) as f64,
                values,
                tree: labelled,
            })?;
        } else if self.output.is_none() {
            output::line(&labelled)?;
        }
        Ok(Outcome::Done)
    }
}

#[derive(serde::Serialize)]
struct Json {
    kind: Kind,
    replicates: usize,
    branches: usize,
    mean: f64,
    values: Vec<f64>,
    tree: String,
}
