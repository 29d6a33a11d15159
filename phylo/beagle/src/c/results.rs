//! Log-likelihoods and derivatives.

use super::{call, list, optional, orders, put, read, write};
use crate::abi::Refusal;
use crate::gradient::Ends;
use crate::results::Place;
use std::ffi::{c_double, c_int};

/// The log-likelihood at a root, of one model or of a mixture.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleCalculateRootLogLikelihoods(
    instance: c_int,
    buffers: *const c_int,
    weights: *const c_int,
    frequencies: *const c_int,
    scales: *const c_int,
    items: c_int,
    sum: *mut c_double,
) -> c_int {
    call(instance, |instance| {
        // SAFETY: the module's rule.
        let (places, sum) = unsafe {
            let places = roots(buffers, weights, frequencies, scales, items)?;
            (places, write(sum, 1)?)
        };
        sum[0] = instance.likelihood(places)?[0];
        // Checked after it was written: BEAGLE's clients look at a NaN, too.
        number(sum[0])
    })
}

/// The log-likelihoods at roots of partitions, one model each; `items` is 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleCalculateRootLogLikelihoodsByPartition(
    instance: c_int,
    buffers: *const c_int,
    weights: *const c_int,
    frequencies: *const c_int,
    scales: *const c_int,
    partitions: *const c_int,
    partition_items: c_int,
    items: c_int,
    by_partition: *mut c_double,
    sum: *mut c_double,
) -> c_int {
    call(instance, |instance| {
        only_one(items)?;
        // SAFETY: the module's rule.
        let (places, partitions, by_partition, sum) = unsafe {
            let places = roots(buffers, weights, frequencies, scales, partition_items)?;
            let partitions = list(partitions, partition_items)?;
            let by_partition = write(by_partition, partitions.len())?;
            (places, partitions, by_partition, write(sum, 1)?)
        };
        let places = places.zip(partitions.iter().copied());
        let results = instance.likelihoods_of_partitions(places)?;
        for (to, result) in by_partition.iter_mut().zip(&results) {
            *to = result[0];
        }
        sum[0] = by_partition.iter().sum();
        number(sum[0])
    })
}

/// The log-likelihood over an edge, of one model or of a mixture, and its derivatives by the edge's
/// length where matrices for them are named.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleCalculateEdgeLogLikelihoods(
    instance: c_int,
    parents: *const c_int,
    children: *const c_int,
    probabilities: *const c_int,
    first: *const c_int,
    second: *const c_int,
    weights: *const c_int,
    frequencies: *const c_int,
    scales: *const c_int,
    items: c_int,
    sum: *mut c_double,
    sum_first: *mut c_double,
    sum_second: *mut c_double,
) -> c_int {
    call(instance, |instance| {
        // SAFETY: the module's rule.
        let places = unsafe {
            let places = roots(parents, weights, frequencies, scales, items)?;
            edges(places, children, [probabilities, first, second], items)?
        };
        let [lnl, one, two] = instance.likelihood(places)?;
        // SAFETY: the module's rule.
        unsafe {
            write(sum, 1)?[0] = lnl;
            // Without matrices no derivative was computed: the client's number stays.
            if !first.is_null() {
                put(sum_first, one);
            }
            if !second.is_null() {
                put(sum_second, two);
            }
        }
        number(lnl)
    })
}

/// The log-likelihoods over edges of partitions, one model each, and their derivatives; `items` is
/// 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleCalculateEdgeLogLikelihoodsByPartition(
    instance: c_int,
    parents: *const c_int,
    children: *const c_int,
    probabilities: *const c_int,
    first: *const c_int,
    second: *const c_int,
    weights: *const c_int,
    frequencies: *const c_int,
    scales: *const c_int,
    partitions: *const c_int,
    partition_items: c_int,
    items: c_int,
    by_partition: *mut c_double,
    sum: *mut c_double,
    first_by_partition: *mut c_double,
    sum_first: *mut c_double,
    second_by_partition: *mut c_double,
    sum_second: *mut c_double,
) -> c_int {
    call(instance, |instance| {
        only_one(items)?;
        // SAFETY: the module's rule.
        let (places, partitions) = unsafe {
            let places = roots(parents, weights, frequencies, scales, partition_items)?;
            let matrices = [probabilities, first, second];
            let places = edges(places, children, matrices, partition_items)?;
            (places, list(partitions, partition_items)?)
        };
        let places = places.zip(partitions.iter().copied());
        let results = instance.likelihoods_of_partitions(places)?;
        let wanted = [
            (true, by_partition, sum),
            (!first.is_null(), first_by_partition, sum_first),
            (!second.is_null(), second_by_partition, sum_second),
        ];
        for (order, (wanted, each, sum)) in wanted.into_iter().enumerate() {
            if wanted {
                let values = results.iter().map(|result| result[order]);
                // SAFETY: the module's rule.
                unsafe {
                    for (to, value) in write(each, results.len())?.iter_mut().zip(values.clone()) {
                        *to = value;
                    }
                    put(sum, values.sum());
                }
            }
        }
        number(results.iter().map(|result| result[0]).sum())
    })
}

/// Derivatives of the log-likelihood by the lengths of branches, from post-order partials below
/// them and pre-order partials above, each with a differential matrix; the first weights are of
/// all. Each output may be null: of each pattern, branch by branch; the sum over patterns; that of
/// squares.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleCalculateEdgeDerivatives(
    instance: c_int,
    post: *const c_int,
    pre: *const c_int,
    matrices: *const c_int,
    weights: *const c_int,
    items: c_int,
    each: *mut c_double,
    sums: *mut c_double,
    squares: *mut c_double,
) -> c_int {
    call(instance, |instance| {
        // SAFETY: the module's rule.
        let (branches, weights) = unsafe {
            let matrices = list(matrices, items)?;
            let branches = ends(post, pre, items)?.zip(matrices.iter().copied());
            (branches, read(weights, 1)?[0])
        };
        let slopes = instance.slopes(branches, weights, !each.is_null())?;
        // SAFETY: the module's rule.
        unsafe {
            // Sites are kept only on demand: they take a double for each branch and pattern.
            if !each.is_null() {
                let total = slopes.len().checked_mul(instance.patterns);
                let each = write(each, total.ok_or(Refusal::OutOfRange)?)?;
                for (to, slope) in each.chunks_exact_mut(instance.patterns).zip(&slopes) {
                    to.copy_from_slice(&slope.sites);
                }
            }
            for (to, value) in places_of(sums, slopes.len())?.iter_mut().zip(&slopes) {
                *to = value.sum;
            }
            for (to, value) in places_of(squares, slopes.len())?.iter_mut().zip(&slopes) {
                *to = value.squares;
            }
        }
        Ok(())
    })
}

/// Adds to a matrix, a row for each state above, the cross products of branches: the derivatives of
/// the log-likelihood by the entries of the rate matrix, to the first order of the lengths. The
/// first rates and weights are of all branches; the last output is not used.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleCalculateCrossProductDerivative(
    instance: c_int,
    post: *const c_int,
    pre: *const c_int,
    rates: *const c_int,
    weights: *const c_int,
    lengths: *const c_double,
    items: c_int,
    sums: *mut c_double,
    _squares: *mut c_double,
) -> c_int {
    call(instance, |instance| {
        // SAFETY: the module's rule.
        let (branches, first, sums) = unsafe {
            let lengths = list(lengths, items)?;
            let branches = ends(post, pre, items)?.zip(lengths.iter().copied());
            let first = [read(rates, 1)?[0], read(weights, 1)?[0]];
            (
                branches,
                first,
                write(sums, instance.states * instance.states)?,
            )
        };
        instance.add_cross_products(branches, first, sums)
    })
}

/// Not implemented, as in BEAGLE, which has [`beagleCalculateEdgeDerivatives`] instead.
#[unsafe(no_mangle)]
pub extern "C" fn beagleCalculateEdgeDerivative(
    instance: c_int,
    _post: *const c_int,
    _pre: *const c_int,
    _root: c_int,
    _first: *const c_int,
    _second: *const c_int,
    _weights: c_int,
    _rates: c_int,
    _frequencies: c_int,
    _scales: *const c_int,
    _items: c_int,
    _sum_first: *mut c_double,
    _sum_second: *mut c_double,
) -> c_int {
    call(instance, |_| Err(Refusal::NoImplementation))
}

/// The last log-likelihood.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleGetLogLikelihood(instance: c_int, sum: *mut c_double) -> c_int {
    call(instance, |instance| {
        // SAFETY: the module's rule.
        let sum = unsafe { write(sum, 1) }?;
        // A result by partition is a group each; the last call's sum is that of all.
        sum[0] = instance.results.iter().map(|result| result.0[0]).sum();
        number(sum[0])
    })
}

/// The last derivatives; the second only where there is a place for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleGetDerivatives(
    instance: c_int,
    first: *mut c_double,
    second: *mut c_double,
) -> c_int {
    call(instance, |instance| {
        let sum = |order: usize| instance.results.iter().map(|result| result.0[order]).sum();
        // SAFETY: the module's rule.
        unsafe {
            write(first, 1)?[0] = sum(1);
            put(second, sum(2));
        }
        Ok(())
    })
}

/// The last log-likelihood of each pattern.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleGetSiteLogLikelihoods(
    instance: c_int,
    values: *mut c_double,
) -> c_int {
    call(instance, |instance| {
        // SAFETY: the module's rule.
        let values = unsafe { write(values, instance.patterns) }?;
        instance.of_patterns(values, |chunk| &chunk.sites[0]);
        Ok(())
    })
}

/// The last derivatives of each pattern; the second only where there is a place for them.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleGetSiteDerivatives(
    instance: c_int,
    first: *mut c_double,
    second: *mut c_double,
) -> c_int {
    call(instance, |instance| {
        // SAFETY: the module's rule.
        let first = unsafe { write(first, instance.patterns) }?;
        instance.of_patterns(first, |chunk| &chunk.sites[1]);
        if !second.is_null() {
            // SAFETY: the module's rule.
            let second = unsafe { write(second, instance.patterns) }?;
            instance.of_patterns(second, |chunk| &chunk.sites[2]);
        }
        Ok(())
    })
}

/// Roots as clients name them. Scales may be null: none.
unsafe fn roots<'a>(
    buffers: *const c_int,
    weights: *const c_int,
    frequencies: *const c_int,
    scales: *const c_int,
    items: c_int,
) -> Result<impl ExactSizeIterator<Item = Place> + Clone + use<'a>, Refusal> {
    // SAFETY: the module's rule.
    let (buffers, weights, frequencies, scales) = unsafe {
        (
            list::<'a>(buffers, items)?,
            list::<'a>(weights, items)?,
            list::<'a>(frequencies, items)?,
            optional::<'a>(scales, items)?,
        )
    };
    Ok(buffers.iter().enumerate().map(move |(k, &near)| Place {
        near,
        edge: None,
        weights: weights[k],
        frequencies: frequencies[k],
        scale: scales.map_or(crate::abi::NONE, |all| all[k]),
    }))
}

/// Edges from the places of their parents.
unsafe fn edges(
    places: impl ExactSizeIterator<Item = Place> + Clone,
    children: *const c_int,
    [probabilities, first, second]: [*const c_int; 3],
    items: c_int,
) -> Result<impl ExactSizeIterator<Item = Place> + Clone, Refusal> {
    // SAFETY: the module's rule.
    let (children, probabilities, first, second) = unsafe {
        (
            list(children, items)?,
            list(probabilities, items)?,
            optional(first, items)?,
            optional(second, items)?,
        )
    };
    // A second derivative needs the first.
    if first.is_none() && second.is_some() {
        return Err(Refusal::OutOfRange);
    }
    Ok(places.enumerate().map(move |(k, place)| {
        let orders = orders([Some(probabilities), first, second], k);
        Place {
            edge: Some((children[k], orders)),
            ..place
        }
    }))
}

/// Branches as clients name them.
unsafe fn ends<'a>(
    post: *const c_int,
    pre: *const c_int,
    items: c_int,
) -> Result<impl Iterator<Item = Ends> + use<'a>, Refusal> {
    // SAFETY: the module's rule.
    let (post, pre) = unsafe { (list::<'a>(post, items)?, list::<'a>(pre, items)?) };
    Ok(post.iter().zip(pre).map(|(&post, &pre)| Ends { post, pre }))
}

/// Places for results, none where the pointer is null.
unsafe fn places_of<'a>(to: *mut c_double, items: usize) -> Result<&'a mut [c_double], Refusal> {
    match to.is_null() {
        true => Ok(&mut []),
        // SAFETY: the module's rule.
        false => unsafe { write(to, items) },
    }
}

fn only_one(items: c_int) -> Result<(), Refusal> {
    match items {
        1 => Ok(()),
        count if count < 1 => Err(Refusal::OutOfRange),
        _ => Err(Refusal::NoImplementation),
    }
}

fn number(sum: f64) -> Result<(), Refusal> {
    match sum.is_nan() {
        true => Err(Refusal::FloatingPoint),
        false => Ok(()),
    }
}
