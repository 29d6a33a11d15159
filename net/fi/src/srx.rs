//! Shared receive contexts: receives for several endpoints.

use crate::abi::*;
use crate::core::{Asked, Core, Op, Srx, negative};
use crate::ep::{CM, EP};
use crate::{Object, head, plain_ops, transfer};
use sidecore_rdma::{ConnectionId, RECEIVES_MAX, Receive};
use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

static SRX_FID: fi_ops = plain_ops(close, Some(bind), Some(control));

pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    _attr: *mut fi_rx_attr,
    out: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: a domain of ours and a place for a pointer, by libfabric's contract.
    unsafe {
        let fabric = Arc::clone(&Object::of(domain).fabric);
        let index = match fabric.lock().open_srx() {
            Ok(index) => index,
            Err(error) => return error,
        };
        let raw = fid_ep {
            fid: head(FI_CLASS_SRX_CTX, context, &SRX_FID),
            ops: &EP,
            cm: &CM,
            msg: &transfer::MSG,
            rma: std::ptr::null(),
            tagged: std::ptr::null(),
            atomic: std::ptr::null(),
            collective: std::ptr::null(),
        };
        Object { raw, fabric, index }.hand_out(out);
    }
    0
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: a context of ours, for the last time.
    let object = unsafe { Object::<fid_ep>::take(fid) };
    object.fabric.lock().close_srx(object.index);
    0
}

/// Completions go to the endpoints' queues: nothing needs to be bound.
unsafe extern "C" fn bind(_fid: *mut fid, _other: *mut fid, _flags: u64) -> c_int {
    -libc::EINVAL
}

unsafe extern "C" fn control(_fid: *mut fid, command: c_int, _arg: *mut c_void) -> c_int {
    if command == FI_ENABLE {
        0
    } else {
        -libc::ENOSYS
    }
}

impl Core {
    /// Makes a shared receive context.
    pub(crate) fn open_srx(&mut self) -> Result<usize, i32> {
        // As deep as possible, whatever the attributes say: memory is used by posted receives only.
        let id = self.device.create_shared(RECEIVES_MAX);
        let id = id.map_err(|error| negative(&error))?;
        Ok(self.srxs.insert(Srx {
            id,
            receives: HashMap::new(),
            next_receive: 0,
            unread: 0,
        }))
    }

    /// Closes a context; its receives are dropped.
    pub(crate) fn close_srx(&mut self, srx: usize) {
        if let Some(srx) = self.srxs.remove(srx) {
            self.device.drop_shared(srx.id);
        }
    }

    /// Makes a connection that is not open yet use a shared context.
    pub(crate) fn share(&mut self, connection: ConnectionId, srx: usize) -> Result<(), i32> {
        let srx = self.srxs.get(srx).ok_or(-libc::EINVAL)?;
        let shared = self.device.share_receives(connection, srx.id);
        shared.map_err(|error| negative(&error))
    }

    /// Makes an endpoint use a shared context.
    pub(crate) fn bind_srx(&mut self, index: usize, srx: usize) -> Result<(), i32> {
        let ep = self.eps.get(index).ok_or(-libc::EINVAL)?;
        ep.srx = Some(srx);
        // A passive side's endpoint has its connection already, which is not accepted yet.
        match ep.connection {
            Some(connection) => self.share(connection, srx),
            None => Ok(()),
        }
    }

    pub(crate) fn post_shared(
        &mut self,
        index: usize,
        buffers: &[iovec],
        asked: &Asked,
    ) -> Result<(), i32> {
        let pieces = self.pieces(buffers)?;
        // Unread completions count, as those of an endpoint do.
        let srx = self.srxs.get(index).ok_or(-libc::EINVAL)?;
        if srx.receives.len() + srx.unread >= RECEIVES_MAX {
            return Err(-libc::EAGAIN);
        }
        // Counted only once it is posted: a refused one leaves no gap.
        let number = srx.next_receive;
        let receive = Receive { id: number, pieces };
        let posted = self.device.post_shared(srx.id, receive);
        posted.map_err(|error| negative(&error))?;
        srx.next_receive += 1;
        // The queue of the receiving endpoint may report it even if the context has none.
        let op = Op::receive(asked, buffers, number, asked.flags & FI_COMPLETION != 0);
        srx.receives.insert(number, op);
        Ok(())
    }

    /// Cancels the oldest receive with that context that no message has begun to fill; false if
    /// there is none. It belongs to no endpoint yet, so no queue reports it.
    pub(crate) fn cancel_shared(&mut self, index: usize, context: usize) -> bool {
        let Some(srx) = self.srxs.get(index) else {
            return false;
        };
        let numbers = srx.receives.iter().filter(|(_, op)| op.context == context);
        // Numbers are given in the order of posting.
        let Some(number) = numbers.map(|(&number, _)| number).min() else {
            return false;
        };
        let was_there = self.device.cancel_shared(srx.id, number);
        if was_there {
            srx.receives.remove(&number);
        }
        was_there
    }
}
