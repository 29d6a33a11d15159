//! Derivatives by the lengths of all branches at once, from partials of both orders.
//!
//! How: the partials below a branch and the pre-order partials above it meet at its lower end. With
//! a differential matrix between them they give the derivative of the likelihood, without one the
//! likelihood; a factor that scaling took from a pattern is in both.
//! Source: Ji and others, "Gradients do grow on trees: a linear-time O(N)-dimensional gradient for
//! statistical phylogenetics", 2020.

use crate::abi::Refusal;
use crate::chunk::{Chunk, Context, sides};
use crate::data::below;
use crate::engines;
use crate::instance::Instance;
use crate::kernels::Kernels;
use crate::matrices::Matrix;
use crate::steps::{Branch, Gradient, Member, Slope, Step, Update};
use crate::values::{Child, Descent};
use sidecore_likelihood::kernel::Buffer;
use std::ffi::c_int;
use std::ops::Range;

/// A branch, as the client names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ends {
    /// The buffer below it.
    pub(crate) post: c_int,
    /// The buffer of its pre-order partials.
    pub(crate) pre: c_int,
}

/// A branch whose cross products are wanted.
#[derive(Debug, Clone, Copy)]
struct Crossing {
    post: usize,
    pre: usize,
    length: f64,
}

impl Instance {
    /// The slopes at branches, each with the index of its differential matrix.
    pub(crate) fn slopes(
        &mut self,
        branches: impl Iterator<Item = (Ends, c_int)>,
        weights: c_int,
        with_sites: bool,
    ) -> Result<Vec<Slope>, Refusal> {
        let weights = self.weights(weights)?.to_vec();
        let (kernels, states) = (self.kernels, self.states);
        // Made when first needed: most clients never ask for slopes.
        if !self.identity.is_set() {
            self.identity = Matrix::identity(kernels, states);
            self.identity.tabulate(kernels, states);
        }
        let branches = branches.map(|(ends, matrix)| {
            let (post, pre) = self.ends(ends)?;
            let matrix = below(matrix, self.matrices.len())?;
            match self.matrices[matrix].is_set() {
                true => Ok((post, pre, matrix)),
                false => Err(Refusal::OutOfRange),
            }
        });
        // All are checked before any table is made.
        let branches = branches.collect::<Result<Vec<_>, Refusal>>()?;
        let mut all = Vec::with_capacity(branches.len());
        for (post, pre, matrix) in branches {
            // Single precision takes both sums from the likelihood's
            // kernel, with weights in the matrices.
            let folded = match kernels.single() {
                Some(_) => Some(self.folded(&weights, [post, pre], matrix)),
                None => {
                    if self.coded[post] {
                        self.matrices[matrix].tabulate(kernels, states);
                    }
                    None
                }
            };
            all.push(Branch {
                post,
                pre,
                matrix,
                folded,
            });
        }
        let gradient = Gradient {
            branches: all,
            weights,
            with_sites,
        };
        self.run(&[], Some(&gradient))?;
        let all = &gradient.branches;
        let mut slopes: Vec<Slope> = all.iter().map(|_| Slope::default()).collect();
        for chunk in &mut self.chunks {
            let places = &self.order[chunk.first..];
            for (slope, part) in slopes.iter_mut().zip(chunk.slopes.drain(..)) {
                slope.sum += part.sum;
                slope.squares += part.squares;
                if with_sites {
                    slope.sites.resize(self.patterns, 0.0);
                    // Sites come in the order of chunks; clients see their own.
                    for (&pattern, site) in places.iter().zip(part.sites) {
                        slope.sites[pattern] = site;
                    }
                }
            }
        }
        Ok(slopes)
    }

    /// Adds to `to`, a row for each state above, the products of the partials above and below of
    /// branches, each with its length: times rates, lengths and weights, as shares of the
    /// likelihood.
    pub(crate) fn add_cross_products(
        &mut self,
        branches: impl Iterator<Item = (Ends, f64)>,
        [rates, weights]: [c_int; 2],
        to: &mut [f64],
    ) -> Result<(), Refusal> {
        let rates = &self.models.rates[below(rates, self.models.rates.len())?];
        let weights = self.weights(weights)?;
        let each = weights.iter().zip(rates);
        let each: Vec<[f64; 2]> = each
            .map(|(&weight, &rate)| [weight, weight * rate])
            .collect();
        let crossings = branches.map(|(ends, length)| {
            let (post, pre) = self.ends(ends)?;
            Ok(Crossing { post, pre, length })
        });
        let crossings = crossings.collect::<Result<Vec<Crossing>, Refusal>>()?;
        self.settle()?;
        let (kernels, states) = (self.kernels, self.states);
        let ns = self.likelihoods_ns(crossings.len());
        engines::run(self.width, ns, &mut self.chunks, |chunk| {
            chunk.crossed = vec![0.0; states * states];
            for crossing in &crossings {
                chunk.cross(kernels, states, &each, *crossing);
            }
        })?;
        // In the order of chunks: the sum is the same for any number of engines.
        for chunk in &mut self.chunks {
            for (to, crossed) in to.iter_mut().zip(std::mem::take(&mut chunk.crossed)) {
                *to += crossed;
            }
        }
        Ok(())
    }

    /// A model whose two sums are those of a slope.
    fn folded(&self, weights: &[f64], [post, pre]: [usize; 2], matrix: usize) -> Member {
        let states = self.kernels.shape().states;
        let of_category = |weight: &f64| std::iter::repeat_n(*weight, states);
        let factors: Vec<f64> = weights.iter().flat_map(of_category).collect();
        let both = [&self.identity, &self.matrices[matrix]];
        let is_coded = self.coded[post];
        let folded = both.map(|matrix| {
            let mut folded = Matrix::default();
            matrix.fold_into(self.kernels, self.states, &factors, is_coded, &mut folded);
            folded
        });
        Member {
            near: pre,
            child: Some(post),
            folded: folded.into(),
            scale: None,
            scaled: Vec::new(),
        }
    }

    fn ends(&self, ends: Ends) -> Result<(usize, usize), Refusal> {
        let post = below(ends.post, self.buffers)?;
        let pre = below(ends.pre, self.buffers)?;
        // Pre-order partials are never states.
        match self.coded[pre] || self.lacks_data(pre) || self.lacks_data(post) {
            true => Err(Refusal::OutOfRange),
            false => Ok((post, pre)),
        }
    }

    fn weights(&self, index: c_int) -> Result<&[f64], Refusal> {
        let index = below(index, self.models.weights.len())?;
        self.models.weights[index]
            .as_deref()
            .ok_or(Refusal::OutOfRange)
    }
}

impl Chunk {
    /// Does the last steps, pre-order updates that [`crate::steps::fused`] names, and then the
    /// slopes, some patterns at a time: what one writes the next reads in the second-level cache.
    pub(crate) fn gradient(
        &mut self,
        context: Context<'_>,
        identity: &Matrix,
        steps: &[Step],
        gradient: &Gradient,
    ) {
        let updates = steps.iter().filter_map(|step| match step {
            Step::Update(update) if self.is_in(update.partition) => Some(update),
            _ => None,
        });
        let updates: Vec<&Update> = updates.collect();
        // Room for all patterns first: the blocks then fill parts of it.
        for update in &updates {
            self.make_room(context.kernels, update);
        }
        self.slopes = gradient.branches.iter().map(|_| Slope::default()).collect();
        let patterns = self.patterns();
        // Single precision fuses nothing, so it comes here with one block, as `sums` needs it.
        let size = match updates.len() * context.kernels.span_bytes() {
            0 => patterns,
            bytes => (FUSED_BYTES / bytes).next_multiple_of(PATTERNS_MULTIPLE),
        };
        // `clamp` panics on bounds in the wrong order, which few patterns would give.
        let size = size.clamp(PATTERNS_MULTIPLE, patterns.max(PATTERNS_MULTIPLE));
        for first in (0..patterns).step_by(size) {
            let block = first..patterns.min(first + size);
            for update in &updates {
                self.descend(context, update, block.clone());
            }
            for (at, branch) in gradient.branches.iter().enumerate() {
                let pair = [&context.matrices[branch.matrix], identity];
                self.add_slope(context.kernels, at, pair, gradient, block.clone());
            }
        }
    }

    fn add_slope(
        &mut self,
        kernels: Kernels,
        at: usize,
        matrices: [&Matrix; 2],
        gradient: &Gradient,
        patterns: Range<usize>,
    ) {
        let branch = &gradient.branches[at];
        match &branch.folded {
            Some(member) => self.sums(kernels, member),
            None => {
                let weights = &gradient.weights;
                self.pre_order_sums(kernels, branch, matrices, weights, patterns.clone());
            }
        }
        // `folded` has the identity first, so the first sum is the likelihood.
        let [below, above, _] = self.work.sums.each_ref().map(Buffer::doubles);
        let slope = &mut self.slopes[at];
        for ((above, below), weight) in above.iter().zip(below).zip(&self.weights[patterns]) {
            // A factor that scaling took from the pattern is in both and cancels.
            let site = above / below;
            slope.sum += weight * site;
            slope.squares += weight * site * site;
            if gradient.with_sites {
                slope.sites.push(site);
            }
        }
    }

    /// Makes room for the result of an update that is not in place, one span a pattern.
    pub(crate) fn make_room(&mut self, kernels: Kernels, update: &Update) {
        for source in update.sources {
            if self.nodes[source].codes.is_empty() {
                self.fill_in(kernels, source);
            }
        }
        let patterns = self.patterns();
        let node = &mut self.nodes[update.destination];
        // Of what was there before.
        node.classes = None;
        node.values.resize_in(kernels, patterns, &self.arena);
    }

    /// Some patterns of a pre-order update for which there is room, without scaling.
    fn descend(&mut self, context: Context<'_>, update: &Update, patterns: Range<usize>) {
        // Taken out while the sources are read; none is the destination, as `fused` made sure.
        let mut values = std::mem::take(&mut self.nodes[update.destination].values);
        let sides = sides(context, &self.nodes, &self.work.identity, update, None);
        let work = Descent {
            meeting: &mut self.work.meeting,
            ones: &self.work.ones,
            identity: &self.work.identity,
            zeros: &self.work.zeros,
        };
        values.descend(context.kernels, sides, patterns, work, None);
        self.nodes[update.destination].values = values;
    }

    fn pre_order_sums(
        &mut self,
        kernels: Kernels,
        branch: &Branch,
        [differential, identity]: [&Matrix; 2],
        weights: &[f64],
        patterns: Range<usize>,
    ) {
        for end in [branch.pre, branch.post] {
            if self.nodes[end].codes.is_empty() {
                self.fill_in(kernels, end);
            }
        }
        let child = |end: usize, matrix| Child {
            node: &self.nodes[end],
            matrix,
            index: self.nodes[end].index(&self.work.identity),
        };
        let near = child(branch.pre, None).spans(patterns.clone());
        let moved = child(branch.post, Some(differential)).operand(patterns.clone());
        let is_coded = !self.nodes[branch.post].codes.is_empty();
        // States become partials through a table only: that of the identity.
        let still = child(branch.post, is_coded.then_some(identity)).spans(patterns);
        let [below, above, _] = &mut self.work.sums;
        let sums = [above.as_mut_slice(), below.as_mut_slice()];
        kernels.pre_order_sums(&near, &moved, &still, weights, sums);
    }

    /// `each` has for each category its weight, and that times its rate.
    fn cross(&mut self, kernels: Kernels, states: usize, each: &[[f64; 2]], branch: Crossing) {
        for end in [branch.pre, branch.post] {
            if self.nodes[end].codes.is_empty() {
                self.fill_in(kernels, end);
            }
        }
        let (pre, post) = (&self.nodes[branch.pre], &self.nodes[branch.post]);
        // Doubles in both precisions: this is the client's view of partials.
        let mut above = vec![0.0; each.len() * states];
        let mut beneath = above.clone();
        for (pattern, pattern_weight) in self.weights.iter().enumerate() {
            pre.partials(kernels, states, pattern, &mut above);
            post.partials(kernels, states, pattern, &mut beneath);
            let mut likelihood = 0.0;
            let categories = above.chunks_exact(states).zip(beneath.chunks_exact(states));
            for ((above, beneath), [weight, _]) in categories.clone().zip(each) {
                let products = above.iter().zip(beneath).map(|(a, b)| a * b);
                likelihood += weight * products.sum::<f64>();
            }
            // Divided by the likelihood: the derivative is that of its logarithm.
            let share = pattern_weight * branch.length / likelihood;
            for ((above, beneath), [_, weight]) in categories.zip(each) {
                let rows = self.crossed.chunks_exact_mut(states);
                for (row, entry) in rows.zip(above) {
                    let factor = entry * weight * share;
                    for (to, entry) in row.iter_mut().zip(beneath) {
                        *to += factor * entry;
                    }
                }
            }
        }
    }
}

/// Bytes of the pre-order partials that are written before they are read for slopes: half of a
/// second-level cache.
const FUSED_BYTES: usize = 256 << 10;
/// The kernels take patterns in groups of this many.
const PATTERNS_MULTIPLE: usize = 16;
