//! `sidecore phylo bench grain`.

use super::super::common;
use crate::signals::{SIGINT, SIGTERM, raise_on};
use crate::{Outcome, output};
use anyhow::Result;
use sidecore_bench::phylo::grain::{Grain, GrainOptions, GrainRow, grain, picture};
use sidecore_cell_sim::Machine as CellMachine;
use sidecore_cell_sim::figures::{Point, point};
use sidecore_cell_sim::property::Property;
use sidecore_measure::Machine;
use sidecore_measure::quiet::Noise;
use sidecore_sys::cpu;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

/// Arguments of `phylo bench grain`.
#[derive(clap::Args)]
#[command(after_help = "\
Real runs on a simulated alignment, policies interleaved within each round; seconds are medians, \
claims medians of the rounds' ratios. Beside them the tasks' own processor times, recorded once on \
one core and replayed under the same policies in virtual time: that is what to look at on a \
machine that others use. About seven minutes, one with --quick. Exit status: 0 all claims hold, 1 \
one does not, 2 could not run.")]
pub(crate) struct Args {
    /// Engines; one for each core unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    engines: Option<u16>,
    /// Engines a loop of the static hybrid; 2, and 4 from four engines on, unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    hybrid: Option<u32>,
    /// Numbers of bootstraps
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    bootstraps: Option<Vec<u32>>,
    /// Rounds for each number; as many as go into seven minutes (one, with --quick) unless given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: Option<u16>,
    /// Taxa of the alignment
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(4..=500))]
    taxa: Option<u16>,
    /// Sites of the alignment
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    sites: Option<u32>,
    /// Small data, few numbers, few rounds: a smoke run
    #[arg(long)]
    quick: bool,
    /// Draw paper, model of the Cell and this machine to this file (SVG)
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
            output::check_file(path)?;
        }
        let stop = raise_on(&[SIGINT, SIGTERM])?;
        let cpus = cpu::allowed()?;
        let engines = common::engines(self.engines)?;
        let mut options = GrainOptions::on(cpus, engines, self.quick);
        options.hybrid = self.hybrid.unwrap_or(options.hybrid);
        options.bootstraps = self.bootstraps.unwrap_or(options.bootstraps);
        if let Some(rounds) = self.rounds {
            (options.rounds, options.time) = (rounds.into(), None);
        }
        options.taxa = self.taxa.map_or(options.taxa, usize::from);
        options.sites = self.sites.map_or(options.sites, |sites| sites as usize);
        let machine = Machine::of_this_program();
        let runs = 1 + 4 * options.rounds * options.bootstraps.len();
        let bar = output::progress(runs as u64).with_message("runs, at most");
        let Grain { rows, noise } = grain(&options, &stop, &|| bar.inc(1))?;
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
            quick: self.quick,
            complete: !stopped,
            noise,
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

/// Statements that the rows of seconds and of replays must satisfy.
fn claims(rows: &[GrainRow], engines: usize) -> Vec<Property> {
    let measured = |row: &GrainRow| row.mgps_over_better[0].min(row.equi_over_better[0]);
    let replayed = |row: &GrainRow| {
        let [edtlp, hybrid, mgps, equi] = row.replayed_s;
        mgps.min(equi) / edtlp.min(hybrid)
    };
    type Ratio<'r> = &'r dyn Fn(&GrainRow) -> f64;
    let kinds: [(&str, Ratio<'_>); 2] = [("seconds", &measured), ("replayed", &replayed)];
    let mut claims = Vec::new();
    for (kind, ratio) in kinds {
        let mut claim = |text: &str, among: &dyn Fn(&GrainRow) -> bool, limit: f64| {
            let worst = rows.iter().filter(|row| among(row)).map(ratio);
            if let Some(worst) = worst.reduce(f64::max) {
                claims.push(Property::at_most(format!("{kind}: {text}"), worst, limit));
            }
        };
        let text = "mgps or equi over the better of edtlp and hybrid, at worst";
        claim(text, &|_| true, 1.03);
        if engines == 2 {
            let odd = |row: &GrainRow| row.bootstraps > 1 && row.bootstraps % 2 == 1;
            claim("the same for odd numbers from 3 on, at worst", &odd, 1.0);
        }
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
    quick: bool,
    complete: bool,
    #[serde(flatten)]
    noise: Noise,
    rows: Vec<GrainRow>,
    model: Vec<Point>,
    claims: Vec<Property>,
}

impl Report {
    fn print(&self) -> Result<()> {
        for line in self.machine.lines() {
            output::line(&line)?;
        }
        output::line(&self.noise.line().replace('*', ""))?;
        output::line(&format!(
            "{} engines, hybrid({}), {} taxa, {} sites; seconds, medians of interleaved rounds",
            self.engines, self.hybrid, self.taxa, self.sites
        ))?;
        output::line(
            "replayed: the tasks' own processor times under the same policies in virtual time; \
             what other programs take away is not in it",
        )?;
        output::line(concat!(
            "                                              over the better (spread)",
            "  replayed        Cell's model"
        ))?;
        output::line(concat!(
            "bootstraps rounds   edtlp  hybrid    mgps    equi   mgps   equi ",
            "          mgps   equi   edtlp hybrid   mgps   equi"
        ))?;
        for (row, model) in self.rows.iter().zip(&self.model) {
            let [mgps, _] = row.mgps_over_better;
            let [equi, spread] = row.equi_over_better;
            let [edtlp, hybrid, ..] = row.replayed_s;
            let replayed = row.replayed_s.map(|one| one / edtlp.min(hybrid));
            output::line(&format!(
                "{:>10} {:>6} {:7.3} {:7.3} {:7.3} {:7.3}  {mgps:5.3}  {equi:5.3} ({:3.0} %)  \
                 {:5.3}  {:5.3}  {:6.1} {:6.1} {:6.1} {:6.1}",
                row.bootstraps,
                row.rounds,
                row.edtlp_s,
                row.hybrid_s,
                row.mgps_s,
                row.equi_s,
                100.0 * spread,
                replayed[2],
                replayed[3],
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

/// Seed of the model's random times.
const SEED: u64 = 1;
