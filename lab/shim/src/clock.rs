//! The wire and the clock, which is the runner's.

#![allow(unsafe_code)] // the C surface: reads and writes what C's pointers point to

use crate::abi::User;
use crate::shim::{self, PATIENCE_NS, Shim, c_result};
use libc::{c_int, c_longlong, c_uint, c_void, size_t, timeval};
use sidecore_net_drill::files::{Answer, Errno};

/// Step of the clock at each reading, in nanoseconds: the runner spins until its time has come.
const LOOK_NS: u64 = 1_000;

impl Shim {
    fn advance(&self, ns: u64) -> u64 {
        let mut state = self.lock();
        self.wait_for_lookers(&mut state);
        let until_ns = state.files.host().now_ns().saturating_add(ns);
        // Timer by timer, so that a call that waits returns at its moment.
        while state.files.host().step(until_ns) {
            self.change(&mut state);
            self.wait_for_lookers(&mut state);
        }
        state.files.host().advance(until_ns);
        self.change(&mut state);
        until_ns
    }

    /// The next packet, and when it went out. Waits for it, on the virtual clock.
    fn next_packet(&self) -> Option<(u64, Vec<u8>)> {
        let mut state = self.lock();
        let until_ns = state.files.host().now_ns() + PATIENCE_NS;
        loop {
            self.wait_for_lookers(&mut state);
            if let Some(sent) = state.files.host().take_sent() {
                return Some((sent.at_ns, sent.packet));
            }
            if !state.files.host().step(until_ns) {
                return None;
            }
            self.change(&mut state);
        }
    }
}

/// Frees the interface.
pub(crate) unsafe extern "C" fn free(user: User) {
    if !user.is_null() {
        // SAFETY: from `Box::into_raw`, and C calls this once, after all other calls.
        drop(unsafe { Box::from_raw(user.cast::<Shim>()) });
    }
}

/// Delivers an IP packet of the peer to the stack.
pub(crate) unsafe extern "C" fn netdev_send(
    user: User,
    bytes: *const c_void,
    len: size_t,
) -> c_int {
    let done = || -> Answer<i32> {
        // SAFETY: C's promise on `user`.
        let shim = unsafe { shim::of(user) }?;
        if bytes.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        // SAFETY: C says that there are `len` bytes.
        let packet = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), len) };
        let mut state = shim.lock();
        state.files.host().inject(packet);
        shim.change(&mut state);
        Ok(0)
    };
    c_result(done())
}

/// The next packet of the stack; a length of 0 if none will come.
pub(crate) unsafe extern "C" fn netdev_receive(
    user: User,
    bytes: *mut c_void,
    len: *mut size_t,
    at_us: *mut c_longlong,
) -> c_int {
    let done = || -> Answer<i32> {
        // SAFETY: C's promise on `user`.
        let shim = unsafe { shim::of(user) }?;
        if bytes.is_null() || len.is_null() {
            return Err(Errno(libc::EFAULT));
        }
        let (at_ns, packet) = shim.next_packet().unwrap_or_default();
        // SAFETY: C says that `len` points to the number of bytes at `bytes`; no more are written.
        // `at_us` is null or points to a time.
        unsafe {
            let fits = packet.len().min(*len);
            bytes
                .cast::<u8>()
                .copy_from_nonoverlapping(packet.as_ptr(), fits);
            *len = fits;
            if !at_us.is_null() {
                *at_us = (at_ns / 1_000) as c_longlong;
            }
        }
        Ok(0)
    };
    c_result(done())
}

/// Lets virtual time pass.
pub(crate) unsafe extern "C" fn usleep(user: User, us: c_uint) -> c_int {
    // SAFETY: C's promise on `user`.
    let shim = unsafe { shim::of(user) };
    c_result(shim.map(|shim| {
        shim.advance(u64::from(us) * 1_000);
        0
    }))
}

/// gettimeofday(2) of the virtual clock, which each reading advances a little.
pub(crate) unsafe extern "C" fn gettimeofday(
    user: User,
    time: *mut timeval,
    _zone: *mut c_void,
) -> c_int {
    // SAFETY: C's promise on `user`.
    let shim = unsafe { shim::of(user) };
    c_result(shim.map(|shim| {
        let now_ns = shim.advance(LOOK_NS);
        if !time.is_null() {
            let now = timeval {
                tv_sec: (now_ns / 1_000_000_000) as libc::time_t,
                tv_usec: (now_ns / 1_000 % 1_000_000) as libc::suseconds_t,
            };
            // SAFETY: not null, so it points to a time, says C.
            unsafe { time.write(now) };
        }
        0
    }))
}
