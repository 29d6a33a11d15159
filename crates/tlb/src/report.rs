//! What a run comes to.
//!
//! Why here: the command prints it, scripts read it as JSON. Must stay true: the keys
//! `levels[]{path page_bytes entries penalty_cycles confidence corroborated}` and
//! `effective_granule_bytes{}` keep their names.

use crate::curve::Curve;
use crate::detect::Knee;
use crate::measure::{Corroboration, FirstUse, Missing, Pages, Path};
use crate::sets::Indexing;
use serde::Serialize;
use sidecore_engine::learned::Learned;
use sidecore_sys::Machine;
use std::collections::BTreeMap;

/// A whole run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Where it ran.
    pub machine: Machine,
    /// Whether it was a quick run.
    pub quick: bool,
    /// The core that measured.
    pub core: usize,
    /// Every level found, by path and pages.
    pub levels: Vec<Level>,
    /// For each size of pages, how much one translation really covers: less than the page where a
    /// host backs it by smaller ones. No entry where no level was found that could show it.
    pub effective_granule_bytes: BTreeMap<String, usize>,
    /// Pages that the machine does not have, as it is set.
    pub missing: Vec<Missing>,
    /// What the first DMA costs.
    pub first_use: Vec<FirstUse>,
    /// The document's figures beside ours.
    pub rows: Vec<Row>,
    /// What all this means.
    pub meaning: Vec<String>,
    /// What memory should be made like.
    pub learned: Learned,
    /// Every curve.
    #[serde(skip)]
    pub curves: Vec<Measured>,
    /// How long it took.
    pub seconds: f64,
}

/// One level, as one path over one kind of pages sees it.
#[derive(Debug, Clone, Serialize)]
pub struct Level {
    /// Who accesses: `load`, `dma-copy`, `dma-borrow`.
    pub path: &'static str,
    /// Bytes of the pages that were asked for.
    pub page_bytes: usize,
    /// Which pages, in words.
    pub pages: &'static str,
    /// 1 for the first level of its path and pages.
    pub level: usize,
    /// Translations that it holds.
    pub entries: usize,
    /// Bytes that these cover, at the effective granule.
    pub reach_bytes: usize,
    /// Cycles per access when it hits.
    pub base_cycles: f64,
    /// Cycles that a miss costs more.
    pub penalty_cycles: f64,
    /// How sure it is, from 0 to 1.
    pub confidence: f64,
    /// Whether the processor's counters give the same penalty.
    pub corroborated: bool,
    /// By what, or why not.
    pub corroboration: Option<Corroboration>,
    /// How it finds an entry, where that was looked for and seen.
    pub indexing: Option<Indexing>,
    /// The step itself.
    #[serde(skip)]
    pub knee: Knee,
}

/// A curve, and what it is of.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Who accessed.
    pub path: Path,
    /// Which pages.
    pub pages: Pages,
    /// `near` or `far`: see [`crate::chain::Layout`].
    pub layout: &'static str,
    /// Bytes between neighbours.
    pub stride_bytes: usize,
    /// The points.
    pub curve: Curve,
    /// The steps in it, as far as they count.
    pub knees: Vec<Knee>,
    /// Whether it still rises at the end.
    pub rises_at_end: bool,
}

/// A figure of the document beside ours.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// What it is.
    pub name: &'static str,
    /// The document's.
    pub paper: f64,
    /// This machine's, where it could be had.
    pub here: Option<f64>,
    /// The unit of both.
    pub unit: &'static str,
    /// What one must know.
    pub note: &'static str,
}

impl Report {
    /// Every point, one a line, the machine on top.
    #[must_use]
    pub fn tsv(&self) -> String {
        let mut out = String::new();
        for line in self.machine.lines() {
            out.push_str(&format!("# {line}\n"));
        }
        out.push_str(
            "path\tpages_of\tlayout\tstride_bytes\tpages\tcycles\tcycles_fifth\twindows\n",
        );
        for measured in &self.curves {
            for point in measured.curve.points() {
                out.push_str(&format!(
                    "{}\t{}\t{}\t{}\t{}\t{:.3}\t{:.3}\t{}\n",
                    measured.path.name(),
                    measured.pages.name(),
                    measured.layout,
                    measured.stride_bytes,
                    point.pages,
                    point.cycles,
                    point.cycles_fifth,
                    point.windows
                ));
            }
        }
        out
    }
}

/// Bytes for people: `288 KiB`, `12 MiB`.
#[must_use]
pub fn bytes(count: usize) -> String {
    sidecore_measure::stats::bytes(count as u64)
}
