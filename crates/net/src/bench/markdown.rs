//! A run as Markdown tables, ready for `docs/results`.
//!
//! Why here: figures are pasted, not retyped. Must stay true: losses are printed like wins.
//! Pure. Source: own.

use super::report::Report;
use sidecore_measure::Table;
use sidecore_measure::markdown;
use sidecore_measure::stats::{number, percent};

/// The whole report.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut out = String::new();
    for line in report.machine.lines() {
        out.push_str(&format!("- {line}\n"));
    }
    if report.quick {
        out.push_str("- **quick run**: few and short rounds, a taste and no result\n");
    }
    out.push_str(&format!("- method: {}\n", report.method));
    out.push_str(&format!("- placement: {}\n", report.placement));
    out.push_str(&format!("- it took {:.0} s\n", report.seconds));
    let figures = &report.figures;
    out.push_str("\n### Beside the peers\n\n");
    out.push_str(&markdown::peers(&figures.peers).text());
    out.push_str("\n### Beside the paper\n\n");
    out.push_str(&markdown::rows(&figures.rows).text());
    if !report.curves.is_empty() {
        out.push_str("\n### Curves\n\n");
        out.push_str(&curves(report).text());
    }
    for failure in &figures.failures {
        out.push_str(&format!("\n**Failed:** {failure}\n"));
    }
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
