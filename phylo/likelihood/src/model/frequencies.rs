//! Counts in an alignment that set a model's frequencies and its share of invariable sites.

use crate::msa::Patterns;

/// The share of each state. A character that may be several states counts for each of them in equal
/// parts; one that may be any says nothing and does not count, as with RAxML and IQ-TREE.
#[must_use]
pub(crate) fn empirical(patterns: &Patterns) -> Vec<f64> {
    let mut shares = shares(patterns);
    // A state that no taxon has keeps a little, or its eigenvectors would be infinite.
    shares
        .iter_mut()
        .for_each(|share| *share = share.max(FREQUENCY_MIN));
    let sum: f64 = shares.iter().sum();
    shares.iter_mut().for_each(|share| *share /= sum);
    shares
}

/// As [`empirical`], where states that no taxon has are 0.
pub(super) fn shares(patterns: &Patterns) -> Vec<f64> {
    let masks = patterns.masks();
    let states = patterns.alphabet().states();
    let mut by_code = vec![0.0; masks.len()];
    for taxon in 0..patterns.taxa() {
        for (&code, &weight) in patterns.codes(taxon).iter().zip(patterns.weights()) {
            by_code[usize::from(code)] += f64::from(weight);
        }
    }
    let mut shares = vec![0.0; states];
    // An unknown character says nothing about frequencies.
    by_code[usize::from(patterns.alphabet().unknown())] = 0.0;
    for (count, mask) in by_code.iter().zip(masks) {
        let part = count / f64::from(mask.count_ones().max(1));
        for (state, share) in shares.iter_mut().enumerate() {
            if mask >> state & 1 == 1 {
                *share += part;
            }
        }
    }
    let sum: f64 = shares.iter().sum();
    if sum == 0.0 {
        return vec![1.0 / states as f64; states];
    }
    shares.iter_mut().for_each(|share| *share /= sum);
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
