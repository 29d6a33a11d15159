//! The file system inside an image, read by this program and shown through FUSE.
//!
//! Why here: `mount` passes the contents to the kernel's parsers, which takes root and trust in the
//! image's author. Here the parser is [`sidecore_erofs`] in a process of the user; a hostile image
//! gets no further than that process can.
//!
//! Few requests, for each costs two context switches. Directories are listed with their entries'
//! attributes. The kernel keeps names, attributes, links and pages for ever (nothing changes).
//! Files are neither opened nor closed here (`ENOSYS` tells the kernel to stop asking).
//!
//! Must stay true: a node's number is its inode's plus [`NODE_OFFSET`] (the root's is FUSE's), so
//! that a node needs no memory and forgetting one costs nothing. Each request is answered once. A
//! fault in an image is `EIO` for the file that has it.
//!
//! Threads: the session's, any number at once. Source: `include/uapi/linux/fuse.h`.

use super::abi::{Attributes, ROOT, flag};
use super::ahead::{Ahead, Run};
use super::nodes::{Answer, List, Nodes, ReadReply, Space, Terms, read_through, with_scratch};
use parking_lot::Mutex;
use rustix::io::Errno;
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_erofs::{Bytes, Erofs, Error, Extent, Inode, Kind, Unreadable};
use sidecore_format::source::BlockSource;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// An image's file system, open for reading.
pub struct Tree {
    pub(super) erofs: Erofs<Lent>,
    pub(super) source: Arc<dyn BlockSource>,
}

impl Tree {
    /// Opens the erofs that `source` holds. Blocks on its first bytes.
    ///
    /// # Errors
    /// [`Error`]: it is no erofs, or one with unsupported features.
    pub fn open(source: Arc<dyn BlockSource>) -> Result<Self, Error> {
        let erofs = Erofs::open(Lent(Arc::clone(&source)))?;
        Ok(Self { erofs, source })
    }
}

/// A source's bytes, as the parser reads them.
pub(super) struct Lent(Arc<dyn BlockSource>);

impl Bytes for Lent {
    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn read_into(&self, offset: u64, dst: &mut [u8]) -> Result<(), Unreadable> {
        // The device has logged the reason.
        self.0.read_into(offset, dst).map_err(|_| Unreadable)
    }
}

/// The file system as the FUSE session calls it.
pub(super) struct TreeFs {
    files: Arc<Files>,
    read_with_max_bytes: usize,
    /// To the thread that stores files before they are read.
    runs: Option<SyncSender<Run>>,
}

/// For the thread that stores files ahead: the files, and the predicted runs.
pub(super) type Line = (Arc<Files>, Receiver<Run>);

/// Files of a tree, for the session and for the thread that stores them ahead.
pub(super) struct Files {
    pub tree: Tree,
    /// Inodes used last, by their numbers' low bits.
    inodes: Box<[Mutex<Option<Inode>>]>,
    /// Inodes whose damage was logged.
    logged: Mutex<HashSet<u64>>,
    /// Readers, and the files that they are predicted to open next.
    pub ahead: Mutex<Ahead>,
}

impl TreeFs {
    /// The file system, and the receiving end of the queue to the thread that stores files ahead of
    /// their readers.
    pub(super) fn new(tree: Tree) -> (Self, Option<Line>) {
        // For a remote image each byte that was not requested costs bandwidth.
        let stores = !tree.source.waits_for_a_network();
        let read_with_max_bytes = tree.source.read_with_max_bytes();
        let files = Arc::new(Files {
            tree,
            inodes: (0..INODES).map(|_| Mutex::new(None)).collect(),
            logged: Mutex::default(),
            ahead: Mutex::default(),
        });
        let (runs, line) = sync_channel(RUNS_WAITING_MAX);
        let line = (Arc::clone(&files), line);
        let file_system = Self {
            files,
            read_with_max_bytes,
            runs: stores.then_some(runs),
        };
        (file_system, stores.then_some(line))
    }
}

impl Files {
    /// Number of an inode's node.
    pub(super) fn node(&self, nid: u64) -> u64 {
        match nid == self.tree.erofs.root() {
            true => ROOT,
            false => nid.saturating_add(NODE_OFFSET),
        }
    }

    fn inode(&self, node: u64) -> Answer<Inode> {
        let nid = match node {
            ROOT => self.tree.erofs.root(),
            number => number.checked_sub(NODE_OFFSET).ok_or(Errno::NOENT)?,
        };
        self.inode_of(nid).map_err(|error| self.fault(&error))
    }

    pub(super) fn inode_of(&self, nid: u64) -> Result<Inode, Error> {
        // Direct-mapped: two threads contend only for the same place, and an eviction needs no
        // order.
        let place = &self.inodes[nid.to_usize() % INODES];
        if let Some(inode) = place.lock().filter(|inode| inode.nid == nid) {
            return Ok(inode);
        }
        let inode = self.tree.erofs.inode(nid)?;
        *place.lock() = Some(inode);
        Ok(inode)
    }

    fn directory(&self, node: u64) -> Answer<Inode> {
        let inode = self.inode(node)?;
        match inode.kind {
            Kind::Directory => Ok(inode),
            _ => Err(Errno::NOTDIR),
        }
    }

    /// Error number for a fault, which is logged once for each inode.
    fn fault(&self, error: &Error) -> Errno {
        let nid = match error {
            Error::TooLong(_) => return Errno::TOOBIG,
            Error::Corrupt { nid, .. } => *nid,
            _ => return Errno::IO,
        };
        let mut logged = self.logged.lock();
        // Bounded: a hostile image must not fill the log or the set.
        if logged.len() < LOGGED_MAX && logged.insert(nid) {
            tracing::error!("{error}; programs that use it get an I/O error");
        }
        Errno::IO
    }

    fn attributes_of(&self, inode: &Inode) -> Attributes {
        let block_bytes = self.tree.erofs.block_bytes();
        let blocks = inode.size_bytes.div_ceil(block_bytes.into()) * u64::from(block_bytes / 512);
        Attributes {
            node: self.node(inode.nid),
            size_bytes: inode.size_bytes,
            blocks,
            time: (inode.mtime_s, inode.mtime_ns),
            mode: mode(inode.kind) | u32::from(inode.permissions),
            links: inode.links,
            uid: inode.uid,
            gid: inode.gid,
            rdev: inode.rdev,
            block_bytes,
            may_change: false,
        }
    }
}

impl TreeFs {
    fn read_file(&self, node: u64, offset: u64, len: usize, reply: ReadReply<'_>) {
        let mut extents = Vec::with_capacity(EXTENTS);
        let found = self.files.inode(node).and_then(|inode| match inode.kind {
            Kind::Directory => Err(Errno::ISDIR),
            _ => (self.files.tree.erofs)
                .extents(&inode, offset, len.to_u64(), &mut extents)
                .map_err(|error| self.files.fault(&error)),
        });
        if let Err(errno) = found {
            return reply.error(errno);
        }
        let total: u64 = extents.iter().map(|extent| extent.len).sum();
        let total = total.to_usize();
        let source = &*self.files.tree.source;
        match extents[..] {
            [] => reply.pieces(&[]),
            // One extent: lent from the cache. Several, or a hole, have to be gathered.
            [Extent { at: Some(at), .. }] if total <= self.read_with_max_bytes => {
                read_through(source, at, total, reply);
            }
            _ => with_scratch(total, |buffer| match fill(source, &extents, buffer) {
                Ok(()) => reply.pieces(&[buffer]),
                Err(errno) => reply.error(errno),
            }),
        }
    }
}

/// Fills `buffer` with the bytes of the extents, which have its length together.
pub(super) fn fill(source: &dyn BlockSource, extents: &[Extent], buffer: &mut [u8]) -> Answer<()> {
    let mut rest = buffer;
    for extent in extents {
        let (part, others) = rest.split_at_mut(extent.len.to_usize());
        match extent.at {
            Some(at) => source.read_into(at, part).map_err(|_| Errno::IO)?,
            None => part.fill(0),
        }
        rest = others;
    }
    Ok(())
}

impl Nodes for TreeFs {
    fn agree(&mut self, terms: &mut Terms) {
        for wanted in [
            flag::ASYNC_DIO,
            flag::PARALLEL_DIROPS,
            flag::DO_READDIRPLUS,
            flag::READDIRPLUS_AUTO,
            flag::CACHE_SYMLINKS,
            // Opens are then answered with `ENOSYS`: the kernel stops asking, and keeps pages from
            // one open to the next.
            flag::NO_OPEN_SUPPORT,
            flag::NO_OPENDIR_SUPPORT,
        ] {
            terms.take(wanted);
        }
    }

    fn look_up(&self, parent: u64, name: &[u8]) -> Answer<Option<Attributes>> {
        let directory = self.files.directory(parent)?;
        let found = (|| {
            let nid = self.files.tree.erofs.look_up(&directory, name)?;
            nid.map(|nid| self.files.inode_of(nid)).transpose()
        })();
        let inode = found.map_err(|error| self.files.fault(&error))?;
        Ok(inode.map(|inode| self.files.attributes_of(&inode)))
    }

    fn attributes(&self, node: u64) -> Answer<Attributes> {
        Ok(self.files.attributes_of(&self.files.inode(node)?))
    }

    fn link(&self, node: u64) -> Answer<Vec<u8>> {
        let inode = self.files.inode(node)?;
        match inode.kind {
            Kind::Link => {
                (self.files.tree.erofs.link(&inode)).map_err(|error| self.files.fault(&error))
            }
            _ => Err(Errno::INVAL),
        }
    }

    fn read(&self, node: u64, offset: u64, len: usize, reply: ReadReply<'_>) {
        self.read_file(node, offset, len, reply);
        // After the reply: the reader continues meanwhile.
        if let Some(runs) = self.runs.as_ref().filter(|_| offset == 0) {
            let nid = node.saturating_sub(NODE_OFFSET);
            if let Some(run) = self.files.ahead.lock().read(nid) {
                // A run that finds the queue full is left to its reader.
                let _ = runs.try_send(run);
            }
        }
    }

    fn list(&self, node: u64, from: u64, list: &mut List) -> Answer<()> {
        let directory = self.files.directory(node)?;
        // A list that was begun must not end in an error: the entries before it would be lost.
        let mut some = false;
        let mut files = Vec::new();
        let listed = self.files.tree.erofs.list(&directory, from, &mut |entry| {
            let kind = mode(entry.kind.unwrap_or(Kind::File));
            // An entry with a damaged inode is listed all the same; the error comes when it is
            // opened.
            let attributes = || match self.files.inode_of(entry.nid) {
                Ok(inode) => self.files.attributes_of(&inode),
                Err(_) => Attributes {
                    mode: kind,
                    ..Attributes::default()
                },
            };
            let node = self.files.node(entry.nid);
            let added = list.add((node, kind), entry.next, entry.name, attributes);
            some |= added;
            if added && kind == libc::S_IFREG {
                files.push(entry.nid);
            }
            added
        });
        // The kernel has no inodes for entries that were listed by name only.
        if self.runs.is_some() && list.with_attributes() {
            self.files.ahead.lock().listed(&files);
        }
        match listed {
            // The kernel asks again for the rest, and then gets the error.
            Err(_) if some => Ok(()),
            listed => listed.map_err(|error| self.files.fault(&error)),
        }
    }

    fn seek(&self, node: u64, offset: u64, whence: u32) -> Answer<u64> {
        self.next_place(node, offset, whence.cast_signed())
    }

    fn space(&self) -> Space {
        let erofs = &self.files.tree.erofs;
        Space {
            blocks: erofs.blocks(),
            block_bytes: erofs.block_bytes(),
            nodes: erofs.inodes(),
        }
    }

    fn attribute(&self, node: u64, name: &[u8]) -> Answer<Vec<u8>> {
        let inode = self.files.inode(node)?;
        let value = self.files.tree.erofs.attribute(&inode, name);
        let value = value.map_err(|error| self.files.fault(&error))?;
        value.ok_or(Errno::NODATA)
    }

    fn attribute_names(&self, node: u64) -> Answer<Vec<u8>> {
        let inode = self.files.inode(node)?;
        let names = self.files.tree.erofs.attribute_names(&inode);
        names.map_err(|error| self.files.fault(&error))
    }
}

impl TreeFs {
    /// Place of the next data or hole. Any correct place is allowed, so a long run of extents of
    /// the other kind is cut off: the rest is reported as data.
    fn next_place(&self, node: u64, offset: u64, whence: i32) -> Answer<u64> {
        let inode = self.files.inode(node)?;
        let mut at = offset;
        if at >= inode.size_bytes {
            return Err(Errno::NXIO);
        }
        let want_hole = match whence {
            libc::SEEK_DATA => false,
            libc::SEEK_HOLE => true,
            _ => return Err(Errno::INVAL),
        };
        let mut extents = Vec::new();
        // Bounded in time: a program with a hostile file must not keep this thread.
        for _ in 0..SEEK_STEPS_MAX {
            extents.clear();
            let erofs = &self.files.tree.erofs;
            let found = erofs.extents(&inode, at, SEEK_BYTES, &mut extents);
            found.map_err(|error| self.files.fault(&error))?;
            for extent in &extents {
                if extent.at.is_none() == want_hole {
                    return Ok(at);
                }
                at += extent.len;
            }
            if at >= inode.size_bytes {
                break;
            }
        }
        match (want_hole, at >= inode.size_bytes) {
            (true, _) => Ok(inode.size_bytes),
            (false, true) => Err(Errno::NXIO),
            (false, false) => Ok(at),
        }
    }
}

/// Bits of a mode for the kind of file.
fn mode(kind: Kind) -> u32 {
    match kind {
        Kind::File => libc::S_IFREG,
        Kind::Directory => libc::S_IFDIR,
        Kind::Link => libc::S_IFLNK,
        Kind::CharacterDevice => libc::S_IFCHR,
        Kind::BlockDevice => libc::S_IFBLK,
        Kind::Fifo => libc::S_IFIFO,
        Kind::Socket => libc::S_IFSOCK,
    }
}

/// Most runs that wait for the thread that stores them.
const RUNS_WAITING_MAX: usize = 64;
/// Keeps inodes off FUSE's node 0 (none) and 1 (the root).
const NODE_OFFSET: u64 = 2;
/// Inodes that are kept; a power of two.
const INODES: usize = 4096;
/// Damaged inodes that are remembered, so that each is logged once.
const LOGGED_MAX: usize = 1024;
/// Extents of a usual read: chunks of 64 KiB in a request of 128 KiB that begins anywhere.
const EXTENTS: usize = 4;
/// Part of a file that a seek examines in one step, and the most such steps.
const SEEK_BYTES: u64 = 64 << 20;
const SEEK_STEPS_MAX: usize = 1024;
