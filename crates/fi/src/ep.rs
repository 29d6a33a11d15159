//! Endpoints, active and passive.

use crate::abi::*;
use crate::core::{Asked, CM_BYTES, Core, Ep, INJECT_BYTES, Pep};
use crate::info::{PIECES, address_of, raw_address, take_request};
use crate::{Object, head, plain_ops};
use sidecore_rdma::{Remote, Stag, Work};
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::Arc;

/// Connections of a passive endpoint that are not accepted, unless it is told otherwise.
const BACKLOG: usize = 128;
/// Counters of an endpoint: of sends, receives, reads, writes.
const COUNTERS: [u64; 4] = [FI_SEND, FI_RECV, FI_READ, FI_WRITE];

static EP_FID: fi_ops = plain_ops(close, Some(bind), Some(control));
static PEP_FID: fi_ops = plain_ops(close_passive, Some(bind_passive), Some(control_passive));
static EP: fi_ops_ep = fi_ops_ep {
    size: size_of::<fi_ops_ep>(),
    cancel: Some(cancel),
    getopt: Some(getopt),
    setopt: Some(setopt),
    tx_ctx: Some(missing_int),
    rx_ctx: Some(missing_int),
    rx_size_left: Some(missing_long),
    tx_size_left: Some(missing_long),
};
static CM: fi_ops_cm = fi_ops_cm {
    size: size_of::<fi_ops_cm>(),
    setname: Some(setname),
    getname: Some(getname),
    getpeer: Some(getpeer),
    connect: Some(connect),
    listen: Some(listen),
    accept: Some(accept),
    reject: Some(reject),
    shutdown: Some(shutdown),
    join: Some(missing_int),
};
static MSG: fi_ops_msg = fi_ops_msg {
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
static RMA: fi_ops_rma = fi_ops_rma {
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

/// The outcome of a call, as libfabric has it.
fn status(outcome: Result<(), i32>) -> c_int {
    outcome.err().unwrap_or(0)
}

pub(crate) unsafe extern "C" fn open_passive(
    fabric: *mut fid_fabric,
    info: *mut fi_info,
    out: *mut *mut fid_pep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: a fabric of ours, an info, and a place for a pointer, by libfabric's contract.
    unsafe {
        let fabric = Arc::clone(&Object::of(fabric).fabric);
        let unspecified = SocketAddr::from(([0, 0, 0, 0], 0));
        let address = address_of((*info).src_addr, (*info).src_addrlen).unwrap_or(unspecified);
        let pep = Pep {
            fid: 0,
            address,
            backlog: BACKLOG,
            eq: None,
            listener: None,
            mode: (*info).mode & FI_RX_CQ_DATA,
        };
        let index = fabric.lock().peps.insert(pep);
        let raw = fid_pep {
            fid: head(FI_CLASS_PEP, context, &PEP_FID),
            ops: &EP,
            cm: &CM,
        };
        let object = Object { raw, fabric, index }.hand_out(out);
        if let Some(pep) = (*object).fabric.lock().peps.get(index) {
            pep.fid = object.expose_provenance();
        }
    }
    0
}

unsafe extern "C" fn close_passive(fid: *mut fid) -> c_int {
    // SAFETY: a passive endpoint of ours, for the last time.
    let object = unsafe { Object::<fid_pep>::take(fid) };
    let mut core = object.fabric.lock();
    if let Some(pep) = core.peps.remove(object.index) {
        core.forget_events(pep.fid);
        if let Some(listener) = pep.listener {
            core.device.close_listener(listener);
        }
    }
    0
}

unsafe extern "C" fn bind_passive(fid: *mut fid, other: *mut fid, _flags: u64) -> c_int {
    // SAFETY: a passive endpoint and another object of ours, by libfabric's contract.
    unsafe {
        if (*other).fclass != FI_CLASS_EQ {
            return -libc::EINVAL;
        }
        let (object, eq) = (
            Object::<fid_pep>::of_fid(fid),
            Object::<fid_eq>::of_fid(other).index,
        );
        if let Some(pep) = object.fabric.lock().peps.get(object.index) {
            pep.eq = Some(eq);
        }
    }
    0
}

unsafe extern "C" fn control_passive(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    if command != FI_BACKLOG {
        return -libc::ENOSYS;
    }
    // SAFETY: a passive endpoint of ours and a number, by libfabric's contract.
    let (object, backlog) = unsafe { (Object::<fid_pep>::of_fid(fid), *arg.cast::<c_int>()) };
    if let Some(pep) = object.fabric.lock().peps.get(object.index) {
        pep.backlog = usize::try_from(backlog).unwrap_or(0).max(1);
    }
    0
}

pub(crate) unsafe extern "C" fn open(
    domain: *mut fid_domain,
    info: *mut fi_info,
    out: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    // SAFETY: a domain of ours, an info, and a place for a pointer, by libfabric's contract.
    unsafe {
        let fabric = Arc::clone(&Object::of(domain).fabric);
        let mut ep = Ep::new(0, context.expose_provenance());
        if let Some(tx) = (*info).tx_attr.as_ref() {
            ep.op_flags = tx.op_flags;
        }
        ep.source = address_of((*info).src_addr, (*info).src_addrlen);
        if let Some(rx) = (*info).rx_attr.as_ref() {
            ep.receive_flags = rx.op_flags;
        }
        let connection = if (*info).handle.is_null() {
            None
        } else {
            let taken = take_request((*info).handle);
            // It is used up.
            (*info).handle = std::ptr::null_mut();
            taken
        };
        ep.is_passive = connection.is_some();
        let mut core = fabric.lock();
        let index = core.eps.insert(ep);
        if let Some(connection) = connection
            && let Err(error) = core.attach(index, connection)
        {
            core.eps.remove(index);
            return error;
        }
        drop(core);
        let raw = fid_ep {
            fid: head(FI_CLASS_EP, context, &EP_FID),
            ops: &EP,
            cm: &CM,
            msg: &MSG,
            rma: &RMA,
            tagged: std::ptr::null(),
            atomic: std::ptr::null(),
            collective: std::ptr::null(),
        };
        let object = Object { raw, fabric, index }.hand_out(out);
        if let Some(ep) = (*object).fabric.lock().eps.get(index) {
            ep.fid = object.expose_provenance();
        }
    }
    0
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: an endpoint of ours, for the last time.
    let object = unsafe { Object::<fid_ep>::take(fid) };
    object.fabric.lock().close_ep(object.index);
    0
}

unsafe extern "C" fn bind(fid: *mut fid, other: *mut fid, flags: u64) -> c_int {
    // SAFETY: an endpoint and another object of ours, by libfabric's contract.
    unsafe {
        let object = Object::<fid_ep>::of_fid(fid);
        let mut core = object.fabric.lock();
        let Some(ep) = core.eps.get(object.index) else {
            return -libc::EINVAL;
        };
        match (*other).fclass {
            FI_CLASS_EQ => ep.eq = Some(Object::<fid_eq>::of_fid(other).index),
            FI_CLASS_CQ => {
                let cq = Object::<fid_cq>::of_fid(other).index;
                let is_selective = flags & FI_SELECTIVE_COMPLETION != 0;
                if flags & FI_SEND != 0 {
                    ep.send_cq = Some((cq, is_selective));
                }
                if flags & FI_RECV != 0 {
                    ep.receive_cq = Some((cq, is_selective));
                }
            }
            FI_CLASS_CNTR => {
                let cntr = Object::<fid_cntr>::of_fid(other).index;
                for (place, flag) in ep.cntrs.iter_mut().zip(COUNTERS) {
                    if flags & flag != 0 {
                        *place = Some(cntr);
                    }
                }
            }
            _ => return -libc::EINVAL,
        }
    }
    0
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: an endpoint of ours, by libfabric's contract.
    let object = unsafe { Object::<fid_ep>::of_fid(fid) };
    let mut core = object.fabric.lock();
    let Some(ep) = core.eps.get(object.index) else {
        return -libc::EINVAL;
    };
    match command {
        FI_ENABLE => {
            let has_cq = ep.send_cq.is_some() || ep.receive_cq.is_some();
            let has_cntr = ep.cntrs.iter().any(Option::is_some);
            if has_cq || has_cntr { 0 } else { -FI_ENOCQ }
        }
        FI_GETOPSFLAG | FI_SETOPSFLAG => {
            // SAFETY: a place for flags, by libfabric's contract.
            let flags = unsafe { &mut *arg.cast::<u64>() };
            let own = match *flags & (FI_SEND | FI_RECV) {
                FI_SEND => &mut ep.op_flags,
                FI_RECV => &mut ep.receive_flags,
                _ => return -libc::EINVAL,
            };
            if command == FI_GETOPSFLAG {
                *flags = *own;
            } else {
                *own = *flags & !(FI_SEND | FI_RECV);
            }
            0
        }
        _ => -libc::ENOSYS,
    }
}

/// One that waits for a message cannot be taken back: the peer's next one would find none.
unsafe extern "C" fn cancel(_fid: *mut fid, _context: *mut c_void) -> isize {
    -(libc::ENOENT as isize)
}

unsafe extern "C" fn getopt(
    _fid: *mut fid,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut usize,
) -> c_int {
    if level != FI_OPT_ENDPOINT || name != FI_OPT_CM_DATA_SIZE {
        return -libc::ENOPROTOOPT;
    }
    // SAFETY: a place of that length and one for the length, by libfabric's contract.
    unsafe {
        if *len < size_of::<usize>() {
            return -libc::EINVAL;
        }
        value.cast::<usize>().write(CM_BYTES);
        len.write(size_of::<usize>());
    }
    0
}

unsafe extern "C" fn setopt(
    _fid: *mut fid,
    _level: c_int,
    _name: c_int,
    _value: *const c_void,
    _len: usize,
) -> c_int {
    -libc::ENOPROTOOPT
}

unsafe extern "C" fn setname(fid: *mut fid, addr: *mut c_void, len: usize) -> c_int {
    // SAFETY: an object of ours and an address of that length, by libfabric's contract.
    unsafe {
        let Some(address) = address_of(addr, len) else {
            return -libc::EINVAL;
        };
        if (*fid).fclass != FI_CLASS_PEP {
            return -libc::ENOSYS;
        }
        let object = Object::<fid_pep>::of_fid(fid);
        match object.fabric.lock().peps.get(object.index) {
            Some(pep) if pep.listener.is_none() => pep.address = address,
            _ => return -libc::EINVAL,
        }
    }
    0
}

/// Writes an address where there is room, and its length always.
///
/// # Safety
/// `addr` has `*len` bytes.
unsafe fn put_address(address: SocketAddr, addr: *mut c_void, len: *mut usize) -> c_int {
    let bytes = raw_address(address);
    // SAFETY: the caller's promise.
    unsafe {
        let room = len.replace(bytes.len());
        if room < bytes.len() {
            return -FI_ETOOSMALL;
        }
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), addr.cast(), bytes.len());
    }
    0
}

unsafe extern "C" fn getname(fid: *mut fid, addr: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: an object of ours and a place of that length, by libfabric's contract.
    unsafe {
        let address = if (*fid).fclass == FI_CLASS_PEP {
            let object = Object::<fid_pep>::of_fid(fid);
            let mut core = object.fabric.lock();
            core.peps.get(object.index).map(|pep| pep.address)
        } else {
            // Before it is connected: the one that its info names.
            let connected = addresses(fid).map(|(own, _)| own);
            let object = Object::<fid_ep>::of_fid(fid);
            let mut core = object.fabric.lock();
            connected.or_else(|| core.eps.get(object.index)?.source)
        };
        match address {
            Some(address) => put_address(address, addr, len),
            None => -libc::ENOTCONN,
        }
    }
}

/// Addresses of an endpoint's connection.
///
/// # Safety
/// An endpoint of ours.
unsafe fn addresses(fid: *mut fid) -> Option<(SocketAddr, SocketAddr)> {
    // SAFETY: the caller's promise.
    let object = unsafe { Object::<fid_ep>::of_fid(fid) };
    let mut core = object.fabric.lock();
    let connection = core.connection(object.index).ok()?;
    core.device.addresses(connection)
}

unsafe extern "C" fn getpeer(ep: *mut fid_ep, addr: *mut c_void, len: *mut usize) -> c_int {
    // SAFETY: an endpoint of ours and a place of that length, by libfabric's contract.
    unsafe {
        match addresses(ep.cast()) {
            Some((_, peer)) => put_address(peer, addr, len),
            None => -libc::ENOTCONN,
        }
    }
}

/// Private data of a call.
///
/// # Safety
/// `len` bytes at `param`, which may be NULL where there are none.
unsafe fn private_data<'a>(param: *const c_void, len: usize) -> Result<&'a [u8], i32> {
    if param.is_null() || len == 0 {
        return Ok(&[]);
    }
    if len > CM_BYTES {
        return Err(-libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(param.cast(), len) })
}

unsafe extern "C" fn connect(
    ep: *mut fid_ep,
    addr: *const c_void,
    param: *const c_void,
    len: usize,
) -> c_int {
    // SAFETY: an endpoint of ours, an address, private data, by libfabric's contract.
    unsafe {
        let object = Object::of(ep);
        let (Some(peer), Ok(data)) = (address_of(addr, usize::MAX), private_data(param, len))
        else {
            return -libc::EINVAL;
        };
        status(object.fabric.lock().connect(object.index, peer, data))
    }
}

unsafe extern "C" fn listen(pep: *mut fid_pep) -> c_int {
    // SAFETY: a passive endpoint of ours, by libfabric's contract.
    let object = unsafe { Object::of(pep) };
    status(object.fabric.lock().listen(object.index))
}

unsafe extern "C" fn accept(ep: *mut fid_ep, param: *const c_void, len: usize) -> c_int {
    // SAFETY: an endpoint of ours and private data, by libfabric's contract.
    unsafe {
        let object = Object::of(ep);
        match private_data(param, len) {
            Ok(data) => status(object.fabric.lock().accept(object.index, data)),
            Err(error) => error,
        }
    }
}

unsafe extern "C" fn reject(
    pep: *mut fid_pep,
    handle: *mut fid,
    param: *const c_void,
    len: usize,
) -> c_int {
    // SAFETY: a passive endpoint and a handle of ours, private data, by libfabric's contract.
    unsafe {
        let object = Object::of(pep);
        let Ok(data) = private_data(param, len) else {
            return -libc::EINVAL;
        };
        let Some(connection) = take_request(handle) else {
            return -libc::EINVAL;
        };
        let mut core = object.fabric.lock();
        // One that is over already needs no refusal.
        core.device.reject(connection, data).ok();
        core.progress();
    }
    0
}

unsafe extern "C" fn shutdown(ep: *mut fid_ep, _flags: u64) -> c_int {
    // SAFETY: an endpoint of ours, by libfabric's contract.
    let object = unsafe { Object::of(ep) };
    object.fabric.lock().shut(object.index);
    0
}

impl Core {
    /// Ends an endpoint's connection in order, as far as the peer allows it.
    fn shut(&mut self, index: usize) {
        if let Ok(connection) = self.connection(index) {
            self.device.shut(connection).ok();
            self.progress();
        }
    }
}

/// Bytes of several buffers in `target`; their number, if they fit.
pub(crate) fn gather(buffers: &[iovec], target: &mut [u8]) -> Option<usize> {
    let mut count = 0;
    for buffer in buffers {
        let place = target.get_mut(count..count + buffer.iov_len)?;
        if buffer.iov_len > 0 {
            // SAFETY: buffers of an operation, which are readable while its call runs.
            unsafe {
                let source = buffer.iov_base.cast::<u8>();
                std::ptr::copy_nonoverlapping(source, place.as_mut_ptr(), buffer.iov_len);
            }
        }
        count += buffer.iov_len;
    }
    Some(count)
}

/// Buffers of a call.
///
/// # Safety
/// `count` buffers at `iov`, which may be NULL where there are none.
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

/// What an operation does with its buffers.
#[derive(Debug, Clone, Copy)]
enum What {
    Send,
    Write(Remote),
    Read(Remote),
}

/// Posts an operation.
///
/// # Safety
/// `ep` is an endpoint of ours; the buffers stay until its completion, or its call's end where they
/// are injected.
unsafe fn operate(
    ep: *mut fid_ep,
    what: What,
    buffers: &[iovec],
    asked: &mut Asked,
    is_short: bool,
) -> isize {
    // SAFETY: the caller's promise.
    let object = unsafe { Object::of(ep) };
    let mut core = object.fabric.lock();
    match core.operate(object.index, what, buffers, asked, is_short) {
        Ok(()) => 0,
        Err(error) => error as isize,
    }
}

impl Core {
    fn operate(
        &mut self,
        index: usize,
        what: What,
        buffers: &[iovec],
        asked: &mut Asked,
        is_short: bool,
    ) -> Result<(), i32> {
        if is_short {
            // Calls without flags have the endpoint's.
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
        self.post(index, work, len, asked, told)
    }
}

fn asked(context: *mut c_void) -> Asked {
    Asked {
        context: context.expose_provenance(),
        flags: 0,
        is_told: true,
        data: None,
    }
}

/// Work that was copied, of which no completion tells.
fn injected() -> Asked {
    Asked {
        context: 0,
        flags: FI_INJECT,
        is_told: false,
        data: None,
    }
}

fn remote(addr: u64, key: u64) -> Remote {
    Remote {
        // A key that is longer than ours is none of ours.
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
    unsafe { receive(ep, &one(buf, len), asked(context), true) }
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
    unsafe {
        match buffers(iov, count) {
            Ok(buffers) => receive(ep, buffers, asked(context), true),
            Err(error) => error as isize,
        }
    }
}

unsafe extern "C" fn recvmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe {
        let msg = &*msg;
        match buffers(msg.msg_iov, msg.iov_count) {
            Ok(buffers) => {
                let mut asked = asked(msg.context);
                asked.flags = flags;
                receive(ep, buffers, asked, false)
            }
            Err(error) => error as isize,
        }
    }
}

/// Posts a receive.
///
/// # Safety
/// An endpoint of ours; the buffers stay until the completion.
unsafe fn receive(ep: *mut fid_ep, buffers: &[iovec], mut asked: Asked, is_short: bool) -> isize {
    // SAFETY: the caller's promise.
    let object = unsafe { Object::of(ep) };
    let mut core = object.fabric.lock();
    if is_short && let Some(ep) = core.eps.get(object.index) {
        asked.flags |= ep.receive_flags;
    }
    match core.post_receive(object.index, buffers, &asked) {
        Ok(()) => 0,
        Err(error) => error as isize,
    }
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
    unsafe { operate(ep, What::Send, &one(buf, len), &mut asked(context), true) }
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
    unsafe {
        match buffers(iov, count) {
            Ok(buffers) => operate(ep, What::Send, buffers, &mut asked(context), true),
            Err(error) => error as isize,
        }
    }
}

unsafe extern "C" fn sendmsg(ep: *mut fid_ep, msg: *const fi_msg, flags: u64) -> isize {
    if flags & FI_REMOTE_CQ_DATA != 0 {
        return -(libc::EOPNOTSUPP as isize);
    }
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe {
        let msg = &*msg;
        match buffers(msg.msg_iov, msg.iov_count) {
            Ok(buffers) => {
                let mut asked = asked(msg.context);
                asked.flags = flags;
                operate(ep, What::Send, buffers, &mut asked, false)
            }
            Err(error) => error as isize,
        }
    }
}

unsafe extern "C" fn inject(ep: *mut fid_ep, buf: *const c_void, len: usize, _peer: u64) -> isize {
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe { operate(ep, What::Send, &one(buf, len), &mut injected(), false) }
}

/// A message of this wire has no room for data beside its bytes.
unsafe extern "C" fn senddata(
    _ep: *mut fid_ep,
    _buf: *const c_void,
    _len: usize,
    _desc: *mut c_void,
    _data: u64,
    _peer: u64,
    _context: *mut c_void,
) -> isize {
    -(libc::EOPNOTSUPP as isize)
}

unsafe extern "C" fn injectdata(
    _ep: *mut fid_ep,
    _buf: *const c_void,
    _len: usize,
    _data: u64,
    _peer: u64,
) -> isize {
    -(libc::EOPNOTSUPP as isize)
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
    unsafe { operate(ep, what, &one(buf, len), &mut asked(context), true) }
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
    unsafe {
        match buffers(iov, count) {
            Ok(buffers) => operate(ep, what, buffers, &mut asked(context), true),
            Err(error) => error as isize,
        }
    }
}

/// An operation on memory of the peer, of the longest form of a call.
///
/// # Safety
/// As the calls' own.
unsafe fn rma(ep: *mut fid_ep, msg: *const fi_msg_rma, flags: u64, is_write: bool) -> isize {
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe {
        let msg = &*msg;
        if msg.rma_iov_count != 1 {
            return -(libc::EINVAL as isize);
        }
        let there = msg.rma_iov.read();
        let place = remote(there.addr, there.key);
        let mut asked = asked(msg.context);
        asked.flags = flags;
        if flags & FI_REMOTE_CQ_DATA != 0 {
            asked.data = Some(msg.data);
        }
        let what = if is_write {
            What::Write(place)
        } else {
            What::Read(place)
        };
        match buffers(msg.msg_iov, msg.iov_count) {
            Ok(buffers) => operate(ep, what, buffers, &mut asked, false),
            Err(error) => error as isize,
        }
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
    unsafe { operate(ep, what, &one(buf, len), &mut asked(context), true) }
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
    unsafe {
        match buffers(iov, count) {
            Ok(buffers) => operate(ep, what, buffers, &mut asked(context), true),
            Err(error) => error as isize,
        }
    }
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
    unsafe { operate(ep, what, &one(buf, len), &mut injected(), false) }
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
    let mut asked = asked(context);
    asked.data = Some(data);
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe { operate(ep, what, &one(buf, len), &mut asked, true) }
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
    unsafe { operate(ep, what, &one(buf, len), &mut asked, false) }
}
