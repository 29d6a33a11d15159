//! poll(2) and select(2) over descriptors with rings and all others.
//!
//! Must stay true: each call polls the kernel for the others; a sleeping thread is woken by either
//! kind.

use crate::attachment::{self, Attachment, Waiter, drain};
use crate::blocking::READER;
use crate::real::{self, real};
use crate::table::{self, Kind, Record, kind, record};
use crate::{rings, stream};
use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// True if one of them has rings, here or in the process that this one was forked from.
#[inline]
pub(crate) fn concerns(polled: &[libc::pollfd]) -> bool {
    may_have_rings()
        && polled
            .iter()
            .any(|polled| matches!(kind(polled.fd), Kind::Ring | Kind::Inherited))
}

/// A forked child, or an executed program, has no attachment before it is given rings.
#[inline]
fn may_have_rings() -> bool {
    attachment::current().is_some() || table::may_inherit()
}

/// Runs `work`, in which the kernel may wait for these descriptors: none of them gets rings
/// meanwhile.
pub(crate) fn beside_kernel<T>(
    descriptors: impl Iterator<Item = c_int> + Clone,
    work: impl FnOnce() -> T,
) -> T {
    // Whatever their kind: one may become a candidate, or cease to be one, before the call ends.
    let records = || descriptors.clone().filter_map(record);
    for record in records() {
        record.waits.fetch_add(1, Ordering::SeqCst);
    }
    for descriptor in descriptors.clone() {
        if let Some(record) = record(descriptor) {
            rings::bar_instance(descriptor, record);
            rings::keep_pair(descriptor, record);
        }
    }
    let done = work();
    for record in records() {
        record.waits.fetch_sub(1, Ordering::SeqCst);
    }
    done
}

/// poll(2) if some have rings; `mask` as in ppoll(2).
pub(crate) fn poll(
    polled: &mut [libc::pollfd],
    limit: Option<Duration>,
    mask: *const libc::sigset_t,
) -> c_int {
    for polled in polled.iter() {
        if kind(polled.fd) == Kind::Inherited {
            rings::give_back(polled.fd);
        }
    }
    let begun = Instant::now();
    let mut waiter = None;
    let Some(attachment) = attachment::current() else {
        return ask_kernel(polled, limit, mask);
    };
    for polled in polled.iter() {
        if let Some(record) = record(polled.fd) {
            rings::bar_instance(polled.fd, record);
        }
    }
    // The kernel polls the waiter's socket instead of the descriptors with rings.
    let mut asked: Vec<libc::pollfd> = polled.to_vec();
    let count = loop {
        for (asked, polled) in asked.iter_mut().zip(polled.iter_mut()) {
            // An earlier turn may have left events.
            asked.revents = 0;
            polled.revents = 0;
            asked.fd = if kind(polled.fd) == Kind::Ring {
                -1
            } else {
                polled.fd
            };
        }
        let found = look(attachment, polled);
        if found > 0 {
            // Without waiting, but asked: the program expects the events of all.
            let more = ask_kernel(&mut asked, Some(Duration::ZERO), mask);
            break if more < 0 { found } else { found + more };
        }
        if are_others(polled, &asked) {
            continue;
        }
        let left = limit.map(|limit| limit.saturating_sub(begun.elapsed()));
        if left == Some(Duration::ZERO) {
            break ask_kernel(&mut asked, left, mask);
        }
        let first = polled.first().map_or(-1, |polled| polled.fd);
        if waiter.is_none() {
            // One for the whole call, taken only when it has to sleep.
            waiter = attachment.waiter(first);
        }
        let Some(waiter) = waiter else {
            // More threads wait than there are waiters: this one polls periodically.
            let nap = left.unwrap_or(NAP).min(NAP);
            let count = ask_kernel(&mut asked, Some(nap), mask);
            if count != 0 {
                break count;
            }
            continue;
        };
        let count = sleep(attachment, polled, &mut asked, waiter, left, mask);
        if count != 0 {
            break count;
        }
    };
    if let Some(waiter) = waiter {
        attachment.give_waiter_back(waiter);
    }
    for (polled, asked) in polled.iter_mut().zip(&asked) {
        if asked.fd >= 0 {
            polled.revents = asked.revents;
        }
    }
    count
}

/// Sleeps; the number of events that the kernel has found, 0 if the rings must be checked.
fn sleep(
    attachment: &Attachment,
    polled: &mut [libc::pollfd],
    asked: &mut Vec<libc::pollfd>,
    waiter: Waiter,
    left: Option<Duration>,
    mask: *const libc::sigset_t,
) -> c_int {
    let Some(word) = attachment.word(waiter) else {
        return 0;
    };
    let tell = |polled: &[libc::pollfd], whom: Option<u32>| {
        let mut all_are_known = true;
        for polled in polled {
            if let Some(record) = record(polled.fd).filter(|it| it.kind() == Kind::Ring)
                && let Some(stream) = attachment.stream(record.number.load(Ordering::Relaxed))
            {
                // Registered as a reader: one place is enough for both directions.
                let before = stream.tell(READER, whom).filter(|it| *it != waiter.number);
                if let Some(other) = before {
                    // Another thread sleeps for it; the kernel has room for both.
                    stream.tell(READER, Some(other));
                    rings::bar(polled.fd);
                    all_are_known = false;
                }
            }
        }
        all_are_known
    };
    // In this order: the supervisor knows the waiter, then the sleep is announced, then a last
    // look.
    if !tell(polled, Some(waiter.number)) {
        tell(polled, None);
        return 0;
    }
    word.announce_sleep();
    let mut count = 0;
    if look(attachment, polled) == 0 && !are_others(polled, asked) {
        count = ask_beside(waiter, asked, left, mask);
    }
    word.cancel_sleep();
    tell(polled, None);
    drain(waiter);
    count
}

/// Asks the kernel for the waiter's socket and those without rings, which get none meanwhile; 0 at
/// once if one of them has got some.
fn ask_beside(
    waiter: Waiter,
    asked: &mut Vec<libc::pollfd>,
    left: Option<Duration>,
    mask: *const libc::sigset_t,
) -> c_int {
    for record in asked.iter().filter_map(|asked| record(asked.fd)) {
        record.waits.fetch_add(1, Ordering::SeqCst);
    }
    let mut records = asked.iter().filter_map(|asked| record(asked.fd));
    let mut count = 0;
    if !records.any(Record::has_got_rings) {
        asked.push(libc::pollfd {
            fd: waiter.socket,
            events: libc::POLLIN,
            revents: 0,
        });
        count = ask_kernel(asked, left, mask);
        let own = asked.pop();
        if count > 0 && own.is_some_and(|own| own.revents != 0) {
            count -= 1;
        }
    }
    for record in asked.iter().filter_map(|asked| record(asked.fd)) {
        record.waits.fetch_sub(1, Ordering::SeqCst);
    }
    count
}

/// True if the kernel is to be asked for other descriptors: one has lost its rings.
fn are_others(polled: &[libc::pollfd], asked: &[libc::pollfd]) -> bool {
    let has_lost = |(polled, asked): (&libc::pollfd, &libc::pollfd)| {
        asked.fd < 0 && polled.fd >= 0 && kind(polled.fd) != Kind::Ring
    };
    polled.iter().zip(asked).any(has_lost)
}

/// Fills in the events of rings; the number of ready descriptors.
fn look(attachment: &Attachment, polled: &mut [libc::pollfd]) -> c_int {
    let mut found = 0;
    for polled in polled {
        let Some(record) = record(polled.fd).filter(|it| it.kind() == Kind::Ring) else {
            continue;
        };
        let stream = attachment.stream(record.number.load(Ordering::Relaxed));
        // It is the kernel's from the next turn on.
        if stream.is_some_and(|stream| stream.is_taken_back()) {
            rings::bar(polled.fd);
            continue;
        }
        let ready = stream::readiness(attachment, polled.fd, record);
        let told = ready & (polled.events | libc::POLLERR | libc::POLLHUP);
        polled.revents = told;
        found += c_int::from(told != 0);
    }
    found
}

fn ask_kernel(
    polled: &mut [libc::pollfd],
    limit: Option<Duration>,
    mask: *const libc::sigset_t,
) -> c_int {
    let mut limit = limit.map(timespec);
    let limit = limit
        .as_mut()
        .map_or(std::ptr::null(), |limit| std::ptr::from_ref(limit));
    let count = polled.len() as libc::nfds_t;
    real!(ppoll(polled.as_mut_ptr() => *mut libc::pollfd, count => libc::nfds_t,
        limit => *const libc::timespec, mask => *const libc::sigset_t) -> c_int)
}

pub(crate) fn timespec(limit: Duration) -> libc::timespec {
    libc::timespec {
        tv_sec: limit.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    }
}

/// A set of descriptors of select(2); none if the program passed none.
pub(crate) type Wanted<'w> = Option<&'w mut libc::fd_set>;

/// True if one of the sets has a descriptor with rings.
pub(crate) fn set_concerns(count: c_int, sets: [&Wanted<'_>; 3]) -> bool {
    may_have_rings()
        && members(count, sets).any(|it| matches!(kind(it), Kind::Ring | Kind::Inherited))
}

/// Descriptors in one of the sets at present: select(2) removes those that are not ready.
pub(crate) fn members(
    count: c_int,
    sets: [&Wanted<'_>; 3],
) -> impl Iterator<Item = c_int> + Clone + use<> {
    // Copied: the iterator outlives the call that changes the sets.
    let copies = sets.map(|set| set.as_deref().copied());
    let count = count.clamp(0, real::count(libc::FD_SETSIZE));
    (0..count).filter(move |it| copies.iter().flatten().any(|set| contains(set, *it)))
}

fn contains(set: *const libc::fd_set, descriptor: c_int) -> bool {
    // SAFETY: the set is the program's, and the descriptor below FD_SETSIZE.
    unsafe { libc::FD_ISSET(descriptor, set) }
}

/// select(2) if some have rings, by poll(2).
pub(crate) fn select(
    count: c_int,
    [read, write, except]: [Wanted<'_>; 3],
    limit: Option<Duration>,
    mask: *const libc::sigset_t,
) -> c_int {
    let wanted: Vec<c_int> = members(count, [&read, &write, &except]).collect();
    let is_in = |set: &Wanted<'_>, it| set.as_deref().is_some_and(|set| contains(set, it));
    let mut polled: Vec<libc::pollfd> = wanted
        .iter()
        .map(|it| {
            let flag = |set: &Wanted<'_>, flag| if is_in(set, *it) { flag } else { 0 };
            libc::pollfd {
                fd: *it,
                events: flag(&read, READ_ASKED)
                    | flag(&write, libc::POLLOUT)
                    | flag(&except, libc::POLLPRI),
                revents: 0,
            }
        })
        .collect();
    // The sets stay as they are if it fails (select(2)).
    if poll(&mut polled, limit, mask) < 0 {
        return -1;
    }
    if polled
        .iter()
        .any(|polled| polled.revents & libc::POLLNVAL != 0)
    {
        crate::real::set_errno(libc::EBADF);
        return -1;
    }
    let mut found = 0;
    for (set, flags) in [
        (read, READ_TOLD),
        (write, libc::POLLOUT | libc::POLLERR),
        (except, libc::POLLPRI),
    ] {
        let Some(set) = set else {
            continue;
        };
        for polled in &polled {
            if contains(set, polled.fd) {
                if polled.revents & flags != 0 {
                    found += 1;
                } else {
                    // SAFETY: as in `contains`.
                    unsafe { libc::FD_CLR(polled.fd, set) };
                }
            }
        }
    }
    found
}

const READ_ASKED: i16 = libc::POLLIN;
/// Events that select(2) reports as readable.
const READ_TOLD: i16 = libc::POLLIN | libc::POLLHUP | libc::POLLERR;
/// Poll interval without a waiter.
const NAP: Duration = Duration::from_millis(1);
