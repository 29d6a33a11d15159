//! A chunk: neighbouring patterns of one partition with all of their values.
//!
//! Must stay true: a chunk reads and writes nothing of other chunks; what a pattern gets does not
//! depend on the chunk that it is in.

use crate::kernels::Kernels;
use crate::matrices::Matrix;
use crate::repeats::{Classes, PAIRS_EACH, PAIRS_OF_FOUR, Repeats};
use crate::steps::{Group, Order, Scaling, Slope, Step, Sums, Update};
use crate::tally::Tally;
use crate::values::{Child, Descent, Node, Values};
use sidecore_likelihood::kernel::{Buffer, SharedArena, add_logarithms};
use std::sync::Arc;

/// Context that chunks share while they run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context<'a> {
    pub(crate) kernels: Kernels,
    pub(crate) matrices: &'a [Matrix],
    /// Scale buffers hold logarithms.
    pub(crate) logs: bool,
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
    /// The same with what it took at all nodes below.
    pub(crate) totals: Vec<Vec<f64>>,
    /// Weights of the patterns.
    pub(crate) weights: Vec<f64>,
    /// Log-likelihood of each pattern and its derivatives.
    pub(crate) sites: [Vec<f64>; 3],
    /// Results of the last groups.
    pub(crate) results: Vec<Sums>,
    /// Slopes at branches, until they are taken.
    pub(crate) slopes: Vec<Slope>,
    /// Cross products, until they are taken.
    pub(crate) crossed: Vec<f64>,
    pub(crate) work: Work,
    tally: Tally,
    repeats: Repeats,
    /// The memory of buffers.
    pub(crate) arena: SharedArena,
}

/// Memory that is used in one step.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) identity: Vec<u16>,
    pub(crate) zeros: Vec<u16>,
    pub(crate) counts: Vec<u16>,
    /// A tip without patterns: its table is read.
    pub(crate) root: Node,
    /// As [`Node::of_ones`] makes it.
    pub(crate) ones: Node,
    /// Partials of some patterns on the way from a parent to its child.
    pub(crate) meeting: Node,
    pub(crate) spare: Values,
    /// Factors of each class, then their logarithms.
    pub(crate) factors: Vec<f64>,
    pub(crate) logarithms: Vec<f64>,
    /// Factors that automatic scaling took at and below one node.
    pub(crate) total: Vec<f64>,
    pub(crate) terms: Buffer,
    pub(crate) sums: [Buffer; 3],
    pub(crate) no_fixed: Vec<f64>,
    /// Places of updates in a run.
    updates: Vec<usize>,
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
    /// For `patterns` patterns from the place `first` on, with buffers in `arena`.
    pub(crate) fn new(
        kernels: Kernels,
        extents: Extents,
        partition: usize,
        first: usize,
        patterns: usize,
        arena: &SharedArena,
    ) -> Self {
        let rates = kernels.shape().rates;
        // The kernels write sums in quads; the last quad of a chunk may be filled in part.
        let fours = patterns.div_ceil(4);
        Self {
            partition,
            first,
            nodes: (0..extents.nodes).map(|_| Node::new(kernels)).collect(),
            scales: vec![vec![extents.scale; patterns]; extents.scales],
            taken: vec![Vec::new(); extents.inner],
            totals: vec![Vec::new(); extents.inner],
            weights: vec![1.0; patterns],
            sites: std::array::from_fn(|_| vec![0.0; patterns]),
            results: Vec::new(),
            slopes: Vec::new(),
            crossed: Vec::new(),
            work: Work {
                identity: (0..=u16::MAX).take(patterns).collect(),
                zeros: vec![0; patterns],
                counts: vec![0; patterns * rates],
                // With a code it is a tip to the kernels, so its partials are never asked for.
                root: Node {
                    codes: vec![0],
                    ..Node::new(kernels)
                },
                ones: Node::of_ones(kernels),
                meeting: Node::new(kernels),
                spare: Values::new(kernels),
                factors: Vec::new(),
                logarithms: Vec::new(),
                total: Vec::new(),
                terms: Buffer::new(fours * rates),
                sums: std::array::from_fn(|_| Buffer::new(fours)),
                no_fixed: vec![0.0; patterns],
                updates: Vec::new(),
            },
            tally: Tally::new(patterns),
            repeats: Repeats::default(),
            arena: arena.clone(),
        }
    }

    /// Number of patterns.
    pub(crate) fn patterns(&self) -> usize {
        self.weights.len()
    }

    /// Does all steps, in runs as [`crate::steps::runs`] gives them, then all groups.
    pub(crate) fn run(&mut self, context: Context<'_>, runs: &[&[Step]], groups: &[Group]) {
        for run in runs {
            match run {
                [step] => self.step(context, step),
                _ => self.together(context, run),
            }
        }
        // The groups read scale buffers, so no sum may be outstanding.
        self.tally.finish(context.kernels.isa(), &mut self.scales);
        if groups.is_empty() {
            return;
        }
        self.results.clear();
        for group in groups {
            // A chunk of another partition gives 0: results line up by group in every chunk.
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
        // A deferred sum must arrive before its buffer is read or overwritten.
        if self.needs_sums(step) {
            self.tally.finish(context.kernels.isa(), &mut self.scales);
        }
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
                    self.accumulate(context, from, *into, *sign);
                }
            }
            Step::Collect { nodes } => {
                // Automatic scaling has one cumulative buffer, the first.
                let into = &mut self.scales[0];
                into.fill(0.0);
                for &node in nodes {
                    // `taken` is empty where nothing was scaled; the zip then adds nothing.
                    for (into, taken) in into.iter_mut().zip(&self.taken[node]) {
                        *into += taken;
                    }
                }
            }
            Step::Reset { at, partition } if self.is_in(*partition) => {
                self.scales[*at].fill(0.0);
            }
            // A copy onto itself would read the list that was just taken out.
            Step::Copy { from, into } if from != into => {
                let mut to = std::mem::take(&mut self.scales[*into]);
                // Copied in place: a clone would allocate in every step.
                to.copy_from_slice(&self.scales[*from]);
                self.scales[*into] = to;
            }
            _ => {}
        }
    }

    /// True if a step reads or overwrites the buffer to which something is still to be added.
    fn needs_sums(&self, step: &Step) -> bool {
        match step {
            Step::Update(update) => match update.scaling {
                // Neither touches a scale buffer: automatic scaling writes to `taken`.
                Scaling::Keep | Scaling::Auto { .. } => false,
                Scaling::Read { at } => self.tally.is_of(at),
                Scaling::Write { at, replaced, .. } => {
                    self.tally.is_of(at) || replaced.is_some_and(|at| self.tally.is_of(at))
                }
            },
            // `into` does not count: adding to the tally's own buffer continues the tally.
            Step::Accumulate { from, .. } => from.iter().any(|&from| self.tally.is_of(from)),
            Step::Collect { .. } | Step::Reset { .. } | Step::Copy { .. } => true,
        }
    }

    fn accumulate(&mut self, context: Context<'_>, from: usize, into: usize, sign: f64) {
        // Raw factors are multiplied up; one logarithm at the end does for all.
        if !context.logs {
            let isa = context.kernels.isa();
            return self.tally.add(isa, &mut self.scales, [from, into], sign);
        }
        let mut to = std::mem::take(&mut self.scales[into]);
        // A buffer that is added to itself is read as it was.
        let copy = (from == into).then(|| to.clone());
        let logarithms = copy.as_ref().unwrap_or(&self.scales[from]);
        for (to, &logarithm) in to.iter_mut().zip(logarithms) {
            *to += sign * logarithm;
        }
        self.scales[into] = to;
    }

    /// Makes sure that a buffer has values: zeros if none were written.
    pub(crate) fn fill_in(&mut self, kernels: Kernels, node: usize) -> &mut Values {
        let patterns = self.patterns();
        let values = &mut self.nodes[node].values;
        // A new buffer is all zeros; an old one keeps what the client wrote.
        if values.len() == 0 {
            values.resize_in(kernels, patterns, &self.arena);
        }
        values
    }

    /// Makes a buffer a tip with states.
    pub(crate) fn set_codes(&mut self, node: usize, codes: Vec<u16>) {
        self.nodes[node].classes = Some(self.repeats.of_tip(&codes));
        self.nodes[node].codes = codes;
    }

    /// The spans of a buffer, one a pattern, to be written.
    pub(crate) fn spans_of_patterns(&mut self, kernels: Kernels, node: usize) -> &mut Values {
        // Old codes or classes would redirect the spans that are about to be set.
        self.nodes[node].codes = Vec::new();
        self.nodes[node].classes = None;
        // The last nodes are the inner ones. Nothing was taken from what a client sets.
        let tips = self.nodes.len() - self.totals.len();
        if let Some(inner) = node.checked_sub(tips) {
            self.totals[inner].clear();
        }
        self.fill_in(kernels, node)
    }

    /// Does updates of one run. What an update writes, the next ones read while it is
    /// in the first-level cache.
    fn together(&mut self, context: Context<'_>, steps: &[Step]) {
        let kernels = context.kernels;
        // Taken out while the chunk's methods are called; its memory is used again.
        let mut updates = std::mem::take(&mut self.work.updates);
        updates.clear();
        for (at, step) in steps.iter().enumerate() {
            match step {
                Step::Update(update) if self.is_in(update.partition) => {
                    match self.classes_of(kernels, update) {
                        // It depends on nodes with classes alone, and these come here, too.
                        Some(classes) => self.compute(context, update, Some(classes)),
                        None => {
                            self.make_room(kernels, update);
                            updates.push(at);
                        }
                    }
                }
                _ => {}
            }
        }
        let patterns = self.patterns();
        let size = match kernels.shape().states {
            4 => (BLOCK_BYTES / kernels.span_bytes()).next_multiple_of(16),
            // Matrices are large: read again for each block they would cost what this saves.
            _ => patterns,
        };
        let size = size.max(1);
        for first in (0..patterns).step_by(size) {
            let block = first..patterns.min(first + size);
            let updates = updates.iter().filter_map(|&at| match &steps[at] {
                Step::Update(update) => Some(update),
                _ => None,
            });
            for update in updates {
                // None of them reads what it writes.
                let node = &mut self.nodes[update.destination];
                let mut values = std::mem::take(&mut node.values);
                let sides = sides(context, &self.nodes, &self.work.identity, update, None);
                values.product(kernels, sides, block.clone(), &mut self.work.counts);
                self.nodes[update.destination].values = values;
            }
        }
        self.work.updates = updates;
    }

    fn update(&mut self, context: Context<'_>, update: &Update) {
        let kernels = context.kernels;
        // An empty buffer would give the kernels slices that are too short.
        for source in update.sources {
            if self.nodes[source].codes.is_empty() {
                self.fill_in(kernels, source);
            }
        }
        let classes = self.classes_of(kernels, update);
        self.compute(context, update, classes);
    }

    /// The classes of an update's result, if it is worth having them.
    fn classes_of(&mut self, kernels: Kernels, update: &Update) -> Option<Arc<Classes>> {
        let sources = update.sources.map(|source| &self.nodes[source]);
        let lists_max = LISTS_EACH * self.nodes.len();
        // Pre-order partials have no classes: they depend on the tree
        // above, which differs by pattern.
        match sources.map(|source| source.classes.as_ref()) {
            [Some(left), Some(right)] if update.order == Order::Post => {
                let pairs = match kernels.shape().states {
                    4 => PAIRS_OF_FOUR,
                    _ => PAIRS_EACH,
                };
                self.repeats.of_node(left, right, lists_max, pairs)
            }
            _ => None,
        }
    }

    fn compute(&mut self, context: Context<'_>, update: &Update, classes: Option<Arc<Classes>>) {
        let kernels = context.kernels;
        // The result may be one of the operands.
        let mut values = std::mem::take(&mut self.work.spare);
        // Otherwise the destination's own memory is used, which has its size already.
        if !update.sources.contains(&update.destination) {
            std::mem::swap(&mut values, &mut self.nodes[update.destination].values);
        }
        values.resize_in(kernels, self.patterns(), &self.arena);
        let identity = &self.work.identity;
        let sides = sides(context, &self.nodes, identity, update, classes.as_deref());
        let factors = &mut self.work.factors;
        let factors = matches!(update.scaling, Scaling::Write { .. }).then_some(factors);
        match update.order {
            Order::Post => values.compute(kernels, sides, &mut self.work.counts, factors),
            Order::Pre => {
                let work = Descent {
                    meeting: &mut self.work.meeting,
                    ones: &self.work.ones,
                    identity: &self.work.identity,
                    zeros: &self.work.zeros,
                };
                let all = 0..self.weights.len();
                values.descend(kernels, sides, all, work, factors);
            }
        }
        let node = &mut self.nodes[update.destination];
        std::mem::swap(&mut values, &mut node.values);
        // Set before scaling, which spreads factors of classes over the patterns.
        node.classes = classes;
        self.work.spare = values;
        self.scale(context, update.destination, update.scaling);
    }

    fn scale(&mut self, context: Context<'_>, node: usize, scaling: Scaling) {
        let kernels = context.kernels;
        match scaling {
            Scaling::Keep => {}
            Scaling::Write {
                at,
                cumulative,
                replaced,
                below,
            } => {
                // First of all: `from` may be `at`, which is overwritten below.
                if let (Some(from), Some(into)) = (replaced, cumulative) {
                    self.accumulate(context, from, into, -1.0);
                }
                let given = match context.logs {
                    true => self.work.take_logarithms(kernels),
                    false => &self.work.factors,
                };
                // The factors are of classes until here.
                give(&self.nodes[node], given, &mut self.scales[at]);
                // A cumulative buffer that is `at` itself has the factors already.
                if let Some(into) = cumulative.filter(|into| *into != at) {
                    self.accumulate(context, at, into, 1.0);
                }
                // Here a buffer holds the sum of its subtree, so that of the root is complete.
                for below in below.into_iter().flatten() {
                    self.accumulate(context, below, at, 1.0);
                }
            }
            Scaling::Read { at } => {
                // A class has one span, which cannot be divided by two different factors.
                if self.differs_within_classes(node, at) {
                    self.expand(kernels, node);
                }
                let Node {
                    values, classes, ..
                } = &mut self.nodes[node];
                let factors = &self.scales[at];
                let factor = |factor: f64| if context.logs { factor.exp() } else { factor };
                match classes {
                    Some(classes) => {
                        let first = classes.first.iter();
                        let all = first.map(|&first| factor(factors[usize::from(first)]));
                        values.divide(kernels, all);
                    }
                    None => values.divide(kernels, factors.iter().map(|&it| factor(it))),
                }
            }
            Scaling::Auto { node: inner, below } => {
                let taken = &mut self.taken[inner];
                // Empty stands for zeros: most nodes are never scaled.
                taken.clear();
                let node = &mut self.nodes[node];
                let spans = node.classes.as_ref().map(|classes| classes.first.len());
                let spans = spans.unwrap_or(self.weights.len());
                // Looking at a node costs far less than scaling it, and few nodes need it.
                if node.values.is_far(kernels, spans) {
                    self.work.factors.resize(spans, 0.0);
                    node.values.lower_by_powers(kernels, &mut self.work.factors);
                    taken.resize(self.weights.len(), 0.0);
                    give(node, &self.work.factors, taken);
                }
                self.add_up(inner, below);
            }
        }
    }

    /// Adds what automatic scaling took at an inner node to what it took below.
    fn add_up(&mut self, inner: usize, below: [Option<usize>; 2]) {
        // Taken out: an update in place has the node below itself.
        let mut total = std::mem::take(&mut self.work.total);
        total.clone_from(&self.taken[inner]);
        for below in below.into_iter().flatten() {
            let below = &self.totals[below];
            // Empty still stands for zeros.
            total.resize(total.len().max(below.len()), 0.0);
            for (total, below) in total.iter_mut().zip(below) {
                *total += below;
            }
        }
        self.work.total = std::mem::replace(&mut self.totals[inner], total);
    }

    /// True if a scale buffer, which is of another tree, tells apart what repeats.
    fn differs_within_classes(&self, node: usize, scale: usize) -> bool {
        let Some(classes) = &self.nodes[node].classes else {
            return false;
        };
        let factors = &self.scales[scale];
        let first = |class: u16| factors[usize::from(classes.first[usize::from(class)])];
        let mut pairs = factors.iter().zip(&classes.of);
        // By bits: NaN equals itself, and the two zeros, whose inverses differ, do not.
        pairs.any(|(factor, &class)| factor.to_bits() != first(class).to_bits())
    }

    /// Gives each pattern a span of its own.
    fn expand(&mut self, kernels: Kernels, node: usize) {
        let node = &mut self.nodes[node];
        if let Some(classes) = node.classes.take() {
            let spare = &mut self.work.spare;
            spare.resize_in(kernels, classes.of.len(), &self.arena);
            for (to, &class) in classes.of.iter().enumerate() {
                spare.copy_span(kernels.span(), to, &node.values, usize::from(class));
            }
            std::mem::swap(spare, &mut node.values);
        }
    }
}

impl Work {
    /// The logarithms of the factors.
    fn take_logarithms(&mut self, kernels: Kernels) -> &[f64] {
        let factors = &self.factors;
        self.logarithms.clear();
        self.logarithms.resize(factors.len(), 0.0);
        // The factors are plain numbers, so their exponents are 0.
        let zeros = &self.no_fixed[..factors.len()];
        add_logarithms(kernels.isa(), factors, zeros, 1.0, &mut self.logarithms);
        &self.logarithms
    }
}

/// The operands of an update, whose result has these classes.
pub(crate) fn sides<'a>(
    context: Context<'a>,
    nodes: &'a [Node],
    identity: &'a [u16],
    update: &Update,
    classes: Option<&'a Classes>,
) -> [Child<'a>; 2] {
    [0, 1].map(|side| {
        let node = &nodes[update.sources[side]];
        let index = match classes {
            Some(classes) => &classes.below[side],
            None => node.index(identity),
        };
        Child {
            node,
            matrix: Some(&context.matrices[update.matrices[side]]),
            index,
        }
    })
}

/// Gives each pattern of a node what its class was given.
fn give(node: &Node, given: &[f64], to: &mut [f64]) {
    match &node.classes {
        Some(classes) => {
            for (to, &class) in to.iter_mut().zip(&classes.of) {
                *to = given[usize::from(class)];
            }
        }
        None => to.copy_from_slice(given),
    }
}

/// Lists of classes that are kept for each buffer.
const LISTS_EACH: usize = 4;
/// Bytes of a buffer that a run of updates takes at a time: half of a first-level cache of 32 KiB.
/// Smaller blocks cost more calls of the kernels than they save.
const BLOCK_BYTES: usize = 16 << 10;
