//! Boundary between a FUSE session and the file system that it shows.
//!
//! Why here: the file systems shown (one image, the files inside one) know no wire format, and the
//! session knows no images.
//! Must stay true: a method's return value is its reply, so that each request gets one reply. The
//! exception is a read, which is answered before its source finishes frames or reads ahead: its
//! [`ReadReply`] answers, with `EIO` if it is dropped unanswered.
//!
//! Threads: the session's, any number at once.

use super::abi::{Attributes, REQUEST_BYTES_MAX};
use super::outlet::Outlet;
use rustix::io::Errno;
use sidecore_bare::width::ToUsize;
use sidecore_format::source::BlockSource;
use std::cell::RefCell;
use std::os::fd::BorrowedFd;

/// Result of a request; an error is the errno that the program gets.
pub(super) type Answer<T> = Result<T, Errno>;

/// A file system that a session shows. The default methods answer that the operation is not
/// supported, and the kernel stops asking.
pub(super) trait Nodes: Send + Sync + 'static {
    /// Negotiates the session's terms with the kernel. Called once, before all others.
    fn agree(&mut self, terms: &mut Terms);

    /// Attributes of the node of this name; `None` if it does not exist, which the kernel may
    /// cache.
    fn look_up(&self, parent: u64, name: &[u8]) -> Answer<Option<Attributes>>;

    /// Attributes of a node.
    fn attributes(&self, node: u64) -> Answer<Attributes>;

    /// Bytes from `offset`, fewer only at the end.
    fn read(&self, node: u64, offset: u64, len: usize, reply: ReadReply<'_>);

    /// Entries of a directory after the one with cookie `from` (0: all), until the list is full.
    fn list(&self, node: u64, from: u64, list: &mut List) -> Answer<()>;

    /// Blocks and inodes, for `statfs`.
    fn space(&self) -> Space;

    /// Changes attributes; only the size is used.
    fn resize(&self, node: u64, size_bytes: Option<u64>) -> Answer<Attributes> {
        let _ = (node, size_bytes);
        Err(Errno::NOSYS)
    }

    /// Target of a symbolic link.
    fn link(&self, node: u64) -> Answer<Vec<u8>> {
        let _ = node;
        Err(Errno::NOSYS)
    }

    /// Opens a file; `flags` are those of open(2).
    fn open(&self, node: u64, flags: u32, device: BorrowedFd<'_>) -> Answer<Opened> {
        let _ = (node, flags, device);
        Err(Errno::NOSYS)
    }

    /// Refuses to create a file; the error.
    fn create(&self, parent: u64, name: &[u8]) -> Errno {
        let _ = (parent, name);
        Errno::NOSYS
    }

    /// Refuses to remove a directory; the error.
    fn remove_folder(&self, parent: u64, name: &[u8]) -> Errno {
        let _ = (parent, name);
        Errno::NOSYS
    }

    /// Opens a directory.
    fn open_directory(&self) -> Answer<()> {
        Err(Errno::NOSYS)
    }

    /// Replaces bytes from `offset`; all of them, or an error.
    fn write(&self, node: u64, offset: u64, bytes: &[u8]) -> Answer<()> {
        let _ = (node, offset, bytes);
        Err(Errno::NOSYS)
    }

    /// Makes all earlier writes durable.
    fn sync(&self) -> Answer<()> {
        Err(Errno::NOSYS)
    }

    /// fallocate(2).
    fn allocate(&self, node: u64, offset: u64, len: u64, mode: u32) -> Answer<()> {
        let _ = (node, offset, len, mode);
        Err(Errno::NOSYS)
    }

    /// Place of the next data or hole.
    fn seek(&self, node: u64, offset: u64, whence: u32) -> Answer<u64> {
        let _ = (node, offset, whence);
        Err(Errno::NOSYS)
    }

    /// Value of an extended attribute.
    fn attribute(&self, node: u64, name: &[u8]) -> Answer<Vec<u8>> {
        let _ = (node, name);
        Err(Errno::NOSYS)
    }

    /// Names of a node's extended attributes, each ended by a zero byte.
    fn attribute_names(&self, node: u64) -> Answer<Vec<u8>> {
        let _ = node;
        Err(Errno::NOSYS)
    }
}

/// Terms of a session: the kernel's offer, and the accepted part of it.
#[derive(Debug)]
pub(super) struct Terms {
    offered: u64,
    /// Of [`super::abi::flag`].
    pub taken: u64,
    /// Largest write in bytes.
    pub write_bytes_max: u32,
}

impl Terms {
    pub(super) fn new(offered: u64) -> Self {
        Self {
            offered,
            taken: 0,
            write_bytes_max: 4096,
        }
    }

    /// True if the kernel has an ability.
    pub(super) fn offers(&self, flag: u64) -> bool {
        self.offered & flag != 0
    }

    /// Accepts an ability, if the kernel offers it; returns whether it does.
    pub(super) fn take(&mut self, flag: u64) -> bool {
        let has = self.offers(flag);
        if has {
            self.taken |= flag;
        } else {
            tracing::debug!("the kernel's FUSE lacks ability {flag:#x}");
        }
        has
    }
}

/// An opened file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Opened {
    /// Of [`super::abi::opened`].
    pub flags: u32,
    /// The file that the kernel reads by itself, with `PASSTHROUGH`.
    pub backing: u32,
}

/// Reply to `statfs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Space {
    pub blocks: u64,
    pub block_bytes: u32,
    pub nodes: u64,
}

/// The reply to a read.
#[derive(Debug)]
pub(super) struct ReadReply<'a> {
    outlet: Option<Outlet<'a>>,
}

impl<'a> ReadReply<'a> {
    pub(super) fn new(outlet: Outlet<'a>) -> Self {
        Self {
            outlet: Some(outlet),
        }
    }

    /// Replies with these pieces, one after the other.
    pub(super) fn pieces(mut self, pieces: &[&[u8]]) {
        if let Some(mut outlet) = self.outlet.take() {
            outlet.send(pieces);
        }
    }

    /// Replies with an error.
    pub(super) fn error(mut self, errno: Errno) {
        if let Some(mut outlet) = self.outlet.take() {
            outlet.refuse(errno);
        }
    }
}

impl Drop for ReadReply<'_> {
    fn drop(&mut self) {
        if let Some(mut outlet) = self.outlet.take() {
            tracing::warn!("a read was left without an answer");
            outlet.refuse(Errno::IO);
        }
    }
}

/// Answers with `len` bytes of `source` from `offset`; at most
/// [`BlockSource::read_with_max_bytes`].
pub(super) fn read_through(
    source: &dyn BlockSource,
    offset: u64,
    len: usize,
    reply: ReadReply<'_>,
) {
    // Answered inside the closure, before the source finishes its frame or reads ahead. Only there
    // the slots stay unchanged: the kernel copies from them.
    let mut reply = Some(reply);
    source.read_with(offset, len, &mut |result| {
        let Some(reply) = reply.take() else { return };
        match result {
            Ok(pieces) => reply.pieces(pieces),
            Err(error) => reply.error(Errno::from_raw_os_error(error.errno())),
        }
    });
}

/// Runs `work` on the first `len` bytes of this thread's buffer. No call allocates after its
/// thread's first.
pub(super) fn with_scratch(len: usize, work: impl FnOnce(&mut [u8])) {
    thread_local! {
        static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
    }
    SCRATCH.with_borrow_mut(|buffer| {
        if buffer.len() < len {
            buffer.resize(len.max(REQUEST_BYTES_MAX.to_usize()), 0);
        }
        work(&mut buffer[..len]);
    });
}

/// A directory's entries for the kernel.
#[derive(Debug)]
pub(super) struct List {
    bytes: Vec<u8>,
    room: usize,
    /// With attributes.
    with_attributes: bool,
}

impl List {
    /// A list with room for `room` bytes.
    pub(super) fn new(room: usize, with_attributes: bool) -> Self {
        let room = room.min(LIST_BYTES_MAX);
        Self {
            bytes: Vec::with_capacity(room),
            room,
            with_attributes,
        }
    }

    /// Appends an entry. `next` is the cookie for going on after it; its attributes are computed
    /// only if they are sent. False, with nothing appended, where it does not fit.
    pub(super) fn add(
        &mut self,
        (node, mode): (u64, u32),
        next: u64,
        name: &[u8],
        attributes: impl FnOnce() -> Attributes,
    ) -> bool {
        let before = self.bytes.len();
        let fixed = ENTRY_HEAD_BYTES + if self.with_attributes { 128 } else { 0 };
        let len = (fixed + name.len()).next_multiple_of(8);
        if before + len > self.room {
            return false;
        }
        if self.with_attributes {
            self.bytes.extend_from_slice(attributes().entry().bytes());
        }
        self.bytes.extend_from_slice(&node.to_ne_bytes());
        self.bytes.extend_from_slice(&next.to_ne_bytes());
        let name_len = name.len() as u32;
        self.bytes.extend_from_slice(&name_len.to_ne_bytes());
        // The kinds of `getdents(2)` are the mode's upper bits.
        let kind = (mode & libc::S_IFMT) >> 12;
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(before + len, 0);
        true
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// True if the kernel gets attributes with the names.
    pub(super) fn with_attributes(&self) -> bool {
        self.with_attributes
    }
}

/// Bytes of `struct fuse_dirent` before its name.
const ENTRY_HEAD_BYTES: usize = 24;
/// The kernel asks for no more than it can read at once.
const LIST_BYTES_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_whole_and_aligned_and_stop_at_the_end_of_the_room() {
        let mut list = List::new(100, false);
        let nothing = Attributes::default;
        assert!(list.add((9, libc::S_IFDIR), 1, b"a", nothing));
        assert_eq!(list.bytes().len(), 32);
        assert!(list.add((10, libc::S_IFREG | 0o644), 2, b"12345678", nothing));
        assert_eq!(list.bytes().len(), 64);
        assert_eq!(list.bytes()[20..24], 4_u32.to_ne_bytes());
        assert!(!list.add((11, libc::S_IFREG), 3, b"123456789", nothing));
        assert_eq!(list.bytes().len(), 64);
        let mut list = List::new(200, true);
        assert!(list.add((9, libc::S_IFREG), 1, b"name", nothing));
        assert_eq!(list.bytes().len(), 128 + 32);
    }
}
