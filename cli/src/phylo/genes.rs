//! `sidecore phylo genes`.

use super::common::{self, Progress, Running};
use super::limits;
use crate::signals::{SIGINT, SIGTERM, raise_on};
use crate::values::models;
use crate::{Outcome, output};
use anyhow::{Result, bail};
use sidecore_offload::Pool;
use sidecore_phylo::analysis::coordinator::Ended;
use sidecore_phylo::analysis::genes::{GeneRow, Options};
use sidecore_phylo::analysis::plan::{Goal, Ledger};
use sidecore_phylo::analysis::report::GeneReport;
use sidecore_phylo::analysis::supports::Support;
use sidecore_phylo::io::checkpoint::Settings;
use sidecore_phylo::io::data::GeneLoci;
use sidecore_phylo::io::files::{Files, Names};
use sidecore_phylo::io::ranks::farm::Crew;
use sidecore_phylo::io::role::Role;
use sidecore_phylo::io::run::Run;
use sidecore_phylo::runner::Serial;
use sidecore_terminal::values::Offered;
use std::path::PathBuf;
use std::time::Instant;

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder with an alignment for each locus, or one alignment; plain or packed
    #[arg(long, value_name = "FOLDER|FILE")]
    msa: PathBuf,
    /// Model of every locus, file of partitions (RAxML's lines or NEXUS sets), or auto for the one
    /// of the best BIC of each
    #[arg(long, value_name = "MODEL|FILE", default_value = "auto")]
    #[arg(value_parser = Offered(models), hide_possible_values = true)]
    model: String,
    /// Prefix of the names of all written files
    #[arg(long, value_name = "PREFIX")]
    prefix: PathBuf,
    /// Searches a locus, of which the best counts
    #[arg(long, value_name = "N", default_value = "1")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000))]
    starts: u32,
    /// Bootstraps a locus
    #[arg(long, value_name = "N", default_value = "0")]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=10_000))]
    bootstraps: u32,
    /// Kinds of support by a locus' alignment; with several, and bootstraps, labels have a `/`
    /// between the values, bootstraps last
    #[arg(long, value_parser = common::supports(), value_name = "KINDS", value_delimiter = ',')]
    support: Vec<Support>,
    /// Seed of all random numbers
    #[arg(long, value_name = "S", default_value = "1")]
    seed: u64,
    #[command(flatten)]
    running: Running,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let options = self.options()?;
        let genes = common::reader().gene_loci(&self.msa, &self.model)?;
        let settings = genes.settings(&options);
        let mut role = Role::here(&settings.identity())?;
        let result = self.run_as(&mut role, &genes, options, settings);
        role.settle(result, |rank, error| {
            output::note!("sidecore: rank {rank}: {}", output::chain(error));
        })
    }

    fn options(&self) -> Result<Options> {
        let mut supports = Vec::new();
        for support in &self.support {
            match support {
                Support::Alignment(kind) => supports.push(*kind),
                Support::Replicates(_) => bail!(
                    "--support {}: of bootstraps, which --bootstraps N writes on the trees; give \
                     sh-alrt, abayes, lbp or ufboot",
                    support.name()
                ),
            }
        }
        Ok(Options {
            starts: self.starts,
            bootstraps: self.bootstraps,
            supports,
            seed: self.seed,
        })
    }

    fn run_as(
        &self,
        role: &mut Role,
        genes: &GeneLoci,
        options: Options,
        settings: Settings,
    ) -> Result<Outcome> {
        let began = Instant::now();
        let stop = raise_on(&[SIGINT, SIGTERM])?;
        limits::stop_with(&stop);
        let cpus = role.cpus().to_vec();
        let engines = self.running.engines(&cpus);
        let config = self.running.pool(&cpus)?;
        let goal = genes.job(options.clone(), Serial).goal();
        // Only rank 0 has files; the ranks agree before any engine starts.
        let mut own = match role.is_member() {
            true => None,
            false => Some(self.open(settings, goal, genes.bytes_about(&options))?),
        };
        role.agree(Some(1), own.as_ref().map(|(_, ledger)| ledger), 0);
        let pool = Pool::start(config)?;
        let job = genes.job(options, &pool);
        let crew = Crew {
            pool: &pool,
            cpus: &cpus,
            job: &job,
            save_every: self.running.save_every(),
        };
        let Some((mut files, ledger)) = own.take() else {
            role.work(None, crew)?;
            return Ok(Outcome::Done);
        };
        let progress = Progress::new(&ledger, false);
        let (ended, ledger) = role.with_ranks(None, crew, |ranks| {
            let running = Run {
                crew,
                ranks,
                seed: self.seed,
                stop: &stop,
                watch: &mut |ledger, has_changed| progress.show(ledger, has_changed),
            };
            running.go(&mut files, ledger)
        })?;
        // Before anything is written to standard error: the bar would be drawn into it.
        progress.end();
        if ended == Ended::Stopped {
            return common::stopped(&mut files);
        }
        let loci = GeneRow::all(&job, &ledger);
        let written = files.write_genes(&loci)?;
        let wall_s = began.elapsed().as_secs_f64();
        files.log(&format!("done in {wall_s:.2} s"))?;
        let report = GeneReport {
            wall_s,
            engines,
            skipped: genes.skipped.clone(),
            loci,
            files: written,
        };
        output::report(self.json, &report, GeneReport::text)
    }

    /// The files of a new or a resumed run, and what is done of it.
    fn open(&self, settings: Settings, goal: Goal, bytes: u64) -> Result<(Files, Ledger)> {
        let (prefix, redo) = (&self.prefix, self.running.redo);
        let (mut files, ledger) = Files::open(prefix, Names::Own, settings, goal, redo, bytes)?;
        files.log(&format!("{} loci, seed {}", goal.starts, self.seed))?;
        common::note_resumed(&mut files, &ledger)?;
        Ok((files, ledger))
    }
}
