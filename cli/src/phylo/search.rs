//! `sidecore phylo search`.

use super::common::{self, DataArgs, Progress, Running};
use super::limits;
use super::wide::{Effort, Wide, efforts};
use crate::signals::{SIGINT, SIGTERM, raise_on};
use crate::trace::TraceArgs;
use crate::{Outcome, output};
use anyhow::{Result, bail};
use sidecore_offload::Pool;
use sidecore_phylo::analysis::coordinator::Ended;
use sidecore_phylo::analysis::plan::{Bootstraps, Ledger};
use sidecore_phylo::analysis::report::Report;
use sidecore_phylo::analysis::supports::{
    AlignmentSupport, Support, bootstrap_support, joined, sites_of, tree_of,
};
use sidecore_phylo::analysis::workers::Job;
use sidecore_phylo::consensus::collapsed;
use sidecore_phylo::io::files::{Files, Names};
use sidecore_phylo::io::live::Finished;
use sidecore_phylo::io::ranks::farm::Crew;
use sidecore_phylo::io::role::Role;
use sidecore_phylo::io::run::Run;
use sidecore_phylo::io::setup::{Choices, RunSetup};
use sidecore_phylo::likelihood::{LENGTH_MIN, Lengths};
use sidecore_phylo::newick::Newick;
use sidecore_status::Publisher;
use sidecore_terminal::values::{named, number};
use std::path::PathBuf;
use std::time::Instant;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    trace: TraceArgs,
    #[command(flatten)]
    running: Running,
    /// Ranks that do one search together, each with a share of its sites; as many as would else
    /// have no search unless given. Only under mpirun, srun or the like
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    ranks_per_search: Option<u32>,
    /// Names of the written files under the prefix
    #[arg(long, default_value = "sidecore", value_parser = named([
        ("sidecore", "PREFIX.bestTree", Names::Own),
        ("raxml-ng", RAXML_NG, Names::RaxmlNg),
    ]))]
    names: Names,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

const RAXML_NG: &str = "PREFIX.raxml.bestTree, for scripts that read RAxML-NG's files";

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let setup = self.options.read()?;
        let _recording = self.trace.begin("phylo search")?;
        let mut role = Role::here(&setup.settings.identity())?;
        let result = self.run_as(&mut role, &setup);
        role.settle(result, |rank, error| {
            output::note!("sidecore: rank {rank}: {}", output::chain(error));
        })
    }

    fn run_as(&self, role: &mut Role, setup: &RunSetup) -> Result<Outcome> {
        let began = Instant::now();
        let stop = raise_on(&[SIGINT, SIGTERM])?;
        limits::stop_with(&stop);
        let cpus = role.cpus().to_vec();
        let engines = self.running.engines(&cpus);
        let config = self.running.pool(&cpus)?;
        let run = &setup.run;
        // Only rank 0 has files; the ranks agree on their teams before any engine starts.
        let mut own = match role.is_member() {
            true => None,
            false => Some(self.open(setup, engines)?),
        };
        let ledger = own.as_ref().map(|(_, ledger)| ledger);
        // Behind `open`: rank 0 proposes by what is left to do.
        let per_search = match self.options.effort {
            Effort::Full => self.ranks_per_search,
            // Its one climb runs in one process.
            Effort::Fast => Some(1),
        };
        let layout = role.agree(per_search, ledger, run.patterns());
        let pool = Pool::start(config)?;
        let searches = run.searches(&pool);
        let wide = match self.options.effort {
            Effort::Full => None,
            Effort::Fast => Some(Wide::new(run, &pool)?),
        };
        let job: &dyn Job = match &wide {
            None => &searches,
            Some(wide) => wide,
        };
        let crew = Crew {
            pool: &pool,
            cpus: &cpus,
            job,
            save_every: self.running.save_every(),
        };
        let Some((mut files, ledger)) = own.take() else {
            role.work(Some(run), crew)?;
            return Ok(Outcome::Done);
        };
        if let Some(layout) = layout {
            files.log(&layout)?;
        }
        let finished = Finished::default();
        finished.note(&ledger);
        let [alignment, model] = self.options.subject();
        let status = finished.status(alignment, model, run.names(), &searches.growing);
        let published = Publisher::of(&status);
        let progress = Progress::new(&ledger, true);
        let (ended, ledger) = role.with_ranks(Some(run), crew, |ranks| {
            let running = Run {
                crew,
                ranks,
                seed: run.seed,
                stop: &stop,
                watch: &mut |ledger, has_changed| {
                    if has_changed {
                        finished.note(ledger);
                    }
                    progress.show(ledger, has_changed);
                    if let Some(wide) = &wide {
                        progress.say(wide.now());
                    }
                },
            };
            running.go(&mut files, ledger)
        })?;
        // Before anything is written to standard error: the bar would be drawn into it.
        progress.end();
        drop(published);
        if ended == Ended::Stopped {
            return common::stopped(&mut files);
        }
        let written = self.write_results(&files, &ledger, setup, &pool)?;
        let wall_s = began.elapsed().as_secs_f64();
        files.log(&format!("done in {wall_s:.2} s"))?;
        let (policy, findings) = (&self.running.policy, &setup.findings);
        let report = Report::new(&ledger, wall_s, engines, policy, findings, written);
        output::report(self.json, &report, Report::text)
    }

    /// Writes the trees, their models, supports and tables; gives the files.
    fn write_results(
        &self,
        files: &Files,
        ledger: &Ledger,
        setup: &RunSetup,
        pool: &Pool,
    ) -> Result<Vec<PathBuf>> {
        let models = setup.run.best_models(&setup.part_names, ledger);
        let mut written = files.write_trees(ledger, &models)?;
        if let Some(best) = ledger.best().filter(|_| self.options.polytomies) {
            written.push(files.write_collapsed(&collapsed(&tree_of(best)?, VOID))?);
        }
        let mut labelled = Vec::new();
        for &support in &self.options.support {
            if let Some(tree) = supported((support, self.options.bnni), ledger, setup, pool)? {
                written.push(files.write_support(support, &tree)?);
                labelled.push(tree);
            }
        }
        // All of them are the best tree: one file has the labels of all.
        if let [first, _, ..] = &labelled[..] {
            written.push(files.write_all_supports(&joined(first.clone(), &labelled))?);
        }
        written.extend(self.write_tables(ledger, setup, pool)?);
        Ok(written)
    }

    /// Writes the tables of sites, of the best tree under its models.
    fn write_tables(&self, ledger: &Ledger, setup: &RunSetup, pool: &Pool) -> Result<Vec<PathBuf>> {
        let tables = &self.options.tables;
        match ledger.best() {
            Some(best) if tables.any() => {
                let sites = sites_of(best, setup.run.names(), setup.parts_of(best)?, pool)?;
                tables.write(&sites, &setup.part_names)
            }
            _ => Ok(Vec::new()),
        }
    }

    /// The files of a new or a resumed run, and what is done of it.
    fn open(&self, setup: &RunSetup, engines: usize) -> Result<(Files, Ledger)> {
        let (mut files, ledger) = Files::open(
            &self.options.prefix,
            self.names,
            setup.settings.clone(),
            setup.run.goal,
            self.running.redo,
            setup.run.bytes_about(),
        )?;
        files.log(&setup.run.describe(engines, &self.running.policy))?;
        common::note_resumed(&mut files, &ledger)?;
        Ok((files, ledger))
    }
}

/// The best tree with supports, refined with `bnni`; nothing where there are no bootstraps for
/// them.
fn supported(
    (support, bnni): (Support, bool),
    ledger: &Ledger,
    setup: &RunSetup,
    pool: &Pool,
) -> Result<Option<Newick>> {
    let labelled = match (support, ledger.best()) {
        (Support::Replicates(kind), _) => bootstrap_support(ledger, kind, pool)?,
        (Support::Alignment(_), None) => None,
        (Support::Alignment(kind), Some(best)) => {
            // Under the best search's models, with all their values.
            let (parts, tree) = (setup.parts_of(best)?, tree_of(best)?);
            let options = AlignmentSupport {
                lengths: setup.run.lengths_of_result(),
                bnni,
                ..AlignmentSupport::new(kind, setup.run.seed)
            };
            let names = setup.run.names();
            Some(common::alignment_support(
                options, &tree, names, parts, pool,
            )?)
        }
    };
    Ok(labelled)
}

/// The longest branch that counts as none: a fit's shortest ones, to rounding.
const VOID: f64 = 2.0 * LENGTH_MIN;

/// Options that a run's results depend on.
#[derive(clap::Args)]
struct Options {
    #[command(flatten)]
    data: DataArgs,
    /// Branch lengths of partitions: all alike (linked), each with a factor of its own (scaled), or
    /// all their own (unlinked); scaled unless given, or a partition's model has +B{…}
    #[arg(long, value_parser = common::linkages(), value_name = "LINKAGE")]
    brlen: Option<Lengths>,
    #[command(flatten)]
    pmsf: common::Pmsf,
    /// Prefix of the names of all written files
    #[arg(long, value_name = "PREFIX")]
    prefix: PathBuf,
    /// Effort: full, or fast for one quick climb from one tree, for thousands of sequences
    #[arg(long, value_parser = efforts(), value_name = "EFFORT", default_value = "full")]
    effort: Effort,
    /// Searches; 10 unless given, or as many as --start-trees has
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    starts: Option<u32>,
    /// Starting trees: mixed (by parsimony and random in turn), parsimony, random, or a
    /// file of trees in Newick or NEXUS
    #[arg(long, value_name = "KIND|FILE", default_value = START_TREES)]
    start_trees: String,
    /// Bootstraps: how many, or auto to stop when they have converged
    #[arg(long, value_name = "N|auto", value_parser = amount)]
    bootstraps: Option<Bootstraps>,
    /// Make rapid bootstraps, in chains of lazy searches
    #[arg(long)]
    rapid: bool,
    /// Make jackknife replicates in place of bootstraps: each keeps this share of the sites, once
    #[arg(long, value_name = "SHARE", conflicts_with = "rapid")]
    #[arg(value_parser = number(|it| it > 0.0 && it < 1.0, KEPT))]
    jackknife: Option<f64>,
    /// The most bootstraps of auto
    #[arg(
        long,
        value_name = "N",
        default_value = "1000",
        value_parser = clap::value_parser!(u32).range(50..=100_000)
    )]
    bootstraps_max: u32,
    /// Searches, bootstraps until they have converged, and support
    #[arg(long)]
    all: bool,
    /// Kinds of support; fbp and tbe are of bootstraps, the others of the alignment itself
    #[arg(
        long,
        value_parser = common::supports(),
        value_name = "KINDS",
        value_delimiter = ',',
        default_value = "fbp"
    )]
    support: Vec<Support>,
    /// With --support ufboot: each replicate refines its tree by NNI moves under its own draws of
    /// sites, which keeps supports from being too high where the model fits badly
    #[arg(long)]
    bnni: bool,
    /// Write the best tree without its inner branches of no length, too, to
    /// PREFIX.bestTreeCollapsed: near-identical sequences have many such
    #[arg(long)]
    polytomies: bool,
    /// Tree of any shape, perhaps of some taxa only, whose branches every tree must have
    #[arg(long, value_name = "FILE")]
    constraint: Option<PathBuf>,
    /// Seed of all random numbers
    #[arg(long, value_name = "S", default_value = "1")]
    seed: u64,
    #[command(flatten)]
    tables: common::SiteTables,
}

const START_TREES: &str = "mixed";
const KEPT: &str = "a number above 0 and below 1, such as 0.5";

fn amount(text: &str) -> Result<Bootstraps, String> {
    if text == "auto" {
        return Ok(Bootstraps::UntilConverged);
    }
    let count: Option<u32> = text.parse().ok();
    let count = count.filter(|count| *count <= 100_000);
    count
        .map(Bootstraps::Exactly)
        .ok_or_else(|| "`auto`, or a number from 0 to 100000".to_owned())
}

impl Options {
    /// The alignment and the model, for the run's status.
    fn subject(&self) -> [String; 2] {
        let DataArgs { msa, model } = &self.data;
        let path = std::path::absolute(msa).unwrap_or_else(|_| msa.clone());
        [path.display().to_string(), model.clone()]
    }

    /// Refuses options that a quick climb does not have.
    fn check_effort(&self) -> Result<()> {
        let given = [
            ("--starts", self.starts.is_some()),
            ("--start-trees", self.start_trees != START_TREES),
            ("--bootstraps", self.bootstraps.is_some()),
            ("--rapid", self.rapid),
            ("--jackknife", self.jackknife.is_some()),
            ("--all", self.all),
            ("--constraint", self.constraint.is_some()),
        ];
        let found = given.iter().find(|(_, is_given)| *is_given);
        match (self.effort, found) {
            (Effort::Fast, Some((option, _))) => {
                bail!("--effort fast is one search from one tree: leave {option} out, or --effort")
            }
            _ => Ok(()),
        }
    }

    /// Reads the run's files.
    fn read(&self) -> Result<RunSetup> {
        common::check_bnni(self.bnni, &self.support)?;
        self.check_effort()?;
        let site_frequencies = self.pmsf.text(&self.data, None)?;
        let choices = Choices {
            msa: &self.data.msa,
            model: &self.data.model,
            site_frequencies: site_frequencies.as_deref(),
            lengths: self.brlen,
            starts: match self.effort {
                Effort::Full => self.starts,
                Effort::Fast => Some(1),
            },
            start_trees: &self.start_trees,
            bootstraps: self.bootstraps.unwrap_or(match self.all {
                true => Bootstraps::UntilConverged,
                false => Bootstraps::Exactly(0),
            }),
            bootstraps_max: self.bootstraps_max,
            rapid: self.rapid,
            jackknife: self.jackknife,
            constraint: self.constraint.as_deref(),
            seed: self.seed,
        };
        let mut setup = RunSetup::read(common::reader(), &choices, common::choose_model)?;
        // Only where it is used: older checkpoints do not have it.
        if self.effort == Effort::Fast {
            setup.settings.add("--effort", "fast");
        }
        Ok(setup)
    }
}
