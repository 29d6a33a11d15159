#![doc = include_str!("../README.md")]
//!
//! Must stay true: the header; each of its layouts is declared here with the same size (the test
//! compiles both). Nothing unwinds into the program. A NULL pointer for a required argument makes a
//! call fail; otherwise the caller guarantees valid pointers, as in C.

#![allow(unsafe_code, reason = "a C surface")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the header says what each function needs"
)]

mod convert;
mod shared;

pub use convert::{RawCompletion, RawEvent, RawOptions, RawPiece, RawRegion, RawWork};
pub use shared::{
    sidecore_rdma_cancel_receive, sidecore_rdma_cancel_shared, sidecore_rdma_drop_shared,
    sidecore_rdma_post_shared, sidecore_rdma_share, sidecore_rdma_shared,
};

use convert::{Errno, bytes_of, errno, options_of, pieces_of, post_of};
use sidecore_rdma::{
    Access, ConnectionId, Device, ListenerId, QueueId, Queues, Receive, Region, Transport,
};
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// `struct sidecore_rdma`.
#[derive(Debug)]
pub struct SidecoreRdma {
    device: Device,
    regions: HashMap<u32, Region>,
}

/// Waits without a limit are repeated waits of this length.
const NAP: Duration = Duration::from_secs(3600);
/// Completions that one call takes at most.
const POLLED_MAX: usize = 64;

/// Runs a call on a device: its result, or the negative error.
///
/// # Safety
/// `rdma` is NULL or a device that no other thread uses now.
unsafe fn call(
    rdma: *mut SidecoreRdma,
    body: impl FnOnce(&mut SidecoreRdma) -> Result<i64, Errno>,
) -> i64 {
    // SAFETY: the caller's promise.
    let Some(rdma) = (unsafe { rdma.as_mut() }) else {
        return -i64::from(libc::EINVAL);
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| body(rdma)));
    match outcome {
        Ok(Ok(value)) => value,
        Ok(Err(Errno(number))) => -i64::from(number),
        Err(_) => -i64::from(libc::EIO),
    }
}

/// A string of the caller.
///
/// # Safety
/// `text` is NULL or a string.
unsafe fn text<'a>(text: *const c_char) -> Result<&'a str, Errno> {
    if text.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Errno(libc::EINVAL))
}

fn address(text: &str) -> Result<SocketAddr, Errno> {
    text.parse().map_err(|_| Errno(libc::EINVAL))
}

fn queue(number: i64) -> Result<QueueId, Errno> {
    let number = u32::try_from(number).map_err(|_| Errno(libc::ENOENT))?;
    Ok(QueueId::from_number(number))
}

fn queues(send: i64, receive: i64) -> Result<Queues, Errno> {
    Ok(Queues {
        send: queue(send)?,
        receive: queue(receive)?,
    })
}

fn connection(number: i64) -> ConnectionId {
    ConnectionId::from_number(number.cast_unsigned())
}

/// See the header, as for all functions below.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_rdma_open(
    out: *mut *mut SidecoreRdma,
    socket: *const c_char,
) -> c_int {
    if out.is_null() {
        return -libc::EINVAL;
    }
    let transport = if socket.is_null() {
        Transport::from_environment()
    } else {
        // SAFETY: a string, by the caller's promise.
        match unsafe { text(socket) } {
            Ok("") => Transport::Kernel,
            Ok(path) => Transport::Stack(path.into()),
            Err(Errno(number)) => return -number,
        }
    };
    match catch_unwind(AssertUnwindSafe(|| Device::open(transport))) {
        Ok(Ok(device)) => {
            let opened = Box::new(SidecoreRdma {
                device,
                regions: HashMap::new(),
            });
            // SAFETY: a place for a pointer, by the caller's promise.
            unsafe { out.write(Box::into_raw(opened)) };
            0
        }
        Ok(Err(error)) => -errno(error).0,
        Err(_) => -libc::EIO,
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_rdma_close(rdma: *mut SidecoreRdma) {
    if !rdma.is_null() {
        // SAFETY: it came from `sidecore_rdma_open`, and this is its last use.
        let opened = unsafe { Box::from_raw(rdma) };
        // A panic in a destructor is caught here.
        catch_unwind(AssertUnwindSafe(|| drop(opened))).ok();
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_rdma_register(
    rdma: *mut SidecoreRdma,
    address: *mut c_void,
    bytes: usize,
    access: c_uint,
    out: *mut RawRegion,
) -> c_int {
    let body = |rdma: &mut SidecoreRdma| {
        if out.is_null() || (address.is_null() && bytes > 0) {
            return Err(Errno(libc::EINVAL));
        }
        let rights = [
            Access::LOCAL_WRITE,
            Access::REMOTE_READ,
            Access::REMOTE_WRITE,
            Access::REMOTE_ATOMIC,
            Access::REMOTE_INVALIDATE,
        ];
        if access >> rights.len() != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let chosen = (0..).zip(rights).filter(|(bit, _)| access >> bit & 1 == 1);
        let access = chosen.fold(Access::NONE, |all, (_, right)| all | right);
        let adapter = rdma.device.adapter_mut();
        // SAFETY: the header asks the caller for the same promise.
        let region = unsafe { adapter.register_memory(address.cast(), bytes, access) };
        let region = region.map_err(errno)?;
        rdma.regions.insert(region.stag.0, region);
        let raw = RawRegion {
            address: region.base,
            bytes: region.bytes,
            key: region.stag.0,
            reserved: 0,
        };
        // SAFETY: a place for it, by the caller's promise.
        unsafe { out.write(raw) };
        Ok(0)
    };
    // SAFETY: a device, by the caller's promise.
    unsafe { call(rdma, body) as c_int }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_rdma_deregister(rdma: *mut SidecoreRdma, key: u32) -> c_int {
    let body = |rdma: &mut SidecoreRdma| {
        let region = rdma.regions.remove(&key).ok_or(Errno(libc::ENOENT))?;
        rdma.device.adapter_mut().deregister(region);
        Ok(0)
    };
    // SAFETY: a device, by the caller's promise.
    unsafe { call(rdma, body) as c_int }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_rdma_queue(rdma: *mut SidecoreRdma, depth: c_uint) -> i64 {
    let body = |rdma: &mut SidecoreRdma| {
        let queue = rdma.device.create_queue(depth as usize).map_err(errno)?;
        Ok(queue.number().into())
    };
    // SAFETY: a device, by the caller's promise.
    unsafe { call(rdma, body) }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_rdma_drop_queue(rdma: *mut SidecoreRdma, number: i64) -> c_int {
    let body = |rdma: &mut SidecoreRdma| {
        rdma.device.drop_queue(queue(number)?);
        Ok(0)
    };
    // SAFETY: a device, by the caller's promise.
    unsafe { call(rdma, body) as c_int }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_rdma_listen(
    rdma: *mut SidecoreRdma,
    local: *const c_char,
    backlog: c_uint,
    options: *const RawOptions,
) -> i64 {
    let body = |rdma: &mut SidecoreRdma| {
        // SAFETY: a string, NULL or options, by the caller's promise.
        let (local, options) = unsafe { (address(text(local)?)?, options_of(options)?) };
        let listener = rdma.device.listen(local, backlog as usize, options);
        Ok(listener.map_err(errno)?.number().into())
    };
    // SAFETY: a device, by the caller's promise.
    unsafe { call(rdma, body) }
}

fn listener(number: i64) -> Result<ListenerId, Errno> {
    let number = u32::try_from(number).map_err(|_| Errno(libc::ENOENT))?;
    Ok(ListenerId::from_number(number))
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_rdma_port(rdma: *mut SidecoreRdma, number: i64) -> c_int {
    let body = |rdma: &mut SidecoreRdma| {
        let address = rdma.device.listener_address(listener(number)?);
        Ok(address.ok_or(Errno(libc::ENOENT))?.port().into())
    };
    // SAFETY: a device, by the caller's promise.
    unsafe { call(rdma, body) as c_int }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_rdma_close_listener(
    rdma: *mut SidecoreRdma,
    number: i64,
) -> c_int {
    let body = |rdma: &mut SidecoreRdma| {
        rdma.device.close_listener(listener(number)?);
        Ok(0)
    };
    // SAFETY: a device, by the caller's promise.
    unsafe { call(rdma, body) as c_int }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_rdma_connect(
    rdma: *mut SidecoreRdma,
    peer: *const c_char,
    options: *const RawOptions,
    send_queue: i64,
    receive_queue: i64,
    private_data: *const c_void,
    bytes: usize,
) -> i64 {
    let queues = (send_queue, receive_queue);
    // SAFETY: the caller's promises are those of that function.
    unsafe { connect(rdma, None, peer, options, queues, (private_data, bytes)) }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_rdma_connect_from(
    rdma: *mut SidecoreRdma,
    local: *const c_char,
    peer: *const c_char,
    options: *const RawOptions,
    send_queue: i64,
    receive_queue: i64,
    private_data: *const c_void,
    bytes: usize,
) -> i64 {
    let queues = (send_queue, receive_queue);
    let data = (private_data, bytes);
    // SAFETY: the caller's promises are those of that function.
    unsafe { connect(rdma, Some(local), peer, options, queues, data) }
}

/// Connects.
///
/// # Safety
/// As the header requires for both calls.
unsafe fn connect(
    rdma: *mut SidecoreRdma,
    local: Option<*const c_char>,
    peer: *const c_char,
    options: *const RawOptions,
    (send_queue, receive_queue): (i64, i64),
    (private_data, bytes): (*const c_void, usize),
) -> i64 {
    let body = |rdma: &mut SidecoreRdma| {
        // SAFETY: strings, NULL or options, and this number of bytes, by the caller's promise.
        let (local, peer, options, data) = unsafe {
            (
                local.map(|local| address(text(local)?)).transpose()?,
                address(text(peer)?)?,
                options_of(options)?,
                bytes_of(private_data, bytes)?,
            )
        };
        let queues = queues(send_queue, receive_queue)?;
        let connection = rdma.device.connect_from(local, peer, options, queues, data);
        Ok(connection.map_err(errno)?.number().cast_signed())
    };
    // SAFETY: a device, by the caller's promise.
    unsafe { call(rdma, body) }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_rdma_limit_opening(
    rdma: *mut SidecoreRdma,
    limit_ms: c_uint,
) -> c_int {
    let body = |rdma: &mut SidecoreRdma| {
        let limit = Duration::from_millis(limit_ms.into());
        rdma.device.limit_opening(limit);
        Ok(0)
    };
    // SAFETY: a device, by the caller's promise.
    unsafe { call(rdma, body) as c_int }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_rdma_hold_first(
    rdma: *mut SidecoreRdma,
    time_ms: c_uint,
) -> c_int {
    let body = |rdma: &mut SidecoreRdma| {
        let time = Duration::from_millis(time_ms.into());
        rdma.device.hold_first(time);
        Ok(0)
    };
    // SAFETY: a device, by the caller's promise.
    unsafe { call(rdma, body) as c_int }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_rdma_accept(
    rdma: *mut SidecoreRdma,
    number: i64,
    send_queue: i64,
    receive_queue: i64,
    private_data: *const c_void,
    bytes: usize,
) -> c_int {
    let body = |rdma: &mut SidecoreRdma| {
        // SAFETY: this number of bytes, by the caller's promise.
        let data = unsafe { bytes_of(private_data, bytes)? };
        let queues = queues(send_queue, receive_queue)?;
        let accepted = rdma.device.accept(connection(number), queues, data);
        accepted.map(|()| 0).map_err(errno)
    };
    // SAFETY: a device, by the caller's promise.
    unsafe { call(rdma, body) as c_int }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_rdma_reject(
    rdma: *mut SidecoreRdma,
    number: i64,
    private_data: *const c_void,
    bytes: usize,
) -> c_int {
    let body = |rdma: &mut SidecoreRdma| {
        // SAFETY: this number of bytes, by the caller's promise.
        let data = unsafe { bytes_of(private_data, bytes)? };
        let rejected = rdma.device.reject(connection(number), data);
        rejected.map(|()| 0).map_err(errno)
    };
    // SAFETY: a device, by the caller's promise.
    unsafe { call(rdma, body) as c_int }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_rdma_shut(rdma: *mut SidecoreRdma, number: i64) -> c_int {
    let body = |rdma: &mut SidecoreRdma| {
        let shut = rdma.device.shut(connection(number));
        shut.map(|()| 0).map_err(errno)
    };
    // SAFETY: a device, by the caller's promise.
    unsafe { call(rdma, body) as c_int }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_rdma_disconnect(rdma: *mut SidecoreRdma, number: i64) -> c_int {
    let body = |rdma: &mut SidecoreRdma| {
        let closed = rdma.device.close(connection(number));
        closed.map(|()| 0).map_err(errno)
    };
    // SAFETY: a device, by the caller's promise.
    unsafe { call(rdma, body) as c_int }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_rdma_abort(rdma: *mut SidecoreRdma, number: i64) -> c_int {
    let body = |rdma: &mut SidecoreRdma| {
        let aborted = rdma.device.abort(connection(number));
        aborted.map(|()| 0).map_err(errno)
    };
    // SAFETY: a device, by the caller's promise.
    unsafe { call(rdma, body) as c_int }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_rdma_post(
    rdma: *mut SidecoreRdma,
    number: i64,
    work: *const RawWork,
) -> c_int {
    let body = |rdma: &mut SidecoreRdma| {
        // SAFETY: NULL or work, by the caller's promise.
        let work = unsafe { work.as_ref() }.ok_or(Errno(libc::EINVAL))?;
        let posted = rdma.device.post(connection(number), post_of(work)?);
        posted.map(|()| 0).map_err(errno)
    };
    // SAFETY: a device, by the caller's promise.
    unsafe { call(rdma, body) as c_int }
}

/// A receive of the caller.
///
/// # Safety
/// `count` pieces are at `pieces`, which may be NULL if there are none.
pub(crate) unsafe fn receive(
    id: u64,
    pieces: *const RawPiece,
    count: c_uint,
) -> Result<Receive, Errno> {
    let pieces = if count == 0 {
        &[]
    } else if pieces.is_null() {
        return Err(Errno(libc::EINVAL));
    } else {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(pieces, count as usize) }
    };
    let pieces = pieces_of(pieces)?;
    Ok(Receive { id, pieces })
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_rdma_post_receive(
    rdma: *mut SidecoreRdma,
    number: i64,
    id: u64,
    pieces: *const RawPiece,
    count: c_uint,
) -> c_int {
    let body = |rdma: &mut SidecoreRdma| {
        // SAFETY: this number of pieces, by the caller's promise.
        let receive = unsafe { receive(id, pieces, count)? };
        let posted = rdma.device.post_receive(connection(number), receive);
        posted.map(|()| 0).map_err(errno)
    };
    // SAFETY: a device, by the caller's promise.
    unsafe { call(rdma, body) as c_int }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_rdma_event(rdma: *mut SidecoreRdma, out: *mut RawEvent) -> c_int {
    let body = |rdma: &mut SidecoreRdma| {
        if out.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        let Some(event) = rdma.device.next_event() else {
            return Ok(0);
        };
        // SAFETY: a place for it, by the caller's promise.
        unsafe { out.write(RawEvent::from(&event)) };
        Ok(1)
    };
    // SAFETY: a device, by the caller's promise.
    unsafe { call(rdma, body) as c_int }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_rdma_poll(
    rdma: *mut SidecoreRdma,
    number: i64,
    out: *mut RawCompletion,
    count: c_uint,
) -> c_int {
    let body = |rdma: &mut SidecoreRdma| {
        if out.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        let queue = queue(number)?;
        let mut entries = [None; POLLED_MAX];
        let entries = &mut entries[..POLLED_MAX.min(count as usize)];
        let mut taken = rdma.device.poll(queue, entries).map_err(errno)?;
        if taken == 0 {
            let progressed = rdma.device.progress();
            taken = rdma.device.poll(queue, entries).map_err(errno)?;
            if taken == 0 {
                progressed.map_err(errno)?;
            }
        }
        for (index, queued) in entries[..taken].iter().flatten().enumerate() {
            // SAFETY: `count` places, of which this is one, by the caller's promise.
            unsafe { out.add(index).write(RawCompletion::from(queued)) };
        }
        Ok(taken as i64)
    };
    // SAFETY: a device, by the caller's promise.
    unsafe { call(rdma, body) as c_int }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_rdma_progress(rdma: *mut SidecoreRdma) -> c_int {
    let body = |rdma: &mut SidecoreRdma| rdma.device.progress().map(i64::from).map_err(errno);
    // SAFETY: a device, by the caller's promise.
    unsafe { call(rdma, body) as c_int }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_rdma_wait(rdma: *mut SidecoreRdma, timeout_ms: c_int) -> c_int {
    let body = |rdma: &mut SidecoreRdma| {
        let limit = u64::try_from(timeout_ms).map_or(NAP, Duration::from_millis);
        loop {
            let is_there = rdma.device.wait(limit).map_err(errno)?;
            if is_there || timeout_ms >= 0 {
                return Ok(i64::from(is_there));
            }
        }
    };
    // SAFETY: a device, by the caller's promise.
    unsafe { call(rdma, body) as c_int }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_rdma_arm(rdma: *mut SidecoreRdma) -> c_int {
    let body = |rdma: &mut SidecoreRdma| rdma.device.arm().map(i64::from).map_err(errno);
    // SAFETY: a device, by the caller's promise.
    unsafe { call(rdma, body) as c_int }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_rdma_descriptor(rdma: *mut SidecoreRdma) -> c_int {
    let body = |rdma: &mut SidecoreRdma| {
        let descriptor = rdma.device.descriptor().ok_or(Errno(libc::ENOTSUP))?;
        Ok(descriptor.as_raw_fd().into())
    };
    // SAFETY: a device, by the caller's promise.
    unsafe { call(rdma, body) as c_int }
}
