//! Rounds, medians and spreads.
//!
//! Why here: every figure of every bench goes through this one computation.
//! Must stay true: a ratio is the median of the rounds' own ratios, because a round's two samples
//! ran side by side under the same load; a spread is never left out.
//! Pure. Source: own.
//!
//! ```
//! use sidecore_bench::measure::stats::{Series, median};
//!
//! assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
//! // The ratio is the median of the rounds' own, not the ratio of two medians.
//! let (here, there) = (Series::new(vec![1.0, 2.0, 4.0]), Series::new(vec![2.0, 4.0, 4.0]));
//! assert_eq!(here.over(&there).median(), 0.5);
//! ```

pub use sidecore_measure::stats::median;

/// One figure's samples, a round each.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    samples: Vec<f64>,
}

impl Series {
    /// Samples in the order of the rounds.
    #[must_use]
    pub fn new(samples: Vec<f64>) -> Self {
        Self { samples }
    }

    /// The median; 0 without samples.
    #[must_use]
    pub fn median(&self) -> f64 {
        median(&self.samples)
    }

    /// The largest less the smallest, divided by the median; 0 where that says nothing.
    #[must_use]
    pub fn spread(&self) -> f64 {
        spread(&self.samples)
    }

    /// Each round's sample divided by the other's of the same round.
    #[must_use]
    pub fn over(&self, other: &Self) -> Self {
        let pairs = self.samples.iter().zip(&other.samples);
        Self::new(pairs.map(|(own, other)| own / other).collect())
    }

    /// The samples, in the order of the rounds.
    #[must_use]
    pub fn samples(&self) -> &[f64] {
        &self.samples
    }

    /// The number of samples.
    #[must_use]
    pub fn rounds(&self) -> usize {
        self.samples.len()
    }
}

/// Comparison of ours with a peer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outcome {
    /// Our median.
    pub here: f64,
    /// The peer's median.
    pub peer: f64,
    /// The median of the rounds' ratios, ours divided by the peer's.
    pub ratio: f64,
    /// The spread of those ratios.
    pub spread: f64,
    /// Rounds that both have.
    pub rounds: usize,
}

impl Outcome {
    /// Compares two series of the same rounds.
    #[must_use]
    pub fn of(here: &Series, peer: &Series) -> Self {
        // Round by round: both of a round saw the same machine.
        let ratios = here.over(peer);
        Self {
            here: here.median(),
            peer: peer.median(),
            ratio: ratios.median(),
            spread: ratios.spread(),
            rounds: ratios.rounds(),
        }
    }
}

fn spread(values: &[f64]) -> f64 {
    let middle = median(values);
    let largest = values.iter().copied().fold(f64::MIN, f64::max);
    let smallest = values.iter().copied().fold(f64::MAX, f64::min);
    // A share of nothing has no meaning.
    if values.is_empty() || middle == 0.0 {
        return 0.0;
    }
    (largest - smallest) / middle.abs()
}

/// Jain's index of fairness: 1 where all have the same, 1/n where one of n has everything. 0 of
/// nothing. Source: Jain, Chiu, Hawe, "A Quantitative Measure of Fairness and Discrimination"
/// (1984).
#[must_use]
pub fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    // All shares are 0, or there are none.
    if squares == 0.0 {
        return 0.0;
    }
    sum * sum / (shares.len() as f64 * squares)
}

/// Formats a number with about three significant digits.
#[must_use]
pub fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// A share as a percentage.
#[must_use]
pub fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness_is_between_one_and_one_of_n() {
        assert_eq!(jain(&[5.0, 5.0, 5.0]), 1.0);
        assert_eq!(jain(&[5.0, 0.0]), 0.5);
        assert!((jain(&[3.0, 1.0]) - 0.8).abs() < 1e-12);
        assert_eq!(jain(&[]), 0.0);
    }

    #[test]
    fn medians_ratios_and_spreads_are_right() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
        let here = Series::new(vec![10.0, 20.0, 30.0]);
        assert_eq!(here.spread(), 1.0);
        // The second round was slow for both: the ratio does not see it.
        let outcome = Outcome::of(&here, &Series::new(vec![5.0, 10.0, 15.0]));
        assert_eq!(
            (outcome.ratio, outcome.spread, outcome.rounds),
            (2.0, 0.0, 3)
        );
        assert_eq!((outcome.here, outcome.peer), (20.0, 10.0));
    }
}
