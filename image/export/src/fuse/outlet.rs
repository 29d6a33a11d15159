//! Replies and notices to the kernel: each one a `writev` to the FUSE device, or an entry of a
//! queue.
//!
//! Why here: a reply's pieces stay in place, mostly in the source's cache, and are copied once, by
//! the kernel, into the page cache.
//!
//! `vmsplice` and `splice` would not save that copy: the kernel takes over a page only where it is
//! not mapped (`fuse_check_folio` of `fs/fuse/dev.c`), and a cache's pages are mapped.
//!
//! Must stay true: a reply is whole or not sent at all. Its bytes are borrowed until the kernel has
//! copied them, so the memory's owner (a slot of the cache) leaves them unchanged until then. A
//! reply that the kernel did not take is marked as lost, because a program waits for it without a
//! time limit.
//!
//! Threads: any; each reply goes through the descriptor from which its request came.

use super::abi::{ANSWER_HEAD_BYTES, Words, answer_head, notice};
use arrayvec::ArrayVec;
use rustix::io::Errno;
use sidecore_bare::width::ToU64;
use sidecore_sys::fuse_ring::FuseQueue;
use std::cell::Cell;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Destination of one request's reply.
#[derive(Debug)]
pub(super) struct Outlet<'a> {
    way: Way<'a>,
    unique: u64,
    lost: &'a Cell<bool>,
}

#[derive(Debug)]
enum Way<'a> {
    Device(BorrowedFd<'a>),
    Queue(&'a mut FuseQueue, usize),
}

impl<'a> Outlet<'a> {
    /// To the device from which the request came. `lost` is set if the kernel does not take the
    /// reply.
    pub(super) fn new(device: BorrowedFd<'a>, unique: u64, lost: &'a Cell<bool>) -> Self {
        let way = Way::Device(device);
        Self { way, unique, lost }
    }

    /// To the queue entry in which the request came.
    pub(super) fn of_queue(
        queue: &'a mut FuseQueue,
        entry: usize,
        unique: u64,
        lost: &'a Cell<bool>,
    ) -> Self {
        let way = Way::Queue(queue, entry);
        Self { way, unique, lost }
    }

    /// Replies with these pieces, one after the other; without a copy up to [`PIECES_MAX`], and
    /// with one where the reply goes through a queue.
    pub(super) fn send(&mut self, pieces: &[&[u8]]) {
        let len: usize = pieces.iter().map(|piece| piece.len()).sum();
        let unique = self.unique;
        let sent = match &mut self.way {
            Way::Device(device) => {
                let head = answer_head(unique, 0, len);
                match pieces.len() <= PIECES_MAX {
                    true => persist(|| write(*device, &head, pieces)),
                    false => {
                        // Rare: more pieces than one `writev` takes here.
                        let whole = pieces.concat();
                        persist(|| write(*device, &head, &[&whole]))
                    }
                }
            }
            // The kernel takes the reply from the entry's own memory.
            Way::Queue(queue, entry) => match gather(queue.room(*entry), pieces) {
                true => queue.answer(*entry, unique, 0, len),
                false => queue.answer(*entry, unique, libc::EIO, 0),
            },
        };
        self.note(sent);
    }

    /// Replies with an error.
    pub(super) fn refuse(&mut self, errno: Errno) {
        let (unique, error) = (self.unique, errno.raw_os_error());
        let sent = match &mut self.way {
            Way::Device(device) => {
                let head = answer_head(unique, -error, 0);
                persist(|| write(*device, &head, &[]))
            }
            Way::Queue(queue, entry) => queue.answer(*entry, unique, error, 0),
        };
        self.note(sent);
    }

    fn note(&self, sent: io::Result<()>) {
        match sent {
            Ok(()) => {}
            // The request was aborted: the program was killed, or the file system is gone.
            Err(error) if GONE.contains(&error.raw_os_error().unwrap_or(0)) => {}
            Err(error) => {
                tracing::warn!("the kernel did not take an answer: {error}");
                self.lost.set(true);
            }
        }
    }
}

/// The error of a session that lost a reply.
pub(super) fn answer_lost() -> io::Error {
    io::Error::other("the kernel takes no answers")
}

/// Retries for as long as memory may become available.
fn persist(mut write: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    let mut result = write();
    for _ in 0..TRIES {
        match &result {
            Err(error) if !GONE.contains(&error.raw_os_error().unwrap_or(0)) => {
                std::thread::sleep(TRY_PAUSE);
                result = write();
            }
            _ => break,
        }
    }
    result
}

/// Copies pieces one after the other into `room`; false where they do not fit, which no reply to a
/// sound kernel does.
fn gather(room: &mut [u8], pieces: &[&[u8]]) -> bool {
    let mut rest = room;
    for piece in pieces {
        let Some((part, others)) = rest.split_at_mut_checked(piece.len()) else {
            return false;
        };
        part.copy_from_slice(piece);
        rest = others;
    }
    true
}

/// Sends notices to the kernel. Keeps the device open.
#[derive(Debug, Clone)]
pub(super) struct Notices(Arc<OwnedFd>);

impl Notices {
    pub(super) fn new(device: Arc<OwnedFd>) -> Self {
        Self(device)
    }

    /// Has the kernel send again all requests that were read and not answered (Linux 6.9).
    ///
    /// # Errors
    /// The system's; invalid where the kernel does not know the notice.
    pub(super) fn resend(&self) -> io::Result<()> {
        let head = answer_head(0, notice::RESEND, 0);
        write(self.0.as_fd(), &head, &[])
    }

    /// The device.
    pub(super) fn device(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Has the kernel drop pages of a node. Waits for those that are being read.
    ///
    /// # Errors
    /// The system's; not found where the kernel does not know the node.
    pub(super) fn forget_pages(&self, node: u64, offset: u64, len: usize) -> io::Result<()> {
        let body = Words::default().u64(node).u64(offset).u64(len.to_u64());
        let head = answer_head(0, notice::INVAL_INODE, body.bytes().len());
        write(self.0.as_fd(), &head, &[body.bytes()])
    }

    /// Stores bytes of a node in the page cache, as if they had been read. Waits for its pages that
    /// are being read, so the caller must hold nothing that a reply needs.
    ///
    /// # Errors
    /// The system's; not found where the kernel does not know the node.
    pub(super) fn store(&self, node: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let body = Words::default().u64(node).u64(offset);
        let body = body.u32(bytes.len() as u32).u32(0);
        let head = answer_head(0, notice::STORE, body.bytes().len() + bytes.len());
        write(self.0.as_fd(), &head, &[body.bytes(), bytes])
    }
}

/// Writes a head and pieces as one message.
fn write(device: BorrowedFd<'_>, head: &Words, pieces: &[&[u8]]) -> io::Result<()> {
    let mut parts = ArrayVec::<IoSlice<'_>, { PIECES_MAX + 1 }>::new();
    parts.push(IoSlice::new(head.bytes()));
    for piece in pieces {
        let full = parts.try_push(IoSlice::new(piece)).is_err();
        if full {
            return Err(io::ErrorKind::InvalidInput.into());
        }
    }
    let len: usize = parts.iter().map(|part| part.len()).sum();
    // The kernel takes a message whole or refuses it.
    let written = rustix::io::writev(device, &parts)?;
    debug_assert!(len == written && head.bytes().len() == ANSWER_HEAD_BYTES);
    Ok(())
}

/// Most pieces of one reply: more than a source delivers at once ([`crate::device`]).
pub(super) const PIECES_MAX: usize = 264;
/// Errors of a reply to an aborted request.
const GONE: [i32; 3] = [libc::ENOENT, libc::ENODEV, libc::ECONNABORTED];
/// Further attempts to take a request or to send a reply, and the time between two.
pub(super) const TRIES: u32 = 20;
pub(super) const TRY_PAUSE: Duration = Duration::from_millis(5);
