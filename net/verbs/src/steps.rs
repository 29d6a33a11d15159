//! The interface's newer calls, which take work and show completions in steps (`ibv_wr_post`(3),
//! `ibv_create_cq_ex`(3)).

use crate::abi::*;
use crate::datagram::Target;
use crate::fast::{Request, copy, pieces, read_pieces};
use crate::pair::{QpObject, qp_of};
use crate::queue::{CqObject, poll_cq};
use crate::state::Core;
use sidecore_bare::width::{ToU64, ToUsize};
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

/// Work of an extended pair between its start and its end.
#[derive(Default)]
pub(crate) struct Batch {
    is_taken: AtomicBool,
    requests: Vec<Request>,
    /// Copies of inline data.
    bytes: Vec<u8>,
    error: c_int,
}

/// An extended pair's structure.
pub(crate) fn extended(qp_base: ibv_qp) -> ibv_qp_ex {
    ibv_qp_ex {
        qp_base,
        comp_mask: 0,
        wr_id: 0,
        wr_flags: 0,
        wr_atomic_cmp_swp: Some(wr_atomic_cmp_swp),
        wr_atomic_fetch_add: Some(wr_atomic_fetch_add),
        wr_bind_mw: Some(wr_refused),
        wr_local_inv: Some(wr_local_inv),
        wr_rdma_read: Some(wr_rdma_read),
        wr_rdma_write: Some(wr_rdma_write),
        wr_rdma_write_imm: Some(wr_rdma_write_imm),
        wr_send: Some(wr_send),
        wr_send_imm: Some(wr_send_imm),
        wr_send_inv: Some(wr_send_inv),
        wr_send_tso: Some(wr_refused),
        wr_set_ud_addr: Some(wr_set_ud_addr),
        wr_set_xrc_srqn: Some(wr_refused),
        wr_set_inline_data: Some(wr_set_inline_data),
        wr_set_inline_data_list: Some(wr_set_inline_data_list),
        wr_set_sge: Some(wr_set_sge),
        wr_set_sge_list: Some(wr_set_sge_list),
        wr_start: Some(wr_start),
        wr_complete: Some(wr_complete),
        wr_abort: Some(wr_abort),
        wr_atomic_write: Some(wr_refused),
    }
}

/// The work of an extended pair that is being written.
///
/// # Safety
/// An extended pair, between `wr_start` and its end: then one thread has it.
unsafe fn batch<'a>(qp: *mut ibv_qp_ex) -> &'a mut Batch {
    // SAFETY: the caller's promise; an extended pair is an object's first field.
    unsafe { &mut (*qp.cast::<QpObject>()).batch }
}

/// Begins a request.
///
/// # Safety
/// As [`batch`].
unsafe fn begin(qp: *mut ibv_qp_ex, request: Request) {
    // SAFETY: the caller's promise.
    unsafe {
        let request = Request {
            wr_id: (*qp).wr_id,
            flags: (*qp).wr_flags & !IBV_SEND_INLINE,
            ..request
        };
        batch(qp).requests.push(request);
    }
}

/// The builders of requests: their arguments, and the fields that these are.
macro_rules! builders {
    ($($name:ident($($argument:ident: $type:ty),*) $opcode:ident {
        $($field:ident: $value:expr),*
    };)*) => {$(
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $argument: $type)*) {
            // SAFETY: an extended pair whose work is being written, as ibv_wr_post(3) demands.
            unsafe {
                let opcode = $opcode;
                begin(qp, Request { opcode, $($field: $value,)* ..Request::default() })
            }
        }
    )*};
}

builders! {
    wr_rdma_read(rkey: u32, remote: u64) IBV_WR_RDMA_READ { rkey: rkey, remote: remote };
    wr_rdma_write(rkey: u32, remote: u64) IBV_WR_RDMA_WRITE { rkey: rkey, remote: remote };
    wr_rdma_write_imm(rkey: u32, remote: u64, imm: u32) IBV_WR_RDMA_WRITE_WITH_IMM {
        rkey: rkey, remote: remote, imm: imm
    };
    wr_send() IBV_WR_SEND {};
    wr_send_imm(imm: u32) IBV_WR_SEND_WITH_IMM { imm: imm };
    wr_send_inv(imm: u32) IBV_WR_SEND_WITH_INV { imm: imm };
    wr_local_inv(imm: u32) IBV_WR_LOCAL_INV { imm: imm };
    wr_atomic_cmp_swp(rkey: u32, remote: u64, compare: u64, swap: u64) IBV_WR_ATOMIC_CMP_AND_SWP {
        rkey: rkey, remote: remote, compare_add: compare, swap: swap
    };
    wr_atomic_fetch_add(rkey: u32, remote: u64, add: u64) IBV_WR_ATOMIC_FETCH_AND_ADD {
        rkey: rkey, remote: remote, compare_add: add
    };
}

unsafe extern "C" fn wr_refused(qp: *mut ibv_qp_ex) {
    // SAFETY: as the builders.
    unsafe { batch(qp).error = libc::EOPNOTSUPP };
}

unsafe extern "C" fn wr_set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, number: u32, key: u32) {
    // SAFETY: as the builders; an address handle.
    unsafe {
        let batch = batch(qp);
        match batch.requests.last_mut() {
            Some(request) => request.target = Target::of(ah, number, key),
            None => batch.error = libc::EINVAL,
        }
    }
}

unsafe extern "C" fn wr_set_sge(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let piece = ibv_sge { addr, length, lkey };
    // SAFETY: as the builders; one piece.
    unsafe { wr_set_sge_list(qp, 1, &raw const piece) };
}

unsafe extern "C" fn wr_set_sge_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: as the builders; `count` pieces.
    unsafe {
        let batch = batch(qp);
        let count = c_int::try_from(count).unwrap_or(-1);
        match (
            pieces(list, count).and_then(read_pieces),
            batch.requests.last_mut(),
        ) {
            (Ok(pieces), Some(request)) => request.pieces = pieces,
            _ => batch.error = libc::EINVAL,
        }
    }
}

unsafe extern "C" fn wr_set_inline_data(qp: *mut ibv_qp_ex, addr: *mut c_void, length: usize) {
    let list = ibv_data_buf { addr, length };
    // SAFETY: as the builders; one buffer.
    unsafe { wr_set_inline_data_list(qp, 1, &raw const list) };
}

unsafe extern "C" fn wr_set_inline_data_list(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: as the builders; `count` buffers, which are copied now.
    unsafe {
        let batch = batch(qp);
        let begin = batch.bytes.len();
        for index in 0..count {
            let one = list.add(index).read();
            copy(
                &mut batch.bytes,
                one.addr.expose_provenance().to_u64(),
                one.length,
            );
        }
        let count = batch.bytes.len() - begin;
        match batch.requests.last_mut() {
            Some(request) => request.copied = Some((begin, count)),
            None => batch.error = libc::EINVAL,
        }
    }
}

unsafe extern "C" fn wr_start(qp: *mut ibv_qp_ex) {
    // SAFETY: an extended pair, as ibv_wr_post(3) demands.
    let object = unsafe { &*qp.cast::<QpObject>() };
    // Acquire: with the end of another thread's work, in `end`.
    while object.batch.is_taken.swap(true, Ordering::Acquire) {
        std::thread::yield_now();
    }
    // SAFETY: from here on this thread has it.
    let batch = unsafe { batch(qp) };
    batch.requests.clear();
    batch.bytes.clear();
    batch.error = 0;
}

/// Ends the writing of work.
///
/// # Safety
/// As [`batch`].
unsafe fn end(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's promise. Release: with `wr_start`.
    unsafe { batch(qp).is_taken.store(false, Ordering::Release) };
}

unsafe extern "C" fn wr_complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: an extended pair after `wr_start`, as ibv_wr_post(3) demands.
    unsafe {
        let mut outcome = Err(libc::EINVAL);
        if let Some((engine, handle)) = qp_of(qp.cast()) {
            let batch = batch(qp);
            let mut core = engine.lock();
            outcome = match batch.error {
                0 => core.post_all(handle, batch),
                error => Err(error),
            };
            core.book();
        }
        end(qp);
        outcome.err().unwrap_or(0)
    }
}

impl Core {
    /// Posts a batch, or nothing of it if there is no room for all.
    fn post_all(&mut self, handle: u32, batch: &Batch) -> Result<(), c_int> {
        let qp = self.qps.get(handle).ok_or(libc::EINVAL)?;
        let count = qp.slots() + batch.requests.len();
        if count > qp.cap.max_send_wr.to_usize() {
            return Err(libc::ENOMEM);
        }
        let mut all = batch.requests.iter();
        all.try_for_each(|request| self.post(handle, request, &batch.bytes))
    }
}

unsafe extern "C" fn wr_abort(qp: *mut ibv_qp_ex) {
    // SAFETY: an extended pair after `wr_start`, as ibv_wr_post(3) demands.
    unsafe { end(qp) };
}

/// An extended queue's calls.
pub(crate) fn queue() -> ibv_cq_ex {
    ibv_cq_ex {
        start_poll: Some(start_poll),
        next_poll: Some(next_poll),
        end_poll: Some(end_poll),
        read_opcode: Some(read_opcode),
        read_vendor_err: Some(read_vendor_err),
        read_byte_len: Some(read_byte_len),
        read_imm_data: Some(read_imm_data),
        read_qp_num: Some(read_qp_num),
        read_src_qp: Some(read_src_qp),
        read_wc_flags: Some(read_wc_flags),
        read_slid: Some(read_src_qp),
        read_sl: Some(read_zero),
        read_dlid_path_bits: Some(read_zero),
        ..zeroed()
    }
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, _attr: *mut c_void) -> c_int {
    // SAFETY: an extended queue, as ibv_create_cq_ex(3) demands: an object's first field.
    unsafe {
        // As of other providers, the queue is this thread's until the end of the poll.
        // Acquire: with the end of another thread's poll, in `end_poll`.
        while (*cq.cast::<CqObject>())
            .is_taken
            .swap(true, Ordering::Acquire)
        {
            std::thread::yield_now();
        }
        let outcome = next_poll(cq);
        // There is nothing to end after a start that failed.
        if outcome != 0 {
            end_poll(cq);
        }
        outcome
    }
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: an extended queue after `start_poll`: this thread has it until `end_poll`.
    unsafe {
        let shown = &raw mut (*cq.cast::<CqObject>()).shown;
        match poll_cq(cq.cast(), 1, shown) {
            1 => {
                (*cq).status = (*shown).status;
                (*cq).wr_id = (*shown).wr_id;
                0
            }
            0 => libc::ENOENT,
            error => -error,
        }
    }
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    // SAFETY: as `next_poll`. Release: with `start_poll`.
    unsafe {
        (*cq.cast::<CqObject>())
            .is_taken
            .store(false, Ordering::Release);
    }
}

/// Readers of parts of a completion.
macro_rules! readers {
    ($($name:ident -> $type:ty: $field:ident;)*) => {$(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: as `next_poll`.
            unsafe { (*cq.cast::<CqObject>()).shown.$field }
        }
    )*};
}

readers! {
    read_opcode -> c_int: opcode;
    read_vendor_err -> u32: vendor_err;
    read_byte_len -> u32: byte_len;
    read_imm_data -> u32: imm_data;
    read_qp_num -> u32: qp_num;
    read_src_qp -> u32: src_qp;
    read_wc_flags -> c_uint: wc_flags;
    read_zero -> u8: sl;
}
