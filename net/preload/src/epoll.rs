//! epoll(7) over descriptors with rings and all others.
//!
//! The kernel's epoll goes on to watch the others, and a waiter's socket of ours, by which the
//! supervisor wakes who sleeps there. Descriptors with rings stand in it without events, so that
//! what the kernel says of them (a supervisor that is gone) still comes; their readiness is found
//! in the rings. Must stay true: neither kind starves the other; a thread that sleeps is woken by
//! either; what is level-triggered is told as long as it is so.

use crate::attachment::{self, Attachment, drain};
use crate::interest::{
    MUTE, OWN_DATA, Set, adopt, begin, control, forget, is_told_once, mute_data, muted, set_of,
};
use crate::real::real;
use crate::table::{self, GONE, Kind, Record, record};
use crate::{rings, stream};
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
    if table::kind(epoll) == Kind::InheritedEpoll {
        disinherit(epoll);
    }
    let Some(record) = record(descriptor) else {
        return as_is(event);
    };
    match record.settled_kind() {
        Kind::Candidate => {
            // Armed anew: now it is known that nothing was told.
            if operation == libc::EPOLL_CTL_MOD
                && record.epoll() == Some(epoll)
                && is_told_once(record)
                && rings::is_due(record)
            {
                note(epoll, operation, descriptor, event, record);
                if rings::upgrade(descriptor, record) {
                    return 0;
                }
            }
            let result = as_is(event);
            if result == 0 {
                note(epoll, operation, descriptor, event, record);
            }
            result
        }
        Kind::Ring => change_ring(epoll, operation, descriptor, event, record),
        Kind::Inherited => {
            rings::give_back(descriptor);
            as_is(event)
        }
        _ => as_is(event),
    }
}

/// Remembers what the kernel's epoll watches, for when the descriptor gets rings.
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
        // In two of them: too much for rings.
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
            }
            0
        }
        (libc::EPOLL_CTL_ADD, Some(event)) if known.is_none() && begin(attachment, epoll) => {
            let result = control(epoll, operation, descriptor, MUTE, mute_data(descriptor));
            if result == 0 {
                note(epoll, operation, descriptor, Some(event), record);
                adopt(attachment, epoll, descriptor, record);
            } else {
                // Again, for the error.
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

/// A fork's child uses its parent's epoll: what the parent has there goes back to pairs, so that
/// the kernel watches it for both.
#[cold]
fn disinherit(epoll: c_int) {
    for descriptor in table::inherited_of(epoll) {
        rings::give_back(descriptor);
    }
    if let Some(record) = record(epoll) {
        record.set_kind(Kind::Barred);
    }
}

/// A wait for events, as the kernel's: its own part, with a timeout in milliseconds.
pub(crate) trait KernelWait {
    /// Waits; at most so long where it is given, as long as the program has said otherwise.
    fn wait(&self, events: &mut [libc::epoll_event], limit: Option<Duration>) -> c_int;
    /// The program's own limit; none waits for ever.
    fn limit(&self) -> Option<Duration>;
}

/// epoll_wait(2) and its like.
pub(crate) fn wait(
    epoll: c_int,
    events: &mut [libc::epoll_event],
    kernel: &impl KernelWait,
) -> c_int {
    if table::kind(epoll) == Kind::InheritedEpoll {
        disinherit(epoll);
    }
    let limit = kernel.limit();
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
            let mut count = 0;
            if limit != Some(Duration::ZERO) {
                count = crate::spin::before_sleep(|| kernel.wait(events, Some(Duration::ZERO)));
            }
            if count == 0 {
                // As the program has said it: the clock costs as much as half of the call.
                let limit = if is_first { None } else { left() };
                count = kernel.wait(events, limit);
            }
            is_first = false;
            if set_of(epoll).is_none() {
                return count;
            }
            // A set has come about meanwhile, with a socket of ours in it.
            let kept = filter(epoll, events, count);
            if count > 0 && kept == 0 && left() != Some(Duration::ZERO) {
                continue;
            }
            return kept;
        };
        let (mut found, is_kernels_turn) = collect(set, attachment, events);
        if is_kernels_turn {
            let more = kernel.wait(&mut events[found..], Some(Duration::ZERO));
            let more = filter(epoll, &mut events[found..], more).max(0) as usize;
            found += more;
            if more > 0 {
                let mut inner = set.lock();
                inner.told = KERNEL_EVERY;
                inner.kernel_had = more;
            }
            if found == 0 {
                // The rings had no room, or nothing: now it is their turn.
                continue;
            }
        }
        if found > 0 {
            return found as c_int;
        }
        if left() == Some(Duration::ZERO) {
            let count = kernel.wait(events, Some(Duration::ZERO));
            return filter(epoll, events, count);
        }
        let Some(count) = sleep(set, attachment, events, kernel, left()) else {
            continue;
        };
        let kept = filter(epoll, events, count);
        if kept != 0 || count < 0 {
            return kept;
        }
        if left() == Some(Duration::ZERO) {
            // Once more, for what came with the end.
            let (found, _) = collect(set, attachment, events);
            return found as c_int;
        }
    }
}

/// Sleeps in the kernel's epoll; none where there is something already.
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
        // Others sleep on, and must be woken by what comes next.
        word.announce_sleep();
    }
    count
}

/// Takes out of `events` what is there for us.
fn filter(epoll: c_int, events: &mut [libc::epoll_event], count: c_int) -> c_int {
    let Ok(there) = usize::try_from(count) else {
        return count;
    };
    let mut kept = 0;
    for index in 0..there {
        let event = events[index];
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
            // Its pair is hung up. It is told once, with what its rings say.
            hang_up(epoll, descriptor);
            continue;
        }
        events[kept] = event;
        kept += 1;
    }
    kept as c_int
}

/// The other end of a descriptor's pair is closed: its session, or the supervisor, is gone.
#[cold]
fn hang_up(epoll: c_int, descriptor: c_int) {
    let (Some(record), Some(set)) = (record(descriptor), set_of(epoll)) else {
        return;
    };
    if record.kind() == Kind::Ring {
        record.add(GONE);
        set.lock().queue(record.number.load(Ordering::Relaxed));
    }
}

/// Events of the rings; and true if it is the kernel's turn to be asked, for which there is room.
fn collect(set: &Set, attachment: &Attachment, events: &mut [libc::epoll_event]) -> (usize, bool) {
    let mut inner = set.lock();
    if let Some(process) = attachment.process() {
        process.take_waiter_news(set.waiter.number, |stream| inner.queue(stream));
    }
    let is_kernels_turn = inner.told >= KERNEL_EVERY && !events.is_empty();
    let room = match is_kernels_turn {
        true => events.len() - (events.len() / KERNELS_SHARE).max(1),
        false => events.len(),
    };
    // It had something the last time: who takes one session at each wait (nginx) has more to take,
    // and a wait full of others' events would keep it from that. So the rings have as many.
    let room = match std::mem::take(&mut inner.kernel_had) {
        0 => room,
        had => room.min(had.max(ROOM_BESIDE)),
    };
    let mut found = 0;
    for _ in 0..inner.ready.len() {
        if found == room {
            break;
        }
        let Some(number) = inner.ready.pop_front() else {
            break;
        };
        let Some(Some(interest)) = inner.interests.get_mut(number as usize) else {
            continue;
        };
        interest.is_queued = false;
        let Some(record) = record(interest.descriptor) else {
            continue;
        };
        if interest.is_spent {
            continue;
        }
        let stream = attachment.stream(number);
        if stream.is_some_and(|stream| stream.is_taken_back()) {
            let descriptor = interest.descriptor;
            drop(inner);
            if record.kind() == Kind::Ring {
                rings::bar(descriptor);
            }
            return collect(set, attachment, events);
        }
        let ready = stream::readiness(attachment, interest.descriptor, record).cast_unsigned();
        let told = ready & (interest.events | ALWAYS);
        if told == 0 {
            continue;
        }
        events[found] = libc::epoll_event {
            events: told,
            u64: interest.data,
        };
        found += 1;
        if interest.events & libc::EPOLLONESHOT as u32 != 0 {
            interest.is_spent = true;
        } else if interest.events & libc::EPOLLET as u32 == 0 {
            // Told again as long as it is so; behind the others.
            interest.is_queued = true;
            inner.ready.push_back(number);
        }
    }
    let before = if is_kernels_turn { 0 } else { inner.told };
    inner.told = before.saturating_add(found as u32);
    (found, is_kernels_turn)
}

/// Events that are told unasked.
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
/// Wakes after which the bytes that caused them are read, before there is no room for more.
const DRAIN_EVERY: u32 = 32;
/// While the rings keep a thread busy, the kernel's part is looked at once in so many events of
/// theirs. Not in so many waits: a thousand sessions make long ones, and who accepts one session in
/// each (nginx) would be a second behind.
const KERNEL_EVERY: u32 = 8;
/// Events of the rings in one wait where the kernel's part had fewer the last time.
const ROOM_BESIDE: usize = 4;
/// Part of a wait's room that is the kernel's in its turn.
const KERNELS_SHARE: usize = 8;
