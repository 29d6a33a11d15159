//! userfaultfd(2): missing pages of a process's memory, filled by another one.
//!
//! Why here: the kernel's C surface is untyped, and no crate in use offers it safely.
//!
//! [`UserFaults`] is the side that fills: a descriptor that another process has sent.
//! [`LazyMemory`] is the side that is filled: memory of this process, for tests and benches.
//!
//! Must stay true: the structs have the kernel's layout (`include/uapi/linux/userfaultfd.h`), which
//! the sizes below check. A descriptor is known to be one of userfaultfd before it is used. Only
//! missing pages are filled: the kernel refuses others (`EEXIST`). Any thread.
//! Source: userfaultfd(2), ioctl_userfaultfd(2).
#![allow(unsafe_code)] // the kernel's C surface: ioctl(2) takes an untyped argument

use crate::region::page_bytes;
use rustix::fs::OFlags;
use rustix::io::{Errno, ReadWriteFlags, Result, preadv2};
use rustix::ioctl::{Opcode, Setter, Updater, ioctl, opcode};
use rustix::mm::{self, Advice, MapFlags, ProtFlags, UserfaultfdFlags};
use sidecore_bare::width::ToU64;
use std::io::IoSliceMut;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};

/// The faults of a process whose userfaultfd this is, and the means to answer them.
#[derive(Debug)]
pub struct UserFaults(OwnedFd);

/// An event of the process whose memory it is. Addresses are that process's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultEvent {
    /// A thread waits for the page with this address, which has no contents.
    Missing(u64),
    /// The pages from the first address up to the second were given back or unmapped.
    Removed(u64, u64),
    /// An event or a fault of another kind, which nothing here answers.
    Other,
}

impl UserFaults {
    /// Takes a descriptor that a peer has sent, and makes its reads return at once.
    ///
    /// # Errors
    /// `EINVAL` where it is no userfaultfd; those of readlink(2) on `/proc` and of fcntl(2).
    pub fn adopt(descriptor: OwnedFd) -> Result<Self> {
        // Requests to another kind of file would mean something else.
        let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
        let name = rustix::fs::readlink(path.as_str(), Vec::<u8>::new())?;
        if name.as_bytes() != FILE_NAME {
            return Err(Errno::INVAL);
        }
        let flags = rustix::fs::fcntl_getfl(&descriptor)?;
        rustix::fs::fcntl_setfl(&descriptor, flags | OFlags::NONBLOCK)?;
        Ok(Self(descriptor))
    }

    /// The next event; `None` where none waits. Does not block; before Linux 6.10 it does where the
    /// peer makes its descriptor one that blocks again.
    ///
    /// # Errors
    /// Those of read(2); `EIO` for a message of another length.
    pub fn next_event(&self) -> Result<Option<FaultEvent>> {
        let mut message = [0_u8; MESSAGE_BYTES];
        // The flags of the descriptor are the peer's, too; those of the call are not.
        let flags = ReadWriteFlags::NOWAIT;
        let mut parts = [IoSliceMut::new(&mut message)];
        let read = match preadv2(&self.0, &mut parts, AT_POSITION, flags) {
            // A kernel that has no such call for this kind of file.
            Err(Errno::OPNOTSUPP) => rustix::io::read(&self.0, &mut message),
            read => read,
        };
        match read {
            Ok(MESSAGE_BYTES) => {}
            Ok(_) => return Err(Errno::IO),
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(error) => return Err(error),
        }
        let field = |at: usize| {
            let bytes = message[at..].first_chunk();
            bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
        };
        Ok(Some(match message[0] {
            EVENT_PAGEFAULT if field(8) & FLAGS_OTHER == 0 => FaultEvent::Missing(field(16)),
            EVENT_REMOVE | EVENT_UNMAP => FaultEvent::Removed(field(8), field(16)),
            EVENT_FORK => {
                let number = message[8..].first_chunk();
                let number = number.map_or(-1, |bytes| i32::from_ne_bytes(*bytes));
                if number >= 0 {
                    // SAFETY: a descriptor that the kernel made for this read; nothing else has
                    // it. Closed: the child's memory reads as zeros where it has no contents.
                    drop(unsafe { OwnedFd::from_raw_fd(number) });
                }
                FaultEvent::Other
            }
            _ => FaultEvent::Other,
        }))
    }

    /// Fills missing pages from the address `to` with `bytes`, whole pages, and wakes the threads
    /// that wait for them; the number of bytes that were filled. It ends before a page that has
    /// contents.
    ///
    /// # Errors
    /// `EEXIST` where the first page has contents; `EAGAIN` where the process is giving memory
    /// back: read its events first. `ENOENT` where that memory is not there; `ESRCH` where the
    /// process has ended.
    pub fn copy(&self, to: u64, bytes: &[u8]) -> Result<usize> {
        let mut request = CopyRequest {
            to,
            from: bytes.as_ptr().expose_provenance().to_u64(),
            bytes: bytes.len().to_u64(),
            mode: 0,
            copied: 0,
        };
        // SAFETY: UFFDIO_COPY reads a `struct uffdio_copy`, which the request is, byte for byte,
        // and writes its last field. It reads the bytes, which are borrowed until it returns.
        let done = unsafe {
            ioctl(
                &self.0,
                Updater::<UFFDIO_COPY, CopyRequest>::new(&mut request),
            )
        };
        filled(done, request.copied)
    }

    /// As [`Self::copy`], with `bytes` zeros. Not for memory in huge pages.
    ///
    /// # Errors
    /// Those of [`Self::copy`]; `EINVAL` for huge pages.
    pub fn zero(&self, to: u64, bytes: u64) -> Result<usize> {
        let mut request = ZeroRequest {
            range: RangeRequest { start: to, bytes },
            mode: 0,
            zeroed: 0,
        };
        // SAFETY: UFFDIO_ZEROPAGE reads a `struct uffdio_zeropage`, which the request is, byte for
        // byte, and writes its last field.
        let done = unsafe {
            ioctl(
                &self.0,
                Updater::<UFFDIO_ZEROPAGE, ZeroRequest>::new(&mut request),
            )
        };
        filled(done, request.zeroed)
    }

    /// Makes missing pages unreadable: a thread that touches them gets `SIGBUS`. Linux 6.6.
    ///
    /// # Errors
    /// As [`Self::copy`]; `EINVAL` where the kernel has no such request.
    pub fn poison(&self, at: u64, bytes: u64) -> Result<()> {
        let mut request = ZeroRequest {
            range: RangeRequest { start: at, bytes },
            mode: 0,
            zeroed: 0,
        };
        // SAFETY: UFFDIO_POISON reads a `struct uffdio_poison`, which has the same fields as
        // `struct uffdio_zeropage`, and writes its last one.
        unsafe {
            ioctl(
                &self.0,
                Updater::<UFFDIO_POISON, ZeroRequest>::new(&mut request),
            )
        }
    }

    /// Wakes the threads that wait for pages there. One whose page is still missing faults again.
    ///
    /// # Errors
    /// `EINVAL` for a range that is not of whole pages.
    pub fn wake(&self, at: u64, bytes: u64) -> Result<()> {
        let request = RangeRequest { start: at, bytes };
        // SAFETY: UFFDIO_WAKE reads a `struct uffdio_range`, which the request is.
        unsafe { ioctl(&self.0, Setter::<UFFDIO_WAKE, RangeRequest>::new(request)) }
    }
}

impl AsFd for UserFaults {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The outcome of a request that fills pages, which may have filled a part of them.
fn filled(done: Result<()>, bytes: i64) -> Result<usize> {
    match (done, usize::try_from(bytes)) {
        (Ok(()), Ok(all)) => Ok(all),
        (Ok(()), Err(_)) => Err(Errno::IO),
        // "EAGAIN: the number of bytes copied does not equal the value in len".
        (Err(Errno::AGAIN), Ok(part)) if part > 0 => Ok(part),
        (Err(error), _) => Err(error),
    }
}

/// Memory whose pages are missing until the holder of its descriptor fills them.
///
/// For tests and benches of [`UserFaults`]. A thread that reads a missing page waits, for ever
/// without such a holder.
#[derive(Debug)]
pub struct LazyMemory {
    start: NonNull<u8>,
    bytes: usize,
    descriptor: OwnedFd,
}

// SAFETY: the mapping belongs to this value and can be read from any thread.
unsafe impl Send for LazyMemory {}
// SAFETY: through `&LazyMemory` the bytes are only read; pages without contents are filled by the
// kernel, before any thread can read them.
unsafe impl Sync for LazyMemory {}

impl LazyMemory {
    /// Memory of `bytes` bytes, rounded up to pages. The descriptor reports removed pages, too.
    ///
    /// # Errors
    /// `EPERM` where this process may make no userfaultfd; those of mmap(2) and of the requests.
    pub fn new(bytes: usize) -> Result<Self> {
        let bytes = bytes.max(1).next_multiple_of(page_bytes());
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
        // SAFETY: the descriptor concerns memory only once that is registered, below.
        let descriptor = unsafe { mm::userfaultfd(flags) }?;
        let mut api = Api {
            api: UFFD_API,
            features: FEATURE_EVENT_REMOVE,
            ioctls: 0,
        };
        // SAFETY: UFFDIO_API reads and writes a `struct uffdio_api`, which `Api` is.
        unsafe { ioctl(&descriptor, Updater::<UFFDIO_API, Api>::new(&mut api)) }?;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping at an address of the kernel's choice touches no existing
        // memory.
        let start =
            unsafe { mm::mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::PRIVATE) }?;
        let memory = Self {
            start: NonNull::new(start.cast::<u8>()).ok_or(Errno::NOMEM)?,
            bytes,
            descriptor,
        };
        let mut register = Register {
            range: RangeRequest {
                start: memory.address(),
                bytes: bytes.to_u64(),
            },
            mode: REGISTER_MISSING,
            ioctls: 0,
        };
        // SAFETY: UFFDIO_REGISTER reads and writes a `struct uffdio_register`, which `Register` is.
        // The memory is this value's own, and nothing has been read or written there.
        unsafe {
            ioctl(
                &memory.descriptor,
                Updater::<UFFDIO_REGISTER, Register>::new(&mut register),
            )
        }?;
        Ok(memory)
    }

    /// The address of its first byte.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.start.as_ptr().expose_provenance().to_u64()
    }

    /// The descriptor to send to the process that fills it.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Copies bytes from `from` on into `target`, and waits for missing pages. `false` where the
    /// range reaches past the memory; nothing is copied then.
    #[must_use]
    pub fn copy_to(&self, from: usize, target: &mut [u8]) -> bool {
        let end = from.checked_add(target.len());
        if end.is_none_or(|end| end > self.bytes) {
            return false;
        }
        // SAFETY: the range is mapped while `self` lives, and `target`, uniquely borrowed, does not
        // overlap it.
        unsafe {
            ptr::copy_nonoverlapping(
                self.start.as_ptr().add(from),
                target.as_mut_ptr(),
                target.len(),
            );
        }
        true
    }

    /// Gives pages back, as a balloon does: they are missing again. Waits until the holder of the
    /// descriptor has read the event.
    ///
    /// # Errors
    /// `EINVAL` for a range that is not of whole pages, or reaches past the memory.
    pub fn remove(&mut self, range: Range<usize>) -> Result<()> {
        if range.start > range.end || range.end > self.bytes {
            return Err(Errno::INVAL);
        }
        // SAFETY: within this mapping, of which `self`, uniquely borrowed, is the only user. For a
        // private mapping without a file the pages are missing afterwards.
        unsafe {
            mm::madvise(
                self.start.as_ptr().add(range.start).cast(),
                range.len(),
                Advice::LinuxDontNeed,
            )
        }
    }
}

impl Drop for LazyMemory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own and no borrow of it outlives it.
        unsafe { mm::munmap(self.start.as_ptr().cast(), self.bytes) }.ok();
    }
}

/// `struct uffdio_api`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_range`.
#[repr(C)]
struct RangeRequest {
    start: u64,
    bytes: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    range: RangeRequest,
    mode: u64,
    ioctls: u64,
}

/// `struct uffdio_copy`.
#[repr(C)]
struct CopyRequest {
    to: u64,
    from: u64,
    bytes: u64,
    mode: u64,
    copied: i64,
}

/// `struct uffdio_zeropage`, and `struct uffdio_poison`.
#[repr(C)]
struct ZeroRequest {
    range: RangeRequest,
    mode: u64,
    zeroed: i64,
}

const _: () = assert!(size_of::<Api>() == 24 && size_of::<RangeRequest>() == 16);
const _: () = assert!(size_of::<Register>() == 32 && size_of::<CopyRequest>() == 40);
const _: () = assert!(size_of::<ZeroRequest>() == 32);

const UFFD_API: u64 = 0xAA;
const UFFDIO_API: Opcode = opcode::read_write::<Api>(0xAA, 0x3F);
const UFFDIO_REGISTER: Opcode = opcode::read_write::<Register>(0xAA, 0x00);
const UFFDIO_WAKE: Opcode = opcode::read::<RangeRequest>(0xAA, 0x02);
const UFFDIO_COPY: Opcode = opcode::read_write::<CopyRequest>(0xAA, 0x03);
const UFFDIO_ZEROPAGE: Opcode = opcode::read_write::<ZeroRequest>(0xAA, 0x04);
const UFFDIO_POISON: Opcode = opcode::read_write::<ZeroRequest>(0xAA, 0x08);
const FEATURE_EVENT_REMOVE: u64 = 1 << 3;
const REGISTER_MISSING: u64 = 1;

/// The place of a read of a file without places.
const AT_POSITION: u64 = u64::MAX;
/// `struct uffd_msg`.
const MESSAGE_BYTES: usize = 32;
const EVENT_PAGEFAULT: u8 = 0x12;
const EVENT_FORK: u8 = 0x13;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;
/// Faults on pages that are there: `UFFD_PAGEFAULT_FLAG_WP` and `_MINOR`.
const FLAGS_OTHER: u64 = 2 | 4;
/// The name of such a file in `/proc`.
const FILE_NAME: &[u8] = b"anon_inode:[userfaultfd]";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local_socket;
    use std::time::Duration;

    /// `None`, said on standard error, where this process may make none.
    fn memory(pages: usize) -> Option<LazyMemory> {
        match LazyMemory::new(pages * page_bytes()) {
            Ok(memory) => Some(memory),
            Err(error @ (Errno::PERM | Errno::NOSYS)) => {
                eprintln!("skipped: no userfaultfd here: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn event(faults: &UserFaults) -> FaultEvent {
        loop {
            if let Some(event) = faults.next_event().unwrap() {
                return event;
            }
            local_socket::poll(&[faults.as_fd()], &mut Vec::new(), Duration::from_secs(1)).unwrap();
        }
    }

    #[test]
    fn a_missing_page_is_filled_once() {
        let Some(memory) = memory(3) else { return };
        let page = page_bytes();
        let faults = UserFaults::adopt(memory.descriptor().try_clone_to_owned().unwrap()).unwrap();
        assert_eq!(faults.next_event(), Ok(None));
        let second = memory.address() + page.to_u64();
        let mut seen = vec![0; page];
        let first_event = std::thread::scope(|threads| {
            threads.spawn(|| assert!(memory.copy_to(page, &mut seen)));
            let event = event(&faults);
            // Filled whatever the event was: the other thread waits.
            assert_eq!(faults.copy(second, &vec![7; page]), Ok(page));
            event
        });
        assert_eq!(first_event, FaultEvent::Missing(second));
        assert_eq!(seen, vec![7; page]);
        assert_eq!(faults.copy(second, &vec![8; page]), Err(Errno::EXIST));
        // Up to the page that has contents, and what lies behind it.
        assert_eq!(faults.zero(memory.address(), 3 * page.to_u64()), Ok(page));
        assert_eq!(faults.zero(second, page.to_u64()), Err(Errno::EXIST));
        let third = second + page.to_u64();
        assert_eq!(faults.copy(third, &vec![9; page]), Ok(page));
        let mut all = vec![1; 3 * page];
        assert!(memory.copy_to(0, &mut all));
        assert!(!memory.copy_to(1, &mut all));
        let expected = [vec![0; page], vec![7; page], vec![9; page]].concat();
        assert!(all == expected);
        let before = memory.address() - page.to_u64();
        assert_eq!(faults.copy(before, &vec![9; page]), Err(Errno::NOENT));
    }

    #[test]
    fn a_removed_page_is_reported_and_missing_again() {
        let Some(mut memory) = memory(2) else { return };
        let page = page_bytes();
        let faults = UserFaults::adopt(memory.descriptor().try_clone_to_owned().unwrap()).unwrap();
        let start = memory.address();
        assert_eq!(faults.copy(start, &vec![5; 2 * page]), Ok(2 * page));
        let seen = std::thread::scope(|threads| {
            let events = threads.spawn(|| event(&faults));
            memory.remove(0..page).unwrap();
            events.join().unwrap()
        });
        assert_eq!(seen, FaultEvent::Removed(start, start + page.to_u64()));
        assert_eq!(faults.zero(start, page.to_u64()), Ok(page));
        let mut all = vec![1; 2 * page];
        assert!(memory.copy_to(0, &mut all));
        assert!(all == [vec![0; page], vec![5; page]].concat());
        assert_eq!(memory.remove(0..3 * page), Err(Errno::INVAL));
    }

    #[test]
    fn another_kind_of_file_is_refused() {
        let file = local_socket::poker().unwrap();
        assert_eq!(UserFaults::adopt(file).unwrap_err(), Errno::INVAL);
    }
}
