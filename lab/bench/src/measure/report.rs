//! Figures as they are reported: next to a paper's, next to a peer's, and every sample.
//!
//! Why here: scripts read these keys from every bench, so all benches use the same ones. Must stay
//! true: the keys `rows[]{name paper here unit}` and `peers[]{name metric here peer ratio spread}`
//! keep their names. Every figure has its spread and rounds. A value that could not be measured has
//! a line with the reason.
//! Pure. Source: own.
//!
//! ```
//! use sidecore_bench::measure::report::{Better, Comparison, Figures};
//! use sidecore_bench::measure::stats::Series;
//!
//! let mut figures = Figures::default();
//! let what = Comparison {
//!     group: "trips",
//!     name: "a channel",
//!     metric: "there and back",
//!     unit: "ns",
//!     better: Better::Lower,
//!     target: Some(0.5),
//!     note: "",
//! };
//! let (here, there) = (vec![100.0, 110.0, 105.0], vec![270.0, 260.0, 280.0]);
//! figures.compare(&what, &Series::new(here), &Series::new(there));
//! let peer = &figures.peers[0];
//! assert_eq!((peer.here, peer.met), (Some(105.0), Some(true)));
//! ```

use super::stats::{Outcome, Series};
use serde::Serialize;

/// The better direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// More is better.
    Higher,
    /// Less is better.
    Lower,
}

impl Better {
    /// True where `value` is at least as good as `target`.
    #[must_use]
    pub fn holds(self, value: f64, target: f64) -> bool {
        match self {
            Self::Higher => value >= target,
            Self::Lower => value <= target,
        }
    }
}

/// One of our figures.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The group that measured it.
    pub group: &'static str,
    /// Its name.
    pub name: String,
    /// The papers' figure (with one SPE, if they have that), if any.
    pub paper: Option<f64>,
    /// This machine's: the median.
    pub here: Option<f64>,
    /// The unit of both.
    pub unit: &'static str,
    /// Largest less smallest, divided by the median.
    pub spread: f64,
    /// Rounds measured.
    pub rounds: usize,
    /// The target for `here`.
    pub target: Option<f64>,
    /// True where the target is met.
    pub met: Option<bool>,
    /// The better direction.
    pub better: Better,
    /// Remarks: the papers' other machines, limits of the measurement.
    pub note: String,
}

impl Row {
    /// Appends a remark.
    pub fn note(&mut self, note: impl Into<String>) -> &mut Self {
        self.note = note.into();
        self
    }

    /// Sets the project's target.
    pub fn target(&mut self, better: Better, target: f64) -> &mut Self {
        self.better = better;
        self.target = Some(target);
        self.met = self.here.map(|here| better.holds(here, target));
        self
    }
}

/// One of our figures next to a peer's, interleaved with it.
#[derive(Debug, Clone, Serialize)]
pub struct Peer {
    /// The group that measured it.
    pub group: &'static str,
    /// The peer.
    pub name: String,
    /// The measured quantity.
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
    /// The better direction.
    pub better: Better,
    /// The target for `ratio`; none where the comparison is information only.
    pub target: Option<f64>,
    /// True where the target is met.
    pub met: Option<bool>,
    /// Remarks.
    pub note: String,
}

/// One sample.
#[derive(Debug, Clone)]
pub struct Sample {
    /// The group that took it.
    pub group: &'static str,
    /// The measured quantity.
    pub metric: String,
    /// The candidate.
    pub name: String,
    /// Number of its round, from 0.
    pub round: usize,
    /// The sample.
    pub value: f64,
    /// Its unit.
    pub unit: &'static str,
}

impl Sample {
    /// One candidate's samples of one metric, from round 0 on.
    pub fn series<'s>(
        group: &'static str,
        metric: &'s str,
        name: &'s str,
        unit: &'static str,
        values: &'s [f64],
    ) -> impl Iterator<Item = Self> + 's {
        let sample = move |(round, &value): (usize, &f64)| Self {
            group,
            metric: metric.to_owned(),
            name: name.to_owned(),
            round,
            value,
            unit,
        };
        values.iter().enumerate().map(sample)
    }
}

/// A comparison with a peer.
#[derive(Debug, Clone, Copy)]
pub struct Comparison<'c> {
    /// The group that measured it.
    pub group: &'static str,
    /// The peer.
    pub name: &'c str,
    /// The measured quantity.
    pub metric: &'c str,
    /// The unit of both.
    pub unit: &'static str,
    /// The better direction.
    pub better: Better,
    /// The target for the ratio, if there is one.
    pub target: Option<f64>,
    /// Remarks.
    pub note: &'c str,
}

/// The figures that a run collects.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Figures {
    /// Our figures, next to the papers'.
    pub rows: Vec<Row>,
    /// Our figures, next to the peers'.
    pub peers: Vec<Peer>,
    /// Measurements that failed.
    pub failures: Vec<String>,
    /// Every sample, for the TSV file.
    #[serde(skip)]
    pub samples: Vec<Sample>,
}

impl Figures {
    /// Adds a comparison of two series of the same rounds.
    pub fn compare(&mut self, what: &Comparison<'_>, here: &Series, there: &Series) {
        let outcome = Outcome::of(here, there);
        // By the median ratio; the spread stands next to it for the reader.
        let met = |target| what.better.holds(outcome.ratio, target);
        self.peers.push(Peer {
            group: what.group,
            name: what.name.to_owned(),
            metric: what.metric.to_owned(),
            here: Some(outcome.here),
            peer: Some(outcome.peer),
            ratio: Some(outcome.ratio),
            spread: Some(outcome.spread),
            unit: what.unit,
            rounds: outcome.rounds,
            better: what.better,
            target: what.target,
            met: what.target.map(met),
            note: what.note.to_owned(),
        });
    }

    /// Adds one of our own figures, with the papers' if they have one.
    pub fn row(
        &mut self,
        group: &'static str,
        name: impl Into<String>,
        paper: Option<f64>,
        here: &Series,
        unit: &'static str,
    ) -> &mut Row {
        self.rows.push(Row {
            group,
            name: name.into(),
            paper,
            here: Some(here.median()),
            unit,
            spread: here.spread(),
            rounds: here.rounds(),
            // A goal is set on the returned row, where there is one.
            target: None,
            met: None,
            better: Better::Lower,
            note: String::new(),
        });
        let last = self.rows.len() - 1;
        &mut self.rows[last]
    }

    /// Records that something could not be measured because this machine lacks it.
    pub fn missing(&mut self, group: &'static str, name: &str, metric: &str, reason: &str) {
        self.peers.push(Peer {
            group,
            name: name.to_owned(),
            metric: metric.to_owned(),
            here: None,
            peer: None,
            ratio: None,
            spread: None,
            unit: "",
            rounds: 0,
            better: Better::Higher,
            target: None,
            met: None,
            note: format!("not measured: {reason}"),
        });
    }
}

/// Every sample, one a line: group, metric, name, round, value, unit; `heads` on top as comments.
#[must_use]
pub fn tsv<'h>(heads: impl IntoIterator<Item = &'h str>, samples: &[Sample]) -> String {
    let mut out = String::new();
    for head in heads {
        out.push_str(&format!("# {head}\n"));
    }
    out.push_str("group\tmetric\tname\tround\tvalue\tunit\n");
    for sample in samples {
        out.push_str(&format!(
            "{}\t{}\t{}\t{}\t{}\t{}\n",
            sample.group, sample.metric, sample.name, sample.round, sample.value, sample.unit
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_is_judged_by_the_ratio_and_its_direction() {
        let (here, there) = (Series::new(vec![30.0, 33.0]), Series::new(vec![10.0, 11.0]));
        let mut figures = Figures::default();
        let mut what = Comparison {
            group: "g",
            name: "peer",
            metric: "speed",
            unit: "Gb/s",
            better: Better::Higher,
            target: Some(2.5),
            note: "",
        };
        figures.compare(&what, &here, &there);
        what.better = Better::Lower;
        figures.compare(&what, &here, &there);
        let met: Vec<_> = figures.peers.iter().map(|peer| peer.met).collect();
        assert_eq!(met, [Some(true), Some(false)]);
        assert_eq!(figures.peers[0].ratio, Some(3.0));
        figures.missing("g", "peer", "speed", "no TAP");
        let json = serde_json::to_value(&figures.peers[2]).unwrap();
        assert!(json["ratio"].is_null());
        assert_eq!(json["note"], "not measured: no TAP");
    }

    #[test]
    fn samples_are_one_a_line_under_their_heads() {
        let mut figures = Figures::default();
        let samples = Sample::series("g", "m", "n", "us", &[1.5, 2.0]);
        figures.samples.extend(samples);
        let text = tsv(["a machine"], &figures.samples);
        assert_eq!(
            text,
            "# a machine\ngroup\tmetric\tname\tround\tvalue\tunit\n\
             g\tm\tn\t0\t1.5\tus\ng\tm\tn\t1\t2\tus\n"
        );
    }
}
