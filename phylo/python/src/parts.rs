//! Parts that calls have in common: models, partitions, trees, engines.

use crate::alignment::Alignment;
use crate::errors::{PhyloError, refuse, refuse_with};
use pyo3::exceptions::PyUserWarning;
use pyo3::prelude::*;
use sidecore_offload::{Pool, PoolConfig};
use sidecore_phylo::io::input::model_file;
use sidecore_phylo::likelihood::PartOptions;
use sidecore_phylo::model::{ModelName, ScalerName};
use sidecore_phylo::msa::{Alphabet, Findings, Patterns, Warning, partitions};
use sidecore_phylo::newick::Newick;
use sidecore_phylo::runner::pool_config;
use sidecore_phylo::tree::Tree;
use sidecore_sys::cpu;
use std::ffi::CString;

/// An alignment under one model, or cut into the partitions that `model`'s lines name.
pub(crate) fn parts(alignment: &Alignment, model: &str) -> PyResult<Vec<PartOptions>> {
    // No model's name has an equals sign; every line of partitions has one.
    if !model.contains('=') {
        let name = model_name(model).map_err(refuse_with(format!("model {model}")))?;
        if name.scaler != ScalerName::None {
            return Err(PhyloError::new_err(format!(
                "model {model}: +B scales a partition's lengths against those of the others; \
                 leave it out, or give lines of partitions"
            )));
        }
        let patterns = Patterns::new(&alignment.inner, name.alphabet()).map_err(refuse)?;
        return Ok(vec![PartOptions::new(name, patterns)]);
    }
    let lines = partitions::parse(model, alignment.inner.sites()).map_err(refuse)?;
    let part = |line: partitions::Partition| {
        let shown = format!("partition {}", line.name);
        let name = model_name(&line.model).map_err(refuse_with(&shown))?;
        let patterns = Patterns::of_sites(&alignment.inner, name.alphabet(), line.sites)
            .map_err(refuse_with(&shown))?;
        Ok(PartOptions::new(name, patterns))
    };
    lines.into_iter().map(part).collect()
}

/// Warns, as Python does, of what is odd about an alignment under these partitions: what the
/// command line warns of on standard error.
pub(crate) fn warn(py: Python<'_>, alignment: &Alignment, parts: &[PartOptions]) -> PyResult<()> {
    let patterns = || parts.iter().map(|part| &part.patterns);
    let is_protein = |patterns: &Patterns| patterns.alphabet() == Alphabet::Protein;
    if patterns().any(is_protein) && alignment.inner.likely_alphabet() == Alphabet::Dna {
        say(
            py,
            "read as amino acids, which the model is for, but it looks like DNA",
        )?;
    }
    warn_of(py, alignment, patterns())
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
    let text = CString::new(text.replace('\0', "?")).unwrap_or_default();
    let category = py.get_type::<PyUserWarning>();
    PyErr::warn(py, &category, &text, 2)
}

/// A model's name; files in its braces are read.
pub(crate) fn model_name(text: &str) -> Result<ModelName, impl std::error::Error + use<>> {
    ModelName::parse(text, &mut model_file)
}

/// A tree in Newick, with the alignment's taxa.
pub(crate) fn tree(text: &str, names: &[String]) -> PyResult<Tree> {
    let newick = Newick::parse(text).map_err(refuse_with("tree"))?;
    Tree::from_newick(&newick, names).map_err(refuse_with("tree"))
}

/// The cores that this process may use, and engines: the same number unless given.
pub(crate) fn pool(engines: Option<usize>, policy: &str) -> PyResult<(Vec<usize>, Pool)> {
    let policy = sidecore_sched::by_name(policy).map_err(refuse)?;
    let cpus = cpu::allowed().map_err(refuse)?;
    let engines = engines.unwrap_or(cpus.len().min(PoolConfig::default().engines));
    let pool = Pool::start(pool_config(engines, &cpus, policy)).map_err(refuse)?;
    Ok((cpus, pool))
}
