//! Writing after the peer has closed, by TCP's rules.
//!
//! Descriptors of a forked child, and those that its parent keeps.

use super::supervisor::{Session, supervisor};
use super::{read, send, write};
use crate::marked::{call, credentials, kernels_option};
use crate::real::{errno, flags_of, set_errno};
use crate::table::{ENDED, GONE, Kind, PARDONED, SHUT_WRITE, kind};
use crate::{attachment, table};
use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};

/// Signals of this process: the test harness has SIGPIPE ignored, as every Rust program.
static SIGNALS: AtomicU32 = AtomicU32::new(0);

#[test]
fn the_first_write_after_the_peers_close_is_taken_as_sent() {
    let session = Session::by_pair();
    session.hang_up();
    assert_eq!(read(session.file(), 8), Ok(Vec::new()), "the peer's end");
    assert!(session.record().has(ENDED));
    assert_eq!(write(session.file(), b"first"), Ok(5));
    assert!(session.record().has(PARDONED));
    assert_eq!(write(session.file(), b"second"), Err(libc::EPIPE));
    assert_eq!(
        send(session.file(), b"third", libc::MSG_NOSIGNAL),
        Err(libc::EPIPE)
    );
}

#[test]
fn vectors_and_messages_are_taken_as_sent_too() {
    let bytes = *b"abcdef";
    let piece = libc::iovec {
        iov_base: bytes.as_ptr().cast_mut().cast::<c_void>(),
        iov_len: 3,
    };
    let pieces = [piece; 2];
    let session = Session::by_pair();
    session.hang_up();
    read(session.file(), 8).unwrap();
    // SAFETY: the pieces are there.
    let written = unsafe { crate::writev(session.file(), pieces.as_ptr(), 2) };
    assert_eq!(written, 6);
    let session = Session::by_pair();
    session.hang_up();
    // SAFETY: zeros are an empty message; the pieces are there.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = pieces.as_ptr().cast_mut();
        message.msg_iovlen = 2;
        crate::sendmsg(session.file(), &raw const message, 0)
    };
    assert_eq!(sent, 6);
}

#[test]
fn a_pair_of_the_programs_own_is_as_the_kernel_has_it() {
    let session = Session::by_pair();
    session.forget_connection();
    session.hang_up();
    assert_eq!(
        send(session.file(), b"x", libc::MSG_NOSIGNAL),
        Err(libc::EPIPE)
    );
    assert!(!session.record().has(PARDONED));
}

#[test]
fn a_reset_is_reported_once() {
    let session = Session::by_pair();
    // A peer that closes with unread bytes resets its end of a pair, as it does a session.
    assert_eq!(write(session.file(), b"unread"), Ok(6));
    session.hang_up();
    assert_eq!(read(session.file(), 8), Err(libc::ECONNRESET));
    assert!(session.record().has(ENDED | PARDONED));
    assert_eq!(
        send(session.file(), b"x", libc::MSG_NOSIGNAL),
        Err(libc::EPIPE)
    );
    let session = Session::by_pair();
    assert_eq!(write(session.file(), b"unread"), Ok(6));
    session.hang_up();
    // The write finds it instead.
    assert_eq!(
        send(session.file(), b"x", libc::MSG_NOSIGNAL),
        Err(libc::ECONNRESET)
    );
    assert_eq!(
        send(session.file(), b"x", libc::MSG_NOSIGNAL),
        Err(libc::EPIPE)
    );
}

#[test]
fn an_error_that_the_program_has_asked_for_is_not_forgiven() {
    let session = Session::by_pair();
    assert_eq!(write(session.file(), b"unread"), Ok(6));
    session.hang_up();
    let mut error: i32 = 0;
    let mut bytes = crate::real::length(size_of_val(&error));
    let to = (&raw mut error).cast::<c_void>();
    // SAFETY: there is room for a number.
    let asked = unsafe {
        let (level, name) = (libc::SOL_SOCKET, libc::SO_ERROR);
        crate::getsockopt(session.file(), level, name, to, &raw mut bytes)
    };
    assert_eq!((asked, error), (0, libc::ECONNRESET));
    assert!(session.record().has(PARDONED));
    assert_eq!(
        send(session.file(), b"x", libc::MSG_NOSIGNAL),
        Err(libc::EPIPE)
    );
}

#[test]
fn a_program_that_has_ended_its_own_side_gets_the_signal() {
    extern "C" fn count(_: i32) {
        SIGNALS.fetch_add(1, Ordering::SeqCst);
    }
    let handler: extern "C" fn(i32) = count;
    // SAFETY: the handler only counts. Rust programs ignore the signal; it is ignored again below.
    let before = unsafe { libc::signal(libc::SIGPIPE, handler as libc::sighandler_t) };
    let session = Session::by_pair();
    // SAFETY: a call without pointers.
    assert_eq!(unsafe { crate::shutdown(session.file(), libc::SHUT_WR) }, 0);
    assert!(session.record().has(SHUT_WRITE));
    let signals = SIGNALS.load(Ordering::SeqCst);
    assert_eq!(
        send(session.file(), b"x", libc::MSG_NOSIGNAL),
        Err(libc::EPIPE)
    );
    assert_eq!(send(session.file(), b"x", 0), Err(libc::EPIPE));
    assert!(SIGNALS.load(Ordering::SeqCst) > signals);
    // SAFETY: as above.
    unsafe { libc::signal(libc::SIGPIPE, before) };
}

#[test]
fn rings_of_a_session_that_is_gone_are_the_pairs_to_answer() {
    let session = Session::by_rings();
    session.record().add(GONE);
    session.hang_up();
    assert_eq!(read(session.file(), 8), Ok(Vec::new()));
    assert_eq!(session.kind(), Kind::Ring);
}

#[test]
fn a_marked_call_sets_the_threads_errno() {
    set_errno(0);
    // SAFETY: a call without pointers.
    let result = unsafe { call(libc::SYS_close, [-1, 0, 0, 0, 0], 0) };
    assert_eq!((result, errno()), (-1, libc::EBADF));
    set_errno(0);
    // SAFETY: as above.
    let result = unsafe { call(libc::SYS_getpid, [0; 5], 1) };
    assert_eq!(result, std::process::id().cast_signed());
    assert_eq!(errno(), 0);
}

#[test]
fn the_kernel_is_asked_past_the_library() {
    let (near, _far) = UnixStream::pair().unwrap();
    let file = near.as_raw_fd();
    // SAFETY: a call without pointers.
    let user = unsafe { libc::geteuid() };
    assert_eq!(
        credentials(file),
        Some((std::process::id().cast_signed(), user))
    );
    assert_eq!(credentials(-1), None);
    assert_eq!(kernels_option(file, libc::SO_DOMAIN), Some(libc::AF_UNIX));
    set_errno(libc::ENOSPC);
    assert_eq!(kernels_option(-1, libc::SO_DOMAIN), None);
    assert_eq!(flags_of(-1, libc::F_GETFD), None);
    assert_eq!(errno(), libc::ENOSPC, "what the program has not caused");
    assert!(flags_of(file, libc::F_GETFD).is_some());
}

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
