//! Namespaces: a private one of the network, whose interfaces no other process sees; one of users,
//! and mounts in which owners are mapped by it.
//!
//! Why here: leaving a namespace is a system call about the calling thread alone, which needs care,
//! and one of users is made by a process of its own. Must stay true: only the network's namespace
//! changes, for the calling thread, the threads that it starts afterwards, and their children;
//! descriptors and memory stay shared. The process that makes a namespace of users calls nothing
//! that takes a lock. Source: unshare(2), network_namespaces(7), user_namespaces(7),
//! mount_setattr(2).
//!
//! ```
//! use sidecore_sys::{interface, namespace};
//!
//! let own = || namespace::leave_network().map(|()| interface::set_up("lo"));
//! let thread = std::thread::spawn(own);
//! match thread.join().expect("no panic") {
//!     Ok(up) => assert!(up.is_ok(), "its own loopback is the thread's to change"),
//!     Err(error) => println!("needs root: {error}"),
//! }
//! ```
#![allow(unsafe_code)] // unshare(2), clone(2)

use crate::SysError;
use crate::linkless::{ATTR_READ_ONLY, set_attributes};
use rustix::fs::CWD;
use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, waitpid};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

/// Gives the calling thread a network namespace of its own, in which only a loopback is, still
/// down. It ends, with every interface in it, when its last thread and process do.
///
/// # Errors
/// [`SysError::Call`] where the thread may not (it needs `CAP_SYS_ADMIN`).
pub fn leave_network() -> Result<(), SysError> {
    // SAFETY: the flag unshares the network namespace and nothing that memory or descriptors of
    // other threads depend on.
    unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.map_err(|source| SysError::Call {
        call: "unshare",
        source: source.into(),
    })
}

/// A run of ids of users or groups: `count` from `inside` on in a namespace are those from
/// `outside` on in this process's one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRun {
    /// The first id in the namespace.
    pub inside: u32,
    /// The first id here.
    pub outside: u32,
    /// Number of ids, at least 1.
    pub count: u32,
}

/// A namespace of users with these maps, which a descriptor holds and no process is in. Starts a
/// process for a moment, and waits for its end. That process ends with this one.
///
/// # Errors
/// The system's: `EINVAL` for maps that overlap or have more than 340 runs, `EPERM` where this user
/// may not map those ids.
pub fn users(uids: &[IdRun], gids: &[IdRun]) -> io::Result<OwnedFd> {
    let (wait, go) = pipe_with(PipeFlags::CLOEXEC)?;
    let flags = libc::c_long::from(libc::CLONE_NEWUSER | libc::SIGCHLD);
    // SAFETY: without a stack and CLONE_VM, clone(2) is fork(2). The child, which may have been
    // made while other threads held locks, takes none: it goes on only below.
    let child =
        unsafe { libc::syscall(libc::SYS_clone, flags, 0_usize, 0_usize, 0_usize, 0_usize) };
    if child == 0 {
        let mut byte = 0_u8;
        // SAFETY: close(2), read(2) and _exit(2) may be called after a fork of a process with
        // threads. The descriptors are the child's own copies, and the byte is written to alone.
        unsafe {
            libc::close(go.as_raw_fd());
            // Until the parent is done, or has ended.
            while libc::read(wait.as_raw_fd(), (&raw mut byte).cast(), 1) < 0 {}
            libc::_exit(0);
        }
    }
    // -1 is no process, and would stand for all of them below.
    let number = i32::try_from(child).ok().filter(|number| *number > 0);
    let pid = number.and_then(Pid::from_raw);
    let pid = pid.ok_or_else(io::Error::last_os_error)?;
    let place = |name: &str| format!("/proc/{}/{name}", pid.as_raw_nonzero());
    let make = || -> io::Result<OwnedFd> {
        std::fs::write(place("uid_map"), lines(uids))?;
        std::fs::write(place("gid_map"), lines(gids))?;
        Ok(File::open(place("ns/user"))?.into())
    };
    let made = make();
    // A byte, and not the end of the pipe alone: a process that another thread has started
    // meanwhile may hold that end, too. A pipe with room takes it.
    let _ = rustix::io::write(&go, &[0]);
    while matches!(waitpid(Some(pid), WaitOptions::empty()), Err(Errno::INTR)) {}
    made
}

/// A map as the kernel takes it.
fn lines(runs: &[IdRun]) -> String {
    let lines = runs.iter().map(|run| {
        let IdRun {
            inside,
            outside,
            count,
        } = run;
        format!("{inside} {outside} {count}\n")
    });
    lines.collect()
}

/// Mounts the directory `from` on the directory `to` once more, read-only, with owners mapped by a
/// namespace of [`users`]: what belongs to an inside id there belongs to the outside id here. Needs
/// `CAP_SYS_ADMIN`; mounts below `from` are not there.
///
/// # Errors
/// The system's: `EINVAL` for a file system that maps no owners, `ENOSYS` before Linux 5.12.
pub fn mount_mapped(from: &Path, to: &Path, users: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let copy = open_tree(CWD, from, flags)?;
    set_attributes(copy.as_fd(), ATTR_IDMAP | ATTR_READ_ONLY, Some(users))?;
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(move_mount(copy.as_fd(), "", CWD, to, flags)?)
}

/// `MOUNT_ATTR_IDMAP`.
const ATTR_IDMAP: u64 = 0x0010_0000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn owners_in_a_mapped_mount_are_those_outside() {
        let run = |inside, outside, count| IdRun {
            inside,
            outside,
            count,
        };
        let (uids, gids) = ([run(0, 100_000, 65_536)], [run(0, 200_000, 65_536)]);
        let users = match users(&uids, &gids) {
            Ok(users) => users,
            // Not allowed, or their number is limited to none.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSPC)) => {
                eprintln!("skipped: no user namespace here: {error}");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        super::users(&[run(0, 1, 5), run(3, 100, 5)], &gids).unwrap_err();
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        std::fs::create_dir(&from).unwrap();
        std::fs::create_dir(&to).unwrap();
        std::fs::write(from.join("file"), "x").unwrap();
        match mount_mapped(&from, &to, users.as_fd()) {
            Ok(()) => {}
            // An old kernel, or a file system that maps no owners.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS)) => {
                eprintln!("skipped: no mapped mounts here: {error}");
                return;
            }
            Err(error) => panic!("{error}"),
        }
        let seen = std::fs::metadata(to.join("file"));
        let written = std::fs::write(to.join("other"), "x");
        rustix::mount::unmount(&to, rustix::mount::UnmountFlags::DETACH).unwrap();
        let seen = seen.unwrap();
        assert_eq!((seen.uid(), seen.gid()), (100_000, 200_000));
        let refused = written.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ReadOnlyFilesystem);
    }

    #[test]
    fn a_thread_sees_other_interfaces_than_before() {
        let namespace = || std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        let before = namespace();
        std::thread::spawn(move || {
            super::leave_network().unwrap();
            assert_ne!(namespace(), before);
            // A loopback, which is down; a kernel may add tunnels, which are down, too.
            assert!(interface::index("lo").is_ok());
            let routes = std::fs::read_to_string("/proc/thread-self/net/route").unwrap();
            assert!(routes.lines().count() <= 1, "a line of heads: {routes}");
        })
        .join()
        .unwrap();
    }
}
