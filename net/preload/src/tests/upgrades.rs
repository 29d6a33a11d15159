//! When a descriptor gets rings, and when it does not.

use super::supervisor::{Session, is_attached};
use super::{read, recv, until, upgrade_between, write};
use crate::rings::{bar, give_back, has_rings, is_due};
use crate::table::{Kind, kind};
use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

#[test]
fn the_ninth_call_with_bytes_goes_by_rings() {
    let session = Session::by_pair();
    for _ in 0..8 {
        assert_eq!(write(session.file(), b"x"), Ok(1));
        assert_eq!(session.kind(), Kind::Candidate);
    }
    assert_eq!(session.take_rest(), b"xxxxxxxx");
    assert_eq!(write(session.file(), b"by rings"), Ok(8));
    assert_eq!(session.kind(), Kind::Ring);
    assert_eq!(session.take(64), b"by rings");
    assert!(is_attached());
}

#[test]
fn a_session_that_is_put_off_asks_after_twice_as_many_calls() {
    let session = Session::by_pair();
    session.refuse(&[libc::EAGAIN, libc::EAGAIN]);
    let calls_until_asked = || {
        let before = session.record().put_off.load(Ordering::Relaxed);
        (1..100).find(|_| {
            write(session.file(), b"x").unwrap();
            session.kind() == Kind::Ring
                || session.record().put_off.load(Ordering::Relaxed) > before
        })
    };
    assert_eq!(calls_until_asked(), Some(9));
    assert_eq!(calls_until_asked(), Some(17));
    assert_eq!(calls_until_asked(), Some(33));
    assert_eq!(session.kind(), Kind::Ring);
}

#[test]
fn doublings_end() {
    let session = Session::by_pair();
    let record = session.record();
    record.put_off.store(u32::MAX, Ordering::Relaxed);
    record.calls.store(8 << 6, Ordering::Relaxed);
    assert!(!is_due(record));
    record.calls.store((8 << 6) + 1, Ordering::Relaxed);
    assert!(is_due(record));
}

#[test]
fn a_session_that_is_refused_keeps_its_pair() {
    let session = Session::by_pair();
    session.refuse(&[libc::EOPNOTSUPP]);
    for _ in 0..20 {
        assert_eq!(write(session.file(), b"x"), Ok(1));
    }
    assert_eq!(session.kind(), Kind::Barred);
    assert_eq!(session.take_rest(), [b'x'; 20]);
}

#[test]
fn a_descriptor_that_a_thread_waits_for_in_the_kernel_gets_none() {
    let session = Session::by_pair();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| recv(session.file(), 8, 0));
        let waits = || session.record().waits.load(Ordering::SeqCst) > 0;
        until("a thread waits", waits);
        for _ in 0..20 {
            assert_eq!(write(session.file(), b"x"), Ok(1));
        }
        // The thread would not see bytes of the rings.
        assert_eq!(session.kind(), Kind::Candidate);
        session.give_by_pair(b"by the pair");
        assert_eq!(reader.join().unwrap(), Ok(b"by the p".to_vec()));
    });
    assert!(crate::rings::upgrade(session.file(), session.record()));
}

/// Between its look at the kind and its wait, another thread may get rings for the descriptor: the
/// call would wait in the pair, and its bytes would come by the rings.
#[test]
fn a_call_that_is_about_to_wait_in_the_kernel_keeps_the_pair() {
    let session = Session::by_rings();
    session.give(b"abc");
    session.record().waits.fetch_add(1, Ordering::SeqCst);
    crate::rings::keep_pair(session.file(), session.record());
    session.record().waits.fetch_sub(1, Ordering::SeqCst);
    assert_eq!(session.kind(), Kind::Barred);
    assert_eq!(read(session.file(), 8), Ok(b"abc".to_vec()));
    let session = Session::by_pair();
    crate::rings::keep_pair(session.file(), session.record());
    assert_eq!(session.kind(), Kind::Candidate);
}

#[test]
fn rings_go_back_once() {
    let session = Session::by_rings();
    give_back(session.file());
    assert_eq!((session.kind(), session.taken_back()), (Kind::Barred, 1));
    bar(session.file());
    assert_eq!(session.taken_back(), 1, "it had none any more");
    assert!(!has_rings(session.file()));
    assert!(!crate::rings::upgrade(session.file(), session.record()));
}

/// The second of two threads found the memory that both streams share not mapped yet: it used the
/// pair, while the supervisor used rings.
#[test]
fn threads_that_get_rings_at_once_have_all_of_them() {
    let sessions: Vec<_> = (0..32).map(|_| Session::by_pair()).collect();
    std::thread::scope(|scope| {
        for session in &sessions {
            scope.spawn(|| {
                until("the session has rings", || {
                    crate::rings::upgrade(session.file(), session.record())
                });
            });
        }
    });
    for session in &sessions {
        session.give(b"abc");
        assert_eq!(read(session.file(), 8), Ok(b"abc".to_vec()));
        assert_eq!(session.taken_back(), 0);
    }
}

#[test]
fn a_candidate_is_barred_without_a_request() {
    let session = Session::by_pair();
    bar(session.file());
    assert_eq!((session.kind(), session.taken_back()), (Kind::Barred, 0));
    // Nothing to bar.
    bar(-1);
}

#[test]
fn rings_that_another_thread_copies_from_are_waited_for() {
    let session = Session::by_rings();
    session.give(b"abc");
    let attachment = crate::attachment::current().unwrap();
    let number = session.record().number.load(Ordering::Relaxed);
    let stream = attachment.stream(number).unwrap();
    let sidecore_net_rings::Lock::Held(held) = stream.lock() else {
        panic!("it is free");
    };
    std::thread::scope(|scope| {
        let file = session.file();
        let barring = scope.spawn(move || bar(file));
        std::thread::sleep(Duration::from_millis(5));
        assert!(!barring.is_finished());
        drop(held);
        barring.join().unwrap();
    });
    assert_eq!(read(session.file(), 8), Ok(b"abc".to_vec()));
}

/// A call that has found no rings, and a thread that gets some before it waits: it waited for the
/// pair, and the bytes came by the rings.
#[test]
fn a_call_that_has_seen_no_rings_does_not_wait_beside_them() {
    let _attached = Session::by_rings();
    let session = Session::by_pair();
    session.give_by_pair(b"abc");
    upgrade_between(session.file());
    assert_eq!(read(session.file(), 8), Ok(b"abc".to_vec()));
    assert_eq!(session.kind(), Kind::Barred);
    let session = Session::by_pair();
    upgrade_between(session.file());
    assert_eq!(write(session.file(), b"abc"), Ok(3));
    assert_eq!(session.kind(), Kind::Barred);
    assert_eq!(session.take_rest(), b"abc");
}

/// A descriptor that is passed on while another thread gets rings for it kept them.
#[test]
fn rings_that_are_being_requested_are_barred_once_they_are_there() {
    let session = Session::by_rings();
    session.record().set_kind(Kind::Upgrading);
    std::thread::scope(|scope| {
        let file = session.file();
        let barring = scope.spawn(move || bar(file));
        std::thread::sleep(Duration::from_millis(5));
        session.record().set_kind(Kind::Ring);
        barring.join().unwrap();
    });
    assert_eq!((session.kind(), session.taken_back()), (Kind::Barred, 1));
}

#[test]
fn a_kind_changes_only_from_what_was_seen() {
    let session = Session::by_pair();
    let record = session.record();
    assert!(!record.change_kind(Kind::Ring, Kind::Barred));
    assert!(record.begin_upgrade());
    assert!(!record.change_kind(Kind::Candidate, Kind::Barred));
    assert_eq!(session.kind(), Kind::Upgrading);
    record.set_kind(Kind::Candidate);
    assert!(record.change_kind(Kind::Candidate, Kind::Barred));
    assert_eq!(session.kind(), Kind::Barred);
}

static SIGNALLED: AtomicI32 = AtomicI32::new(-1);
static FOUND: AtomicU32 = AtomicU32::new(0);

/// Counts the looks that find its descriptor settled, and each other one as a thousand.
extern "C" fn look(_signal: c_int) {
    let settled = matches!(
        kind(SIGNALLED.load(Ordering::Relaxed)),
        Kind::Ring | Kind::Barred
    );
    let count = if settled { 1 } else { 1000 };
    FOUND.fetch_add(count, Ordering::Relaxed);
}

/// An interrupted request had been served, and the library did not know: the session had rings on
/// one side only. A handler that used the descriptor meanwhile waited for the call below it.
#[test]
fn signals_wait_until_a_request_is_over() {
    // SAFETY: the handler only loads and stores atomics; zeros are an `sigaction`.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = look as *const () as usize;
        assert_eq!(
            libc::sigaction(libc::SIGUSR2, &raw const action, std::ptr::null_mut()),
            0
        );
    }
    let _attached = Session::by_rings();
    let session = Session::by_pair();
    SIGNALLED.store(session.file(), Ordering::Relaxed);
    session.interrupt_requests();
    until("the session has rings", || {
        crate::rings::upgrade(session.file(), session.record())
    });
    assert_eq!(FOUND.load(Ordering::Relaxed), 1);
    session.give(b"abc");
    bar(session.file());
    assert_eq!(FOUND.load(Ordering::Relaxed), 2);
    assert_eq!(read(session.file(), 8), Ok(b"abc".to_vec()));
    // All is as before.
    // SAFETY: there is room for a set.
    let blocked = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut set);
        libc::sigismember(&raw const set, libc::SIGUSR2)
    };
    assert_eq!(blocked, 0);
}

/// A request that a stop of the process has interrupted may have been served.
#[test]
fn an_interrupted_upgrade_is_given_back() {
    let _attached = Session::by_rings();
    let session = Session::by_pair();
    session.refuse(&[libc::EINTR]);
    assert!(!crate::rings::upgrade(session.file(), session.record()));
    assert_eq!((session.kind(), session.taken_back()), (Kind::Barred, 1));
}
