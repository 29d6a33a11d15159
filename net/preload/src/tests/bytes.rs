//! Calls that transfer bytes, by rings.

use super::supervisor::Session;
use super::{PATIENCE, error_of, read, recv, send, set_nonblocking, write};
use crate::blocking::{Limit, nap};
use crate::real::is_in_first_page;
use crate::stream::{read_pieces, whole, write_pieces};
use crate::table::{CRAMPED_MAX, Kind};
use sidecore_net_rings::{
    Broken, LARGE_BYTES, LARGE_RING_BYTES, Lock, RING_BYTES, STREAM_BYTES, Served, Stream,
};
use sidecore_sys::{SharedMap, Sharing};
use std::ffi::{c_int, c_void};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

#[test]
fn bytes_cross_in_both_directions() {
    let session = Session::by_rings();
    assert_eq!(session.give(b"from the peer"), 13);
    assert_eq!(read(session.file(), 8), Ok(b"from the".to_vec()));
    assert_eq!(read(session.file(), 8), Ok(b" peer".to_vec()));
    assert_eq!(write(session.file(), b"to the peer"), Ok(11));
    assert_eq!(session.take(64), b"to the peer");
    session.end();
    assert_eq!(read(session.file(), 8), Ok(Vec::new()), "the end");
    assert_eq!(write(session.file(), b"still"), Ok(5), "half closed");
    assert_eq!(session.take(64), b"still");
}

#[test]
fn vectors_are_filled_in_order() {
    let session = Session::by_rings();
    let piece = |bytes: &mut [u8]| libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    };
    let (mut one, mut two) = (*b"abc", *b"defgh");
    let pieces = [piece(&mut one), piece(&mut []), piece(&mut two)];
    // SAFETY: the pieces are there.
    let count = unsafe { crate::writev(session.file(), pieces.as_ptr(), 3) };
    assert_eq!(count, 8);
    assert_eq!(session.take(64), b"abcdefgh");
    session.give(b"123456");
    // SAFETY: as above; the pieces are of this function.
    let count = unsafe { crate::readv(session.file(), pieces.as_ptr(), 3) };
    assert_eq!((count, &one, &two[..3]), (6, b"123", &b"456"[..]));
    // A number of pieces that cannot be is the kernel's to refuse.
    // SAFETY: the kernel looks at the number first.
    let refused = unsafe { crate::readv(session.file(), pieces.as_ptr(), -1) };
    assert_eq!(error_of(refused as i64), libc::EINVAL);
}

#[test]
fn flags_mean_what_they_mean_on_tcp() {
    let session = Session::by_rings();
    let file = session.file();
    session.give(b"abcdef");
    assert_eq!(recv(file, 4, libc::MSG_PEEK), Ok(b"abcd".to_vec()));
    assert_eq!(recv(file, 4, libc::MSG_PEEK), Ok(b"abcd".to_vec()));
    // MSG_TRUNC discards bytes of a stream (tcp(7)); the buffer is left alone.
    assert_eq!(recv(file, 4, libc::MSG_TRUNC), Ok(vec![0; 4]));
    assert_eq!(recv(file, 4, libc::MSG_DONTWAIT), Ok(b"ef".to_vec()));
    assert_eq!(recv(file, 4, libc::MSG_DONTWAIT), Err(libc::EAGAIN));
    set_nonblocking(file);
    assert_eq!(recv(file, 4, 0), Err(libc::EAGAIN));
    // As on TCP, room for a byte makes no difference to recv(2) while there is none.
    assert_eq!(recv(file, 0, 0), Err(libc::EAGAIN), "no room");
    session.give(b"xy");
    let partly = recv(file, 4, libc::MSG_WAITALL);
    assert_eq!(partly, Ok(b"xy".to_vec()), "nonblocking");
    assert_eq!(session.kind(), Kind::Ring);
    // Urgent data is the pair's: the rings go back, and the call is the kernel's.
    assert!(recv(file, 4, libc::MSG_OOB).is_err());
    assert_eq!(session.kind(), Kind::Barred);
}

#[test]
fn all_that_was_asked_for_is_waited_for() {
    let session = Session::by_rings();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| recv(session.file(), 6, libc::MSG_WAITALL));
        session.give(b"abc");
        std::thread::sleep(Duration::from_millis(5));
        assert!(!reader.is_finished());
        session.give(b"def");
        assert_eq!(reader.join().unwrap(), Ok(b"abcdef".to_vec()));
    });
}

#[test]
fn a_reader_sleeps_until_bytes_or_the_end_come() {
    let session = Session::by_rings();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| read(session.file(), 8));
        std::thread::sleep(Duration::from_millis(5));
        session.give(b"woken");
        assert_eq!(reader.join().unwrap(), Ok(b"woken".to_vec()));
        let reader = scope.spawn(|| read(session.file(), 8));
        std::thread::sleep(Duration::from_millis(5));
        session.tell();
        session.end();
        assert_eq!(reader.join().unwrap(), Ok(Vec::new()));
    });
}

/// A stream knows one waiting reader: the one before was never woken.
#[test]
fn two_threads_that_wait_for_one_descriptor_are_both_served() {
    let session = Session::by_rings();
    let waits = || session.record().waits.load(Ordering::SeqCst);
    std::thread::scope(|scope| {
        let readers = [(); 2].map(|()| scope.spawn(|| read(session.file(), 1)));
        super::until("both wait for the pair", || {
            session.kind() == Kind::Barred && waits() == 0
        });
        session.give_by_pair(b"xy");
        let mut bytes = readers.map(|reader| reader.join().unwrap().unwrap());
        bytes.sort_unstable();
        assert_eq!(bytes, [b"x", b"y"]);
    });
}

#[test]
fn a_timeout_of_the_socket_ends_a_wait() {
    let session = Session::by_rings();
    let value = libc::timeval {
        tv_sec: 0,
        tv_usec: 20_000,
    };
    let from = (&raw const value).cast::<c_void>();
    let bytes = crate::real::length(size_of_val(&value));
    for option in [libc::SO_RCVTIMEO, libc::SO_SNDTIMEO] {
        // SAFETY: the value is there.
        let set =
            unsafe { crate::setsockopt(session.file(), libc::SOL_SOCKET, option, from, bytes) };
        assert_eq!(set, 0);
    }
    let begun = Instant::now();
    assert_eq!(read(session.file(), 8), Err(libc::EAGAIN));
    assert!(begun.elapsed() >= Duration::from_millis(20));
    // As many bytes as fit are written, and then the wait for room ends.
    assert_eq!(write(session.file(), &[7; RING_BYTES + 1]), Ok(RING_BYTES));
    assert_eq!(write(session.file(), &[7]), Err(libc::EAGAIN));
}

#[test]
fn a_writer_sleeps_until_there_is_room() {
    let session = Session::by_rings();
    let bytes: Vec<u8> = (0..3 * RING_BYTES).map(|at| at.to_le_bytes()[0]).collect();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(session.file(), &bytes));
        let mut taken = Vec::new();
        let begun = Instant::now();
        while taken.len() < bytes.len() {
            assert!(begun.elapsed() < PATIENCE, "{} bytes", taken.len());
            taken.extend(session.take(10_000));
        }
        assert_eq!(writer.join().unwrap(), Ok(bytes.len()));
        assert!(taken == bytes);
    });
}

#[test]
fn a_nonblocking_writer_gets_what_fits() {
    let session = Session::by_rings();
    set_nonblocking(session.file());
    let all = vec![7; 2 * RING_BYTES];
    assert_eq!(write(session.file(), &all), Ok(RING_BYTES));
    assert_eq!(write(session.file(), b"x"), Err(libc::EAGAIN));
    assert_eq!(session.take(100).len(), 100);
    assert_eq!(send(session.file(), &all, libc::MSG_MORE), Ok(100));
}

#[test]
fn a_session_that_is_often_full_gets_larger_rings() {
    let session = Session::by_rings();
    set_nonblocking(session.file());
    for turn in 0..=CRAMPED_MAX {
        let written = write(session.file(), &[7; RING_BYTES]);
        assert_eq!(written, Ok(RING_BYTES), "turn {turn}");
        assert_eq!(session.take(RING_BYTES).len(), RING_BYTES);
    }
    let all = vec![7; LARGE_RING_BYTES + 1];
    assert_eq!(write(session.file(), &all), Ok(LARGE_RING_BYTES));
    assert_eq!(session.take(all.len()).len(), LARGE_RING_BYTES);
    assert_eq!(session.kind(), Kind::Ring);
}

#[test]
fn bytes_of_the_pair_come_before_those_of_the_rings() {
    let session = Session::by_pair();
    session.give_by_pair(b"first");
    assert!(crate::rings::upgrade(session.file(), session.record()));
    assert_eq!(crate::stream::readable_bytes(session.file()), Some(5));
    session.give(b" second");
    assert_eq!(crate::stream::readable_bytes(session.file()), Some(12));
    let mut read_so_far = Vec::new();
    while read_so_far.len() < 12 {
        read_so_far.extend(read(session.file(), 64).unwrap());
    }
    assert_eq!(read_so_far, b"first second");
}

#[test]
fn a_null_pointer_is_an_error_and_no_crash() {
    let session = Session::by_rings();
    // SAFETY: the library, or the kernel, refuses the address.
    let (read, written) = unsafe {
        (
            crate::read(session.file(), std::ptr::null_mut(), 8),
            crate::write(session.file(), std::ptr::without_provenance(64), 8),
        )
    };
    assert_eq!(error_of(read as i64), libc::EFAULT);
    assert_eq!(error_of(written as i64), libc::EFAULT);
    // SAFETY: as above.
    let received = unsafe { crate::recvmsg(session.file(), std::ptr::null_mut(), 0) };
    assert_eq!(error_of(received as i64), libc::EFAULT);
    // SAFETY: as above.
    let sent = unsafe { crate::sendmsg(session.file(), std::ptr::null(), 0) };
    assert_eq!(error_of(sent as i64), libc::EFAULT);
    assert_eq!(session.kind(), Kind::Ring);
}

#[test]
fn an_address_is_none_for_a_stream() {
    let session = Session::by_rings();
    session.give(b"abc");
    let mut address = [0_u8; 128];
    let mut bytes = crate::real::length(address.len());
    let mut target = [0_u8; 8];
    // SAFETY: all of them are there.
    let count = unsafe {
        crate::recvfrom(
            session.file(),
            target.as_mut_ptr().cast(),
            8,
            0,
            address.as_mut_ptr().cast(),
            &raw mut bytes,
        )
    };
    assert_eq!((count, bytes, &target[..3]), (3, 0, &b"abc"[..]));
    // SAFETY: a stream takes no address, and none is given.
    let sent = unsafe {
        crate::sendto(
            session.file(),
            target.as_ptr().cast(),
            3,
            0,
            std::ptr::null(),
            0,
        )
    };
    assert_eq!(sent, 3);
    assert_eq!(session.take(8), b"abc");
}

#[test]
fn messages_have_no_name_and_no_control() {
    let session = Session::by_rings();
    session.give(b"abc");
    let (mut target, mut name, mut control) = ([0_u8; 8], [0_u8; 32], [0_u8; 32]);
    let mut piece = libc::iovec {
        iov_base: target.as_mut_ptr().cast(),
        iov_len: target.len(),
    };
    // SAFETY: zeros are an empty message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut piece;
    message.msg_iovlen = 1;
    message.msg_name = name.as_mut_ptr().cast();
    message.msg_namelen = 32;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = 32;
    message.msg_flags = -1;
    // SAFETY: all of it is there.
    let count = unsafe { crate::recvmsg(session.file(), &raw mut message, 0) };
    assert_eq!(count, 3);
    let lengths = (message.msg_namelen, message.msg_controllen);
    assert_eq!((lengths, message.msg_flags), ((0, 0), 0));
    // SAFETY: as above; the piece is this function's.
    let sent = unsafe {
        (*message.msg_iov).iov_len = 3;
        crate::sendmsg(session.file(), &raw const message, 0)
    };
    assert_eq!(sent, 3);
    assert_eq!(session.take(8), b"abc");
    // More control data than the kernel takes.
    message.msg_controllen = 200 << 10;
    // SAFETY: the library looks at the length first.
    let sent = unsafe { crate::sendmsg(session.file(), &raw const message, 0) };
    assert_eq!(error_of(sent as i64), libc::ENOBUFS);
}

#[test]
fn a_descriptor_that_is_passed_on_has_no_rings() {
    let (session, carrier) = (Session::by_rings(), Session::by_pair());
    session.give(b"for another process");
    assert_eq!(write(session.file(), b"written before"), Ok(14));
    let mut byte = [1_u8];
    let mut piece = libc::iovec {
        iov_base: byte.as_mut_ptr().cast(),
        iov_len: 1,
    };
    let mut control = [0_u64; 4];
    // SAFETY: zeros are an empty message; the control message fits the eight words.
    let sent = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut piece;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(4) as _;
        let head = libc::CMSG_FIRSTHDR(&raw const message);
        (*head).cmsg_level = libc::SOL_SOCKET;
        (*head).cmsg_type = libc::SCM_RIGHTS;
        (*head).cmsg_len = libc::CMSG_LEN(4) as _;
        libc::CMSG_DATA(head)
            .cast::<c_int>()
            .write_unaligned(session.file());
        crate::sendmsg(carrier.file(), &raw const message, 0)
    };
    assert_eq!(sent, 1);
    assert_eq!(session.kind(), Kind::Barred);
    // All bytes are in the pair, where any process finds them.
    assert_eq!(
        read(session.file(), 64),
        Ok(b"for another process".to_vec())
    );
    assert_eq!(session.take_rest(), b"written before");
}

#[test]
fn files_are_sent_from_their_position_or_an_offset() {
    let session = Session::by_rings();
    let mut file = tempfile::tempfile().unwrap();
    let bytes: Vec<u8> = (0..20_000_u32).map(|at| at.to_le_bytes()[0]).collect();
    file.write_all(&bytes).unwrap();
    let from = file.as_raw_fd();
    let mut offset = 5_000;
    // SAFETY: the offset is there.
    let sent = unsafe { crate::sendfile(session.file(), from, &raw mut offset, 30_000) };
    assert_eq!((sent, offset), (15_000, 20_000));
    assert!(session.take(30_000) == bytes[5_000..]);
    // SAFETY: a call without pointers; the file's own position is its end.
    let sent = unsafe { crate::sendfile64(session.file(), from, std::ptr::null_mut(), 100) };
    assert_eq!(sent, 0);
    std::io::Seek::rewind(&mut file).unwrap();
    // SAFETY: as above.
    let sent = unsafe { crate::sendfile(session.file(), from, std::ptr::null_mut(), 100) };
    assert_eq!(sent, 100);
    assert_eq!(std::io::Seek::stream_position(&mut file).unwrap(), 100);
    assert!(session.take(200) == bytes[..100]);
    // SAFETY: as above; there is no such descriptor.
    let refused = unsafe { crate::sendfile(session.file(), -1, std::ptr::null_mut(), 100) };
    assert_eq!(error_of(refused as i64), libc::EBADF);
}

#[test]
fn rings_that_are_taken_back_leave_the_pair() {
    let session = Session::by_rings();
    session.give(b"unread");
    assert_eq!(write(session.file(), b"unsent"), Ok(6));
    session.retake();
    assert_eq!(read(session.file(), 64), Ok(b"unread".to_vec()));
    assert_eq!(session.kind(), Kind::Barred);
    assert_eq!(write(session.file(), b", sent"), Ok(6));
    assert_eq!(session.take_rest(), b"unsent, sent");
}

#[test]
fn a_session_that_fails_is_the_kernels_to_report() {
    let session = Session::by_rings();
    session.give(b"last");
    session.fail(libc::ECONNRESET);
    assert_eq!(read(session.file(), 64), Ok(b"last".to_vec()));
    session.hang_up();
    // The pair knows the error; here it is closed, which is the end, and EPIPE for a write.
    assert_eq!(read(session.file(), 64), Ok(Vec::new()));
}

#[test]
fn calls_of_fortified_programs_check_their_room() {
    let session = Session::by_rings();
    session.give(b"abcdef");
    let mut target = [0_u8; 8];
    let at = target.as_mut_ptr().cast::<c_void>();
    // SAFETY: there is room for all calls.
    unsafe {
        assert_eq!(crate::__read_chk(session.file(), at, 2, 8), 2);
        assert_eq!(crate::__recv_chk(session.file(), at, 2, 8, 0), 2);
        let none = std::ptr::null_mut();
        let count = crate::__recvfrom_chk(session.file(), at, 2, 8, 0, none, std::ptr::null_mut());
        assert_eq!(count, 2);
    }
    assert_eq!(&target[..2], b"ef");
}

#[test]
fn lengths_of_pieces_are_added() {
    let piece = |bytes| libc::iovec {
        iov_base: std::ptr::null_mut(),
        iov_len: bytes,
    };
    assert_eq!(whole(&[]), 0);
    assert_eq!(whole(&[piece(3), piece(0), piece(5)]), 8);
}

#[test]
fn the_first_page_has_no_memory() {
    assert!(is_in_first_page(0) && is_in_first_page(4095));
    assert!(!is_in_first_page(4096));
}

fn piece(bytes: &mut [u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: bytes.len(),
    }
}

/// Between two pieces, another thread maps large rings, and the supervisor goes over to them: the
/// bytes of the first piece were read into it twice, and so lost.
#[test]
fn pieces_that_were_read_stay_when_a_later_one_fails() {
    let memory = |bytes| SharedMap::create("test", bytes, Sharing::ReadWrite).unwrap();
    let (map, large) = (memory(STREAM_BYTES), memory(LARGE_BYTES));
    let small = Stream::over(map.slice()).unwrap();
    small.begin();
    let mut served = Served::default();
    let supervisors = small.with_large(Some(large.slice()));
    let first = vec![1; RING_BYTES + 1];
    let given = supervisors.give(&mut served, &first).unwrap();
    assert_eq!(given, RING_BYTES);
    let (mut one, mut two) = (vec![0; RING_BYTES], [0; 8]);
    let pieces = [piece(&mut one), piece(&mut two)];
    let Lock::Held(mut held) = small.lock() else {
        panic!("it is free");
    };
    let mut copies = 0;
    let read = read_pieces(&pieces, 0, |room, _| {
        copies += 1;
        if copies == 2 {
            supervisors.show_large();
            assert_eq!(supervisors.give(&mut served, b"large"), Ok(5));
        }
        held.read(room, false, 0)
    });
    assert_eq!((read, copies), (Ok(RING_BYTES), 2));
    drop(held);
    let Lock::Held(mut held) = supervisors.lock() else {
        panic!("it is free");
    };
    let read = read_pieces(&pieces, RING_BYTES, |room, _| held.read(room, false, 0));
    assert_eq!(read, Ok(5));
    assert!(one.iter().all(|byte| *byte == 1));
    assert_eq!(&two[..5], b"large");
}

#[test]
fn pieces_that_were_written_count_when_a_later_one_fails() {
    let (mut one, mut two) = (*b"abc", *b"defgh");
    let pieces = [piece(&mut one), piece(&mut two)];
    let mut results = [Ok(3), Err(Broken)].into_iter();
    let mut copy = |_: &[u8]| results.next().unwrap();
    assert_eq!(write_pieces(&pieces, 0, &mut copy), Ok(3));
    assert_eq!(write_pieces(&pieces, 3, |_| Err(Broken)), Err(Broken));
}

/// Each wait of a call began the whole time anew: a peer that took a byte now and then kept a write
/// waiting for ever.
#[test]
fn a_timeout_of_the_socket_is_for_the_whole_call() {
    let session = Session::by_rings();
    let limit = libc::timeval {
        tv_sec: 0,
        tv_usec: 103_333,
    };
    // SAFETY: the value is there.
    let set = unsafe {
        crate::setsockopt(
            session.file(),
            libc::SOL_SOCKET,
            libc::SO_SNDTIMEO,
            (&raw const limit).cast(),
            libc::socklen_t::try_from(size_of_val(&limit)).unwrap(),
        )
    };
    assert_eq!(set, 0);
    let bytes = vec![7; 4 * RING_BYTES];
    let begun = Instant::now();
    let written = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write(session.file(), &bytes));
        // It ends in any case, so that a failure is none of time.
        for _ in 0..1000 {
            session.take(1);
            std::thread::sleep(Duration::from_millis(5));
            if writer.is_finished() {
                break;
            }
        }
        let is_over = writer.is_finished();
        session.take(bytes.len());
        session.take(bytes.len());
        session.take(bytes.len());
        (is_over, writer.join().unwrap())
    });
    assert!(begun.elapsed() >= Duration::from_micros(103_333));
    let (is_over, count) = written;
    assert!(is_over && count.unwrap() < 2 * RING_BYTES);
}

/// More threads than waiters: their timeouts did not end a call.
#[test]
fn a_call_without_a_waiter_ends_at_its_time() {
    let mut limit = Limit::default();
    let patience = Duration::from_millis(20);
    let begun = Instant::now();
    let end = limit.end(|| Some(patience));
    assert_eq!(limit.end(|| None), end, "of the call, not of one wait");
    let error = loop {
        if let Err(error) = nap(end) {
            break error;
        }
    };
    assert_eq!(error, libc::EAGAIN);
    assert!(begun.elapsed() >= patience);
    assert_eq!(Limit::default().end(|| None), None);
    assert_eq!(nap(None), Ok(()));
}
