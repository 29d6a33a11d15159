//! `sidecore phylo bench`.

use super::{LIBRARY, common};
use crate::signals::{SIGINT, SIGTERM, raise_on};
use crate::{Outcome, output, run_each};
use anyhow::{Context, Result};
use clap::Subcommand;
use sidecore_bench::measure::quiet::Noise;
use sidecore_bench::phylo::beagle::{BeagleOptions, BeagleRow, beagle, shapes, text, work};
use sidecore_bench::phylo::grain::{GrainOptions, Report, grain, picture};
use sidecore_bench::phylo::{KernelRow, kernels, traversal};
use sidecore_cell_sim::Machine as CellMachine;
use sidecore_cell_sim::figures::{Point, point};
use sidecore_measure::Machine;
use sidecore_phylo::kernel::Isa;
use sidecore_phylo::msa::{Alphabet, Patterns};
use sidecore_sys::cpu;
use sidecore_terminal::progress::counted;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

impl Args {
    pub(crate) fn run(self) -> Result<Outcome> {
        self.command.run()
    }
}

/// The benchmarks.
#[derive(Subcommand)]
enum Command {
    /// The likelihood kernels on one core.
    Kernels(Kernels),
    /// Bootstraps in numbers that do and do not suit the engines, under each policy
    Grain(GrainArgs),
    /// Sidecore's library of BEAGLE's interface against an installed BEAGLE
    Beagle(BeagleArgs),
}

#[derive(clap::Args)]
struct Kernels {
    /// Measure full traversals of this alignment only (DNA; proteins with --protein)
    #[arg(long, value_name = "FILE", requires = "tree")]
    msa: Option<PathBuf>,
    /// The alignment's tree
    #[arg(long, value_name = "FILE", requires = "msa")]
    tree: Option<PathBuf>,
    /// The alignment is one of proteins
    #[arg(long, requires = "msa")]
    protein: bool,
    /// Measure for a second or two only
    #[arg(long)]
    quick: bool,
    /// Use no AVX2 even where it is there
    #[arg(long)]
    portable: bool,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

impl Command {
    fn run(self) -> Result<Outcome> {
        run_each!(self; Kernels Grain Beagle)
    }
}

impl Kernels {
    fn run(self) -> Result<Outcome> {
        let isa = match self.portable {
            true => Isa::PORTABLE,
            false => Isa::detect(),
        };
        let rows = match (&self.msa, &self.tree) {
            (Some(msa), Some(tree)) => {
                let alignment = common::reader().alignment(msa)?;
                let alphabet = match self.protein {
                    true => Alphabet::Protein,
                    false => Alphabet::Dna,
                };
                let patterns = Patterns::new(&alignment, alphabet);
                let patterns = patterns.with_context(|| msa.display().to_string())?;
                let tree = common::reader().trees(tree)?.only_of(alignment.names())?;
                traversal(isa, self.quick, &tree, &patterns)?
            }
            _ => kernels(isa, self.quick)?,
        };
        let isa = isa.name().to_owned();
        output::report(self.json, &Json { isa, rows }, |report| {
            sidecore_bench::phylo::text(&report.rows)
        })
    }
}

#[derive(serde::Serialize)]
struct Json {
    isa: String,
    rows: Vec<KernelRow>,
}

#[derive(clap::Args)]
pub(crate) struct GrainArgs {
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

impl GrainArgs {
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
        let measured = counted(runs as u64, "runs, at most", |bar| {
            grain(&options, &stop, &|| bar.inc(1))
        })?;
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

#[derive(clap::Args)]
pub(crate) struct BeagleArgs {
    /// The library to compare with
    #[arg(long, value_name = "FILE", default_value = "libhmsbeagle.so.1")]
    peer: PathBuf,
    /// Engines of Sidecore's library
    #[arg(long, value_name = "N", default_value = "1")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=64))]
    engines: u16,
    /// Rounds, of which medians are taken
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: Option<u16>,
    /// Three shapes, short runs: a smoke run
    #[arg(long)]
    quick: bool,
    /// Answer a bench's questions about this library
    #[arg(long, value_name = "FILE", hide = true)]
    library: Option<PathBuf>,
    /// Report in JSON on standard output
    #[arg(long)]
    json: bool,
}

/// The report in JSON.
#[derive(serde::Serialize)]
struct BeagleReport {
    machine: Machine,
    engines: u16,
    rows: Vec<BeagleRow>,
    noise: Noise,
}

impl BeagleArgs {
    pub(crate) fn run(self) -> Result<Outcome> {
        if let Some(library) = &self.library {
            let (input, output) = (std::io::stdin().lock(), std::io::stdout());
            work(library, self.engines, self.quick, input, output)?;
            return Ok(Outcome::Done);
        }
        let stop = raise_on(&[SIGINT, SIGTERM])?;
        let options = BeagleOptions {
            program: std::env::current_exe()?,
            ours: LIBRARY.locate()?,
            peer: self.peer,
            engines: self.engines,
            rounds: self
                .rounds
                .map_or(if self.quick { 3 } else { 7 }, usize::from),
            is_quick: self.quick,
        };
        let shapes = shapes(self.quick).len() as u64;
        let (rows, noise) = counted(shapes, "traversals", |bar| {
            beagle(&options, &stop, &|| bar.inc(1))
        })?;
        let failed = rows.iter().any(|row| row.error.is_some());
        let report = BeagleReport {
            machine: Machine::of_this_program(),
            engines: self.engines,
            rows,
            noise,
        };
        output::report(self.json, &report, |report| {
            text(&report.rows, &report.noise)
        })?;
        Ok(Outcome::of(!failed))
    }
}
