//! Likelihoods of trees under any model; nonreversible ones and those of populations; roots.

use crate::alignment::{Alignment, input};
use crate::evaluate::{Evaluation, enough, evaluate as reversible};
use crate::interrupt::on_engines;
use crate::parts::{self, PhyloError, TreeText, choose, refuse, refuse_with};
use crate::tools::Root;
use pyo3::prelude::*;
use sidecore_phylo::evaluation::{self, Fit};
use sidecore_phylo::io::input::model_file;
use sidecore_phylo::likelihood::LikelihoodError;
use sidecore_phylo::msa::Patterns;
use sidecore_phylo::newick::Newick;
use sidecore_phylo::rooted::{self, RootedLikelihood, RootedModel, RootedModelName, RootedTree};
use sidecore_phylo::rooting::{by_model, root as rooted_by, rootstrap as counted};
use sidecore_phylo::runner::Runner;
use sidecore_phylo::topology;
use sidecore_sys::width::ToUsize;
use std::path::PathBuf;

/// Counts of bases in populations, site by site: the data of models of populations.
#[pyclass(frozen, module = "sidecore_phylo")]
pub(crate) struct Counts {
    inner: rooted::Counts,
    /// The arguments from which pickle makes it again.
    text: String,
}

#[pymethods]
impl Counts {
    /// Parses the text of a counts file.
    #[new]
    fn new(text: String) -> PyResult<Self> {
        let inner = rooted::Counts::parse(&text).map_err(refuse)?;
        Ok(Self { inner, text })
    }

    /// Reads a counts file, plain or packed.
    #[staticmethod]
    fn read(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        py.detach(|| {
            let text = input(&path)?.into_text(&path).map_err(refuse)?;
            let inner = rooted::Counts::parse(&text);
            let inner = inner.map_err(refuse_with(path.display()))?;
            Ok(Self { inner, text })
        })
    }

    /// The populations' names.
    #[getter]
    fn names(&self) -> Vec<String> {
        self.inner.majority().names().to_vec()
    }

    /// Number of sites.
    #[getter]
    fn sites(&self) -> usize {
        self.inner.majority().sites()
    }

    fn __getnewargs__(&self) -> (&str,) {
        (&self.text,)
    }

    fn __len__(&self) -> usize {
        self.inner.majority().names().len()
    }

    fn __repr__(&self) -> String {
        let (populations, sites) = (self.__len__(), self.sites());
        format!("Counts({populations} populations, {sites} sites)")
    }
}

/// Evaluates a tree; `opt` selects the parameters to fit before: "none", "branches" or "all". A
/// nonreversible model takes a rooted tree, one of populations counts in place of an alignment.
#[pyfunction]
#[pyo3(signature = (
    alignment, tree, model, *, opt="all", brlen=None, epsilon=1e-3, site_rates=false, engines=None
))]
#[expect(clippy::too_many_arguments, reason = "they are Python's keywords")]
pub(crate) fn evaluate(
    py: Python<'_>,
    alignment: &Bound<'_, PyAny>,
    tree: TreeText,
    model: &str,
    opt: &str,
    brlen: Option<&str>,
    epsilon: f64,
    site_rates: bool,
    engines: Option<usize>,
) -> PyResult<Evaluation> {
    let fit = choose("opt", opt, &Fit::NAMED)?;
    // With one that is no number a fit would not see that it has ended.
    if !(1e-9..=1e3).contains(&epsilon) {
        return Err(PhyloError::new_err(format!(
            "epsilon={epsilon}: 1e-9 to 1000"
        )));
    }
    // A text with an equals sign is of partitions.
    let named = match model.contains('=') {
        true => None,
        false => RootedModelName::parse(model, &mut model_file)
            .map_err(refuse_with(format!("model {model}")))?,
    };
    if let Some(name) = named {
        if brlen.is_some() || site_rates {
            return Err(PhyloError::new_err(format!(
                "model {model}: brlen and site_rates do not go with nonreversible models"
            )));
        }
        let given = Given {
            name,
            tree: &tree,
            fit,
            epsilon,
            engines,
        };
        return evaluate_rooted(py, alignment, &given);
    }
    if alignment.is_instance_of::<Counts>() {
        return Err(PhyloError::new_err(format!(
            "model {model}: counts are for models of populations, such as HKY+P"
        )));
    }
    let alignment = alignment.cast::<Alignment>()?.get();
    reversible(
        py, alignment, &tree, model, fit, brlen, epsilon, site_rates, engines,
    )
}

/// An evaluation under a nonreversible model or one of populations.
struct Given<'t> {
    name: RootedModelName,
    tree: &'t str,
    fit: Fit,
    epsilon: f64,
    engines: Option<usize>,
}

/// The likelihood of a tree at its own root.
fn evaluate_rooted(
    py: Python<'_>,
    data: &Bound<'_, PyAny>,
    given: &Given<'_>,
) -> PyResult<Evaluation> {
    let newick = parts::newick(given.tree)?;
    if given.fit == Fit::Nothing {
        parts::warn_of_lengths(py, given.tree)?;
    }
    if given.name.is_of_populations() {
        let counts = data.cast::<Counts>().map_err(|_| {
            PhyloError::new_err("a model of populations (+P) needs Counts in place of an alignment")
        })?;
        return populations(py, counts.get(), &newick, given);
    }
    let alignment = &data.cast::<Alignment>()?.get().inner;
    let patterns = Patterns::new(alignment, given.name.alphabet()).map_err(refuse)?;
    parts::warn_of(py, alignment, std::iter::once(&patterns))?;
    let tree = RootedTree::from_newick(&newick, alignment.names());
    let tree = tree.map_err(refuse_with("tree"))?;
    let model = RootedModel::new(given.name.clone(), &patterns);
    on_engines(py, given.engines, |runner| {
        let own = RootedLikelihood::new(tree, &patterns, model, runner)?;
        fitted(own, given)
    })
}

fn populations(
    py: Python<'_>,
    counts: &Counts,
    newick: &Newick,
    given: &Given<'_>,
) -> PyResult<Evaluation> {
    let counts = &counts.inner;
    if counts.unread() > 0 {
        let count = counts.unread();
        parts::say(
            py,
            &format!("{count} counts of three bases or four: read as unknown"),
        )?;
    }
    let majority = counts.majority();
    let patterns = Patterns::new(majority, given.name.alphabet()).map_err(refuse)?;
    let tree = RootedTree::from_any(newick, majority.names()).map_err(refuse_with("tree"))?;
    let model = RootedModel::new(given.name.clone(), &patterns);
    on_engines(py, given.engines, |runner| {
        let own = RootedLikelihood::of_counts(tree, counts, model, runner)?;
        fitted(own, given)
    })
}

fn fitted<R: Runner>(
    own: RootedLikelihood<R>,
    given: &Given<'_>,
) -> Result<Evaluation, LikelihoodError> {
    let found = evaluation::evaluate_rooted(own, given.fit, given.epsilon, true)?;
    Ok(Evaluation {
        log_likelihood: found.lnl,
        tree: found.newicks.concat(),
        trees: found.newicks,
        tree_length: found.tree_length,
        models: found.models,
        sites: found.sites,
        rates: None,
        root: found.root_frequencies,
    })
}

/// Roots a tree: `by` is "midpoint", "mad" or the tips of an outgroup; or an alignment and a
/// nonreversible model try each branch. A dict.
#[pyfunction]
#[pyo3(signature = (
    tree, by=None, *, alignment=None, model=None, replicates=10_000, seed=1, engines=None
))]
#[expect(clippy::too_many_arguments, reason = "they are Python's keywords")]
pub(crate) fn root<'py>(
    py: Python<'py>,
    tree: TreeText,
    by: Option<Root>,
    alignment: Option<&Alignment>,
    model: Option<&str>,
    replicates: u32,
    seed: u64,
    engines: Option<usize>,
) -> PyResult<Bound<'py, PyAny>> {
    let newick = parts::newick(&tree)?;
    let (alignment, model) = match (by, alignment, model) {
        (Some(by), None, None) => {
            let method = by.method()?;
            let found = py.detach(|| rooted_by(&newick, &method)).map_err(refuse)?;
            return parts::report(py, &found);
        }
        (None, Some(alignment), Some(model)) => (&alignment.inner, model),
        _ => {
            return Err(PhyloError::new_err(
                "give by=…, or alignment=… and model=… without it",
            ));
        }
    };
    let name = RootedModelName::parse(model, &mut model_file)
        .map_err(refuse_with(format!("model {model}")))?;
    // Models of populations are reversible: they tell no root from another.
    let name = name.filter(|name| !name.is_of_populations());
    let name = name.ok_or_else(|| {
        PhyloError::new_err(format!(
            "model {model}: the place of a root needs a nonreversible model, UNREST or \
             NONREV{{FILE}}"
        ))
    })?;
    let replicates = enough(replicates)?.to_usize();
    let options = topology::Options { replicates, seed };
    let patterns = Patterns::new(alignment, name.alphabet()).map_err(refuse)?;
    parts::warn_of(py, alignment, std::iter::once(&patterns))?;
    let names = alignment.names();
    let found = on_engines(py, engines, |runner| {
        let none = |_, _| {};
        by_model(&newick, names, &patterns, name, &options, &runner, none)
    })?;
    parts::report(py, &found)
}

/// The shares of rooted replicates whose root is on each branch of a tree. A dict.
#[pyfunction]
pub(crate) fn rootstrap<'py>(
    py: Python<'py>,
    tree: TreeText,
    replicates: Vec<TreeText>,
) -> PyResult<Bound<'py, PyAny>> {
    let (newick, all) = (parts::newick(&tree)?, parts::newicks(&replicates)?);
    let found = py.detach(|| counted(&newick, &all)).map_err(refuse)?;
    parts::report(py, &found)
}
