//! The grain of an analysis: bootstraps in numbers that do and do not suit the engines, under each
//! policy.
//!
//! Why here: the second source document's Figures 7 and 8 on real runs. Each run is what `phylo
//! search` does, files aside: a fresh pool and a fresh policy, which has everything to learn.
//! Must stay true: the policies' runs of a round follow each other at once, in an order that
//! rotates from round to round; a claim is a ratio within rounds, and its spread is reported; all
//! runs of a number of bootstraps give the same trees, or the run fails.
//! Source: Blagojevic and others, "Dynamic multigrain parallelization on the Cell" (2007), 5.4,
//! 5.5.

mod picture;
mod replay;
mod report;
mod trace;

pub use report::Report;

use super::BenchError;
use crate::measure::interleave::Judge;
use crate::measure::quiet::{Noise, QuietRounds};
use crate::measure::stats::{self, Series};
use replay::Costs;
use sidecore_offload::Pool;
use sidecore_phylo::analysis::AnalysisError;
use sidecore_phylo::analysis::coordinator::{Change, Coordinator, Keeper};
use sidecore_phylo::analysis::job::{Searches, Starts};
use sidecore_phylo::analysis::plan::{Bootstraps, Goal, Kind, Ledger, Outcome, Piece};
use sidecore_phylo::analysis::workers::{Job, Watch};
use sidecore_phylo::bootstrap;
use sidecore_phylo::io::ranks::farm::{Crew, Lead};
use sidecore_phylo::io::run::alone;
use sidecore_phylo::likelihood::PartOptions;
use sidecore_phylo::model::{Model, ModelName};
use sidecore_phylo::msa::Patterns;
use sidecore_phylo::random::Random;
use sidecore_phylo::runner::pool_config;
use sidecore_phylo::search;
use sidecore_phylo::simulate::{numbered_names, simulate};
use sidecore_phylo::tree::random_tree;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use trace::{Recorder, Trace};

/// The numbers of bootstraps.
pub const BOOTSTRAPS: [u32; 10] = [1, 2, 3, 4, 5, 8, 9, 12, 16, 32];

/// Least number of rounds, unless fewer are requested.
pub const ROUNDS_MIN: usize = 3;

/// The measurement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrainOptions {
    /// Engines, one a core.
    pub engines: usize,
    /// The cores.
    pub cpus: Vec<usize>,
    /// Engines a loop of the static hybrid.
    pub hybrid: u32,
    /// Numbers of bootstraps.
    pub bootstraps: Vec<u32>,
    /// Rounds for each number, at most; fewer where the time is over, but [`ROUNDS_MIN`].
    pub rounds: usize,
    /// About how long all of it may take, if that is bounded; each number has a share of it.
    pub time: Option<Duration>,
    /// Taxa of the simulated alignment.
    pub taxa: usize,
    /// Its sites.
    pub sites: usize,
    /// Seed of everything.
    pub seed: u64,
}

impl GrainOptions {
    /// The default measurement.
    #[must_use]
    pub fn on(cpus: Vec<usize>, engines: usize, quick: bool) -> Self {
        Self {
            engines,
            cpus,
            hybrid: if engines < 4 { 2 } else { 4 },
            bootstraps: match quick {
                true => BOOTSTRAPS[..5].to_vec(),
                false => BOOTSTRAPS.to_vec(),
            },
            rounds: if quick { 3 } else { 21 },
            time: Some(Duration::from_secs(if quick { 40 } else { 400 })),
            taxa: if quick { 10 } else { 16 },
            sites: if quick { 2_000 } else { 6_000 },
            seed: 42,
        }
    }
}

impl GrainOptions {
    /// Share of the time that one number of bootstraps has: a run takes longer the more there are,
    /// and short runs need more rounds.
    fn share_of(&self, bootstraps: u32) -> Option<Duration> {
        let part = |count: u32| f64::from(count) + 8.0;
        let all: f64 = self.bootstraps.iter().map(|&count| part(count)).sum();
        Some(self.time?.mul_f64(part(bootstraps) / all))
    }
}

/// One number of bootstraps: medians of seconds, and what the claims are made of.
#[derive(Debug, Clone, serde::Serialize)]
pub struct GrainRow {
    /// Number of bootstraps.
    pub bootstraps: u32,
    /// Seconds with one engine for each bootstrap.
    pub edtlp_s: f64,
    /// Seconds with a fixed number of engines for each loop.
    pub hybrid_s: f64,
    /// Seconds with numbers of engines chosen from the last off-loads (MGPS).
    pub mgps_s: f64,
    /// Seconds with numbers of engines chosen at each off-load (`equi`).
    pub equi_s: f64,
    /// The four's spreads: largest less smallest, of the median.
    pub spreads: [f64; 4],
    /// `mgps` over the better of edtlp and hybrid: median of the rounds' ratios, and its spread.
    pub mgps_over_better: [f64; 2],
    /// `equi` over the better of edtlp and hybrid.
    pub equi_over_better: [f64; 2],
    /// Rounds measured.
    pub rounds: usize,
    /// The four in virtual time: the tasks' own recorded times replayed under each policy.
    pub replayed_s: [f64; 4],
}

/// The result of a run.
#[derive(Debug, Clone, Default)]
pub struct Grain {
    /// One number of bootstraps each.
    pub rows: Vec<GrainRow>,
    /// Foreign load, and rounds repeated for it.
    pub noise: Noise,
}

/// The data that the runs are made on.
struct Data {
    names: Vec<String>,
    parts: Vec<PartOptions>,
    seed: u64,
}

/// Measures. Blocks for minutes. `step` is called after each run; `stop`, once raised, ends it
/// early with the rows that are complete.
///
/// # Errors
/// [`BenchError`].
fn grain(options: &GrainOptions, stop: &AtomicBool, step: &dyn Fn()) -> Result<Grain, BenchError> {
    let data = Data::new(options)?;
    let hybrid = format!("hybrid({})", options.hybrid);
    let policies = ["edtlp", &hybrid, "mgps", "equi"];
    let most = options.bootstraps.iter().copied().max().unwrap_or(0);
    let traces = data.traces(most, stop)?;
    step();
    let mut grain = Grain::default();
    for &bootstraps in &options.bootstraps {
        let mut seconds: [Vec<f64>; 4] = Default::default();
        let mut first: Option<Vec<String>> = None;
        let began = Instant::now();
        let mut judge = QuietRounds::new(&mut grain.noise, ROUNDS_MIN);
        let mut round = 0;
        while round < options.rounds {
            let is_over = |share| began.elapsed() > share;
            if round >= ROUNDS_MIN && options.share_of(bootstraps).is_some_and(is_over) {
                break;
            }
            judge.begin();
            let mut spent = [0.0; 4];
            for turn in 0..policies.len() {
                let at = (turn + round) % policies.len();
                let (spent_s, trees) = data.run(options, policies[at], bootstraps, stop)?;
                // Relaxed: a flag alone.
                if stop.load(Ordering::Relaxed) {
                    return Ok(grain);
                }
                spent[at] = spent_s;
                if *first.get_or_insert_with(|| trees.clone()) != trees {
                    let policy = policies[at].to_owned();
                    return Err(BenchError::Differs { policy, bootstraps });
                }
                step();
            }
            if judge.keep() {
                round += 1;
                for (all, one) in seconds.iter_mut().zip(spent) {
                    all.push(one);
                }
            }
        }
        let mut replayed_s = [0.0; 4];
        for (own, policy) in replayed_s.iter_mut().zip(policies) {
            let tasks = traces.get(..bootstraps as usize).unwrap_or(&traces);
            let policy = sidecore_sched::by_name(policy)?;
            *own = replay::replay(tasks, options.engines, policy, Costs::default());
        }
        grain.rows.push(row(bootstraps, seconds, replayed_s));
    }
    Ok(grain)
}

fn row(bootstraps: u32, seconds: [Vec<f64>; 4], replayed_s: [f64; 4]) -> GrainRow {
    let series = seconds.map(Series::new);
    // By medians: the better of each round's two would be lucky more often than either is.
    let better = match series[0].median() <= series[1].median() {
        true => &series[0],
        false => &series[1],
    };
    let over = |own: &Series| {
        let outcome = stats::Outcome::of(own, better);
        [outcome.ratio, outcome.spread]
    };
    GrainRow {
        bootstraps,
        edtlp_s: series[0].median(),
        hybrid_s: series[1].median(),
        mgps_s: series[2].median(),
        equi_s: series[3].median(),
        mgps_over_better: over(&series[2]),
        equi_over_better: over(&series[3]),
        rounds: better.rounds(),
        spreads: [0, 1, 2, 3].map(|at| series[at].spread()),
        replayed_s,
    }
}

/// Watch that never stops a run.
struct Unwatched;

impl Watch for Unwatched {
    fn step(&mut self, _: &mut dyn FnMut() -> String) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// Keeper that keeps no checkpoint.
struct Nothing;

impl Keeper for Nothing {
    fn keep(&mut self, _: &Ledger, _: Change<'_>) -> Result<(), AnalysisError> {
        Ok(())
    }
}

impl Data {
    fn new(options: &GrainOptions) -> Result<Self, BenchError> {
        let mut random = Random::new(options.seed);
        let tree = random_tree(options.taxa, 0.1, &mut random);
        let name =
            |text| ModelName::parse(text, &mut |_| Err(std::io::ErrorKind::Unsupported.into()));
        let truth = Model::without_alignment(name(super::DNA)?);
        let names = numbered_names(options.taxa);
        let alignment = simulate(&tree, &names, &truth, options.sites, options.seed)?;
        let name = name("GTR+G")?;
        let patterns = Patterns::new(&alignment, name.alphabet())?;
        let part = PartOptions {
            model: Model::new(name, &patterns),
            patterns,
            scale: 1.0,
        };
        Ok(Self {
            names,
            parts: vec![part],
            seed: options.seed,
        })
    }

    fn searches<R>(&self, runner: R) -> Searches<R> {
        Searches {
            names: self.names.clone(),
            parts: self.parts.clone(),
            search: search::Options::default(),
            starts: Starts::Parsimony,
            rapid: false,
            jackknife: None,
            seed: self.seed,
            runner,
            growing: Arc::default(),
        }
    }

    /// Records the first `count` bootstraps, each on this thread. Raised, `stop` ends it early.
    fn traces(&self, count: u32, stop: &AtomicBool) -> Result<Vec<Trace>, BenchError> {
        let recorder = Recorder::new();
        let job = self.searches(recorder.clone());
        let mut traces = Vec::new();
        for first in 0..count {
            // Relaxed: a flag alone.
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let kind = Kind::Bootstrap;
            let piece = Piece {
                kind,
                first,
                count: 1,
            };
            let _ = recorder.take();
            job.run(&piece, None, &mut Unwatched)?;
            traces.push(recorder.take());
        }
        Ok(traces)
    }

    /// Seconds of one run, and its trees.
    fn run(
        &self,
        options: &GrainOptions,
        policy: &str,
        bootstraps: u32,
        stop: &AtomicBool,
    ) -> Result<(f64, Vec<String>), BenchError> {
        // A pool and a policy of its own: each run has everything to learn.
        let policy = sidecore_sched::by_name(policy)?;
        let pool = Pool::start(pool_config(options.engines, &options.cpus, policy))?;
        let job = self.searches(&pool);
        let mut coordinator = Coordinator::new(Ledger::new(Goal {
            starts: 0,
            bootstraps: Bootstraps::Exactly(bootstraps),
            chain: 1,
            convergence: bootstrap::Options::default(),
        }));
        let crew = Crew {
            pool: &pool,
            cpus: &options.cpus,
            job: &job,
            save_every: Duration::MAX,
        };
        let lead = Lead {
            coordinator: &mut coordinator,
            keeper: &mut Nothing,
            runner: &pool,
            stop,
            seed: self.seed,
        };
        let began = Instant::now();
        alone(crew, lead)?;
        let seconds = began.elapsed().as_secs_f64();
        let tree = |outcome: &Outcome| outcome.tree.clone();
        Ok((seconds, coordinator.ledger.outcomes().map(tree).collect()))
    }
}
