//! Getting rings for a descriptor, and giving them back.
//!
//! Must stay true: a descriptor has rings only while a single process uses it through this library:
//! any other user finds all its bytes in the pair first.

use crate::attachment::{self, Blocked};
use crate::interest;
use crate::real::descriptors_in;
use crate::table::{self, Kind, Record, record};
use sidecore_net_rings::TAKE_BACK;
use sidecore_net_rings::datagram::{RINGS_OF_V6, TELLS};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// True if the descriptor's bytes pass through rings now. Counts a call that transfers bytes, and
/// requests rings after enough of them.
#[inline]
pub(crate) fn has_rings(descriptor: c_int) -> bool {
    let Some(record) = record(descriptor) else {
        return false;
    };
    match record.kind() {
        // The usual case: a program without sessions pays for one load.
        Kind::Other | Kind::Barred | Kind::Epoll | Kind::InheritedEpoll => false,
        Kind::Instance | Kind::Alias => false,
        // Those of datagrams are no stream's.
        _ if record.has(table::DATAGRAMS) => false,
        Kind::Ring => true,
        Kind::Candidate => {
            // A count that two threads make at once may be off by one; nothing depends on that.
            record.calls.fetch_add(1, Ordering::Relaxed);
            // With EPOLLONESHOT, the kernel may or may not have reported it already.
            is_due(record) && !interest::is_told_once(record) && upgrade(descriptor, record)
        }
        Kind::Upgrading => record.settled_kind() == Kind::Ring,
        Kind::Inherited => {
            // The rings belong to the parent process.
            give_back(descriptor);
            false
        }
    }
}

/// True if the descriptor has rings; no call is counted.
pub(crate) fn are_kept(descriptor: c_int) -> bool {
    record(descriptor).is_some_and(|record| record.kind() == Kind::Ring)
}

/// True once there were enough calls.
pub(crate) fn is_due(record: &Record) -> bool {
    is_enough(record, &record.calls)
}

/// True if this number of calls is enough.
pub(crate) fn is_enough(record: &Record, calls: &AtomicU32) -> bool {
    let after = UPGRADE_AFTER.load(Ordering::Relaxed);
    // After each refusal, twice as many as before.
    let put_off = record.put_off.load(Ordering::Relaxed).min(PUT_OFF_MAX);
    calls.load(Ordering::Relaxed) > after << put_off
}

/// Requests rings for a candidate; true if it has some then.
#[cold]
pub(crate) fn upgrade(descriptor: c_int, record: &Record) -> bool {
    let is_datagram = record.has(table::DATAGRAMS);
    // Those of a datagram socket with a place are no number of calls.
    let calls = match is_datagram {
        true => &record.cramped,
        false => &record.calls,
    };
    // Looked at again below; most that come to nothing do so here, without a system call.
    if record.kind() == Kind::Candidate && record.waits.load(Ordering::SeqCst) > 0 {
        calls.store(0, Ordering::Relaxed);
        return false;
    }
    // A handler on this thread that uses the descriptor would wait for this call, which waits for
    // the handler; and a request that it interrupts may have been served.
    let _blocked = Blocked::begin();
    if !record.begin_upgrade() {
        return record.settled_kind() == Kind::Ring;
    }
    let bar = |kind| {
        calls.store(0, Ordering::Relaxed);
        record.set_kind(kind);
        false
    };
    if record.may_be_a_childs() {
        return bar(Kind::Barred);
    }
    // A thread that waits in the kernel for it would wait for ever.
    if record.waits.load(Ordering::SeqCst) > 0 {
        return bar(Kind::Candidate);
    }
    // No supervisor, or one of another version, which does not change for this process; or another
    // thread is attaching, and this descriptor is upgraded by a later call.
    let Some(attachment) = attachment::attach(descriptor) else {
        let is_final = attachment::is_refused();
        record.put_off.fetch_add(1, Ordering::Relaxed);
        return bar(if is_final {
            Kind::Barred
        } else {
            Kind::Candidate
        });
    };
    let epoll = record.epoll();
    if let Some(epoll) = epoll
        // Before the request: without a waiter in it, sleepers of the instance would miss the
        // rings' events.
        && !interest::begin(attachment, epoll)
    {
        return bar(Kind::Barred);
    }
    let upgraded = match is_datagram {
        true => attachment.upgrade_datagrams(descriptor),
        false => attachment.upgrade(descriptor).map(|number| (number, 0)),
    };
    let (number, says) = match upgraded {
        Ok(upgraded) => upgraded,
        Err(libc::EAGAIN) => {
            // The supervisor limits the time it spends on rings; it may have some later.
            record.put_off.fetch_add(1, Ordering::Relaxed);
            return bar(Kind::Candidate);
        }
        // Others have what there is, and end; a socket that serves for weeks asks again.
        Err(error) if attachment::is_passing(error) => {
            record.put_off.store(PUT_OFF_MAX, Ordering::Relaxed);
            return bar(Kind::Candidate);
        }
        // Interrupted, although signals are blocked: the process was stopped.
        Err(libc::EPROTO | libc::EINTR) => {
            // Otherwise bytes would come by rings that no thread reads.
            give_back(descriptor);
            return false;
        }
        Err(_) => return bar(Kind::Barred),
    };
    // Before the kind, whose Release makes it visible to threads that find rings.
    record.number.store(number, Ordering::Relaxed);
    record.take_off(!(table::LINGERS | table::DATAGRAMS));
    if is_datagram {
        // What the kernel's socket held is in the rings.
        record.add(table::DRAINED);
    }
    if says & RINGS_OF_V6 != 0 {
        record.add(table::IS_V6);
    }
    record.add((says & TELLS) << table::TOLD_SHIFT);
    record.set_kind(Kind::Ring);
    if let Some(epoll) = epoll {
        // The instance may have been dissolved meanwhile.
        if !interest::adopt(attachment, epoll, descriptor, record) {
            give_back(descriptor);
            return false;
        }
    }
    true
}

/// Leaves an epoll instance to the kernel that something else watches: another epoll instance,
/// poll(2), another process. Its descriptor is readable only by what the kernel knows.
#[inline]
pub(crate) fn bar_instance(descriptor: c_int, record: &Record) {
    let is_instance = matches!(
        record.kind(),
        Kind::Epoll | Kind::Alias | Kind::Instance | Kind::InheritedEpoll
    );
    if is_instance {
        bar(descriptor);
    }
}

/// Reads the number of calls, and whether datagrams use rings, from the environment.
pub(crate) fn read_environment() {
    if let Some(calls) = number_of(c"SIDECORE_NET_RINGS_AFTER") {
        UPGRADE_AFTER.store(calls, Ordering::Relaxed);
    }
    if let Some(uses) = number_of(c"SIDECORE_NET_UDP_RINGS") {
        DATAGRAM_RINGS.store(uses != 0, Ordering::Relaxed);
    }
}

/// A variable of the environment, if it is a number.
fn number_of(name: &std::ffi::CStr) -> Option<u32> {
    // SAFETY: the name ends with a zero, and no thread changes the environment while a library is
    // loaded; the value is read at once.
    let value = unsafe {
        let value = libc::getenv(name.as_ptr());
        (!value.is_null()).then(|| std::ffi::CStr::from_ptr(value))
    };
    value?.to_str().ok()?.parse().ok()
}

/// The kind of a new UDP socket.
pub(crate) fn datagrams_kind() -> Kind {
    match DATAGRAM_RINGS.load(Ordering::Relaxed) {
        true => Kind::Candidate,
        false => Kind::Barred,
    }
}

/// The program sets an option of a UDP socket: rings do not carry what most of them change.
pub(crate) fn judge_option(file: c_int, record: &Record, level: c_int, name: c_int) {
    if !record.has(table::DATAGRAMS) {
        return;
    }
    let filters = [libc::SO_ATTACH_FILTER, libc::SO_ATTACH_BPF];
    let has_filter = level == libc::SOL_SOCKET && filters.contains(&name);
    let is_plain = match level {
        libc::SOL_SOCKET => [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO, libc::SO_PRIORITY],
        libc::IPPROTO_IP => [libc::IP_TOS, libc::IP_TTL, libc::IP_TTL],
        libc::IPPROTO_IPV6 => [
            libc::IPV6_TCLASS,
            libc::IPV6_UNICAST_HOPS,
            libc::IPV6_UNICAST_HOPS,
        ],
        _ => [-1; 3],
    };
    if has_filter || record.settled_kind() == Kind::Ring && !is_plain.contains(&name) {
        bar(file);
    }
}

/// Makes the supervisor take a descriptor's rings back, whichever process has them.
#[cold]
pub(crate) fn give_back(descriptor: c_int) {
    // EAGAIN: a thread of this process holds the stream's lock for a copy, which ends soon.
    for _ in 0..GIVE_BACK_TRIES {
        match attachment::request(descriptor, TAKE_BACK, 0) {
            Err(libc::EAGAIN) => std::thread::sleep(Duration::from_millis(1)),
            // The supervisor may not have seen it.
            Err(libc::EINTR) => {}
            _ => break,
        }
    }
    if let Some(record) = record(descriptor) {
        fall_back(descriptor, record);
    }
}

/// Keeps a descriptor on its pair from now on.
#[cold]
pub(crate) fn fall_back(descriptor: c_int, record: &Record) {
    // Read first: an inherited record has no place in this process's sets.
    let had = record.kind() == Kind::Ring;
    record.set_kind(Kind::Barred);
    if had {
        interest::release(descriptor, record);
    }
}

/// As [`give_back`], if it has rings; it is no candidate any more. All descriptors in an epoll
/// instance go back to their pairs with it.
pub(crate) fn bar(descriptor: c_int) {
    let Some(record) = record(descriptor) else {
        return;
    };
    loop {
        // Settled: rings that another thread is getting have to go back, too.
        match record.settled_kind() {
            Kind::Ring | Kind::Inherited => give_back(descriptor),
            Kind::Epoll | Kind::Alias => dissolve(descriptor),
            Kind::InheritedEpoll => disinherit(descriptor),
            // It may get rings at this moment.
            kind @ (Kind::Candidate | Kind::Instance)
                if !record.change_kind(kind, Kind::Barred) =>
            {
                continue;
            }
            _ => {}
        }
        return;
    }
}

/// Other processes will use the descriptors in control messages (SCM_RIGHTS).
pub(crate) fn bar_passed(control: &[u8]) {
    // Without one, no descriptor has rings that would have to go back.
    if attachment::current().is_none() {
        return;
    }
    for passed in descriptors_in(control) {
        bar(passed);
    }
}

/// Leaves an epoll instance to the kernel: its descriptors lose their rings.
#[cold]
fn dissolve(epoll: c_int) {
    let first = table::instance(epoll);
    if first != epoll
        && let Some(alias) = table::record(epoll)
    {
        alias.set_kind(Kind::Barred);
    }
    let Some(record) = table::record(first) else {
        return;
    };
    let Some(set) = interest::set_of(first) else {
        if matches!(record.kind(), Kind::Instance | Kind::Alias) {
            record.set_kind(Kind::Barred);
        }
        return;
    };
    release_all(set);
    record.set_kind(Kind::Barred);
    // Those that came in between.
    release_all(set);
    let socket = set.waiter.socket;
    interest::control(first, libc::EPOLL_CTL_DEL, socket, 0, interest::OWN_DATA);
    // A thread that still sleeps there will announce that it is awake.
    if set.sleepers.load(Ordering::SeqCst) == 0
        && let Some(attachment) = attachment::current()
    {
        attachment.give_waiter_back(set.waiter);
    }
}

fn release_all(set: &interest::Set) {
    // Not under the lock, which `give_back` takes itself.
    while let Some(interest) = interest::take_one(set) {
        give_back(interest.descriptor);
    }
}

/// A forked child uses its parent's epoll instance: the parent's descriptors in it go back to
/// pairs, so that the kernel watches them for both.
#[cold]
pub(crate) fn disinherit(epoll: c_int) {
    // The parent's registrations are muted in the kernel's instance, which both share.
    for descriptor in table::inherited_of(epoll) {
        give_back(descriptor);
    }
    if let Some(record) = table::record(epoll) {
        record.set_kind(Kind::Barred);
    }
}

/// Takes the rings of a descriptor back that another thread has requested since this call looked;
/// the caller, which is about to wait in the kernel, has counted itself in `waits` before.
#[inline]
pub(crate) fn keep_pair(descriptor: c_int, record: &Record) {
    if record.has_got_rings() {
        bar(descriptor);
    }
}

/// A kernel call that may block on one descriptor. With `had_rings`, the rings have sent the call
/// to the pair, and stay; else none were seen, and the descriptor loses any that there are now.
#[inline]
pub(crate) fn in_kernel<T>(descriptor: c_int, had_rings: bool, work: impl FnOnce() -> T) -> T {
    #[cfg(test)]
    crate::tests::between(descriptor);
    let waits = |record: &&Record| match record.kind() {
        Kind::Candidate => true,
        // Another thread has requested them since this one looked.
        Kind::Upgrading | Kind::Ring => !had_rings,
        _ => false,
    };
    match record(descriptor).filter(waits) {
        None => work(),
        Some(record) => {
            record.waits.fetch_add(1, Ordering::SeqCst);
            keep_pair(descriptor, record);
            let done = work();
            record.waits.fetch_sub(1, Ordering::SeqCst);
            done
        }
    }
}

/// The program closes or replaces a descriptor with rings.
pub(crate) fn leave(descriptor: c_int, record: &Record) {
    // A child may still use it; threads that wait for it must be woken. Of a datagram socket no
    // event shows the close, and what comes then is to be refused.
    let is_shared = table::has_forked() || record.has(table::DATAGRAMS);
    if is_shared || record.waits.load(Ordering::SeqCst) > 0 {
        give_back(descriptor);
    }
    if let Some(epoll) = record.epoll() {
        // The kernel removes a closed descriptor from its instance; the set is ours to clean.
        interest::forget(epoll, record);
    }
}

/// Calls that transfer bytes before a descriptor gets rings: shorter sessions do not pay for them.
static UPGRADE_AFTER: AtomicU32 = AtomicU32::new(8);
/// Datagram sockets may get rings.
static DATAGRAM_RINGS: AtomicBool = AtomicBool::new(true);
/// Doublings of that number after the supervisor has refused.
const PUT_OFF_MAX: u32 = 6;
/// Attempts, 1 ms apart, while another thread copies.
const GIVE_BACK_TRIES: u32 = 1000;
