//! Writing after the peer has closed, by TCP's rules.
//!
//! Descriptors of a forked child, and those that its parent keeps; UDP sockets, which both may use.

use super::supervisor::{Datagrams, Session, peer, supervisor};
use super::{PATIENCE, error_of, read, send, write};
use crate::marked::{call, credentials, kernels_option};
use crate::real::{count, errno, flags_of, set_errno};
use crate::table::{DATAGRAMS, ENDED, GONE, Kind, PARDONED, SHUT_WRITE, kind, record};
use crate::{attachment, table};
use sidecore_net_rings::datagram::{FRAME_BYTES, Frame, OPEN, SENDS_V4, WRITES};
use std::ffi::{c_int, c_uint, c_void};
use std::io::ErrorKind;
use std::net::SocketAddr;
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

/// The next datagram, or the error of the call.
fn received(it: &Datagrams) -> Result<(Vec<u8>, SocketAddr), ErrorKind> {
    let mut bytes = [0; 64];
    let (count, from) = it.socket.recv_from(&mut bytes).map_err(|it| it.kind())?;
    Ok((bytes[..count].to_vec(), from))
}

/// The next frame at the desk, and its payload.
fn framed(it: &Datagrams) -> (Frame, Vec<u8>) {
    let mut bytes = [0; 256];
    let count = it.desk.recv(&mut bytes).unwrap();
    let (frame, payload) = Frame::read(&bytes[..count]).unwrap();
    (frame, payload.to_vec())
}

#[test]
fn datagrams_come_from_the_hosts_in_the_directory() {
    let it = Datagrams::new(OPEN);
    it.give(&[Some(b"one"), None, Some(b"two"), Some(b"")]);
    for expected in ["one", "two", ""] {
        assert_eq!(received(&it), Ok((expected.into(), peer())));
    }
    it.socket.set_nonblocking(true).unwrap();
    assert_eq!(received(&it), Err(ErrorKind::WouldBlock));
    it.give(&[None]);
    assert_eq!(received(&it), Err(ErrorKind::WouldBlock));
    it.give(&[None, Some(b"three")]);
    let mut bytes = [0; 8];
    for _ in 0..2 {
        let (count, from) = it.socket.peek_from(&mut bytes).unwrap();
        assert_eq!((&bytes[..count], from), (b"three".as_slice(), peer()));
    }
    assert_eq!(received(&it), Ok((b"three".to_vec(), peer())));
    // What is not allowed, or another socket's, is the supervisor's call, here the kernel's.
    let sender = it.sender.local_addr().unwrap();
    let losses: [fn(&Datagrams); 2] = [|it| it.allow(0), Datagrams::lose_place];
    for lose in losses {
        lose(&it);
        it.give(&[Some(b"four")]);
        assert_eq!(received(&it), Ok((b"four".to_vec(), sender)));
    }
    assert_eq!(it.record().place.load(Ordering::Relaxed), 0);
}

#[test]
fn datagrams_are_sent_in_frames_to_hosts_of_the_stack() {
    let it = Datagrams::new(OPEN | SENDS_V4);
    let frame = |segment_bytes| Frame {
        peer: peer(),
        segment_bytes,
    };
    for payload in [b"reply".as_slice(), b""] {
        assert_eq!(it.socket.send_to(payload, peer()).unwrap(), payload.len());
        assert_eq!(framed(&it), (frame(0), payload.to_vec()));
    }
    // The kernel's, as without the library.
    let to = it.sender.local_addr().unwrap();
    assert_eq!(it.socket.send_to(b"plain", to).unwrap(), 5);
    let mut bytes = [0; 64];
    assert_eq!(it.sender.recv(&mut bytes).unwrap(), 5);
    assert_eq!(bytes[..5], *b"plain");
    // Larger than what fits behind a frame, and than any datagram.
    let refused = it.socket.send_to(&[0; 65_536], peer()).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EMSGSIZE));
    // Several datagrams of one payload.
    let mut control = [0_u8; 24];
    control[..8].copy_from_slice(&18_u64.to_ne_bytes());
    control[8..12].copy_from_slice(&libc::SOL_UDP.to_ne_bytes());
    control[12..16].copy_from_slice(&libc::UDP_SEGMENT.to_ne_bytes());
    control[16..18].copy_from_slice(&2_u16.to_ne_bytes());
    let mut message = Messages::new(&it, &["segments"]);
    let header = &mut message.headers[0].msg_hdr;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = control.len() as _;
    // SAFETY: the header refers to what outlives the call.
    let sent = unsafe { crate::sendmsg(it.file(), header, 0) };
    assert_eq!(sent, 8);
    assert_eq!(framed(&it), (frame(2), b"segments".to_vec()));
}

/// Headers with payloads, to and from the peer.
struct Messages {
    headers: Vec<libc::mmsghdr>,
    _pieces: Vec<libc::iovec>,
    payloads: Vec<Vec<u8>>,
    names: Vec<[u8; 28]>,
}

impl Messages {
    fn new(it: &Datagrams, texts: &[&str]) -> Self {
        assert!(it.record().has(DATAGRAMS));
        let mut payloads: Vec<Vec<u8>> = texts.iter().map(|it| it.as_bytes().to_vec()).collect();
        let (name, bytes) = sidecore_net_rings::datagram::write_name(peer(), false);
        let mut names = vec![name; texts.len()];
        let pieces = payloads.iter_mut().map(|payload| libc::iovec {
            iov_base: payload.as_mut_ptr().cast(),
            iov_len: payload.len(),
        });
        let mut pieces: Vec<libc::iovec> = pieces.collect();
        let headers = pieces.iter_mut().zip(&mut names).map(|(piece, name)| {
            // SAFETY: zeros are an empty message.
            let mut message: libc::mmsghdr = unsafe { std::mem::zeroed() };
            message.msg_hdr.msg_name = name.as_mut_ptr().cast();
            message.msg_hdr.msg_namelen = crate::real::length(bytes);
            message.msg_hdr.msg_iov = piece;
            message.msg_hdr.msg_iovlen = 1;
            message
        });
        let headers = headers.collect();
        Self {
            headers,
            _pieces: pieces,
            payloads,
            names,
        }
    }

    fn count(&self) -> c_uint {
        count(self.headers.len()).cast_unsigned()
    }
}

#[test]
fn many_messages_go_and_come_by_one_call() {
    let it = Datagrams::new(OPEN | SENDS_V4);
    let mut messages = Messages::new(&it, &["a", "bb", "ccc"]);
    let (headers, number) = (messages.headers.as_mut_ptr(), messages.count());
    // SAFETY: the headers refer to what outlives the call.
    assert_eq!(unsafe { crate::sendmmsg(it.file(), headers, number, 0) }, 3);
    let lengths = messages.headers.iter().map(|it| it.msg_len);
    assert_eq!(lengths.collect::<Vec<c_uint>>(), [1, 2, 3]);
    for expected in ["a", "bb", "ccc"] {
        assert_eq!(framed(&it).1, expected.as_bytes());
    }
    // One that is not the desk's goes by the same call.
    let to = it.sender.local_addr().unwrap();
    let mut messages = Messages::new(&it, &["frame", "plain"]);
    messages.names[1] = sidecore_net_rings::datagram::write_name(to, false).0;
    let (headers, number) = (messages.headers.as_mut_ptr(), messages.count());
    // SAFETY: as above.
    assert_eq!(unsafe { crate::sendmmsg(it.file(), headers, number, 0) }, 2);
    assert_eq!(framed(&it).1, b"frame");
    let mut bytes = [0; 8];
    assert_eq!(it.sender.recv(&mut bytes).unwrap(), 5);
    assert_eq!(bytes[..5], *b"plain");
    // Those of other processes are dropped, and the others move up.
    it.give(&[None, Some(b"one"), None, Some(b"three")]);
    let mut messages = Messages::new(&it, &["......"; 20]);
    messages.names.fill([0xff; 28]);
    let (headers, number, none) = (
        messages.headers.as_mut_ptr(),
        messages.count(),
        std::ptr::null_mut(),
    );
    // SAFETY: as above.
    let taken = unsafe { crate::recvmmsg(it.file(), headers, number, 0, none) };
    assert_eq!(taken, 2);
    for (index, expected) in ["one", "three"].iter().enumerate() {
        let bytes = messages.headers[index].msg_len as usize;
        assert_eq!(messages.payloads[index][..bytes], *expected.as_bytes());
        let (name, bytes) = sidecore_net_rings::datagram::write_name(peer(), false);
        assert_eq!(messages.names[index][..bytes], name[..bytes]);
        assert_eq!(messages.headers[index].msg_hdr.msg_namelen, 16);
    }
    let flags = libc::MSG_DONTWAIT;
    // SAFETY: as above.
    let nothing = unsafe { crate::recvmmsg(it.file(), headers, number, flags, none) };
    assert_eq!(error_of(nothing), libc::EAGAIN);
}

#[test]
fn a_fast_program_waits_for_the_supervisor_and_loses_nothing() {
    let it = Datagrams::new(OPEN | SENDS_V4);
    it.desk.set_read_timeout(Some(PATIENCE)).unwrap();
    let count = 2000;
    for _ in 0..count {
        assert_eq!(it.socket.send_to(&[7; 200], peer()).unwrap(), 200);
    }
    // More by one call than the desk's socket holds.
    let text = "x".repeat(20_000);
    let mut messages = Messages::new(&it, &[text.as_str(); 20]);
    let (headers, number) = (messages.headers.as_mut_ptr(), messages.count());
    // SAFETY: the headers refer to what outlives the call.
    let sent = unsafe { crate::sendmmsg(it.file(), headers, number, 0) };
    assert_eq!(sent, 20);
    assert!(messages.headers.iter().all(|it| it.msg_len == 20_000));
    let taken = it.taken();
    assert!(taken > 0, "the supervisor was not asked");
    for _ in taken..count + 20 {
        assert_eq!(framed(&it).0.peer, peer());
    }
    // A message that is not where it says is the kernel's to refuse.
    let header = &mut messages.headers[0].msg_hdr;
    header.msg_iov = std::ptr::null_mut();
    let header = &raw const *header;
    // SAFETY: the kernel reports what it cannot read.
    let refused = unsafe { crate::sendmsg(it.file(), header, 0) };
    assert_eq!(error_of(refused), libc::EFAULT);
}

#[test]
fn a_place_is_not_that_of_the_next_descriptor_with_the_number() {
    let it = Datagrams::new(OPEN);
    let (record, place) = (it.record(), 5);
    let closed_meanwhile = || {
        record.begin(Kind::Barred);
        Ok::<u64, ()>(place)
    };
    assert_eq!(record.ask_place(closed_meanwhile), Ok(false));
    assert_eq!(record.place.load(Ordering::SeqCst), 0);
    assert_eq!(record.ask_place(|| Ok::<u64, ()>(place)), Ok(true));
    assert_eq!(record.place.load(Ordering::SeqCst), place);
}

#[test]
fn a_message_to_the_peer_needs_no_frame() {
    let it = Datagrams::new(OPEN | WRITES);
    it.socket.connect(it.desk.local_addr().unwrap()).unwrap();
    let mut messages = Messages::new(&it, &["x"]);
    messages.headers[0].msg_hdr.msg_name = std::ptr::null_mut();
    let header = &raw const messages.headers[0].msg_hdr;
    // SAFETY: the header refers to what outlives the call.
    assert_eq!(unsafe { crate::sendmsg(it.file(), header, 0) }, 1);
    let mut bytes = [0; FRAME_BYTES];
    assert_eq!(it.desk.recv(&mut bytes).unwrap(), 1);
    // A duplicate asks by itself.
    let copy = it.socket.try_clone().unwrap();
    assert!(record(copy.as_raw_fd()).unwrap().has(DATAGRAMS));
    assert_eq!(
        record(copy.as_raw_fd())
            .unwrap()
            .place
            .load(Ordering::Relaxed),
        0
    );
}

#[test]
fn a_child_receives_and_sends_by_the_directory_of_its_parent() {
    let it = Datagrams::new(OPEN | SENDS_V4);
    it.give(&[Some(b"parent"), Some(b"child")]);
    assert_eq!(received(&it), Ok((b"parent".to_vec(), peer())));
    let status = in_child(|| {
        passed(&[
            received(&it) == Ok((b"child".to_vec(), peer())),
            it.socket.send_to(b"reply", peer()).is_ok(),
        ])
    });
    assert_eq!(status, 0);
    assert_eq!(framed(&it).1, b"reply");
}
