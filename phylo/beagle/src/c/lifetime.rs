//! Version, resources, and the lifetime of instances.

use super::{INSTANCES, call, code, guarded, list, put};
use crate::abi::{BenchmarkedResource, InstanceDetails, List, Refusal, Resource};
use crate::instance::{Counts, Instance, count};
use crate::{engines, resources};
use std::ffi::{c_char, c_int, c_long};

/// Version of the interface.
#[unsafe(no_mangle)]
pub extern "C" fn beagleGetVersion() -> *const c_char {
    c"4.0.1".as_ptr()
}

/// The work to cite.
#[unsafe(no_mangle)]
pub extern "C" fn beagleGetCitation() -> *const c_char {
    CITATION.as_ptr()
}

const CITATION: &std::ffi::CStr = c"Using Sidecore through the interface of BEAGLE:\n\
    Ayres DL, Cummings MP, Baele G, et al. BEAGLE 3: improved performance, scaling, and usability\n\
    for a high-performance computing library for statistical phylogenetics. Syst Biol 2019.\n";

/// The resources: one. Never null; not to be freed.
#[unsafe(no_mangle)]
pub extern "C" fn beagleGetResourceList() -> *const List<Resource> {
    resources::list()
}

/// The resources with a measurement each; null if none meets the requirements. The list lasts until
/// the next call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleGetBenchmarkedResourceList(
    tips: c_int,
    compact: c_int,
    states: c_int,
    patterns: c_int,
    categories: c_int,
    resource_list: *const c_int,
    resource_count: c_int,
    preference_flags: c_long,
    requirement_flags: c_long,
    models: c_int,
    _partitions: c_int,
    _derivatives: c_int,
    _benchmark_flags: c_long,
) -> *const List<BenchmarkedResource> {
    let outcome = guarded(|| {
        // SAFETY: the module's rule.
        let numbers = unsafe { resources_named(resource_list, resource_count) }?;
        resources::choose(numbers, requirement_flags)?;
        let counts = Counts {
            tips,
            // A chain of tips has one inner node fewer than tips.
            partials: tips.max(2).checked_mul(2).ok_or(Refusal::OutOfRange)?,
            compact: compact.max(0),
            states,
            patterns,
            models: models.max(1),
            matrices: 1,
            categories,
            scales: 0,
        };
        // Its tree is short, and its scale factors are not what is measured.
        let wanted = (preference_flags | requirement_flags) & !SCALING;
        resources::benchmarked(counts, wanted)
    });
    outcome.map_or(std::ptr::null(), resources::Benchmarked::into_list)
}

const SCALING: c_long = crate::abi::flag::SCALING_AUTO
    | crate::abi::flag::SCALING_ALWAYS
    | crate::abi::flag::SCALING_DYNAMIC;

/// The numbers that a client names; none for any.
unsafe fn resources_named<'a>(numbers: *const c_int, items: c_int) -> Result<&'a [c_int], Refusal> {
    match numbers.is_null() {
        true => Ok(&[]),
        // SAFETY: the module's rule.
        false => unsafe { list(numbers, items) },
    }
}

/// Makes an instance: its number, or a negative number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn beagleCreateInstance(
    tips: c_int,
    partials: c_int,
    compact: c_int,
    states: c_int,
    patterns: c_int,
    models: c_int,
    matrices: c_int,
    categories: c_int,
    scales: c_int,
    resource_list: *const c_int,
    resource_count: c_int,
    preference_flags: c_long,
    requirement_flags: c_long,
    details: *mut InstanceDetails,
) -> c_int {
    let outcome = guarded(|| {
        // SAFETY: the module's rule.
        let numbers = unsafe { resources_named(resource_list, resource_count) }?;
        resources::choose(numbers, requirement_flags)?;
        let counts = Counts {
            tips,
            partials,
            compact,
            states,
            patterns,
            models,
            matrices,
            categories,
            scales,
        };
        let wanted = preference_flags | requirement_flags;
        let instance = Instance::new(counts, wanted)?;
        let flags = instance.flags(wanted);
        // Last of what can fail: an instance whose number the client lacks is never ended.
        let number = INSTANCES.lock().add(instance)?;
        // SAFETY: the module's rule.
        unsafe {
            put(
                details,
                InstanceDetails {
                    resource_number: 0,
                    resource_name: resources::NAME.as_ptr(),
                    impl_name: resources::IMPLEMENTATION.as_ptr(),
                    impl_description: resources::ABOUT.as_ptr(),
                    flags,
                },
            );
        }
        Ok(number)
    });
    outcome.unwrap_or_else(Refusal::code)
}

/// Ends an instance.
#[unsafe(no_mangle)]
pub extern "C" fn beagleFinalizeInstance(instance: c_int) -> c_int {
    code(guarded(|| {
        // Its memory is given back after the lock.
        let removed = INSTANCES.lock().all.remove(&instance);
        removed.map(drop).ok_or(Refusal::Uninitialized)
    }))
}

/// Ends all instances.
#[unsafe(no_mangle)]
pub extern "C" fn beagleFinalize() -> c_int {
    code(guarded(|| {
        // The guard ends with this statement: memory is given back without the lock.
        let all = std::mem::take(&mut INSTANCES.lock().all);
        drop(all);
        Ok(())
    }))
}

/// Sets the most cores that an instance is spread over.
#[unsafe(no_mangle)]
pub extern "C" fn beagleSetCPUThreadCount(instance: c_int, threads: c_int) -> c_int {
    call(instance, |instance| {
        let threads = count(threads)?;
        if threads == 0 {
            return Err(Refusal::OutOfRange);
        }
        // From the environment each time: a later call may raise what an earlier one lowered.
        instance.width = engines::Width::of_environment().at_most(threads);
        Ok(())
    })
}
