//! `sidecore cell`: the papers' tables and figures by the machine in virtual time.
//!
//! Why here: arguments, printing and pictures; the model is `sidecore_cell_sim`, the policies are
//! `sidecore_sched`.
//! Must stay true: results alone go to standard output; exit status 1 means that a stated property
//! does not hold, and only the papers' own machine has any.

mod picture;
mod print;
mod run;

use crate::{Outcome, output};
use anyhow::Result;
use indicatif::ProgressBar;
use serde::Serialize;
use sidecore_cell_sim::figures::{self, BOOTSTRAPS, Point};
use sidecore_cell_sim::fit::CONTENTION;
use sidecore_cell_sim::property::Property;
use sidecore_cell_sim::tables::{self, Table1Row, Table2Row};
use sidecore_cell_sim::{Machine, uio};
use std::path::{Path, PathBuf};

/// The tables and figures.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Seconds for 1 to 8 workers under EDTLP and under Linux, compared with the paper
    Table1(Options),
    /// Seconds for one task whose loops are split over 1 to 8 engines (an input of the model)
    Table2(Options),
    /// EDTLP compared with the static hybrid, 1 to 128 tasks
    Fig7(Figure),
    /// MGPS and equi compared with both, and equi on other hosts
    Fig8(Figure),
    /// The same on two Cells
    Fig9(Figure),
    /// The block device whose blocks SPEs decompress
    Uio(Options),
    /// Any policies on any machine and task mix
    Run(run::Args),
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
pub(crate) struct Figure {
    #[command(flatten)]
    options: Options,
    /// Only these numbers of bootstraps, instead of 24 from 1 to 128; the paper's statements about
    /// all of them are then not checked
    #[arg(
        long,
        value_name = "N,...",
        value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=1024)
    )]
    bootstraps: Vec<u32>,
}

/// A table with the statements that must hold of it.
#[derive(Serialize)]
struct Report<R: Serialize> {
    machine: String,
    seed: u64,
    rows: Vec<R>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    variants: Vec<Variant>,
    properties: Vec<Property>,
}

/// Figure 8 on another host.
#[derive(Serialize)]
struct Variant {
    machine: String,
    rows: Vec<Point>,
    properties: Vec<Property>,
}

impl Command {
    /// Runs the command.
    pub(crate) fn run(self) -> Result<Outcome> {
        match self {
            Self::Table1(options) => options.table1(),
            Self::Table2(options) => options.table2(),
            Self::Fig7(args) => args.run(7),
            Self::Fig8(args) => args.run(8),
            Self::Fig9(args) => args.run(9),
            Self::Uio(options) => options.uio(),
            Self::Run(args) => args.run(),
        }
    }
}

impl Options {
    /// The machine, and true if it is the papers'. Fails before seconds are spent if the picture
    /// cannot be written.
    fn start(&self) -> Result<(Machine, bool)> {
        prepare(self.svg.as_deref())?;
        Ok(match &self.machine {
            Some(path) => (Machine::read(path)?, false),
            None => (Machine::cell()?, true),
        })
    }

    fn table1(&self) -> Result<Outcome> {
        let (machine, papers) = self.start()?;
        let rows: Vec<Table1Row> = tables::table1(&machine, papers, self.seed);
        let properties = match papers {
            true => tables::table1_properties(&rows),
            false => Vec::new(),
        };
        self.draw(|| picture::table1(&machine.name, &rows))?;
        let report = self.report(&machine, rows, properties);
        self.finish(&report, print::table1)
    }

    fn table2(&self) -> Result<Outcome> {
        let (machine, papers) = self.start()?;
        let rows: Vec<Table2Row> = tables::table2(&machine, papers, self.seed);
        self.draw(|| picture::table2(&machine.name, &rows))?;
        let report = self.report(&machine, rows, Vec::new());
        self.finish(&report, print::table2)
    }

    fn uio(&self) -> Result<Outcome> {
        anyhow::ensure!(
            self.machine.is_none(),
            "uio models the papers' block device; it takes no --machine"
        );
        prepare(self.svg.as_deref())?;
        let rows = uio::rows();
        let properties = uio::properties(&rows);
        self.draw(|| picture::uio(&rows))?;
        let machine = Machine::cell()?;
        let report = self.report(&machine, rows, properties);
        self.finish(&report, print::uio)
    }

    fn report<R: Serialize>(
        &self,
        machine: &Machine,
        rows: Vec<R>,
        properties: Vec<Property>,
    ) -> Report<R> {
        Report {
            machine: machine.name.clone(),
            seed: self.seed,
            rows,
            variants: Vec::new(),
            properties,
        }
    }

    fn draw(&self, picture: impl FnOnce() -> Result<String>) -> Result<()> {
        draw(self.svg.as_deref(), picture)
    }

    fn finish<R: Serialize>(
        &self,
        report: &Report<R>,
        print: impl FnOnce(&Report<R>) -> Result<()>,
    ) -> Result<Outcome> {
        if self.json {
            crate::output::json(report)?;
        } else {
            print(report)?;
        }
        let variants = report.variants.iter().flat_map(|each| &each.properties);
        Ok(
            match report.properties.iter().chain(variants).all(|p| p.holds) {
                true => Outcome::Done,
                false => Outcome::Problem,
            },
        )
    }
}

impl Figure {
    fn run(&self, number: u32) -> Result<Outcome> {
        let (mut machine, cell) = self.options.start()?;
        if cell && number == 9 {
            machine = machine.with_cells(2);
        }
        let papers = cell && self.bootstraps.is_empty();
        let bootstraps: &[u32] = match self.bootstraps.is_empty() {
            true => &BOOTSTRAPS,
            false => &self.bootstraps,
        };
        let others = match (papers, number) {
            (true, 8) => vec![
                machine.clone().with_switch_us(SWITCH_TODAY_US),
                machine.clone().with_contention(&CONTENTION),
            ],
            _ => Vec::new(),
        };
        let bar = progress((1 + others.len()) * bootstraps.len());
        let points = |machine: &Machine| {
            figures::points(machine, bootstraps, self.options.seed, &|| bar.inc(1))
        };
        let rows = points(&machine);
        let properties = match (papers, number) {
            (false, _) => Vec::new(),
            (true, 7) => figures::figure7_properties(&rows),
            (true, 8) => figures::figure8_properties(&rows),
            (true, _) => figures::figure9_properties(&rows),
        };
        let variants = others.iter().enumerate().map(|(index, machine)| {
            let rows = points(machine);
            Variant {
                machine: machine.name.clone(),
                properties: match index {
                    0 => figures::switch_properties(&rows),
                    _ => figures::contention_properties(&rows),
                },
                rows,
            }
        });
        let variants = variants.collect();
        bar.finish_and_clear();
        self.options
            .draw(|| picture::figure(number, &machine.name, &rows))?;
        let mut report = self.options.report(&machine, rows, properties);
        report.variants = variants;
        self.options
            .finish(&report, |report| print::figure(number, report))
    }
}

/// Makes sure that a picture can be written.
fn prepare(svg: Option<&Path>) -> Result<()> {
    svg.map_or(Ok(()), output::check_file)
}

fn draw(svg: Option<&Path>, picture: impl FnOnce() -> Result<String>) -> Result<()> {
    svg.map_or(Ok(()), |path| output::file(path, &picture()?))
}

/// A bar over simulated points.
fn progress(points: usize) -> ProgressBar {
    output::progress(points as u64).with_message("points")
}

/// A switch between two processes on the machine that the results were made on (docs/results).
const SWITCH_TODAY_US: f64 = 2.7;
