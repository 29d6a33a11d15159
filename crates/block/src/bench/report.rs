//! What a run of the bench comes to.
//!
//! Why here: the command prints it, scripts read it as JSON, `docs/results` is filled from it.
//! Must stay true: the keys `rows[]{name paper here unit}` and
//! `peers[]{name metric here peer ratio spread}` keep their names; a figure without its spread and
//! rounds is not in here.

use serde::Serialize;
use sidecore_measure::Figures;
use sidecore_measure::report::tsv;
use sidecore_sys::Machine;

/// A whole run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Where it ran.
    pub machine: Machine,
    /// Whether inputs were small and rounds few: a taste, not a result.
    pub quick: bool,
    /// Rounds asked for.
    pub rounds: usize,
    /// Which thread ran where.
    pub placement: String,
    /// How often was measured, and in which state the caches were.
    pub method: String,
    /// What was read.
    pub inputs: Vec<String>,
    /// Our figures beside the papers' and the peers', what went wrong, every sample.
    #[serde(flatten)]
    pub figures: Figures,
    /// Our figures for 1 to N engines.
    pub scaling: Vec<Scaling>,
    /// How long it all took.
    pub seconds: f64,
}

/// Throughput with some engines.
#[derive(Debug, Clone, Serialize)]
pub struct Scaling {
    /// What was read, and how.
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
    pub(super) fn new(machine: Machine, rounds: usize, quick: bool) -> Self {
        Self {
            placement: format!(
                "engines are pinned, one to each of the {} cores, in turn; servers, clients, the \
                 kernel's threads and the peers go where the scheduler puts them, on the same \
                 cores; the two LZO1X programs run on the last core",
                machine.cores
            ),
            method: format!(
                "{rounds} rounds; in each round all contestants run one after another, beginning \
                 with another one each time; a ratio is the median of the rounds' ratios"
            ),
            machine,
            quick,
            rounds,
            inputs: Vec::new(),
            figures: Figures::default(),
            scaling: Vec::new(),
            seconds: 0.0,
        }
    }

    /// Every sample, one a line: group, metric, name, round, value, unit; the machine on top.
    #[must_use]
    pub fn tsv(&self) -> String {
        let mut heads = self.machine.lines();
        heads.push(format!("placement: {}", self.placement));
        tsv(heads.iter().map(String::as_str), &self.figures.samples)
    }
}
