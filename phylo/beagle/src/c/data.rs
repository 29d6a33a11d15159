//! Setting and getting of tips, partials, models, weights and matrices.

use super::{call, list, optional, orders, read, write};
use crate::data::Branch;
use crate::instance::count;
use crate::kernels::Kernels;
use crate::matrices::Matrix;
use std::ffi::{c_double, c_int};

/// Sets a tip's state at each pattern; a number that is no state is unknown.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleSetTipStates(
    instance: c_int,
    tip: c_int,
    states: *const c_int,
) -> c_int {
    call(instance, |instance| {
        // SAFETY: the module's rule.
        let states = unsafe { read(states, instance.patterns) }?;
        instance.set_tip_states(tip, states)
    })
}

/// Sets a tip's partials, which are the same for all categories.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleSetTipPartials(
    instance: c_int,
    tip: c_int,
    partials: *const c_double,
) -> c_int {
    call(instance, |instance| {
        // SAFETY: the module's rule.
        let partials = unsafe { read(partials, instance.patterns * instance.states) }?;
        instance.set_tip_partials(tip, partials)
    })
}

/// Sets a buffer's partials, category by category.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleSetPartials(
    instance: c_int,
    buffer: c_int,
    partials: *const c_double,
) -> c_int {
    call(instance, |instance| {
        // SAFETY: the module's rule.
        let partials = unsafe { read(partials, instance.partials_entries()) }?;
        instance.set_partials(buffer, partials)
    })
}

/// Gets a buffer's partials, category by category, times the exponentials of a scale buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleGetPartials(
    instance: c_int,
    buffer: c_int,
    scale: c_int,
    partials: *mut c_double,
) -> c_int {
    call(instance, |instance| {
        // SAFETY: the module's rule.
        let partials = unsafe { write(partials, instance.partials_entries()) }?;
        instance.partials(buffer, scale, partials)
    })
}

/// Sets an eigen-decomposition: matrices row by row; real parts, then imaginary parts if the
/// instance is complex.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleSetEigenDecomposition(
    instance: c_int,
    model: c_int,
    vectors: *const c_double,
    inverse: *const c_double,
    values: *const c_double,
) -> c_int {
    call(instance, |instance| {
        let entries = instance.states * instance.states;
        // SAFETY: the module's rule.
        let (vectors, inverse, values) = unsafe {
            (
                read(vectors, entries)?,
                read(inverse, entries)?,
                read(values, instance.eigen_values())?,
            )
        };
        instance.set_eigen(model, vectors, inverse, values)
    })
}

/// Sets frequencies of the states.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleSetStateFrequencies(
    instance: c_int,
    index: c_int,
    frequencies: *const c_double,
) -> c_int {
    call(instance, |instance| {
        // SAFETY: the module's rule.
        let frequencies = unsafe { read(frequencies, instance.states) }?;
        instance.set_frequencies(index, frequencies)
    })
}

/// Sets weights of the categories.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleSetCategoryWeights(
    instance: c_int,
    index: c_int,
    weights: *const c_double,
) -> c_int {
    call(instance, |instance| {
        // SAFETY: the module's rule.
        let weights = unsafe { read(weights, instance.categories) }?;
        instance.set_weights(index, weights)
    })
}

/// Sets rates of the categories, the first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleSetCategoryRates(instance: c_int, rates: *const c_double) -> c_int {
    // SAFETY: the module's rule.
    unsafe { beagleSetCategoryRatesWithIndex(instance, 0, rates) }
}

/// Sets rates of the categories.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleSetCategoryRatesWithIndex(
    instance: c_int,
    index: c_int,
    rates: *const c_double,
) -> c_int {
    call(instance, |instance| {
        // SAFETY: the module's rule.
        let rates = unsafe { read(rates, instance.categories) }?;
        instance.set_rates(index, rates)
    })
}

/// Sets weights of the patterns.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleSetPatternWeights(
    instance: c_int,
    weights: *const c_double,
) -> c_int {
    call(instance, |instance| {
        // SAFETY: the module's rule.
        let weights = unsafe { read(weights, instance.patterns) }?;
        instance.set_pattern_weights(weights)
    })
}

/// Sets the partition of each pattern.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleSetPatternPartitions(
    instance: c_int,
    partitions: c_int,
    of_patterns: *const c_int,
) -> c_int {
    call(instance, |instance| {
        // SAFETY: the module's rule.
        let of_patterns = unsafe { read(of_patterns, instance.patterns) }?;
        instance.set_partitions(partitions, of_patterns)
    })
}

/// Sets a transition matrix row by row, category by category; the padded value is what a row has
/// for an unknown state.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleSetTransitionMatrix(
    instance: c_int,
    index: c_int,
    matrix: *const c_double,
    padded: c_double,
) -> c_int {
    call(instance, |instance| {
        // SAFETY: the module's rule.
        let matrix = unsafe { read(matrix, instance.matrix_entries()) }?;
        instance.set_matrices(std::iter::once((index, matrix, padded)))
    })
}

/// Sets several transition matrices.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleSetTransitionMatrices(
    instance: c_int,
    indices: *const c_int,
    matrices: *const c_double,
    padded: *const c_double,
    items: c_int,
) -> c_int {
    call(instance, |instance| {
        let entries = instance.matrix_entries();
        // A product that wraps would check too short a list.
        let total = count(items)?.checked_mul(entries);
        let total = total.ok_or(crate::abi::Refusal::OutOfRange)?;
        // SAFETY: the module's rule.
        let (indices, matrices, padded) = unsafe {
            (
                list(indices, items)?,
                read(matrices, total)?,
                list(padded, items)?,
            )
        };
        let all = indices.iter().zip(matrices.chunks_exact(entries));
        let all = all.zip(padded);
        instance.set_matrices(all.map(|((&index, matrix), &padded)| (index, matrix, padded)))
    })
}

/// Gets a transition matrix row by row, category by category.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleGetTransitionMatrix(
    instance: c_int,
    index: c_int,
    matrix: *mut c_double,
) -> c_int {
    call(instance, |instance| {
        // SAFETY: the module's rule.
        let matrix = unsafe { write(matrix, instance.matrix_entries()) }?;
        instance.matrix(index, matrix)
    })
}

/// Products of transition matrices; the result may be no operand.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleConvolveTransitionMatrices(
    instance: c_int,
    first: *const c_int,
    second: *const c_int,
    results: *const c_int,
    items: c_int,
) -> c_int {
    // SAFETY: the module's rule.
    unsafe { combine(instance, [first, second, results], items, Matrix::convolve) }
}

/// Sums of transition matrices; the result may be no operand.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleAddTransitionMatrices(
    instance: c_int,
    first: *const c_int,
    second: *const c_int,
    results: *const c_int,
    items: c_int,
) -> c_int {
    // SAFETY: the module's rule.
    unsafe { combine(instance, [first, second, results], items, Matrix::set_sum) }
}

unsafe fn combine(
    instance: c_int,
    indices: [*const c_int; 3],
    items: c_int,
    make: impl Fn(&mut Matrix, Kernels, [&Matrix; 2]),
) -> c_int {
    call(instance, |instance| {
        // SAFETY: the module's rule.
        let [first, second, results] = indices.map(|all| unsafe { list(all, items) });
        let (first, second, results) = (first?, second?, results?);
        // Three lists of the same count.
        let triples = (0..results.len()).map(|k| [first[k], second[k], results[k]]);
        instance.combine(triples, make)
    })
}

/// Transition matrices transposed; the result may not be the operand.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleTransposeTransitionMatrices(
    instance: c_int,
    inputs: *const c_int,
    results: *const c_int,
    items: c_int,
) -> c_int {
    // SAFETY: the module's rule.
    unsafe {
        combine(
            instance,
            // The second operand is not used.
            [inputs, inputs, results],
            items,
            |to, kernels, [from, _]| {
                to.set_transposed(kernels, from);
            },
        )
    }
}

/// Sets a differential matrix, row by row, category by category: an unknown state changes nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleSetDifferentialMatrix(
    instance: c_int,
    index: c_int,
    matrix: *const c_double,
) -> c_int {
    // SAFETY: the module's rule.
    // Rows of a differential matrix sum to 0.
    unsafe { beagleSetTransitionMatrix(instance, index, matrix, 0.0) }
}

/// Sets buffers of pre-order partials to frequencies of the states, as at a root.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleSetRootPrePartials(
    instance: c_int,
    buffers: *const c_int,
    frequencies: *const c_int,
    items: c_int,
) -> c_int {
    call(instance, |instance| {
        // SAFETY: the module's rule.
        let (buffers, frequencies) = unsafe { (list(buffers, items)?, list(frequencies, items)?) };
        let frequencies = frequencies.iter().copied();
        instance.set_root_pre_partials(buffers.iter().copied().zip(frequencies))
    })
}

/// As [`beagleUpdateTransitionMatrices`], with a model for each category instead of rates.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleUpdateTransitionMatricesWithModelCategories(
    instance: c_int,
    models: *const c_int,
    probabilities: *const c_int,
    first: *const c_int,
    second: *const c_int,
    lengths: *const c_double,
    items: c_int,
) -> c_int {
    call(instance, |instance| {
        // SAFETY: the module's rule.
        let (models, probabilities, first, second, lengths) = unsafe {
            (
                read(models, instance.categories)?,
                list(probabilities, items)?,
                optional(first, items)?,
                optional(second, items)?,
                list(lengths, items)?,
            )
        };
        // Steps that wait read the matrices as they were before this call.
        instance.settle()?;
        let branches = lengths.iter().enumerate().map(|(k, &length)| Branch {
            // Not used: the categories bring their models, and rates are in these.
            model: 0,
            rates: 0,
            indices: orders([Some(probabilities), first, second], k),
            length,
        });
        instance.update_matrices_of_categories(models, branches)
    })
}

/// Transition matrices over branches, and their derivatives where indices for them are given.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleUpdateTransitionMatrices(
    instance: c_int,
    model: c_int,
    probabilities: *const c_int,
    first: *const c_int,
    second: *const c_int,
    lengths: *const c_double,
    items: c_int,
) -> c_int {
    call(instance, |instance| {
        // SAFETY: the module's rule.
        let (probabilities, first, second, lengths) = unsafe {
            (
                list(probabilities, items)?,
                optional(first, items)?,
                optional(second, items)?,
                list(lengths, items)?,
            )
        };
        // As above: steps that wait come before this call.
        instance.settle()?;
        let branches = lengths.iter().enumerate();
        instance.update_matrices(branches.map(|(k, &length)| Branch {
            model,
            rates: 0,
            indices: orders([Some(probabilities), first, second], k),
            length,
        }))
    })
}

/// As [`beagleUpdateTransitionMatrices`], with a model and rates for each branch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleUpdateTransitionMatricesWithMultipleModels(
    instance: c_int,
    models: *const c_int,
    rates: *const c_int,
    probabilities: *const c_int,
    first: *const c_int,
    second: *const c_int,
    lengths: *const c_double,
    items: c_int,
) -> c_int {
    call(instance, |instance| {
        // SAFETY: the module's rule.
        let (models, rates, probabilities, first, second, lengths) = unsafe {
            (
                list(models, items)?,
                list(rates, items)?,
                list(probabilities, items)?,
                optional(first, items)?,
                optional(second, items)?,
                list(lengths, items)?,
            )
        };
        instance.settle()?;
        let branches = lengths.iter().enumerate();
        instance.update_matrices(branches.map(|(k, &length)| Branch {
            model: models[k],
            rates: rates[k],
            indices: orders([Some(probabilities), first, second], k),
            length,
        }))
    })
}
