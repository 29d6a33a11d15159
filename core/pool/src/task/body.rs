//! A task's closure, then its result, in the same allocation as the task.
//!
//! Why here: an empty task costs as much as its memory. With a box for the closure and a cell for
//! the result, three allocations went from the spawner's core to a host's and were freed there; now
//! it is one.
//!
//! Why `unsafe` is here: the type of closure and result is erased, and both may borrow from around
//! the scope, while a [`TaskRef`](super::TaskRef) to the same allocation may outlive it. Must stay
//! true: the thread that has taken a task (`TaskCore::take`) is the only one to touch its body
//! until it says that the task has ended. From then on only the join handle does, or, where that is
//! gone, the thread that ended the task. Dropping a body drops neither closure nor result: a scope
//! ends only after both were taken out or dropped explicitly, so nothing borrowed is touched later.
//! A result that a forgotten handle never took out is leaked.
#![allow(unsafe_code)]

use crate::error::message_of;
use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A task's closure, and later its result, without their types.
///
/// # Safety
/// Every method: only for the thread that may touch the body, as the module says.
pub(super) trait Body: Send + Sync {
    /// Runs the closure, unless that was done, and keeps its result. Returns its message where it
    /// panicked. Never unwinds.
    unsafe fn run(&self) -> Option<String>;

    /// Drops the contents, closure or result. Never unwinds.
    unsafe fn clear(&self);

    /// Moves the result out to `target`, which must be an `Option<Result<T, String>>` of the type
    /// that the closure gives.
    unsafe fn take_result(&self, target: *mut ());
}

/// The one body that there is.
pub(super) struct Closure<F, T>(UnsafeCell<Stage<F, T>>);

enum Stage<F, T> {
    Work(ManuallyDrop<F>),
    Empty,
    Done(ManuallyDrop<Result<T, String>>),
}

// SAFETY: one thread at a time touches the cell, and takes it over from another through
// `TaskCore::state`; closure and result may both change threads.
unsafe impl<F: Send, T: Send> Sync for Closure<F, T> {}

impl<F: FnOnce() -> T, T> Closure<F, T> {
    pub(super) fn new(work: F) -> Self {
        Self(UnsafeCell::new(Stage::Work(ManuallyDrop::new(work))))
    }

    fn replace(&self, stage: Stage<F, T>) -> Stage<F, T> {
        // SAFETY: only called by a thread that may touch the body, and no reference into it is
        // kept.
        unsafe { std::mem::replace(&mut *self.0.get(), stage) }
    }
}

impl<F: FnOnce() -> T + Send, T: Send> Body for Closure<F, T> {
    unsafe fn run(&self) -> Option<String> {
        let Stage::Work(work) = self.replace(Stage::Empty) else {
            return None;
        };
        let work = ManuallyDrop::into_inner(work);
        let result = catch_unwind(AssertUnwindSafe(work));
        let result = result.map_err(|panic| message_of(panic.as_ref()));
        let panicked = result.as_ref().err().cloned();
        self.replace(Stage::Done(ManuallyDrop::new(result)));
        panicked
    }

    unsafe fn clear(&self) {
        // A panic in these drops must not reach the threads that wait.
        let stage = self.replace(Stage::Empty);
        drop(catch_unwind(AssertUnwindSafe(|| match stage {
            Stage::Work(work) => drop(ManuallyDrop::into_inner(work)),
            Stage::Done(result) => drop(ManuallyDrop::into_inner(result)),
            Stage::Empty => {}
        })));
    }

    unsafe fn take_result(&self, target: *mut ()) {
        if let Stage::Done(result) = self.replace(Stage::Empty) {
            let target = target.cast::<Option<Result<T, String>>>();
            // SAFETY: the caller's promise: it points to a value of this type.
            unsafe { *target = Some(ManuallyDrop::into_inner(result)) };
        }
    }
}
