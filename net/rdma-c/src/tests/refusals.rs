//! Arguments that a program should not pass: each is refused before anything happens.
//!
//! The convention of errors: a negative errno, also where the body of a call panics.

use super::*;
use crate::call::{Errno, guarded};
use sidecore_rdma::{End, Fault, PostError, RdmaError, StartFault, Status};
use std::io;

#[test]
fn a_device_needs_a_place_and_a_path_that_is_text() {
    let mut rdma = ptr::null_mut();
    // SAFETY: NULL or places, and strings.
    unsafe {
        assert_eq!(
            sidecore_rdma_open(ptr::null_mut(), c"".as_ptr()),
            -libc::EINVAL
        );
        assert_eq!(
            sidecore_rdma_open(&mut rdma, c"\xff".as_ptr()),
            -libc::EINVAL
        );
        let nowhere = sidecore_rdma_open(&mut rdma, c"/nonexistent/engine".as_ptr());
        assert!(nowhere < 0, "{nowhere}");
    }
    assert!(rdma.is_null(), "a call that fails writes nothing");
}

#[test]
fn regions_are_checked_and_named_once() {
    let side = Side::open();
    let mut bytes = [7_u8; 32];
    let address: *mut c_void = bytes.as_mut_ptr().cast();
    let mut region = RawRegion {
        address: 1,
        bytes: 2,
        key: 3,
        reserved: 4,
    };
    // SAFETY: a device; NULL, or that number of bytes that outlive it; a place for the region.
    unsafe {
        let mut register = |address, bytes, access, out: bool| {
            let out = if out {
                &raw mut region
            } else {
                ptr::null_mut()
            };
            sidecore_rdma_register(side.rdma, address, bytes, access, out)
        };
        assert_eq!(register(ptr::null_mut(), 1, 1, true), -libc::EINVAL);
        assert_eq!(register(address, 32, 1, false), -libc::EINVAL);
        for unknown in [32, 33, 1 << 31] {
            assert_eq!(
                register(address, 32, unknown, true),
                -libc::EINVAL,
                "{unknown}"
            );
        }
        // No bytes need no address, and all rights together are rights.
        assert_eq!(register(ptr::null_mut(), 0, 31, true), 0);
        assert_eq!(register(address, 32, 31, true), 0);
    }
    assert_eq!(region.address, address.addr().to_u64());
    assert_eq!((region.bytes, region.reserved), (32, 0));
    // SAFETY: a device.
    unsafe {
        assert_eq!(sidecore_rdma_deregister(side.rdma, region.key), 0);
        assert_eq!(
            sidecore_rdma_deregister(side.rdma, region.key),
            -libc::ENOENT
        );
    }
}

#[test]
fn queues_are_bounded_and_gone_once_dropped() {
    let side = Side::open();
    let mut room = std::mem::MaybeUninit::<RawCompletion>::uninit();
    // SAFETY: a device, and room for the completions that are asked for.
    unsafe {
        let mut poll =
            |queue, count| sidecore_rdma_poll(side.rdma, queue, room.as_mut_ptr(), count);
        assert_eq!(poll(side.queue, 0), 0);
        assert_eq!(poll(side.queue, 1), 0);
        assert_eq!(poll(-1, 1), -libc::ENOENT);
        assert_eq!(poll(i64::from(u32::MAX) + 1 + side.queue, 1), -libc::ENOENT);
        assert_eq!(sidecore_rdma_drop_queue(side.rdma, side.queue), 0);
        assert_eq!(poll(side.queue, 1), -libc::ENOENT);
        assert_eq!(
            sidecore_rdma_poll(side.rdma, 0, ptr::null_mut(), 1),
            -libc::EINVAL
        );
        let mut last = 0;
        for _ in 0..=sidecore_rdma::QUEUES_MAX {
            last = sidecore_rdma_queue(side.rdma, 0);
        }
        assert_eq!(last, -i64::from(libc::ENOSPC));
    }
}

#[test]
fn addresses_and_options_are_read_strictly() {
    let side = Side::open();
    let invalid = -i64::from(libc::EINVAL);
    for address in ["", "127.0.0.1", "localhost:1", "127.0.0.1:65536", "[::1]"] {
        assert_eq!(side.listen(address, ptr::null()), invalid, "{address}");
        assert_eq!(
            side.connect(address, ptr::null(), b""),
            invalid,
            "{address}"
        );
    }
    // SAFETY: a device; NULL, or text of another encoding.
    unsafe {
        for text in [ptr::null(), c"\xff:1".as_ptr()] {
            assert_eq!(
                sidecore_rdma_listen(side.rdma, text, 1, ptr::null()),
                invalid
            );
        }
    }
    let wrong = [
        RawOptions {
            size: 0,
            ..options()
        },
        RawOptions {
            size: 40,
            ..options()
        },
        RawOptions {
            reserved: [0, 0, 0, 1],
            ..options()
        },
        RawOptions {
            reads: 1 << 16,
            ..options()
        },
    ];
    for options in &wrong {
        assert_eq!(side.listen("127.0.0.1:0", options), invalid, "{options:?}");
        assert_eq!(
            side.connect("127.0.0.1:1", options, b""),
            invalid,
            "{options:?}"
        );
    }
    let (_, address) = listening(&side, &options());
    let used = side.listen(&address, ptr::null());
    assert_eq!(used, -i64::from(libc::EADDRINUSE));
}

#[test]
fn private_data_and_queues_of_a_connection_are_checked() {
    let side = Side::open();
    let (listener, address) = listening(&side, ptr::null());
    let too_long = -i64::from(libc::EMSGSIZE);
    for bytes in [509, 512, 513] {
        let connected = side.connect(&address, ptr::null(), &vec![1; bytes]);
        assert_eq!(connected, too_long, "{bytes}");
    }
    let peer = CString::new(address.clone()).expect("no zero in it");
    let (peer, none) = (peer.as_ptr(), ptr::null());
    // SAFETY: a device, a string, no options; NULL with a length is what is tested.
    unsafe {
        let connect = |send, receive, bytes| {
            sidecore_rdma_connect(side.rdma, peer, none, send, receive, ptr::null(), bytes)
        };
        assert_eq!(connect(0, 0, 1), -i64::from(libc::EINVAL));
        assert_eq!(
            connect(0, 0, usize::MAX),
            too_long,
            "a wild length is no slice"
        );
        for (send, receive) in [(-1, 0), (0, -1), (99, 0), (0, 99)] {
            let refused = connect(send, receive, 0);
            assert_eq!(refused, -i64::from(libc::ENOENT), "{send} {receive}");
        }
        assert_eq!(sidecore_rdma_close_listener(side.rdma, listener), 0);
        assert_eq!(sidecore_rdma_port(side.rdma, listener), -libc::ENOENT);
        assert_eq!(
            sidecore_rdma_event(side.rdma, ptr::null_mut()),
            -libc::EINVAL
        );
    }
    // Nothing of this has left an event.
    assert!(side.event().is_none());
}

#[test]
fn work_and_pieces_are_checked() {
    let two = Two::open(None);
    let side = &two.client;
    let mut bytes = [0_u8; 64];
    let region = side.register(&mut bytes, 1);
    let one = piece(&region, 8);
    // SAFETY: a device; NULL is what is tested.
    unsafe {
        let null = sidecore_rdma_post(side.rdma, two.connected, ptr::null());
        assert_eq!(null, -libc::EINVAL);
        let post =
            |pieces, count| sidecore_rdma_post_receive(side.rdma, two.connected, 1, pieces, count);
        assert_eq!(post(ptr::null(), 1), -libc::EINVAL);
        assert_eq!(post(&one, 5), -libc::EINVAL);
        assert_eq!(
            post(&one, u32::MAX),
            -libc::EINVAL,
            "a wild number is no slice"
        );
        assert_eq!(post(ptr::null(), 0), 0);
    }
    for kind in [8, 9, u32::MAX] {
        let refused = side.post(two.connected, &work(1, kind, &[one]));
        assert_eq!(refused, -libc::EINVAL, "{kind}");
    }
    let five = RawWork {
        piece_count: 5,
        ..work(1, 0, &[one])
    };
    assert_eq!(side.post(two.connected, &five), -libc::EINVAL);
    for pieces in [&[][..], &[one, one]] {
        let read = work(1, 4, pieces);
        assert_eq!(side.post(two.connected, &read), -libc::EINVAL, "one piece");
    }
    let foreign = RawPiece {
        key: one.key ^ 1,
        ..one
    };
    let beyond = RawPiece { bytes: 65, ..one };
    for wrong in [foreign, beyond] {
        assert_eq!(
            side.post(two.connected, &work(1, 0, &[wrong])),
            -libc::EACCES
        );
        assert_eq!(side.post_receive(two.connected, 1, &[wrong]), -libc::EACCES);
    }
    let huge = RawPiece {
        bytes: u32::MAX,
        ..one
    };
    let too_long = side.post(two.connected, &work(1, 0, &[huge; 4]));
    assert_eq!(too_long, -libc::EMSGSIZE);
}

#[test]
fn shared_queues_are_checked_and_gone_once_dropped() {
    let side = Side::open();
    let mut bytes = [0_u8; 16];
    let region = side.register(&mut bytes, 1);
    let piece = piece(&region, 16);
    // SAFETY: a device, and one piece.
    unsafe {
        let shared = sidecore_rdma_shared(side.rdma, 1);
        assert!(shared >= 0, "{shared}");
        let post =
            |shared, pieces, count| sidecore_rdma_post_shared(side.rdma, shared, 5, pieces, count);
        assert_eq!(post(shared, ptr::null(), 1), -libc::EINVAL);
        assert_eq!(post(-1, &piece, 1), -libc::ENOENT);
        assert_eq!(post(shared, &piece, 1), 0);
        assert_eq!(post(shared, &piece, 1), -libc::EAGAIN);
        assert_eq!(sidecore_rdma_cancel_shared(side.rdma, shared, 6), 0);
        assert_eq!(sidecore_rdma_cancel_shared(side.rdma, shared, 5), 1);
        assert_eq!(sidecore_rdma_cancel_shared(side.rdma, shared, 5), 0);
        assert_eq!(sidecore_rdma_drop_shared(side.rdma, shared), 0);
        assert_eq!(post(shared, &piece, 1), -libc::ENOTCONN);
        // The place is used again, under another number.
        let other = sidecore_rdma_shared(side.rdma, 1);
        assert!(other > shared, "{other}");
        assert_eq!(post(shared, &piece, 1), -libc::ENOTCONN);
    }
}

/// A call of the header on a device that may be NULL.
type Call = (&'static str, fn(*mut SidecoreRdma) -> i64);

/// All calls with a device, with arguments that are otherwise valid.
fn calls() -> Vec<Call> {
    // SAFETY: all of them pass NULL or a device; other pointers are NULL or valid.
    unsafe {
        vec![
            ("register", |rdma| {
                let mut region = std::mem::MaybeUninit::uninit();
                sidecore_rdma_register(rdma, ptr::null_mut(), 0, 0, region.as_mut_ptr()).into()
            }),
            ("deregister", |rdma| {
                sidecore_rdma_deregister(rdma, 1).into()
            }),
            ("queue", |rdma| sidecore_rdma_queue(rdma, 1)),
            ("drop_queue", |rdma| {
                sidecore_rdma_drop_queue(rdma, 0).into()
            }),
            ("shared", |rdma| sidecore_rdma_shared(rdma, 1)),
            ("drop_shared", |rdma| {
                sidecore_rdma_drop_shared(rdma, 0).into()
            }),
            ("share", |rdma| sidecore_rdma_share(rdma, 0, 0).into()),
            ("post_shared", |rdma| {
                sidecore_rdma_post_shared(rdma, 0, 0, ptr::null(), 0).into()
            }),
            ("cancel_shared", |rdma| {
                sidecore_rdma_cancel_shared(rdma, 0, 0).into()
            }),
            ("cancel_receive", |rdma| {
                sidecore_rdma_cancel_receive(rdma, 0, 0).into()
            }),
            ("listen", |rdma| {
                sidecore_rdma_listen(rdma, c"127.0.0.1:0".as_ptr(), 1, ptr::null())
            }),
            ("port", |rdma| sidecore_rdma_port(rdma, 0).into()),
            ("close_listener", |rdma| {
                sidecore_rdma_close_listener(rdma, 0).into()
            }),
            ("connect", |rdma| {
                let peer = c"127.0.0.1:1".as_ptr();
                sidecore_rdma_connect(rdma, peer, ptr::null(), 0, 0, ptr::null(), 0)
            }),
            ("connect_from", |rdma| {
                let (local, peer) = (c"127.0.0.1:0".as_ptr(), c"127.0.0.1:1".as_ptr());
                sidecore_rdma_connect_from(rdma, local, peer, ptr::null(), 0, 0, ptr::null(), 0)
            }),
            ("limit_opening", |rdma| {
                sidecore_rdma_limit_opening(rdma, 1).into()
            }),
            ("hold_first", |rdma| {
                sidecore_rdma_hold_first(rdma, 0).into()
            }),
            ("accept", |rdma| {
                sidecore_rdma_accept(rdma, 0, 0, 0, ptr::null(), 0).into()
            }),
            ("reject", |rdma| {
                sidecore_rdma_reject(rdma, 0, ptr::null(), 0).into()
            }),
            ("shut", |rdma| sidecore_rdma_shut(rdma, 0).into()),
            ("disconnect", |rdma| {
                sidecore_rdma_disconnect(rdma, 0).into()
            }),
            ("abort", |rdma| sidecore_rdma_abort(rdma, 0).into()),
            ("post", |rdma| {
                sidecore_rdma_post(rdma, 0, &work(0, 0, &[])).into()
            }),
            ("post_receive", |rdma| {
                sidecore_rdma_post_receive(rdma, 0, 0, ptr::null(), 0).into()
            }),
            ("event", |rdma| {
                let mut event = std::mem::MaybeUninit::uninit();
                sidecore_rdma_event(rdma, event.as_mut_ptr()).into()
            }),
            ("poll", |rdma| {
                let mut one = std::mem::MaybeUninit::uninit();
                sidecore_rdma_poll(rdma, 0, one.as_mut_ptr(), 1).into()
            }),
            ("progress", |rdma| sidecore_rdma_progress(rdma).into()),
            ("wait", |rdma| sidecore_rdma_wait(rdma, 0).into()),
            ("arm", |rdma| sidecore_rdma_arm(rdma).into()),
            ("descriptor", |rdma| sidecore_rdma_descriptor(rdma).into()),
        ]
    }
}

#[test]
fn every_call_without_a_device_is_einval() {
    for (name, call) in calls() {
        assert_eq!(call(ptr::null_mut()), -i64::from(libc::EINVAL), "{name}");
    }
    // SAFETY: NULL is allowed.
    unsafe { sidecore_rdma_close(ptr::null_mut()) };
}

#[test]
fn numbers_of_nothing_are_enoent() {
    let side = Side::open();
    let nothing = [
        "deregister",
        "share",
        "port",
        "accept",
        "reject",
        "shut",
        "disconnect",
        "abort",
        "post",
        "post_receive",
    ];
    for (name, call) in calls() {
        if nothing.contains(&name) {
            assert_eq!(call(side.rdma), -i64::from(libc::ENOENT), "{name}");
        }
    }
    for number in [-1, i64::MIN, i64::MAX, 1 << 40] {
        // SAFETY: a device, and numbers of nothing.
        let refused = unsafe {
            [
                sidecore_rdma_abort(side.rdma, number),
                sidecore_rdma_port(side.rdma, number),
                sidecore_rdma_share(side.rdma, 0, number),
            ]
        };
        assert_eq!(refused, [-libc::ENOENT; 3], "{number}");
    }
}

#[test]
fn each_error_has_its_number() {
    let unnumbered = io::Error::other("the engine is gone");
    let numbered = io::Error::from_raw_os_error(libc::EADDRINUSE);
    for (error, number) in [
        (RdmaError::Io(unnumbered), libc::ESHUTDOWN),
        (RdmaError::Io(numbered), libc::EADDRINUSE),
        (RdmaError::TooMany("queues", 1), libc::ENOSPC),
        (PostError::Full(8).into(), libc::EAGAIN),
        (PostError::Fault(Fault::Stag).into(), libc::EACCES),
        (PostError::TooLong.into(), libc::EMSGSIZE),
        (PostError::NoReads.into(), libc::EOPNOTSUPP),
        (PostError::Ended.into(), libc::ENOTCONN),
        (StartFault::PrivateData(600, 512).into(), libc::EMSGSIZE),
        (StartFault::NotRequested.into(), libc::ENOTCONN),
        (RdmaError::Ended(End::Lost), libc::ENOTCONN),
        (RdmaError::Unknown("connection"), libc::ENOENT),
        (RdmaError::Late(LONG), libc::ETIMEDOUT),
        (RdmaError::Undone(Status::Flushed), libc::EINVAL),
    ] {
        let text = error.to_string();
        assert_eq!(Errno::from(error), Errno(number), "{text}");
    }
}

#[test]
fn results_and_panics_become_numbers() {
    assert_eq!(guarded::<c_int, _>(|| Ok(())), 0);
    assert_eq!(guarded::<c_int, _>(|| Ok(true)), 1);
    assert_eq!(guarded::<c_int, _>(|| Ok(7)), 7);
    assert_eq!(guarded::<i64, _>(|| Ok(u32::MAX)), 0xffff_ffff);
    assert_eq!(guarded::<i64, _>(|| Ok(u64::MAX >> 1)), i64::MAX);
    let refused = || Err::<(), _>(Errno(libc::EACCES));
    assert_eq!(guarded::<c_int, _>(refused), -libc::EACCES);
    let refused = || Err::<u32, _>(Errno::UNKNOWN);
    assert_eq!(guarded::<i64, _>(refused), -i64::from(libc::ENOENT));
    let broken = || -> Result<(), Errno> { panic!("the body of a call, in this test") };
    assert_eq!(guarded::<c_int, _>(broken), -libc::EIO);
    let broken = || -> Result<u32, Errno> { panic!("the body of a call, in this test") };
    assert_eq!(guarded::<i64, _>(broken), -i64::from(libc::EIO));
}

#[test]
fn a_device_outlives_a_panic_of_one_of_its_calls() {
    let side = Side::open();
    let rdma = side.rdma;
    let broken: c_int = on_device!(|rdma| {
        rdma.device.create_queue(1)?;
        assert!(rdma.regions.len() > 1, "in this test");
        Ok(())
    });
    assert_eq!(broken, -libc::EIO);
    // SAFETY: the device.
    assert!(unsafe { sidecore_rdma_queue(rdma, 1) } > side.queue);
}
