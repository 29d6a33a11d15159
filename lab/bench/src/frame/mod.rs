//! The frame of every bench: groups, interleaved rounds that are repeated when they are noisy, and
//! a report with head, figures and raw samples.
//! - [`Frame`]: a run in progress; each service's `Bench` holds one and adds its own state.
//! - [`Head`]: machine, load, commit, placement of threads, foreign load: the same keys in every
//!   report, and the first lines of every TSV file.
//!   report, and the first lines of every TSV file.
//! - [`Group`]: a set of measurements that can be asked for alone.
//! - [`BenchError`]: one error for all benches.
//! - [`text`], [`picture`]: a report's figures for people.
//!
//! Must stay true: a candidate that fails is out, with the reason in the report, and the others
//! continue; `Interrupted` and a lack of space end the run. Medians, ratios and spreads are
//! `measure`'s. Called from one thread. Source: own.

mod error;
mod group;
mod head;
pub(crate) mod picture;
pub(crate) mod text;

pub use error::BenchError;
pub(crate) use error::{from_service, interrupted};
pub(crate) use group::{Group, Service};
pub use head::Measured;
pub(crate) use head::{Head, Reported};

use crate::measure::Row;
use crate::measure::interleave::{self, Collected, Judge};
use crate::measure::quiet::QuietRounds;
use crate::measure::report::Comparison;
use crate::measure::stats::Series;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// A run in progress.
pub struct Frame<'a, R> {
    /// Filled while the run goes on.
    pub(crate) report: R,
    /// Rounds of each comparison.
    pub(crate) rounds: usize,
    /// Raised when the run is to end.
    pub(crate) cancel: Arc<AtomicBool>,
    /// The group that is running.
    pub(crate) group: &'static str,
    quick: bool,
    progress: &'a mut dyn FnMut(&str),
    began: Instant,
    /// A quick run that took longer goes on with one round each.
    quick_time: Duration,
}

impl<'a, R: Reported> Frame<'a, R> {
    /// Begins a run. `report` holds its head already; `progress` gets a line now and then.
    pub(crate) fn new(
        mut report: R,
        cancel: Arc<AtomicBool>,
        quick_time: Duration,
        progress: &'a mut dyn FnMut(&str),
    ) -> Self {
        let head = report.parts().0;
        let (rounds, quick) = (head.rounds, head.quick);
        Self {
            report,
            rounds,
            quick,
            cancel,
            group: "",
            progress,
            began: Instant::now(),
            quick_time,
        }
    }

    /// Ends the run and returns its report.
    pub(crate) fn end(mut self) -> R {
        self.report.parts().0.seconds = self.began.elapsed().as_secs_f64();
        self.report
    }

    /// A group begins.
    pub(crate) fn begin_group(&mut self, name: &'static str) {
        self.group = name;
        self.say("starting");
    }

    /// A group ended. Its failure is in the report unless it ends the whole run.
    ///
    /// # Errors
    /// [`BenchError::Interrupted`], [`BenchError::Space`].
    pub(crate) fn end_group(&mut self, result: Result<(), BenchError>) -> Result<(), BenchError> {
        match result {
            Ok(()) => {}
            Err(error) if error.ends_the_run() => return Err(error),
            Err(BenchError::Missing(reason)) => self.missing("the group", self.group, &reason),
            Err(error) => self.failed(&error),
        }
        self.check()
    }

    /// Reports progress.
    pub(crate) fn say(&mut self, what: &str) {
        let seconds = self.began.elapsed().as_secs();
        (self.progress)(&format!("{seconds:4} s  {}: {what}", self.group));
    }

    /// True if few and short rounds are wanted.
    pub(crate) fn quick(&self) -> bool {
        self.quick
    }

    /// One of two, as the run is quick or not.
    pub(crate) fn choose<T>(&self, quick: T, full: T) -> T {
        if self.quick() { quick } else { full }
    }

    /// Continues unless the run was cancelled.
    ///
    /// # Errors
    /// [`BenchError::Interrupted`].
    pub(crate) fn check(&self) -> Result<(), BenchError> {
        interrupted(&self.cancel)
    }

    /// Interleaves candidates for `rounds` rounds, every round beginning with another one, and
    /// keeps the samples: several values a round, named by `metrics`. A noisy round is repeated: at
    /// most as often as `rounds`, in all of a quick run once. `before` is called before each turn.
    /// A candidate that fails is out (none), with the reason in the report.
    ///
    /// # Errors
    /// [`BenchError::Interrupted`], or what `before` gave.
    pub(crate) fn interleave<X: ?Sized>(
        &mut self,
        metrics: &[(&str, &'static str)],
        rounds: usize,
        shared: &X,
        candidates: &mut [interleave::Candidate<'_, X, BenchError>],
        mut before: impl FnMut() -> Result<(), BenchError>,
    ) -> Result<Vec<Option<Vec<Series>>>, BenchError> {
        let head = metrics.first().map_or("", |(metric, _)| *metric);
        self.say(head);
        let (began, quick, quick_time) = (self.began, self.quick(), self.quick_time);
        let cancel = Arc::clone(&self.cancel);
        let before = |round, _| {
            interrupted(&cancel)?;
            before()?;
            // A smoke run may not take longer because the machine is busy.
            Ok(round == 0 || !quick || began.elapsed() <= quick_time)
        };
        let ends = |error: &BenchError| matches!(error, BenchError::Interrupted);
        let repeats_max = self.repeats_max(rounds);
        let noise = &mut self.report.parts().0.noise;
        let mut judge = QuietRounds::new(noise, repeats_max);
        let count = metrics.len();
        let all = interleave::run(rounds, count, shared, candidates, before, ends, &mut judge)?;
        let collected = Collected::of(self.group, metrics, all);
        self.report.parts().1.samples.extend(collected.samples);
        for (name, error) in collected.out {
            match error {
                BenchError::Missing(reason) => self.missing(&name, head, &reason),
                error => self.failed(&error),
            }
        }
        Ok(collected.series)
    }

    /// Measures something alone, without a peer, `rounds` times; noisy rounds are repeated as in
    /// [`Self::interleave`].
    ///
    /// # Errors
    /// [`BenchError::Interrupted`], or an error of `one`, which gets the round from 0.
    pub(crate) fn each_round<T>(
        &mut self,
        mut one: impl FnMut(usize) -> Result<T, BenchError>,
    ) -> Result<Vec<T>, BenchError> {
        let repeats_max = self.repeats_max(self.rounds);
        let noise = &mut self.report.parts().0.noise;
        let mut judge = QuietRounds::new(noise, repeats_max);
        let mut all = Vec::with_capacity(self.rounds);
        while all.len() < self.rounds {
            interrupted(&self.cancel)?;
            judge.begin();
            let result = one(all.len())?;
            if judge.keep() {
                all.push(result);
            }
        }
        Ok(all)
    }

    /// Repeats that a comparison of `rounds` rounds may have: as many, and one in all of a quick
    /// run.
    fn repeats_max(&mut self, rounds: usize) -> usize {
        match self.quick {
            true => 1_usize.saturating_sub(self.report.parts().0.noise.rounds_repeated),
            false => rounds,
        }
    }

    /// Puts a comparison into the report, where both were measured.
    pub(crate) fn compare(
        &mut self,
        what: &Comparison<'_>,
        here: Option<&Series>,
        there: Option<&Series>,
    ) {
        if let (Some(here), Some(there)) = (here, there) {
            self.report.parts().1.compare(what, here, there);
        }
    }

    /// Puts one of our own figures into the report, with the papers' figure where there is one.
    pub(crate) fn row(
        &mut self,
        name: impl Into<String>,
        paper: Option<f64>,
        here: &Series,
        unit: &'static str,
    ) -> &mut Row {
        let group = self.group;
        self.report.parts().1.row(group, name, paper, here, unit)
    }

    /// Records that something could not be measured because this machine lacks it.
    pub(crate) fn missing(&mut self, name: &str, metric: &str, reason: &str) {
        self.say(&format!("not measured: {reason}"));
        let group = self.group;
        self.report.missing(group, name, metric, reason);
    }

    /// Records that a measurement failed: the run's exit status is 1.
    pub(crate) fn failed(&mut self, error: &BenchError) {
        self.say(&format!("failed: {error}"));
        let line = format!("{}: {error}", self.group);
        self.report.parts().1.failures.push(line);
    }
}

/// The first of each candidate's series, for comparisons of one metric.
pub(crate) fn only(all: Vec<Option<Vec<Series>>>) -> Vec<Option<Series>> {
    let first = |series: Option<Vec<Series>>| series?.into_iter().next();
    all.into_iter().map(first).collect()
}

/// Largest number of rounds; more would take hours.
pub const ROUNDS_MAX: usize = 101;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Figures;
    use std::path::Path;

    struct Plain {
        head: Head,
        figures: Figures,
    }

    impl Reported for Plain {
        fn parts(&mut self) -> (&mut Head, &mut Figures) {
            (&mut self.head, &mut self.figures)
        }
    }

    fn frame(progress: &mut dyn FnMut(&str)) -> Frame<'_, Plain> {
        let report = Plain {
            head: Head::new(Path::new("/nonexistent"), true, Some(3)),
            figures: Figures::default(),
        };
        Frame::new(report, Arc::default(), Duration::from_secs(60), progress)
    }

    #[test]
    fn a_candidate_that_fails_is_out_and_the_report_says_why() {
        let mut progress = |_: &str| {};
        let mut frame = frame(&mut progress);
        frame.begin_group("g");
        let mut candidates = [
            interleave::Candidate::of_one("fine", |(): &()| Ok(2.0)),
            interleave::Candidate::of_one("absent", |(): &()| {
                Err(BenchError::Missing("not here".into()))
            }),
            interleave::Candidate::of_one("broken", |(): &()| {
                Err(BenchError::Wrong("oh dear".into()))
            }),
        ];
        let rounds = frame.rounds;
        let series = frame.interleave(&[("m", "s")], rounds, &(), &mut candidates, || Ok(()));
        let series = only(series.unwrap());
        assert_eq!(series[0].as_ref().unwrap().rounds(), 3);
        assert!(series[1].is_none() && series[2].is_none());
        let report = frame.end();
        assert_eq!(report.figures.peers[0].note, "not measured: not here");
        assert_eq!(report.figures.failures, ["g: oh dear"]);
        assert_eq!(report.figures.samples.len(), 3);
    }

    #[test]
    fn interruption_and_lack_of_space_end_the_run_and_nothing_else_does() {
        let mut progress = |_: &str| {};
        let mut frame = frame(&mut progress);
        assert!(frame.end_group(Err(BenchError::Wrong("w".into()))).is_ok());
        assert!(
            frame
                .end_group(Err(BenchError::Missing("m".into())))
                .is_ok()
        );
        assert!(frame.end_group(Err(BenchError::Interrupted)).is_err());
        let space = BenchError::Space {
            directory: "/".into(),
            needed_bytes: 2,
            free_bytes: 1,
        };
        assert!(frame.end_group(Err(space)).is_err());
        // Relaxed: a flag alone.
        frame
            .cancel
            .store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(frame.end_group(Ok(())).is_err());
    }

    #[test]
    fn samples_stand_under_machine_load_commit_placement_and_foreign_load() {
        let mut head = Head::new(Path::new("/nonexistent"), true, None);
        head.placement = "all on core 0".into();
        let text = head.tsv(&[]);
        for line in [
            "# machine: ",
            "# load average",
            "# commit: ",
            "# placement: all on core 0",
        ] {
            assert!(text.contains(line), "{line} is not in {text}");
        }
        assert!(
            text.contains("# foreign load: quiet; rounds repeated: 0"),
            "{text}"
        );
        let json = serde_json::to_value(&head).unwrap();
        assert_eq!(json["rounds_repeated"], 0);
        assert_eq!(json["noisy"], false);
    }
}
