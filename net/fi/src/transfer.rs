//! Messages, and reads and writes of the peer's memory.

use crate::abi::*;
use crate::core::{Asked, Core, Report};
use crate::info::PIECES;
use crate::place::INJECT_BYTES;
use crate::{Object, endpoint_calls};
use sidecore_rdma::{Remote, Stag, Work};
use std::ffi::{c_int, c_void};

pub(crate) static MSG: fi_ops_msg = fi_ops_msg {
    size: size_of::<fi_ops_msg>(),
    recv: Some(recv),
    recvv: Some(recvv),
    recvmsg: Some(recvmsg),
    send: Some(send),
    sendv: Some(sendv),
    sendmsg: Some(sendmsg),
    inject: Some(inject),
    senddata: Some(senddata),
    injectdata: Some(injectdata),
};
pub(crate) static RMA: fi_ops_rma = fi_ops_rma {
    size: size_of::<fi_ops_rma>(),
    read: Some(read),
    readv: Some(readv),
    readmsg: Some(readmsg),
    write: Some(write),
    writev: Some(writev),
    writemsg: Some(writemsg),
    inject: Some(inject_write),
    writedata: Some(writedata),
    injectdata: Some(inject_writedata),
};

/// Buffers of a call.
///
/// # Safety
/// `count` buffers at `iov`, which may be NULL if there are none.
unsafe fn buffers<'a>(iov: *const iovec, count: usize) -> Result<&'a [iovec], i32> {
    if count == 0 {
        return Ok(&[]);
    }
    // Before the slice: a wild count is an error, not undefined behaviour.
    if count > PIECES || iov.is_null() {
        return Err(-libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(iov, count) })
}

fn one(buf: *const c_void, len: usize) -> [iovec; 1] {
    [iovec {
        iov_base: buf.cast_mut(),
        iov_len: len,
    }]
}

/// Kinds of operations on an endpoint's buffers.
#[derive(Debug, Clone, Copy)]
enum What {
    Send,
    Write(Remote),
    Read(Remote),
}

/// Posts an operation.
///
/// # Safety
/// `ep` is an endpoint of this provider; the buffers stay valid until its completion, or until the
/// call returns if they are injected.
unsafe fn operate(ep: *mut fid_ep, what: What, buffers: &[iovec], asked: Asked) -> Result<(), i32> {
    // SAFETY: the caller's promise.
    let object = unsafe { Object::of(ep) };
    // A shared receive context has the same operations, and sends nothing.
    if object.raw.fid.fclass != FI_CLASS_EP {
        return Err(-libc::EINVAL);
    }
    let mut core = object.fabric.lock();
    core.operate(object.index, what, buffers, asked)
}

impl Core {
    fn operate(
        &mut self,
        index: usize,
        what: What,
        buffers: &[iovec],
        asked: Asked,
    ) -> Result<(), i32> {
        let asked = self.with_endpoint_flags(index, asked)?;
        let len = buffers.iter().map(|buffer| buffer.iov_len).sum();
        let copied;
        // The result of a read has no copy: it goes where the program wants it.
        let buffers = if asked.flags & FI_INJECT != 0 && !matches!(what, What::Read(_)) {
            // Before the copy: a program that relies on it must not get half of its data sent.
            if len > INJECT_BYTES {
                return Err(-libc::EMSGSIZE);
            }
            copied = [self.copy(index, buffers)?];
            &copied[..]
        } else {
            buffers
        };
        let pieces = self.pieces(buffers)?;
        let (work, report) = match what {
            What::Send => {
                let send = Work::Send {
                    pieces,
                    invalidate: None,
                    solicited: false,
                };
                (vec![send], Report::SEND)
            }
            What::Write(remote) => (vec![Work::Write { pieces, remote }], Report::WRITE),
            What::Read(remote) => {
                // The wire's read has one local piece, so several are several reads.
                let mut at = remote;
                let reads = pieces.into_iter().map(|into| {
                    let remote = at;
                    at.offset = at.offset.wrapping_add(into.bytes.into());
                    Work::Read { into, remote }
                });
                (reads.collect(), Report::READ)
            }
        };
        self.post(index, work, &[], len, &asked, report)
    }
}

pub(crate) fn remote(addr: u64, key: u64) -> Remote {
    Remote {
        // A longer key cannot be one of ours.
        stag: Stag(u32::try_from(key).unwrap_or(0)),
        offset: addr,
    }
}

/// Posts a receive.
///
/// # Safety
/// An endpoint or a shared receive context of this provider; the buffers stay valid until the
/// completion.
unsafe fn receive(ep: *mut fid_ep, buffers: &[iovec], asked: Asked) -> Result<(), i32> {
    // SAFETY: the caller's promise.
    let object = unsafe { Object::of(ep) };
    let mut core = object.fabric.lock();
    // Both kinds of objects have these functions in their table; their numbers are of two tables.
    if object.raw.fid.fclass == FI_CLASS_SRX_CTX {
        core.post_shared(object.index, buffers, &asked)
    } else {
        core.post_receive(object.index, buffers, &asked)
    }
}

/// The operation that a message structure describes.
///
/// # Safety
/// The structure and its parts are valid.
unsafe fn rma<'a>(msg: *const fi_msg_rma, flags: u64) -> Result<(Remote, &'a [iovec], Asked), i32> {
    // SAFETY: the caller's promise.
    unsafe {
        let msg = &*msg;
        // `rma_iov_limit` is 1.
        if msg.rma_iov_count != 1 {
            return Err(-libc::EINVAL);
        }
        let there = msg.rma_iov.read();
        let buffers = buffers(msg.msg_iov, msg.iov_count)?;
        let asked = Asked::message(msg.context, flags, msg.data);
        Ok((remote(there.addr, there.key), buffers, asked))
    }
}

endpoint_calls! {
    fn recv(
        ep, buf: *mut c_void, len: usize, _desc: *mut c_void, _source: u64, context: *mut c_void,
    ) {
        receive(ep, &one(buf, len), Asked::short(context))
    }

    fn recvv(
        ep, iov: *const iovec, _desc: *mut *mut c_void, count: usize, _source: u64,
        context: *mut c_void,
    ) {
        receive(ep, buffers(iov, count)?, Asked::short(context))
    }

    fn recvmsg(ep, msg: *const fi_msg, flags: u64) {
        let msg = &*msg;
        // Data is sent, never received: the field is not looked at.
        let asked = Asked::message(msg.context, flags & !FI_REMOTE_CQ_DATA, 0);
        receive(ep, buffers(msg.msg_iov, msg.iov_count)?, asked)
    }

    fn send(
        ep, buf: *const c_void, len: usize, _desc: *mut c_void, _peer: u64, context: *mut c_void,
    ) {
        operate(ep, What::Send, &one(buf, len), Asked::short(context))
    }

    fn sendv(
        ep, iov: *const iovec, _desc: *mut *mut c_void, count: usize, _peer: u64,
        context: *mut c_void,
    ) {
        operate(ep, What::Send, buffers(iov, count)?, Asked::short(context))
    }

    fn sendmsg(ep, msg: *const fi_msg, flags: u64) {
        let msg = &*msg;
        let asked = Asked::message(msg.context, flags, msg.data);
        operate(ep, What::Send, buffers(msg.msg_iov, msg.iov_count)?, asked)
    }

    fn inject(ep, buf: *const c_void, len: usize, _peer: u64) {
        operate(ep, What::Send, &one(buf, len), Asked::injected())
    }

    fn senddata(
        ep, buf: *const c_void, len: usize, _desc: *mut c_void, data: u64, _peer: u64,
        context: *mut c_void,
    ) {
        operate(ep, What::Send, &one(buf, len), Asked::short(context).with_data(data))
    }

    fn injectdata(ep, buf: *const c_void, len: usize, data: u64, _peer: u64) {
        operate(ep, What::Send, &one(buf, len), Asked::injected().with_data(data))
    }

    fn read(
        ep, buf: *mut c_void, len: usize, _desc: *mut c_void, _peer: u64, addr: u64, key: u64,
        context: *mut c_void,
    ) {
        operate(ep, What::Read(remote(addr, key)), &one(buf, len), Asked::short(context))
    }

    fn readv(
        ep, iov: *const iovec, _desc: *mut *mut c_void, count: usize, _peer: u64, addr: u64,
        key: u64, context: *mut c_void,
    ) {
        let what = What::Read(remote(addr, key));
        operate(ep, what, buffers(iov, count)?, Asked::short(context))
    }

    fn readmsg(ep, msg: *const fi_msg_rma, flags: u64) {
        let (remote, buffers, asked) = rma(msg, flags)?;
        operate(ep, What::Read(remote), buffers, asked)
    }

    fn write(
        ep, buf: *const c_void, len: usize, _desc: *mut c_void, _peer: u64, addr: u64, key: u64,
        context: *mut c_void,
    ) {
        operate(ep, What::Write(remote(addr, key)), &one(buf, len), Asked::short(context))
    }

    fn writev(
        ep, iov: *const iovec, _desc: *mut *mut c_void, count: usize, _peer: u64, addr: u64,
        key: u64, context: *mut c_void,
    ) {
        let what = What::Write(remote(addr, key));
        operate(ep, what, buffers(iov, count)?, Asked::short(context))
    }

    fn writemsg(ep, msg: *const fi_msg_rma, flags: u64) {
        let (remote, buffers, asked) = rma(msg, flags)?;
        operate(ep, What::Write(remote), buffers, asked)
    }

    fn inject_write(ep, buf: *const c_void, len: usize, _peer: u64, addr: u64, key: u64) {
        operate(ep, What::Write(remote(addr, key)), &one(buf, len), Asked::injected())
    }

    fn writedata(
        ep, buf: *const c_void, len: usize, _desc: *mut c_void, data: u64, _peer: u64, addr: u64,
        key: u64, context: *mut c_void,
    ) {
        let asked = Asked::short(context).with_data(data);
        operate(ep, What::Write(remote(addr, key)), &one(buf, len), asked)
    }

    fn inject_writedata(
        ep, buf: *const c_void, len: usize, data: u64, _peer: u64, addr: u64, key: u64,
    ) {
        let asked = Asked::injected().with_data(data);
        operate(ep, What::Write(remote(addr, key)), &one(buf, len), asked)
    }
}
