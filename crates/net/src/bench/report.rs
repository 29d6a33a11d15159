//! What a run of the bench comes to.
//!
//! Why here: the command prints it, scripts read it as JSON, `docs/results` is filled from it.
//! Must stay true: the keys `rows[]{name paper here unit}` and
//! `peers[]{name metric here peer ratio spread}` keep their names; a figure without its spread and
//! rounds is not in here.

use serde::Serialize;
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
    /// Our figures, beside the papers'.
    pub rows: Vec<Row>,
    /// Our figures, beside the peers'.
    pub peers: Vec<Peer>,
    /// Our figures for 1 to N engines.
    pub scaling: Vec<Scaling>,
    /// What ran and went wrong.
    pub failures: Vec<String>,
    /// How long it all took.
    pub seconds: f64,
    /// Every sample, for the TSV file.
    #[serde(skip)]
    pub samples: Vec<Sample>,
}

/// Which direction is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// More is better.
    Higher,
    /// Less is better.
    Lower,
}

/// One of our figures.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The group that measured it.
    pub group: &'static str,
    /// What it is.
    pub name: String,
    /// The papers' figure (with one SPE where they have that), where they have one.
    pub paper: Option<f64>,
    /// This machine's: the median.
    pub here: Option<f64>,
    /// The unit of both.
    pub unit: &'static str,
    /// Largest less smallest, divided by the median.
    pub spread: f64,
    /// Rounds measured.
    pub rounds: usize,
    /// What this project wants of `here`.
    pub target: Option<f64>,
    /// Whether it is so.
    pub met: Option<bool>,
    /// Which direction is better.
    pub better: Better,
    /// The papers' other machines, and whatever else one must know.
    pub note: String,
}

impl Row {
    /// Adds what must be known.
    pub(super) fn note(&mut self, note: impl Into<String>) -> &mut Self {
        self.note = note.into();
        self
    }

    /// Adds what the project wants.
    pub(super) fn target(&mut self, better: Better, target: f64) -> &mut Self {
        self.better = better;
        self.target = Some(target);
        self.met = self.here.map(|here| match better {
            Better::Higher => here >= target,
            Better::Lower => here <= target,
        });
        self
    }
}

/// One of our figures beside a peer's, measured in turns.
#[derive(Debug, Clone, Serialize)]
pub struct Peer {
    /// The group that measured it.
    pub group: &'static str,
    /// The peer.
    pub name: String,
    /// What was measured.
    pub metric: String,
    /// Our median; none where it could not be measured, and `note` says why.
    pub here: Option<f64>,
    /// The peer's median.
    pub peer: Option<f64>,
    /// The median of the rounds' ratios, `here` divided by `peer`.
    pub ratio: Option<f64>,
    /// Largest ratio less smallest, divided by the median.
    pub spread: Option<f64>,
    /// The unit of `here` and `peer`.
    pub unit: &'static str,
    /// Rounds measured.
    pub rounds: usize,
    /// Which direction is better.
    pub better: Better,
    /// What this project wants of `ratio`; none where the comparison is information only.
    pub target: Option<f64>,
    /// Whether it is so.
    pub met: Option<bool>,
    /// Whatever else one must know.
    pub note: String,
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

/// One sample.
#[derive(Debug, Clone)]
pub struct Sample {
    /// The group that took it.
    pub group: &'static str,
    /// What was measured.
    pub metric: String,
    /// Who was measured.
    pub name: String,
    /// In which round, from 0.
    pub round: usize,
    /// The sample.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
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
            rows: Vec::new(),
            peers: Vec::new(),
            scaling: Vec::new(),
            failures: Vec::new(),
            seconds: 0.0,
            samples: Vec::new(),
        }
    }

    /// Every sample, one a line: group, metric, name, round, value, unit; the machine on top.
    #[must_use]
    pub fn tsv(&self) -> String {
        let mut out = String::new();
        for line in self.machine.lines() {
            out.push_str(&format!("# {line}\n"));
        }
        out.push_str(&format!("# placement: {}\n", self.placement));
        out.push_str("group\tmetric\tname\tround\tvalue\tunit\n");
        for sample in &self.samples {
            out.push_str(&format!(
                "{}\t{}\t{}\t{}\t{}\t{}\n",
                sample.group, sample.metric, sample.name, sample.round, sample.value, sample.unit
            ));
        }
        out
    }
}
