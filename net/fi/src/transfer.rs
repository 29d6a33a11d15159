//! Messages, and reads and writes of the peer's memory.

use crate::Object;
use crate::abi::*;
use crate::core::{Asked, Core};
use crate::info::PIECES;
use crate::place::INJECT_BYTES;
use sidecore_rdma::{Remote, Stag, Work};
use std::ffi::c_void;

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
unsafe fn operate(
    ep: *mut fid_ep,
    what: What,
    buffers: Result<&[iovec], i32>,
    asked: Asked,
    is_short: bool,
) -> isize {
    // SAFETY: the caller's promise.
    let object = unsafe { Object::of(ep) };
    if object.raw.fid.fclass != FI_CLASS_EP {
        return -(libc::EINVAL as isize);
    }
    let posted = buffers.and_then(|buffers| {
        let mut core = object.fabric.lock();
        core.operate(object.index, what, buffers, asked, is_short)
    });
    status(posted)
}

/// The result of a call in libfabric's convention.
pub(crate) fn status(outcome: Result<(), i32>) -> isize {
    outcome.err().unwrap_or(0) as isize
}

impl Core {
    fn operate(
        &mut self,
        index: usize,
        what: What,
        buffers: &[iovec],
        mut asked: Asked,
        is_short: bool,
    ) -> Result<(), i32> {
        if is_short {
            // Calls without flags use the endpoint's.
            let ep = self.eps.get(index).ok_or(-libc::EINVAL)?;
            asked.flags |= ep.op_flags;
        }
        let len = buffers.iter().map(|buffer| buffer.iov_len).sum();
        let copied;
        let buffers = if asked.flags & FI_INJECT != 0 && !matches!(what, What::Read(_)) {
            if len > INJECT_BYTES {
                return Err(-libc::EMSGSIZE);
            }
            copied = [self.copy(index, buffers)?];
            &copied[..]
        } else {
            buffers
        };
        let pieces = self.pieces(buffers)?;
        let (work, told) = match what {
            What::Send => {
                let send = Work::Send {
                    pieces,
                    invalidate: None,
                    solicited: false,
                };
                (vec![send], (FI_SEND | FI_MSG, 0))
            }
            What::Write(remote) => (vec![Work::Write { pieces, remote }], (FI_WRITE | FI_RMA, 3)),
            What::Read(remote) => {
                let mut at = remote;
                let reads = pieces.into_iter().map(|into| {
                    let remote = at;
                    at.offset = at.offset.wrapping_add(into.bytes.into());
                    Work::Read { into, remote }
                });
                (reads.collect(), (FI_READ | FI_RMA, 2))
            }
        };
        self.post(index, work, &[], len, &asked, told)
    }
}

pub(crate) fn asked(context: *mut c_void, flags: u64) -> Asked {
    Asked {
        context: context.expose_provenance(),
        flags,
        is_told: true,
        data: None,
    }
}

/// Work with copied data, without a completion.
pub(crate) fn injected() -> Asked {
    Asked {
        context: 0,
        flags: FI_INJECT,
        is_told: false,
        data: None,
    }
}

pub(crate) fn remote(addr: u64, key: u64) -> Remote {
    Remote {
        // A longer key cannot be one of ours.
        stag: Stag(u32::try_from(key).unwrap_or(0)),
        offset: addr,
    }
}

unsafe extern "C" fn recv(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    _source: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe { receive(ep, Ok(&one(buf, len)), asked(context, 0), true) }
}

unsafe extern "C" fn recvv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    _source: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe { receive(ep, buffers(iov, count), asked(context, 0), true) }
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe {
        let msg = &*msg;
        let buffers = buffers(msg.msg_iov, msg.iov_count);
        receive(ep, buffers, asked(msg.context, flags), false)
    }
}

/// Posts a receive.
///
/// # Safety
/// An endpoint or a shared receive context of this provider; the buffers stay valid until the
/// completion.
unsafe fn receive(
    ep: *mut fid_ep,
    buffers: Result<&[iovec], i32>,
    mut asked: Asked,
    is_short: bool,
) -> isize {
    // SAFETY: the caller's promise.
    let object = unsafe { Object::of(ep) };
    status(buffers.and_then(|buffers| {
        let mut core = object.fabric.lock();
        if object.raw.fid.fclass == FI_CLASS_SRX_CTX {
            return core.post_shared(object.index, buffers, &asked);
        }
        if is_short && let Some(ep) = core.eps.get(object.index) {
            asked.flags |= ep.receive_flags;
        }
        core.post_receive(object.index, buffers, &asked)
    }))
}

unsafe extern "C" fn send(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    _peer: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe { operate(ep, What::Send, Ok(&one(buf, len)), asked(context, 0), true) }
}

unsafe extern "C" fn sendv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    _peer: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe { operate(ep, What::Send, buffers(iov, count), asked(context, 0), true) }
}

unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe {
        let msg = &*msg;
        let buffers = buffers(msg.msg_iov, msg.iov_count);
        let mut asked = asked(msg.context, flags);
        if flags & FI_REMOTE_CQ_DATA != 0 {
            asked.data = Some(msg.data);
        }
        operate(ep, What::Send, buffers, asked, false)
    }
}

unsafe extern "C" fn inject(ep: *mut fid_ep, buf: *const c_void, len: usize, _peer: u64) -> isize {
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe { operate(ep, What::Send, Ok(&one(buf, len)), injected(), false) }
}

unsafe extern "C" fn senddata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    _peer: u64,
    context: *mut c_void,
) -> isize {
    let mut asked = asked(context, 0);
    asked.data = Some(data);
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe { operate(ep, What::Send, Ok(&one(buf, len)), asked, true) }
}

unsafe extern "C" fn injectdata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    _peer: u64,
) -> isize {
    let mut asked = injected();
    asked.data = Some(data);
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe { operate(ep, What::Send, Ok(&one(buf, len)), asked, false) }
}

unsafe extern "C" fn read(
    ep: *mut fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    _peer: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let what = What::Read(remote(addr, key));
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe { operate(ep, what, Ok(&one(buf, len)), asked(context, 0), true) }
}

unsafe extern "C" fn readv(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    _peer: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let what = What::Read(remote(addr, key));
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe { operate(ep, what, buffers(iov, count), asked(context, 0), true) }
}

/// Posts an operation on the peer's memory, from the message form of a call.
///
/// # Safety
/// As for the calls.
unsafe fn rma(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64, is_write: bool) -> isize {
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe {
        let msg = &*msg;
        if msg.rma_iov_count != 1 {
            return -(libc::EINVAL as isize);
        }
        let there = msg.rma_iov.read();
        let place = remote(there.addr, there.key);
        let mut asked = asked(msg.context, flags);
        if flags & FI_REMOTE_CQ_DATA != 0 {
            asked.data = Some(msg.data);
        }
        let what = if is_write {
            What::Write(place)
        } else {
            What::Read(place)
        };
        operate(ep, what, buffers(msg.msg_iov, msg.iov_count), asked, false)
    }
}

unsafe extern "C" fn readmsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe { rma(ep, msg, flags, false) }
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64) -> isize {
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe { rma(ep, msg, flags, true) }
}

unsafe extern "C" fn write(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    _peer: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let what = What::Write(remote(addr, key));
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe { operate(ep, what, Ok(&one(buf, len)), asked(context, 0), true) }
}

unsafe extern "C" fn writev(
    ep: *mut fid_ep,
    iov: *const iovec,
    _desc: *mut *mut c_void,
    count: usize,
    _peer: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let what = What::Write(remote(addr, key));
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe { operate(ep, what, buffers(iov, count), asked(context, 0), true) }
}

unsafe extern "C" fn inject_write(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _peer: u64,
    addr: u64,
    key: u64,
) -> isize {
    let what = What::Write(remote(addr, key));
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe { operate(ep, what, Ok(&one(buf, len)), injected(), false) }
}

unsafe extern "C" fn writedata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    _peer: u64,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    let what = What::Write(remote(addr, key));
    let mut asked = asked(context, 0);
    asked.data = Some(data);
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe { operate(ep, what, Ok(&one(buf, len)), asked, true) }
}

unsafe extern "C" fn inject_writedata(
    ep: *mut fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    _peer: u64,
    addr: u64,
    key: u64,
) -> isize {
    let what = What::Write(remote(addr, key));
    let mut asked = injected();
    asked.data = Some(data);
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe { operate(ep, what, Ok(&one(buf, len)), asked, false) }
}
