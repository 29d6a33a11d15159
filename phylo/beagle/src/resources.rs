//! The one resource: this machine's cores, and what it can do.

use crate::abi::{BenchmarkedResource, List, Operation, Refusal, Resource, flag};
use crate::instance::{Counts, Instance};
use crate::results::Place;
use crate::steps::Order;
use parking_lot::Mutex;
use std::ffi::{CStr, c_int, c_long};
use std::time::Instant;

/// Name of the resource.
pub(crate) const NAME: &CStr = c"CPU (Sidecore engines)";
/// Its description.
pub(crate) const DESCRIPTION: &CStr = c"likelihood kernels on all cores";
/// Name of the implementation.
pub(crate) const IMPLEMENTATION: &CStr = c"Sidecore";
/// Description of the implementation.
pub(crate) const ABOUT: &CStr = c"none";

/// Flags that instances support.
pub(crate) const SUPPORTED: c_long = flag::PRECISION_SINGLE
    | flag::PRECISION_DOUBLE
    | flag::COMPUTATION_SYNCH
    | flag::EIGEN_REAL
    | flag::EIGEN_COMPLEX
    | flag::SCALING_MANUAL
    | flag::SCALING_AUTO
    | flag::SCALING_ALWAYS
    | flag::SCALING_DYNAMIC
    | flag::SCALERS_RAW
    | flag::SCALERS_LOG
    | flag::INVEVEC_STANDARD
    | flag::INVEVEC_TRANSPOSED
    | flag::VECTOR_SSE
    | flag::VECTOR_AVX
    | flag::VECTOR_NONE
    | flag::THREADING_CPP
    | flag::THREADING_NONE
    | flag::PREORDER_TRANSPOSE_AUTO
    | flag::PROCESSOR_CPU
    | flag::FRAMEWORK_CPU;

const FLAGS: c_long = 0xffff_ffff;

/// A list for C that is never changed or freed.
pub(crate) struct Shared<T>(pub(crate) T);

/// The resources.
pub(crate) fn list() -> &'static List<Resource> {
    static LIST: std::sync::OnceLock<Shared<List<Resource>>> = std::sync::OnceLock::new();
    let list = LIST.get_or_init(|| {
        let resource = Resource {
            name: NAME.as_ptr(),
            description: DESCRIPTION.as_ptr(),
            support_flags: SUPPORTED,
            required_flags: flag::FRAMEWORK_CPU,
        };
        Shared(List {
            // Never freed: clients keep the pointer as long as they run.
            list: Box::leak(Box::new(resource)),
            length: 1,
        })
    });
    &list.0
}

/// Refuses numbers of resources that are not there, and requirements that are not met.
pub(crate) fn choose(numbers: &[c_int], requirements: c_long) -> Result<(), Refusal> {
    if !numbers.is_empty() && !numbers.contains(&0) {
        return Err(Refusal::NoResource);
    }
    // In C the last flag is a negative number: the bits above it are copies of it.
    match requirements & FLAGS & !SUPPORTED {
        0 => Ok(()),
        _ => Err(Refusal::NoResource),
    }
}

/// The resources with the milliseconds of one pass over a tree; the list of the last call.
pub(crate) fn benchmarked(counts: Counts, flags: c_long) -> Result<Benchmarked, Refusal> {
    let tips = counts.tips.max(2);
    let mut instance = Instance::new(Counts { tips, ..counts }, flags)?;
    let milliseconds = measure(&mut instance, tips)?;
    Ok(Benchmarked {
        flags: instance.flags(flags),
        milliseconds,
    })
}

/// A measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Benchmarked {
    flags: c_long,
    milliseconds: f64,
}

impl Benchmarked {
    /// It as a list for C, which lasts until the next.
    pub(crate) fn into_list(self) -> *const List<BenchmarkedResource> {
        // Kept here: the interface has no call that frees the list.
        type Kept = Option<Shared<(Box<BenchmarkedResource>, Box<List<BenchmarkedResource>>)>>;
        static LAST: Mutex<Kept> = Mutex::new(None);
        let resource = Box::new(BenchmarkedResource {
            number: 0,
            name: NAME.as_ptr(),
            description: DESCRIPTION.as_ptr(),
            support_flags: SUPPORTED,
            required_flags: flag::FRAMEWORK_CPU,
            return_code: 0,
            impl_name: IMPLEMENTATION.as_ptr(),
            benched_flags: self.flags,
            benchmark_result: self.milliseconds,
            performance_ratio: 1.0,
        });
        let list = Box::new(List {
            list: &raw const *resource,
            length: 1,
        });
        // The box keeps its address when it moves into the static.
        let at = &raw const *list;
        *LAST.lock() = Some(Shared((resource, list)));
        at
    }
}

/// Milliseconds of a pass over a tree whose inner nodes are a chain, the least of some.
fn measure(instance: &mut Instance, tips: c_int) -> Result<f64, Refusal> {
    let states = c_int::try_from(instance.states).map_err(|_| Refusal::OutOfRange)?;
    for tip in 0..tips {
        let codes = (0..instance.patterns).zip(0..);
        let codes: Vec<c_int> = codes
            // Tips differ, so that few patterns repeat and all partials are computed.
            .map(|(_, k): (_, c_int)| k.wrapping_add(tip) % states)
            .collect();
        instance.set_tip_states(tip, &codes)?;
    }
    let even = 1.0 / f64::from(states);
    let rows = vec![even; instance.matrix_entries()];
    instance.set_matrices(std::iter::once((0, rows.as_slice(), 1.0)))?;
    instance.set_frequencies(0, &vec![even; instance.states])?;
    instance.set_weights(0, &vec![1.0; instance.categories])?;
    let place = Place {
        near: 2 * tips - 2,
        edge: None,
        weights: 0,
        frequencies: 0,
        scale: -1,
    };
    let mut least = f64::INFINITY;
    for _ in 0..PASSES {
        let begin = Instant::now();
        let operations = (0..tips - 1).map(|inner| {
            let operation = Operation {
                destination: tips + inner,
                scale_write: -1,
                scale_read: -1,
                child1: if inner == 0 { 0 } else { tips + inner - 1 },
                matrix1: 0,
                child2: inner + 1,
                matrix2: 0,
            };
            (operation, None, -1)
        });
        instance.update_partials(Order::Post, operations)?;
        instance.likelihood([place].into_iter())?;
        // The least time is the one that other programs disturbed least.
        least = least.min(begin.elapsed().as_secs_f64() * 1000.0);
    }
    Ok(least)
}

const PASSES: usize = 5;
