//! The border to C: nothing of ours unwinds across it, and nothing is printed. An exception of the
//! program itself goes on there ([`foreign`]).

use crate::foreign;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs one call; `otherwise` where it panics, which would be a bug of ours.
pub(crate) fn call<R>(otherwise: R, work: impl FnOnce() -> R) -> R {
    static QUIET: Once = Once::new();
    // The standard error is the program's. The hook that is replaced belongs to this library's own
    // standard library, except in tests.
    QUIET.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !INSIDE.try_with(Cell::get).unwrap_or(true) {
                before(info);
            }
        }));
    });
    let outer = INSIDE.try_with(|inside| inside.replace(true));
    let result = panic::catch_unwind(AssertUnwindSafe(work));
    if let Ok(outer) = outer {
        INSIDE.try_with(|inside| inside.set(outer)).ok();
    }
    // Behind all that would have to be undone: nothing is dropped below this frame any more.
    foreign::go_on();
    result.unwrap_or(otherwise)
}
