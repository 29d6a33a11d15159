//! Files that the commands read: alignments, trees, models, partitions.

use anyhow::{Context, Result, anyhow, bail, ensure};
use sidecore_offload::PoolConfig;
use sidecore_phylo::likelihood::PartOptions;
use sidecore_phylo::model::{ModelName, ScalerName};
use sidecore_phylo::msa::{Alignment, Findings, MsaError, Patterns, partitions};
use sidecore_phylo::newick::Newick;
use sidecore_phylo::packed::{UNPACKED_BYTES_MAX, unpack};
use sidecore_phylo::tree::Tree;
use std::path::Path;

/// An alignment with the partitions that it is cut into.
pub(super) struct Data {
    /// The sequences as they were read.
    pub(super) alignment: Alignment,
    /// Patterns and model of each partition.
    pub(super) parts: Vec<PartOptions>,
    /// The partitions' names.
    pub(super) part_names: Vec<String>,
    /// Columns and sequences without a character, repeated sequences.
    pub(super) findings: Findings,
}

impl Data {
    /// Reads an alignment and cuts it into one partition of `model`, or those of the file that this
    /// names. Oddities are warned of on standard error, a line for each kind.
    pub(super) fn read(msa: &Path, model: &str) -> Result<Self> {
        let shown = msa.display();
        let alignment = alignment(msa)?;
        let (parts, part_names) = match Path::new(model).is_file() {
            true => parts_of_file(&alignment, msa, model)?,
            false => (vec![whole(&alignment, msa, model)?], vec!["all".to_owned()]),
        };
        let findings = Findings::of(&alignment, parts.iter().map(|part| &part.patterns));
        for warning in findings.warnings(&alignment) {
            tracing::warn!("{shown}: {warning}");
        }
        Ok(Self {
            alignment,
            parts,
            part_names,
            findings,
        })
    }
}

/// Reads an alignment.
pub(super) fn alignment(path: &Path) -> Result<Alignment> {
    Alignment::parse(&bytes(path)?).with_context(|| path.display().to_string())
}

/// Reads a file with exactly one tree.
pub(super) fn newick(path: &Path) -> Result<Newick> {
    let mut trees = trees(path)?;
    let count = trees.len();
    match trees.pop().filter(|_| count == 1) {
        Some(tree) => Ok(tree),
        None => bail!("{} has {count} trees, and one is wanted", path.display()),
    }
}

/// Reads a file with one tree or more, in Newick or NEXUS.
pub(super) fn trees(path: &Path) -> Result<Vec<Newick>> {
    let trees = Newick::parse_file(&text(path)?).with_context(|| path.display().to_string())?;
    ensure!(!trees.is_empty(), "{} has no tree", path.display());
    Ok(trees)
}

/// Reads a file of trees that have an alignment's taxa.
pub(super) fn alignment_trees(path: &Path, names: &[String]) -> Result<Vec<Tree>> {
    let newicks = trees(path)?;
    let tree = |(index, newick)| {
        Tree::from_newick(newick, names).with_context(|| match newicks.len() {
            1 => path.display().to_string(),
            _ => format!("{}, tree {}", path.display(), index + 1),
        })
    };
    newicks.iter().enumerate().map(tree).collect()
}

/// Reads a file, unpacked where it is compressed.
fn bytes(path: &Path) -> Result<Vec<u8>> {
    let shown = path.display();
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {shown}"))?;
    unpack(bytes, UNPACKED_BYTES_MAX).with_context(|| shown.to_string())
}

/// Reads a file of text, unpacked where it is compressed.
pub(super) fn text(path: &Path) -> Result<String> {
    String::from_utf8(bytes(path)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to() + 1;
        anyhow!(
            "{}: byte {at} is no UTF-8: is this a text file?",
            path.display()
        )
    })
}

/// Parses a model's name; files in its braces are read.
pub(super) fn model_name(text: &str) -> Result<ModelName> {
    Ok(ModelName::parse(text, &mut |path| {
        std::fs::read_to_string(path)
    })?)
}

/// All sites under one model.
fn whole(alignment: &Alignment, msa: &Path, model: &str) -> Result<PartOptions> {
    let name = model_name(model).with_context(|| {
        match model.contains(['.', '/']) && !model.contains('{') {
            true => format!("--model {model} is no file that is there, and no model"),
            false => format!("--model {model}"),
        }
    })?;
    ensure!(
        name.scaler == ScalerName::None,
        "--model {model}: +B scales a partition's lengths against those of the others; \
         leave it out, or name a file of partitions"
    );
    let patterns = Patterns::new(alignment, name.alphabet());
    let patterns = patterns.with_context(|| msa.display().to_string())?;
    Ok(PartOptions::new(name, patterns))
}

/// The partitions that a file's lines name, and their names.
fn parts_of_file(
    alignment: &Alignment,
    msa: &Path,
    path: &str,
) -> Result<(Vec<PartOptions>, Vec<String>)> {
    let text = text(Path::new(path))?;
    let lines = partitions::parse(&text, alignment.sites()).with_context(|| path.to_owned())?;
    let (mut parts, mut names) = (Vec::new(), Vec::new());
    for line in lines {
        let name = model_name(&line.model).with_context(|| format!("{path}: {}", line.name))?;
        let patterns = Patterns::of_sites(alignment, name.alphabet(), line.sites)
            .with_context(|| format!("{}, partition {}", msa.display(), line.name))?;
        parts.push(PartOptions::new(name, patterns));
        names.push(line.name);
    }
    let has = |wanted: fn(&ScalerName) -> bool| {
        let mut scalers = parts
            .iter()
            .map(|part: &PartOptions| part.model.name().scaler);
        scalers.any(|scaler| wanted(&scaler))
    };
    ensure!(
        parts.len() > 1 || !has(is_fitted) && !has(is_given),
        "{path}: +B scales a partition's lengths against those of the others, and there are none: \
         leave it out"
    );
    ensure!(
        !has(is_fitted) || !has(is_given),
        "{path}: some partitions have a scaler to be fitted (+B), others a given one (+B{{…}}): \
         write one kind"
    );
    ensure!(
        parts.iter().any(|part| !part.patterns.is_undetermined()),
        "{}: {}",
        msa.display(),
        MsaError::Undetermined
    );
    Ok((parts, names))
}

/// True of `+B` without a value.
pub(super) fn is_fitted(scaler: &ScalerName) -> bool {
    *scaler == ScalerName::Fitted
}

/// True of `+B{…}`.
pub(super) fn is_given(scaler: &ScalerName) -> bool {
    matches!(scaler, ScalerName::Given(_))
}

/// Engines to start: as many as asked for, or one for each core as far as a pool goes. A pool
/// refuses more than it can have, and says how many that is.
pub(super) fn engines(asked: Option<u16>) -> Result<usize> {
    match asked {
        Some(engines) => Ok(engines.into()),
        None => match std::thread::available_parallelism() {
            // A pool's own default stops at its most.
            Ok(cores) => Ok(cores.get().min(PoolConfig::default().engines)),
            Err(error) => bail!("cannot count this machine's cores: {error}; give --engines"),
        },
    }
}
