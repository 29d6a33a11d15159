//! evaluate and the derivatives: what is asked of a branch.

use super::lanes::Lanes;
use super::node::{Dna, Inner, Protein, Side, States, Tip};
use crate::kernel::{Derivatives, Operand, QUAD, Quad, Shape};

#[inline(always)]
pub(super) fn evaluate<V: Lanes>(
    shape: Shape,
    left: &Operand<'_>,
    right: &Operand<'_>,
    terms: &mut [f64],
    scalers: &mut [u16],
) {
    match shape.states {
        4 => sides::<V, Dna>(shape.rates, left, right, terms, scalers),
        _ => sides::<V, Protein>(shape.rates, left, right, terms, scalers),
    }
}

#[inline(always)]
fn sides<V: Lanes, S: States>(
    rates: usize,
    left: &Operand<'_>,
    right: &Operand<'_>,
    terms: &mut [f64],
    scalers: &mut [u16],
) {
    let Operand::Inner { values: u, scalers: v, index, .. } = *left else {
        panic!("the left side of a branch is an inner node");
    };
    match *right {
        Operand::Tip { table, index: at } => {
            let side = Tip { table, index: at };
            patterns::<V, S, _>(rates, u, v, index, side, terms, scalers);
        }
        Operand::Inner { matrix, values, scalers: counts, index: at } => {
            let side = Inner { matrix, values, scalers: counts, index: at };
            patterns::<V, S, _>(rates, u, v, index, side, terms, scalers);
        }
    }
}

#[inline(always)]
fn patterns<V: Lanes, S: States, B: Side<S>>(
    rates: usize,
    values: &[Quad],
    counts: &[u16],
    index: &[u16],
    other: B,
    terms: &mut [f64],
    scalers: &mut [u16],
) {
    let span = rates * S::QUADS;
    assert_eq!(index.len(), other.index().len(), "operands of one length");
    let terms = &mut terms[..index.len() * rates];
    let scalers = &mut scalers[..index.len() * rates];
    for rate in 0..rates {
        let held = other.hold::<V>(rate);
        let offset = rate * S::QUADS;
        let quads = other.quads().len();
        for (pattern, (&mine, &its)) in index.iter().zip(other.index()).enumerate() {
            let at = usize::from(its) * span + offset;
            assert!(at + S::QUADS <= quads, "class {its} is beyond its operand");
            // SAFETY: checked on the line above.
            let arrived = unsafe { other.take(&held, rate, at) };
            let here = &values[usize::from(mine) * span + offset..][..S::QUADS];
            let mut sum = V::zero();
            for (quad, lanes) in here.iter().zip(arrived.as_ref()) {
                sum = V::load(quad).mul_add(*lanes, sum);
            }
            terms[pattern * rates + rate] = sum.sum();
        }
    }
    for (pattern, (&mine, &its)) in index.iter().zip(other.index()).enumerate() {
        let to = &mut scalers[pattern * rates..][..rates];
        to.copy_from_slice(&counts[usize::from(mine) * rates..][..rates]);
        if let Some(more) = other.scalers() {
            let more = &more[usize::from(its) * rates..][..rates];
            for (to, more) in to.iter_mut().zip(more) {
                *to = to.saturating_add(*more);
            }
        }
    }
}

/// Four patterns at a time; each lane keeps its own sums, which are added at the end.
#[inline(always)]
pub(super) fn derivatives<V: Lanes>(
    shape: Shape,
    table: &[Quad],
    powers: &[Quad],
    fixed: &[f64],
    weights: &[f64],
) -> Derivatives {
    let span = shape.quads();
    let patterns = weights.len();
    let table = &table[..patterns * span];
    let (e, rest) = powers[..3 * span].split_at(span);
    let (e1, e2) = rest.split_at(span);
    let fixed = &fixed[..patterns];
    let mut sums = [[0.0; QUAD]; 2];
    for (group, spans) in table.chunks(QUAD * span).enumerate() {
        let first = group * QUAD;
        let count = spans.len() / span;
        let mut rows = [[V::zero(); QUAD]; 3];
        for k in 0..count {
            let spans = &spans[k * span..][..span];
            let [mut a, mut b, mut c] = [V::zero(); 3];
            for (((x, e), e1), e2) in spans.iter().zip(e).zip(e1).zip(e2) {
                let x = V::load(x);
                a = x.mul_add(V::load(e), a);
                b = x.mul_add(V::load(e1), b);
                c = x.mul_add(V::load(e2), c);
            }
            (rows[0][k], rows[1][k], rows[2][k]) = (a, b, c);
        }
        let [l, l1, l2] = rows.map(|rows| V::sums(rows).to_array());
        for k in 0..count {
            let weight = weights[first + k];
            let likelihood = l[k] + fixed[first + k];
            // A pattern that cannot be (or whose likelihood is no number) has no slope.
            if likelihood > 0.0 {
                let slope = l1[k] / likelihood;
                sums[0][k] += weight * slope;
                sums[1][k] += weight * (l2[k] / likelihood - slope * slope);
            }
        }
    }
    let add = |lanes: Quad| (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
    Derivatives { first: add(sums[0]), second: add(sums[1]) }
}
