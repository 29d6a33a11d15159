//! A run as Markdown tables, ready for `docs/results`.
//!
//! Why here: figures are pasted, not retyped. Must stay true: losses are printed like wins.
//! Pure. Source: own.

use super::report::Report;
use crate::frame::text;
use crate::measure::markdown;
use crate::measure::stats::{number, percent};
use sidecore_terminal::{Column, Table, Text};

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
