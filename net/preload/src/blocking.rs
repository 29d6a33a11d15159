//! Sleeping in a call on one descriptor with rings.
//!
//! Must stay true: a stream wakes one thread in each direction, so a second one returns it to its
//! pair; a thread's timeout is the socket's.

use crate::attachment::{Attachment, Waiter, drain};
use crate::real::{errno, length, real};
use crate::rings;
use crate::table::Record;
use sidecore_net_rings::Stream;
use sidecore_sync::{Shared, SleepWord};
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Purpose of a wait.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum For {
    Reading,
    Writing,
}

/// The time limit of one call: it starts when the call first waits, and is the same for all its
/// waits.
#[derive(Debug, Default)]
pub(crate) struct Limit {
    /// None before the first wait; then the end, or none without a limit.
    end: Option<Option<Instant>>,
}

impl Limit {
    /// The end of the call, whose socket has this limit.
    pub(crate) fn end(&mut self, patience: impl FnOnce() -> Option<Duration>) -> Option<Instant> {
        // A time that the clock cannot express never comes.
        *self
            .end
            .get_or_insert_with(|| Instant::now().checked_add(patience()?))
    }
}

/// Sleeps until the supervisor reports an event of a stream, unless `is_ready`; the caller looks
/// again then. The error if a timeout of the socket, or a signal, ends the call.
pub(crate) fn wait(
    attachment: &Attachment,
    descriptor: c_int,
    record: &Record,
    what: For,
    limit: &mut Limit,
    is_ready: impl Fn() -> bool,
) -> Result<(), c_int> {
    // Read once for the call, as the kernel does.
    let end = limit.end(|| patience(descriptor, record, what));
    let Some(waiter) = attachment.waiter(descriptor) else {
        // More threads wait than there are waiters: this one polls periodically.
        return nap(end);
    };
    let place = match what {
        For::Reading => READER,
        For::Writing => WRITER,
    };
    record.waits.fetch_add(1, Ordering::SeqCst);
    let stream = attachment.stream(record.number.load(Ordering::Relaxed));
    let result = match stream.zip(attachment.word(waiter)) {
        Some((stream, word)) => match stream.tell(place, Some(waiter.number)) {
            None => sleep(stream, word, place, waiter, end, is_ready),
            // The stream has room for one thread in each direction; the pair has it for all. The
            // supervisor wakes the other thread when it takes the rings back.
            Some(other) => {
                stream.tell(place, Some(other));
                rings::bar(descriptor);
                Ok(())
            }
        },
        None => Ok(()),
    };
    record.waits.fetch_sub(1, Ordering::SeqCst);
    attachment.give_waiter_back(waiter);
    result
}

/// Sleeps for a stream that knows the waiter.
fn sleep(
    stream: Stream<'_>,
    word: &SleepWord<Shared>,
    place: usize,
    waiter: Waiter,
    end: Option<Instant>,
    is_ready: impl Fn() -> bool,
) -> Result<(), c_int> {
    if place == WRITER {
        stream.wait_for_room();
    }
    word.announce_sleep();
    let mut result = Ok(());
    if !is_ready() {
        result = doze(waiter, end);
    }
    word.cancel_sleep();
    // If the descriptor was closed meanwhile, the number may be another stream's by now.
    if let Some(other) = stream.tell(place, None).filter(|it| *it != waiter.number) {
        stream.tell(place, Some(other));
    }
    drain(waiter);
    result
}

/// Sleeps until the supervisor wakes the waiter. The kernel restarts the call after a signal, if
/// the program's handler has SA_RESTART.
fn doze(waiter: Waiter, end: Option<Instant>) -> Result<(), c_int> {
    if let Some(end) = end {
        let mut polled = libc::pollfd {
            fd: waiter.socket,
            events: libc::POLLIN,
            revents: 0,
        };
        let count = real!(poll(&raw mut polled => *mut libc::pollfd, 1 => libc::nfds_t,
            millis_until(end) => c_int) -> c_int);
        return match count {
            0 if Instant::now() >= end => Err(libc::EAGAIN),
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

/// The time until `end` in milliseconds, rounded up.
fn millis_until(end: Instant) -> c_int {
    let left = end.saturating_duration_since(Instant::now());
    c_int::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX)
}

/// Sleeps for a millisecond, without a waiter; the error if the call's time is over, or a signal
/// ends it.
pub(crate) fn nap(end: Option<Instant>) -> Result<(), c_int> {
    let millis = end.map_or(1, |end| millis_until(end).min(1));
    let none = std::ptr::null_mut();
    let before = errno();
    let count = real!(poll(none => *mut libc::pollfd, 0 => libc::nfds_t, millis => c_int)
        -> c_int);
    // No call of the kernel both restarts and ends after a time. With SO_RCVTIMEO or SO_SNDTIMEO
    // signals end it in any case (signal(7)); without, those without SA_RESTART.
    if count == -1 && (end.is_some() || !all_handlers_restart()) {
        return Err(libc::EINTR);
    }
    crate::real::set_errno(before);
    match end {
        Some(end) if Instant::now() >= end => Err(libc::EAGAIN),
        _ => Ok(()),
    }
}

/// True if all handlers of the program have SA_RESTART.
#[cold]
fn all_handlers_restart() -> bool {
    (1..=libc::SIGRTMAX()).all(|signal| {
        // SAFETY: all zeros are a `sigaction`, and the kernel writes one.
        let action = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let result = libc::sigaction(signal, std::ptr::null(), &raw mut action);
            (result == 0).then_some(action)
        };
        // The C library's own signals are no handlers of the program.
        action.is_none_or(|action| {
            let has_none = [libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
            has_none || action.sa_flags & libc::SA_RESTART != 0
        })
    })
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
            let micros = asked.and_then(|asked| u64::try_from(asked.as_micros()).ok());
            let micros = micros.unwrap_or(0);
            // Plus 1: 0 says that it was not read yet.
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
    let mut bytes = length(size_of_val(&value));
    let to = (&raw mut value).cast::<c_void>();
    real!(getsockopt(descriptor => c_int, libc::SOL_SOCKET => c_int, option => c_int,
        to => *mut c_void, &raw mut bytes => *mut libc::socklen_t) -> c_int);
    crate::real::set_errno(before);
    let seconds = Duration::from_secs(u64::try_from(value.tv_sec).ok()?);
    let patience = seconds + Duration::from_micros(u64::try_from(value.tv_usec).ok()?);
    (!patience.is_zero()).then_some(patience)
}

/// Places of a stream's waiters ([`Stream::tell`]).
pub(crate) const READER: usize = 1;
const WRITER: usize = 2;
