//! Choice of a model, and of models for partitions.

use crate::alignment::{self, Alignment};
use crate::interrupt::on_engines;
use crate::parts::{self, PhyloError, TreeText, choose, refuse};
use pyo3::prelude::*;
use sidecore_phylo::io::data::parts_to_model;
use sidecore_phylo::msa::{GeneticCode, Patterns};
use sidecore_phylo::parsimony::parsimony_tree;
use sidecore_phylo::random::Random;
use sidecore_phylo::selection::partitions::select_partitions;
use sidecore_phylo::selection::{Criterion, Fit, Options, select};
use sidecore_phylo::tree::Tree;
use sidecore_workflow::choice::{Kind, Scheme};

/// A model that was fitted, and its scores: the least is the best.
#[pyclass(frozen, module = "sidecore_phylo")]
pub(crate) struct ModelFit {
    /// The model's name, which can be given as a model.
    #[pyo3(get)]
    name: String,
    #[pyo3(get)]
    log_likelihood: f64,
    /// Free parameters, branch lengths among them.
    #[pyo3(get)]
    parameters: usize,
    #[pyo3(get)]
    bic: f64,
    /// None where the alignment is too short for it.
    #[pyo3(get)]
    aicc: Option<f64>,
    #[pyo3(get)]
    aic: f64,
}

#[pymethods]
impl ModelFit {
    /// From the parts that pickle keeps.
    #[new]
    fn new(
        name: String,
        log_likelihood: f64,
        parameters: usize,
        bic: f64,
        aicc: Option<f64>,
        aic: f64,
    ) -> Self {
        Self {
            name,
            log_likelihood,
            parameters,
            bic,
            aicc,
            aic,
        }
    }

    fn __getnewargs__(&self) -> (&str, f64, usize, f64, Option<f64>, f64) {
        (
            &self.name,
            self.log_likelihood,
            self.parameters,
            self.bic,
            self.aicc,
            self.aic,
        )
    }

    fn __repr__(&self) -> String {
        format!("ModelFit(name={:?}, bic={})", self.name, self.bic)
    }
}

impl From<&Fit> for ModelFit {
    fn from(fit: &Fit) -> Self {
        Self {
            name: fit.name.clone(),
            log_likelihood: fit.lnl,
            parameters: fit.parameters,
            bic: fit.bic,
            // Infinite where there are too few sites.
            aicc: Some(fit.aicc).filter(|score| score.is_finite()),
            aic: fit.aic,
        }
    }
}

/// Fits models on `tree`, or on one by parsimony, and returns them, the best first.
#[pyfunction]
#[pyo3(signature = (
    alignment, *, data="auto", criterion="bic", free_rates_max=8, classes_max=0, tree=None, seed=1,
    engines=None, code=1
))]
#[expect(clippy::too_many_arguments, reason = "keywords, in Python")]
pub(crate) fn models(
    py: Python<'_>,
    alignment: &Alignment,
    data: &str,
    criterion: &str,
    free_rates_max: usize,
    classes_max: usize,
    tree: Option<TreeText>,
    seed: u64,
    engines: Option<usize>,
    code: u8,
) -> PyResult<Vec<ModelFit>> {
    let code = GeneticCode::new(code)
        .ok_or_else(|| PhyloError::new_err(format!("code={code}: 1 to 6, 9 to 16 or 21 to 25")))?;
    let kind = choose("data", data, &Kind::NAMED)?;
    let alphabet = kind
        .alphabet(&alignment.inner, code)
        .ok_or_else(|| PhyloError::new_err("a character is no state of multistate data"))?;
    let options = options(criterion, free_rates_max, classes_max)?;
    let patterns = Patterns::new(&alignment.inner, alphabet).map_err(refuse)?;
    parts::warn_of(py, &alignment.inner, std::iter::once(&patterns))?;
    let tree = tree_to_fit_on(tree, alignment.inner.names(), &[&patterns], seed)?;
    let selection = on_engines(py, engines, |runner| {
        select(&tree, &patterns, &options, runner, |_| {})
    })?;
    Ok(selection.fits.iter().map(ModelFit::from).collect())
}

/// Chooses a model for each partition, or for the sets of them that score best. `loci` is an
/// alignment, of which `lines` name the partitions, or a dict of alignments by their loci's names.
/// A dict; its `lines` are a model.
#[pyfunction]
#[pyo3(signature = (
    loci, lines=None, *, merge="none", rcluster=10.0, rcluster_max=None, criterion="bic",
    free_rates_max=8, classes_max=0, tree=None, seed=1, engines=None
))]
#[expect(clippy::too_many_arguments, reason = "keywords, in Python")]
pub(crate) fn partition_models<'py>(
    py: Python<'py>,
    loci: &Bound<'py, PyAny>,
    lines: Option<&str>,
    merge: &str,
    rcluster: f64,
    rcluster_max: Option<usize>,
    criterion: &str,
    free_rates_max: usize,
    classes_max: usize,
    tree: Option<TreeText>,
    seed: u64,
    engines: Option<usize>,
) -> PyResult<Bound<'py, PyAny>> {
    if !(rcluster > 0.0 && rcluster <= 100.0) {
        return Err(PhyloError::new_err(format!(
            "rcluster={rcluster}: a percentage above 0, up to 100"
        )));
    }
    let merge = choose("merge", merge, &Scheme::NAMED)?;
    let merge = merge.merge(Some(rcluster), rcluster_max);
    let options = options(criterion, free_rates_max, classes_max)?;
    let (alignment, text) = alignment::loci(loci, lines, "auto")?;
    let named = parts_to_model(&alignment, &text, "the partitions").map_err(refuse)?;
    let (named, patterns) = named;
    if named.is_empty() {
        return Err(PhyloError::new_err("the partitions: there is none"));
    }
    parts::warn_of(py, &alignment, &patterns)?;
    let patterns: Vec<&Patterns> = patterns.iter().collect();
    let tree = tree_to_fit_on(tree, alignment.names(), &patterns, seed)?;
    let scheme = on_engines(py, engines, |runner| {
        select_partitions(&tree, &alignment, &named, merge, &options, runner, |_| {})
    })?;
    let dict = parts::report(py, &scheme.summary(&named, options.criterion))?;
    dict.set_item("lines", scheme.to_lines(&named))?;
    Ok(dict)
}

/// Options of a choice.
fn options(criterion: &str, free_rates_max: usize, classes_max: usize) -> PyResult<Options> {
    let criterion = choose("criterion", criterion, &Criterion::NAMED)?;
    if free_rates_max > FREE_RATES_MAX {
        return Err(PhyloError::new_err(format!(
            "free_rates_max={free_rates_max}: {FREE_RATES_MAX} at most"
        )));
    }
    if classes_max > CLASSES_MAX {
        return Err(PhyloError::new_err(format!(
            "classes_max={classes_max}: {CLASSES_MAX} at most"
        )));
    }
    Ok(Options {
        criterion,
        free_rates_max,
        classes_max,
    })
}

/// The given tree, or one by parsimony.
fn tree_to_fit_on(
    tree: Option<TreeText>,
    names: &[String],
    patterns: &[&Patterns],
    seed: u64,
) -> PyResult<Tree> {
    match tree {
        Some(text) => parts::tree(&text, names),
        None => Ok(parsimony_tree(patterns, None, &mut Random::new(seed))),
    }
}

/// As `sidecore phylo models` has it.
const FREE_RATES_MAX: usize = 10;
const CLASSES_MAX: usize = 64;
