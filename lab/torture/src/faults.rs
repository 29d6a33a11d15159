//! The system calls that are made to fail, and the error that each then gives.
//!
//! Why here: one table defines a failure, for the filter that stops the calls and for the tracer
//! that answers them. Must stay true: each error is one that the call's manual page names for a
//! resource that ran out or a device that failed, so that a program must expect it.

/// A kind of failure: calls that run out of the same resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Resource {
    Descriptors,
    Reading,
    Writing,
    Flushing,
    Memory,
    Threads,
    Names,
    Peers,
    Kernel,
}

/// One system call that can fail.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault {
    pub(crate) call: i64,
    pub(crate) name: &'static str,
    pub(crate) resource: Resource,
    pub(crate) errno: i32,
}

impl Fault {
    /// The fault of a call by its number.
    pub(crate) fn of(call: i64) -> Option<Self> {
        FAULTS.iter().find(|fault| fault.call == call).copied()
    }

    /// The call moves bytes, so that it may move fewer than asked for, or be interrupted: the
    /// register of its first argument that counts bytes, if it has one.
    pub(crate) fn moves_bytes(self) -> bool {
        matches!(
            self.call,
            libc::SYS_read
                | libc::SYS_write
                | libc::SYS_pread64
                | libc::SYS_pwrite64
                | libc::SYS_copy_file_range
        )
    }

    /// The call waits, so that a signal may interrupt it.
    pub(crate) fn can_be_interrupted(self) -> bool {
        matches!(
            self.call,
            libc::SYS_read
                | libc::SYS_readv
                | libc::SYS_write
                | libc::SYS_writev
                | libc::SYS_accept4
                | libc::SYS_connect
                | libc::SYS_sendmsg
                | libc::SYS_sendto
                | libc::SYS_recvmsg
                | libc::SYS_recvfrom
                | libc::SYS_flock
                | libc::SYS_fallocate
                | libc::SYS_openat
        )
    }
}

const fn fault(call: i64, name: &'static str, resource: Resource, errno: i32) -> Fault {
    Fault {
        call,
        name,
        resource,
        errno,
    }
}

/// All of them. `mprotect` and `munmap` are left out: they fail for wrong arguments alone, except
/// for limits that `mmap` meets first. `close` is left out, since its descriptor is gone all the
/// same.
pub(crate) const FAULTS: &[Fault] = {
    use Resource::{
        Descriptors, Flushing, Kernel, Memory, Names, Peers, Reading, Threads, Writing,
    };
    &[
        fault(libc::SYS_open, "open", Descriptors, libc::EMFILE),
        fault(libc::SYS_openat, "openat", Descriptors, libc::EMFILE),
        fault(libc::SYS_openat2, "openat2", Descriptors, libc::EMFILE),
        fault(libc::SYS_dup, "dup", Descriptors, libc::EMFILE),
        fault(libc::SYS_dup3, "dup3", Descriptors, libc::EBUSY),
        fault(libc::SYS_pipe2, "pipe2", Descriptors, libc::EMFILE),
        fault(libc::SYS_eventfd2, "eventfd2", Descriptors, libc::EMFILE),
        fault(
            libc::SYS_epoll_create1,
            "epoll_create1",
            Descriptors,
            libc::EMFILE,
        ),
        fault(
            libc::SYS_timerfd_create,
            "timerfd_create",
            Descriptors,
            libc::EMFILE,
        ),
        fault(
            libc::SYS_memfd_create,
            "memfd_create",
            Descriptors,
            libc::EMFILE,
        ),
        fault(libc::SYS_socket, "socket", Descriptors, libc::EMFILE),
        fault(
            libc::SYS_socketpair,
            "socketpair",
            Descriptors,
            libc::EMFILE,
        ),
        fault(libc::SYS_accept4, "accept4", Descriptors, libc::EMFILE),
        fault(
            libc::SYS_pidfd_open,
            "pidfd_open",
            Descriptors,
            libc::EMFILE,
        ),
        fault(
            libc::SYS_inotify_init1,
            "inotify_init1",
            Descriptors,
            libc::EMFILE,
        ),
        fault(
            libc::SYS_io_uring_setup,
            "io_uring_setup",
            Descriptors,
            libc::ENOMEM,
        ),
        fault(libc::SYS_read, "read", Reading, libc::EIO),
        fault(libc::SYS_pread64, "pread64", Reading, libc::EIO),
        fault(libc::SYS_readv, "readv", Reading, libc::EIO),
        fault(libc::SYS_preadv, "preadv", Reading, libc::EIO),
        fault(libc::SYS_getdents64, "getdents64", Reading, libc::EIO),
        fault(libc::SYS_statx, "statx", Reading, libc::EIO),
        fault(libc::SYS_fstat, "fstat", Reading, libc::EIO),
        fault(libc::SYS_newfstatat, "newfstatat", Reading, libc::EIO),
        fault(libc::SYS_readlink, "readlink", Reading, libc::EIO),
        fault(libc::SYS_readlinkat, "readlinkat", Reading, libc::EIO),
        fault(libc::SYS_lseek, "lseek", Reading, libc::EINVAL),
        fault(libc::SYS_write, "write", Writing, libc::ENOSPC),
        fault(libc::SYS_pwrite64, "pwrite64", Writing, libc::ENOSPC),
        fault(libc::SYS_writev, "writev", Writing, libc::ENOSPC),
        fault(libc::SYS_pwritev, "pwritev", Writing, libc::ENOSPC),
        fault(
            libc::SYS_copy_file_range,
            "copy_file_range",
            Writing,
            libc::ENOSPC,
        ),
        fault(libc::SYS_fallocate, "fallocate", Writing, libc::ENOSPC),
        fault(libc::SYS_ftruncate, "ftruncate", Writing, libc::EIO),
        fault(libc::SYS_fsync, "fsync", Flushing, libc::EIO),
        fault(libc::SYS_fdatasync, "fdatasync", Flushing, libc::EIO),
        fault(libc::SYS_syncfs, "syncfs", Flushing, libc::EIO),
        fault(libc::SYS_msync, "msync", Flushing, libc::EIO),
        fault(libc::SYS_mmap, "mmap", Memory, libc::ENOMEM),
        fault(libc::SYS_mremap, "mremap", Memory, libc::ENOMEM),
        fault(libc::SYS_madvise, "madvise", Memory, libc::EAGAIN),
        fault(libc::SYS_mlock, "mlock", Memory, libc::ENOMEM),
        fault(libc::SYS_clone, "clone", Threads, libc::EAGAIN),
        fault(libc::SYS_clone3, "clone3", Threads, libc::EAGAIN),
        fault(libc::SYS_vfork, "vfork", Threads, libc::EAGAIN),
        fault(libc::SYS_fork, "fork", Threads, libc::EAGAIN),
        fault(
            libc::SYS_sched_setaffinity,
            "sched_setaffinity",
            Threads,
            libc::EINVAL,
        ),
        fault(libc::SYS_rename, "rename", Names, libc::ENOSPC),
        fault(libc::SYS_renameat, "renameat", Names, libc::ENOSPC),
        fault(libc::SYS_renameat2, "renameat2", Names, libc::ENOSPC),
        fault(libc::SYS_link, "link", Names, libc::ENOSPC),
        fault(libc::SYS_linkat, "linkat", Names, libc::ENOSPC),
        fault(libc::SYS_symlinkat, "symlinkat", Names, libc::ENOSPC),
        fault(libc::SYS_unlink, "unlink", Names, libc::EIO),
        fault(libc::SYS_unlinkat, "unlinkat", Names, libc::EIO),
        fault(libc::SYS_mkdir, "mkdir", Names, libc::ENOSPC),
        fault(libc::SYS_mkdirat, "mkdirat", Names, libc::ENOSPC),
        fault(libc::SYS_bind, "bind", Peers, libc::EADDRINUSE),
        fault(libc::SYS_listen, "listen", Peers, libc::EADDRINUSE),
        fault(libc::SYS_connect, "connect", Peers, libc::ECONNREFUSED),
        fault(libc::SYS_sendmsg, "sendmsg", Peers, libc::ENOBUFS),
        fault(libc::SYS_sendto, "sendto", Peers, libc::ENOBUFS),
        fault(libc::SYS_recvmsg, "recvmsg", Peers, libc::ENOMEM),
        fault(libc::SYS_recvfrom, "recvfrom", Peers, libc::ENOMEM),
        fault(libc::SYS_setsockopt, "setsockopt", Peers, libc::ENOBUFS),
        fault(libc::SYS_getsockopt, "getsockopt", Peers, libc::ENOBUFS),
        fault(libc::SYS_epoll_ctl, "epoll_ctl", Kernel, libc::ENOMEM),
        fault(libc::SYS_flock, "flock", Kernel, libc::ENOLCK),
        fault(libc::SYS_ioctl, "ioctl", Kernel, libc::ENOMEM),
        fault(libc::SYS_mount, "mount", Kernel, libc::ENOMEM),
        fault(libc::SYS_umount2, "umount2", Kernel, libc::EBUSY),
        fault(libc::SYS_fcntl, "fcntl", Kernel, libc::EMFILE),
        fault(
            libc::SYS_io_uring_enter,
            "io_uring_enter",
            Kernel,
            libc::EAGAIN,
        ),
        fault(libc::SYS_seccomp, "seccomp", Kernel, libc::ENOMEM),
        fault(libc::SYS_unshare, "unshare", Kernel, libc::ENOSPC),
        fault(libc::SYS_setns, "setns", Kernel, libc::ENOMEM),
    ]
};

/// The call by which a Rust program's start is recognized: earlier ones are the dynamic linker's.
pub(crate) const STARTED: i64 = libc::SYS_poll;
