//! `sidecore phylo search`.

use super::common::{self, DataArgs, Running, reader};
use crate::Outcome;
use crate::output::JsonArgs;
use crate::trace::TraceArgs;
use anyhow::Result;
use sidecore_phylo::analysis::plan::Bootstraps;
use sidecore_phylo::analysis::supports::Support;
use sidecore_phylo::evaluation::{class_table, rate_table};
use sidecore_phylo::io::files::Names;
use sidecore_phylo::io::role::Role;
use sidecore_terminal::values::{named, number};
use sidecore_workflow::report::Report;
use sidecore_workflow::run::{self, Launch};
use sidecore_workflow::setup::{Choices, Effort, RunSetup, START_TREES};
use std::path::PathBuf;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    profiles: common::ModelArgs,
    /// Prefix of the names of all written files
    #[arg(long, value_name = "PREFIX")]
    prefix: PathBuf,
    /// Effort: full, or fast for one quick climb from one tree, for thousands of sequences
    #[arg(long, value_parser = named(Effort::NAMED), value_name = "EFFORT", default_value = "full")]
    effort: Effort,
    /// Searches; 10 unless given, or as many as --start-trees has
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    starts: Option<u32>,
    /// Starting trees: mixed (by parsimony and random in turn), parsimony, random, or a
    /// file of trees in Newick or NEXUS
    #[arg(long, value_name = "KIND|FILE", default_value = START_TREES)]
    start_trees: String,
    /// Bootstraps: how many, or auto to stop when they have converged
    #[arg(long, value_name = "N|auto")]
    bootstraps: Option<Bootstraps>,
    /// Make rapid bootstraps, in chains of lazy searches
    #[arg(long)]
    rapid: bool,
    /// Make jackknife replicates in place of bootstraps: each keeps this share of the sites, once
    #[arg(long, value_name = "SHARE", conflicts_with = "rapid")]
    #[arg(value_parser = number(|it| it > 0.0 && it < 1.0, KEPT))]
    jackknife: Option<f64>,
    /// The most bootstraps of auto
    #[arg(long, value_name = "N", default_value = "1000")]
    #[arg(value_parser = clap::value_parser!(u32).range(50..=100_000))]
    bootstraps_max: u32,
    /// Searches, bootstraps until they have converged, and support
    #[arg(long)]
    all: bool,
    /// Kinds of support; fbp and tbe are of bootstraps, the others of the alignment itself
    #[arg(long, value_parser = named(Support::NAMED), value_name = "KINDS")]
    #[arg(value_delimiter = ',', default_value = "fbp")]
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
    #[command(flatten)]
    form: JsonArgs,
}

const RAXML_NG: &str = "PREFIX.raxml.bestTree, for scripts that read RAxML-NG's files";
const KEPT: &str = "a number above 0 and below 1, such as 0.5";

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let setup = self.read()?;
        let _recording = self.trace.begin("phylo search")?;
        common::in_role(&setup.settings.identity(), |role| self.run_as(role, &setup))
    }

    /// Reads the run's files.
    fn read(&self) -> Result<RunSetup<'_>> {
        let choices = Choices {
            msa: &self.data.msa,
            model: &self.data.model,
            lengths: self.profiles.brlen,
            effort: self.effort,
            starts: self.starts,
            start_trees: &self.start_trees,
            bootstraps: self.bootstraps,
            all: self.all,
            bootstraps_max: self.bootstraps_max,
            rapid: self.rapid,
            jackknife: self.jackknife,
            constraint: self.constraint.as_deref(),
            seed: self.seed,
            supports: &self.support,
            bnni: self.bnni,
            polytomies: self.polytomies,
        };
        // Before a guide tree is fitted, which may take hours.
        choices.check()?;
        let profiles = self.profiles.profiles(&self.data, None)?;
        let read = RunSetup::read(reader(), choices, profiles.as_deref(), common::choose_model);
        Ok(read?)
    }

    fn run_as(&self, role: &mut Role, setup: &RunSetup<'_>) -> Result<Outcome> {
        let stop = common::stop_flag()?;
        let launch = Launch {
            names: self.names,
            ranks_per_search: self.ranks_per_search,
            ..self.running.launch(&self.prefix, &stop)
        };
        let (tables, names) = (&self.tables, &setup.part_names);
        let ended = run::search(setup, tables.any(), &launch, role)?;
        common::ended(ended, |found| {
            let mut report = found.report;
            if let Some(sites) = &found.sites {
                let classes = || class_table(sites, names);
                let written = tables.write(classes, || rate_table(sites, names))?;
                report.files.extend(written);
            }
            self.form.report(&report, Report::text)
        })
    }
}
