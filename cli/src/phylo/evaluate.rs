//! `sidecore phylo evaluate` and `test`: given trees under a model.

use super::common::{self, reader};
use super::limits;
use crate::{Outcome, output};
use anyhow::{Context, Result, bail, ensure};
use sidecore_offload::Pool;
use sidecore_phylo::analysis::report::EvaluationReport;
use sidecore_phylo::constraint::{terrace, with_characters};
use sidecore_phylo::evaluation::{
    Evaluation, EvaluationOptions, Fit, evaluate, evaluate_rooted, site_table,
};
use sidecore_phylo::heterotachy::{
    self, ClassedEvaluation, ClassedModel, TreesModel, evaluate_trees,
};
use sidecore_phylo::io::data::{classed_model, rooted_model, trees_model};
use sidecore_phylo::likelihood::Lengths;
use sidecore_phylo::msa::{Alignment, Findings, Patterns};
use sidecore_phylo::newick::Newick;
use sidecore_phylo::rooted::{
    Counts, RootedLikelihood, RootedModel, RootedModelName, RootedTree, rooted_bytes,
};
use sidecore_phylo::topology::{self, SiteTable, Verdict, compare, fitted_sites};
use sidecore_phylo::tree::Tree;
use sidecore_terminal::progress::{advance, counted};
use sidecore_terminal::values::number;
use std::path::PathBuf;
use std::time::Instant;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    data: common::DataArgs,
    /// Tree or trees, in Newick or NEXUS, with the alignment's taxa; each is evaluated by itself
    #[arg(long, value_name = "FILE")]
    tree: PathBuf,
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
    #[command(flatten)]
    run: common::RunArgs,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        // Before the files are read, which may take minutes: --engines may be refused.
        let pool = self.run.pool()?;
        let began = Instant::now();
        let model = &self.data.model;
        if let Some(model) = classed_model(model)? {
            return self.classes(&model, &pool, began);
        }
        if let Some(model) = trees_model(model)? {
            return self.mixture(&model, &pool, began);
        }
        if let Some(model) = rooted_model(model)? {
            return self.rooted(&model, &pool, began);
        }
        let mut data = self.data.read()?;
        if let Some(text) = self.pmsf.text(&self.data, self.run.engines)? {
            data.partitions = data.partitions.with_site_frequencies(&text)?;
        }
        let (names, parts) = (data.alignment.names(), &data.partitions.parts);
        let lengths = self.data.linkage(self.brlen, parts)?;
        let is_measured = self.opt == Fit::Nothing;
        let sites = self.site_lnl.is_some().then(|| data.alignment.sites());
        // All trees are validated before the first is evaluated.
        let trees = reader().trees_to_evaluate(&self.tree, names, is_measured, sites)?;
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
        output::report(self.run.json, &report, EvaluationReport::text)
    }

    /// Under a model whose classes have lengths of their own.
    fn classes(&self, model: &ClassedModel, pool: &Pool, began: Instant) -> Result<Outcome> {
        self.check_mixture("+H", "classes of lengths")?;
        let (alignment, patterns, _) = self.data.patterns(model.first().alphabet())?;
        let trees = self.trees(alignment.names())?;
        let classes = model.classes();
        ensure!(
            trees.len() == 1 || trees.len() == classes && self.opt == Fit::Nothing,
            "{} has {} trees: give one, or with --opt none one for each of {classes} classes",
            self.tree.display(),
            trees.len()
        );
        let fit = (self.opt, self.epsilon);
        let names = alignment.names();
        let found = heterotachy::evaluate(&trees, names, &patterns, model, fit, pool)?;
        self.report_classes(found, &alignment, &patterns, pool, began)
    }

    /// Under a mixture of the file's trees.
    fn mixture(&self, model: &TreesModel, pool: &Pool, began: Instant) -> Result<Outcome> {
        self.check_mixture("+T", "mixtures of trees")?;
        let (alignment, patterns, _) = self.data.patterns(model.name().alphabet())?;
        let trees = self.trees(alignment.names())?;
        let (found, wanted) = (trees.len(), model.trees().unwrap_or(trees.len()));
        ensure!(
            found == wanted,
            "{}: {wanted} weights, and {} has trees in another number: {found}",
            self.data.model,
            self.tree.display()
        );
        let fit = (self.opt, self.epsilon);
        let found = evaluate_trees(&trees, alignment.names(), &patterns, model, fit, pool)?;
        self.report_classes(found, &alignment, &patterns, pool, began)
    }

    /// Refuses what does not go with these mixtures.
    fn check_mixture(&self, suffix: &str, mixtures: &str) -> Result<()> {
        ensure!(
            self.brlen.is_none()
                && self.pmsf.is_none()
                && self.tables.site_rates.is_none()
                && !self.terrace,
            "{suffix}: --brlen, --pmsf, --pmsf-tree, --site-rates and --terrace do not go with \
             {mixtures}"
        );
        Ok(())
    }

    /// The trees, with lengths where these are not fitted.
    fn trees(&self, names: &[String]) -> Result<Vec<Tree>> {
        Ok(match self.opt {
            Fit::Nothing => reader().measured_trees(&self.tree, names)?,
            _ => reader().trees_of(&self.tree, names)?,
        })
    }

    /// Writes the files of classes, and reports them.
    fn report_classes(
        &self,
        found: ClassedEvaluation,
        alignment: &Alignment,
        patterns: &Patterns,
        pool: &Pool,
        began: Instant,
    ) -> Result<Outcome> {
        let (taxa, sites) = (alignment.names().len(), alignment.sites());
        output::wanted(&self.site_lnl, || found.site_table(patterns, sites))?;
        let classes = &self.tables.site_posteriors;
        output::wanted(classes, || found.class_table(patterns))?;
        output::wanted(&self.tree_out, || common::lines(&found.newicks))?;
        let report = ClassesJson {
            found,
            taxa,
            sites,
            engines: pool.engines(),
            wall_s: began.elapsed().as_secs_f64(),
        };
        output::report(self.run.json, &report, |report| report.found.text())
    }

    /// Under a nonreversible model, at the trees' roots.
    fn rooted(&self, model: &RootedModelName, pool: &Pool, began: Instant) -> Result<Outcome> {
        ensure!(
            self.brlen.is_none() && self.pmsf.is_none() && !self.tables.any() && !self.terrace,
            "{}: --brlen, --pmsf, --pmsf-tree, --site-posteriors, --site-rates and --terrace do \
             not go with nonreversible models and populations",
            self.data.model
        );
        if model.is_of_populations() {
            return self.populations(model, pool, began);
        }
        let (alignment, patterns, findings) = self.data.patterns(model.alphabet())?;
        let evaluated = self.evaluate_rooted(|newick, shown| {
            let tree = RootedTree::from_newick(newick, alignment.names());
            let tree = tree.with_context(|| shown.to_owned())?;
            let start = RootedModel::new(model.clone(), &patterns);
            let need = rooted_bytes(newick.nodes().len(), patterns.len(), &start);
            limits::check_work("the likelihood of a rooted tree", need)?;
            Ok(RootedLikelihood::new(tree, &patterns, start, pool)?)
        })?;
        let size = [patterns.taxa(), alignment.sites(), patterns.len()];
        self.report_rooted(evaluated, &findings, size, pool, began)
    }

    /// Under a model of populations, whose counts are in the file.
    fn populations(&self, model: &RootedModelName, pool: &Pool, began: Instant) -> Result<Outcome> {
        let msa = &self.data.msa;
        let place = || msa.display().to_string();
        let counts = Counts::parse(&reader().text(msa)?).with_context(place)?;
        if counts.unread() > 0 {
            let count = counts.unread();
            tracing::warn!(
                "{}: {count} counts of three bases or four: read as unknown",
                place()
            );
        }
        let majority = Patterns::new(counts.majority(), model.alphabet()).with_context(place)?;
        let (names, sites) = (counts.majority().names(), counts.majority().sites());
        let evaluated = self.evaluate_rooted(|newick, shown| {
            let tree = RootedTree::from_any(newick, names).with_context(|| shown.to_owned())?;
            let start = RootedModel::new(model.clone(), &majority);
            let need = rooted_bytes(newick.nodes().len(), sites, &start);
            limits::check_work("the likelihood of populations", need)?;
            Ok(RootedLikelihood::of_counts(tree, &counts, start, pool)?)
        })?;
        let size = [names.len(), sites, 0];
        self.report_rooted(evaluated, &Findings::default(), size, pool, began)
    }

    /// Evaluates the file's trees as they were read, each by the likelihood that it gets; errors
    /// name its place.
    fn evaluate_rooted<'p>(
        &self,
        likelihood: impl Fn(&Newick, &str) -> Result<RootedLikelihood<&'p Pool>>,
    ) -> Result<Vec<Evaluation>> {
        let file = reader().trees(&self.tree)?;
        if self.opt == Fit::Nothing {
            file.warn_of_lengths(reader());
        }
        let each = file.newicks.iter().enumerate().map(|(index, newick)| {
            let shown = format!("{}, tree {}", self.tree.display(), index + 1);
            let one = likelihood(newick, &shown)?;
            let found = evaluate_rooted(one, self.opt, self.epsilon, self.site_lnl.is_some());
            found.context(shown)
        });
        each.collect()
    }

    /// Writes the files of rooted trees, and reports them.
    fn report_rooted(
        &self,
        evaluated: Vec<Evaluation>,
        findings: &Findings,
        size: [usize; 3],
        pool: &Pool,
        began: Instant,
    ) -> Result<Outcome> {
        self.write(&evaluated, &[])?;
        let wall_s = began.elapsed().as_secs_f64();
        let report = EvaluationReport::of(evaluated, findings, size, pool.engines(), wall_s);
        output::report(self.run.json, &report, EvaluationReport::text)
    }

    /// Writes the requested files; `names` are the partitions'.
    fn write(&self, evaluated: &[Evaluation], names: &[String]) -> Result<()> {
        output::wanted(&self.site_lnl, || site_table(evaluated))?;
        output::wanted(&self.tree_out, || {
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

const GAIN: &str = "a number from 0.000000001 to 1000";
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

#[derive(clap::Args)]
pub(crate) struct TestArgs {
    #[command(flatten)]
    data: common::DataArgs,
    /// Trees to compare, in Newick or NEXUS, with the alignment's taxa
    #[arg(long, value_name = "FILE")]
    trees: PathBuf,
    /// Replicates; the AU test makes as many of each of ten sizes
    #[arg(
        long,
        value_name = "N",
        default_value = "50000",
        value_parser = clap::value_parser!(u32).range(100..=1_000_000)
    )]
    replicates: u32,
    /// Seed of the replicates
    #[arg(long, value_name = "S", default_value = "1")]
    seed: u64,
    #[command(flatten)]
    run: common::RunArgs,
}

impl TestArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        let pool = self.run.pool()?;
        let data = self.data.read()?;
        let trees = reader().trees_of(&self.trees, data.alignment.names())?;
        let shown = || self.trees.display().to_string();
        if trees.len() < 2 {
            let trees = trees.len();
            return Err(topology::TopologyError::TooFew { trees }).with_context(shown);
        }
        let cells = (trees.len() as u64).saturating_mul(data.alignment.sites() as u64);
        limits::check_work("the trees' sites", cells.saturating_mul(SITE_BYTES))?;
        let parts = data.partitions.parts;
        let lengths = self.data.linkage(None, &parts)?;
        let sites = counted(2 * trees.len() as u64, "likelihoods", |bar| {
            fitted_sites(parts, lengths, trees, &pool, || bar.inc(1))
        })?;
        let table = SiteTable::new(&sites)?;
        let options = topology::Options {
            replicates: self.replicates as usize,
            seed: self.seed,
        };
        let verdicts = counted(0, "replicates", |bar| {
            compare(&table, &options, &pool, |done, all| advance(bar, done, all))
        });
        let report = Json {
            trees: verdicts.with_context(shown)?,
            sites: table.sites(),
            replicates: self.replicates,
            seed: self.seed,
        };
        output::report(self.run.json, &report, |report| {
            topology::text(&report.trees)
        })
    }
}

#[derive(serde::Serialize)]
struct Json {
    trees: Vec<Verdict>,
    sites: usize,
    replicates: u32,
    seed: u64,
}

/// Of a site's log-likelihood, kept three times.
const SITE_BYTES: u64 = 24;
