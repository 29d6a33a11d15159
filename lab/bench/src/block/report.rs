//! The result of a run of the bench.
//!
//! Why here: the command prints it, scripts read it as JSON, `docs/results` is filled from it.
//! Must stay true: the keys `rows[]{name paper here unit}` and
//! `peers[]{name metric here peer ratio spread}` keep their names; a figure without its spread and
//! rounds is not in here.

use crate::frame::{Head, Reported};
use crate::measure::Figures;
use serde::Serialize;

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

    /// Every sample, one a line, under the head.
    #[must_use]
    pub fn tsv(&self) -> String {
        self.head.tsv(&self.figures.samples)
    }
}

impl Reported for Report {
    fn parts(&mut self) -> (&mut Head, &mut Figures) {
        (&mut self.head, &mut self.figures)
    }
}
