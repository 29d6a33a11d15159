//! Bytes of descriptors that have rings.
//!
//! Must stay true: a call returns the same as the kernel's would; if the rings are empty and the
//! session is over, the kernel's call is made, on the pair, which knows how it ended.

use crate::attachment::{self, Attachment};
use crate::blocking::{self, For, Limit};
use crate::real::{FIONREAD, errno, flags_of, is_in_first_page, real};
use crate::rings::{bar, fall_back, give_back};
use crate::table::{
    CRAMPED_MAX, DATAGRAMS, DRAINED, GONE, Kind, PARDONED, Record, SHUT_WRITE, record,
};
use sidecore_net_rings::datagram::{HEAD_BYTES, PAYLOAD_BYTES_MAX};
use sidecore_net_rings::{Broken, Held, Lock, Stream, StreamState};
use sidecore_sync::Changed;
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::Ordering;

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

/// Result of one access to the rings.
pub(crate) enum Look<T> {
    Done(T),
    /// The descriptor has lost its rings.
    Gone,
    /// A signal handler has interrupted a copy.
    Interrupted,
}

/// Runs `work` under the stream's lock.
pub(crate) fn with_lock<T>(
    attachment: &Attachment,
    descriptor: c_int,
    record: &Record,
    mut work: impl FnMut(&mut Held<'_>) -> Result<T, Broken>,
) -> Look<T> {
    let number = record.number.load(Ordering::Relaxed);
    let Some(mut stream) = attachment.stream(number) else {
        return Look::Gone;
    };
    // A signal handler on a thread that copies would wait for its own lock.
    if COPIES.get() {
        return Look::Interrupted;
    }
    let mut tries = 0_u32;
    loop {
        COPIES.set(true);
        let lock = stream.lock();
        if let Lock::Held(mut held) = lock {
            // Looked at again under the lock: the number may belong to another stream by now.
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
        // The holder may be a thread that lost its processor in the middle of a copy.
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
        // Pieces without bytes, and those that are done, are left out.
        let at = done.min(piece.iov_len);
        done -= at;
        (at < piece.iov_len).then_some((piece, at))
    })
}

/// True if a piece cannot be memory: usually a null pointer, for which the kernel has an error.
/// Other unmapped addresses raise SIGSEGV, as in the program's own code.
pub(crate) fn is_nowhere(pieces: Pieces<'_>) -> bool {
    let mut all = pieces.iter();
    all.any(|piece| piece.iov_len > 0 && is_in_first_page(piece.iov_base.addr()))
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

pub(crate) fn is_nonblocking(descriptor: c_int, flags: c_int) -> bool {
    if flags & libc::MSG_DONTWAIT != 0 {
        return true;
    }
    flags_of(descriptor, libc::F_GETFL).is_some_and(|flags| flags & libc::O_NONBLOCK != 0)
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
    if flags & libc::MSG_ERRQUEUE != 0 {
        // A session's error queue is empty, which never blocks.
        return Done::Failed(libc::EAGAIN);
    }
    if flags & !known != 0 {
        bar(descriptor);
        return Done::Kernel;
    }
    if is_nowhere(pieces) {
        return Done::Failed(libc::EFAULT);
    }
    let wanted = whole(pieces);
    let peeks = flags & libc::MSG_PEEK != 0;
    // For TCP, MSG_TRUNC discards bytes instead of copying them (tcp(7)).
    let discards = flags & libc::MSG_TRUNC != 0;
    let (mut done, mut limit) = (0, Limit::default());
    loop {
        if record.kind() != Kind::Ring {
            return so_far(done);
        }
        // Bytes that arrived before there were rings precede all that came by them.
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
            is_cramped = held.is_cramped();
            let read = if discards && !peeks {
                held.skip(wanted - done)?
            } else {
                let from = if peeks { 0 } else { done };
                // Bytes that are only looked at stay in front of the next ones.
                read_pieces(pieces, from, |room, read| {
                    held.read(room, peeks, if peeks { read } else { 0 })
                })?
            };
            if read > 0 && !peeks {
                let _ = Changed::publish();
                // Only when it waits for room: a wake-up for each read would cost a system call.
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
        // MSG_WAITALL waits for the rest; any other call returns with the first bytes.
        let waits_for_all = flags & libc::MSG_WAITALL != 0 && done < wanted;
        if done > 0 && !waits_for_all {
            return Done::Bytes(done);
        }
        let Some(state) = state_of(attachment, record) else {
            return so_far(done);
        };
        // Bytes came since the copy, so there is no need to sleep.
        if state.readable_bytes > if peeks { done } else { 0 } {
            // As on TCP, a call without room waits for bytes, and leaves them.
            if wanted == 0 {
                return Done::Bytes(0);
            }
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
        let waited = wait(
            attachment,
            descriptor,
            record,
            For::Reading,
            &mut limit,
            beyond,
        );
        if let Err(error) = waited {
            return partly(done, error);
        }
    }
}

/// Copies bytes of the rings to the pieces from byte `done` on, by `copy`, which gets a piece and
/// the number of bytes before it; their number. An access that fails after others ends it: their
/// bytes have left the ring.
pub(crate) fn read_pieces(
    pieces: Pieces<'_>,
    done: usize,
    mut copy: impl FnMut(&mut [u8], usize) -> Result<usize, Broken>,
) -> Result<usize, Broken> {
    let mut read = 0;
    for (piece, at) in rest_of(pieces, done) {
        let room = &mut target(piece)[at..];
        let count = match copy(room, read) {
            Err(Broken) if read > 0 => break,
            count => count?,
        };
        read += count;
        if count < room.len() {
            break;
        }
    }
    Ok(read)
}

/// Copies the pieces from byte `done` on to the rings by `copy`, as far as there is room; their
/// bytes. An access that fails after others ends it: their bytes are in the ring.
pub(crate) fn write_pieces(
    pieces: Pieces<'_>,
    done: usize,
    mut copy: impl FnMut(&[u8]) -> Result<usize, Broken>,
) -> Result<usize, Broken> {
    let mut written = 0;
    for (piece, at) in rest_of(pieces, done) {
        let rest = &source(piece)[at..];
        let count = match copy(rest) {
            Err(Broken) if written > 0 => break,
            count => count?,
        };
        written += count;
        if count < rest.len() {
            break;
        }
    }
    Ok(written)
}

/// True if there is room to write this number of bytes; if not, the supervisor reports when there
/// is more.
pub(crate) fn has_room_or_waits(stream: &Stream<'_>, bytes: usize) -> bool {
    stream.wait_for_room();
    // A look after the announcement: room that came in between would not be reported.
    let _ = Changed::publish();
    stream
        .state()
        .is_ok_and(|state| state.writable_bytes >= bytes)
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
    // Its type differs between C libraries.
    message.msg_iovlen = pieces.len() as _;
    // Never waits: once the pair is empty, further bytes come by the rings only.
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
    let (mut done, mut limit) = (0, Limit::default());
    loop {
        // The kernel reports the end of writing, with EPIPE and its signal.
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
            let written = write_pieces(pieces, done, |rest| held.write(rest))?;
            is_cramped = held.is_cramped();
            Ok(written)
        });
        if is_cramped {
            note_cramped(attachment, descriptor, record);
        }
        match look {
            Look::Done(0) => {}
            // Announced at once: the supervisor may sleep while the next piece waits for room.
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
            if stream_of(attachment, record).is_some_and(|stream| has_room_or_waits(&stream, 1)) {
                continue;
            }
            return partly(done, libc::EAGAIN);
        }
        let waited = wait(attachment, descriptor, record, For::Writing, &mut limit, 0);
        if let Err(error) = waited {
            return partly(done, error);
        }
    }
}

pub(crate) fn stream_of<'a>(attachment: &'a Attachment, record: &Record) -> Option<Stream<'a>> {
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
pub(crate) fn readiness(attachment: &Attachment, descriptor: c_int, record: &Record) -> i16 {
    let over = libc::POLLIN | libc::POLLOUT | libc::POLLERR | libc::POLLHUP;
    let Some(stream) = stream_of(attachment, record) else {
        return over;
    };
    let Some(state) = state_of(attachment, record) else {
        return over;
    };
    let mut ready = 0;
    if state.readable_bytes > 0 || state.ended {
        ready |= libc::POLLIN | libc::POLLRDNORM;
    // Bytes of the pair count until it was found empty once.
    } else if !record.has(DRAINED) {
        let mut bytes: c_int = 0;
        real!(ioctl(descriptor => c_int, FIONREAD => libc::c_ulong,
            &raw mut bytes => *mut c_int) -> c_int);
        if bytes > 0 {
            ready |= libc::POLLIN | libc::POLLRDNORM;
        } else {
            record.add(DRAINED);
        }
    }
    if state.ended {
        ready |= libc::POLLRDHUP;
        if record.has(SHUT_WRITE) {
            ready |= libc::POLLHUP;
        }
    }
    // Of a datagram socket, for any datagram.
    let needed = match record.has(DATAGRAMS) {
        true => HEAD_BYTES + PAYLOAD_BYTES_MAX,
        false => 1,
    };
    // A socket that is shut for writing is writable: a write fails at once.
    let may_write = state.writable_bytes >= needed || record.has(SHUT_WRITE);
    if may_write || has_room_or_waits(&stream, needed) {
        ready |= libc::POLLOUT | libc::POLLWRNORM;
    }
    if state.error != 0 || record.has(GONE) {
        // An error is reported once, by a call or by SO_ERROR.
        if !record.has(PARDONED) {
            ready |= libc::POLLERR;
        }
        ready |= libc::POLLHUP;
        ready |= libc::POLLIN | libc::POLLRDHUP | libc::POLLOUT;
    }
    ready
}

/// The number of bytes for FIONREAD.
pub(crate) fn readable_bytes(descriptor: c_int) -> Option<c_int> {
    let (attachment, record) = (attachment::current()?, record(descriptor)?);
    if stream_of(attachment, record).is_none_or(|stream| stream.is_taken_back()) {
        bar(descriptor);
        return None;
    }
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
    limit: &mut Limit,
    beyond: usize,
) -> Result<(), c_int> {
    blocking::wait(attachment, descriptor, record, what, limit, || {
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
    })
}
