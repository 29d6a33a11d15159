//! System calls with a mark in an unused argument register: by it the filter lets them pass to the
//! kernel, or the supervisor recognizes a call of the library. And calls of netlink sockets with an
//! address, so that the supervisor sees them.
//!
//! Must stay true: the mark is cleared from its register when a call returns.

use crate::real::{errno, int, length, real, set_errno};
use crate::table;
use sidecore_net_rings::BY_ITSELF;
use std::ffi::{c_int, c_long, c_void};
use std::ptr;

/// Process and user of the creator of the other end, as reported by the kernel.
pub(crate) fn credentials(file: c_int) -> Option<(libc::pid_t, libc::uid_t)> {
    let mut peer = libc::ucred {
        pid: 0,
        uid: 0,
        gid: 0,
    };
    let to = (&raw mut peer).cast();
    // SAFETY: there is room for one `ucred`.
    let is_told = unsafe { ask_kernel(file, libc::SO_PEERCRED, to, size_of_val(&peer)) };
    is_told.then_some((peer.pid, peer.uid))
}

/// A number that the kernel reports for a descriptor by an option of level SOL_SOCKET; without the
/// supervisor. Leaves errno unchanged.
pub(crate) fn kernels_option(file: c_int, name: c_int) -> Option<c_int> {
    // The program did not make this call.
    let before = errno();
    let mut value: c_int = 0;
    let to = (&raw mut value).cast();
    // SAFETY: there is room for one number.
    let is_told = unsafe { ask_kernel(file, name, to, size_of_val(&value)) };
    set_errno(before);
    is_told.then_some(value)
}

/// getsockopt(2) of level SOL_SOCKET, past the supervisor.
///
/// # Safety
/// There is room for `room` bytes at `to`.
unsafe fn ask_kernel(file: c_int, name: c_int, to: *mut c_void, room: usize) -> bool {
    let mut bytes = length(room);
    let arguments = [
        file.into(),
        libc::SOL_SOCKET.into(),
        name.into(),
        address(to),
        address(&raw mut bytes),
    ];
    // SAFETY: the kernel writes at most the given number of bytes.
    unsafe { call(libc::SYS_getsockopt, arguments, BY_ITSELF + 1) == 0 }
}

/// True if the supervisor reports that it is, or was, connected to an Internet address: a session
/// that was established.
pub(crate) fn was_connected(file: c_int) -> bool {
    #[cfg(test)]
    if crate::tests::supervisor::was_connected(file) {
        return true;
    }
    has_internet(libc::SYS_getpeername, file)
}

/// True if the supervisor, or the kernel, reports an Internet address as the socket's own. Leaves
/// errno unchanged.
pub(crate) fn has_internet_name(file: c_int) -> bool {
    let before = errno();
    let has = has_internet(libc::SYS_getsockname, file);
    set_errno(before);
    has
}

/// True if the call returns an Internet address.
fn has_internet(call_number: c_long, file: c_int) -> bool {
    let mut family: libc::sa_family_t = 0;
    let mut bytes = length(size_of_val(&family));
    let arguments = [
        file.into(),
        address(&raw mut family),
        address(&raw mut bytes),
        0,
        0,
    ];
    // SAFETY: the kernel, or the supervisor, writes at most the given number of bytes.
    let result = unsafe { call(call_number, arguments, BY_ITSELF) };
    result == 0 && matches!(i32::from(family), libc::AF_INET | libc::AF_INET6)
}

/// A system call with a mark in its unused sixth argument, which supervisor and filter recognize;
/// -1 and the thread's errno if it fails.
///
/// The C library's syscall(2) is not used: it loads the argument from the stack, and the mark would
/// stay in its register, so that a later call of the program, which leaves the register unset,
/// would seem to come from the library.
///
/// # Safety
/// As for the call.
pub(crate) unsafe fn call(number: c_long, five: [c_long; 5], sixth: u64) -> c_int {
    // SAFETY: by the caller.
    let result = unsafe { raw_call(number, five, sixth) };
    // All calls with a mark return an int; errors are -4095 to -1.
    let result = int(result).unwrap_or(-libc::EOVERFLOW);
    if result < 0 {
        set_errno(-result);
        return -1;
    }
    result
}

/// The same, with [`BY_ITSELF`], for a call that may wait: the thread may be cancelled meanwhile,
/// as in the C library's function.
///
/// # Safety
/// As for the call; the thread has no lock and no memory that its end would leave.
pub(crate) unsafe fn waiting_call(number: c_long, five: [c_long; 5]) -> c_int {
    let mut before = 0;
    // SAFETY: by the caller.
    unsafe {
        // Only around the call: no lock is held and nothing is allocated in between.
        pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &raw mut before);
        let result = call(number, five, BY_ITSELF);
        pthread_setcanceltype(before, ptr::null_mut());
        result
    }
}

unsafe extern "C" {
    fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int;
}

const PTHREAD_CANCEL_ASYNCHRONOUS: c_int = 1;

/// True for a socket whose messages the supervisor has to see ([`table::ROUTES`]).
#[inline]
pub(crate) fn routes(file: c_int) -> bool {
    table::record(file).is_some_and(|record| record.has(table::ROUTES))
}

/// send(2) to the kernel's address.
pub(crate) fn ask_routes(file: c_int, from: *const c_void, bytes: usize, flags: c_int) -> isize {
    let to = (&raw const KERNEL).cast::<libc::sockaddr>();
    real!(sendto(file => c_int, from => *const c_void, bytes => usize, flags => c_int,
        to => *const libc::sockaddr, KERNEL_BYTES => libc::socklen_t) -> isize)
}

/// recv(2), with room for a sender.
pub(crate) fn hear_routes(file: c_int, to: *mut c_void, bytes: usize, flags: c_int) -> isize {
    let (mut from, mut room) = (KERNEL, KERNEL_BYTES);
    let from = (&raw mut from).cast::<libc::sockaddr>();
    real!(recvfrom(file => c_int, to => *mut c_void, bytes => usize, flags => c_int,
        from => *mut libc::sockaddr, &raw mut room => *mut libc::socklen_t) -> isize)
}

/// `struct sockaddr_nl` of the kernel.
static KERNEL: [u16; 6] = [libc::AF_NETLINK as u16, 0, 0, 0, 0, 0];
const KERNEL_BYTES: libc::socklen_t = 12;

/// The address of memory, as an argument of a system call.
pub(crate) fn address<T>(memory: *const T) -> c_long {
    memory.expose_provenance() as c_long
}

#[cfg(target_arch = "x86_64")]
unsafe fn raw_call(
    number: c_long,
    [one, two, three, four, five]: [c_long; 5],
    sixth: u64,
) -> c_long {
    let result;
    // SAFETY: by the caller; the kernel changes only the named registers.
    unsafe {
        std::arch::asm!(
            "syscall",
            "xor r9d, r9d",
            inlateout("rax") number => result,
            in("rdi") one,
            in("rsi") two,
            in("rdx") three,
            in("r10") four,
            in("r8") five,
            inlateout("r9") sixth => _,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

#[cfg(target_arch = "aarch64")]
unsafe fn raw_call(
    number: c_long,
    [one, two, three, four, five]: [c_long; 5],
    sixth: u64,
) -> c_long {
    let result;
    // SAFETY: by the caller; the kernel changes only the named registers.
    unsafe {
        std::arch::asm!(
            "svc 0",
            "mov x5, xzr",
            in("x8") number,
            inlateout("x0") one => result,
            in("x1") two,
            in("x2") three,
            in("x3") four,
            in("x4") five,
            inlateout("x5") sixth => _,
            options(nostack),
        );
    }
    result
}
