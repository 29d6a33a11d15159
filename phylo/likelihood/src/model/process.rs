//! The substitution process of a model: eigenvectors, rates, weights, and the tables that the
//! kernels derive from them.
//!
//! With `S` the exchangeabilities and `p` the frequencies, `q[i][j] = S[i][j] p[j]` is similar to a
//! symmetric matrix; `P(t) = right exp(values t) left`. Probabilities are made as
//! `1 + right (exp(values t) - 1) left`, which keeps every digit of a short branch's small entries.
//! Must stay true: the same parameters give the same doubles on every machine (`libm`); the
//! kernels' own rounding is their matter.

use super::eigen;
use crate::kernel::{Eigen, QUAD, Shape};
use crate::msa::SiteProfiles;
use std::sync::Arc;

/// Everything about a model that depends on its parameters.
///
/// States are padded to a number that the kernels take (`padded`): padding has no frequency, no
/// eigenvector, and no sequence has it.
#[derive(Debug, Clone)]
pub struct Process {
    /// States (padded) and rate categories.
    pub shape: Shape,
    /// Stationary frequencies; of a mixture their mean over its categories.
    pub frequencies: Vec<f64>,
    /// Stationary frequencies of each rate matrix.
    own_frequencies: Vec<f64>,
    /// Eigenvalues, one for each state: at most 0, one of them 0. Matrix by matrix, where there is
    /// one for each category, not one for all.
    values: Vec<f64>,
    /// Right eigenvectors: row by value, column by state; matrix by matrix.
    right: Vec<f64>,
    /// Left eigenvectors: row by value, column by state; matrix by matrix.
    left: Vec<f64>,
    /// The same, row by state, column by value.
    left_by_state: Vec<f64>,
    /// Each category's rate.
    pub rates: Vec<f64>,
    /// Each category's weight; with the share of invariable sites they sum to 1.
    pub weights: Vec<f64>,
    /// The share of invariable sites.
    pub invariant: f64,
    /// The matrices of patterns that have frequencies of their own.
    pub(crate) profiles: Option<Arc<SiteProfiles>>,
}

/// Number of states in the kernels' loops for a model's number of states.
#[must_use]
pub(super) fn padded(states: usize) -> usize {
    states.next_multiple_of(QUAD)
}

/// Frequencies, eigenvalues and eigenvectors of one rate matrix, padded to the kernels' number of
/// states. Row by value, column by state, if not said otherwise.
#[derive(Debug)]
pub(super) struct Spectrum {
    pub(super) frequencies: Vec<f64>,
    pub(super) values: Vec<f64>,
    pub(super) right: Vec<f64>,
    pub(super) left: Vec<f64>,
    pub(super) left_by_state: Vec<f64>,
}

impl Spectrum {
    /// Of `n (n - 1) / 2` exchangeabilities and `n` frequencies above 0.
    pub(super) fn new(exchange: &[f64], frequencies: &[f64]) -> Self {
        let n = frequencies.len();
        let wide = padded(n);
        // Given frequencies may sum to slightly less or more than 1.
        let total: f64 = frequencies.iter().sum();
        let frequencies: Vec<f64> = frequencies.iter().map(|f| f / total).collect();
        // `sqrt(pi) Q / sqrt(pi)` is symmetric for a reversible model, and has the same
        // eigenvalues.
        let mut symmetric = vec![0.0; n * n];
        let mut k = 0;
        let mut mean_rate = 0.0;
        for i in 0..n {
            for j in i + 1..n {
                let rate = exchange[k];
                k += 1;
                let (pi, pj) = (frequencies[i], frequencies[j]);
                // The similarity leaves the diagonal as it is: minus the rate of leaving each
                // state.
                symmetric[i * n + i] -= rate * pj;
                symmetric[j * n + j] -= rate * pi;
                let root = rate * libm::sqrt(pi * pj);
                symmetric[i * n + j] = root;
                symmetric[j * n + i] = root;
                mean_rate += 2.0 * rate * pi * pj;
            }
        }
        symmetric.iter_mut().for_each(|entry| *entry /= mean_rate);
        let (mut values, vectors) = eigen::symmetric(symmetric, n);
        // The largest is 0 by construction; rounding must not let long branches drift.
        if let Some(largest) = values.iter_mut().max_by(|a, b| a.total_cmp(b)) {
            *largest = 0.0;
        }
        let square = wide * wide;
        let mut spectrum = Self {
            frequencies: vec![0.0; wide],
            values: vec![0.0; wide],
            right: vec![0.0; square],
            left: vec![0.0; square],
            left_by_state: vec![0.0; square],
        };
        // Rounding must not give a growing exponential.
        for (to, value) in spectrum.values.iter_mut().zip(values) {
            *to = value.min(0.0);
        }
        for i in 0..n {
            let root = libm::sqrt(frequencies[i]);
            for k in 0..n {
                spectrum.right[k * wide + i] = vectors[i * n + k] / root;
                spectrum.left[k * wide + i] = vectors[i * n + k] * root;
                spectrum.left_by_state[i * wide + k] = spectrum.left[k * wide + i];
            }
        }
        spectrum.frequencies[..n].copy_from_slice(&frequencies);
        spectrum
    }
}

impl Process {
    /// From rate matrices: `n (n - 1) / 2` exchangeabilities (upper triangle by rows) and `n`
    /// frequencies above 0; one for all categories, or one for each.
    /// `rates` and `weights` are those of the variable sites alone: weights sum to 1, mean rate 1.
    pub(super) fn new(
        matrices: &[(&[f64], &[f64])],
        rates: &[f64],
        weights: &[f64],
        invariant: f64,
    ) -> Self {
        let own = matrices.iter();
        let spectra: Vec<Spectrum> = own
            .map(|(exchange, frequencies)| Spectrum::new(exchange, frequencies))
            .collect();
        let spectra: Vec<&Spectrum> = spectra.iter().collect();
        Self::of_spectra(&spectra, rates, weights, invariant)
    }

    /// As [`Process::new`], from matrices whose eigenvectors are known. The categories are a
    /// multiple of the matrices: first all those of the first matrix, and so on.
    pub(super) fn of_spectra(
        spectra: &[&Spectrum],
        rates: &[f64],
        weights: &[f64],
        invariant: f64,
    ) -> Self {
        let n = spectra[0].frequencies.len();
        let variable = 1.0 - invariant;
        let joined = |field: fn(&Spectrum) -> &Vec<f64>| -> Vec<f64> {
            let each = spectra.iter().flat_map(|spectrum| field(spectrum));
            each.copied().collect()
        };
        let mut process = Self {
            shape: Shape {
                states: n,
                rates: rates.len(),
            },
            frequencies: vec![0.0; n],
            own_frequencies: joined(|spectrum| &spectrum.frequencies),
            values: joined(|spectrum| &spectrum.values),
            right: joined(|spectrum| &spectrum.right),
            left: joined(|spectrum| &spectrum.left),
            left_by_state: joined(|spectrum| &spectrum.left_by_state),
            // Invariable sites have rate 0: the others' rates rise, so that the mean over all sites
            // is 1.
            rates: rates.iter().map(|rate| rate / variable).collect(),
            weights: weights.iter().map(|weight| weight * variable).collect(),
            invariant,
            profiles: None,
        };
        // The mean of the rates' own frequencies, which invariable sites have.
        for (rate, weight) in weights.iter().enumerate() {
            let own = &process.own_frequencies[process.matrix_of(rate) * n..][..n];
            for (mean, own) in process.frequencies.iter_mut().zip(own) {
                *mean += weight * own;
            }
        }
        process
    }

    /// Place of the rate matrix of a category.
    fn matrix_of(&self, rate: usize) -> usize {
        let matrices = self.values.len() / self.shape.states;
        rate * matrices / self.shape.rates
    }

    /// Stationary frequencies of a category of rates.
    #[must_use]
    pub fn frequencies_of(&self, rate: usize) -> &[f64] {
        let n = self.shape.states;
        &self.own_frequencies[self.matrix_of(rate) * n..][..n]
    }

    /// The transition probabilities over a branch of `length` for every rate, in the kernels'
    /// layout: for each rate, for each state of the far end, a column over the states of the near
    /// end. The same doubles on every machine; `crate::kernel::transitions` is the fast version.
    ///
    /// # Panics
    /// When `out` is not of [`Shape::matrix`] doubles.
    pub fn transitions(&self, length: f64, out: &mut [f64]) {
        assert_eq!(out.len(), self.shape.matrix(), "doubles of a matrix");
        let n = self.shape.states;
        for (rate, block) in out.chunks_mut(n * n).enumerate() {
            match n {
                4 => self.fill_transitions::<4>(rate, length, block),
                20 => self.fill_transitions::<20>(rate, length, block),
                _ => self.fill_any_transitions(rate, length, block),
            }
        }
    }

    fn fill_transitions<const N: usize>(&self, rate: usize, length: f64, block: &mut [f64]) {
        let at = self.matrix_of(rate) * N;
        let right = &self.right.as_chunks::<N>().0[at..];
        let left = &self.left.as_chunks::<N>().0[at..];
        let values = &self.values[at..at + N];
        let columns = block.as_chunks_mut::<N>().0;
        columns.fill([0.0; N]);
        for ((value, right), left) in values.iter().zip(right).zip(left) {
            // The eigenvalue 0 contributes no growth.
            if *value == 0.0 {
                continue;
            }
            let growth = libm::expm1(value * self.rates[rate] * length);
            for (column, left) in columns.iter_mut().zip(left) {
                let from = growth * left;
                for (entry, right) in column.iter_mut().zip(right) {
                    *entry += right * from;
                }
            }
        }
        for (j, column) in columns.iter_mut().enumerate() {
            column[j] += 1.0;
            // Rounding can turn a true 0 into a value just below it.
            column.iter_mut().for_each(|entry| *entry = entry.max(0.0));
        }
    }

    /// As [`Self::fill_transitions`], for a number of states that is not known at compile time.
    fn fill_any_transitions(&self, rate: usize, length: f64, block: &mut [f64]) {
        let n = self.shape.states;
        let at = self.matrix_of(rate);
        let right = &self.right[at * n * n..];
        let left = &self.left[at * n * n..];
        block.fill(0.0);
        for (k, value) in self.values[at * n..][..n].iter().enumerate() {
            // The equilibrium's eigenvalue: it adds nothing.
            if *value == 0.0 {
                continue;
            }
            // For short lengths `exp` alone would lose the small difference from 1, which is added
            // below.
            let growth = libm::expm1(value * self.rates[rate] * length);
            let (right, left) = (&right[k * n..][..n], &left[k * n..][..n]);
            for (column, left) in block.chunks_exact_mut(n).zip(left) {
                let from = growth * left;
                for (entry, right) in column.iter_mut().zip(right) {
                    *entry += right * from;
                }
            }
        }
        for (j, column) in block.chunks_exact_mut(n).enumerate() {
            column[j] += 1.0;
            // Rounding may give slightly negative probabilities.
            column.iter_mut().for_each(|entry| *entry = entry.max(0.0));
        }
    }

    /// Folds frequencies and weights into [`Self::transitions`]' result, for evaluating a branch.
    pub fn fold(&self, matrix: &mut [f64]) {
        let n = self.shape.states;
        let blocks = self.weights.iter().zip(matrix.chunks_mut(n * n));
        for (rate, (weight, block)) in blocks.enumerate() {
            for column in block.chunks_mut(n) {
                for (entry, frequency) in column.iter_mut().zip(self.frequencies_of(rate)) {
                    *entry *= weight * frequency;
                }
            }
        }
    }

    /// The two matrices that turn the CLVs of a branch's ends into its sum table; weights are in
    /// the first.
    pub(crate) fn sum_table_matrices(&self, near: &mut [f64], far: &mut [f64]) {
        let n = self.shape.states;
        let blocks = near.chunks_mut(n * n).zip(far.chunks_mut(n * n));
        for (rate, (weight, (near, far))) in self.weights.iter().zip(blocks).enumerate() {
            let at = self.matrix_of(rate) * n * n;
            let (right, left) = (&self.right[at..], &self.left[at..]);
            let frequencies = self.frequencies_of(rate);
            for k in 0..n {
                for i in 0..n {
                    near[i * n + k] = weight * frequencies[i] * right[k * n + i];
                    far[i * n + k] = left[k * n + i];
                }
            }
        }
    }

    /// The input for a branch's matrices and powers.
    #[must_use]
    pub(crate) fn eigen(&self) -> Eigen<'_> {
        Eigen {
            shape: self.shape,
            values: &self.values,
            right: &self.right,
            left: &self.left_by_state,
            rates: &self.rates,
        }
    }

    /// A tip's table: for each code of `masks` the span that `matrix` gives for its states.
    pub(crate) fn tip_table(&self, matrix: &[f64], masks: &[u64], out: &mut [f64]) {
        let (n, span) = (self.shape.states, self.shape.span());
        for (code, &mask) in masks.iter().enumerate() {
            let (before, rest) = out.split_at_mut(code * span);
            let own = &mut rest[..span];
            // A set whose remainder without one state is already computed needs only one more
            // column.
            let less = mask & mask.wrapping_sub(1);
            let known = masks[..code].iter().position(|&known| known == less);
            let mut left = mask;
            match known.filter(|_| mask != 0) {
                Some(known) => {
                    own.copy_from_slice(&before[known * span..][..span]);
                    left = mask ^ less;
                }
                None => own.fill(0.0),
            }
            while left != 0 {
                let j = left.trailing_zeros() as usize;
                left &= left - 1;
                for (block, values) in matrix.chunks(n * n).zip(own.chunks_mut(n)) {
                    for (value, entry) in values.iter_mut().zip(&block[j * n..][..n]) {
                        *value += entry;
                    }
                }
            }
        }
    }
}
