//! `sidecore phylo outbreak`.

use super::common::{self, reader};
use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_outbreak::{ModelChoice, Options, Report, Style};
use sidecore_workflow::outbreak::Epidemic;
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("known").args(["dates", "dates_in_names"]))]
pub(crate) struct Args {
    /// Genomes (FASTA, aligned; MAPLE's format; VCF), plain or packed; `-` is standard input
    #[arg(long, value_name = "FILE")]
    msa: PathBuf,
    /// Genome that others are compared with: a FASTA file, or `first` for the first genome. Unless
    /// given: that of MAPLE's format, of FASTA the consensus
    #[arg(long, value_name = "FILE|first")]
    reference: Option<PathBuf>,
    /// Model: JC, GTR, or one with all its values, such as GTR{1/4/1/1/9/1}+FU{0.3/0.2/0.2/0.3}
    #[arg(long, value_name = "MODEL", default_value = "GTR")]
    model: String,
    /// Rounds in which subtrees move, at most
    #[arg(long, value_name = "N", default_value = "6")]
    #[arg(value_parser = clap::value_parser!(u32).range(0..=1000))]
    rounds: u32,
    /// Leave out inner branches of no length
    #[arg(long)]
    polytomies: bool,
    /// Write the tree to this file, not to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write the changes on each branch to this file: a line each, between tabs, or node data for
    /// augur where its name ends in .json. The tree's nodes have names then
    #[arg(long, value_name = "FILE")]
    mutations: Option<PathBuf>,
    /// Dates of tips, a line each, as `sidecore phylo date` takes them
    #[arg(long, value_name = "FILE")]
    dates: Option<PathBuf>,
    /// Take the dates from the ends of the names, behind `|`, `@`, `_` or `/`
    #[arg(long)]
    dates_in_names: bool,
    /// Write the tree with durations as lengths to this file
    #[arg(long, value_name = "FILE", requires = "known")]
    dated: Option<PathBuf>,
    /// Write a table of all nodes' dates to this file
    #[arg(long, value_name = "FILE", requires = "known")]
    dates_table: Option<PathBuf>,
    #[command(flatten)]
    run: common::RunArgs,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        let began = Instant::now();
        let epidemic = Epidemic {
            reader: reader(),
            msa: &self.msa,
            reference: self.reference.as_deref(),
            options: Options {
                model: ModelChoice::parse(&self.model).context("--model")?,
                rounds: self.rounds,
            },
        };
        let files = [
            &self.output,
            &self.mutations,
            &self.dated,
            &self.dates_table,
        ];
        for path in files.into_iter().flatten() {
            output::check_file(path)?;
        }
        let dates = self.dates.as_deref();
        let known = dates.map(|path| reader().dates(path)).transpose()?;
        let pool = self.run.pool()?;
        let genomes = epidemic.genomes(&pool)?;
        // Until here a signal ends the process.
        let stop = common::stop_flag()?;
        let Some(found) = epidemic.infer(genomes, &pool, &stop)? else {
            output::note!("sidecore: stopped before all genomes were placed; nothing is kept");
            return Ok(Outcome::Stopped);
        };
        let style = Style {
            polytomies: self.polytomies,
            node_names: self.mutations.is_some(),
        };
        let mut report = found.report(style);
        // First of all: dates that give no clock must not cost the tree.
        output::wanted(&self.output, || format!("{}\n", report.tree))?;
        if let Some(path) = &self.mutations {
            output::file(path, found.mutations_for(path, style))?;
        }
        if self.dates.is_some() || self.dates_in_names {
            let dated = epidemic.date(&found.newick(style), report.sites, known, &pool)?;
            output::wanted(&self.dated, || format!("{}\n", dated.tree))?;
            output::wanted(&self.dates_table, || dated.table())?;
            (report.rate, report.root_date) = (Some(dated.rate), Some(dated.root_date));
        }
        let was_stopped = report.stopped;
        self.show(&output::Timed::since(began, Some(pool.engines()), report))?;
        if was_stopped {
            output::note!("sidecore: stopped; this is the tree found so far");
            return Ok(Outcome::Stopped);
        }
        Ok(Outcome::Done)
    }

    fn show(&self, timed: &output::Timed<Report>) -> Result<()> {
        let report = &timed.report;
        if self.run.form.json {
            output::json(timed)?;
            return Ok(());
        }
        let Some(path) = &self.output else {
            return Ok(output::result(&report.tree)?);
        };
        // Else the tree is there.
        if path != Path::new("-") {
            let mut text = report.text();
            text.fact("time", format!("{:.2} s", timed.seconds));
            output::show(&text)?;
        }
        Ok(())
    }
}
