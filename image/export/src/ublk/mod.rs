//! ublk: a block device `/dev/ublkbN` whose requests a process answers over io_uring.
//!
//! Why here: it is the export closest to the papers' own driver: the kernel passes a request to
//! user space, user space decompresses, and no file system or loop device is in between. It is used
//! where the kernel has it ([`available`] reports the reason if not); elsewhere the same image goes
//! through FUSE and a loop device.
//!
//! - [`control::start`] makes a device, [`control::recover`] takes over one whose server died,
//!   [`stop`] removes one, [`attached`] lists.
//! - The kernel's blk-mq queue on each CPU maps to one of our queues; each queue is one thread that
//!   answers one request at a time (`queue.rs`). Decompressing in parallel is the source's task,
//!   not this module's.
//!
//! Must stay true:
//! - The device is read-only, and no request is ever answered with bytes that the source did not
//!   deliver.
//! - A server that dies leaves the device *quiesced*: readers wait, none gets an I/O error, and
//!   [`control::recover`] continues with the requests that were in flight. Only [`stop`], or the
//!   end of [`UblkServer::run`], removes a device.
//! - Nothing is copied through a buffer of ours: the source's pieces are written straight into the
//!   pages of the request (`UBLK_F_USER_COPY`), so the memory in use does not grow with the depth
//!   of the queues.
//!
//! Threads: every function here may be called from any thread; all of them block, for at most the
//! bounds named below. They need root, or the right to open `/dev/ublk-control`.
//!
//! Source: the kernel's `Documentation/block/ublk.rst` and `include/uapi/linux/ublk_cmd.h`.

mod control;
pub(super) mod error;
mod queue;
mod serve;

pub(crate) use control::{UblkServer, UblkStopper, attached, start_or_recover, stop};
pub(crate) use error::{Error, Unavailable};
pub(crate) use serve::serve;

use error::CONTROL_PATH;
use libublk::ctrl::UblkCtrl;
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Options of [`start_or_recover`]; the defaults suit an image that one machine reads.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Queues, each a thread; 1 up to the number of CPUs (more are cut down by the kernel).
    pub(crate) queues: u16,
    /// Requests in one queue before submitters wait; 1..=4096. Costs no memory of ours.
    pub(crate) depth: u16,
    /// The number N of `/dev/ublkbN`; `None`: the lowest free one.
    pub(crate) dev_id: Option<u32>,
    /// The kernel's read-ahead of a sequential reader through the page cache, in KiB; 0
    /// turns it off.
    pub(crate) read_ahead_kib: u32,
    /// The logical sector: 512 or 4,096 bytes.
    pub(crate) sector_bytes: u32,
    /// Absolute path of the image, as [`attached`] reports it.
    pub(crate) image: PathBuf,
    /// Its contents, as their source identifies them.
    pub(crate) identity: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            queues: cpus.min(QUEUES_MAX) as u16,
            depth: 64,
            dev_id: None,
            read_ahead_kib: 512,
            sector_bytes: 512,
            image: PathBuf::new(),
            identity: None,
        }
    }
}

/// A ublk device that Sidecore made, as [`attached`] finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attached {
    /// N of `/dev/ublkbN`.
    pub(crate) dev_id: u32,
    /// The block device.
    pub(crate) path: PathBuf,
    /// The image served.
    pub(crate) image: PathBuf,
    /// Its contents; earlier versions did not say.
    pub(crate) identity: Option<String>,
    /// Process that serves it, or served it last.
    pub(crate) server_pid: i32,
    /// True when its server died: readers wait until [`control::recover`] or [`stop`] is called.
    pub(crate) quiesced: bool,
}

/// Checks if ublk devices can be made here; if not, the error has the reason and the next step.
///
/// Costs an open of the control device and one command; does not block on devices.
///
/// # Errors
/// [`Unavailable`].
pub(crate) fn available() -> Result<(), Unavailable> {
    match OpenOptions::new().read(true).write(true).open(CONTROL_PATH) {
        Ok(_) => {}
        Err(error) if matches!(error.kind(), ErrorKind::NotFound) => {
            return Err(Unavailable::NoDriver);
        }
        Err(error) => {
            return Err(Unavailable::NoPermission {
                reason: error.to_string(),
            });
        }
    }
    let offered = UblkCtrl::get_features().unwrap_or(0);
    let missing: Vec<&str> = FEATURES
        .iter()
        .filter(|(bit, _)| offered & bit != *bit)
        .map(|(_, name)| *name)
        .collect();
    if missing.is_empty() {
        Ok(())
    } else {
        Err(Unavailable::TooOld {
            missing: missing.join(", "),
            offered,
        })
    }
}

/// The number N of a path `/dev/ublkbN`; none for any other path.
#[must_use]
pub(crate) fn dev_id_of(path: &Path) -> Option<u32> {
    path.to_str()?.strip_prefix("/dev/ublkb")?.parse().ok()
}

/// Sectors, in the driver's unit, of a device that serves `size_bytes` in logical sectors of
/// `sector_bytes`: the last one is padded with zeros.
fn sectors(size_bytes: u64, sector_bytes: u32) -> u64 {
    let sector_bytes = u64::from(sector_bytes);
    size_bytes.div_ceil(sector_bytes) * (sector_bytes / SECTOR_BYTES)
}

/// Features that this module relies on, by the names of the kernel's header.
const FEATURES: [(u64, &str); 3] = [
    (
        libublk::sys::UBLK_F_USER_RECOVERY as u64,
        "UBLK_F_USER_RECOVERY",
    ),
    (
        libublk::sys::UBLK_F_USER_RECOVERY_REISSUE as u64,
        "UBLK_F_USER_RECOVERY_REISSUE",
    ),
    (libublk::sys::UBLK_F_USER_COPY as u64, "UBLK_F_USER_COPY"),
];
/// The driver's unit, whatever the device's block size.
const SECTOR_BYTES: u64 = 512;
/// More queues than this gain nothing: the source, not the queue's thread, does the work.
const QUEUES_MAX: usize = 4;
/// Largest request: what one `read_with` of any source takes.
const REQUEST_BYTES_MAX: u32 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_are_read_from_their_paths_only() {
        assert_eq!(dev_id_of(Path::new("/dev/ublkb0")), Some(0));
        assert_eq!(dev_id_of(Path::new("/dev/ublkb12")), Some(12));
        for other in [
            "/dev/ublkb",
            "/dev/ublkb0p1",
            "/dev/ublkc0",
            "/dev/loop0",
            "ublkb0",
        ] {
            assert_eq!(dev_id_of(Path::new(other)), None, "{other}");
        }
    }

    #[test]
    fn a_device_goes_on_with_its_own_image_alone() {
        let options = Options {
            identity: Some("1 a".into()),
            ..Options::default()
        };
        for (recorded, is_same) in [(Some("1 a"), true), (Some("1 b"), false), (None, true)] {
            let device = Attached {
                dev_id: 7,
                path: PathBuf::new(),
                image: PathBuf::new(),
                identity: recorded.map(str::to_owned),
                server_pid: 1,
                quiesced: true,
            };
            let checked = control::check_same(&device, &options);
            assert_eq!(checked.is_ok(), is_same, "{recorded:?}");
        }
    }

    #[test]
    fn the_last_sector_is_filled_up() {
        assert_eq!(sectors(1, 512), 1);
        assert_eq!(sectors(512, 512), 1);
        assert_eq!(sectors(513, 512), 2);
        assert_eq!(sectors(1 << 40, 512), 1 << 31);
        assert_eq!(sectors(1, 4096), 8);
        assert_eq!(sectors(4097, 4096), 16);
    }

    #[test]
    fn where_there_is_no_driver_the_reason_names_the_next_step() {
        if Path::new(CONTROL_PATH).exists() {
            // With a driver the result depends on its version; tests in a virtual machine cover
            // that case.
            return;
        }
        let reason = available().expect_err("no control device").to_string();
        assert!(reason.contains("modprobe ublk_drv"), "{reason}");
        assert!(
            stop(7, false)
                .expect_err("no device 7")
                .to_string()
                .contains('7')
        );
    }
}
