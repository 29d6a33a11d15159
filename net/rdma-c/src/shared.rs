//! Shared receive queues, and cancelled receives.

use crate::convert::{Errno, errno};
use crate::{RawPiece, SidecoreRdma, call, connection, receive};
use sidecore_rdma::SharedId;
use std::ffi::{c_int, c_uint};

fn shared(number: i64) -> Result<SharedId, Errno> {
    let number = u64::try_from(number).map_err(|_| Errno(libc::ENOENT))?;
    Ok(SharedId::from_number(number))
}

/// See the header, as for all functions below.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_rdma_shared(rdma: *mut SidecoreRdma, depth: c_uint) -> i64 {
    let body = |rdma: &mut SidecoreRdma| {
        let shared = rdma.device.create_shared(depth as usize).map_err(errno)?;
        Ok(shared.number().cast_signed())
    };
    // SAFETY: a device, by the caller's promise.
    unsafe { call(rdma, body) }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_rdma_drop_shared(rdma: *mut SidecoreRdma, number: i64) -> c_int {
    let body = |rdma: &mut SidecoreRdma| {
        rdma.device.drop_shared(shared(number)?);
        Ok(0)
    };
    // SAFETY: a device, by the caller's promise.
    unsafe { call(rdma, body) as c_int }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_rdma_share(
    rdma: *mut SidecoreRdma,
    number: i64,
    queue: i64,
) -> c_int {
    let body = |rdma: &mut SidecoreRdma| {
        let (connection, shared) = (connection(number), shared(queue)?);
        let done = rdma.device.share_receives(connection, shared);
        done.map(|()| 0).map_err(errno)
    };
    // SAFETY: a device, by the caller's promise.
    unsafe { call(rdma, body) as c_int }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_rdma_post_shared(
    rdma: *mut SidecoreRdma,
    number: i64,
    id: u64,
    pieces: *const RawPiece,
    count: c_uint,
) -> c_int {
    let body = |rdma: &mut SidecoreRdma| {
        // SAFETY: this number of pieces, by the caller's promise.
        let receive = unsafe { receive(id, pieces, count)? };
        let posted = rdma.device.post_shared(shared(number)?, receive);
        posted.map(|()| 0).map_err(errno)
    };
    // SAFETY: a device, by the caller's promise.
    unsafe { call(rdma, body) as c_int }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_rdma_cancel_shared(
    rdma: *mut SidecoreRdma,
    number: i64,
    id: u64,
) -> c_int {
    let body = |rdma: &mut SidecoreRdma| Ok(rdma.device.cancel_shared(shared(number)?, id).into());
    // SAFETY: a device, by the caller's promise.
    unsafe { call(rdma, body) as c_int }
}

/// See the header.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sidecore_rdma_cancel_receive(
    rdma: *mut SidecoreRdma,
    number: i64,
    id: u64,
) -> c_int {
    let body =
        |rdma: &mut SidecoreRdma| Ok(rdma.device.cancel_receive(connection(number), id).into());
    // SAFETY: a device, by the caller's promise.
    unsafe { call(rdma, body) as c_int }
}
