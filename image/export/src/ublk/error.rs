//! Errors of ublk devices; each message is one line with the next step.

use libublk::UblkError;

/// Why this kernel or this user cannot have ublk devices.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// No control device.
    #[error(
        "the kernel's ublk driver is not loaded ({CONTROL_PATH} is missing); run `modprobe \
         ublk_drv` (a module of Linux 6.5 or newer), or go without: a loop device over FUSE serves \
         the same image"
    )]
    NoDriver,
    /// The control device may not be opened.
    #[error("cannot open {CONTROL_PATH}: {reason}; attach as root")]
    NoPermission {
        /// The operating system's error.
        reason: String,
    },
    /// The driver lacks a feature that this module needs.
    #[error(
        "this kernel's ublk driver lacks {missing} (it offers the features {offered:#x}); Linux \
         6.5 or newer with io_uring allowed (`sysctl kernel.io_uring_disabled=0`) is needed"
    )]
    TooOld {
        /// Names of the features that are missing.
        missing: String,
        /// The driver's feature bits, 0 when it did not answer.
        offered: u64,
    },
}

/// Error about a ublk device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// ublk is not available.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// The source has no byte to serve.
    #[error("cannot make a block device of 0 bytes; pack an image that holds at least one byte")]
    Empty,
    /// A command of the driver, or the set-up of a queue, failed.
    #[error("ublk device {dev_id}: cannot {what}: {reason}")]
    Driver {
        /// N of `/dev/ublkbN`, or "new" before it has a number.
        dev_id: String,
        /// The step.
        what: &'static str,
        /// The driver's error.
        reason: String,
    },
    /// The device does not exist.
    #[error("there is no ublk device {dev_id}; `ls /dev/ublkb*` shows those that exist")]
    NoSuchDevice {
        /// N of `/dev/ublkbN`.
        dev_id: u32,
    },
    /// Mounted, or held by another driver.
    #[error(
        "/dev/ublkb{dev_id} is in use (mounted, or below another device); unmount it first, then \
         try again"
    )]
    Busy {
        /// N of `/dev/ublkbN`.
        dev_id: u32,
    },
    /// Recovery of a device whose server lives.
    #[error(
        "/dev/ublkb{dev_id} is still served by process {server_pid}; only a device whose server \
         died can be recovered"
    )]
    StillServed {
        /// N of `/dev/ublkbN`.
        dev_id: u32,
        /// The server.
        server_pid: i32,
    },
    /// Recovery with another image.
    #[error(
        "/dev/ublkb{dev_id} has {device_sectors} sectors of 512 bytes but the image has \
         {source_sectors}; recover it with the image that it was attached with, or detach it"
    )]
    OtherSize {
        /// N of `/dev/ublkbN`.
        dev_id: u32,
        /// The device's size in sectors.
        device_sectors: u64,
        /// The source's size in sectors.
        source_sectors: u64,
    },
    /// Recovery with another image of the same name.
    #[error(
        "/dev/ublkb{dev_id} was attached from another image of this name, and its server died; \
         detach it, then attach the image again"
    )]
    OtherImage {
        /// N of `/dev/ublkbN`.
        dev_id: u32,
    },
    /// A step did not end in time.
    #[error(
        "ublk device {dev_id}: {what} did not happen within {wait_s} s; see `dmesg`, then try again"
    )]
    Timeout {
        /// N of `/dev/ublkbN`.
        dev_id: u32,
        /// The event waited for.
        what: &'static str,
        /// Time waited, in seconds.
        wait_s: u64,
    },
    /// The operating system refused something.
    #[error("cannot {what}: {source}")]
    Io {
        /// The step.
        what: &'static str,
        /// The cause.
        source: std::io::Error,
    },
}

/// Converts an error of the library.
pub(super) fn driver_error(dev_id: impl ToString, what: &'static str, error: &UblkError) -> Error {
    let reason = match error {
        UblkError::UringIOError(code) | UblkError::OtherError(code) => {
            std::io::Error::from_raw_os_error(code.abs()).to_string()
        }
        other => other.to_string(),
    };
    Error::Driver {
        dev_id: dev_id.to_string(),
        what,
        reason,
    }
}

pub(super) const CONTROL_PATH: &str = "/dev/ublk-control";
