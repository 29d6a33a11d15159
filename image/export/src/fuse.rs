//! Exports the image as one file in a FUSE file system, which takes writes if the source does.
//!
//! Why here: every kernel has it, and `mount` (erofs or a loop device on the file) and `attach` are
//! built on it. Thin: offsets and lengths go to the [`BlockSource`], its pieces go to the kernel.
//!
//! Must stay true: one read costs one `writev` of its pieces in place. They lie in slots of the
//! source's cache that stay unchanged until the kernel has copied them, so the server copies
//! nothing (except reads that touch the padding, or holes of a file in a tree: they are gathered in
//! a buffer of the serving thread). No read allocates after the thread's first. A source that fails
//! a read fails exactly this read. The file changes through the kernel alone, so the kernel may
//! keep everything that it has read.
//!
//! The file is normally in a mount without a path (`MountPoint::Hidden`). `fsmount(2)` returns a
//! descriptor of a detached mount. The file is opened through it and passed to erofs or to a loop
//! device; only their reference then keeps the FUSE file system, and with it the server, alive. So
//! a crash leaves nothing behind, no other mount namespace can copy the mount, and the server ends
//! when its last user is gone, for whatever reason. `MountPoint::At` is for users without root,
//! through `fusermount3`.
//!
//! After an administrator has set `fuse.enable_uring` (Linux 6.14), requests come by queues over
//! io_uring, one for each processor. That saves context switches, but replies are copied a second
//! time, into memory that the kernel takes them from. On two cores neither effect was measurable.
//!
//! - `abi` (pure): the bytes of requests and replies; `session`: reads and dispatches them;
//!   `outlet`: sends replies; `nodes`: the file system's side of a session, and answers to reads.
//! - `place`: mounting, with and without root, and aborting a connection that is still in use.
//! - `image_fs`: the one file; `behind`: dropping its pages.
//! - `layers_fs`: layers of containers, for podman and its kind.
//! - `tree_fs`: the files inside an image, without the kernel's parsers; `ahead` (pure) and
//!   `store`: their pages before they are read.
//!
//! Threads: the session's own threads call the file system; [`FuseServer`] belongs to one thread.
//! Source: Linux `Documentation/filesystems/fuse/`, `include/uapi/linux/fuse.h`, fsopen(2),
//! fsmount(2).

mod abi;
mod access;
mod ahead;
mod behind;
mod image_fs;
mod layers_fs;
mod nodes;
mod outlet;
pub(crate) mod place;
mod session;
mod store;
mod tree_fs;

pub use layers_fs::{LayerEntry, LayerSource};
pub use tree_fs::Tree;

use access::{Access, OWNER_MODE};
use behind::Delivered;
use image_fs::ImageFs;
use nodes::Nodes;
use outlet::Notices;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use session::Session;
use sidecore_format::source::BlockSource;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use tree_fs::TreeFs;

/// Options of the FUSE file.
#[derive(Debug, Clone)]
pub struct FuseOptions {
    /// Threads that serve reads, each with a descriptor of its own, 1 to [`THREADS_MAX`].
    pub threads: usize,
    /// The kernel's read-ahead of a sequential reader in bytes; a multiple of 4,096.
    pub read_ahead_bytes: u32,
    /// Let the kernel read a raw image's file itself where it can.
    pub passthrough: bool,
    /// Take requests by queues over io_uring where the kernel offers them (Linux 6.14, with
    /// `fuse.enable_uring` set): one for each processor, with a thread and 2 MiB of its own.
    pub queued: bool,
    /// The file's name.
    pub file_name: OsString,
    /// Source that the mount table shows, where the mount has a place.
    pub mount_source: String,
    /// Owner of the file.
    pub uid: u32,
    /// Group of the file.
    pub gid: u32,
    /// Permission bits; only the read bits are kept.
    pub mode: u32,
    /// Have the kernel check each caller's access by modes and owners. Always on for mounts by
    /// root, which all users see.
    pub check_permissions: bool,
    /// Have the kernel drop the file's pages soon after they were delivered: for a file that a file
    /// system is mounted on, which keeps pages of its own.
    pub drop_behind: bool,
    /// The file's size is rounded up to a multiple of this (zeros follow); 512 for a loop device,
    /// which would otherwise cut the last sector off. A power of two.
    pub pad_to_bytes: u64,
    /// Logical sector of a block device that is made of it: 512 or 4,096 bytes.
    pub sector_bytes: u32,
    /// A [keeper](crate::keeper) for the mount of an image that takes no writes.
    pub keeping: Keeping,
}

/// The mount of a server that is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keeping {
    /// It ends.
    No,
    /// A keeper holds it, and starts another server; for servers in the background.
    Yes,
    /// This is that other server.
    Adopt,
}

impl Default for FuseOptions {
    fn default() -> Self {
        Self {
            threads: threads_default(),
            read_ahead_bytes: READ_AHEAD_BYTES_DEFAULT,
            passthrough: true,
            queued: true,
            file_name: OsString::from("image"),
            mount_source: "sidecore".into(),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            mode: 0o400,
            check_permissions: true,
            drop_behind: false,
            pad_to_bytes: 1,
            sector_bytes: 512,
            keeping: Keeping::No,
        }
    }
}

impl FuseOptions {
    /// Options of a mount that is open to this user alone.
    #[must_use]
    pub fn of_user() -> Self {
        Self {
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            mode: OWNER_MODE,
            ..Self::default()
        }
    }

    /// Options for an image: with threads for a remote one, whose reads wait for the network; for a
    /// local one that root serves, open to its readers. The overlay must exist.
    ///
    /// # Errors
    /// [`FuseError::Os`]: a file cannot be looked at.
    pub fn for_image(
        image: &Path,
        is_remote: bool,
        overlay: Option<&Path>,
        has_keys: bool,
    ) -> Result<Self, FuseError> {
        let mut options = Self::of_user();
        if is_remote {
            options.threads = REMOTE_THREADS;
        } else if rustix::process::geteuid().is_root() {
            options.open_to_readers(image, overlay, has_keys)?;
        }
        Ok(options)
    }

    /// Has the mount belong to the owner of the image, and be open to users that may read both the
    /// image and the overlay; where the image was opened with keys, to its owner alone.
    ///
    /// # Errors
    /// [`FuseError::Os`]: one of the files cannot be looked at.
    fn open_to_readers(
        &mut self,
        image: &Path,
        overlay: Option<&Path>,
        has_keys: bool,
    ) -> Result<(), FuseError> {
        let look = |path: &Path, what| {
            Access::of(path).map_err(|source| FuseError::Os {
                what,
                hint: "",
                source,
            })
        };
        let mut access = look(image, "cannot look at the image")?;
        if let Some(overlay) = overlay {
            access = access.and(look(overlay, "cannot look at the overlay")?);
        }
        self.uid = access.uid;
        self.gid = access.gid;
        self.mode = match has_keys {
            true => access.mode & OWNER_MODE,
            false => access.mode,
        };
        Ok(())
    }
}

/// Mount point of the FUSE file system.
#[derive(Debug, Clone, Copy)]
pub(crate) enum MountPoint<'a> {
    /// Nowhere: only descriptors lead to it. Needs root.
    Hidden,
    /// On a directory; through `fusermount3` where the caller is not root.
    At(&'a Path),
}

/// Why an image could not be shown as a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FuseError {
    /// A system call failed.
    #[error("{what}: {source}{hint}")]
    Os {
        /// The operation that failed.
        what: &'static str,
        /// The next step, with a leading separator, or nothing.
        hint: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
    /// An option is out of range.
    #[error("{0} threads asked for to serve reads; 1 to {THREADS_MAX} are possible")]
    Threads(usize),
}

/// A FUSE file system that serves one image. Dropping it does not end it: it ends when its last
/// user is gone.
#[derive(Debug)]
pub struct FuseServer {
    thread: JoinHandle<io::Result<()>>,
    root: OwnedFd,
    file_name: OsString,
    device: Device,
    writable: bool,
    queued: bool,
    place: SharedPlace,
    /// The session's device, where a keeper can hold it.
    kept: Option<OwnedFd>,
}

/// The mount of a session on a directory. The session unmounts it at its end; [`FuseServer`] does
/// if the set-up fails.
type SharedPlace = Arc<Mutex<Option<place::Place>>>;

/// A device number, as in `st_dev`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Device {
    /// Major number; 0 for file systems without a block device.
    pub major: u32,
    /// Minor number; for FUSE also the number of the connection in `/sys/fs/fuse/connections`.
    pub minor: u32,
}

impl FuseServer {
    /// Mounts and starts serving; when this returns, the file can be opened and read.
    ///
    /// `on_end` runs on a thread of the session after the file system is gone (unmounted, or
    /// aborted).
    ///
    /// # Errors
    /// [`FuseError`]; nothing is left mounted then.
    pub(crate) fn start(
        source: Arc<dyn BlockSource>,
        options: &FuseOptions,
        place: MountPoint<'_>,
        on_end: impl FnOnce() + Send + 'static,
    ) -> Result<Self, FuseError> {
        let writable = source.writes().is_some();
        let (image, delivered) = image_of(source, options);
        let is_alone = options.keeping != Keeping::No;
        let beside = |notices: Notices| match delivered {
            Some(line) => line.forget_with(notices, image_fs::FILE, is_alone),
            None => Ok(()),
        };
        Self::start_fs(image, writable, options, place, beside, on_end)
    }

    /// Mounts the files inside an image and starts serving; when this returns, they can be opened.
    /// A mount by root is visible to all users, each of whom may read what modes and owners allow.
    /// A mount by another user is visible to that user only, and shows that user all files.
    /// `on_end` runs on a thread of the session after the file system is gone.
    ///
    /// # Errors
    /// [`FuseError`]; nothing is left mounted then.
    pub fn start_tree(
        tree: Tree,
        options: &FuseOptions,
        dir: &Path,
        on_end: impl FnOnce() + Send + 'static,
    ) -> Result<Self, FuseError> {
        let place = MountPoint::At(dir);
        let (files, runs) = TreeFs::new(tree);
        let beside = |notices: Notices| match runs {
            Some((files, runs)) => store::Runs::new(files, runs).store_with(notices),
            None => Ok(()),
        };
        Self::start_fs(files, false, options, place, beside, on_end)
    }

    /// As [`Self::start_tree`], with the layers of container images, for root alone.
    ///
    /// # Errors
    /// [`FuseError`]; nothing is left mounted then.
    pub fn start_layers(
        source: Arc<dyn LayerSource>,
        dir: &Path,
        on_end: impl FnOnce() + Send + 'static,
    ) -> Result<Self, FuseError> {
        let options = FuseOptions {
            // A look-up keeps its thread while a layer comes.
            threads: LAYER_THREADS,
            queued: false,
            mount_source: "sidecore-layers".into(),
            ..FuseOptions::default()
        };
        let layers = layers_fs::LayersFs::new(source);
        // Not written to, but asked to create: what is read-only is not asked.
        Self::start_fs(
            layers,
            true,
            &options,
            MountPoint::At(dir),
            |_| Ok(()),
            on_end,
        )
    }

    fn start_fs<N: Nodes>(
        file_system: N,
        writable: bool,
        options: &FuseOptions,
        place: MountPoint<'_>,
        beside: impl FnOnce(Notices) -> io::Result<()>,
        on_end: impl FnOnce() + Send + 'static,
    ) -> Result<Self, FuseError> {
        if options.threads == 0 || options.threads > THREADS_MAX {
            return Err(FuseError::Threads(options.threads));
        }
        // `allow_other` without root depends on the administrator's `user_allow_other`.
        let root_user = rustix::process::geteuid().is_root();
        let mut kind = place::Kind {
            source: "sidecore".into(),
            writable,
            // A mount without a path serves the kernel alone, which asks with the credentials of
            // any user.
            for_all: true,
            check_permissions: false,
        };
        let (device, hidden, at) = match place {
            MountPoint::Hidden => {
                let (device, mount) = place::nowhere(&kind).map_err(|e| {
                    let hint = match e {
                        Errno::NOENT | Errno::NODEV | Errno::NXIO => place::NO_DEVICE,
                        _ => "; needs root (CAP_SYS_ADMIN) and Linux 5.10 or newer",
                    };
                    os("cannot mount FUSE", hint, e.into())
                })?;
                (device, Some(mount), None)
            }
            MountPoint::At(dir) => {
                kind.source.clone_from(&options.mount_source);
                kind.for_all = root_user;
                kind.check_permissions = options.check_permissions || root_user;
                let (device, at) = place::on(dir, &kind)
                    .map_err(|e| os("cannot mount the FUSE file", place::hint(&e, dir), e))?;
                (device, None, Some(at))
            }
        };
        let keep = options.keeping != Keeping::No && !writable;
        let session = Session::start(device, file_system, options.queued, keep)
            .map_err(|e| os("cannot start the FUSE session", "", e))?;
        let kept = (session.is_kept()).then(|| session.notices().device().try_clone_to_owned());
        let kept = kept.transpose();
        let kept = kept.map_err(|e| os("cannot keep the FUSE device", "", e))?;
        let queued = session.is_queued();
        beside(session.notices())
            .map_err(|e| os("cannot start a thread that looks after pages", "", e))?;
        let threads = options.threads;
        let shared_place = Arc::new(Mutex::new(at));
        let at = Arc::clone(&shared_place);
        // The mount is usable once the kernel has all queues: a request before would wait for them.
        let (sender, begun) = sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("fuse-session".into())
            .spawn(move || {
                let begun = |begun: io::Result<()>| {
                    if begun.is_err() {
                        // Ends the session, and with it this thread.
                        drop(at.lock().take());
                    }
                    let _ = sender.send(begun);
                };
                let result = session.run(threads, begun, break_off);
                drop(at.lock().take());
                on_end();
                result
            })
            .map_err(|e| os("cannot start the FUSE thread", "", e))?;
        let begun = begun
            .recv()
            .unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()));
        begun.map_err(|e| {
            let hint = "; mount once more with fuse.enable_uring set to N";
            os("the kernel refused a queue over io_uring", hint, e)
        })?;
        let (root, device) = match root_of(hidden, place) {
            Ok(found) => found,
            Err(error) => {
                drop(shared_place.lock().take());
                return Err(error);
            }
        };
        // After the mount exists: the setting belongs to its backing device.
        set_read_ahead(device, options.read_ahead_bytes);
        Ok(Self {
            thread,
            root,
            file_name: options.file_name.clone(),
            device,
            writable,
            queued,
            place: shared_place,
            kept,
        })
    }

    /// Goes on with the session of a server that is gone, by its device. `on_end` is as for
    /// [`Self::start`].
    ///
    /// # Errors
    /// [`FuseError`]; the session waits for another server then.
    pub(crate) fn adopt(
        source: Arc<dyn BlockSource>,
        options: &FuseOptions,
        device: OwnedFd,
        on_end: impl FnOnce() + Send + 'static,
    ) -> Result<(), FuseError> {
        let (image, delivered) = image_of(source, options);
        let session = Session::adopt(device, image)
            .map_err(|e| os("cannot go on with the FUSE session", "", e))?;
        if let Some(line) = delivered {
            line.forget_with(session.notices(), image_fs::FILE, true)
                .map_err(|e| os("cannot start a thread that looks after pages", "", e))?;
        }
        let threads = options.threads;
        let thread = std::thread::Builder::new().name("fuse-session".into());
        thread
            .spawn(move || {
                if let Err(error) = session.run(threads, |_| (), break_off) {
                    tracing::warn!("the FUSE session ended: {error}");
                }
                on_end();
            })
            .map_err(|e| os("cannot start the FUSE thread", "", e))?;
        Ok(())
    }

    /// The session's device, where another server could go on with it; once.
    pub(crate) fn take_kept(&mut self) -> Option<OwnedFd> {
        self.kept.take()
    }

    /// Opens the file for erofs or the loop device: for reading, and for writing if the source
    /// takes writes. Waits for the session, as its close does: in a process that may be killed
    /// meanwhile, call it [apart](sidecore_sys::apart).
    ///
    /// # Errors
    /// Those of `openat(2)`.
    pub fn open_image(&self) -> io::Result<File> {
        let access = match self.writable {
            true => OFlags::RDWR,
            false => OFlags::RDONLY,
        };
        let flags = access | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.root, &self.file_name, flags, Mode::empty())?.into())
    }

    /// The file system's device number; its minor number names the FUSE connection.
    #[must_use]
    pub fn device(&self) -> Device {
        self.device
    }

    /// True if requests come by queues over io_uring.
    #[must_use]
    pub fn is_queued(&self) -> bool {
        self.queued
    }

    /// Removes a mount from its directory, because the set-up on top of it failed.
    pub(crate) fn take_away(self) {
        drop(self.place.lock().take());
    }

    /// Releases a hidden mount, so that only the users of the file keep it alive.
    #[must_use]
    pub fn release(self) -> JoinHandle<io::Result<()>> {
        self.thread
    }
}

/// Sets the kernel's read-ahead on a file system without a block device. FUSE's own setting can
/// only lower the kernel's 128 KiB, so this goes through sysfs; if that is not possible, reads are
/// only slower.
pub(crate) fn set_read_ahead(device: Device, bytes: u32) {
    let path = format!(
        "/sys/class/bdi/{}:{}/read_ahead_kb",
        device.major, device.minor
    );
    if let Err(error) = std::fs::write(&path, (bytes / 1024).to_string()) {
        tracing::info!("read-ahead stays at the kernel's default: cannot write {path}: {error}");
    }
}

/// The root of a file system that was mounted, and its device number.
fn root_of(hidden: Option<OwnedFd>, place: MountPoint<'_>) -> Result<(OwnedFd, Device), FuseError> {
    let root = match (hidden, place) {
        (Some(mount), _) => mount,
        (None, MountPoint::At(dir)) => {
            rustix::fs::open(dir, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
                .map_err(|e| os("cannot open the FUSE directory", "", e.into()))?
        }
        (None, MountPoint::Hidden) => unreachable!("a hidden mount always has its descriptor"),
    };
    // Without a request to ourselves: a killed process would wait for its reply for ever.
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(&root, "", flags, StatxFlags::empty())
        .map_err(|e| os("cannot read the FUSE file system's number", "", e.into()))?;
    let device = Device {
        major: stat.stx_dev_major,
        minor: stat.stx_dev_minor,
    };
    Ok((root, device))
}

/// The file of an image, and the line of what has been delivered, where pages are dropped behind
/// the readers. Those of a file that is written are not: the kernel may hold unwritten data in
/// them.
fn image_of(source: Arc<dyn BlockSource>, options: &FuseOptions) -> (ImageFs, Option<Delivered>) {
    let drops = options.drop_behind && source.writes().is_none();
    let mut image = ImageFs::new(source, options);
    let delivered = drops.then(|| {
        let (behind, line) = behind::line();
        image.drop_behind(behind);
        line
    });
    (image, delivered)
}

/// Ends the process of a session that cannot continue: programs may wait for its replies, and get
/// errors this way. Its record stays, as after a kill: `umount` removes the rest.
fn break_off(error: &io::Error) {
    tracing::error!("no more answers from this server ({error}); its files give errors");
    std::process::exit(1);
}

fn os(what: &'static str, hint: &'static str, source: io::Error) -> FuseError {
    FuseError::Os { what, hint, source }
}

/// One thread a core, within bounds: a thread waits while engines decompress, so more threads would
/// only wait.
fn threads_default() -> usize {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    // At least two: one may wait for a disk while the other serves what is cached.
    cores.clamp(2, 8)
}

/// Threads that answer the kernel for a remote image: the number of concurrent reads.
const REMOTE_THREADS: usize = 32;
/// The most threads that may serve one image.
pub const THREADS_MAX: usize = 64;
/// Threads of a store of layers.
const LAYER_THREADS: usize = 16;
/// Read-ahead by default.
pub const READ_AHEAD_BYTES_DEFAULT: u32 = 1 << 20;

#[cfg(test)]
mod tests;
