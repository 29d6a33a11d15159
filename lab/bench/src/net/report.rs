//! The result of a run of the bench.
//!
//! Why here: the command prints it, scripts read it as JSON, `docs/results` is filled from it.
//! Must stay true: the keys `rows[]{name paper here unit}` and
//! `peers[]{name metric here peer ratio spread}` keep their names; a figure without its spread and
//! rounds is not in here.

use crate::frame::{Head, Reported, text};
use crate::measure::stats::{Series, number, percent};
use crate::measure::{Figures, markdown};
use serde::Serialize;
use sidecore_terminal::{Column, Table, Text};

/// A whole run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Circumstances of the run.
    #[serde(flatten)]
    pub head: Head,
    /// Our figures, the paper's and the peers', failures, every sample.
    #[serde(flatten)]
    pub figures: Figures,
    /// Our figures over a varied quantity.
    pub curves: Vec<Curve>,
}

/// One of our figures, over a varied quantity.
#[derive(Debug, Clone, Serialize)]
pub struct Curve {
    /// The group that measured it.
    pub group: &'static str,
    /// Curves of one chart are drawn together.
    pub chart: &'static str,
    /// Its name.
    pub name: String,
    /// The varied quantity, with its unit.
    pub over: &'static str,
    /// The unit of the figures.
    pub unit: &'static str,
    /// Points in the order in which they are drawn.
    pub points: Vec<Point>,
    /// The paper's point: position and value.
    pub paper: Option<(f64, f64)>,
}

/// A point of a [`Curve`].
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Point {
    /// Place on the horizontal axis.
    pub at: f64,
    /// The median.
    pub here: f64,
    /// Largest less smallest, divided by the median.
    pub spread: f64,
    /// Rounds measured.
    pub rounds: usize,
}

impl Point {
    /// The point at `at`.
    pub(super) fn new(at: f64, series: &Series) -> Self {
        Self {
            at,
            here: series.median(),
            spread: series.spread(),
            rounds: series.rounds(),
        }
    }
}

impl Report {
    pub(super) fn new(head: Head) -> Self {
        Self {
            head,
            figures: Figures::default(),
            curves: Vec::new(),
        }
    }
}

impl Reported for Report {
    fn parts(&mut self) -> (&mut Head, &mut Figures) {
        (&mut self.head, &mut self.figures)
    }
}

// A run as Markdown tables, ready for `docs/results`.
//
// Why here: figures are pasted, not retyped. Must stay true: losses are printed like wins.
// Pure. Source: own.

/// The whole report.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut out = report.head.markdown("few and short rounds");
    let figures = &report.figures;
    out.push_str("\n### Beside the peers\n\n");
    out.push_str(&markdown::peers(&figures.peers).markdown());
    out.push_str("\n### Beside the paper\n\n");
    out.push_str(&markdown::rows(&figures.rows).markdown());
    if !report.curves.is_empty() {
        out.push_str("\n### Curves\n\n");
        out.push_str(&curves(report).markdown());
    }
    out.push_str(&markdown::failures(&figures.failures));
    out
}

fn curves(report: &Report) -> Table {
    let heads = ["what", "at", "", "here", "unit", "spread"];
    let points = report.curves.iter().flat_map(|curve| {
        curve.points.iter().map(|point| {
            vec![
                curve.name.clone(),
                number(point.at),
                curve.over.into(),
                number(point.here),
                curve.unit.into(),
                percent(point.spread),
            ]
        })
    });
    Table::of(&heads, points.collect())
}

/// The whole report for people at a terminal.
#[must_use]
pub fn people(report: &Report) -> Text {
    let mut out = text::head(&report.head, "few and short rounds");
    text::figures(&mut out, &report.figures);
    for curve in &report.curves {
        let (name, unit, over) = (&curve.name, curve.unit, curve.over);
        out.line("");
        out.line(format!("{name}, {unit} over {over}"));
        let mut table = Table::headless([Column::right("at"), Column::right("here")]);
        for point in &curve.points {
            table.row([number(point.at), number(point.here)]);
        }
        out.table(table);
    }
    text::failures(&mut out, &report.figures);
    out
}
