//! Aborts a FUSE connection that is still in use.
//!
//! Why here: a mount in another namespace, or a program with an open file, keeps a server alive
//! after `umount`; an abort gives those users an error and lets the server go.
//! Must stay true: a connection is aborted only while its server is known to live, because numbers
//! are reused.
//! Callable from any thread. Source: `Documentation/filesystems/fuse/fuse.rst`, "Control
//! filesystem".

use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Aborts connection `number`: all its requests fail, now and later, and its server's reads of the
/// device return.
///
/// # Errors
/// Not found when there is no such connection; otherwise the permission is missing.
pub(crate) fn abort(number: u32) -> io::Result<()> {
    let usual = format!("/sys/fs/fuse/connections/{number}/abort");
    let file = match rustix::fs::open(usual, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()) {
        Ok(file) => file,
        // The control file system is not mounted everywhere; a detached mount of it works as well.
        Err(_) => open_in(&control()?, number)?,
    };
    rustix::io::write(file, b"1")?;
    Ok(())
}

fn control() -> io::Result<OwnedFd> {
    let context = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(context.as_fd())?;
    let flags = FsMountFlags::FSMOUNT_CLOEXEC;
    Ok(rustix::mount::fsmount(
        context.as_fd(),
        flags,
        MountAttrFlags::empty(),
    )?)
}

fn open_in(control: &OwnedFd, number: u32) -> io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let path = format!("{number}/abort");
    Ok(rustix::fs::openat(control, path, flags, Mode::empty())?)
}
