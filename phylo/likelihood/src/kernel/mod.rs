//! The likelihood kernels on conditional likelihood vectors (CLVs, or partials): newview, evaluate,
//! the sum table and the derivatives.
//!
//! Why here: three quarters of a phylogenetics program's time goes into these loops (the Cell
//! paper's profile: newview 76.8 %, makenewz 19.6 %, evaluate 2.4 %). They are pure: slices in,
//! slices out, no allocation, so that any engine can run them on any part of the site patterns.
//!
//! Layout. A *span* is the CLV entries of one class: `rates` times `states` doubles, rate by rate,
//! state by state. A *class* is a set of patterns that are alike below a node (site repeats); its
//! entries are kept once. All operands are read through an index, class by class; the identity
//! index makes every pattern a class of its own. Transition matrices are `rates` blocks of `states`
//! columns: the entries for state `j` of the child are contiguous.
//!
//! Must stay true: each result depends only on its own class's operands, never on the chunk
//! boundaries. All of [`Isa`] run the same source. AVX2 fuses multiplications and additions, so
//! that it differs from [`Isa::PORTABLE`] in the last bits. AVX-512 does the same for two classes
//! at a time, and gives the same bits.
//! Source: Stamatakis, Blagojevic, Nikolopoulos, Antonopoulos, "Exploring new search algorithms and
//! hardware for phylogenetics: RAxML meets the IBM Cell" (2007), section 3; Felsenstein (1981).

mod combine;
mod layout;
mod loops;
pub(crate) mod repeats;
mod simd;
pub mod single;

pub use combine::{Derivatives, SiteTerms};
pub(crate) use combine::{level_scalers, lowered};
pub use layout::{Buffer, Quad, SharedArena};
pub(crate) use layout::{QUAD, Spectra};
pub(crate) use loops::Loops;
pub(crate) use simd::{Eigen, combine_table, compiled_for, powers, transitions};
pub use simd::{
    Isa, STATES_MAX, add_logarithms, any_span_beyond, combine_sites, derivatives, edge_sums,
    evaluate, exponentiate, lower_spans, multiply_up, newview, newview_pre_order, pre_order_sums,
    spectral_products,
};
pub use simd::{any_single_beyond, lower_single, newview_single, total_single};

/// Dimensions of one pattern's CLV entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// States: a multiple of four up to [`STATES_MAX`]; 4 (DNA) and 20 (protein) have loops of
    /// their own. Alphabets of other sizes are padded with states that never occur.
    pub states: usize,
    /// Rate categories, 1 to `RATES_MAX`.
    pub rates: usize,
}

impl Shape {
    /// Doubles of one class.
    #[must_use]
    pub fn span(self) -> usize {
        self.states * self.rates
    }

    /// Quads (four doubles) of one class.
    #[must_use]
    pub fn quads(self) -> usize {
        self.span() / QUAD
    }

    /// Doubles of a transition matrix for every rate.
    #[must_use]
    pub fn matrix(self) -> usize {
        self.states * self.states * self.rates
    }
}

/// Most rate categories: of a mixture, those of all its classes. Sixty classes and one more, with
/// four rates each, are 244.
pub const RATES_MAX: usize = 256;

/// One side of a node or of a branch.
#[derive(Debug, Clone, Copy)]
pub enum Operand<'a> {
    /// A tip of the tree.
    Tip(Tip<'a>),
    /// An inner node.
    Inner(Inner<'a>),
}

/// A tip's states: for each code of the alphabet a span, the matrix applied to the code's states.
#[derive(Debug, Clone, Copy)]
pub struct Tip<'a> {
    /// One span for each code.
    pub table: &'a [Quad],
    /// The code of each class.
    pub index: &'a [u16],
}

/// An inner node's CLV and the transition matrix (P matrix) of the branch that leads to it.
#[derive(Debug, Clone, Copy)]
pub struct Inner<'a> {
    /// The matrix of the branch, all rates.
    pub matrix: &'a [Quad],
    /// The node's CLV: one span for each class.
    pub values: &'a [Quad],
    /// The node's scalers: for each class one count for each rate; empty where no entry was scaled.
    pub scalers: &'a [u16],
    /// The node's class for each class of the result.
    pub index: &'a [u16],
}

/// A rate whose CLV entries are all below this is multiplied by [`SCALE`], and counted in the
/// scaler.
///
/// 2^-256: the product of two such entries and of their matrices is far from the smallest double.
pub(crate) const THRESHOLD: f64 = f64::from_bits((1023 - 256) << 52);
/// 2^256.
pub const SCALE: f64 = f64::from_bits((1023 + 256) << 52);
/// The logarithm of [`THRESHOLD`].
pub(crate) const LN_THRESHOLD: f64 = -256.0 * std::f64::consts::LN_2;

#[cfg(test)]
mod tests;
