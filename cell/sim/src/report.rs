//! The tables and figures with the statements that must hold of them: as values, text and pictures.
//!
//! Must stay true: only the papers' own machine has statements, and only where all of a figure's
//! points were asked for.

use crate::fit::CONTENTION;
use crate::property::Property;
use crate::tables::{self, Table1Row, Table2Row};
use crate::{CellError, Machine, Options, figures, simulate, uio};
use serde::Serialize;
use sidecore_bare::width::ToU64;
use sidecore_sched::{PolicyError, by_name};

pub use crate::figures::{BOOTSTRAPS, Point};
pub use crate::uio::Row as UioRow;

/// A table or figure.
#[derive(Debug, Serialize)]
pub struct Report<R: Serialize> {
    /// The machine's name.
    pub machine: String,
    /// Seed of the random times.
    pub seed: u64,
    /// The rows, or points.
    pub rows: Vec<R>,
    /// The same on other machines.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub variants: Vec<Variant>,
    /// The statements.
    pub properties: Vec<Property>,
}

/// Figure 8 on another host.
#[derive(Debug, Serialize)]
pub struct Variant {
    /// The machine's name.
    pub machine: String,
    /// The points.
    pub rows: Vec<Point>,
    /// The statements.
    pub properties: Vec<Property>,
}

/// One number of tasks under one policy.
#[derive(Debug, Serialize)]
pub struct RunRow {
    /// Tasks.
    pub tasks: u32,
    /// The policy's name.
    pub policy: String,
    /// Time until all are done.
    pub seconds: f64,
    /// Part of the time in which engines worked.
    pub engines_busy: f64,
    /// Part of the time in which hosts worked.
    pub hosts_busy: f64,
    /// Most tasks that lived at once.
    pub live_max: u32,
    /// Part of the off-loads that stayed on the host.
    pub kept_on_host: f64,
    /// Time that no policy can be below.
    pub lower_bound_s: f64,
}

/// A figure of the scheduling papers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figure {
    /// EDTLP and the static hybrid.
    Seven,
    /// MGPS and equi with both.
    Eight,
    /// The same on two Cells.
    Nine,
}

impl Figure {
    /// Its number in the papers.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::Seven => 7,
            Self::Eight => 8,
            Self::Nine => 9,
        }
    }

    /// The same figure of a machine: on as many Cells as it is about.
    fn machine(self, machine: Machine, is_cell: bool) -> Machine {
        match self {
            // A machine of the user's is taken as it is described.
            Self::Nine if is_cell => machine.with_cells(2),
            _ => machine,
        }
    }
}

/// A switch between two processes on the machine that the results were made on (docs/results).
const SWITCH_TODAY_US: f64 = 2.7;

impl<R: Serialize> Report<R> {
    fn new(machine: &Machine, seed: u64, rows: Vec<R>, properties: Vec<Property>) -> Self {
        Self {
            machine: machine.name.clone(),
            seed,
            rows,
            variants: Vec::new(),
            properties,
        }
    }

    /// True if every statement holds.
    #[must_use]
    pub fn holds(&self) -> bool {
        // A variant's are as binding: the exit status says all of them.
        let variants = self.variants.iter().flat_map(|each| &each.properties);
        self.properties.iter().chain(variants).all(|p| p.holds)
    }
}

impl Report<Table1Row> {
    /// Seconds for 1 to 8 workers; `is_cell`: the machine is the papers'.
    #[must_use]
    pub fn table1(machine: &Machine, is_cell: bool, seed: u64) -> Self {
        let rows = tables::table1(machine, is_cell, seed);
        let properties = match is_cell {
            true => tables::table1_properties(&rows),
            false => Vec::new(),
        };
        Self::new(machine, seed, rows, properties)
    }
}

impl Report<Table2Row> {
    /// Seconds of one task whose loops are split over 1 to 8 engines.
    #[must_use]
    pub fn table2(machine: &Machine, is_cell: bool, seed: u64) -> Self {
        let rows = tables::table2(machine, is_cell, seed);
        Self::new(machine, seed, rows, Vec::new())
    }
}

impl Report<UioRow> {
    /// The block device whose blocks SPEs decompress.
    ///
    /// # Errors
    /// The built-in machine cannot be read: a mistake in this crate.
    pub fn uio(seed: u64) -> Result<Self, CellError> {
        let rows = uio::rows();
        let properties = uio::properties(&rows);
        Ok(Self::new(&Machine::cell()?, seed, rows, properties))
    }
}

/// A figure's report.
#[derive(Debug, Serialize)]
pub struct FigureReport {
    #[serde(skip)]
    pub(crate) figure: Figure,
    /// Rows, variants and statements.
    #[serde(flatten)]
    pub report: Report<Point>,
}

impl FigureReport {
    /// Points at these numbers of bootstraps, or at all of the paper's where there are none. Calls
    /// `begin` with the number of points, and `tick` behind each.
    pub fn new(
        figure: Figure,
        machine: Machine,
        is_cell: bool,
        bootstraps: &[u32],
        seed: u64,
        begin: impl FnOnce(u64),
        tick: &(dyn Fn() + Sync),
    ) -> Self {
        let machine = figure.machine(machine, is_cell);
        // Statements are on the papers' points; of others nothing was said.
        let is_whole = bootstraps.is_empty();
        let bootstraps: &[u32] = if is_whole { &BOOTSTRAPS } else { bootstraps };
        let has_properties = is_cell && is_whole;
        // Statements about other hosts are Figure 8's.
        let others = match (has_properties, figure) {
            (true, Figure::Eight) => vec![
                machine.clone().with_switch_us(SWITCH_TODAY_US),
                machine.clone().with_contention(&CONTENTION),
            ],
            _ => Vec::new(),
        };
        begin(((1 + others.len()) * bootstraps.len()).to_u64());
        let points = |machine: &Machine| figures::points(machine, bootstraps, seed, tick);
        let rows = points(&machine);
        let properties = match (has_properties, figure) {
            (false, _) => Vec::new(),
            (true, Figure::Seven) => figures::figure7_properties(&rows),
            (true, Figure::Eight) => figures::figure8_properties(&rows),
            (true, Figure::Nine) => figures::figure9_properties(&rows),
        };
        let mut report = Report::new(&machine, seed, rows, properties);
        let verdicts = [figures::switch_properties, figures::contention_properties];
        for (machine, properties) in others.iter().zip(verdicts) {
            let rows = points(machine);
            report.variants.push(Variant {
                machine: machine.name.clone(),
                properties: properties(&rows),
                rows,
            });
        }
        Self { figure, report }
    }
}

impl Report<RunRow> {
    /// Each number of tasks under each policy; calls `tick` behind each run.
    ///
    /// # Errors
    /// A policy's name is none.
    pub fn runs(
        machine: &Machine,
        policies: &[String],
        tasks: &[u32],
        seed: u64,
        tick: impl Fn(),
    ) -> Result<Self, PolicyError> {
        let mut rows = Vec::new();
        for &tasks in tasks {
            for name in policies {
                let mut policy = by_name(name)?;
                let outcome = simulate(
                    machine,
                    tasks,
                    &mut *policy,
                    Options::for_tasks(tasks, seed),
                );
                tick();
                rows.push(RunRow {
                    tasks,
                    policy: policy.name(),
                    seconds: outcome.seconds,
                    engines_busy: outcome.engines_busy,
                    hosts_busy: outcome.hosts_busy,
                    live_max: outcome.live_max,
                    kept_on_host: outcome.kept_on_host,
                    lower_bound_s: figures::lower_bound_s(machine, tasks),
                });
            }
        }
        Ok(Self::new(machine, seed, rows, Vec::new()))
    }
}
