//! A run as Markdown tables, ready for `docs/results`.
//!
//! Why here: figures are pasted, not retyped. Must stay true: losses are printed like wins.
//! Pure. Source: own.

use super::report::Report;
use crate::frame::text;
use crate::measure::Table;
use crate::measure::markdown;
use crate::measure::stats::{number, percent};

/// The whole report.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut out = report.head.markdown("few and short rounds");
    let figures = &report.figures;
    out.push_str("\n### Beside the peers\n\n");
    out.push_str(&markdown::peers(&figures.peers).text());
    out.push_str("\n### Beside the paper\n\n");
    out.push_str(&markdown::rows(&figures.rows).text());
    if !report.curves.is_empty() {
        out.push_str("\n### Curves\n\n");
        out.push_str(&curves(report).text());
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
    Table::new(&heads, points.collect())
}

/// The whole report for people at a terminal.
#[must_use]
pub fn people(report: &Report) -> String {
    let mut out = text::head(&report.head, "few and short rounds");
    out.push_str(&text::figures(&report.figures));
    for curve in &report.curves {
        let (name, unit, over) = (&curve.name, curve.unit, curve.over);
        out.push_str(&format!("\n{name}, {unit} over {over}\n"));
        for point in &curve.points {
            let (at, here) = (number(point.at), number(point.here));
            out.push_str(&format!("  {at:>8}  {here:>8}\n"));
        }
    }
    out.push_str(&text::failures(&report.figures));
    out
}
