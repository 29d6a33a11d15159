//! Atomics on the wire: words of 64 bits; addition, masked swap, compare-and-swap.
//!
//! Must stay true: each operation offered to libfabric is one atomic step at the peer (RFC 7306):
//! sum, or, and, exclusive or, read, write, compare-and-swap, masked swap, of signed and unsigned
//! words. `ofi_rxm` above implements all others by messages of its own.

use crate::Object;
use crate::abi::*;
use crate::core::{Asked, Core};
use crate::transfer::{asked, injected, remote, status};
use sidecore_rdma::{Atomic, Remote, Work};
use std::ffi::{c_int, c_void};

/// Words of one call.
const WORDS_MAX: usize = 16;
const WORD_BYTES: usize = 8;

pub(crate) static OPS: fi_ops_atomic = fi_ops_atomic {
    size: size_of::<fi_ops_atomic>(),
    write: Some(write),
    writev: Some(writev),
    writemsg: Some(writemsg),
    inject: Some(inject),
    readwrite: Some(readwrite),
    readwritev: Some(readwritev),
    readwritemsg: Some(readwritemsg),
    compwrite: Some(compwrite),
    compwritev: Some(compwritev),
    compwritemsg: Some(compwritemsg),
    writevalid: Some(writevalid),
    readwritevalid: Some(readwritevalid),
    compwritevalid: Some(compwritevalid),
};

/// Forms of the calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Write,
    Fetch,
    Compare,
}

/// The atomic of the wire for an operation of this form, if there is one.
fn change(form: Form, op: c_int, operand: u64, compare: u64) -> Option<Atomic> {
    let is_compare = form == Form::Compare;
    Some(match op {
        FI_CSWAP if is_compare => Atomic::CompareSwap {
            expected: compare,
            new: operand,
        },
        FI_MSWAP if is_compare => Atomic::Swap {
            new: operand,
            mask: compare,
        },
        _ if is_compare => return None,
        FI_SUM => Atomic::Add(operand),
        FI_BOR => Atomic::Swap {
            new: u64::MAX,
            mask: operand,
        },
        FI_BAND => Atomic::Swap {
            new: 0,
            mask: !operand,
        },
        // Fields of one bit: no carry.
        FI_BXOR => Atomic::AddFields {
            value: operand,
            mask: u64::MAX,
        },
        FI_ATOMIC_READ if form == Form::Fetch => Atomic::Add(0),
        FI_ATOMIC_WRITE => Atomic::Swap {
            new: operand,
            mask: u64::MAX,
        },
        _ => return None,
    })
}

fn is_offered(form: Form, datatype: c_int, op: c_int) -> bool {
    matches!(datatype, FI_INT64 | FI_UINT64) && change(form, op, 0, 0).is_some()
}

/// Arguments of a call: operands, comparands and result addresses, of the same number of words.
struct Words<'a> {
    operands: &'a [fi_ioc],
    compares: &'a [fi_ioc],
    results: &'a [fi_ioc],
}

/// Addresses of the words in some buffers.
fn addresses(buffers: &[fi_ioc]) -> impl Iterator<Item = usize> {
    buffers.iter().flat_map(|buffer| {
        let first = buffer.addr.expose_provenance();
        (0..buffer.count).map(move |index| first + index * WORD_BYTES)
    })
}

fn count(buffers: &[fi_ioc]) -> usize {
    buffers.iter().map(|buffer| buffer.count).sum()
}

/// Reads the word at an address of the caller.
///
/// # Safety
/// It is readable.
unsafe fn word(at: usize) -> u64 {
    let at: *const u64 = std::ptr::with_exposed_provenance(at);
    // SAFETY: the caller's promise.
    unsafe { at.read_unaligned() }
}

/// Buffers of a call.
///
/// # Safety
/// `count` buffers at `at`, which may be NULL if there are none.
unsafe fn buffers<'a>(at: *const fi_ioc, count: usize) -> Result<&'a [fi_ioc], i32> {
    if count == 0 {
        return Ok(&[]);
    }
    if count > WORDS_MAX || at.is_null() {
        return Err(-libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(at, count) })
}

fn one(buffer: *const c_void, count: usize) -> [fi_ioc; 1] {
    [fi_ioc {
        addr: buffer.cast_mut(),
        count,
    }]
}

/// Posts atomics.
///
/// # Safety
/// `ep` is an endpoint of this provider; operands and comparands are readable, results stay valid
/// until the completion.
unsafe fn operate(
    ep: *mut fid_ep,
    form: Form,
    words: &Words<'_>,
    there: Remote,
    (datatype, op): (c_int, c_int),
    asked: Asked,
    is_short: bool,
) -> isize {
    // SAFETY: the caller's promise.
    let object = unsafe { Object::of(ep) };
    if object.raw.fid.fclass != FI_CLASS_EP {
        return -(libc::EINVAL as isize);
    }
    if !is_offered(form, datatype, op) {
        return -(libc::EOPNOTSUPP as isize);
    }
    // A read has only results.
    let reads = op == FI_ATOMIC_READ;
    let all = count(if reads { words.results } else { words.operands });
    let is_right = (form == Form::Write || count(words.results) == all)
        && (form != Form::Compare || count(words.compares) == all);
    if all == 0 || all > WORDS_MAX || !is_right {
        return -(libc::EINVAL as isize);
    }
    let results: Vec<usize> = addresses(words.results).collect();
    let mut operands = addresses(words.operands);
    let mut compares = addresses(words.compares);
    let mut at = there;
    let mut work = Vec::new();
    for _ in 0..all {
        let next = |from: &mut dyn Iterator<Item = usize>| {
            // SAFETY: the caller's promise.
            from.next().map_or(0, |address| unsafe { word(address) })
        };
        let operand = if reads { 0 } else { next(&mut operands) };
        let compare = next(&mut compares);
        let Some(atomic) = change(form, op, operand, compare) else {
            return -(libc::EOPNOTSUPP as isize);
        };
        work.push(Work::Atomic { atomic, remote: at });
        at.offset = at.offset.wrapping_add(WORD_BYTES as u64);
    }
    let mut core = object.fabric.lock();
    status(core.atomics(object.index, form, work, &results, asked, is_short))
}

impl Core {
    fn atomics(
        &mut self,
        index: usize,
        form: Form,
        work: Vec<Work>,
        results: &[usize],
        mut asked: Asked,
        is_short: bool,
    ) -> Result<(), i32> {
        if is_short {
            // Calls without flags use the endpoint's.
            let ep = self.eps.get(index).ok_or(-libc::EINVAL)?;
            asked.flags |= ep.op_flags;
        }
        // An atomic completes with the peer's response, so delivery is complete anyway.
        asked.flags &= !FI_DELIVERY_COMPLETE;
        let told = match form {
            Form::Write => (FI_WRITE | FI_ATOMIC, 3),
            Form::Fetch | Form::Compare => (FI_READ | FI_ATOMIC, 2),
        };
        let len = work.len() * WORD_BYTES;
        self.post(index, work, results, len, &asked, told)
    }
}

unsafe extern "C" fn write(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    _peer: u64,
    addr: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    let operands = &one(buf, count);
    let words = Words {
        operands,
        compares: &[],
        results: &[],
    };
    let (what, asked) = ((datatype, op), asked(context, 0));
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe {
        operate(
            ep,
            Form::Write,
            &words,
            remote(addr, key),
            what,
            asked,
            true,
        )
    }
}

unsafe extern "C" fn writev(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    _peer: u64,
    addr: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe {
        let operands = match buffers(iov, count) {
            Ok(operands) => operands,
            Err(error) => return error as isize,
        };
        let words = Words {
            operands,
            compares: &[],
            results: &[],
        };
        let (what, asked) = ((datatype, op), asked(context, 0));
        operate(
            ep,
            Form::Write,
            &words,
            remote(addr, key),
            what,
            asked,
            true,
        )
    }
}

unsafe extern "C" fn inject(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _peer: u64,
    addr: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
) -> isize {
    let operands = &one(buf, count);
    let words = Words {
        operands,
        compares: &[],
        results: &[],
    };
    let what = (datatype, op);
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe {
        operate(
            ep,
            Form::Write,
            &words,
            remote(addr, key),
            what,
            injected(),
            false,
        )
    }
}

/// Posts an atomic from the message form of a call.
///
/// # Safety
/// As for the calls.
unsafe fn message(
    ep: *mut fid_ep,
    form: Form,
    msg: *const fi_msg_atomic,
    compares: Result<&[fi_ioc], i32>,
    results: Result<&[fi_ioc], i32>,
    flags: u64,
) -> isize {
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe {
        let msg = &*msg;
        if msg.rma_iov_count != 1 {
            return -(libc::EINVAL as isize);
        }
        let there = msg.rma_iov.read();
        let operands = buffers(msg.msg_iov, msg.iov_count);
        let (Ok(operands), Ok(compares), Ok(results)) = (operands, compares, results) else {
            return -(libc::EINVAL as isize);
        };
        let words = Words {
            operands,
            compares,
            results,
        };
        let mut asked = asked(msg.context, flags);
        if flags & FI_REMOTE_CQ_DATA != 0 {
            asked.data = Some(msg.data);
        }
        let what = (msg.datatype, msg.op);
        operate(
            ep,
            form,
            &words,
            remote(there.addr, there.key),
            what,
            asked,
            false,
        )
    }
}

unsafe extern "C" fn writemsg(ep: *mut fid_ep, msg: *const fi_msg_atomic, flags: u64) -> isize {
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe { message(ep, Form::Write, msg, Ok(&[]), Ok(&[]), flags) }
}

unsafe extern "C" fn readwrite(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    _peer: u64,
    addr: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    let (operands, results) = (&one(buf, count), &one(result, count));
    let words = Words {
        operands,
        compares: &[],
        results,
    };
    let (what, asked) = ((datatype, op), asked(context, 0));
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe {
        operate(
            ep,
            Form::Fetch,
            &words,
            remote(addr, key),
            what,
            asked,
            true,
        )
    }
}

unsafe extern "C" fn readwritev(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    resultv: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    _peer: u64,
    addr: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe {
        let (Ok(operands), Ok(results)) = (buffers(iov, count), buffers(resultv, result_count))
        else {
            return -(libc::EINVAL as isize);
        };
        let words = Words {
            operands,
            compares: &[],
            results,
        };
        let (what, asked) = ((datatype, op), asked(context, 0));
        operate(
            ep,
            Form::Fetch,
            &words,
            remote(addr, key),
            what,
            asked,
            true,
        )
    }
}

unsafe extern "C" fn readwritemsg(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    resultv: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe {
        let results = buffers(resultv, result_count);
        message(ep, Form::Fetch, msg, Ok(&[]), results, flags)
    }
}

unsafe extern "C" fn compwrite(
    ep: *mut fid_ep,
    buf: *const c_void,
    count: usize,
    _desc: *mut c_void,
    compare: *const c_void,
    _compare_desc: *mut c_void,
    result: *mut c_void,
    _result_desc: *mut c_void,
    _peer: u64,
    addr: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    let (operands, compares, results) =
        (&one(buf, count), &one(compare, count), &one(result, count));
    let words = Words {
        operands,
        compares,
        results,
    };
    let (what, asked) = ((datatype, op), asked(context, 0));
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe {
        operate(
            ep,
            Form::Compare,
            &words,
            remote(addr, key),
            what,
            asked,
            true,
        )
    }
}

unsafe extern "C" fn compwritev(
    ep: *mut fid_ep,
    iov: *const fi_ioc,
    _desc: *mut *mut c_void,
    count: usize,
    comparev: *const fi_ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    resultv: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    _peer: u64,
    addr: u64,
    key: u64,
    datatype: c_int,
    op: c_int,
    context: *mut c_void,
) -> isize {
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe {
        let (Ok(operands), Ok(compares), Ok(results)) = (
            buffers(iov, count),
            buffers(comparev, compare_count),
            buffers(resultv, result_count),
        ) else {
            return -(libc::EINVAL as isize);
        };
        let words = Words {
            operands,
            compares,
            results,
        };
        let (what, asked) = ((datatype, op), asked(context, 0));
        operate(
            ep,
            Form::Compare,
            &words,
            remote(addr, key),
            what,
            asked,
            true,
        )
    }
}

unsafe extern "C" fn compwritemsg(
    ep: *mut fid_ep,
    msg: *const fi_msg_atomic,
    comparev: *const fi_ioc,
    _compare_desc: *mut *mut c_void,
    compare_count: usize,
    resultv: *mut fi_ioc,
    _result_desc: *mut *mut c_void,
    result_count: usize,
    flags: u64,
) -> isize {
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe {
        let compares = buffers(comparev, compare_count);
        let results = buffers(resultv, result_count);
        message(ep, Form::Compare, msg, compares, results, flags)
    }
}

/// Returns the number of words that a call may have, if the operation is offered.
///
/// # Safety
/// `count` is NULL or points to a number.
unsafe fn valid(form: Form, datatype: c_int, op: c_int, count: *mut usize) -> c_int {
    if !is_offered(form, datatype, op) {
        return -libc::EOPNOTSUPP;
    }
    if !count.is_null() {
        // SAFETY: the caller's promise.
        unsafe { count.write(WORDS_MAX) };
    }
    0
}

unsafe extern "C" fn writevalid(
    _ep: *mut fid_ep,
    datatype: c_int,
    op: c_int,
    count: *mut usize,
) -> c_int {
    // SAFETY: the caller's promises, which are libfabric's; so below.
    unsafe { valid(Form::Write, datatype, op, count) }
}

unsafe extern "C" fn readwritevalid(
    _ep: *mut fid_ep,
    datatype: c_int,
    op: c_int,
    count: *mut usize,
) -> c_int {
    // SAFETY: see `writevalid`.
    unsafe { valid(Form::Fetch, datatype, op, count) }
}

unsafe extern "C" fn compwritevalid(
    _ep: *mut fid_ep,
    datatype: c_int,
    op: c_int,
    count: *mut usize,
) -> c_int {
    // SAFETY: see `writevalid`.
    unsafe { valid(Form::Compare, datatype, op, count) }
}

/// The same without an endpoint.
pub(crate) unsafe extern "C" fn query(
    _domain: *mut fid_domain,
    datatype: c_int,
    op: c_int,
    attr: *mut fi_atomic_attr,
    flags: u64,
) -> c_int {
    let form = match flags & (FI_FETCH_ATOMIC | FI_COMPARE_ATOMIC) {
        0 => Form::Write,
        FI_FETCH_ATOMIC => Form::Fetch,
        FI_COMPARE_ATOMIC => Form::Compare,
        _ => return -libc::EINVAL,
    };
    if !is_offered(form, datatype, op) {
        return -libc::EOPNOTSUPP;
    }
    // SAFETY: NULL or attributes, by libfabric's contract.
    if let Some(attr) = unsafe { attr.as_mut() } {
        attr.count = WORDS_MAX;
        attr.size = WORD_BYTES;
    }
    0
}
