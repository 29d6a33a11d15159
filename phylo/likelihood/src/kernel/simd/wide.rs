//! The loops for any number of states that is a multiple of four: 8 (a few states of morphology) to
//! 64 (codons).
//!
//! Why here: 4 and 20 states, which nearly all analyses have, have loops of their own; all other
//! numbers share these. They are plain arithmetic on blocks of sixteen states whose sums stay in
//! registers, compiled once for each instruction set. Only the exponentials' series is fused, so
//! all instruction sets give the same bits except for the exponentials. No unsafe code.

use super::branch::{self, Eigen};
use super::functions::exponentials;
use super::lanes::{Batch, Lanes, Portable};
use super::scale::{add_counts, count_scaling, join_counts};
use super::{four, node};
use crate::kernel::{Operand, QUAD, Quad, SCALE, Shape, THRESHOLD, Tip};

/// Most quads of one rate's states.
const QUADS_MAX: usize = super::STATES_MAX / QUAD;
/// Quads whose sums are in registers at a time.
const BLOCK: usize = 4;

/// As [`super::newview`]: by the loops of 4 and 20 states, or by those here.
#[inline(always)]
pub(super) fn newview<V: Batch>(
    shape: Shape,
    left: &Operand<'_>,
    right: &Operand<'_>,
    values: &mut [Quad],
    scalers: &mut [u16],
    scale: bool,
) -> bool {
    // Counts of scalings take the loops for any number of rates.
    if let (4, 4, false) = (shape.states, shape.rates, scale)
        && !is_scaled(left)
        && !is_scaled(right)
    {
        four::newview::<V>(left, right, values);
        return false;
    }
    match shape.states {
        4 | 20 => node::newview::<V>(shape, left, right, values, scalers, scale),
        _ => any_newview(shape, left, right, values, scalers, scale),
    }
}

#[inline(always)]
fn is_scaled(side: &Operand<'_>) -> bool {
    matches!(side, Operand::Inner(inner) if !inner.scalers.is_empty())
}

#[inline(always)]
fn any_newview(
    shape: Shape,
    left: &Operand<'_>,
    right: &Operand<'_>,
    values: &mut [Quad],
    scalers: &mut [u16],
    scale: bool,
) -> bool {
    let (quads, span) = (shape.states / QUAD, shape.quads());
    let (a, b) = (Side::new(left, shape), Side::new(right, shape));
    assert_eq!(a.index.len(), b.index.len(), "operands of one length");
    let classes = a.index.len();
    let values = &mut values[..classes * span];
    let scalers = &mut scalers[..classes * shape.rates];
    let (indices, counts) = ([a.index, b.index], [a.scalers, b.scalers]);
    // Counts of the children first; the loop below adds its own scalings.
    let mut scaled = join_counts::<Portable>(shape.rates, scalers, indices, counts);
    let (mut x, mut y) = ([[0.0; QUAD]; QUADS_MAX], [[0.0; QUAD]; QUADS_MAX]);
    for (class, out) in values.chunks_exact_mut(span).enumerate() {
        for (rate, out) in out.chunks_exact_mut(quads).enumerate() {
            a.take(class, rate, &mut x[..quads]);
            b.take(class, rate, &mut y[..quads]);
            let mut largest = [0.0; QUAD];
            for ((out, x), y) in out.iter_mut().zip(&x).zip(&y) {
                for lane in 0..QUAD {
                    out[lane] = x[lane] * y[lane];
                    largest[lane] = f64::max(largest[lane], out[lane]);
                }
            }
            // Each rate is scaled by itself, as in `node`.
            if scale && largest.iter().all(|&value| value < THRESHOLD) {
                let lanes = out.as_flattened_mut().iter_mut();
                lanes.for_each(|value| *value *= SCALE);
                count_scaling(scalers, class * shape.rates + rate, &mut scaled);
            }
        }
    }
    scaled
}

/// As [`super::newview_pre_order`].
#[inline(always)]
pub(super) fn newview_pre_order<V: Batch>(
    shape: Shape,
    parent: &Tip<'_>,
    sibling: &Operand<'_>,
    own: &[Quad],
    values: &mut [Quad],
) {
    if let (4, 4, 2) = (shape.states, shape.rates, V::CLASSES) {
        return four::newview_pre_order::<V>(parent, sibling, own, values);
    }
    if matches!(shape.states, 4 | 20) {
        return node::newview_pre_order::<V>(shape, parent, sibling, own, values);
    }
    let (quads, span) = (shape.states / QUAD, shape.quads());
    let (a, b) = (
        Side::new(&Operand::Tip(*parent), shape),
        Side::new(sibling, shape),
    );
    assert_eq!(a.index.len(), b.index.len(), "operands of one length");
    let values = &mut values[..a.index.len() * span];
    let (mut x, mut y) = ([[0.0; QUAD]; QUADS_MAX], [[0.0; QUAD]; QUADS_MAX]);
    for (class, out) in values.chunks_exact_mut(span).enumerate() {
        for (rate, out) in out.chunks_exact_mut(quads).enumerate() {
            a.take(class, rate, &mut x[..quads]);
            b.take(class, rate, &mut y[..quads]);
            for (x, y) in x.iter_mut().zip(&y) {
                for lane in 0..QUAD {
                    x[lane] *= y[lane];
                }
            }
            let block = shape.states * quads;
            product(
                &own[rate * block..][..block],
                x[..quads].as_flattened(),
                out,
            );
        }
    }
}

/// As [`super::pre_order_sums`].
#[inline(always)]
pub(super) fn pre_order_sums(
    shape: Shape,
    near: &Tip<'_>,
    moved: &Operand<'_>,
    still: &Tip<'_>,
    weights: &[f64],
    [above, below]: [&mut [Quad]; 2],
) {
    let (quads, patterns) = (shape.states / QUAD, near.index.len());
    let [near, still] = [near, still].map(|tip| Side::new(&Operand::Tip(*tip), shape));
    let moved = Side::new(moved, shape);
    assert!(
        patterns == moved.index.len() && patterns == still.index.len(),
        "operands of one length"
    );
    let [mut here, mut arrived, mut as_it_is] = [[[0.0; QUAD]; QUADS_MAX]; 3];
    let fours = patterns.div_ceil(QUAD);
    above[..fours].fill([0.0; QUAD]);
    below[..fours].fill([0.0; QUAD]);
    for pattern in 0..patterns {
        for (rate, &weight) in weights.iter().enumerate() {
            near.take(pattern, rate, &mut here[..quads]);
            moved.take(pattern, rate, &mut arrived[..quads]);
            still.take(pattern, rate, &mut as_it_is[..quads]);
            let mut sums = [[0.0; QUAD]; 2];
            for (here, (arrived, as_it_is)) in here.iter().zip(arrived.iter().zip(&as_it_is)) {
                for lane in 0..QUAD {
                    sums[0][lane] += here[lane] * arrived[lane];
                    sums[1][lane] += here[lane] * as_it_is[lane];
                }
            }
            let sums = sums.map(|sums| (sums[0] + sums[1]) + (sums[2] + sums[3]));
            above[pattern / QUAD][pattern % QUAD] += weight * sums[0];
            below[pattern / QUAD][pattern % QUAD] += weight * sums[1];
        }
    }
}

/// As [`super::evaluate`].
#[inline(always)]
pub(super) fn evaluate(
    shape: Shape,
    left: &Operand<'_>,
    right: &Operand<'_>,
    terms: &mut [Quad],
    scalers: &mut [u16],
) -> bool {
    let Operand::Inner(inner) = *left else {
        panic!("the left side of a branch is an inner node");
    };
    let values = inner.values;
    let (quads, span, rates) = (shape.states / QUAD, shape.quads(), shape.rates);
    let (near, far) = (Side::new(left, shape), Side::new(right, shape));
    assert_eq!(near.index.len(), far.index.len(), "operands of one length");
    let patterns = near.index.len();
    let terms = &mut terms[..patterns.div_ceil(QUAD) * rates];
    let mut arrived = [[0.0; QUAD]; QUADS_MAX];
    // The last quad's missing patterns stay 0.
    terms.fill([0.0; QUAD]);
    for pattern in 0..patterns {
        let here = &values[usize::from(near.index[pattern]) * span..][..span];
        for (rate, here) in here.chunks_exact(quads).enumerate() {
            far.take(pattern, rate, &mut arrived[..quads]);
            let mut sums = [0.0; QUAD];
            for (here, arrived) in here.iter().zip(&arrived) {
                for lane in 0..QUAD {
                    sums[lane] += here[lane] * arrived[lane];
                }
            }
            // The order of the sum is fixed, so that all instruction sets give the same bits.
            let sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
            terms[pattern / QUAD * rates + rate][pattern % QUAD] = sum;
        }
    }
    let scalers = &mut scalers[..patterns * rates];
    let (indices, counts) = ([near.index, far.index], [near.scalers, far.scalers]);
    join_counts::<Portable>(rates, scalers, indices, counts)
}

/// As [`super::insert`].
#[inline(always)]
pub(super) fn insert(
    shape: Shape,
    near: &Operand<'_>,
    far: &Operand<'_>,
    below: &Operand<'_>,
    terms: &mut [Quad],
    scalers: &mut [u16],
) -> bool {
    let (Operand::Inner(_), Operand::Inner(arrived)) = (*near, *below) else {
        panic!("the near side and what arrives are values");
    };
    let values = arrived.values;
    let (quads, span, rates) = (shape.states / QUAD, shape.quads(), shape.rates);
    let [near, far, below] = [near, far, below].map(|operand| Side::new(operand, shape));
    let patterns = near.index.len();
    assert!(
        patterns == far.index.len() && patterns == below.index.len(),
        "operands of one length"
    );
    let terms = &mut terms[..patterns.div_ceil(QUAD) * rates];
    let (mut x, mut y) = ([[0.0; QUAD]; QUADS_MAX], [[0.0; QUAD]; QUADS_MAX]);
    // The last quad may be partly used; its other lanes must not hold old terms.
    terms.fill([0.0; QUAD]);
    for pattern in 0..patterns {
        let arrived = &values[usize::from(below.index[pattern]) * span..][..span];
        for (rate, arrived) in arrived.chunks_exact(quads).enumerate() {
            near.take(pattern, rate, &mut x[..quads]);
            far.take(pattern, rate, &mut y[..quads]);
            let mut sums = [0.0; QUAD];
            for ((x, y), arrived) in x.iter().zip(&y).zip(arrived) {
                for lane in 0..QUAD {
                    sums[lane] += x[lane] * y[lane] * arrived[lane];
                }
            }
            // In the order of `Lanes::sum`, so that this kernel gives the same bits as the others.
            let sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
            terms[pattern / QUAD * rates + rate][pattern % QUAD] = sum;
        }
    }
    let scalers = &mut scalers[..patterns * rates];
    let (indices, counts) = ([near.index, far.index], [near.scalers, far.scalers]);
    let counted = join_counts::<Portable>(rates, scalers, indices, counts);
    add_counts(rates, scalers, counted, below.index, below.scalers)
}

/// As [`super::transitions`]: by the loops of 4 and 20 states, or by those here.
#[inline(always)]
pub(super) fn transitions<V: Batch>(eigen: &Eigen<'_>, length: f64, out: &mut [Quad]) {
    match eigen.shape.states {
        4 | 20 => branch::transitions::<V>(eigen, length, out),
        _ => any_transitions::<V::Lanes>(eigen, length, out),
    }
}

#[inline(always)]
fn any_transitions<V: Lanes>(eigen: &Eigen<'_>, length: f64, out: &mut [Quad]) {
    let (states, quads) = (eigen.shape.states, eigen.shape.states / QUAD);
    let (mut growth, mut grown) = ([[0.0; QUAD]; QUADS_MAX], [[0.0; QUAD]; QUADS_MAX]);
    let blocks = out.chunks_exact_mut(states * quads);
    for (number, (rate, block)) in eigen.rates.iter().zip(blocks).enumerate() {
        let [values, right, left] = eigen.of_rate(number);
        let time = V::splat(rate * length);
        for (growth, values) in growth.iter_mut().zip(values) {
            exponentials(V::load(values).mul(time)).1.store(growth);
        }
        let columns = block.chunks_exact_mut(quads);
        for (state, (column, left)) in columns.zip(left.chunks_exact(quads)).enumerate() {
            for ((to, left), growth) in grown.iter_mut().zip(left).zip(&growth) {
                for lane in 0..QUAD {
                    to[lane] = left[lane] * growth[lane];
                }
            }
            product(right, grown[..quads].as_flattened(), column);
            let column = column.as_flattened_mut();
            column[state] += 1.0;
            // Rounding can turn a true 0 into a value just below it.
            for entry in column {
                *entry = entry.max(0.0);
            }
        }
    }
}

/// An operand, and the extents of its parts.
#[derive(Clone, Copy)]
struct Side<'a> {
    /// `None` for a tip, whose table already includes the matrix.
    matrix: Option<&'a [Quad]>,
    /// CLV of the classes, or a tip's table.
    spans: &'a [Quad],
    scalers: &'a [u16],
    index: &'a [u16],
    quads: usize,
    span: usize,
}

impl<'a> Side<'a> {
    #[inline(always)]
    fn new(operand: &Operand<'a>, shape: Shape) -> Self {
        let (matrix, spans, scalers, index) = match *operand {
            Operand::Tip(tip) => (None, tip.table, &[][..], tip.index),
            Operand::Inner(inner) => (Some(inner.matrix), inner.values, inner.scalers, inner.index),
        };
        Self {
            matrix,
            spans,
            scalers,
            index,
            quads: shape.states / QUAD,
            span: shape.quads(),
        }
    }

    /// One rate of a class's CLV, moved over the branch.
    #[inline(always)]
    fn take(&self, class: usize, rate: usize, to: &mut [Quad]) {
        let (quads, at) = (self.quads, usize::from(self.index[class]) * self.span);
        let x = &self.spans[at + rate * quads..][..quads];
        let Some(matrix) = self.matrix else {
            to.copy_from_slice(x);
            return;
        };
        let states = quads * QUAD;
        let matrix = &matrix[rate * states * quads..][..states * quads];
        product(matrix, x.as_flattened(), to);
    }
}

/// A matrix times a vector.
#[inline(always)]
fn product(matrix: &[Quad], x: &[f64], to: &mut [Quad]) {
    let quads = to.len();
    let mut first = 0;
    while first + BLOCK <= quads {
        let sums = rows::<BLOCK>(matrix, quads, first, x);
        to[first..first + BLOCK].copy_from_slice(&sums);
        first += BLOCK;
    }
    while first < quads {
        to[first] = rows::<1>(matrix, quads, first, x)[0];
        first += 1;
    }
}

/// Some quads of a matrix's rows, from `first` on, times a vector.
#[inline(always)]
fn rows<const B: usize>(matrix: &[Quad], quads: usize, first: usize, x: &[f64]) -> [Quad; B] {
    let mut sums = [[0.0; QUAD]; B];
    for (column, &x) in matrix.chunks_exact(quads).zip(x) {
        let column = &column[first..first + B];
        for (sum, entries) in sums.iter_mut().zip(column) {
            for lane in 0..QUAD {
                sum[lane] += entries[lane] * x;
            }
        }
    }
    sums
}
