//! The instances of this process by number.
//!
//! Must stay true: numbers are not used twice, so that a call with an ended instance's number is
//! refused. Two threads may use two instances at once; calls on one take turns.

use crate::abi::Refusal;
use crate::instance::Instance;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::sync::Arc;

struct Instances {
    all: BTreeMap<c_int, Arc<Mutex<Instance>>>,
    next: c_int,
}

static INSTANCES: Mutex<Instances> = Mutex::new(Instances {
    all: BTreeMap::new(),
    next: 0,
});

/// Adds one; its number.
pub(crate) fn add(instance: Instance) -> Result<c_int, Refusal> {
    let mut instances = INSTANCES.lock();
    let number = instances.next;
    instances.next = number.checked_add(1).ok_or(Refusal::OutOfMemory)?;
    instances.all.insert(number, Arc::new(Mutex::new(instance)));
    Ok(number)
}

/// The one of a number.
pub(crate) fn get(number: c_int) -> Result<Arc<Mutex<Instance>>, Refusal> {
    let found = INSTANCES.lock().all.get(&number).cloned();
    found.ok_or(Refusal::Uninitialized)
}

/// Ends one.
pub(crate) fn remove(number: c_int) -> Result<(), Refusal> {
    // Its memory is given back after the lock.
    let removed = INSTANCES.lock().all.remove(&number);
    removed.map(drop).ok_or(Refusal::Uninitialized)
}

/// Ends all.
pub(crate) fn clear() {
    let all = std::mem::take(&mut INSTANCES.lock().all);
    drop(all);
}
