//! evaluate and the derivatives: what is asked of a branch.

use super::lanes::{Batch, Lanes, Two};
use super::node::{
    Dna, GROUP, Inner, Protein, Side, Starts, States, Tip, join_counts, quads, rates_at,
};
use crate::kernel::{Derivatives, Operand, QUAD, Quad, Shape};

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
    let Operand::Inner {
        matrix,
        values,
        scalers: counts,
        index,
    } = *left
    else {
        panic!("the left side of a branch is an inner node");
    };
    let near = Inner {
        matrix,
        values,
        scalers: counts,
        index,
    };
    match *right {
        Operand::Tip { table, index } => {
            patterns::<V, S, _>(rates, near, Tip { table, index }, terms, scalers)
        }
        Operand::Inner {
            matrix,
            values,
            scalers: counts,
            index,
        } => {
            let far = Inner {
                matrix,
                values,
                scalers: counts,
                index,
            };
            patterns::<V, S, _>(rates, near, far, terms, scalers)
        }
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

/// Four patterns at a time, each in a lane of its own; the lanes are added at the end.
#[inline(always)]
pub(super) fn derivatives<V: Lanes>(
    shape: Shape,
    table: &[Quad],
    powers: &[Quad],
    fixed: &[f64],
    weights: &[f64],
) -> Derivatives {
    let span = shape.quads();
    let table = &table[..weights.len() * span];
    let fixed = &fixed[..weights.len()];
    match span {
        DNA_SPAN => {
            let powers = Registers::<V, 3>::new(powers);
            slopes::<V, _>(&powers, table, fixed, weights)
        }
        _ => slopes::<V, _>(&Spans::<3>::new(span, powers), table, fixed, weights),
    }
}

#[inline(always)]
fn slopes<V: Lanes, P: Powers<V, 3>>(
    powers: &P,
    table: &[Quad],
    fixed: &[f64],
    weights: &[f64],
) -> Derivatives {
    let mut sums = [V::zero(); 2];
    for ((spans, fixed), weights) in table
        .chunks(QUAD * powers.span())
        .zip(fixed.chunks(QUAD))
        .zip(weights.chunks(QUAD))
    {
        let [value, first, second] = sums_of_four(powers, spans);
        let likelihood = value.add(V::load(&four(fixed)));
        let weight = V::load(&four(weights));
        let slope = first.div(likelihood);
        let bend = second.div(likelihood).sub(slope.mul(slope));
        // A pattern that cannot be (or whose likelihood is no number) has no slope.
        sums[0] = sums[0].add(weight.mul(slope).where_positive(likelihood));
        sums[1] = sums[1].add(weight.mul(bend).where_positive(likelihood));
    }
    Derivatives {
        first: sums[0].sum(),
        second: sums[1].sum(),
    }
}

/// Each pattern's likelihood from the sum table, in groups of four; what is fixed is not added.
#[inline(always)]
pub(super) fn table_terms<V: Lanes>(
    shape: Shape,
    table: &[Quad],
    powers: &[Quad],
    terms: &mut [Quad],
) {
    let powers = Spans::<1>::new(shape.quads(), powers);
    for (spans, terms) in table.chunks(QUAD * powers.span).zip(terms) {
        let [value]: [V; 1] = sums_of_four(&powers, spans);
        value.store(terms);
    }
}

/// The spans of one to four patterns, each times every order of powers; a lane a pattern, 0 in
/// lanes beyond the last.
#[inline(always)]
fn sums_of_four<V: Lanes, P: Powers<V, ORDERS>, const ORDERS: usize>(
    powers: &P,
    spans: &[Quad],
) -> [V; ORDERS] {
    let mut rows = [[V::zero(); QUAD]; ORDERS];
    for (k, span) in spans.chunks_exact(powers.span()).enumerate() {
        let own = powers.times(span);
        for (rows, own) in rows.iter_mut().zip(own) {
            rows[k] = own;
        }
    }
    let mut sums = [V::zero(); ORDERS];
    for (sum, rows) in sums.iter_mut().zip(rows) {
        *sum = V::sums(rows);
    }
    sums
}

/// What a sum table is multiplied with: a span for each order of derivatives.
trait Powers<V: Lanes, const ORDERS: usize> {
    /// Quads of one span.
    fn span(&self) -> usize;
    /// A span times each of them, four sums each.
    fn times(&self, span: &[Quad]) -> [V; ORDERS];
}

/// Of any length, in memory.
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

impl<V: Lanes, const ORDERS: usize> Powers<V, ORDERS> for Spans<'_, ORDERS> {
    #[inline(always)]
    fn span(&self) -> usize {
        self.span
    }

    #[inline(always)]
    fn times(&self, span: &[Quad]) -> [V; ORDERS] {
        let mut sums = [V::zero(); ORDERS];
        for (at, x) in span[..self.span].iter().enumerate() {
            let x = V::load(x);
            for (order, sum) in sums.iter_mut().enumerate() {
                // SAFETY: `at` is within a span, and there are `ORDERS` of them.
                let power = unsafe { self.powers.get_unchecked(order * self.span + at) };
                *sum = x.mul_add(V::load(power), *sum);
            }
        }
        sums
    }
}

/// DNA with four rates: held in registers.
struct Registers<V, const ORDERS: usize>([[V; DNA_SPAN]; ORDERS]);

impl<V: Lanes, const ORDERS: usize> Registers<V, ORDERS> {
    #[inline(always)]
    fn new(powers: &[Quad]) -> Self {
        let mut held = [[V::zero(); DNA_SPAN]; ORDERS];
        for (held, powers) in held.iter_mut().zip(powers.chunks_exact(DNA_SPAN)) {
            for (held, power) in held.iter_mut().zip(powers) {
                *held = V::load(power);
            }
        }
        Self(held)
    }
}

impl<V: Lanes, const ORDERS: usize> Powers<V, ORDERS> for Registers<V, ORDERS> {
    #[inline(always)]
    fn span(&self) -> usize {
        DNA_SPAN
    }

    #[inline(always)]
    fn times(&self, span: &[Quad]) -> [V; ORDERS] {
        let span = &span[..DNA_SPAN];
        let mut sums = [V::zero(); ORDERS];
        for (at, x) in span.iter().enumerate() {
            let x = V::load(x);
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

/// One to four doubles; what is missing is 0.
#[inline(always)]
fn four(from: &[f64]) -> Quad {
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
