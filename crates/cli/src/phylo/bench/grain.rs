//! `sidecore phylo bench grain`.

mod picture;

use super::super::common;
use crate::signals::{SIGINT, SIGTERM, raise_on};
use crate::{Outcome, output};
use anyhow::Result;
use sidecore_cell::Machine as CellMachine;
use sidecore_cell::figures::{Point, point};
use sidecore_cell::property::Property;
use sidecore_phylo::bench::grain::{GrainOptions, GrainRow, grain};
use sidecore_sys::cpu;
use sidecore_sys::machine::Machine;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

/// Arguments of `phylo bench grain`.
#[derive(clap::Args)]
#[command(after_help = "\
Real runs on a simulated alignment, policies in turn within each round; seconds are medians, claims \
medians of the rounds' ratios. Exit status: 0 all claims hold, 1 one does not, 2 could not run.")]
pub(crate) struct Args {
    /// Engines; one for each core unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    engines: Option<u16>,
    /// Engines a loop of the static hybrid; 2, and 4 from four engines on, unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    hybrid: Option<u32>,
    /// Numbers of bootstraps
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1000))]
    bootstraps: Option<Vec<u32>>,
    /// Rounds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: Option<u16>,
    /// Taxa of the alignment
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(4..=500))]
    taxa: Option<u16>,
    /// Sites of the alignment
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    sites: Option<u32>,
    /// Small data, few numbers, one round: a taste
    #[arg(long)]
    quick: bool,
    /// Draw paper, model of the Cell and this machine there
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl Args {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        if let Some(path) = &self.svg {
            // Before minutes are spent.
            output::file(path, "")?;
        }
        let stop = raise_on(&[SIGINT, SIGTERM])?;
        let cpus = cpu::allowed()?;
        let engines = common::engines(self.engines)?;
        let mut options = GrainOptions::on(cpus, engines, self.quick);
        options.hybrid = self.hybrid.unwrap_or(options.hybrid);
        options.bootstraps = self.bootstraps.unwrap_or(options.bootstraps);
        options.rounds = self.rounds.map_or(options.rounds, usize::from);
        options.taxa = self.taxa.map_or(options.taxa, usize::from);
        options.sites = self.sites.map_or(options.sites, |sites| sites as usize);
        let machine = Machine::of_this_program();
        let runs = 4 * options.rounds * options.bootstraps.len();
        let bar = output::progress(runs as u64).with_message("runs");
        let rows = grain(&options, &stop, &|| bar.inc(1))?;
        bar.finish_and_clear();
        // Relaxed: a flag alone.
        let stopped = stop.load(Ordering::Relaxed);
        let cell = CellMachine::cell()?;
        let model = options.bootstraps.iter();
        let model: Vec<Point> = model.map(|&count| point(&cell, count, SEED)).collect();
        let claims = claims(&rows, options.engines);
        if let Some(path) = &self.svg {
            output::file(path, &picture::draw(&machine, &options, &rows, &model)?)?;
        }
        let held = claims.iter().all(|claim| claim.holds);
        let report = Report {
            machine,
            engines,
            hybrid: options.hybrid,
            taxa: options.taxa,
            sites: options.sites,
            rounds: options.rounds,
            quick: self.quick,
            complete: !stopped,
            rows,
            model,
            claims,
        };
        if self.json {
            output::json(&report)?;
        } else {
            report.print()?;
        }
        Ok(match held {
            true => Outcome::Done,
            false => Outcome::Problem,
        })
    }
}

/// What must hold of the rows.
fn claims(rows: &[GrainRow], engines: usize) -> Vec<Property> {
    let best = |row: &GrainRow| row.mgps_over_better[0].min(row.equi_over_better[0]);
    let worst = |rows: &mut dyn Iterator<Item = &GrainRow>| rows.map(best).reduce(f64::max);
    let mut claims = Vec::new();
    if let Some(worst) = worst(&mut rows.iter()) {
        let text = "mgps or equi over the better of edtlp and hybrid, at worst";
        claims.push(Property::at_most(text, worst, 1.03));
    }
    let odd = |row: &&GrainRow| row.bootstraps > 1 && row.bootstraps % 2 == 1;
    if engines == 2
        && let Some(worst) = worst(&mut rows.iter().filter(odd))
    {
        let text = "the same for odd numbers from 3 on, at worst";
        claims.push(Property::at_most(text, worst, 1.0));
    }
    claims
}

#[derive(serde::Serialize)]
struct Report {
    machine: Machine,
    engines: usize,
    hybrid: u32,
    taxa: usize,
    sites: usize,
    rounds: usize,
    quick: bool,
    complete: bool,
    rows: Vec<GrainRow>,
    model: Vec<Point>,
    claims: Vec<Property>,
}

impl Report {
    fn print(&self) -> Result<()> {
        for line in self.machine.lines() {
            output::line(&line)?;
        }
        output::line(&format!(
            "{} engines, hybrid({}), {} taxa, {} sites, {} rounds; seconds, medians",
            self.engines, self.hybrid, self.taxa, self.sites, self.rounds
        ))?;
        output::line(
            "bootstraps   edtlp  hybrid    mgps    equi   mgps/better  equi/better (spread)   \
             Cell's model: edtlp hybrid mgps equi",
        )?;
        for (row, model) in self.rows.iter().zip(&self.model) {
            let [mgps, _] = row.mgps_over_better;
            let [equi, spread] = row.equi_over_better;
            output::line(&format!(
                "{:>10} {:7.3} {:7.3} {:7.3} {:7.3}   {mgps:>11.3}  {equi:>11.3} ({:3.0} %)   \
                 {:20.1} {:6.1} {:4.1} {:4.1}",
                row.bootstraps,
                row.edtlp_s,
                row.hybrid_s,
                row.mgps_s,
                row.equi_s,
                100.0 * spread,
                model.edtlp_s,
                model.hybrid_s,
                model.mgps_s,
                model.equi_s
            ))?;
        }
        for claim in &self.claims {
            let held = if claim.holds {
                "holds"
            } else {
                "DOES NOT HOLD"
            };
            output::line(&format!(
                "{held}: {}: {:.3} (at most {:.3})",
                claim.text, claim.value, claim.limit
            ))?;
        }
        Ok(())
    }
}

/// Of the model's random times.
const SEED: u64 = 1;
