//! The Python module `sidecore_phylo`: alignments, likelihoods and searches for notebooks.
//!
//! - [`alignment`]: alignments from files, text and NumPy arrays.
//! - [`rooted`]: the likelihood of a tree under any model, and roots; [`evaluate`]: that under
//!   reversible models, and what is made of it; [`search`]: searches and bootstraps, gene trees;
//!   [`tools`]: simulated alignments, and what is done with trees alone, pictures too; [`models`]:
//!   choice of models.
//! - [`interrupt`]: long calls without the interpreter's lock, which Ctrl-C ends.
//!
//! Must stay true: what these functions find is what `sidecore phylo` finds with the same options
//! and seed; no call holds the interpreter's lock while it computes; input that does not go
//! together is a `PhyloError`. NumPy is reached through Python, so that the module needs no
//! header of it and works with every version. Types for editors are in
//! `python/sidecore_phylo/_native.pyi`.

mod alignment;
mod evaluate;
mod interrupt;
mod models;
mod parts;
mod rooted;
mod search;
mod tools;

use pyo3::prelude::*;

/// The module.
#[pymodule]
#[pyo3(name = "_native")]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("PhyloError", module.py().get_type::<parts::PhyloError>())?;
    module.add_class::<alignment::Alignment>()?;
    module.add_class::<rooted::Counts>()?;
    module.add_class::<evaluate::Evaluation>()?;
    module.add_class::<search::SearchResult>()?;
    module.add_function(wrap_pyfunction!(rooted::evaluate, module)?)?;
    module.add_function(wrap_pyfunction!(search::search, module)?)?;
    module.add_class::<models::ModelFit>()?;
    module.add_class::<tools::Picture>()?;
    module.add_function(wrap_pyfunction!(models::models, module)?)?;
    module.add_function(wrap_pyfunction!(models::partition_models, module)?)?;
    module.add_function(wrap_pyfunction!(search::genes, module)?)?;
    module.add_function(wrap_pyfunction!(tools::draw, module)?)?;
    module.add_function(wrap_pyfunction!(tools::simulate, module)?)?;
    module.add_function(wrap_pyfunction!(tools::compare, module)?)?;
    module.add_function(wrap_pyfunction!(tools::compare_all, module)?)?;
    module.add_function(wrap_pyfunction!(rooted::root, module)?)?;
    module.add_function(wrap_pyfunction!(rooted::rootstrap, module)?)?;
    module.add_function(wrap_pyfunction!(tools::consensus, module)?)?;
    module.add_function(wrap_pyfunction!(tools::species, module)?)?;
    module.add_function(wrap_pyfunction!(tools::concordance, module)?)?;
    module.add_function(wrap_pyfunction!(tools::date, module)?)?;
    module.add_function(wrap_pyfunction!(evaluate::test_trees, module)?)?;
    module.add_function(wrap_pyfunction!(evaluate::ancestors, module)?)?;
    module.add_function(wrap_pyfunction!(evaluate::support, module)?)?;
    module.add_function(wrap_pyfunction!(evaluate::place, module)?)?;
    Ok(())
}
