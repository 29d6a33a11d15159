#![doc = include_str!("../README.md")]
//!
//! Top-down: [`Loadable`] is a kernel, [`Run`] one request of it, [`export_kernels!`] makes an
//! object of kernels; [`raw`] are the types of the header, for loaders of objects.
//!
//! Must stay true: [`raw`] and include/sidecore_kernel.h are the same (a test of sidecore-loader
//! runs kernels of both); a panic of a kernel is a failure of its request. The local store is lent
//! for one run. No dependency, so that an object is small.

#[doc(hidden)]
pub mod export;
pub mod raw;
mod run;

pub use run::{Host, OutOfRange, Run};

use core::ffi::CStr;

/// A kernel of a shared object. The rules are those at the top of sidecore_kernel.h.
pub trait Loadable: 'static {
    /// Name by which clients call it; 1 to 40 bytes.
    const NAME: &'static CStr;
    /// Changes when words, ranges or results change their meaning.
    const VERSION: u32 = 1;
    /// Bytes of local store that a run needs at most.
    const STORE_BYTES: usize = 0;
    /// State that stays on an engine between runs.
    type State: Default + Send + 'static;

    /// Runs one request on an engine.
    ///
    /// # Errors
    /// Whatever keeps it from giving a result; the client gets the first 64 bytes of the text.
    fn run(run: &mut Run<'_, Self::State>) -> Result<(), String>;
}

/// Exports kernels from a shared object (`crate-type = ["cdylib"]`). Once in an object.
#[macro_export]
macro_rules! export_kernels {
    ($($kernel:ty),+ $(,)?) => {
        /// The one function that a daemon looks for.
        #[unsafe(no_mangle)]
        pub extern "C" fn sidecore_kernel_module() -> *const $crate::raw::Module {
            static KERNELS: &[$crate::raw::Kernel] = &[$($crate::export::kernel::<$kernel>()),+];
            static MODULE: $crate::raw::Module = $crate::raw::Module::of(KERNELS);
            &MODULE
        }
    };
}

/// Exports the limits that an object's kernels need: microseconds of processor time for a request,
/// bytes of memory and of stack for their process; 0 for a daemon's default. At most once in an
/// object.
#[macro_export]
macro_rules! export_limits {
    ($time_us:expr, $memory_bytes:expr, $stack_bytes:expr $(,)?) => {
        /// The function by which a daemon asks for limits.
        #[unsafe(no_mangle)]
        pub extern "C" fn sidecore_kernel_limits() -> *const $crate::raw::Limits {
            static LIMITS: $crate::raw::Limits =
                $crate::raw::Limits::of($time_us, $memory_bytes, $stack_bytes);
            &LIMITS
        }
    };
}

/// The text of sidecore_kernel.h, for programs that compile kernels.
pub const HEADER: &str = include_str!("../include/sidecore_kernel.h");

#[cfg(test)]
mod tests;
