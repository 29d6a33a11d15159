use super::*;
use crate::socket::files::inode_of;
use crate::supervisor::tests::fixtures::{Callers, callers};
use sidecore_sys::seccomp::{Answer, Listener};

fn epoll() -> OwnedFd {
    epoll::create(epoll::CreateFlags::CLOEXEC).unwrap()
}

/// Attaches the caller's process; its number.
fn attach(rings: &mut Rings, caller: &Caller<'_>) -> u32 {
    // Exits are looked at elsewhere.
    let attached = rings.attach(caller, rings::VERSION, true, &epoll());
    let [_, index, file, _] = attached.unwrap();
    close_given(file);
    index
}

/// Answers the calls, so that their threads end.
fn finish(listener: &Listener, callers: Callers) {
    for call in &callers.calls {
        listener.answer(call.id, Answer::Value(0));
    }
    assert!(callers.results().iter().all(Result::is_ok));
}

#[test]
fn upgrades_take_a_fifth_of_the_time() {
    let begun = Instant::now();
    let after = |micros| begun + Duration::from_micros(micros);
    let mut budget = Budget::default();
    assert!(!budget.is_spent(begun));
    budget.spend(begun, after(100));
    assert!(budget.is_spent(after(100)) && budget.is_spent(after(499)));
    assert!(!budget.is_spent(after(500)));
    // A single slow one does not keep all others waiting.
    budget.spend(begun, after(1_000_000));
    assert!(budget.is_spent(after(1_004_999)));
    assert!(!budget.is_spent(after(1_005_000)));
}

#[test]
fn a_place_is_free_once_its_socket_is_gone() {
    let rings = Rings::default();
    let lease = Rc::new(Lease::of(&rings.leases));
    let place = Place {
        large: None,
        inode: 7,
        is_of_datagrams: false,
        lease: Rc::downgrade(&lease),
    };
    assert_eq!((place.inode(), rings.streams()), (Some(7), 1));
    drop(lease);
    assert_eq!((place.inode(), rings.streams()), (None, 0));
    assert_eq!(Place::default().inode(), None);
}

#[test]
fn a_process_is_attached_by_its_version_and_only_with_a_stack() {
    let (listener, callers) = callers(1);
    let caller = Caller::new(callers.calls[0], &listener);
    let (mut rings, epoll) = (Rings::default(), epoll());
    for (version, has_stack) in [
        (rings::VERSION + 1, true),
        (rings::VERSION, false),
        (0, false),
    ] {
        let refused = rings.attach(&caller, version, has_stack, &epoll);
        assert_eq!(refused, Err(Errno::OPNOTSUPP), "{version} {has_stack}");
    }
    assert!(rings.processes.is_empty());
    for number in [0, 1] {
        let attached = rings.attach(&caller, rings::VERSION, true, &epoll);
        let [version, index, file, _] = attached.unwrap();
        assert_eq!((version, index), (rings::VERSION, number));
        close_given(file);
        let [_, file, ..] = rings.add_waiter(&caller, index, &epoll).unwrap();
        close_given(file);
    }
    // A process that has exited leaves its number to the next.
    assert!(rings.remove(0).is_empty());
    assert_eq!(attach(&mut rings, &caller), 0);
    finish(&listener, callers);
}

/// An attachment without a waiter outlived its process: as many of them as there are places ended
/// rings for all.
#[test]
fn attachments_of_a_process_without_a_waiter_take_one_place() {
    let (listener, callers) = callers(1);
    let caller = Caller::new(callers.calls[0], &listener);
    let mut rings = Rings::default();
    for _ in 0..=PROCESSES_MAX {
        assert_eq!(attach(&mut rings, &caller), 0);
    }
    assert_eq!(rings.processes.len(), 1);
    assert_eq!(rings.admit(&caller, 0), Err(Errno::OPNOTSUPP));
    finish(&listener, callers);
}

#[test]
fn a_barred_process_gets_no_rings() {
    let (listener, callers) = callers(1);
    let caller = Caller::new(callers.calls[0], &listener);
    let mut rings = Rings::default();
    let index = attach(&mut rings, &caller);
    let leader = caller.leader().unwrap();
    let [_, file, ..] = rings.add_waiter(&caller, index, &epoll()).unwrap();
    close_given(file);
    assert_eq!(rings.admit(&caller, index), Ok(()));
    assert!(rings.bar(leader).is_empty());
    assert_eq!(rings.admit(&caller, index), Err(Errno::OPNOTSUPP));
    let again = rings.attach(&caller, rings::VERSION, true, &epoll());
    assert_eq!(again, Err(Errno::OPNOTSUPP));
    // The list is bounded: the oldest are forgotten.
    for other in 0..i32::try_from(BARRED_MAX).unwrap() {
        rings.bar(-1 - other);
    }
    assert_eq!(rings.barred.len(), BARRED_MAX);
    assert!(!rings.is_barred(leader));
    finish(&listener, callers);
}

#[test]
fn one_process_cannot_use_the_number_of_another() {
    let (listener, callers) = callers(1);
    let caller = Caller::new(callers.calls[0], &listener);
    let mut rings = Rings::default();
    assert_eq!(rings.admit(&caller, 0), Err(Errno::STALE));
    let index = attach(&mut rings, &caller);
    rings.processes[0].as_mut().unwrap().leader = 1;
    assert_eq!(rings.admit(&caller, index), Err(Errno::STALE));
    let epoll = epoll();
    let waiter = rings.add_waiter(&caller, index, &epoll);
    assert_eq!(waiter, Err(Errno::STALE));
    let mut path = Path::Pair;
    assert_eq!(rings.grow(&caller, index, &mut path), Err(Errno::STALE));
    finish(&listener, callers);
}

#[test]
fn waiters_are_bounded_and_the_first_stands_for_its_process() {
    let (listener, callers) = callers(1);
    let caller = Caller::new(callers.calls[0], &listener);
    let mut rings = Rings::default();
    let epoll = epoll();
    let index = attach(&mut rings, &caller);
    let mut files = Vec::new();
    for number in 0..u32::try_from(rings::WAITERS).unwrap() {
        let [waiter, file, ..] = rings.add_waiter(&caller, index, &epoll).unwrap();
        assert_eq!(waiter, number);
        files.push(Some(take_given(file)));
    }
    let more = rings.add_waiter(&caller, index, &epoll);
    assert_eq!(more, Err(Errno::NOSPC));
    let has_exited = |process, waiter| {
        let id = WaiterId { process, waiter };
        rings.has_exited(id, &epoll)
    };
    // A wake-up call is read, and nothing has ended.
    rustix::net::send(files[0].as_ref().unwrap(), &[1], SendFlags::empty()).unwrap();
    assert!(!has_exited(0, 0));
    assert!(!has_exited(0, 0));
    // A thread may close its own; the process lives on.
    files[1] = None;
    assert!(!has_exited(0, 1));
    files[0] = None;
    assert!(has_exited(0, 0));
    // Numbers that no process has report no exit.
    assert!(!has_exited(0, rings::WAITERS));
    assert!(!has_exited(9, 0));
    finish(&listener, callers);
}

#[test]
fn notices_are_for_waiters_of_processes_that_are_there() {
    let mut rings = Rings::default();
    let memory = SharedMap::reserve("test-ring", SLAB_BYTES, Sharing::ReadWrite).unwrap();
    let ring = RingEnd {
        process: 3,
        stream: 0,
        memory: Rc::new(memory),
        large: None,
        served: Served::default(),
    };
    ring.view().unwrap().begin();
    rings.notify(&ring);
    assert!(rings.notified.is_empty());
    // One that has exited meanwhile is passed over.
    rings.notified.push((3, 0));
    rings.wake_notified();
    assert!(rings.notified.is_empty());
    assert!(rings.take_news().is_empty());
}

/// A program writes any number where a waiter's belongs: those that it has not got filled the list
/// of waiters to wake, and those of other programs had no place.
#[test]
fn numbers_that_are_no_waiters_are_not_notified() {
    let (listener, callers) = callers(1);
    let caller = Caller::new(callers.calls[0], &listener);
    let mut rings = Rings::default();
    let index = attach(&mut rings, &caller);
    let epoll = epoll();
    let [waiter, file, ..] = rings.add_waiter(&caller, index, &epoll).unwrap();
    close_given(file);
    let memory = SharedMap::reserve("test-ring", SLAB_BYTES, Sharing::ReadWrite).unwrap();
    let ring = RingEnd {
        process: index.to_usize(),
        stream: 0,
        memory: Rc::new(memory),
        large: None,
        served: Served::default(),
    };
    let view = ring.view().unwrap();
    view.begin();
    view.tell(0, Some(waiter));
    for number in 0..8 {
        view.tell(1, Some(waiter + 1 + number));
        view.tell(2, Some(u32::MAX - 1 - number));
        rings.notify(&ring);
    }
    assert_eq!(rings.notified, [(0, waiter)]);
    finish(&listener, callers);
}

#[test]
fn only_an_open_stream_is_upgraded() {
    let (listener, callers) = callers(1);
    let caller = Caller::new(callers.calls[0], &listener);
    let mut rings = Rings::default();
    let index = attach(&mut rings, &caller);
    let mut socket = crate::socket::tests::socket(State::Bound);
    let inode = inode_of(&callers.socket).unwrap();
    let upgraded = rings.upgrade(&caller, index, inode, &mut socket);
    assert_eq!(upgraded, Err(Errno::OPNOTSUPP));
    assert_eq!(rings.streams(), 0);
    let mut path = Path::Pair;
    let grown = rings.grow(&caller, index, &mut path);
    assert_eq!(grown, Err(Errno::OPNOTSUPP));
    finish(&listener, callers);
}

/// A descriptor that the supervisor has given to the caller, which is in this process.
fn take_given(file: u32) -> OwnedFd {
    sidecore_sys::program::inherited(file.cast_signed()).unwrap()
}

fn close_given(file: u32) {
    drop(take_given(file));
}
