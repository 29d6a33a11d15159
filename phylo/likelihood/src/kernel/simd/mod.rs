//! The loops, written once over four lanes, and their instruction sets.
//!
//! Why here: [`lanes::Batch`] is four doubles, one AVX2 register, or an AVX-512 register with two
//! classes in it; the dispatch happens once a call. This folder alone may hold unsafe code in this
//! crate: the intrinsics and reads whose bounds were checked a group of classes at a time.
//! Must stay true: an [`Isa`] exists only if this machine has it, so that no call asks again; every
//! index that is read without a check was checked in the same call.
#![allow(unsafe_code)]

mod branch;
mod edge;
mod four;
mod functions;
mod lanes;
mod node;
mod profiled;
mod scale;
mod single;
mod sites;
mod states;
mod wide;

pub(crate) use branch::Eigen;
pub use single::{any_single_beyond, lower_single, newview_single, total_single};

use super::{Derivatives, Operand, Quad, Shape, SiteTerms, Spectra, Tip};
use lanes::Portable;

/// Instruction set of the kernels: one that this machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Isa(Set);

/// Kept private: [`Isa::detect`] alone makes any but the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Set {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Isa {
    /// Plain arithmetic, as the compiler translates it.
    pub const PORTABLE: Self = Self(Set::Portable);

    /// The best that this machine has: AVX-512 (F) for two classes at a time and AVX2 for the rest,
    /// or AVX2 with fused multiply and add, of the same bits; else plain arithmetic.
    #[must_use]
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("popcnt")
        {
            return Self(match is_x86_feature_detected!("avx512f") {
                true => Set::Avx512,
                false => Set::Avx2,
            });
        }
        Self::PORTABLE
    }

    /// Every one that this machine has, the plainest first.
    pub fn all() -> impl Iterator<Item = Self> {
        let all = [
            Set::Portable,
            #[cfg(target_arch = "x86_64")]
            Set::Avx2,
            #[cfg(target_arch = "x86_64")]
            Set::Avx512,
        ];
        all.into_iter()
            .map(Self)
            .filter(|isa| *isa <= Self::detect())
    }

    /// Its name, in lower case.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            Set::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => "avx512",
        }
    }
}

/// Calls `work`, which is compiled for an instruction set as far as the compiler inlines it: for
/// loops over whole numbers, which need no lanes of their own. The result is the same on all sets.
#[inline]
pub(crate) fn compiled_for<T>(isa: Isa, work: impl FnOnce() -> T) -> T {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,popcnt")]
    fn avx2<T>(work: impl FnOnce() -> T) -> T {
        work()
    }
    match isa.0 {
        Set::Portable => work(),
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an `Isa` exists only if the machine has its features; `detect` asks for these
        // three before it gives either.
        Set::Avx2 | Set::Avx512 => unsafe { avx2(work) },
    }
}

/// A kernel for each instruction set, from one generic loop: compiled for plain arithmetic, for
/// AVX2, and for `$wide` with `$features` where the machine has AVX-512. `$check` runs first.
macro_rules! kernel {
    (
        $(#[$attribute:meta])*
        $visibility:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?,
        $loops:ident, $wide:ident, $features:literal $(, $check:expr)?
    ) => {
        $(#[$attribute])*
        $visibility fn $name(isa: Isa, $($argument: $type),*) $(-> $result)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($argument: $type),*) $(-> $result)? {
                $loops::$name::<lanes::Avx2>($($argument),*)
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = $features)]
            fn wide($($argument: $type),*) $(-> $result)? {
                $loops::$name::<lanes::$wide>($($argument),*)
            }
            $($check;)?
            match isa.0 {
                Set::Portable => $loops::$name::<Portable>($($argument),*),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: an `Isa` exists only if the machine has its features.
                Set::Avx2 => unsafe { avx2($($argument),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above; AVX-512 was detected together with AVX2 and FMA.
                Set::Avx512 => unsafe { wide($($argument),*) },
            }
        }
    };
}

kernel! {
    /// A node's CLV from those of its two children.
    ///
    /// `values` gets one span for each class (as many as the operands' indices are long), `scalers`
    /// one count for each class and rate. False if no entry was scaled here or below; `scalers` was
    /// then not written. With `scale` false the children's counts are only added: the sum table of
    /// a branch is made this way, with the eigenvectors as matrices.
    ///
    /// # Panics
    /// When slices are too short for the indices, or an index is beyond its operand.
    pub fn newview(
        shape: Shape,
        left: &Operand<'_>,
        right: &Operand<'_>,
        values: &mut [Quad],
        scalers: &mut [u16],
        scale: bool,
    ) -> bool,
    wide, Avx512, "avx512f,avx2,fma", check_shape(shape)
}

kernel! {
    /// The likelihood of every pattern at a branch, rate by rate, not yet summed.
    ///
    /// `left` must be an inner node (its matrix is not used); `right` carries the branch's matrix
    /// with the frequencies and the rates' weights folded in, or a tip's table made of it. `terms`
    /// gets, for each four patterns, `rates` quads of one term a pattern. `scalers` gets `rates`
    /// counts a pattern, if the result is true.
    ///
    /// # Panics
    /// As [`newview`]; and when `left` is a tip.
    pub fn evaluate(
        shape: Shape,
        left: &Operand<'_>,
        right: &Operand<'_>,
        terms: &mut [Quad],
        scalers: &mut [u16],
    ) -> bool,
    edge, Avx512, "avx512f,avx2,fma", check_shape(shape)
}

kernel! {
    /// The likelihood of every pattern at a branch, summed over its rates: for each four patterns a
    /// quad. Four states in four rates only, no scalers.
    ///
    /// `near` has a node's CLV as table; `far` is as in [`evaluate`].
    ///
    /// # Panics
    /// As [`newview`].
    pub fn edge_sums(
        near: &Tip<'_>,
        far: &Operand<'_>,
        sums: &mut [Quad],
    ),
    four, Avx512, "avx512f,avx2,fma"
}

kernel! {
    /// A node's pre-order CLV: its parent's, times what arrives from the node's sibling, moved down
    /// the node's own branch by `own`, the transposed matrix of that branch. No scaling.
    ///
    /// `parent` has as table the parent's pre-order CLV; `values` gets one span for each class.
    ///
    /// # Panics
    /// As [`newview`].
    pub fn newview_pre_order(
        shape: Shape,
        parent: &Tip<'_>,
        sibling: &Operand<'_>,
        own: &[Quad],
        values: &mut [Quad],
    ),
    wide, Avx512, "avx512f,avx2,fma", check_shape(shape)
}

kernel! {
    /// Of every pattern two sums over rates, each by its weight: `near` times `moved` in the first
    /// of `sums`, and `near` times `still` in the second, for each four patterns a quad. `near` has
    /// a pre-order CLV as table; `moved` has a differential matrix, `still` none.
    ///
    /// # Panics
    /// As [`newview`]; and when `weights` are fewer than the rates.
    pub fn pre_order_sums(
        shape: Shape,
        near: &Tip<'_>,
        moved: &Operand<'_>,
        still: &Tip<'_>,
        weights: &[f64],
        sums: [&mut [Quad]; 2],
    ),
    edge, Avx512, "avx512f,avx2,fma", check_shape(shape)
}

kernel! {
    /// First and second derivative of the log-likelihood by a branch's length, summed over
    /// patterns.
    ///
    /// `table` is the sum table; `powers` holds three spans: `e^(l r t)`, its first and its second
    /// derivative by `t`. `fixed` is the part that does not depend on the length (invariable
    /// sites), one value a pattern; `weights` are the patterns' weights.
    ///
    /// # Panics
    /// When slices are too short for `weights`.
    #[must_use]
    pub fn derivatives(
        shape: Shape,
        table: &[Quad],
        powers: &[Quad],
        fixed: &[f64],
        weights: &[f64],
    ) -> Derivatives,
    edge, Avx512, "avx512f,avx2,fma", check_shape(shape)
}

kernel! {
    /// The likelihood of every pattern at a branch, from its sum table. The first span of `powers`
    /// gives the branch's length. For each four patterns one quad of terms; invariable sites are
    /// not added.
    ///
    /// # Panics
    /// When `powers` are fewer than a span, or `table` is no whole number of spans.
    pub(crate) fn table_terms(
        shape: Shape,
        table: &[Quad],
        powers: &[Quad],
        terms: &mut [Quad],
    ),
    edge, Avx512, "avx512f,avx2,fma", check_shape(shape)
}

kernel! {
    /// The likelihood of every pattern with a subtree inserted in the middle of a branch, in the
    /// form of [`evaluate`].
    ///
    /// `near` (an inner node) and `far` are the branch's ends with the matrices of its halves.
    /// `below` has as values the subtree's CLV moved over its branch, with frequencies and weights
    /// folded in (its matrix is not used). This is a newview and its evaluation in one, without
    /// storing the CLV between. It needs no scaling: the loss of the three factors together is
    /// within the range of a double.
    ///
    /// # Panics
    /// As [`newview`]; and when `near` or `below` is a tip.
    pub(crate) fn insert(
        shape: Shape,
        near: &Operand<'_>,
        far: &Operand<'_>,
        below: &Operand<'_>,
        terms: &mut [Quad],
        scalers: &mut [u16],
    ) -> bool,
    edge, Avx512, "avx512f,avx2,fma", check_shape(shape)
}

kernel! {
    /// Writes each pattern's log-likelihood to `site_lnl` and returns their weighted sum, four
    /// partial sums in order.
    ///
    /// # Panics
    /// When slices are too short for `weights`.
    pub fn combine_sites(
        sites: &SiteTerms<'_>,
        weights: &[f64],
        site_lnl: &mut [f64],
    ) -> f64,
    sites, Avx2, "avx2,fma"
}

kernel! {
    /// The weighted sum of the logarithms of [`table_terms`]' likelihoods, four partial sums in
    /// order.
    ///
    /// # Panics
    /// When slices are too short for `weights`.
    #[must_use]
    pub(crate) fn combine_table(
        terms: &[Quad],
        fixed: &[f64],
        weights: &[f64],
    ) -> f64,
    sites, Avx2, "avx2,fma"
}

kernel! {
    /// The transition probabilities over a branch of `length` for every rate: for each rate, for
    /// each state of the far end, a column over the states of the near end.
    ///
    /// # Panics
    /// When `out` is not of [`Shape::matrix`] doubles, or the eigenvectors are too short.
    pub(crate) fn transitions(
        eigen: &Eigen<'_>,
        length: f64,
        out: &mut [Quad],
    ),
    wide, Avx512, "avx512f,avx2,fma", check_matrix(eigen.shape, out)
}

kernel! {
    /// A matrix of four states for each quad of `factors`: the eigenvectors, a column for each,
    /// times the inverse ones, row by row, whose rows are multiplied by the factors. A matrix is
    /// four columns of `out`.
    pub fn spectral_products(
        vectors: &[Quad; 4],
        inverse: &[Quad; 4],
        factors: &[Quad],
        out: &mut [Quad],
    ),
    branch, Avx2, "avx2,fma"
}

kernel! {
    /// Numbers become their exponentials.
    pub fn exponentiate(
        x: &mut [Quad],
    ),
    functions, Avx2, "avx2,fma"
}

kernel! {
    /// `e^(value rate length)` for each rate and value, and its two derivatives by the length:
    /// three spans.
    ///
    /// # Panics
    /// When `out` is not of three spans.
    pub(crate) fn powers(
        eigen: &Eigen<'_>,
        length: f64,
        out: &mut [Quad],
    ),
    branch, Avx2, "avx2,fma", check_powers(eigen.shape, out)
}

kernel! {
    /// Divides each span of `span` quads by its largest entry, which becomes its factor; a span
    /// without a positive entry stays, and has the factor 1.
    ///
    /// # Panics
    /// When `values` has fewer spans than there are `factors`, or `span` is 0.
    pub fn lower_spans(
        span: usize,
        values: &mut [Quad],
        factors: &mut [f64],
    ),
    scale, Avx2, "avx2,fma"
}

kernel! {
    /// True if some span's largest entry is positive and below `least`, or above `most`.
    ///
    /// # Panics
    /// When `values` is no whole number of spans of `span` quads.
    #[must_use]
    pub fn any_span_beyond(
        span: usize,
        values: &[Quad],
        least: f64,
        most: f64,
    ) -> bool,
    scale, Avx2, "avx2,fma"
}

kernel! {
    /// Multiplies products by factors. A product is a mantissa, of either side of 1, and a power of
    /// two; a mantissa of 1 is enough for 1,000 factors. Factors that are not positive make the
    /// exponent infinite or no number.
    pub fn multiply_up(
        factors: &[f64],
        mantissas: &mut [f64],
        exponents: &mut [f64],
    ),
    scale, Avx2, "avx2,fma"
}

kernel! {
    /// Adds `sign` times the logarithms of such products to sums.
    pub fn add_logarithms(
        mantissas: &[f64],
        exponents: &[f64],
        sign: f64,
        sums: &mut [f64],
    ),
    scale, Avx2, "avx2,fma"
}

kernel! {
    /// As [`newview`], with a matrix of its own for each pattern. Each operand's matrix or table is
    /// one quad that begins with the branch's length.
    ///
    /// # Panics
    /// As [`newview`]; and when `spectra` have fewer patterns.
    pub(crate) fn profiled_newview(
        spectra: &Spectra<'_>,
        left: &Operand<'_>,
        right: &Operand<'_>,
        values: &mut [Quad],
        scalers: &mut [u16],
    ) -> bool,
    profiled, Avx2, "avx2,fma"
}

kernel! {
    /// A CLV moved over a branch, with frequencies and the rates' weights: `below` of
    /// [`profiled_insert`].
    ///
    /// # Panics
    /// As [`profiled_newview`].
    pub(crate) fn profiled_carry(
        spectra: &Spectra<'_>,
        from: &Operand<'_>,
        values: &mut [Quad],
        scalers: &mut [u16],
    ) -> bool,
    profiled, Avx2, "avx2,fma"
}

kernel! {
    /// As [`evaluate`], with a matrix of its own for each pattern.
    ///
    /// # Panics
    /// As [`profiled_newview`].
    pub(crate) fn profiled_evaluate(
        spectra: &Spectra<'_>,
        left: &Operand<'_>,
        right: &Operand<'_>,
        terms: &mut [Quad],
        scalers: &mut [u16],
    ) -> bool,
    profiled, Avx2, "avx2,fma"
}

kernel! {
    /// As [`insert`], with a matrix of its own for each pattern.
    ///
    /// # Panics
    /// As [`profiled_newview`].
    pub(crate) fn profiled_insert(
        spectra: &Spectra<'_>,
        near: &Operand<'_>,
        far: &Operand<'_>,
        below: &Operand<'_>,
        terms: &mut [Quad],
        scalers: &mut [u16],
    ) -> bool,
    profiled, Avx2, "avx2,fma"
}

kernel! {
    /// The sum table of a branch, with a matrix of its own for each pattern.
    ///
    /// # Panics
    /// As [`profiled_newview`].
    pub(crate) fn profiled_table(
        spectra: &Spectra<'_>,
        near: &Operand<'_>,
        far: &Operand<'_>,
        table: &mut [Quad],
        scalers: &mut [u16],
    ) -> bool,
    profiled, Avx2, "avx2,fma"
}

kernel! {
    /// As [`derivatives`], from the table of [`profiled_table`].
    ///
    /// # Panics
    /// As [`profiled_newview`].
    pub(crate) fn profiled_derivatives(
        spectra: &Spectra<'_>,
        length: f64,
        table: &[Quad],
        fixed: &[f64],
        weights: &[f64],
    ) -> Derivatives,
    profiled, Avx2, "avx2,fma"
}

kernel! {
    /// As [`table_terms`], from the table of [`profiled_table`].
    ///
    /// # Panics
    /// As [`profiled_newview`].
    pub(crate) fn profiled_terms(
        spectra: &Spectra<'_>,
        length: f64,
        table: &[Quad],
        terms: &mut [Quad],
    ),
    profiled, Avx2, "avx2,fma"
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

fn check_matrix(shape: Shape, out: &[Quad]) {
    check_shape(shape);
    let doubles = out.as_flattened().len();
    assert_eq!(doubles, shape.matrix(), "doubles of a matrix");
}

fn check_powers(shape: Shape, out: &[Quad]) {
    check_shape(shape);
    assert_eq!(out.len(), 3 * shape.quads(), "quads of three spans");
}
