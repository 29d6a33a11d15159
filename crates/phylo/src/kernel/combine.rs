//! From the terms of the rates to the logarithm of a pattern's likelihood.
//!
//! Why here: the rates of one pattern may be scaled differently, and invariable sites are not
//! scaled at all; whoever adds them brings them to one scale first. Portable: a logarithm costs
//! more than everything else in it.

use super::{LN_THRESHOLD, QUAD, Quad, RATES_MAX, THRESHOLD};

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

/// What [`super::evaluate`] gave for a run of patterns.
#[derive(Debug, Clone, Copy)]
pub struct SiteTerms<'a> {
    /// Rate categories.
    pub rates: usize,
    /// For each four patterns, rate by rate, one term a pattern; frequencies and weights are in it.
    pub terms: &'a [Quad],
    /// How often each term was scaled, pattern by pattern; empty where none was.
    pub scalers: &'a [u16],
    /// What invariable sites add to each pattern: unscaled.
    pub fixed: &'a [f64],
}

/// Writes each pattern's log-likelihood to `site_lnl` and returns their weighted sum, in order.
///
/// # Panics
/// When slices are too short for `weights`.
pub fn combine_sites(sites: &SiteTerms<'_>, weights: &[f64], site_lnl: &mut [f64]) -> f64 {
    let rates = sites.rates;
    let mut sum = 0.0;
    let fours = sites
        .terms
        .chunks(rates)
        .zip(weights.chunks(QUAD))
        .zip(site_lnl.chunks_mut(QUAD));
    for (four, ((terms, weights), site_lnl)) in fours.enumerate() {
        let mut whole = terms[0];
        for more in &terms[1..] {
            whole
                .iter_mut()
                .zip(more)
                .for_each(|(sum, term)| *sum += term);
        }
        for (lane, (&weight, lnl)) in weights.iter().zip(site_lnl).enumerate() {
            let pattern = four * QUAD + lane;
            let fixed = sites.fixed[pattern];
            let counts = sites.scalers.get(pattern * rates..(pattern + 1) * rates);
            *lnl = match counts {
                Some(counts) if counts.iter().any(|&count| count > 0) => {
                    let mut own = [0.0; RATES_MAX];
                    own.iter_mut()
                        .zip(terms)
                        .for_each(|(own, term)| *own = term[lane]);
                    scaled(&own[..rates], counts, fixed)
                }
                _ => (whole[lane] + fixed).ln(),
            };
            sum += weight * *lnl;
        }
    }
    sum
}

#[cold]
fn scaled(terms: &[f64], scalers: &[u16], fixed: f64) -> f64 {
    // A rate without likelihood says nothing about the scale.
    let least = terms
        .iter()
        .zip(scalers)
        .filter(|(term, _)| **term > 0.0)
        .map(|(_, count)| *count)
        .min()
        .unwrap_or(0);
    let base = if fixed > 0.0 { 0 } else { least };
    let at_base = |(term, count): (&f64, &u16)| term * lowered(count.saturating_sub(base));
    let sum: f64 = terms.iter().zip(scalers).map(at_base).sum();
    (sum + fixed).ln() + f64::from(base) * LN_THRESHOLD
}

/// Brings the rates of each pattern of a sum table to one scale, that of its least scaled rate, or
/// to none where invariable sites are added to it. A derivative needs no more: the common factor
/// cancels. Returns what the log-likelihood of the table lacks for it, weighted and summed.
///
/// # Panics
/// When slices are too short for `fixed`.
pub fn level_scalers(
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

/// The weighted sum of the logarithms of [`super::table_terms`]' likelihoods, in order.
///
/// # Panics
/// When slices are too short for `weights`.
#[must_use]
pub fn combine_table(terms: &[Quad], fixed: &[f64], weights: &[f64]) -> f64 {
    let terms = terms.as_flattened();
    let sites = terms[..weights.len()].iter().zip(&fixed[..weights.len()]);
    let logarithms = sites.map(|(term, fixed)| (term + fixed).ln());
    logarithms
        .zip(weights)
        .map(|(lnl, weight)| weight * lnl)
        .sum()
}

/// The factor of `count` scalings; from five on it is nothing.
fn lowered(count: u16) -> f64 {
    match count {
        0 => 1.0,
        1..=4 => THRESHOLD.powi(count.into()),
        _ => 0.0,
    }
}
