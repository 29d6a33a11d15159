//! The convention of the calls: a result that is not negative, or a negative errno.
//!
//! Must stay true: nothing unwinds into the program; each errno of the header comes from here.

use crate::SidecoreRdma;
use sidecore_rdma::{PostError, RdmaError, StartFault};
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// An error's number, positive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

impl Errno {
    pub(crate) const INVALID: Self = Self(libc::EINVAL);
    pub(crate) const UNKNOWN: Self = Self(libc::ENOENT);
}

impl From<RdmaError> for Errno {
    fn from(error: RdmaError) -> Self {
        Self(match error {
            // Without a number: the client of the stack has lost its engine.
            RdmaError::Io(error) => error.raw_os_error().unwrap_or(libc::ESHUTDOWN),
            RdmaError::Memory(_) | RdmaError::TooMany(..) => libc::ENOSPC,
            RdmaError::Post(PostError::Full(_)) => libc::EAGAIN,
            RdmaError::Post(PostError::Fault(_)) => libc::EACCES,
            RdmaError::Post(PostError::TooLong) | RdmaError::Start(StartFault::PrivateData(..)) => {
                libc::EMSGSIZE
            }
            RdmaError::Post(PostError::NoReads) => libc::EOPNOTSUPP,
            RdmaError::Post(PostError::Ended)
            | RdmaError::Start(StartFault::NotRequested)
            | RdmaError::Ended(_) => libc::ENOTCONN,
            RdmaError::Unknown(_) => libc::ENOENT,
            RdmaError::Engine(_) => libc::ECONNREFUSED,
            RdmaError::Late(_) => libc::ETIMEDOUT,
            _ => libc::EINVAL,
        })
    }
}

/// The type of a call's result.
pub(crate) trait Answer {
    /// The result of a call that failed.
    fn failed(errno: Errno) -> Self;
}

impl Answer for c_int {
    fn failed(errno: Errno) -> Self {
        -errno.0
    }
}

impl Answer for i64 {
    fn failed(errno: Errno) -> Self {
        -Self::from(errno.0)
    }
}

/// The result of a call, in C's terms.
pub(crate) trait Value<A> {
    fn answer(self) -> A;
}

/// Calls that only succeed or fail.
impl Value<c_int> for () {
    fn answer(self) -> c_int {
        0
    }
}

impl Value<c_int> for bool {
    fn answer(self) -> c_int {
        self.into()
    }
}

impl Value<c_int> for c_int {
    fn answer(self) -> c_int {
        self
    }
}

impl Value<i64> for u32 {
    fn answer(self) -> i64 {
        self.into()
    }
}

/// Numbers of connections and shared queues, whose generations keep the highest bit free.
impl Value<i64> for u64 {
    fn answer(self) -> i64 {
        self.cast_signed()
    }
}

/// Runs a call without a device.
pub(crate) fn guarded<A: Answer, V: Value<A>>(body: impl FnOnce() -> Result<V, Errno>) -> A {
    // A device may be used after a panic: each access to memory is checked by itself.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(value)) => value.answer(),
        Ok(Err(errno)) => A::failed(errno),
        // Its message was printed by the hook; a caller in C could not read it anyway.
        Err(_) => A::failed(Errno(libc::EIO)),
    }
}

/// Runs a call on a device.
///
/// # Safety
/// `rdma` is NULL or a device that no other thread uses now.
pub(crate) unsafe fn call<A: Answer, V: Value<A>>(
    rdma: *mut SidecoreRdma,
    body: impl FnOnce(&mut SidecoreRdma) -> Result<V, Errno>,
) -> A {
    // SAFETY: the caller's promise.
    let rdma = unsafe { rdma.as_mut() };
    // Inside the guard: NULL is an error like any other, in either type of result.
    guarded(|| body(rdma.ok_or(Errno::INVALID)?))
}

/// The body of a call of the header: runs on the device that the argument `rdma` points to.
macro_rules! on_device {
    (|$rdma:ident| $body:expr) => {{
        // Made outside of the unsafe block: what the body does unsafely, it has to justify itself.
        let body = |$rdma: &mut $crate::SidecoreRdma| $body;
        // SAFETY: NULL or a device, which one thread uses at a time, by the caller's promise.
        unsafe { $crate::call::call($rdma, body) }
    }};
}
pub(crate) use on_device;
