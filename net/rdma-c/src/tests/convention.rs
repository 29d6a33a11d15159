//! The convention of errors: a negative errno, also where the body of a call panics.

use super::*;
use crate::call::{Errno, guarded};
use sidecore_rdma::{End, Fault, PostError, RdmaError, StartFault, Status};
use std::io;

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
