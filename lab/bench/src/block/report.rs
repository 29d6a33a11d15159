//! The result of a run of the bench.
//!
//! Why here: the command prints it, scripts read it as JSON, `docs/results` is filled from it.
//! Must stay true: the keys `rows[]{name paper here unit}` and
//! `peers[]{name metric here peer ratio spread}` keep their names; a figure without its spread and
//! rounds is not in here.

use crate::frame::{Head, Reported, text};
use crate::measure::stats::percent;
use crate::measure::{Figures, markdown};
use serde::Serialize;
use sidecore_terminal::Text;

/// A whole run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Circumstances of the run.
    #[serde(flatten)]
    pub head: Head,
    /// Our figures, the papers' and the peers', failures, every sample.
    #[serde(flatten)]
    pub figures: Figures,
    /// Our figures for 1 to N engines.
    pub scaling: Vec<Scaling>,
}

/// Throughput with some engines.
#[derive(Debug, Clone, Serialize)]
pub struct Scaling {
    /// The input and its path, in process or over NBD.
    pub name: String,
    /// Engines.
    pub engines: usize,
    /// Median throughput.
    pub mb_s: f64,
    /// Largest less smallest, divided by the median.
    pub spread: f64,
    /// Rounds measured.
    pub rounds: usize,
}

impl Report {
    pub(super) fn new(mut head: Head) -> Self {
        head.placement = format!(
            "engines are pinned, one to each of the {} cores, in turn; servers, clients, the \
             kernel's threads and the peers go where the scheduler puts them, on the same \
             cores; the two LZO1X programs run on the last core",
            head.machine.cores
        );
        Self {
            head,
            figures: Figures::default(),
            scaling: Vec::new(),
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
