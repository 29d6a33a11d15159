//! A run under a prefix, from its opened files to its results: [`search`] and [`genes`].
//!
//! Must stay true: only rank 0 has files; the ranks agree on their teams before any engine starts;
//! a run that was stopped has all that it found in its checkpoint.

use crate::WorkflowError;
use crate::live::{Finished, RunBar, support_bar};
use crate::report::{GeneReport, Report};
use crate::setup::{Effort, RunSetup};
use crate::wide::Wide;
use sidecore_offload::{Pool, PoolConfig};
use sidecore_phylo::analysis::coordinator;
use sidecore_phylo::analysis::genes::{GeneRow, Options};
use sidecore_phylo::analysis::plan::{Goal, Ledger};
use sidecore_phylo::analysis::setup::Setup;
use sidecore_phylo::analysis::supports::{
    AlignmentSupport, Support, bootstrap_support, joined, sites_of, tree_of,
};
use sidecore_phylo::analysis::workers::Job;
use sidecore_phylo::consensus::collapsed;
use sidecore_phylo::evaluation::SitePosterior;
use sidecore_phylo::io::checkpoint::Settings;
use sidecore_phylo::io::data::{GeneLoci, Reader};
use sidecore_phylo::io::files::{Files, Names};
use sidecore_phylo::io::ranks::farm::Crew;
use sidecore_phylo::io::role::Role;
use sidecore_phylo::io::run::Run;
use sidecore_phylo::likelihood::LENGTH_MIN;
use sidecore_phylo::newick::Newick;
use sidecore_phylo::runner::{Serial, pool_config};
use sidecore_status::Publisher;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Means of a run, of which its results do not depend.
#[derive(Debug, Clone, Copy)]
pub struct Launch<'l> {
    /// Prefix of the names of all files.
    pub prefix: &'l Path,
    /// These names.
    pub names: Names,
    /// Begins anew, in place of what an earlier run left under the prefix.
    pub redo: bool,
    /// Engines of this process; one for each of its cores unless given.
    pub engines: Option<usize>,
    /// The scheduling policy's name.
    pub policy: &'l str,
    /// Ranks that do one search together; as many as would else have none, unless given.
    pub ranks_per_search: Option<u32>,
    /// Time after which the state of a search under way is kept.
    pub save_every: Duration,
    /// Raised to stop the run.
    pub stop: &'l AtomicBool,
    /// Its memory and its warnings are the run's.
    pub reader: Reader,
}

/// End of a run.
#[derive(Debug)]
pub enum Ended<T> {
    /// All is done.
    Done(T),
    /// It was stopped: all is kept in this checkpoint, from which the same run goes on.
    Stopped(PathBuf),
    /// This process was a rank that worked for rank 0, which has the results.
    Member,
}

/// Results of searches and bootstraps.
#[derive(Debug)]
pub struct Found {
    /// The report, with the files that were written.
    pub report: Report,
    /// The best tree's sites, if wanted.
    pub sites: Option<Vec<SitePosterior>>,
}

/// Searches and bootstraps, and writes their trees, models and supports. Blocks.
///
/// # Errors
/// [`WorkflowError`].
pub fn search(
    setup: &RunSetup<'_>,
    wants_sites: bool,
    launch: &Launch<'_>,
    role: &mut Role,
) -> Result<Ended<Found>, WorkflowError> {
    let (run, choices) = (&setup.run, &setup.choices);
    let plan = Plan {
        settings: setup.settings.clone(),
        goal: run.goal,
        bytes: run.bytes_about(),
        ranks_per_search: match choices.effort {
            Effort::Full => launch.ranks_per_search,
            // Its one climb runs in one process.
            Effort::Fast => Some(1),
        },
        patterns: run.patterns(),
        describe: &|engines| run.describe(engines, launch.policy),
    };
    let (opened, pool) = Opened::new(launch, role, plan)?;
    let searches = run.searches(&pool);
    let wide = match choices.effort {
        Effort::Full => None,
        Effort::Fast => Some(Wide::new(run, &pool, launch.reader.memory)?),
    };
    let job: &dyn Job = match &wide {
        None => &searches,
        Some(wide) => wide,
    };
    let finished = Finished::default();
    let published = opened.own.as_ref().map(|(_, ledger)| {
        finished.note(ledger);
        let path = std::path::absolute(choices.msa).unwrap_or_else(|_| choices.msa.to_owned());
        let (path, model) = (path.display().to_string(), choices.model.to_owned());
        Publisher::of(&finished.status(path, model, run.names(), &searches.growing))
    });
    let (engines, began) = (opened.engines, opened.began);
    let mut watch = |ledger: &Ledger, has_changed| {
        if has_changed {
            finished.note(ledger);
        }
        wide.as_ref().map(Wide::now).unwrap_or_default()
    };
    let what = (Some(run), run.seed);
    let ended = opened.work(launch, role, what, (&pool, job), &mut watch)?;
    drop(published);
    let (mut files, ledger) = match ended {
        Ended::Done(own) => own,
        Ended::Stopped(path) => return Ok(Ended::Stopped(path)),
        Ended::Member => return Ok(Ended::Member),
    };
    let written = write_results(setup, &files, &ledger, &pool, launch.reader)?;
    let sites = match ledger.best() {
        Some(best) if wants_sites => {
            let parts = setup.parts_of(best)?;
            Some(sites_of(best, run.names(), parts, &pool)?)
        }
        _ => None,
    };
    let wall_s = began.elapsed().as_secs_f64();
    files.log(&format!("done in {wall_s:.2} s"))?;
    let findings = &setup.findings;
    let report = Report::new(&ledger, wall_s, engines, launch.policy, findings, written);
    Ok(Ended::Done(Found { report, sites }))
}

/// Gene trees: a model, searches and supports for each locus; writes them. Blocks.
///
/// # Errors
/// [`WorkflowError`].
pub fn genes(
    loci: &GeneLoci,
    options: &Options,
    launch: &Launch<'_>,
    role: &mut Role,
) -> Result<Ended<GeneReport>, WorkflowError> {
    let goal = loci.job(options.clone(), Serial).goal();
    let plan = Plan {
        settings: loci.settings(options),
        goal,
        bytes: loci.bytes_about(options),
        ranks_per_search: Some(1),
        patterns: 0,
        describe: &|_| format!("{} loci, seed {}", goal.starts, options.seed),
    };
    let (opened, pool) = Opened::new(launch, role, plan)?;
    let job = loci.job(options.clone(), &pool);
    let (engines, began) = (opened.engines, opened.began);
    let what = (None, options.seed);
    let ended = opened.work(launch, role, what, (&pool, &job), &mut |_, _| String::new())?;
    let (mut files, ledger) = match ended {
        Ended::Done(own) => own,
        Ended::Stopped(path) => return Ok(Ended::Stopped(path)),
        Ended::Member => return Ok(Ended::Member),
    };
    let rows = GeneRow::all(&job, &ledger);
    let written = files.write_genes(&rows)?;
    let wall_s = began.elapsed().as_secs_f64();
    files.log(&format!("done in {wall_s:.2} s"))?;
    Ok(Ended::Done(GeneReport {
        wall_s,
        engines,
        skipped: loci.skipped.clone(),
        loci: rows,
        files: written,
    }))
}

/// Identity and size of a run.
struct Plan<'p> {
    settings: Settings,
    goal: Goal,
    /// Bytes of its files, about.
    bytes: u64,
    ranks_per_search: Option<u32>,
    patterns: usize,
    /// A line for the log of a run on this number of engines.
    describe: &'p dyn Fn(usize) -> String,
}

/// A run whose files are open.
struct Opened {
    /// Of rank 0.
    own: Option<(Files, Ledger)>,
    cpus: Vec<usize>,
    engines: usize,
    began: Instant,
}

impl Opened {
    /// Opens the files of a new or a resumed run, and starts the engines.
    fn new(
        launch: &Launch<'_>,
        role: &mut Role,
        plan: Plan<'_>,
    ) -> Result<(Self, Pool), WorkflowError> {
        let began = Instant::now();
        let cpus = role.cpus().to_vec();
        // A rank of a job has its share of the cores.
        let most = PoolConfig::default().engines.min(cpus.len());
        let engines = launch.engines.unwrap_or(most);
        let config = pool_config(engines, &cpus, sidecore_sched::by_name(launch.policy)?);
        let (ranks_per_search, patterns) = (plan.ranks_per_search, plan.patterns);
        let mut own = match role.is_member() {
            true => None,
            false => Some(open(launch, plan, engines)?),
        };
        // Behind `open`: rank 0 proposes by what is left to do.
        let ledger = own.as_ref().map(|(_, ledger)| ledger);
        let layout = role.agree(ranks_per_search, ledger, patterns);
        if let (Some((files, _)), Some(layout)) = (&mut own, layout) {
            files.log(&layout)?;
        }
        let opened = Self {
            own,
            cpus,
            engines,
            began,
        };
        Ok((opened, Pool::start(config)?))
    }

    /// Does the open work; with a `setup` teams of ranks may share it. `watch` is called after
    /// every change and a few times a second, and says what is being done.
    fn work(
        self,
        launch: &Launch<'_>,
        role: &mut Role,
        (setup, seed): (Option<&Setup>, u64),
        (pool, job): (&Pool, &dyn Job),
        watch: &mut (dyn FnMut(&Ledger, bool) -> String + Send),
    ) -> Result<Ended<(Files, Ledger)>, WorkflowError> {
        let crew = Crew {
            pool,
            cpus: &self.cpus,
            job,
            save_every: launch.save_every,
        };
        let Some((mut files, ledger)) = self.own else {
            role.work(setup, crew)?;
            return Ok(Ended::Member);
        };
        let bar = RunBar::begin(&ledger, setup.is_some());
        let (ended, ledger) = role.with_ranks(setup, crew, |ranks| {
            let running = Run {
                crew,
                ranks,
                seed,
                stop: launch.stop,
                watch: &mut |ledger, has_changed| {
                    let doing = watch(ledger, has_changed);
                    bar.step(ledger, has_changed, doing);
                },
            };
            running.go(&mut files, ledger)
        })?;
        bar.end();
        if ended == coordinator::Ended::Stopped {
            files.log("stopped; all states are kept")?;
            return Ok(Ended::Stopped(files.checkpoint()));
        }
        Ok(Ended::Done((files, ledger)))
    }
}

/// The files of a new or a resumed run, and what is done of it.
fn open(
    launch: &Launch<'_>,
    plan: Plan<'_>,
    engines: usize,
) -> Result<(Files, Ledger), WorkflowError> {
    let Launch {
        prefix,
        names,
        redo,
        ..
    } = *launch;
    let opened = Files::open(prefix, names, plan.settings, plan.goal, redo, plan.bytes);
    let (mut files, ledger) = opened?;
    files.log(&(plan.describe)(engines))?;
    let resumed = ledger.all_done().count();
    if resumed > 0 || ledger.all_saved().next().is_some() {
        let there = format!("{resumed} results are there");
        (launch.reader.warn)(&format!(
            "going on with {}: {there}",
            files.checkpoint().display()
        ));
        files.log(&format!("going on: {there}"))?;
    }
    Ok((files, ledger))
}

/// Writes the trees, their models and supports; gives the files.
fn write_results(
    setup: &RunSetup<'_>,
    files: &Files,
    ledger: &Ledger,
    pool: &Pool,
    reader: Reader,
) -> Result<Vec<PathBuf>, WorkflowError> {
    let models = setup.run.best_models(&setup.part_names, ledger);
    let mut written = files.write_trees(ledger, &models)?;
    if let Some(best) = ledger.best().filter(|_| setup.choices.polytomies) {
        written.push(files.write_collapsed(&collapsed(&tree_of(best)?, VOID))?);
    }
    let mut labelled = Vec::new();
    for &support in setup.choices.supports {
        if let Some(tree) = supported(support, setup, ledger, pool, reader)? {
            written.push(files.write_support(Some(support), &tree)?);
            labelled.push(tree);
        }
    }
    // All of them are the best tree: one file has the labels of all.
    if let [first, _, ..] = &labelled[..] {
        written.push(files.write_support(None, &joined(first.clone(), &labelled))?);
    }
    Ok(written)
}

/// The best tree with supports; nothing where there are no bootstraps for them.
fn supported(
    support: Support,
    setup: &RunSetup<'_>,
    ledger: &Ledger,
    pool: &Pool,
    reader: Reader,
) -> Result<Option<Newick>, WorkflowError> {
    let labelled = match (support, ledger.best()) {
        (Support::Replicates(kind), _) => bootstrap_support(ledger, kind, pool)?,
        (Support::Alignment(_), None) => None,
        (Support::Alignment(kind), Some(best)) => {
            // Under the best search's models, with all their values.
            let (parts, tree) = (setup.parts_of(best)?, tree_of(best)?);
            let options = AlignmentSupport {
                lengths: setup.run.lengths_of_result(),
                bnni: setup.choices.bnni,
                ..AlignmentSupport::new(kind, setup.run.seed)
            };
            let names = setup.run.names();
            Some(options.on(&tree, names, parts, pool, support_bar(kind, reader))?)
        }
    };
    Ok(labelled)
}

/// The longest branch that counts as none: a fit's shortest ones, to rounding.
const VOID: f64 = 2.0 * LENGTH_MIN;
