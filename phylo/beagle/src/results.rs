//! Log-likelihoods at a root or over an edge, with derivatives.
//!
//! Requests are checked here, and computed chunk by chunk.
//! How: frequencies and category weights are folded into one span for a root, and into the matrix
//! of an edge. So a pattern's likelihood is one product of spans.

use crate::abi::Refusal;
use crate::chunk::Chunk;
use crate::data::{below, below_or_none};
use crate::instance::{Instance, Mode};
use crate::kernels::Kernels;
use crate::matrices::Matrix;
use crate::steps::{Group, Member, Sums};
use crate::values::Child;
use sidecore_likelihood::kernel::{Buffer, Inner};
use std::ffi::c_int;

/// One model's root or edge, as the client names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// The root's buffer, or the parent's.
    pub(crate) near: c_int,
    /// The child and its matrices by order of derivative: none at a root.
    pub(crate) edge: Option<(c_int, [Option<c_int>; 3])>,
    pub(crate) weights: c_int,
    pub(crate) frequencies: c_int,
    pub(crate) scale: c_int,
}

impl Instance {
    /// The log-likelihood of a mixture of models, and its derivatives if matrices for them were
    /// named; the sums over patterns.
    pub(crate) fn likelihood(
        &mut self,
        mut places: impl ExactSizeIterator<Item = Place> + Clone,
    ) -> Result<[f64; 3], Refusal> {
        let (several, all) = (places.len() > 1, places.clone());
        let derived = |place: &Place| place.edge.is_some_and(|(_, orders)| orders[1].is_some());
        let is_edge = match places.clone().next() {
            Some(place) => place.edge.is_some(),
            None => return Err(Refusal::OutOfRange),
        };
        // Original: where every operation scales, roots may be mixed, edges may not.
        let is_derived = places.any(|place| derived(&place));
        if several && (is_derived || (self.mode == Mode::Always && is_edge)) {
            return Err(Refusal::NoImplementation);
        }
        let members = all.map(|place| self.member(&place, several));
        let members = members.collect::<Result<Vec<Member>, Refusal>>()?;
        // Only a single place can be an edge in this mode: mixtures were refused above.
        if let (Mode::Always, [member]) = (self.mode, members.as_slice()) {
            self.add_below(member)?;
        }
        let group = Group {
            partition: None,
            members,
        };
        let groups = [group];
        self.run(&groups, None)?;
        let folded = groups.into_iter().flat_map(|group| group.members);
        self.folded.extend(folded.map(|member| member.folded));
        Ok(self.results[0].0)
    }

    /// The same for each of some partitions, one model each.
    pub(crate) fn likelihoods_of_partitions(
        &mut self,
        places: impl Iterator<Item = (Place, c_int)>,
    ) -> Result<Vec<[f64; 3]>, Refusal> {
        if self.scales_by_itself() {
            return Err(Refusal::NoImplementation);
        }
        let groups = places.map(|(place, partition)| {
            Ok(Group {
                partition: Some(below(partition, self.partitions)?),
                members: vec![self.member(&place, false)?],
            })
        });
        let groups = groups.collect::<Result<Vec<Group>, Refusal>>()?;
        if groups.is_empty() {
            return Err(Refusal::OutOfRange);
        }
        self.run(&groups, None)?;
        Ok(self.results.iter().map(|sums| sums.0).collect())
    }

    fn member(&mut self, place: &Place, is_mixed: bool) -> Result<Member, Refusal> {
        let near = below(place.near, self.buffers)?;
        // The near side is read as partials, which a tip with states lacks.
        if self.coded[near] || self.lacks_data(near) {
            return Err(Refusal::OutOfRange);
        }
        let factors = self.factors(place.weights, place.frequencies)?;
        let mut child = None;
        let mut folded = self.folded.pop().unwrap_or_default();
        let wanted = place
            .edge
            .map_or(1, |(_, orders)| orders.iter().flatten().count());
        folded.resize_with(wanted, Matrix::default);
        match place.edge {
            None => folded[0].set_root(self.kernels, &factors),
            Some((buffer, matrices)) => {
                let buffer = below(buffer, self.buffers)?;
                if self.lacks_data(buffer) {
                    return Err(Refusal::OutOfRange);
                }
                child = Some(buffer);
                for (index, to) in matrices.into_iter().flatten().zip(&mut folded) {
                    let matrix = &self.matrices[below(index, self.matrices.len())?];
                    if !matrix.is_set() {
                        return Err(Refusal::OutOfRange);
                    }
                    let is_coded = self.coded[buffer];
                    matrix.fold_into(self.kernels, self.states, &factors, is_coded, to);
                }
            }
        }
        let scale = match self.mode {
            // It has one sum of the client's: each model of a mixture has its tree's own instead.
            Mode::Auto => (!is_mixed).then_some(0),
            // The buffer's own scale at a root, a sum over an edge.
            Mode::Always if child.is_some() => Some(self.scales - 1),
            Mode::Always => Some(near.checked_sub(self.tips).ok_or(Refusal::OutOfRange)?),
            _ => below_or_none(place.scale, self.scales)?,
        };
        let ends = [Some(near), child].into_iter().flatten();
        let ends = ends.filter_map(|end| end.checked_sub(self.tips));
        Ok(Member {
            near,
            child,
            folded,
            scale,
            scaled: match self.mode {
                Mode::Auto if is_mixed => ends.collect(),
                _ => Vec::new(),
            },
        })
    }

    /// Over an edge the scale is the sum of both ends'.
    fn add_below(&mut self, member: &Member) -> Result<(), Refusal> {
        let Some(child) = member.child else {
            return Ok(());
        };
        let into = c_int::try_from(self.scales - 1).map_err(|_| Refusal::OutOfRange)?;
        let ends = [member.near, child].into_iter();
        // Tips have no scale buffer.
        let ends = ends.filter_map(|end| end.checked_sub(self.tips));
        let ends: Vec<c_int> = ends.filter_map(|end| c_int::try_from(end).ok()).collect();
        self.reset(into, None)?;
        self.accumulate(&ends, into, 1.0, None)
    }

    /// For each category and state the weight times the frequency.
    fn factors(&self, weights: c_int, frequencies: c_int) -> Result<Vec<f64>, Refusal> {
        let weights = below(weights, self.models.weights.len())?;
        let frequencies = below(frequencies, self.models.frequencies.len())?;
        let weights = self.models.weights[weights].as_ref();
        let frequencies = self.models.frequencies[frequencies].as_ref();
        let (Some(weights), Some(frequencies)) = (weights, frequencies) else {
            return Err(Refusal::OutOfRange);
        };
        let shape = self.kernels.shape();
        // Padding keeps the factor 0, so it adds nothing to a likelihood.
        let mut factors = vec![0.0; shape.span()];
        for (factors, weight) in factors.chunks_exact_mut(shape.states).zip(weights) {
            for (factor, frequency) in factors.iter_mut().zip(frequencies) {
                *factor = weight * frequency;
            }
        }
        Ok(factors)
    }
}

impl Chunk {
    /// The log-likelihood of a mixture of models.
    pub(crate) fn evaluate(&mut self, kernels: Kernels, members: &[Member]) -> Sums {
        match members {
            [member] => {
                let orders = member.folded.len();
                self.sums(kernels, member);
                let lnl = &mut self.sites[0];
                kernels.logarithms(self.work.sums[0].as_slice(), &self.work.no_fixed, lnl);
                // Cumulative buffers hold logarithms, in raw mode too.
                if let Some(scale) = member.scale {
                    for (lnl, scale) in lnl.iter_mut().zip(&self.scales[scale]) {
                        *lnl += scale;
                    }
                }
                self.derive(orders);
                self.weigh(orders)
            }
            members => self.mix(kernels, members),
        }
    }

    /// Several models of each pattern, each with a scale of its own.
    fn mix(&mut self, kernels: Kernels, members: &[Member]) -> Sums {
        let patterns = self.patterns();
        let mut sums = vec![0.0; patterns];
        // The largest scale is factored out of the sum: exponentials of scales would underflow.
        let most: Vec<f64> = (0..patterns)
            .map(|k| {
                let each = members.iter().map(|member| self.scale_of(member, k));
                each.fold(f64::NEG_INFINITY, f64::max)
            })
            .collect();
        for member in members {
            self.sums(kernels, member);
            for (k, sum) in sums.iter_mut().enumerate() {
                let scale = self.scale_of(member, k);
                // Equal scales need no exponential, and two infinities would give NaN.
                let factor = if scale == most[k] {
                    1.0
                } else {
                    (scale - most[k]).exp()
                };
                *sum += self.work.sums[0].doubles()[k] * factor;
            }
        }
        for ((lnl, sum), most) in self.sites[0].iter_mut().zip(sums).zip(most) {
            *lnl = sum.ln() + most;
        }
        self.weigh(1)
    }

    /// The logarithm of what was taken from a pattern.
    fn scale_of(&self, member: &Member, pattern: usize) -> f64 {
        let buffer = member.scale.map_or(0.0, |at| self.scales[at][pattern]);
        // A list is empty where nothing was taken.
        let taken = |&inner: &usize| self.totals[inner].get(pattern);
        buffer + member.scaled.iter().filter_map(taken).sum::<f64>()
    }

    /// The likelihood of each pattern, and its derivatives as far as they are wanted.
    pub(crate) fn sums(&mut self, kernels: Kernels, member: &Member) {
        self.fill_in(kernels, member.near);
        if let Some(child) = member.child
            && self.nodes[child].codes.is_empty()
        {
            self.fill_in(kernels, child);
        }
        let near = &self.nodes[member.near];
        let near_index = near.index(&self.work.identity);
        for (folded, sums) in member.folded.iter().zip(&mut self.work.sums) {
            // At a root every pattern has the one span of the table.
            let (node, index) = match member.child {
                Some(child) => (&self.nodes[child], None),
                None => (&self.work.root, Some(&*self.work.zeros)),
            };
            let right = Child {
                node,
                matrix: Some(folded),
                index: index.unwrap_or_else(|| node.index(&self.work.identity)),
            };
            // Single precision has no kernel for sums: products go to `spare` and are added there.
            if kernels.single().is_some() {
                let near = (&near.values, near_index);
                let sums = sums.doubles_mut();
                self.work.spare.total(kernels, near, right, sums);
                continue;
            }
            // The near side is not moved over a branch, so it needs no matrix.
            let near = Inner {
                matrix: &[],
                values: near.values.quads(),
                scalers: &[],
                index: near_index,
            };
            let terms = self.work.terms.as_mut_slice();
            let right = right.operand(0..near_index.len());
            kernels.sums(
                &near,
                &right,
                terms,
                &mut self.work.counts,
                sums.as_mut_slice(),
            );
        }
    }

    fn derive(&mut self, orders: usize) {
        if orders < 2 {
            return;
        }
        let [sums, first, second] = self.work.sums.each_ref().map(Buffer::doubles);
        let [_, one, two] = &mut self.sites;
        // Derivatives of ln f: f'/f, and f''/f - (f'/f)^2. Scale factors cancel in both.
        for (k, (one, two)) in one.iter_mut().zip(two).enumerate() {
            *one = first[k] / sums[k];
            if orders > 2 {
                *two = second[k] / sums[k] - *one * *one;
            }
        }
    }

    fn weigh(&self, orders: usize) -> Sums {
        let mut sums = Sums::default();
        for (sum, sites) in sums.0.iter_mut().zip(&self.sites).take(orders) {
            *sum = weighted(sites, &self.weights);
        }
        sums
    }
}

/// The sum of products, in four lanes.
fn weighted(sites: &[f64], weights: &[f64]) -> f64 {
    // Four sums break the chain of dependent additions; their order is fixed.
    let mut lanes = [0.0; 4];
    let (sites, last) = sites.as_chunks::<4>();
    let (weights, last_weights) = weights.as_chunks::<4>();
    for (sites, weights) in sites.iter().zip(weights) {
        for (lane, (site, weight)) in lanes.iter_mut().zip(sites.iter().zip(weights)) {
            *lane += site * weight;
        }
    }
    let rest: f64 = last
        .iter()
        .zip(last_weights)
        .map(|(site, weight)| site * weight)
        .sum();
    (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]) + rest
}
