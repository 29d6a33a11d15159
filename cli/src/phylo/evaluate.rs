//! `sidecore phylo evaluate` and `test`: given trees under a model.

use super::{common, limits};
use crate::values::models;
use crate::{Outcome, output};
use anyhow::{Context, Result, bail, ensure};
use sidecore_offload::Pool;
use sidecore_phylo::analysis::report::EvaluationReport;
use sidecore_phylo::constraint::{terrace, with_characters};
use sidecore_phylo::evaluation::{Evaluation, EvaluationOptions, Fit, evaluate, site_table};
use sidecore_phylo::heterotachy::{
    self, ClassedEvaluation, ClassedModel, TreesModel, evaluate_trees,
};
use sidecore_phylo::io::data::{classed_model, linkage, rooted_model, trees_model};
use sidecore_phylo::likelihood::Lengths;
use sidecore_phylo::msa::Patterns;
use sidecore_phylo::newick::Newick;
use sidecore_phylo::rooted::{
    Counts, RootedLikelihood, RootedModel, RootedModelName, RootedTree, rooted_bytes,
};
use sidecore_terminal::Text;
use sidecore_terminal::values::Offered;
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(clap::Args)]
#[command(after_help = "\
A model is written as RAxML-NG writes it: `GTR+G`, `HKY+F+I`, `LG+G4`; values in braces are fixed: \
`GTR{1/2/1/1/2/1}+FU{0.3/0.2/0.2/0.3}+G4m{0.5}`. What has no fixed value is counted (+F), fitted \
(--opt all) or stays at its start. Other data: `BIN`, `MULTI5_MK` (2 to 64 states), `GTGTR4` \
(genotypes); `+ASC_LEWIS` for alignments of variable sites alone. A file of lines `MODEL, NAME = \
1-500` makes partitions; `+B` fits a partition's scaler, `DNA` is GTR+F+G. `UNREST` (12 rates of \
DNA) and `NONREV{FILE}` (a full matrix of 4 or 20 states) are nonreversible: they need rooted \
trees. `HKY+P` is a model of populations (PoMo), for a counts file. `GTR+G+T` mixes the trees of \
the file (MAST), with weights that are fitted or in braces. Exit status: 0 done, 2 something \
cannot be read or does not go together.")]
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
    #[arg(long, value_parser = common::fits(), default_value = "none")]
    opt: Fit,
    /// Branch lengths of partitions: all alike (linked), each with a factor of its own (scaled), or
    /// all their own (unlinked); scaled unless given, or a partition's model has +B{…}
    #[arg(long, value_parser = common::linkages(), value_name = "LINKAGE")]
    brlen: Option<Lengths>,
    /// Stop fitting when a round gains less than this in log-likelihood
    #[arg(long, value_name = "GAIN", default_value = "0.001")]
    #[arg(value_parser = number(|it| (1e-9..=1e3).contains(&it), GAIN))]
    epsilon: f64,
    /// Write each site's log-likelihood to this file: line N is column N of the alignment; 0 where
    /// no taxon has a character; of several trees, one after the other, with tabs between
    #[arg(long, value_name = "FILE")]
    site_lnl: Option<PathBuf>,
    #[command(flatten)]
    tables: common::SiteTables,
    /// Write the trees with the lengths used to this file, a line each; of unlinked lengths a line
    /// for each partition
    #[arg(long, value_name = "FILE")]
    tree_out: Option<PathBuf>,
    /// Count the tree's terrace: the trees that no partition tells from it, since each lacks some
    /// of the taxa; they tie where partitions have lengths of their own (--brlen unlinked)
    #[arg(long)]
    terrace: bool,
    /// Number of engines that share the loops; one for each core unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    engines: Option<u16>,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        // Before the files are read, which may take minutes: --engines may be refused.
        let pool = common::pool(self.engines)?;
        let began = Instant::now();
        if let Some(model) = classed_model(&self.model)? {
            return self.classes(&model, &pool, began);
        }
        if let Some(model) = trees_model(&self.model)? {
            return self.mixture(&model, &pool, began);
        }
        if let Some(model) = rooted_model(&self.model)? {
            return self.rooted(&model, &pool, began);
        }
        let mut data = common::data(&self.msa, &self.model)?;
        if let Some(text) = self.pmsf.text(&self.msa, &self.model, self.engines)? {
            data.partitions = data.partitions.with_site_frequencies(&text)?;
        }
        let (names, parts) = (data.alignment.names(), &data.partitions.parts);
        let lengths = linkage(self.brlen, parts).with_context(|| self.model.clone())?;
        let is_measured = self.opt == Fit::Nothing;
        let sites = self.site_lnl.is_some().then(|| data.alignment.sites());
        // All trees are validated before the first is evaluated.
        let trees = common::reader().trees_to_evaluate(&self.tree, names, is_measured, sites)?;
        let options = EvaluationOptions {
            fit: self.opt,
            epsilon: self.epsilon,
            lengths,
            sites,
            posteriors: self.tables.any(),
        };
        let there: Vec<Vec<bool>> = parts
            .iter()
            .map(|part| with_characters(&part.patterns))
            .collect();
        let mut evaluated = Vec::new();
        for tree in trees {
            // Counted first: a tree without a terrace is refused before the work.
            let terrace = match self.terrace {
                true => Some(terrace(&tree, &there, CUTS_MAX).context("--terrace")?),
                false => None,
            };
            // Each on a likelihood of its own: parameters fitted to another tree do not affect it.
            let mut one = evaluate(tree, names, parts.clone(), &options, &pool)?;
            one.terrace = terrace;
            evaluated.push(one);
        }
        self.write(&evaluated, &data.partitions.names)?;
        let wall_s = began.elapsed().as_secs_f64();
        let report = EvaluationReport::new(&data, evaluated, pool.engines(), wall_s);
        output::report(self.json, &report, EvaluationReport::text)
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
            Fit::Nothing => reader.measured_trees(&self.tree, names)?,
            _ => reader.trees_of(&self.tree, names)?,
        };
        let classes = model.classes();
        ensure!(
            trees.len() == 1 || trees.len() == classes && self.opt == Fit::Nothing,
            "{} has {} trees: give one, or with --opt none one for each of {classes} classes",
            self.tree.display(),
            trees.len()
        );
        ensure!(
            self.brlen.is_none()
                && self.pmsf.is_none()
                && self.tables.site_rates.is_none()
                && !self.terrace,
            "+H: --brlen, --pmsf, --pmsf-tree, --site-rates and --terrace do not go with classes \
             of lengths"
        );
        let fit = (self.opt, self.epsilon);
        let found = heterotachy::evaluate(&trees, names, &patterns, model, fit, pool)?;
        self.report_classes(
            found,
            &patterns,
            [names.len(), alignment.sites()],
            pool,
            began,
        )
    }

    /// Under a mixture of the file's trees.
    fn mixture(&self, model: &TreesModel, pool: &Pool, began: Instant) -> Result<Outcome> {
        ensure!(
            self.brlen.is_none()
                && self.pmsf.is_none()
                && self.tables.site_rates.is_none()
                && !self.terrace,
            "+T: --brlen, --pmsf, --pmsf-tree, --site-rates and --terrace do not go with mixtures \
             of trees"
        );
        let reader = common::reader();
        let alignment = reader.alignment(&self.msa)?;
        let patterns = Patterns::new(&alignment, model.name().alphabet());
        let patterns = patterns.with_context(|| self.msa.display().to_string())?;
        reader.findings(&self.msa, &alignment, [&patterns]);
        let names = alignment.names();
        let trees = match self.opt {
            Fit::Nothing => reader.measured_trees(&self.tree, names)?,
            _ => reader.trees_of(&self.tree, names)?,
        };
        let (found, wanted) = (trees.len(), model.trees().unwrap_or(trees.len()));
        ensure!(
            found == wanted,
            "{}: {wanted} weights, and {} has trees in another number: {found}",
            self.model,
            self.tree.display()
        );
        let fit = (self.opt, self.epsilon);
        let found = evaluate_trees(&trees, names, &patterns, model, fit, pool)?;
        self.report_classes(
            found,
            &patterns,
            [names.len(), alignment.sites()],
            pool,
            began,
        )
    }

    /// Writes the files of classes, and reports them.
    fn report_classes(
        &self,
        found: ClassedEvaluation,
        patterns: &Patterns,
        [taxa, sites]: [usize; 2],
        pool: &Pool,
        began: Instant,
    ) -> Result<Outcome> {
        write(&self.site_lnl, || found.site_table(patterns, sites))?;
        let classes = &self.tables.site_posteriors;
        write(classes, || found.class_table(patterns))?;
        write(&self.tree_out, || common::lines(&found.newicks))?;
        let report = ClassesJson {
            found,
            taxa,
            sites,
            engines: pool.engines(),
            wall_s: began.elapsed().as_secs_f64(),
        };
        output::report(self.json, &report, |report| report.found.text())
    }

    /// Under a nonreversible model, at the trees' roots.
    fn rooted(&self, model: &RootedModelName, pool: &Pool, began: Instant) -> Result<Outcome> {
        ensure!(
            self.brlen.is_none() && self.pmsf.is_none() && !self.tables.any() && !self.terrace,
            "{}: --brlen, --pmsf, --pmsf-tree, --site-posteriors, --site-rates and --terrace do \
             not go with nonreversible models and populations",
            self.model
        );
        if model.is_of_populations() {
            return self.populations(model, pool, began);
        }
        let reader = common::reader();
        let alignment = reader.alignment(&self.msa)?;
        let patterns = Patterns::new(&alignment, model.alphabet());
        let patterns = patterns.with_context(|| self.msa.display().to_string())?;
        let findings = reader.findings(&self.msa, &alignment, [&patterns]);
        let mut all = Rooted::default();
        for (newick, shown) in self.rooted_trees()? {
            let tree = RootedTree::from_newick(&newick, alignment.names());
            let tree = tree.with_context(|| shown.clone())?;
            let start = RootedModel::new(model.clone(), &patterns);
            let need = rooted_bytes(newick.nodes().len(), patterns.len(), &start);
            limits::check_work("the likelihood of a rooted tree", need)?;
            let one = RootedLikelihood::new(tree, &patterns, start, pool)?;
            self.evaluate_rooted(one, &mut all).context(shown)?;
        }
        self.write_rooted(&all, alignment.sites())?;
        let report = RootedJson {
            taxa: patterns.taxa(),
            sites: findings.sites,
            undetermined_sites: findings.undetermined_sites.len(),
            undetermined_taxa: findings.undetermined_taxa.len(),
            identical_taxa: findings.identical_taxa.len(),
            patterns: patterns.len(),
            ..RootedJson::new(all.trees, pool.engines(), began)
        };
        output::report(self.json, &report, RootedJson::text)
    }

    /// Under a model of populations, whose counts are in the file.
    fn populations(&self, model: &RootedModelName, pool: &Pool, began: Instant) -> Result<Outcome> {
        let text = common::reader().text(&self.msa)?;
        let place = || self.msa.display().to_string();
        let counts = Counts::parse(&text).with_context(place)?;
        if counts.unread() > 0 {
            let count = counts.unread();
            tracing::warn!(
                "{}: {count} counts of three bases or four: read as unknown",
                place()
            );
        }
        let majority = Patterns::new(counts.majority(), model.alphabet()).with_context(place)?;
        let (names, sites) = (counts.majority().names(), counts.majority().sites());
        let mut all = Rooted::default();
        for (newick, shown) in self.rooted_trees()? {
            let tree = RootedTree::from_any(&newick, names).with_context(|| shown.clone())?;
            let start = RootedModel::new(model.clone(), &majority);
            let need = rooted_bytes(newick.nodes().len(), sites, &start);
            limits::check_work("the likelihood of populations", need)?;
            let one = RootedLikelihood::of_counts(tree, &counts, start, pool)?;
            self.evaluate_rooted(one, &mut all).context(shown)?;
        }
        self.write_rooted(&all, sites)?;
        let report = RootedJson {
            taxa: names.len(),
            sites,
            ..RootedJson::new(all.trees, pool.engines(), began)
        };
        output::report(self.json, &report, RootedJson::text)
    }

    /// The file's trees as they were read, each with its place.
    fn rooted_trees(&self) -> Result<Vec<(Newick, String)>> {
        let reader = common::reader();
        let file = reader.trees(&self.tree)?;
        if self.opt == Fit::Nothing {
            file.warn_of_lengths(reader);
        }
        let trees = file.newicks.into_iter().enumerate();
        let place = |index: usize| format!("{}, tree {}", self.tree.display(), index + 1);
        Ok(trees.map(|(index, tree)| (tree, place(index))).collect())
    }

    /// Evaluates a rooted tree, or fits it first, and adds it to `all`.
    fn evaluate_rooted(&self, mut one: RootedLikelihood<&Pool>, all: &mut Rooted) -> Result<()> {
        let lnl = match self.opt {
            Fit::Nothing => one.evaluate()?,
            Fit::Branches => one.optimise_lengths(self.epsilon, ROUNDS_MAX)?,
            Fit::All => one.optimise(self.epsilon)?,
        };
        all.trees.push(RootedRow {
            lnl,
            tree_length: one.tree().total_length(),
            models: [one.model().to_string()],
            scales: [1.0],
            root_frequencies: one.root_frequencies().to_vec(),
        });
        all.newicks.push(one.tree().to_newick());
        if self.site_lnl.is_some() {
            all.columns.push(one.site_log_likelihoods()?);
        }
        Ok(())
    }

    fn write_rooted(&self, all: &Rooted, sites: usize) -> Result<()> {
        write(&self.site_lnl, || site_columns(&all.columns, sites))?;
        write(&self.tree_out, || common::lines(&all.newicks))
    }

    /// Writes the requested files; `names` are the partitions'.
    fn write(&self, evaluated: &[Evaluation], names: &[String]) -> Result<()> {
        write(&self.site_lnl, || site_table(evaluated))?;
        write(&self.tree_out, || {
            common::lines(evaluated.iter().flat_map(|one| &one.newicks))
        })?;
        if !self.tables.any() {
            return Ok(());
        }
        let [one] = evaluated else {
            bail!("--site-posteriors and --site-rates are of one tree, and --tree has several");
        };
        self.tables.write(&one.posteriors, names)?;
        Ok(())
    }
}

/// Writes the text to the file, where one is named.
fn write(path: &Option<PathBuf>, text: impl FnOnce() -> String) -> Result<()> {
    let path: Option<&Path> = path.as_deref();
    path.map_or(Ok(()), |path| output::file(path, &text()))
}

/// Log-likelihoods of the columns on a line each, of several trees with tabs between.
fn site_columns(trees: &[Vec<f64>], sites: usize) -> String {
    let cell = |tree: &Vec<f64>, site: usize| {
        let lnl = tree.get(site).copied().unwrap_or_default();
        format!("{lnl:.9}")
    };
    common::lines((0..sites).map(|site| {
        let cells: Vec<String> = trees.iter().map(|tree| cell(tree, site)).collect();
        cells.join("\t")
    }))
}

/// Rounds of lengths under a nonreversible model.
const ROUNDS_MAX: usize = 1_000;
/// Cuts that the count of a terrace tries: some seconds.
const CUTS_MAX: u64 = 1_000_000;

#[derive(serde::Serialize)]
struct ClassesJson {
    #[serde(flatten)]
    found: ClassedEvaluation,
    taxa: usize,
    sites: usize,
    engines: usize,
    wall_s: f64,
}

/// Of a tree under a nonreversible model.
#[derive(serde::Serialize)]
struct RootedRow {
    lnl: f64,
    tree_length: f64,
    models: [String; 1],
    scales: [f64; 1],
    root_frequencies: Vec<f64>,
}

/// All trees of a run under such a model.
#[derive(Default)]
struct Rooted {
    trees: Vec<RootedRow>,
    newicks: Vec<Newick>,
    /// Log-likelihoods of the columns, if they are wanted.
    columns: Vec<Vec<f64>>,
}

#[derive(Default, serde::Serialize)]
struct RootedJson {
    lnl: f64,
    taxa: usize,
    sites: usize,
    undetermined_sites: usize,
    undetermined_taxa: usize,
    identical_taxa: usize,
    patterns: usize,
    /// Number of the best of `trees`, from 1.
    best_tree: usize,
    trees: Vec<RootedRow>,
    engines: usize,
    wall_s: f64,
}

impl RootedJson {
    /// Of trees alone: what is said of the data is 0.
    fn new(trees: Vec<RootedRow>, engines: usize, began: Instant) -> Self {
        // The first of the best, so that the file's order breaks ties.
        let (mut best, mut lnl) = (0, f64::NEG_INFINITY);
        for (at, one) in trees.iter().enumerate() {
            if one.lnl > lnl {
                (best, lnl) = (at, one.lnl);
            }
        }
        Self {
            lnl,
            best_tree: best + 1,
            trees,
            engines,
            wall_s: began.elapsed().as_secs_f64(),
            ..Self::default()
        }
    }

    /// The same for people.
    fn text(&self) -> Text {
        let mut text = Text::new();
        for (at, tree) in self.trees.iter().enumerate() {
            if self.trees.len() > 1 {
                text.fact("tree", (at + 1).to_string());
            }
            text.fact("log-likelihood", format!("{:.6}", tree.lnl));
            text.fact("model", tree.models[0].clone());
            let shares = tree.root_frequencies.iter();
            let shares: Vec<String> = shares.map(|share| format!("{share:.6}")).collect();
            // Those of populations would fill a screen.
            if shares.len() <= 20 {
                text.fact("root frequencies", shares.join(" "));
            }
            text.fact("tree length", format!("{:.6}", tree.tree_length));
        }
        text
    }
}
