//! Queues of FUSE over io_uring: requests come in and answers go out by shared memory.
//!
//! Why here: the kernel writes to memory of ours between two calls, which no crate offers safely.
//!
//! A [`FuseQueue`] is the queue of one processor, and belongs to one thread. It has a few
//! *entries*, each with room for one request and its answer. An entry is the kernel's until
//! [`FuseQueue::wait`] hands it out with a request in it, and ours until [`FuseQueue::answer`].
//!
//! Must stay true: memory of an entry that is the kernel's is neither read, written nor freed. When
//! a queue is dropped, such memory is leaked, unless the kernel has given it back.
//! Source: `Documentation/filesystems/fuse/fuse-io-uring.rst`, `include/uapi/linux/fuse.h`.
#![allow(unsafe_code)] // the kernel reads and writes memory by its address

use io_uring::{IoUring, cqueue, squeue};
use sidecore_bare::width::{ToU64, ToUsize};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

/// The queue of one processor. See the module's head.
#[derive(Debug)]
pub struct FuseQueue {
    entries: Vec<Entry>,
    ring: Ring,
    device: i32,
    /// The processor's number.
    number: u16,
    /// Entries that the kernel will not use again.
    ended: usize,
}

struct Ring(IoUring<squeue::Entry128, cqueue::Entry>);

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ring")
    }
}

/// A request that came in.
#[derive(Debug, Clone, Copy)]
pub struct FuseRequest<'a> {
    /// `struct fuse_in_header`.
    pub head: &'a [u8],
    /// The operation's own fixed part; empty where it has none.
    pub operation: &'a [u8],
    /// The rest: a name, bytes to write.
    pub payload: &'a [u8],
}

#[derive(Debug)]
struct Entry {
    /// `struct fuse_uring_req_header`.
    head: NonNull<Head>,
    payload: NonNull<u8>,
    payload_bytes: usize,
    /// For the kernel, which reads it at registration: head, then payload.
    parts: Box<[libc::iovec; 2]>,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Never registered.
    New,
    Kernels,
    Ours,
    /// The kernel gave it back for good.
    Ended,
}

/// `struct fuse_uring_req_header`.
#[repr(C)]
struct Head {
    in_out: [u8; 128],
    operation: [u8; 128],
    flags: u64,
    commit_id: u64,
    payload_bytes: u32,
    padding: u32,
    reserved: u64,
}

const _: () = assert!(size_of::<Head>() == 288);

// SAFETY: a queue owns the memory that its entries point to, and uses it from one thread at a time.
unsafe impl Send for FuseQueue {}

impl FuseQueue {
    /// A queue of `entries` (a power of two), which the kernel does not know yet. The payload is as
    /// long as the session's longest request or answer.
    ///
    /// # Errors
    /// The system has no io_uring, or refuses it to this process.
    pub fn new(entries: usize, payload_bytes: usize) -> io::Result<Self> {
        let ring = IoUring::builder().build(entries as u32)?;
        let entries = (0..entries).map(|_| Entry::new(payload_bytes)).collect();
        Ok(Self {
            entries,
            ring: Ring(ring),
            device: -1,
            number: 0,
            ended: 0,
        })
    }

    /// Tells the session of `device` that this is the queue of processor `number`. The session must
    /// have taken `FUSE_OVER_IO_URING`; it serves by queues once each processor has one. To be
    /// called once, by the thread that then waits; `device` stays open as long as the queue is
    /// used.
    ///
    /// # Errors
    /// The system's.
    pub fn register(&mut self, device: BorrowedFd<'_>, number: u16) -> io::Result<()> {
        self.device = device.as_raw_fd();
        self.number = number;
        for index in 0..self.entries.len() {
            let entry = &mut self.entries[index];
            let parts = entry.parts.as_ptr() as u64;
            entry.state = State::Kernels;
            self.push(REGISTER, index, parts, 2, 0)?;
        }
        self.ring.0.submit()?;
        Ok(())
    }

    /// Waits for a request; gives its entry's number. `None` once the session has ended.
    ///
    /// # Errors
    /// The system's; among them that the kernel refused the queue.
    pub fn wait(&mut self) -> io::Result<Option<usize>> {
        while self.ended < self.entries.len() {
            let Some(done) = self.ring.0.completion().next() else {
                match self.ring.0.submit_and_wait(1) {
                    Ok(_) => continue,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => return Err(error),
                }
            };
            let index = done.user_data().to_usize();
            let entry = &mut self.entries[index];
            match -done.result() {
                0 => {
                    entry.state = State::Ours;
                    return Ok(Some(index));
                }
                // Unmounted or aborted; each entry comes back once, with one of these.
                libc::ENOTCONN | libc::ECONNABORTED | libc::ECANCELED | libc::ENODEV => {
                    entry.state = State::Ended;
                    self.ended += 1;
                }
                error => {
                    entry.state = State::Ended;
                    self.ended += 1;
                    return Err(io::Error::from_raw_os_error(error));
                }
            }
        }
        Ok(None)
    }

    /// The request in an entry.
    ///
    /// # Panics
    /// The entry is not ours.
    #[must_use]
    pub fn request(&self, entry: usize) -> FuseRequest<'_> {
        let entry = &self.entries[entry];
        assert_eq!(entry.state, State::Ours, "the entry is the kernel's");
        // SAFETY: the entry is ours, so the kernel does not write to it; both parts are initialized
        // memory of these sizes, which lives as long as the queue.
        let (head, payload) = unsafe {
            let payload = entry.payload.as_ptr();
            let payload = std::slice::from_raw_parts(payload, entry.payload_bytes);
            (entry.head.as_ref(), payload)
        };
        let payload = &payload[..payload.len().min(head.payload_bytes.to_usize())];
        let all = u32::from_ne_bytes([
            head.in_out[0],
            head.in_out[1],
            head.in_out[2],
            head.in_out[3],
        ]);
        // `all` counts header, operation and payload; only the last has a length of its own.
        let operation = (all as usize).saturating_sub(IN_HEADER_BYTES + payload.len());
        FuseRequest {
            head: &head.in_out[..IN_HEADER_BYTES],
            operation: &head.operation[..operation.min(head.operation.len())],
            payload,
        }
    }

    /// Room for an answer's bytes, which overwrites the request.
    ///
    /// # Panics
    /// The entry is not ours.
    #[must_use]
    pub fn room(&mut self, entry: usize) -> &mut [u8] {
        let entry = &mut self.entries[entry];
        assert_eq!(entry.state, State::Ours, "the entry is the kernel's");
        // SAFETY: as in `request`, and the borrow of the queue is exclusive.
        unsafe { std::slice::from_raw_parts_mut(entry.payload.as_ptr(), entry.payload_bytes) }
    }

    /// Answers with `error` (0, or an error's number) and the first `len` bytes of the room, and
    /// gives the entry back for the next request.
    ///
    /// # Errors
    /// The system's.
    ///
    /// # Panics
    /// The entry is not ours.
    pub fn answer(&mut self, index: usize, unique: u64, error: i32, len: usize) -> io::Result<()> {
        let entry = &mut self.entries[index];
        assert_eq!(entry.state, State::Ours, "the entry is the kernel's");
        let len = len.min(entry.payload_bytes) as u32;
        // SAFETY: as in `request`, and the borrow of the queue is exclusive.
        let head = unsafe { entry.head.as_mut() };
        head.in_out[..4].copy_from_slice(&(OUT_HEADER_BYTES + len).to_ne_bytes());
        head.in_out[4..8].copy_from_slice(&(-error).to_ne_bytes());
        head.in_out[8..16].copy_from_slice(&unique.to_ne_bytes());
        head.payload_bytes = len;
        // Read before the entry becomes the kernel's.
        let commit_id = head.commit_id;
        entry.state = State::Kernels;
        self.push(COMMIT_AND_FETCH, index, 0, 0, commit_id)?;
        self.ring.0.submit()?;
        Ok(())
    }

    fn push(
        &mut self,
        command: u32,
        index: usize,
        address: u64,
        len: u32,
        commit_id: u64,
    ) -> io::Result<()> {
        let mut bytes = [0; 128];
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        // By offset: the crate names no field of the 80 bytes that a command may use.
        put(0, &[IORING_OP_URING_CMD]);
        put(4, &self.device.to_ne_bytes());
        put(8, &command.to_ne_bytes());
        put(16, &address.to_ne_bytes());
        put(24, &len.to_ne_bytes());
        put(32, &index.to_u64().to_ne_bytes());
        // `struct fuse_uring_cmd_req`: no flags, the answer's number, the queue's.
        put(56, &commit_id.to_ne_bytes());
        put(64, &self.number.to_ne_bytes());
        // SAFETY: an `Entry128` is the kernel's `struct io_uring_sqe` of 128 bytes, any bytes of
        // which are valid.
        let command: squeue::Entry128 = unsafe { std::mem::transmute(bytes) };
        // SAFETY: the memory that the command names belongs to an entry, which is marked as the
        // kernel's and is not freed while it is; the descriptor is open (see `register`).
        let pushed = unsafe { self.ring.0.submission().push(&command) };
        pushed.map_err(|_| io::Error::other("more commands than entries"))
    }
}

impl Entry {
    fn new(payload_bytes: usize) -> Self {
        let head = Head {
            in_out: [0; 128],
            operation: [0; 128],
            flags: 0,
            commit_id: 0,
            payload_bytes: 0,
            padding: 0,
            reserved: 0,
        };
        // Leaked: a box would assert unique access while the kernel writes.
        let head = NonNull::from(Box::leak(Box::new(head)));
        let payload = Box::leak(vec![0_u8; payload_bytes].into_boxed_slice());
        let payload: NonNull<u8> = NonNull::from(payload).cast();
        let parts = Box::new([
            libc::iovec {
                iov_base: head.as_ptr().cast(),
                iov_len: size_of::<Head>(),
            },
            libc::iovec {
                iov_base: payload.as_ptr().cast(),
                iov_len: payload_bytes,
            },
        ]);
        Self {
            head,
            payload,
            payload_bytes,
            parts,
            state: State::New,
        }
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if self.state == State::Kernels {
            // It may still write there.
            return;
        }
        // SAFETY: both were leaked from boxes of these types in `new`, and have no other owner.
        unsafe {
            drop(Box::from_raw(self.head.as_ptr()));
            let payload = self.payload.as_ptr();
            let payload = std::ptr::slice_from_raw_parts_mut(payload, self.payload_bytes);
            drop(Box::from_raw(payload));
        }
    }
}

/// Number of processors that the kernel may ever have, each of which has a queue: the last one
/// that it names in sysfs, and one.
///
/// # Errors
/// Reading fails, or gives something else.
pub fn queues() -> io::Result<u16> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    // The kernel makes a queue for each possible processor, whether it is online or not.
    let last = text.trim().rsplit(['-', ',']).next().unwrap_or_default();
    let last: u16 = last.parse().map_err(io::Error::other)?;
    Ok(last + 1)
}

const IORING_OP_URING_CMD: u8 = 46;
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
const IN_HEADER_BYTES: usize = 40;
const OUT_HEADER_BYTES: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_queues() {
        assert!(queues().unwrap() >= 1);
    }

    #[test]
    fn a_queue_that_is_not_registered_gives_its_memory_back() {
        // Where the system refuses io_uring there is none to drop.
        if let Ok(queue) = FuseQueue::new(2, 8192) {
            assert_eq!(queue.entries.len(), 2);
        }
    }
}
