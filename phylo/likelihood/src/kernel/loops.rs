//! The loops of one partition's kind: one matrix a category for all patterns, or a matrix for each
//! pattern.
//!
//! Why here: chunks, sum tables and insertions call the loops without asking which kind it is.

use super::{Derivatives, Isa, Operand, Quad, Shape, Spectra, simd};

/// The kernels of a chunk's patterns.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Loops<'a> {
    pub(crate) isa: Isa,
    pub(crate) shape: Shape,
    /// Where each pattern has a matrix of its own.
    pub(crate) spectra: Option<Spectra<'a>>,
}

impl Loops<'_> {
    /// [`simd::newview`], with scaling.
    pub(crate) fn newview(
        &self,
        [left, right]: [&Operand<'_>; 2],
        values: &mut [Quad],
        scalers: &mut [u16],
    ) -> bool {
        match &self.spectra {
            None => simd::newview(self.isa, self.shape, left, right, values, scalers, true),
            Some(own) => simd::profiled_newview(self.isa, own, left, right, values, scalers),
        }
    }

    /// A CLV moved over a branch with frequencies and weights; `ones` is a tip of ones.
    pub(crate) fn carry(
        &self,
        [from, ones]: [&Operand<'_>; 2],
        values: &mut [Quad],
        scalers: &mut [u16],
    ) -> bool {
        match &self.spectra {
            None => simd::newview(self.isa, self.shape, from, ones, values, scalers, true),
            Some(own) => simd::profiled_carry(self.isa, own, from, values, scalers),
        }
    }

    /// [`simd::evaluate`].
    pub(crate) fn evaluate(
        &self,
        [left, right]: [&Operand<'_>; 2],
        terms: &mut [Quad],
        scalers: &mut [u16],
    ) -> bool {
        match &self.spectra {
            None => simd::evaluate(self.isa, self.shape, left, right, terms, scalers),
            Some(own) => simd::profiled_evaluate(self.isa, own, left, right, terms, scalers),
        }
    }

    /// [`simd::insert`].
    pub(crate) fn insert(
        &self,
        [near, far, below]: [&Operand<'_>; 3],
        terms: &mut [Quad],
        scalers: &mut [u16],
    ) -> bool {
        match &self.spectra {
            None => simd::insert(self.isa, self.shape, near, far, below, terms, scalers),
            Some(own) => simd::profiled_insert(self.isa, own, near, far, below, terms, scalers),
        }
    }

    /// A branch's sum table.
    pub(crate) fn table(
        &self,
        [near, far]: [&Operand<'_>; 2],
        table: &mut [Quad],
        scalers: &mut [u16],
    ) -> bool {
        match &self.spectra {
            // Not scaled: in the eigenvectors' basis entries are negative, too.
            None => simd::newview(self.isa, self.shape, near, far, table, scalers, false),
            Some(own) => simd::profiled_table(self.isa, own, near, far, table, scalers),
        }
    }

    /// [`simd::derivatives`]; where each pattern has a matrix, `powers` begins with the length.
    pub(crate) fn derivatives(
        &self,
        table: &[Quad],
        powers: &[Quad],
        fixed: &[f64],
        weights: &[f64],
    ) -> Derivatives {
        let (isa, shape) = (self.isa, self.shape);
        match &self.spectra {
            None => simd::derivatives(isa, shape, table, powers, fixed, weights),
            Some(own) => simd::profiled_derivatives(isa, own, powers[0][0], table, fixed, weights),
        }
    }

    /// [`simd::table_terms`]; `powers` as in [`Loops::derivatives`].
    pub(crate) fn table_terms(&self, table: &[Quad], powers: &[Quad], terms: &mut [Quad]) {
        match &self.spectra {
            None => simd::table_terms(self.isa, self.shape, table, powers, terms),
            Some(own) => simd::profiled_terms(self.isa, own, powers[0][0], table, terms),
        }
    }
}
