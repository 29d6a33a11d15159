//! Interleaved candidates: every round runs each of them once.
//!
//! Why here: a machine's speed changes within seconds. A candidate that always runs first, or all
//! its rounds at once, is measured at another speed than the others.
//! Must stay true: in each round every candidate runs once, and each round begins with another
//! one; one that fails is out and keeps its reason, the others go on. A round that is repeated
//! leaves no sample; repeats are bounded by the caller's [`Judge`].
//! Source: own.
//!
//! ```
//! use sidecore_bench::measure::interleave::{Candidate, KeepAll, run};
//!
//! let mut order = std::cell::RefCell::new(String::new());
//! let one = |name: &'static str| {
//!     Candidate::of_one(name, move |order: &std::cell::RefCell<String>| {
//!         order.borrow_mut().push_str(name);
//!         Ok::<_, std::io::Error>(1.0)
//!     })
//! };
//! let mut candidates = [one("a"), one("b")];
//! let go_on = |_round, _turn| Ok(true);
//! let all = run(2, 1, &order, &mut candidates, go_on, |_| false, &mut KeepAll)?;
//! assert_eq!(all[0].samples, [[1.0, 1.0]]);
//! assert_eq!(*order.get_mut(), "abba", "every round begins with another");
//! # Ok::<(), std::io::Error>(())
//! ```

use super::report::Sample;
use super::stats::Series;

/// Measures one round and returns its values, one for each metric.
type Measure<'c, X, E> = dyn FnMut(&X) -> Result<Vec<f64>, E> + 'c;

/// One of the compared candidates. `X` is the context that all of them need.
pub struct Candidate<'c, X: ?Sized, E> {
    name: String,
    measure: Box<Measure<'c, X, E>>,
}

impl<'c, X: ?Sized, E> Candidate<'c, X, E> {
    /// A candidate that gives several values a round.
    pub fn new(
        name: impl Into<String>,
        measure: impl FnMut(&X) -> Result<Vec<f64>, E> + 'c,
    ) -> Self {
        Self {
            name: name.into(),
            measure: Box::new(measure),
        }
    }

    /// A candidate that gives one value a round.
    pub fn of_one(
        name: impl Into<String>,
        mut measure: impl FnMut(&X) -> Result<f64, E> + 'c,
    ) -> Self {
        Self::new(name, move |shared| Ok(vec![measure(shared)?]))
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// A candidate's samples.
#[derive(Debug)]
pub struct Measured<E> {
    /// Its name.
    pub name: String,
    /// Its samples: for each metric, one a round.
    pub samples: Vec<Vec<f64>>,
    /// Error that took it out of the comparison, if any.
    pub error: Option<E>,
}

impl<E> Measured<E> {
    /// Number of rounds that it has samples of.
    fn rounds(&self) -> usize {
        self.samples.first().map_or(0, Vec::len)
    }
}

/// All candidates' samples, sorted for a report.
#[derive(Debug)]
pub struct Collected<E> {
    /// For each candidate, in their order: one series a metric; none if it failed.
    pub series: Vec<Option<Vec<Series>>>,
    /// Every sample, those of failed candidates included.
    pub samples: Vec<Sample>,
    /// Failed candidates, and their errors.
    pub out: Vec<(String, E)>,
}

impl<E> Collected<E> {
    /// Sorts the samples of a group; `metrics` names each value and its unit.
    #[must_use]
    pub fn of(
        group: &'static str,
        metrics: &[(&str, &'static str)],
        all: Vec<Measured<E>>,
    ) -> Self {
        let mut collected = Self {
            series: Vec::with_capacity(all.len()),
            samples: Vec::new(),
            out: Vec::new(),
        };
        for measured in all {
            for ((metric, unit), values) in metrics.iter().zip(&measured.samples) {
                // Raw samples are kept also of a candidate that failed later.
                let samples = Sample::series(group, metric, &measured.name, unit, values);
                collected.samples.extend(samples);
            }
            collected.series.push(match measured.error {
                None => Some(measured.samples.into_iter().map(Series::new).collect()),
                Some(error) => {
                    // One candidate may drop out; the others are still comparable among themselves.
                    collected.out.push((measured.name, error));
                    None
                }
            });
        }
        collected
    }
}

/// Decides after each round if its samples are kept.
pub trait Judge {
    /// Called at the beginning of a round, repeated ones included.
    fn begin(&mut self);

    /// The round is over: true keeps its samples, false repeats it. An implementation bounds its
    /// repeats.
    fn keep(&mut self) -> bool;
}

/// A judge that keeps every round.
#[derive(Debug, Clone, Copy)]
pub struct KeepAll;

impl Judge for KeepAll {
    fn begin(&mut self) {}

    fn keep(&mut self) -> bool {
        true
    }
}

/// Interleaves `candidates` for `rounds` rounds. `metrics` is the number of values that each gives.
/// `before` is called before every turn, with the round (from 0) and the turn in it: `Ok(false)`
/// ends the rounds there. `ends` selects the errors that end the whole run and not only the
/// candidate. A round that `judge` does not keep is run again. Blocks until all rounds are done.
///
/// # Errors
/// The error of `before`, or one for which `ends` holds.
pub fn run<X: ?Sized, E>(
    rounds: usize,
    metrics: usize,
    shared: &X,
    candidates: &mut [Candidate<'_, X, E>],
    mut before: impl FnMut(usize, usize) -> Result<bool, E>,
    ends: impl Fn(&E) -> bool,
    judge: &mut dyn Judge,
) -> Result<Vec<Measured<E>>, E> {
    let empty = |candidate: &Candidate<'_, X, E>| Measured {
        name: candidate.name.clone(),
        samples: vec![Vec::with_capacity(rounds); metrics],
        error: None,
    };
    let mut all: Vec<Measured<E>> = candidates.iter().map(empty).collect();
    let count = candidates.len();
    let mut round = 0;
    'rounds: while round < rounds {
        // The state to return to if the round is noisy: then all candidates repeat it.
        let kept: Vec<usize> = all.iter().map(Measured::rounds).collect();
        judge.begin();
        for turn in 0..count {
            // A position in a round has an effect of its own: caches, frequency, what ran before.
            let index = (turn + round) % count;
            let measured = &mut all[index];
            if measured.error.is_some() {
                continue;
            }
            if !before(round, turn)? {
                break 'rounds;
            }
            match (candidates[index].measure)(shared) {
                Ok(values) => {
                    debug_assert_eq!(values.len(), metrics, "one value a metric");
                    for (series, value) in measured.samples.iter_mut().zip(values) {
                        series.push(value);
                    }
                }
                Err(error) if ends(&error) => return Err(error),
                Err(error) => measured.error = Some(error),
            }
        }
        if judge.keep() {
            round += 1;
        } else {
            for (measured, kept) in all.iter_mut().zip(kept) {
                measured
                    .samples
                    .iter_mut()
                    .for_each(|one| one.truncate(kept));
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    type Fails = &'static str;

    fn keep_all(
        rounds: usize,
        all: &mut [Candidate<'_, (), Fails>],
        before: impl FnMut(usize, usize) -> Result<bool, Fails>,
        ends: impl Fn(&Fails) -> bool,
    ) -> Result<Vec<Measured<Fails>>, Fails> {
        run(rounds, 1, &(), all, before, ends, &mut KeepAll)
    }

    #[test]
    fn each_round_begins_with_another_one_and_who_fails_is_out() {
        let order = RefCell::new(Vec::new());
        let candidate = |name: &'static str, fails_in: usize| {
            let (order, mut round) = (&order, 0);
            Candidate::of_one(name, move |(): &()| {
                order.borrow_mut().push(name);
                round += 1;
                if round > fails_in {
                    return Err("broken");
                }
                Ok(round as f64)
            })
        };
        let mut all = [candidate("a", 9), candidate("b", 1), candidate("c", 9)];
        let measured = keep_all(3, &mut all, |_, _| Ok(true), |_: &Fails| false).unwrap();
        assert_eq!(
            *order.borrow(),
            ["a", "b", "c", "b", "c", "a", "c", "a"],
            "b is out in its second round"
        );
        assert_eq!(measured[0].samples, [[1.0, 2.0, 3.0]]);
        assert_eq!(measured[1].error, Some("broken"));
        assert_eq!(measured[1].samples, [[1.0]]);
        let collected = Collected::of("g", &[("speed", "MB/s")], measured);
        assert_eq!(collected.out, [("b".to_owned(), "broken")]);
        assert!(collected.series[1].is_none());
        assert_eq!(collected.series[0].as_ref().unwrap()[0].median(), 2.0);
        assert_eq!(collected.samples.len(), 3 + 1 + 3, "b's first one, too");
        assert_eq!(collected.samples[3].name, "b");
    }

    #[test]
    fn a_round_that_is_not_kept_is_run_again_and_leaves_no_sample() {
        struct SecondIsNoisy(usize);
        impl Judge for SecondIsNoisy {
            fn begin(&mut self) {
                self.0 += 1;
            }
            fn keep(&mut self) -> bool {
                self.0 != 2
            }
        }
        let order = RefCell::new(Vec::new());
        let counting = |name: &'static str| {
            let (order, mut runs) = (&order, 0.0);
            Candidate::of_one(name, move |(): &()| {
                order.borrow_mut().push(name);
                runs += 1.0;
                Ok::<_, Fails>(runs)
            })
        };
        let mut all = [counting("a"), counting("b")];
        let mut judge = SecondIsNoisy(0);
        let keep_on = |_, _| Ok(true);
        let measured = run(3, 1, &(), &mut all, keep_on, |_| false, &mut judge).unwrap();
        assert_eq!(judge.0, 4, "three rounds and a repeat");
        assert_eq!(measured[0].samples, [[1.0, 3.0, 4.0]]);
        assert_eq!(measured[1].samples, [[1.0, 3.0, 4.0]]);
        let order = order.borrow();
        assert_eq!(order[2..6], ["b", "a", "b", "a"], "the same order again");
    }

    #[test]
    fn a_run_can_be_ended_before_any_turn_and_by_an_error() {
        let mut all = [Candidate::of_one("a", |(): &()| Ok::<_, Fails>(1.0))];
        let before = |round, _| Ok(round < 2);
        let measured = keep_all(5, &mut all, before, |_| false).unwrap();
        assert_eq!(measured[0].samples, [[1.0, 1.0]]);
        let mut all = [Candidate::of_one("a", |(): &()| {
            Err::<f64, _>("interrupted")
        })];
        let end = keep_all(5, &mut all, |_, _| Ok(true), |_| true);
        assert_eq!(end.unwrap_err(), "interrupted");
    }
}
