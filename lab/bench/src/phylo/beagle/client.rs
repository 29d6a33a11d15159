//! A client of BEAGLE's C interface: traversals of a tree by whichever library implements it.
//!
//! Why here: the libraries that are compared are called as MrBayes and BEAST call them, through the
//! dynamic linker.
//! Must stay true: buffers have the sizes that the interface documents for a [`Shape`]; an answer
//! other than 0 is an error. One thread for each instance.
//! Source: the interface as BEAGLE 3.1 documents it.
#![allow(unsafe_code, reason = "calls of a C interface")]

use super::{Scaling, Shape};
use libloading::Library;
use sidecore_random::Random;
use std::ffi::{CStr, c_char, c_double, c_int, c_long};
use std::path::Path;

/// Reasons why a library cannot be measured.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// It cannot be loaded, or lacks a call.
    #[error("cannot load it: {0}")]
    Load(#[from] libloading::Error),
    /// It is of a version before 4.
    #[error("{NO_GRADIENTS}")]
    NoGradients,
    /// A call failed.
    #[error("{call} answers {code}")]
    Refused {
        /// Name of the call.
        call: &'static str,
        /// BEAGLE's error number.
        code: c_int,
    },
}

/// The message of a library without the calls of version 4.
pub(super) const NO_GRADIENTS: &str = "it has no gradients";

macro_rules! calls {
    ($calls:ident: $($field:ident: $name:ident($($argument:ty),* $(,)?)),* $(,)?) => {
        /// Calls of a library.
        struct $calls {
            $($field: unsafe extern "C" fn($($argument),*) -> c_int,)*
            _library: Library,
        }

        impl $calls {
            fn load(path: &Path) -> Result<Self, ClientError> {
                // SAFETY: the user named this library to have its code run.
                let library = unsafe { Library::new(path) }?;
                $(
                    let name = concat!(stringify!($name), "\0");
                    // SAFETY: the interface gives the function's type.
                    let $field = unsafe {
                        *library
                            .get::<unsafe extern "C" fn($($argument),*) -> c_int>(name.as_bytes())?
                    };
                )*
                Ok(Self { $($field,)* _library: library })
            }
        }
    };
}

type Ints = *const c_int;
type Doubles = *const c_double;

calls! {
    GradientCalls:
    root_pre: beagleSetRootPrePartials(c_int, Ints, Ints, c_int),
    update_pre: beagleUpdatePrePartials(c_int, *const [c_int; 7], c_int, c_int),
    differential: beagleSetDifferentialMatrix(c_int, c_int, Doubles),
    slopes: beagleCalculateEdgeDerivatives(
        c_int, Ints, Ints, Ints, Ints, c_int, *mut c_double, *mut c_double, *mut c_double,
    ),
}

calls! {
    Calls:
    create: beagleCreateInstance(
        c_int, c_int, c_int, c_int, c_int, c_int, c_int, c_int, c_int,
        Ints, c_int, c_long, c_long, *mut Details,
    ),
    finalize: beagleFinalizeInstance(c_int),
    tip_states: beagleSetTipStates(c_int, c_int, Ints),
    eigen: beagleSetEigenDecomposition(c_int, c_int, Doubles, Doubles, Doubles),
    frequencies: beagleSetStateFrequencies(c_int, c_int, Doubles),
    weights: beagleSetCategoryWeights(c_int, c_int, Doubles),
    rates: beagleSetCategoryRates(c_int, Doubles),
    pattern_weights: beagleSetPatternWeights(c_int, Doubles),
    matrices: beagleUpdateTransitionMatrices(c_int, c_int, Ints, Ints, Ints, Doubles, c_int),
    partials: beagleUpdatePartials(c_int, *const [c_int; 7], c_int, c_int),
    reset: beagleResetScaleFactors(c_int, c_int),
    root: beagleCalculateRootLogLikelihoods(c_int, Ints, Ints, Ints, Ints, c_int, *mut c_double),
}

/// The answer of `beagleCreateInstance`.
#[repr(C)]
struct Details {
    resource: c_int,
    resource_name: *const c_char,
    implementation: *const c_char,
    description: *const c_char,
    flags: c_long,
}

/// An instance with the data of a [`Shape`].
pub(super) struct Instance {
    calls: Calls,
    id: c_int,
    /// Name of the library's implementation.
    pub(super) implementation: String,
    operations: Vec<[c_int; 7]>,
    matrices: Vec<c_int>,
    lengths: Vec<c_double>,
    is_scaled: bool,
    gradient: Option<Gradient>,
}

/// Calls and arguments for the derivatives by all branches.
struct Gradient {
    calls: GradientCalls,
    operations: Vec<[c_int; 7]>,
    /// The buffer of the root, and of each node's pre-order partials.
    root: c_int,
    pre: Vec<c_int>,
    /// Each node's own buffer.
    nodes: Vec<c_int>,
    weights: Vec<c_int>,
    /// The differential matrix, for each node.
    differential: Vec<c_int>,
    slopes: Vec<c_double>,
}

impl Instance {
    /// Creates it; `is_threaded` asks for an implementation with threads of its own.
    ///
    /// # Errors
    /// The library cannot be loaded, or refuses a call.
    pub(super) fn new(path: &Path, shape: &Shape, is_threaded: bool) -> Result<Self, ClientError> {
        let calls = Calls::load(path)?;
        let gradient = match shape.is_gradient {
            false => None,
            true => Some(GradientCalls::load(path).map_err(|_| ClientError::NoGradients)?),
        };
        let size = |n: usize| c_int::try_from(n).unwrap_or(c_int::MAX);
        let taxa = shape.taxa;
        let is_scaled = shape.scaling == Scaling::Always;
        let mut details = Details {
            resource: 0,
            resource_name: std::ptr::null(),
            implementation: std::ptr::null(),
            description: std::ptr::null(),
            flags: 0,
        };
        let preferred = VECTOR_SSE
            | match is_threaded {
                true => THREADING_CPP,
                false => THREADING_NONE,
            };
        let precision = match shape.is_single {
            true => PRECISION_SINGLE,
            false => PRECISION_DOUBLE,
        };
        let scalers = if is_scaled { taxa } else { 0 };
        // SAFETY: the lists are empty, and `details` is written once.
        let id = unsafe {
            (calls.create)(
                size(taxa),
                size(if shape.is_gradient {
                    3 * taxa - 2
                } else {
                    taxa - 1
                }),
                size(taxa),
                size(shape.states),
                size(shape.patterns),
                1,
                size(2 * taxa - 1),
                size(shape.categories),
                size(scalers),
                std::ptr::null(),
                0,
                preferred,
                precision,
                &raw mut details,
            )
        };
        if id < 0 {
            return Err(ClientError::Refused {
                call: "beagleCreateInstance",
                code: id,
            });
        }
        let implementation = match details.implementation.is_null() {
            true => String::new(),
            // SAFETY: a string of the library's that lasts as long as it is loaded.
            false => unsafe { CStr::from_ptr(details.implementation) }
                .to_string_lossy()
                .into_owned(),
        };
        let instance = Self {
            calls,
            id,
            implementation,
            operations: operations(taxa, is_scaled),
            matrices: (0..size(2 * taxa - 2)).collect(),
            lengths: (0..2 * taxa - 2)
                .map(|i| 0.05 + 0.01 * (i % 7) as f64)
                .collect(),
            is_scaled,
            gradient: gradient.map(|calls| Gradient::new(calls, taxa)),
        };
        instance.set_model(shape)?;
        instance.set_tips(shape)?;
        Ok(instance)
    }

    /// All matrices, all partials, the log-likelihood: one proposal that changes the whole tree.
    ///
    /// # Errors
    /// The library refuses a call.
    pub(super) fn traversal(&mut self) -> Result<f64, ClientError> {
        // Another length each time, so that no library may know the answer.
        self.lengths[0] = if self.lengths[0] > 0.2 {
            0.05
        } else {
            self.lengths[0] + 1e-3
        };
        let (calls, id) = (&self.calls, self.id);
        let none = std::ptr::null();
        let count = c_int::try_from(self.matrices.len()).unwrap_or(c_int::MAX);
        // SAFETY: `count` indices and lengths.
        let code = unsafe {
            (calls.matrices)(
                id,
                0,
                self.matrices.as_ptr(),
                none,
                none,
                self.lengths.as_ptr(),
                count,
            )
        };
        done("beagleUpdateTransitionMatrices", code)?;
        let taxa = self.operations.len() + 1;
        let cumulative = match self.is_scaled {
            true => c_int::try_from(taxa - 1).unwrap_or(c_int::MAX),
            false => NONE,
        };
        if self.is_scaled {
            // SAFETY: the buffer's number.
            done("beagleResetScaleFactors", unsafe {
                (calls.reset)(id, cumulative)
            })?;
        }
        let count = c_int::try_from(self.operations.len()).unwrap_or(c_int::MAX);
        // SAFETY: `count` operations, whose buffers exist.
        let code = unsafe { (calls.partials)(id, self.operations.as_ptr(), count, cumulative) };
        done("beagleUpdatePartials", code)?;
        let root = self.operations[self.operations.len() - 1][0];
        let mut lnl = 0.0;
        // SAFETY: one index each.
        let code = unsafe {
            (calls.root)(
                id,
                &raw const root,
                &raw const ZERO,
                &raw const ZERO,
                &raw const cumulative,
                1,
                &raw mut lnl,
            )
        };
        done("beagleCalculateRootLogLikelihoods", code)?;
        match &mut self.gradient {
            Some(gradient) => gradient.sum(self.id),
            None => Ok(lnl),
        }
    }

    /// Equal frequencies and exchanges: any orthonormal basis whose first vector is constant has
    /// the eigenvectors.
    fn set_model(&self, shape: &Shape) -> Result<(), ClientError> {
        let (n, categories) = (shape.states, shape.categories);
        let size = n as f64;
        let vector = |state: usize, k: usize| {
            let norm = if k == 0 { size.recip() } else { 2.0 / size }.sqrt();
            norm * (std::f64::consts::PI * (state as f64 + 0.5) * k as f64 / size).cos()
        };
        let square = |of: &dyn Fn(usize, usize) -> f64| -> Vec<f64> {
            (0..n * n).map(|at| of(at / n, at % n)).collect()
        };
        let vectors = square(&|row, column| vector(row, column));
        let inverse = square(&|row, column| vector(column, row));
        let values: Vec<f64> = (0..n)
            .map(|k| if k == 0 { 0.0 } else { -size / (size - 1.0) })
            .collect();
        let frequencies = vec![size.recip(); n];
        let weights = vec![(categories as f64).recip(); categories];
        // The middles of an exponential distribution's parts, about.
        let rates: Vec<f64> = (0..categories)
            .map(|i| 2.0 * (i as f64 + 0.5) / categories as f64)
            .collect();
        let patterns = vec![1.0; shape.patterns];
        let (calls, id) = (&self.calls, self.id);
        // SAFETY: n * n, n * n and n values.
        done("beagleSetEigenDecomposition", unsafe {
            (calls.eigen)(id, 0, vectors.as_ptr(), inverse.as_ptr(), values.as_ptr())
        })?;
        // SAFETY: n values.
        done("beagleSetStateFrequencies", unsafe {
            (calls.frequencies)(id, 0, frequencies.as_ptr())
        })?;
        // SAFETY: one value a category.
        done("beagleSetCategoryWeights", unsafe {
            (calls.weights)(id, 0, weights.as_ptr())
        })?;
        // SAFETY: one value a category.
        done("beagleSetCategoryRates", unsafe {
            (calls.rates)(id, rates.as_ptr())
        })?;
        if let Some(gradient) = &self.gradient {
            // Off the diagonal all rates are equal, and a row's sum is 0.
            let entry = |row, column| match row == column {
                true => -1.0,
                false => (size - 1.0).recip(),
            };
            let rows = rates
                .iter()
                .flat_map(|rate| square(&|row, column| rate * entry(row, column)));
            let rows: Vec<f64> = rows.collect();
            // SAFETY: n * n values a category.
            done("beagleSetDifferentialMatrix", unsafe {
                (gradient.calls.differential)(id, gradient.differential[0], rows.as_ptr())
            })?;
        }
        // SAFETY: one value a pattern.
        done("beagleSetPatternWeights", unsafe {
            (calls.pattern_weights)(id, patterns.as_ptr())
        })
    }

    /// States as they evolve down the tree, one branch in eight with a change.
    fn set_tips(&self, shape: &Shape) -> Result<(), ClientError> {
        let mut random = Random::new(SEED);
        let mut tips = vec![vec![0; shape.patterns]; shape.taxa];
        let mut nodes = vec![0; 2 * shape.taxa - 1];
        for pattern in 0..shape.patterns {
            let root = nodes.len() - 1;
            nodes[root] = random.index(shape.states);
            for &[parent, .., left, _, right, _] in self.operations.iter().rev() {
                for child in [left, right] {
                    let (parent, child) = (index(parent), index(child));
                    nodes[child] = match random.index(8) {
                        0 => random.index(shape.states),
                        _ => nodes[parent],
                    };
                }
            }
            for (tip, states) in tips.iter_mut().enumerate() {
                states[pattern] = c_int::try_from(nodes[tip]).unwrap_or(c_int::MAX);
            }
        }
        for (tip, states) in (0..).zip(&tips) {
            // SAFETY: one state a pattern.
            let code = unsafe { (self.calls.tip_states)(self.id, tip, states.as_ptr()) };
            done("beagleSetTipStates", code)?;
        }
        Ok(())
    }
}

impl Gradient {
    fn new(calls: GradientCalls, taxa: usize) -> Self {
        let size = |n: usize| c_int::try_from(n).unwrap_or(c_int::MAX);
        let pre = |node: c_int| size(2 * taxa - 1) + node;
        let mut below = Vec::new();
        for [parent, .., left, _, right, _] in operations(taxa, false).into_iter().rev() {
            for [child, sibling] in [[left, right], [right, left]] {
                let (to, from) = (pre(child), pre(parent));
                below.push([to, NONE, NONE, from, child, sibling, sibling]);
            }
        }
        let nodes = 2 * taxa - 2;
        Self {
            calls,
            operations: below,
            root: pre(size(nodes)),
            pre: (0..size(nodes)).map(pre).collect(),
            nodes: (0..size(nodes)).collect(),
            weights: vec![0; nodes],
            differential: vec![size(nodes); nodes],
            slopes: vec![0.0; nodes],
        }
    }

    /// The derivatives by all branches, summed.
    fn sum(&mut self, id: c_int) -> Result<f64, ClientError> {
        let count = c_int::try_from(self.pre.len()).unwrap_or(c_int::MAX);
        // SAFETY: one buffer.
        done("beagleSetRootPrePartials", unsafe {
            (self.calls.root_pre)(id, &raw const self.root, &raw const ZERO, 1)
        })?;
        // SAFETY: as many operations as there are nodes below the root.
        done("beagleUpdatePrePartials", unsafe {
            (self.calls.update_pre)(id, self.operations.as_ptr(), count, NONE)
        })?;
        // SAFETY: `count` of each; null is for what is not wanted.
        done("beagleCalculateEdgeDerivatives", unsafe {
            (self.calls.slopes)(
                id,
                self.nodes.as_ptr(),
                self.pre.as_ptr(),
                self.differential.as_ptr(),
                self.weights.as_ptr(),
                count,
                std::ptr::null_mut(),
                self.slopes.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        })?;
        Ok(self.slopes.iter().sum())
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // SAFETY: the number is this instance's, and is not used again.
        unsafe { (self.calls.finalize)(self.id) };
    }
}

fn done(call: &'static str, code: c_int) -> Result<(), ClientError> {
    match code {
        0 => Ok(()),
        code => Err(ClientError::Refused { call, code }),
    }
}

fn index(number: c_int) -> usize {
    usize::try_from(number).unwrap_or(0)
}

/// The operations of a balanced tree, children first: each joins the two oldest subtrees.
fn operations(taxa: usize, is_scaled: bool) -> Vec<[c_int; 7]> {
    let taxa = c_int::try_from(taxa).unwrap_or(c_int::MAX);
    (0..taxa - 1)
        .map(|i| {
            let (left, right) = (2 * i, 2 * i + 1);
            let written = if is_scaled { i } else { NONE };
            [taxa + i, written, NONE, left, left, right, right]
        })
        .collect()
}

const NONE: c_int = -1;
static ZERO: c_int = 0;
const PRECISION_SINGLE: c_long = 1 << 0;
const PRECISION_DOUBLE: c_long = 1 << 1;
const VECTOR_SSE: c_long = 1 << 11;
const THREADING_NONE: c_long = 1 << 14;
const THREADING_CPP: c_long = 1 << 30;
/// Seed of the tips' states.
const SEED: u64 = 1;
