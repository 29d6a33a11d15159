//! Mounts a FUSE file system, detached or on a directory, removes the mount, and aborts a
//! connection that is still in use.
//!
//! Why here: root mounts by itself; other users have the set-user-id helper `fusermount3` do it,
//! which returns the device's descriptor over a socket. A mount in another namespace, or a program
//! with an open file, keeps a server alive after `umount`; an abort gives those users an error and
//! lets the server go.
//! Must stay true: a mount that failed half-way leaves nothing behind; the end of a session removes
//! its mount if it is still there. A connection is aborted only while its server is known to live,
//! because numbers are reused.
//!
//! Callable from any thread; all block on the kernel, or on the helper.
//! Source: fsopen(2), fsmount(2), `Documentation/filesystems/fuse/fuse.rst`, `fusermount3(1)`.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, unmount,
};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Options of a mount.
#[derive(Debug, Clone)]
pub(super) struct Kind {
    /// Source that the mount table shows.
    pub source: String,
    pub writable: bool,
    /// Users other than the mount's owner may use it.
    pub for_all: bool,
    /// The kernel checks callers' access by modes and owners.
    pub check_permissions: bool,
}

/// A directory on which a session is mounted; dropping it removes the mount if it is still there.
#[derive(Debug)]
pub(super) struct Place {
    dir: PathBuf,
    /// Its state shows if the mount is still there.
    device: OwnedFd,
}

impl Drop for Place {
    fn drop(&mut self) {
        // A second unmount could remove another mount on the same directory.
        if is_mounted(&self.device) {
            detach(&self.dir);
        }
    }
}

/// Mounts detached; returns the descriptors of the device and of the mount.
///
/// # Errors
/// Those of the system calls; `NOENT` and `ACCESS` of `/dev/fuse` among them.
pub(super) fn nowhere(kind: &Kind) -> Result<(OwnedFd, OwnedFd), Errno> {
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let context = rustix::mount::fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let set =
        |key: &str, value: &str| rustix::mount::fsconfig_set_string(context.as_fd(), key, value);
    let set_flag = |key: &str| rustix::mount::fsconfig_set_flag(context.as_fd(), key);
    set("source", &kind.source)?;
    set("subtype", "sidecore")?;
    // The descriptor is looked up in this process: nothing needs to be passed on.
    set("fd", &device.as_raw_fd().to_string())?;
    set("rootmode", "40000")?;
    set("user_id", &rustix::process::geteuid().as_raw().to_string())?;
    set("group_id", &rustix::process::getegid().as_raw().to_string())?;
    if kind.for_all {
        set_flag("allow_other")?;
    }
    if kind.check_permissions {
        set_flag("default_permissions")?;
    }
    let mut attributes = MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_NOSUID;
    if !kind.writable {
        set_flag("ro")?;
        attributes |= MountAttrFlags::MOUNT_ATTR_RDONLY;
    }
    rustix::mount::fsconfig_create(context.as_fd())?;
    let flags = FsMountFlags::FSMOUNT_CLOEXEC;
    let mount = rustix::mount::fsmount(context.as_fd(), flags, attributes)?;
    Ok((device, mount))
}

/// Mounts on a directory, by `fusermount3` where the caller may not.
///
/// # Errors
/// Those of the system calls, or the helper's message.
pub(super) fn on(dir: &Path, kind: &Kind) -> io::Result<(OwnedFd, Place)> {
    let dir = dir.canonicalize()?;
    let device = match nowhere(kind) {
        Ok((device, mount)) => {
            let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
            rustix::mount::move_mount(mount.as_fd(), "", rustix::fs::CWD, &dir, flags)?;
            device
        }
        // An old kernel, or a user without rights: only the helper may open the device.
        Err(Errno::PERM | Errno::ACCESS | Errno::NOSYS) => by_helper(&dir, kind)?,
        Err(error) => return Err(error.into()),
    };
    let place = Place {
        dir,
        device: rustix::io::fcntl_dupfd_cloexec(&device, 0)?,
    };
    Ok((device, place))
}

/// Has `fusermount3` mount, and receives the device's descriptor from it.
fn by_helper(dir: &Path, kind: &Kind) -> io::Result<OwnedFd> {
    let mut options = vec![
        format!("fsname={}", kind.source),
        "subtype=sidecore,nodev,nosuid".into(),
        if kind.writable { "rw" } else { "ro" }.into(),
    ];
    options.extend(kind.check_permissions.then(|| "default_permissions".into()));
    options.extend(kind.for_all.then(|| "allow_other".into()));
    // The helper's end of the socket is its standard input, so that no additional descriptor has to
    // be passed across exec(2).
    let (ours, theirs) = UnixStream::pair()?;
    let mut command = Command::new(HELPER);
    command.arg("-o").arg(options.join(",")).arg("--").arg(dir);
    command.env("_FUSE_COMMFD", "0");
    command.stdin(OwnedFd::from(theirs));
    let command = command.stdout(Stdio::null()).stderr(Stdio::piped());
    let helper = command.spawn()?;
    // The command holds the other end as well.
    command.stdin(Stdio::null());
    let received = receive(&ours);
    drop(ours);
    let output = helper.wait_with_output()?;
    match received {
        Ok(Some(device)) => Ok(device),
        Ok(None) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(io::Error::other(said.trim().to_owned()))
        }
        Err(error) => Err(error.into()),
    }
}

/// Advice for a failed mount on `dir`, begun by a semicolon; empty where the error suffices.
pub(super) fn hint(error: &io::Error, dir: &Path) -> &'static str {
    let has_device = Path::new("/dev/fuse").exists();
    advice(error, dir.exists(), has_device)
}

fn advice(error: &io::Error, has_folder: bool, has_device: bool) -> &'static str {
    let said = error.to_string();
    let is_missing = error.kind() == io::ErrorKind::NotFound && has_folder;
    let without_driver = [Errno::NODEV, Errno::NXIO].map(Errno::raw_os_error);
    let is_driverless = error
        .raw_os_error()
        .is_some_and(|code| without_driver.contains(&code));
    if is_missing && !has_device || is_driverless || said.contains("fuse device not found") {
        NO_DEVICE
    } else if is_missing {
        "; install the package fuse3, whose fusermount3 mounts for users"
    } else if said.contains("/dev/fuse") && said.contains("ermission denied") {
        "; users may mount once `chmod 666 /dev/fuse` was done as root, as udev does"
    } else {
        ""
    }
}

/// The descriptor that is received over a socket; `None` where the other side closed it.
fn receive(socket: &UnixStream) -> Result<Option<OwnedFd>, Errno> {
    let mut byte = [0];
    let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut room);
    rustix::io::retry_on_intr(|| {
        let parts = &mut [IoSliceMut::new(&mut byte)];
        recvmsg(socket, parts, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut messages = control.drain();
    Ok(messages.find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    }))
}

/// True while the session of a device is mounted: afterwards the device reports an error.
fn is_mounted(device: &OwnedFd) -> bool {
    // POLLERR is reported without being asked for.
    let mut polled = [PollFd::new(device, PollFlags::empty())];
    match poll(&mut polled, Some(&Timespec::default())) {
        Ok(_) => !polled[0].revents().contains(PollFlags::ERR),
        Err(_) => false,
    }
}

/// Removes a mount even if files are open; returns whether it is gone.
pub(crate) fn detach(dir: &Path) -> bool {
    let Err(error) = unmount(dir, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) else {
        return true;
    };
    // Without root only the set-user-id helper may unmount.
    let helped = error == Errno::PERM
        && Command::new(HELPER)
            .arg("-uzq")
            .arg("--")
            .arg(dir)
            .status()
            .is_ok_and(|status| status.success());
    if !helped {
        tracing::warn!("cannot unmount {}: {error}", dir.display());
    }
    helped
}

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

/// Advice for a machine without the device.
pub(super) const NO_DEVICE: &str = "; there is no /dev/fuse: run `modprobe fuse` as root, or start \
     the container with --device /dev/fuse; `block serve` needs none";

/// The set-user-id program that mounts FUSE for users, of the package fuse3.
const HELPER: &str = "fusermount3";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_fits_the_error() {
        let missing = io::Error::from(io::ErrorKind::NotFound);
        assert!(advice(&missing, true, true).contains("install the package fuse3"));
        assert_eq!(advice(&missing, false, true), "");
        let no_driver = io::Error::from(Errno::NODEV);
        let by_helper = "fusermount3: fuse device not found, try 'modprobe fuse' first";
        let by_helper = io::Error::other(by_helper);
        for (error, has_device) in [(&missing, false), (&no_driver, true), (&by_helper, false)] {
            let advice = advice(error, true, has_device);
            assert!(advice.contains("modprobe fuse"), "{error}: {advice}");
            assert!(!advice.contains("fuse3"), "{error}: {advice}");
        }
        let closed = "fusermount3: failed to open /dev/fuse: Permission denied";
        assert!(advice(&io::Error::other(closed), true, true).contains("chmod 666 /dev/fuse"));
        let other = "fusermount3: mountpoint is not empty";
        assert_eq!(advice(&io::Error::other(other), true, true), "");
    }
}
