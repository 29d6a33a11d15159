//! Sessions that a listener of this process accepts without the supervisor.

use super::{errno, number, read};
use crate::accepting;
use crate::table::{Kind, LISTENS, kind, new, record};
use sidecore_net_rings::{HELLO_BYTES, Hello, Name, Role};
use std::ffi::c_int;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

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
