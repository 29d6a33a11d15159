//! `sidecore phylo evaluate`.

use super::common;
use super::limits;
use crate::values::models;
use crate::{Outcome, output};
use anyhow::{Context, Result, bail, ensure};
use sidecore_offload::Pool;
use sidecore_phylo::evaluation::{Evaluation, EvaluationOptions, evaluate};
use sidecore_phylo::heterotachy::{self, ClassedEvaluation, ClassedModel};
use sidecore_phylo::io::data::{Data, classed_model, linkage};
use sidecore_phylo::likelihood::{LENGTH_MIN, Lengths};
use sidecore_phylo::msa::Patterns;
use sidecore_phylo::tree::Tree;
use sidecore_terminal::Text;
use sidecore_terminal::values::Offered;
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
    /// Alignment (PHYLIP, FASTA, NEXUS, Clustal, Stockholm, MSF, VCF or MAPLE's), plain or packed;
    /// `-` is standard input, a folder has an alignment for each locus
    #[arg(long, value_name = "FILE")]
    msa: PathBuf,
    /// Tree or trees, in Newick or NEXUS, with the alignment's taxa; each is evaluated by itself
    #[arg(long, value_name = "FILE")]
    tree: PathBuf,
    /// Model, or file of partitions (RAxML's lines or NEXUS sets), or auto for the one of the best
    /// BIC
    #[arg(long, value_name = "MODEL|FILE")]
    #[arg(value_parser = Offered(models), hide_possible_values = true)]
    model: String,
    #[command(flatten)]
    pmsf: common::Pmsf,
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
    /// Write a table of the probabilities of a mixture's classes, or of the categories of rates, a
    /// line for each site
    #[arg(long, value_name = "FILE")]
    site_posteriors: Option<PathBuf>,
    /// Write a table of the sites' rates: the mean, and the most probable category with its rate
    #[arg(long, value_name = "FILE")]
    site_rates: Option<PathBuf>,
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
        // Before the files are read, which may take minutes: --engines may be refused.
        let pool = common::pool(self.engines)?;
        let began = Instant::now();
        let reader = common::reader();
        if let Some(model) = classed_model(&self.model)? {
            return self.classes(&model, &pool, began);
        }
        let mut data = common::data(&self.msa, &self.model)?;
        if let Some(text) = self.pmsf.text(&self.msa, &self.model, self.engines)? {
            data.partitions = data.partitions.with_site_frequencies(&text)?;
        }
        let (alignment, parts) = (&data.alignment, &data.partitions.parts);
        let names = alignment.names();
        let lengths = self.brlen.map(Lengths::from);
        let lengths = linkage(lengths, parts).with_context(|| self.model.clone())?;
        // All trees are validated before the first is evaluated.
        let trees = match self.opt {
            common::Fit::None => reader.measured_trees(&self.tree, names)?,
            _ => reader.trees_of(&self.tree, names)?,
        };
        if self.site_lnl.is_some() {
            let cells = (trees.len() as u64).saturating_mul(alignment.sites() as u64);
            limits::check_work("each tree's sites", cells.saturating_mul(SITE_BYTES))?;
        }
        let short: usize = trees.iter().map(short_branches).sum();
        if short > 0 {
            tracing::warn!("{short} branches are shorter than {LENGTH_MIN}: set to that");
        }
        let options = EvaluationOptions {
            fit: self.opt.into(),
            epsilon: self.epsilon,
            lengths,
            sites: self.site_lnl.is_some().then(|| alignment.sites()),
            posteriors: self.site_posteriors.is_some() || self.site_rates.is_some(),
        };
        let mut evaluated = Vec::new();
        for tree in trees {
            // Each on a likelihood of its own: parameters fitted to another tree do not affect it.
            evaluated.push(evaluate(tree, names, parts.clone(), &options, &pool)?);
        }
        self.write(&evaluated, alignment.sites())?;
        self.write_posteriors(&evaluated, &data.partitions.names)?;
        let report = Json::new(&data, evaluated, pool.engines(), began);
        match self.json {
            true => output::json(&report)?,
            false => output::show(&report.text())?,
        }
        Ok(Outcome::Done)
    }

    /// Under a model whose classes have lengths of their own.
    fn classes(&self, model: &ClassedModel, pool: &Pool, began: Instant) -> Result<Outcome> {
        let reader = common::reader();
        let alignment = reader.alignment(&self.msa)?;
        let patterns = Patterns::new(&alignment, model.first().alphabet());
        let patterns = patterns.with_context(|| self.msa.display().to_string())?;
        reader.findings(&self.msa, &alignment, [&patterns]);
        let names = alignment.names();
        let trees = match self.opt {
            common::Fit::None => reader.measured_trees(&self.tree, names)?,
            _ => reader.trees_of(&self.tree, names)?,
        };
        let classes = model.classes();
        ensure!(
            trees.len() == 1 || trees.len() == classes && self.opt == common::Fit::None,
            "{} has {} trees: give one, or with --opt none one for each of {classes} classes",
            self.tree.display(),
            trees.len()
        );
        ensure!(
            self.brlen.is_none() && self.pmsf.is_none() && self.site_rates.is_none(),
            "+H: --brlen, --pmsf, --pmsf-tree and --site-rates do not go with classes of lengths"
        );
        let fit = (self.opt.into(), self.epsilon);
        let found = heterotachy::evaluate(&trees, names, &patterns, model, fit, pool)?;
        if let Some(path) = &self.site_lnl {
            let mut sites = vec![0.0; alignment.sites()];
            for (site, pattern) in patterns.site_patterns() {
                sites[site] = found.patterns[pattern];
            }
            let lines = sites.iter().map(|lnl| format!("{lnl:.9}\n"));
            output::file(path, &lines.collect::<String>())?;
        }
        if let Some(path) = &self.site_posteriors {
            let shares = |pattern: usize| &found.posteriors[pattern * classes..][..classes];
            let rows = patterns
                .site_patterns()
                .map(|(site, at)| (site, "all", shares(at)));
            output::file(path, &posterior_table(rows))?;
        }
        if let Some(path) = &self.tree_out {
            let lines = found.newicks.iter().map(|newick| format!("{newick}\n"));
            output::file(path, &lines.collect::<String>())?;
        }
        let report = ClassesJson {
            found,
            taxa: names.len(),
            sites: alignment.sites(),
            engines: pool.engines(),
            wall_s: began.elapsed().as_secs_f64(),
        };
        match self.json {
            true => output::json(&report)?,
            false => output::show(&report.text())?,
        }
        Ok(Outcome::Done)
    }

    /// Writes the tables of rates and of classes.
    fn write_posteriors(&self, evaluated: &[Evaluation], names: &[String]) -> Result<()> {
        if self.site_posteriors.is_none() && self.site_rates.is_none() {
            return Ok(());
        }
        let [one] = evaluated else {
            bail!("--site-posteriors and --site-rates are of one tree, and --tree has several");
        };
        let name = |part: usize| names.get(part).map_or("all", String::as_str);
        if let Some(path) = &self.site_posteriors {
            let rows = one.posteriors.iter();
            let rows = rows.map(|own| (own.site, name(own.part), &own.classes[..]));
            output::file(path, &posterior_table(rows))?;
        }
        if let Some(path) = &self.site_rates {
            let mut text = "site\tpart\trate\tcategory\tcategory_rate\n".to_owned();
            for own in &one.posteriors {
                let (part, (category, rate)) = (name(own.part), own.category);
                let site = own.site + 1;
                writeln!(
                    text,
                    "{site}\t{part}\t{:.6}\t{category}\t{rate:.6}",
                    own.rate
                )?;
            }
            output::file(path, &text)?;
        }
        Ok(())
    }

    /// Writes the requested files.
    fn write(&self, evaluated: &[Evaluation], sites: usize) -> Result<()> {
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

/// Lines of sites, each with its partition and the probabilities of its classes.
fn posterior_table<'t>(rows: impl Iterator<Item = (usize, &'t str, &'t [f64])>) -> String {
    let rows: Vec<_> = rows.collect();
    let most = rows.iter().map(|(_, _, own)| own.len()).max().unwrap_or(0);
    let mut text = "site\tpart".to_owned();
    for class in 1..=most {
        let _ = write!(text, "\tp{class}");
    }
    text.push('\n');
    for (site, part, own) in rows {
        let _ = write!(text, "{}\t{part}", site + 1);
        for share in own {
            let _ = write!(text, "\t{share:.6}");
        }
        text.push('\n');
    }
    text
}

#[derive(serde::Serialize)]
struct ClassesJson {
    #[serde(flatten)]
    found: ClassedEvaluation,
    taxa: usize,
    sites: usize,
    engines: usize,
    wall_s: f64,
}

impl ClassesJson {
    fn text(&self) -> Text {
        let mut text = Text::new();
        text.fact("log-likelihood", format!("{:.6}", self.found.lnl));
        let classes = self.found.weights.iter().zip(&self.found.tree_lengths);
        for ((weight, length), model) in classes.zip(&self.found.models) {
            text.fact(
                "class",
                format!("weight {weight:.6}, tree length {length:.6}, {model}"),
            );
        }
        text
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
    trees: Vec<Evaluation>,
    engines: usize,
    wall_s: f64,
}

impl Json {
    fn new(data: &Data, evaluated: Vec<Evaluation>, engines: usize, began: Instant) -> Self {
        // The first of the best, so that the file's order breaks ties.
        let mut best = 0;
        for (at, one) in evaluated.iter().enumerate() {
            if one.lnl > evaluated[best].lnl {
                best = at;
            }
        }
        let (own, findings) = (&evaluated[best], &data.findings);
        let parts = &data.partitions.parts;
        Self {
            lnl: own.lnl,
            taxa: data.alignment.names().len(),
            sites: data.alignment.sites(),
            undetermined_sites: findings.undetermined_sites.len(),
            undetermined_taxa: findings.undetermined_taxa.len(),
            identical_taxa: findings.identical_taxa.len(),
            patterns: parts.iter().map(|part| part.patterns.len()).sum(),
            models: own.models.clone(),
            scales: own.scales.clone(),
            tree_length: own.tree_length,
            best_tree: best + 1,
            trees: evaluated,
            engines,
            wall_s: began.elapsed().as_secs_f64(),
        }
    }

    fn text(&self) -> Text {
        let mut text = Text::new();
        if self.trees.len() > 1 {
            for (at, tree) in self.trees.iter().enumerate() {
                let (lnl, length) = (tree.lnl, tree.tree_length);
                text.fact(
                    format!("tree {}", at + 1),
                    format!("{lnl:.6}, length {length:.6}"),
                );
            }
            text.fact("best", format!("tree {}", self.best_tree));
        }
        text.fact("log-likelihood", format!("{:.6}", self.lnl));
        for model in &self.models {
            text.fact("model", model);
        }
        let (taxa, sites, patterns) = (self.taxa, self.sites, self.patterns);
        text.fact(
            "alignment",
            format!("{taxa} taxa, {sites} sites, {patterns} patterns"),
        );
        text.fact("tree length", format!("{:.6}", self.tree_length));
        text
    }
}

fn short_branches(tree: &Tree) -> usize {
    let short = |edge: &_| tree.length(*edge) < LENGTH_MIN;
    tree.edges().filter(short).count()
}

/// Bytes of a site's log-likelihood and its text.
const SITE_BYTES: u64 = 8 + 20;
