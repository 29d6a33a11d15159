//! The discrete gamma distribution of rates.
//!
//! Why here: no crate of the workspace has the incomplete gamma function, and the rates must be the
//! same on every machine: logarithms and exponentials come from `libm`.
//! Source: Yang, "Maximum likelihood phylogenetic estimation from DNA sequences with variable rates
//! over sites: approximate methods", Journal of Molecular Evolution 39 (1994), 306-314.

/// The statistic by which a category's rate stands for its part of the distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CategoryRate {
    /// Its mean.
    Mean,
    /// Its median, scaled so that the mean of all is 1.
    Median,
}

/// The rates of `categories` equally likely categories of a gamma distribution with mean 1.
///
/// `alpha` is its shape, above 0. Never blocks, never fails: bad input gives bad numbers, and
/// [`super::Model`] lets none in.
#[must_use]
pub(crate) fn discrete_gamma(alpha: f64, categories: usize, by: CategoryRate) -> Vec<f64> {
    let count = categories as f64;
    match by {
        CategoryRate::Mean => {
            // The mean of a part is the difference of the next higher shape's distribution.
            let share = |bound: f64| incomplete_gamma(alpha + 1.0, bound);
            let mut below = 0.0;
            (1..=categories)
                .map(|k| {
                    let upto = if k == categories {
                        1.0
                    } else {
                        share(gamma_quantile(alpha, k as f64 / count))
                    };
                    let rate = (upto - below) * count;
                    // Differences of one running value, so that the rates' mean is 1 up to
                    // rounding.
                    below = upto;
                    rate
                })
                .collect()
        }
        CategoryRate::Median => {
            let middle = |k: usize| gamma_quantile(alpha, (2 * k + 1) as f64 / (2.0 * count));
            let mut rates: Vec<f64> = (0..categories).map(middle).collect();
            let sum: f64 = rates.iter().sum();
            // Medians do not average to 1 by themselves.
            rates.iter_mut().for_each(|rate| *rate *= count / sum);
            rates
        }
    }
}

/// The regularised lower incomplete gamma function P(a, x), `a` above 0.
#[must_use]
fn incomplete_gamma(a: f64, x: f64) -> f64 {
    if x <= 0.0 {
        return 0.0;
    }
    // In logarithms: powers and gamma overflow on their own where their ratio does not.
    let scale = libm::exp(a * libm::log(x) - x - libm::lgamma(a));
    // The series converges fast here, the continued fraction on the other side.
    if x < a + 1.0 {
        let mut term = 1.0 / a;
        let mut sum = term;
        for k in 1..TERMS_MAX {
            term *= x / (a + k as f64);
            sum += term;
            if term < sum * 1e-17 {
                break;
            }
        }
        (scale * sum).min(1.0)
    } else {
        // Lentz's method for the continued fraction of the upper function.
        let tiny = 1e-300;
        let mut b = x + 1.0 - a;
        let mut c = 1.0 / tiny;
        let mut d = 1.0 / b;
        let mut fraction = d;
        for k in 1..TERMS_MAX {
            let n = k as f64;
            let an = -n * (n - a);
            b += 2.0;
            d = an * d + b;
            d = 1.0 / if d.abs() < tiny { tiny } else { d };
            c = b + an / c;
            c = if c.abs() < tiny { tiny } else { c };
            fraction *= c * d;
            if (c * d - 1.0).abs() < 1e-16 {
                break;
            }
        }
        (1.0 - scale * fraction).max(0.0)
    }
}

/// The value below which a gamma distribution of shape `alpha` and mean 1 has `share` of its
/// weight, times `alpha`: the quantile at rate 1.
fn gamma_quantile(alpha: f64, share: f64) -> f64 {
    // Bisection on the logarithm: shapes of 0.02 put quantiles at 1e-100, so no absolute bracket
    // fits. 200 halvings of 1,400 e-folds reach the last bit.
    let (mut low, mut high) = (-1_400.0_f64, libm::log(alpha + 50.0 * (1.0 + alpha)));
    for _ in 0..200 {
        let middle = 0.5 * (low + high);
        if middle <= low || middle >= high {
            break;
        }
        if lower_at_log(alpha, middle) < share {
            low = middle;
        } else {
            high = middle;
        }
    }
    libm::exp(0.5 * (low + high))
}

/// P(a, e^y), also where e^y is too small for a double.
fn lower_at_log(a: f64, y: f64) -> f64 {
    if y < -40.0 {
        // The series' first term is all there is.
        return libm::exp(a * y - libm::lgamma(a + 1.0));
    }
    incomplete_gamma(a, libm::exp(y))
}

/// Most terms of a series or fraction; no shape that a model may have needs that many.
const TERMS_MAX: usize = 2_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values_of_the_incomplete_gamma_function() {
        // P(1, x) = 1 - e^-x; P(1/2, x) = erf(sqrt x).
        for x in [0.001, 0.3, 1.0, 2.5, 10.0, 40.0] {
            let exponential = 1.0 - libm::exp(-x);
            assert!(
                (incomplete_gamma(1.0, x) - exponential).abs() < 1e-14,
                "{x}"
            );
            let error = libm::erf(libm::sqrt(x));
            assert!((incomplete_gamma(0.5, x) - error).abs() < 1e-14, "{x}");
        }
        assert!((incomplete_gamma(100.0, 100.0) - 0.513_298_798_279_148_4).abs() < 1e-12);
    }

    #[test]
    fn category_rates_have_mean_one_and_rise() {
        for alpha in [0.02, 0.1, 0.162_751, 0.5, 1.0, 2.0, 20.0, 100.0, 1_000.0] {
            for by in [CategoryRate::Mean, CategoryRate::Median] {
                for categories in [1, 2, 4, 8, 16] {
                    let rates = discrete_gamma(alpha, categories, by);
                    let mean = rates.iter().sum::<f64>() / categories as f64;
                    assert!((mean - 1.0).abs() < 1e-12, "{alpha} {by:?}: {rates:?}");
                    assert!(
                        rates.windows(2).all(|pair| pair[0] < pair[1]),
                        "{alpha}: {rates:?}"
                    );
                    assert!(rates.iter().all(|rate| *rate >= 0.0));
                }
            }
        }
    }

    #[test]
    fn four_categories_of_shape_one_half_as_published() {
        // Yang (1994), table 2, alpha = 0.5: means of four categories.
        let rates = discrete_gamma(0.5, 4, CategoryRate::Mean);
        let published = [0.0334, 0.2519, 0.8203, 2.8944];
        for (rate, published) in rates.iter().zip(published) {
            assert!((rate - published).abs() < 5e-5, "{rates:?}");
        }
    }
}
