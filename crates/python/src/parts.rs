//! Parts that calls have in common: models, partitions, trees, engines.

use crate::alignment::Alignment;
use crate::errors::{PhyloError, refuse, refuse_with};
use pyo3::prelude::*;
use sidecore_offload::{Pool, PoolConfig};
use sidecore_phylo::likelihood::PartOptions;
use sidecore_phylo::model::{ModelName, ScalerName};
use sidecore_phylo::msa::{Patterns, partitions};
use sidecore_phylo::newick::Newick;
use sidecore_phylo::runner::pool_config;
use sidecore_phylo::tree::Tree;
use sidecore_sys::cpu;

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

/// A model's name; files in its braces are read.
pub(crate) fn model_name(text: &str) -> Result<ModelName, impl std::error::Error + use<>> {
    ModelName::parse(text, &mut |path| std::fs::read_to_string(path))
}

/// A tree in Newick, with the alignment's taxa.
pub(crate) fn tree(text: &str, names: &[String]) -> PyResult<Tree> {
    let newick = Newick::parse(text).map_err(refuse_with("tree"))?;
    Tree::from_newick(&newick, names).map_err(refuse_with("tree"))
}

/// The cores that this process may use, and engines: as many unless asked for.
pub(crate) fn pool(engines: Option<usize>, policy: &str) -> PyResult<(Vec<usize>, Pool)> {
    let policy = sidecore_sched::by_name(policy).map_err(refuse)?;
    let cpus = cpu::allowed().map_err(refuse)?;
    let engines = engines.unwrap_or(cpus.len().min(PoolConfig::default().engines));
    let pool = Pool::start(pool_config(engines, &cpus, policy)).map_err(refuse)?;
    Ok((cpus, pool))
}
