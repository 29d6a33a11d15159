//! Draws from random numbers: lengths and choices.
//!
//! Why here: one seed, one result, on every machine: exponentials do not come from the system's
//! mathematics library.
//! Must stay true: the draws from a seed never change.

pub use sidecore_random::Random;

/// Exponential with the given mean.
pub(crate) fn exponential(random: &mut Random, mean: f64) -> f64 {
    -mean * libm::log1p(-random.unit())
}

/// One of the indices of `weights`, which are at least 0 and not all 0.
pub fn index(random: &mut Random, weights: &[f64]) -> usize {
    let mut left = random.unit() * weights.iter().sum::<f64>();
    for (k, weight) in weights.iter().enumerate() {
        left -= weight;
        if left < 0.0 {
            return k;
        }
    }
    weights
        .iter()
        .rposition(|weight| *weight > 0.0)
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_are_right() {
        let mut random = Random::new(1);
        let count = 100_000;
        let mean = (0..count)
            .map(|_| exponential(&mut random, 0.1))
            .sum::<f64>()
            / f64::from(count);
        assert!((mean - 0.1).abs() < 0.002, "{mean}");
        let weights = [0.1, 0.0, 0.6, 0.3];
        let mut counts = [0.0; 4];
        for _ in 0..count {
            counts[index(&mut random, &weights)] += 1.0 / f64::from(count);
        }
        for (count, weight) in counts.iter().zip(weights) {
            assert!((count - weight).abs() < 0.01, "{counts:?}");
        }
    }
}
