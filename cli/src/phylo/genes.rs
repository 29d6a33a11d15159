//! `sidecore phylo genes`.

use super::common::{self, Running, Source, Support};
use super::limits;
use super::search::Progress;
use crate::signals::{SIGINT, SIGTERM, raise_on};
use crate::values::models;
use crate::{Outcome, output};
use anyhow::{Result, bail};
use sidecore_offload::Pool;
use sidecore_phylo::analysis::coordinator::Ended;
use sidecore_phylo::analysis::genes::{GeneTrees, Locus, Options};
use sidecore_phylo::analysis::plan::{self, Kind, Ledger};
use sidecore_phylo::io::checkpoint::Settings;
use sidecore_phylo::io::data::GeneLoci;
use sidecore_phylo::io::files::{Files, GENE_MODELS, GENE_TABLE, GENE_TREES, Names};
use sidecore_phylo::io::ranks::farm::Crew;
use sidecore_phylo::io::role::Role;
use sidecore_phylo::io::run::Run;
use sidecore_phylo::runner::Serial;
use sidecore_sys::width::ToU64;
use sidecore_terminal::Text;
use sidecore_terminal::values::Offered;
use std::path::PathBuf;
use std::time::Instant;

/// Arguments of `phylo genes`.
#[derive(clap::Args)]
#[command(after_help = "\
A locus is a file of the folder --msa, or a part that a file of partitions names as --model. \
Taxa without a character in a locus are not in its tree. One seed, one result: engines, policy \
and interruptions change nothing but the time; the same command goes on where an ended run was. \
PREFIX.geneTrees has a tree a line, PREFIX.geneModels the models as a file of partitions, \
PREFIX.geneTable the numbers, all in the order of the loci; .log and .ckp are written, too. Exit \
status: 0 done, 2 something cannot be read, written or does not go together, 130 stopped by a \
signal.")]
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
    #[arg(long, value_enum, value_name = "KINDS", value_delimiter = ',')]
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
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        let options = self.options()?;
        let genes = common::reader().gene_loci(&self.msa, &self.model)?;
        let settings = self.settings(&genes, &options);
        let mut role = Role::here(&settings.identity())?;
        let result = self.run_as(&mut role, &genes, options, settings);
        role.settle(result, |rank, error| {
            output::note!("sidecore: rank {rank}: {}", output::chain(error));
        })
    }

    fn options(&self) -> Result<Options> {
        let mut supports = Vec::new();
        for support in &self.support {
            match support.source() {
                Source::Alignment(kind) => supports.push(kind),
                Source::Replicates(_) => bail!(
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

    /// The run's identity.
    fn settings(&self, genes: &GeneLoci, options: &Options) -> Settings {
        let mut settings = Settings::default();
        settings.add("version of sidecore", env!("CARGO_PKG_VERSION"));
        let [alignment, lines] = &genes.identity;
        settings.add("loci", alignment);
        settings.add("--model", lines);
        // The values include the files that a model's braces name.
        let parts = genes.loci.iter().filter_map(|locus| locus.part.as_ref());
        let values: Vec<String> = parts.map(|part| part.model.to_string()).collect();
        settings.add("models' values at the start", &values.join(" "));
        settings.add("--starts", &options.starts.to_string());
        settings.add("--bootstraps", &options.bootstraps.to_string());
        settings.add("--support", &format!("{:?}", options.supports));
        settings.add("--seed", &options.seed.to_string());
        settings
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
        let goal = GeneTrees::new(&genes.loci, options.clone(), Serial).goal();
        // Only rank 0 has files; the ranks agree before any engine starts.
        let mut own = match role.is_member() {
            true => None,
            false => Some(self.open(genes, settings, goal)?),
        };
        role.agree(Some(1), own.as_ref().map(|(_, ledger)| ledger), 0);
        let pool = Pool::start(config)?;
        let job = GeneTrees::new(&genes.loci, options, &pool);
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
        let mut progress = Progress::of_loci(&ledger);
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
        let rows = rows(&genes.loci, job.order(), &ledger);
        let written = write(&files, &rows)?;
        let wall_s = began.elapsed().as_secs_f64();
        files.log(&format!("done in {wall_s:.2} s"))?;
        let report = Json {
            wall_s,
            engines,
            skipped: genes.skipped.clone(),
            loci: rows,
            files: written,
        };
        match self.json {
            true => output::json(&report)?,
            false => output::show(&report.text())?,
        }
        Ok(Outcome::Done)
    }

    /// The files of a new or a resumed run, and what is done of it.
    fn open(
        &self,
        genes: &GeneLoci,
        settings: Settings,
        goal: plan::Goal,
    ) -> Result<(Files, Ledger)> {
        let names = genes.loci.iter().map(|locus| locus.alignment.names());
        // A tree has two lengths a taxon; each is in the checkpoint and in a file.
        let labels: usize = names.flatten().map(|name| name.len() + 32).sum();
        let trees = 2 * u64::from(self.bootstraps) + 4;
        let bytes = labels.to_u64().saturating_mul(trees) + (64 << 10);
        let (mut files, ledger) = Files::open(
            &self.prefix,
            Names::Own,
            settings,
            goal,
            self.running.redo,
            bytes,
        )?;
        files.log(&format!("{} loci, seed {}", genes.loci.len(), self.seed))?;
        common::note_resumed(&mut files, &ledger)?;
        Ok((files, ledger))
    }
}

/// The results in the order of the loci.
fn rows(loci: &[Locus], order: &[usize], ledger: &Ledger) -> Vec<Row> {
    let mut rows: Vec<(usize, Row)> = ledger
        .outcomes_of(Kind::Search)
        .zip(order)
        .map(|(outcome, &number)| {
            let locus = &loci[number];
            let row = Row {
                name: locus.name.clone(),
                taxa: locus.alignment.names().len(),
                sites: locus.alignment.sites(),
                model: outcome.models.join(" "),
                lnl: outcome.lnl,
                wall_s: outcome.wall_s,
                tree: outcome.tree.clone(),
            };
            (number, row)
        })
        .collect();
    rows.sort_by_key(|(number, _)| *number);
    rows.into_iter().map(|(_, row)| row).collect()
}

fn write(files: &Files, rows: &[Row]) -> Result<Vec<PathBuf>> {
    let (mut trees, mut models) = (String::new(), String::new());
    let mut table = "locus\ttaxa\tsites\tlog-likelihood\tseconds\n".to_owned();
    let mut first = 1;
    for row in rows {
        let last = first + row.sites - 1;
        trees.push_str(&format!("{}\n", row.tree));
        models.push_str(&format!("{}, {} = {first}-{last}\n", row.model, row.name));
        table.push_str(&format!(
            "{}\t{}\t{}\t{:.6}\t{:.2}\n",
            row.name, row.taxa, row.sites, row.lnl, row.wall_s
        ));
        first = last + 1;
    }
    let all = [
        (GENE_TREES, trees),
        (GENE_MODELS, models),
        (GENE_TABLE, table),
    ];
    let written = all.iter().map(|(suffix, text)| files.write(suffix, text));
    Ok(written.collect::<Result<_, _>>()?)
}

#[derive(serde::Serialize)]
struct Json {
    wall_s: f64,
    engines: usize,
    /// Loci with fewer than three taxa.
    skipped: Vec<String>,
    loci: Vec<Row>,
    files: Vec<PathBuf>,
}

#[derive(serde::Serialize)]
struct Row {
    name: String,
    taxa: usize,
    sites: usize,
    model: String,
    lnl: f64,
    wall_s: f64,
    tree: String,
}

impl Json {
    fn text(&self) -> Text {
        let mut text = Text::new();
        let lnl: f64 = self.loci.iter().map(|row| row.lnl).sum();
        text.fact("log-likelihood of all loci", format!("{lnl:.6}"));
        let (loci, wall_s, engines) = (self.loci.len(), self.wall_s, self.engines);
        text.fact(
            "done",
            format!("{loci} loci, {wall_s:.2} s on {engines} engines"),
        );
        for path in &self.files {
            text.fact("written", path.display().to_string());
        }
        text
    }
}
