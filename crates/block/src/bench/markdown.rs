//! A run as Markdown tables, ready for `docs/results`.
//!
//! Why here: figures are pasted, not retyped. Must stay true: losses are printed like wins.
//! Pure. Source: own.

use super::report::Report;
use sidecore_measure::markdown::{self, Head};
use sidecore_measure::stats::percent;

/// The whole report.
#[must_use]
pub fn render(report: &Report) -> String {
    let head = Head {
        machine: &report.machine,
        quick: report.quick.then_some("small inputs and few rounds"),
        method: &report.method,
        placement: &report.placement,
        inputs: &report.inputs,
        seconds: report.seconds,
    };
    let mut out = head.text();
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
    out.push_str(&markdown::failures(&figures.failures));
    out
}
