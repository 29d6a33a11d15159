//! The approximately unbiased test: bootstrap proportions of ten sizes of replicates.
//!
//! A tree's proportion in replicates of `r` times as many sites is about `Phi(-z)` with
//! `z = d sqrt(r) + c / sqrt(r)`: `d` is its signed distance from where it would be the best, `c`
//! the curvature of that border. Both are fitted to the proportions of all sizes (weighted least
//! squares, then maximum likelihood as a probit regression); the p-value is `1 - Phi(d - c)`.
//!
//! A tree far from the best wins no replicate. So the proportion counts the replicates in which it
//! is behind by at most `x`. `x` is lowered from the median gap to 0 as far as counts allow and the
//! p-value falls with it, as CONSEL does.
//! Source: Shimodaira, Systematic Biology 51 (2002), 492-508; Shimodaira and Hasegawa,
//! Bioinformatics 17 (2001), 1246-1247, for CONSEL.

use super::rell::Replicates;
use normal::{below, density, quantile};

pub(super) mod normal {
    //! The normal distribution.

    use std::f64::consts::{PI, SQRT_2};

    /// Probability of a value below `x`.
    pub(in crate::topology) fn below(x: f64) -> f64 {
        0.5 * libm::erfc(-x / SQRT_2)
    }

    /// Density at `x`.
    pub(in crate::topology) fn density(x: f64) -> f64 {
        libm::exp(-0.5 * x * x) / (2.0 * PI).sqrt()
    }

    /// The value below which the probability is `p`, between 0 and 1.
    pub(in crate::topology) fn quantile(p: f64) -> f64 {
        // Computed for the smaller tail, which has more digits: by bisection, then by Newton's
        // method.
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
}

/// For each tree its gap to the best of the others in each replicate (negative where it is the
/// best), in ascending order.
pub(super) fn sorted_gaps(drawn: &Replicates, trees: usize) -> Vec<Vec<f32>> {
    let mut gaps = vec![Vec::new(); trees];
    for row in drawn.rows() {
        // The second best, too: it is the rival of the best tree.
        let (mut best, mut first, mut second) = (0, f64::NEG_INFINITY, f64::NEG_INFINITY);
        for (tree, &value) in row.iter().enumerate() {
            if value > first {
                (best, second, first) = (tree, first, value);
            } else if value > second {
                second = value;
            }
        }
        for (tree, &value) in row.iter().enumerate() {
            let rival = if tree == best { second } else { first };
            // Floats: their digits are enough for ranks, and take half of the memory.
            gaps[tree].push((rival - value) as f32);
        }
    }
    for own in &mut gaps {
        own.sort_unstable_by(f32::total_cmp);
    }
    gaps
}

/// The p-value of a tree, from its sorted gaps at each of [`SCALES`].
pub(super) fn p_value(gaps: &[&[f32]]) -> f64 {
    let middle = gaps[gaps.len() / 2];
    let mut x = f64::from(middle[middle.len() / 2]);
    let mut floor = 0.0;
    let mut best: Option<(f64, Fit)> = None;
    for _ in 0..STEPS_MAX {
        let fit = match Fit::at(gaps, x) {
            Ok(fit) => fit,
            Err(none) => match best {
                // Too few replicates have a gap this small: go half of the way back.
                Some((before, _)) => {
                    floor = x;
                    x = 0.5 * (x + before);
                    continue;
                }
                None => return none,
            },
        };
        let mut settled = false;
        if let Some((before, last)) = &best {
            let rise = fit.p - last.p;
            // A change in the wrong direction, by more than a tenth of the error: go half of the
            // way back.
            if rise * (x - before) < 0.0 && rise.abs() > 0.1 * last.error {
                floor = x;
                x = 0.5 * (x + before);
                continue;
            }
            settled = rise.abs() < 0.01 * last.error;
        }
        best = Some((x, fit));
        if (x - floor).abs() < 1e-10 || settled && floor.abs() > 1e-10 {
            break;
        }
        x = if settled { floor } else { 0.5 * (floor + x) };
    }
    best.map_or(0.0, |(_, fit)| fit.p)
}

/// Distance and curvature, fitted to the proportions of all sizes.
struct Fit {
    p: f64,
    /// Standard error of the p-value.
    error: f64,
}

impl Fit {
    /// `Err` with the p-value, 0 or 1, where fewer than two proportions are neither 0 nor 1.
    fn at(gaps: &[&[f32]], x: f64) -> Result<Self, f64> {
        let count = gaps[0].len() as f64;
        let shares: Vec<f64> = gaps.iter().map(|own| share_up_to(own, x)).collect();
        let inside = |share: &f64| *share > 0.0 && *share < 1.0;
        let usable = shares.iter().filter(|share| inside(share)).count();
        // With too few usable proportions there is no fit: the p-value is 0 or 1.
        if usable < 2 {
            let none = shares.iter().filter(|share| **share <= 0.0).count();
            return Err(if 2 * none > shares.len() { 0.0 } else { 1.0 });
        }
        let points: Vec<(f64, f64)> = SCALES
            .into_iter()
            .zip(shares)
            .filter(|(_, share)| inside(share))
            .collect();
        // Weighted least squares on the proportions' own quantiles.
        let mut sums = Sums::default();
        for &(scale, share) in &points {
            let z = -quantile(share);
            let slope = density(z);
            // The delta method: variance of the quantile from that of the proportion.
            sums.add(scale, slope * slope * count / (share * (1.0 - share)), z);
        }
        let start = sums.solve().ok_or(0.0)?;
        let [mut d, mut c] = start.0;
        let mut spread = start.1;
        // Maximum likelihood: iterated least squares, with weights from the fit's own expectations.
        for _ in 0..ROUNDS_MAX {
            let mut sums = Sums::default();
            for &(scale, share) in &points {
                let root = scale.sqrt();
                let z = d * root + c / root;
                let (expected, slope) = (below(-z), density(z));
                let variance = expected * (1.0 - expected);
                if variance > 0.0 && slope > 0.0 {
                    let response = z - (share - expected) / slope;
                    sums.add(scale, slope * slope * count / variance, response);
                }
            }
            let Some(([next_d, next_c], next_spread)) = sums.solve() else {
                break;
            };
            if !(next_d.is_finite() && next_c.is_finite()) {
                break;
            }
            let moved = (next_d - d).abs() + (next_c - c).abs();
            (d, c, spread) = (next_d, next_c, next_spread);
            if moved < 1e-9 {
                break;
            }
        }
        Ok(Self {
            p: below(c - d),
            error: density(d - c) * spread.max(0.0).sqrt(),
        })
    }
}

/// Normal equations of the two coefficients.
#[derive(Default)]
struct Sums {
    dd: f64,
    dc: f64,
    cc: f64,
    dz: f64,
    cz: f64,
}

impl Sums {
    fn add(&mut self, scale: f64, weight: f64, z: f64) {
        let root = scale.sqrt();
        self.dd += weight * scale;
        self.dc += weight;
        self.cc += weight / scale;
        self.dz += weight * root * z;
        self.cz += weight / root * z;
    }

    /// Both coefficients, and the variance of their difference.
    fn solve(&self) -> Option<([f64; 2], f64)> {
        let determinant = self.dd * self.cc - self.dc * self.dc;
        if !(determinant > 0.0 && determinant.is_finite()) {
            return None;
        }
        let d = (self.dz * self.cc - self.cz * self.dc) / determinant;
        let c = (self.cz * self.dd - self.dz * self.dc) / determinant;
        let spread = (self.cc + self.dd + 2.0 * self.dc) / determinant;
        Some(([d, c], spread))
    }
}

/// The share of values up to `x`, interpolated linearly: half of each value's own share lies on
/// either side of it.
fn share_up_to(sorted: &[f32], x: f64) -> f64 {
    let count = sorted.len();
    let at = |k: usize| f64::from(sorted[k]);
    // The list is sorted, so the number of gaps up to `x` takes a few steps.
    let up_to = sorted.partition_point(|&value| f64::from(value) <= x);
    let between = |low: usize| {
        let step = at(low + 1) - at(low);
        match step > 0.0 {
            true => Some((x - at(low)) / step),
            false => None,
        }
    };
    let (whole, part) = match up_to {
        0 => (0.0, between(0).map_or(-0.5, |part| part.max(-0.5))),
        all if all == count => {
            let last = between(count - 2).map_or(1.5, |part| part.min(1.5));
            (count as f64 - 2.0, last)
        }
        some => (some as f64 - 1.0, between(some - 1).unwrap_or(0.0)),
    };
    ((whole + part + 0.5) / count as f64).clamp(0.0, 1.0)
}

/// Sizes of replicates, as shares of the alignment's sites.
pub(super) const SCALES: [f64; 10] = [0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4];
const STEPS_MAX: usize = 30;
const ROUNDS_MAX: usize = 50;
