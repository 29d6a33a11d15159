//! The loops, written once over four lanes, and their instruction sets.
//!
//! Why here: [`lanes::Batch`] is four doubles, one AVX2 register, or an AVX-512 register with two
//! classes in it; the dispatch happens once a call. This folder alone may hold unsafe code in this
//! crate: the intrinsics and reads whose bounds were checked a group of classes at a time.
//! Must stay true: every index that is read without a check was checked in the same call.
#![allow(unsafe_code)]

mod branch;
mod edge;
mod functions;
mod lanes;
mod node;
mod sites;
mod wide;

pub use branch::Eigen;

use super::{Derivatives, Operand, Quad, Shape, SiteTerms};
use lanes::Portable;

/// Instruction set of the kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Plain arithmetic, as the compiler translates it.
    Portable,
    /// AVX2 with fused multiply and add.
    Avx2,
    /// AVX-512 (F) for two classes at a time, AVX2 for the rest; the same bits as AVX2.
    Avx512,
}

impl Isa {
    /// Every one, the plainest first.
    pub const ALL: [Self; 3] = [Self::Portable, Self::Avx2, Self::Avx512];

    /// The best that this machine has.
    #[must_use]
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return match is_x86_feature_detected!("avx512f") {
                true => Self::Avx512,
                false => Self::Avx2,
            };
        }
        Self::Portable
    }

    /// This one if the machine has it, else the best that it has.
    #[must_use]
    pub fn available(self) -> Self {
        self.min(Self::detect())
    }
}

/// A node's CLV from those of its two children.
///
/// `values` gets one span for each class (as many as the operands' indices are long), `scalers` one
/// count for each class and rate. False if no entry was scaled here or below; `scalers` was then
/// not written. With `scale` false the children's counts are only added: the sum table of a branch
/// is made this way, with the eigenvectors as matrices.
///
/// # Panics
/// When slices are too short for the indices, or an index is beyond its operand.
pub fn newview(
    isa: Isa,
    shape: Shape,
    left: &Operand<'_>,
    right: &Operand<'_>,
    values: &mut [Quad],
    scalers: &mut [u16],
    scale: bool,
) -> bool {
    check_shape(shape);
    match isa.available() {
        Isa::Portable => wide::newview::<Portable>(shape, left, right, values, scalers, scale),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `available` has seen that the machine has both features.
        Isa::Avx2 => unsafe { avx2::newview(shape, left, right, values, scalers, scale) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above, of AVX-512.
        Isa::Avx512 => unsafe { avx512::newview(shape, left, right, values, scalers, scale) },
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 => unreachable!("available() answers Portable elsewhere"),
    }
}

/// The likelihood of every pattern at a branch, rate by rate, not yet summed.
///
/// `left` must be an inner node (its matrix is not used); `right` carries the branch's matrix with
/// the frequencies and the rates' weights folded in, or a tip's table made of it. `terms` gets, for
/// each four patterns, `rates` quads of one term a pattern. `scalers` gets `rates` counts a
/// pattern, if the result is true.
///
/// # Panics
/// As [`newview`]; and when `left` is a tip.
pub fn evaluate(
    isa: Isa,
    shape: Shape,
    left: &Operand<'_>,
    right: &Operand<'_>,
    terms: &mut [Quad],
    scalers: &mut [u16],
) -> bool {
    check_shape(shape);
    match isa.available() {
        Isa::Portable => edge::evaluate::<Portable>(shape, left, right, terms, scalers),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `available` has seen that the machine has both features.
        Isa::Avx2 => unsafe { avx2::evaluate(shape, left, right, terms, scalers) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above, of AVX-512.
        Isa::Avx512 => unsafe { avx512::evaluate(shape, left, right, terms, scalers) },
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 => unreachable!("available() answers Portable elsewhere"),
    }
}

/// First and second derivative of the log-likelihood by a branch's length, summed over patterns.
///
/// `table` is the sum table; `powers` holds three spans: `e^(l r t)`, its first and its second
/// derivative by `t`. `fixed` is the part that does not depend on the length (invariable sites),
/// one value a pattern; `weights` are the patterns' weights.
///
/// # Panics
/// When slices are too short for `weights`.
#[must_use]
pub fn derivatives(
    isa: Isa,
    shape: Shape,
    table: &[Quad],
    powers: &[Quad],
    fixed: &[f64],
    weights: &[f64],
) -> Derivatives {
    check_shape(shape);
    match isa.available() {
        Isa::Portable => edge::derivatives::<Portable>(shape, table, powers, fixed, weights),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `available` has seen that the machine has both features.
        Isa::Avx2 => unsafe { avx2::derivatives(shape, table, powers, fixed, weights) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above, of AVX-512.
        Isa::Avx512 => unsafe { avx512::derivatives(shape, table, powers, fixed, weights) },
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 => unreachable!("available() answers Portable elsewhere"),
    }
}

/// The likelihood of every pattern at a branch, from its sum table. The first span of `powers`
/// gives the branch's length. For each four patterns one quad of terms; invariable sites are not
/// added.
///
/// # Panics
/// When `powers` are fewer than a span, or `table` is no whole number of spans.
pub fn table_terms(isa: Isa, shape: Shape, table: &[Quad], powers: &[Quad], terms: &mut [Quad]) {
    check_shape(shape);
    match isa.available() {
        Isa::Portable => edge::table_terms::<Portable>(shape, table, powers, terms),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `available` has seen that the machine has both features.
        Isa::Avx2 => unsafe { avx2::table_terms(shape, table, powers, terms) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above, of AVX-512.
        Isa::Avx512 => unsafe { avx512::table_terms(shape, table, powers, terms) },
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 => unreachable!("available() answers Portable elsewhere"),
    }
}

/// The likelihood of every pattern with a subtree inserted in the middle of a branch, in the form
/// of [`evaluate`].
///
/// `near` (an inner node) and `far` are the branch's ends with the matrices of its halves. `below`
/// has as values the subtree's CLV moved over its branch, with frequencies and weights folded in
/// (its matrix is not used). This is a newview and its evaluation in one, without storing the CLV
/// between. It needs no scaling: the loss of the three factors together is within the range of a
/// double.
///
/// # Panics
/// As [`newview`]; and when `near` or `below` is a tip.
pub fn insert(
    isa: Isa,
    shape: Shape,
    near: &Operand<'_>,
    far: &Operand<'_>,
    below: &Operand<'_>,
    terms: &mut [Quad],
    scalers: &mut [u16],
) -> bool {
    check_shape(shape);
    match isa.available() {
        Isa::Portable => edge::insert::<Portable>(shape, near, far, below, terms, scalers),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `available` has seen that the machine has both features.
        Isa::Avx2 => unsafe { avx2::insert(shape, near, far, below, terms, scalers) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above, of AVX-512.
        Isa::Avx512 => unsafe { avx512::insert(shape, near, far, below, terms, scalers) },
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 => unreachable!("available() answers Portable elsewhere"),
    }
}

/// Writes each pattern's log-likelihood to `site_lnl` and returns their weighted sum, four partial
/// sums in order.
///
/// # Panics
/// When slices are too short for `weights`.
pub fn combine_sites(
    isa: Isa,
    sites: &SiteTerms<'_>,
    weights: &[f64],
    site_lnl: &mut [f64],
) -> f64 {
    match isa.available() {
        Isa::Portable => sites::combine_sites::<Portable>(sites, weights, site_lnl),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `available` has seen that the machine has both features.
        Isa::Avx2 | Isa::Avx512 => unsafe { avx2::combine_sites(sites, weights, site_lnl) },
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 => unreachable!("available() answers Portable elsewhere"),
    }
}

/// The weighted sum of the logarithms of [`table_terms`]' likelihoods, four partial sums in order.
///
/// # Panics
/// When slices are too short for `weights`.
#[must_use]
pub fn combine_table(isa: Isa, terms: &[Quad], fixed: &[f64], weights: &[f64]) -> f64 {
    match isa.available() {
        Isa::Portable => sites::combine_table::<Portable>(terms, fixed, weights),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `available` has seen that the machine has both features.
        Isa::Avx2 | Isa::Avx512 => unsafe { avx2::combine_table(terms, fixed, weights) },
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 => unreachable!("available() answers Portable elsewhere"),
    }
}

/// The transition probabilities over a branch of `length` for every rate: for each rate, for each
/// state of the far end, a column over the states of the near end.
///
/// # Panics
/// When `out` is not of [`Shape::matrix`] doubles, or the eigenvectors are too short.
pub fn transitions(isa: Isa, eigen: &Eigen<'_>, length: f64, out: &mut [Quad]) {
    check_shape(eigen.shape);
    assert_eq!(
        out.as_flattened().len(),
        eigen.shape.matrix(),
        "doubles of a matrix"
    );
    match isa.available() {
        Isa::Portable => wide::transitions::<Portable>(eigen, length, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `available` has seen that the machine has both features.
        Isa::Avx2 => unsafe { avx2::transitions(eigen, length, out) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above, of AVX-512.
        Isa::Avx512 => unsafe { avx512::transitions(eigen, length, out) },
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 => unreachable!("available() answers Portable elsewhere"),
    }
}

/// `e^(value rate length)` for each rate and value, and its two derivatives by the length: three
/// spans.
///
/// # Panics
/// When `out` is not of three spans.
pub fn powers(isa: Isa, eigen: &Eigen<'_>, length: f64, out: &mut [Quad]) {
    check_shape(eigen.shape);
    assert_eq!(out.len(), 3 * eigen.shape.quads(), "quads of three spans");
    match isa.available() {
        Isa::Portable => branch::powers::<Portable>(eigen, length, out),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `available` has seen that the machine has both features.
        Isa::Avx2 | Isa::Avx512 => unsafe { avx2::powers(eigen, length, out) },
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 => unreachable!("available() answers Portable elsewhere"),
    }
}

/// Most states that a shape may have.
pub const STATES_MAX: usize = 64;

fn check_shape(shape: Shape) {
    assert!(
        shape.states.is_multiple_of(super::QUAD)
            && (1..=STATES_MAX).contains(&shape.states)
            && (1..=super::RATES_MAX).contains(&shape.rates),
        "no kernel for {shape:?}"
    );
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    //! The same loops, compiled for AVX2 and FMA.
    use super::lanes::Avx2;
    use super::{Derivatives, Eigen, Operand, Quad, Shape, SiteTerms, branch, edge, sites, wide};

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn newview(
        shape: Shape,
        left: &Operand<'_>,
        right: &Operand<'_>,
        values: &mut [Quad],
        scalers: &mut [u16],
        scale: bool,
    ) -> bool {
        wide::newview::<Avx2>(shape, left, right, values, scalers, scale)
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn evaluate(
        shape: Shape,
        left: &Operand<'_>,
        right: &Operand<'_>,
        terms: &mut [Quad],
        scalers: &mut [u16],
    ) -> bool {
        edge::evaluate::<Avx2>(shape, left, right, terms, scalers)
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn derivatives(
        shape: Shape,
        table: &[Quad],
        powers: &[Quad],
        fixed: &[f64],
        weights: &[f64],
    ) -> Derivatives {
        edge::derivatives::<Avx2>(shape, table, powers, fixed, weights)
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn table_terms(shape: Shape, table: &[Quad], powers: &[Quad], terms: &mut [Quad]) {
        edge::table_terms::<Avx2>(shape, table, powers, terms)
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn insert(
        shape: Shape,
        near: &Operand<'_>,
        far: &Operand<'_>,
        below: &Operand<'_>,
        terms: &mut [Quad],
        scalers: &mut [u16],
    ) -> bool {
        edge::insert::<Avx2>(shape, near, far, below, terms, scalers)
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn transitions(eigen: &Eigen<'_>, length: f64, out: &mut [Quad]) {
        wide::transitions::<Avx2>(eigen, length, out);
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn powers(eigen: &Eigen<'_>, length: f64, out: &mut [Quad]) {
        branch::powers::<Avx2>(eigen, length, out);
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn combine_sites(
        sites: &SiteTerms<'_>,
        weights: &[f64],
        site_lnl: &mut [f64],
    ) -> f64 {
        sites::combine_sites::<Avx2>(sites, weights, site_lnl)
    }

    #[target_feature(enable = "avx2,fma")]
    pub(super) fn combine_table(terms: &[Quad], fixed: &[f64], weights: &[f64]) -> f64 {
        sites::combine_table::<Avx2>(terms, fixed, weights)
    }
}

#[cfg(target_arch = "x86_64")]
mod avx512 {
    //! The same loops, two classes at a time, compiled for AVX-512.
    use super::lanes::Avx512;
    use super::{Derivatives, Eigen, Operand, Quad, Shape, edge, wide};

    #[target_feature(enable = "avx512f,avx2,fma")]
    pub(super) fn newview(
        shape: Shape,
        left: &Operand<'_>,
        right: &Operand<'_>,
        values: &mut [Quad],
        scalers: &mut [u16],
        scale: bool,
    ) -> bool {
        wide::newview::<Avx512>(shape, left, right, values, scalers, scale)
    }

    #[target_feature(enable = "avx512f,avx2,fma")]
    pub(super) fn evaluate(
        shape: Shape,
        left: &Operand<'_>,
        right: &Operand<'_>,
        terms: &mut [Quad],
        scalers: &mut [u16],
    ) -> bool {
        edge::evaluate::<Avx512>(shape, left, right, terms, scalers)
    }

    #[target_feature(enable = "avx512f,avx2,fma")]
    pub(super) fn insert(
        shape: Shape,
        near: &Operand<'_>,
        far: &Operand<'_>,
        below: &Operand<'_>,
        terms: &mut [Quad],
        scalers: &mut [u16],
    ) -> bool {
        edge::insert::<Avx512>(shape, near, far, below, terms, scalers)
    }

    #[target_feature(enable = "avx512f,avx2,fma")]
    pub(super) fn transitions(eigen: &Eigen<'_>, length: f64, out: &mut [Quad]) {
        wide::transitions::<Avx512>(eigen, length, out);
    }

    #[target_feature(enable = "avx512f,avx2,fma")]
    pub(super) fn derivatives(
        shape: Shape,
        table: &[Quad],
        powers: &[Quad],
        fixed: &[f64],
        weights: &[f64],
    ) -> Derivatives {
        edge::derivatives::<Avx512>(shape, table, powers, fixed, weights)
    }

    #[target_feature(enable = "avx512f,avx2,fma")]
    pub(super) fn table_terms(shape: Shape, table: &[Quad], powers: &[Quad], terms: &mut [Quad]) {
        edge::table_terms::<Avx512>(shape, table, powers, terms)
    }
}
