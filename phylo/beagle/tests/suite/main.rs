//! The interface as programs call it: known values, misuse, and BEAGLE's own library as the oracle,
//! call by call, where Debian's is installed.
//!
//! [`Api`] has the interface's functions, ours or those of an installed BEAGLE.
#![allow(unsafe_code, reason = "calls of a C surface")]

mod known;
mod misuse;
mod session;

use hmsbeagle::abi::{InstanceDetails, Operation, PartitionOperation};
use libloading::Library;
use std::ffi::{c_double, c_int, c_long, c_void};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

macro_rules! api {
    ($api:ident: $($field:ident: $name:ident($($argument:ty),*)),* $(,)?) => {
        /// See the module.
        pub(crate) struct $api {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> c_int,)*
            _library: Option<Library>,
            _turn: Option<MutexGuard<'static, ()>>,
        }

        impl $api {
            /// This crate's.
            pub(crate) fn ours() -> Self {
                Self { $($field: hmsbeagle::c::$name,)* _library: None, _turn: None }
            }

            /// Those of the library that is installed; none if there is none, or if it lacks one.
            /// Blocks while another thread has them: the library's list of instances moves as it
            /// grows, under the calls of other threads.
            pub(crate) fn installed() -> Option<Self> {
                static TURN: Mutex<()> = Mutex::new(());
                let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
                // SAFETY: it is the system's own library.
                let library = unsafe { Library::new("libhmsbeagle.so.1") }.ok()?;
                started(&library);
                $(
                    let name = concat!(stringify!($name), "\0");
                    // SAFETY: the interface gives the function's type.
                    let $field = unsafe {
                        *library
                            .get::<unsafe extern "C" fn($($argument),*) -> c_int>(name.as_bytes())
                            .ok()?
                    };
                )*
                Some(Self { $($field,)* _library: Some(library), _turn: Some(turn) })
            }
        }
    };
}

/// Has the library find its plug-ins, which two threads at once must not.
fn started(library: &Library) {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        type List = unsafe extern "C" fn() -> *const c_void;
        // SAFETY: the interface gives the function's type; the list is the library's.
        unsafe {
            if let Ok(list) = library.get::<List>(b"beagleGetResourceList\0") {
                list();
            }
            // One handle stays: a library that is loaded again would find them again.
            std::mem::forget(Library::new("libhmsbeagle.so.1"));
        }
    });
}

type Ints = *const c_int;
type Doubles = *const c_double;
type Out = *mut c_double;

api! {
    Gradients:
    root_pre: beagleSetRootPrePartials(c_int, Ints, Ints, c_int),
    update_pre: beagleUpdatePrePartials(c_int, *const Operation, c_int, c_int),
    update_pre_by_partition: beagleUpdatePrePartialsByPartition(
        c_int, *const PartitionOperation, c_int
    ),
    differential: beagleSetDifferentialMatrix(c_int, c_int, Doubles),
    transpose: beagleTransposeTransitionMatrices(c_int, Ints, Ints, c_int),
    of_categories: beagleUpdateTransitionMatricesWithModelCategories(
        c_int, Ints, Ints, Ints, Ints, Doubles, c_int
    ),
    slopes: beagleCalculateEdgeDerivatives(
        c_int, Ints, Ints, Ints, Ints, c_int, Out, Out, Out
    ),
    cross: beagleCalculateCrossProductDerivative(
        c_int, Ints, Ints, Ints, Ints, Doubles, c_int, Out, Out
    ),
}

api! {
    Api:
    create: beagleCreateInstance(
        c_int, c_int, c_int, c_int, c_int, c_int, c_int, c_int, c_int,
        Ints, c_int, c_long, c_long, *mut InstanceDetails
    ),
    finalize: beagleFinalizeInstance(c_int),
    tip_states: beagleSetTipStates(c_int, c_int, Ints),
    tip_partials: beagleSetTipPartials(c_int, c_int, Doubles),
    set_partials: beagleSetPartials(c_int, c_int, Doubles),
    partials: beagleGetPartials(c_int, c_int, c_int, Out),
    eigen: beagleSetEigenDecomposition(c_int, c_int, Doubles, Doubles, Doubles),
    frequencies: beagleSetStateFrequencies(c_int, c_int, Doubles),
    weights: beagleSetCategoryWeights(c_int, c_int, Doubles),
    rates: beagleSetCategoryRates(c_int, Doubles),
    pattern_weights: beagleSetPatternWeights(c_int, Doubles),
    partitions: beagleSetPatternPartitions(c_int, c_int, Ints),
    set_matrix: beagleSetTransitionMatrix(c_int, c_int, Doubles, c_double),
    matrix: beagleGetTransitionMatrix(c_int, c_int, Out),
    convolve: beagleConvolveTransitionMatrices(c_int, Ints, Ints, Ints, c_int),
    matrices: beagleUpdateTransitionMatrices(c_int, c_int, Ints, Ints, Ints, Doubles, c_int),
    update: beagleUpdatePartials(c_int, *const Operation, c_int, c_int),
    update_by_partition: beagleUpdatePartialsByPartition(c_int, *const PartitionOperation, c_int),
    accumulate: beagleAccumulateScaleFactors(c_int, Ints, c_int, c_int),
    remove: beagleRemoveScaleFactors(c_int, Ints, c_int, c_int),
    reset: beagleResetScaleFactors(c_int, c_int),
    copy: beagleCopyScaleFactors(c_int, c_int, c_int),
    root: beagleCalculateRootLogLikelihoods(c_int, Ints, Ints, Ints, Ints, c_int, Out),
    root_by_partition: beagleCalculateRootLogLikelihoodsByPartition(
        c_int, Ints, Ints, Ints, Ints, Ints, c_int, c_int, Out, Out
    ),
    edge: beagleCalculateEdgeLogLikelihoods(
        c_int, Ints, Ints, Ints, Ints, Ints, Ints, Ints, Ints, c_int, Out, Out, Out
    ),
    site_lnl: beagleGetSiteLogLikelihoods(c_int, Out),
    site_derivatives: beagleGetSiteDerivatives(c_int, Out, Out),
    lnl: beagleGetLogLikelihood(c_int, Out),
}
