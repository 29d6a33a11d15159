//! Calls that this library does not have: multicast, address handles (there are no datagrams), the
//! drivers' interface, import of objects, mapped writes of `rsocket`.

use std::ffi::{c_int, c_void};

/// A call that returns an error number.
pub(crate) unsafe extern "C" fn number() -> c_int {
    crate::errno(libc::EOPNOTSUPP);
    libc::EOPNOTSUPP
}

/// A call that returns -1 and sets `errno`.
pub(crate) unsafe extern "C" fn minus_one() -> isize {
    crate::errno(libc::EOPNOTSUPP);
    -1
}

/// A call that returns a pointer.
pub(crate) unsafe extern "C" fn pointer() -> *mut c_void {
    crate::pointer_failed(libc::EOPNOTSUPP)
}

/// A call without a result, or whose result is 0 for "no". Drivers that are linked to a program
/// register themselves by one: their devices are the kernel's.
pub(crate) unsafe extern "C" fn nothing() -> c_int {
    0
}
