//! A FUSE session: reads the kernel's requests and has them answered, until the file system is
//! gone.
//!
//! Why here: existing crates reply from one buffer only, so that a read of several frames would
//! have to be gathered first, and a reply could only be a message to the device.
//!
//! Must stay true: each request that needs a reply gets exactly one; an unknown request gets
//! `ENOSYS`, after which the kernel does without it.
//!
//! Threads: [`Session::start`] on any; each of the session's threads reads from a descriptor of its
//! own where the system provides one, so that they do not wait for one another.
//! Source: `Documentation/filesystems/fuse/`, `fs/fuse/dev.c` and `inode.c` of Linux.

use super::abi::{Body, FATTR_SIZE, Head, MAJOR, REQUEST_BYTES_MAX, Settings, Words, flag, op};
use super::nodes::{Answer, List, Nodes, ReadReply, Terms};
use super::outlet::{Notices, Outlet, TRIES, TRY_PAUSE, answer_lost};
use crate::tracks;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_sys::fuse_ring::{self, FuseQueue};
use sidecore_trace::span;
use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

/// A session that kernel and server have negotiated and that has no serving threads yet.
#[derive(Debug)]
pub(super) struct Session<N> {
    device: Arc<OwnedFd>,
    nodes: Arc<N>,
    request_bytes: usize,
    /// One for each processor; empty where requests come only by the device.
    queues: Vec<FuseQueue>,
    /// All threads read from the one descriptor, which another process holds as well.
    is_kept: bool,
}

impl<N: Nodes> Session<N> {
    /// Waits for the kernel's first request, which every mount makes, and negotiates the terms:
    /// with queues over io_uring if `queued` and the kernel offers them. With `keep` another server
    /// can [adopt](Self::adopt) the session, where the kernel can send requests again.
    ///
    /// # Errors
    /// Those of the device; unsupported where the kernel's protocol is older than 7.31 (Linux 5.4).
    pub(super) fn start(
        device: OwnedFd,
        mut nodes: N,
        queued: bool,
        keep: bool,
    ) -> io::Result<Self> {
        let mut buffer = vec![0; REQUEST_BYTES_MIN];
        let lost = Cell::new(false);
        let (head, mut body) = loop {
            let len = match rustix::io::read(&device, &mut buffer) {
                Ok(len) => len,
                Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => continue,
                Err(error) => return Err(error.into()),
            };
            let (head, body) = Head::read(&buffer[..len])?;
            if head.operation == op::INIT {
                break (head, body);
            }
            Outlet::new(device.as_fd(), head.unique, &lost).refuse(Errno::IO);
        };
        let (major, minor) = (body.u32()?, body.u32()?);
        let mut outlet = Outlet::new(device.as_fd(), head.unique, &lost);
        if (major, minor) < (MAJOR, MINOR_MIN) || major > MAJOR {
            outlet.refuse(Errno::PROTO);
            let text = format!("the kernel's FUSE protocol {major}.{minor} is not known here");
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let read_ahead_bytes = body.u32()?;
        let mut offered = u64::from(body.u32()?);
        if offered & flag::INIT_EXT != 0 {
            offered |= u64::from(body.u32()?) << 32;
        }
        let mut terms = Terms::new(offered);
        for wanted in [flag::ASYNC_READ, flag::BIG_WRITES, flag::MAX_PAGES] {
            terms.take(wanted);
        }
        nodes.agree(&mut terms);
        let is_kept = keep && terms.take(flag::HAS_RESEND);
        let payload_bytes = terms.write_bytes_max.max(REQUEST_BYTES_MAX).to_usize();
        // A queue would end with this process.
        let queues = match queued && !is_kept && terms.offers(flag::OVER_IO_URING) {
            true => queues(payload_bytes),
            false => Vec::new(),
        };
        // After the reply the kernel waits for the queues, so they are made before.
        if !queues.is_empty() {
            terms.take(flag::OVER_IO_URING);
        }
        let settings = Settings {
            flags: terms.taken,
            read_ahead_bytes,
            background_max: BACKGROUND_REQUESTS_MAX,
            write_bytes_max: terms.write_bytes_max,
            pages_max: (REQUEST_BYTES_MAX / 4096) as u16,
            stack_depth: u32::from(terms.taken & flag::PASSTHROUGH != 0),
        };
        outlet.send(&[settings.words().bytes()]);
        if lost.get() {
            return Err(answer_lost());
        }
        let request_bytes = terms.write_bytes_max.to_usize() + REQUEST_BYTES_MIN;
        Ok(Self {
            device: Arc::new(device),
            nodes: Arc::new(nodes),
            request_bytes,
            queues,
            is_kept,
        })
    }

    /// Goes on with the session of a server that is gone: the kernel sends again what that server
    /// has read and not answered. Only for file systems that take no writes.
    ///
    /// # Errors
    /// Those of the device, where the file system is gone or the kernel cannot send again.
    pub(super) fn adopt(device: OwnedFd, mut nodes: N) -> io::Result<Self> {
        let mut terms = Terms::new(0);
        nodes.agree(&mut terms);
        let device = Arc::new(device);
        // Before any thread reads: a request that one has read would be answered twice.
        Notices::new(Arc::clone(&device)).resend()?;
        Ok(Self {
            device,
            nodes: Arc::new(nodes),
            request_bytes: terms.write_bytes_max.to_usize() + REQUEST_BYTES_MIN,
            queues: Vec::new(),
            is_kept: true,
        })
    }

    /// True if another server can adopt the session.
    pub(super) fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// True if requests come by queues over io_uring.
    pub(super) fn is_queued(&self) -> bool {
        !self.queues.is_empty()
    }

    /// Sends notices to the kernel.
    pub(super) fn notices(&self) -> Notices {
        Notices::new(Arc::clone(&self.device))
    }

    /// Serves on `threads` threads, and on one for each queue; returns when the file system is
    /// gone. `begun` is called once the kernel has taken all queues. If the kernel refused a queue,
    /// no request is served, and `begun` has to see to it that the mount is removed. `failed` is
    /// called by a thread that cannot continue, perhaps with requests unanswered: it has to end the
    /// connection, which ends the other threads.
    ///
    /// # Errors
    /// The first error of a thread; errors that only report the unmount do not count.
    pub(super) fn run(
        self,
        threads: usize,
        begun: impl FnOnce(io::Result<()>),
        failed: impl Fn(&io::Error) + Sync,
    ) -> io::Result<()> {
        let failed = &failed;
        let (nodes, session) = (&*self.nodes, self.device.as_fd());
        let (queues, request_bytes) = (self.queues, self.request_bytes);
        let mut result = Ok(());
        std::thread::scope(|scope| {
            let mut running = Vec::with_capacity(threads + queues.len());
            let (sender, registered) = sync_channel(queues.len());
            for (number, mut queue) in queues.into_iter().enumerate() {
                let sender = sender.clone();
                let thread = std::thread::Builder::new().name(format!("fuse-queue-{number}"));
                let started = thread.spawn_scoped(scope, move || {
                    let registered = queue.register(session, number as u16);
                    let result = registered.as_ref().map(drop).map_err(copy);
                    // The receiver outlives this thread.
                    let _ = sender.send(result);
                    drop(sender);
                    registered?;
                    serve_queue(queue, |head, body, outlet| {
                        answer(session, nodes, head, body, outlet);
                    })
                    .inspect_err(failed)
                });
                match started {
                    Ok(thread) => running.push(thread),
                    // The kernel waits for all queues.
                    Err(error) => result = Err(error),
                }
            }
            drop(sender);
            let refused = registered.into_iter().find(Result::is_err);
            begun(refused.unwrap_or_else(|| result.as_ref().map(drop).map_err(copy)));
            for number in 0..threads {
                // Without a descriptor of its own the thread shares the first one.
                // So does each thread of a session that is kept: what a killed process has read
                // from a descriptor of its own alone fails.
                let own = match number {
                    0 => None,
                    _ if self.is_kept => None,
                    _ => another(session),
                };
                let thread = std::thread::Builder::new().name(format!("fuse-{number}"));
                let started = thread.spawn_scoped(scope, move || {
                    let device = own.as_ref().map_or(session, AsFd::as_fd);
                    serve(device, nodes, request_bytes).inspect_err(failed)
                });
                match started {
                    Ok(thread) => running.push(thread),
                    // Fewer threads suffice, none do not.
                    Err(error) if number == 0 => result = Err(error),
                    Err(error) => tracing::warn!("one thread less serves reads: {error}"),
                }
            }
            for thread in running {
                let ended = thread.join().unwrap_or_else(|_| {
                    Err(io::Error::other("a thread that served reads panicked"))
                });
                if result.is_ok() {
                    result = ended;
                }
            }
        });
        result
    }
}

/// A copy of the error.
fn copy(error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), error.to_string())
}

/// A queue for each processor; empty if the system does not allow io_uring for this process.
fn queues(payload_bytes: usize) -> Vec<FuseQueue> {
    let made = fuse_ring::queues().and_then(|count| {
        let queue = |_| FuseQueue::new(QUEUE_ENTRIES, payload_bytes);
        (0..count).map(queue).collect()
    });
    made.unwrap_or_else(|error| {
        tracing::debug!("FUSE requests come by its device alone: {error}");
        Vec::new()
    })
}

/// A further descriptor of a session.
fn another(session: BorrowedFd<'_>) -> Option<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let opened = rustix::fs::open("/dev/fuse", flags, Mode::empty());
    let joined = opened.and_then(|device| {
        sidecore_sys::fuse_device::join(&device, session)?;
        Ok(device)
    });
    joined
        .inspect_err(|error| tracing::debug!("threads share a FUSE descriptor: {error}"))
        .ok()
}

/// Answers requests until the file system is gone.
fn serve<N: Nodes>(device: BorrowedFd<'_>, nodes: &N, request_bytes: usize) -> io::Result<()> {
    let mut buffer = vec![0; request_bytes];
    let lost = Cell::new(false);
    let mut tries = 0;
    loop {
        match rustix::io::read(device, &mut buffer) {
            Ok(len) => {
                tries = 0;
                let (head, body) = Head::read(&buffer[..len])?;
                let outlet = Outlet::new(device, head.unique, &lost);
                answer(device, nodes, &head, body, outlet);
                if head.operation == op::DESTROY {
                    return Ok(());
                }
                if lost.get() {
                    return Err(answer_lost());
                }
            }
            // The request was withdrawn, or a signal came.
            Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
            // Unmounted, or being aborted: the error depends on timing.
            Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(()),
            Err(_) if tries < TRIES => {
                tries += 1;
                std::thread::sleep(TRY_PAUSE);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Answers a registered queue's requests until the file system is gone. A request lies in two
/// places, and its reply goes into memory that the kernel takes it from; each entry is returned
/// with a reply.
/// Source: `Documentation/filesystems/fuse/fuse-io-uring.rst`.
fn serve_queue(
    mut queue: FuseQueue,
    mut answer: impl FnMut(&Head, Body<'_>, Outlet<'_>),
) -> io::Result<()> {
    let mut body = Vec::new();
    let lost = Cell::new(false);
    while let Some(entry) = queue.wait()? {
        let request = queue.request(entry);
        let head = Head::alone(request.head)?;
        // One slice, as it comes from the device: both ways share the parsers.
        body.clear();
        body.extend_from_slice(request.operation);
        body.extend_from_slice(request.payload);
        let outlet = Outlet::of_queue(&mut queue, entry, head.unique, &lost);
        answer(&head, Body(&body), outlet);
        if head.operation == op::DESTROY {
            break;
        }
        if lost.get() {
            return Err(answer_lost());
        }
    }
    Ok(())
}

/// Answers one request.
fn answer<N: Nodes>(
    device: BorrowedFd<'_>,
    nodes: &N,
    head: &Head,
    body: Body<'_>,
    mut outlet: Outlet<'_>,
) {
    let is_read = head.operation == op::READ;
    let (operation, node) = (u64::from(head.operation), head.node);
    let _other = (!is_read).then(|| span(&tracks::FUSE_OTHER, operation, node));
    let result = match head.operation {
        // These need no reply: the session keeps nothing for a node.
        op::FORGET | op::BATCH_FORGET => return,
        op::READ => {
            let mut body = body;
            return match read_arguments(&mut body) {
                Ok((offset, len)) => {
                    let _read = span(&tracks::FUSE_READ, offset, len.to_u64());
                    nodes.read(head.node, offset, len, ReadReply::new(outlet));
                }
                Err(errno) => outlet.refuse(errno),
            };
        }
        op::LOOKUP => look_up(nodes, head, body),
        op::GETATTR => nodes.attributes(head.node).map(|it| it.alone().into()),
        op::SETATTR => resize(nodes, head, body),
        op::READLINK => nodes.link(head.node).map(Reply::Bytes),
        op::OPEN => open(device, nodes, head, body),
        op::CREATE => create(nodes, head, body),
        op::RMDIR => remove_folder(nodes, head, body),
        op::WRITE => write(nodes, head, body),
        op::STATFS => Ok(space(nodes).into()),
        op::FSYNC => nodes.sync().map(|()| Reply::Nothing),
        op::GETXATTR => attribute(nodes, head, body),
        op::LISTXATTR => attribute_names(nodes, head, body),
        op::OPENDIR => nodes
            .open_directory()
            .map(|()| Words::default().u64(0).u64(0).into()),
        op::READDIR => list(nodes, head, body, false),
        op::READDIRPLUS => list(nodes, head, body, true),
        op::FALLOCATE => allocate(nodes, head, body),
        op::LSEEK => seek(nodes, head, body),
        op::RELEASE | op::RELEASEDIR | op::DESTROY => Ok(Reply::Nothing),
        // Among them `FLUSH` and `ACCESS`, which the kernel then does not ask again, and
        // `INTERRUPT`: no request takes so long that it needs to be withdrawn.
        _ => Err(Errno::NOSYS),
    };
    match result {
        Ok(Reply::Nothing) => outlet.send(&[]),
        Ok(Reply::Words(words)) => outlet.send(&[words.bytes()]),
        Ok(Reply::Bytes(bytes)) => outlet.send(&[&bytes]),
        Ok(Reply::List(list)) => outlet.send(&[list.bytes()]),
        Err(errno) => outlet.refuse(errno),
    }
}

/// The part of a reply behind its head.
enum Reply {
    Nothing,
    Words(Words),
    Bytes(Vec<u8>),
    List(List),
}

impl From<Words> for Reply {
    fn from(words: Words) -> Self {
        Self::Words(words)
    }
}

/// Offset and length of a read or a list: `struct fuse_read_in`.
fn read_arguments(body: &mut Body<'_>) -> Answer<(u64, usize)> {
    body.skip(8)?;
    Ok((body.u64()?, body.u32()?.to_usize()))
}

fn look_up(nodes: &impl Nodes, head: &Head, mut body: Body<'_>) -> Answer<Reply> {
    let found = nodes.look_up(head.node, body.name()?)?;
    // Node 0: the name does not exist, and the kernel may cache that.
    Ok(found.unwrap_or_default().entry().into())
}

fn resize(nodes: &impl Nodes, head: &Head, mut body: Body<'_>) -> Answer<Reply> {
    let valid = body.u32()?;
    body.skip(12)?;
    let size_bytes = body.u64()?;
    let size_bytes = (valid & FATTR_SIZE != 0).then_some(size_bytes);
    let attributes = nodes.resize(head.node, size_bytes)?;
    Ok(attributes.alone().into())
}

fn open(
    device: BorrowedFd<'_>,
    nodes: &impl Nodes,
    head: &Head,
    mut body: Body<'_>,
) -> Answer<Reply> {
    let opened = nodes.open(head.node, body.u32()?, device)?;
    let words = Words::default().u64(0);
    Ok(words.u32(opened.flags).u32(opened.backing).into())
}

fn create(nodes: &impl Nodes, head: &Head, mut body: Body<'_>) -> Answer<Reply> {
    // `struct fuse_create_in`.
    body.skip(16)?;
    Err(nodes.create(head.node, body.name()?))
}

fn remove_folder(nodes: &impl Nodes, head: &Head, mut body: Body<'_>) -> Answer<Reply> {
    Err(nodes.remove_folder(head.node, body.name()?))
}

fn write(nodes: &impl Nodes, head: &Head, mut body: Body<'_>) -> Answer<Reply> {
    let (offset, len) = read_arguments(&mut body)?;
    // The rest of `struct fuse_write_in`.
    body.skip(20)?;
    let bytes = body.0.get(..len).ok_or(Errno::INVAL)?;
    nodes.write(head.node, offset, bytes)?;
    Ok(Words::default().u32(len as u32).u32(0).into())
}

fn space(nodes: &impl Nodes) -> Words {
    let space = nodes.space();
    // No blocks are free.
    let words = Words::default().u64(space.blocks).u64(0).u64(0);
    let words = words.u64(space.nodes).u64(0).u32(space.block_bytes);
    let words = words.u32(NAME_BYTES_MAX).u32(space.block_bytes).u32(0);
    words.u64(0).u64(0).u64(0)
}

fn attribute(nodes: &impl Nodes, head: &Head, mut body: Body<'_>) -> Answer<Reply> {
    let room = body.u32()?.to_usize();
    body.skip(4)?;
    let value = nodes.attribute(head.node, body.name()?)?;
    fitting(value, room)
}

fn attribute_names(nodes: &impl Nodes, head: &Head, mut body: Body<'_>) -> Answer<Reply> {
    let room = body.u32()?.to_usize();
    fitting(nodes.attribute_names(head.node)?, room)
}

/// An attribute's value or a list of names, if the caller has room for it; a caller with no room
/// asks for the size.
fn fitting(bytes: Vec<u8>, room: usize) -> Answer<Reply> {
    match room {
        0 => Ok(Words::default().u32(bytes.len() as u32).u32(0).into()),
        room if room < bytes.len() => Err(Errno::RANGE),
        _ => Ok(Reply::Bytes(bytes)),
    }
}

fn list(nodes: &impl Nodes, head: &Head, mut body: Body<'_>, plus: bool) -> Answer<Reply> {
    let (from, room) = read_arguments(&mut body)?;
    let mut list = List::new(room, plus);
    nodes.list(head.node, from, &mut list)?;
    Ok(Reply::List(list))
}

fn allocate(nodes: &impl Nodes, head: &Head, mut body: Body<'_>) -> Answer<Reply> {
    body.skip(8)?;
    let (offset, len, mode) = (body.u64()?, body.u64()?, body.u32()?);
    nodes.allocate(head.node, offset, len, mode)?;
    Ok(Reply::Nothing)
}

fn seek(nodes: &impl Nodes, head: &Head, mut body: Body<'_>) -> Answer<Reply> {
    body.skip(8)?;
    let (offset, whence) = (body.u64()?, body.u32()?);
    let place = nodes.seek(head.node, offset, whence)?;
    Ok(Words::default().u64(place).into())
}

/// Requests that may be in flight without a reader waiting for each (read-ahead, a loop device's
/// direct reads).
const BACKGROUND_REQUESTS_MAX: u16 = 64;
/// The kernel refuses smaller buffers; a write's bytes come on top.
const REQUEST_BYTES_MIN: usize = 8192;
/// Minor version of the oldest protocol that is served: Linux 5.4, the oldest with `fsmount`.
const MINOR_MIN: u32 = 31;
const NAME_BYTES_MAX: u32 = 255;
/// Requests in a queue at once, each with room for the longest. Its thread answers one after the
/// other.
const QUEUE_ENTRIES: usize = 2;
