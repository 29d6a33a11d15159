//! Choice of a model.

use crate::alignment::Alignment;
use crate::interrupt::{Stoppable, interruptible};
use crate::parts::{self, PhyloError, choose, refuse};
use pyo3::prelude::*;
use sidecore_phylo::msa::{Alphabet, GeneticCode, Patterns};
use sidecore_phylo::parsimony::parsimony_tree;
use sidecore_phylo::random::Random;
use sidecore_phylo::selection::{
    Criterion, Fit, Options, Selection, SelectionError, likely_alphabet, select,
};

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
    tree: Option<&str>,
    seed: u64,
    engines: Option<usize>,
    code: u8,
) -> PyResult<Vec<ModelFit>> {
    // What is no state is refused where the patterns are made.
    let states = alignment.inner.multistates().unwrap_or(2);
    let code = GeneticCode::new(code)
        .ok_or_else(|| PhyloError::new_err(format!("code={code}: 1 to 6, 9 to 16 or 21 to 25")))?;
    let alphabets = [
        ("auto", likely_alphabet(&alignment.inner)),
        ("dna", Alphabet::Dna),
        ("protein", Alphabet::Protein),
        ("binary", Alphabet::Binary),
        ("multistate", Alphabet::Multistate(states)),
        ("codon", Alphabet::Codon(code)),
    ];
    let criteria = [
        ("bic", Criterion::Bic),
        ("aicc", Criterion::Aicc),
        ("aic", Criterion::Aic),
    ];
    let alphabet = choose("data", data, &alphabets)?;
    let criterion = choose("criterion", criterion, &criteria)?;
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
    let options = Options {
        criterion,
        free_rates_max,
        classes_max,
    };
    let patterns = Patterns::new(&alignment.inner, alphabet).map_err(refuse)?;
    parts::warn_of(py, &alignment.inner, std::iter::once(&patterns))?;
    let tree = match tree {
        Some(text) => parts::tree(text, alignment.inner.names())?,
        None => parsimony_tree(&[&patterns], None, &mut Random::new(seed)),
    };
    let (_, pool) = parts::pool(engines, "equi")?;
    let work = |stop: &_| -> Result<Selection, SelectionError> {
        let runner = Stoppable {
            runner: &pool,
            stop,
        };
        select(&tree, &patterns, &options, runner, |_| {})
    };
    let selection = interruptible(py, work, || Ok(()))?.map_err(refuse)?;
    Ok(selection.fits.iter().map(ModelFit::from).collect())
}

/// As `sidecore phylo models` has it.
const FREE_RATES_MAX: usize = 10;
const CLASSES_MAX: usize = 64;
