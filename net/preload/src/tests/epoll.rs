//! epoll(7) over descriptors with rings and others.

use super::supervisor::Session;
use super::{error_of, number, pipe, read, upgrade_between, write};
use crate::attachment;
use crate::interest::{OWN_DATA, mute_data, muted};
use crate::table::{Kind, kind};
use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::time::{Duration, Instant};

struct Epoll(OwnedFd);

impl Epoll {
    fn new() -> Self {
        // SAFETY: the descriptor is new, and nothing else knows of it.
        Self(unsafe { OwnedFd::from_raw_fd(crate::epoll_create1(libc::EPOLL_CLOEXEC)) })
    }

    fn file(&self) -> c_int {
        self.0.as_raw_fd()
    }

    fn control(&self, operation: c_int, file: c_int, events: c_int, data: u64) -> c_int {
        let mut event = libc::epoll_event {
            events: events.cast_unsigned(),
            u64: data,
        };
        // SAFETY: the event is there.
        unsafe { crate::epoll_ctl(self.file(), operation, file, &raw mut event) }
    }

    fn add(&self, file: c_int, events: c_int, data: u64) {
        assert_eq!(self.control(libc::EPOLL_CTL_ADD, file, events, data), 0);
    }

    /// Waits; the events with their data, in the order of the data.
    fn wait(&self, millis: c_int) -> Vec<(u64, u32)> {
        let none = libc::epoll_event { events: 0, u64: 0 };
        let mut events = [none; 16];
        // SAFETY: there is room for that number.
        let count = unsafe { crate::epoll_wait(self.file(), events.as_mut_ptr(), 16, millis) };
        let events = events[..usize::try_from(count).unwrap()].iter();
        let mut found: Vec<_> = events.map(|event| (event.u64, event.events)).collect();
        found.sort_unstable();
        found
    }
}

const IN: u32 = libc::EPOLLIN.cast_unsigned();

#[test]
fn level_triggered_events_are_reported_as_long_as_they_hold() {
    let (epoll, session) = (Epoll::new(), Session::by_rings());
    let (reader, writer) = pipe();
    epoll.add(session.file(), libc::EPOLLIN, 1);
    epoll.add(number(&reader), libc::EPOLLIN, 2);
    assert_eq!(epoll.wait(0), []);
    session.give(b"abc");
    assert_eq!(epoll.wait(-1), [(1, IN)]);
    assert_eq!(epoll.wait(-1), [(1, IN)]);
    write(number(&writer), b"x").unwrap();
    // Rings that are ready all the time do not hide the kernel's events.
    let mut seen = Vec::new();
    for _ in 0..20 {
        seen.extend(epoll.wait(-1));
    }
    assert!(seen.contains(&(2, IN)) && seen.contains(&(1, IN)));
    assert_eq!(read(session.file(), 8), Ok(b"abc".to_vec()));
    assert_eq!(epoll.wait(-1), [(2, IN)]);
}

#[test]
fn edge_triggered_events_are_reported_once() {
    let (epoll, session) = (Epoll::new(), Session::by_rings());
    epoll.add(session.file(), libc::EPOLLIN | libc::EPOLLET, 1);
    session.give(b"abc");
    assert_eq!(epoll.wait(1000), [(1, IN)]);
    assert_eq!(epoll.wait(0), []);
    session.give(b"def");
    assert_eq!(epoll.wait(1000), [(1, IN)]);
    assert_eq!(epoll.wait(0), []);
}

#[test]
fn an_event_for_one_time_is_armed_anew() {
    let (epoll, session) = (Epoll::new(), Session::by_rings());
    let file = session.file();
    epoll.add(file, libc::EPOLLIN | libc::EPOLLONESHOT, 1);
    session.give(b"abc");
    assert_eq!(epoll.wait(1000), [(1, IN)]);
    session.give(b"def");
    assert_eq!(epoll.wait(0), []);
    let events = libc::EPOLLIN | libc::EPOLLONESHOT;
    assert_eq!(epoll.control(libc::EPOLL_CTL_MOD, file, events, 3), 0);
    assert_eq!(epoll.wait(1000), [(3, IN)]);
}

/// Events that came while the registration was spent are news once it is armed anew.
#[test]
fn arming_anew_wakes_a_sleeping_thread() {
    let (epoll, session) = (Epoll::new(), Session::by_rings());
    let (file, events) = (session.file(), libc::EPOLLIN | libc::EPOLLONESHOT);
    epoll.add(file, events, 1);
    session.give(b"abc");
    assert_eq!(epoll.wait(1000), [(1, IN)]);
    for turn in 2..40 {
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| epoll.wait(60_000));
            std::thread::sleep(Duration::from_millis(1));
            assert_eq!(epoll.control(libc::EPOLL_CTL_MOD, file, events, turn), 0);
            assert_eq!(waiter.join().unwrap(), [(turn, IN)]);
        });
    }
}

#[test]
fn a_registered_candidate_gets_rings_when_it_is_armed() {
    let (epoll, session) = (Epoll::new(), Session::by_pair());
    let file = session.file();
    let events = libc::EPOLLIN | libc::EPOLLONESHOT;
    epoll.add(file, events, 1);
    for _ in 0..12 {
        write(file, b"x").unwrap();
    }
    // The kernel may or may not have reported it: it gets rings where that is known.
    assert_eq!(session.kind(), Kind::Candidate);
    assert_eq!(epoll.control(libc::EPOLL_CTL_MOD, file, events, 2), 0);
    assert_eq!(session.kind(), Kind::Ring);
    session.give(b"abc");
    assert_eq!(epoll.wait(1000), [(2, IN)]);
}

#[test]
fn a_registered_candidate_keeps_its_events_with_rings() {
    let (epoll, session) = (Epoll::new(), Session::by_pair());
    epoll.add(session.file(), libc::EPOLLIN, 9);
    for _ in 0..9 {
        write(session.file(), b"x").unwrap();
    }
    assert_eq!(session.kind(), Kind::Ring);
    assert_eq!(kind(epoll.file()), Kind::Epoll);
    session.give(b"abc");
    assert_eq!(epoll.wait(1000), [(9, IN)]);
    // And without them.
    session.retake();
    assert_eq!(epoll.wait(1000), [(9, IN)]);
    assert_eq!(epoll.wait(1000), [(9, IN)]);
    assert_eq!(session.kind(), Kind::Barred);
    assert_eq!(read(session.file(), 8), Ok(b"abc".to_vec()));
    assert_eq!(epoll.wait(0), []);
}

#[test]
fn a_sleeping_thread_is_woken_by_either() {
    let (epoll, session) = (Epoll::new(), Session::by_rings());
    let (reader, writer) = pipe();
    epoll.add(session.file(), libc::EPOLLIN | libc::EPOLLET, 1);
    epoll.add(number(&reader), libc::EPOLLIN | libc::EPOLLET, 2);
    for turn in 0..40 {
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| epoll.wait(-1));
            std::thread::sleep(Duration::from_millis(1));
            let expected = if turn % 2 == 0 {
                session.give(b"x");
                1
            } else {
                write(number(&writer), b"x").unwrap();
                2
            };
            assert_eq!(waiter.join().unwrap(), [(expected, IN)], "turn {turn}");
        });
    }
}

#[test]
fn a_time_limit_ends_a_wait() {
    let (epoll, session) = (Epoll::new(), Session::by_rings());
    epoll.add(session.file(), libc::EPOLLIN, 1);
    let begun = Instant::now();
    assert_eq!(epoll.wait(20), []);
    assert!(begun.elapsed() >= Duration::from_millis(20));
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let limit = libc::timespec {
        tv_sec: 0,
        tv_nsec: 20_000_000,
    };
    let begun = Instant::now();
    // SAFETY: all of it is there.
    let count = unsafe {
        let limit = &raw const limit;
        crate::epoll_pwait2(epoll.file(), &raw mut event, 1, limit, ptr::null())
    };
    assert_eq!(count, 0);
    assert!(begun.elapsed() >= Duration::from_millis(20));
}

#[test]
fn arguments_that_make_no_sense_are_the_kernels_to_refuse() {
    let (epoll, session) = (Epoll::new(), Session::by_rings());
    epoll.add(session.file(), libc::EPOLLIN, 1);
    let again = epoll.control(libc::EPOLL_CTL_ADD, session.file(), libc::EPOLLIN, 1);
    assert_eq!(error_of(again), libc::EEXIST);
    // SAFETY: the kernel refuses the number before it looks at the address.
    let refused = unsafe { crate::epoll_wait(epoll.file(), ptr::null_mut(), 0, 0) };
    assert_eq!(error_of(refused), libc::EINVAL);
    let unknown = epoll.control(libc::EPOLL_CTL_DEL, 60_000, 0, 0);
    assert_eq!(error_of(unknown), libc::EBADF);
}

#[test]
fn a_descriptor_is_removed_and_added_again() {
    let (epoll, session) = (Epoll::new(), Session::by_rings());
    let file = session.file();
    epoll.add(file, libc::EPOLLIN, 1);
    session.give(b"abc");
    assert_eq!(epoll.control(libc::EPOLL_CTL_DEL, file, 0, 0), 0);
    assert_eq!(epoll.wait(0), []);
    let gone = epoll.control(libc::EPOLL_CTL_DEL, file, 0, 0);
    assert_eq!(error_of(gone), libc::ENOENT);
    // That call was of no use to a ring, so the kernel answered it over the pair.
    let session = Session::by_rings();
    epoll.add(session.file(), libc::EPOLLIN, 2);
    session.give(b"abc");
    assert_eq!(epoll.wait(1000), [(2, IN)]);
}

/// A wait that finds rings taken back dropped the events that it had found before: edge-triggered
/// ones were lost.
#[test]
fn events_found_before_rings_were_taken_back_are_reported() {
    let epoll = Epoll::new();
    let (kept, retaken) = (Session::by_rings(), Session::by_rings());
    epoll.add(kept.file(), libc::EPOLLIN | libc::EPOLLET, 1);
    epoll.add(retaken.file(), libc::EPOLLIN | libc::EPOLLET, 2);
    kept.give(b"abc");
    retaken.give(b"abc");
    retaken.retake();
    let mut found = epoll.wait(1000);
    found.extend(epoll.wait(1000));
    found.dedup();
    assert_eq!(found, [(1, IN), (2, IN)]);
    assert_eq!(retaken.kind(), Kind::Barred);
}

#[test]
fn a_second_epoll_instance_takes_the_rings() {
    let (one, two, session) = (Epoll::new(), Epoll::new(), Session::by_rings());
    one.add(session.file(), libc::EPOLLIN, 1);
    assert_eq!(session.kind(), Kind::Ring);
    two.add(session.file(), libc::EPOLLIN, 2);
    assert_eq!(session.kind(), Kind::Barred);
    session.give_by_pair(b"abc");
    assert_eq!(one.wait(1000), [(1, IN)]);
    assert_eq!(two.wait(1000), [(2, IN)]);
}

#[test]
fn a_closed_epoll_instance_leaves_its_descriptors_their_rings() {
    let (epoll, session) = (Epoll::new(), Session::by_rings());
    epoll.add(session.file(), libc::EPOLLIN, 1);
    drop(epoll);
    assert_eq!(session.kind(), Kind::Ring);
    let epoll = Epoll::new();
    epoll.add(session.file(), libc::EPOLLIN, 2);
    session.give(b"abc");
    assert_eq!(epoll.wait(1000), [(2, IN)]);
}

#[test]
fn a_pair_that_hangs_up_is_reported_with_the_rings() {
    let (epoll, session) = (Epoll::new(), Session::by_rings());
    epoll.add(session.file(), libc::EPOLLIN, 1);
    session.hang_up();
    let [(data, events)] = epoll.wait(1000)[..] else {
        panic!("one event");
    };
    let expected = libc::EPOLLIN | libc::EPOLLHUP | libc::EPOLLERR;
    assert_eq!((data, events), (1, expected.cast_unsigned()));
}

#[test]
fn the_librarys_own_descriptors_are_no_ones_to_watch() {
    let (epoll, _session) = (Epoll::new(), Session::by_rings());
    let own = attachment::own().next().unwrap();
    let refused = epoll.control(libc::EPOLL_CTL_ADD, own, libc::EPOLLIN, 1);
    assert_eq!(error_of(refused), libc::EBADF);
}

#[test]
fn the_data_of_a_muted_descriptor_is_no_programs_and_no_waiters() {
    for file in [0, 1, 1 << 16, c_int::MAX] {
        assert_eq!(muted(mute_data(file)), Some(file));
        assert_ne!(mute_data(file), OWN_DATA);
    }
    for data in [0, 7, u64::MAX, OWN_DATA, mute_data(c_int::MAX) + 1] {
        assert_eq!(muted(data), None, "{data:#x}");
    }
}

/// Between the kernel's registration and its record, another thread got rings, which no instance
/// watched.
#[test]
fn no_rings_come_between_a_registration_and_its_record() {
    let _attached = Session::by_rings();
    let (epoll, session) = (Epoll::new(), Session::by_pair());
    upgrade_between(session.file());
    epoll.add(session.file(), libc::EPOLLIN, 1);
    assert_eq!(session.kind(), Kind::Candidate);
    upgrade_between(session.file());
    let changed = epoll.control(libc::EPOLL_CTL_MOD, session.file(), libc::EPOLLIN, 2);
    assert_eq!((changed, session.kind()), (0, Kind::Candidate));
    session.give_by_pair(b"abc");
    assert_eq!(epoll.wait(1000), [(2, IN)]);
    // Afterwards they come.
    assert!(crate::rings::upgrade(session.file(), session.record()));
    assert_eq!(epoll.wait(1000), [(2, IN)]);
}

/// Its first registration's place among those that are ready stayed.
#[test]
fn a_descriptor_that_is_added_again_is_reported_once() {
    let (epoll, session) = (Epoll::new(), Session::by_rings());
    epoll.add(session.file(), libc::EPOLLIN, 1);
    session.give(b"abc");
    assert_eq!(epoll.wait(1000), [(1, IN)]);
    let gone = epoll.control(libc::EPOLL_CTL_DEL, session.file(), 0, 0);
    assert_eq!(gone, 0);
    epoll.add(session.file(), libc::EPOLLIN, 2);
    assert_eq!(epoll.wait(1000), [(2, IN)]);
}

/// A candidate's instance was closed, and its number became another's, which reported it.
#[test]
fn a_registration_that_the_kernel_does_not_have_is_none() {
    let _attached = Session::by_rings();
    let (epoll, session) = (Epoll::new(), Session::by_pair());
    epoll.add(session.file(), libc::EPOLLIN, 1);
    // As if the number were another instance's: behind the library's back.
    let (none, file) = (ptr::null_mut::<libc::epoll_event>(), session.file());
    // SAFETY: this operation takes no event.
    let gone = unsafe {
        libc::syscall(
            libc::SYS_epoll_ctl,
            epoll.file(),
            libc::EPOLL_CTL_DEL,
            file,
            none,
        )
    };
    assert_eq!(gone, 0);
    assert!(crate::rings::upgrade(session.file(), session.record()));
    assert_eq!(session.record().epoll(), None);
    session.give(b"abc");
    assert_eq!(epoll.wait(0), []);
    epoll.add(session.file(), libc::EPOLLIN, 2);
    assert_eq!(epoll.wait(1000), [(2, IN)]);
}
