//! Errors of mounting, attaching, and undoing both. Each message is one line with the next step.

use crate::fuse::FuseError;
use sidecore_format::source::{ReadError, WriteError};
use std::io;
use std::path::{Path, PathBuf};

/// See the module.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// Neither root nor CAP_SYS_ADMIN in this container.
    #[error(
        "needs root (CAP_SYS_ADMIN); without it, `sidecore block mount --rootless IMAGE DIR` reads \
         erofs images, `--file-only` shows the contents as one file, and `sidecore block serve \
         IMAGE --nbd unix:PATH` offers them over NBD"
    )]
    NotRoot,
    /// The mount point is not there or not a directory.
    #[error(
        "cannot mount on {path}: {source}; name a directory that is there", path = dir.display()
    )]
    Directory {
        /// The path given.
        dir: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// Something is mounted there already.
    #[error(
        "{dir} already has something mounted on it ({file_system} of {what}); run `sidecore \
         block umount {dir}` if that is an image, or choose another directory", dir = dir.display()
    )]
    Occupied {
        /// The directory.
        dir: PathBuf,
        /// Type of the file system there.
        file_system: String,
        /// Source of the mount there.
        what: String,
    },
    /// The image has no bytes.
    #[error("the image is empty: there is nothing to mount or attach")]
    Empty,
    /// The image in the place of the one that was mounted is another one.
    #[error(
        "the image is no longer the one that was mounted, so its mount ends: unmount the \
         directory, then mount the image again"
    )]
    OtherImage,
    /// The image cannot be compared with the one that was mounted.
    #[error("the image cannot be compared with the one that was mounted: it cannot be read now")]
    Unidentified,
    /// The file system inside is not the one that was asked for.
    #[error("the file system in the image has the UUID `{found}`, not {wanted}: it is another one")]
    OtherUuid {
        /// Its UUID, as 32 digits; empty without one.
        found: String,
        /// The UUID that was asked for.
        wanted: String,
    },
    /// The image is damaged where its file system begins.
    #[error("cannot read the image's first bytes: {0}")]
    Read(ReadError),
    /// No file system begins the image.
    #[error(
        "no file system that can be mounted begins this image (erofs, squashfs, ext2/3/4, \
         iso9660, xfs, btrfs, vfat were looked for); `sidecore block attach IMAGE` makes it a \
         block device"
    )]
    NoFileSystem,
    /// A file system that is not enabled for the kernel's drivers.
    #[error(
        "{0} is inside, and the kernel is handed only erofs and squashfs unless others are named; \
         give --fs {0} if you trust whoever made this image (docs/untrusted-images.md), or read it \
         with other programs through --file-only or `sidecore block serve`"
    )]
    NotAllowed(&'static str),
    /// The file system is read-only.
    #[error(
        "{0} is inside, which cannot be written to; mount it without --overlay, or pack the \
         directory again with --inner ext4 and mount it with --fs ext4"
    )]
    NotWritable(&'static str),
    /// A file system that Sidecore itself cannot read.
    #[error(
        "{0} is inside, and only erofs is read without the kernel; pack the directory again (erofs \
         is what `pack` makes of one), or mount it as root"
    )]
    OnlyErofs(&'static str),
    /// The erofs inside is damaged, or has unsupported features.
    #[error("cannot read the file system inside: {0}; root can mount it with the kernel's reader")]
    Erofs(#[from] sidecore_erofs::Error),
    /// The image is a partitioned disk.
    #[error(
        "this image is a disk with partitions, not one file system; `sidecore block attach \
         IMAGE` makes it a block device with its partitions, which `mount` then takes"
    )]
    Partitions,
    /// The kernel lacks the file system.
    #[error("this kernel cannot mount {0}; try `modprobe {module}`", module = module(.0))]
    NoDriver(&'static str),
    /// The kernel refused the mount.
    #[error("cannot mount the {file_system} inside: {source}{messages}")]
    Inner {
        /// The file system.
        file_system: &'static str,
        /// The operating system's error.
        source: io::Error,
        /// The kernel's messages, each after a semicolon, or nothing.
        messages: String,
    },
    /// FUSE failed.
    #[error(transparent)]
    Fuse(#[from] FuseError),
    /// ublk failed.
    #[error(transparent)]
    Ublk(#[from] crate::ublk::error::Error),
    /// No loop device.
    #[error("cannot set up a loop device: {0}; try `modprobe loop`, and see `losetup --list`")]
    Loop(io::Error),
    /// The records could not be read or written.
    #[error("cannot use the state directory {path}: {source}", path = path.display())]
    State {
        /// Which directory.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// Too many servers.
    #[error(
        "{0} images are mounted or attached already, which is the most that can be; undo some \
         first"
    )]
    TooMany(usize),
    /// No mount of ours is there.
    #[error("no image is mounted on {0}; `umount` is for other mounts")]
    NotMounted(PathBuf),
    /// Not in this mount namespace, or not any more.
    #[error(
        "no image is mounted on {dir} here; its server (process {pid}) goes on until the other \
         mount namespaces and the programs that still have it let go of it", dir = dir.display()
    )]
    NotMountedHere {
        /// The directory.
        dir: PathBuf,
        /// The server's process number.
        pid: u32,
    },
    /// Written data cannot be made durable.
    #[error(
        "what was written to {place} cannot be made durable: {reason}; {state}",
        place = place.display()
    )]
    NotFlushed {
        /// The directory or the device.
        place: PathBuf,
        /// The kernel's or the server's message.
        reason: String,
        /// The present state, and the next step.
        state: String,
    },
    /// Written data cannot be made durable.
    #[error("cannot make durable what was written: {0}")]
    Write(WriteError),
    /// A server ended with data that are not durable.
    #[error("something that was written is lost: {0}")]
    Lost(String),
    /// A file system that would lose data that programs are writing.
    #[error(
        "{0} cannot be shut down under programs that use it; it is served until they let go of it"
    )]
    NotShutDown(&'static str),
    /// The device was not made by `attach`.
    #[error(
        "{0} is no device that `sidecore block attach` made; `losetup --detach` is for other \
         loop devices"
    )]
    NotAttached(PathBuf),
    /// Files are open below the directory.
    #[error(
        "{0} is in use: a program has a file open or its working directory there (`fuser -m {0}` \
         lists them); stop it, or take the files away from it with `sidecore block umount \
         --force {0}`"
    )]
    Busy(PathBuf),
    /// The device is mounted or open.
    #[error(
        "{device} is in use ({by}); {next}, or take it away with `sidecore block detach --force \
         {device}`"
    )]
    DeviceBusy {
        /// The device.
        device: String,
        /// By what.
        by: String,
        /// The next step for the user.
        next: String,
    },
    /// The address for metrics cannot be used.
    #[error(transparent)]
    Metrics(#[from] sidecore_status::EndpointError),
    /// The server still runs although all was undone.
    #[error(
        "the server (process {0}) does not end; stop it with `kill -9 {0}` and run this command \
         again"
    )]
    Stuck(u32),
    /// Another system call failed.
    #[error("{what}: {source}")]
    Os {
        /// The operation that failed.
        what: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
}

impl ExportError {
    pub(crate) fn state(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        Self::State { path, source }
    }

    pub(crate) fn os(what: &'static str, source: impl Into<io::Error>) -> Self {
        let source = source.into();
        Self::Os { what, source }
    }
}

/// The kernel module of a file system.
fn module(file_system: &str) -> &str {
    match file_system {
        "iso9660" => "isofs",
        other => other,
    }
}
