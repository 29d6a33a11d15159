//! evaluate and the derivatives: the kernels at a branch.

use super::lanes::{Batch, CLASSES_MAX, Each, Lanes};
use super::node::{GROUP, Side, Starts, rates_at};
use super::scale::{add_counts, join_counts};
use super::states::{Dna, Protein, States, Two, quads};
use crate::kernel::{Derivatives, Inner, Operand, QUAD, Quad, Shape, Tip};

#[inline(always)]
pub(super) fn evaluate<V: Batch>(
    shape: Shape,
    left: &Operand<'_>,
    right: &Operand<'_>,
    terms: &mut [Quad],
    scalers: &mut [u16],
) -> bool {
    match shape.states {
        4 => sides::<V, Dna>(shape.rates, left, right, terms, scalers),
        20 => sides::<Two<V>, Protein>(shape.rates, left, right, terms, scalers),
        _ => super::wide::evaluate(shape, left, right, terms, scalers),
    }
}

#[inline(always)]
fn sides<V: Batch, S: States>(
    rates: usize,
    left: &Operand<'_>,
    right: &Operand<'_>,
    terms: &mut [Quad],
    scalers: &mut [u16],
) -> bool {
    // Callers put a tip on the right side, so two cases are enough.
    let Operand::Inner(near) = *left else {
        panic!("the left side of a branch is an inner node");
    };
    match *right {
        Operand::Tip(far) => patterns::<V, S, _>(rates, near, far, terms, scalers),
        Operand::Inner(far) => patterns::<V, S, _>(rates, near, far, terms, scalers),
    }
}

/// Groups of patterns, each group rate by rate, four patterns to a register of terms.
#[inline(always)]
fn patterns<V: Batch, S: States, B: Side<S>>(
    rates: usize,
    near: Inner<'_>,
    far: B,
    terms: &mut [Quad],
    scalers: &mut [u16],
) -> bool {
    let span = rates * S::QUADS;
    let (index, other) = (near.index, far.index());
    assert_eq!(index.len(), other.len(), "operands of one length");
    let patterns = index.len();
    let terms = &mut terms[..patterns.div_ceil(QUAD) * rates];
    for (group, out) in terms.chunks_mut(GROUP / QUAD * rates).enumerate() {
        let first = group * GROUP;
        let count = (patterns - first).min(GROUP);
        let near_at = Starts::new(&index[first..][..count], span, near.values.len());
        let far_at = Starts::new(&other[first..][..count], span, far.quads().len());
        for rate in 0..rates {
            let held = far.hold::<V>(rate);
            let offset = rate * S::QUADS;
            for four in 0..count.div_ceil(QUAD) {
                let mut rows = [V::Lanes::zero(); QUAD];
                for lane in (0..QUAD).step_by(V::CLASSES) {
                    // SAFETY: `k` is below GROUP; Starts::new has checked that a whole span follows
                    // each start (those beyond the count repeat the first), and `offset` is within
                    // a span.
                    let (here, arrived) = unsafe {
                        let k = four * QUAD + lane;
                        let here = rates_at::<S>(near.values, near_at.at::<V>(k, offset));
                        (here, far.take(&held, rate, far_at.at::<V>(k, offset)))
                    };
                    let mut row = V::same(&[0.0; QUAD]);
                    for (i, lanes) in arrived.as_ref().iter().enumerate() {
                        // SAFETY: a result has as many as one rate has quads.
                        row = V::load(unsafe { quads(here, i) }).mul_add(*lanes, row);
                    }
                    for class in 0..V::CLASSES {
                        rows[lane + class] = row.class(class);
                    }
                }
                Lanes::sums(rows).store(&mut out[four * rates + rate]);
            }
        }
    }
    let scalers = &mut scalers[..patterns * rates];
    join_counts::<V::Lanes>(
        rates,
        scalers,
        [index, other],
        [near.scalers, far.scalers()],
    )
}

/// As [`super::pre_order_sums`].
#[inline(always)]
pub(super) fn pre_order_sums<V: Batch>(
    shape: Shape,
    near: &Tip<'_>,
    moved: &Operand<'_>,
    still: &Tip<'_>,
    weights: &[f64],
    sums: [&mut [Quad]; 2],
) {
    use Operand::{Inner, Tip};
    let weights = &weights[..shape.rates];
    if let (4, 4, 2) = (shape.states, shape.rates, V::CLASSES) {
        return super::four::pre_order_sums::<V>(near, moved, still, weights, sums);
    }
    match (shape.states, *moved) {
        (4, Tip(moved)) => meetings::<V, Dna, _>(*near, moved, *still, weights, sums),
        (4, Inner(moved)) => meetings::<V, Dna, _>(*near, moved, *still, weights, sums),
        (20, Tip(moved)) => meetings::<Two<V>, Protein, _>(*near, moved, *still, weights, sums),
        (20, Inner(moved)) => meetings::<Two<V>, Protein, _>(*near, moved, *still, weights, sums),
        _ => super::wide::pre_order_sums(shape, near, moved, still, weights, sums),
    }
}

/// As [`patterns`], of two sums, which are added over the rates by their weights.
#[inline(always)]
fn meetings<V: Batch, S: States, B: Side<S>>(
    near: Tip<'_>,
    moved: B,
    still: Tip<'_>,
    weights: &[f64],
    [above, below]: [&mut [Quad]; 2],
) {
    let span = weights.len() * S::QUADS;
    let patterns = near.index.len();
    assert!(
        patterns == moved.index().len() && patterns == still.index.len(),
        "operands of one length"
    );
    let fours = patterns.div_ceil(QUAD);
    let (above, below) = (&mut above[..fours], &mut below[..fours]);
    let groups = above
        .chunks_mut(GROUP / QUAD)
        .zip(below.chunks_mut(GROUP / QUAD));
    for (group, (above, below)) in groups.enumerate() {
        let first = group * GROUP;
        let count = (patterns - first).min(GROUP);
        let near_at = Starts::new(&near.index[first..][..count], span, near.table.len());
        let moved_at = Starts::new(&moved.index()[first..][..count], span, moved.quads().len());
        let still_at = Starts::new(&still.index[first..][..count], span, still.table.len());
        above.fill([0.0; QUAD]);
        below.fill([0.0; QUAD]);
        for (rate, &weight) in weights.iter().enumerate() {
            let held = moved.hold::<V>(rate);
            let offset = rate * S::QUADS;
            let weight = V::Lanes::splat(weight);
            for (four, (above, below)) in above.iter_mut().zip(below.iter_mut()).enumerate() {
                let mut rows = [[V::Lanes::zero(); QUAD]; 2];
                for lane in (0..QUAD).step_by(V::CLASSES) {
                    // SAFETY: as in `patterns`.
                    let (here, arrived, as_it_is) = unsafe {
                        let k = four * QUAD + lane;
                        let here = rates_at::<S>(near.table, near_at.at::<V>(k, offset));
                        let as_it_is = rates_at::<S>(still.table, still_at.at::<V>(k, offset));
                        let arrived = moved.take(&held, rate, moved_at.at::<V>(k, offset));
                        (here, arrived, as_it_is)
                    };
                    let mut row = [V::same(&[0.0; QUAD]); 2];
                    for (i, lanes) in arrived.as_ref().iter().enumerate() {
                        // SAFETY: a result has as many as one rate has quads.
                        let (here, as_it_is) =
                            unsafe { (V::load(quads(here, i)), V::load(quads(as_it_is, i))) };
                        row = [here.mul_add(*lanes, row[0]), here.mul_add(as_it_is, row[1])];
                    }
                    for class in 0..V::CLASSES {
                        rows[0][lane + class] = row[0].class(class);
                        rows[1][lane + class] = row[1].class(class);
                    }
                }
                let sums = [Lanes::sums(rows[0]), Lanes::sums(rows[1])];
                for (sum, to) in sums.into_iter().zip([above, below]) {
                    let all: V::Lanes = Lanes::load(to);
                    Lanes::mul_add(sum, weight, all).store(to);
                }
            }
        }
    }
}

/// Inserts a subtree into the middle of a branch, pattern by pattern: the product of the two ends'
/// CLVs moved to that point, and of the subtree's.
#[inline(always)]
pub(super) fn insert<V: Batch>(
    shape: Shape,
    near: &Operand<'_>,
    far: &Operand<'_>,
    below: &Operand<'_>,
    terms: &mut [Quad],
    scalers: &mut [u16],
) -> bool {
    if !matches!(shape.states, 4 | 20) {
        return super::wide::insert(shape, near, far, below, terms, scalers);
    }
    // No tip here: the near side is a scratch CLV, and the subtree's CLV has its matrix applied
    // already.
    let (Operand::Inner(near), Operand::Inner(below)) = (*near, *below) else {
        panic!("the near side and what arrives are values");
    };
    let rates = shape.rates;
    // The protein loop takes two batches at once to hide the latency of its sums.
    match (shape.states, *far) {
        (4, Operand::Tip(far)) => insertions::<V, Dna, _>(rates, near, far, below, terms, scalers),
        (4, Operand::Inner(far)) => {
            insertions::<V, Dna, _>(rates, near, far, below, terms, scalers)
        }
        (_, Operand::Tip(far)) => {
            insertions::<Two<V>, Protein, _>(rates, near, far, below, terms, scalers)
        }
        (_, Operand::Inner(far)) => {
            insertions::<Two<V>, Protein, _>(rates, near, far, below, terms, scalers)
        }
    }
}

/// As [`patterns`], of the product of three.
#[inline(always)]
fn insertions<V: Batch, S: States, B: Side<S>>(
    rates: usize,
    near: Inner<'_>,
    far: B,
    below: Inner<'_>,
    terms: &mut [Quad],
    scalers: &mut [u16],
) -> bool {
    let span = rates * S::QUADS;
    let (index, other, third) = (near.index, far.index(), below.index);
    assert!(
        index.len() == other.len() && index.len() == third.len(),
        "operands of one length"
    );
    let patterns = index.len();
    let terms = &mut terms[..patterns.div_ceil(QUAD) * rates];
    // Whole groups of patterns rate by rate, so that one rate's matrices stay in registers.
    for (group, out) in terms.chunks_mut(GROUP / QUAD * rates).enumerate() {
        let first = group * GROUP;
        let count = (patterns - first).min(GROUP);
        let near_at = Starts::new(&index[first..][..count], span, near.values.len());
        let far_at = Starts::new(&other[first..][..count], span, far.quads().len());
        let below_at = Starts::new(&third[first..][..count], span, below.values.len());
        for rate in 0..rates {
            let near_held = Side::<S>::hold::<V>(&near, rate);
            let far_held = far.hold::<V>(rate);
            let offset = rate * S::QUADS;
            for four in 0..count.div_ceil(QUAD) {
                let mut rows = [V::Lanes::zero(); QUAD];
                for lane in (0..QUAD).step_by(V::CLASSES) {
                    // SAFETY: as in `patterns`, for three operands.
                    let (x, y, z) = unsafe {
                        let k = four * QUAD + lane;
                        let x = Side::<S>::take::<V>(
                            &near,
                            &near_held,
                            rate,
                            near_at.at::<V>(k, offset),
                        );
                        let y = far.take::<V>(&far_held, rate, far_at.at::<V>(k, offset));
                        (
                            x,
                            y,
                            rates_at::<S>(below.values, below_at.at::<V>(k, offset)),
                        )
                    };
                    // The product of the ends is never stored; scaling it is not needed, see
                    // `super::insert`.
                    let product = S::times(x, y);
                    let mut row = V::same(&[0.0; QUAD]);
                    for (i, lanes) in product.as_ref().iter().enumerate() {
                        // SAFETY: a result has as many as one rate has quads.
                        row = V::load(unsafe { quads(z, i) }).mul_add(*lanes, row);
                    }
                    for class in 0..V::CLASSES {
                        rows[lane + class] = row.class(class);
                    }
                }
                Lanes::sums(rows).store(&mut out[four * rates + rate]);
            }
        }
    }
    // Scaling counts add up over the three operands.
    let scalers = &mut scalers[..patterns * rates];
    let counted = join_counts::<V::Lanes>(
        rates,
        scalers,
        [index, other],
        [near.scalers, far.scalers()],
    );
    add_counts(rates, scalers, counted, third, below.scalers)
}

/// Four patterns at a time, each in a lane of its own; the lanes are added at the end.
#[inline(always)]
pub(super) fn derivatives<V: Batch>(
    shape: Shape,
    table: &[Quad],
    powers: &[Quad],
    fixed: &[f64],
    weights: &[f64],
) -> Derivatives {
    let span = shape.quads();
    let table = &table[..weights.len() * span];
    let fixed = &fixed[..weights.len()];
    // The powers of DNA fit in registers.
    match span {
        DNA_SPAN => {
            let powers = Registers::<V, 3>::new(powers);
            slopes::<V, _>(&powers, table, fixed, weights)
        }
        _ => slopes::<V, _>(&Spans::<3>::new(span, powers), table, fixed, weights),
    }
}

#[inline(always)]
fn slopes<V: Batch, P: Powers<V, 3>>(
    powers: &P,
    table: &[Quad],
    fixed: &[f64],
    weights: &[f64],
) -> Derivatives {
    let mut sums = [V::Lanes::zero(); 2];
    for ((spans, fixed), weights) in table
        .chunks(QUAD * powers.span())
        .zip(fixed.chunks(QUAD))
        .zip(weights.chunks(QUAD))
    {
        let [value, first, second] = sums_of_four(powers, spans);
        let likelihood = value.add(Lanes::load(&four(fixed)));
        let weight: V::Lanes = Lanes::load(&four(weights));
        // One division for both.
        let inverse = V::Lanes::splat(1.0).div(likelihood);
        let slope = Lanes::mul(first, inverse);
        let bend = Lanes::mul(second, inverse).sub(Lanes::mul(slope, slope));
        // An impossible pattern (likelihood 0 or NaN) adds no slope.
        sums[0] = sums[0].add(Lanes::mul(weight, slope).where_positive(likelihood));
        sums[1] = sums[1].add(Lanes::mul(weight, bend).where_positive(likelihood));
    }
    Derivatives {
        first: sums[0].sum(),
        second: sums[1].sum(),
    }
}

/// Each pattern's likelihood from the sum table, in groups of four; invariable sites are not added.
#[inline(always)]
pub(super) fn table_terms<V: Batch>(
    shape: Shape,
    table: &[Quad],
    powers: &[Quad],
    terms: &mut [Quad],
) {
    let powers = Spans::<1>::new(shape.quads(), powers);
    for (spans, terms) in table.chunks(QUAD * powers.span).zip(terms) {
        let [value]: [V::Lanes; 1] = sums_of_four::<V, _, 1>(&powers, spans);
        value.store(terms);
    }
}

/// The spans of one to four patterns, each times every order of powers. Each pattern has a lane;
/// lanes beyond the last repeat the first.
#[inline(always)]
fn sums_of_four<V: Batch, P: Powers<V, ORDERS>, const ORDERS: usize>(
    powers: &P,
    spans: &[Quad],
) -> [V::Lanes; ORDERS] {
    let span = powers.span();
    let mut rows = [[V::Lanes::zero(); QUAD]; ORDERS];
    for first in (0..QUAD).step_by(V::CLASSES) {
        let mut each = [&spans[..span]; CLASSES_MAX];
        for (class, own) in each.iter_mut().enumerate().take(V::CLASSES) {
            let at = (first + class) * span;
            if at < spans.len() {
                *own = &spans[at..][..span];
            }
        }
        let own = powers.times(each);
        for (rows, own) in rows.iter_mut().zip(own) {
            for class in 0..V::CLASSES {
                rows[first + class] = own.class(class);
            }
        }
    }
    let mut sums = [V::Lanes::zero(); ORDERS];
    for (sum, rows) in sums.iter_mut().zip(rows) {
        *sum = Lanes::sums(rows);
    }
    sums
}

/// Factors of a sum table: a span for each order of derivatives.
trait Powers<V: Batch, const ORDERS: usize> {
    /// Quads of one span.
    fn span(&self) -> usize;
    /// Some spans times each of them, four sums each.
    fn times(&self, spans: Each<&[Quad]>) -> [V; ORDERS];
}

/// Spans of any length, in memory.
struct Spans<'a, const ORDERS: usize> {
    powers: &'a [Quad],
    span: usize,
}

impl<'a, const ORDERS: usize> Spans<'a, ORDERS> {
    #[inline(always)]
    fn new(span: usize, powers: &'a [Quad]) -> Self {
        let powers = &powers[..ORDERS * span];
        Self { powers, span }
    }
}

impl<V: Batch, const ORDERS: usize> Powers<V, ORDERS> for Spans<'_, ORDERS> {
    #[inline(always)]
    fn span(&self) -> usize {
        self.span
    }

    #[inline(always)]
    fn times(&self, spans: Each<&[Quad]>) -> [V; ORDERS] {
        let mut sums = [V::same(&[0.0; QUAD]); ORDERS];
        for at in 0..self.span {
            // SAFETY: `at` is within a span; each class has one, and the powers have `ORDERS` of
            // them.
            let x = V::load(unsafe { quads(spans, at) });
            for (order, sum) in sums.iter_mut().enumerate() {
                // SAFETY: as above.
                let power = unsafe { self.powers.get_unchecked(order * self.span + at) };
                *sum = x.mul_add(V::same(power), *sum);
            }
        }
        sums
    }
}

/// DNA with four rates: held in registers.
struct Registers<V, const ORDERS: usize>([[V; DNA_SPAN]; ORDERS]);

impl<V: Batch, const ORDERS: usize> Registers<V, ORDERS> {
    #[inline(always)]
    fn new(powers: &[Quad]) -> Self {
        let mut held = [[V::same(&[0.0; QUAD]); DNA_SPAN]; ORDERS];
        for (held, powers) in held.iter_mut().zip(powers.chunks_exact(DNA_SPAN)) {
            for (held, power) in held.iter_mut().zip(powers) {
                *held = V::same(power);
            }
        }
        Self(held)
    }
}

impl<V: Batch, const ORDERS: usize> Powers<V, ORDERS> for Registers<V, ORDERS> {
    #[inline(always)]
    fn span(&self) -> usize {
        DNA_SPAN
    }

    #[inline(always)]
    fn times(&self, spans: Each<&[Quad]>) -> [V; ORDERS] {
        let [a, b, c, d] = spans;
        let spans = [
            &a[..DNA_SPAN],
            &b[..DNA_SPAN],
            &c[..DNA_SPAN],
            &d[..DNA_SPAN],
        ];
        let mut sums = [V::same(&[0.0; QUAD]); ORDERS];
        for at in 0..DNA_SPAN {
            // SAFETY: each span is that long.
            let x = V::load(unsafe { quads(spans, at) });
            for (sum, held) in sums.iter_mut().zip(&self.0) {
                *sum = match at {
                    0 => x.mul(held[0]),
                    _ => x.mul_add(held[at], *sum),
                };
            }
        }
        sums
    }
}

/// Quads of a span of DNA with four rates.
const DNA_SPAN: usize = 4;

/// One to four doubles; missing ones are 0.
#[inline(always)]
pub(super) fn four(from: &[f64]) -> Quad {
    match Quad::try_from(from) {
        Ok(four) => four,
        Err(_) => {
            let mut four = [0.0; QUAD];
            for (to, from) in four.iter_mut().zip(from) {
                *to = *from;
            }
            four
        }
    }
}
