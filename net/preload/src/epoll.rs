//! epoll(7) over descriptors with rings and all others.
//!
//! The kernel's epoll instance still watches the others, and a waiter's socket of the library, by
//! which the supervisor wakes sleeping threads. Descriptors with rings are in it without events, so
//! that the kernel still reports a hang-up (a supervisor that is gone); their readiness is found in
//! the rings. Must stay true: neither kind starves the other; a sleeping thread is woken by either;
//! level-triggered events are reported as long as they hold.

use crate::attachment::{self, Attachment, drain};
use crate::interest::{
    EDGE, Inner, MUTE, ONE_SHOT, OWN_DATA, Set, adopt, begin, control, forget, is_told_once,
    mute_data, muted, set_of, wake,
};
use crate::real::{count, real};
use crate::table::{self, GONE, Kind, Record, record};
use crate::{rings, stream};
use sidecore_bare::width::ToUsize;
use std::ffi::c_int;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// epoll_ctl(2); none: the kernel's result stands, the call was made.
pub(crate) fn change(
    epoll: c_int,
    operation: c_int,
    descriptor: c_int,
    event: Option<libc::epoll_event>,
) -> c_int {
    let pointer = |event: &mut Option<libc::epoll_event>| {
        event
            .as_mut()
            .map_or(std::ptr::null_mut(), std::ptr::from_mut)
    };
    let as_is = |mut event: Option<libc::epoll_event>| {
        real!(epoll_ctl(epoll => c_int, operation => c_int, descriptor => c_int,
            pointer(&mut event) => *mut libc::epoll_event) -> c_int)
    };
    if attachment::is_own(descriptor) {
        crate::real::set_errno(libc::EBADF);
        return -1;
    }
    let epoll = table::instance(epoll);
    if table::kind(epoll) == Kind::InheritedEpoll {
        rings::disinherit(epoll);
    }
    let Some(record) = record(descriptor) else {
        return as_is(event);
    };
    // An epoll instance in another one: the outer one learns only what the kernel knows.
    rings::bar_instance(descriptor, record);
    // Armed again, so no event was reported since.
    if record.kind() == Kind::Candidate
        && !record.has(table::DATAGRAMS)
        && operation == libc::EPOLL_CTL_MOD
        && record.epoll() == Some(epoll)
        && is_told_once(record)
        && rings::is_due(record)
    {
        note(epoll, operation, descriptor, event, record);
        if rings::upgrade(descriptor, record) {
            return 0;
        }
    }
    // The kernel decides; only what it accepts is recorded. `adopt` would miss a registration
    // during an upgrade, so none begins before it is recorded.
    record.waits.fetch_add(1, Ordering::SeqCst);
    let kind = loop {
        let kind = record.settled_kind();
        if kind != Kind::Candidate || !record.has_begun_upgrade() {
            break kind;
        }
    };
    let register = || {
        let result = as_is(event);
        #[cfg(test)]
        crate::tests::between(descriptor);
        if result == 0 {
            note(epoll, operation, descriptor, event, record);
        }
        result
    };
    let registered = (kind == Kind::Candidate).then(register);
    record.waits.fetch_sub(1, Ordering::SeqCst);
    if let Some(result) = registered {
        return result;
    }
    match kind {
        Kind::Ring => change_ring(epoll, operation, descriptor, event, record),
        Kind::Inherited => {
            rings::give_back(descriptor);
            as_is(event)
        }
        // It stays on its pair; `shutdown` has to know its registration.
        Kind::Barred => register(),
        _ => as_is(event),
    }
}

/// Records the registration in the kernel's epoll instance, for when the descriptor gets rings.
fn note(
    epoll: c_int,
    operation: c_int,
    descriptor: c_int,
    event: Option<libc::epoll_event>,
    record: &Record,
) {
    let known = record.epoll();
    match (operation, event) {
        (libc::EPOLL_CTL_DEL, _) => {
            if known == Some(epoll) {
                record.set_epoll(None);
            }
        }
        // Registered in two instances: not supported with rings.
        (_, Some(_)) if known.is_some_and(|known| known != epoll) => rings::bar(descriptor),
        (_, Some(event)) => {
            record.events.store(event.events, Ordering::Relaxed);
            record.data.store(event.u64, Ordering::Relaxed);
            record.set_epoll(Some(epoll));
        }
        (_, None) => {}
    }
}

fn change_ring(
    epoll: c_int,
    operation: c_int,
    descriptor: c_int,
    event: Option<libc::epoll_event>,
    record: &Record,
) -> c_int {
    let known = record.epoll();
    let number = record.number.load(Ordering::Relaxed);
    let Some(attachment) = attachment::current() else {
        return -1;
    };
    match (operation, event) {
        (libc::EPOLL_CTL_MOD, Some(event)) if known == Some(epoll) => {
            note(epoll, operation, descriptor, Some(event), record);
            if let Some(set) = set_of(epoll) {
                set.lock().put(number, descriptor, event.events, event.u64);
                wake(epoll, set);
            }
            0
        }
        (libc::EPOLL_CTL_ADD, Some(event)) if known.is_none() && begin(attachment, epoll) => {
            // In the kernel's instance, too, so that it reports a hang-up, and EEXIST for a second
            // time.
            let result = control(epoll, operation, descriptor, MUTE, mute_data(descriptor));
            if result == 0 {
                note(epoll, operation, descriptor, Some(event), record);
                if !adopt(attachment, epoll, descriptor, record) {
                    rings::give_back(descriptor);
                }
            } else {
                // Call again, to get the error.
                let mut event = event;
                return real!(epoll_ctl(epoll => c_int, operation => c_int,
                    descriptor => c_int, &raw mut event => *mut libc::epoll_event) -> c_int);
            }
            result
        }
        (libc::EPOLL_CTL_DEL, _) if known == Some(epoll) => {
            forget(epoll, record);
            record.set_epoll(None);
            if let Some(stream) = attachment.stream(number) {
                // The supervisor need not report it any more; bits that are set already are
                // skipped.
                stream.tell(0, None);
            }
            let mut none = libc::epoll_event { events: 0, u64: 0 };
            real!(epoll_ctl(epoll => c_int, operation => c_int, descriptor => c_int,
                &raw mut none => *mut libc::epoll_event) -> c_int)
        }
        _ => {
            rings::give_back(descriptor);
            let mut event = event;
            let pointer = event
                .as_mut()
                .map_or(std::ptr::null_mut(), std::ptr::from_mut);
            real!(epoll_ctl(epoll => c_int, operation => c_int, descriptor => c_int,
                pointer => *mut libc::epoll_event) -> c_int)
        }
    }
}

/// The kernel's part of a wait for events, with a timeout in milliseconds.
pub(crate) trait KernelWait {
    /// Waits; at most for `limit` if it is given, else as long as the program requested.
    fn wait(&self, events: &mut [libc::epoll_event], limit: Option<Duration>) -> c_int;
    /// The program's own limit; none waits for ever.
    fn limit(&self) -> Option<Duration>;
}

/// epoll_wait(2) and similar calls.
pub(crate) fn wait(
    epoll: c_int,
    events: &mut [libc::epoll_event],
    kernel: &impl KernelWait,
) -> c_int {
    let epoll = table::instance(epoll);
    if table::kind(epoll) == Kind::InheritedEpoll {
        rings::disinherit(epoll);
    }
    let limit = kernel.limit();
    // The clock is read for a wait with a limit only.
    let begun = limit
        .filter(|limit| !limit.is_zero())
        .map(|_| Instant::now());
    let left = || match (limit, begun) {
        (Some(limit), Some(begun)) => Some(limit.saturating_sub(begun.elapsed())),
        (limit, _) => limit,
    };
    let mut is_first = true;
    loop {
        let set = set_of(epoll);
        let (Some(set), Some(attachment)) = (set, attachment::current()) else {
            // The program's own timeout first: reading the clock costs half as much as the call.
            let limit = if is_first { None } else { left() };
            let count = wait_in_kernel(events, kernel, limit);
            is_first = false;
            if set_of(epoll).is_none() {
                return count;
            }
            // A set was created meanwhile, with one of the library's sockets in it.
            let kept = filter(epoll, events, count);
            if count > 0 && kept == 0 && left() != Some(Duration::ZERO) {
                continue;
            }
            return kept;
        };
        let (mut found, is_kernels_turn) = collect(set, attachment, events);
        if is_kernels_turn {
            found += add_kernels(set, epoll, &mut events[found..], kernel);
            if found == 0 {
                // The rings had no room or no events: check them now.
                continue;
            }
        }
        if found > 0 {
            return count(found);
        }
        if left() == Some(Duration::ZERO) {
            let count = kernel.wait(events, Some(Duration::ZERO));
            return filter(epoll, events, count);
        }
        let Some(woken) = sleep(set, attachment, events, kernel, left()) else {
            continue;
        };
        let kept = filter(epoll, events, woken);
        if kept != 0 || woken < 0 {
            return kept;
        }
        if left() == Some(Duration::ZERO) {
            // Once more, for events that arrived together with the timeout.
            let (found, _) = collect(set, attachment, events);
            return count(found);
        }
    }
}

/// A wait in an epoll instance without rings, for `limit` if it is given.
fn wait_in_kernel(
    events: &mut [libc::epoll_event],
    kernel: &impl KernelWait,
    limit: Option<Duration>,
) -> c_int {
    if kernel.limit() != Some(Duration::ZERO) {
        // On the loopback a reply takes less time than a sleep.
        let count = crate::spin::before_sleep(|| kernel.wait(events, Some(Duration::ZERO)));
        if count != 0 {
            return count;
        }
    }
    kernel.wait(events, limit)
}

/// Events of the kernel's part after those of the rings; their number.
fn add_kernels(
    set: &Set,
    epoll: c_int,
    events: &mut [libc::epoll_event],
    kernel: &impl KernelWait,
) -> usize {
    let more = kernel.wait(events, Some(Duration::ZERO));
    // A failure is found again by the next wait, if no event of a ring hides it.
    let more = usize::try_from(filter(epoll, events, more)).unwrap_or(0);
    if more > 0 {
        let mut inner = set.lock();
        // It is the kernel's turn again at the next wait: it may have more.
        inner.told = KERNEL_EVERY;
        inner.kernel_had = more;
    }
    more
}

/// Sleeps in the kernel's epoll instance; none if there is an event already.
fn sleep(
    set: &Set,
    attachment: &Attachment,
    events: &mut [libc::epoll_event],
    kernel: &impl KernelWait,
    limit: Option<Duration>,
) -> Option<c_int> {
    let (Some(process), Some(word)) = (attachment.process(), attachment.word(set.waiter)) else {
        return Some(kernel.wait(events, limit));
    };
    // Counted before the word is set, so that a thread that leaves sees that others stay.
    set.sleepers.fetch_add(1, Ordering::SeqCst);
    word.announce_sleep();
    let count = if process.has_waiter_news(set.waiter.number) || !set.lock().ready.is_empty() {
        None
    } else {
        Some(kernel.wait(events, limit))
    };
    if set.sleepers.fetch_sub(1, Ordering::SeqCst) == 1 {
        word.cancel_sleep();
    } else {
        // Other threads are still asleep, and must be woken by the next event.
        word.announce_sleep();
    }
    count
}

/// Removes the library's own events from `events`.
fn filter(epoll: c_int, events: &mut [libc::epoll_event], count: c_int) -> c_int {
    let Ok(there) = usize::try_from(count) else {
        return count;
    };
    let mut kept = 0;
    for index in 0..there {
        let event = events[index];
        // The wake-up of a thread; what it announces is found in the rings.
        if event.u64 == OWN_DATA {
            if let Some(set) = set_of(epoll)
                && set
                    .wakes
                    .fetch_add(1, Ordering::Relaxed)
                    .is_multiple_of(DRAIN_EVERY)
            {
                drain(set.waiter);
            }
            continue;
        }
        if let Some(descriptor) = muted(event.u64) {
            // Its pair is hung up. That is reported once, with the events of its rings.
            hang_up(epoll, descriptor);
            continue;
        }
        events[kept] = event;
        kept += 1;
    }
    crate::real::count(kept)
}

/// The other end of a descriptor's pair is closed: its session, or the supervisor, is gone.
#[cold]
fn hang_up(epoll: c_int, descriptor: c_int) {
    let (Some(record), Some(set)) = (record(descriptor), set_of(epoll)) else {
        return;
    };
    if record.kind() == Kind::Ring && record.has(table::DATAGRAMS) {
        // An error of the kernel's socket, which the supervisor has made.
        rings::bar(descriptor);
    } else if record.kind() == Kind::Ring {
        // Its errors are the pair's; the flag sends all calls there.
        record.add(GONE);
        set.lock().queue(record.number.load(Ordering::Relaxed));
    }
}

/// Events of the rings; and true if the kernel must be polled now, for which there is room.
fn collect(set: &Set, attachment: &Attachment, events: &mut [libc::epoll_event]) -> (usize, bool) {
    let mut inner = set.lock();
    if let Some(process) = attachment.process() {
        process.take_waiter_news(set.waiter.number, |stream| inner.queue(stream));
    }
    // Without that, rings that are always ready would keep the kernel's descriptors waiting.
    let is_kernels_turn = inner.told >= KERNEL_EVERY && !events.is_empty();
    let room = match is_kernels_turn {
        true => events.len() - (events.len() / KERNELS_SHARE).max(1),
        false => events.len(),
    };
    // It had events the last time: a program that accepts one session per wait (nginx) has more to
    // accept, and a wait filled with other events would prevent that. The rings get only a few
    // places then.
    let room = match std::mem::take(&mut inner.kernel_had) {
        0 => room,
        had => room.min(had.max(ROOM_BESIDE)),
    };
    let (mut found, mut taken_back) = (0, None);
    // The length is read once: level-triggered streams are queued again meanwhile.
    for _ in 0..inner.ready.len() {
        if found == room {
            break;
        }
        match next_event(&mut inner, attachment) {
            Next::Event(event) => {
                events[found] = event;
                found += 1;
            }
            Next::Nothing => {}
            Next::TakenBack(descriptor) => {
                taken_back = Some(descriptor);
                break;
            }
        }
    }
    // Events that were found are returned first: edge-triggered ones are not found again.
    if taken_back.is_none() || found > 0 {
        let before = if is_kernels_turn { 0 } else { inner.told };
        inner.told = before.saturating_add(count(found).cast_unsigned());
    }
    // `bar` takes the lock of the set.
    drop(inner);
    match taken_back {
        Some(descriptor) => {
            if table::kind(descriptor) == Kind::Ring {
                rings::bar(descriptor);
            }
            if found > 0 {
                return (found, is_kernels_turn);
            }
            collect(set, attachment, events)
        }
        None => (found, is_kernels_turn),
    }
}

/// The first stream of those that may be ready.
enum Next {
    Event(libc::epoll_event),
    /// It has nothing to report.
    Nothing,
    /// This descriptor is the kernel's again.
    TakenBack(c_int),
}

fn next_event(inner: &mut Inner, attachment: &Attachment) -> Next {
    let Some(number) = inner.ready.pop_front() else {
        return Next::Nothing;
    };
    let Some(Some(interest)) = inner.interests.get_mut(number.to_usize()) else {
        return Next::Nothing;
    };
    // Before the look: news from here on queue it again.
    interest.is_queued = false;
    let Some(record) = record(interest.descriptor).filter(|_| !interest.is_spent) else {
        return Next::Nothing;
    };
    let stream = attachment.stream(number);
    if stream.is_some_and(|stream| stream.is_taken_back()) {
        return Next::TakenBack(interest.descriptor);
    }
    let ready = stream::readiness(attachment, interest.descriptor, record);
    let told = u32::from(ready.cast_unsigned()) & (interest.events | ALWAYS);
    if told == 0 {
        return Next::Nothing;
    }
    let event = libc::epoll_event {
        events: told,
        u64: interest.data,
    };
    if interest.events & ONE_SHOT != 0 {
        interest.is_spent = true;
    } else if interest.events & EDGE == 0 {
        // Reported again as long as it is ready; queued behind the others.
        interest.is_queued = true;
        inner.ready.push_back(number);
    }
    Next::Event(event)
}

/// Events that are always reported.
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP).cast_unsigned();
/// Wake-ups after which the bytes that caused them are read, before the socket is full.
const DRAIN_EVERY: u32 = 32;
/// While the rings keep a thread busy, the kernel's part is polled once per this number of ring
/// events. Not per number of waits: a thousand sessions make long ones, and a program that accepts
/// one session per wait (nginx) would fall behind by a second.
const KERNEL_EVERY: u32 = 8;
/// Events of the rings in one wait if the kernel's part had some the last time.
const ROOM_BESIDE: usize = 4;
/// Share of a wait's room that the kernel's part gets when it is polled.
const KERNELS_SHARE: usize = 8;
