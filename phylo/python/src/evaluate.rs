//! The likelihood of a tree.

use crate::alignment::{Alignment, doubles};
use crate::interrupt::{Stoppable, interruptible};
use crate::parts::{self, choose, refuse};
use pyo3::prelude::*;
use sidecore_phylo::evaluation::{self, EvaluationOptions, Fit};
use sidecore_phylo::io::data::linkage;

/// A tree's likelihood, and the fitted parameters.
#[pyclass(frozen, module = "sidecore_phylo")]
pub(crate) struct Evaluation {
    /// The log-likelihood.
    #[pyo3(get)]
    log_likelihood: f64,
    /// The tree with the lengths used, in Newick.
    #[pyo3(get)]
    tree: String,
    /// Sum of the branch lengths.
    #[pyo3(get)]
    tree_length: f64,
    /// Each partition's model with all values, which can be given as a model again.
    #[pyo3(get)]
    models: Vec<String>,
    sites: Vec<f64>,
}

#[pymethods]
impl Evaluation {
    /// The log-likelihood of each column of the alignment: a new array of float64.
    #[getter]
    fn site_log_likelihoods<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        doubles(py, &self.sites)
    }

    fn __repr__(&self) -> String {
        format!(
            "Evaluation(log_likelihood={}, models={:?})",
            self.log_likelihood, self.models
        )
    }
}

/// Evaluates a tree; `opt` selects the parameters to fit before: "none", "branches" or "all".
#[pyfunction]
#[pyo3(signature = (alignment, tree, model, *, opt="all", epsilon=1e-3, engines=None))]
pub(crate) fn evaluate(
    py: Python<'_>,
    alignment: &Alignment,
    tree: &str,
    model: &str,
    opt: &str,
    epsilon: f64,
    engines: Option<usize>,
) -> PyResult<Evaluation> {
    let fits = [
        ("none", Fit::Nothing),
        ("branches", Fit::Branches),
        ("all", Fit::All),
    ];
    let fit = choose("opt", opt, &fits)?;
    let names = alignment.inner.names();
    // A fit replaces the given lengths: then a missing one does not matter.
    if fit == Fit::Nothing {
        parts::warn_of_lengths(py, tree)?;
    }
    let tree = parts::tree(tree, names)?;
    let parts = parts::parts(alignment, model)?;
    parts::warn(py, alignment, &parts)?;
    let (_, pool) = parts::pool(engines, "equi")?;
    let options = EvaluationOptions {
        fit,
        epsilon,
        lengths: linkage(None, &parts).map_err(refuse)?,
        sites: Some(alignment.inner.sites()),
        posteriors: false,
    };
    let work = |stop: &_| {
        let runner = Stoppable {
            runner: &pool,
            stop,
        };
        evaluation::evaluate(tree, names, parts, &options, runner)
    };
    let found = interruptible(py, work, || Ok(()))?.map_err(refuse)?;
    Ok(Evaluation {
        log_likelihood: found.lnl,
        // One: lengths are linked or scaled here.
        tree: found.newicks.concat(),
        tree_length: found.tree_length,
        models: found.models,
        sites: found.sites,
    })
}
