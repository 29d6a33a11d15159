//! BEAGLE's C interface: the functions that programs call, by the names of its header.
//!
//! Each returns 0 or a negative number of [`crate::abi::Refusal`]. Pointers that are null, indices
//! and counts beyond an instance's are refused. A call blocks until its work is done, except that
//! operations may be put off until a result or a value is asked for.
#![allow(unsafe_code, reason = "a C surface")]
#![allow(clippy::missing_safety_doc, reason = "the rule is the module's")]

mod data;
mod lifetime;
mod operations;
mod results;

pub use data::*;
pub use lifetime::*;
pub use operations::*;
pub use results::*;

use crate::abi::Refusal;
use crate::instance::{Instance, count};
use crate::resources::Shared;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

// SAFETY: pointers in it lead to constants and to what is never changed while it is shared.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

/// Calls `f`; a panic ends here.
fn guarded<T>(f: impl FnOnce() -> Result<T, Refusal>) -> Result<T, Refusal> {
    // A panic that leaves a C function ends the client's process.
    catch_unwind(AssertUnwindSafe(f)).unwrap_or(Err(Refusal::Unidentified))
}

fn code(outcome: Result<(), Refusal>) -> c_int {
    outcome.map_or_else(Refusal::code, |()| 0)
}

/// The instances of this process by number. Numbers are not used twice, so that a call with an
/// ended instance's number is refused. Two threads may use two instances at once; calls on one take
/// turns.
struct Instances {
    all: BTreeMap<c_int, Arc<Mutex<Instance>>>,
    next: c_int,
}

static INSTANCES: Mutex<Instances> = Mutex::new(Instances {
    all: BTreeMap::new(),
    next: 0,
});

impl Instances {
    /// Adds one; its number.
    fn add(&mut self, instance: Instance) -> Result<c_int, Refusal> {
        let number = self.next;
        self.next = number.checked_add(1).ok_or(Refusal::OutOfMemory)?;
        self.all.insert(number, Arc::new(Mutex::new(instance)));
        Ok(number)
    }
}

/// Calls `f` with an instance.
fn call(instance: c_int, f: impl FnOnce(&mut Instance) -> Result<(), Refusal>) -> c_int {
    code(guarded(|| {
        // The lock on the table is not held during the call: other instances go on.
        let found = INSTANCES.lock().all.get(&instance).cloned();
        f(&mut found.ok_or(Refusal::Uninitialized)?.lock())
    }))
}

/// The items at a client's pointer.
///
/// # Safety
/// `from` is null or leads to `items` items that stay unchanged for the call.
unsafe fn read<'a, T>(from: *const T, items: usize) -> Result<&'a [T], Refusal> {
    // Clients may pass any pointer with a count of 0; a slice may not have any.
    if items == 0 {
        return Ok(&[]);
    }
    // A reference must be aligned even where nothing is read.
    if from.is_null() || !from.is_aligned() {
        return Err(Refusal::OutOfRange);
    }
    // SAFETY: the caller's promise; the pointer was checked.
    Ok(unsafe { std::slice::from_raw_parts(from, items) })
}

/// As [`read`] of a count as clients give it.
///
/// # Safety
/// As of [`read`].
unsafe fn list<'a, T>(from: *const T, items: c_int) -> Result<&'a [T], Refusal> {
    // SAFETY: the caller's promise.
    unsafe { read(from, count(items)?) }
}

/// As [`list`], none where the pointer is null.
///
/// # Safety
/// As of [`read`].
unsafe fn optional<'a, T>(from: *const T, items: c_int) -> Result<Option<&'a [T]>, Refusal> {
    match from.is_null() {
        true => Ok(None),
        // SAFETY: the caller's promise.
        false => unsafe { list(from, items) }.map(Some),
    }
}

/// The indices of one branch's matrix and of its derivatives, where there are lists of them.
fn orders(lists: [Option<&[c_int]>; 3], branch: usize) -> [Option<c_int>; 3] {
    lists.map(|list| list.map(|all| all[branch]))
}

/// The places of items at a client's pointer.
///
/// # Safety
/// `to` is null or leads to `items` items that nothing else uses during the call.
unsafe fn write<'a, T>(to: *mut T, items: usize) -> Result<&'a mut [T], Refusal> {
    if items == 0 {
        return Ok(&mut []);
    }
    if to.is_null() || !to.is_aligned() {
        return Err(Refusal::OutOfRange);
    }
    // SAFETY: the caller's promise; the pointer was checked.
    Ok(unsafe { std::slice::from_raw_parts_mut(to, items) })
}

/// Writes one item, if there is a place for it.
///
/// # Safety
/// As of [`write`].
unsafe fn put<T>(to: *mut T, item: T) {
    if !to.is_null() && to.is_aligned() {
        // SAFETY: the caller's promise; the pointer was checked.
        unsafe { to.write(item) };
    }
}
