//! Calls of the C library that this one answers: about the device's file, and accept4(2).
//!
//! Some programs look for a file before they open the device: UCX passes over a device without a
//! character device in `/dev/infiniband` that it may read and write. There is no such file, so
//! stat(2) and access(2) answer for its path. `librspreload`, by which programs use `rsocket`
//! unmodified, has accept(2) and not accept4(2): a program that calls this one would not reach it.
//!
//! They are a program's own calls only where this library is loaded ahead of the C library
//! (`LD_PRELOAD`, as `sidecore rdma run` does).
//!
//! Must stay true: every call goes to the next library first, and its answer stands for all paths
//! but that one, and for all sockets; a file that is there is seen as it is. A call that succeeds
//! leaves `errno` as it was. The calls are allowed in signal handlers, where dlsym(3) is not: it is
//! called at load.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// The file's name in `/dev/infiniband`.
pub(crate) const NAME: &CStr = c"sidecore-verbs0";
const PATH: &CStr = c"/dev/infiniband/sidecore-verbs0";

/// Looks up the functions when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = {
    extern "C" fn loaded() {
        for next in [
            &STAT, &STAT64, &XSTAT, &XSTAT64, &ACCESS, &ACCEPT4, &ACCEPT, &FCNTL,
        ] {
            next.address();
        }
    }
    loaded
};

/// A function of the libraries behind this one, or of all, looked up once.
struct Next {
    name: &'static CStr,
    of_all: bool,
    found: AtomicPtr<c_void>,
}

impl Next {
    const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            of_all: false,
            found: AtomicPtr::new(std::ptr::null_mut()),
        }
    }

    /// The one that the program calls.
    const fn of_all(name: &'static CStr) -> Self {
        Self {
            of_all: true,
            ..Self::new(name)
        }
    }

    /// Its address; NULL if there is none.
    fn address(&self) -> *mut c_void {
        // Relaxed: all threads look up the same address.
        let found = self.found.load(Ordering::Relaxed);
        if !found.is_null() {
            return found;
        }
        let from = match self.of_all {
            true => libc::RTLD_DEFAULT,
            false => libc::RTLD_NEXT,
        };
        // SAFETY: dlsym(3) takes a name that ends with a zero.
        let found = unsafe { libc::dlsym(from, self.name.as_ptr()) };
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

/// True for the device's path, of a call that has failed for want of a file.
///
/// # Safety
/// The path of that call.
unsafe fn is_device(path: *const c_char) -> bool {
    // After these errors alone the kernel has read the path, and so it can be read here.
    let is_missing = matches!(crate::last_errno(), libc::ENOENT | libc::EACCES);
    // SAFETY: the caller's promise; the string ends with a zero.
    is_missing && unsafe { CStr::from_ptr(path) } == PATH
}

/// Properties as of the kernel's own devices of this kind.
fn shown() -> libc::stat {
    // SAFETY: a structure of numbers.
    let mut shown: libc::stat = unsafe { std::mem::zeroed() };
    shown.st_mode = libc::S_IFCHR | 0o666;
    shown.st_nlink = 1;
    shown.st_rdev = libc::makedev(231, 192);
    shown
}

/// Defines calls of stat(2), each with the argument in front of the path.
macro_rules! stats {
    ($($name:ident $next:ident: $text:literal ($($version:ident: $kind:ty)?);)*) => {$(
        static $next: Next = Next::new($text);

        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            $($version: $kind,)? path: *const c_char, target: *mut libc::stat,
        ) -> c_int {
            type Call = unsafe extern "C" fn($($kind,)? *const c_char, *mut libc::stat) -> c_int;
            let before = crate::last_errno();
            // SAFETY: the C library's function of this name has this type; arguments are the
            // program's.
            unsafe {
                let next: Option<Call> = std::mem::transmute($next.address());
                let Some(next) = next else {
                    return crate::fail(libc::ENOSYS);
                };
                match next($($version,)? path, target) {
                    0 => 0,
                    _ if is_device(path) => {
                        crate::errno(before);
                        target.write(shown());
                        0
                    }
                    failed => failed,
                }
            }
        }
    )*};
}

// Programs that were built with glibc before 2.33 have the names with a version.
stats! {
    stat STAT: c"stat" ();
    stat64 STAT64: c"stat64" ();
    __xstat XSTAT: c"__xstat" (version: c_int);
    __xstat64 XSTAT64: c"__xstat64" (version: c_int);
}

static ACCESS: Next = Next::new(c"access");

/// access(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn access(path: *const c_char, mode: c_int) -> c_int {
    type Call = unsafe extern "C" fn(*const c_char, c_int) -> c_int;
    let before = crate::last_errno();
    // SAFETY: as of stat(2).
    unsafe {
        let next: Option<Call> = std::mem::transmute(ACCESS.address());
        let Some(next) = next else {
            return crate::fail(libc::ENOSYS);
        };
        match next(path, mode) {
            0 => 0,
            _ if is_device(path) && mode & libc::X_OK == 0 => {
                crate::errno(before);
                0
            }
            failed => failed,
        }
    }
}

static ACCEPT4: Next = Next::new(c"accept4");
static ACCEPT: Next = Next::of_all(c"accept");
static FCNTL: Next = Next::of_all(c"fcntl");

/// accept4(2).
#[unsafe(no_mangle)]
unsafe extern "C" fn accept4(
    fd: c_int,
    address: *mut libc::sockaddr,
    count: *mut libc::socklen_t,
    flags: c_int,
) -> c_int {
    type Accept4 =
        unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut libc::socklen_t, c_int) -> c_int;
    type Accept = unsafe extern "C" fn(c_int, *mut libc::sockaddr, *mut libc::socklen_t) -> c_int;
    type Fcntl = unsafe extern "C" fn(c_int, c_int, ...) -> c_int;
    let before = crate::last_errno();
    // SAFETY: as of stat(2).
    unsafe {
        let next: Option<Accept4> = std::mem::transmute(ACCEPT4.address());
        let Some(next) = next else {
            return crate::fail(libc::ENOSYS);
        };
        let accepted = next(fd, address, count, flags);
        let known = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // librspreload's descriptors are no sockets of the kernel, and its accept knows them.
        if accepted >= 0 || crate::last_errno() != libc::ENOTSOCK || flags & !known != 0 {
            return accepted;
        }
        let accept: Option<Accept> = std::mem::transmute(ACCEPT.address());
        let fcntl: Option<Fcntl> = std::mem::transmute(FCNTL.address());
        let (Some(accept), Some(fcntl)) = (accept, fcntl) else {
            return accepted;
        };
        let accepted = accept(fd, address, count);
        if accepted < 0 {
            return accepted;
        }
        if flags & libc::SOCK_NONBLOCK != 0 {
            let shown = fcntl(accepted, libc::F_GETFL);
            fcntl(accepted, libc::F_SETFL, shown.max(0) | libc::O_NONBLOCK);
        }
        if flags & libc::SOCK_CLOEXEC != 0 {
            fcntl(accepted, libc::F_SETFD, libc::FD_CLOEXEC);
        }
        crate::errno(before);
        accepted
    }
}
