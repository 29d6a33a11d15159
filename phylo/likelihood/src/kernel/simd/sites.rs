//! Log-likelihoods of four patterns at a time, from the terms of their rates.
//!
//! Why here: the rates of one pattern may have different scalers, and invariable sites are not
//! scaled at all; all are converted to one scale before the logarithm is taken.

use super::edge::four;
use super::functions::ln;
use super::lanes::Lanes;
use crate::kernel::combine::lowered;
use crate::kernel::{LN_THRESHOLD, QUAD, Quad, SiteTerms};

#[inline(always)]
pub(super) fn combine_sites<V: Lanes>(
    sites: &SiteTerms<'_>,
    weights: &[f64],
    site_lnl: &mut [f64],
) -> f64 {
    let rates = sites.rates;
    let fixed = &sites.fixed[..weights.len()];
    let mut sum = V::zero();
    let fours = sites.terms.chunks_exact(rates);
    let patterns = weights.chunks(QUAD).zip(fixed.chunks(QUAD));
    let lists = fours.zip(patterns).zip(site_lnl.chunks_mut(QUAD));
    for (number, ((terms, (weights, fixed)), to)) in lists.enumerate() {
        let mut whole = V::load(&terms[0]);
        for more in &terms[1..] {
            whole = whole.add(V::load(more));
        }
        let first = number * QUAD * rates;
        // Scaled patterns are rare: only a group of four with a count above 0 takes the slow path.
        let counts = sites.scalers.get(first..first + weights.len() * rates);
        let lnl = match counts {
            Some(counts) if counts.iter().any(|&count| count > 0) => {
                leveled::<V>(terms, counts, fixed)
            }
            _ => ln(present(whole.add(V::load(&four(fixed))), weights.len())),
        };
        let weight = V::load(&four(weights));
        // Patterns of weight 0 (padding, and unsampled ones) must not add an infinite logarithm.
        sum = sum.add(weight.mul(lnl).where_positive(weight));
        match <&mut Quad>::try_from(&mut *to) {
            Ok(to) => lnl.store(to),
            Err(_) => to.copy_from_slice(&lnl.to_array()[..to.len()]),
        }
    }
    sum.sum()
}

/// The same for patterns with scaled rates.
#[inline(always)]
fn leveled<V: Lanes>(terms: &[Quad], counts: &[u16], fixed: &[f64]) -> V {
    let rates = terms.len();
    let (mut sums, mut offsets) = ([1.0; QUAD], [0.0; QUAD]);
    for (lane, (counts, &fixed)) in counts.chunks_exact(rates).zip(fixed).enumerate() {
        // A rate with likelihood 0 does not determine the scale.
        let mut least = u16::MAX;
        for (term, &count) in terms.iter().zip(counts) {
            if term[lane] > 0.0 {
                least = least.min(count);
            }
        }
        if least == u16::MAX || fixed > 0.0 {
            least = 0;
        }
        let mut sum = 0.0;
        for (term, &count) in terms.iter().zip(counts) {
            sum += term[lane] * lowered(count.saturating_sub(least));
        }
        (sums[lane], offsets[lane]) = (sum + fixed, f64::from(least) * LN_THRESHOLD);
    }
    ln(V::load(&sums)).add(V::load(&offsets))
}

#[inline(always)]
pub(super) fn combine_table<V: Lanes>(terms: &[Quad], fixed: &[f64], weights: &[f64]) -> f64 {
    let mut sum = V::zero();
    let patterns = weights
        .chunks(QUAD)
        .zip(fixed[..weights.len()].chunks(QUAD));
    for (term, (weights, fixed)) in terms.iter().zip(patterns) {
        let whole = V::load(term).add(V::load(&four(fixed)));
        let weight = V::load(&four(weights));
        let lnl = ln(present(whole, weights.len()));
        sum = sum.add(weight.mul(lnl).where_positive(weight));
    }
    sum.sum()
}

/// 1 in the lanes without a pattern.
#[inline(always)]
fn present<V: Lanes>(whole: V, count: usize) -> V {
    if count == QUAD {
        return whole;
    }
    let mut all = whole.to_array();
    all[count..].fill(1.0);
    V::load(&all)
}
