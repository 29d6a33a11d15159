//! Domains, and the objects opened in one: memory, completion queues, counters.

use crate::abi::*;
use crate::bell::{Bell, Waiter};
use crate::core::{Cntr, Core, Cq, Entry, Fabric, Of};
use crate::eq::{wait, wait_control};
use crate::outcome::amount;
use crate::{Object, atomic, ep, head, plain_ops, srx};
use sidecore_rdma::{Access, Region};
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::sync::Arc;

static DOMAIN_FID: fi_ops = plain_ops(close, None, None);
pub(crate) static DOMAIN: fi_ops_domain = fi_ops_domain {
    size: size_of::<fi_ops_domain>(),
    av_open: Some(missing_int),
    cq_open: Some(open_cq),
    endpoint: Some(ep::open),
    scalable_ep: Some(missing_int),
    cntr_open: Some(open_cntr),
    poll_open: Some(missing_int),
    stx_ctx: Some(missing_int),
    srx_ctx: Some(srx::open),
    query_atomic: Some(atomic::query),
    query_collective: None,
    endpoint2: None,
};
static MR: fi_ops_mr = fi_ops_mr {
    size: size_of::<fi_ops_mr>(),
    reg: Some(register),
    regv: Some(register_pieces),
    regattr: Some(register_as),
};
static MR_FID: fi_ops = plain_ops(close_memory, None, None);
static CQ_FID: fi_ops = plain_ops(close_cq, None, Some(control_cq));
static CQ: fi_ops_cq = fi_ops_cq {
    size: size_of::<fi_ops_cq>(),
    read: Some(read),
    readfrom: Some(read_from),
    readerr: Some(readerr),
    sread: Some(sread),
    sreadfrom: Some(sread_from),
    signal: Some(signal),
    strerror: Some(cq_strerror),
};
static CNTR_FID: fi_ops = plain_ops(close_cntr, None, Some(control_cntr));
static CNTR: fi_ops_cntr = fi_ops_cntr {
    size: size_of::<fi_ops_cntr>(),
    read: Some(cntr_read),
    readerr: Some(cntr_readerr),
    add: Some(cntr_add),
    set: Some(cntr_set),
    wait: Some(cntr_wait),
    adderr: Some(cntr_adderr),
    seterr: Some(cntr_seterr),
};

pub(crate) unsafe extern "C" fn open(
    fabric: *mut fid_fabric,
    _info: *mut fi_info,
    out: *mut *mut fid_domain,
    context: *mut c_void,
) -> c_int {
    // SAFETY: a fabric of ours and a place for a pointer, by libfabric's contract.
    unsafe {
        let fabric = Arc::clone(&Object::of(fabric).fabric);
        // A handle without state of its own: domains of a fabric share its device.
        let raw = fid_domain {
            fid: head(FI_CLASS_DOMAIN, context, &DOMAIN_FID),
            ops: &DOMAIN,
            mr: &MR,
        };
        let index = 0;
        Object { raw, fabric, index }.hand_out(out);
    }
    0
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    // SAFETY: a domain of ours, for the last time.
    drop(unsafe { Object::<fid_domain>::take(fid) });
    0
}

/// Registered memory.
#[repr(C)]
struct Registered {
    raw: fid_mr,
    fabric: Arc<Fabric>,
    region: Region,
}

unsafe extern "C" fn register_as(
    fid: *mut fid,
    attr: *const fi_mr_attr,
    _flags: u64,
    out: *mut *mut fid_mr,
) -> c_int {
    // SAFETY: attributes, by libfabric's contract.
    let attr = unsafe { &*attr };
    // `mr_iov_limit` is 1: a key stands for one row of bytes.
    if attr.iov_count != 1 {
        return -libc::EINVAL;
    }
    // SAFETY: one piece, as it says.
    let piece = unsafe { attr.mr_iov.read() };
    let asked = [
        (FI_RECV | FI_READ, Access::LOCAL_WRITE),
        (FI_REMOTE_READ, Access::REMOTE_READ),
        (
            FI_REMOTE_WRITE,
            Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
        ),
    ];
    // FI_SEND and FI_WRITE need no right: an owner may always read its region.
    let chosen = asked.iter().filter(|(flags, _)| attr.access & flags != 0);
    let access = chosen.fold(Access::NONE, |all, (_, right)| all | *right);
    // SAFETY: a domain of ours, by libfabric's contract.
    let domain = unsafe { Object::<fid_domain>::of_fid(fid) };
    let mut core = domain.fabric.lock();
    let adapter = core.device.adapter_mut();
    // SAFETY: the memory is there until its close, and shared with the network as the program
    // arranges it, which is fi_mr(3)'s contract.
    let region = unsafe { adapter.register_memory(piece.iov_base.cast(), piece.iov_len, access) };
    let region = match region {
        Ok(region) => region,
        Err(error) => return crate::core::negative(&error),
    };
    // The provider chooses the key (FI_MR_PROV_KEY): the requested one is not looked at.
    let key = region.stag.0.into();
    let registered = Box::new(Registered {
        raw: fid_mr {
            fid: head(FI_CLASS_MR, attr.context, &MR_FID),
            mem_desc: std::ptr::null_mut(),
            key,
        },
        fabric: Arc::clone(&domain.fabric),
        region,
    });
    // SAFETY: a place for a pointer, by libfabric's contract.
    unsafe { out.write(Box::into_raw(registered).cast()) };
    0
}

unsafe extern "C" fn register_pieces(
    fid: *mut fid,
    mr_iov: *const iovec,
    iov_count: usize,
    access: u64,
    offset: u64,
    requested_key: u64,
    flags: u64,
    out: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    let attr = fi_mr_attr {
        mr_iov,
        iov_count,
        access,
        offset,
        requested_key,
        context,
        auth_key_size: 0,
        auth_key: std::ptr::null_mut(),
        iface: 0,
        device: 0,
    };
    // SAFETY: the caller's promises are those of that function.
    unsafe { register_as(fid, &attr, flags, out) }
}

unsafe extern "C" fn register(
    fid: *mut fid,
    buf: *const c_void,
    len: usize,
    access: u64,
    offset: u64,
    key: u64,
    flags: u64,
    out: *mut *mut fid_mr,
    context: *mut c_void,
) -> c_int {
    let piece = iovec {
        iov_base: buf.cast_mut(),
        iov_len: len,
    };
    // SAFETY: the caller's promises are those of that function.
    unsafe { register_pieces(fid, &piece, 1, access, offset, key, flags, out, context) }
}

unsafe extern "C" fn close_memory(fid: *mut fid) -> c_int {
    // SAFETY: registered memory of ours, for the last time.
    let registered = unsafe { Box::from_raw(fid.cast::<Registered>()) };
    // From here on the peer's key leads nowhere, and costs the peer its connection.
    let mut core = registered.fabric.lock();
    core.device.adapter_mut().deregister(registered.region);
    0
}

fn is_known(wait_obj: c_int) -> bool {
    matches!(wait_obj, FI_WAIT_NONE | FI_WAIT_UNSPEC | FI_WAIT_FD)
}

unsafe extern "C" fn open_cq(
    domain: *mut fid_domain,
    attr: *mut fi_cq_attr,
    out: *mut *mut fid_cq,
    context: *mut c_void,
) -> c_int {
    // SAFETY: a domain of ours and attributes, by libfabric's contract.
    let (domain, attr) = unsafe { (Object::of(domain), attr.as_ref()) };
    // Unspecified is the shortest one, which every program can read.
    let format = match attr.map_or(0, |attr| attr.format) {
        0 => FI_CQ_FORMAT_CONTEXT,
        format @ FI_CQ_FORMAT_CONTEXT..=FI_CQ_FORMAT_TAGGED => format,
        _ => return -libc::ENOSYS,
    };
    if attr.is_some_and(|attr| !is_known(attr.wait_obj)) {
        return -libc::ENOSYS;
    }
    let cq = Cq {
        format,
        entries: VecDeque::new(),
        errors: VecDeque::new(),
        bell: Bell::default(),
        is_signaled: false,
    };
    let index = domain.fabric.lock().cqs.insert(cq);
    let raw = fid_cq {
        fid: head(FI_CLASS_CQ, context, &CQ_FID),
        ops: &CQ,
    };
    let fabric = Arc::clone(&domain.fabric);
    // SAFETY: a place for a pointer, by libfabric's contract.
    unsafe { Object { raw, fabric, index }.hand_out(out) };
    0
}

unsafe extern "C" fn close_cq(fid: *mut fid) -> c_int {
    // SAFETY: a completion queue of ours, for the last time.
    let object = unsafe { Object::<fid_cq>::take(fid) };
    object.fabric.lock().cqs.remove(object.index);
    0
}

unsafe extern "C" fn control_cq(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: a completion queue of ours, and a place for what is asked for.
    unsafe {
        let object = Object::<fid_cq>::of_fid(fid);
        wait_control(&object.fabric, Waiter::Cq(object.index), command, arg)
    }
}

/// Completions that one read takes at most.
const TAKEN_MAX: usize = 16;

/// Bytes of an entry of a format, which is the beginning of the longest.
fn entry_bytes(format: i32) -> usize {
    match format {
        FI_CQ_FORMAT_MSG => std::mem::offset_of!(fi_cq_tagged_entry, buf),
        FI_CQ_FORMAT_DATA => std::mem::offset_of!(fi_cq_tagged_entry, tag),
        FI_CQ_FORMAT_TAGGED => size_of::<fi_cq_tagged_entry>(),
        _ => std::mem::offset_of!(fi_cq_tagged_entry, flags),
    }
}

fn raw_entry(entry: &Entry) -> fi_cq_tagged_entry {
    fi_cq_tagged_entry {
        op_context: std::ptr::with_exposed_provenance_mut(entry.context),
        flags: entry.flags,
        len: entry.len,
        buf: std::ptr::with_exposed_provenance_mut(entry.buf),
        data: entry.data,
        tag: 0,
    }
}

/// Moves completions to their reader's buffer; none if there are none.
///
/// # Safety
/// `buf` has room for `count` entries of the queue's format, `sources`, unless it is NULL, for as
/// many addresses.
unsafe fn take(
    core: &mut Core,
    index: usize,
    buf: *mut c_void,
    count: usize,
    sources: *mut u64,
) -> Option<Result<usize, c_int>> {
    let cq = core.cqs.get(index)?;
    // Errors come first, as fi_cq(3) demands: completions behind them wait for `readerr`.
    if !cq.errors.is_empty() {
        return Some(Err(-FI_EAVAIL));
    }
    let bytes = entry_bytes(cq.format);
    let mut taken = 0;
    // A batch on the stack: their bounds are counted once the queue is no longer borrowed.
    let mut read = [Of::Sends(0); TAKEN_MAX];
    while taken < count.min(read.len()) {
        let Some(entry) = cq.entries.pop_front() else {
            break;
        };
        let raw = raw_entry(&entry);
        // SAFETY: the caller's promise; an entry of a format is the beginning of this.
        unsafe {
            let target = buf.cast::<u8>().add(taken * bytes);
            std::ptr::copy_nonoverlapping((&raw const raw).cast(), target, bytes);
            if !sources.is_null() {
                // FI_ADDR_NOTAVAIL: endpoints that are connected have one source.
                sources.add(taken).write(u64::MAX);
            }
        }
        read[taken] = entry.of;
        taken += 1;
    }
    if taken == 0 {
        return None;
    }
    // Polling pays here: no yields for a while.
    core.vain = 0;
    if cq.entries.is_empty() {
        cq.bell.calm();
    }
    for &of in &read[..taken] {
        core.was_read(of);
    }
    Some(Ok(taken))
}

unsafe extern "C" fn read(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: the caller's promises are those of that function.
    unsafe { read_from(cq, buf, count, std::ptr::null_mut()) }
}

unsafe extern "C" fn read_from(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    sources: *mut u64,
) -> isize {
    // SAFETY: a completion queue of ours, and room for what is read.
    unsafe {
        let object = Object::of(cq);
        let mut core = object.fabric.lock();
        // Without a look at the device, as long as there are completions.
        if count > 0
            && let Some(taken) = take(&mut core, object.index, buf, count, sources)
        {
            return amount(taken);
        }
        core.progress();
        if let Some(taken) = take(&mut core, object.index, buf, count, sources) {
            return amount(taken);
        }
        let is_long = core.looked_in_vain();
        drop(core);
        if is_long {
            // The peer may need this core.
            std::thread::yield_now();
        }
        amount(Err(-libc::EAGAIN))
    }
}

unsafe extern "C" fn sread(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    cond: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: the caller's promises are those of that function.
    unsafe { sread_from(cq, buf, count, std::ptr::null_mut(), cond, timeout) }
}

unsafe extern "C" fn sread_from(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    sources: *mut u64,
    _cond: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: a completion queue of ours, and room for what is read.
    unsafe {
        let object = Object::of(cq);
        let index = object.index;
        let taken = wait(&object.fabric, Waiter::Cq(index), timeout, |core| {
            if let Some(cq) = core.cqs.get(index)
                && std::mem::take(&mut cq.is_signaled)
            {
                // `fi_cq_signal` ends one wait, with nothing read.
                cq.bell.calm();
                return Some(Err(-libc::EAGAIN));
            }
            take(core, index, buf, count, sources)
        });
        amount(taken.unwrap_or(Err(-libc::EAGAIN)))
    }
}

unsafe extern "C" fn signal(cq: *mut fid_cq) -> c_int {
    // SAFETY: a completion queue of ours, by libfabric's contract.
    let object = unsafe { Object::of(cq) };
    if let Some(cq) = object.fabric.lock().cqs.get(object.index) {
        // Kept: the waiter may not sleep yet.
        cq.is_signaled = true;
        cq.bell.ring();
    }
    0
}

unsafe extern "C" fn readerr(cq: *mut fid_cq, buf: *mut fi_cq_err_entry, _flags: u64) -> isize {
    // SAFETY: a completion queue of ours and an entry, by libfabric's contract.
    let (object, target) = unsafe { (Object::of(cq), &mut *buf) };
    let mut core = object.fabric.lock();
    let cq = core.cqs.get(object.index);
    let Some((entry, err)) = cq.and_then(|cq| cq.errors.pop_front()) else {
        return amount(Err(-libc::EAGAIN));
    };
    core.was_read(entry.of);
    let raw = raw_entry(&entry);
    target.op_context = raw.op_context;
    target.flags = raw.flags;
    target.len = 0;
    target.buf = raw.buf;
    target.data = 0;
    target.tag = 0;
    target.olen = 0;
    target.err = err;
    target.prov_errno = err;
    // There is none: the program's buffer for it stays as it was.
    target.err_data_size = 0;
    1
}

unsafe extern "C" fn cq_strerror(
    _cq: *mut fid_cq,
    number: c_int,
    data: *const c_void,
    buf: *mut std::ffi::c_char,
    len: usize,
) -> *const std::ffi::c_char {
    // SAFETY: the caller's promises are those of that function, which looks at no queue.
    unsafe { crate::eq::strerror(std::ptr::null_mut(), number, data, buf, len) }
}

unsafe extern "C" fn open_cntr(
    domain: *mut fid_domain,
    attr: *mut fi_cntr_attr,
    out: *mut *mut fid_cntr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: a domain of ours and attributes, by libfabric's contract.
    let (domain, attr) = unsafe { (Object::of(domain), attr.as_ref()) };
    // Only completions are counted: bytes (FI_CNTR_EVENTS_BYTES) came after version 1.17.
    if attr.is_some_and(|attr| !is_known(attr.wait_obj) || attr.events != 0) {
        return -libc::ENOSYS;
    }
    let index = domain.fabric.lock().cntrs.insert(Cntr::default());
    let raw = fid_cntr {
        fid: head(FI_CLASS_CNTR, context, &CNTR_FID),
        ops: &CNTR,
    };
    let fabric = Arc::clone(&domain.fabric);
    // SAFETY: a place for a pointer, by libfabric's contract.
    unsafe { Object { raw, fabric, index }.hand_out(out) };
    0
}

unsafe extern "C" fn close_cntr(fid: *mut fid) -> c_int {
    // SAFETY: a counter of ours, for the last time.
    let object = unsafe { Object::<fid_cntr>::take(fid) };
    object.fabric.lock().cntrs.remove(object.index);
    0
}

unsafe extern "C" fn control_cntr(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: a counter of ours, and a place for what is asked for.
    unsafe {
        let object = Object::<fid_cntr>::of_fid(fid);
        wait_control(&object.fabric, Waiter::Cntr(object.index), command, arg)
    }
}

/// Reads a counter, after making progress.
///
/// # Safety
/// A counter of ours.
unsafe fn read_cntr(raw: *mut fid_cntr, value: impl FnOnce(&mut Cntr) -> u64) -> u64 {
    // SAFETY: the caller's promise.
    let object = unsafe { Object::of(raw) };
    let mut core = object.fabric.lock();
    core.progress();
    core.cntrs.get(object.index).map_or(0, value)
}

/// Changes a counter, and wakes its waiters.
///
/// # Safety
/// A counter of ours.
unsafe fn change_cntr(raw: *mut fid_cntr, change: impl FnOnce(&mut Cntr)) -> c_int {
    // SAFETY: the caller's promise.
    let object = unsafe { Object::of(raw) };
    if let Some(cntr) = object.fabric.lock().cntrs.get(object.index) {
        change(cntr);
        cntr.bell.ring();
    }
    0
}

unsafe extern "C" fn cntr_read(cntr: *mut fid_cntr) -> u64 {
    // SAFETY: a counter of ours, by libfabric's contract; so below.
    unsafe { read_cntr(cntr, |cntr| cntr.value) }
}

unsafe extern "C" fn cntr_readerr(cntr: *mut fid_cntr) -> u64 {
    // SAFETY: see `cntr_read`.
    unsafe { read_cntr(cntr, |cntr| cntr.errors) }
}

unsafe extern "C" fn cntr_add(cntr: *mut fid_cntr, value: u64) -> c_int {
    let change = |cntr: &mut Cntr| cntr.value = cntr.value.wrapping_add(value);
    // SAFETY: see `cntr_read`.
    unsafe { change_cntr(cntr, change) }
}

unsafe extern "C" fn cntr_set(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: see `cntr_read`.
    unsafe { change_cntr(cntr, |cntr| cntr.value = value) }
}

unsafe extern "C" fn cntr_adderr(cntr: *mut fid_cntr, value: u64) -> c_int {
    let change = |cntr: &mut Cntr| cntr.errors = cntr.errors.wrapping_add(value);
    // SAFETY: see `cntr_read`.
    unsafe { change_cntr(cntr, change) }
}

unsafe extern "C" fn cntr_seterr(cntr: *mut fid_cntr, value: u64) -> c_int {
    // SAFETY: see `cntr_read`.
    unsafe { change_cntr(cntr, |cntr| cntr.errors = value) }
}

unsafe extern "C" fn cntr_wait(cntr: *mut fid_cntr, threshold: u64, timeout: c_int) -> c_int {
    // SAFETY: see `cntr_read`.
    let object = unsafe { Object::of(cntr) };
    let index = object.index;
    let mut errors = None;
    let waited = wait(&object.fabric, Waiter::Cntr(index), timeout, |core| {
        let cntr = core.cntrs.get(index)?;
        if cntr.value >= threshold {
            return Some(0);
        }
        // New errors end the wait (fi_cntr(3)); earlier ones the program knows of.
        let before = *errors.get_or_insert(cntr.errors);
        (cntr.errors != before).then_some(-FI_EAVAIL)
    });
    waited.unwrap_or(-libc::ETIMEDOUT)
}
