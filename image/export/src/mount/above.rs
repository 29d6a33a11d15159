//! The file system on an image's file or device: written out, and shut down in order, wherever it
//! is mounted.
//!
//! Why here: a server has to reach it after its own directory is unmounted: other mount namespaces
//! and open files keep the file system alive. A second mount of the same device is the same file
//! system.
//! Must stay true: a device is examined through a descriptor that keeps it connected to our file,
//! so that no other file system is touched. Nothing here is called by a thread that serves
//! requests, and the server calls it only apart from its FUSE device
//! ([`apart`](sidecore_sys::apart)): opening, writing out, and closing what may be the last
//! reference all wait for the session.
//! Source: `get_tree_bdev` in `fs/super.c` of Linux, syncfs(2).

use super::inner::{FileSystem, mount_nowhere};
use crate::ExportError;
use crate::loopdev;
use crate::state::{Record, table};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use sidecore_sys::file_system;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// A file system that is reached without a mount point, as long as this exists.
pub(super) struct Above {
    root: OwnedFd,
    _mount: OwnedFd,
}

impl Above {
    /// The file system on a server's loop device; `None` if no mount uses the device any more.
    ///
    /// # Errors
    /// Why it cannot be reached.
    pub(super) fn of(
        record: &Record,
        file_system: FileSystem,
    ) -> Result<Option<Self>, ExportError> {
        let Some((_device, number)) = device(record).map_err(ExportError::Loop)? else {
            return Ok(None);
        };
        let path = loopdev::path(number);
        let alone = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
        match rustix::fs::open(&path, alone, Mode::empty()) {
            // A mounted file system holds its device exclusively.
            Err(Errno::BUSY) => {}
            Ok(_) => return Ok(None),
            Err(error) => return Err(ExportError::Loop(error.into())),
        }
        // The kernel returns the file system that is mounted already, whatever options are asked
        // for.
        let mount = mount_nowhere(file_system, &path.to_string_lossy(), false, true)?;
        let root = root_of(&mount).map_err(|e| ExportError::os("cannot open its root", e))?;
        Ok(Some(Self {
            root,
            _mount: mount,
        }))
    }

    /// Has the kernel write out all dirty pages.
    ///
    /// # Errors
    /// The system's: some data could not be written.
    pub(super) fn write_out(&self) -> io::Result<()> {
        Ok(rustix::fs::syncfs(&self.root)?)
    }

    /// As [`Self::write_out`], and has all later writes fail.
    ///
    /// # Errors
    /// The system's; the file system stays usable then.
    pub(super) fn shut_down(&self) -> io::Result<()> {
        Ok(file_system::shut_down(&self.root)?)
    }
}

/// The root directory of a mount that may be detached.
pub(super) fn root_of(mount: impl AsFd) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(mount, ".", flags, Mode::empty())
}

/// A server's loop device, which stays connected while the descriptor is open, and its number;
/// `None` if it is no longer connected.
///
/// # Errors
/// The system's.
pub(super) fn device(record: &Record) -> io::Result<Option<(OwnedFd, u32)>> {
    let Some(number) = record.loop_number else {
        return Ok(None);
    };
    if !loopdev::is_on(number, &record.file_name) {
        return Ok(None);
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let device = rustix::fs::open(loopdev::path(number), flags, Mode::empty())?;
    Ok(loopdev::is_on(number, &record.file_name).then_some((device, number)))
}

/// Writes out the file systems on a device that users mounted themselves, those of this namespace
/// by their directories, and then the device.
///
/// # Errors
/// The system's: some data could not be written.
pub(super) fn write_out_device(record: &Record) -> io::Result<()> {
    let Some((device, _)) = device(record)? else {
        return Ok(());
    };
    // Their dirty pages first: they go to the device's own cache, which is written below.
    for mount in mounts_on(record, table::read()?) {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // A mount that is hidden below another cannot be reached by any of its names.
        if let Ok(root) = rustix::fs::open(&mount.dir, flags, Mode::empty())
            && is_on(&root, &mount)
        {
            rustix::fs::syncfs(&root)?;
        }
    }
    Ok(rustix::fs::fsync(&device)?)
}

/// Shuts down the file systems on a device, in all namespaces, and has it refuse writes; all
/// earlier writes have reached the server then.
///
/// # Errors
/// The reason why one of them cannot be shut down; the device is unchanged.
pub(super) fn shut_down_device(record: &Record) -> Result<(), ExportError> {
    let Some((device, number)) = device(record).map_err(ExportError::Loop)? else {
        return Ok(());
    };
    if let Some(holder) = holder(number) {
        let device = loopdev::path(number).display().to_string();
        return Err(ExportError::DeviceBusy {
            device,
            by: format!("/dev/{holder} is built on it"),
            next: format!("take /dev/{holder} down first"),
        });
    }
    let everywhere = table::everywhere(|_| true).into_iter();
    let mounts = everywhere.map(|(_, mount)| mount).collect();
    for mount in mounts_on(record, mounts) {
        let name = FileSystem::of_name(&mount.file_system);
        let file_system = name.ok_or(ExportError::NotShutDown("a file system on the device"))?;
        let source = mount.source.to_string_lossy();
        let mount = mount_nowhere(file_system, &source, false, true)?;
        let root = root_of(&mount).map_err(|e| ExportError::os("cannot open its root", e))?;
        file_system::shut_down(&root).map_err(|_| ExportError::NotShutDown(file_system.name()))?;
    }
    // First no new writes, then the old ones: the other way round one could slip in between.
    let refused = file_system::set_read_only(&device, true);
    let written = refused.and_then(|()| rustix::fs::fsync(&device));
    written.map_err(|e| {
        let _ = file_system::set_read_only(&device, false);
        ExportError::os("cannot write out the device", e)
    })
}

/// Undoes the settings of [`shut_down_device`] that would affect the device's next user; all
/// requests fail by now.
pub(super) fn leave_device(record: &Record) {
    if let (Ok(Some((device, _))), None) = (device(record), &record.mount)
        && let Err(error) = file_system::set_read_only(device, false)
    {
        tracing::warn!("a loop device stays read-only: {error}");
    }
}

/// Users of a loop device, as the kernel lists them.
pub(crate) fn holder(number: u32) -> Option<String> {
    let holders = std::fs::read_dir(format!("/sys/block/loop{number}/holders"));
    let holder = holders.ok()?.next()?.ok()?;
    Some(holder.file_name().to_string_lossy().into_owned())
}

/// The mounts, among these, of a server's device and its partitions.
pub(crate) fn mounts_on(record: &Record, mounts: Vec<table::Mount>) -> Vec<table::Mount> {
    let Some(number) = record.loop_number else {
        return Vec::new();
    };
    let device = loopdev::path(number).display().to_string();
    let partition = format!("{device}p");
    let is_on = |mount: &table::Mount| {
        let source = mount.source.to_string_lossy();
        // btrfs and others show a device number of their own, so that the source's name counts,
        // too.
        let same = (mount.device.major, mount.device.minor) == (LOOP_MAJOR, number);
        same || source == *device || source.starts_with(&partition)
    };
    mounts.into_iter().filter(is_on).collect()
}

/// True if an open file belongs to this mount's file system.
pub(super) fn is_on(file: impl AsFd, mount: &table::Mount) -> bool {
    rustix::fs::fstat(file).is_ok_and(|stat| {
        let (major, minor) = (
            rustix::fs::major(stat.st_dev),
            rustix::fs::minor(stat.st_dev),
        );
        (major, minor) == (mount.device.major, mount.device.minor)
    })
}

/// Writes out a file system that is mounted on a directory of this namespace, if it still is.
///
/// # Errors
/// The system's: some data could not be written.
pub(super) fn write_out_at(dir: &Path, mount: &table::Mount) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::open(dir, flags, Mode::empty())?;
    match is_on(&root, mount) {
        true => Ok(rustix::fs::syncfs(&root)?),
        false => Ok(()),
    }
}

/// Major number of loop devices.
const LOOP_MAJOR: u32 = 7;
