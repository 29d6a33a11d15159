//! Parts that calls have in common: models, partitions, trees, engines.

use crate::alignment::Alignment;
use crate::errors::{refuse, refuse_with};
use pyo3::exceptions::PyUserWarning;
use pyo3::prelude::*;
use sidecore_offload::{Pool, PoolConfig};
use sidecore_phylo::io::data::{Partitions, is_doubtful, model_name};
use sidecore_phylo::likelihood::PartOptions;
use sidecore_phylo::msa::{Findings, Patterns, Warning};
use sidecore_phylo::newick::Newick;
use sidecore_phylo::runner::pool_config;
use sidecore_phylo::tree::Tree;
use sidecore_sys::cpu;
use std::ffi::CString;

/// An alignment under one model, or cut into the partitions that `model`'s lines name.
pub(crate) fn parts(alignment: &Alignment, model: &str) -> PyResult<Vec<PartOptions>> {
    let (alignment, msa) = (&alignment.inner, "the alignment");
    // No model's name has an equals sign; every line of partitions has one.
    let found = match model.contains('=') {
        true => Partitions::of_lines(alignment, msa, model, "the partitions").map_err(refuse)?,
        false => {
            let name = model_name(model).map_err(refuse_with(format!("model {model}")))?;
            Partitions::whole(alignment, msa, name).map_err(refuse)?
        }
    };
    Ok(found.parts)
}

/// Warns, as Python does, of what is odd about an alignment under these partitions: what the
/// command line warns of on standard error.
pub(crate) fn warn(py: Python<'_>, alignment: &Alignment, parts: &[PartOptions]) -> PyResult<()> {
    if is_doubtful(&alignment.inner, parts) {
        say(
            py,
            "read as amino acids, which the model is for, but it looks like DNA",
        )?;
    }
    warn_of(py, alignment, parts.iter().map(|part| &part.patterns))
}

/// The same, of an alignment without models.
pub(crate) fn warn_of<'p>(
    py: Python<'_>,
    alignment: &Alignment,
    patterns: impl IntoIterator<Item = &'p Patterns> + Clone,
) -> PyResult<()> {
    let findings = Findings::of(&alignment.inner, patterns);
    let mut warnings = findings.warnings(&alignment.inner).into_iter();
    warnings.try_for_each(|warning| say(py, &warning.to_string()))
}

/// Warns of branches without a length, where lengths count.
pub(crate) fn warn_of_lengths(py: Python<'_>, tree: &str) -> PyResult<()> {
    let newick = Newick::parse(tree).map_err(refuse_with("tree"))?;
    match Warning::no_length([&newick]) {
        Some(warning) => say(py, &format!("tree: {warning}")),
        None => Ok(()),
    }
}

fn say(py: Python<'_>, text: &str) -> PyResult<()> {
    // A name in the alignment may have any character, and C's strings end at this one.
    let text = CString::new(text.replace('\0', "?")).unwrap_or_default();
    let category = py.get_type::<PyUserWarning>();
    PyErr::warn(py, &category, &text, 2)
}

/// A tree in Newick, with the alignment's taxa.
pub(crate) fn tree(text: &str, names: &[String]) -> PyResult<Tree> {
    let newick = Newick::parse(text).map_err(refuse_with("tree"))?;
    Tree::from_newick(&newick, names).map_err(refuse_with("tree"))
}

/// The cores that this process may use, and engines: the same number unless given.
pub(crate) fn pool(engines: Option<usize>, policy: &str) -> PyResult<(Vec<usize>, Pool)> {
    // The name first: a wrong one must not start threads.
    let policy = sidecore_sched::by_name(policy).map_err(refuse)?;
    let cpus = cpu::allowed().map_err(refuse)?;
    // A large machine does not get more engines than the pool starts by default.
    let engines = engines.unwrap_or(cpus.len().min(PoolConfig::default().engines));
    let pool = Pool::start(pool_config(engines, &cpus, policy)).map_err(refuse)?;
    Ok((cpus, pool))
}
