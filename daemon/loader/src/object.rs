//! One shared object: linked, and its table of kernels checked.
//!
//! Why here: this is where foreign code comes in. Must stay true: a table is trusted only after its
//! version and counts were checked; names and functions are copied out of it once. The library is
//! never unloaded, so that addresses of its functions stay valid. The descriptor of its bytes is
//! never closed: the linker knows objects by their path, and a reused number would name the older
//! object. Modes of floating-point arithmetic that initializers change are restored before any
//! other code runs: threads that start later would have them, too.
#![allow(unsafe_code)] // Links foreign code and reads its table.

use crate::error::ObjectError;
use crate::folder::Copy;
use crate::kernel::{LoadedKernel, Spoiler};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use sidecore_bare::width::ToUsize;
use sidecore_daemon::served::{KernelHash, NAME_BYTES_MAX};
use sidecore_engine::CoreOptions;
use sidecore_kernel_abi::raw::{
    ABI, KERNELS_MAX, Kernel, LIMITS_BYTES, LIMITS_SYMBOL, Limits, Module, SYMBOL,
};
use sidecore_sys::float::isolated;
use sidecore_sys::text::is_unsafe;
use std::ffi::CStr;
use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::Arc;

/// An object that is linked.
pub(crate) struct Object {
    pub(crate) kernels: Vec<LoadedKernel>,
    pub(crate) asks: Asks,
}

/// The limits that an object asks for; 0 where it does not.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Asks {
    time_us: u64,
    memory_bytes: u64,
    stack_bytes: u64,
}

impl Asks {
    /// Microseconds, bytes of memory, bytes of stack.
    pub(crate) fn words(self) -> [u64; 3] {
        [self.time_us, self.memory_bytes, self.stack_bytes]
    }
}

/// Links an object and returns its kernels.
pub(crate) fn load(copy: Copy) -> Result<Object, ObjectError> {
    let path = format!("/proc/self/fd/{}", copy.memory.as_raw_fd());
    // All symbols now: a missing one is found at the start, not by a request.
    // SAFETY: its initializers run here. Only root and this user could have written them, and the
    // user that puts an object into the folder answers for it (SECURITY.md).
    let open = || unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) };
    let (library, left) = isolated(open);
    if let Some(left) = left {
        tracing::warn!(
            "loading {} changed the modes of floating-point arithmetic ({left}), as objects do \
             that were linked with -Ofast or -ffast-math; they are set back, so its kernels run \
             with the default modes",
            copy.name.to_string_lossy()
        );
    }
    let library = library.map_err(|error| {
        let text = error.to_string();
        ObjectError::Linker(text.replace(&path, &copy.name.to_string_lossy()))
    })?;
    // From here on some of its code may be known to others; neither is ever taken back.
    let library = std::mem::ManuallyDrop::new(library);
    let _ = copy.memory.into_raw_fd();
    // SAFETY: the symbol is this function in every object that keeps to the header.
    let module = unsafe { library.get::<unsafe extern "C" fn() -> *const Module>(SYMBOL) };
    let module = module.map_err(|_| ObjectError::NoModule)?;
    // SAFETY: as above.
    let (module, _) = isolated(|| unsafe { module() });
    if module.is_null() || !module.is_aligned() {
        return Err(table("sidecore_kernel_module gave no module"));
    }
    // SAFETY: a pointer that the header says to be good for the life of the process. The version is
    // looked at first, since all else may be elsewhere in another one.
    let abi = unsafe { (&raw const (*module).abi).read() };
    if abi != ABI {
        return Err(ObjectError::Abi { abi });
    }
    // SAFETY: as above, in our version.
    let module = unsafe { &*module };
    // A later header may add fields at the end, which would shift the second entry.
    if module.kernel_bytes.to_usize() != size_of::<Kernel>() {
        return Err(table("its kernels have another size"));
    }
    if module.count == 0 || module.count > KERNELS_MAX {
        return Err(table("it has not 1 to 64 kernels"));
    }
    if module.kernels.is_null() || !module.kernels.is_aligned() {
        return Err(table("its list of kernels is nowhere"));
    }
    // SAFETY: `count` of them, by its own word.
    let kernels = unsafe { std::slice::from_raw_parts(module.kernels, module.count.to_usize()) };
    let kernels = kernels.iter().map(|kernel| checked(kernel, copy.hash));
    Ok(Object {
        kernels: kernels.collect::<Result<_, _>>()?,
        asks: asks(&library),
    })
}

/// The limits that an object asks for, where it exports them.
fn asks(library: &Library) -> Asks {
    // SAFETY: the symbol is this function in every object that keeps to the header.
    let symbol = unsafe { library.get::<unsafe extern "C" fn() -> *const Limits>(LIMITS_SYMBOL) };
    let Ok(symbol) = symbol else {
        return Asks::default();
    };
    // SAFETY: as above.
    let (limits, _) = isolated(|| unsafe { symbol() });
    if limits.is_null() || !limits.is_aligned() {
        return Asks::default();
    }
    // SAFETY: a pointer that the header says to be good for the life of the process. Its size
    // comes first: that of an older header would be less.
    let is_whole = unsafe { (&raw const (*limits).bytes).read() } >= LIMITS_BYTES;
    if !is_whole {
        return Asks::default();
    }
    // SAFETY: as above.
    let limits = unsafe { &*limits };
    Asks {
        time_us: limits.time_us,
        memory_bytes: limits.memory_bytes,
        stack_bytes: limits.stack_bytes,
    }
}

/// Checks a kernel's name.
pub(crate) fn check_name(name: &str) -> Result<(), ObjectError> {
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len());
    let is_odd = |letter| is_unsafe(letter) || letter == ' ';
    match fits && !name.chars().any(is_odd) {
        true => Ok(()),
        false => Err(table(
            "a kernel's name has 1 to 40 bytes of UTF-8, no blanks and no control characters",
        )),
    }
}

fn table(fault: &str) -> ObjectError {
    ObjectError::Table(fault.to_owned())
}

fn checked(kernel: &Kernel, hash: KernelHash) -> Result<LoadedKernel, ObjectError> {
    if kernel.name.is_null() {
        return Err(table("a kernel has no name"));
    }
    // SAFETY: a text that ends with 0, says the header.
    let name = unsafe { CStr::from_ptr(kernel.name) }
        .to_str()
        .unwrap_or_default();
    check_name(name)?;
    let Some(run) = kernel.run else {
        return Err(table("a kernel has no `run`"));
    };
    // Both or neither: a state that is never ended would leak with each engine.
    let life = match (kernel.create, kernel.destroy) {
        (None, None) => None,
        (Some(create), Some(destroy)) => Some((create, destroy)),
        _ => {
            return Err(table("a kernel has one of `create` and `destroy`"));
        }
    };
    let has = CoreOptions::default().store_bytes;
    let store_bytes = usize::try_from(kernel.store_bytes).unwrap_or(usize::MAX);
    // At loading, not at the first request: the operator sees it.
    if store_bytes > has {
        return Err(ObjectError::Store {
            name: name.to_owned(),
            bytes: kernel.store_bytes,
            has,
        });
    }
    Ok(LoadedKernel {
        name: name.to_owned(),
        version: kernel.version,
        hash,
        store_bytes,
        life,
        run,
        spoiler: Arc::new(Spoiler::default()),
    })
}
