//! Posting of work and receives, in both of the interface's ways.
//!
//! A write that asks for a completion is confirmed by a read of no bytes behind it: its completion
//! then says that the peer has placed the data, or has refused it, as verbs demand; TCP's taking of
//! the bytes (RFC 5040, section 5.5) does not. Immediate data is RFC 7306's: solicited and with a
//! receive behind a write, unsolicited and without one ahead of a message.

use crate::abi::*;
use crate::pair::{QpObject, SendOp, qp_of};
use crate::shared::srq_of;
use crate::state::{Core, SOLICITED, flushed};
use sidecore_rdma::{
    Access, Atomic, MESSAGE_BYTES_MAX, Piece, Pieces, Post, PostError, RdmaError, Receive, Remote,
    Stag, Work,
};
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

/// A work request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Request {
    wr_id: u64,
    opcode: c_int,
    flags: c_uint,
    /// Immediate data as on the wire, or a key to invalidate.
    imm: u32,
    remote: u64,
    rkey: u32,
    compare_add: u64,
    swap: u64,
    pieces: Pieces,
    /// Inline data, by its place among the batch's copies.
    copied: Option<(usize, usize)>,
}

impl Request {
    fn remote(&self) -> Remote {
        Remote {
            stag: Stag(self.rkey),
            offset: self.remote,
        }
    }

    /// Reads a request of ibv_post_send(3); inline data goes to `bytes`.
    ///
    /// # Safety
    /// A request as the manual page demands.
    unsafe fn read(wr: &ibv_send_wr, bytes: &mut Vec<u8>) -> Result<Self, c_int> {
        let mut request = Self {
            wr_id: wr.wr_id,
            opcode: wr.opcode,
            flags: wr.send_flags,
            imm: wr.imm_data,
            ..Self::default()
        };
        // SAFETY: the union's member is the one that the operation names.
        unsafe {
            match wr.opcode {
                IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => {
                    let atomic = wr.wr.atomic;
                    request.remote = atomic.remote_addr;
                    request.rkey = atomic.rkey;
                    request.compare_add = atomic.compare_add;
                    request.swap = atomic.swap;
                }
                _ => {
                    request.remote = wr.wr.rdma.remote_addr;
                    request.rkey = wr.wr.rdma.rkey;
                }
            }
        }
        // SAFETY: `num_sge` pieces, by the caller's promise.
        let pieces = unsafe { pieces(wr.sg_list, wr.num_sge)? };
        if wr.send_flags & IBV_SEND_INLINE == 0 {
            request.pieces = read_pieces(pieces)?;
            return Ok(request);
        }
        let begin = bytes.len();
        for piece in pieces {
            // SAFETY: memory that is to be copied, by the caller's promise.
            unsafe { copy(bytes, piece.addr, piece.length as usize) };
        }
        request.copied = Some((begin, bytes.len() - begin));
        Ok(request)
    }
}

/// Copies memory of the program.
///
/// # Safety
/// `count` bytes at `address` are readable.
unsafe fn copy(bytes: &mut Vec<u8>, address: u64, count: usize) {
    if count == 0 {
        return;
    }
    let source: *const u8 = std::ptr::with_exposed_provenance(address as usize);
    // SAFETY: the caller's promise.
    bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(source, count) });
}

/// A list of pieces.
///
/// # Safety
/// `count` pieces at `list`, if there are any.
unsafe fn pieces<'a>(list: *const ibv_sge, count: c_int) -> Result<&'a [ibv_sge], c_int> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        // SAFETY: the caller's promise.
        Ok(count) if !list.is_null() => Ok(unsafe { std::slice::from_raw_parts(list, count) }),
        _ => Err(libc::EINVAL),
    }
}

fn read_pieces(list: &[ibv_sge]) -> Result<Pieces, c_int> {
    let mut pieces = Pieces::new();
    for piece in list {
        let piece = Piece {
            stag: Stag(piece.lkey),
            offset: piece.addr,
            bytes: piece.length,
        };
        pieces.try_push(piece).map_err(|_| libc::EINVAL)?;
    }
    Ok(pieces)
}

fn total(pieces: &Pieces) -> Result<u32, c_int> {
    let sum: u64 = pieces.iter().map(|piece| u64::from(piece.bytes)).sum();
    let sum = u32::try_from(sum).map_err(|_| libc::EINVAL)?;
    (sum <= MESSAGE_BYTES_MAX)
        .then_some(sum)
        .ok_or(libc::EINVAL)
}

/// A read of no bytes, which is answered once everything before it is done.
const CONFIRMATION: Work = Work::Read {
    into: Piece {
        stag: Stag(0),
        offset: 0,
        bytes: 0,
    },
    remote: Remote {
        stag: Stag(0),
        offset: 0,
    },
};

impl Core {
    /// Posts a work request, whose inline data is in `bytes`.
    ///
    /// # Errors
    /// An error number; nothing was posted then.
    pub(crate) fn post(
        &mut self,
        handle: u32,
        request: &Request,
        bytes: &[u8],
    ) -> Result<(), c_int> {
        let qp = self.qps.get(handle).ok_or(libc::EINVAL)?;
        if qp.sends.len() + qp.unread >= qp.cap.max_send_wr as usize {
            return Err(libc::ENOMEM);
        }
        let is_signaled = qp.signals_all || request.flags & IBV_SEND_SIGNALED != 0;
        let opcode = match request.opcode {
            IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => IBV_WC_RDMA_WRITE,
            IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_SEND_WITH_INV => IBV_WC_SEND,
            IBV_WR_RDMA_READ => IBV_WC_RDMA_READ,
            IBV_WR_ATOMIC_CMP_AND_SWP => IBV_WC_COMP_SWAP,
            IBV_WR_ATOMIC_FETCH_AND_ADD => IBV_WC_FETCH_ADD,
            _ => return Err(libc::EOPNOTSUPP),
        };
        let mut op = SendOp {
            wr_id: request.wr_id,
            opcode,
            is_signaled,
            parts: 0,
            bytes: 0,
            sink: None,
            failed: None,
        };
        let connection = match (qp.state, qp.connection) {
            (IBV_QPS_ERR, _) => {
                qp.unread += 1;
                let (cq, wc) = (qp.send_cq, flushed(op.wr_id, opcode, qp.number));
                self.emit(cq, wc, false, Some(handle));
                return Ok(());
            }
            (IBV_QPS_RTS | IBV_QPS_SQD, Some(connection)) => connection,
            _ => return Err(libc::EINVAL),
        };
        let pieces = match request.copied {
            Some((begin, count)) => self.keep(handle, &bytes[begin..begin + count])?,
            None => request.pieces.clone(),
        };
        op.bytes = total(&pieces)?;
        let works = self.works(handle, request, pieces, &mut op)?;
        for (index, work) in works.into_iter().enumerate() {
            let fence = index == 0 && request.flags & IBV_SEND_FENCE != 0;
            let is_confirmation = work == CONFIRMATION;
            let id = request.wr_id;
            match self.device.post(connection, Post { id, work, fence }) {
                Ok(()) => op.parts += 1,
                // A peer that serves no reads cannot confirm: TCP's taking must do.
                Err(RdmaError::Post(PostError::NoReads)) if is_confirmation => {}
                Err(RdmaError::Post(PostError::NoReads)) => return Err(libc::EOPNOTSUPP),
                Err(RdmaError::Post(PostError::Fault(_))) => {
                    op.failed = Some(IBV_WC_LOC_PROT_ERR);
                    break;
                }
                Err(_) => {
                    op.failed = Some(IBV_WC_WR_FLUSH_ERR);
                    break;
                }
            }
        }
        if let Some(qp) = self.qps.get(handle) {
            qp.sends.push_back(op);
        }
        if op.parts == 0 {
            self.settle_sends(handle);
        }
        Ok(())
    }

    /// The device's work for a request.
    fn works(
        &mut self,
        handle: u32,
        request: &Request,
        pieces: Pieces,
        op: &mut SendOp,
    ) -> Result<Vec<Work>, c_int> {
        let solicited = request.flags & IBV_SEND_SOLICITED != 0;
        let remote = request.remote();
        let value = u64::from(u32::from_be(request.imm));
        let send = |pieces, invalidate| Work::Send {
            pieces,
            invalidate,
            solicited,
        };
        let mut works = match request.opcode {
            IBV_WR_SEND => vec![send(pieces, None)],
            IBV_WR_SEND_WITH_INV => vec![send(pieces, Some(Stag(request.imm)))],
            IBV_WR_SEND_WITH_IMM => {
                let ahead = Work::Immediate {
                    value,
                    solicited: false,
                };
                vec![ahead, send(pieces, None)]
            }
            IBV_WR_RDMA_WRITE => vec![Work::Write { pieces, remote }],
            IBV_WR_RDMA_WRITE_WITH_IMM => {
                let asks = if solicited { SOLICITED } else { 0 };
                let behind = Work::Immediate {
                    value: value | u64::from(op.bytes) << 32 | asks,
                    solicited: true,
                };
                vec![Work::Write { pieces, remote }, behind]
            }
            IBV_WR_RDMA_READ => {
                // RFC 5040: one place for the data of a read.
                let into = match pieces.as_slice() {
                    [] => Piece {
                        stag: Stag(0),
                        offset: 0,
                        bytes: 0,
                    },
                    [into] => *into,
                    _ => return Err(libc::EINVAL),
                };
                vec![Work::Read { into, remote }]
            }
            _ => {
                let [sink] = pieces.as_slice() else {
                    return Err(libc::EINVAL);
                };
                let owner = self.qps.get(handle).ok_or(libc::EINVAL)?.owner;
                let adapter = self.device.adapter();
                if sink.bytes != 8 || adapter.check(owner, *sink, Access::LOCAL_WRITE).is_err() {
                    return Err(libc::EINVAL);
                }
                op.sink = Some(*sink);
                let (add, new) = (request.compare_add, request.swap);
                let atomic = match request.opcode {
                    IBV_WR_ATOMIC_FETCH_AND_ADD => Atomic::Add(add),
                    _ => Atomic::CompareSwap { expected: add, new },
                };
                vec![Work::Atomic { atomic, remote }]
            }
        };
        if op.is_signaled && op.opcode == IBV_WC_RDMA_WRITE {
            works.push(CONFIRMATION);
        }
        Ok(works)
    }

    /// Keeps a copy of inline data until it is sent; its piece.
    fn keep(&mut self, handle: u32, bytes: &[u8]) -> Result<Pieces, c_int> {
        let qp = self.qps.get(handle).ok_or(libc::EINVAL)?;
        let (room, places) = (qp.cap.max_inline_data as usize, qp.cap.max_send_wr);
        if bytes.len() > room {
            return Err(libc::EINVAL);
        }
        let adapter = self.device.adapter_mut();
        let region = match qp.copies {
            Some(region) => region,
            None => {
                // Most pairs never send any.
                let all = vec![0; room * places as usize];
                let made = adapter.register(all, Access::NONE);
                *qp.copies.insert(made.map_err(|_| libc::ENOMEM)?)
            }
        };
        let at = qp.next_copy as usize * room;
        // The last user of this place is over: no more than `max_send_wr` are not.
        qp.next_copy = (qp.next_copy + 1) % places.max(1);
        adapter.bytes_mut(region)[at..at + bytes.len()].copy_from_slice(bytes);
        let count = u32::try_from(bytes.len()).map_err(|_| libc::EINVAL)?;
        Ok(Pieces::from_iter([region.piece(at as u64, count)]))
    }

    fn post_receive(&mut self, handle: u32, receive: Receive) -> Result<(), c_int> {
        let qp = self.qps.get(handle).ok_or(libc::EINVAL)?;
        if qp.srq.is_some() || qp.state == IBV_QPS_RESET {
            return Err(libc::EINVAL);
        }
        if qp.receives >= qp.cap.max_recv_wr as usize {
            return Err(libc::ENOMEM);
        }
        qp.receives += 1;
        if qp.state == IBV_QPS_ERR {
            let (cq, wc) = (qp.recv_cq, flushed(receive.id, IBV_WC_RECV, qp.number));
            self.emit(cq, wc, false, Some(handle));
            return Ok(());
        }
        let Some(connection) = qp.connection else {
            qp.early.push_back(receive);
            return Ok(());
        };
        let id = receive.id;
        match self.device.post_receive(connection, receive) {
            Ok(()) => Ok(()),
            // The end of the connection is not booked yet.
            Err(RdmaError::Post(PostError::Ended)) => {
                let qp = self.qps.get(handle).ok_or(libc::EINVAL)?;
                let (cq, wc) = (qp.recv_cq, flushed(id, IBV_WC_RECV, qp.number));
                self.emit(cq, wc, false, Some(handle));
                Ok(())
            }
            Err(error) => {
                if let Some(qp) = self.qps.get(handle) {
                    qp.receives -= 1;
                }
                Err(crate::number_of(&error))
            }
        }
    }

    /// Goes on with messages that waited for a receive.
    fn serve_waiting(&mut self) {
        if self.device.has_work() {
            self.progress();
        }
    }
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: a pair, a list of requests and a place for a pointer, as ibv_post_send(3) demands.
    unsafe {
        let Some((engine, handle)) = qp_of(qp) else {
            return libc::EINVAL;
        };
        let mut core = engine.lock();
        let mut at = wr;
        let mut outcome = match core.qps.find(handle, qp.addr()) {
            Some(_) => Ok(()),
            None => Err(libc::EINVAL),
        };
        let mut bytes = Vec::new();
        while outcome.is_ok()
            && let Some(one) = at.as_ref()
        {
            bytes.clear();
            outcome = Request::read(one, &mut bytes)
                .and_then(|request| core.post(handle, &request, &bytes));
            if outcome.is_ok() {
                at = one.next;
            }
        }
        core.book();
        match outcome {
            Ok(()) => 0,
            Err(error) => {
                if !bad.is_null() {
                    bad.write(at);
                }
                error
            }
        }
    }
}

/// Posts a list of receives.
///
/// # Safety
/// A list of requests and a place for a pointer, as ibv_post_recv(3) demands.
unsafe fn post_receives(
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    mut post: impl FnMut(Receive) -> Result<(), c_int>,
) -> c_int {
    let mut at = wr;
    // SAFETY: the caller's promise.
    unsafe {
        while let Some(one) = at.as_ref() {
            let pieces = pieces(one.sg_list, one.num_sge).and_then(read_pieces);
            let receive = pieces.map(|pieces| Receive {
                id: one.wr_id,
                pieces,
            });
            if let Err(error) = receive.and_then(&mut post) {
                if !bad.is_null() {
                    bad.write(at);
                }
                return error;
            }
            at = one.next;
        }
    }
    0
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as ibv_post_recv(3) demands; other pairs are refused.
    unsafe {
        let Some((engine, handle)) = qp_of(qp) else {
            return libc::EINVAL;
        };
        let mut core = engine.lock();
        let is_known = core.qps.find(handle, qp.addr()).is_some();
        let outcome = post_receives(wr, bad, |receive| match is_known {
            true => core.post_receive(handle, receive),
            false => Err(libc::EINVAL),
        });
        core.serve_waiting();
        outcome
    }
}

pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: as ibv_post_srq_recv(3) demands; other queues are refused.
    unsafe {
        let found = srq_of(srq);
        let Some((engine, handle)) = found else {
            return libc::EINVAL;
        };
        let mut core = engine.lock();
        let outcome = post_receives(wr, bad, |receive| {
            let id = core.srqs.get(handle).ok_or(libc::EINVAL)?.id;
            let posted = core.device.post_shared(id, receive);
            posted.map_err(|error| crate::number_of(&error))
        });
        core.serve_waiting();
        outcome
    }
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
        wr_set_ud_addr: Some(wr_refused),
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
    ($($name:ident($($argument:ident: $type:ty),*) $opcode:ident { $($field:ident: $value:expr),* };)*) => {$(
        unsafe extern "C" fn $name(qp: *mut ibv_qp_ex $(, $argument: $type)*) {
            // SAFETY: an extended pair whose work is being written, as ibv_wr_post(3) demands.
            unsafe { begin(qp, Request { opcode: $opcode, $($field: $value,)* ..Request::default() }) }
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
                one.addr.expose_provenance() as u64,
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
        let count = qp.sends.len() + qp.unread + batch.requests.len();
        if count > qp.cap.max_send_wr as usize {
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
