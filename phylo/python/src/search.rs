//! Searches and bootstraps.

use crate::alignment::{Alignment, doubles};
use crate::interrupt::{Stoppable, interruptible};
use crate::parts::{self, PhyloError, refuse};
use pyo3::prelude::*;
use sidecore_phylo::analysis::AnalysisError;
use sidecore_phylo::analysis::coordinator::{Change, Coordinator, Keeper};
use sidecore_phylo::analysis::job::Starts;
use sidecore_phylo::analysis::plan::{Bootstraps, Kind, Ledger, Outcome};
use sidecore_phylo::analysis::setup::{Request, Setup};
use sidecore_phylo::analysis::supports::bootstrap_support;
use sidecore_phylo::io::data::linkage;
use sidecore_phylo::io::ranks::farm::{Crew, Lead};
use sidecore_phylo::io::run::alone;
use sidecore_phylo::newick::Newick;
use sidecore_phylo::search::Constraint;
use sidecore_phylo::support;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// The trees of a run.
#[pyclass(frozen, module = "sidecore_phylo")]
pub(crate) struct SearchResult {
    searches: Vec<Outcome>,
    replicates: Vec<Outcome>,
    best: Option<usize>,
    /// The best tree with the bootstraps' support in per cent; None without bootstraps.
    #[pyo3(get)]
    support: Option<String>,
    /// Verdict of the last convergence test; None where none was made.
    #[pyo3(get)]
    converged: Option<bool>,
}

#[pymethods]
impl SearchResult {
    /// The best search's tree, in Newick; None without searches.
    #[getter]
    fn tree(&self) -> Option<&str> {
        self.best().map(|best| best.tree.as_str())
    }

    /// Its log-likelihood.
    #[getter]
    fn log_likelihood(&self) -> Option<f64> {
        self.best().map(|best| best.lnl)
    }

    /// Its models, one a partition, with all values.
    #[getter]
    fn models(&self) -> Option<Vec<String>> {
        self.best().map(|best| best.models.clone())
    }

    /// Every search's tree.
    #[getter]
    fn trees(&self) -> Vec<&str> {
        self.searches.iter().map(|one| one.tree.as_str()).collect()
    }

    /// Every search's log-likelihood: a new array of float64.
    #[getter]
    fn log_likelihoods<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let all: Vec<f64> = self.searches.iter().map(|one| one.lnl).collect();
        doubles(py, &all)
    }

    /// The tree that each search began with.
    #[getter]
    fn start_trees(&self) -> Vec<&str> {
        self.searches.iter().map(|one| one.start.as_str()).collect()
    }

    /// Every bootstrap's tree.
    #[getter]
    fn bootstraps(&self) -> Vec<&str> {
        let all = self.replicates.iter();
        all.map(|one| one.tree.as_str()).collect()
    }

    fn __repr__(&self) -> String {
        let lnl = self
            .best()
            .map_or("None".to_owned(), |one| one.lnl.to_string());
        format!(
            "SearchResult(log_likelihood={lnl}, {} searches, {} bootstraps)",
            self.searches.len(),
            self.replicates.len()
        )
    }
}

impl SearchResult {
    fn best(&self) -> Option<&Outcome> {
        self.best.map(|best| &self.searches[best])
    }
}

/// Number of bootstraps, or "auto".
#[derive(FromPyObject)]
pub(crate) enum Amount {
    Exactly(u32),
    Named(String),
}

/// "mixed", "parsimony", "random", or trees.
#[derive(FromPyObject)]
pub(crate) enum StartTrees {
    Named(String),
    Given(Vec<String>),
}

/// Counts finished pieces.
struct Counter<'c>([&'c AtomicU32; 2]);

impl Keeper for Counter<'_> {
    fn keep(&mut self, ledger: &Ledger, _: Change<'_>) -> Result<(), AnalysisError> {
        // Relaxed: numbers to show.
        for (count, now) in self.0.iter().zip(ledger.progress()) {
            count.store(now, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Searches for the tree of the highest likelihood, and bootstraps it.
#[pyfunction]
#[pyo3(signature = (
    alignment, model, *, starts=10, bootstraps=Amount::Exactly(0), bootstraps_max=1000,
    rapid=false, jackknife=None, brlen=None, seed=1,
    start_trees=StartTrees::Named("mixed".to_owned()), constraint=None, engines=None,
    policy="equi", progress=None
))]
#[expect(clippy::too_many_arguments, reason = "they are Python's keywords")]
pub(crate) fn search(
    py: Python<'_>,
    alignment: &Alignment,
    model: &str,
    starts: u32,
    bootstraps: Amount,
    bootstraps_max: u32,
    rapid: bool,
    jackknife: Option<f64>,
    brlen: Option<&str>,
    seed: u64,
    start_trees: StartTrees,
    constraint: Option<&str>,
    engines: Option<usize>,
    policy: &str,
    progress: Option<Bound<'_, PyAny>>,
) -> PyResult<SearchResult> {
    let names = alignment.inner.names();
    let bootstraps = match bootstraps {
        Amount::Exactly(count) => Bootstraps::Exactly(count),
        Amount::Named(text) if text == "auto" => Bootstraps::UntilConverged,
        Amount::Named(text) => {
            return Err(PhyloError::new_err(format!(
                "bootstraps={text:?}: a number, or \"auto\""
            )));
        }
    };
    if jackknife.is_some_and(|share| share <= 0.0 || share >= 1.0 || share.is_nan() || rapid) {
        return Err(PhyloError::new_err(
            "jackknife must be above 0 and below 1, and not be with rapid=True",
        ));
    }
    if !(50..=100_000).contains(&bootstraps_max) {
        return Err(PhyloError::new_err(format!(
            "bootstraps_max={bootstraps_max}: 50 to 100000"
        )));
    }
    let constraint = constraint.map(|text| {
        let newick = Newick::parse(text).map_err(refuse)?;
        Constraint::from_newick(&newick, names).map_err(refuse)
    });
    let parts = parts::parts(&alignment.inner, model)?;
    parts::warn(py, &alignment.inner, &parts)?;
    let request = Request {
        starts: Some(starts),
        trees: starts_of(start_trees, names)?,
        bootstraps,
        bootstraps_max,
        rapid,
        jackknife,
        constraint: constraint.transpose()?,
        lengths: linkage(parts::linked(brlen)?, &parts).map_err(refuse)?,
        seed,
    };
    let setup = Setup::new(&alignment.inner, parts, request).map_err(refuse)?;
    let (cpus, pool) = parts::pool(engines, policy)?;
    // Python may be called only from this thread: the other one counts, and `tick` reports.
    let counts = [AtomicU32::new(0), AtomicU32::new(0)];
    let work = |stop: &AtomicBool| {
        let job = setup.searches(Stoppable {
            runner: &pool,
            stop,
        });
        let mut coordinator = Coordinator::new(Ledger::new(setup.goal));
        let crew = Crew {
            pool: &pool,
            cpus: &cpus,
            job: &job,
            save_every: NEVER,
        };
        let lead = Lead {
            coordinator: &mut coordinator,
            keeper: &mut Counter(counts.each_ref()),
            runner: &pool,
            stop,
            seed,
        };
        // No files and no other processes: the caller keeps the result.
        alone(crew, lead)?;
        found(coordinator.ledger, &pool)
    };
    // Called a few times a second; only what has changed is worth the interpreter's time.
    let mut shown = [0; 2];
    let tick = || {
        let now = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        if let Some(progress) = progress.as_ref().filter(|_| shown != now) {
            shown = now;
            progress.call1((now[0], now[1]))?;
        }
        Ok(())
    };
    interruptible(py, work, tick)?.map_err(refuse)
}

fn starts_of(given: StartTrees, names: &[String]) -> PyResult<Starts> {
    match given {
        StartTrees::Named(text) => Starts::named(&text).ok_or_else(|| {
            PhyloError::new_err(format!(
                "start_trees={text:?}: \"mixed\", \"parsimony\", \"random\", or a list of trees"
            ))
        }),
        StartTrees::Given(trees) => {
            let all = trees.iter().map(|text| parts::tree(text, names));
            Ok(Starts::Given(all.collect::<PyResult<_>>()?))
        }
    }
}

/// Outcome of a run.
fn found(ledger: Ledger, pool: &sidecore_offload::Pool) -> Result<SearchResult, AnalysisError> {
    let of = |kind| ledger.outcomes_of(kind).cloned().collect::<Vec<_>>();
    let (searches, replicates) = (of(Kind::Search), of(Kind::Bootstrap));
    let best = ledger.best().map(|best| best.index);
    let support = bootstrap_support(&ledger, support::Kind::Fbp, pool)?;
    Ok(SearchResult {
        best: searches.iter().position(|one| Some(one.index) == best),
        searches,
        replicates,
        support: support.map(|tree| tree.to_string()),
        converged: ledger.verdicts().last().map(|verdict| verdict.converged),
    })
}

/// Nothing is stored: there is no file to continue from.
const NEVER: Duration = Duration::MAX;
