//! A sum whose order of additions depends on nothing but the number of values.
//!
//! Why here: floating-point addition is not associative, so a loop that is cut in other places, or
//! finishes in another order, would give another sum. Here blocks of a fixed size are added up in a
//! fixed order, and their sums in the tree of a binary counter. Cut at whole subtrees (any power of
//! two of blocks) the partial sums are nodes of the same tree. So one engine or many give the same
//! bits. Pure.

use sidecore_bare::width::ToUsize;

/// Values of a block: 16 KiB, one DMA.
pub(crate) const SUM_BLOCK_VALUES: usize = 2048;

/// Pairwise summation of a stream of values.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pairwise {
    /// The sum of a full subtree at each level that has one pending.
    pending: [f64; LEVELS],
    /// Number of values so far; bit `n` is set if level `n` is pending.
    count: u64,
}

impl Default for Pairwise {
    fn default() -> Self {
        Self {
            pending: [0.0; LEVELS],
            count: 0,
        }
    }
}

impl Pairwise {
    /// The next value.
    pub(crate) fn push(&mut self, value: f64) {
        let mut sum = value;
        let full = self.count.trailing_ones().to_usize();
        for pending in &self.pending[..full] {
            sum += pending;
        }
        self.pending[full] = sum;
        self.count += 1;
    }

    /// The sum of all values; 0 of none.
    #[must_use]
    pub(crate) fn finish(&self) -> f64 {
        let mut levels = (0..LEVELS).filter(|level| self.count >> level & 1 == 1);
        let Some(first) = levels.next() else {
            return 0.0;
        };
        levels.fold(self.pending[first], |sum, level| self.pending[level] + sum)
    }
}

/// The sum of one block: eight lanes side by side, then the lanes pairwise.
#[must_use]
pub(crate) fn block_sum(values: &[f64]) -> f64 {
    let mut lanes = [0.0; 8];
    let (rows, rest) = values.as_chunks::<8>();
    for row in rows {
        for (lane, value) in lanes.iter_mut().zip(row) {
            *lane += value;
        }
    }
    for (lane, value) in lanes.iter_mut().zip(rest) {
        *lane += value;
    }
    let [a, b, c, d, e, f, g, h] = lanes;
    ((a + b) + (c + d)) + ((e + f) + (g + h))
}

/// Enough for more values than a process can have.
const LEVELS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sum(values: &[f64]) -> f64 {
        let mut sum = Pairwise::default();
        values.iter().for_each(|&value| sum.push(value));
        sum.finish()
    }

    proptest! {
        #[test]
        fn cut_at_whole_subtrees_the_bits_are_the_same(
            values in prop::collection::vec(-1e9f64..1e9, 0..300),
            level in 0u32..6,
        ) {
            let parts: Vec<f64> = values.chunks(1 << level).map(sum).collect();
            prop_assert_eq!(sum(&parts).to_bits(), sum(&values).to_bits());
            let exact: f64 = values.iter().sum();
            prop_assert!((sum(&values) - exact).abs() <= 1e-6 * (1.0 + exact.abs()) + 1e-3);
        }
    }

    #[test]
    fn a_block_adds_all_its_values() {
        for count in 0..40 {
            let values: Vec<f64> = (0..count).map(f64::from).collect();
            assert_eq!(block_sum(&values), values.iter().sum::<f64>());
        }
    }
}
