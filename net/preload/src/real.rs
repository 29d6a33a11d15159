//! The intercepted functions: those that the program would have called.

use std::ffi::{CStr, c_int, c_long, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};

/// One function of the C library, looked up once.
#[derive(Debug)]
pub(crate) struct Real {
    name: &'static CStr,
    found: AtomicUsize,
}

impl Real {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            found: AtomicUsize::new(0),
        }
    }

    /// Its address. The process ends if there is none: it cannot continue.
    pub(crate) fn address(&self) -> *const c_void {
        // Relaxed: all threads look up the same address.
        let found = self.found.load(Ordering::Relaxed);
        if found != 0 {
            return found as *const c_void;
        }
        // SAFETY: dlsym(3) takes a name that ends with a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        // The C library has all of them; a program without one cannot go on.
        if found.is_null() {
            std::process::abort();
        }
        self.found.store(found as usize, Ordering::Relaxed);
        found
    }
}

/// Calls the next function with a name, with the given argument types and result.
macro_rules! real {
    ($name:ident($($argument:expr => $kind:ty),* $(,)?) -> $result:ty) => {{
        static REAL: $crate::real::Real =
            $crate::real::Real::new(match std::ffi::CStr::from_bytes_with_nul(
                concat!(stringify!($name), "\0").as_bytes(),
            ) {
                Ok(name) => name,
                Err(_) => panic!("a name ends with a zero"),
            });
        let function: unsafe extern "C" fn($($kind),*) -> $result = {
            // SAFETY: the function of that name has this type, by the C library's headers.
            unsafe { std::mem::transmute(REAL.address()) }
        };
        // SAFETY: the arguments are the program's, or ours that live as long as the call.
        unsafe { function($($argument),*) }
    }};
}
pub(crate) use real;

/// errno of the last call.
pub(crate) fn errno() -> c_int {
    // SAFETY: it points to a number of this thread's.
    unsafe { *libc::__errno_location() }
}

/// Sets errno for the program.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// The flags of a descriptor by fcntl(2), which is `F_GETFD` or `F_GETFL`; none if there is none.
/// Not by the C library's function, which is this library's own.
pub(crate) fn flags_of(descriptor: c_int, which: c_int) -> Option<c_int> {
    let before = errno();
    // SAFETY: a call without pointers.
    let flags = unsafe { libc::syscall(libc::SYS_fcntl, descriptor, which) };
    set_errno(before);
    int(flags).filter(|flags| *flags >= 0)
}

/// The result of a system call, if the C library has it as an int.
pub(crate) fn int(result: c_long) -> Option<c_int> {
    c_int::try_from(result).ok()
}

/// A length as socket calls take it.
pub(crate) const fn length(bytes: usize) -> libc::socklen_t {
    bytes as libc::socklen_t
}

/// A number of descriptors or events, as calls return it: it never exceeds what the program passed.
pub(crate) fn count(number: usize) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

/// ioctl(2) for the number of readable bytes; its type differs between C libraries.
pub(crate) const FIONREAD: libc::c_ulong = 0x541b;
