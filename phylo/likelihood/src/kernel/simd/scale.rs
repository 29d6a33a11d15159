//! Scaling: its counts, whole spans by their largest entry, and the logarithms of many factors.
//!
//! A scaler is for each class and rate the number of times that its CLV entries were scaled. A
//! node's scalers are the sum of its children's and of its own scalings; none is written before the
//! first scaling, since most nodes have none.
//!
//! Why here: a client of BEAGLE's interface scales patterns itself, one factor a pattern; one by
//! one the maximum, the division and the logarithm cost more than the partials. Four spans at a
//! time share a division. The logarithm of a product stands for a sum of logarithms. Must stay
//! true: a span's result does not depend on its neighbours, not even in the last bit.

use super::functions::ln;
use super::lanes::Lanes;
use crate::kernel::{QUAD, Quad};

#[inline(always)]
pub(super) fn lower_spans<V: Lanes>(span: usize, values: &mut [Quad], factors: &mut [f64]) {
    let values = &mut values[..factors.len() * span];
    for (spans, factors) in values.chunks_mut(QUAD * span).zip(factors.chunks_mut(QUAD)) {
        let largest = largest_of_four::<V>(span, spans);
        let inverse = V::splat(1.0).div(largest).to_array();
        let (all, found) = (largest.all_normal(), largest.to_array());
        factors.copy_from_slice(&found[..factors.len()]);
        for ((span, factor), inverse) in spans.chunks_exact_mut(span).zip(factors).zip(inverse) {
            if !all && !factor.is_normal() {
                divide(span, factor);
                continue;
            }
            let inverse = V::splat(inverse);
            for quad in span {
                V::load(quad).mul(inverse).store(quad);
            }
        }
    }
}

/// Largest entries of one to four spans; lanes without a span repeat the first.
#[inline(always)]
fn largest_of_four<V: Lanes>(span: usize, spans: &[Quad]) -> V {
    let mut rows = [V::zero(); QUAD];
    for (number, row) in rows.iter_mut().enumerate() {
        let at = number * span;
        let at = if at < spans.len() { at } else { 0 };
        for quad in &spans[at..at + span] {
            // The second operand stays where the first is no number.
            *row = V::load(quad).max(*row);
        }
    }
    V::largest(rows)
}

/// A span whose largest entry is 0, which has the factor 1, or has no finite inverse.
#[cold]
#[inline(never)]
fn divide(span: &mut [Quad], factor: &mut f64) {
    if *factor == 0.0 {
        *factor = 1.0;
        return;
    }
    for value in span.as_flattened_mut() {
        *value /= *factor;
    }
}

#[inline(always)]
pub(super) fn any_span_beyond<V: Lanes>(
    span: usize,
    values: &[Quad],
    least: f64,
    most: f64,
) -> bool {
    for spans in values.chunks(QUAD * span) {
        let largest: V = largest_of_four(span, spans);
        let far = |&value: &f64| value > most || (value < least && value > 0.0);
        if largest.to_array().iter().any(far) {
            return true;
        }
    }
    false
}

#[inline(always)]
pub(super) fn multiply_up<V: Lanes>(factors: &[f64], mantissas: &mut [f64], exponents: &mut [f64]) {
    let (factors, rest) = factors.as_chunks::<QUAD>();
    let (mantissas, last) = mantissas.as_chunks_mut::<QUAD>();
    let (exponents, last_exponents) = exponents.as_chunks_mut::<QUAD>();
    for ((factor, product), sum) in factors.iter().zip(mantissas).zip(exponents) {
        multiply_four(V::load(factor), product, sum);
    }
    if let (Some(product), Some(sum)) = (
        last.get_mut(..rest.len()),
        last_exponents.get_mut(..rest.len()),
    ) {
        let (mut four, mut products, mut sums) = ([1.0; QUAD], [1.0; QUAD], [0.0; QUAD]);
        four[..rest.len()].copy_from_slice(rest);
        products[..rest.len()].copy_from_slice(product);
        sums[..rest.len()].copy_from_slice(sum);
        multiply_four(V::load(&four), &mut products, &mut sums);
        product.copy_from_slice(&products[..rest.len()]);
        sum.copy_from_slice(&sums[..rest.len()]);
    }
}

#[inline(always)]
fn multiply_four<V: Lanes>(factor: V, product: &mut Quad, sum: &mut Quad) {
    if !factor.all_normal() {
        return multiply_each(factor.to_array(), product, sum);
    }
    let (mantissa, exponent) = factor.split();
    V::load(product).mul(mantissa).store(product);
    V::load(sum).add(exponent).store(sum);
}

/// Factors of which some are 0, negative, subnormal or infinite.
#[cold]
#[inline(never)]
fn multiply_each(factors: Quad, product: &mut Quad, sum: &mut Quad) {
    for ((factor, product), sum) in factors.into_iter().zip(product).zip(sum) {
        if factor.is_normal() && factor > 0.0 {
            let (mantissa, exponent) = super::lanes::Portable::splat(factor).split();
            *product *= mantissa.to_array()[0];
            *sum += exponent.to_array()[0];
        } else {
            *sum += libm::log2(factor);
        }
    }
}

#[inline(always)]
pub(super) fn add_logarithms<V: Lanes>(
    mantissas: &[f64],
    exponents: &[f64],
    sign: f64,
    sums: &mut [f64],
) {
    let lists = sums.chunks_mut(QUAD).zip(mantissas.chunks(QUAD));
    for ((sums, mantissas), exponents) in lists.zip(exponents.chunks(QUAD)) {
        let (mut product, mut powers) = ([1.0; QUAD], [0.0; QUAD]);
        product[..mantissas.len()].copy_from_slice(mantissas);
        powers[..exponents.len()].copy_from_slice(exponents);
        let powers = V::load(&powers).mul(V::splat(std::f64::consts::LN_2));
        let whole = ln(V::load(&product)).add(powers).mul(V::splat(sign));
        for (sum, more) in sums.iter_mut().zip(whole.to_array()) {
            *sum += more;
        }
    }
}

/// Counts one scaling; the counts are all 0 until the first.
#[cold]
#[inline(never)]
pub(super) fn count_scaling(scalers: &mut [u16], at: usize, scaled: &mut bool) {
    if !std::mem::replace(scaled, true) {
        scalers.fill(0);
    }
    scalers[at] = scalers[at].saturating_add(1);
}

/// The scalers of both sides, added, class by class. False, with nothing written, where neither
/// side has any.
#[inline(always)]
pub(super) fn join_counts<V: Lanes>(
    rates: usize,
    counts: &mut [u16],
    index: [&[u16]; 2],
    sides: [&[u16]; 2],
) -> bool {
    // No closures here: they would not get the caller's instructions.
    let only = match [sides[0].is_empty(), sides[1].is_empty()] {
        [true, true] => return false,
        [false, false] => None,
        [left_empty, _] => Some(usize::from(left_empty)),
    };
    // The usual number of rates: arrays of fixed size are added in one instruction.
    if rates == 4 {
        let counts = counts.as_chunks_mut::<4>().0;
        let (left, right) = (sides[0].as_chunks::<4>().0, sides[1].as_chunks::<4>().0);
        match only {
            Some(side) => {
                let from = if side == 0 { left } else { right };
                for (to, &class) in counts.iter_mut().zip(index[side]) {
                    *to = from[usize::from(class)];
                }
            }
            None => {
                for ((to, &a), &b) in counts.iter_mut().zip(index[0]).zip(index[1]) {
                    *to = V::add_counts(&left[usize::from(a)], &right[usize::from(b)]);
                }
            }
        }
        return true;
    }
    counts.fill(0);
    for (index, scalers) in index
        .into_iter()
        .zip(sides)
        .filter(|(_, side)| !side.is_empty())
    {
        for (to, &class) in counts.chunks_mut(rates).zip(index) {
            let from = &scalers[usize::from(class) * rates..][..rates];
            for (to, from) in to.iter_mut().zip(from) {
                *to = to.saturating_add(*from);
            }
        }
    }
    true
}

/// Adds the scalers of a third side to those of [`join_counts`], which were written if `counted`.
#[inline(always)]
pub(super) fn add_counts(
    rates: usize,
    counts: &mut [u16],
    counted: bool,
    index: &[u16],
    side: &[u16],
) -> bool {
    if side.is_empty() {
        return counted;
    }
    // The memory still holds old counts.
    if !counted {
        counts.fill(0);
    }
    for (to, &class) in counts.chunks_exact_mut(rates).zip(index) {
        let from = &side[usize::from(class) * rates..][..rates];
        for (to, from) in to.iter_mut().zip(from) {
            *to = to.saturating_add(*from);
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use crate::kernel::{Buffer, Isa, add_logarithms, any_span_beyond, lower_spans, multiply_up};
    use crate::random::Random;

    #[test]
    fn spans_are_divided_by_their_largest_entry_whatever_their_neighbours() {
        let mut random = Random::new(11);
        for (quads, spans) in [(1, 5), (4, 8), (5, 1), (20, 7)] {
            let mut values = Buffer::new(quads * spans);
            for value in values.doubles_mut() {
                *value = random.unit() * 1e-90;
            }
            let numbers = 4 * quads;
            values.doubles_mut()[..numbers].fill(0.0);
            if spans > 1 {
                // A span whose inverse would be infinite.
                values.doubles_mut()[numbers..2 * numbers].fill(f64::from_bits(5));
            }
            for isa in Isa::all() {
                let mut all = Buffer::new(quads * spans);
                all.doubles_mut().copy_from_slice(values.doubles());
                assert!(!any_span_beyond(isa, quads, all.as_slice(), 0.0, 1.0));
                let mut factors = vec![0.0; spans];
                lower_spans(isa, quads, all.as_mut_slice(), &mut factors);
                let each = values.doubles().chunks_exact(numbers);
                for (k, (from, to)) in each.zip(all.doubles().chunks_exact(numbers)).enumerate() {
                    let largest = from.iter().copied().fold(0.0, f64::max);
                    assert_eq!(factors[k], if largest == 0.0 { 1.0 } else { largest });
                    for (from, to) in from.iter().zip(to) {
                        assert!((to - from / factors[k]).abs() < 1e-15);
                    }
                    let (mut alone, mut factor) = (Buffer::new(quads), [0.0]);
                    alone.doubles_mut().copy_from_slice(from);
                    lower_spans(isa, quads, alone.as_mut_slice(), &mut factor);
                    assert_eq!(alone.doubles(), to, "the same bits alone");
                    assert_eq!(factor[0].to_bits(), factors[k].to_bits());
                }
                assert!(any_span_beyond(isa, quads, all.as_slice(), 0.0, 0.5) || spans == 1);
            }
        }
    }

    #[test]
    fn the_logarithm_of_a_product_is_the_sum_of_logarithms() {
        let mut random = Random::new(12);
        for isa in Isa::all() {
            let patterns = 11;
            let (mut products, mut powers) = (vec![1.0; patterns], vec![0.0; patterns]);
            let mut sums = vec![0.0; patterns];
            for round in 0..900 {
                let factors: Vec<f64> = (0..patterns)
                    .map(|_| random.unit() * 1e-30)
                    .map(|factor| if round == 7 { factor * 1e-285 } else { factor })
                    .collect();
                multiply_up(isa, &factors, &mut products, &mut powers);
                for (sum, factor) in sums.iter_mut().zip(factors) {
                    *sum += factor.ln();
                }
            }
            let mut found = vec![3.0; patterns];
            add_logarithms(isa, &products, &powers, -1.0, &mut found);
            for (found, sum) in found.into_iter().zip(sums) {
                assert!(
                    (found - 3.0 + sum).abs() < 1e-9 * sum.abs(),
                    "{found} {sum}"
                );
            }
            multiply_up(isa, &[0.0, -1.0], &mut products[..2], &mut powers[..2]);
            let mut found = [0.0; 2];
            add_logarithms(isa, &products[..2], &powers[..2], 1.0, &mut found);
            assert!(found[0] == f64::NEG_INFINITY && found[1].is_nan());
        }
    }
}
