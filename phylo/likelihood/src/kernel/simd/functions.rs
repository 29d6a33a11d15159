//! Logarithm and exponential of four lanes at a time, without tables.
//!
//! Why here: a likelihood takes a logarithm a pattern and an exponential an eigenvalue, rate and
//! branch; one by one they took a fifth of a search.
//! Must stay true: errors of at most 2 units in the last place, over the ranges that each says; the
//! same operations in the same order whatever the registers.
//! Sources: for the logarithm, with `s = f / (2 + f)`, `ln(1 + f) = f - f^2/2 + s (f^2/2 + R(s^2))`
//! with the coefficients of R in fdlibm's `e_log` (Sun Microsystems, 1993); the exponential is
//! Taylor's series after powers of two were taken out in two parts (Cody and Waite, 1980).

use super::lanes::Lanes;
use crate::kernel::Quad;

/// Natural logarithms. Lanes that are no normal positive doubles take the slow path.
#[inline(always)]
pub(super) fn ln<V: Lanes>(x: V) -> V {
    if !x.all_normal() {
        return slow_ln(x);
    }
    let (mantissa, exponent) = x.split();
    let f = mantissa.sub(V::splat(1.0));
    let s = f.div(V::splat(2.0).add(f));
    let z = s.mul(s);
    let w = z.mul(z);
    // Even and odd coefficients separately: two dependency chains of half the length.
    let odd = series(w, &LOG_ODD).mul(z);
    let even = series(w, &LOG_EVEN).mul(w);
    let half_square = V::splat(0.5).mul(f).mul(f);
    let small = s.mul_add(
        half_square.add(odd.add(even)),
        exponent.mul(V::splat(LN2_LOW)),
    );
    let rest = half_square.sub(small).sub(f);
    exponent.mul(V::splat(LN2_HIGH)).sub(rest)
}

#[cold]
#[inline(never)]
fn slow_ln<V: Lanes>(x: V) -> V {
    V::load(&x.to_array().map(libm::log))
}

/// `e^x`, and `e^x - 1` with all its digits, for x from minus infinity to 0; `e^x` also to 1.
#[inline(always)]
pub(super) fn exponentials<V: Lanes>(x: V) -> (V, V) {
    // Beyond this the result is below the smallest normal double, or 0.
    let x = V::splat(LEAST).max(x);
    let k = x.mul(V::splat(std::f64::consts::LOG2_E)).round();
    let r = x.sub(k.mul(V::splat(LN2_HIGH)));
    let r = r.sub(k.mul(V::splat(LN2_LOW)));
    // e^r - 1 = r + r^2 (1/2 + r/6 + ...), r within half of ln 2.
    let grown = series(r, &TAYLOR).mul(r.mul(r)).add(r);
    let scale = k.two_to();
    let power = scale.mul_add(grown, scale);
    let less = scale.mul_add(grown, scale.sub(V::splat(1.0)));
    (power, less)
}

/// As [`super::exponentiate`].
#[inline(always)]
pub(super) fn exponentiate<V: Lanes>(x: &mut [Quad]) {
    for quad in x {
        let all = V::load(quad);
        // The series is for what decays. An eigenvalue that stands for 0 may be a little above it.
        if all.all_below(V::splat(GROWTH_MOST)) {
            exponentials(all).0.store(quad);
        } else {
            *quad = quad.map(libm::exp);
        }
    }
}

/// A polynomial, its coefficients from the constant one on.
#[inline(always)]
fn series<V: Lanes, const N: usize>(x: V, coefficients: &[f64; N]) -> V {
    let mut sum = V::splat(coefficients[N - 1]);
    for coefficient in coefficients[..N - 1].iter().rev() {
        sum = sum.mul_add(x, V::splat(*coefficient));
    }
    sum
}

const LOG_ODD: [f64; 4] = [
    6.666_666_666_666_735e-1,
    2.857_142_874_366_239e-1,
    1.818_357_216_161_805e-1,
    1.479_819_860_511_658_6e-1,
];
const LOG_EVEN: [f64; 3] = [
    3.999_999_999_940_942e-1,
    2.222_219_843_214_978_4e-1,
    1.531_383_769_920_937_3e-1,
];
/// The logarithm of 2 in two parts; the first times an exponent is exact.
const LN2_HIGH: f64 = 6.931_471_803_691_238e-1;
const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
/// e to this is about 2^-1010.
const LEAST: f64 = -700.0;
/// Exponents below this are decay, or rounding errors.
const GROWTH_MOST: f64 = 1.0;
/// One over the factorials of 2 to 13.
const TAYLOR: [f64; 12] = {
    let mut all = [0.0; 12];
    let (mut factorial, mut k) = (1.0, 0);
    while k < 12 {
        factorial *= (k + 2) as f64;
        all[k] = 1.0 / factorial;
        k += 1;
    }
    all
};

#[cfg(test)]
mod tests {
    use super::super::lanes::Portable;
    use super::*;
    use crate::random::Random;

    /// Distance in units of the last place.
    fn units(found: f64, exact: f64) -> f64 {
        let unit = f64::from_bits(exact.abs().to_bits() + 1) - exact.abs();
        (found - exact).abs() / unit
    }

    fn each(x: [f64; 4], f: impl Fn(Portable) -> Portable) -> [f64; 4] {
        f(Portable::load(&x)).to_array()
    }

    #[test]
    fn logarithms_to_two_units() {
        let mut random = Random::new(7);
        for _ in 0..50_000 {
            let x: [f64; 4] = std::array::from_fn(|lane| {
                let exponent = if lane == 0 {
                    0.0
                } else {
                    1400.0 * random.unit() - 700.0
                };
                (0.5 + random.unit()) * libm::exp(exponent)
            });
            for (found, x) in each(x, ln).into_iter().zip(x) {
                assert!(units(found, libm::log(x)) <= 2.0, "{x:e}: {found:e}");
            }
        }
        assert_eq!(each([1.0; 4], ln), [0.0; 4]);
        let odd = each([0.0, 5e-320, f64::INFINITY, -1.0], ln);
        assert_eq!(
            odd[..3],
            [f64::NEG_INFINITY, libm::log(5e-320), f64::INFINITY]
        );
        assert!(odd[3].is_nan());
    }

    #[test]
    fn exponentials_to_two_units() {
        let mut random = Random::new(8);
        for _ in 0..50_000 {
            let x: [f64; 4] = std::array::from_fn(|_| -libm::exp(50.0 * random.unit() - 43.5));
            let powers = each(x, |x| exponentials(x).0);
            let less = each(x, |x| exponentials(x).1);
            for ((x, power), less) in x.into_iter().zip(powers).zip(less) {
                let x = x.max(LEAST);
                assert!(units(power, libm::exp(x)) <= 2.0, "{x:e}: {power:e}");
                assert!(units(less, libm::expm1(x)) <= 2.0, "{x:e}: {less:e}");
            }
        }
        for k in 0..1_000 {
            let x: [f64; 4] = std::array::from_fn(|lane| 0.001 * f64::from(k) - 0.2 * lane as f64);
            let mut powers = [x];
            exponentiate::<Portable>(&mut powers);
            for (x, power) in x.into_iter().zip(powers[0]) {
                assert!(units(power, libm::exp(x)) <= 2.0, "{x:e}: {power:e}");
            }
        }
        let ends = [0.0, -0.0, f64::NEG_INFINITY, -1e9];
        assert_eq!(each(ends, |x| exponentials(x).1), [0.0, 0.0, -1.0, -1.0]);
        assert_eq!(each(ends, |x| exponentials(x).0)[..2], [1.0, 1.0]);
    }
}
