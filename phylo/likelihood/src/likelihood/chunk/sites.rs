//! Likelihoods of a chunk's patterns: what the kernels' terms are summed to.
//!
//! Must stay true: the sum table's scale is that of [`level_scalers`]; the logarithm of what it
//! lacks is added to a log-likelihood, and cancels in a derivative.

use super::unseen::Unseen;
use crate::kernel::{
    Buffer, Derivatives, Isa, Loops, Operand, QUAD, Quad, Shape, SiteTerms, combine_sites,
    combine_table, level_scalers, lowered,
};
use crate::model::Process;

/// The patterns' weights, and their likelihoods as computed last.
#[derive(Debug)]
pub(super) struct Sites {
    pub(super) weights: Vec<f64>,
    /// For each pattern the states that all taxa have in common.
    common: Vec<u64>,
    /// Contribution of invariable sites to each pattern.
    invariable: Vec<f64>,
    /// The ascertainment correction, if the patterns are the unseen ones; `None` where they are the
    /// alignment's.
    pub(super) unseen: Option<Unseen>,
    pub(super) terms: Buffer,
    pub(super) site_lnl: Vec<f64>,
    /// Each category's share of each pattern's likelihood, once they were wanted.
    pub(super) shares: Vec<f64>,
}

impl Sites {
    pub(super) fn new(weights: Vec<f64>, common: Vec<u64>, rates: usize) -> Self {
        let patterns = weights.len();
        Self {
            weights,
            common,
            invariable: vec![0.0; patterns],
            unseen: None,
            terms: Buffer::new(patterns.div_ceil(QUAD) * rates),
            site_lnl: vec![0.0; patterns],
            shares: Vec::new(),
        }
    }

    /// Sets the contribution of invariable sites under a process.
    pub(super) fn set_invariable(&mut self, process: &Process, profile_of: &[u32]) {
        for (pattern, invariable) in self.invariable.iter_mut().enumerate() {
            let common = self.common[pattern];
            let own = match (&process.profiles, profile_of.get(pattern)) {
                (Some(profiles), Some(&at)) => profiles.frequencies(at),
                _ => &process.frequencies[..],
            };
            let states = own.iter().enumerate();
            // An ambiguous column can be invariable in each state that all its taxa may have.
            let fitting = states.filter(|(state, _)| common >> state & 1 == 1);
            *invariable = process.invariant * fitting.map(|(_, frequency)| frequency).sum::<f64>();
        }
    }

    /// Keeps each category's share of each pattern's likelihood, from a kernel's terms.
    pub(super) fn keep_shares(&mut self, rates: usize, scalers: &[u16]) {
        let terms = self.terms.as_slice();
        self.shares.clear();
        for (pattern, &fixed) in self.invariable.iter().enumerate() {
            let (four, lane) = (pattern / QUAD, pattern % QUAD);
            let count = |rate: usize| scalers.get(pattern * rates + rate).copied().unwrap_or(0);
            let term = |rate: usize| terms[four * rates + rate][lane];
            // Invariable sites are not scaled; a category of likelihood 0 sets no scale.
            let some = (0..rates).filter(|&rate| term(rate) > 0.0);
            let least = match fixed > 0.0 {
                true => 0,
                false => some.map(count).min().unwrap_or(0),
            };
            let own = |rate| term(rate) * lowered(count(rate).saturating_sub(least));
            let sum: f64 = fixed + (0..rates).map(own).sum::<f64>();
            // An impossible pattern says nothing: its shares are 0.
            let part = if sum > 0.0 { 1.0 / sum } else { 0.0 };
            self.shares.extend((0..rates).map(|rate| own(rate) * part));
        }
    }

    /// The log-likelihood from the terms and scalers of a kernel; for unseen patterns the
    /// correction.
    pub(super) fn log_likelihood(&mut self, isa: Isa, rates: usize, scalers: &[u16]) -> f64 {
        let sites = SiteTerms {
            rates,
            terms: self.terms.as_slice(),
            scalers,
            fixed: &self.invariable,
        };
        let lnl = combine_sites(isa, &sites, &self.weights, &mut self.site_lnl);
        let unseen = self.unseen.as_ref();
        unseen.map_or(lnl, |unseen| unseen.log_likelihood(&self.site_lnl))
    }
}

/// The sum table of a branch: the product of its ends in the eigenvectors' space.
#[derive(Debug)]
pub(super) struct SumTable {
    table: Buffer,
    /// Correction of the table's log-likelihood for its scaling.
    lacks: f64,
}

impl SumTable {
    pub(super) fn new(shape: Shape, patterns: usize) -> Self {
        Self {
            table: Buffer::new(patterns * shape.quads()),
            lacks: 0.0,
        }
    }

    /// Makes it from the branch's ends, and converts the rates of each pattern to one scale, if any
    /// was scaled.
    pub(super) fn make(
        &mut self,
        loops: &Loops<'_>,
        near: &Operand<'_>,
        far: &Operand<'_>,
        scalers: &mut [u16],
        sites: &mut Sites,
    ) {
        let table = self.table.as_mut_slice();
        let scaled = loops.table([near, far], table, scalers);
        let shape = loops.shape;
        let scalers = scaled.then_some(&*scalers);
        let table = self.table.doubles_mut();
        match &mut sites.unseen {
            Some(unseen) => unseen.level(shape, table, scalers),
            None => {
                let (invariable, weights) = (&sites.invariable, &sites.weights);
                // Kept for all lengths of the branch: scalers do not depend on it.
                self.lacks = scalers.map_or(0.0, |scalers| {
                    level_scalers(shape.rates, table, scalers, invariable, weights)
                });
            }
        }
    }

    /// The derivatives of the log-likelihood at the length that `powers` were made for.
    pub(super) fn derivatives(
        &self,
        loops: &Loops<'_>,
        powers: &[Quad],
        sites: &Sites,
    ) -> Derivatives {
        let table = self.table.as_slice();
        match &sites.unseen {
            Some(unseen) => unseen.derivatives(loops.shape, table, powers),
            None => loops.derivatives(table, powers, &sites.invariable, &sites.weights),
        }
    }

    /// The log-likelihood at the length that `powers` were made for.
    pub(super) fn log_likelihood(
        &self,
        loops: &Loops<'_>,
        powers: &[Quad],
        sites: &mut Sites,
    ) -> f64 {
        // The terms have room for each rate; here the rates are summed already.
        let quads = sites.weights.len().div_ceil(QUAD);
        let terms = &mut sites.terms.as_mut_slice()[..quads];
        loops.table_terms(self.table.as_slice(), powers, terms);
        match &sites.unseen {
            Some(unseen) => unseen.log_likelihood_of_table(terms),
            None => combine_table(loops.isa, terms, &sites.invariable, &sites.weights) + self.lacks,
        }
    }
}
