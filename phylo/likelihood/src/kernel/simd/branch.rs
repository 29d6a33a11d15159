//! Matrices and powers of a branch, from a model's eigenvectors.
//!
//! Why here: a search makes some matrices for every candidate branch; computed entry by entry they
//! took a quarter of its time with twenty states. A matrix is one product of two small ones.
//! Must stay true: probabilities are `1 + right (e^(values t) - 1) left`, which keeps every digit
//! of a short branch's small entries; none is below 0.

use super::functions::exponentials;
use super::lanes::{Batch, CLASSES_MAX, Each, Lanes};
use super::states::{Dna, Protein, States, Two};
use crate::kernel::{QUAD, Quad, Shape};

/// Eigenvalues and eigenvectors of a model, and the rates of its categories.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Eigen<'a> {
    /// States and rates.
    pub(crate) shape: Shape,
    /// One eigenvalue a state, none above 0; these and the eigenvectors matrix by matrix. Each
    /// matrix has the same number of neighbouring categories of rates.
    pub(crate) values: &'a [f64],
    /// Value by value the right eigenvector, over states.
    pub(crate) right: &'a [f64],
    /// State by state that state's entries of the left eigenvectors, over values.
    pub(crate) left: &'a [f64],
    /// The rates.
    pub(crate) rates: &'a [f64],
}

impl<'a> Eigen<'a> {
    /// Eigenvalues, and right and left eigenvectors, of a rate.
    ///
    /// # Panics
    /// When any is shorter than the rate's matrix.
    #[inline(always)]
    pub(super) fn of_rate(&self, rate: usize) -> [&'a [Quad]; 3] {
        let states = self.shape.states;
        // Matrix by matrix the same number of categories.
        let matrices = self.values.len() / states;
        let at = rate * matrices / self.shape.rates * states;
        let square = at * states..(at + states) * states;
        [
            self.values[at..at + states].as_chunks::<QUAD>().0,
            self.right[square.clone()].as_chunks::<QUAD>().0,
            self.left[square].as_chunks::<QUAD>().0,
        ]
    }
}

#[inline(always)]
pub(super) fn transitions<V: Batch>(eigen: &Eigen<'_>, length: f64, out: &mut [Quad]) {
    match eigen.shape.states {
        4 => matrices::<V, Dna>(eigen, length, out),
        _ => matrices::<Two<V>, Protein>(eigen, length, out),
    }
}

#[inline(always)]
fn matrices<V: Batch, S: States>(eigen: &Eigen<'_>, length: f64, out: &mut [Quad]) {
    let states = S::QUADS * QUAD;
    let blocks = out.chunks_exact_mut(states * S::QUADS);
    for (number, (rate, block)) in eigen.rates.iter().zip(blocks).enumerate() {
        let [values, right, left] = eigen.of_rate(number);
        let time = V::Lanes::splat(rate * length);
        // `e^x - 1` rather than `e^x`: the 1 is added last, which keeps the small entries of short
        // branches.
        let mut growth = [V::Lanes::zero(); 5];
        for (growth, values) in growth.iter_mut().zip(values) {
            *growth = exponentials(Lanes::mul(<V::Lanes as Lanes>::load(values), time)).1;
        }
        let held = S::columns::<V>(right);
        // As many columns at once as a batch has classes, so that the product runs in full
        // registers.
        for first in (0..states).step_by(V::CLASSES) {
            let mut grown: Each<[Quad; 5]> = [[[0.0; QUAD]; 5]; CLASSES_MAX];
            for (class, grown) in grown.iter_mut().enumerate().take(V::CLASSES) {
                let from = &left[(first + class) * S::QUADS..][..S::QUADS];
                for ((to, from), growth) in grown.iter_mut().zip(from).zip(growth) {
                    Lanes::mul(<V::Lanes as Lanes>::load(from), growth).store(to);
                }
            }
            let [a, b, c, d] = &grown;
            let x = [
                &a[..S::QUADS],
                &b[..S::QUADS],
                &c[..S::QUADS],
                &d[..S::QUADS],
            ];
            let columns = S::apply(&held, right, x);
            for class in 0..V::CLASSES {
                let column = &mut block[(first + class) * S::QUADS..][..S::QUADS];
                S::store(columns, class, column);
            }
        }
        for state in 0..states {
            block.as_flattened_mut()[state * states + state] += 1.0;
        }
        // Rounding can turn a true 0 into a value just below it.
        for quad in block {
            Lanes::max(<V::Lanes as Lanes>::load(quad), Lanes::zero()).store(quad);
        }
    }
}

/// As [`super::spectral_products`].
#[inline(always)]
pub(super) fn spectral_products<V: Lanes>(
    vectors: &[Quad; QUAD],
    inverse: &[Quad; QUAD],
    factors: &[Quad],
    out: &mut [Quad],
) {
    let mut held = [V::zero(); QUAD];
    for (held, vector) in held.iter_mut().zip(vectors) {
        *held = <V as Lanes>::load(vector);
    }
    for (factors, columns) in factors.iter().zip(out.as_chunks_mut::<QUAD>().0) {
        let mut grown = [[0.0; QUAD]; QUAD];
        for ((grown, row), factor) in grown.iter_mut().zip(inverse).zip(factors) {
            Lanes::mul(<V as Lanes>::load(row), V::splat(*factor)).store(grown);
        }
        for (j, column) in columns.iter_mut().enumerate() {
            let mut sum = V::zero();
            for (vector, grown) in held.iter().zip(&grown) {
                sum = Lanes::mul_add(*vector, V::splat(grown[j]), sum);
            }
            sum.store(column);
        }
    }
}

#[inline(always)]
pub(super) fn powers<V: Lanes>(eigen: &Eigen<'_>, length: f64, out: &mut [Quad]) {
    let (powers, rest) = out.split_at_mut(eigen.shape.quads());
    let (first, second) = rest.split_at_mut(eigen.shape.quads());
    let quads = eigen.shape.states / QUAD;
    for (number, rate) in eigen.rates.iter().enumerate() {
        let own = number * quads..(number + 1) * quads;
        let to = powers[own.clone()].iter_mut().zip(&mut first[own.clone()]);
        let [values, ..] = eigen.of_rate(number);
        for (((power, first), second), value) in to.zip(&mut second[own]).zip(values) {
            let slope = Lanes::mul(<V as Lanes>::load(value), V::splat(*rate));
            let found = exponentials(Lanes::mul(slope, V::splat(length))).0;
            found.store(power);
            Lanes::mul(slope, found).store(first);
            Lanes::mul(Lanes::mul(slope, slope), found).store(second);
        }
    }
}
