//! Given trees under a model of any kind: the likelihood of each, and what their sites say; an
//! alignment that evolves along one.
//!
//! Must stay true: options that a kind of model does not have are refused before the work, and so
//! is work that takes more memory than is allowed.

use crate::report::EvaluationReport;
use crate::{WorkflowError, refuse};
use serde::Serialize;
use sidecore_offload::Pool;
use sidecore_phylo::constraint::{terrace, with_characters};
use sidecore_phylo::evaluation::{
    Evaluation, EvaluationOptions, Fit, class_table, evaluate, evaluate_rooted, rate_table,
    site_table,
};
use sidecore_phylo::heterotachy::{
    self, ClassedEvaluation, ClassedModel, TreesModel, evaluate_trees,
};
use sidecore_phylo::io::data::{At, Data, DataError, Reader, check_lengths, linkage, model_name};
use sidecore_phylo::io::input::model_file;
use sidecore_phylo::likelihood::{Lengths, PartOptions};
use sidecore_phylo::model::Model;
use sidecore_phylo::msa::{Alignment, Findings, Patterns};
use sidecore_phylo::newick::Newick;
use sidecore_phylo::profiles;
use sidecore_phylo::rooted::{
    Counts, RootedLikelihood, RootedModel, RootedModelName, RootedTree, rooted_bytes,
};
use sidecore_phylo::simulate::{numbered_names, simulate, simulation_bytes, tree_of_seed};
use sidecore_phylo::tree::Tree;
use sidecore_terminal::Text;
use std::error::Error;
use std::path::Path;
use std::time::Instant;

/// Trees that are to be evaluated, as a user names them, and the means for it.
#[derive(Clone, Copy)]
pub struct Given<'g> {
    /// Reads the files.
    pub reader: Reader,
    /// The engines.
    pub pool: &'g Pool,
    /// The alignment; of a model of populations, their counts.
    pub msa: &'g Path,
    /// The model, a file of partitions, or `auto`.
    pub model: &'g str,
    /// The trees.
    pub trees: &'g Path,
    /// True if frequencies of sites take the place of the model's own.
    pub has_profiles: bool,
    /// Parameters to fit.
    pub fit: Fit,
    /// Gain in log-likelihood below which the fit ends.
    pub epsilon: f64,
    /// Linkage of the partitions' branch lengths.
    pub lengths: Option<Lengths>,
    /// More than the likelihoods.
    pub wanted: Wanted,
}

/// Wishes beyond the likelihoods of given trees.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted {
    /// Each column's log-likelihood.
    pub sites: bool,
    /// The probabilities of each column's classes.
    pub classes: bool,
    /// Each column's rate.
    pub rates: bool,
    /// The tree's terrace.
    pub terrace: bool,
}

/// Trees that were evaluated, for people and programs.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub struct Evaluated {
    found: Found,
    /// Names of the partitions.
    #[serde(skip)]
    names: Vec<String>,
}

#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Found {
    Trees(EvaluationReport),
    Classes(ClassedReport),
}

/// Trees under a model of classes with lengths or trees of their own.
#[derive(Debug, Serialize)]
struct ClassedReport {
    #[serde(flatten)]
    found: ClassedEvaluation,
    taxa: usize,
    sites: usize,
    engines: usize,
    wall_s: f64,
    #[serde(skip)]
    patterns: Box<Patterns>,
}

impl Evaluated {
    /// The same for people.
    #[must_use]
    pub fn text(&self) -> Text {
        match &self.found {
            Found::Trees(report) => report.text(),
            Found::Classes(report) => report.found.text(),
        }
    }

    /// Each column's log-likelihood on a line, if wanted: of several trees one after the other,
    /// with tabs between.
    #[must_use]
    pub fn site_table(&self) -> String {
        match &self.found {
            Found::Trees(report) => site_table(&report.trees),
            Found::Classes(report) => report.found.site_table(&report.patterns, report.sites),
        }
    }

    /// The probabilities of each column's classes, if wanted, as a table with tabs between.
    #[must_use]
    pub fn class_table(&self) -> String {
        match &self.found {
            Found::Trees(report) => class_table(&report.trees[0].posteriors, &self.names),
            Found::Classes(report) => report.found.class_table(&report.patterns),
        }
    }

    /// The columns' rates, if wanted, as a table with tabs between.
    #[must_use]
    pub fn rate_table(&self) -> String {
        match &self.found {
            Found::Trees(report) => rate_table(&report.trees[0].posteriors, &self.names),
            Found::Classes(_) => String::new(),
        }
    }

    /// The trees with the lengths used, a line each; of unlinked lengths a line for each partition.
    #[must_use]
    pub fn trees(&self) -> String {
        let lines = |newicks: &[String]| -> String {
            newicks.iter().map(|tree| format!("{tree}\n")).collect()
        };
        match &self.found {
            Found::Trees(report) => report.trees.iter().map(|one| lines(&one.newicks)).collect(),
            Found::Classes(report) => lines(&report.found.newicks),
        }
    }
}

impl<'g> Given<'g> {
    /// Reads and evaluates them. `choose` gives the partition of the model `auto`, `profiles` the
    /// frequencies of sites, if there are any. Blocks.
    ///
    /// # Errors
    /// [`WorkflowError`].
    pub fn evaluate<E: Into<Box<dyn Error + Send + Sync>>>(
        &self,
        choose: impl FnOnce(&Alignment) -> Result<PartOptions, E>,
        profiles: impl FnOnce() -> Result<Option<String>, E>,
    ) -> Result<Evaluated, WorkflowError> {
        let began = Instant::now();
        let mut evaluated = if let Some(model) = ClassedModel::parse(self.model, &mut model_file)? {
            self.classes(&model)?
        } else if let Some(model) = TreesModel::parse(self.model, &mut model_file)? {
            self.mixture(&model)?
        } else if let Some(model) = RootedModelName::parse(self.model, &mut model_file)? {
            self.rooted(&model)?
        } else {
            self.partitioned(choose, profiles)?
        };
        let wall_s = match &mut evaluated.found {
            Found::Trees(report) => &mut report.wall_s,
            Found::Classes(report) => &mut report.wall_s,
        };
        *wall_s = began.elapsed().as_secs_f64();
        Ok(evaluated)
    }

    /// Under the models of an alignment's partitions.
    fn partitioned<E: Into<Box<dyn Error + Send + Sync>>>(
        &self,
        choose: impl FnOnce(&Alignment) -> Result<PartOptions, E>,
        profiles: impl FnOnce() -> Result<Option<String>, E>,
    ) -> Result<Evaluated, WorkflowError> {
        let mut data = self.reader.data(self.msa, self.model, choose)?;
        if let Some(text) = profiles().map_err(|error| WorkflowError::Step(error.into()))? {
            data.partitions = data.partitions.with_site_frequencies(&text)?;
        }
        let (names, parts) = (data.alignment.names(), &data.partitions.parts);
        let options = EvaluationOptions {
            fit: self.fit,
            epsilon: self.epsilon,
            lengths: linkage(self.lengths, parts).at(self.model)?,
            sites: self.wanted.sites.then(|| data.alignment.sites()),
            posteriors: self.wanted.classes || self.wanted.rates,
        };
        // All trees are validated before the first is evaluated.
        let is_measured = self.fit == Fit::Nothing;
        let trees = self
            .reader
            .trees_to_evaluate(self.trees, names, is_measured, options.sites)?;
        if options.posteriors && trees.len() > 1 {
            return refuse(
                "--site-posteriors and --site-rates are of one tree, and --tree has several",
            );
        }
        let there = parts.iter().map(|part| with_characters(&part.patterns));
        let there: Vec<Vec<bool>> = there.collect();
        let mut evaluated = Vec::new();
        for tree in trees {
            // Counted first: a tree without a terrace is refused before the work.
            let terrace = match self.wanted.terrace {
                true => Some(terrace(&tree, &there, CUTS_MAX).at("--terrace")?),
                false => None,
            };
            // Each on a likelihood of its own: parameters fitted to another tree do not affect it.
            let one = evaluate(tree, names, parts.clone(), &options, self.pool)?;
            evaluated.push(Evaluation { terrace, ..one });
        }
        let patterns = parts.iter().map(|part| part.patterns.len()).sum();
        let size = [names.len(), data.alignment.sites(), patterns];
        let names = data.partitions.names;
        Ok(self.report(evaluated, names, &data.findings, size))
    }

    /// Under a model whose classes have lengths of their own.
    fn classes(&self, model: &ClassedModel) -> Result<Evaluated, WorkflowError> {
        self.check_mixture("+H", "classes of lengths")?;
        let (alignment, patterns, _) = self.reader.patterns(self.msa, model.first().alphabet())?;
        let trees = self.named(alignment.names())?;
        let classes = model.classes();
        if trees.len() != 1 && (trees.len() != classes || self.fit != Fit::Nothing) {
            return refuse(format!(
                "{} has {} trees: give one, or with --opt none one for each of {classes} classes",
                self.trees.display(),
                trees.len()
            ));
        }
        let (names, fit) = (alignment.names(), (self.fit, self.epsilon));
        let found = heterotachy::evaluate(&trees, names, &patterns, model, fit, self.pool)?;
        Ok(self.report_classes(found, &alignment, patterns))
    }

    /// Under a mixture of the file's trees.
    fn mixture(&self, model: &TreesModel) -> Result<Evaluated, WorkflowError> {
        self.check_mixture("+T", "mixtures of trees")?;
        let (alignment, patterns, _) = self.reader.patterns(self.msa, model.name().alphabet())?;
        let trees = self.named(alignment.names())?;
        let (found, wanted) = (trees.len(), model.trees().unwrap_or(trees.len()));
        if found != wanted {
            return refuse(format!(
                "{}: {wanted} weights, and {} has trees in another number: {found}",
                self.model,
                self.trees.display()
            ));
        }
        let (names, fit) = (alignment.names(), (self.fit, self.epsilon));
        let found = evaluate_trees(&trees, names, &patterns, model, fit, self.pool)?;
        Ok(self.report_classes(found, &alignment, patterns))
    }

    /// Refuses what does not go with these mixtures.
    fn check_mixture(&self, suffix: &str, mixtures: &str) -> Result<(), WorkflowError> {
        let Wanted { rates, terrace, .. } = self.wanted;
        match self.lengths.is_some() || self.has_profiles || rates || terrace {
            true => refuse(format!(
                "{suffix}: --brlen, --pmsf, --pmsf-tree, --site-rates and --terrace do not go \
                 with {mixtures}"
            )),
            false => Ok(()),
        }
    }

    /// The trees, with lengths where these are not fitted.
    fn named(&self, names: &[String]) -> Result<Vec<Tree>, DataError> {
        self.reader
            .trees_of(self.trees, names, self.fit == Fit::Nothing)
    }

    /// Under a nonreversible model, at the trees' roots.
    fn rooted(&self, model: &RootedModelName) -> Result<Evaluated, WorkflowError> {
        let wanted = self.wanted;
        let has_more = wanted.classes || wanted.rates || wanted.terrace;
        if self.lengths.is_some() || self.has_profiles || has_more {
            return refuse(format!(
                "{}: --brlen, --pmsf, --pmsf-tree, --site-posteriors, --site-rates and --terrace \
                 do not go with nonreversible models and populations",
                self.model
            ));
        }
        if model.is_of_populations() {
            return self.populations(model);
        }
        let (alignment, patterns, findings) = self.reader.patterns(self.msa, model.alphabet())?;
        let evaluated = self.each_rooted(|newick, shown| {
            let tree = RootedTree::from_newick(newick, alignment.names()).at(shown)?;
            let start = RootedModel::new(model.clone(), &patterns);
            let need = rooted_bytes(newick.nodes().len(), patterns.len(), &start);
            let memory = self.reader.memory;
            memory.check_work("the likelihood of a rooted tree", need)?;
            Ok(RootedLikelihood::new(tree, &patterns, start, self.pool)?)
        })?;
        let size = [patterns.taxa(), alignment.sites(), patterns.len()];
        Ok(self.report(evaluated, Vec::new(), &findings, size))
    }

    /// Under a model of populations, whose counts are in the file.
    fn populations(&self, model: &RootedModelName) -> Result<Evaluated, WorkflowError> {
        let place = self.msa.display();
        let counts = Counts::parse(&self.reader.text(self.msa)?).at(&place)?;
        if counts.unread() > 0 {
            let count = counts.unread();
            (self.reader.warn)(&format!(
                "{place}: {count} counts of three bases or four: read as unknown"
            ));
        }
        let majority = Patterns::new(counts.majority(), model.alphabet()).at(place)?;
        let (names, sites) = (counts.majority().names(), counts.majority().sites());
        let evaluated = self.each_rooted(|newick, shown| {
            let tree = RootedTree::from_any(newick, names).at(shown)?;
            let start = RootedModel::new(model.clone(), &majority);
            let need = rooted_bytes(newick.nodes().len(), sites, &start);
            let memory = self.reader.memory;
            memory.check_work("the likelihood of populations", need)?;
            Ok(RootedLikelihood::of_counts(
                tree, &counts, start, self.pool,
            )?)
        })?;
        let size = [names.len(), sites, 0];
        Ok(self.report(evaluated, Vec::new(), &Findings::default(), size))
    }

    /// Evaluates the file's trees as they were read, each by the likelihood that it gets; errors
    /// name its place.
    fn each_rooted(
        &self,
        likelihood: impl Fn(&Newick, &str) -> Result<RootedLikelihood<&'g Pool>, WorkflowError>,
    ) -> Result<Vec<Evaluation>, WorkflowError> {
        let file = self.reader.trees(self.trees)?;
        if self.fit == Fit::Nothing {
            file.warn_of_lengths(self.reader);
        }
        let each = file.newicks.iter().enumerate().map(|(index, newick)| {
            let shown = format!("{}, tree {}", self.trees.display(), index + 1);
            let one = likelihood(newick, &shown)?;
            let found = evaluate_rooted(one, self.fit, self.epsilon, self.wanted.sites);
            Ok(found.at(shown)?)
        });
        each.collect()
    }

    fn report(
        &self,
        evaluated: Vec<Evaluation>,
        names: Vec<String>,
        findings: &Findings,
        size: [usize; 3],
    ) -> Evaluated {
        let engines = self.pool.engines();
        let report = EvaluationReport::new(evaluated, findings, size, engines);
        let found = Found::Trees(report);
        Evaluated { found, names }
    }

    fn report_classes(
        &self,
        found: ClassedEvaluation,
        alignment: &Alignment,
        patterns: Patterns,
    ) -> Evaluated {
        let found = Found::Classes(ClassedReport {
            found,
            taxa: alignment.names().len(),
            sites: alignment.sites(),
            engines: self.pool.engines(),
            wall_s: 0.0,
            patterns: Box::new(patterns),
        });
        let names = Vec::new();
        Evaluated { found, names }
    }
}

/// The profile that a mixture gives each site, fitted on the guide tree of a file, as text. Blocks.
///
/// # Errors
/// [`WorkflowError`].
pub fn guided_profiles(
    reader: Reader,
    tree: &Path,
    data: Data,
    pool: &Pool,
) -> Result<String, WorkflowError> {
    let [part] = &data.partitions.parts[..] else {
        return refuse("--pmsf-tree: the alignment must have one part, under a mixture as --model");
    };
    // Refused before the fit, which may take hours.
    part.model.name().of_site_frequencies()?;
    let tree = reader.trees(tree)?.only_of(data.alignment.names())?;
    let text = profiles::of_guide_tree(tree, part.clone(), pool);
    text.map_err(|error| WorkflowError::Step(error.into()))
}

/// The tree along which an alignment evolves.
#[derive(Debug, Clone, Copy)]
pub enum Along<'a> {
    /// That of a file.
    File(&'a Path),
    /// A random one.
    Random {
        /// Its taxa, named `t1` and so on.
        taxa: usize,
        /// Mean length of its branches.
        branch_mean: f64,
    },
}

/// Evolves an alignment of `sites` columns under a model along a tree; returns that, too, as
/// Newick. Blocks.
///
/// # Errors
/// [`WorkflowError`].
pub fn evolve(
    reader: Reader,
    along: Along<'_>,
    model: &str,
    sites: usize,
    seed: u64,
) -> Result<(Alignment, String), WorkflowError> {
    let model = Model::without_alignment(model_name(model)?);
    let (tree, names) = match along {
        Along::File(path) => {
            let file = reader.trees(path)?;
            let names = file.only()?.tip_labels();
            let tree = file.only_of(&names)?;
            check_lengths(&tree).at(path.display())?;
            file.warn_of_lengths(reader);
            (tree, names)
        }
        Along::Random { taxa, branch_mean } => {
            let tree = tree_of_seed(taxa, branch_mean, seed);
            (tree, numbered_names(taxa))
        }
    };
    let taxa = tree.taxa();
    let need = simulation_bytes(&model, taxa, sites);
    let what = format!("an alignment of {taxa} taxa");
    reader.memory.check_work(&what, need)?;
    let alignment = simulate(&tree, &names, &model, sites, seed);
    let alignment = alignment.map_err(|error| WorkflowError::Step(error.into()))?;
    Ok((alignment, tree.to_newick(&names)))
}

/// Cuts that the count of a terrace tries: some seconds.
const CUTS_MAX: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use sidecore_phylo::io::input::Memory;

    #[test]
    fn an_alignment_evolves_along_a_files_tree_or_a_random_one() {
        let reader = Reader {
            memory: Memory::new(None),
            warn: |_| {},
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tree");
        std::fs::write(&path, "(x:0.1,y:0.2,z:0.3);").unwrap();
        let (given, tree) = evolve(reader, Along::File(&path), "JC", 9, 1).unwrap();
        assert_eq!((given.sites(), given.names().len()), (9, 3));
        assert!(tree.contains("x:"), "{tree}");
        let random = Along::Random {
            taxa: 5,
            branch_mean: 0.1,
        };
        let (made, _) = evolve(reader, random, "JC", 4, 1).unwrap();
        assert_eq!(made.names()[4], "t5");
    }
}
