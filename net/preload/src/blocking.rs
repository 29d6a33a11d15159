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

/// Sleeps until the supervisor reports an event of a stream, unless `is_ready`; the caller looks
/// again then. The error if a timeout of the socket, or a signal, ends the call.
pub(crate) fn wait(
    attachment: &Attachment,
    descriptor: c_int,
    record: &Record,
    what: For,
    is_ready: impl Fn() -> bool,
) -> Result<(), c_int> {
    // Read once for the call, as the kernel does.
    let patience = patience(descriptor, record, what);
    let Some(waiter) = attachment.waiter(descriptor) else {
        // More threads wait than there are waiters: this one polls periodically.
        std::thread::sleep(Duration::from_millis(1));
        return Ok(());
    };
    let place = match what {
        For::Reading => READER,
        For::Writing => WRITER,
    };
    record.waits.fetch_add(1, Ordering::SeqCst);
    let stream = attachment.stream(record.number.load(Ordering::Relaxed));
    let end = match stream.zip(attachment.word(waiter)) {
        Some((stream, word)) => match stream.tell(place, Some(waiter.number)) {
            None => sleep(stream, word, place, waiter, patience, is_ready),
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
    end
}

/// Sleeps for a stream that knows the waiter.
fn sleep(
    stream: Stream<'_>,
    word: &SleepWord<Shared>,
    place: usize,
    waiter: Waiter,
    patience: Option<Duration>,
    is_ready: impl Fn() -> bool,
) -> Result<(), c_int> {
    if place == WRITER {
        stream.wait_for_room();
    }
    word.announce_sleep();
    let mut end = Ok(());
    if !is_ready() {
        end = doze(waiter, patience);
    }
    word.cancel_sleep();
    // If the descriptor was closed meanwhile, the number may be another stream's by now.
    if let Some(other) = stream.tell(place, None).filter(|it| *it != waiter.number) {
        stream.tell(place, Some(other));
    }
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
        let millis = c_int::try_from(patience.as_millis().max(1)).unwrap_or(c_int::MAX);
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
