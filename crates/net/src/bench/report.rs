//! What a run of the bench comes to.
//!
//! Why here: the command prints it, scripts read it as JSON, `docs/results` is filled from it.
//! Must stay true: the keys `rows[]{name paper here unit}` and
//! `peers[]{name metric here peer ratio spread}` keep their names; a figure without its spread and
//! rounds is not in here.

use serde::Serialize;
use sidecore_measure::Figures;
use sidecore_measure::report::tsv;
use sidecore_measure::stats::Series;
use sidecore_sys::Machine;

/// A whole run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Where it ran.
    pub machine: Machine,
    /// Whether rounds were few and short: a taste, not a result.
    pub quick: bool,
    /// Rounds asked for.
    pub rounds: usize,
    /// Which thread ran where.
    pub placement: String,
    /// How often was measured, and how.
    pub method: String,
    /// Our figures beside the paper's and the peers', what went wrong, every sample.
    #[serde(flatten)]
    pub figures: Figures,
    /// Our figures over something that is varied.
    pub curves: Vec<Curve>,
    /// How long it all took.
    pub seconds: f64,
}

/// One of our figures, over something that is varied.
#[derive(Debug, Clone, Serialize)]
pub struct Curve {
    /// The group that measured it.
    pub group: &'static str,
    /// Curves of one chart are drawn together.
    pub chart: &'static str,
    /// What it is.
    pub name: String,
    /// What is varied, with its unit.
    pub over: &'static str,
    /// The unit of the figures.
    pub unit: &'static str,
    /// In the order in which they are drawn.
    pub points: Vec<Point>,
    /// What the paper reports: where, and how much.
    pub paper: Option<(f64, f64)>,
}

/// A point of a [`Curve`].
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Point {
    /// Where.
    pub at: f64,
    /// The median.
    pub here: f64,
    /// Largest less smallest, divided by the median.
    pub spread: f64,
    /// Rounds measured.
    pub rounds: usize,
}

impl Point {
    /// What was measured at `at`.
    pub(super) fn new(at: f64, series: &Series) -> Self {
        Self {
            at,
            here: series.median(),
            spread: series.spread(),
            rounds: series.rounds(),
        }
    }
}

impl Report {
    pub(super) fn new(machine: Machine, rounds: usize, quick: bool, placement: String) -> Self {
        Self {
            machine,
            quick,
            rounds,
            placement,
            method: format!(
                "{rounds} rounds; in each round all contestants run one after another, beginning \
                 with another one each time; a ratio is the median of the rounds' ratios"
            ),
            figures: Figures::default(),
            curves: Vec::new(),
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
