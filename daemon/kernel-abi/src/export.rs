//! Entries of a module's table, for [`export_kernels!`](crate::export_kernels).
//!
//! Must stay true: a state is made and ended by the same kernel's functions, so that its type is
//! the same on both sides. Called by the daemon on the thread that drives the engine.
#![allow(unsafe_code)] // Functions of a C ABI, which take the daemon at its word.

use crate::raw::{Kernel, RawRun};
use crate::{Loadable, run};
use core::ffi::{c_int, c_void};

/// The entry of one kernel.
#[must_use]
pub const fn kernel<K: Loadable>() -> Kernel {
    Kernel {
        name: K::NAME.as_ptr(),
        version: K::VERSION,
        zero: 0,
        store_bytes: K::STORE_BYTES as u64,
        create: Some(create::<K>),
        destroy: Some(destroy::<K>),
        run: Some(run_one::<K>),
    }
}

unsafe extern "C" fn create<K: Loadable>() -> *mut c_void {
    // NULL says that there is no state: the daemon then refuses the kernel's requests.
    let made = std::panic::catch_unwind(|| Box::new(K::State::default()));
    made.map_or(std::ptr::null_mut(), |state| Box::into_raw(state).cast())
}

unsafe extern "C" fn destroy<K: Loadable>(state: *mut c_void) {
    // SAFETY: `create` of the same kernel made it, and the daemon gives it back once.
    let state = unsafe { Box::from_raw(state.cast::<K::State>()) };
    // A state that panics when dropped must not take the daemon with it.
    drop(std::panic::catch_unwind(std::panic::AssertUnwindSafe(
        || {
            drop(state);
        },
    )));
}

unsafe extern "C" fn run_one<K: Loadable>(raw: *mut RawRun) -> c_int {
    // SAFETY: the daemon passes a request of this kernel, with the state that `create` made.
    unsafe { run::lend::<K::State>(raw, |run| K::run(run)) }
}
