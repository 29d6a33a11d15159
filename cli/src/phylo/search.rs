//! `sidecore phylo search`.

mod progress;
mod role;
mod setup;

use super::support::Support;
use super::{common, limits};
use crate::signals::{SIGINT, SIGTERM, raise_on};
use crate::{Outcome, output};
use anyhow::{Context, Result};
use progress::Progress;
use role::Role;
use setup::Setup;
use sidecore_offload::Pool;
use sidecore_phylo::analysis::coordinator::Ended;
use sidecore_phylo::analysis::plan::{Kind, Ledger};
use sidecore_phylo::io::files::{Files, Names, SUPPORT, SUPPORT_ALRT, SUPPORT_TBE, SUPPORT_UFBOOT};
use sidecore_phylo::io::ranks::farm::Crew;
use sidecore_phylo::io::run::Run;
use sidecore_phylo::msa::Findings;
use sidecore_phylo::newick::Newick;
use sidecore_phylo::runner::pool_config;
use sidecore_phylo::support::Reference;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Arguments of `phylo search`.
#[derive(clap::Args)]
#[command(after_help = "\
One seed, one result: engines, policy and interruptions change nothing but the time. A run that \
was ended by a signal, or killed, goes on where it was when the same command is given again; more \
starts or bootstraps may be asked for then. PREFIX.bestTree, .bestModel, .mlTrees, .startTrees, \
.bootstraps, .support, .supportTBE, .supportSHaLRT, .supportUFBoot, .log and .ckp are \
written. Exit status: 0 done, 2 something cannot be read, written or does not go \
together, 130 stopped by a signal.")]
pub(crate) struct Args {
    #[command(flatten)]
    setup: setup::Options,
    /// Engines that searches and their loops share; one for each core unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    engines: Option<u16>,
    /// Scheduling policy: edtlp, llp(N), hybrid(N), mgps, equi
    #[arg(long, value_name = "POLICY", default_value = "equi")]
    policy: String,
    /// Ranks that do one search together, each with a share of its sites; as many as would else
    /// have no search unless given. Only under mpirun, srun or the like
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    ranks_per_search: Option<u32>,
    /// Names of the written files under the prefix
    #[arg(long, value_enum, default_value = "sidecore")]
    names: Naming,
    /// Begin anew, in place of what an earlier run left under the prefix
    #[arg(long)]
    redo: bool,
    /// Seconds after which the state of a search under way is kept
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "120",
        value_parser = clap::value_parser!(u32).range(1..=86_400)
    )]
    save_every: u32,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

/// Naming of the written files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Naming {
    /// PREFIX.bestTree
    Sidecore,
    /// PREFIX.raxml.bestTree, for scripts that read RAxML-NG's files
    RaxmlNg,
}

impl Naming {
    fn files(self) -> Names {
        match self {
            Self::Sidecore => Names::Own,
            Self::RaxmlNg => Names::RaxmlNg,
        }
    }
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let setup = Setup::read(&self.setup)?;
        let mut role = Role::here(&setup)?;
        let result = self.run_as(&mut role, &setup);
        role.settle(result)
    }

    fn run_as(&self, role: &mut Role, setup: &Setup) -> Result<Outcome> {
        let began = Instant::now();
        let policy = sidecore_sched::by_name(&self.policy)?;
        let stop = raise_on(&[SIGINT, SIGTERM])?;
        limits::stop_with(&stop);
        let cpus = role.cpus().to_vec();
        let engines = match self.engines {
            Some(engines) => engines.into(),
            // A rank of a job has its share of the cores.
            None => common::engines(None)?.min(cpus.len()),
        };
        let config = pool_config(engines, &cpus, policy);
        let save_every = Duration::from_secs(self.save_every.into());
        if role.is_member() {
            role.agree(self.ranks_per_search, None, setup.patterns());
            let pool = Pool::start(config)?;
            let job = setup.searches(&pool);
            role.work(
                setup,
                Crew {
                    pool: &pool,
                    cpus: &cpus,
                    job: &job,
                    save_every,
                },
            )?;
            return Ok(Outcome::Done);
        }
        let (mut files, ledger) = Files::open(
            &setup.prefix,
            self.names.files(),
            setup.settings.clone(),
            setup.goal,
            self.redo,
            setup.bytes_about(),
        )?;
        files.log(&setup.describe(engines, &self.policy))?;
        let layout = role.agree(self.ranks_per_search, Some(&ledger), setup.patterns());
        if let Some(layout) = layout {
            files.log(&layout)?;
        }
        let resumed = ledger.all_done().count();
        if resumed > 0 || ledger.all_saved().next().is_some() {
            tracing::warn!(
                "going on with {}: {resumed} results are there",
                files.checkpoint().display()
            );
            files.log(&format!("going on: {resumed} results are there"))?;
        }
        let pool = Pool::start(config)?;
        let mut progress = Progress::new(&ledger);
        let job = setup.searches(&pool);
        let crew = Crew {
            pool: &pool,
            cpus: &cpus,
            job: &job,
            save_every,
        };
        let (ended, ledger) = role.with_ranks(setup, crew, |ranks| {
            let run = Run {
                crew,
                ranks,
                seed: setup.seed,
                stop: &stop,
                watch: &mut |ledger, finished| progress.show(ledger, finished),
            };
            run.go(&mut files, ledger)
        })?;
        progress.end();
        if ended == Ended::Stopped {
            files.log("stopped; all states are kept")?;
            output::note!(
                "sidecore: stopped; everything is kept in {}: give the same command again to \
                 go on",
                files.checkpoint().display()
            );
            return Ok(Outcome::Stopped);
        }
        let mut written = files.write_trees(&ledger, &setup.best_models(&ledger))?;
        written.extend(support(&files, &ledger, setup, &pool)?);
        let wall_s = began.elapsed().as_secs_f64();
        files.log(&format!("done in {wall_s:.2} s"))?;
        let report = Json::new(
            &ledger,
            wall_s,
            engines,
            &self.policy,
            &setup.findings,
            written,
        );
        if self.json {
            output::json(&report)?;
        } else {
            report.print()?;
        }
        Ok(Outcome::Done)
    }
}

/// Writes the best tree with its supports.
fn support(files: &Files, ledger: &Ledger, setup: &Setup, pool: &Pool) -> Result<Vec<PathBuf>> {
    let mut written = Vec::new();
    let Some(found) = ledger.best() else {
        return Ok(written);
    };
    let trees = ledger
        .outcomes_of(Kind::Bootstrap)
        .map(|one| Newick::parse(&one.tree));
    let trees: Vec<Newick> = trees
        .collect::<Result<_, _>>()
        .context("a bootstrap's tree")?;
    let best = Newick::parse(&found.tree).context("the best tree")?;
    for &support in &setup.supports {
        let suffix = match support {
            Support::Fbp => SUPPORT,
            Support::Tbe => SUPPORT_TBE,
            Support::ShAlrt => SUPPORT_ALRT,
            Support::Ufboot => SUPPORT_UFBOOT,
        };
        let labelled = match support.kind() {
            Some(_) if trees.is_empty() => continue,
            Some(kind) => {
                let reference = Reference::new(&best)?;
                reference.labelled(&reference.tally_all(&trees, kind, pool)?)
            }
            None => {
                let ufboot = support == Support::Ufboot;
                setup.alignment_support(&best, &found.models, ufboot, pool)?
            }
        };
        written.push(files.write(suffix, &format!("{labelled}\n"))?);
    }
    Ok(written)
}

#[derive(serde::Serialize)]
struct Json {
    best_lnl: Option<f64>,
    wall_s: f64,
    engines: usize,
    policy: String,
    bootstraps: usize,
    /// Columns in which no taxon has a character: they are left out.
    undetermined_sites: usize,
    undetermined_taxa: usize,
    identical_taxa: usize,
    /// Verdict of the last convergence test; nothing where none was made.
    converged: Option<bool>,
    tasks: Vec<Task>,
    files: Vec<PathBuf>,
}

#[derive(serde::Serialize)]
struct Task {
    kind: Kind,
    index: u32,
    lnl: f64,
    wall_s: f64,
}

impl Json {
    fn new(
        ledger: &Ledger,
        wall_s: f64,
        engines: usize,
        policy: &str,
        findings: &Findings,
        files: Vec<PathBuf>,
    ) -> Self {
        let tasks = ledger.outcomes().map(|outcome| Task {
            kind: outcome.kind,
            index: outcome.index,
            lnl: outcome.lnl,
            wall_s: outcome.wall_s,
        });
        Self {
            best_lnl: ledger.best().map(|best| best.lnl),
            wall_s,
            engines,
            policy: policy.to_owned(),
            bootstraps: ledger.outcomes_of(Kind::Bootstrap).count(),
            undetermined_sites: findings.undetermined_sites.len(),
            undetermined_taxa: findings.undetermined_taxa.len(),
            identical_taxa: findings.identical_taxa.len(),
            converged: ledger.verdicts().last().map(|verdict| verdict.converged),
            tasks: tasks.collect(),
            files,
        }
    }

    fn print(&self) -> Result<()> {
        if let Some(lnl) = self.best_lnl {
            output::line(&format!("best log-likelihood  {lnl:.6}"))?;
        }
        let searches = self.tasks.len() - self.bootstraps;
        let converged = match self.converged {
            Some(true) => " (converged)",
            Some(false) => " (not converged)",
            None => "",
        };
        output::line(&format!(
            "done                 {searches} searches, {} bootstraps{converged}, {:.2} s on {} \
             engines",
            self.bootstraps, self.wall_s, self.engines
        ))?;
        for path in &self.files {
            output::line(&format!("written              {}", path.display()))?;
        }
        Ok(())
    }
}
