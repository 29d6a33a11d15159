//! `sidecore phylo ancestors`.

use super::common::{self, Data};
use super::limits;
use crate::{Outcome, output};
use anyhow::{Result, ensure};
use sidecore_offload::Pool;
use sidecore_phylo::ancestors::{Ancestors, labelled, name};
use sidecore_phylo::likelihood::{Likelihood, Options, Part};
use sidecore_phylo::msa::Alphabet;
use sidecore_phylo::runner::{Runner, Serial, pool_config};
use sidecore_sched::Equi;
use std::fmt::Write as _;
use std::path::PathBuf;

/// Arguments of `phylo ancestors`.
#[derive(clap::Args)]
#[command(after_help = "\
Lengths and the model's free parameters are fitted first, unless --opt says otherwise. A line of \
the table is a node, a column of the alignment (from 1), the most probable state, and the \
probability of each state given the alignment (marginal, by empirical Bayes). Columns without a \
character are left out. Exit status: 0 done, 2 something cannot be read or does not go together.")]
pub(crate) struct Args {
    /// Alignment: PHYLIP, FASTA, NEXUS, Clustal or Stockholm; plain, gzip or zstd
    #[arg(long, value_name = "FILE")]
    msa: PathBuf,
    /// Tree, in Newick or NEXUS, with the alignment's taxa
    #[arg(long, value_name = "FILE")]
    tree: PathBuf,
    /// Model, or file of partitions (RAxML's lines or NEXUS sets)
    #[arg(long, value_name = "MODEL|FILE")]
    model: String,
    /// Parameters to fit: none, branch lengths, or these and the model's free parameters
    #[arg(long, value_enum, default_value = "all")]
    opt: common::Fit,
    /// Write the probabilities to this file, separated by tabs
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write the tree with the inner nodes' names to this file
    #[arg(long, value_name = "FILE")]
    tree_out: Option<PathBuf>,
    /// Write the most probable sequences to this file, as FASTA
    #[arg(long, value_name = "FILE")]
    fasta: Option<PathBuf>,
    /// Number of engines that share the fit's loops; one for each core unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    engines: Option<u16>,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let engines = common::engines(self.engines)?;
        if engines == 1 {
            return self.with(Serial);
        }
        let pool = Pool::start(pool_config(engines, &[], Box::new(Equi::default())))?;
        self.with(&pool)
    }

    fn with(&self, runner: impl Runner) -> Result<Outcome> {
        let data = Data::read(&self.msa, &self.model)?;
        let names = data.alignment.names();
        let mut trees = match self.opt {
            common::Fit::None => common::measured_trees(&self.tree, names)?,
            _ => common::alignment_trees(&self.tree, names)?,
        };
        let (shown, count) = (self.tree.display(), trees.len());
        ensure!(count == 1, "{shown} has {count} trees, and one is wanted");
        let (tree, options) = (trees.remove(0), Options::default());
        let states = data.parts.iter().map(|part| {
            let each = 16 + CELL_BYTES * part.patterns.alphabet().states() as u64;
            part.patterns.sites() as u64 * each
        });
        let cells = (tree.taxa() as u64).saturating_mul(states.sum());
        let copies =
            u64::from(self.output.is_some()) + u64::from(self.json || self.fasta.is_some());
        limits::check_work("the inner nodes' states", cells.saturating_mul(copies) / 2)?;
        let mut likelihood = Likelihood::partitioned(tree, data.parts, runner, options)?;
        let lnl = self.opt.apply(&mut likelihood, EPSILON)?;
        let tree = likelihood.tree();
        let text = labelled(tree, names).to_string();
        let mut nodes: Vec<Node> = (0..tree.taxa() - 2)
            .map(|node| Node {
                name: name(node),
                sequence: vec![b'-'; data.alignment.sites()],
                probability_mean: 0.0,
            })
            .collect();
        let mut table = String::new();
        let mut sites = 0;
        for (number, part) in likelihood.parts().iter().enumerate() {
            let found = Ancestors::new(tree, part.patterns(), part.model(), part.scale());
            let several = (likelihood.parts().len() > 1).then(|| number + 1);
            if self.output.is_some() {
                lines(&mut table, &found, part, several)?;
            }
            let alphabet = part.patterns().alphabet();
            for (site, pattern) in part.patterns().site_patterns() {
                sites += 1;
                for (number, node) in nodes.iter_mut().enumerate() {
                    let (state, p) = best(found.probabilities(number, pattern));
                    node.sequence[site] = alphabet.letter(state);
                    node.probability_mean += p;
                }
            }
        }
        for node in &mut nodes {
            node.probability_mean /= f64::from(u32::try_from(sites.max(1))?);
        }
        if let Some(path) = &self.output {
            output::file(path, &table)?;
        }
        if let Some(path) = &self.tree_out {
            output::file(path, &format!("{text}\n"))?;
        }
        if let Some(path) = &self.fasta {
            let record = |node: &Node| format!(">{}\n{}\n", node.name, node.text());
            output::file(path, &nodes.iter().map(record).collect::<String>())?;
        }
        if self.json {
            let nodes = nodes.iter().map(|node| NodeJson {
                name: node.name.clone(),
                sequence: node.text(),
                probability_mean: node.probability_mean,
            });
            output::json(&Json {
                lnl,
                sites,
                tree: text,
                nodes: nodes.collect(),
            })?;
            return Ok(Outcome::Done);
        }
        output::line(&format!("log-likelihood  {lnl:.6}"))?;
        output::line(&format!("nodes           {}", nodes.len()))?;
        let mean: f64 = nodes.iter().map(|node| node.probability_mean).sum();
        let mean = mean / nodes.len() as f64;
        output::line(&format!(
            "probability     {mean:.4} of the best state in the mean"
        ))?;
        if self.tree_out.is_none() {
            output::result(&text)?;
        }
        Ok(Outcome::Done)
    }
}

/// A partition's lines of the table; its number where there are several.
fn lines(table: &mut String, found: &Ancestors, part: &Part, several: Option<usize>) -> Result<()> {
    let alphabet: Alphabet = part.patterns().alphabet();
    let letter = |state: usize| char::from(alphabet.letter(state));
    if table.is_empty() || several.is_some() {
        table.push_str("Node\tSite\tState");
        for state in 0..alphabet.states() {
            write!(table, "\tp_{}", letter(state))?;
        }
        table.push('\n');
    }
    for node in 0..found.nodes() {
        for (site, pattern) in part.patterns().site_patterns() {
            let each = found.probabilities(node, pattern);
            let (state, _) = best(each);
            write!(table, "{}\t{}\t{}", name(node), site + 1, letter(state))?;
            for p in each {
                write!(table, "\t{p:.5}")?;
            }
            table.push('\n');
        }
    }
    Ok(())
}

/// The most probable state and its probability.
fn best(probabilities: &[f64]) -> (usize, f64) {
    let each = probabilities.iter().copied().enumerate();
    each.fold(
        (0, 0.0),
        |best, one| if one.1 > best.1 { one } else { best },
    )
}

/// An inner node's most probable sequence.
struct Node {
    name: String,
    sequence: Vec<u8>,
    probability_mean: f64,
}

impl Node {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.sequence).into_owned()
    }
}

#[derive(serde::Serialize)]
struct Json {
    lnl: f64,
    sites: usize,
    tree: String,
    nodes: Vec<NodeJson>,
}

#[derive(serde::Serialize)]
struct NodeJson {
    name: String,
    sequence: String,
    probability_mean: f64,
}

/// Gain in log-likelihood below which the fit ends.
const EPSILON: f64 = 0.001;

/// Of a state's probability, and of its text.
const CELL_BYTES: u64 = 16;
