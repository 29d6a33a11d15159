//! The file system inside an image, read by this program and shown through FUSE.
//!
//! Why here: `mount` hands what is inside to the kernel's parsers, which takes root and trust in
//! the image's maker. Here the parser is [`sidecore_erofs`] in a process of the user's; a hostile
//! image gets no further than that process can.
//!
//! Few requests, for each costs two switches of process: directories are listed with their
//! entries' attributes, the kernel keeps names, attributes, links and pages for ever (nothing
//! changes), and files are neither opened nor closed here (`ENOSYS` tells the kernel to stop
//! asking).
//!
//! Must stay true: a node's number is its inode's plus [`NODE_OFFSET`] (the root's is FUSE's), so
//! that nothing is kept for a node and forgetting one costs nothing; each request is answered
//! once; a fault in an image is `EIO` for the file that has it.
//!
//! Threads: the session's, any number at once. Source: `include/uapi/linux/fuse.h`.

use super::gather::{BACKGROUND_REQUESTS_MAX, FOREVER, REQUEST_BYTES_MAX, with_scratch};
use crate::source::BlockSource;
use fuser::{
    AccessFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyXattr, Request,
};
use parking_lot::Mutex;
use sidecore_erofs::{Bytes, Entry, Erofs, Error, Extent, Inode, Kind, Unreadable};
use std::collections::HashSet;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// An image's file system, open for reading.
pub struct Tree {
    erofs: Erofs<Lent>,
    source: Arc<dyn BlockSource>,
}

impl Tree {
    /// Opens the erofs that `source` holds. Blocks on its first bytes.
    ///
    /// # Errors
    /// [`Error`]: it is none, or not one that is read here.
    pub fn open(source: Arc<dyn BlockSource>) -> Result<Self, Error> {
        let erofs = Erofs::open(Lent(Arc::clone(&source)))?;
        Ok(Self { erofs, source })
    }
}

/// A source's bytes, lent to the parser.
struct Lent(Arc<dyn BlockSource>);

impl Bytes for Lent {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<(), Unreadable> {
        // The device has logged why.
        self.0.read_into(offset, dst).map_err(|_| Unreadable)
    }
}

/// The file system as the FUSE session calls it.
pub(super) struct TreeFs {
    tree: Tree,
    read_with_max_bytes: usize,
    /// Inodes looked at last, by their numbers' low bits.
    inodes: Box<[Mutex<Option<Inode>>]>,
    /// Inodes whose damage was logged.
    logged: Mutex<HashSet<u64>>,
}

impl TreeFs {
    pub(super) fn new(tree: Tree) -> Self {
        Self {
            read_with_max_bytes: tree.source.read_with_max_bytes(),
            tree,
            inodes: (0..INODES).map(|_| Mutex::new(None)).collect(),
            logged: Mutex::default(),
        }
    }

    fn node(&self, nid: u64) -> INodeNo {
        match nid == self.tree.erofs.root() {
            true => INodeNo::ROOT,
            false => INodeNo(nid.saturating_add(NODE_OFFSET)),
        }
    }

    fn inode(&self, node: INodeNo) -> Result<Inode, Errno> {
        let nid = match node {
            INodeNo::ROOT => self.tree.erofs.root(),
            INodeNo(number) => number.checked_sub(NODE_OFFSET).ok_or(Errno::ENOENT)?,
        };
        self.inode_of(nid).map_err(|error| self.fault(&error))
    }

    fn inode_of(&self, nid: u64) -> Result<Inode, Error> {
        let place = &self.inodes[nid as usize % INODES];
        if let Some(inode) = place.lock().filter(|inode| inode.nid == nid) {
            return Ok(inode);
        }
        let inode = self.tree.erofs.inode(nid)?;
        *place.lock() = Some(inode);
        Ok(inode)
    }

    fn directory(&self, node: INodeNo) -> Result<Inode, Errno> {
        let inode = self.inode(node)?;
        match inode.kind {
            Kind::Directory => Ok(inode),
            _ => Err(Errno::ENOTDIR),
        }
    }

    /// Error number for a fault, which is logged once for each inode.
    fn fault(&self, error: &Error) -> Errno {
        let nid = match error {
            Error::TooLong(_) => return Errno::E2BIG,
            Error::Corrupt { nid, .. } => *nid,
            _ => return Errno::EIO,
        };
        let mut logged = self.logged.lock();
        if logged.len() < LOGGED_MAX && logged.insert(nid) {
            tracing::error!("{error}; programs that use it get an I/O error");
        }
        Errno::EIO
    }

    fn attributes(&self, inode: &Inode) -> FileAttr {
        let time = time(inode.mtime_s, inode.mtime_ns);
        let block_bytes = self.tree.erofs.block_bytes();
        let blocks = inode.size_bytes.div_ceil(block_bytes.into()) * u64::from(block_bytes / 512);
        FileAttr {
            ino: self.node(inode.nid),
            size: inode.size_bytes,
            blocks,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind: file_type(inode.kind),
            perm: inode.permissions,
            nlink: inode.links,
            uid: inode.uid,
            gid: inode.gid,
            rdev: inode.rdev,
            blksize: block_bytes,
            flags: 0,
        }
    }

    fn read_file(&self, node: INodeNo, offset: u64, len: usize, reply: ReplyData) {
        let mut extents = Vec::with_capacity(EXTENTS);
        let found = self.inode(node).and_then(|inode| match inode.kind {
            Kind::Directory => Err(Errno::EISDIR),
            _ => (self.tree.erofs)
                .extents(&inode, offset, len as u64, &mut extents)
                .map_err(|error| self.fault(&error)),
        });
        if let Err(errno) = found {
            return reply.error(errno);
        }
        let total: u64 = extents.iter().map(|extent| extent.len).sum();
        let total = total as usize;
        let source = &*self.tree.source;
        match extents[..] {
            [] => reply.data(&[]),
            [Extent { at: Some(at), .. }] if total <= self.read_with_max_bytes => {
                super::gather::read_through(source, at, total, reply);
            }
            _ => with_scratch(total, |buffer| match fill(source, &extents, buffer) {
                Ok(()) => reply.data(buffer),
                Err(errno) => reply.error(errno),
            }),
        }
    }

    /// Lists a directory into a reply: `add` says whether the reply is full.
    fn list(
        &self,
        node: INodeNo,
        offset: u64,
        add: &mut dyn FnMut(&Entry<'_>) -> bool,
    ) -> Result<(), Errno> {
        let directory = self.directory(node)?;
        let mut some = false;
        let listed = self.tree.erofs.list(&directory, offset, &mut |entry| {
            let full = add(entry);
            some |= !full;
            !full
        });
        match listed {
            // The kernel comes back for the rest, and then gets the error.
            Err(_) if some => Ok(()),
            listed => listed.map_err(|error| self.fault(&error)),
        }
    }
}

/// Fills `buffer` with what the extents name; they are as long together.
fn fill(source: &dyn BlockSource, extents: &[Extent], buffer: &mut [u8]) -> Result<(), Errno> {
    let mut rest = buffer;
    for extent in extents {
        let (part, others) = rest.split_at_mut(extent.len as usize);
        match extent.at {
            Some(at) => source.read_into(at, part).map_err(|_| Errno::EIO)?,
            None => part.fill(0),
        }
        rest = others;
    }
    Ok(())
}

impl Filesystem for TreeFs {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for wanted in [
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_NO_OPEN_SUPPORT,
            InitFlags::FUSE_NO_OPENDIR_SUPPORT,
        ] {
            if let Err(missing) = config.add_capabilities(wanted) {
                tracing::debug!("the kernel's FUSE has no {missing:?}");
            }
        }
        // From this follows how much one request may read.
        let _ = config.set_max_write(REQUEST_BYTES_MAX);
        let _ = config.set_max_background(BACKGROUND_REQUESTS_MAX);
        let _ = config.set_congestion_threshold(BACKGROUND_REQUESTS_MAX);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let erofs = &self.tree.erofs;
        let found = self.directory(parent).and_then(|directory| {
            let nid = erofs.look_up(&directory, name.as_bytes());
            let nid = nid.map_err(|error| self.fault(&error))?;
            let inode = nid.map(|nid| self.inode_of(nid)).transpose();
            inode.map_err(|error| self.fault(&error))
        });
        match found {
            Ok(Some(inode)) => reply.entry(&FOREVER, &self.attributes(&inode), Generation(0)),
            // Node 0: there is none, and the kernel may remember so.
            Ok(None) => reply.entry(&FOREVER, &NOTHING, Generation(0)),
            Err(errno) => reply.error(errno),
        }
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        match self.inode(ino) {
            Ok(inode) => reply.attr(&FOREVER, &self.attributes(&inode)),
            Err(errno) => reply.error(errno),
        }
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        let target = self.inode(ino).and_then(|inode| match inode.kind {
            Kind::Link => (self.tree.erofs.link(&inode)).map_err(|error| self.fault(&error)),
            _ => Err(Errno::EINVAL),
        });
        match target {
            Ok(target) => reply.data(&target),
            Err(errno) => reply.error(errno),
        }
    }

    fn open(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        // The kernel asks no more, and keeps pages from one open to the next.
        reply.error(Errno::ENOSYS);
    }

    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
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
        self.read_file(ino, offset, size as usize, reply);
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
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
        match self.seek(ino, offset, whence) {
            Ok(place) => reply.offset(place),
            Err(errno) => reply.error(errno),
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
        let listed = self.list(ino, offset, &mut |entry| {
            let kind = entry.kind.map_or(FileType::RegularFile, file_type);
            let name = OsStr::from_bytes(entry.name);
            reply.add(self.node(entry.nid), entry.next, kind, name)
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdirplus(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let listed = self.list(ino, offset, &mut |entry| {
            let node = self.node(entry.nid);
            // One whose inode is damaged is listed all the same; who looks at it gets the error.
            let attributes = match self.inode_of(entry.nid) {
                Ok(inode) => self.attributes(&inode),
                Err(_) => FileAttr {
                    kind: entry.kind.map_or(FileType::RegularFile, file_type),
                    ..NOTHING
                },
            };
            let name = OsStr::from_bytes(entry.name);
            reply.add(node, entry.next, name, &FOREVER, &attributes, Generation(0))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let erofs = &self.tree.erofs;
        let bytes = erofs.block_bytes();
        reply.statfs(erofs.blocks(), 0, 0, erofs.inodes(), 0, bytes, 255, bytes);
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let value = self.inode(ino).and_then(|inode| {
            let value = self.tree.erofs.attribute(&inode, name.as_bytes());
            value.map_err(|error| self.fault(&error))
        });
        match value {
            Ok(Some(value)) => send_attribute(&value, size, reply),
            Ok(None) => reply.error(Errno::ENODATA),
            Err(errno) => reply.error(errno),
        }
    }

    fn listxattr(&self, _req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let names = self.inode(ino).and_then(|inode| {
            let names = self.tree.erofs.attribute_names(&inode);
            names.map_err(|error| self.fault(&error))
        });
        match names {
            Ok(names) => send_attribute(&names, size, reply),
            Err(errno) => reply.error(errno),
        }
    }

    fn access(&self, _req: &Request, _ino: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }
}

impl TreeFs {
    /// Place of the next data or hole. Any place that is not wrong will do, so a long run of
    /// extents of the other kind is cut off: what follows is reported as data.
    fn seek(&self, node: INodeNo, offset: i64, whence: i32) -> Result<i64, Errno> {
        let inode = self.inode(node)?;
        let mut at = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
        if at >= inode.size_bytes {
            return Err(Errno::ENXIO);
        }
        let want_hole = match whence {
            libc::SEEK_DATA => false,
            libc::SEEK_HOLE => true,
            _ => return Err(Errno::EINVAL),
        };
        let mut extents = Vec::new();
        for _ in 0..SEEK_STEPS_MAX {
            extents.clear();
            let erofs = &self.tree.erofs;
            let found = erofs.extents(&inode, at, SEEK_BYTES, &mut extents);
            found.map_err(|error| self.fault(&error))?;
            for extent in &extents {
                if extent.at.is_none() == want_hole {
                    return Ok(at as i64);
                }
                at += extent.len;
            }
            if at >= inode.size_bytes {
                break;
            }
        }
        match (want_hole, at >= inode.size_bytes) {
            (true, _) => Ok(inode.size_bytes as i64),
            (false, true) => Err(Errno::ENXIO),
            (false, false) => Ok(at as i64),
        }
    }
}

/// Answers with an attribute's value or a list of names, as far as the caller has room.
fn send_attribute(bytes: &[u8], room: u32, reply: ReplyXattr) {
    match room as usize {
        0 => reply.size(bytes.len() as u32),
        room if room < bytes.len() => reply.error(Errno::ERANGE),
        _ => reply.data(bytes),
    }
}

fn time(seconds: i64, nanoseconds: u32) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let second = match seconds < 0 {
        true => SystemTime::UNIX_EPOCH.checked_sub(whole),
        false => SystemTime::UNIX_EPOCH.checked_add(whole),
    };
    // A time that the system cannot hold is none.
    second
        .and_then(|second| second.checked_add(Duration::from_nanos(nanoseconds.into())))
        .unwrap_or(SystemTime::UNIX_EPOCH)
}

fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Link => FileType::Symlink,
        Kind::CharacterDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
    }
}

/// Attributes of no file: node 0.
const NOTHING: FileAttr = FileAttr {
    ino: INodeNo(0),
    size: 0,
    blocks: 0,
    atime: SystemTime::UNIX_EPOCH,
    mtime: SystemTime::UNIX_EPOCH,
    ctime: SystemTime::UNIX_EPOCH,
    crtime: SystemTime::UNIX_EPOCH,
    kind: FileType::RegularFile,
    perm: 0,
    nlink: 0,
    uid: 0,
    gid: 0,
    rdev: 0,
    blksize: 512,
    flags: 0,
};

/// Keeps inodes off FUSE's node 0 (none) and 1 (the root).
const NODE_OFFSET: u64 = 2;
/// Inodes that are kept; a power of two.
const INODES: usize = 4096;
/// Damaged inodes that are remembered so that each is logged once.
const LOGGED_MAX: usize = 1024;
/// Extents of a usual read: chunks of 64 KiB in a request of 128 KiB that begins anywhere.
const EXTENTS: usize = 4;
/// Part of a file that a seek looks at in one step, and the most such steps.
const SEEK_BYTES: u64 = 64 << 20;
const SEEK_STEPS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_no_clock_shows_are_the_epoch() {
        // The system has times of 64 bits; damaged nanoseconds lead beyond the last one.
        assert!(time(i64::MAX, 999_999_999) > SystemTime::UNIX_EPOCH);
        assert_eq!(time(i64::MAX, u32::MAX), SystemTime::UNIX_EPOCH);
        assert!(time(i64::MIN, 0) < SystemTime::UNIX_EPOCH);
        let before = time(-2, 500_000_000);
        let since = SystemTime::UNIX_EPOCH.duration_since(before).unwrap();
        assert_eq!(since, Duration::from_millis(1500));
    }
}
