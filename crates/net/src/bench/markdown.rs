//! A run as Markdown tables, ready for `docs/results`.
//!
//! Why here: figures are pasted, not retyped. Must stay true: losses are printed like wins.
//! Pure. Source: own.

use super::report::Report;
use sidecore_measure::Table;
use sidecore_measure::markdown::{self, Head};
use sidecore_measure::stats::{number, percent};

/// The whole report.
#[must_use]
pub fn render(report: &Report) -> String {
    let head = Head {
        machine: &report.machine,
        quick: report.quick.then_some("few and short rounds"),
        method: &report.method,
        placement: &report.placement,
        inputs: &[],
        seconds: report.seconds,
    };
    let mut out = head.text();
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
