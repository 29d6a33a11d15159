//! The FUSE file system itself: a root directory with one file, answered from a [`BlockSource`].
//!
//! Why here: [`super`] mounts and ends it; this answers the kernel's requests.
//! Must stay true: every request is answered exactly once; a read is answered before its source
//! goes on to finish frames or to read ahead; no read allocates after its thread's first.
//!
//! Threads: the session's, any number at once. Source: `include/uapi/linux/fuse.h`.

use super::FuseOptions;
use super::behind::Behind;
use super::gather::{
    BACKGROUND_REQUESTS_MAX, FOREVER, REQUEST_BYTES_MAX, read_through, with_scratch,
};
use crate::source::BlockSource;
use fuser::{
    BackingId, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory,
    ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, Request, WriteFlags,
};
use parking_lot::Mutex;
use std::ffi::{OsStr, OsString};
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

/// The file system: a root directory with one file.
pub(super) struct ImageFs {
    source: Arc<dyn BlockSource>,
    /// Size that readers see: the source's, padded.
    size_bytes: u64,
    source_bytes: u64,
    file_name: OsString,
    file: FileAttr,
    root: FileAttr,
    read_with_max_bytes: usize,
    passthrough: bool,
    /// The kernel's hold on a raw image's file; one for all opens, made by the first, kept until
    /// the end.
    backing: Mutex<Option<BackingId>>,
    behind: Option<Behind>,
}

impl ImageFs {
    pub(super) fn new(source: Arc<dyn BlockSource>, options: &FuseOptions) -> Self {
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
            perm: match source.writes() {
                Some(_) => (options.mode & 0o666) as u16,
                None => (options.mode & 0o444) as u16,
            },
            nlink: 1,
            ..root
        };
        // A padded file's last bytes are ours, so the kernel cannot read them from the raw image.
        let passthrough = options.passthrough && size_bytes == source_bytes;
        Self {
            read_with_max_bytes: source.read_with_max_bytes(),
            source,
            size_bytes,
            source_bytes,
            file_name: options.file_name.clone(),
            file,
            root,
            passthrough,
            backing: Mutex::new(None),
            behind: None,
        }
    }

    /// Tells `behind` of every read that was answered.
    pub(super) fn drop_behind(&mut self, behind: Behind) {
        self.behind = Some(behind);
    }

    fn attributes(&self, inode: INodeNo) -> Option<&FileAttr> {
        match inode {
            INodeNo::ROOT => Some(&self.root),
            FILE => Some(&self.file),
            _ => None,
        }
    }

    /// Reads that touch the padding, or are larger than the source delivers in pieces: through the
    /// thread's buffer, in one go, so that the source can spread all their frames over its engines.
    fn read_gathered(&self, offset: u64, len: usize, reply: ReplyData) {
        with_scratch(len, |buffer| {
            let real = self.source_bytes.saturating_sub(offset).min(len as u64) as usize;
            let (data, padding) = buffer.split_at_mut(real);
            padding.fill(0);
            match self.source.read_into(offset, data) {
                Ok(()) => reply.data(buffer),
                Err(error) => reply.error(Errno::from_i32(error.errno())),
            }
        });
    }
}

impl Filesystem for ImageFs {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Asynchronous direct reads let a loop device with direct I/O keep several requests under
        // way.
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
        // The largest request, in bytes: writes do not happen, but FUSE_MAX_PAGES is derived from
        // this.
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
        let writes = flags.0 & libc::O_ACCMODE != libc::O_RDONLY;
        if writes && self.source.writes().is_none() {
            return reply.error(Errno::EROFS);
        }
        if writes {
            // A loop device with direct I/O may have several writes under way.
            return reply.opened(
                FileHandle(0),
                FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES,
            );
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
        if let Some(behind) = &self.behind {
            behind.delivered(offset, len);
        }
        let inside = offset + len as u64 <= self.source_bytes;
        if !inside || len > self.read_with_max_bytes {
            return self.read_gathered(offset, len, reply);
        }
        read_through(&*self.source, offset, len, reply);
    }

    fn write(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let Some(writes) = self.source.writes().filter(|_| ino == FILE) else {
            return reply.error(Errno::EROFS);
        };
        if offset + data.len() as u64 > self.size_bytes {
            return reply.error(Errno::EFBIG);
        }
        // The padding up to a whole sector is not kept.
        let real = self
            .source_bytes
            .saturating_sub(offset)
            .min(data.len() as u64);
        match writes.write(offset.min(self.source_bytes), &data[..real as usize]) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(Errno::from_i32(error.errno())),
        }
    }

    fn fsync(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _datasync: bool,
        reply: ReplyEmpty,
    ) {
        match self.source.writes().map(|writes| writes.flush()) {
            None | Some(Ok(())) => reply.ok(),
            Some(Err(error)) => reply.error(Errno::from_i32(error.errno())),
        }
    }

    /// Discards and zeros, as a loop device asks for them.
    fn fallocate(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let Some(writes) = self.source.writes().filter(|_| ino == FILE) else {
            return reply.error(Errno::EROFS);
        };
        let end = offset.saturating_add(length).min(self.source_bytes);
        let len = end.saturating_sub(offset);
        let punches = mode & libc::FALLOC_FL_PUNCH_HOLE != 0;
        let zeros = mode & libc::FALLOC_FL_ZERO_RANGE != 0;
        if !punches && !zeros {
            return reply.error(Errno::EOPNOTSUPP);
        }
        // Both promise zeros.
        match writes.write_zeroes(offset.min(end), len) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(Errno::from_i32(error.errno())),
        }
    }

    fn setattr(
        &self,
        _req: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _atime: Option<fuser::TimeOrNow>,
        _mtime: Option<fuser::TimeOrNow>,
        _ctime: Option<SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        // A disk has the size that it has; times are those of the start.
        let resized = ino == FILE && size.is_some_and(|size| size != self.size_bytes);
        match self.attributes(ino) {
            Some(_) if resized => reply.error(Errno::EPERM),
            Some(attributes) => reply.attr(&FOREVER, attributes),
            None => reply.error(Errno::ENOENT),
        }
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
        // Any position that is not wrong will do, so a long run of short extents is cut off: what
        // follows is reported as data.
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

/// Node of the one file.
pub(super) const FILE: INodeNo = INodeNo(2);
/// Extents that one `lseek` looks at.
const SEEK_EXTENTS_MAX: usize = 4096;
