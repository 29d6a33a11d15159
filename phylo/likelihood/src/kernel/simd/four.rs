//! newview of four states and four rates without scaling, in both orders, a whole span at a time.
//!
//! Why here: BEAGLE's clients scale by themselves, and nearly all DNA has this shape. A span is two
//! lines of the cache, and with AVX-512 the matrices of both sides stay in registers for all
//! classes. A line that is written at once need not be read first.
//! Must stay true: the bits of a newview are those of [`super::node`].

use super::lanes::{Batch, Lanes};
use super::node::Spanned;
use crate::kernel::{Inner, Operand, QUAD, Quad, Tip};

/// Quads of a span.
const SPAN: usize = 4;
/// Batches of a span, at most.
const PARTS: usize = 2;

/// As [`super::newview`]. A batch has two classes' places.
#[inline(always)]
pub(super) fn newview<V: Batch>(left: &Operand<'_>, right: &Operand<'_>, values: &mut [Quad]) {
    use Operand::{Inner, Tip};
    match (*left, *right) {
        (Tip(a), Tip(b)) => spans::<V, _, _>(a, b, values),
        (Tip(a), Inner(b)) | (Inner(b), Tip(a)) => spans::<V, _, _>(a, b, values),
        (Inner(a), Inner(b)) => spans::<V, _, _>(a, b, values),
    }
}

/// As [`super::newview_pre_order`].
#[inline(always)]
pub(super) fn newview_pre_order<V: Batch>(
    parent: &Tip<'_>,
    sibling: &Operand<'_>,
    own: &[Quad],
    values: &mut [Quad],
) {
    match *sibling {
        Operand::Tip(sibling) => descents::<V, _>(*parent, sibling, own, values),
        Operand::Inner(sibling) => descents::<V, _>(*parent, sibling, own, values),
    }
}

/// The products at the parent, moved down the node's own branch.
#[inline(always)]
fn descents<V: Batch, B: Whole>(parent: Tip<'_>, sibling: B, own: &[Quad], values: &mut [Quad]) {
    assert!(V::CLASSES == PARTS, "two quads a batch");
    let (index, other) = (parent.index, sibling.index());
    assert_eq!(index.len(), other.len(), "operands of one length");
    let values = &mut values[..index.len() * SPAN];
    check(index, parent.table);
    check(other, sibling.quads());
    let held = sibling.hold::<V>();
    let own_held: [[V; 4]; PARTS] = columns(own);
    let indices = index.iter().zip(other);
    for ((&class, &other), out) in indices.zip(values.chunks_exact_mut(SPAN)) {
        // SAFETY: as in `spans`.
        unsafe {
            let x: [V; PARTS] = parent.take(&(), usize::from(class) * SPAN);
            let y = sibling.take(&held, usize::from(other) * SPAN);
            product(&own_held[0], x[0].mul(y[0])).put(out, 0);
            product(&own_held[1], x[1].mul(y[1])).put(out, PARTS);
        }
    }
}

/// As [`super::pre_order_sums`]; the weights come first, and all rates have one sum.
#[inline(always)]
pub(super) fn pre_order_sums<V: Batch>(
    near: &Tip<'_>,
    moved: &Operand<'_>,
    still: &Tip<'_>,
    weights: &[f64],
    sums: [&mut [Quad]; 2],
) {
    match *moved {
        Operand::Tip(moved) => meetings::<V, _>(*near, moved, *still, weights, sums),
        Operand::Inner(moved) => meetings::<V, _>(*near, moved, *still, weights, sums),
    }
}

#[inline(always)]
fn meetings<V: Batch, B: Whole>(
    near: Tip<'_>,
    moved: B,
    still: Tip<'_>,
    weights: &[f64],
    [above, below]: [&mut [Quad]; 2],
) {
    assert!(V::CLASSES == PARTS, "two quads a batch");
    let patterns = near.index.len();
    assert!(
        patterns == moved.index().len() && patterns == still.index.len(),
        "operands of one length"
    );
    check(near.index, near.table);
    check(moved.index(), moved.quads());
    check(still.index, still.table);
    let held = moved.hold::<V>();
    let weights = [
        [weights[0]; QUAD],
        [weights[1]; QUAD],
        [weights[2]; QUAD],
        [weights[3]; QUAD],
    ];
    let fours = patterns.div_ceil(QUAD);
    let sums = above[..fours].iter_mut().zip(&mut below[..fours]);
    for (four, (above, below)) in sums.enumerate() {
        let mut rows = [[V::Lanes::zero(); QUAD]; 2];
        let [first, second] = &mut rows;
        let lanes = first.iter_mut().zip(second);
        // The last ones may be less than four.
        let lanes = (four * QUAD..patterns).zip(lanes);
        for (k, (first, second)) in lanes {
            // SAFETY: `check` has seen that each class has a span; there are four weights.
            let (x, y, z, by) = unsafe {
                let x: [V; PARTS] = near.take(&(), usize::from(near.index[k]) * SPAN);
                let y = moved.take(&held, usize::from(moved.index()[k]) * SPAN);
                let z: [V; PARTS] = still.take(&(), usize::from(still.index[k]) * SPAN);
                let by = [V::together(&weights, 0), V::together(&weights, PARTS)];
                (x, y, z, by)
            };
            let x = [x[0].mul(by[0]), x[1].mul(by[1])];
            let sums = [
                x[1].mul_add(y[1], x[0].mul(y[0])),
                x[1].mul_add(z[1], x[0].mul(z[0])),
            ];
            *first = sums[0].class(0).add(sums[0].class(1));
            *second = sums[1].class(0).add(sums[1].class(1));
        }
        Lanes::sums(rows[0]).store(above);
        Lanes::sums(rows[1]).store(below);
    }
}

/// A side with its kind known to the compiler.
trait Whole: Spanned {
    type Held<V: Batch>: Copy;
    fn hold<V: Batch>(&self) -> Self::Held<V>;
    /// A span as it arrives.
    ///
    /// # Safety
    /// The span from `at` on is within [`Spanned::quads`].
    unsafe fn take<V: Batch>(&self, held: &Self::Held<V>, at: usize) -> [V; PARTS];
}

impl Whole for Tip<'_> {
    type Held<V: Batch> = ();
    #[inline(always)]
    fn hold<V: Batch>(&self) {}
    #[inline(always)]
    unsafe fn take<V: Batch>(&self, (): &(), at: usize) -> [V; PARTS] {
        // SAFETY: the caller's promise.
        unsafe {
            [
                V::together(self.table, at),
                V::together(self.table, at + PARTS),
            ]
        }
    }
}

impl Whole for Inner<'_> {
    /// By part and state of the child the columns of two rates.
    type Held<V: Batch> = [[V; 4]; PARTS];
    #[inline(always)]
    fn hold<V: Batch>(&self) -> [[V; 4]; PARTS] {
        columns(self.matrix)
    }
    #[inline(always)]
    unsafe fn take<V: Batch>(&self, held: &[[V; 4]; PARTS], at: usize) -> [V; PARTS] {
        // SAFETY: the caller's promise.
        let x: [V; PARTS] = unsafe {
            [
                V::together(self.values, at),
                V::together(self.values, at + PARTS),
            ]
        };
        [product(&held[0], x[0]), product(&held[1], x[1])]
    }
}

/// By part and state of the child the columns of two rates.
#[inline(always)]
fn columns<V: Batch>(matrix: &[Quad]) -> [[V; 4]; PARTS] {
    let matrix = &matrix[..4 * SPAN];
    // Written out: see `super::states::quads`.
    [
        [
            column(matrix, 0, 0),
            column(matrix, 0, 1),
            column(matrix, 0, 2),
            column(matrix, 0, 3),
        ],
        [
            column(matrix, 2, 0),
            column(matrix, 2, 1),
            column(matrix, 2, 2),
            column(matrix, 2, 3),
        ],
    ]
}

/// The columns of a state, of the rate and the next one.
#[inline(always)]
fn column<V: Batch>(matrix: &[Quad], rate: usize, state: usize) -> V {
    let (first, second) = (&matrix[4 * rate + state], &matrix[4 * (rate + 1) + state]);
    V::load([first, second, first, first])
}

/// In the order of `states::Dna`.
#[inline(always)]
fn product<V: Batch>(columns: &[V; 4], x: V) -> V {
    let mut sum = columns[0].mul(x.each::<0>());
    sum = columns[1].mul_add(x.each::<1>(), sum);
    sum = columns[2].mul_add(x.each::<2>(), sum);
    columns[3].mul_add(x.each::<3>(), sum)
}

#[inline(always)]
fn spans<V: Batch, A: Whole, B: Whole>(a: A, b: B, values: &mut [Quad]) {
    assert!(V::CLASSES == PARTS, "two quads a batch");
    let (a_index, b_index) = (a.index(), b.index());
    assert_eq!(a_index.len(), b_index.len(), "operands of one length");
    let values = &mut values[..a_index.len() * SPAN];
    check(a_index, a.quads());
    check(b_index, b.quads());
    let (a_held, b_held) = (a.hold::<V>(), b.hold::<V>());
    let indices = a_index.iter().zip(b_index);
    for ((&class, &other), out) in indices.zip(values.chunks_exact_mut(SPAN)) {
        // SAFETY: `check` has seen that each class has a span; `out` is one.
        unsafe {
            let x = a.take(&a_held, usize::from(class) * SPAN);
            let y = b.take(&b_held, usize::from(other) * SPAN);
            x[0].mul(y[0]).put(out, 0);
            x[1].mul(y[1]).put(out, PARTS);
        }
    }
}

/// All classes have spans.
#[inline(always)]
fn check(index: &[u16], quads: &[Quad]) {
    let last = index.iter().fold(0, |last, &class| last.max(class));
    assert!(
        index.is_empty() || (usize::from(last) + 1) * SPAN <= quads.len(),
        "class {last} is beyond its operand"
    );
}
