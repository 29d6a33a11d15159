//! Partials of one node in a chunk, in the instance's precision, and what is done to whole spans.
//!
//! Why here: all above this works with doubles, as clients do; a chunk's partials alone, and the
//! matrices that they are multiplied by, have two forms.
//! Must stay true: a node's scale factors are taken block by block right after its partials, while
//! these are in the first-level cache; a result does not depend on the blocks.

use crate::kernels::Kernels;
use crate::matrices::{Matrix, round};
use crate::repeats::Classes;
use sidecore_likelihood::kernel::single::{SingleBuffer, SingleSide};
use sidecore_likelihood::kernel::{
    Buffer, Inner, Operand, Quad, SharedArena, Tip, any_span_beyond, lower_spans,
};
use sidecore_likelihood::kernel::{any_single_beyond, lower_single, newview_single, total_single};
use std::ops::Range;
use std::sync::Arc;

/// Spans of partials; empty until they are written.
#[derive(Debug)]
pub(crate) enum Values {
    Double(Buffer),
    Single(SingleBuffer),
}

impl Default for Values {
    fn default() -> Self {
        Self::Double(Buffer::default())
    }
}

/// Values of a node for the patterns of a chunk.
#[derive(Debug)]
pub(crate) struct Node {
    /// A tip's states; empty for others.
    pub(crate) codes: Vec<u16>,
    /// Partials, span by span, of each class or else of each pattern; empty until they are written.
    pub(crate) values: Values,
    /// Classes of the patterns, if they repeat.
    pub(crate) classes: Option<Arc<Classes>>,
}

impl Node {
    pub(crate) fn new(kernels: Kernels) -> Self {
        Self {
            codes: Vec::new(),
            values: Values::new(kernels),
            classes: None,
        }
    }

    /// One with a single class, whose partials are 1; only single precision has it.
    pub(crate) fn of_ones(kernels: Kernels) -> Self {
        let mut node = Self::new(kernels);
        if let Some(shape) = kernels.single() {
            node.values.resize(kernels, 1);
            let ones = vec![1.0; shape.states];
            for category in 0..shape.rates {
                node.values.set(kernels.place(category), &ones);
            }
        }
        node
    }

    /// The span of each pattern, where all have their own by `identity`.
    pub(crate) fn index<'a>(&'a self, identity: &'a [u16]) -> &'a [u16] {
        self.classes
            .as_ref()
            .map_or(identity, |classes| &classes.of)
    }

    /// A pattern's partials, category by category, not padded. Of a tip's state 1, of an unknown
    /// one 1 everywhere.
    pub(crate) fn partials(&self, kernels: Kernels, states: usize, pattern: usize, to: &mut [f64]) {
        if let Some(&code) = self.codes.get(pattern) {
            let state = usize::from(code);
            for to in to.chunks_exact_mut(states) {
                to.fill(if state < states { 0.0 } else { 1.0 });
                if let Some(to) = to.get_mut(state) {
                    *to = 1.0;
                }
            }
            return;
        }
        let span = self.span_of(pattern) * kernels.span();
        for (category, to) in to.chunks_exact_mut(states).enumerate() {
            self.values.get(span + kernels.place(category), to);
        }
    }

    /// The span of a pattern.
    pub(crate) fn span_of(&self, pattern: usize) -> usize {
        self.classes
            .as_ref()
            .map_or(pattern, |classes| usize::from(classes.of[pattern]))
    }
}

/// A child of a node that is computed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Child<'a> {
    pub(crate) node: &'a Node,
    /// The matrix of its branch; none where its partials, not states, are taken as they are.
    pub(crate) matrix: Option<&'a Matrix>,
    /// The child's class for each class of the result.
    pub(crate) index: &'a [u16],
}

/// Memory for pre-order partials.
#[derive(Debug)]
pub(crate) struct Descent<'a> {
    /// Partials of some patterns at a parent.
    pub(crate) meeting: &'a mut Node,
    /// As [`Node::of_ones`] makes it.
    pub(crate) ones: &'a Node,
    pub(crate) identity: &'a [u16],
    pub(crate) zeros: &'a [u16],
}

impl<'a> Child<'a> {
    /// Its spans as a tip's table: those of its states' matrix, or its partials.
    pub(crate) fn spans(self, classes: Range<usize>) -> Tip<'a> {
        Tip {
            table: match self.matrix {
                Some(matrix) => matrix.table.as_slice(),
                None => self.node.values.quads(),
            },
            index: &self.index[classes],
        }
    }

    /// As the kernels in double precision take some of its classes.
    pub(crate) fn operand(self, classes: Range<usize>) -> Operand<'a> {
        match self.matrix {
            Some(matrix) if self.node.codes.is_empty() => Operand::Inner(Inner {
                matrix: matrix.columns.as_slice(),
                values: self.node.values.quads(),
                scalers: &[],
                index: &self.index[classes],
            }),
            // To the kernels partials as they are have a state for each class.
            _ => Operand::Tip(self.spans(classes)),
        }
    }

    /// As those in single precision do.
    fn side(self, classes: Range<usize>) -> SingleSide<'a> {
        let index = &self.index[classes];
        let values = match &self.node.values {
            // All buffers of an instance have one precision, so the other arm is not reached.
            Values::Single(values) => values.as_slice(),
            Values::Double(_) => &[],
        };
        match self.matrix {
            None => SingleSide {
                matrix: None,
                spans: values,
                index,
            },
            // States need no product: the table has their columns already moved.
            Some(matrix) if !self.node.codes.is_empty() => SingleSide {
                matrix: None,
                spans: matrix.float_table.as_slice(),
                index,
            },
            Some(matrix) => SingleSide {
                matrix: Some(matrix.floats.as_slice()),
                spans: values,
                index,
            },
        }
    }
}

impl Values {
    /// None yet.
    pub(crate) fn new(kernels: Kernels) -> Self {
        match kernels.single() {
            None => Self::default(),
            Some(_) => Self::Single(SingleBuffer::default()),
        }
    }

    /// Makes room for `spans` spans; earlier contents may be lost.
    pub(crate) fn resize(&mut self, kernels: Kernels, spans: usize) {
        match self {
            Self::Double(values) => values.resize(spans * kernels.span() / 4),
            // The unit of memory is an octet: one vector of floats.
            Self::Single(values) => values.resize(spans * kernels.span() / 8),
        }
    }

    /// As [`Self::resize`], with memory of an arena: a traversal goes through all buffers of a
    /// large alignment, whose pages would be too many for the processor's tables.
    pub(crate) fn resize_in(&mut self, kernels: Kernels, spans: usize, arena: &SharedArena) {
        match self {
            Self::Double(values) => values.resize_in(spans * kernels.span() / 4, arena),
            Self::Single(values) => values.resize_in(spans * kernels.span() / 8, arena),
        }
    }

    /// Numbers of all spans.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Double(values) => values.doubles().len(),
            Self::Single(values) => values.floats().len(),
        }
    }

    /// Those of double precision.
    pub(crate) fn quads(&self) -> &[Quad] {
        match self {
            Self::Double(values) => values.as_slice(),
            Self::Single(_) => &[],
        }
    }

    /// Sets the numbers from a place on.
    pub(crate) fn set(&mut self, at: usize, from: &[f64]) {
        match self {
            Self::Double(values) => values.doubles_mut()[at..at + from.len()].copy_from_slice(from),
            Self::Single(values) => round(from, &mut values.floats_mut()[at..]),
        }
    }

    /// Gets the numbers from a place on.
    fn get(&self, at: usize, to: &mut [f64]) {
        match self {
            Self::Double(values) => {
                to.copy_from_slice(&values.doubles()[at..at + to.len()]);
            }
            Self::Single(values) => {
                for (to, from) in to.iter_mut().zip(&values.floats()[at..]) {
                    *to = f64::from(*from);
                }
            }
        }
    }

    /// Copies one span of another node, of the same instance.
    pub(crate) fn copy_span(&mut self, span: usize, to: usize, other: &Self, from: usize) {
        let (to, from) = (to * span, from * span);
        match (self, other) {
            (Self::Double(own), Self::Double(other)) => own.doubles_mut()[to..to + span]
                .copy_from_slice(&other.doubles()[from..from + span]),
            (Self::Single(own), Self::Single(other)) => {
                own.floats_mut()[to..to + span].copy_from_slice(&other.floats()[from..from + span]);
            }
            // Not reached: both are of one instance, which has one precision.
            _ => {}
        }
    }

    /// The partials of a node from its children's, and with `factors` each span divided by its
    /// largest entry, which is put there.
    pub(crate) fn compute(
        &mut self,
        kernels: Kernels,
        [left, right]: [Child<'_>; 2],
        counts: &mut [u16],
        mut factors: Option<&mut Vec<f64>>,
    ) {
        let classes = left.index.len();
        if let Some(factors) = factors.as_deref_mut() {
            factors.resize(classes, 1.0);
        }
        // Without factors one block is as good.
        let size = if factors.is_some() {
            BLOCK
        } else {
            // A step of 0 is not allowed.
            classes.max(1)
        };
        for first in (0..classes).step_by(size) {
            let block = first..classes.min(first + size);
            let factors = factors.as_deref_mut();
            self.product(kernels, [left, right], block.clone(), counts);
            if let Some(factors) = factors {
                self.lower(kernels, block.clone(), &mut factors[block]);
            }
        }
    }

    /// The partials of some classes of a node from its children's.
    pub(crate) fn product(
        &mut self,
        kernels: Kernels,
        [left, right]: [Child<'_>; 2],
        block: Range<usize>,
        counts: &mut [u16],
    ) {
        let span = kernels.span();
        match (self, kernels.single()) {
            (Self::Single(values), Some(shape)) => {
                let span = span / 8;
                let values = &mut values.as_mut_slice()[block.start * span..block.end * span];
                let (left, right) = (left.side(block.clone()), right.side(block));
                newview_single(kernels.isa(), shape, left, right, values);
            }
            (Self::Double(values), _) => {
                let span = span / 4;
                let values = &mut values.as_mut_slice()[block.start * span..block.end * span];
                let operands = [left, right].map(|child| child.operand(block.clone()));
                kernels.newview(&operands[0], &operands[1], values, counts);
            }
            // Not reached: floats come with a shape of single precision.
            (Self::Single(_), None) => {}
        }
    }

    /// Divides the spans of some classes by their largest entries, which become their factors.
    fn lower(&mut self, kernels: Kernels, block: Range<usize>, factors: &mut [f64]) {
        let (span, isa) = (kernels.span(), kernels.isa());
        let [first, end] = [block.start * span, block.end * span];
        match self {
            Self::Double(values) => {
                let values = &mut values.as_mut_slice()[first / 4..end / 4];
                lower_spans(isa, span / 4, values, factors);
            }
            Self::Single(values) => {
                let values = &mut values.as_mut_slice()[first / 8..end / 8];
                lower_single(isa, span / 8, values, factors);
            }
        }
    }

    /// Pre-order partials of a node, some of its patterns, from its parent's, with the matrix of
    /// its own branch, and its sibling; with `factors` as [`Self::compute`] does it.
    pub(crate) fn descend(
        &mut self,
        kernels: Kernels,
        [mut parent, sibling]: [Child<'_>; 2],
        patterns: Range<usize>,
        work: Descent<'_>,
        mut factors: Option<&mut Vec<f64>>,
    ) {
        // The branch is below the product with the sibling.
        let Some(own) = parent.matrix.take().and_then(Matrix::transposed) else {
            return;
        };
        let (span, isa) = (kernels.span(), kernels.isa());
        if let Some(factors) = factors.as_deref_mut() {
            factors.resize(parent.index.len(), 1.0);
        }
        for first in patterns.clone().step_by(BLOCK) {
            let block = first..patterns.end.min(first + BLOCK);
            let factors = factors.as_deref_mut();
            match (&mut *self, kernels.single()) {
                (Self::Double(values), _) => {
                    let span = span / 4;
                    let values = &mut values.as_mut_slice()[block.start * span..block.end * span];
                    let parent = parent.spans(block.clone());
                    let sibling = sibling.operand(block.clone());
                    kernels.newview_pre_order(&parent, &sibling, own.columns.as_slice(), values);
                }
                (Self::Single(values), Some(shape)) => {
                    let span = span / 8;
                    let values = &mut values.as_mut_slice()[block.start * span..block.end * span];
                    let (all, meeting) = (0..block.len(), &mut *work.meeting);
                    // Room for one block is enough: it is read at once and stays in the cache.
                    meeting.values.resize(kernels, BLOCK);
                    // Single precision has no kernel for both: first the product, then the branch.
                    if let Self::Single(at_parent) = &mut meeting.values {
                        let at_parent = &mut at_parent.as_mut_slice()[..block.len() * span];
                        let sides = [parent, sibling].map(|side| side.side(block.clone()));
                        let [parent, sibling] = sides;
                        newview_single(isa, shape, parent, sibling, at_parent);
                    }
                    let child = |node, matrix, index| Child {
                        node,
                        matrix,
                        index,
                    };
                    let down = child(meeting, Some(own), work.identity).side(all.clone());
                    // A newview wants a second side; ones change nothing.
                    let ones = child(work.ones, None, work.zeros).side(all);
                    newview_single(isa, shape, down, ones, values);
                }
                (Self::Single(_), None) => {}
            }
            if let Some(factors) = factors {
                self.lower(kernels, block.clone(), &mut factors[block]);
            }
        }
    }

    /// The sum over a span of `near`'s entries times what arrives from `right`, for each pattern.
    pub(crate) fn total(
        &mut self,
        kernels: Kernels,
        near: (&Self, &[u16]),
        right: Child<'_>,
        sums: &mut [f64],
    ) {
        if let (Self::Single(spare), (Self::Single(near), index), Some(shape)) =
            (self, near, kernels.single())
        {
            let near = SingleSide {
                matrix: None,
                spans: near.as_slice(),
                index,
            };
            let span = shape.span();
            spare.resize(index.len() * span);
            let values = spare.as_mut_slice();
            newview_single(
                kernels.isa(),
                shape,
                near,
                right.side(0..index.len()),
                values,
            );
            total_single(kernels.isa(), span, values, &mut sums[..index.len()]);
        }
    }

    /// True if one of the first `spans` spans is far from 1.
    pub(crate) fn is_far(&self, kernels: Kernels, spans: usize) -> bool {
        let span = kernels.span();
        match self {
            Self::Double(values) => {
                let values = &values.as_slice()[..spans * span / 4];
                // Powers of two: the reciprocal is exact.
                let far = 2.0_f64.powi(AUTO_EXPONENT);
                any_span_beyond(kernels.isa(), span / 4, values, 1.0 / far, far)
            }
            Self::Single(values) => {
                let values = &values.as_slice()[..spans * span / 8];
                let far = 2.0_f32.powi(AUTO_EXPONENT_SINGLE);
                any_single_beyond(kernels.isa(), span / 8, values, 1.0 / far, far)
            }
        }
    }

    /// Takes a power of two from each of the first spans, so that its largest entry lies from a
    /// half to 1; their logarithms.
    pub(crate) fn lower_by_powers(&mut self, kernels: Kernels, taken: &mut [f64]) {
        let span = kernels.span();
        match self {
            Self::Double(values) => {
                let spans = values.doubles_mut().chunks_exact_mut(span);
                for (span, taken) in spans.zip(taken) {
                    let power = power(span.iter().copied());
                    // In two steps: one factor alone may be beyond the largest double.
                    let half = power / 2;
                    let (first, second) = (2.0_f64.powi(-half), 2.0_f64.powi(half - power));
                    span.iter_mut()
                        .for_each(|value| *value = *value * first * second);
                    *taken = f64::from(power) * std::f64::consts::LN_2;
                }
            }
            Self::Single(values) => {
                let spans = values.floats_mut().chunks_exact_mut(span);
                for (span, taken) in spans.zip(taken) {
                    let power = power(span.iter().map(|&value| f64::from(value)));
                    // One step is enough: the power of any float is well inside a double's range.
                    scale(span, 2.0_f64.powi(-power));
                    *taken = f64::from(power) * std::f64::consts::LN_2;
                }
            }
        }
    }

    /// Divides each span by a factor.
    pub(crate) fn divide(&mut self, kernels: Kernels, factors: impl Iterator<Item = f64>) {
        let span = kernels.span();
        match self {
            Self::Double(values) => {
                let spans = values.doubles_mut().chunks_exact_mut(span);
                for (span, factor) in spans.zip(factors) {
                    // A product is faster than a quotient; an inverse beyond
                    // normal numbers would be wrong.
                    let inverse = 1.0 / factor;
                    match inverse.is_normal() {
                        true => span.iter_mut().for_each(|value| *value *= inverse),
                        false => span.iter_mut().for_each(|value| *value /= factor),
                    }
                }
            }
            Self::Single(values) => {
                let spans = values.floats_mut().chunks_exact_mut(span);
                for (span, factor) in spans.zip(factors) {
                    // The factor is a double: its inverse may leave the range of floats.
                    let inverse = (1.0 / factor) as f32;
                    match inverse.is_normal() {
                        true => span.iter_mut().for_each(|value| *value *= inverse),
                        false => scale(span, 1.0 / factor),
                    }
                }
            }
        }
    }
}

/// Multiplies floats by a number that is perhaps none.
fn scale(values: &mut [f32], factor: f64) {
    for value in values {
        *value = (f64::from(*value) * factor) as f32;
    }
}

/// The exponent of the largest entry, as a fraction from a half to 1 times a power of two; 0 where
/// no entry is positive and finite.
fn power(span: impl Iterator<Item = f64>) -> i32 {
    // `max` passes over NaN, and negative rounding errors do not count.
    let largest = span.fold(0.0, f64::max);
    if !(largest.is_finite() && largest > 0.0) {
        return 0;
    }
    // The bias is 1023; 1022 puts the fraction between a half and 1.
    let bits = |value: f64| i32::try_from(value.to_bits() >> 52 & 0x7ff).unwrap_or(0) - 1022;
    match largest.is_normal() {
        true => bits(largest),
        // A subnormal number, made normal first.
        false => bits(largest * 2.0_f64.powi(64)) - 64,
    }
}

/// Classes whose partials are scaled while they are in the first-level cache.
const BLOCK: usize = 64;
/// Automatic scaling begins beyond this power of two.
const AUTO_EXPONENT: i32 = 200;
/// The same for floats: two of that size and two small probabilities have a product.
const AUTO_EXPONENT_SINGLE: i32 = 30;
