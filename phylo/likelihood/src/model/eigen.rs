//! Eigenvalues and vectors of a small symmetric matrix, by Jacobi's rotations.
//!
//! Why here: a reversible rate matrix is similar to a symmetric one of 4 or 20 rows; rotations are
//! as exact as doubles allow and need no library.

/// A symmetric matrix's eigenvalues, and its orthonormal eigenvectors as columns: `vectors[i * n +
/// k]` is row `i` of vector `k`.
pub(super) fn symmetric(mut a: Vec<f64>, n: usize) -> (Vec<f64>, Vec<f64>) {
    let mut v = vec![0.0; n * n];
    for i in 0..n {
        v[i * n + i] = 1.0;
    }
    for _ in 0..SWEEPS_MAX {
        let off: f64 = (0..n)
            .flat_map(|i| (0..i).map(move |j| (i, j)))
            .map(|(i, j)| a[i * n + j] * a[i * n + j])
            .sum();
        let diagonal: f64 = (0..n).map(|i| a[i * n + i] * a[i * n + i]).sum();
        // Squares are compared: a relative size of 1e-20.
        if off <= diagonal * 1e-40 {
            break;
        }
        for p in 0..n {
            for q in p + 1..n {
                rotate(&mut a, &mut v, n, p, q);
            }
        }
    }
    ((0..n).map(|i| a[i * n + i]).collect(), v)
}

/// Makes the entry (p, q) zero.
fn rotate(a: &mut [f64], v: &mut [f64], n: usize, p: usize, q: usize) {
    let apq = a[p * n + q];
    if apq == 0.0 {
        return;
    }
    let theta = (a[q * n + q] - a[p * n + p]) / (2.0 * apq);
    // The smaller of the two possible angles, which keeps the rotation accurate.
    let t = theta.signum() / (theta.abs() + libm::sqrt(theta * theta + 1.0));
    // An infinite quotient means that the entry is negligible.
    let t = if theta.is_finite() { t } else { 0.0 };
    let c = 1.0 / libm::sqrt(t * t + 1.0);
    let s = t * c;
    for k in 0..n {
        let (x, y) = (a[k * n + p], a[k * n + q]);
        a[k * n + p] = c * x - s * y;
        a[k * n + q] = s * x + c * y;
    }
    for k in 0..n {
        let (x, y) = (a[p * n + k], a[q * n + k]);
        a[p * n + k] = c * x - s * y;
        a[q * n + k] = s * x + c * y;
        let (x, y) = (v[k * n + p], v[k * n + q]);
        v[k * n + p] = c * x - s * y;
        v[k * n + q] = s * x + c * y;
    }
    // Set exactly, since rounding leaves a small rest.
    a[p * n + q] = 0.0;
    a[q * n + p] = 0.0;
}

/// Twenty rows need about eight.
const SWEEPS_MAX: usize = 60;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn vectors_are_orthonormal_and_make_the_matrix_again(
            seed in proptest::collection::vec(-10.0..10.0_f64, 400), large in any::<bool>()
        ) {
            let n = if large { 20 } else { 4 };
            let mut a = vec![0.0; n * n];
            for i in 0..n {
                for j in 0..n {
                    a[i * n + j] = seed[i.max(j) * n + i.min(j)];
                }
            }
            let (values, v) = symmetric(a.clone(), n);
            for i in 0..n {
                for j in 0..n {
                    let made: f64 = (0..n).map(|k| v[i * n + k] * values[k] * v[j * n + k]).sum();
                    prop_assert!((made - a[i * n + j]).abs() < 1e-11);
                    let dot: f64 = (0..n).map(|k| v[k * n + i] * v[k * n + j]).sum();
                    prop_assert!((dot - f64::from(u8::from(i == j))).abs() < 1e-12);
                }
            }
        }
    }
}
