//! Records of descriptors: what a number is, and how that changes.

use super::supervisor::Session;
use super::{number, pipe};
use crate::table::{
    DESCRIPTORS, ENDED, GONE, Kind, LISTENS, PARDONED, SHUT_WRITE, is_own_process, kind, new,
    record,
};
use std::sync::atomic::Ordering;

#[test]
fn numbers_beyond_the_table_are_the_kernels() {
    let highest = i32::try_from(DESCRIPTORS).unwrap() - 1;
    assert!(record(highest).is_some());
    for file in [-1, i32::MIN, highest + 1, i32::MAX] {
        assert!(record(file).is_none());
        assert_eq!(kind(file), Kind::Other);
        assert_eq!(new(file, Kind::Candidate), file);
    }
}

#[test]
fn a_new_descriptor_has_nothing_of_the_last_one_with_its_number() {
    let session = Session::by_pair();
    let record = session.record();
    record.calls.store(9, Ordering::Relaxed);
    record.put_off.store(3, Ordering::Relaxed);
    record.cramped.store(3, Ordering::Relaxed);
    record.patience[1].store(3, Ordering::Relaxed);
    record.set_epoll(Some(0));
    record.add(SHUT_WRITE | ENDED);
    record.begin(Kind::Barred);
    let left = [&record.calls, &record.put_off, &record.cramped];
    assert!(left.iter().all(|it| it.load(Ordering::Relaxed) == 0));
    assert_eq!(record.patience[1].load(Ordering::Relaxed), 0);
    assert_eq!(record.epoll(), None);
    assert!(!record.has(SHUT_WRITE | ENDED));
    assert_eq!(record.kind(), Kind::Barred);
}

#[test]
fn flags_are_added_and_stay() {
    let session = Session::by_pair();
    let record = session.record();
    for flag in [GONE, LISTENS, ENDED, PARDONED] {
        assert!(!record.has(flag));
        record.add(flag);
        assert!(record.has(flag));
    }
    assert!(!record.has(SHUT_WRITE));
}

#[test]
fn an_epoll_instance_with_the_number_0_is_one() {
    let session = Session::by_pair();
    assert_eq!(session.record().epoll(), None);
    session.record().set_epoll(Some(0));
    assert_eq!(session.record().epoll(), Some(0));
    session.record().set_epoll(None);
    assert_eq!(session.record().epoll(), None);
}

#[test]
fn one_thread_upgrades_a_candidate() {
    let session = Session::by_pair();
    let record = session.record();
    let won = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| record.begin_upgrade()))
            .collect();
        let won = threads.into_iter().filter(|_| true);
        won.map(|thread| thread.join().unwrap())
            .filter(|won| *won)
            .count()
    });
    assert_eq!((won, record.kind()), (1, Kind::Upgrading));
    // Others wait until it is settled.
    std::thread::scope(|scope| {
        let other = scope.spawn(|| record.settled_kind());
        record.set_kind(Kind::Barred);
        assert_eq!(other.join().unwrap(), Kind::Barred);
    });
    assert!(!record.begin_upgrade());
}

#[test]
fn only_streams_are_candidates() {
    let cases = [
        (libc::AF_INET, libc::SOCK_STREAM, Kind::Candidate),
        (
            libc::AF_INET6,
            libc::SOCK_STREAM | libc::SOCK_NONBLOCK,
            Kind::Candidate,
        ),
        (libc::AF_INET, libc::SOCK_DGRAM, Kind::Barred),
        (libc::AF_UNIX, libc::SOCK_STREAM, Kind::Barred),
    ];
    for (domain, what, expected) in cases {
        // SAFETY: calls without pointers.
        let file = unsafe { crate::socket(domain, what | libc::SOCK_CLOEXEC, 0) };
        // A machine without IPv6 has no such socket.
        if file < 0 {
            continue;
        }
        assert_eq!(kind(file), expected, "{domain} {what}");
        // SAFETY: as above.
        assert_eq!(unsafe { crate::close(file) }, 0);
    }
}

#[test]
fn what_is_no_socket_is_left_alone() {
    let (reader, writer) = pipe();
    for end in [&reader, &writer] {
        assert_eq!(kind(number(end)), Kind::Other);
    }
    assert_eq!(super::write(number(&writer), b"abc"), Ok(3));
    assert_eq!(super::read(number(&reader), 8), Ok(b"abc".to_vec()));
    assert_eq!(kind(number(&reader)), Kind::Other);
}

#[test]
fn this_memory_is_this_processs() {
    assert!(is_own_process());
}
