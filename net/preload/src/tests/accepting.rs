//! Sessions that a listener of this process accepts without the supervisor.
//!
//! When a descriptor gets rings, and when it does not.

use super::supervisor::{Session, is_attached};
use super::{errno, number, read, recv, until, upgrade_between, write};
use crate::accepting;
use crate::rings::{bar, give_back, has_rings, is_due};
use crate::table::{Kind, LISTENS, kind, new, record};
use sidecore_net_rings::{HELLO_BYTES, Hello, Name, Role};
use std::ffi::c_int;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

/// A listening end, as the supervisor makes one for a listener of the program.
fn listener(label: &str) -> (UnixListener, SocketAddr) {
    let name = format!("sidecore-test-{label}-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(name.as_bytes()).unwrap();
    let listener = UnixListener::bind_addr(&address).unwrap();
    listener.set_nonblocking(true).unwrap();
    new(listener.as_raw_fd(), Kind::Candidate);
    record(listener.as_raw_fd()).unwrap().add(LISTENS);
    (listener, address)
}

/// Connects an end with that name to the listening end.
fn connect(address: &SocketAddr, own: &[u8]) -> UnixStream {
    // SAFETY: the address has the family, a zero and the name; the descriptor is new.
    let socket = unsafe {
        let flags = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        let socket = OwnedFd::from_raw_fd(libc::socket(libc::AF_UNIX, flags, 0));
        for (name, binds) in [(own, true), (address.as_abstract_name().unwrap(), false)] {
            if name.is_empty() {
                continue;
            }
            let mut bytes = libc::sa_family_t::try_from(libc::AF_UNIX)
                .unwrap()
                .to_ne_bytes()
                .to_vec();
            bytes.push(0);
            bytes.extend_from_slice(name);
            let (at, length) = (bytes.as_ptr().cast(), crate::real::length(bytes.len()));
            let done = if binds {
                libc::bind(number(&socket), at, length)
            } else {
                libc::connect(number(&socket), at, length)
            };
            assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        }
        socket
    };
    UnixStream::from(socket)
}

/// A name with the addresses of both ends.
fn name(role: Role, number: u64, peer: [u8; 4], own: [u8; 4]) -> Name {
    let mut name = Name::new(role, std::process::id(), number);
    for (end, ip) in name.ends.iter_mut().zip([peer, own]) {
        end[..2].copy_from_slice(&2_u16.to_ne_bytes());
        end[2..4].copy_from_slice(&80_u16.to_be_bytes());
        end[4..8].copy_from_slice(&ip);
    }
    name
}

/// Accepts as a program does: the descriptor, and the address.
fn accept(listener: &UnixListener) -> Option<(OwnedFd, Vec<u8>)> {
    let mut address = [0_u8; 64];
    let mut bytes = crate::real::length(address.len());
    // SAFETY: there is room for the address.
    let accepted = unsafe {
        let at = address.as_mut_ptr().cast();
        crate::accept4(listener.as_raw_fd(), at, &raw mut bytes, libc::SOCK_CLOEXEC)
    };
    if accepted < 0 {
        return None;
    }
    // SAFETY: the call has just made it.
    let accepted = unsafe { OwnedFd::from_raw_fd(accepted) };
    Some((
        accepted,
        address[..usize::try_from(bytes).unwrap()].to_vec(),
    ))
}

#[test]
fn a_session_has_its_peers_address_and_is_greeted() {
    let (listener, address) = listener("session");
    let name = name(Role::Session, 77, [192, 0, 2, 9], [192, 0, 2, 1]);
    let mut far = connect(&address, &name.bytes());
    let (accepted, peer) = accept(&listener).expect("a session");
    assert_eq!(peer, name.ends[0][..16]);
    assert_eq!(kind(number(&accepted)), Kind::Candidate);
    let mut hello = [0; HELLO_BYTES];
    far.read_exact(&mut hello).unwrap();
    let hello = Hello::read(&hello, 77).expect("the library's greeting");
    assert_eq!(hello.descriptor, number(&accepted));
    assert!(accept(&listener).is_none());
    assert_eq!(errno(), libc::EAGAIN);
}

#[test]
fn a_program_of_the_same_user_may_connect_on_the_loopback_only() {
    let (listener, address) = listener("program");
    let local = [127, 0, 0, 1];
    let own = name(Role::Program, 1, local, local);
    let _far = connect(&address, &own.bytes());
    let (accepted, peer) = accept(&listener).expect("a session of the loopback");
    assert_eq!(peer[4..8], local);
    assert_eq!(kind(number(&accepted)), Kind::Barred, "it has no rings");
}

#[test]
fn connections_of_others_are_dropped() {
    let (listener, address) = listener("others");
    let mut unnamed = connect(&address, b"");
    let mut odd = connect(&address, b"sidecore-test-odd-name");
    // A listener's name says nothing of a session.
    let mut role = connect(&address, &Name::new(Role::Listener, 1, 2).bytes());
    // A session without addresses.
    let mut empty = connect(&address, &Name::new(Role::Session, 1, 3).bytes());
    assert!(accept(&listener).is_none());
    assert_eq!(errno(), libc::EAGAIN);
    for dropped in [&mut unnamed, &mut odd, &mut role, &mut empty] {
        assert_eq!(dropped.read(&mut [0; 8]).unwrap(), 0, "closed");
    }
}

#[test]
fn a_token_says_that_the_supervisor_has_a_session() {
    let (listener, address) = listener("token");
    let name = name(Role::Token, 5, [192, 0, 2, 9], [192, 0, 2, 1]);
    let _far = connect(&address, &name.bytes());
    let file = listener.as_raw_fd();
    let none = std::ptr::null_mut();
    // SAFETY: no address is asked for.
    let accepted = unsafe { accepting::by_itself(file, none, std::ptr::null_mut(), 0) };
    assert_eq!(accepted, None, "the program's own call asks the supervisor");
}

#[test]
fn a_name_that_is_longer_than_its_room_is_cut() {
    let (listener, address) = listener("cut");
    let name = name(Role::Session, 9, [192, 0, 2, 9], [192, 0, 2, 1]);
    let _far = connect(&address, &name.bytes());
    let mut at = [0xff_u8; 8];
    let mut bytes = 4;
    // SAFETY: there is room for what `bytes` says.
    let accepted =
        unsafe { crate::accept(listener.as_raw_fd(), at.as_mut_ptr().cast(), &raw mut bytes) };
    assert!(accepted >= 0);
    // The length is that of the whole address, as accept(2) has it.
    assert_eq!(
        (&at[..4], &at[4..], bytes),
        (&name.ends[0][..4], &[0xff; 4][..], 16)
    );
    // SAFETY: a call without pointers.
    assert_eq!(unsafe { crate::close(accepted) }, 0);
}

#[test]
fn only_listeners_are_told_of() {
    let (listener, _) = listener("told");
    let file = listener.as_raw_fd();
    assert!(accepting::listener(file).is_some());
    let (reader, _writer) = super::pipe();
    assert_eq!(accepting::listener(number(&reader)), None);
    // So is a duplicate, of which each close may be the last.
    // SAFETY: calls without pointers.
    let other = unsafe { crate::dup(file) };
    assert!(accepting::listener(file).is_some());
    assert_eq!(accepting::listener(other), accepting::listener(file));
    // SAFETY: as above.
    assert_eq!(unsafe { crate::close(other) }, 0);
    assert_eq!(accepting::listener(other), None);
}

#[test]
fn a_kernels_listener_is_the_kernels() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let file = listener.as_raw_fd();
    // SAFETY: calls without pointers. listen(2) again is allowed, and by the library this time.
    assert_eq!(unsafe { crate::listen(file, 8) }, 0);
    assert!(record(file).unwrap().has(LISTENS));
    let peer = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (accepted, local) = listener.accept().unwrap();
    assert_eq!(local, peer.local_addr().unwrap());
    assert_eq!(kind(accepted.as_raw_fd()), Kind::Candidate);
    let accepted: c_int = accepted.as_raw_fd();
    super::write(peer.as_raw_fd(), b"abc").unwrap();
    assert_eq!(read(accepted, 8), Ok(b"abc".to_vec()));
}

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

/// The supervisor has as many rings as it may, or lacks memory, until others end.
#[test]
fn a_session_for_which_nothing_is_left_asks_again_later() {
    for error in [libc::ENOSPC, libc::ENOMEM, libc::EMFILE] {
        let session = Session::by_pair();
        session.refuse(&[error]);
        let calls = (1..1000).find(|_| {
            write(session.file(), b"x").unwrap();
            session.take_rest();
            session.kind() == Kind::Ring
        });
        assert_eq!(calls, Some(9 + (8 << 6) + 1));
    }
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
