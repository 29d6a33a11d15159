#![doc = include_str!("../README.md")]
//!
//! Top-down: this file has the entry point and the fabric; `info` implements `fi_getinfo`; `domain`
//! has domains, memory, completion queues and counters; `eq` events; `ep` endpoints, `transfer` and
//! `atomic` their operations, `srx` shared receive contexts; `core` all state behind them; `abi`
//! the layouts.
//!
//! Must stay true: objects are boxes that begin with libfabric's own structure, created by one call
//! and freed by `close`; their state is in `core`, by number. Nothing unwinds into libfabric: a
//! panic ends the process (`extern "C"`).

#![allow(unsafe_code, reason = "a C surface")]

mod abi;
mod atomic;
mod bell;
mod core;
mod domain;
mod ep;
mod eq;
mod info;
mod place;
mod srx;
#[cfg(test)]
mod tests;
mod transfer;

#[doc(hidden)]
pub use abi::layouts;

use abi::*;
use bell::Waiter;
use core::Fabric;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

/// The provider's version.
pub(crate) const VERSION: u32 = version(0, 1);
/// The version of libfabric whose layouts these are.
pub(crate) const API_VERSION: u32 = version(1, 17);

/// An object: libfabric's structure, its fabric, its number in [`core`].
#[repr(C)]
pub(crate) struct Object<T> {
    pub(crate) raw: T,
    pub(crate) fabric: Arc<Fabric>,
    pub(crate) index: usize,
}

impl<T> Object<T> {
    /// The object behind a pointer of libfabric.
    ///
    /// # Safety
    /// `raw` belongs to an [`Object`] of this kind that is not closed.
    pub(crate) unsafe fn of<'a>(raw: *mut T) -> &'a Self {
        // SAFETY: the caller's promise; the structure is an object's first field.
        unsafe { &*raw.cast::<Self>() }
    }

    /// The same by its `fid`, the first field of every structure.
    ///
    /// # Safety
    /// As [`Self::of`].
    pub(crate) unsafe fn of_fid<'a>(raw: *mut fid) -> &'a Self {
        // SAFETY: the caller's promise.
        unsafe { &*raw.cast::<Self>() }
    }

    /// Passes an object to libfabric.
    ///
    /// # Safety
    /// `out` points to room for a pointer.
    pub(crate) unsafe fn hand_out(self, out: *mut *mut T) -> *mut Self {
        let object = Box::into_raw(Box::new(self));
        // SAFETY: the caller's promise.
        unsafe { out.write(object.cast()) };
        object
    }

    /// Takes an object back for the last time.
    ///
    /// # Safety
    /// As [`Self::of`]; it is not used any more.
    pub(crate) unsafe fn take(raw: *mut fid) -> Box<Self> {
        // SAFETY: it came from `hand_out`.
        unsafe { Box::from_raw(raw.cast()) }
    }
}

/// Calls of libfabric on an endpoint: each body returns the call's error, if there is one.
///
/// Why a macro: libfabric has 28 of them, which differ in their arguments alone.
macro_rules! endpoint_calls {
    ($(fn $name:ident($ep:ident $(, $argument:ident: $type:ty)* $(,)?) $body:block)*) => {$(
        unsafe extern "C" fn $name($ep: *mut fid_ep $(, $argument: $type)*) -> isize {
            let call = || -> Result<(), c_int> {
                // SAFETY: the arguments are those of libfabric's call of this name, whose caller
                // keeps what its manual page demands.
                unsafe { $body }
            };
            $crate::outcome::long_status(call())
        }
    )*};
}
pub(crate) use endpoint_calls;

mod outcome {
    //! Results in libfabric's convention: 0 or a number, or a negative error number.

    use std::ffi::c_int;

    /// The result of a call that returns an `int`.
    pub(crate) fn status(outcome: Result<(), c_int>) -> c_int {
        outcome.err().unwrap_or(0)
    }

    /// The same for a call that returns a `ssize_t`.
    pub(crate) fn long_status(outcome: Result<(), c_int>) -> isize {
        long(status(outcome))
    }

    /// The result of a call that returns how much it did.
    pub(crate) fn amount(outcome: Result<usize, c_int>) -> isize {
        outcome.map_or_else(long, usize::cast_signed)
    }

    /// An error number as a `ssize_t`.
    fn long(number: c_int) -> isize {
        number as isize
    }
}

/// The common head of a structure.
pub(crate) fn head(fclass: usize, context: *mut c_void, ops: &'static fi_ops) -> fid {
    fid {
        fclass,
        context,
        ops,
    }
}

/// Operations of objects that can only be closed.
pub(crate) const fn plain_ops(
    close: unsafe extern "C" fn(*mut fid) -> c_int,
    bind: Option<unsafe extern "C" fn(*mut fid, *mut fid, u64) -> c_int>,
    control: Option<unsafe extern "C" fn(*mut fid, c_int, *mut c_void) -> c_int>,
) -> fi_ops {
    fi_ops {
        size: size_of::<fi_ops>(),
        close: Some(close),
        bind: match bind {
            None => Some(no_bind),
            bind => bind,
        },
        control: match control {
            None => Some(no_control),
            control => control,
        },
        ops_open: Some(no_ops_open),
        tostr: None,
        ops_set: None,
    }
}

unsafe extern "C" fn no_bind(_: *mut fid, _: *mut fid, _: u64) -> c_int {
    -libc::ENOSYS
}

unsafe extern "C" fn no_control(_: *mut fid, _: c_int, _: *mut c_void) -> c_int {
    -libc::ENOSYS
}

unsafe extern "C" fn no_ops_open(
    _: *mut fid,
    _: *const std::ffi::c_char,
    _: u64,
    _: *mut *mut c_void,
    _: *mut c_void,
) -> c_int {
    -libc::ENOSYS
}

/// The provider as libfabric stores it; libfabric writes to one of its fields.
struct Provider(std::cell::UnsafeCell<fi_provider>);

// SAFETY: only libfabric writes to it, under its own lock.
unsafe impl Sync for Provider {}

static PROVIDER: Provider = Provider(std::cell::UnsafeCell::new(fi_provider {
    version: VERSION,
    fi_version: API_VERSION,
    context: [std::ptr::null_mut(); 4],
    name: info::NAME.as_ptr(),
    getinfo: Some(getinfo),
    fabric: Some(open_fabric),
    cleanup: Some(cleanup),
}));

/// The entry point: libfabric calls it once for each shared object that it finds.
#[unsafe(no_mangle)]
pub extern "C" fn fi_prov_ini() -> *mut c_void {
    PROVIDER.0.get().cast()
}

unsafe extern "C" fn cleanup() {}

/// `fi_getinfo`: no offer where opened objects that restrict the offers are another provider's.
unsafe extern "C" fn getinfo(
    api_version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    out: *mut *mut fi_info,
) -> c_int {
    // SAFETY: the caller's promise, that of fi_getinfo(3): NULL or valid; every provider begins the
    // structures of opened objects alike.
    unsafe {
        let hinted = hints.as_ref();
        let fabric = hinted.and_then(|info| info.fabric_attr.as_ref());
        let fabric = fabric.and_then(|attributes| attributes.fabric.as_ref());
        let domain = hinted.and_then(|info| info.domain_attr.as_ref());
        let domain = domain.and_then(|attributes| attributes.domain.as_ref());
        if fabric.is_some_and(|fabric| !std::ptr::eq(fabric.ops, &FABRIC))
            || domain.is_some_and(|domain| !std::ptr::eq(domain.ops, &domain::DOMAIN))
        {
            return -libc::ENODATA;
        }
        info::getinfo(api_version, node, service, flags, hints, out)
    }
}

static FABRIC_FID: fi_ops = plain_ops(close_fabric, None, None);
static FABRIC: fi_ops_fabric = fi_ops_fabric {
    size: size_of::<fi_ops_fabric>(),
    domain: Some(domain::open),
    passive_ep: Some(ep::open_passive),
    eq_open: Some(eq::open),
    wait_open: Some(missing_int),
    trywait: Some(trywait),
    domain2: None,
};

unsafe extern "C" fn open_fabric(
    _attr: *mut fi_fabric_attr,
    out: *mut *mut fid_fabric,
    context: *mut c_void,
) -> c_int {
    // The attributes say nothing that this provider could choose: all fabrics are one transport.
    let fabric = match Fabric::open() {
        Ok(fabric) => Arc::new(fabric),
        Err(error) => return core::negative(&error),
    };
    let raw = fid_fabric {
        fid: head(FI_CLASS_FABRIC, context, &FABRIC_FID),
        ops: &FABRIC,
        api_version: API_VERSION,
    };
    let object = Object {
        raw,
        fabric,
        index: 0,
    };
    // SAFETY: a place for a pointer, by libfabric's contract.
    unsafe { object.hand_out(out) };
    0
}

unsafe extern "C" fn close_fabric(fid: *mut fid) -> c_int {
    // SAFETY: libfabric closes a fabric of ours once.
    drop(unsafe { Object::<fid_fabric>::take(fid) });
    0
}

/// Prepares waiting on the descriptors of these objects.
unsafe extern "C" fn trywait(fabric: *mut fid_fabric, fids: *mut *mut fid, count: c_int) -> c_int {
    // SAFETY: a fabric of ours, by libfabric's contract.
    let object = unsafe { Object::of(fabric) };
    let mut core = object.fabric.lock();
    // First: what has arrived by now would not make a descriptor readable any more.
    core.progress();
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: `count` pointers to objects of this fabric, by libfabric's contract.
        let waiter = unsafe { waiter(*fids.add(index)) };
        let Some(waiter) = waiter else {
            return -libc::EINVAL;
        };
        if core.has_news(waiter) {
            return -libc::EAGAIN;
        }
        core.arm_bell(waiter);
    }
    // Last: from here on the device reports everything by its descriptor.
    if core.arm() { 0 } else { -libc::EAGAIN }
}

/// The waiter of an object that supports waiting.
///
/// # Safety
/// An object of this provider that is not closed.
unsafe fn waiter(raw: *mut fid) -> Option<Waiter> {
    // SAFETY: the caller's promise; the class says which kind it is.
    unsafe {
        match (*raw).fclass {
            FI_CLASS_CQ => Some(Waiter::Cq(Object::<fid_cq>::of_fid(raw).index)),
            FI_CLASS_CNTR => Some(Waiter::Cntr(Object::<fid_cntr>::of_fid(raw).index)),
            FI_CLASS_EQ => Some(Waiter::Eq(Object::<fid_eq>::of_fid(raw).index)),
            _ => None,
        }
    }
}
