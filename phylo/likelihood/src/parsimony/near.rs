//! Alignments of near-identical sequences, such as genomes of one outbreak.
//!
//! Why here: their trees have few changes a branch and many branches without any. Most moves of a
//! subtree there change nothing, so that searches need other rules.
//! Must stay true: the answer depends on the alignment alone, not on a tree, so that a search that
//! is resumed gets the same one.

use crate::msa::Patterns;

/// True if sequences differ by so few sites that a branch has about one change, or less. Sequences
/// that are next to one another in the alignment are compared.
///
/// # Panics
/// When there is no partition.
#[must_use]
pub fn are_near(parts: &[&Patterns]) -> bool {
    let taxa = parts[0].taxa();
    let differences: u64 = parts.iter().map(|patterns| differences(patterns)).sum();
    let mean = differences as f64 / (taxa - 1) as f64;
    // Between two tips of a balanced tree there are twice this many branches.
    let depth = libm::log2(taxa as f64);
    mean < CHANGES * depth
}

/// Sites at which a sequence and the next one cannot have the same state, of all sequences.
fn differences(patterns: &Patterns) -> u64 {
    let masks = patterns.masks();
    let mut count = 0;
    for taxon in 1..patterns.taxa() {
        let [a, b] = [taxon - 1, taxon].map(|taxon| patterns.codes(taxon));
        let codes = a.iter().zip(b).zip(patterns.weights());
        let differ = codes.filter(|((a, b), _)| {
            let [a, b] = [a, b].map(|&&code| masks[usize::from(code)]);
            a & b == 0
        });
        count += differ.map(|(_, &weight)| u64::from(weight)).sum::<u64>();
    }
    count
}

/// Differences for each of a tree's levels, below which sequences are near-identical: two changes a
/// branch.
const CHANGES: f64 = 4.0;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::msa::{Alignment, Alphabet};

    fn patterns(differ: usize) -> Patterns {
        // Each sequence has a stretch of its own.
        let row = |taxon: usize| {
            let mut row = vec![b'A'; 40 * 64];
            row[40 * taxon..][..differ].fill(b'C');
            row
        };
        let names = (0..64).map(|taxon| format!("t{taxon}")).collect();
        let alignment = Alignment::new(names, (0..64).map(row).collect()).unwrap();
        Patterns::new(&alignment, Alphabet::Dna).unwrap()
    }

    #[test]
    fn few_differences_are_near_and_many_are_not() {
        assert!(are_near(&[&patterns(0)]));
        assert!(are_near(&[&patterns(4)]));
        assert!(!are_near(&[&patterns(40)]));
    }
}
