//! poll(2) and select(2) over descriptors with rings and others.

use super::supervisor::Session;
use super::{error_of, number, pipe, write};
use crate::poll::timespec;
use crate::table::Kind;
use sidecore_net_rings::RING_BYTES;
use std::ffi::{c_int, c_short};
use std::ptr;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

fn polled(file: c_int, events: c_short) -> libc::pollfd {
    libc::pollfd {
        fd: file,
        events,
        revents: -1,
    }
}

/// Polls as a program does; the number of descriptors with events.
fn poll(all: &mut [libc::pollfd], millis: c_int) -> c_int {
    let count = libc::nfds_t::try_from(all.len()).unwrap();
    // SAFETY: all of them are there.
    unsafe { crate::poll(all.as_mut_ptr(), count, millis) }
}

#[test]
fn events_of_rings_and_of_the_kernel_are_found_together() {
    let session = Session::by_rings();
    let (reader, writer) = pipe();
    let mut all = [
        polled(session.file(), libc::POLLIN),
        polled(number(&reader), libc::POLLIN),
        polled(-1, libc::POLLIN),
    ];
    assert_eq!(poll(&mut all, 0), 0);
    assert_eq!(all.map(|it| it.revents), [0, 0, 0]);
    session.give(b"abc");
    assert_eq!(poll(&mut all, 0), 1);
    assert_eq!(all.map(|it| it.revents), [libc::POLLIN, 0, 0]);
    assert_eq!(write(number(&writer), b"x"), Ok(1));
    assert_eq!(poll(&mut all, -1), 2);
    assert_eq!(all.map(|it| it.revents), [libc::POLLIN, libc::POLLIN, 0]);
    super::read(session.file(), 8).unwrap();
    assert_eq!(poll(&mut all, 1000), 1);
    assert_eq!(all.map(|it| it.revents), [0, libc::POLLIN, 0]);
}

#[test]
fn a_sleeping_poll_is_woken_by_either() {
    let session = Session::by_rings();
    let (reader, writer) = pipe();
    for by_ring in [true, false] {
        std::thread::scope(|scope| {
            let poller = scope.spawn(|| {
                let mut all = [
                    polled(session.file(), libc::POLLIN),
                    polled(number(&reader), libc::POLLIN),
                ];
                assert_eq!(poll(&mut all, -1), 1);
                all.map(|it| it.revents)
            });
            std::thread::sleep(Duration::from_millis(5));
            let expected = if by_ring {
                session.give(b"x");
                [libc::POLLIN, 0]
            } else {
                write(number(&writer), b"x").unwrap();
                [0, libc::POLLIN]
            };
            assert_eq!(poller.join().unwrap(), expected);
        });
        if by_ring {
            super::read(session.file(), 8).unwrap();
        }
    }
}

#[test]
fn a_reader_and_a_poll_of_one_descriptor_are_both_woken() {
    let session = Session::by_rings();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| super::read(session.file(), 1));
        super::until("the reader waits", || {
            session.record().waits.load(Ordering::SeqCst) > 0
        });
        let poller = scope.spawn(|| {
            let mut all = [polled(session.file(), libc::POLLIN)];
            poll(&mut all, -1)
        });
        super::until("they share the pair", || session.kind() == Kind::Barred);
        session.give_by_pair(b"xy");
        assert_eq!(poller.join().unwrap(), 1);
        assert_eq!(reader.join().unwrap(), Ok(b"x".to_vec()));
    });
}

/// Another thread got rings for the second descriptor, whose bytes did not wake the poll then.
#[test]
fn a_candidate_beside_rings_gets_none_while_a_poll_sleeps() {
    let (ring, candidate) = (Session::by_rings(), Session::by_pair());
    std::thread::scope(|scope| {
        let poller = scope.spawn(|| {
            let mut all = [
                polled(ring.file(), libc::POLLIN),
                polled(candidate.file(), libc::POLLIN),
            ];
            let count = poll(&mut all, 10_000);
            (count, all.map(|it| it.revents))
        });
        std::thread::sleep(Duration::from_millis(50));
        for _ in 0..20 {
            assert_eq!(write(candidate.file(), b"x"), Ok(1));
        }
        match candidate.kind() {
            Kind::Ring => assert_eq!(candidate.give(b"abc"), 3),
            _ => candidate.give_by_pair(b"abc"),
        }
        assert_eq!(poller.join().unwrap(), (1, [0, libc::POLLIN]));
    });
    let waits = |session: &Session| session.record().waits.load(Ordering::SeqCst);
    assert_eq!((waits(&ring), waits(&candidate)), (0, 0));
    assert_eq!(super::read(candidate.file(), 8), Ok(b"abc".to_vec()));
}

#[test]
fn a_time_limit_ends_a_poll() {
    let session = Session::by_rings();
    let begun = Instant::now();
    let mut all = [polled(session.file(), libc::POLLIN)];
    assert_eq!(poll(&mut all, 20), 0);
    assert!(begun.elapsed() >= Duration::from_millis(20));
    let limit = libc::timespec {
        tv_sec: 0,
        tv_nsec: 20_000_000,
    };
    let begun = Instant::now();
    // SAFETY: all of it is there.
    let count = unsafe { crate::ppoll(all.as_mut_ptr(), 1, &raw const limit, ptr::null()) };
    assert_eq!(count, 0);
    assert!(begun.elapsed() >= Duration::from_millis(20));
}

#[test]
fn room_and_the_end_are_events() {
    let session = Session::by_rings();
    super::set_nonblocking(session.file());
    let events = libc::POLLOUT | libc::POLLIN | libc::POLLRDHUP;
    let mut all = [polled(session.file(), events)];
    assert_eq!(poll(&mut all, 0), 1);
    assert_eq!(all[0].revents, libc::POLLOUT);
    assert_eq!(write(session.file(), &[7; RING_BYTES]), Ok(RING_BYTES));
    assert_eq!(poll(&mut all, 0), 0, "full");
    session.take(1);
    assert_eq!(poll(&mut all, 0), 1);
    session.end();
    assert_eq!(poll(&mut all, 0), 1);
    assert_eq!(all[0].revents, events, "the end is readable");
    session.fail(libc::ECONNRESET);
    assert_eq!(poll(&mut all, 0), 1);
    // Errors are reported without being asked for.
    assert_eq!(all[0].revents & libc::POLLERR, libc::POLLERR);
}

#[test]
fn rings_that_were_taken_back_are_the_kernels_again() {
    let session = Session::by_rings();
    session.give(b"abc");
    session.retake();
    let mut all = [polled(session.file(), libc::POLLIN)];
    assert_eq!(poll(&mut all, 1000), 1);
    assert_eq!(all[0].revents, libc::POLLIN);
    assert_eq!(poll(&mut all, 0), 1);
    assert_eq!(session.kind(), Kind::Barred);
}

/// Sets of select(2) with one descriptor each.
fn set_of(file: c_int) -> libc::fd_set {
    // SAFETY: zeros are an empty set, and the number is below FD_SETSIZE in tests.
    unsafe {
        let mut set: libc::fd_set = std::mem::zeroed();
        libc::FD_SET(file, &raw mut set);
        set
    }
}

fn has(set: &libc::fd_set, file: c_int) -> bool {
    // SAFETY: as above.
    unsafe { libc::FD_ISSET(file, set) }
}

#[test]
fn select_leaves_what_is_ready() {
    let session = Session::by_rings();
    let file = session.file();
    let (mut reads, mut writes, mut excepts) = (set_of(file), set_of(file), set_of(file));
    // SAFETY: the sets are there.
    let count = unsafe {
        let (reads, writes, excepts) = (&raw mut reads, &raw mut writes, &raw mut excepts);
        crate::select(file + 1, reads, writes, excepts, ptr::null_mut())
    };
    assert_eq!(count, 1);
    assert!(!has(&reads, file) && has(&writes, file) && !has(&excepts, file));
    let mut limit = libc::timeval {
        tv_sec: 0,
        tv_usec: 20_000,
    };
    let mut reads = set_of(file);
    let none = ptr::null_mut();
    // SAFETY: as above.
    let count = unsafe { crate::select(file + 1, &raw mut reads, none, none, &raw mut limit) };
    assert_eq!((count, limit.tv_sec, limit.tv_usec), (0, 0, 0));
    session.give(b"x");
    let mut reads = set_of(file);
    // SAFETY: as above.
    let count = unsafe {
        crate::pselect(
            file + 1,
            &raw mut reads,
            none,
            none,
            ptr::null(),
            ptr::null(),
        )
    };
    assert_eq!(count, 1);
    assert!(has(&reads, file));
}

#[test]
fn select_names_descriptors_that_are_closed() {
    let session = Session::by_rings();
    let (reader, _writer) = pipe();
    let closed = number(&reader);
    drop(reader);
    let mut reads = set_of(session.file());
    // SAFETY: as in `set_of`.
    unsafe { libc::FD_SET(closed, &raw mut reads) };
    let limit = libc::timespec {
        tv_sec: 60,
        tv_nsec: 0,
    };
    let highest = closed.max(session.file()) + 1;
    // SAFETY: the set is there.
    let refused = unsafe {
        let none = ptr::null_mut();
        crate::pselect(
            highest,
            &raw mut reads,
            none,
            none,
            &raw const limit,
            ptr::null(),
        )
    };
    // Another test may have opened a file with that number meanwhile: then it only waits for it.
    if refused == -1 {
        assert_eq!(error_of(refused), libc::EBADF);
    }
}

#[test]
fn calls_of_fortified_programs_check_their_room() {
    let session = Session::by_rings();
    session.give(b"x");
    let mut all = [polled(session.file(), libc::POLLIN)];
    let bytes = size_of_val(&all);
    // SAFETY: there is room.
    unsafe {
        assert_eq!(crate::__poll_chk(all.as_mut_ptr(), 1, 0, bytes), 1);
        let none = ptr::null();
        assert_eq!(
            crate::__ppoll_chk(all.as_mut_ptr(), 1, none, ptr::null(), bytes),
            1
        );
    }
}

#[test]
fn times_keep_their_parts() {
    let time = timespec(Duration::new(3, 999_999_999));
    assert_eq!((time.tv_sec, time.tv_nsec), (3, 999_999_999));
    let time = timespec(Duration::MAX);
    assert_eq!(time.tv_sec, libc::time_t::MAX);
}
