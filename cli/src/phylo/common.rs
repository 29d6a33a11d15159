//! Files that the commands read: alignments, trees, models, partitions.

use super::limits;
use crate::output;
use anyhow::{Context, Result, bail, ensure};
use indicatif::ProgressStyle;
use sidecore_offload::{Pool, PoolConfig};
use sidecore_phylo::alrt::{labelled, sh_alrt as sh_alrt_of};
use sidecore_phylo::io::input::{Input, model_file};
use sidecore_phylo::likelihood::{self, Lengths, Likelihood, PartOptions};
use sidecore_phylo::model::{AscertainmentName, ModelName, ScalerName};
use sidecore_phylo::msa::{Alignment, Alphabet, Findings, MsaError, Patterns, Warning, partitions};
use sidecore_phylo::newick::Newick;
use sidecore_phylo::parsimony::parsimony_tree;
use sidecore_phylo::random::Random;
use sidecore_phylo::runner::{Runner, Serial, pool_config};
use sidecore_phylo::selection::{self, select};
use sidecore_phylo::support::{Kind, Reference};
use sidecore_phylo::tree::Tree;
use sidecore_phylo::ufboot;
use sidecore_sched::Equi;
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
            false if is_auto(model) => (vec![chosen(&alignment, msa)?], vec!["all".to_owned()]),
            false => (vec![whole(&alignment, msa, model)?], vec!["all".to_owned()]),
        };
        let patterns = parts.iter().map(|part| &part.patterns);
        let findings = warn(msa, &alignment, patterns);
        check_values(&parts).with_context(|| shown.to_string())?;
        Ok(Self {
            alignment,
            parts,
            part_names,
            findings,
        })
    }
}

/// Warns of what is odd about an alignment, a line for each kind.
pub(super) fn warn<'p>(
    path: &Path,
    alignment: &Alignment,
    patterns: impl IntoIterator<Item = &'p Patterns> + Clone,
) -> Findings {
    let findings = Findings::of(alignment, patterns);
    for warning in findings.warnings(alignment) {
        tracing::warn!("{}: {warning}", path.display());
    }
    findings
}

/// Refuses alignments whose likelihood needs much more memory than there is. Repeats in the
/// alignment are stored once, so that far less than one value for each cell may do.
fn check_values(parts: &[PartOptions]) -> Result<()> {
    let values = parts.iter().map(|part| {
        let process = part.model.process();
        let inner = part.patterns.taxa().saturating_sub(2) as u64;
        let rates = process.rates.len().max(1) as u64;
        inner * part.patterns.len() as u64 * process.shape.states as u64 * rates * 8
    });
    let matrices = parts.iter().map(|part| {
        let branches = 2 * part.patterns.taxa() as u64;
        branches * part.model.process().shape.matrix() as u64 * 8
    });
    let need = values.sum::<u64>() / REPEATS + matrices.sum::<u64>();
    limits::check_work("the likelihood", need)
}

/// Reads an alignment.
pub(super) fn alignment(path: &Path) -> Result<Alignment> {
    let bytes = Input::read(path, limits::memory())?.bytes;
    Alignment::parse(&bytes).with_context(|| path.display().to_string())
}

/// Reads a file with exactly one tree.
pub(super) fn newick(path: &Path) -> Result<Newick> {
    Ok(newick_within(path)?.0)
}

/// The same, and the bytes of memory that working with it may take.
pub(super) fn newick_within(path: &Path) -> Result<(Newick, u64)> {
    let (mut trees, memory) = trees_within(path)?;
    let count = trees.len();
    match trees.pop().filter(|_| count == 1) {
        Some(tree) => Ok((tree, memory)),
        None => bail!("{} has {count} trees, and one is wanted", path.display()),
    }
}

/// Reads a file with one tree or more, in Newick or NEXUS.
pub(super) fn trees(path: &Path) -> Result<Vec<Newick>> {
    Ok(trees_within(path)?.0)
}

/// The same, and the bytes of memory that working with them may take.
pub(super) fn trees_within(path: &Path) -> Result<(Vec<Newick>, u64)> {
    let input = Input::read(path, limits::memory())?;
    let memory = input.memory;
    let text = input.into_text(path)?;
    let shown = path.display();
    limits::check_nodes(&format!("{shown}: reading the trees"), &text, memory)?;
    let trees = Newick::parse_file(&text).with_context(|| shown.to_string())?;
    ensure!(!trees.is_empty(), "{shown} has no tree");
    // `[&W 1/3]`: a comment that gives the tree a weight in programs that read it.
    let weighted = text.match_indices("[&").filter(|(at, mark)| {
        let word = text.as_bytes().get(at + mark.len()..at + mark.len() + 2);
        word.is_some_and(|word| word[0].eq_ignore_ascii_case(&b'W') && word[1] == b' ')
    });
    let weighted = weighted.count();
    if weighted > 0 {
        tracing::warn!("{shown}: trees with weights, `[&W …]`: {weighted}, all count alike");
    }
    Ok((trees, memory))
}

/// Warns of branches without a length, where lengths count.
pub(super) fn warn_of_lengths<'t>(path: &Path, trees: impl IntoIterator<Item = &'t Newick>) {
    if let Some(warning) = Warning::no_length(trees) {
        tracing::warn!("{}: {warning}", path.display());
    }
}

/// Refuses a branch of negative length, where lengths are used as they are.
pub(super) fn check_lengths(tree: &Tree) -> Result<()> {
    let below = tree.edges().filter(|&edge| tree.length(edge) < 0.0).count();
    ensure!(below == 0, "{below} branches have a length below 0");
    Ok(())
}

/// As [`alignment_trees`], for callers that use the lengths as given; warns of missing ones.
pub(super) fn measured_trees(path: &Path, names: &[String]) -> Result<Vec<Tree>> {
    let newicks = trees(path)?;
    let trees = of_alignment(path, &newicks, names)?;
    warn_of_lengths(path, &newicks);
    Ok(trees)
}

/// Reads a file of trees that have an alignment's taxa.
pub(super) fn alignment_trees(path: &Path, names: &[String]) -> Result<Vec<Tree>> {
    of_alignment(path, &trees(path)?, names)
}

fn of_alignment(path: &Path, newicks: &[Newick], names: &[String]) -> Result<Vec<Tree>> {
    let tree = |(index, newick)| {
        Tree::from_newick(newick, names).with_context(|| match newicks.len() {
            1 => path.display().to_string(),
            _ => format!("{}, tree {}", path.display(), index + 1),
        })
    };
    newicks.iter().enumerate().map(tree).collect()
}

/// Reads a file of text, unpacked where it is compressed.
pub(super) fn text(path: &Path) -> Result<String> {
    Ok(Input::read(path, limits::memory())?.into_text(path)?)
}

/// Parses a model's name; files in its braces are read.
pub(super) fn model_name(text: &str) -> Result<ModelName> {
    Ok(ModelName::parse(text, &mut model_file)?)
}

/// Sharing of branch lengths among partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Share {
    /// One length a branch
    Linked,
    /// One length a branch, times a factor that is fitted for each partition
    Scaled,
    /// Each partition has lengths of its own
    Unlinked,
}

/// The mode that `--brlen` and the models' `+B` select; scaled by default.
pub(super) fn lengths(asked: Option<Share>, parts: &[PartOptions], model: &str) -> Result<Lengths> {
    let has = |wanted: fn(&ScalerName) -> bool| {
        let mut scalers = parts.iter().map(|part| &part.model.name().scaler);
        scalers.any(wanted)
    };
    ensure!(
        asked != Some(Share::Linked) || !has(is_fitted),
        "{model}: +B scales lengths, --brlen linked does not: leave out one of them"
    );
    ensure!(
        asked != Some(Share::Scaled) || !has(is_given),
        "{model}: --brlen scaled would fit the scalers that +B{{…}} gives: leave out one of them"
    );
    ensure!(
        asked != Some(Share::Unlinked) || !has(is_given) && !has(is_fitted),
        "{model}: +B scales lengths that partitions share, --brlen unlinked gives each its own: \
         leave out one of them"
    );
    Ok(match asked {
        Some(Share::Unlinked) => Lengths::Unlinked,
        Some(Share::Linked) => Lengths::Linked,
        Some(Share::Scaled) => Lengths::Scaled,
        None if parts.len() == 1 || has(is_given) => Lengths::Linked,
        None => Lengths::Scaled,
    })
}

/// Refuses constant sites under an ascertainment correction, which assumes that there are none.
fn check_ascertainment(part: &PartOptions) -> Result<()> {
    let corrected = part.model.name().ascertainment != AscertainmentName::None;
    let constant = if corrected {
        part.patterns.constant_sites()
    } else {
        0
    };
    ensure!(
        constant == 0,
        "+ASC is for sites that all vary, and at {constant} of {} all taxa may have the same \
         character: leave those out of the alignment, or +ASC out of the model",
        part.patterns.sites()
    );
    Ok(())
}

/// True for the name that stands for a choice by `phylo models`.
pub(super) fn is_auto(model: &str) -> bool {
    model.eq_ignore_ascii_case("auto")
}

/// All sites under the model of the best score (BIC), on a parsimony tree. The seed decides the
/// model: a resumed run chooses the same.
fn chosen(alignment: &Alignment, msa: &Path) -> Result<PartOptions> {
    let patterns = Patterns::new(alignment, alignment.likely_alphabet());
    let patterns = patterns.with_context(|| msa.display().to_string())?;
    ensure!(
        patterns.taxa() >= 3,
        "{} has {} taxa: 3 are needed for --model auto",
        msa.display(),
        patterns.taxa()
    );
    let tree = parsimony_tree(&[&patterns], None, &mut Random::new(1));
    let bar = output::progress(0);
    if let Ok(style) = ProgressStyle::with_template("choosing a model: {pos} fitted, {msg}") {
        bar.set_style(style);
    }
    let pool = Pool::start(pool_config(engines(None)?, &[], Box::new(Equi::default())))?;
    let selection = select(
        &tree,
        &patterns,
        &selection::Options::default(),
        &pool,
        |fit| {
            bar.inc(1);
            bar.set_message(fit.name.clone());
        },
    )?;
    bar.finish_and_clear();
    let best = selection.best();
    output::note!("sidecore: model {} chosen (BIC {:.2})", best.name, best.bic);
    Ok(PartOptions {
        model: best.model.clone(),
        patterns,
        scale: 1.0,
    })
}

/// Options of supports that need an alignment, not replicates' trees.
#[derive(Debug, Clone, Copy)]
pub(super) struct Alrt {
    /// Ultrafast bootstraps; else SH-aLRT.
    pub(super) ufboot: bool,
    pub(super) replicates: u32,
    pub(super) seed: u64,
}

impl Alrt {
    /// As many replicates as usual.
    pub(super) fn new(ufboot: bool, seed: u64) -> Self {
        Self {
            ufboot,
            replicates: 1_000,
            seed,
        }
    }
}

/// A tree with supports of one of these kinds. Its lengths and the models' free parameters are
/// fitted first.
pub(super) fn alignment_support(
    newick: &Newick,
    names: &[String],
    parts: Vec<PartOptions>,
    options: Alrt,
    runner: impl Runner,
) -> Result<Newick> {
    let tree = Tree::from_newick(newick, names)?;
    let settings = likelihood::Options::default();
    let mut likelihood = Likelihood::partitioned(tree, parts, runner, settings)?;
    likelihood.optimise(ALRT_EPSILON)?;
    let bar = output::progress(0);
    bar.set_message("branches");
    let Alrt {
        ufboot,
        replicates,
        seed,
    } = options;
    if ufboot {
        return ufboot_support(newick, names, &mut likelihood, replicates, seed);
    }
    let supports = sh_alrt_of(&mut likelihood, replicates, seed, |done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    Ok(labelled(newick, likelihood.tree(), names, &supports?)?)
}

/// A tree with ultrafast bootstraps' supports.
fn ufboot_support<R: Runner>(
    newick: &Newick,
    names: &[String],
    likelihood: &mut Likelihood<R>,
    replicates: u32,
    seed: u64,
) -> Result<Newick> {
    let bar = output::progress(0);
    if let Ok(style) = ProgressStyle::with_template("ultrafast bootstraps: {pos} perturbations") {
        bar.set_style(style);
    }
    let options = ufboot::Options {
        replicates: replicates as usize,
        seed,
        ..ufboot::Options::default()
    };
    let found = ufboot::ufboot(likelihood, &options, |round| bar.set_position(round as u64))?;
    bar.finish_and_clear();
    if !found.converged {
        tracing::warn!(
            "the ultrafast bootstraps have not settled after {} perturbations",
            found.rounds
        );
    }
    let trees: Result<Vec<Newick>, _> = found
        .trees
        .iter()
        .map(|tree| Newick::parse(&tree.to_newick(names)))
        .collect();
    let reference = Reference::new(newick)?;
    let tally = reference.tally_all(&trees?, Kind::Fbp, &Serial)?;
    Ok(reference.labelled(&tally))
}

/// Parameters to fit before the command's own work.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Fit {
    /// Nothing: the tree and the model as given
    None,
    /// Branch lengths
    Branches,
    /// Branch lengths and the model's free parameters
    All,
}

impl Fit {
    /// Fits until a round gains less than `epsilon`; returns the log-likelihood.
    pub(super) fn apply<R: Runner>(
        self,
        likelihood: &mut Likelihood<R>,
        epsilon: f64,
    ) -> Result<f64> {
        Ok(match self {
            Self::None => likelihood.evaluate()?,
            Self::Branches => likelihood.optimise_lengths(epsilon, ROUNDS_MAX)?,
            Self::All => likelihood.optimise(epsilon)?,
        })
    }
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
    if name.alphabet() == Alphabet::Protein && alignment.likely_alphabet() == Alphabet::Dna {
        // Every letter of DNA is also one of an amino acid.
        tracing::warn!(
            "{}: read as amino acids, which --model {model} is for, but it looks like DNA",
            msa.display()
        );
    }
    let patterns = Patterns::new(alignment, name.alphabet());
    let patterns = patterns.with_context(|| msa.display().to_string())?;
    let part = PartOptions::new(name, patterns);
    check_ascertainment(&part).with_context(|| msa.display().to_string())?;
    Ok(part)
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
        let part = PartOptions::new(name, patterns);
        check_ascertainment(&part)
            .with_context(|| format!("{}, partition {}", msa.display(), line.name))?;
        parts.push(part);
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
fn is_fitted(scaler: &ScalerName) -> bool {
    *scaler == ScalerName::Fitted
}

/// True of `+B{…}`.
fn is_given(scaler: &ScalerName) -> bool {
    matches!(scaler, ScalerName::Given(_))
}

/// Engines to start: the requested number, or one for each core up to a pool's limit. A pool
/// refuses more than its limit, and the error names it.
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

/// Gain in log-likelihood below which the fit before a support ends.
const ALRT_EPSILON: f64 = 0.01;
const ROUNDS_MAX: usize = 64;
/// Divisor: at least one value in this many is kept, even where much repeats.
const REPEATS: u64 = 4;
