//! Counts in an alignment that set a model's frequencies and its share of invariable sites.

use crate::msa::Patterns;

/// The share of each state. A character that may be several states counts for each of them in equal
/// parts, as with RAxML; in further `rounds` in proportion to the shares of the round before, as
/// with IQ-TREE. One that may be any says nothing and does not count.
#[must_use]
pub(crate) fn empirical(patterns: &Patterns, rounds: usize) -> Vec<f64> {
    let mut shares = shares(patterns, rounds);
    // A state that no taxon has keeps a little, or its eigenvectors would be infinite.
    shares
        .iter_mut()
        .for_each(|share| *share = share.max(FREQUENCY_MIN));
    let sum: f64 = shares.iter().sum();
    shares.iter_mut().for_each(|share| *share /= sum);
    shares
}

/// As [`empirical`], where states that no taxon has are 0.
pub(super) fn shares(patterns: &Patterns, rounds: usize) -> Vec<f64> {
    let masks = patterns.masks();
    let states = patterns.alphabet().states();
    let mut by_code = vec![0.0; masks.len()];
    for taxon in 0..patterns.taxa() {
        for (&code, &weight) in patterns.codes(taxon).iter().zip(patterns.weights()) {
            by_code[usize::from(code)] += f64::from(weight);
        }
    }
    // An unknown character says nothing about frequencies.
    by_code[usize::from(patterns.alphabet().unknown())] = 0.0;
    let mut shares = vec![1.0 / states as f64; states];
    for _ in 0..rounds {
        let mut counts = vec![0.0; states];
        for (count, mask) in by_code.iter().zip(masks) {
            let has = |state: &usize| mask >> state & 1 == 1;
            let whole: f64 = (0..states).filter(has).map(|state| shares[state]).sum();
            let part = if whole > 0.0 { count / whole } else { 0.0 };
            for state in (0..states).filter(has) {
                counts[state] += part * shares[state];
            }
        }
        let sum: f64 = counts.iter().sum();
        if sum == 0.0 {
            return shares;
        }
        shares = counts.into_iter().map(|count| count / sum).collect();
    }
    shares
}

/// The share of sites that could be invariable: some state fits all taxa.
#[must_use]
pub(crate) fn constant_share(patterns: &Patterns) -> f64 {
    let mut constant = 0.0;
    let mut all = 0.0;
    for (pattern, &weight) in patterns.weights().iter().enumerate() {
        all += f64::from(weight);
        if patterns.common_states(pattern) != 0 {
            constant += f64::from(weight);
        }
    }
    constant / f64::max(all, 1.0)
}

/// The least frequency of a state.
pub(crate) const FREQUENCY_MIN: f64 = 1e-6;
