//! evaluate and the derivatives: what is asked of a branch.

use super::lanes::Lanes;
use super::node::{Dna, GROUP, Inner, Protein, Side, Starts, States, Tip, join_counts};
use crate::kernel::{Derivatives, Operand, QUAD, Quad, Shape};

#[inline(always)]
pub(super) fn evaluate<V: Lanes>(
    shape: Shape,
    left: &Operand<'_>,
    right: &Operand<'_>,
    terms: &mut [Quad],
    scalers: &mut [u16],
) -> bool {
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
fn patterns<V: Lanes, S: States, B: Side<S>>(
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
                let mut rows = [V::zero(); QUAD];
                for (lane, row) in rows.iter_mut().enumerate() {
                    // SAFETY: `k` is below GROUP; Starts::new has checked that a whole span follows
                    // each start (those beyond the count repeat the first), and `offset` is within
                    // a span.
                    let (here, arrived) = unsafe {
                        let k = four * QUAD + lane;
                        let from = near_at.at(k) + offset;
                        let here = near.values.get_unchecked(from..from + S::QUADS);
                        (here, far.take(&held, rate, far_at.at(k) + offset))
                    };
                    for (quad, lanes) in here.iter().zip(arrived.as_ref()) {
                        *row = V::load(quad).mul_add(*lanes, *row);
                    }
                }
                V::sums(rows).store(&mut out[four * rates + rate]);
            }
        }
    }
    let scalers = &mut scalers[..patterns * rates];
    join_counts::<V>(
        rates,
        scalers,
        [index, other],
        [near.scalers, far.scalers()],
    )
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
        let (l, l1, l2) = (
            V::sums(rows[0]).to_array(),
            V::sums(rows[1]).to_array(),
            V::sums(rows[2]).to_array(),
        );
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
    Derivatives {
        first: add(sums[0]),
        second: add(sums[1]),
    }
}
