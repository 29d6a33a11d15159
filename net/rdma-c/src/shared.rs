//! Shared receive queues, and cancelled receives.

use crate::call::{Errno, on_device};
use crate::{RawPiece, SidecoreRdma, connection, receive};
use sidecore_bare::width::ToUsize;
use sidecore_rdma::SharedId;
use std::ffi::{c_int, c_uint};

fn shared(number: i64) -> Result<SharedId, Errno> {
    // A negative one is an error of `sidecore_rdma_shared` that was passed on.
    let number = u64::try_from(number).map_err(|_| Errno::UNKNOWN)?;
    Ok(SharedId::from_number(number))
}

/// See the header, as for all functions below.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_rdma_shared(
    rdma: *mut SidecoreRdma,
    depth: c_uint,
) -> i64 {
    on_device!(|rdma| {
        let shared = rdma.device.create_shared(depth.to_usize())?;
        Ok(shared.number())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_rdma_drop_shared(
    rdma: *mut SidecoreRdma,
    number: i64,
) -> c_int {
    on_device!(|rdma| {
        rdma.device.drop_shared(shared(number)?);
        Ok(())
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_rdma_share(
    rdma: *mut SidecoreRdma,
    number: i64,
    queue: i64,
) -> c_int {
    on_device!(|rdma| {
        // A wrong number of the queue is ENOENT, also where it is too late to share.
        let (connection, shared) = (connection(number), shared(queue)?);
        Ok(rdma.device.share_receives(connection, shared)?)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_rdma_post_shared(
    rdma: *mut SidecoreRdma,
    number: i64,
    id: u64,
    pieces: *const RawPiece,
    count: c_uint,
) -> c_int {
    on_device!(|rdma| {
        // SAFETY: this number of pieces, by the caller's promise.
        let receive = unsafe { receive(id, pieces, count)? };
        Ok(rdma.device.post_shared(shared(number)?, receive)?)
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_rdma_cancel_shared(
    rdma: *mut SidecoreRdma,
    number: i64,
    id: u64,
) -> c_int {
    on_device!(|rdma| Ok(rdma.device.cancel_shared(shared(number)?, id)))
}

/// See the header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sidecore_rdma_cancel_receive(
    rdma: *mut SidecoreRdma,
    number: i64,
    id: u64,
) -> c_int {
    on_device!(|rdma| Ok(rdma.device.cancel_receive(connection(number), id)))
}
