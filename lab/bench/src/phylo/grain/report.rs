//! The report of a measurement, and the claims that it must satisfy.

use super::{Grain, GrainOptions, GrainRow, grain, picture};
use crate::measure::Machine;
use crate::measure::quiet::Noise;
use crate::phylo::BenchError;
use sidecore_cell_sim::Machine as CellMachine;
use sidecore_cell_sim::figures::{Point, point};
use sidecore_cell_sim::property::Property;
use sidecore_plot::PlotError;
use sidecore_terminal::{Column, Table, Text};
use std::sync::atomic::{AtomicBool, Ordering};

/// Seed of the model's random times.
const SEED: u64 = 1;

/// Report of a run.
#[derive(Debug, serde::Serialize)]
pub struct Report {
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
    /// Measures, next to the Cell's model of the same numbers. `done` is called after each run;
    /// `stop` ends it early, which the report says. Blocks for minutes.
    ///
    /// # Errors
    /// [`BenchError`].
    pub fn measured(
        options: &GrainOptions,
        quick: bool,
        stop: &AtomicBool,
        done: &dyn Fn(),
    ) -> Result<Self, BenchError> {
        let machine = Machine::of_this_program();
        let measured = grain(options, stop, done)?;
        // Relaxed: a flag alone.
        let is_complete = !stop.load(Ordering::Relaxed);
        let cell = CellMachine::cell()?;
        let model = options.bootstraps.iter();
        let model = model.map(|&count| point(&cell, count, SEED)).collect();
        Ok(Self::new(
            machine,
            options,
            measured,
            model,
            quick,
            is_complete,
        ))
    }

    /// The rows and the model's as SVG.
    ///
    /// # Errors
    /// [`PlotError`].
    pub fn draw(&self, options: &GrainOptions) -> Result<String, PlotError> {
        picture::draw(&self.machine, options, &self.rows, &self.model)
    }

    /// Of the rows of a measurement, and the Cell's model of the same numbers.
    fn new(
        machine: Machine,
        options: &GrainOptions,
        grain: Grain,
        model: Vec<Point>,
        quick: bool,
        complete: bool,
    ) -> Self {
        let Grain { rows, noise } = grain;
        Self {
            machine,
            engines: options.engines,
            hybrid: options.hybrid,
            taxa: options.taxa,
            sites: options.sites,
            quick,
            complete,
            noise,
            claims: claims(&rows, options.engines),
            rows,
            model,
        }
    }

    /// True if all claims hold.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.claims.iter().all(|claim| claim.holds)
    }

    /// The report as text.
    #[must_use]
    pub fn text(&self) -> Text {
        let mut text = Text::new();
        text.lines(self.machine.lines());
        text.line(self.noise.line().replace('*', ""));
        text.line(format!(
            "{} engines, hybrid({}), {} taxa, {} sites; seconds, medians of interleaved rounds; \
             mgps and equi over the better of edtlp and hybrid, with the spread",
            self.engines, self.hybrid, self.taxa, self.sites
        ));
        text.line(
            "replayed: the tasks' own processor times under the same policies in virtual time; \
             what other programs take away is not in it; cell: the Cell's model",
        );
        text.table(self.table());
        for claim in &self.claims {
            let held = if claim.holds {
                "holds"
            } else {
                "DOES NOT HOLD"
            };
            text.line(format!(
                "{held}: {}: {:.3} (at most {:.3})",
                claim.text, claim.value, claim.limit
            ));
        }
        text
    }

    fn table(&self) -> Table {
        let mut table = Table::new([
            Column::right("bootstraps"),
            Column::right("rounds").rank(9),
            Column::right("edtlp"),
            Column::right("hybrid"),
            Column::right("mgps"),
            Column::right("equi"),
            Column::right("mgps/better").rank(1),
            Column::right("equi/better").rank(1),
            Column::right("replayed mgps").rank(2),
            Column::right("equi").rank(2),
            Column::right("cell edtlp").rank(3),
            Column::right("hybrid").rank(3),
            Column::right("mgps").rank(3),
            Column::right("equi").rank(3),
        ]);
        for (row, model) in self.rows.iter().zip(&self.model) {
            let [mgps, _] = row.mgps_over_better;
            let [equi, spread] = row.equi_over_better;
            let [edtlp, hybrid, ..] = row.replayed_s;
            let replayed = row.replayed_s.map(|one| one / edtlp.min(hybrid));
            let measured = [row.edtlp_s, row.hybrid_s, row.mgps_s, row.equi_s];
            let model = [model.edtlp_s, model.hybrid_s, model.mgps_s, model.equi_s];
            let mut cells = vec![row.bootstraps.to_string(), row.rounds.to_string()];
            cells.extend(measured.map(|seconds| format!("{seconds:.3}")));
            cells.push(format!("{mgps:.3}"));
            cells.push(format!("{equi:.3} ({:.0} %)", 100.0 * spread));
            cells.extend([replayed[2], replayed[3]].map(|ratio| format!("{ratio:.3}")));
            cells.extend(model.map(|seconds| format!("{seconds:.1}")));
            table.row(cells);
        }
        table
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
