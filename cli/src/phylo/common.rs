//! Options and files that the commands share, and the limits of memory and time that all take.

use crate::output::JsonArgs;
use crate::signals::{SIGINT, SIGTERM, raise_on};
use crate::values::{models, policies};
use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_offload::{Pool, PoolConfig};
use sidecore_phylo::io::data::{Data, Reader};
use sidecore_phylo::io::files::Names;
use sidecore_phylo::io::input::Memory;
use sidecore_phylo::io::role::Role;
use sidecore_phylo::likelihood::{Lengths, PartOptions};
use sidecore_phylo::msa::Alignment;
use sidecore_phylo::runner::pool_config;
use sidecore_sched::Equi;
use sidecore_sys::ending::TimeLimit;
use sidecore_terminal::quantity;
use sidecore_terminal::values::{Offered, fitting_size, named};
use sidecore_workflow::choice::best_model;
use sidecore_workflow::given::guided_profiles;
use sidecore_workflow::run::{Ended, Launch};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// The reader of all input files, within the limits; oddities go to standard error.
pub(super) fn reader() -> Reader {
    Reader {
        memory: memory(),
        warn: |line| tracing::warn!("{line}"),
    }
}

/// Memory that the command may use.
pub(super) fn memory() -> Memory {
    *MEMORY.get_or_init(|| Memory::new(None))
}

/// The data of a likelihood: an alignment, and its model.
#[derive(clap::Args)]
pub(super) struct DataArgs {
    /// Alignment (PHYLIP, FASTA, NEXUS, Clustal, Stockholm, MSF, VCF or MAPLE's), plain or packed;
    /// `-` is standard input, a folder has an alignment for each locus
    #[arg(long, value_name = "FILE")]
    pub(super) msa: PathBuf,
    /// Model as RAxML-NG writes it, such as GTR+G, or file of partitions (RAxML's lines or NEXUS
    /// sets), or auto for the one of the best BIC
    #[arg(long, value_name = "MODEL|FILE")]
    #[arg(value_parser = Offered(models), hide_possible_values = true)]
    pub(super) model: String,
}

impl DataArgs {
    /// Reads them.
    pub(super) fn read(&self) -> Result<Data> {
        data(&self.msa, &self.model)
    }
}

/// Engines and report of a command that computes.
#[derive(clap::Args)]
pub(super) struct RunArgs {
    /// Number of engines that share the loops; one for each core unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(super) engines: Option<u16>,
    #[command(flatten)]
    pub(super) form: JsonArgs,
}

impl RunArgs {
    /// The pool of these engines.
    pub(super) fn pool(&self) -> Result<Pool> {
        pool(self.engines)
    }
}

/// The same of a command whose result is a tree.
#[derive(clap::Args)]
pub(super) struct TreeRunArgs {
    /// Write the tree to this file, not to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    run: RunArgs,
}

impl TreeRunArgs {
    /// The pool of these engines.
    pub(super) fn pool(&self) -> Result<Pool> {
        self.run.pool()
    }

    /// Writes and shows the tree, or its report.
    pub(super) fn deliver(&self, report: &impl serde::Serialize, tree: &str) -> Result<Outcome> {
        deliver_tree(self.output.as_deref(), self.run.form, report, tree)
    }
}

/// Output of a command whose result is a tree, and that takes no engines.
#[derive(clap::Args)]
pub(super) struct TreeArgs {
    /// Write the tree to this file, not to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    form: JsonArgs,
}

impl TreeArgs {
    /// Writes and shows the tree, or its report.
    pub(super) fn deliver(&self, report: &impl serde::Serialize, tree: &str) -> Result<Outcome> {
        deliver_tree(self.output.as_deref(), self.form, report, tree)
    }
}

/// Reads an alignment and its partitions; `--model auto` chooses one.
pub(super) fn data(msa: &Path, model: &str) -> Result<Data> {
    Ok(reader().data(msa, model, choose_model)?)
}

/// The model of the best score, which is named on standard error.
pub(super) fn choose_model(alignment: &Alignment) -> Result<PartOptions> {
    let (part, name, bic) = best_model(alignment, &pool(None)?)?;
    output::note!("sidecore: model {name} chosen (BIC {bic:.2})");
    Ok(part)
}

/// Tables of the sites.
#[derive(clap::Args)]
pub(super) struct SiteTables {
    /// Write a table of the probabilities of a mixture's classes, or of the categories of rates, a
    /// line for each site; of a search's best tree
    #[arg(long, value_name = "FILE")]
    pub(super) site_posteriors: Option<PathBuf>,
    /// Write a table of the sites' rates: the mean, and the most probable category with its rate
    #[arg(long, value_name = "FILE")]
    pub(super) site_rates: Option<PathBuf>,
}

impl SiteTables {
    /// True if a table is wanted.
    pub(super) fn any(&self) -> bool {
        self.site_posteriors.is_some() || self.site_rates.is_some()
    }

    /// Writes those that are wanted; gives the files.
    pub(super) fn write(
        &self,
        classes: impl FnOnce() -> String,
        rates: impl FnOnce() -> String,
    ) -> Result<Vec<PathBuf>> {
        output::wanted(&self.site_posteriors, classes)?;
        output::wanted(&self.site_rates, rates)?;
        let files = [&self.site_posteriors, &self.site_rates];
        Ok(files.into_iter().flatten().cloned().collect())
    }
}

/// Lengths and frequencies in place of a model's usual ones.
#[derive(clap::Args)]
pub(super) struct ModelArgs {
    /// Branch lengths of partitions: all alike (linked), each with a factor of its own (scaled), or
    /// all their own (unlinked); scaled unless given, or a partition's model has +B{…}
    #[arg(long, value_parser = named(Lengths::NAMED), value_name = "LINKAGE")]
    pub(super) brlen: Option<Lengths>,
    /// Site frequency profiles (PMSF), a line a site, as IQ-TREE's .sitefreq: with the matrix and
    /// the rates across sites of --model
    #[arg(long, value_name = "FILE", conflicts_with = "pmsf_tree")]
    pmsf: Option<PathBuf>,
    /// Guide tree: the mixture --model is fitted on it, and gives each site its profile
    #[arg(long, value_name = "FILE")]
    pmsf_tree: Option<PathBuf>,
    /// Write the guide tree's profiles to this file
    #[arg(long, value_name = "FILE", requires = "pmsf_tree")]
    pmsf_out: Option<PathBuf>,
}

impl ModelArgs {
    /// True if profiles were asked for.
    pub(super) fn has_profiles(&self) -> bool {
        self.pmsf.is_some() || self.pmsf_tree.is_some()
    }

    /// The profiles' text; none where none were asked for.
    pub(super) fn profiles(&self, of: &DataArgs, engines: Option<u16>) -> Result<Option<String>> {
        if let Some(path) = &self.pmsf {
            return Ok(Some(reader().text(path)?));
        }
        let Some(path) = &self.pmsf_tree else {
            return Ok(None);
        };
        let text = guided_profiles(reader(), path, of.read()?, &pool(engines)?)?;
        output::wanted(&self.pmsf_out, || text.clone())?;
        Ok(Some(text))
    }
}

/// Writes a tree to the file that was asked for, and shows the report as JSON where that was asked
/// for, else the tree, unless that went to the file.
pub(super) fn deliver_tree(
    output: Option<&Path>,
    form: JsonArgs,
    report: &impl serde::Serialize,
    tree: &str,
) -> Result<Outcome> {
    if let Some(path) = output {
        output::file(path, format!("{tree}\n"))?;
    }
    if form.json {
        output::json(report)?;
    } else if output.is_none() {
        output::result(tree)?;
    }
    Ok(Outcome::Done)
}

/// Options of a run that its results do not depend on.
#[derive(clap::Args)]
pub(super) struct Running {
    /// Engines that all work and its loops share; one for each core unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    engines: Option<u16>,
    /// Scheduling policy: edtlp, llp(N), hybrid(N), mgps, equi
    #[arg(long, value_name = "POLICY", default_value = "equi")]
    #[arg(value_parser = Offered(policies), hide_possible_values = true)]
    policy: String,
    /// Begin anew, in place of what an earlier run left under the prefix
    #[arg(long)]
    redo: bool,
    /// Seconds after which the state of a search under way is kept
    #[arg(long, value_name = "SECONDS", default_value = "120")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=86_400))]
    save_every: u32,
}

impl Running {
    /// The means of a run with these files, which `stop` stops.
    pub(super) fn launch<'l>(&'l self, prefix: &'l Path, stop: &'l AtomicBool) -> Launch<'l> {
        Launch {
            prefix,
            names: Names::Own,
            redo: self.redo,
            engines: self.engines.map(usize::from),
            policy: &self.policy,
            ranks_per_search: None,
            save_every: Duration::from_secs(self.save_every.into()),
            stop,
            reader: reader(),
        }
    }
}

/// A flag that a signal raises, and from now on the time limit, which else ends the process.
pub(super) fn stop_flag() -> Result<Arc<AtomicBool>> {
    let stop = raise_on(&[SIGINT, SIGTERM])?;
    if let Some(limit) = TIME.get() {
        limit.stop_with(&stop);
    }
    Ok(stop)
}

/// Does a run of this identity in the role that the launcher gave this process; where one rank
/// cannot go on, all end.
pub(super) fn in_role<T>(identity: &str, act: impl FnOnce(&mut Role) -> Result<T>) -> Result<T> {
    let mut role = Role::here(identity)?;
    let result = act(&mut role);
    role.settle(result, |rank, error| {
        output::note!("sidecore: rank {rank}: {}", output::chain(error));
    })
}

/// Shows what a run has found, or how to go on with it.
pub(super) fn ended<T>(
    ended: Ended<T>,
    show: impl FnOnce(T) -> Result<Outcome>,
) -> Result<Outcome> {
    match ended {
        Ended::Done(found) => show(found),
        Ended::Member => Ok(Outcome::Done),
        Ended::Stopped(checkpoint) => {
            output::note!(
                "sidecore: stopped; everything is kept in {}: give the same command again to go on",
                checkpoint.display()
            );
            Ok(Outcome::Stopped)
        }
    }
}

/// A pool of the requested number of engines.
pub(super) fn pool(asked: Option<u16>) -> Result<Pool> {
    let config = pool_config(engines(asked), &[], Box::new(Equi::default()));
    Ok(Pool::start(config)?)
}

/// Engines to start: the requested number, or one for each core up to a pool's limit. A pool
/// refuses more than its limit, and the error names it.
pub(super) fn engines(asked: Option<u16>) -> usize {
    asked.map_or_else(|| PoolConfig::default().engines, usize::from)
}

/// Limits that all commands take.
#[derive(clap::Args)]
pub(crate) struct Limits {
    /// Memory to use at most, such as 4GiB. Unless given: for input 192 MiB and 64 times a file's
    /// bytes, half of the machine's memory at most; three quarters of it for computing
    #[arg(long, value_name = "SIZE", global = true, value_parser = fitting_size::<u64>(
        |bytes| bytes >= 1 << 20,
        "at least 1MiB",
    ))]
    memory: Option<u64>,
    /// Time (`90`, `5min`) after which it ends: a search as by a signal, with its state saved,
    /// others without a result
    #[arg(long, value_name = "SECONDS", global = true, value_parser = quantity::duration)]
    time: Option<Duration>,
}

static MEMORY: OnceLock<Memory> = OnceLock::new();
static TIME: OnceLock<Arc<TimeLimit>> = OnceLock::new();

impl Limits {
    /// Applies the limits. Call it once, before the command.
    pub(super) fn begin(&self) -> Result<()> {
        MEMORY.get_or_init(|| Memory::new(self.memory));
        if let Some(time) = self.time {
            let limit = TimeLimit::begin(time, GRACE, move || {
                let seconds = time.as_secs_f64();
                output::note!("sidecore: not done after {seconds} s (--time): ended");
            });
            TIME.set(limit.context("cannot start a thread for --time")?)
                .ok();
        }
        Ok(())
    }
}

/// True where the user has limited the time.
pub(super) fn is_timed() -> bool {
    TIME.get().is_some()
}

/// Time for a search to save its state.
const GRACE: Duration = Duration::from_secs(30);
