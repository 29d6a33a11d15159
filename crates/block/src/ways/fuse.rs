//! The image as one read-only file in a FUSE file system.
//!
//! Why here: it is the way in that every kernel has, and what `mount` (erofs or a loop device on the file) and `attach`
//! build upon. Thin: offsets and lengths go to the [`BlockSource`], its pieces go to the kernel.
//!
//! Must stay true: one read costs one `writev` and, when the source delivers one piece, no copy on our side; pieces are
//! gathered in a buffer that belongs to the serving thread, so that no read allocates after the thread's first. A source
//! that fails a read fails exactly this read. The file never changes, so the kernel may keep all it has read.
//!
//! Where the file is: normally in a mount that has no path at all ([`Place::Hidden`]). `fsmount(2)` hands out a
//! descriptor of a mount that is attached nowhere; the file is opened through it and given to erofs or to a loop device,
//! whose reference is then all that keeps the FUSE file system, and with it the server, alive. So nothing can be left
//! behind by a crash, no other mount namespace can copy the mount, and the server ends by itself when its last user
//! goes, however it goes. [`Place::At`] is for people without root, through `fusermount3`.
//!
//! FUSE over io_uring is not used although the kernel offers it (off unless `fuse.enable_uring` is set): it splits large
//! reads among per-core queues, and halved them where we measured it, in exchange for faster concurrent 4 KiB reads,
//! which the page cache mostly absorbs here. `splice` is not used either: the crate does not offer it, and the one copy
//! that remains (from the source's cache into the page cache) is the one that a splice of cached frames would need too.
//!
//! Threads: the session's own threads call [`ImageFs`]; [`FuseServer`] belongs to one thread.
//! Source: Linux `Documentation/filesystems/fuse/`, `include/uapi/linux/fuse.h`, fsopen(2), fsmount(2).

pub mod connection;

use crate::source::BlockSource;
use fuser::{
    BackingId, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData,
    ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, Request, Session,
    SessionACL,
};
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

/// How an image is shown as a file.
#[derive(Debug, Clone)]
pub struct FuseOptions {
    /// Threads that serve reads, each with a descriptor of its own, 1 to [`THREADS_MAX`].
    pub threads: usize,
    /// How far the kernel reads ahead of a sequential reader, in bytes; a multiple of 4,096.
    pub read_ahead_bytes: u32,
    /// Let the kernel read a raw image's file itself where it can.
    pub passthrough: bool,
    /// The file's name.
    pub file_name: OsString,
    /// What the mount table shows as the mount's source, where it has a place.
    pub mount_source: String,
    /// Owner of the file.
    pub uid: u32,
    /// Group of the file.
    pub gid: u32,
    /// Permission bits; only the read bits are kept.
    pub mode: u32,
    /// The file's size is rounded up to a multiple of this (zeros follow); 512 for a loop device, which would
    /// otherwise cut the last sector off. A power of two.
    pub pad_to_bytes: u64,
}

impl Default for FuseOptions {
    fn default() -> Self {
        Self {
            threads: threads_default(),
            read_ahead_bytes: READ_AHEAD_BYTES_DEFAULT,
            passthrough: true,
            file_name: OsString::from("image"),
            mount_source: "sidecore".into(),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            mode: 0o400,
            pad_to_bytes: 1,
        }
    }
}

/// Where the FUSE file system is mounted.
#[derive(Debug, Clone, Copy)]
pub enum Place<'a> {
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
        /// What was tried.
        what: &'static str,
        /// What to do about it, with a leading separator, or nothing.
        hint: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// An option is out of range.
    #[error("{0} threads asked for to serve reads; 1 to {THREADS_MAX} are possible")]
    Threads(usize),
}

/// A FUSE file system that serves one image. Dropping it does not end it: it ends when its last user goes.
#[derive(Debug)]
pub struct FuseServer {
    thread: JoinHandle<io::Result<()>>,
    root: OwnedFd,
    file_name: OsString,
    device: Device,
}

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
    /// `on_end` runs on a thread of the session after the file system is gone (unmounted, or aborted).
    ///
    /// # Errors
    /// [`FuseError`]; nothing is left mounted then.
    pub fn start(
        source: Arc<dyn BlockSource>,
        options: &FuseOptions,
        place: Place<'_>,
        on_end: impl FnOnce() + Send + 'static,
    ) -> Result<Self, FuseError> {
        if options.threads == 0 || options.threads > THREADS_MAX {
            return Err(FuseError::Threads(options.threads));
        }
        let mut config = Config::default();
        config.n_threads = Some(options.threads);
        config.clone_fd = true;
        let image = ImageFs::new(source, options);
        let root_user = rustix::process::geteuid().is_root();
        config.acl = if root_user {
            SessionACL::All
        } else {
            SessionACL::Owner
        };
        let (session, hidden) = match place {
            Place::Hidden => {
                let (device, mount) = hidden_mount()?;
                let session = Session::from_fd(image, device, config.acl, config)
                    .map_err(|e| os("cannot start the FUSE session", "", e))?;
                (session, Some(mount))
            }
            Place::At(dir) => {
                config.mount_options = vec![
                    MountOption::FSName(options.mount_source.clone()),
                    MountOption::Subtype("sidecore".into()),
                    MountOption::RO,
                    MountOption::NoDev,
                    MountOption::NoSuid,
                    MountOption::DefaultPermissions,
                ];
                let session = Session::new(image, dir, &config).map_err(|e| {
                    let hint = if root_user {
                        ""
                    } else {
                        "; is fusermount3 (package fuse3) installed?"
                    };
                    os("cannot mount the FUSE file", hint, e)
                })?;
                (session, None)
            }
        };
        let thread = std::thread::Builder::new()
            .name("fuse-session".into())
            .spawn(move || {
                let result = session.run();
                on_end();
                result
            })
            .map_err(|e| os("cannot start the FUSE thread", "", e))?;
        let root = match (hidden, place) {
            (Some(mount), _) => mount,
            (None, Place::At(dir)) => {
                rustix::fs::open(dir, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
                    .map_err(|e| os("cannot open the FUSE directory", "", e.into()))?
            }
            (None, Place::Hidden) => unreachable!("a hidden mount always has its descriptor"),
        };
        let stat = rustix::fs::fstat(&root)
            .map_err(|e| os("cannot read the FUSE file system's number", "", e.into()))?;
        let device = Device {
            major: rustix::fs::major(stat.st_dev),
            minor: rustix::fs::minor(stat.st_dev),
        };
        set_read_ahead(device, options.read_ahead_bytes);
        Ok(Self {
            thread,
            root,
            file_name: options.file_name.clone(),
            device,
        })
    }

    /// Opens the file, as erofs and the loop device want it: for reading.
    ///
    /// # Errors
    /// Those of `openat(2)`.
    pub fn open_image(&self) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.root, &self.file_name, flags, Mode::empty())?.into())
    }

    /// The file system's device number; its minor number names the FUSE connection.
    #[must_use]
    pub fn device(&self) -> Device {
        self.device
    }

    /// Lets go of a hidden mount, so that only the users of the file keep it alive.
    #[must_use]
    pub fn release(self) -> JoinHandle<io::Result<()>> {
        self.thread
    }
}

/// Tells the kernel how far to read ahead on a file system without a block device. FUSE's own setting can only lower
/// the kernel's 128 KiB, so this goes through sysfs; where that is not to be had, reads are only slower.
pub(crate) fn set_read_ahead(device: Device, bytes: u32) {
    let path = format!(
        "/sys/class/bdi/{}:{}/read_ahead_kb",
        device.major, device.minor
    );
    if let Err(error) = std::fs::write(&path, (bytes / 1024).to_string()) {
        tracing::info!("read-ahead stays at the kernel's default: cannot write {path}: {error}");
    }
}

/// Mounts FUSE nowhere; gives the device's descriptor for the session and the mount's.
fn hidden_mount() -> Result<(OwnedFd, OwnedFd), FuseError> {
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .map_err(|e| {
            let hint = "; load the module with `modprobe fuse`, and run as root";
            os("cannot open /dev/fuse", hint, e.into())
        })?;
    let mount = (|| {
        let context = rustix::mount::fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
        let set = |key: &str, value: &str| {
            rustix::mount::fsconfig_set_string(context.as_fd(), key, value)
        };
        set("source", "sidecore")?;
        set("subtype", "sidecore")?;
        set("fd", &device.as_raw_fd().to_string())?;
        set("rootmode", "40000")?;
        set("user_id", &rustix::process::geteuid().as_raw().to_string())?;
        set("group_id", &rustix::process::getegid().as_raw().to_string())?;
        rustix::mount::fsconfig_set_flag(context.as_fd(), "allow_other")?;
        rustix::mount::fsconfig_set_flag(context.as_fd(), "ro")?;
        rustix::mount::fsconfig_create(context.as_fd())?;
        let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOSUID;
        rustix::mount::fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
    })()
    .map_err(|e: rustix::io::Errno| {
        let hint = "; needs root (CAP_SYS_ADMIN) and Linux 5.10 or newer";
        os("cannot mount FUSE", hint, e.into())
    })?;
    Ok((device, mount))
}

fn os(what: &'static str, hint: &'static str, source: io::Error) -> FuseError {
    FuseError::Os { what, hint, source }
}

/// The file system: a root directory with one file.
struct ImageFs {
    source: Arc<dyn BlockSource>,
    /// What a reader sees: the source's size, padded.
    size_bytes: u64,
    source_bytes: u64,
    file_name: OsString,
    file: FileAttr,
    root: FileAttr,
    passthrough: bool,
    /// The kernel's hold on a raw image's file; one for all opens, made by the first, kept until the end.
    backing: Mutex<Option<BackingId>>,
}

impl ImageFs {
    fn new(source: Arc<dyn BlockSource>, options: &FuseOptions) -> Self {
        let source_bytes = source.size_bytes();
        let size_bytes = source_bytes.next_multiple_of(options.pad_to_bytes.max(1));
        let now = SystemTime::now();
        let root = FileAttr {
            ino: INodeNo::ROOT,
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            kind: FileType::Directory,
            perm: 0o555,
            nlink: 2,
            uid: options.uid,
            gid: options.gid,
            rdev: 0,
            blksize: source.preferred_bytes(),
            flags: 0,
        };
        let file = FileAttr {
            ino: FILE,
            size: size_bytes,
            blocks: size_bytes.div_ceil(512),
            kind: FileType::RegularFile,
            perm: (options.mode & 0o444) as u16,
            nlink: 1,
            ..root
        };
        // A padded file's last bytes are ours, so the kernel cannot read them from the raw image.
        let passthrough = options.passthrough && size_bytes == source_bytes;
        Self {
            source,
            size_bytes,
            source_bytes,
            file_name: options.file_name.clone(),
            file,
            root,
            passthrough,
            backing: Mutex::new(None),
        }
    }

    fn attributes(&self, inode: INodeNo) -> Option<&FileAttr> {
        match inode {
            INodeNo::ROOT => Some(&self.root),
            FILE => Some(&self.file),
            _ => None,
        }
    }

    /// Reads that touch the padding, or are larger than the source takes at once: through the thread's buffer.
    fn read_gathered(&self, offset: u64, len: usize, reply: ReplyData) {
        with_scratch(len, |buffer| {
            let real = self.source_bytes.saturating_sub(offset).min(len as u64) as usize;
            let (data, padding) = buffer.split_at_mut(real);
            padding.fill(0);
            let step = self.source.read_with_max_bytes();
            let mut at = offset;
            for part in data.chunks_mut(step) {
                if let Err(error) = self.source.read_into(at, part) {
                    reply.error(Errno::from_i32(error.errno()));
                    return;
                }
                at += part.len() as u64;
            }
            reply.data(buffer);
        });
    }
}

impl Filesystem for ImageFs {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Asynchronous direct reads let a loop device with direct I/O keep several requests under way.
        for wanted in [InitFlags::FUSE_ASYNC_DIO, InitFlags::FUSE_PARALLEL_DIROPS] {
            if let Err(missing) = config.add_capabilities(wanted) {
                tracing::debug!("the kernel's FUSE has no {missing:?}");
            }
        }
        let passthrough = self.passthrough
            && self.source.passthrough().is_some()
            && config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok()
            && config.set_max_stack_depth(1).is_ok();
        self.passthrough = passthrough;
        // The largest request, in bytes: writes do not happen, but FUSE_MAX_PAGES is derived from this.
        let _ = config.set_max_write(REQUEST_BYTES_MAX);
        let _ = config.set_max_background(BACKGROUND_REQUESTS_MAX);
        let _ = config.set_congestion_threshold(BACKGROUND_REQUESTS_MAX);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if parent == INodeNo::ROOT && name == self.file_name {
            reply.entry(&FOREVER, &self.file, Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(ino) {
            Some(attributes) => reply.attr(&FOREVER, attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if ino != FILE {
            return reply.error(Errno::EISDIR);
        }
        if flags.0 & libc::O_ACCMODE != libc::O_RDONLY {
            return reply.error(Errno::EROFS);
        }
        if let Some(file) = self.source.passthrough().filter(|_| self.passthrough) {
            let mut backing = self.backing.lock();
            if backing.is_none() {
                match reply.open_backing(file) {
                    Ok(id) => *backing = Some(id),
                    // Needs CAP_SYS_ADMIN, and a file system below that may be stacked upon.
                    Err(error) => tracing::debug!("no passthrough: {error}"),
                }
            }
            if let Some(id) = backing.as_ref() {
                return reply.opened_passthrough(FileHandle(0), FopenFlags::empty(), id);
            }
        }
        reply.opened(
            FileHandle(0),
            FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH,
        );
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if ino != FILE {
            return reply.error(Errno::EISDIR);
        }
        let len = self.size_bytes.saturating_sub(offset).min(u64::from(size)) as usize;
        if len == 0 {
            return reply.data(&[]);
        }
        let inside = offset + len as u64 <= self.source_bytes;
        if !inside || len > self.source.read_with_max_bytes() {
            return self.read_gathered(offset, len, reply);
        }
        // Answered inside the closure, before the source finishes its frame or reads ahead. A source that never
        // called it would drop `reply`, which the crate turns into EIO.
        let mut reply = Some(reply);
        self.source.read_with(offset, len, &mut |result| {
            let Some(reply) = reply.take() else { return };
            match result {
                Ok([piece]) => reply.data(piece),
                Ok(pieces) => with_scratch(len, |buffer| {
                    let mut at = 0;
                    for piece in pieces {
                        buffer[at..at + piece.len()].copy_from_slice(piece);
                        at += piece.len();
                    }
                    reply.data(&buffer[..at]);
                }),
                Err(error) => reply.error(Errno::from_i32(error.errno())),
            }
        });
    }

    fn lseek(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let Ok(mut at) = u64::try_from(offset) else {
            return reply.error(Errno::EINVAL);
        };
        if ino != FILE || at >= self.size_bytes {
            return reply.error(Errno::ENXIO);
        }
        let want_zero = match whence {
            libc::SEEK_DATA => false,
            libc::SEEK_HOLE => true,
            _ => return reply.error(Errno::EINVAL),
        };
        // Any position that is not wrong will do, so a long run of short extents is cut off: what follows is
        // reported as data.
        for _ in 0..SEEK_EXTENTS_MAX {
            if at >= self.source_bytes {
                break;
            }
            let extent = self.source.extent(at);
            if extent.zero == want_zero || extent.len == 0 {
                return reply.offset(at as i64);
            }
            at += extent.len;
        }
        if want_zero || at >= self.size_bytes {
            let end = self.size_bytes;
            if want_zero {
                reply.offset(end as i64)
            } else {
                reply.error(Errno::ENXIO)
            }
        } else {
            reply.offset(at as i64);
        }
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        if ino != INodeNo::ROOT {
            return reply.error(Errno::ENOTDIR);
        }
        let entries: [(INodeNo, FileType, &OsStr); 3] = [
            (INodeNo::ROOT, FileType::Directory, OsStr::new(".")),
            (INodeNo::ROOT, FileType::Directory, OsStr::new("..")),
            (FILE, FileType::RegularFile, &self.file_name),
        ];
        for (index, (inode, kind, name)) in entries.into_iter().enumerate().skip(offset as usize) {
            if reply.add(inode, index as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let blocks = self.size_bytes.div_ceil(4096);
        reply.statfs(blocks, 0, 0, 1, 0, 4096, 255, 4096);
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn getxattr(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _name: &OsStr,
        _size: u32,
        reply: fuser::ReplyXattr,
    ) {
        // "Not implemented" makes the kernel stop asking.
        reply.error(Errno::ENOSYS);
    }

    fn access(&self, _req: &Request, _ino: INodeNo, _mask: fuser::AccessFlags, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }
}

/// Runs `work` on the first `len` bytes of this thread's buffer.
fn with_scratch(len: usize, work: impl FnOnce(&mut [u8])) {
    thread_local! {
        static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    SCRATCH.with_borrow_mut(|buffer| {
        if buffer.len() < len {
            buffer.resize(len.max(REQUEST_BYTES_MAX as usize), 0);
        }
        work(&mut buffer[..len]);
    });
}

/// One thread a core, within bounds: a thread waits while engines inflate, and more wait for nothing.
fn threads_default() -> usize {
    let cores = std::thread::available_parallelism().map_or(2, usize::from);
    cores.clamp(2, 8)
}

const FILE: INodeNo = INodeNo(2);
/// Nothing ever changes, so the kernel need not ask again: a year.
const FOREVER: Duration = Duration::from_secs(365 * 86400);
/// The kernel's own limit on one request (`fs.fuse.max_pages_limit` = 256 pages).
const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Requests that may be under way without a reader waiting for each (read-ahead, a loop device's direct reads).
const BACKGROUND_REQUESTS_MAX: u16 = 64;
/// The most threads that may serve one image.
pub const THREADS_MAX: usize = 64;
/// Read-ahead unless told otherwise.
pub const READ_AHEAD_BYTES_DEFAULT: u32 = 1 << 20;
/// Extents that one `lseek` looks at.
const SEEK_EXTENTS_MAX: usize = 4096;
