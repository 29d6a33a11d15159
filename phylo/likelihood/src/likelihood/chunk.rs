//! A chunk: a run of site patterns with all its CLVs, processed by one engine at a time.
//!
//! Must stay true: a chunk reads no memory that another chunk writes. A node's buffers are as long
//! as its classes need. Released memory is reused and never returned: after the first traversals
//! nothing is allocated.

mod insertion;
mod store;
mod unseen;

pub(super) use insertion::{Source, StarEnd, Visit};
pub(super) use store::SharedArena;
pub(super) use unseen::Unseen;

use super::Options;
use super::part::Part;
use super::step::{Child, Ends, Step};
use crate::kernel::repeats::{Classes, Pairs};
use crate::kernel::{
    Buffer, Derivatives, Isa, Operand, QUAD, Quad, Shape, SiteTerms, combine_sites, combine_table,
    derivatives, evaluate, level_scalers, newview, table_terms,
};
use crate::model::Process;
use std::ops::Range;
use store::{Store, Values};

/// A run of patterns of one partition.
#[derive(Debug)]
pub(super) struct Chunk {
    part: usize,
    weights: Vec<f64>,
    /// For each pattern the states that all taxa have in common.
    common: Vec<u64>,
    /// Contribution of invariable sites to each pattern.
    fixed: Vec<f64>,
    /// For each taxon the code of each pattern.
    codes: Vec<Vec<u16>>,
    code_count: usize,
    /// Site repeats of each inner half-edge.
    classes: Vec<Classes>,
    /// The CLVs (partials) of each inner node in one direction, then [`SCRATCH_PLACES`] for CLVs
    /// that are used once.
    values: Vec<Values>,
    /// Memory of the CLVs above.
    store: Store,
    /// Each pattern's own number.
    identity: Vec<u16>,
    pairs: Pairs,
    table: Buffer,
    /// Correction of the sum table's log-likelihood for its scaling.
    table_lacks: f64,
    terms: Buffer,
    scalers: Vec<u16>,
    site_lnl: Vec<f64>,
    lnl: f64,
    slope: Derivatives,
    scratch: insertion::Scratch,
    /// The ascertainment correction, if the patterns are the unseen ones; `None` where they are the
    /// alignment's.
    unseen: Option<Unseen>,
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
        let code = |&code: &u8| u16::from(code);
        let codes = (0..patterns.taxa()).map(|taxon| {
            let own = &patterns.codes(taxon)[range.clone()];
            own.iter().map(code).collect()
        });
        let room = (nodes, arena);
        Self::of_codes(number, part, room, weights, common, codes.collect())
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
        Self {
            unseen: Some(unseen),
            ..Self::of_codes(number, part, (nodes, arena), weights, common, codes)
        }
    }

    fn of_codes(
        number: usize,
        part: &Part,
        (nodes, arena): (usize, &SharedArena),
        weights: Vec<f64>,
        common: Vec<u64>,
        codes: Vec<Vec<u16>>,
    ) -> Self {
        let patterns = part.patterns();
        let shape = part.process().shape;
        let len = weights.len();
        Self {
            part: number,
            weights,
            common,
            fixed: vec![0.0; len],
            codes,
            unseen: None,
            code_count: patterns.alphabet().masks().len(),
            // Site repeats are kept for all three directions of a node, CLVs for one direction
            // only.
            classes: std::iter::repeat_with(Classes::default)
                .take(3 * nodes)
                .collect(),
            values: std::iter::repeat_with(Values::default)
                .take(nodes + SCRATCH_PLACES)
                .collect(),
            store: Store::new(arena, shape, len),
            identity: (0..len).map(|pattern| pattern as u16).collect(),
            pairs: Pairs::default(),
            table: Buffer::new(len * shape.quads()),
            table_lacks: 0.0,
            terms: Buffer::new(len.div_ceil(QUAD) * shape.rates),
            scalers: vec![0; len * shape.rates],
            site_lnl: vec![0.0; len],
            lnl: 0.0,
            slope: Derivatives::default(),
            scratch: insertion::Scratch::default(),
        }
    }

    pub(super) fn part(&self) -> usize {
        self.part
    }

    pub(super) fn patterns(&self) -> usize {
        self.weights.len()
    }

    pub(super) fn lnl(&self) -> f64 {
        self.lnl
    }

    pub(super) fn slope(&self) -> Derivatives {
        self.slope
    }

    pub(super) fn site_lnl(&self) -> &[f64] {
        &self.site_lnl
    }

    /// True if the patterns are those that ascertainment left out.
    pub(super) fn is_unseen(&self) -> bool {
        self.unseen.is_some()
    }

    /// Sets the contribution of invariable sites under a process.
    pub(super) fn set_fixed(&mut self, process: &Process) {
        for (fixed, &common) in self.fixed.iter_mut().zip(&self.common) {
            let states = process.frequencies.iter().enumerate();
            let fitting = states.filter(|(state, _)| common >> state & 1 == 1);
            *fixed = process.invariant * fitting.map(|(_, frequency)| frequency).sum::<f64>();
        }
    }

    /// Computes one direction's site repeats (if requested) and CLV.
    pub(super) fn newview(&mut self, part: &Part, step: &Step, options: Options) {
        if step.classes {
            self.find_classes(step, options.repeats);
        }
        let mut target = std::mem::take(&mut self.values[step.place]);
        let mut counts = std::mem::take(&mut self.scalers);
        let classes = &self.classes[step.target];
        let shape = part.process().shape;
        self.store.fit(&mut target, classes.count());
        // Without site repeats the classes are the patterns.
        let [a, b] = match classes.children() {
            Some(indices) => indices,
            None => [step.left, step.right].map(|child| self.index_by_pattern(child).0),
        };
        let left = self.operand(part, step.left, a);
        let right = self.operand(part, step.right, b);
        let quads = target.quads.as_mut_slice();
        let scaled = newview(options.isa, shape, &left, &right, quads, &mut counts, true);
        target.keep_counts(scaled, &counts[..classes.count() * shape.rates]);
        self.scalers = counts;
        self.values[step.place] = target;
    }

    fn find_classes(&mut self, step: &Step, repeats: bool) {
        let mut classes = std::mem::take(&mut self.classes[step.target]);
        if repeats {
            // The table of pairs is moved out while the indices are borrowed.
            let mut pairs = std::mem::take(&mut self.pairs);
            let [(left, a), (right, b)] =
                [step.left, step.right].map(|child| self.index_by_pattern(child));
            classes.join(left, right, [a, b], &mut pairs);
            self.pairs = pairs;
        } else {
            classes.separate(self.patterns());
        }
        self.classes[step.target] = classes;
    }

    pub(super) fn evaluate(&mut self, part: &Part, ends: &Ends, isa: Isa) {
        let shape = part.process().shape;
        let mut terms = std::mem::take(&mut self.terms);
        let mut scalers = std::mem::take(&mut self.scalers);
        let [matrix, table] = part.folded();
        let near = self.end(ends.near, matrix, table);
        let far = self.end(ends.far, matrix, table);
        let scaled = evaluate(isa, shape, &near, &far, terms.as_mut_slice(), &mut scalers);
        let sites = SiteTerms {
            rates: shape.rates,
            terms: terms.as_slice(),
            scalers: if scaled { &scalers } else { &[] },
            fixed: &self.fixed,
        };
        let lnl = combine_sites(isa, &sites, &self.weights, &mut self.site_lnl);
        self.lnl = self.corrected(lnl);
        self.terms = terms;
        self.scalers = scalers;
    }

    /// The log-likelihood of the chunk from the patterns' ones in `site_lnl`; for unseen patterns
    /// the correction.
    fn corrected(&self, lnl: f64) -> f64 {
        let unseen = self.unseen.as_ref();
        unseen.map_or(lnl, |unseen| unseen.log_likelihood(&self.site_lnl))
    }

    pub(super) fn sum_table(&mut self, part: &Part, ends: &Ends, isa: Isa) {
        let shape = part.process().shape;
        let mut table = std::mem::take(&mut self.table);
        let mut scalers = std::mem::take(&mut self.scalers);
        let [near_matrix, far_matrix, far_table] = part.eigen();
        let near = self.end(ends.near, near_matrix, far_table);
        let far = self.end(ends.far, far_matrix, far_table);
        let (to, counts) = (table.as_mut_slice(), &mut scalers);
        let scaled = newview(isa, shape, &near, &far, to, counts, false);
        self.level(shape, &mut table, scaled.then_some(&scalers));
        self.table = table;
        self.scalers = scalers;
    }

    /// Converts the rates of each pattern of a sum table to one scale, if any was scaled.
    fn level(&mut self, shape: Shape, table: &mut Buffer, scalers: Option<&Vec<u16>>) {
        if let Some(unseen) = &mut self.unseen {
            unseen.level(shape, table.doubles_mut(), scalers);
        } else {
            let (fixed, weights) = (&self.fixed, &self.weights);
            self.table_lacks = scalers.map_or(0.0, |scalers| {
                level_scalers(shape.rates, table.doubles_mut(), scalers, fixed, weights)
            });
        }
    }

    pub(super) fn derivatives(&mut self, part: &Part, isa: Isa) {
        let (table, powers) = (self.table.as_slice(), part.powers());
        let shape = part.process().shape;
        self.slope = match &self.unseen {
            Some(unseen) => unseen.derivatives(shape, table, powers),
            None => derivatives(isa, shape, table, powers, &self.fixed, &self.weights),
        };
    }

    /// The log-likelihood from the sum table, stored where [`Chunk::lnl`] finds it.
    pub(super) fn evaluate_table(&mut self, part: &Part, isa: Isa) {
        let terms = &mut self.terms.as_mut_slice()[..self.weights.len().div_ceil(QUAD)];
        let shape = part.process().shape;
        table_terms(isa, shape, self.table.as_slice(), part.powers(), terms);
        self.lnl = match &self.unseen {
            Some(unseen) => unseen.log_likelihood_of_table(terms),
            None => combine_table(isa, terms, &self.fixed, &self.weights) + self.table_lacks,
        };
    }

    /// A child's classes, pattern by pattern, and how many it has.
    fn index_by_pattern(&self, child: Child) -> (&[u16], usize) {
        if child.tip {
            (&self.codes[child.at], self.code_count)
        } else {
            let classes = &self.classes[child.at];
            let index = classes.of_pattern().unwrap_or(&self.identity);
            (index, classes.count())
        }
    }

    /// A child of a step, read class by class of the parent.
    fn operand<'a>(&'a self, part: &'a Part, child: Child, index: &'a [u16]) -> Operand<'a> {
        if child.tip {
            Operand::Tip {
                table: part.tip_table(child.at),
                index,
            }
        } else {
            self.inner(child, part.matrix(child.edge), index)
        }
    }

    /// An end of a branch, read pattern by pattern.
    fn end<'a>(&'a self, child: Child, matrix: &'a [Quad], table: &'a [Quad]) -> Operand<'a> {
        let index = self.index_by_pattern(child).0;
        if child.tip {
            Operand::Tip { table, index }
        } else {
            self.inner(child, matrix, index)
        }
    }

    fn inner<'a>(&'a self, child: Child, matrix: &'a [Quad], index: &'a [u16]) -> Operand<'a> {
        let values = &self.values[child.place];
        Operand::Inner {
            matrix,
            values: values.quads.as_slice(),
            scalers: &values.scalers,
            index,
        }
    }
}

/// A walk in post-order, larger child first, needs as many places as the number of taxa has binary
/// digits, and one for the other end of the branch.
pub(super) const SCRATCH_PLACES: usize = 24;
