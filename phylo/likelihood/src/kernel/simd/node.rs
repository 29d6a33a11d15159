//! newview: a node's CLV from its children's.
//!
//! How: classes are taken in groups of [`GROUP`], and each group rate by rate, so that one rate's
//! matrices stay in registers (DNA) or in the first-level cache (protein) for all spans of the
//! group. A rate whose entries are all below the threshold is scaled by itself. In a large tree the
//! slow and the fast rate are hundreds of orders of magnitude apart, and one scaler for all rates
//! would lose one of them.

use super::lanes::{Batch, CLASSES_MAX, Each, Lanes};
use super::scale::{count_scaling, join_counts};
use super::states::{Dna, Protein, States, Two};
use crate::kernel::{Inner, Operand, QUAD, Quad, SCALE, Shape, THRESHOLD, Tip};

/// Classes that are processed together.
pub(super) const GROUP: usize = 16;
/// Quads of a rate of the loops here, at most.
const QUADS_MAX: usize = 5;

#[inline(always)]
pub(super) fn newview<V: Batch>(
    shape: Shape,
    left: &Operand<'_>,
    right: &Operand<'_>,
    values: &mut [Quad],
    scalers: &mut [u16],
    scale: bool,
) -> bool {
    match shape.states {
        4 => sides::<V, Dna>(shape.rates, left, right, values, scalers, scale),
        // Five sums alone would be one dependent chain each.
        _ => sides::<Two<V>, Protein>(shape.rates, left, right, values, scalers, scale),
    }
}

/// One operand of a group: where each class's span begins, in quads.
#[derive(Clone, Copy)]
pub(super) struct Starts([usize; GROUP]);

impl Starts {
    /// The starts of the classes that `index` names (at most [`GROUP`], at least one), after
    /// checking that their spans are there. Places beyond them repeat the first.
    #[inline(always)]
    pub(super) fn new(index: &[u16], span: usize, quads: usize) -> Self {
        let mut classes = [index[0]; GROUP];
        match <&[u16; GROUP]>::try_from(index) {
            Ok(whole) => classes = *whole,
            Err(_) => classes[..index.len()].copy_from_slice(index),
        }
        let last = classes.iter().fold(0, |last, &class| last.max(class));
        assert!(
            (usize::from(last) + 1) * span <= quads,
            "class {last} is beyond its operand"
        );
        let mut starts = [0; GROUP];
        for k in 0..GROUP {
            starts[k] = usize::from(classes[k]) * span;
        }
        Self(starts)
    }

    /// Start of one rate, `offset` quads into their spans, of the batch that begins with the
    /// group's class `k`.
    ///
    /// # Safety
    /// `k` is below [`GROUP`], and a batch's begin.
    #[inline(always)]
    pub(super) unsafe fn at<V: Batch>(&self, k: usize, offset: usize) -> Each<usize> {
        const { assert!(GROUP.is_multiple_of(V::CLASSES)) };
        // SAFETY: the caller's promise; a group is a whole number of batches.
        unsafe {
            [
                *self.0.get_unchecked(k) + offset,
                *self.0.get_unchecked(k + 1 % V::CLASSES) + offset,
                *self.0.get_unchecked(k + 2 % V::CLASSES) + offset,
                *self.0.get_unchecked(k + 3 % V::CLASSES) + offset,
            ]
        }
    }
}

/// The classes of patterns of a side, and the spans that these are of.
pub(super) trait Spanned: Copy {
    fn index(&self) -> &[u16];
    fn quads(&self) -> &[Quad];
}

impl Spanned for Tip<'_> {
    #[inline(always)]
    fn index(&self) -> &[u16] {
        self.index
    }
    #[inline(always)]
    fn quads(&self) -> &[Quad] {
        self.table
    }
}

impl Spanned for Inner<'_> {
    #[inline(always)]
    fn index(&self) -> &[u16] {
        self.index
    }
    #[inline(always)]
    fn quads(&self) -> &[Quad] {
        self.values
    }
}

/// A side with its kind known to the compiler.
pub(super) trait Side<S: States>: Spanned {
    /// The part that is loaded before a group's rate begins.
    type Held<V: Batch>: Copy;
    /// Empty where no entry was scaled.
    fn scalers(&self) -> &[u16];
    fn hold<V: Batch>(&self, rate: usize) -> Self::Held<V>;
    /// One rate of the spans, which begins at `at` quads.
    ///
    /// # Safety
    /// Each of `at` and the quads of one rate after it are within [`Spanned::quads`].
    unsafe fn take<V: Batch>(
        &self,
        held: &Self::Held<V>,
        rate: usize,
        at: Each<usize>,
    ) -> S::Result<V>;
}

/// One rate of each span.
///
/// # Safety
/// Each of `at` and the quads of one rate after it are within `quads`.
#[inline(always)]
pub(super) unsafe fn rates_at<S: States>(quads: &[Quad], at: Each<usize>) -> Each<&[Quad]> {
    // SAFETY: the caller's promise.
    unsafe {
        [
            quads.get_unchecked(at[0]..at[0] + S::QUADS),
            quads.get_unchecked(at[1]..at[1] + S::QUADS),
            quads.get_unchecked(at[2]..at[2] + S::QUADS),
            quads.get_unchecked(at[3]..at[3] + S::QUADS),
        ]
    }
}

impl<S: States> Side<S> for Tip<'_> {
    type Held<V: Batch> = ();
    #[inline(always)]
    fn scalers(&self) -> &[u16] {
        &[]
    }
    #[inline(always)]
    fn hold<V: Batch>(&self, _: usize) {}
    #[inline(always)]
    unsafe fn take<V: Batch>(&self, (): &(), _: usize, at: Each<usize>) -> S::Result<V> {
        // SAFETY: the caller's promise.
        S::load(unsafe { rates_at::<S>(self.table, at) })
    }
}

impl<S: States> Side<S> for Inner<'_> {
    type Held<V: Batch> = S::Columns<V>;
    #[inline(always)]
    fn scalers(&self) -> &[u16] {
        self.scalers
    }
    #[inline(always)]
    fn hold<V: Batch>(&self, rate: usize) -> S::Columns<V> {
        S::columns(self.block(rate))
    }
    #[inline(always)]
    unsafe fn take<V: Batch>(
        &self,
        held: &S::Columns<V>,
        rate: usize,
        at: Each<usize>,
    ) -> S::Result<V> {
        // SAFETY: the caller's promise.
        let x = unsafe { rates_at::<S>(self.values, at) };
        S::apply(held, self.rate_block::<S>(rate), x)
    }
}

impl Inner<'_> {
    #[inline(always)]
    fn block(&self, rate: usize) -> &[Quad] {
        // Four columns of DNA; the protein's is not read through this.
        &self.matrix[4 * rate..][..4]
    }

    #[inline(always)]
    fn rate_block<S: States>(&self, rate: usize) -> &[Quad] {
        let quads = 4 * S::QUADS * S::QUADS;
        &self.matrix[quads * rate..][..quads]
    }
}

#[inline(always)]
fn sides<V: Batch, S: States>(
    rates: usize,
    left: &Operand<'_>,
    right: &Operand<'_>,
    values: &mut [Quad],
    scalers: &mut [u16],
    scale: bool,
) -> bool {
    // One instance of the loop for each kind of children; the two mixed cases share one, as the
    // product commutes.
    use Operand::{Inner, Tip};
    match (*left, *right) {
        (Tip(a), Tip(b)) => groups::<V, S, _, _>(rates, a, b, values, scalers, scale),
        (Tip(a), Inner(b)) | (Inner(b), Tip(a)) => {
            groups::<V, S, _, _>(rates, a, b, values, scalers, scale)
        }
        (Inner(a), Inner(b)) => groups::<V, S, _, _>(rates, a, b, values, scalers, scale),
    }
}

#[inline(always)]
fn groups<V: Batch, S: States, A: Side<S>, B: Side<S>>(
    rates: usize,
    a: A,
    b: B,
    values: &mut [Quad],
    scalers: &mut [u16],
    scale: bool,
) -> bool {
    let span = rates * S::QUADS;
    let (a_index, b_index) = (a.index(), b.index());
    assert_eq!(a_index.len(), b_index.len(), "operands of one length");
    let classes = a_index.len();
    let values = &mut values[..classes * span];
    let scalers = &mut scalers[..classes * rates];
    let mut scaled = join_counts::<V::Lanes>(
        rates,
        scalers,
        [a_index, b_index],
        [a.scalers(), b.scalers()],
    );
    let limit = V::Lanes::splat(THRESHOLD);
    for (group, out) in values.chunks_mut(GROUP * span).enumerate() {
        let first = group * GROUP;
        let count = out.len() / span;
        let a_at = Starts::new(&a_index[first..][..count], span, a.quads().len());
        let b_at = Starts::new(&b_index[first..][..count], span, b.quads().len());
        for rate in 0..rates {
            let (a_held, b_held) = (a.hold::<V>(rate), b.hold::<V>(rate));
            let offset = rate * S::QUADS;
            // Lane by lane the group's minimum of the classes' largest entries: if it is not below
            // the limit, no class of the group is.
            let mut least = V::same(&[f64::INFINITY; 4]);
            for k in (0..count).step_by(V::CLASSES) {
                // SAFETY: `k` is below GROUP; Starts::new has checked that a whole span follows
                // each start, and `offset` is within a span.
                let (x, y) = unsafe {
                    let (from, other) = (a_at.at::<V>(k, offset), b_at.at::<V>(k, offset));
                    (a.take(&a_held, rate, from), b.take(&b_held, rate, other))
                };
                let product = S::times(x, y);
                if scale {
                    // A class beyond the last repeats the group's first.
                    least = S::largest(product).min(least);
                }
                for class in 0..V::CLASSES {
                    if k + class >= count {
                        break;
                    }
                    let at = (k + class) * span + offset;
                    // SAFETY: `out` holds `count` spans.
                    let to = unsafe { out.get_unchecked_mut(at..at + S::QUADS) };
                    S::store(product, class, to);
                }
            }
            let least = (1..V::CLASSES).fold(least.class(0), |all, class| {
                Lanes::min(least.class(class), all)
            });
            if scale && least.all_below(limit) {
                for (k, span) in out.chunks_exact_mut(span).enumerate() {
                    let values = &mut span[offset..offset + S::QUADS];
                    if raise::<V::Lanes, S>(values, limit) {
                        count_scaling(scalers, (first + k) * rates + rate, &mut scaled);
                    }
                }
            }
        }
    }
    scaled
}

/// As [`super::newview_pre_order`], of 4 or 20 states.
#[inline(always)]
pub(super) fn newview_pre_order<V: Batch>(
    shape: Shape,
    parent: &Tip<'_>,
    sibling: &Operand<'_>,
    own: &[Quad],
    values: &mut [Quad],
) {
    use Operand::{Inner, Tip};
    let rates = shape.rates;
    match (shape.states, *sibling) {
        (4, Tip(sibling)) => descents::<V, Dna, _>(rates, *parent, sibling, own, values),
        (4, Inner(sibling)) => descents::<V, Dna, _>(rates, *parent, sibling, own, values),
        (_, Tip(sibling)) => descents::<Two<V>, Protein, _>(rates, *parent, sibling, own, values),
        (_, Inner(sibling)) => descents::<Two<V>, Protein, _>(rates, *parent, sibling, own, values),
    }
}

/// Groups of classes, each group rate by rate: first the products at the parent, then the node's
/// own branch.
#[inline(always)]
fn descents<V: Batch, S: States, B: Side<S>>(
    rates: usize,
    parent: Tip<'_>,
    sibling: B,
    own: &[Quad],
    values: &mut [Quad],
) {
    let span = rates * S::QUADS;
    let (index, other) = (parent.index, sibling.index());
    assert_eq!(index.len(), other.len(), "operands of one length");
    let own = Inner {
        matrix: own,
        values: &[],
        scalers: &[],
        index: &[],
    };
    let values = &mut values[..index.len() * span];
    // Room for the products of a group, of which a rate has `S::QUADS` each.
    let mut products = [[0.0; QUAD]; GROUP * QUADS_MAX];
    for (group, out) in values.chunks_mut(GROUP * span).enumerate() {
        let first = group * GROUP;
        let count = out.len() / span;
        let parent_at = Starts::new(&index[first..][..count], span, parent.table.len());
        let sibling_at = Starts::new(&other[first..][..count], span, sibling.quads().len());
        for rate in 0..rates {
            let held = sibling.hold::<V>(rate);
            let own_held = Side::<S>::hold::<V>(&own, rate);
            let offset = rate * S::QUADS;
            for k in (0..count).step_by(V::CLASSES) {
                // SAFETY: `k` is below GROUP; Starts::new has checked that a whole span follows
                // each start, and `offset` is within a span.
                let product = unsafe {
                    let x = parent_at.at::<V>(k, offset);
                    let x = S::load(rates_at::<S>(parent.table, x));
                    let y = sibling_at.at::<V>(k, offset);
                    S::times(x, sibling.take(&held, rate, y))
                };
                for class in 0..V::CLASSES {
                    let at = (k + class) * S::QUADS;
                    // SAFETY: `k` begins a batch of a group.
                    let to = unsafe { products.get_unchecked_mut(at..at + S::QUADS) };
                    S::store(product, class, to);
                }
            }
            for k in (0..count).step_by(V::CLASSES) {
                let at = |class: usize| (k + class % V::CLASSES) * S::QUADS;
                // SAFETY: `k` begins a batch of a group.
                let x = unsafe { rates_at::<S>(&products, [at(0), at(1), at(2), at(3)]) };
                let moved = S::apply(&own_held, own.rate_block::<S>(rate), x);
                for class in 0..V::CLASSES {
                    if k + class >= count {
                        break;
                    }
                    let at = (k + class) * span + offset;
                    // SAFETY: `out` holds `count` spans.
                    let to = unsafe { out.get_unchecked_mut(at..at + S::QUADS) };
                    S::store(moved, class, to);
                }
            }
        }
    }
}

/// Scales one rate's entries if all are below the limit; true if it did.
#[inline(always)]
fn raise<V: Lanes, S: States>(values: &mut [Quad], limit: V) -> bool {
    let lanes = S::load::<V>([&*values; CLASSES_MAX]);
    let below = S::largest(lanes).all_below(limit);
    if below {
        S::store(S::times(lanes, raised::<V, S>()), 0, values);
    }
    below
}

/// The scale in every lane.
#[inline(always)]
fn raised<V: Lanes, S: States>() -> S::Result<V> {
    const RAISED: [Quad; 5] = [[SCALE; 4]; 5];
    S::load([&RAISED[..S::QUADS]; CLASSES_MAX])
}
