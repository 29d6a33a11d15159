//! Local posterior probabilities and coalescent lengths of branches, from their quartets' shares.
//!
//! Sources: Sayyari and Mirarab, Molecular Biology and Evolution 33 (2016), 1654-1668; for the
//! incomplete beta function the Digital Library of Mathematical Functions, 8.17(v).

/// Quartets around an inner branch.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Branch {
    /// The node of the tree below it.
    pub node: usize,
    /// The taxa below it.
    pub clade: Vec<String>,
    /// Shares of the three pairings of its four neighbours among the quartets; the tree's first.
    pub shares: [f64; 3],
    /// Gene trees that say something about it; fractions where one says something of a part. Of
    /// weighted quartets an effective number.
    pub genes: f64,
    /// Local posterior probabilities of the three pairings.
    pub posterior: [f64; 3],
    /// Its length in coalescent units, as the posterior's maximum.
    pub length: f64,
}

impl Branch {
    /// Of the quartets of each pairing, the tree's own first.
    pub(super) fn new(node: usize, clade: Vec<String>, sums: [f64; 3]) -> Self {
        let genes: f64 = sums.iter().sum();
        let shares = sums.map(|sum| if genes > 0.0 { sum / genes } else { 0.0 });
        let posterior = [0, 1, 2].map(|way| local_posterior(way, sums));
        Self {
            node,
            clade,
            shares,
            genes,
            posterior,
            length: coalescent_length(sums[0], genes),
        }
    }
}

/// The probability of one of three pairings, given the gene trees that have each: all three as
/// likely before, and the branch's length as in a Yule process of rate `2 LAMBDA`.
fn local_posterior(way: usize, sums: [f64; 3]) -> f64 {
    let genes: f64 = sums.iter().sum();
    // log of `h(z) = B(z + 1, n - z + 2 lambda) (1 - I_1/3(z + 1, n - z + 2 lambda))`.
    let term = |z: f64| {
        let (a, b) = (z + 1.0, genes - z + 2.0 * LAMBDA);
        let beta = libm::lgamma(a) + libm::lgamma(b) - libm::lgamma(a + b);
        // The other tail, since 1 minus a number close to 1 has few digits.
        let tail = incomplete_beta(b, a, 2.0 / 3.0);
        beta + libm::log(tail.max(f64::MIN_POSITIVE))
    };
    let own = term(sums[way]);
    let ratio = |other: usize| {
        let power = (sums[other] - sums[way]) * std::f64::consts::LN_2;
        libm::exp(power + term(sums[other]) - own)
    };
    let others = (0..3).filter(|&other| other != way).map(ratio);
    1.0 / (1.0 + others.sum::<f64>())
}

/// The length of a branch in coalescent units that is the most probable, given the gene trees with
/// its pairing.
fn coalescent_length(own: f64, genes: f64) -> f64 {
    let share = own / (genes + 2.0 * LAMBDA);
    match share > 1.0 / 3.0 {
        true => -libm::log(1.5 * (1.0 - share)),
        false => 0.0,
    }
}

/// The regularised incomplete beta function, for `a` and `b` above 0 and `x` from 0 to 1.
fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    // The fraction converges fast below the mean. Asked once: at the mean both tails may be above.
    match x > (a + 1.0) / (a + b + 2.0) {
        true => 1.0 - lower_tail(b, a, 1.0 - x),
        false => lower_tail(a, b, x),
    }
}

/// The same by its continued fraction, for `x` between 0 and about the mean.
fn lower_tail(a: f64, b: f64, x: f64) -> f64 {
    let beta = libm::lgamma(a) + libm::lgamma(b) - libm::lgamma(a + b);
    let front = libm::exp(a * libm::log(x) + b * libm::log1p(-x) - beta) / a;
    // Modified Lentz's method: no denominator may be 0.
    let away = |value: f64| if value.abs() < TINY { TINY } else { value };
    let (mut c, mut d) = (1.0, 1.0 / away(1.0 - (a + b) * x / (a + 1.0)));
    let mut fraction = d;
    for step in 1..STEPS_MAX {
        let m = f64::from(step);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let mut change = 1.0;
        for term in [even, odd] {
            d = 1.0 / away(1.0 + term * d);
            c = away(1.0 + term / c);
            change = c * d;
            fraction *= change;
        }
        if (change - 1.0).abs() < 1e-15 {
            break;
        }
    }
    front * fraction
}

/// Half the rate of the branches' prior: with 1/2 all shares above a third are as likely.
const LAMBDA: f64 = 0.5;
const TINY: f64 = 1e-300;
/// Terms grow with the root of the arguments: these are far more than a million gene trees need.
const STEPS_MAX: u32 = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_tails_at_the_mean_are_one() {
        for k in 1..20_000 {
            let (a, b) = (1.0 + f64::from(k) / 7.0, 2.0 + f64::from(k) / 14.0);
            let mean = (a + 1.0) / (a + b + 2.0);
            for x in [mean.next_down(), mean, mean.next_up()] {
                let both = incomplete_beta(a, b, x) + incomplete_beta(b, a, 1.0 - x);
                assert!((both - 1.0).abs() < 1e-9, "{a} {b}: {both}");
            }
        }
        // By symmetry.
        assert!((incomplete_beta(3.0, 3.0, 0.5) - 0.5).abs() < 1e-12);
    }

    #[test]
    fn posteriors_are_those_of_the_integrals() {
        // Simpson's rule over the share of the first pairing, from a third to 1.
        let integral = |z: f64, n: f64| {
            let steps = 200_000;
            let width = (2.0 / 3.0) / f64::from(steps);
            let value = |k: i32| {
                let share: f64 = 1.0 / 3.0 + f64::from(k) * width;
                let factor = if k == 0 || k == steps {
                    1.0
                } else {
                    2.0 + 2.0 * f64::from(k % 2)
                };
                factor * share.powf(z) * ((1.0 - share) / 2.0).powf(n - z)
            };
            (0..=steps).map(value).sum::<f64>() * width / 3.0
        };
        for sums in [
            [3.0, 1.0, 0.0],
            [10.5, 7.25, 2.25],
            [2.0, 5.0, 5.0],
            [40.0, 1.0, 1.0],
        ] {
            let n: f64 = sums.iter().sum();
            let terms = sums.map(|z| integral(z, n));
            for way in 0..3 {
                let expected = terms[way] / terms.iter().sum::<f64>();
                let found = local_posterior(way, sums);
                assert!((found - expected).abs() < 1e-8, "{found} {expected}");
            }
        }
        assert!((local_posterior(0, [0.0; 3]) - 1.0 / 3.0).abs() < 1e-12);
        assert!(local_posterior(0, [4e5, 1e5, 1e5]) > 0.999_999);
    }
}
