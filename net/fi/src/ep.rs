//! Endpoints, active and passive.

use crate::abi::*;
use crate::core::{BoundCq, Ep, Pep};
use crate::info::{address_of, raw_address, take_request};
use crate::outcome::{long_status, status};
use crate::place::CM_BYTES;
use crate::{Object, atomic, head, plain_ops, transfer};
use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::Arc;

/// Default number of pending connections of a passive endpoint.
const BACKLOG: usize = 128;

static EP_FID: fi_ops = plain_ops(close, Some(bind), Some(control));
static PEP_FID: fi_ops = plain_ops(close_passive, Some(bind_passive), Some(control_passive));
pub(crate) static EP: fi_ops_ep = fi_ops_ep {
    size: size_of::<fi_ops_ep>(),
    cancel: Some(cancel),
    getopt: Some(getopt),
    setopt: Some(setopt),
    tx_ctx: Some(missing_int),
    rx_ctx: Some(missing_int),
    rx_size_left: Some(missing_long),
    tx_size_left: Some(missing_long),
};
pub(crate) static CM: fi_ops_cm = fi_ops_cm {
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
        // As of an endpoint: events name it by its address.
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
        // Its unread requests are rejected while the listener still names their connections.
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
    // Used by the next `listen`; one that is not positive would accept nothing.
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
        let handle = (*info).handle;
        let connection = if handle.is_null() {
            None
        } else if (*handle).fclass == FI_CLASS_PEP {
            // A program that listens and connects by one address, as MPI does.
            let pep = Object::<fid_pep>::of_fid(handle).index;
            ep.bound = fabric.lock().peps.get(pep).map(|pep| pep.address);
            ep.source = ep.bound;
            None
        } else {
            let taken = take_request((*info).handle);
            // The handle is consumed: the program frees the info, which must not free it again.
            (*info).handle = std::ptr::null_mut();
            taken
        };
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
            msg: &transfer::MSG,
            rma: &transfer::RMA,
            tagged: std::ptr::null(),
            atomic: &atomic::OPS,
            collective: std::ptr::null(),
        };
        // Events name the object by its address, which it has only now.
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
            FI_CLASS_SRX_CTX => {
                let srx = Object::<fid_ep>::of_fid(other).index;
                return status(core.bind_srx(object.index, srx));
            }
            FI_CLASS_CQ => {
                let cq = Object::<fid_cq>::of_fid(other).index;
                let is_selective = flags & FI_SELECTIVE_COMPLETION != 0;
                let bound = BoundCq { cq, is_selective };
                if flags & FI_SEND != 0 {
                    ep.send_cq = Some(bound);
                }
                if flags & FI_RECV != 0 {
                    ep.receive_cq = Some(bound);
                }
            }
            FI_CLASS_CNTR => {
                let cntr = Object::<fid_cntr>::of_fid(other).index;
                ep.cntrs.bind(cntr, flags);
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
            // With neither nothing would ever be reported, and nothing make progress.
            if has_cq || !ep.cntrs.is_empty() {
                0
            } else {
                -FI_ENOCQ
            }
        }
        FI_GETOPSFLAG | FI_SETOPSFLAG => {
            // SAFETY: a place for flags, by libfabric's contract.
            let flags = unsafe { &mut *arg.cast::<u64>() };
            // Exactly one direction: each has its own flags (fi_endpoint(3)).
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

/// Cancels a receive that no message has begun to fill; sends cannot be cancelled.
unsafe extern "C" fn cancel(fid: *mut fid, context: *mut c_void) -> isize {
    // SAFETY: an endpoint of ours, by libfabric's contract.
    unsafe {
        let object = Object::<fid_ep>::of_fid(fid);
        let mut core = object.fabric.lock();
        // Messages that have already arrived are reported as received.
        core.progress();
        let context = context.expose_provenance();
        let was_there = match (*fid).fclass {
            FI_CLASS_SRX_CTX => core.cancel_shared(object.index, context),
            FI_CLASS_EP => core.cancel(object.index, context),
            _ => false,
        };
        long_status(was_there.then_some(()).ok_or(-libc::ENOENT))
    }
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
        // The length first: a shorter place must not be written to.
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
            // A listener stays where it is.
            Some(pep) if pep.listener.is_none() => pep.address = address,
            _ => return -libc::EINVAL,
        }
    }
    0
}

/// Writes an address as far as there is room, and always its length.
///
/// # Safety
/// `addr` has `*len` bytes.
unsafe fn put_address(address: SocketAddr, addr: *mut c_void, len: *mut usize) -> c_int {
    let bytes = raw_address(address);
    // SAFETY: the caller's promise.
    unsafe {
        // The needed length in any case: the program tries again with as much room.
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
            // Before it is connected: the source address of its info.
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
/// `len` bytes at `param`, which may be NULL if there are none.
unsafe fn private_data<'a>(param: *const c_void, len: usize) -> Result<&'a [u8], i32> {
    // A program may pass a length without an address, and means nothing by it.
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
        // A connection that has ended already needs no rejection.
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
