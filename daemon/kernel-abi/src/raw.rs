//! The types of include/sidecore_kernel.h, field by field.
//!
//! Why here: the daemon's loader and kernels in Rust need them, and neither should parse C. Must
//! stay true: a change here is one of the header, and of [`ABI`] unless it only adds at the end of
//! [`HostTable`].
#![allow(unsafe_code)] // Values that hold addresses are shared between threads.

use core::ffi::{c_char, c_int, c_void};

/// Version of the ABI.
pub const ABI: u32 = 1;
/// Words of a request, and of its reply.
pub const WORDS: usize = 6;
/// Kernels of one object at most.
pub const KERNELS_MAX: u32 = 64;
/// Name of the exported function, with its final 0.
pub const SYMBOL: &[u8] = b"sidecore_kernel_module\0";

/// `struct sidecore_host`.
#[derive(Debug)]
#[repr(C)]
#[allow(missing_docs)] // The header has the words.
pub struct HostTable {
    pub abi: u32,
    pub bytes: u32,
    pub get: unsafe extern "C" fn(*mut c_void, *mut c_void, u32, u64, u64, u32) -> c_int,
    pub put: unsafe extern "C" fn(*mut c_void, u32, u64, *const c_void, u64, u32) -> c_int,
    pub wait: unsafe extern "C" fn(*mut c_void, u32),
    pub yield_now: unsafe extern "C" fn(*mut c_void) -> c_int,
    pub fail: unsafe extern "C" fn(*mut c_void, *const c_char),
}

/// `struct sidecore_run`.
#[derive(Debug)]
#[repr(C)]
#[allow(missing_docs)] // The header has the words.
pub struct RawRun {
    pub host: *const HostTable,
    pub call: *mut c_void,
    pub state: *mut c_void,
    pub store: *mut u8,
    pub store_bytes: u64,
    pub words: *const u64,
    pub reply: *mut u64,
    pub input_bytes: *const u64,
    pub output_bytes: *const u64,
    pub inputs: u32,
    pub outputs: u32,
}

/// Function that makes the state of one engine.
pub type Create = unsafe extern "C" fn() -> *mut c_void;
/// Function that ends such a state.
pub type Destroy = unsafe extern "C" fn(*mut c_void);
/// Function that runs one request.
pub type RunFn = unsafe extern "C" fn(*mut RawRun) -> c_int;

/// `struct sidecore_kernel`. Functions that an object left out are `None`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(missing_docs)] // The header has the words.
pub struct Kernel {
    pub name: *const c_char,
    pub version: u32,
    pub zero: u32,
    pub store_bytes: u64,
    pub create: Option<Create>,
    pub destroy: Option<Destroy>,
    pub run: Option<RunFn>,
}

// SAFETY: the name is a constant of the object, which is never written; functions are plain
// addresses.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// Bytes of a [`Kernel`]: part of the ABI, which the loader compares with its own.
const KERNEL_BYTES: u32 = 48;
const _: () = assert!(size_of::<Kernel>() == 48);

/// `struct sidecore_module`.
#[derive(Debug)]
#[repr(C)]
#[allow(missing_docs)] // The header has the words.
pub struct Module {
    pub abi: u32,
    pub kernel_bytes: u32,
    pub count: u32,
    pub zero: u32,
    pub kernels: *const Kernel,
}

// SAFETY: it points to constants of the object.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

/// Name of the exported function that gives an object's [`Limits`], with its final 0.
pub const LIMITS_SYMBOL: &[u8] = b"sidecore_kernel_limits\0";

/// `struct sidecore_limits`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
#[allow(missing_docs)] // The header has the words.
pub struct Limits {
    pub bytes: u32,
    pub zero: u32,
    pub time_us: u64,
    pub memory_bytes: u64,
    pub stack_bytes: u64,
}

/// Bytes of a [`Limits`].
pub const LIMITS_BYTES: u32 = 32;
const _: () = assert!(size_of::<Limits>() == 32);

impl Limits {
    /// These limits; 0 for the daemon's default.
    #[must_use]
    pub const fn of(time_us: u64, memory_bytes: u64, stack_bytes: u64) -> Self {
        Self {
            bytes: LIMITS_BYTES,
            zero: 0,
            time_us,
            memory_bytes,
            stack_bytes,
        }
    }
}

impl Module {
    /// The module of these kernels.
    #[must_use]
    pub const fn of(kernels: &'static [Kernel]) -> Self {
        Self {
            abi: ABI,
            kernel_bytes: KERNEL_BYTES,
            count: kernels.len() as u32,
            zero: 0,
            kernels: kernels.as_ptr(),
        }
    }
}
