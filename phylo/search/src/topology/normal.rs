//! The normal distribution.

use std::f64::consts::{PI, SQRT_2};

/// Probability of a value below `x`.
pub(super) fn below(x: f64) -> f64 {
    0.5 * libm::erfc(-x / SQRT_2)
}

/// Density at `x`.
pub(super) fn density(x: f64) -> f64 {
    libm::exp(-0.5 * x * x) / (2.0 * PI).sqrt()
}

/// The value below which the probability is `p`, between 0 and 1.
pub(super) fn quantile(p: f64) -> f64 {
    // Computed for the smaller tail, which has more digits: by bisection, then by Newton's method.
    if p > 0.5 {
        return -quantile(1.0 - p);
    }
    let (mut low, mut high) = (-38.0, 0.0);
    for _ in 0..20 {
        let middle = 0.5 * (low + high);
        if below(middle) < p {
            low = middle;
        } else {
            high = middle;
        }
    }
    let mut x = 0.5 * (low + high);
    for _ in 0..4 {
        let slope = density(x);
        if slope > 0.0 {
            x -= (below(x) - p) / slope;
        }
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_values() {
        // Abramowitz and Stegun, table 26.1.
        assert!((below(1.0) - 0.841_344_746_068_543).abs() < 1e-15);
        assert!((density(1.0) - 0.241_970_724_519_143).abs() < 1e-15);
        for (p, x) in [
            (0.975, 1.959_963_984_540_054),
            (0.5, 0.0),
            (1e-9, -5.997_807_015_007_87),
        ] {
            assert!((quantile(p) - x).abs() < 1e-9, "{p}: {}", quantile(p));
        }
        for k in 1..100 {
            let p = f64::from(k) / 100.0;
            assert!((below(quantile(p)) - p).abs() < 1e-14);
        }
    }
}
