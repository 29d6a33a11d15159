//! Loop devices on an image's FUSE file.
//!
//! Why here: file systems other than erofs mount only block devices, and `attach` needs one where
//! the kernel has no ublk.
//!
//! Must stay true: a device for a mount clears itself when its last user closes it, so that a
//! server that dies between two steps leaves none behind. Only a device that is connected to our
//! own file is ever cleared.
//!
//! Callable from any thread; every call may block while the kernel reads the file through our own
//! server, so never call it from a thread that serves reads.

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use sidecore_sys::loop_control;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

/// Lifetime of a loop device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lifetime {
    /// Removed when its last user closes it (a mount).
    UntilUnused,
    /// Stays until it is cleared (`attach`); its partitions become devices too.
    UntilCleared,
}

/// A loop device that this process has connected. Dropping it closes the descriptor; for
/// [`Lifetime::UntilUnused`] that is the last user, unless a mount has the device.
#[derive(Debug)]
pub(crate) struct LoopDevice {
    number: u32,
    _device: OwnedFd,
}

impl LoopDevice {
    /// Connects a free loop device to `file`, with logical sectors of `sector_bytes`, read-only
    /// unless `writable`. With `direct_io` its requests reach the file's server unchanged, and no
    /// second page cache holds the same bytes: best for a device that is read in large pieces.
    /// Without it, the file's read-ahead serves the small scattered reads of a file system several
    /// times faster.
    ///
    /// # Errors
    /// No loop driver, no free device after [`ATTEMPTS_MAX`] races with others, or not root.
    pub(crate) fn connect(
        file: &File,
        lifetime: Lifetime,
        direct_io: bool,
        writable: bool,
        sector_bytes: u32,
    ) -> io::Result<Self> {
        let read_write = OFlags::RDWR | OFlags::CLOEXEC;
        let control = rustix::fs::open("/dev/loop-control", read_write, Mode::empty())?;
        let fd = file.as_raw_fd().unsigned_abs();
        let (read_only, access) = match writable {
            true => (0, OFlags::RDWR),
            false => (LO_FLAGS_READ_ONLY, OFlags::RDONLY),
        };
        let flags = read_only
            | match lifetime {
                Lifetime::UntilUnused => LO_FLAGS_AUTOCLEAR,
                Lifetime::UntilCleared => LO_FLAGS_PARTSCAN,
            };
        for _ in 0..ATTEMPTS_MAX {
            // The driver reserves nothing: `configure` decides which of several processes gets it.
            let number = loop_control::get_free(&control)?;
            let device = rustix::fs::open(path(number), access | OFlags::CLOEXEC, Mode::empty())?;
            match loop_control::configure(
                &device,
                loop_control::LoopConfig::new(fd, sector_bytes, flags),
            ) {
                Ok(()) => {
                    // A separate step: for a file that does not support it, the device still works,
                    // with a second cache.
                    if direct_io && let Err(error) = loop_control::set_direct_io(&device, true) {
                        tracing::debug!("loop{number} reads through the page cache: {error}");
                    }
                    return Ok(Self {
                        number,
                        _device: device,
                    });
                }
                // Another process took it between the two steps.
                Err(Errno::BUSY) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Errno::BUSY.into())
    }

    /// Its number.
    #[must_use]
    pub(crate) fn number(&self) -> u32 {
        self.number
    }
}

/// The path of loop device `number`.
#[must_use]
pub(crate) fn path(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/loop{number}"))
}

/// True when loop device `number` is connected to the file of this name in a hidden FUSE mount.
#[must_use]
pub(crate) fn is_on(number: u32, file_name: &str) -> bool {
    // No path leads to the file, so the kernel shows its name within the mount, after a slash.
    std::fs::read_to_string(format!("/sys/block/loop{number}/loop/backing_file"))
        .is_ok_and(|name| name.trim_end().trim_start_matches('/') == file_name)
}

/// The loop devices that are connected to the file of this name; see [`is_on`].
#[must_use]
pub(crate) fn all_on(file_name: &str) -> Vec<u32> {
    let devices = std::fs::read_dir("/sys/block")
        .into_iter()
        .flatten()
        .flatten();
    devices
        .filter_map(|device| {
            device
                .file_name()
                .to_str()?
                .strip_prefix("loop")?
                .parse()
                .ok()
        })
        .filter(|&number| is_on(number, file_name))
        .collect()
}

/// Has loop device `number` take the size that its file has now.
///
/// # Errors
/// Those of the driver.
pub(crate) fn take_size(number: u32) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let device = rustix::fs::open(path(number), flags, Mode::empty())?;
    Ok(loop_control::set_capacity(&device)?)
}

/// Clears loop device `number`; a device in use is cleared when its last user closes it.
///
/// # Errors
/// Those of the driver; a device that is not connected is no error.
pub(crate) fn clear(number: u32) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let device = rustix::fs::open(path(number), flags, Mode::empty())?;
    match loop_control::clear(&device) {
        Ok(()) | Err(Errno::NXIO) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Attempts to get an unused device while other processes do the same.
pub(crate) const ATTEMPTS_MAX: usize = 64;
/// The usual logical sector: file systems with small blocks (ext4 1 KiB, vfat 512) refuse a larger
/// one.
pub(crate) const SECTOR_BYTES: u32 = 512;
const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_PARTSCAN: u32 = 8;
