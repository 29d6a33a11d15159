//! Atomics on the wire: words of 64 bits; addition, masked swap, compare-and-swap.
//!
//! Must stay true: each operation offered to libfabric is one atomic step at the peer (RFC 7306):
//! sum, or, and, exclusive or, read, write, compare-and-swap, masked swap, of signed and unsigned
//! words. `ofi_rxm` above implements all others by messages of its own.

use crate::abi::*;
use crate::core::{Asked, Core, Report};
use crate::transfer::remote;
use crate::{Object, endpoint_calls};
use sidecore_bare::width::ToU64;
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
        // The wire has no bitwise operations: a swap sets the operand's bits to ones.
        FI_BOR => Atomic::Swap {
            new: u64::MAX,
            mask: operand,
        },
        // The bits that the operand lacks become zeros.
        FI_BAND => Atomic::Swap {
            new: 0,
            mask: !operand,
        },
        // Fields of one bit: no carry.
        FI_BXOR => Atomic::AddFields {
            value: operand,
            mask: u64::MAX,
        },
        // Adding nothing: the response has the word.
        FI_ATOMIC_READ if form == Form::Fetch => Atomic::Add(0),
        FI_ATOMIC_WRITE => Atomic::Swap {
            new: operand,
            mask: u64::MAX,
        },
        _ => return None,
    })
}

fn is_offered(form: Form, datatype: c_int, op: c_int) -> bool {
    // With two's complement the sign makes no difference to any of them.
    matches!(datatype, FI_INT64 | FI_UINT64) && change(form, op, 0, 0).is_some()
}

/// Arguments of a call: operands, comparands and result addresses, of the same number of words.
struct Words<'a> {
    operands: &'a [fi_ioc],
    compares: &'a [fi_ioc],
    results: &'a [fi_ioc],
}

impl Words<'_> {
    /// The number of words, if all parts that the operation has agree on it.
    fn count(&self, form: Form, op: c_int) -> Result<usize, i32> {
        let count = |buffers: &[fi_ioc]| -> usize {
            let counts = buffers.iter().map(|buffer| buffer.count);
            counts.fold(0, usize::saturating_add)
        };
        // A read has only results.
        let all = match op {
            FI_ATOMIC_READ => count(self.results),
            _ => count(self.operands),
        };
        let is_right = (form == Form::Write || count(self.results) == all)
            && (form != Form::Compare || count(self.compares) == all);
        // The bound also keeps an operation's work requests below the depth of an endpoint.
        if is_right && (1..=WORDS_MAX).contains(&all) {
            Ok(all)
        } else {
            Err(-libc::EINVAL)
        }
    }
}

/// Addresses of the words in some buffers.
fn addresses(buffers: &[fi_ioc]) -> impl Iterator<Item = usize> {
    buffers.iter().flat_map(|buffer| {
        let first = buffer.addr.expose_provenance();
        (0..buffer.count).map(move |index| first + index * WORD_BYTES)
    })
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
    // Before the slice: a wild count is an error, not undefined behaviour.
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
) -> Result<(), i32> {
    // SAFETY: the caller's promise.
    let object = unsafe { Object::of(ep) };
    if object.raw.fid.fclass != FI_CLASS_EP {
        return Err(-libc::EINVAL);
    }
    if !is_offered(form, datatype, op) {
        return Err(-libc::EOPNOTSUPP);
    }
    let all = words.count(form, op)?;
    // Addresses: the results are written when the responses arrive, by whichever call sees them.
    let results: Vec<usize> = addresses(words.results).collect();
    let mut operands = addresses(words.operands);
    let mut compares = addresses(words.compares);
    let mut remote = there;
    let mut work = Vec::with_capacity(all);
    for _ in 0..all {
        let next = |from: &mut dyn Iterator<Item = usize>| {
            // SAFETY: the caller's promise.
            from.next().map_or(0, |address| unsafe { word(address) })
        };
        // A read's operands may be anything, also where they are given.
        let operand = match op {
            FI_ATOMIC_READ => 0,
            _ => next(&mut operands),
        };
        let compare = next(&mut compares);
        let atomic = change(form, op, operand, compare).ok_or(-libc::EOPNOTSUPP)?;
        work.push(Work::Atomic { atomic, remote });
        remote.offset = remote.offset.wrapping_add(WORD_BYTES.to_u64());
    }
    let mut core = object.fabric.lock();
    core.atomics(object.index, form, work, &results, asked)
}

impl Core {
    fn atomics(
        &mut self,
        index: usize,
        form: Form,
        work: Vec<Work>,
        results: &[usize],
        asked: Asked,
    ) -> Result<(), i32> {
        let mut asked = self.with_endpoint_flags(index, asked)?;
        // An atomic completes with the peer's response, so delivery is complete anyway.
        asked.flags &= !FI_DELIVERY_COMPLETE;
        let report = match form {
            Form::Write => Report::CHANGE,
            Form::Fetch | Form::Compare => Report::FETCH,
        };
        let len = work.len() * WORD_BYTES;
        self.post(index, work, results, len, &asked, report)
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
    compares: &[fi_ioc],
    results: &[fi_ioc],
    flags: u64,
) -> Result<(), i32> {
    // SAFETY: the caller's promises, which are libfabric's.
    unsafe {
        let msg = &*msg;
        // `rma_iov_limit` is 1: words of one operation lie in one row.
        if msg.rma_iov_count != 1 {
            return Err(-libc::EINVAL);
        }
        let there = msg.rma_iov.read();
        let words = Words {
            operands: buffers(msg.msg_iov, msg.iov_count)?,
            compares,
            results,
        };
        let (what, asked) = (
            (msg.datatype, msg.op),
            Asked::message(msg.context, flags, msg.data),
        );
        operate(ep, form, &words, remote(there.addr, there.key), what, asked)
    }
}

endpoint_calls! {
    fn write(
        ep, buf: *const c_void, count: usize, _desc: *mut c_void, _peer: u64, addr: u64, key: u64,
        datatype: c_int, op: c_int, context: *mut c_void,
    ) {
        let words = Words { operands: &one(buf, count), compares: &[], results: &[] };
        let (there, what) = (remote(addr, key), (datatype, op));
        operate(ep, Form::Write, &words, there, what, Asked::short(context))
    }

    fn writev(
        ep, iov: *const fi_ioc, _desc: *mut *mut c_void, count: usize, _peer: u64, addr: u64,
        key: u64, datatype: c_int, op: c_int, context: *mut c_void,
    ) {
        let words = Words { operands: buffers(iov, count)?, compares: &[], results: &[] };
        let (there, what) = (remote(addr, key), (datatype, op));
        operate(ep, Form::Write, &words, there, what, Asked::short(context))
    }

    fn writemsg(ep, msg: *const fi_msg_atomic, flags: u64) {
        message(ep, Form::Write, msg, &[], &[], flags)
    }

    fn inject(
        ep, buf: *const c_void, count: usize, _peer: u64, addr: u64, key: u64, datatype: c_int,
        op: c_int,
    ) {
        let words = Words { operands: &one(buf, count), compares: &[], results: &[] };
        let (there, what) = (remote(addr, key), (datatype, op));
        operate(ep, Form::Write, &words, there, what, Asked::injected())
    }

    fn readwrite(
        ep, buf: *const c_void, count: usize, _desc: *mut c_void, result: *mut c_void,
        _result_desc: *mut c_void, _peer: u64, addr: u64, key: u64, datatype: c_int, op: c_int,
        context: *mut c_void,
    ) {
        let (operands, results) = (&one(buf, count), &one(result, count));
        let words = Words { operands, compares: &[], results };
        let (there, what) = (remote(addr, key), (datatype, op));
        operate(ep, Form::Fetch, &words, there, what, Asked::short(context))
    }

    fn readwritev(
        ep, iov: *const fi_ioc, _desc: *mut *mut c_void, count: usize, resultv: *mut fi_ioc,
        _result_desc: *mut *mut c_void, result_count: usize, _peer: u64, addr: u64, key: u64,
        datatype: c_int, op: c_int, context: *mut c_void,
    ) {
        let (operands, results) = (buffers(iov, count)?, buffers(resultv, result_count)?);
        let words = Words { operands, compares: &[], results };
        let (there, what) = (remote(addr, key), (datatype, op));
        operate(ep, Form::Fetch, &words, there, what, Asked::short(context))
    }

    fn readwritemsg(
        ep, msg: *const fi_msg_atomic, resultv: *mut fi_ioc, _result_desc: *mut *mut c_void,
        result_count: usize, flags: u64,
    ) {
        message(ep, Form::Fetch, msg, &[], buffers(resultv, result_count)?, flags)
    }

    fn compwrite(
        ep, buf: *const c_void, count: usize, _desc: *mut c_void, compare: *const c_void,
        _compare_desc: *mut c_void, result: *mut c_void, _result_desc: *mut c_void, _peer: u64,
        addr: u64, key: u64, datatype: c_int, op: c_int, context: *mut c_void,
    ) {
        let (operands, results) = (&one(buf, count), &one(result, count));
        let words = Words { operands, compares: &one(compare, count), results };
        let (there, what) = (remote(addr, key), (datatype, op));
        operate(ep, Form::Compare, &words, there, what, Asked::short(context))
    }

    fn compwritev(
        ep, iov: *const fi_ioc, _desc: *mut *mut c_void, count: usize, comparev: *const fi_ioc,
        _compare_desc: *mut *mut c_void, compare_count: usize, resultv: *mut fi_ioc,
        _result_desc: *mut *mut c_void, result_count: usize, _peer: u64, addr: u64, key: u64,
        datatype: c_int, op: c_int, context: *mut c_void,
    ) {
        let (operands, results) = (buffers(iov, count)?, buffers(resultv, result_count)?);
        let words = Words { operands, compares: buffers(comparev, compare_count)?, results };
        let (there, what) = (remote(addr, key), (datatype, op));
        operate(ep, Form::Compare, &words, there, what, Asked::short(context))
    }

    fn compwritemsg(
        ep, msg: *const fi_msg_atomic, comparev: *const fi_ioc, _compare_desc: *mut *mut c_void,
        compare_count: usize, resultv: *mut fi_ioc, _result_desc: *mut *mut c_void,
        result_count: usize, flags: u64,
    ) {
        let (compares, results) = (
            buffers(comparev, compare_count)?,
            buffers(resultv, result_count)?,
        );
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
    // A program may ask only whether the operation is offered.
    if !count.is_null() {
        // SAFETY: the caller's promise.
        unsafe { count.write(WORDS_MAX) };
    }
    0
}

macro_rules! valid_calls {
    ($($name:ident: $form:expr;)*) => {$(
        unsafe extern "C" fn $name(
            _ep: *mut fid_ep,
            datatype: c_int,
            op: c_int,
            count: *mut usize,
        ) -> c_int {
            // SAFETY: the caller's promises, which are libfabric's.
            unsafe { valid($form, datatype, op, count) }
        }
    )*};
}

valid_calls! {
    writevalid: Form::Write;
    readwritevalid: Form::Fetch;
    compwritevalid: Form::Compare;
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
    // The same table as the calls': a program may rely on either.
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
