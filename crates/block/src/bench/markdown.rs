//! A run as Markdown tables, ready for `docs/results`.
//!
//! Why here: figures are pasted, not retyped. Must stay true: losses are printed like wins.
//! Pure. Source: own.

use super::report::Report;
use sidecore_measure::markdown;
use sidecore_measure::stats::percent;

/// The whole report.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut out = String::new();
    for line in report.machine.lines() {
        out.push_str(&format!("- {line}\n"));
    }
    if report.quick {
        out.push_str("- **quick run**: small inputs and few rounds, a taste and no result\n");
    }
    out.push_str(&format!("- method: {}\n", report.method));
    out.push_str(&format!("- placement: {}\n", report.placement));
    for line in &report.inputs {
        out.push_str(&format!("- {line}\n"));
    }
    out.push_str(&format!("- it took {:.0} s\n", report.seconds));
    let figures = &report.figures;
    out.push_str("\n### Beside the peers\n\n");
    out.push_str(&markdown::peers(&figures.peers).text());
    out.push_str("\n### Beside the papers\n\n");
    out.push_str(&markdown::rows(&figures.rows).text());
    if !report.scaling.is_empty() {
        out.push_str("\n### 1 to N engines\n\n| what | engines | MB/s | spread |\n");
        out.push_str("|---|---:|---:|---:|\n");
    }
    for point in &report.scaling {
        let (name, engines) = (&point.name, point.engines);
        let spread = percent(point.spread);
        out.push_str(&format!(
            "| {name} | {engines} | {:.0} | {spread} |\n",
            point.mb_s
        ));
    }
    for failure in &figures.failures {
        out.push_str(&format!("\n**Failed:** {failure}\n"));
    }
    out
}
