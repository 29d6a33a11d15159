//! Bytes of descriptors that have rings.
//!
//! Must stay true: a call returns the same as the kernel's would; if the rings are empty and the
//! session is over, the kernel's call is made, on the pair, which knows how it ended.

use crate::attachment::{self, Attachment, Waiter, drain};
use crate::real::{FIONREAD, errno, real};
use crate::rings::{bar, fall_back, give_back};
use crate::table::{CRAMPED_MAX, DRAINED, GONE, Kind, Record, SHUT_WRITE, record};
use sidecore_net_rings::{Broken, Held, Lock, Stream, StreamState};
use sidecore_sync::Changed;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

thread_local! {
    /// This thread is copying: a signal handler on it must not wait for the lock.
    static COPIES: Cell<bool> = const { Cell::new(false) };
}

/// Result of a call on a descriptor that has, or had, rings.
pub(crate) enum Done {
    /// A number of bytes.
    Bytes(usize),
    /// This error.
    Failed(c_int),
    /// The kernel must do it.
    Kernel,
}

/// Purpose of a wait.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum For {
    Reading,
    Writing,
}

/// Result of one access to the rings.
enum Look<T> {
    Done(T),
    /// The descriptor has lost its rings.
    Gone,
    /// A signal handler has interrupted a copy.
    Interrupted,
}

fn with_lock<T>(
    attachment: &Attachment,
    descriptor: c_int,
    record: &Record,
    mut work: impl FnMut(&mut Held<'_>) -> Result<T, Broken>,
) -> Look<T> {
    let number = record.number.load(Ordering::Relaxed);
    let Some(mut stream) = attachment.stream(number) else {
        return Look::Gone;
    };
    if COPIES.get() {
        return Look::Interrupted;
    }
    let mut tries = 0_u32;
    loop {
        COPIES.set(true);
        let lock = stream.lock();
        if let Lock::Held(mut held) = lock {
            let is_its =
                record.kind() == Kind::Ring && record.number.load(Ordering::Relaxed) == number;
            let done = is_its.then(|| work(&mut held));
            drop(held);
            COPIES.set(false);
            return match done {
                Some(Ok(done)) => Look::Done(done),
                Some(Err(Broken)) if is_larger_now(attachment, number, &mut stream) => continue,
                Some(Err(Broken)) => {
                    give_back(descriptor);
                    Look::Gone
                }
                None => Look::Gone,
            };
        }
        COPIES.set(false);
        if matches!(lock, Lock::TakenBack) {
            if record.kind() == Kind::Ring {
                fall_back(descriptor, record);
            }
            return Look::Gone;
        }
        tries += 1;
        if tries.is_multiple_of(64) {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

/// True if another thread has got large rings since an access began, which does not use them.
fn is_larger_now<'a>(attachment: &'a Attachment, number: u32, stream: &mut Stream<'a>) -> bool {
    let before = stream.has_large();
    if let Some(now) = attachment.stream(number) {
        *stream = now;
    }
    !before && stream.has_large()
}

/// Memory of the program, in pieces.
pub(crate) type Pieces<'p> = &'p [libc::iovec];

/// Total bytes of all pieces.
pub(crate) fn whole(pieces: Pieces<'_>) -> usize {
    pieces.iter().map(|piece| piece.iov_len).sum()
}

/// The pieces after the first `done` bytes, each with its first byte.
fn rest_of(pieces: Pieces<'_>, mut done: usize) -> impl Iterator<Item = (&libc::iovec, usize)> {
    pieces.iter().filter_map(move |piece| {
        let at = done.min(piece.iov_len);
        done -= at;
        (at < piece.iov_len).then_some((piece, at))
    })
}

/// True if a piece cannot be memory: usually a null pointer, for which the kernel has an error.
/// Other unmapped addresses raise SIGSEGV, as in the program's own code.
fn is_nowhere(pieces: Pieces<'_>) -> bool {
    let mut all = pieces.iter();
    all.any(|piece| piece.iov_len > 0 && is_in_first_page(piece.iov_base.addr()))
}

/// True for a null pointer, or nearly one.
pub(crate) fn is_in_first_page(address: usize) -> bool {
    address < FIRST_PAGE
}

/// A piece from some byte on, as a writable slice.
#[allow(clippy::mut_from_ref)] // The memory is the program's, not the piece's.
fn target(piece: &libc::iovec) -> &mut [u8] {
    if piece.iov_len == 0 {
        return &mut [];
    }
    // SAFETY: the program guarantees that this memory is its own, and lends it to this call; an
    // unmapped address raises SIGSEGV as in its own code.
    unsafe { std::slice::from_raw_parts_mut(piece.iov_base.cast(), piece.iov_len) }
}

fn source(piece: &libc::iovec) -> &[u8] {
    if piece.iov_len == 0 {
        return &[];
    }
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts(piece.iov_base.cast_const().cast(), piece.iov_len) }
}

fn is_nonblocking(descriptor: c_int, flags: c_int) -> bool {
    if flags & libc::MSG_DONTWAIT != 0 {
        return true;
    }
    // SAFETY: a call without pointers.
    let status = unsafe { libc::syscall(libc::SYS_fcntl, descriptor, libc::F_GETFL) };
    status >= 0 && status as c_int & libc::O_NONBLOCK != 0
}

/// Receives; the caller has checked that it has rings.
pub(crate) fn receive(descriptor: c_int, pieces: Pieces<'_>, flags: c_int) -> Done {
    let known = libc::MSG_PEEK
        | libc::MSG_DONTWAIT
        | libc::MSG_WAITALL
        | libc::MSG_TRUNC
        | libc::MSG_NOSIGNAL
        | libc::MSG_CMSG_CLOEXEC;
    let (Some(attachment), Some(record)) = (attachment::current(), record(descriptor)) else {
        return Done::Kernel;
    };
    if flags & !known != 0 {
        bar(descriptor);
        return Done::Kernel;
    }
    if is_nowhere(pieces) {
        return Done::Failed(libc::EFAULT);
    }
    let wanted = whole(pieces);
    let peeks = flags & libc::MSG_PEEK != 0;
    let discards = flags & libc::MSG_TRUNC != 0;
    let mut done = 0;
    loop {
        if record.kind() != Kind::Ring {
            return so_far(done);
        }
        if done == 0 && !record.has(DRAINED) {
            match drain_pair(descriptor, pieces, flags) {
                // More bytes may follow in the rings.
                Some(Done::Bytes(read)) if read < wanted && !peeks => {
                    record.add(DRAINED);
                    done = read;
                }
                Some(end) => return end,
                None => record.add(DRAINED),
            }
        }
        let mut is_cramped = false;
        let look = with_lock(attachment, descriptor, record, |held| {
            let mut read = 0;
            is_cramped = held.is_cramped();
            if discards && !peeks {
                read = held.skip(wanted - done)?;
            } else {
                for (piece, at) in rest_of(pieces, if peeks { 0 } else { done }) {
                    let room = &mut target(piece)[at..];
                    let count = held.read(room, peeks, if peeks { read } else { 0 })?;
                    read += count;
                    if count < room.len() {
                        break;
                    }
                }
            }
            if read > 0 && !peeks {
                let _ = Changed::publish();
                if held.supervisor_waits() {
                    attachment.tell(record.number.load(Ordering::Relaxed));
                }
            }
            Ok(read)
        });
        let read = match look {
            Look::Done(read) => read,
            Look::Gone => return so_far(done),
            Look::Interrupted => return Done::Failed(libc::EAGAIN),
        };
        if is_cramped {
            note_cramped(attachment, descriptor, record);
        }
        done = if peeks { read } else { done + read };
        let waits_for_all = flags & libc::MSG_WAITALL != 0 && done < wanted;
        if wanted == 0 || done > 0 && !waits_for_all {
            return Done::Bytes(done);
        }
        let Some(state) = state_of(attachment, record) else {
            return so_far(done);
        };
        if state.readable_bytes > if peeks { done } else { 0 } {
            continue;
        }
        if state.error != 0 || record.has(GONE) {
            // The pair knows how it ended.
            return so_far(done);
        }
        if state.ended {
            return Done::Bytes(done);
        }
        if is_nonblocking(descriptor, flags) {
            return partly(done, libc::EAGAIN);
        }
        let beyond = if peeks { done } else { 0 };
        if let Err(error) = wait(attachment, descriptor, record, For::Reading, beyond) {
            return partly(done, error);
        }
    }
}

/// A ring was full: if that is frequent, larger ones are requested, once.
#[cold]
fn note_cramped(attachment: &Attachment, descriptor: c_int, record: &Record) {
    if record.cramped.fetch_add(1, Ordering::Relaxed) == CRAMPED_MAX {
        attachment.grow(descriptor, record.number.load(Ordering::Relaxed));
    }
}

fn so_far(done: usize) -> Done {
    if done > 0 {
        Done::Bytes(done)
    } else {
        Done::Kernel
    }
}

/// The number of bytes before an error, or the error.
fn partly(done: usize, error: c_int) -> Done {
    if done > 0 {
        Done::Bytes(done)
    } else {
        Done::Failed(error)
    }
}

/// Reads bytes that the pair held before there were rings; none once it is empty.
#[cold]
fn drain_pair(descriptor: c_int, pieces: Pieces<'_>, flags: c_int) -> Option<Done> {
    // SAFETY: zeros are an empty message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_ptr().cast_mut();
    message.msg_iovlen = pieces.len() as _;
    let flags = flags & libc::MSG_PEEK | libc::MSG_DONTWAIT;
    let read = real!(recvmsg(
        descriptor => c_int, &raw mut message => *mut libc::msghdr, flags => c_int) -> isize);
    match usize::try_from(read) {
        Ok(read) => Some(Done::Bytes(read)),
        Err(_) if errno() == libc::EAGAIN => None,
        Err(_) => Some(Done::Failed(errno())),
    }
}

/// Sends; the caller has checked that it has rings.
pub(crate) fn send(descriptor: c_int, pieces: Pieces<'_>, flags: c_int) -> Done {
    let known = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | libc::MSG_MORE | libc::MSG_EOR;
    let (Some(attachment), Some(record)) = (attachment::current(), record(descriptor)) else {
        return Done::Kernel;
    };
    if flags & !known != 0 {
        bar(descriptor);
        return Done::Kernel;
    }
    if is_nowhere(pieces) {
        return Done::Failed(libc::EFAULT);
    }
    let wanted = whole(pieces);
    let mut done = 0;
    loop {
        if record.kind() != Kind::Ring || record.has(SHUT_WRITE) {
            return so_far(done);
        }
        let Some(state) = state_of(attachment, record) else {
            return so_far(done);
        };
        if state.error != 0 || record.has(GONE) {
            return so_far(done);
        }
        let mut is_cramped = false;
        let look = with_lock(attachment, descriptor, record, |held| {
            let mut written = 0;
            for (piece, at) in rest_of(pieces, done) {
                let rest = &source(piece)[at..];
                let count = held.write(rest)?;
                written += count;
                if count < rest.len() {
                    break;
                }
            }
            is_cramped = held.is_cramped();
            Ok(written)
        });
        if is_cramped {
            note_cramped(attachment, descriptor, record);
        }
        match look {
            Look::Done(0) => {}
            Look::Done(written) => {
                done += written;
                attachment.tell(record.number.load(Ordering::Relaxed));
            }
            Look::Gone => return so_far(done),
            Look::Interrupted => return Done::Failed(libc::EAGAIN),
        }
        if done == wanted {
            return Done::Bytes(done);
        }
        if is_nonblocking(descriptor, flags) {
            // After a short write the program waits for room, for example in an edge-triggered
            // epoll.
            if let Some(stream) = stream_of(attachment, record) {
                stream.wait_for_room();
                let _ = Changed::publish();
                if stream.state().is_ok_and(|state| state.writable_bytes > 0) {
                    continue;
                }
            }
            return partly(done, libc::EAGAIN);
        }
        if let Err(error) = wait(attachment, descriptor, record, For::Writing, 0) {
            return partly(done, error);
        }
    }
}

fn stream_of<'a>(attachment: &'a Attachment, record: &Record) -> Option<Stream<'a>> {
    attachment.stream(record.number.load(Ordering::Relaxed))
}

/// State of a stream; none if its positions are invalid.
pub(crate) fn state_of(attachment: &Attachment, record: &Record) -> Option<StreamState> {
    let mut stream = stream_of(attachment, record)?;
    let number = record.number.load(Ordering::Relaxed);
    match stream.state() {
        Err(Broken) if is_larger_now(attachment, number, &mut stream) => stream.state().ok(),
        state => state.ok(),
    }
}

/// The events that poll(2) would report for a descriptor with rings.
pub(crate) fn readiness(attachment: &Attachment, descriptor: c_int, record: &Record) -> i32 {
    let over = (libc::POLLIN | libc::POLLOUT | libc::POLLERR | libc::POLLHUP).into();
    let Some(stream) = stream_of(attachment, record) else {
        return over;
    };
    let Some(state) = state_of(attachment, record) else {
        return over;
    };
    let mut ready = 0;
    if state.readable_bytes > 0 || state.ended {
        ready |= i32::from(libc::POLLIN | libc::POLLRDNORM);
    } else if !record.has(DRAINED) {
        let mut bytes: c_int = 0;
        real!(ioctl(descriptor => c_int, FIONREAD => libc::c_ulong,
            &raw mut bytes => *mut c_int) -> c_int);
        if bytes > 0 {
            ready |= i32::from(libc::POLLIN | libc::POLLRDNORM);
        } else {
            record.add(DRAINED);
        }
    }
    if state.ended {
        ready |= i32::from(libc::POLLRDHUP);
        if record.has(SHUT_WRITE) {
            ready |= i32::from(libc::POLLHUP);
        }
    }
    if state.writable_bytes > 0 || record.has(SHUT_WRITE) {
        ready |= i32::from(libc::POLLOUT | libc::POLLWRNORM);
    } else {
        stream.wait_for_room();
        let _ = Changed::publish();
        if stream.state().is_ok_and(|state| state.writable_bytes > 0) {
            ready |= i32::from(libc::POLLOUT | libc::POLLWRNORM);
        }
    }
    if state.error != 0 || record.has(GONE) {
        ready |= i32::from(libc::POLLERR | libc::POLLHUP);
        ready |= i32::from(libc::POLLIN | libc::POLLRDHUP | libc::POLLOUT);
    }
    ready
}

/// The number of bytes for FIONREAD.
pub(crate) fn readable_bytes(descriptor: c_int) -> Option<c_int> {
    let (attachment, record) = (attachment::current()?, record(descriptor)?);
    let mut bytes: c_int = 0;
    if !record.has(DRAINED) {
        real!(ioctl(descriptor => c_int, FIONREAD => libc::c_ulong,
            &raw mut bytes => *mut c_int) -> c_int);
    }
    let state = state_of(attachment, record)?;
    Some(bytes + c_int::try_from(state.readable_bytes).unwrap_or(c_int::MAX))
}

/// Waits for more than some bytes, or for room.
fn wait(
    attachment: &Attachment,
    descriptor: c_int,
    record: &Record,
    what: For,
    beyond: usize,
) -> Result<(), c_int> {
    let patience = patience(descriptor, record, what);
    let is_ready = || {
        let Some(stream) = stream_of(attachment, record) else {
            return true;
        };
        let Some(state) = state_of(attachment, record) else {
            return true;
        };
        let over = record.kind() != Kind::Ring || state.error != 0 || stream.is_taken_back();
        over || match what {
            For::Reading => state.readable_bytes > beyond || state.ended,
            For::Writing => state.writable_bytes > 0 || record.has(SHUT_WRITE),
        }
    };
    let Some(waiter) = attachment.waiter(descriptor) else {
        // More threads wait than there are waiters: this one polls periodically.
        std::thread::sleep(Duration::from_millis(1));
        return Ok(());
    };
    let place = match what {
        For::Reading => 1,
        For::Writing => 2,
    };
    record.waits.fetch_add(1, Ordering::SeqCst);
    let end = sleep(attachment, record, place, waiter, patience, is_ready);
    record.waits.fetch_sub(1, Ordering::SeqCst);
    attachment.give_waiter_back(waiter);
    end
}

fn sleep(
    attachment: &Attachment,
    record: &Record,
    place: usize,
    waiter: Waiter,
    patience: Option<Duration>,
    is_ready: impl Fn() -> bool,
) -> Result<(), c_int> {
    let (Some(stream), Some(word)) = (stream_of(attachment, record), attachment.word(waiter))
    else {
        return Ok(());
    };
    stream.tell(place, Some(waiter.number));
    if place == 2 {
        stream.wait_for_room();
    }
    word.announce_sleep();
    let mut end = Ok(());
    if !is_ready() {
        end = doze(waiter, patience);
    }
    word.cancel_sleep();
    stream.tell(place, None);
    drain(waiter);
    end
}

/// Sleeps until the supervisor wakes the waiter. The kernel restarts the call after a signal, if
/// the program's handler has SA_RESTART.
fn doze(waiter: Waiter, patience: Option<Duration>) -> Result<(), c_int> {
    if let Some(patience) = patience {
        let begun = Instant::now();
        let mut polled = libc::pollfd {
            fd: waiter.socket,
            events: libc::POLLIN,
            revents: 0,
        };
        let millis = patience.as_millis().clamp(1, i32::MAX as u128) as c_int;
        let count = real!(poll(&raw mut polled => *mut libc::pollfd, 1 => libc::nfds_t,
            millis => c_int) -> c_int);
        return match count {
            0 if begun.elapsed() >= patience => Err(libc::EAGAIN),
            -1 => Err(errno()),
            _ => Ok(()),
        };
    }
    let mut byte = 0_u8;
    let to = (&raw mut byte).cast::<c_void>();
    let read = real!(recv(waiter.socket => c_int, to => *mut c_void, 1 => usize, 0 => c_int)
        -> isize);
    match read {
        1 => Ok(()),
        // The supervisor is gone, and with it the other end of the pair.
        0 => Err(libc::ECONNRESET),
        _ => Err(errno()),
    }
}

/// SO_RCVTIMEO or SO_SNDTIMEO; none if it is not set.
fn patience(descriptor: c_int, record: &Record, what: For) -> Option<Duration> {
    let (option, known) = match what {
        For::Reading => (libc::SO_RCVTIMEO, &record.patience[0]),
        For::Writing => (libc::SO_SNDTIMEO, &record.patience[1]),
    };
    let micros = match known.load(Ordering::Relaxed) {
        0 => {
            let asked = timeout(descriptor, option);
            let micros = asked.map_or(0, |asked| asked.as_micros() as u64);
            known.store(micros + 1, Ordering::Relaxed);
            micros
        }
        known => known - 1,
    };
    (micros > 0).then(|| Duration::from_micros(micros))
}

fn timeout(descriptor: c_int, option: c_int) -> Option<Duration> {
    let before = errno();
    let mut value = libc::timeval {
        tv_sec: 0,
        tv_usec: 0,
    };
    let mut bytes = size_of_val(&value) as libc::socklen_t;
    let to = (&raw mut value).cast::<c_void>();
    real!(getsockopt(descriptor => c_int, libc::SOL_SOCKET => c_int, option => c_int,
        to => *mut c_void, &raw mut bytes => *mut libc::socklen_t) -> c_int);
    crate::real::set_errno(before);
    let seconds = Duration::from_secs(u64::try_from(value.tv_sec).ok()?);
    let patience = seconds + Duration::from_micros(u64::try_from(value.tv_usec).ok()?);
    (!patience.is_zero()).then_some(patience)
}

/// Addresses below this are never mapped (`vm.mmap_min_addr`).
const FIRST_PAGE: usize = 4096;
