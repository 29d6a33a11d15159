//! Contestants measured in turns.
//!
//! Why here: a machine's mood changes within seconds. Who always runs first, or all at once, is
//! measured in another mood than the others.
//! Must stay true: in each round every contestant runs once, and each round begins with another
//! one; who fails is out and keeps its reason, the others go on.
//! Source: own.

use crate::report::Sample;
use crate::stats::Series;

/// Takes one round's values, one for each metric.
type Measure<'c, X, E> = dyn FnMut(&X) -> Result<Vec<f64>, E> + 'c;

/// One of those who are measured in turns. `X` is whatever all of them need.
pub struct Contestant<'c, X: ?Sized, E> {
    name: String,
    measure: Box<Measure<'c, X, E>>,
}

impl<'c, X: ?Sized, E> Contestant<'c, X, E> {
    /// A contestant that gives several values a round.
    pub fn new(
        name: impl Into<String>,
        measure: impl FnMut(&X) -> Result<Vec<f64>, E> + 'c,
    ) -> Self {
        Self {
            name: name.into(),
            measure: Box::new(measure),
        }
    }

    /// A contestant that gives one value a round.
    pub fn of_one(
        name: impl Into<String>,
        mut measure: impl FnMut(&X) -> Result<f64, E> + 'c,
    ) -> Self {
        Self::new(name, move |shared| Ok(vec![measure(shared)?]))
    }

    /// Who it is.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// What a contestant's turns gave.
#[derive(Debug)]
pub struct Turns<E> {
    /// Who it is.
    pub name: String,
    /// Its samples: for each metric, one a round.
    pub samples: Vec<Vec<f64>>,
    /// Why it is out, where it is.
    pub error: Option<E>,
}

/// What all contestants' turns gave, sorted for a report.
#[derive(Debug)]
pub struct Collected<E> {
    /// For each contestant, in their order: one series a metric; none where it is out.
    pub series: Vec<Option<Vec<Series>>>,
    /// Every sample, also of those who are out.
    pub samples: Vec<Sample>,
    /// Who is out, and why.
    pub out: Vec<(String, E)>,
}

impl<E> Collected<E> {
    /// Sorts what the turns of a group gave; `metrics` names each value and its unit.
    #[must_use]
    pub fn of(group: &'static str, metrics: &[(&str, &'static str)], all: Vec<Turns<E>>) -> Self {
        let mut collected = Self {
            series: Vec::with_capacity(all.len()),
            samples: Vec::new(),
            out: Vec::new(),
        };
        for turns in all {
            for ((metric, unit), values) in metrics.iter().zip(&turns.samples) {
                let samples = Sample::series(group, metric, &turns.name, unit, values);
                collected.samples.extend(samples);
            }
            collected.series.push(match turns.error {
                None => Some(turns.samples.into_iter().map(Series::new).collect()),
                Some(error) => {
                    collected.out.push((turns.name, error));
                    None
                }
            });
        }
        collected
    }
}

/// Runs `contestants` in turns for `rounds` rounds. `metrics` is how many values each gives.
/// `before` is asked before every turn, with the round (from 0) and the turn in it: `Ok(false)`
/// ends the rounds there. `ends` says which errors end the whole run and not only the contestant.
/// Blocks for as long as they take.
///
/// # Errors
/// What `before` gave, or an error for which `ends` holds.
pub fn take<X: ?Sized, E>(
    rounds: usize,
    metrics: usize,
    shared: &X,
    contestants: &mut [Contestant<'_, X, E>],
    mut before: impl FnMut(usize, usize) -> Result<bool, E>,
    ends: impl Fn(&E) -> bool,
) -> Result<Vec<Turns<E>>, E> {
    let empty = |contestant: &Contestant<'_, X, E>| Turns {
        name: contestant.name.clone(),
        samples: vec![Vec::with_capacity(rounds); metrics],
        error: None,
    };
    let mut all: Vec<Turns<E>> = contestants.iter().map(empty).collect();
    let count = contestants.len();
    'rounds: for round in 0..rounds {
        for turn in 0..count {
            let index = (turn + round) % count;
            let turns = &mut all[index];
            if turns.error.is_some() {
                continue;
            }
            if !before(round, turn)? {
                break 'rounds;
            }
            match (contestants[index].measure)(shared) {
                Ok(values) => {
                    debug_assert_eq!(values.len(), metrics, "one value a metric");
                    for (series, value) in turns.samples.iter_mut().zip(values) {
                        series.push(value);
                    }
                }
                Err(error) if ends(&error) => return Err(error),
                Err(error) => turns.error = Some(error),
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

    #[test]
    fn each_round_begins_with_another_one_and_who_fails_is_out() {
        let order = RefCell::new(Vec::new());
        let contestant = |name: &'static str, fails_in: usize| {
            let (order, mut round) = (&order, 0);
            Contestant::of_one(name, move |(): &()| {
                order.borrow_mut().push(name);
                round += 1;
                if round > fails_in {
                    return Err("broken");
                }
                Ok(round as f64)
            })
        };
        let mut all = [contestant("a", 9), contestant("b", 1), contestant("c", 9)];
        let turns = take(3, 1, &(), &mut all, |_, _| Ok(true), |_: &Fails| false).unwrap();
        assert_eq!(
            *order.borrow(),
            ["a", "b", "c", "b", "c", "a", "c", "a"],
            "b is out in its second round"
        );
        assert_eq!(turns[0].samples, [[1.0, 2.0, 3.0]]);
        assert_eq!(turns[1].error, Some("broken"));
        assert_eq!(turns[1].samples, [[1.0]]);
        let collected = Collected::of("g", &[("speed", "MB/s")], turns);
        assert_eq!(collected.out, [("b".to_owned(), "broken")]);
        assert!(collected.series[1].is_none());
        assert_eq!(collected.series[0].as_ref().unwrap()[0].median(), 2.0);
        assert_eq!(collected.samples.len(), 3 + 1 + 3, "b's first one, too");
        assert_eq!(collected.samples[3].name, "b");
    }

    #[test]
    fn a_run_can_be_ended_before_any_turn_and_by_an_error() {
        let mut all = [Contestant::of_one("a", |(): &()| Ok::<_, Fails>(1.0))];
        let before = |round, _| Ok(round < 2);
        let turns = take(5, 1, &(), &mut all, before, |_| false).unwrap();
        assert_eq!(turns[0].samples, [[1.0, 1.0]]);
        let mut all = [Contestant::of_one("a", |(): &()| {
            Err::<f64, _>("interrupted")
        })];
        let end = take(5, 1, &(), &mut all, |_, _| Ok(true), |_| true);
        assert_eq!(end.unwrap_err(), "interrupted");
    }
}
