//! `sidecore cell`: the papers' tables and figures by the machine in virtual time.
//!
//! Why here: arguments; the model, its tables and its pictures are `sidecore_cell_sim`.
//! Must stay true: results alone go to standard output; exit status 1 means that a stated property
//! does not hold, and only the papers' own machine has any.

use crate::values::policies;
use crate::{Outcome, output};
use anyhow::{Context, Result};
use sidecore_cell_sim::Machine;
use sidecore_cell_sim::report::{Figure, FigureReport, Report, RunRow, UioRow};
use sidecore_cell_sim::shown::Shown;
use sidecore_cell_sim::tables::{Table1Row, Table2Row};
use sidecore_sys::input::read_text;
use sidecore_sys::width::ToU64;
use sidecore_terminal::progress::counted;
use sidecore_terminal::values::Offered;
use std::path::PathBuf;

/// The tables and figures.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Seconds for 1 to 8 workers under EDTLP and under Linux, compared with the paper
    Table1(Options),
    /// Seconds for one task whose loops are split over 1 to 8 engines (an input of the model)
    Table2(Options),
    /// EDTLP compared with the static hybrid, 1 to 128 tasks
    Fig7(FigureArgs),
    /// MGPS and equi compared with both, and equi on other hosts
    Fig8(FigureArgs),
    /// The same on two Cells
    Fig9(FigureArgs),
    /// The block device whose blocks SPEs decompress
    Uio(Options),
    /// Any policies on any machine and task mix
    Run(RunArgs),
}

/// Options common to all of these commands.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write a picture (SVG) to this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Another machine and task mix; docs/machines has examples
    #[arg(long, value_name = "FILE.toml")]
    machine: Option<PathBuf>,
    /// Seed of the model's random times
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// Options of the figures.
#[derive(clap::Args)]
pub(crate) struct FigureArgs {
    #[command(flatten)]
    options: Options,
    /// Only these numbers of bootstraps, instead of 24 from 1 to 128; the paper's statements about
    /// all of them are then not checked
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1024))]
    bootstraps: Vec<u32>,
}

#[derive(clap::Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    options: Options,
    /// Policies: linux, edtlp, llp(N), hybrid(N), mgps, equi
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    #[arg(default_values_t = ["edtlp", "mgps", "equi"].map(String::from))]
    #[arg(value_parser = Offered(policies), hide_possible_values = true)]
    policy: Vec<String>,
    /// Numbers of tasks
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    #[arg(default_values_t = [1, 2, 4, 8, 16, 32, 64])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=4096))]
    tasks: Vec<u32>,
}

impl Command {
    pub(crate) fn run(self) -> Result<Outcome> {
        match self {
            Self::Table1(options) => {
                let (machine, is_cell) = options.start()?;
                let report = Report::<Table1Row>::table1(&machine, is_cell, options.seed);
                options.finish(&report, report.holds())
            }
            Self::Table2(options) => {
                let (machine, is_cell) = options.start()?;
                let report = Report::<Table2Row>::table2(&machine, is_cell, options.seed);
                options.finish(&report, report.holds())
            }
            Self::Fig7(args) => args.run(Figure::Seven),
            Self::Fig8(args) => args.run(Figure::Eight),
            Self::Fig9(args) => args.run(Figure::Nine),
            Self::Uio(options) => {
                anyhow::ensure!(
                    options.machine.is_none(),
                    "uio models the papers' block device; it takes no --machine"
                );
                options.start()?;
                let report = Report::<UioRow>::uio(options.seed)?;
                options.finish(&report, report.holds())
            }
            Self::Run(args) => args.run(),
        }
    }
}

impl Options {
    /// The machine, and true if it is the papers'. Fails before seconds are spent if the picture
    /// cannot be written.
    fn start(&self) -> Result<(Machine, bool)> {
        self.svg.as_deref().map_or(Ok(()), output::check_picture)?;
        Ok(match &self.machine {
            Some(path) => {
                let name = path.display().to_string();
                let text = read_text(path, MACHINE_BYTES_MAX);
                let text = text.with_context(|| format!("cannot read {name}"))?;
                (Machine::parse(&name, &text)?, false)
            }
            None => (Machine::cell()?, true),
        })
    }

    fn finish(&self, report: &impl Shown, holds: bool) -> Result<Outcome> {
        if let Some(path) = &self.svg {
            output::picture(path, &report.picture()?)?;
        }
        output::report(self.json, report, |report| report.text())?;
        Ok(Outcome::of(holds))
    }
}

impl FigureArgs {
    fn run(&self, figure: Figure) -> Result<Outcome> {
        let (machine, is_cell) = self.options.start()?;
        let (bootstraps, seed) = (&self.bootstraps, self.options.seed);
        let report = counted(0, "points", |bar| {
            let begin = |points| bar.set_length(points);
            let tick = || bar.inc(1);
            FigureReport::new(figure, machine, is_cell, bootstraps, seed, begin, &tick)
        });
        self.options.finish(&report, report.report.holds())
    }
}

impl RunArgs {
    fn run(self) -> Result<Outcome> {
        for name in &self.policy {
            sidecore_sched::by_name(name)?;
        }
        let (machine, _) = self.options.start()?;
        let runs = self.tasks.len() * self.policy.len();
        let (policies, tasks, seed) = (&self.policy, &self.tasks, self.options.seed);
        let report = counted(runs.to_u64(), "runs", |bar| {
            Report::<RunRow>::runs(&machine, policies, tasks, seed, || bar.inc(1))
        })?;
        self.options.finish(&report, true)
    }
}

/// A description is written by hand.
const MACHINE_BYTES_MAX: u64 = 1 << 20;
