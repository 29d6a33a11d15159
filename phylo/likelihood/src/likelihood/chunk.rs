//! A chunk: a run of site patterns with all its CLVs, processed by one engine at a time.
//!
//! Must stay true: a chunk reads no memory that another chunk writes. A node's buffers are as long
//! as its classes need. Released memory is reused and never returned: after the first traversals
//! nothing is allocated.

mod clvs;
mod insertion;
mod sites;
mod unseen;

pub(super) use clvs::room_bytes;
pub(super) use insertion::{Source, StarEnd, Visit};
pub(super) use unseen::Unseen;

use super::Options;
use super::part::Part;
use super::validity::{Ends, Step};
use crate::kernel::{Derivatives, Isa, SharedArena};
use crate::model::Process;
use clvs::{Clvs, TipStates};
use sites::{Sites, SumTable};
use std::ops::Range;

/// A run of patterns of one partition.
#[derive(Debug)]
pub(super) struct Chunk {
    part: usize,
    tips: TipStates,
    clvs: Clvs,
    sites: Sites,
    sum_table: SumTable,
    /// For each pattern its profile, where the model has profiles of sites.
    profile_of: Vec<u32>,
    /// Scalers of the kernel that ran last.
    scalers: Vec<u16>,
    lnl: f64,
    slope: Derivatives,
    insertions: insertion::Scratch,
}

impl Chunk {
    pub(super) fn new(
        number: usize,
        part: &Part,
        range: Range<usize>,
        nodes: usize,
        arena: &SharedArena,
    ) -> Self {
        let patterns = part.patterns();
        let weights = &patterns.weights()[range.clone()];
        let weights: Vec<f64> = weights.iter().map(|&weight| f64::from(weight)).collect();
        let common = range
            .clone()
            .map(|pattern| patterns.common_states(pattern))
            .collect();
        // As wide as a class, so that one kernel reads tips and inner nodes through an index.
        let code = |&code: &u8| u16::from(code);
        let codes = (0..patterns.taxa()).map(|taxon| {
            let own = &patterns.codes(taxon)[range.clone()];
            own.iter().map(code).collect()
        });
        let room = (nodes, arena);
        let mut chunk = Self::of_codes(number, part, room, weights, common, codes.collect());
        if let Some((_, of_pattern)) = patterns.profiles() {
            chunk.profile_of = of_pattern[range].to_vec();
        }
        chunk
    }

    /// The patterns that ascertainment left out: the same state at all taxa.
    pub(super) fn unseen(
        number: usize,
        part: &Part,
        unseen: Unseen,
        nodes: usize,
        arena: &SharedArena,
    ) -> Self {
        let alphabet = part.patterns().alphabet();
        let states = 0..alphabet.states();
        let codes = states.filter_map(|state| alphabet.code_of_state(state));
        let codes: Vec<u16> = codes.map(u16::from).collect();
        // Weights of 0: these patterns are no data, only their likelihoods are needed.
        let (weights, common) = (vec![0.0; codes.len()], vec![0; codes.len()]);
        let codes = vec![codes; part.patterns().taxa()];
        let mut chunk = Self::of_codes(number, part, (nodes, arena), weights, common, codes);
        chunk.sites.unseen = Some(unseen);
        chunk
    }

    fn of_codes(
        number: usize,
        part: &Part,
        (nodes, arena): (usize, &SharedArena),
        weights: Vec<f64>,
        common: Vec<u64>,
        codes: Vec<Vec<u16>>,
    ) -> Self {
        let shape = part.process().shape;
        let len = weights.len();
        Self {
            part: number,
            tips: TipStates {
                codes,
                code_count: part.patterns().masks().len(),
                // A chunk has at most 2^15 patterns.
                identity: (0..=u16::MAX).take(len).collect(),
            },
            clvs: Clvs::new(arena, shape, len, nodes),
            sites: Sites::new(weights, common, shape.rates),
            sum_table: SumTable::new(shape, len),
            profile_of: Vec::new(),
            scalers: vec![0; len * shape.rates],
            lnl: 0.0,
            slope: Derivatives::default(),
            insertions: insertion::Scratch::default(),
        }
    }

    pub(super) fn part(&self) -> usize {
        self.part
    }

    pub(super) fn patterns(&self) -> usize {
        self.sites.weights.len()
    }

    pub(super) fn set_weights(&mut self, weights: &[f64]) {
        self.sites.weights.copy_from_slice(weights);
    }

    pub(super) fn lnl(&self) -> f64 {
        self.lnl
    }

    pub(super) fn slope(&self) -> Derivatives {
        self.slope
    }

    pub(super) fn site_lnl(&self) -> &[f64] {
        &self.sites.site_lnl
    }

    /// True if the patterns are those that ascertainment left out.
    pub(super) fn is_unseen(&self) -> bool {
        self.sites.unseen.is_some()
    }

    /// Sets the contribution of invariable sites under a process.
    pub(super) fn set_invariable(&mut self, process: &Process) {
        self.sites.set_invariable(process, &self.profile_of);
    }

    /// Computes one direction's site repeats (if requested) and CLV.
    pub(super) fn newview(&mut self, part: &Part, step: &Step, options: Options) {
        if step.repeats {
            // A class must be a pattern where each pattern has a matrix of its own.
            let join = options.repeats && self.profile_of.is_empty();
            self.clvs.find_repeats(&self.tips, step, join);
        }
        let (target, classes, sides) = self.clvs.target(&self.tips, step);
        // One entry a class of this node; its children are indexed by their own classes.
        let [a, b] = classes.children().map_or([None; 2], |both| both.map(Some));
        let left = sides.child(part, step.left, a);
        let right = sides.child(part, step.right, b);
        let loops = part.loops(options.isa, &self.profile_of);
        let quads = target.quads.as_mut_slice();
        let scaled = loops.newview([&left, &right], quads, &mut self.scalers);
        let own = classes.count() * loops.shape.rates;
        target.keep_scalers(scaled, &self.scalers[..own]);
    }

    pub(super) fn evaluate(&mut self, part: &Part, ends: &Ends, isa: Isa) {
        let scaled = self.fill_terms(part, ends, isa);
        let scalers = if scaled { &self.scalers[..] } else { &[] };
        self.lnl = self
            .sites
            .log_likelihood(isa, part.process().shape.rates, scalers);
    }

    /// As [`Chunk::evaluate`], and keeps each category's share of the patterns' likelihoods.
    pub(super) fn evaluate_categories(&mut self, part: &Part, ends: &Ends, isa: Isa) {
        let scaled = self.fill_terms(part, ends, isa);
        let scalers = if scaled { &self.scalers[..] } else { &[] };
        self.sites.keep_shares(part.process().shape.rates, scalers);
    }

    /// The terms of each category and pattern at a branch. True if there are counts of scalings:
    /// without one the kernel leaves those of an earlier call.
    fn fill_terms(&mut self, part: &Part, ends: &Ends, isa: Isa) -> bool {
        let sides = self.clvs.sides(&self.tips);
        let [near, far] = [ends.near, ends.far].map(|end| sides.end(end, part.folded()));
        let terms = self.sites.terms.as_mut_slice();
        let loops = part.loops(isa, &self.profile_of);
        loops.evaluate([&near, &far], terms, &mut self.scalers)
    }

    /// The shares of [`Chunk::evaluate_categories`], pattern by pattern.
    pub(super) fn shares(&self) -> &[f64] {
        &self.sites.shares
    }

    pub(super) fn make_sum_table(&mut self, part: &Part, ends: &Ends, isa: Isa) {
        let kernel = part.loops(isa, &self.profile_of);
        let sides = self.clvs.sides(&self.tips);
        let [near_matrix, far_matrix, far_table] = part.eigen();
        let near = sides.end(ends.near, [near_matrix, far_table]);
        let far = sides.end(ends.far, [far_matrix, far_table]);
        let (scalers, sites) = (&mut self.scalers, &mut self.sites);
        self.sum_table.make(&kernel, &near, &far, scalers, sites);
    }

    /// The derivatives from the sum table, stored where [`Chunk::slope`] finds them.
    pub(super) fn derivatives(&mut self, part: &Part, isa: Isa) {
        let kernel = part.loops(isa, &self.profile_of);
        self.slope = self
            .sum_table
            .derivatives(&kernel, part.powers(), &self.sites);
    }

    /// The log-likelihood from the sum table, stored where [`Chunk::lnl`] finds it.
    pub(super) fn evaluate_table(&mut self, part: &Part, isa: Isa) {
        let kernel = part.loops(isa, &self.profile_of);
        let sites = &mut self.sites;
        self.lnl = self.sum_table.log_likelihood(&kernel, part.powers(), sites);
    }
}
