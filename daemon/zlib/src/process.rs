//! A mark that a process has and its children by `fork` do not, and the end of system calls that a
//! program asks for.
//!
//! Why here: a process number costs a system call, which a program may have forbidden itself after
//! its first stream (seccomp). zlib makes none then.
//! Must stay true: reading the mark is a load. Source: madvise(2), `MADV_WIPEONFORK`.

use libc::{c_int, c_ulong};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Set in the process that made it; the kernel clears it in every child. Never unmapped.
pub(crate) struct ProcessMark(NonNull<AtomicU8>);

// SAFETY: a page that is never unmapped, and atomics in it.
unsafe impl Send for ProcessMark {}
// SAFETY: as above.
unsafe impl Sync for ProcessMark {}

impl ProcessMark {
    /// `None` where the kernel has no such pages (before Linux 4.14).
    pub(crate) fn new() -> Option<Self> {
        let (protection, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a new mapping.
        let page = unsafe { libc::mmap(ptr::null_mut(), PAGE_BYTES, protection, flags, -1, 0) };
        if page == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: the mapping of just now.
        if unsafe { libc::madvise(page, PAGE_BYTES, libc::MADV_WIPEONFORK) } != 0 {
            // SAFETY: as above; no other has its address.
            unsafe { libc::munmap(page, PAGE_BYTES) };
            return None;
        }
        let mark = NonNull::new(page.cast::<AtomicU8>())?;
        // SAFETY: mapped for writing, and never unmapped.
        unsafe { mark.as_ref() }.store(1, Ordering::Relaxed);
        Some(Self(mark))
    }

    /// True in the process that made it.
    pub(crate) fn is_here(&self) -> bool {
        // SAFETY: never unmapped.
        unsafe { self.0.as_ref() }.load(Ordering::Relaxed) == 1
    }
}

/// True once this process has limited its own system calls. It keeps to its own thread then, which
/// needs none.
pub(crate) fn is_limited() -> bool {
    LIMITED.load(Ordering::Relaxed)
}

static LIMITED: AtomicBool = AtomicBool::new(false);

/// prctl(2), which says whether system calls are limited from now on. A call that was refused says
/// nothing: programs ask with one whether the kernel has filters.
///
/// # Safety
/// As the kernel's manual says for the option.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(
    option: c_int,
    second: c_ulong,
    third: c_ulong,
    fourth: c_ulong,
    fifth: c_ulong,
) -> c_int {
    // SAFETY: the caller's promise; unused arguments are ignored by the kernel as they are by libc.
    let result =
        unsafe { libc::syscall(libc::SYS_prctl, option, second, third, fourth, fifth) as c_int };
    // A store alone, and no call: in the strict mode any would end the process.
    if option == libc::PR_SET_SECCOMP && result == 0 {
        LIMITED.store(true, Ordering::Relaxed);
    }
    result
}

const PAGE_BYTES: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_limited_once_its_call_succeeded() {
        let set = |mode: u32, filter: c_ulong| {
            // SAFETY: the filter is null, which the kernel refuses.
            unsafe { prctl(libc::PR_SET_SECCOMP, mode.into(), filter, 0, 0) }
        };
        // How programs ask whether there are filters: EFAULT, or EINVAL without them.
        assert_eq!(set(libc::SECCOMP_MODE_FILTER, 0), -1);
        assert!(!is_limited());
        // SAFETY: the child makes system calls alone; in the strict mode `exit` is allowed, and
        // `exit_group`, by which a process ends otherwise, is not.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                let result = set(libc::SECCOMP_MODE_STRICT, 0);
                let code = if result == 0 && is_limited() { 7 } else { 1 };
                libc::syscall(libc::SYS_exit, code);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            status
        };
        assert!(libc::WIFEXITED(status), "{status}");
        assert_eq!(libc::WEXITSTATUS(status), 7);
        assert!(!is_limited());
    }
}
