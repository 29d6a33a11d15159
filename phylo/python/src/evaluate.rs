//! The likelihood of a tree, and what is made of it: tests, ancestors, supports, places.

use crate::alignment::{Alignment, doubles};
use crate::interrupt::{Stoppable, on_engines};
use crate::parts::{self, PhyloError, TreeText, choose, refuse};
use pyo3::prelude::*;
use sidecore_offload::Pool;
use sidecore_phylo::analysis::supports::{AlignmentKind, AlignmentSupport, Support, SupportReport};
use sidecore_phylo::ancestors::AncestralSequences;
use sidecore_phylo::evaluation::{self, EvaluationOptions, Fit};
use sidecore_phylo::likelihood::LikelihoodError;
use sidecore_phylo::placement::{self, Queries};
use sidecore_phylo::support::Reference;
use sidecore_phylo::topology::{self, SiteTable, TopologyError, fitted_sites};
use sidecore_sys::width::ToUsize;

/// A tree's likelihood, and the fitted parameters.
#[pyclass(frozen, module = "sidecore_phylo")]
pub(crate) struct Evaluation {
    /// The log-likelihood.
    #[pyo3(get)]
    pub(crate) log_likelihood: f64,
    /// The tree with the lengths used, in Newick; of unlinked lengths the first partition's.
    #[pyo3(get)]
    pub(crate) tree: String,
    /// The same with each partition's lengths, where these are unlinked; else that tree alone.
    #[pyo3(get)]
    pub(crate) trees: Vec<String>,
    /// Sum of the branch lengths.
    #[pyo3(get)]
    pub(crate) tree_length: f64,
    /// Each partition's model with all values, which can be given as a model again.
    #[pyo3(get)]
    pub(crate) models: Vec<String>,
    pub(crate) sites: Vec<f64>,
    pub(crate) rates: Option<Vec<f64>>,
    pub(crate) root: Option<Vec<f64>>,
}

/// The parts of an evaluation, in the order of its fields, as pickle keeps them.
type State = (
    f64,
    String,
    Vec<String>,
    f64,
    Vec<String>,
    Vec<f64>,
    Option<Vec<f64>>,
    Option<Vec<f64>>,
);

#[pymethods]
impl Evaluation {
    /// From the parts that pickle keeps.
    #[new]
    fn new(state: State) -> Self {
        let (log_likelihood, tree, trees, tree_length, models, sites, rates, root) = state;
        Self {
            log_likelihood,
            tree,
            trees,
            tree_length,
            models,
            sites,
            rates,
            root,
        }
    }

    fn __getnewargs__(&self) -> (State,) {
        let state = (
            self.log_likelihood,
            self.tree.clone(),
            self.trees.clone(),
            self.tree_length,
            self.models.clone(),
            self.sites.clone(),
            self.rates.clone(),
            self.root.clone(),
        );
        (state,)
    }

    /// The tree, for whatever takes an object with this method.
    fn to_newick(&self) -> &str {
        &self.tree
    }

    /// Frequencies of the root's states under a nonreversible model or one of populations: a new
    /// array of float64; None under others.
    #[getter]
    fn root_frequencies<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let shares = self.root.as_ref();
        shares.map(|shares| doubles(py, shares)).transpose()
    }

    /// The log-likelihood of each column of the alignment: a new array of float64.
    #[getter]
    fn site_log_likelihoods<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        doubles(py, &self.sites)
    }

    /// The mean rate of each column, in units of the mean over all: a new array of float64; None
    /// unless asked for.
    #[getter]
    fn site_rates<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let rates = self.rates.as_ref();
        rates.map(|rates| doubles(py, rates)).transpose()
    }

    fn __repr__(&self) -> String {
        format!(
            "Evaluation(log_likelihood={}, models={:?})",
            self.log_likelihood, self.models
        )
    }
}

/// Evaluates a tree under models other than those of [`rooted`](crate::rooted).
#[expect(clippy::too_many_arguments, reason = "they are Python's keywords")]
pub(crate) fn evaluate(
    py: Python<'_>,
    alignment: &Alignment,
    tree: &str,
    model: &str,
    fit: Fit,
    brlen: Option<&str>,
    epsilon: f64,
    site_rates: bool,
    engines: Option<usize>,
) -> PyResult<Evaluation> {
    let names = alignment.inner.names();
    // A fit replaces the given lengths: then a missing one does not matter.
    if fit == Fit::Nothing {
        parts::warn_of_lengths(py, tree)?;
    }
    let tree = parts::tree(tree, names)?;
    let (parts, lengths) = parts::parts(py, &alignment.inner, model, brlen)?;
    let options = EvaluationOptions {
        fit,
        epsilon,
        lengths,
        sites: Some(alignment.inner.sites()),
        posteriors: site_rates,
    };
    let found = on_engines(py, engines, |runner| {
        evaluation::evaluate(tree, names, parts, &options, runner)
    })?;
    let rates = site_rates.then(|| {
        // Columns without a character, and those of no partition, have no rate.
        let mut rates = vec![f64::NAN; alignment.inner.sites()];
        for own in &found.posteriors {
            rates[own.site] = own.rate;
        }
        rates
    });
    Ok(Evaluation {
        log_likelihood: found.lnl,
        tree: found.newicks.first().cloned().unwrap_or_default(),
        trees: found.newicks,
        tree_length: found.tree_length,
        models: found.models,
        sites: found.sites,
        rates,
        root: None,
    })
}

/// Tests which of several trees the alignment excludes: a dict for each.
#[pyfunction]
#[pyo3(name = "test", signature = (
    alignment, trees, model, *, replicates=50_000, seed=1, engines=None
))]
pub(crate) fn test_trees<'py>(
    py: Python<'py>,
    alignment: &Alignment,
    trees: Vec<TreeText>,
    model: &str,
    replicates: u32,
    seed: u64,
    engines: Option<usize>,
) -> PyResult<Bound<'py, PyAny>> {
    let replicates = enough(replicates)?.to_usize();
    let names = alignment.inner.names();
    if trees.len() < 2 {
        let trees = trees.len();
        return Err(refuse(TopologyError::TooFew { trees }));
    }
    let parsed = trees.iter().map(|text| parts::tree(text, names));
    let trees = parsed.collect::<PyResult<Vec<_>>>()?;
    let (parts, lengths) = parts::parts(py, &alignment.inner, model, None)?;
    let sites = on_engines(py, engines, |runner| {
        fitted_sites(parts, lengths, trees, &runner, || {})
    })?;
    let options = topology::Options { replicates, seed };
    // A second call: the fits above are done, and an interruption between the two loses no signal.
    let verdicts = on_engines(py, engines, |runner| {
        let table = SiteTable::new(&sites)?;
        topology::compare(&table, &options, &runner, |_, _| {})
    })?;
    parts::report(py, &verdicts)
}

/// States of a tree's inner nodes, and the changes on its branches, as a dict.
#[pyfunction]
#[pyo3(signature = (alignment, tree, model, *, opt="all", engines=None))]
pub(crate) fn ancestors<'py>(
    py: Python<'py>,
    alignment: &Alignment,
    tree: TreeText,
    model: &str,
    opt: &str,
    engines: Option<usize>,
) -> PyResult<Bound<'py, PyAny>> {
    let fit = choose("opt", opt, &Fit::NAMED)?;
    let (names, sites) = (alignment.inner.names(), alignment.inner.sites());
    if fit == Fit::Nothing {
        parts::warn_of_lengths(py, &tree)?;
    }
    let tree = parts::tree(&tree, names)?;
    let (parts, lengths) = parts::parts(py, &alignment.inner, model, None)?;
    let work = |runner: Stoppable<'_, &Pool>| -> Result<_, LikelihoodError> {
        let (own, lnl) = fit.likelihood(tree, (parts, lengths), EPSILON, runner)?;
        let (tree, parts) = (own.tree(), own.parts());
        let found = AncestralSequences::new((tree, lnl), names, parts, sites, None);
        let changes = found.mutations(tree, names, parts);
        Ok((found, changes))
    };
    let (found, changes) = on_engines(py, engines, work)?;
    let dict = parts::report(py, &found)?;
    // The table of the command line, taken apart: one text decides what a mutation is.
    let lines = changes.lines().skip(1);
    let rows = lines.map(|line| line.split('\t').collect::<Vec<&str>>());
    // The site is a number.
    let rows = rows.filter_map(|cells| match cells[..] {
        [parent, child, site, from, to] => {
            Some((parent, child, site.parse::<usize>().ok()?, from, to))
        }
        _ => None,
    });
    dict.set_item("mutations", rows.collect::<Vec<_>>())?;
    Ok(dict)
}

/// Supports of a tree's branches, by trees of replicates or by an alignment, as a dict.
#[pyfunction]
#[pyo3(signature = (
    tree, *, bootstraps=None, alignment=None, model=None, kind="fbp", replicates=1000, seed=1,
    engines=None, bnni=false
))]
#[expect(clippy::too_many_arguments, reason = "they are Python's keywords")]
pub(crate) fn support<'py>(
    py: Python<'py>,
    tree: TreeText,
    bootstraps: Option<Vec<TreeText>>,
    alignment: Option<&Alignment>,
    model: Option<&str>,
    kind: &str,
    replicates: u32,
    seed: u64,
    engines: Option<usize>,
    bnni: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let newick = parts::newick(&tree)?;
    let chosen = choose("kind", kind, &Support::NAMED)?;
    if bnni && chosen != Support::Alignment(AlignmentKind::Ufboot) {
        return Err(PhyloError::new_err(
            "bnni refines ultrafast bootstraps: kind=\"ufboot\"",
        ));
    }
    let (labelled, count, values) = match (chosen, bootstraps, alignment, model) {
        (Support::Replicates(kind), Some(texts), None, None) => {
            let trees = parts::newicks(&texts)?;
            let reference = Reference::new(&newick).map_err(refuse)?;
            let tally = on_engines(py, engines, |runner| {
                reference.tally_all(&trees, kind, &runner)
            })?;
            let values = reference.values(&tally).into_iter();
            let values = values.map(|(_, value)| value).collect();
            (reference.labelled(&tally), trees.len(), values)
        }
        (Support::Alignment(kind), None, Some(alignment), Some(model)) => {
            let mut options = AlignmentSupport {
                replicates: enough(replicates)?,
                bnni,
                ..AlignmentSupport::new(kind, seed)
            };
            let (parts, lengths) = parts::parts(py, &alignment.inner, model, None)?;
            options.lengths = lengths;
            let labelled = on_engines(py, engines, |runner| {
                options.on(&newick, alignment.inner.names(), parts, runner, |_| {})
            })?;
            let values = kind.values(&labelled);
            (labelled, replicates.to_usize(), values)
        }
        (Support::Replicates(_), ..) => {
            return Err(PhyloError::new_err(format!(
                "kind={kind:?} is of bootstraps=[…], without an alignment and a model"
            )));
        }
        (Support::Alignment(_), ..) => {
            return Err(PhyloError::new_err(format!(
                "kind={kind:?} is of alignment=… and model=…, without bootstraps"
            )));
        }
    };
    parts::report(py, &SupportReport::new(chosen, count, values, &labelled))
}

/// Places the sequences of an alignment that a tree lacks on it: jplace, as a dict.
#[pyfunction]
#[pyo3(signature = (alignment, tree, model, *, opt="all", keep=7, engines=None))]
pub(crate) fn place<'py>(
    py: Python<'py>,
    alignment: &Alignment,
    tree: TreeText,
    model: &str,
    opt: &str,
    keep: usize,
    engines: Option<usize>,
) -> PyResult<Bound<'py, PyAny>> {
    let fit = choose("opt", opt, &Fit::NAMED)?;
    let newick = parts::newick(&tree)?;
    if fit == Fit::Nothing {
        parts::warn_of_lengths(py, &tree)?;
    }
    // Rows that the tree has not are to be placed: the model is fitted to the others alone.
    let queries = Queries::new(&alignment.inner, &newick).map_err(refuse)?;
    let reference = &queries.reference;
    let tree = parts::tree(&tree, reference.names())?;
    let (parts, lengths) = parts::parts(py, reference, model, None)?;
    let work = |runner: Stoppable<'_, &Pool>| -> Result<_, LikelihoodError> {
        let (own, _) = fit.likelihood(tree, (parts, lengths), EPSILON, runner)?;
        Ok(placement::place(
            &queries,
            (own.tree(), own.parts()),
            keep.max(1),
            &runner,
        ))
    };
    let found = on_engines(py, engines, work)?;
    parts::report(py, &found.map_err(refuse)?)
}

/// Replicates within the bounds of the command line's.
pub(crate) fn enough(replicates: u32) -> PyResult<u32> {
    match (100..=1_000_000).contains(&replicates) {
        true => Ok(replicates),
        false => Err(PhyloError::new_err(format!(
            "replicates={replicates}: 100 to 1000000"
        ))),
    }
}

/// Gain in log-likelihood below which a fit before other work ends.
const EPSILON: f64 = 0.001;
