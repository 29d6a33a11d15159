//! A chunk: neighbouring patterns of one partition with all of their values.
//!
//! Must stay true: a chunk reads and writes nothing of other chunks; what a pattern gets does not
//! depend on the chunk that it is in.

use crate::kernels::Kernels;
use crate::matrices::Matrix;
use crate::repeats::{Classes, Repeats};
use crate::steps::{Group, Member, Scaling, Step, Sums, Update};
use sidecore_likelihood::kernel::{Buffer, Inner, Operand, Tip};
use std::sync::Arc;

/// Context that chunks share while they run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) kernels: Kernels,
    pub(crate) matrices: &'a [Matrix],
    /// Scale buffers hold logarithms.
    pub(crate) logs: bool,
}

/// Values of a node for the patterns of a chunk.
#[derive(Debug, Default)]
pub(crate) struct Node {
    /// A tip's states; empty for others.
    pub(crate) codes: Vec<u16>,
    /// Partials, span by span, of each class or else of each pattern; empty until they are written.
    pub(crate) values: Buffer,
    /// Classes of the patterns, if they repeat.
    pub(crate) classes: Option<Arc<Classes>>,
}

impl Node {
    /// The span of each pattern, where all have their own by `identity`.
    fn index<'a>(&'a self, identity: &'a [u16]) -> &'a [u16] {
        self.classes
            .as_ref()
            .map_or(identity, |classes| &classes.of)
    }

    /// The span of a pattern.
    pub(crate) fn span_of(&self, pattern: usize) -> usize {
        self.classes
            .as_ref()
            .map_or(pattern, |classes| usize::from(classes.of[pattern]))
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Chunk {
    /// Its partition.
    pub(crate) partition: usize,
    /// Place of its first pattern in the order of patterns.
    pub(crate) first: usize,
    /// By buffer.
    pub(crate) nodes: Vec<Node>,
    /// By scale buffer: one factor, or its logarithm, a pattern.
    pub(crate) scales: Vec<Vec<f64>>,
    /// By inner node: the logarithms that automatic scaling took; empty where it took none.
    pub(crate) taken: Vec<Vec<f64>>,
    /// Weights of the patterns.
    pub(crate) weights: Vec<f64>,
    /// Log-likelihood of each pattern and its derivatives.
    pub(crate) sites: [Vec<f64>; 3],
    /// Results of the last groups.
    pub(crate) results: Vec<Sums>,
    work: Work,
    repeats: Repeats,
}

/// Memory that is used in one step.
#[derive(Debug)]
struct Work {
    identity: Vec<u16>,
    zeros: Vec<u16>,
    counts: Vec<u16>,
    spare: Buffer,
    terms: Buffer,
    sums: [Buffer; 3],
    no_fixed: Vec<f64>,
}

/// Numbers of buffers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Extents {
    pub(crate) nodes: usize,
    pub(crate) scales: usize,
    /// Initial value of scale buffers.
    pub(crate) scale: f64,
    pub(crate) inner: usize,
}

impl Chunk {
    /// For `patterns` patterns from the place `first` on.
    pub(crate) fn new(
        kernels: Kernels,
        extents: Extents,
        partition: usize,
        first: usize,
        patterns: usize,
    ) -> Self {
        let rates = kernels.shape().rates;
        let fours = patterns.div_ceil(4);
        Self {
            partition,
            first,
            nodes: (0..extents.nodes).map(|_| Node::default()).collect(),
            scales: vec![vec![extents.scale; patterns]; extents.scales],
            taken: vec![Vec::new(); extents.inner],
            weights: vec![1.0; patterns],
            sites: std::array::from_fn(|_| vec![0.0; patterns]),
            results: Vec::new(),
            work: Work {
                identity: (0..=u16::MAX).take(patterns).collect(),
                zeros: vec![0; patterns],
                counts: vec![0; patterns * rates],
                spare: Buffer::default(),
                terms: Buffer::new(fours * rates),
                sums: std::array::from_fn(|_| Buffer::new(fours)),
                no_fixed: vec![0.0; patterns],
            },
            repeats: Repeats::default(),
        }
    }

    /// Number of patterns.
    pub(crate) fn patterns(&self) -> usize {
        self.weights.len()
    }

    /// Does all steps, then all groups.
    pub(crate) fn run(&mut self, context: Context<'_>, steps: &[Step], groups: &[Group]) {
        for step in steps {
            self.step(context, step);
        }
        if groups.is_empty() {
            return;
        }
        self.results.clear();
        for group in groups {
            let sums = match self.is_in(group.partition) {
                true => self.evaluate(context.kernels, &group.members),
                false => Sums::default(),
            };
            self.results.push(sums);
        }
    }

    /// True if this chunk is in the partition, or all are meant.
    pub(crate) fn is_in(&self, partition: Option<usize>) -> bool {
        partition.is_none_or(|partition| partition == self.partition)
    }

    fn step(&mut self, context: Context<'_>, step: &Step) {
        match step {
            Step::Update(update) if self.is_in(update.partition) => {
                self.update(context, update);
            }
            Step::Accumulate {
                from,
                into,
                sign,
                partition,
            } if self.is_in(*partition) => {
                for &from in from {
                    self.accumulate(context.logs, from, *into, *sign);
                }
            }
            Step::Collect { nodes } => {
                let into = &mut self.scales[0];
                into.fill(0.0);
                for &node in nodes {
                    for (into, taken) in into.iter_mut().zip(&self.taken[node]) {
                        *into += taken;
                    }
                }
            }
            Step::Reset { at, partition } if self.is_in(*partition) => {
                self.scales[*at].fill(0.0);
            }
            Step::Copy { from, into } if from != into => {
                let mut to = std::mem::take(&mut self.scales[*into]);
                to.copy_from_slice(&self.scales[*from]);
                self.scales[*into] = to;
            }
            _ => {}
        }
    }

    fn accumulate(&mut self, logs: bool, from: usize, into: usize, sign: f64) {
        let mut to = std::mem::take(&mut self.scales[into]);
        // A buffer that is added to itself is read as it was.
        let copy = (from == into).then(|| to.clone());
        let factors = copy.as_ref().unwrap_or(&self.scales[from]);
        for (to, &factor) in to.iter_mut().zip(factors) {
            *to += sign * if logs { factor } else { factor.ln() };
        }
        self.scales[into] = to;
    }

    /// Makes sure that a buffer has values: zeros if none were written.
    pub(crate) fn fill_in(&mut self, kernels: Kernels, node: usize) -> &mut [f64] {
        let quads = self.patterns() * kernels.shape().quads();
        let values = &mut self.nodes[node].values;
        if values.doubles().is_empty() {
            values.resize(quads);
        }
        values.doubles_mut()
    }

    /// Makes a buffer a tip with states.
    pub(crate) fn set_codes(&mut self, node: usize, codes: Vec<u16>) {
        self.nodes[node].classes = Some(self.repeats.of_tip(&codes));
        self.nodes[node].codes = codes;
    }

    /// The spans of a buffer, one a pattern, to be written.
    pub(crate) fn spans_of_patterns(&mut self, kernels: Kernels, node: usize) -> &mut [f64] {
        self.nodes[node].codes = Vec::new();
        self.nodes[node].classes = None;
        self.fill_in(kernels, node)
    }

    fn update(&mut self, context: Context<'_>, update: &Update) {
        let kernels = context.kernels;
        for child in update.children {
            if self.nodes[child].codes.is_empty() {
                self.fill_in(kernels, child);
            }
        }
        let children = update.children.map(|child| &self.nodes[child]);
        let lists_max = LISTS_EACH * self.nodes.len();
        let classes = match children.map(|child| child.classes.as_ref()) {
            [Some(left), Some(right)] => self.repeats.of_node(left, right, lists_max),
            _ => None,
        };
        // The result may be one of the operands.
        let mut values = std::mem::take(&mut self.work.spare);
        if !update.children.contains(&update.destination) {
            std::mem::swap(&mut values, &mut self.nodes[update.destination].values);
        }
        values.resize(self.patterns() * kernels.shape().quads());
        let [left, right] = [0, 1].map(|side| {
            let node = &self.nodes[update.children[side]];
            let index = match &classes {
                Some(classes) => &classes.below[side],
                None => node.index(&self.work.identity),
            };
            operand(node, &context.matrices[update.matrices[side]], index)
        });
        let counts = &mut self.work.counts;
        kernels.newview(&left, &right, values.as_mut_slice(), counts);
        let node = &mut self.nodes[update.destination];
        std::mem::swap(&mut values, &mut node.values);
        node.classes = classes;
        self.work.spare = values;
        self.scale(context, update.destination, update.scaling);
    }

    fn scale(&mut self, context: Context<'_>, node: usize, scaling: Scaling) {
        let span = context.kernels.shape().span();
        match scaling {
            Scaling::Keep => {}
            Scaling::Write {
                at,
                cumulative,
                replaced,
                below,
            } => {
                if let (Some(from), Some(into)) = (replaced, cumulative) {
                    self.accumulate(context.logs, from, into, -1.0);
                }
                let factor = |span: &mut [f64]| match context.logs {
                    true => lower(span).ln(),
                    false => lower(span),
                };
                each_span(&mut self.nodes[node], span, &mut self.scales[at], factor);
                if let Some(into) = cumulative.filter(|into| *into != at) {
                    self.accumulate(context.logs, at, into, 1.0);
                }
                for below in below.into_iter().flatten() {
                    self.accumulate(true, below, at, 1.0);
                }
            }
            Scaling::Read { at } => {
                if self.differs_within_classes(node, at) {
                    self.expand(span, node);
                }
                let node = &mut self.nodes[node];
                let factors = &self.scales[at];
                let divide = |span: &mut [f64], factor: f64| {
                    let factor = if context.logs { factor.exp() } else { factor };
                    span.iter_mut().for_each(|value| *value /= factor);
                };
                let spans = node.values.doubles_mut().chunks_exact_mut(span);
                match &node.classes {
                    Some(classes) => spans
                        .zip(&classes.first)
                        .for_each(|(span, &first)| divide(span, factors[usize::from(first)])),
                    None => spans
                        .zip(factors)
                        .for_each(|(span, &factor)| divide(span, factor)),
                }
            }
            Scaling::Auto { node: inner } => {
                let taken = &mut self.taken[inner];
                taken.clear();
                let node = &mut self.nodes[node];
                let spans = node.classes.as_ref().map(|classes| classes.first.len());
                let spans = spans.unwrap_or(self.weights.len());
                if node.values.doubles()[..spans * span]
                    .chunks_exact(span)
                    .any(is_far)
                {
                    taken.resize(self.weights.len(), 0.0);
                    each_span(node, span, taken, lower_by_power);
                }
            }
        }
    }

    /// True if a scale buffer, which is of another tree, tells apart what repeats.
    fn differs_within_classes(&self, node: usize, scale: usize) -> bool {
        let Some(classes) = &self.nodes[node].classes else {
            return false;
        };
        let factors = &self.scales[scale];
        let first = |class: u16| factors[usize::from(classes.first[usize::from(class)])];
        let mut pairs = factors.iter().zip(&classes.of);
        pairs.any(|(factor, &class)| factor.to_bits() != first(class).to_bits())
    }

    /// Gives each pattern a span of its own.
    fn expand(&mut self, span: usize, node: usize) {
        let node = &mut self.nodes[node];
        if let Some(classes) = node.classes.take() {
            let spare = &mut self.work.spare;
            spare.resize(node.values.as_slice().len());
            let spans = spare.doubles_mut().chunks_exact_mut(span);
            for (to, &class) in spans.zip(&classes.of) {
                to.copy_from_slice(&node.values.doubles()[usize::from(class) * span..][..span]);
            }
            std::mem::swap(spare, &mut node.values);
        }
    }

    fn evaluate(&mut self, kernels: Kernels, members: &[Member]) -> Sums {
        match members {
            [member] => {
                let orders = member.folded.len();
                self.sums(kernels, member);
                let lnl = &mut self.sites[0];
                kernels.logarithms(self.work.sums[0].as_slice(), &self.work.no_fixed, lnl);
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
        let scales = members.iter().map(|member| member.scale);
        let most: Vec<f64> = (0..patterns)
            .map(|k| {
                let each = scales
                    .clone()
                    .map(|at| at.map_or(0.0, |at| self.scales[at][k]));
                each.fold(f64::NEG_INFINITY, f64::max)
            })
            .collect();
        for member in members {
            self.sums(kernels, member);
            for (k, sum) in sums.iter_mut().enumerate() {
                let scale = member.scale.map_or(0.0, |at| self.scales[at][k]);
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

    /// The likelihood of each pattern, and its derivatives as far as they are wanted.
    fn sums(&mut self, kernels: Kernels, member: &Member) {
        self.fill_in(kernels, member.near);
        if let Some(child) = member.child
            && self.nodes[child].codes.is_empty()
        {
            self.fill_in(kernels, child);
        }
        let near = Inner {
            matrix: &[],
            values: self.nodes[member.near].values.as_slice(),
            scalers: &[],
            index: self.nodes[member.near].index(&self.work.identity),
        };
        for (folded, sums) in member.folded.iter().zip(&mut self.work.sums) {
            let right = match member.child {
                Some(child) => {
                    let child = &self.nodes[child];
                    operand(child, folded, child.index(&self.work.identity))
                }
                None => Operand::Tip(Tip {
                    table: folded.table.as_slice(),
                    index: &self.work.zeros,
                }),
            };
            let terms = self.work.terms.as_mut_slice();
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

/// A child as the kernels take it.
fn operand<'a>(node: &'a Node, matrix: &'a Matrix, index: &'a [u16]) -> Operand<'a> {
    match node.codes.is_empty() {
        false => Operand::Tip(Tip {
            table: matrix.table.as_slice(),
            index,
        }),
        true => Operand::Inner(Inner {
            matrix: matrix.columns.as_slice(),
            values: node.values.as_slice(),
            scalers: &[],
            index,
        }),
    }
}

/// Changes each span of a node, and gives each pattern what that gave.
fn each_span(node: &mut Node, span: usize, to: &mut [f64], change: impl Fn(&mut [f64]) -> f64) {
    let spans = node.values.doubles_mut().chunks_exact_mut(span);
    match &node.classes {
        Some(classes) => {
            let given = spans.take(classes.first.len()).map(change);
            let given: Vec<f64> = given.collect();
            for (to, &class) in to.iter_mut().zip(&classes.of) {
                *to = given[usize::from(class)];
            }
        }
        None => {
            for (to, span) in to.iter_mut().zip(spans) {
                *to = change(span);
            }
        }
    }
}

/// The sum of products, in four lanes.
fn weighted(sites: &[f64], weights: &[f64]) -> f64 {
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

/// The largest entry, 0 if none is positive.
fn largest(span: &[f64]) -> f64 {
    let mut lanes = [0.0_f64; 4];
    // A span is a whole number of quads.
    for quad in span.as_chunks::<4>().0 {
        for (lane, &value) in lanes.iter_mut().zip(quad) {
            *lane = if value > *lane { value } else { *lane };
        }
    }
    lanes.into_iter().fold(0.0, f64::max)
}

/// Divides a span by its largest entry, which is returned; 1 if that is 0.
fn lower(span: &mut [f64]) -> f64 {
    let largest = largest(span);
    if largest == 0.0 {
        return 1.0;
    }
    let inverse = 1.0 / largest;
    span.iter_mut().for_each(|value| *value *= inverse);
    largest
}

/// True if a positive entry's exponent is far from 0.
fn is_far(span: &[f64]) -> bool {
    span.iter()
        .any(|&value| value > 0.0 && exponent(value).abs() > AUTO_EXPONENT)
}

/// Takes a power of two, so that the largest entry lies from a half to 1; its logarithm.
fn lower_by_power(span: &mut [f64]) -> f64 {
    let largest = largest(span);
    if !(largest.is_finite() && largest > 0.0) {
        return 0.0;
    }
    let power = exponent(largest);
    // In two steps: one factor alone may be beyond the largest double.
    let half = power / 2;
    let (first, second) = (2.0_f64.powi(-half), 2.0_f64.powi(half - power));
    span.iter_mut()
        .for_each(|value| *value = *value * first * second);
    f64::from(power) * std::f64::consts::LN_2
}

/// The exponent of a positive number as a fraction from a half to 1 times a power of two.
fn exponent(value: f64) -> i32 {
    let bits = |value: f64| i32::try_from(value.to_bits() >> 52 & 0x7ff).unwrap_or(0) - 1022;
    match value.is_normal() {
        true => bits(value),
        // A subnormal number, made normal first.
        false => bits(value * 2.0_f64.powi(64)) - 64,
    }
}

/// Lists of classes that are kept for each buffer.
const LISTS_EACH: usize = 4;
/// Automatic scaling begins beyond this power of two.
const AUTO_EXPONENT: i32 = 200;
