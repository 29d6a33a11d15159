//! Descriptors of a forked child, and those that its parent keeps.

use super::supervisor::{Session, supervisor};
use super::{read, write};
use crate::attachment;
use crate::table::{self, Kind, kind};
use std::ffi::c_int;

/// Runs `work` in a forked child; its result, as an exit status.
pub(super) fn in_child(work: impl FnOnce() -> u8) -> u8 {
    // Held across the fork, so that the child finds the supervisor in order.
    let held = supervisor();
    // SAFETY: the child calls nothing that another thread's lock could stop: the C library has its
    // allocator ready in a child, and the supervisor is held by this thread.
    let child = unsafe { libc::fork() };
    drop(held);
    if child == 0 {
        let status = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(99);
        // SAFETY: a call without pointers, which runs nothing of the parent's at its exit.
        unsafe { libc::_exit(status.into()) };
    }
    assert!(child > 0);
    let mut status: c_int = 0;
    // SAFETY: there is room for the status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "{status:#x}");
    u8::try_from(libc::WEXITSTATUS(status)).unwrap()
}

/// The exit status of a child whose checks hold.
fn passed(checks: &[bool]) -> u8 {
    let failed = checks.iter().position(|holds| !holds);
    failed.map_or(0, |at| u8::try_from(at).unwrap() + 1)
}

#[test]
fn a_child_that_uses_a_descriptor_takes_its_rings_back() {
    let session = Session::by_rings();
    session.give(b"unread");
    let status = in_child(|| {
        let was = kind(session.file());
        let bytes = read(session.file(), 64);
        passed(&[
            was == Kind::Inherited,
            bytes == Ok(b"unread".to_vec()),
            kind(session.file()) == Kind::Barred,
            table::is_own_process(),
        ])
    });
    assert_eq!(status, 0);
    assert!(table::has_forked());
    // The parent finds the rings taken back, and goes on by the pair.
    session.give_by_pair(b"later");
    assert_eq!(read(session.file(), 64), Ok(b"later".to_vec()));
    assert_eq!(session.kind(), Kind::Barred);
}

#[test]
fn a_parent_keeps_its_rings_as_long_as_the_child_does_not_use_them() {
    let session = Session::by_rings();
    assert_eq!(in_child(|| 0), 0);
    session.give(b"abc");
    assert_eq!(read(session.file(), 64), Ok(b"abc".to_vec()));
    assert_eq!(session.kind(), Kind::Ring);
}

#[test]
fn a_child_has_an_attachment_of_its_own() {
    let _session = Session::by_rings();
    let own: Vec<c_int> = attachment::own().collect();
    assert!(!own.is_empty());
    let status = in_child(|| {
        let closed = own
            .iter()
            .all(|file| crate::real::flags_of(*file, libc::F_GETFD).is_none());
        let was_none = attachment::current().is_none();
        let session = Session::by_rings();
        session.give(b"abc");
        let bytes = read(session.file(), 8);
        passed(&[closed, was_none, bytes == Ok(b"abc".to_vec())])
    });
    assert_eq!(status, 0);
}

#[test]
fn an_upgrade_that_a_fork_interrupts_is_none_in_the_child() {
    let session = Session::by_pair();
    assert!(session.record().begin_upgrade());
    let status = in_child(|| passed(&[kind(session.file()) == Kind::Barred]));
    assert_eq!(status, 0);
    session.record().set_kind(Kind::Candidate);
    assert_eq!(write(session.file(), b"x"), Ok(1));
}

#[test]
fn a_child_that_waits_in_its_parents_epoll_instance_takes_the_rings_back() {
    let session = Session::by_rings();
    // SAFETY: the event is there.
    let epoll = unsafe {
        let epoll = crate::epoll_create(1);
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN.cast_unsigned(),
            u64: 5,
        };
        let file = session.file();
        let added = crate::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, file, &raw mut event);
        assert_eq!(added, 0);
        epoll
    };
    session.give(b"abc");
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    let status = in_child(|| {
        let was = kind(epoll);
        // SAFETY: there is room for one event.
        unsafe { crate::epoll_wait(epoll, &raw mut event, 1, 0) };
        passed(&[
            was == Kind::InheritedEpoll,
            kind(session.file()) == Kind::Barred,
        ])
    });
    assert_eq!(status, 0);
    // The parent notices, and the kernel watches the pair for both from then on.
    // SAFETY: as above.
    let count = unsafe { crate::epoll_wait(epoll, &raw mut event, 1, 10_000) };
    let data = event.u64;
    assert_eq!((count, data, session.kind()), (1, 5, Kind::Barred));
    assert_eq!(read(session.file(), 8), Ok(b"abc".to_vec()));
    // SAFETY: a call without pointers.
    assert_eq!(unsafe { crate::close(epoll) }, 0);
}
