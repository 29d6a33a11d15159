//! Simulated alignments, and distances of trees.

use crate::alignment::Alignment;
use crate::parts::{self, PhyloError, refuse, refuse_with};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sidecore_phylo::io::data::model_name;
use sidecore_phylo::model::Model;
use sidecore_phylo::newick::Newick;
use sidecore_phylo::{compare as trees, simulate as evolve};

/// Evolves an alignment along `tree`, or along a random tree of `taxa` taxa; returns it and the
/// tree. The model must have all its values.
#[pyfunction]
#[pyo3(signature = (model, sites, *, taxa=None, tree=None, seed=1, branch_mean=0.1))]
pub(crate) fn simulate(
    py: Python<'_>,
    model: &str,
    sites: usize,
    taxa: Option<usize>,
    tree: Option<&str>,
    seed: u64,
    branch_mean: f64,
) -> PyResult<(Alignment, String)> {
    let name = model_name(model).map_err(refuse_with(format!("model {model}")))?;
    let (tree, names) = match (tree, taxa) {
        (Some(text), None) => {
            let newick = Newick::parse(text).map_err(refuse_with("tree"))?;
            let names = newick.tip_labels();
            parts::warn_of_lengths(py, text)?;
            (parts::tree(text, &names)?, names)
        }
        (None, Some(taxa @ 4..)) => {
            let tree = evolve::tree_of_seed(taxa, branch_mean, seed);
            (tree, evolve::numbered_names(taxa))
        }
        _ => {
            return Err(PhyloError::new_err(
                "give taxa=N (4 or more), or tree=NEWICK",
            ));
        }
    };
    // Long alignments take seconds, in which other threads of Python run.
    py.detach(|| {
        let model = Model::without_alignment(name);
        let inner = evolve::simulate(&tree, &names, &model, sites, seed).map_err(refuse)?;
        Ok((Alignment { inner }, tree.to_newick(&names)))
    })
}

/// Distances of two trees with the same taxa: Robinson-Foulds, the same relative to its most, and
/// branch scores.
#[pyfunction]
pub(crate) fn compare<'py>(py: Python<'py>, a: &str, b: &str) -> PyResult<Bound<'py, PyDict>> {
    let parsed = |text| Newick::parse(text).map_err(refuse_with("tree"));
    let found = trees::compare(&parsed(a)?, &parsed(b)?).map_err(refuse)?;
    let distances = PyDict::new(py);
    distances.set_item("rf", found.rf)?;
    distances.set_item("rf_relative", found.rf_relative)?;
    distances.set_item("branch_score", found.branch_score)?;
    Ok(distances)
}
