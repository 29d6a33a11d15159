//! Files that the commands read: alignments, trees, models, partitions.

use anyhow::{Context, Result, bail};
use sidecore_phylo::likelihood::PartOptions;
use sidecore_phylo::model::{Model, ModelName};
use sidecore_phylo::msa::{Alignment, Patterns, partitions};
use sidecore_phylo::newick::Newick;
use std::path::Path;

/// Reads an alignment and says on standard error what is odd about it.
pub(super) fn alignment(path: &Path) -> Result<Alignment> {
    let shown = path.display();
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {shown}"))?;
    let alignment = Alignment::parse(&bytes).with_context(|| shown.to_string())?;
    let warnings = alignment.check();
    for warning in warnings.iter().take(WARNINGS_MAX) {
        tracing::warn!("{shown}: {warning}");
    }
    if warnings.len() > WARNINGS_MAX {
        tracing::warn!(
            "{shown}: {} more such warnings",
            warnings.len() - WARNINGS_MAX
        );
    }
    Ok(alignment)
}

/// Reads a file with exactly one tree.
pub(super) fn newick(path: &Path) -> Result<Newick> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
    Newick::parse(&text).with_context(|| shown.to_string())
}

/// Parses a model's name; files in its braces are read.
pub(super) fn model_name(text: &str) -> Result<ModelName> {
    Ok(ModelName::parse(text, &mut |path| {
        std::fs::read_to_string(path)
    })?)
}

/// The partitions of an alignment: one of `model`, or those of the file that it names.
pub(super) fn parts(alignment: &Alignment, model: &str) -> Result<Vec<PartOptions>> {
    let part = |patterns: Patterns, name: ModelName| PartOptions {
        model: Model::new(name, &patterns),
        patterns,
        scale: 1.0,
    };
    if !Path::new(model).is_file() {
        let name = model_name(model)?;
        let patterns = Patterns::new(alignment, name.alphabet())?;
        return Ok(vec![part(patterns, name)]);
    }
    let text = std::fs::read_to_string(model).with_context(|| format!("cannot read {model}"))?;
    let lines = partitions::parse(&text, alignment.sites()).with_context(|| model.to_owned())?;
    let made = lines.into_iter().map(|line| {
        let name = model_name(&line.model).with_context(|| format!("{model}: {}", line.name))?;
        let patterns = Patterns::of_sites(alignment, name.alphabet(), line.sites)
            .with_context(|| format!("{model}: {}", line.name))?;
        Ok(part(patterns, name))
    });
    made.collect()
}

/// How many engines to start: those asked for, or one for each core.
pub(super) fn engines(asked: Option<u16>) -> Result<usize> {
    match asked {
        Some(engines) => Ok(engines.into()),
        None => match std::thread::available_parallelism() {
            Ok(cores) => Ok(cores.get().min(64)),
            Err(error) => bail!("cannot count this machine's cores: {error}; give --engines"),
        },
    }
}

const WARNINGS_MAX: usize = 10;
