//! `sidecore phylo bench`.

use super::{LIBRARY, common};
use crate::output::JsonArgs;
use crate::signals::{SIGINT, SIGTERM, raise_on};
use crate::{Outcome, output, run_each};
use anyhow::{Context, Result};
use clap::Subcommand;
use sidecore_bench::phylo::beagle::{BeagleOptions, BeagleReport, shapes, work};
use sidecore_bench::phylo::grain::{GrainOptions, Report};
use sidecore_bench::phylo::{KernelReport, kernels, traversal};
use sidecore_phylo::kernel::Isa;
use sidecore_phylo::msa::{Alphabet, Patterns};
use sidecore_sys::cpu;
use sidecore_sys::width::ToU64;
use sidecore_terminal::progress::counted;
use std::path::PathBuf;

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
    #[command(flatten)]
    form: JsonArgs,
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
        self.form
            .report(&KernelReport { isa, rows }, KernelReport::text)
    }
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
    #[command(flatten)]
    form: JsonArgs,
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
        let runs = 1 + 4 * options.rounds * options.bootstraps.len();
        let report = counted(runs.to_u64(), "runs, at most", |bar| {
            Report::measured(&options, self.quick, &stop, &|| bar.inc(1))
        })?;
        if let Some(path) = &self.svg {
            output::picture(path, &report.draw(&options)?)?;
        }
        self.form.report(&report, Report::text)?;
        Ok(Outcome::of(report.holds()))
    }
}

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
    #[command(flatten)]
    form: JsonArgs,
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
        let shapes = shapes(self.quick).len().to_u64();
        let report = counted(shapes, "traversals", |bar| {
            BeagleReport::measured(&options, &stop, &|| bar.inc(1))
        })?;
        self.form.report(&report, BeagleReport::text)?;
        Ok(Outcome::of(!report.has_failed()))
    }
}
