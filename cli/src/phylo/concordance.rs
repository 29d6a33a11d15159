//! `sidecore phylo concordance`.

use super::common;
use crate::values::models;
use crate::{Outcome, output};
use anyhow::{Context, Result, ensure};
use sidecore_phylo::concordance::{
    GeneFactors, SiteFactors, by_genes, by_likelihood, by_sites, labelled,
};
use sidecore_phylo::evaluation;
use sidecore_phylo::io::data::linkage;
use sidecore_phylo::likelihood::{Likelihood, Options};
use sidecore_phylo::msa::Patterns;
use sidecore_phylo::newick::Newick;
use sidecore_phylo::quartets::{Around, GeneTrees, branches, gene_trees_bytes};
use sidecore_phylo::tree::Tree;
use sidecore_terminal::values::Offered;
use std::path::{Path, PathBuf};

/// Arguments of `phylo concordance`.
#[derive(clap::Args)]
#[command(after_help = "\
gcf: the share of the decisive gene trees that have a branch; gdf1 and gdf2 those with the one or \
the other swap of its four neighbours, gdfp all others (Minh, Hahn and Lanfear 2020). scf, sdf1, \
sdf2: the same of sites, by parsimony over quartets of taxa; scfl and so on by the likelihood of \
states at the neighbours (Mo and others 2022), with --likelihood. All are per cent. They are \
added to the tree's labels after a `/`: gcf, scf, scfl. The gene trees may lack taxa of the tree, \
and have no others. Exit status: 0 done, 2 something cannot be read or does not go together.")]
pub(crate) struct Args {
    /// Tree (Newick or NEXUS) whose branches are looked at
    #[arg(long, value_name = "FILE")]
    tree: PathBuf,
    /// Gene trees, in Newick or NEXUS
    #[arg(long, value_name = "FILE", required_unless_present = "msa")]
    genes: Option<PathBuf>,
    /// Alignment of the sites, or a folder of loci
    #[arg(long, value_name = "FILE|FOLDER", requires = "model")]
    msa: Option<PathBuf>,
    /// Model, or file of partitions; for parsimony it says which characters are states
    #[arg(long, value_name = "MODEL|FILE", requires = "msa")]
    #[arg(value_parser = Offered(models), hide_possible_values = true)]
    model: Option<String>,
    /// Site concordance by likelihood, too, with lengths and parameters fitted
    #[arg(long, requires = "msa")]
    likelihood: bool,
    /// Quartets of taxa a branch; all where there are no more than that
    #[arg(long, value_name = "N", default_value = "1000")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    quartets: u32,
    /// Seed of the quartets
    #[arg(long, value_name = "S", default_value = "1")]
    seed: u64,
    /// Write the tree to this file, not to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write a table of all values to this file, a line a branch, between tabs
    #[arg(long, value_name = "FILE")]
    table: Option<PathBuf>,
    /// Number of engines; one for each core unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    engines: Option<u16>,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let file = common::reader().trees(&self.tree)?;
        let tree = file.only()?;
        let labels = tree.tip_labels();
        let around = branches(tree, labels.len(), |label| place(&labels, label));
        let named = |at: &Around| {
            at.side(0)
                .taxa()
                .map(|taxon| labels[taxon].clone())
                .collect()
        };
        let mut rows: Vec<Row> = (around.iter())
            .map(|at| Row {
                node: at.node,
                clade: named(at),
                label: tree.nodes()[at.node].label.clone(),
                length: tree.nodes()[at.node].length,
                genes: None,
                sites: None,
                likelihood: None,
            })
            .collect();
        let mut trees = None;
        if let Some(path) = &self.genes {
            let genes = gene_trees(path, labels, None)?;
            let found = by_genes(&genes, &around, &common::pool(self.engines)?)?;
            rows.iter_mut()
                .zip(found)
                .for_each(|(row, own)| row.genes = own);
            trees = Some(genes.genes.len());
        }
        if let (Some(msa), Some(model)) = (&self.msa, &self.model) {
            self.of_sites(tree, msa, model, &mut rows)?;
        }
        let text = labelled(tree, &self.labels(&rows)).to_string();
        if let Some(path) = &self.table {
            output::file(path, &table(&rows))?;
        }
        let report = Json {
            trees,
            branches: rows,
            tree: &text,
        };
        common::deliver_tree(self.output.as_deref(), self.json, &report, &text)
    }

    fn of_sites(&self, tree: &Newick, msa: &Path, model: &str, rows: &mut [Row]) -> Result<()> {
        let data = common::data(msa, model)?;
        let names = data.alignment.names();
        let own =
            Tree::from_newick(tree, names).with_context(|| self.tree.display().to_string())?;
        let around = branches(tree, names.len(), |label| place(names, label));
        let pool = common::pool(self.engines)?;
        let parts = data.partitions.parts;
        let patterns: Vec<&Patterns> = parts.iter().map(|part| &part.patterns).collect();
        let found = by_sites(&patterns, &around, self.quartets, self.seed, &pool)?;
        rows.iter_mut()
            .zip(found)
            .for_each(|(row, own)| row.sites = own);
        if self.likelihood {
            let linked = linkage(None, &parts)?;
            let mut likelihood = Likelihood::partitioned(own, parts, &pool, Options::default())?;
            likelihood.set_lengths(linked);
            evaluation::Fit::All.apply(&mut likelihood, EPSILON)?;
            let (tree, parts) = (likelihood.tree(), likelihood.parts());
            let found = by_likelihood(tree, parts, &around, &pool)?;
            rows.iter_mut()
                .zip(found)
                .for_each(|(row, own)| row.likelihood = own);
        }
        Ok(())
    }

    /// For each branch the values that its label gets.
    fn labels(&self, rows: &[Row]) -> Vec<(usize, Vec<f64>)> {
        let values = |row: &Row| {
            let genes = self.genes.as_ref().map(|_| row.genes.map(|own| own.gcf));
            let sites = self.msa.as_ref().map(|_| row.sites.map(|own| own.scf));
            let likelihood = self.likelihood.then(|| row.likelihood.map(|own| own.scf));
            let all = [genes, sites, likelihood].into_iter().flatten();
            // Where nothing is decisive nothing speaks for the branch.
            all.map(|value| value.unwrap_or(0.0)).collect()
        };
        rows.iter().map(|row| (row.node, values(row))).collect()
    }
}

/// A label's number.
fn place(labels: &[String], label: &str) -> Option<usize> {
    labels.iter().position(|own| own == label)
}

/// Gene trees of a file; of the taxa `labels` alone where there are some.
pub(super) fn gene_trees(
    path: &Path,
    labels: Vec<String>,
    contract: Option<f64>,
) -> Result<GeneTrees> {
    let file = common::reader().trees(path)?;
    let nodes: usize = file.newicks.iter().map(|tree| tree.nodes().len()).sum();
    let (taxa, shown) = (labels.len(), path.display());
    let most = file.newicks.iter().map(|tree| tree.tips().count()).max();
    let need = gene_trees_bytes(nodes, taxa.max(most.unwrap_or(0)));
    super::limits::check_work("the gene trees", need)?;
    let genes = GeneTrees::new(labels, &file.newicks, contract);
    let genes = genes.with_context(|| shown.to_string())?;
    ensure!(
        taxa == 0 || genes.taxa() == taxa,
        "{shown}: the tip `{}` is not in the tree",
        genes.labels.get(taxa).map_or("", String::as_str)
    );
    Ok(genes)
}

/// Gain in log-likelihood below which the fit ends.
const EPSILON: f64 = 0.01;

fn table(rows: &[Row]) -> String {
    let mut text = "clade\tlabel\tlength\tgcf\tgdf1\tgdf2\tgdfp\tgn\tscf\tsdf1\tsdf2\tsn\tscfl\t\
                    sdfl1\tsdfl2\tsnl\n"
        .to_owned();
    for row in rows {
        let length = row
            .length
            .map_or("NA".to_owned(), |length| length.to_string());
        let genes = row.genes.map_or([f64::NAN; 5], |own| {
            [own.gcf, own.gdf1, own.gdf2, own.gdfp, own.decisive.into()]
        });
        let of_sites = |own: Option<SiteFactors>| {
            own.map_or([f64::NAN; 4], |own| {
                [own.scf, own.sdf1, own.sdf2, own.decisive]
            })
        };
        let values = genes.into_iter().chain(of_sites(row.sites));
        let values = values.chain(of_sites(row.likelihood));
        let values = values.map(|value| match value.is_nan() {
            true => "NA".to_owned(),
            false => format!("{value:.4}"),
        });
        let values: Vec<String> = values.collect();
        let clade = row.clade.join(",");
        text.push_str(&format!(
            "{clade}\t{}\t{length}\t{}\n",
            row.label,
            values.join("\t")
        ));
    }
    text
}

#[derive(serde::Serialize)]
struct Json<'t> {
    /// Gene trees.
    trees: Option<usize>,
    branches: Vec<Row>,
    tree: &'t str,
}

#[derive(serde::Serialize)]
struct Row {
    #[serde(skip)]
    node: usize,
    clade: Vec<String>,
    label: String,
    length: Option<f64>,
    genes: Option<GeneFactors>,
    sites: Option<SiteFactors>,
    likelihood: Option<SiteFactors>,
}
