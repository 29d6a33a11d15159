//! This process's shared memory with its supervisor: the segment, waiters, streams' memory.
//!
//! Must stay true: the library's descriptors have high numbers, which programs do not expect, and
//! the program cannot close them; a forked child uses none of it; nothing is freed, so that a
//! thread cannot use memory that another one has released.

use crate::real::{count, errno, int, length, real};
use sidecore_bare::width::ToUsize;
use sidecore_net_rings::{
    ATTACH, DATAGRAM_RINGS, GROW, LARGE_BYTES, LEVEL, LINGER, Process, SEGMENT_BYTES, SLAB_BYTES,
    SLAB_STREAMS, STREAMS, Stream, UPGRADE, VERSION, WAITER, WAITERS, WORDS,
};
use sidecore_sync::{Changed, Shared, SleepWord};
use sidecore_sys::{SharedMapping, SysError};
use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// This process's shared memory with its supervisor.
#[derive(Debug)]
pub(crate) struct Attachment {
    number: u32,
    segment: SharedMapping,
    /// Bell that wakes the supervisor; the first waiter's.
    bell: c_int,
    idle: Mutex<Vec<Waiter>>,
    // In boxes: threads with small stacks attach, too.
    slabs: Box<[OnceLock<SharedMapping>]>,
    large: Box<[OnceLock<SharedMapping>]>,
}

/// A waiter, which the supervisor wakes by a byte on its socket.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waiter {
    pub(crate) number: u32,
    pub(crate) socket: c_int,
}

static CURRENT: AtomicPtr<Attachment> = AtomicPtr::new(std::ptr::null_mut());
/// 0 not tried, 1 being made, 2 made, 3 refused for good.
static STEP: AtomicU32 = AtomicU32::new(0);
/// The library's descriptors, each plus 1.
static OWN: [AtomicI32; WAITERS] = [const { AtomicI32::new(0) }; WAITERS];

/// The attachment, if there is one.
#[inline]
pub(crate) fn current() -> Option<&'static Attachment> {
    let current = CURRENT.load(Ordering::Acquire);
    // SAFETY: it was leaked when it was stored, and is never freed.
    unsafe { current.as_ref() }
}

/// The attachment, created if necessary; none without a supervisor that supports rings.
pub(crate) fn attach(descriptor: c_int) -> Option<&'static Attachment> {
    let step = STEP.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire);
    if step.is_err() {
        return current();
    }
    let made = make(descriptor);
    let step = match &made {
        Ok(_) => 2,
        Err(error) if is_passing(*error) => 0,
        Err(_) => 3,
    };
    STEP.store(step, Ordering::Release);
    let made = Box::into_raw(Box::new(made.ok()?));
    CURRENT.store(made, Ordering::Release);
    current()
}

/// True for the supervisor's refusals that others cause, and end: it has too many rings, or lacks
/// memory or descriptors for them. Not for EINTR: an interrupted request may have been served, and
/// the next one would take one more attachment.
pub(crate) fn is_passing(error: c_int) -> bool {
    matches!(
        error,
        libc::EAGAIN | libc::ENOSPC | libc::ENOMEM | libc::EMFILE | libc::ENFILE
    )
}

/// True if the supervisor has none for this process: later requests would find the same.
pub(crate) fn is_refused() -> bool {
    STEP.load(Ordering::Acquire) == 3
}

/// This process is a forked child: the attachment belongs to its parent.
pub(crate) fn forked() {
    if CURRENT
        .swap(std::ptr::null_mut(), Ordering::AcqRel)
        .is_null()
    {
        STEP.store(0, Ordering::Release);
        return;
    }
    // Closed, so that the supervisor notices the parent's exit.
    for own in &OWN {
        // Swapped first: the number is not ours any more once it is closed.
        let own = own.swap(0, Ordering::AcqRel) - 1;
        if own >= 0 {
            // SAFETY: a descriptor of ours.
            unsafe { libc::syscall(libc::SYS_close, own) };
        }
    }
    STEP.store(0, Ordering::Release);
}

/// True for a descriptor of the library, which a program must not see.
#[inline]
pub(crate) fn is_own(descriptor: c_int) -> bool {
    descriptor >= 0
        && current().is_some()
        && OWN
            .iter()
            .any(|own| own.load(Ordering::Relaxed) == descriptor + 1)
}

/// The library's descriptors, in no order.
pub(crate) fn own() -> impl Iterator<Item = c_int> {
    let numbers = OWN.iter().map(|own| own.load(Ordering::Relaxed) - 1);
    numbers.filter(|own| *own >= 0 && current().is_some())
}

fn make(descriptor: c_int) -> Result<Attachment, c_int> {
    let [version, number, file, _] = request(descriptor, ATTACH, VERSION)?;
    let segment = map(file.cast_signed(), SEGMENT_BYTES).ok_or(libc::EPROTO)?;
    // After the mapping, so that the descriptor is closed in any case.
    if version != VERSION {
        return Err(libc::EPROTO);
    }
    let mut made = Attachment {
        number,
        segment,
        bell: -1,
        idle: Mutex::new(Vec::new()),
        slabs: empty(SLABS),
        large: empty(STREAM_COUNT),
    };
    // Without it the process would hold one more attachment at each attempt.
    let first = made.new_waiter(descriptor).ok_or(libc::EPROTO)?;
    made.bell = first.socket;
    made.give_waiter_back(first);
    Ok(made)
}

/// Places for mappings, never on the stack.
fn empty(count: usize) -> Box<[OnceLock<SharedMapping>]> {
    std::iter::repeat_with(OnceLock::new).take(count).collect()
}

impl Attachment {
    #[inline]
    pub(crate) fn process(&self) -> Option<Process<'_>> {
        Process::over(self.segment.slice())
    }

    #[inline]
    pub(crate) fn stream(&self, number: u32) -> Option<Stream<'_>> {
        let memory = self.slabs.get((number / SLAB_STREAMS).to_usize())?.get()?;
        let large = self.large.get(number.to_usize())?.get();
        let stream = Stream::of_slab(memory.slice(), number)?;
        Some(stream.with_large(large.map(SharedMapping::slice)))
    }

    /// Requests large rings for a descriptor's stream; false if it does not get them.
    #[cold]
    pub(crate) fn grow(&self, descriptor: c_int, number: u32) -> bool {
        let Ok([told, file, _, _]) = request(descriptor, GROW, self.number) else {
            return false;
        };
        let mapping = map(file.cast_signed(), LARGE_BYTES);
        let (Some(mapping), Some(place)) = (mapping, self.large.get(told.to_usize())) else {
            return false;
        };
        place.set(mapping).ok();
        // Another thread may have closed the descriptor, and the number is another stream's.
        if told == number
            && let Some(stream) = self.stream(number)
        {
            stream.show_large();
        }
        true
    }

    /// The word on which a waiter sleeps.
    pub(crate) fn word(&self, waiter: Waiter) -> Option<&SleepWord<Shared>> {
        self.process()?.waiter_word(waiter.number)
    }

    /// Requests rings for a descriptor; the stream's number. With EPROTO the supervisor has given
    /// rings that this process cannot use.
    pub(crate) fn upgrade(&self, descriptor: c_int) -> Result<u32, c_int> {
        let [number, file, _, _] = request(descriptor, UPGRADE, self.number)?;
        self.open_slab(number, file)
    }

    /// The same for a datagram socket, whose rings are large ones; and what the grant says of it.
    pub(crate) fn upgrade_datagrams(&self, descriptor: c_int) -> Result<(u32, u32), c_int> {
        let [number, file, large, says] = request(descriptor, DATAGRAM_RINGS, self.number)?;
        if let Some(mapping) = map(large.cast_signed(), LARGE_BYTES)
            && let Some(place) = self.large.get(number.to_usize())
        {
            place.set(mapping).ok();
        }
        let number = self.open_slab(number, file)?;
        let has_large = self.stream(number).is_some_and(|stream| stream.has_large());
        has_large.then_some((number, says)).ok_or(libc::EPROTO)
    }

    /// Maps a stream's slab, if this is its first stream.
    fn open_slab(&self, number: u32, file: u32) -> Result<u32, c_int> {
        let Some(place) = self.slabs.get((number / SLAB_STREAMS).to_usize()) else {
            return Err(libc::EPROTO);
        };
        if let Some(mapping) = map(file.cast_signed(), SLAB_BYTES) {
            place.set(mapping).ok();
        }
        for _ in 0..SLAB_TRIES {
            if let Some(stream) = self.stream(number) {
                // A former stream with this number may have left large ones.
                stream.show_large();
                return Ok(number);
            }
            // Another thread has the slab's descriptor, for a stream of its own, and maps it.
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(libc::EPROTO)
    }

    /// A free waiter.
    pub(crate) fn waiter(&self, descriptor: c_int) -> Option<Waiter> {
        let idle = self
            .idle
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop();
        idle.or_else(|| self.new_waiter(descriptor))
    }

    pub(crate) fn give_waiter_back(&self, waiter: Waiter) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.push(waiter);
    }

    fn new_waiter(&self, descriptor: c_int) -> Option<Waiter> {
        let [number, socket, _, _] = request(descriptor, WAITER, self.number).ok()?;
        let place = OWN.get(number.to_usize())?;
        // Programs expect the lowest free number for their next descriptor.
        let socket = out_of_sight(socket.cast_signed());
        place.store(socket + 1, Ordering::Release);
        Some(Waiter { number, socket })
    }

    /// Notifies the supervisor of an event of a stream, and wakes it.
    #[inline]
    pub(crate) fn tell(&self, stream: u32) {
        let Some(process) = self.process() else {
            return;
        };
        // The bit first, then the look for a sleeper: the order of `sidecore-sync`'s protocol.
        process.tell_supervisor(stream);
        let word = process.supervisor_word();
        if word.is_some_and(|word| word.claim_after(Changed::publish())) {
            ring(self.bell);
        }
    }
}

/// Streams of a process, as a length.
pub(crate) const STREAM_COUNT: usize = STREAMS as usize;
/// Attempts, 1 ms apart, while another thread maps a slab.
const SLAB_TRIES: u32 = 1000;
const SLABS: usize = STREAM_COUNT.div_ceil(SLAB_STREAMS as usize);

fn ring(bell: c_int) {
    let byte = 1_u8;
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    let from = (&raw const byte).cast::<c_void>();
    let before = errno();
    real!(send(bell => c_int, from => *const c_void, 1 => usize, flags => c_int) -> isize);
    crate::real::set_errno(before);
}

/// Discards a waiter's wake-up bytes.
pub(crate) fn drain(waiter: Waiter) {
    let mut bytes = [0_u8; 64];
    let to = bytes.as_mut_ptr().cast::<c_void>();
    let before = errno();
    // One read is enough: at most one byte comes for each announced sleep.
    real!(recv(waiter.socket => c_int, to => *mut c_void, bytes.len() => usize,
        libc::MSG_DONTWAIT => c_int) -> isize);
    crate::real::set_errno(before);
}

/// Sends a request to the supervisor. A signal interrupts [`LINGER`] only, as it does close(2): any
/// other request may have been served by then, and this process would not know.
pub(crate) fn request(descriptor: c_int, name: c_int, word: u32) -> Result<[u32; WORDS], c_int> {
    let _blocked = (name != LINGER).then(Blocked::begin);
    #[cfg(test)]
    if let Some(answer) = crate::tests::supervisor::answer(descriptor, name, word) {
        return answer;
    }
    let before = errno();
    let mut words = [word, 0, 0, 0];
    let mut bytes = length(size_of_val(&words));
    // SAFETY: the value has room for the words, and `bytes` says how much.
    let result = unsafe {
        libc::syscall(
            libc::SYS_getsockopt,
            descriptor,
            LEVEL,
            name,
            words.as_mut_ptr(),
            &raw mut bytes,
        )
    };
    let error = errno();
    crate::real::set_errno(before);
    if result == 0 { Ok(words) } else { Err(error) }
}

/// Signals of this thread, blocked until it is dropped.
#[derive(Debug)]
pub(crate) struct Blocked {
    /// None: a filter of the program's forbids the change.
    before: Option<u64>,
}

impl Blocked {
    /// Blocks all but those that a fault of this thread raises.
    pub(crate) fn begin() -> Self {
        Self {
            before: change_mask(libc::SIG_BLOCK, !FAULTS),
        }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            change_mask(libc::SIG_SETMASK, before);
        }
    }
}

/// rt_sigprocmask(2); the mask before. Not the C library's function, which leaves its own signals
/// out: those interrupt a request, too.
fn change_mask(how: c_int, mask: u64) -> Option<u64> {
    let (before, mut old) = (errno(), 0_u64);
    // SAFETY: the kernel's sets have 8 bytes; it reads one and writes one.
    let result = unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            how,
            &raw const mask,
            &raw mut old,
            size_of_val(&mask),
        )
    };
    crate::real::set_errno(before);
    (result == 0).then_some(old)
}

/// A signal's bit in a set.
const fn bit(signal: c_int) -> u64 {
    1 << (signal - 1)
}

const FAULTS: u64 = bit(libc::SIGILL)
    | bit(libc::SIGTRAP)
    | bit(libc::SIGBUS)
    | bit(libc::SIGFPE)
    | bit(libc::SIGSEGV)
    | bit(libc::SIGSYS);

fn map(file: c_int, bytes: usize) -> Option<SharedMapping> {
    map_by(file, |file| SharedMapping::open(file, bytes))
}

/// Maps memory of the supervisor's for reading; its descriptor is closed.
pub(crate) fn map_to_read(file: c_int, bytes: usize) -> Option<SharedMapping> {
    map_by(file, |file| SharedMapping::open_to_read(file, bytes))
}

fn map_by(
    file: c_int,
    open: impl FnOnce(BorrowedFd<'_>) -> Result<SharedMapping, SysError>,
) -> Option<SharedMapping> {
    if file < 0 {
        return None;
    }
    // SAFETY: the supervisor has just given it to this process; it is closed below.
    let borrowed = unsafe { BorrowedFd::borrow_raw(file) };
    let mapping = open(borrowed).ok();
    // SAFETY: as above; no other code knows of it.
    unsafe { libc::syscall(libc::SYS_close, file) };
    mapping
}

/// Moves a descriptor to a high number, away from those that programs expect.
fn out_of_sight(descriptor: c_int) -> c_int {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel writes one `rlimit`.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    // Not beyond the table: a program that is given one of these numbers has no record of it.
    let highest = limit.rlim_cur.to_usize().min(crate::table::DESCRIPTORS);
    let from = count(highest.saturating_sub(2 * WAITERS));
    // SAFETY: a call without pointers.
    let moved = unsafe { libc::syscall(libc::SYS_fcntl, descriptor, libc::F_DUPFD_CLOEXEC, from) };
    let Some(moved) = int(moved).filter(|moved| *moved >= 0) else {
        return descriptor;
    };
    // SAFETY: a descriptor of ours.
    unsafe { libc::syscall(libc::SYS_close, descriptor) };
    moved
}
