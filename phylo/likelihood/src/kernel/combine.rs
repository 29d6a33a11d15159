//! Terms of the rates of each pattern, and the common scale of a sum table.
//!
//! Why here: the rates of one pattern may have different scalers, and invariable sites are not
//! scaled at all; terms must have one scale before they are added.

use super::{LN_THRESHOLD, Quad, THRESHOLD};

/// First and second derivative of a log-likelihood by one branch's length.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Derivatives {
    /// First derivative.
    pub first: f64,
    /// Second derivative.
    pub second: f64,
}

impl std::ops::Add for Derivatives {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            first: self.first + other.first,
            second: self.second + other.second,
        }
    }
}

/// Result of [`super::evaluate`] for a run of patterns.
#[derive(Debug, Clone, Copy)]
pub struct SiteTerms<'a> {
    /// Rate categories.
    pub rates: usize,
    /// For each four patterns, rate by rate, one term a pattern; frequencies and weights are
    /// included.
    pub terms: &'a [Quad],
    /// The scaler of each term, pattern by pattern; empty where no term was scaled.
    pub scalers: &'a [u16],
    /// Contribution of invariable sites to each pattern: unscaled.
    pub fixed: &'a [f64],
}

/// Converts the rates of each pattern of a sum table to one scale: that of its least scaled rate,
/// or none where invariable sites are added to it. A derivative needs no more: the common factor
/// cancels. Returns the correction of the table's log-likelihood for that scale, weighted and
/// summed.
///
/// # Panics
/// When slices are too short for `fixed`.
pub(crate) fn level_scalers(
    rates: usize,
    table: &mut [f64],
    scalers: &[u16],
    fixed: &[f64],
    weights: &[f64],
) -> f64 {
    let span = table.len() / fixed.len().max(1);
    let states = span / rates;
    let mut lacking = 0.0;
    for (pattern, (&fixed, weight)) in fixed.iter().zip(weights).enumerate() {
        let scalers = &scalers[pattern * rates..][..rates];
        let most = scalers.iter().copied().max().unwrap_or(0);
        if most == 0 {
            continue;
        }
        let least = scalers.iter().copied().min().unwrap_or(0);
        // The term of invariable sites is not scaled, so all scaling of such a pattern is undone;
        // for others the common factor may stay in the returned sum.
        let base = if fixed > 0.0 { 0 } else { least };
        lacking += weight * f64::from(base) * LN_THRESHOLD;
        for (values, &count) in table[pattern * span..][..span]
            .chunks_mut(states)
            .zip(scalers)
        {
            let factor = lowered(count.saturating_sub(base));
            if factor != 1.0 {
                values.iter_mut().for_each(|value| *value *= factor);
            }
        }
    }
    lacking
}

/// The factor of `count` scalings; from four on it is below every normal double.
#[inline(always)]
pub(crate) fn lowered(count: u16) -> f64 {
    const FACTORS: [f64; 4] = [
        1.0,
        THRESHOLD,
        THRESHOLD * THRESHOLD,
        THRESHOLD * THRESHOLD * THRESHOLD,
    ];
    FACTORS.get(usize::from(count)).copied().unwrap_or(0.0)
}
