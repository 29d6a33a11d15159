//! Getting rings for a descriptor, and giving them back.
//!
//! Must stay true: a descriptor has rings only in the process, and for the threads, that nothing
//! escapes: whoever may use it otherwise finds all its bytes in the pair first.

use crate::attachment;
use crate::interest;
use crate::table::{self, Kind, Record, record};
use sidecore_net_rings::TAKE_BACK;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// True if the descriptor's bytes take rings now. Counts a call that carries bytes, and asks for
/// rings once there were enough of them.
#[inline]
pub(crate) fn has_rings(descriptor: c_int) -> bool {
    let Some(record) = record(descriptor) else {
        return false;
    };
    match record.kind() {
        Kind::Other | Kind::Barred | Kind::Epoll | Kind::InheritedEpoll => false,
        Kind::Ring => true,
        Kind::Candidate => {
            record.calls.fetch_add(1, Ordering::Relaxed);
            // Nobody knows if the kernel has told of it, once, already.
            is_due(record) && !interest::is_told_once(record) && upgrade(descriptor, record)
        }
        Kind::Upgrading => record.settled_kind() == Kind::Ring,
        Kind::Inherited => {
            // Its rings are those of the process that this one was forked from.
            give_back(descriptor);
            false
        }
    }
}

/// True once there were enough calls.
pub(crate) fn is_due(record: &Record) -> bool {
    let after = UPGRADE_AFTER.load(Ordering::Relaxed);
    // Each time that it was put off, twice as many as before.
    let put_off = record.put_off.load(Ordering::Relaxed).min(PUT_OFF_MAX);
    record.calls.load(Ordering::Relaxed) > after << put_off
}

/// Asks for rings for a candidate; true if it has some then.
#[cold]
pub(crate) fn upgrade(descriptor: c_int, record: &Record) -> bool {
    if !record.begin_upgrade() {
        return has_rings(descriptor);
    }
    let bar = |kind| {
        record.calls.store(0, Ordering::Relaxed);
        record.set_kind(kind);
        false
    };
    // Whoever waits in the kernel for it would wait for ever.
    if record.waits.load(Ordering::SeqCst) > 0 {
        return bar(Kind::Candidate);
    }
    let Some(attachment) = attachment::attach(descriptor) else {
        return bar(Kind::Barred);
    };
    let epoll = record.epoll();
    if let Some(epoll) = epoll
        && !interest::begin(attachment, epoll)
    {
        return bar(Kind::Barred);
    }
    let number = match attachment.upgrade(descriptor) {
        Ok(number) => number,
        Err(libc::EAGAIN) => {
            record.put_off.fetch_add(1, Ordering::Relaxed);
            return bar(Kind::Candidate);
        }
        Err(_) => return bar(Kind::Barred),
    };
    record.number.store(number, Ordering::Relaxed);
    record.flags.store(0, Ordering::Relaxed);
    record.set_kind(Kind::Ring);
    if let Some(epoll) = epoll {
        interest::adopt(attachment, epoll, descriptor, record);
    }
    true
}

/// Takes another number of calls from the environment, for tests.
pub(crate) fn read_environment() {
    // SAFETY: the name ends with a zero, and nobody changes the environment while a library is
    // loaded; the value is read at once.
    let value = unsafe {
        let value = libc::getenv(c"SIDECORE_NET_RINGS_AFTER".as_ptr());
        (!value.is_null()).then(|| std::ffi::CStr::from_ptr(value))
    };
    let value = value.and_then(|value| value.to_str().ok()?.parse().ok());
    if let Some(calls) = value {
        UPGRADE_AFTER.store(calls, Ordering::Relaxed);
    }
}

/// Has the supervisor take a descriptor's rings back, whoever has them.
#[cold]
pub(crate) fn give_back(descriptor: c_int) {
    for _ in 0..GIVE_BACK_TRIES {
        match attachment::request(descriptor, TAKE_BACK, 0) {
            Err(libc::EAGAIN) => std::thread::sleep(Duration::from_millis(1)),
            _ => break,
        }
    }
    if let Some(record) = record(descriptor) {
        fall_back(descriptor, record);
    }
}

/// A descriptor keeps to its pair from now on.
#[cold]
pub(crate) fn fall_back(descriptor: c_int, record: &Record) {
    let had = record.kind() == Kind::Ring;
    record.set_kind(Kind::Barred);
    if had {
        interest::release(descriptor, record);
    }
}

/// As [`give_back`], where it has rings; a candidate is none any more.
pub(crate) fn bar(descriptor: c_int) {
    match table::kind(descriptor) {
        Kind::Ring | Kind::Inherited => give_back(descriptor),
        Kind::Candidate => {
            if let Some(record) = record(descriptor) {
                record.set_kind(Kind::Barred);
            }
        }
        _ => {}
    }
}

/// The program closes a descriptor with rings, or puts another file in its place.
pub(crate) fn leave(descriptor: c_int, record: &Record) {
    // A child may have it, too, and go on with it; threads that wait for it are to be woken.
    if table::has_forked() || record.waits.load(Ordering::SeqCst) > 0 {
        give_back(descriptor);
    }
    if let Some(epoll) = record.epoll() {
        interest::forget(epoll, record);
    }
}

/// Calls that carry bytes before a descriptor gets rings: what lives shorter is not worth it.
static UPGRADE_AFTER: AtomicU32 = AtomicU32::new(8);
/// Doublings of that number, where the supervisor has put it off.
const PUT_OFF_MAX: u32 = 6;
/// Times, 1 ms apart, that the supervisor is asked again while another thread copies.
const GIVE_BACK_TRIES: u32 = 1000;
