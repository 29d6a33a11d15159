//! A file mapped read-only that survives truncation and I/O errors.
//!
//! Why here: engines decompress straight from the page cache; a copy of the compressed bytes would
//! cost a tenth of the time of an LZ4 frame. But an unreadable page of a map (the file was cut
//! short, the disk failed) raises `SIGBUS`, which would end the process and every client with it.
//! So one handler for the process, installed with the first map, puts a page of zeros under the
//! access, marks the map as damaged, and lets the reader go on. The reader checks
//! [`FileMap::damaged`] afterwards and reports EIO.
//!
//! **Bytes that may change.** A `&[u8]` promises that nothing writes to it, and a file on disk
//! cannot promise that: another process may write to it, and the handler may swap a page for zeros.
//! This is tolerated, as every program that maps files tolerates it, under two rules that make a
//! change harmless in practice. (1) This process never writes to the memory. Nothing is ever
//! derived from two reads of one byte being equal here, and the compiler cannot see where the
//! memory comes from. (2) A consumer treats the bytes as hostile: its safety may not depend on
//! their values, nor on a byte read twice being the same. The decoders are such consumers: they
//! must withstand any input and check every index that they compute. Code that cannot promise that
//! uses [`FileMap::copy_to`], which makes no reference to the mapped bytes.
//!
//! Must stay true: the handler does nothing but look at a bounded table of atomics and call `mmap`;
//! every map that exists is in that table; an access outside all maps goes to the handler that was
//! there before. [`crate::SharedMap`]s that this process made and maps with a [`MapGuard`] are in
//! the table, too. Any thread.
//! Source: mmap(2), sigaction(2), signal-safety(7).
#![allow(unsafe_code)] // Maps files, installs a signal handler.

use crate::SysError;
use crate::region::page_bytes;
use rustix::mm::{self, Advice, MapFlags, ProtFlags};
use sidecore_bare::width::{ToU64, ToUsize};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering, fence};

/// The most maps that exist at once: a supervisor of programs has one for each eight of their
/// sessions, and more. The table takes memory as far as it was used.
const MAPS_MAX: usize = 16_384;

/// A read-only map of a stretch of a file.
#[derive(Debug)]
pub struct FileMap {
    /// The first requested byte; inside the first mapped page.
    start: NonNull<u8>,
    len: usize,
    map_start: NonNull<u8>,
    map_bytes: usize,
    guard: &'static Guard,
}

// SAFETY: the mapping belongs to this value and can be read from any thread; the guard is made of
// atomics.
unsafe impl Send for FileMap {}
// SAFETY: through `&FileMap` the bytes are only read; advice to the kernel may come from several
// threads at once.
unsafe impl Sync for FileMap {}

impl FileMap {
    /// Maps `len` bytes of `file` from `offset`. The file must be that long now; it may shrink
    /// later.
    ///
    /// # Errors
    /// [`SysError::Size`] for no bytes or bytes past the end of the file; [`SysError::MapFile`]
    /// where the kernel refuses; [`SysError::TooManyMaps`]; [`SysError::Handler`].
    pub fn new(file: &File, offset: u64, len: usize) -> Result<Self, SysError> {
        let refuse = |source: io::Error| SysError::MapFile {
            offset,
            bytes: len,
            source,
        };
        let file_bytes = file.metadata().map_err(refuse)?.len();
        let fits = offset
            .checked_add(len.to_u64())
            .is_some_and(|end| end <= file_bytes);
        if len == 0 || !fits {
            return Err(SysError::Size {
                what: "a map of a file",
                value: len,
                rule: "at least 1 byte, and none past the end of the file",
            });
        }
        let lead = (offset % page_bytes().to_u64()).to_usize();
        let map_bytes = (lead + len).next_multiple_of(page_bytes());
        // The table first: from the first moment that it can be read, the map is guarded.
        let guard = Guard::claim()?;
        // SAFETY: a new read-only mapping at an address of the kernel's choice touches no existing
        // memory.
        let mapped = unsafe {
            mm::mmap(
                ptr::null_mut(),
                lead + len,
                ProtFlags::READ,
                MapFlags::SHARED,
                file,
                offset - lead.to_u64(),
            )
        };
        let mapped = mapped
            .and_then(|start| NonNull::new(start.cast::<u8>()).ok_or(rustix::io::Errno::NOMEM));
        let map_start = match mapped {
            Ok(start) => start,
            Err(error) => {
                guard.free();
                return Err(refuse(error.into()));
            }
        };
        guard.arm(map_start.as_ptr().addr(), map_bytes, false);
        Ok(Self {
            // SAFETY: `lead` is less than a page and the mapping is at least one.
            start: unsafe { map_start.add(lead) },
            len,
            map_start,
            map_bytes,
            guard,
        })
    }

    /// Bytes in the map.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a map is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// The bytes of `range`, or `None` where it reaches past the map. Reading them may block on the
    /// disk, and they may change under the reader: see the module's rules. Ask [`Self::damaged`]
    /// when done with them.
    #[must_use]
    pub fn bytes(&self, range: Range<usize>) -> Option<&[u8]> {
        let start = self.check(&range)?;
        // SAFETY: the range is mapped for as long as `self` lives (zeros take the place of pages
        // that cannot be had). That the bytes may change is the subject of the module's
        // documentation.
        Some(unsafe { std::slice::from_raw_parts(start, range.len()) })
    }

    /// Copies bytes from `from` on into `target` without making a reference to mapped bytes.
    /// `false` where the range reaches past the map; nothing is copied then.
    #[must_use]
    pub fn copy_to(&self, from: usize, target: &mut [u8]) -> bool {
        let range = from..from.saturating_add(target.len());
        let Some(start) = self.check(&range) else {
            return false;
        };
        // SAFETY: the range is mapped while `self` lives, and `target`, uniquely borrowed, does not
        // overlap it.
        unsafe { ptr::copy_nonoverlapping(start, target.as_mut_ptr(), target.len()) };
        true
    }

    /// True once any access to this map has hit a page that could not be read (truncation, I/O
    /// error); such bytes read as zeros.
    #[must_use]
    pub fn damaged(&self) -> bool {
        // Set by the handler on the thread that read. A reader on the same thread sees it in
        // program order; another thread that got the bytes from that one sees it by the
        // synchronisation of that transfer.
        self.guard.damaged.load(Ordering::Acquire)
    }

    /// Asks the kernel to start reading `range` from disk. Returns at once; errors do not matter.
    pub fn advise_willneed(&self, range: Range<usize>) {
        let Some(start) = self.check(&range) else {
            return;
        };
        let lead = start.addr() % page_bytes();
        // SAFETY: the range, widened down to its page, lies within this mapping, and the advice
        // changes no contents.
        unsafe {
            mm::madvise(
                start.cast_mut().sub(lead).cast(),
                lead + range.len(),
                Advice::WillNeed,
            )
        }
        .ok();
    }

    /// Releases all resident pages: they stay in the page cache but no longer count as this
    /// process's memory, and the next access to each costs a minor fault.
    pub fn drop_resident(&self) {
        // SAFETY: for a read-only map of a file this changes no contents: pages come back from the
        // page cache. Pages of zeros that stand in for lost ones come back as zeros.
        unsafe {
            mm::madvise(
                self.map_start.as_ptr().cast(),
                self.map_bytes,
                Advice::LinuxDontNeed,
            )
        }
        .ok();
    }

    fn check(&self, range: &Range<usize>) -> Option<*const u8> {
        (range.start <= range.end && range.end <= self.len)
            // SAFETY: within the mapping, or one past its end for an empty range.
            .then(|| unsafe { self.start.as_ptr().add(range.start).cast_const() })
    }
}

impl Drop for FileMap {
    fn drop(&mut self) {
        // No reader is left (they borrow the map), so no fault can need the guard between these
        // two.
        self.guard.disarm();
        // SAFETY: the mapping is this value's own and no borrow of it outlives it.
        unsafe { mm::munmap(self.map_start.as_ptr().cast(), self.map_bytes) }.ok();
        self.guard.free();
    }
}

/// Keeps a map of another owner's file, made by other code, from ending this process.
///
/// For memory that a peer shares by descriptor and may cut short at any time. Bytes of lost pages
/// are zeros, and writes to them are lost: the owner asks [`Self::damaged`] before it uses what it
/// has read, and gives the peer up.
#[derive(Debug)]
pub struct MapGuard(&'static Guard);

impl MapGuard {
    /// Guards `bytes` bytes, readable and writable, from `start` on. Does nothing but in the place
    /// of a fault that would end the process, so it may outlive the map.
    ///
    /// # Errors
    /// [`SysError::TooManyMaps`]; [`SysError::Handler`].
    pub fn new(start: *const u8, bytes: usize) -> Result<Self, SysError> {
        let guard = Guard::claim()?;
        guard.arm(start.addr(), bytes.next_multiple_of(page_bytes()), true);
        Ok(Self(guard))
    }

    /// True once an access has hit a page that is lost.
    #[must_use]
    pub fn damaged(&self) -> bool {
        self.0.damaged()
    }
}

impl Drop for MapGuard {
    fn drop(&mut self) {
        self.0.disarm();
        self.0.free();
    }
}

/// One map's entry in the table that the signal handler reads. `version` is odd while it holds, and
/// even while it is free or changes.
///
/// The handler may read an entry while another thread changes it, so it reads it like a seqlock. An
/// entry that changed meanwhile is not the one it looks for, because the faulting thread borrows
/// its map.
#[derive(Debug)]
pub(crate) struct Guard {
    taken: AtomicBool,
    version: AtomicU32,
    start: AtomicUsize,
    bytes: AtomicUsize,
    /// True if the owner writes to the map: the page of zeros must then be writable, too.
    writable: AtomicBool,
    damaged: AtomicBool,
}

/// All zeros, so that the system gives pages only to what is used.
static GUARDS: [Guard; MAPS_MAX] = [const { Guard::new() }; MAPS_MAX];
/// No entry from here on was ever taken.
static USED: AtomicUsize = AtomicUsize::new(0);
/// The entries below are taken, but for races; only a hint.
static FREE_FROM: AtomicUsize = AtomicUsize::new(0);

impl Guard {
    const fn new() -> Self {
        Self {
            taken: AtomicBool::new(false),
            version: AtomicU32::new(0),
            start: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            writable: AtomicBool::new(false),
            damaged: AtomicBool::new(false),
        }
    }

    /// Takes a free entry, and sees to it that the handler is there.
    pub(crate) fn claim() -> Result<&'static Self, SysError> {
        install_handler()?;
        // Relaxed, as all of the hint: a wrong one costs a longer search.
        let hint = FREE_FROM.load(Ordering::Relaxed);
        let (taken, open) = GUARDS.split_at(hint.min(MAPS_MAX));
        let first = open.iter().chain(taken).find(|guard| guard.try_take());
        let guard = first.ok_or(SysError::TooManyMaps { limit: MAPS_MAX })?;
        let next = guard.place() + 1;
        // Fails where an entry before it was freed meanwhile.
        FREE_FROM
            .compare_exchange(hint, next, Ordering::Relaxed, Ordering::Relaxed)
            .ok();
        // Release, partner of the handler's Acquire. A thread that can fault on this map sees it.
        USED.fetch_max(next, Ordering::Release);
        Ok(guard)
    }

    fn try_take(&self) -> bool {
        // Only looked at first: taken entries stay in the caches of all cores.
        // Acquire pairs with Release in `free`: the last owner's changes come before ours.
        !self.taken.load(Ordering::Relaxed) && !self.taken.swap(true, Ordering::Acquire)
    }

    /// Its number in the table.
    fn place(&self) -> usize {
        (ptr::from_ref(self).addr() - GUARDS.as_ptr().addr()) / size_of::<Self>()
    }

    /// Starts to guard a map of `bytes` bytes, whole pages.
    pub(crate) fn arm(&self, start: usize, bytes: usize, writable: bool) {
        self.writable.store(writable, Ordering::Relaxed);
        self.damaged.store(false, Ordering::Relaxed);
        self.start.store(start, Ordering::Relaxed);
        self.bytes.store(bytes, Ordering::Relaxed);
        // Even to odd. Release pairs with the handler's Acquire: a reader of the odd value sees
        // the range.
        self.version.fetch_add(1, Ordering::Release);
    }

    /// True once a page of the map could not be read.
    pub(crate) fn damaged(&self) -> bool {
        // Acquire, from the handler's Release.
        self.damaged.load(Ordering::Acquire)
    }

    /// No reader is left; the map goes next.
    pub(crate) fn disarm(&self) {
        // Odd to even, and the fence keeps it before the next owner's stores (the handler's fence
        // is its partner).
        self.version.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::Release);
    }

    /// Frees the entry after the map was removed.
    pub(crate) fn free(&self) {
        self.taken.store(false, Ordering::Release);
        FREE_FROM.fetch_min(self.place(), Ordering::Relaxed);
    }

    /// True if `address` lies in this map. Async-signal-safe.
    fn covers(&self, address: usize) -> bool {
        let before = self.version.load(Ordering::Acquire);
        if before.is_multiple_of(2) {
            return false;
        }
        let start = self.start.load(Ordering::Relaxed);
        let bytes = self.bytes.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let same = self.version.load(Ordering::Relaxed) == before;
        same && address.wrapping_sub(start) < bytes
    }
}

/// The `SIGBUS` action that was installed before ours. Written before our handler is installed.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();
/// The page size, for the handler, which may not ask for it.
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(4096);

fn install_handler() -> Result<(), SysError> {
    static DONE: OnceLock<Result<(), i32>> = OnceLock::new();
    let done = DONE.get_or_init(|| {
        PAGE_BYTES.store(page_bytes(), Ordering::Relaxed);
        // SAFETY: all zeros is a valid `sigaction`: default handler, empty mask, no flags.
        let mut previous: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: only reads the installed handler, into a value of the right type.
        if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &mut previous) } != 0 {
            return Err(io::Error::last_os_error().raw_os_error().unwrap_or(0));
        }
        PREVIOUS.get_or_init(|| previous);
        // SAFETY: as above.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_bus_error as *const () as usize;
        // On the alternate stack where a thread has one; system calls go on.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        // SAFETY: the handler has the type that SA_SIGINFO requires and does only what a handler
        // may.
        if unsafe { libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error().raw_os_error().unwrap_or(0));
        }
        Ok(())
    });
    (*done).map_err(|errno| SysError::Handler(io::Error::from_raw_os_error(errno)))
}

/// Handler of `SIGBUS`; runs on the thread that touched a page that could not be read.
extern "C" fn on_bus_error(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes a valid `siginfo_t` to a handler with SA_SIGINFO; for SIGBUS it has
    // an address.
    let address = unsafe { (*info).si_addr() }.addr();
    let mut used = GUARDS.iter().take(USED.load(Ordering::Acquire));
    if let Some(guard) = used.find(|guard| guard.covers(address)) {
        guard.damaged.store(true, Ordering::Release);
        let page = PAGE_BYTES.load(Ordering::Relaxed);
        let protection = match guard.writable.load(Ordering::Relaxed) {
            true => libc::PROT_READ | libc::PROT_WRITE,
            false => libc::PROT_READ,
        };
        // SAFETY: replaces one page of a map that this process owns and uses as the protection
        // says, while the faulting thread keeps it alive. The raw call sets `errno` only on
        // failure, and then the default action follows.
        let replaced = unsafe {
            libc::mmap(
                ptr::without_provenance_mut(address & !(page - 1)),
                page,
                protection,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        if replaced != libc::MAP_FAILED {
            return;
        }
    }
    chain(signal, info, context);
}

/// Passes a fault that is not ours to the previous handler, or to the default action: death by
/// SIGBUS.
fn chain(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let Some(previous) = PREVIOUS.get() else {
        return;
    };
    match previous.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: all zeros is the default action. The access faults again on return and the
            // kernel acts on it.
            unsafe {
                let default: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, &default, ptr::null_mut());
            }
        }
        handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            type Handler = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
            // SAFETY: the flag says that the address is that of a handler of this type.
            let handler: Handler = unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: without the flag the address is that of a handler that takes the signal's
            // number.
            let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}
