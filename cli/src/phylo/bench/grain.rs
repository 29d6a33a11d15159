//! `sidecore phylo bench grain`.

use super::super::common;
use crate::signals::{SIGINT, SIGTERM, raise_on};
use crate::{Outcome, output};
use anyhow::Result;
use sidecore_bench::phylo::grain::{GrainOptions, Report, grain, picture};
use sidecore_cell_sim::Machine as CellMachine;
use sidecore_cell_sim::figures::{Point, point};
use sidecore_measure::Machine;
use sidecore_sys::cpu;
use sidecore_terminal::progress::{Shape, bar};
use std::path::PathBuf;
use std::sync::atomic::Ordering;

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
    pub(crate) fn run(self) -> Result<Outcome> {
        if let Some(path) = &self.svg {
            // Before minutes are spent.
            output::check_picture(path)?;
        }
        let stop = raise_on(&[SIGINT, SIGTERM])?;
        let cpus = cpu::allowed()?;
        let engines = common::engines(self.engines);
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
        let bar = bar(Shape::Count, runs as u64).with_message("runs, at most");
        let measured = grain(&options, &stop, &|| bar.inc(1))?;
        bar.finish_and_clear();
        // Relaxed: a flag alone.
        let stopped = stop.load(Ordering::Relaxed);
        let cell = CellMachine::cell()?;
        let model = options.bootstraps.iter();
        let model: Vec<Point> = model.map(|&count| point(&cell, count, SEED)).collect();
        if let Some(path) = &self.svg {
            let svg = picture::draw(&machine, &options, &measured.rows, &model)?;
            output::picture(path, &svg)?;
        }
        let report = Report::new(machine, &options, measured, model, self.quick, !stopped);
        output::report(self.json, &report, Report::text)?;
        Ok(Outcome::of(report.holds()))
    }
}

/// Seed of the model's random times.
const SEED: u64 = 1;
