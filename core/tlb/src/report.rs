//! Report of a run.
//!
//! Why here: the command prints it, scripts read it as JSON. Must stay true: the keys
//! `levels[]{path page_bytes entries penalty_cycles confidence corroborated}` and
//! `effective_granule_bytes{}` keep their names.

use crate::access::{Pages, Path};
use crate::cpuid::CpuidLevel;
use crate::curve::Curve;
use crate::detect::Knee;
use crate::sets::Indexing;
use serde::Serialize;
use sidecore_bare::width::ToU64;
use sidecore_engine::page_advice::PageAdvice;
use sidecore_measure::Machine;
use std::collections::BTreeMap;

/// Everything that a run measured and found.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// The machine.
    pub machine: Machine,
    /// True if it was a quick run.
    pub quick: bool,
    /// The core that measured.
    pub core: usize,
    /// Every level found, by path and pages.
    pub levels: Vec<Level>,
    /// Steps that are too unclear to be called levels: less sure than `SURE_MIN`.
    pub unclear: Vec<Level>,
    /// The levels for loads from 4 KiB pages as the processor describes them; empty where it does
    /// not.
    pub cpuid: Vec<CpuidLevel>,
    /// For each size of pages, how much one translation really covers: less than the page where a
    /// host backs it by smaller ones. No entry where no level was found that could show it.
    pub effective_granule_bytes: BTreeMap<String, usize>,
    /// Pages that the machine does not have, as it is set.
    pub missing: Vec<Missing>,
    /// Cost of the first DMA to and from untouched memory.
    pub(crate) first_use: Vec<FirstUse>,
    /// The document's figures next to ours.
    pub rows: Vec<Row>,
    /// Conclusions for the user of this machine, one sentence each.
    pub meaning: Vec<String>,
    /// Figures for choosing page sizes on this machine.
    pub learned: PageAdvice,
    /// Every curve.
    #[serde(skip)]
    pub curves: Vec<Measured>,
    /// Duration in seconds.
    pub seconds: f64,
}

/// One level, as one path over one kind of pages sees it.
#[derive(Debug, Clone, Serialize)]
pub struct Level {
    /// Access path: `load`, `dma-copy`, `dma-borrow`.
    pub path: &'static str,
    /// Bytes of the requested pages.
    pub page_bytes: usize,
    /// Kind of pages, in words.
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
    /// Confidence from 0 to 1.
    pub confidence: f64,
    /// True if the processor's counters give the same penalty.
    pub corroborated: bool,
    /// Counter that corroborates it, or the reason why none does.
    pub(crate) corroboration: Option<Corroboration>,
    /// Indexing (sets and ways), if it was measured and recognised.
    pub(crate) indexing: Option<Indexing>,
    /// The step itself.
    #[serde(skip)]
    pub(crate) knee: Knee,
}

/// Check of a level's penalty by the processor's event counters.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Corroboration {
    /// True if the counted misses give the same penalty within a tenth.
    pub corroborated: bool,
    /// Cycles per counted miss, where there were any.
    pub penalty_cycles: Option<f64>,
    /// Name of the counter, or the reason why there is none.
    pub how: String,
}

impl Corroboration {
    /// No corroboration, for this reason.
    #[must_use]
    pub(crate) fn none(reason: impl std::fmt::Display) -> Self {
        Self {
            corroborated: false,
            penalty_cycles: None,
            how: format!("uncorroborated: {reason}"),
        }
    }
}

/// A measured curve with its conditions.
#[derive(Debug, Clone)]
pub struct Measured {
    /// Access path.
    pub path: Path,
    /// Kind of pages.
    pub pages: Pages,
    /// `near`: a line for each node, in the nearest cache; `far`: few lines, in the next one.
    pub layout: &'static str,
    /// Bytes between neighbours.
    pub stride_bytes: usize,
    /// The points.
    pub curve: Curve,
    /// The steps in it that count.
    pub(crate) knees: Vec<Knee>,
    /// True if the curve still rises at its end.
    pub rises_at_end: bool,
}

/// Reason why the machine has no memory of a kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// Kind of pages.
    pub pages: &'static str,
    /// Reason, in words.
    pub reason: String,
    /// Command that would provide them.
    pub command: String,
}

/// One kind of first use.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct FirstUse {
    /// Description of the operation.
    pub name: &'static str,
    /// Nanoseconds, memory touched before.
    pub touched_ns: f64,
    /// Nanoseconds, memory not touched before.
    pub untouched_ns: f64,
}

impl FirstUse {
    /// Ratio of the untouched time to the touched one.
    #[must_use]
    pub(crate) fn factor(&self) -> f64 {
        self.untouched_ns / self.touched_ns.max(1.0)
    }
}

/// A figure of the document next to ours.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// Name of the figure.
    pub name: &'static str,
    /// The document's figure.
    pub paper: f64,
    /// This machine's figure, if it could be measured.
    pub here: Option<f64>,
    /// The unit of both.
    pub unit: &'static str,
    /// Remark for the reader.
    pub note: &'static str,
}

impl Report {
    /// The levels that the processor describes, each with the measured one that is nearest, if any
    /// is within a factor of 1.5: for loads from aliased 4 KiB pages.
    pub fn beside_cpuid(&self) -> impl Iterator<Item = (&CpuidLevel, Option<&Level>)> {
        self.cpuid.iter().map(|said| {
            let off = |level: &Level| (level.entries as f64 / said.entries as f64).ln().abs();
            let levels = self.levels.iter().filter(|level| {
                level.path == Path::Load.name()
                    && level.pages == Pages::SmallAliased.name()
                    && off(level) < BESIDE_FACTOR.ln()
            });
            let nearest = levels.min_by(|a, b| off(a).total_cmp(&off(b)));
            (said, nearest)
        })
    }

    /// All points as TSV, one a line, below a header that describes the machine.
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

/// Least confidence of a level. Below it a run says that something is there, not where.
pub(crate) const SURE_MIN: f64 = 0.5;
const BESIDE_FACTOR: f64 = 1.5;

/// Bytes with a binary unit: `288 KiB`, `12 MiB`.
#[must_use]
pub fn bytes(count: usize) -> String {
    sidecore_sys::text::bytes(count.to_u64())
}
