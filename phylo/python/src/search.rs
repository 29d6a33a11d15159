//! Searches and bootstraps, gene trees.

use crate::alignment::{self, Alignment, doubles};
use crate::interrupt::{Stoppable, interruptible};
use crate::parts::{self, PhyloError, TreeText, choose, refuse};
use pyo3::prelude::*;
use sidecore_offload::Pool;
use sidecore_phylo::analysis::AnalysisError;
use sidecore_phylo::analysis::coordinator::{Change, Coordinator, Keeper};
use sidecore_phylo::analysis::genes::{GeneRow, Options as GeneOptions};
use sidecore_phylo::analysis::job::Starts;
use sidecore_phylo::analysis::plan::{Bootstraps, Goal, Kind, Ledger, Outcome};
use sidecore_phylo::analysis::setup::{Request, Setup};
use sidecore_phylo::analysis::supports::{AlignmentKind, Support, bootstrap_support};
use sidecore_phylo::analysis::workers::Job;
use sidecore_phylo::io::data::Reader;
use sidecore_phylo::io::input::Memory;
use sidecore_phylo::io::ranks::farm::{Crew, Lead};
use sidecore_phylo::io::run::alone;
use sidecore_phylo::runner::Serial;
use sidecore_phylo::search::Constraint;
use sidecore_phylo::support;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// The part of an outcome that results show: tree, start tree, log-likelihood, models.
type Shown = (String, String, f64, Vec<String>);

fn shown(outcome: &Outcome) -> Shown {
    let Outcome {
        tree,
        start,
        lnl,
        models,
        ..
    } = outcome.clone();
    (tree, start, lnl, models)
}

/// The trees of a run.
#[pyclass(frozen, module = "sidecore_phylo")]
pub(crate) struct SearchResult {
    searches: Vec<Shown>,
    replicates: Vec<Shown>,
    best: Option<usize>,
    /// The best tree with the bootstraps' support in per cent; None without bootstraps.
    #[pyo3(get)]
    support: Option<String>,
    /// Verdict of the last convergence test; None where none was made.
    #[pyo3(get)]
    converged: Option<bool>,
}

/// The parts of a result, in the order of its fields, as pickle keeps them.
type State = (
    Vec<Shown>,
    Vec<Shown>,
    Option<usize>,
    Option<String>,
    Option<bool>,
);

#[pymethods]
impl SearchResult {
    /// From the parts that pickle keeps.
    #[new]
    fn new(state: State) -> PyResult<Self> {
        let (searches, replicates, best, support, converged) = state;
        if best.is_some_and(|best| best >= searches.len()) {
            return Err(PhyloError::new_err(
                "the best search is none of the searches",
            ));
        }
        Ok(Self {
            searches,
            replicates,
            best,
            support,
            converged,
        })
    }

    fn __getnewargs__(&self) -> (State,) {
        let state = (
            self.searches.clone(),
            self.replicates.clone(),
            self.best,
            self.support.clone(),
            self.converged,
        );
        (state,)
    }

    /// The best tree, with support where there is some, for whatever takes an object with this
    /// method.
    fn to_newick(&self) -> PyResult<&str> {
        let tree = self.support.as_deref().or_else(|| self.tree());
        tree.ok_or_else(|| PhyloError::new_err("the run made no search: it has no best tree"))
    }

    /// The best search's tree, in Newick; None without searches.
    #[getter]
    fn tree(&self) -> Option<&str> {
        self.best().map(|best| best.0.as_str())
    }

    /// Its log-likelihood.
    #[getter]
    fn log_likelihood(&self) -> Option<f64> {
        self.best().map(|best| best.2)
    }

    /// Its models, one a partition, with all values.
    #[getter]
    fn models(&self) -> Option<Vec<String>> {
        self.best().map(|best| best.3.clone())
    }

    /// Every search's tree.
    #[getter]
    fn trees(&self) -> Vec<&str> {
        self.searches.iter().map(|one| one.0.as_str()).collect()
    }

    /// Every search's log-likelihood: a new array of float64.
    #[getter]
    fn log_likelihoods<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let all: Vec<f64> = self.searches.iter().map(|one| one.2).collect();
        doubles(py, &all)
    }

    /// The tree that each search began with.
    #[getter]
    fn start_trees(&self) -> Vec<&str> {
        self.searches.iter().map(|one| one.1.as_str()).collect()
    }

    /// Every bootstrap's tree.
    #[getter]
    fn bootstraps(&self) -> Vec<&str> {
        let all = self.replicates.iter();
        all.map(|one| one.0.as_str()).collect()
    }

    fn __repr__(&self) -> String {
        let lnl = self
            .best()
            .map_or("None".to_owned(), |one| one.2.to_string());
        format!(
            "SearchResult(log_likelihood={lnl}, {} searches, {} bootstraps)",
            self.searches.len(),
            self.replicates.len()
        )
    }
}

impl SearchResult {
    fn best(&self) -> Option<&Shown> {
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
    Given(Vec<TreeText>),
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
    constraint: Option<TreeText>,
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
        let newick = parts::newick(&text)?;
        Constraint::from_newick(&newick, names).map_err(refuse)
    });
    let (parts, lengths) = parts::parts(py, &alignment.inner, model, brlen)?;
    let request = Request {
        starts: Some(starts),
        trees: starts_of(start_trees, names)?,
        bootstraps,
        bootstraps_max,
        rapid,
        jackknife,
        constraint: constraint.transpose()?,
        lengths,
        seed,
    };
    let setup = Setup::new(&alignment.inner, parts, request).map_err(refuse)?;
    let (cpus, pool) = parts::pool(engines, policy)?;
    let counts = [AtomicU32::new(0), AtomicU32::new(0)];
    let work = |stop: &AtomicBool| {
        let job = setup.searches(Stoppable {
            runner: &pool,
            stop,
        });
        found(
            run(
                &job,
                setup.goal,
                (&pool, cpus.as_slice()),
                &counts,
                stop,
                seed,
            )?,
            &pool,
        )
    };
    interruptible(py, work, reporter(progress.as_ref(), &counts))?.map_err(refuse)
}

/// Does all pieces of a job, without files and without other processes.
fn run(
    job: &dyn Job,
    goal: Goal,
    (pool, cpus): (&Pool, &[usize]),
    counts: &[AtomicU32; 2],
    stop: &AtomicBool,
    seed: u64,
) -> Result<Ledger, AnalysisError> {
    let mut coordinator = Coordinator::new(Ledger::new(goal));
    let crew = Crew {
        pool,
        cpus,
        job,
        save_every: NEVER,
    };
    let lead = Lead {
        coordinator: &mut coordinator,
        keeper: &mut Counter(counts.each_ref()),
        runner: pool,
        stop,
        seed,
    };
    // The caller keeps the result.
    alone(crew, lead)?;
    Ok(coordinator.ledger)
}

/// Calls `progress` with the numbers of results whenever they have changed. Python may be called
/// only from the thread of the call: the other one counts.
fn reporter(
    progress: Option<&Bound<'_, PyAny>>,
    counts: &[AtomicU32; 2],
) -> impl FnMut() -> PyResult<()> {
    // Called a few times a second; only what has changed is worth the interpreter's time.
    let mut shown = [0; 2];
    move || {
        let now = counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        if let Some(progress) = progress.filter(|_| shown != now) {
            shown = now;
            progress.call1((now[0], now[1]))?;
        }
        Ok(())
    }
}

/// Gene trees: a model, searches and supports for each locus. `loci` is a dict of alignments by
/// their names, or an alignment whose parts the lines `model` name. A dict.
#[pyfunction]
#[pyo3(signature = (
    loci, model="auto", *, starts=1, bootstraps=0, support=None, seed=1, engines=None,
    policy="equi", progress=None
))]
#[expect(clippy::too_many_arguments, reason = "they are Python's keywords")]
pub(crate) fn genes<'py>(
    py: Python<'py>,
    loci: &Bound<'py, PyAny>,
    model: &str,
    starts: u32,
    bootstraps: u32,
    support: Option<Vec<String>>,
    seed: u64,
    engines: Option<usize>,
    policy: &str,
    progress: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    if !(1..=1_000).contains(&starts) || bootstraps > 10_000 {
        return Err(PhyloError::new_err(
            "starts must be from 1 to 1000, bootstraps at most 10000",
        ));
    }
    let options = GeneOptions {
        starts,
        bootstraps,
        supports: supports(&support.unwrap_or_default())?,
        seed,
    };
    // No model's name has an equals sign; every line of partitions has one.
    let lines = Some(model).filter(|text| text.contains('='));
    let (alignment, text) = alignment::loci(loci, lines, model)?;
    let reader = Reader {
        memory: Memory::new(None),
        warn: |_| {},
    };
    let loci = reader.loci_of(&alignment, text, ["the loci", "the model"]);
    let loci = loci.map_err(refuse)?;
    for name in &loci.skipped {
        parts::say(py, &format!("{name} has fewer than 3 taxa: left out"))?;
    }
    let (cpus, pool) = parts::pool(engines, policy)?;
    let counts = [AtomicU32::new(0), AtomicU32::new(0)];
    let goal = loci.job(options.clone(), Serial).goal();
    let work = |stop: &AtomicBool| -> Result<Vec<GeneRow>, AnalysisError> {
        let job = loci.job(
            options,
            Stoppable {
                runner: &pool,
                stop,
            },
        );
        let ledger = run(&job, goal, (&pool, cpus.as_slice()), &counts, stop, seed)?;
        Ok(GeneRow::all(&job, &ledger))
    };
    let rows = interruptible(py, work, reporter(progress.as_ref(), &counts))?;
    let (loci, skipped) = (rows.map_err(refuse)?, &loci.skipped);
    parts::report(py, &Genes { loci, skipped })
}

/// Gene trees and the names of loci without one.
#[derive(serde::Serialize)]
struct Genes<'g> {
    loci: Vec<GeneRow>,
    skipped: &'g [String],
}

/// Kinds of support by a locus' alignment, by name.
fn supports(names: &[String]) -> PyResult<Vec<AlignmentKind>> {
    let kinds = Support::NAMED
        .into_iter()
        .filter_map(|(name, help, own)| match own {
            Support::Alignment(kind) => Some((name, help, kind)),
            Support::Replicates(_) => None,
        });
    let kinds: Vec<(&str, &str, AlignmentKind)> = kinds.collect();
    let chosen = names.iter().map(|name| choose("support", name, &kinds));
    chosen.collect()
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
fn found(ledger: Ledger, pool: &Pool) -> Result<SearchResult, AnalysisError> {
    let of = |kind| ledger.outcomes_of(kind).cloned().collect::<Vec<_>>();
    let (searches, replicates) = (of(Kind::Search), of(Kind::Bootstrap));
    let all = |outcomes: &[Outcome]| -> Vec<Shown> { outcomes.iter().map(shown).collect() };
    let best = ledger.best().map(|best| best.index);
    let support = bootstrap_support(&ledger, support::Kind::Fbp, pool)?;
    Ok(SearchResult {
        best: searches.iter().position(|one| Some(one.index) == best),
        searches: all(&searches),
        replicates: all(&replicates),
        support: support.map(|tree| tree.to_string()),
        converged: ledger.verdicts().last().map(|verdict| verdict.converged),
    })
}

/// Nothing is stored: there is no file to continue from.
const NEVER: Duration = Duration::MAX;
