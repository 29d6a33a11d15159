//! A run as Markdown tables, ready for `docs/results`.
//!
//! Why here: figures are pasted, not retyped. Must stay true: losses are printed like wins.
//! Pure. Source: own.

use super::report::Report;
use crate::frame::text;
use crate::measure::markdown;
use crate::measure::stats::percent;
use sidecore_terminal::Text;

/// The whole report.
#[must_use]
pub fn render(report: &Report) -> String {
    let mut out = report.head.markdown("small inputs and few rounds");
    let figures = &report.figures;
    out.push_str("\n### Beside the peers\n\n");
    out.push_str(&markdown::peers(&figures.peers).markdown());
    out.push_str("\n### Beside the papers\n\n");
    out.push_str(&markdown::rows(&figures.rows).markdown());
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

/// The whole report for the terminal.
#[must_use]
pub fn people(report: &Report) -> Text {
    let mut out = text::head(&report.head, "small inputs and few rounds");
    text::figures(&mut out, &report.figures);
    if !report.scaling.is_empty() {
        out.line("");
        out.line("1 to N engines");
    }
    for point in &report.scaling {
        let (name, engines, mb_s) = (&point.name, point.engines, point.mb_s);
        let plural = if engines == 1 { "" } else { "s" };
        out.line(format!(
            "  {name}: {engines} engine{plural}, {mb_s:.0} MB/s"
        ));
    }
    text::failures(&mut out, &report.figures);
    out
}
