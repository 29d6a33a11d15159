//! Operations on partials and on scale factors.

use super::{call, list, write};
use crate::abi::{Operation, PartitionOperation};
use crate::data::below;
use crate::steps::Order;
use std::ffi::{c_double, c_int};

/// Partials of nodes from their children, one operation after the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleUpdatePartials(
    instance: c_int,
    operations: *const Operation,
    items: c_int,
    cumulative: c_int,
) -> c_int {
    // SAFETY: the module's rule.
    unsafe { update(instance, Order::Post, operations, items, cumulative) }
}

/// As [`beagleUpdatePartials`], for the patterns of one partition each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleUpdatePartialsByPartition(
    instance: c_int,
    operations: *const PartitionOperation,
    items: c_int,
) -> c_int {
    // SAFETY: the module's rule.
    unsafe { update_by_partition(instance, Order::Post, operations, items) }
}

/// Pre-order partials of nodes, one operation after the other: the first child is the parent's
/// pre-order buffer with the node's own matrix, the second one is the sibling with its matrix.
/// Nothing is added to the cumulative buffer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleUpdatePrePartials(
    instance: c_int,
    operations: *const Operation,
    items: c_int,
    cumulative: c_int,
) -> c_int {
    // SAFETY: the module's rule.
    unsafe { update(instance, Order::Pre, operations, items, cumulative) }
}

/// As [`beagleUpdatePrePartials`], for the patterns of one partition each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleUpdatePrePartialsByPartition(
    instance: c_int,
    operations: *const PartitionOperation,
    items: c_int,
) -> c_int {
    // SAFETY: the module's rule.
    unsafe { update_by_partition(instance, Order::Pre, operations, items) }
}

unsafe fn update(
    instance: c_int,
    order: Order,
    operations: *const Operation,
    items: c_int,
    cumulative: c_int,
) -> c_int {
    call(instance, |instance| {
        // SAFETY: the module's rule.
        let operations = unsafe { list(operations, items) }?;
        let all = operations
            .iter()
            .map(|operation| (*operation, None, cumulative));
        instance.update_partials(order, all)
    })
}

unsafe fn update_by_partition(
    instance: c_int,
    order: Order,
    operations: *const PartitionOperation,
    items: c_int,
) -> c_int {
    call(instance, |instance| {
        // SAFETY: the module's rule.
        let operations = unsafe { list(operations, items) }?;
        let all = operations
            .iter()
            .map(|all| (all.operation, Some(all.partition), all.cumulative));
        instance.update_partials(order, all)
    })
}

/// Blocks until partials are there.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleWaitForPartials(
    instance: c_int,
    buffers: *const c_int,
    items: c_int,
) -> c_int {
    call(instance, |instance| {
        // SAFETY: the module's rule.
        for &buffer in unsafe { list(buffers, items) }? {
            below(buffer, instance.buffers)?;
        }
        instance.settle()
    })
}

/// Adds logarithms of scale buffers to a cumulative one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleAccumulateScaleFactors(
    instance: c_int,
    indices: *const c_int,
    items: c_int,
    cumulative: c_int,
) -> c_int {
    call(instance, |instance| {
        // SAFETY: the module's rule.
        let indices = unsafe { list(indices, items) }?;
        instance.accumulate(indices, cumulative, 1.0, None)
    })
}

/// As [`beagleAccumulateScaleFactors`], for the patterns of a partition.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleAccumulateScaleFactorsByPartition(
    instance: c_int,
    indices: *const c_int,
    items: c_int,
    cumulative: c_int,
    partition: c_int,
) -> c_int {
    call(instance, |instance| {
        // SAFETY: the module's rule.
        let indices = unsafe { list(indices, items) }?;
        instance.accumulate(indices, cumulative, 1.0, Some(partition))
    })
}

/// Takes logarithms of scale buffers from a cumulative one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleRemoveScaleFactors(
    instance: c_int,
    indices: *const c_int,
    items: c_int,
    cumulative: c_int,
) -> c_int {
    call(instance, |instance| {
        // SAFETY: the module's rule.
        let indices = unsafe { list(indices, items) }?;
        instance.accumulate(indices, cumulative, -1.0, None)
    })
}

/// As [`beagleRemoveScaleFactors`], for the patterns of a partition.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleRemoveScaleFactorsByPartition(
    instance: c_int,
    indices: *const c_int,
    items: c_int,
    cumulative: c_int,
    partition: c_int,
) -> c_int {
    call(instance, |instance| {
        // SAFETY: the module's rule.
        let indices = unsafe { list(indices, items) }?;
        instance.accumulate(indices, cumulative, -1.0, Some(partition))
    })
}

/// Makes a cumulative scale buffer 0.
#[unsafe(no_mangle)]
pub extern "C" fn beagleResetScaleFactors(instance: c_int, cumulative: c_int) -> c_int {
    call(instance, |instance| instance.reset(cumulative, None))
}

/// As [`beagleResetScaleFactors`], for the patterns of a partition.
#[unsafe(no_mangle)]
pub extern "C" fn beagleResetScaleFactorsByPartition(
    instance: c_int,
    cumulative: c_int,
    partition: c_int,
) -> c_int {
    call(instance, |instance| {
        instance.reset(cumulative, Some(partition))
    })
}

/// Copies a scale buffer.
#[unsafe(no_mangle)]
pub extern "C" fn beagleCopyScaleFactors(instance: c_int, into: c_int, from: c_int) -> c_int {
    call(instance, |instance| instance.copy_scale(into, from))
}

/// Gets a scale buffer as it is kept: factors, or their logarithms.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleGetScaleFactors(
    instance: c_int,
    from: c_int,
    factors: *mut c_double,
) -> c_int {
    call(instance, |instance| {
        // SAFETY: the module's rule.
        let factors = unsafe { write(factors, instance.patterns) }?;
        instance.scale_factors(from, factors)
    })
}
