//! The likelihood of a tree.

use crate::alignment::{Alignment, doubles};
use crate::errors::{PhyloError, refuse};
use crate::interrupt::{Stoppable, interruptible};
use crate::parts;
use pyo3::prelude::*;
use sidecore_phylo::likelihood::{Likelihood, LikelihoodError, Options, Part};

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

#[derive(Clone, Copy)]
enum Fit {
    Nothing,
    Branches,
    All,
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
    let fit = match opt {
        "none" => Fit::Nothing,
        "branches" => Fit::Branches,
        "all" => Fit::All,
        other => {
            return Err(PhyloError::new_err(format!(
                "opt={other:?}: \"none\", \"branches\" or \"all\""
            )));
        }
    };
    let names = alignment.inner.names();
    if matches!(fit, Fit::Nothing) {
        parts::warn_of_lengths(py, tree)?;
    }
    let tree = parts::tree(tree, names)?;
    let parts = parts::parts(alignment, model)?;
    parts::warn(py, alignment, &parts)?;
    let (_, pool) = parts::pool(engines, "equi")?;
    let work = |stop: &_| -> Result<Evaluation, LikelihoodError> {
        let runner = Stoppable {
            runner: &pool,
            stop,
        };
        let mut likelihood = Likelihood::partitioned(tree, parts, runner, Options::default())?;
        let log_likelihood = match fit {
            Fit::Nothing => likelihood.evaluate()?,
            Fit::Branches => likelihood.optimise_lengths(epsilon, LENGTH_ROUNDS_MAX)?,
            Fit::All => likelihood.optimise(epsilon)?,
        };
        let mut sites = likelihood.site_log_likelihoods()?;
        // Columns at the end that no partition has.
        sites.resize(alignment.inner.sites(), 0.0);
        let tree = likelihood.tree();
        Ok(Evaluation {
            log_likelihood,
            tree: tree.to_newick(names),
            tree_length: tree.total_length(),
            models: likelihood.parts().iter().map(Part::model_text).collect(),
            sites,
        })
    };
    interruptible(py, work, || Ok(()))?.map_err(refuse)
}

/// As many as fitting needs; a bound only.
const LENGTH_ROUNDS_MAX: usize = 64;
