//! Calls that make, duplicate, close and query descriptors.
//!
//! Records of descriptors: what a number is, and how that changes.

use super::closing::in_child;
use super::supervisor::Session;
use super::{error_of, number, pipe, read, write};
use crate::attachment;
use crate::real::{count, int};
use crate::table::{
    DESCRIPTORS, ENDED, GONE, Kind, LISTENS, PARDONED, SHUT_WRITE, is_own_process, kind, new,
    record,
};
use std::ffi::c_long;
use std::ffi::{c_int, c_ulong, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::Ordering;

/// A descriptor of a call that makes one.
fn made(file: c_int) -> OwnedFd {
    assert!(file >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the call has just made it.
    unsafe { OwnedFd::from_raw_fd(file) }
}

#[test]
fn a_duplicate_ends_the_rings_of_both() {
    let by_dup = |file| {
        // SAFETY: calls without pointers.
        unsafe { crate::dup(file) }
    };
    let by_fcntl = |file| {
        // SAFETY: as above.
        unsafe { crate::fcntl(file, libc::F_DUPFD_CLOEXEC, 10) }
    };
    let by_fcntl64 = |file| {
        // SAFETY: as above.
        unsafe { crate::fcntl64(file, libc::F_DUPFD, 10) }
    };
    for duplicate in [by_dup, by_fcntl, by_fcntl64] {
        let session = Session::by_rings();
        session.give(b"unread");
        let twin = made(duplicate(session.file()));
        assert_eq!(session.kind(), Kind::Barred);
        assert_eq!(kind(number(&twin)), Kind::Barred);
        assert_eq!(read(number(&twin), 64), Ok(b"unread".to_vec()));
        assert_eq!(write(session.file(), b"x"), Ok(1));
        assert_eq!(session.take_rest(), b"x");
    }
}

#[test]
fn a_duplicate_replaces_what_was_there() {
    let (session, replaced) = (Session::by_rings(), Session::by_rings());
    // SAFETY: calls without pointers.
    unsafe {
        assert_eq!(
            crate::dup2(session.file(), replaced.file()),
            replaced.file()
        );
        assert_eq!(replaced.kind(), Kind::Barred);
        // The same number is no duplicate to dup2, and an error to dup3.
        assert_eq!(crate::dup2(session.file(), session.file()), session.file());
        let refused = crate::dup3(session.file(), session.file(), 0);
        assert_eq!(error_of(refused), libc::EINVAL);
        let refused = crate::dup2(-1, session.file());
        assert_eq!(error_of(refused), libc::EBADF);
    }
    session.give_by_pair(b"abc");
    assert_eq!(read(replaced.file(), 8), Ok(b"abc".to_vec()));
}

#[test]
fn a_duplicate_of_a_file_is_a_file() {
    let (reader, _writer) = pipe();
    // SAFETY: a call without pointers.
    let twin = made(unsafe { crate::dup(number(&reader)) });
    assert_eq!(kind(number(&twin)), Kind::Other);
}

#[test]
fn the_librarys_descriptors_do_not_exist_for_the_program() {
    let _session = Session::by_rings();
    let own = attachment::own().next().unwrap();
    assert!(attachment::is_own(own) && own > 100, "{own}");
    // SAFETY: calls without pointers.
    unsafe {
        assert_eq!(error_of(crate::close(own)), libc::EBADF);
        assert_eq!(error_of(crate::dup(own)), libc::EBADF);
        assert_eq!(error_of(crate::dup2(own, 60)), libc::EBADF);
        assert_eq!(error_of(crate::dup2(2, own)), libc::EBADF);
        assert_eq!(error_of(crate::dup3(2, own, 0)), libc::EBADF);
        assert_eq!(error_of(crate::fcntl(own, libc::F_DUPFD, 0)), libc::EBADF);
    }
    assert!(attachment::is_own(own));
}

#[test]
fn a_range_is_closed_around_the_librarys_descriptors() {
    // In a child, where no other test makes descriptors.
    let status = in_child(|| {
        let session = Session::by_rings();
        let own = attachment::own().max().unwrap().cast_unsigned();
        // A range with one of the program's descriptors, far away from those of other tests.
        // SAFETY: calls without pointers.
        let far = unsafe {
            let far = crate::fcntl(session.file(), libc::F_DUPFD, c_ulong::from(own) + 1);
            assert!(far > own.cast_signed());
            assert_eq!(crate::close_range(own, far.cast_unsigned(), 0), 0);
            far
        };
        // SAFETY: as above.
        let gone = unsafe { crate::fcntl(far, libc::F_GETFD, 0) };
        assert_eq!(error_of(gone), libc::EBADF);
        assert_eq!(kind(far), Kind::Other);
        assert!(attachment::is_own(own.cast_signed()));
        // Only a flag: nothing is closed.
        // SAFETY: as above.
        assert_eq!(unsafe { crate::close_range(own, own, 4) }, 0);
        // SAFETY: as above; there is nothing above the highest number.
        unsafe { crate::closefrom(c_int::MAX) };
        let again = Session::by_rings();
        again.give(b"abc");
        assert_eq!(read(again.file(), 8), Ok(b"abc".to_vec()));
        0
    });
    assert_eq!(status, 0);
}

#[test]
fn a_closed_descriptor_leaves_no_record() {
    let session = Session::by_rings();
    // In a child, where no other test takes the number.
    let status = in_child(|| {
        // SAFETY: a call without pointers.
        assert_eq!(unsafe { crate::close(session.file()) }, 0);
        assert_eq!(kind(session.file()), Kind::Other);
        // SAFETY: as above.
        let again = unsafe { crate::close(session.file()) };
        assert_eq!(error_of(again), libc::EBADF);
        0
    });
    assert_eq!(status, 0);
    assert_eq!(session.kind(), Kind::Ring);
}

#[test]
fn an_end_for_writing_keeps_the_rings_and_one_for_reading_does_not() {
    let session = Session::by_rings();
    // SAFETY: calls without pointers.
    assert_eq!(unsafe { crate::shutdown(session.file(), libc::SHUT_WR) }, 0);
    assert_eq!(session.kind(), Kind::Ring);
    assert!(session.record().has(SHUT_WRITE));
    session.give(b"abc");
    assert_eq!(read(session.file(), 8), Ok(b"abc".to_vec()));
    // SAFETY: as above.
    assert_eq!(unsafe { crate::shutdown(session.file(), libc::SHUT_RD) }, 0);
    assert_eq!(session.kind(), Kind::Barred);
}

#[test]
fn the_number_of_readable_bytes_is_that_of_the_rings() {
    let session = Session::by_rings();
    session.give(b"abc");
    let mut bytes: c_int = -1;
    let to = (&raw mut bytes).cast::<c_void>();
    // SAFETY: there is room for the number.
    let asked = unsafe { crate::ioctl(session.file(), crate::real::FIONREAD, to) };
    assert_eq!(asked, 0);
    assert_eq!(bytes, 3);
    // SAFETY: the kernel refuses the address.
    let refused =
        unsafe { crate::ioctl(session.file(), crate::real::FIONREAD, std::ptr::null_mut()) };
    assert_eq!(error_of(refused), libc::EFAULT);
    assert_eq!(session.kind(), Kind::Ring);
}

#[test]
fn signals_and_streams_of_the_c_library_need_the_pair() {
    let session = Session::by_rings();
    let mut on: c_int = 1;
    let to = (&raw mut on).cast::<c_void>();
    // SAFETY: the number is there.
    assert_eq!(unsafe { crate::ioctl(session.file(), 0x5452, to) }, 0);
    assert_eq!(session.kind(), Kind::Barred);
    let session = Session::by_rings();
    // SAFETY: calls without pointers: no signal is set up.
    let set = unsafe { crate::fcntl(session.file(), libc::F_SETOWN, 0) };
    assert_eq!(set, 0);
    assert_eq!(session.kind(), Kind::Barred);
    let session = Session::by_rings();
    session.give(b"a line\n");
    // SAFETY: the mode ends with a zero; the stream gets a duplicate of its own to close.
    unsafe {
        let twin = libc::syscall(libc::SYS_dup, session.file());
        let twin = c_int::try_from(twin).unwrap();
        let stream = crate::fdopen(session.file(), c"r".as_ptr());
        assert!(!stream.is_null());
        let mut line = [0; 16];
        let read = libc::fgets(line.as_mut_ptr(), 16, stream);
        assert!(!read.is_null());
        assert_eq!(line[0].cast_unsigned(), b'a');
        // The number is closed with the stream, and taken again for the session's own close.
        libc::fclose(stream);
        libc::syscall(libc::SYS_dup3, twin, session.file(), libc::O_CLOEXEC);
        libc::syscall(libc::SYS_close, twin);
    }
}

#[test]
fn pipes_between_descriptors_need_the_pair() {
    let session = Session::by_rings();
    let (_reader, writer) = pipe();
    session.give(b"abc");
    let none = std::ptr::null_mut();
    // SAFETY: a call without addresses.
    let moved = unsafe { crate::splice(session.file(), none, number(&writer), none, 8, 0) };
    assert_eq!((moved, session.kind()), (3, Kind::Barred));
}

#[test]
fn many_messages_at_once_need_the_pair() {
    let session = Session::by_rings();
    let none = std::ptr::null_mut();
    // SAFETY: no message is passed.
    unsafe {
        assert_eq!(crate::sendmmsg(session.file(), none, 0, 0), 0);
        assert_eq!(session.kind(), Kind::Barred);
        let session = Session::by_rings();
        let flags = libc::MSG_DONTWAIT;
        crate::recvmmsg(session.file(), none, 0, flags, std::ptr::null_mut());
        assert_eq!(session.kind(), Kind::Barred);
    }
}

#[test]
fn both_ends_of_a_pair_stay_on_it() {
    let mut both = [-1; 2];
    // SAFETY: there is room for both.
    let made_both =
        unsafe { crate::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, both.as_mut_ptr()) };
    assert_eq!(made_both, 0);
    let both = both.map(made);
    for end in &both {
        assert_eq!(kind(end.as_raw_fd()), Kind::Barred);
    }
    // SAFETY: the kernel refuses the domain before it writes anything.
    let refused = unsafe { crate::socketpair(-1, libc::SOCK_STREAM, 0, [0; 2].as_mut_ptr()) };
    assert_eq!(error_of(refused), libc::EAFNOSUPPORT);
}

#[test]
fn a_new_connection_of_a_socket_has_no_rings() {
    let session = Session::by_rings();
    let address = [0_u8; 16];
    let bytes = crate::real::length(address.len());
    // SAFETY: the address is there; the kernel refuses its family for a connected pair.
    let refused = unsafe { crate::connect(session.file(), address.as_ptr().cast(), bytes) };
    assert_eq!(refused, -1);
    assert_eq!(session.kind(), Kind::Barred);
}

#[test]
fn numbers_that_do_not_fit_are_no_descriptors() {
    assert_eq!(int(-1), Some(-1));
    assert_eq!(int(c_long::MAX), None);
    assert_eq!(count(7), 7);
    assert_eq!(count(usize::MAX), c_int::MAX);
}

/// The library forgot the rings before the kernel refused the call.
#[test]
fn a_duplication_that_fails_replaces_nothing() {
    let session = Session::by_rings();
    let (reader, _writer) = pipe();
    session.give(b"abc");
    // SAFETY: calls without pointers.
    unsafe {
        assert_eq!(error_of(crate::dup2(-1, session.file())), libc::EBADF);
        let refused = crate::dup3(-1, session.file(), libc::O_CLOEXEC);
        assert_eq!(error_of(refused), libc::EBADF);
        let refused = crate::dup3(number(&reader), session.file(), 1);
        assert_eq!(error_of(refused), libc::EINVAL);
    }
    assert_eq!(session.kind(), Kind::Ring);
    assert_eq!(read(session.file(), 8), Ok(b"abc".to_vec()));
}

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
fn streams_and_datagrams_are_candidates() {
    let cases = [
        (libc::AF_INET, libc::SOCK_STREAM, Kind::Candidate),
        (
            libc::AF_INET6,
            libc::SOCK_STREAM | libc::SOCK_NONBLOCK,
            Kind::Candidate,
        ),
        // Unless the environment asks for none of theirs.
        (libc::AF_INET, libc::SOCK_DGRAM, Kind::Candidate),
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
