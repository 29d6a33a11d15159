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

mod call;
mod convert;
mod shared;
#[cfg(test)]
mod tests;

pub(crate) use convert::{RawCompletion, RawEvent, RawOptions, RawPiece, RawRegion, RawWork};

use call::{Errno, guarded, on_device};
use convert::{bytes_of, options_of, pieces_at, post_of};
use sidecore_bare::width::ToUsize;
use sidecore_rdma::{
    Access, ConnectionId, Device, ListenerId, QueueId, Queues, Receive, Region, Transport,
};
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::time::Duration;

/// `struct sidecore_rdma`.
#[derive(Debug)]
pub(crate) struct SidecoreRdma {
    device: Device,
    regions: HashMap<u32, Region>,
}

/// Waits without a limit are repeated waits of this length.
const NAP: Duration = Duration::from_secs(3600);
/// Completions that one call takes at most.
const POLLED_MAX: usize = 64;

/// A string of the caller.
///
/// # Safety
/// `text` is NULL or a string.
unsafe fn text<'a>(text: *const c_char) -> Result<&'a str, Errno> {
    if text.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Errno::INVALID)
}

fn address(text: &str) -> Result<SocketAddr, Errno> {
    text.parse().map_err(|_| Errno::INVALID)
}

fn queue(number: i64) -> Result<QueueId, Errno> {
    let number = u32::try_from(number).map_err(|_| Errno::UNKNOWN)?;
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
pub(crate) unsafe extern "C" fn sidecore_rdma_open(
    out: *mut *mut SidecoreRdma,
    socket: *const c_char,
) -> c_int {
    guarded(|| {
        if out.is_null() {
            return Err(Errno::INVALID);
        }
        let transport = if socket.is_null() {
            Transport::from_environment()
        } else {
            // SAFETY: a string, by the caller's promise.
            match unsafe { text(socket)? } {
                "" => Transport::Kernel,
                path => Transport::Stack(path.into()),
            }
        };
        let opened = Box::new(SidecoreRdma {
            device: Device::open(transport)?,
            regions: HashMap::new(),
        });
        // Last: a call that fails leaves the program's pointer as it was.
        // SAFETY: a place for a pointer, by the caller's promise.
        unsafe { out.write(Box::into_raw(opened)) };
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_rdma_close(rdma: *mut SidecoreRdma) {
    if !rdma.is_null() {
        // SAFETY: it came from `sidecore_rdma_open`, and this is its last use.
        let opened = unsafe { Box::from_raw(rdma) };
        // A panic in a destructor is caught, too. There is no result to tell it by.
        let _: c_int = guarded(|| {
            drop(opened);
            Ok(())
        });
    }
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_rdma_register(
    rdma: *mut SidecoreRdma,
    address: *mut c_void,
    bytes: usize,
    access: c_uint,
    out: *mut RawRegion,
) -> c_int {
    on_device!(|rdma| {
        if out.is_null() || (address.is_null() && bytes > 0) {
            return Err(Errno::INVALID);
        }
        let rights = [
            Access::LOCAL_WRITE,
            Access::REMOTE_READ,
            Access::REMOTE_WRITE,
            Access::REMOTE_ATOMIC,
            Access::REMOTE_INVALIDATE,
        ];
        // A bit of a later header may be a restriction that this library would not keep.
        if access >> rights.len() != 0 {
            return Err(Errno::INVALID);
        }
        // In the order of the header's bits.
        let chosen = (0..).zip(rights).filter(|(bit, _)| access >> bit & 1 == 1);
        let access = chosen.fold(Access::NONE, |all, (_, right)| all | right);
        let adapter = rdma.device.adapter_mut();
        // SAFETY: the header asks the caller for the same promise.
        let region = unsafe { adapter.register_memory(address.cast(), bytes, access) };
        let region = region?;
        // Keys are not used again while their region is there, so none is replaced.
        rdma.regions.insert(region.stag.0, region);
        let raw = RawRegion {
            address: region.base,
            bytes: region.bytes,
            key: region.stag.0,
            reserved: 0,
        };
        // SAFETY: a place for it, by the caller's promise.
        unsafe { out.write(raw) };
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_rdma_deregister(
    rdma: *mut SidecoreRdma,
    key: u32,
) -> c_int {
    on_device!(|rdma| {
        // A key that a peer has invalidated is still here: this call gives its memory back.
        let region = rdma.regions.remove(&key).ok_or(Errno::UNKNOWN)?;
        rdma.device.adapter_mut().deregister(region);
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_rdma_queue(rdma: *mut SidecoreRdma, depth: c_uint) -> i64 {
    on_device!(|rdma| {
        let queue = rdma.device.create_queue(depth.to_usize())?;
        Ok(queue.number())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_rdma_drop_queue(
    rdma: *mut SidecoreRdma,
    number: i64,
) -> c_int {
    on_device!(|rdma| {
        rdma.device.drop_queue(queue(number)?);
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_rdma_listen(
    rdma: *mut SidecoreRdma,
    local: *const c_char,
    backlog: c_uint,
    options: *const RawOptions,
) -> i64 {
    on_device!(|rdma| {
        // SAFETY: a string, NULL or options, by the caller's promise.
        let (local, options) = unsafe { (address(text(local)?)?, options_of(options)?) };
        let listener = rdma.device.listen(local, backlog.to_usize(), options)?;
        Ok(listener.number())
    })
}

fn listener(number: i64) -> Result<ListenerId, Errno> {
    let number = u32::try_from(number).map_err(|_| Errno::UNKNOWN)?;
    Ok(ListenerId::from_number(number))
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_rdma_port(rdma: *mut SidecoreRdma, number: i64) -> c_int {
    on_device!(|rdma| {
        let address = rdma.device.listener_address(listener(number)?);
        Ok(c_int::from(address.ok_or(Errno::UNKNOWN)?.port()))
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_rdma_close_listener(
    rdma: *mut SidecoreRdma,
    number: i64,
) -> c_int {
    on_device!(|rdma| {
        rdma.device.close_listener(listener(number)?);
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_rdma_connect(
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
pub(crate) unsafe extern "C" fn sidecore_rdma_connect_from(
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
    on_device!(|rdma| {
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
        Ok(connection?.number())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_rdma_limit_opening(
    rdma: *mut SidecoreRdma,
    limit_ms: c_uint,
) -> c_int {
    on_device!(|rdma| {
        let limit = Duration::from_millis(limit_ms.into());
        rdma.device.limit_opening(limit);
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_rdma_hold_first(
    rdma: *mut SidecoreRdma,
    time_ms: c_uint,
) -> c_int {
    on_device!(|rdma| {
        let time = Duration::from_millis(time_ms.into());
        rdma.device.hold_first(time);
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_rdma_accept(
    rdma: *mut SidecoreRdma,
    number: i64,
    send_queue: i64,
    receive_queue: i64,
    private_data: *const c_void,
    bytes: usize,
) -> c_int {
    on_device!(|rdma| {
        // SAFETY: this number of bytes, by the caller's promise.
        let data = unsafe { bytes_of(private_data, bytes)? };
        let queues = queues(send_queue, receive_queue)?;
        Ok(rdma.device.accept(connection(number), queues, data)?)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_rdma_reject(
    rdma: *mut SidecoreRdma,
    number: i64,
    private_data: *const c_void,
    bytes: usize,
) -> c_int {
    on_device!(|rdma| {
        // SAFETY: this number of bytes, by the caller's promise.
        let data = unsafe { bytes_of(private_data, bytes)? };
        Ok(rdma.device.reject(connection(number), data)?)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_rdma_shut(rdma: *mut SidecoreRdma, number: i64) -> c_int {
    on_device!(|rdma| Ok(rdma.device.shut(connection(number))?))
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_rdma_disconnect(
    rdma: *mut SidecoreRdma,
    number: i64,
) -> c_int {
    on_device!(|rdma| Ok(rdma.device.close(connection(number))?))
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_rdma_abort(rdma: *mut SidecoreRdma, number: i64) -> c_int {
    on_device!(|rdma| Ok(rdma.device.abort(connection(number))?))
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_rdma_post(
    rdma: *mut SidecoreRdma,
    number: i64,
    work: *const RawWork,
) -> c_int {
    on_device!(|rdma| {
        // SAFETY: NULL or work, by the caller's promise.
        let work = unsafe { work.as_ref() }.ok_or(Errno::INVALID)?;
        Ok(rdma.device.post(connection(number), post_of(work)?)?)
    })
}

/// A receive of the caller.
///
/// # Safety
/// As of [`pieces_at`].
pub(crate) unsafe fn receive(
    id: u64,
    pieces: *const RawPiece,
    count: c_uint,
) -> Result<Receive, Errno> {
    // SAFETY: the caller's promise.
    let pieces = unsafe { pieces_at(pieces, count)? };
    Ok(Receive { id, pieces })
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_rdma_post_receive(
    rdma: *mut SidecoreRdma,
    number: i64,
    id: u64,
    pieces: *const RawPiece,
    count: c_uint,
) -> c_int {
    on_device!(|rdma| {
        // SAFETY: this number of pieces, by the caller's promise.
        let receive = unsafe { receive(id, pieces, count)? };
        Ok(rdma.device.post_receive(connection(number), receive)?)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_rdma_event(
    rdma: *mut SidecoreRdma,
    out: *mut RawEvent,
) -> c_int {
    on_device!(|rdma| {
        if out.is_null() {
            return Err(Errno::INVALID);
        }
        // Taken only where it can be passed on.
        let Some(event) = rdma.device.next_event() else {
            return Ok(0);
        };
        // SAFETY: a place for it, by the caller's promise.
        unsafe { out.write(RawEvent::from(&event)) };
        Ok(1)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_rdma_poll(
    rdma: *mut SidecoreRdma,
    number: i64,
    out: *mut RawCompletion,
    count: c_uint,
) -> c_int {
    on_device!(|rdma| {
        if out.is_null() {
            return Err(Errno::INVALID);
        }
        let queue = queue(number)?;
        // On the stack: a poll of a few completions allocates nothing.
        let mut entries = [None; POLLED_MAX];
        let entries = &mut entries[..POLLED_MAX.min(count.to_usize())];
        let taken = rdma.device.poll_or_progress(queue, entries)?;
        for (index, queued) in entries[..taken].iter().flatten().enumerate() {
            // SAFETY: `count` places, of which this is one, by the caller's promise.
            unsafe { out.add(index).write(RawCompletion::from(queued)) };
        }
        // At most POLLED_MAX.
        Ok(c_int::try_from(taken).unwrap_or(c_int::MAX))
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_rdma_progress(rdma: *mut SidecoreRdma) -> c_int {
    on_device!(|rdma| Ok(rdma.device.progress()?))
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_rdma_wait(
    rdma: *mut SidecoreRdma,
    timeout_ms: c_int,
) -> c_int {
    on_device!(|rdma| {
        // Negative: for ever, in naps, since a time limit is what the device takes.
        let limit = u64::try_from(timeout_ms).map_or(NAP, Duration::from_millis);
        loop {
            let is_there = rdma.device.wait(limit)?;
            if is_there || timeout_ms >= 0 {
                return Ok(is_there);
            }
        }
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_rdma_arm(rdma: *mut SidecoreRdma) -> c_int {
    on_device!(|rdma| Ok(rdma.device.arm()?))
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_rdma_descriptor(rdma: *mut SidecoreRdma) -> c_int {
    on_device!(|rdma| {
        // A stack inside this process has none: its owner polls.
        let descriptor = rdma.device.descriptor().ok_or(Errno(libc::ENOTSUP))?;
        Ok(descriptor.as_raw_fd())
    })
}
