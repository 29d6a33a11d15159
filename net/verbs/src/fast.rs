//! Posting of work and receives.
//!
//! A write that asks for a completion is confirmed by a read of no bytes behind it: its completion
//! then says that the peer has placed the data, or has refused it, as verbs demand; TCP's taking of
//! the bytes (RFC 5040, section 5.5) does not. Immediate data is RFC 7306's: solicited and with a
//! receive behind a write, unsolicited and without one ahead of a message.

use crate::abi::*;
use crate::datagram::Target;
use crate::memory::srq_of;
use crate::pair::{SendOp, qp_of};
use crate::state::{Core, Immediate, flushed};
use sidecore_bare::width::{ToU64, ToUsize};
use sidecore_rdma::{
    Access, Atomic, ConnectionId, Piece, Pieces, Post, PostError, RdmaError, Receive, Remote, Stag,
    Work, message_bytes,
};
use std::ffi::{c_int, c_uint};

/// A work request.
#[derive(Debug, Clone, Default)]
pub(crate) struct Request {
    pub(crate) wr_id: u64,
    pub(crate) opcode: c_int,
    pub(crate) flags: c_uint,
    /// Immediate data as on the wire, or a key to invalidate.
    pub(crate) imm: u32,
    pub(crate) remote: u64,
    pub(crate) rkey: u32,
    pub(crate) compare_add: u64,
    pub(crate) swap: u64,
    pub(crate) pieces: Pieces,
    /// Inline data, by its place among the batch's copies.
    pub(crate) copied: Option<(usize, usize)>,
    /// Of a datagram.
    pub(crate) target: Option<Target>,
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
    /// A request as the manual page demands, of a pair of that kind.
    unsafe fn read(
        wr: &ibv_send_wr,
        bytes: &mut Vec<u8>,
        is_datagram: bool,
    ) -> Result<Self, c_int> {
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
                _ if is_datagram => {
                    let UdTarget {
                        ah,
                        remote_qpn,
                        remote_qkey,
                    } = wr.wr.ud;
                    request.target = Target::of(ah, remote_qpn, remote_qkey);
                }
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
            unsafe { copy(bytes, piece.addr, piece.length.to_usize()) };
        }
        request.copied = Some((begin, bytes.len() - begin));
        Ok(request)
    }
}

/// A request with the device's work for it.
pub(crate) struct Held {
    pub(crate) op: SendOp,
    works: [Option<Work>; 3],
    fence: bool,
}

/// Work without a way: it waits for the time limit.
impl From<SendOp> for Held {
    fn from(op: SendOp) -> Self {
        Self {
            op,
            works: [None, None, None],
            fence: false,
        }
    }
}

/// Copies memory of the program.
///
/// # Safety
/// `count` bytes at `address` are readable.
pub(crate) unsafe fn copy(bytes: &mut Vec<u8>, address: u64, count: usize) {
    if count == 0 {
        return;
    }
    let source: *const u8 = std::ptr::with_exposed_provenance(address.to_usize());
    // SAFETY: the caller's promise.
    bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(source, count) });
}

/// A list of pieces.
///
/// # Safety
/// `count` pieces at `list`, if there are any.
pub(crate) unsafe fn pieces<'a>(
    list: *const ibv_sge,
    count: c_int,
) -> Result<&'a [ibv_sge], c_int> {
    match usize::try_from(count) {
        Ok(0) => Ok(&[]),
        // SAFETY: the caller's promise.
        Ok(count) if !list.is_null() => Ok(unsafe { std::slice::from_raw_parts(list, count) }),
        _ => Err(libc::EINVAL),
    }
}

pub(crate) fn read_pieces(list: &[ibv_sge]) -> Result<Pieces, c_int> {
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
        if qp.is_datagram {
            return self.post_datagram(handle, request, bytes);
        }
        if qp.slots() >= qp.cap.max_send_wr.to_usize() {
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
            is_left: false,
        };
        let connection = match qp.state {
            IBV_QPS_ERR => {
                // Work that is posted to a pair in error is flushed, not refused, as verbs have it.
                qp.unread += 1;
                let (cq, wc) = (qp.send_cq, flushed(op.wr_id, opcode, qp.number));
                self.emit(cq, wc, false, Some(handle));
                return Ok(());
            }
            IBV_QPS_RTS | IBV_QPS_SQD => qp.way()?,
            _ => return Err(libc::EINVAL),
        };
        let is_answered = !matches!(opcode, IBV_WC_SEND | IBV_WC_RDMA_WRITE);
        let pieces = match request.copied {
            // ibv_post_send(3): data of messages and writes alone. Refused before a copy is kept:
            // each copy's place is that of a request.
            Some(_) if is_answered => return Err(libc::EINVAL),
            Some((begin, count)) => self.keep(handle, &bytes[begin..begin + count])?,
            None => request.pieces.clone(),
        };
        // Before anything is posted: from the first piece of work on, only a completion may report.
        op.bytes = message_bytes(&pieces).ok_or(libc::EINVAL)?;
        let works = self.works(handle, request, pieces, &mut op)?;
        let fence = request.flags & IBV_SEND_FENCE != 0;
        let held = Held { op, works, fence };
        match connection {
            Some(connection) => self.launch(handle, connection, held),
            None => {
                self.hold(handle, held);
                Ok(())
            }
        }
    }

    /// Posts a request's work to the device.
    ///
    /// # Errors
    /// The peer serves no reads; nothing was posted then.
    fn launch(&mut self, handle: u32, connection: ConnectionId, held: Held) -> Result<(), c_int> {
        let Held {
            mut op,
            works,
            fence,
        } = held;
        let id = op.wr_id;
        for (index, work) in works.into_iter().flatten().enumerate() {
            let fence = index == 0 && fence;
            // A program's own read comes first in its request.
            let is_confirmation = index > 0 && matches!(work, Work::Read { .. });
            match self.device.post_later(connection, Post { id, work, fence }) {
                Ok(()) => op.parts += 1,
                // A peer that serves no reads cannot confirm: TCP's taking must do.
                Err(RdmaError::Post(PostError::NoReads)) if is_confirmation => {}
                Err(RdmaError::Post(PostError::NoReads)) => return Err(libc::EOPNOTSUPP),
                Err(RdmaError::Post(PostError::Fault(_))) => {
                    op.failed = Some(IBV_WC_LOC_PROT_ERR);
                    break;
                }
                // The connection has ended, which is not booked yet.
                Err(_) => {
                    op.is_left = self.qps.get(handle).is_some_and(|qp| qp.is_patient());
                    op.failed = (!op.is_left).then_some(IBV_WC_WR_FLUSH_ERR);
                    break;
                }
            }
        }
        if let Some(qp) = self.qps.get(handle) {
            // Behind the posting, still under the lock: no completion can be booked in between.
            qp.sends.push_back(op);
        }
        if op.parts == 0 {
            self.settle_sends(handle);
        }
        Ok(())
    }

    /// Posts a request that has waited for its connection.
    pub(crate) fn launch_held(&mut self, handle: u32, connection: ConnectionId, held: Held) {
        let mut op = held.op;
        if self.launch(handle, connection, held).is_err() {
            // Its call has succeeded: only a completion can say so.
            op.failed = Some(IBV_WC_REM_INV_REQ_ERR);
            if let Some(qp) = self.qps.get(handle) {
                qp.sends.push_back(op);
            }
            self.settle_sends(handle);
        }
    }

    /// The device's work for a request.
    fn works(
        &mut self,
        handle: u32,
        request: &Request,
        pieces: Pieces,
        op: &mut SendOp,
    ) -> Result<[Option<Work>; 3], c_int> {
        let solicited = request.flags & IBV_SEND_SOLICITED != 0;
        let remote = request.remote();
        let immediate = |bytes, solicited| Immediate {
            data: request.imm,
            bytes,
            solicited,
        };
        let send = |pieces, invalidate| Work::Send {
            pieces,
            invalidate,
            solicited,
        };
        let (first, second) = match request.opcode {
            IBV_WR_SEND => (send(pieces, None), None),
            IBV_WR_SEND_WITH_INV => (send(pieces, Some(Stag(request.imm))), None),
            IBV_WR_SEND_WITH_IMM => {
                // Ahead and unsolicited: the receiver keeps it for the message, whose receive
                // reports both.
                let ahead = Work::Immediate {
                    value: immediate(0, false).to_wire(),
                    solicited: false,
                };
                (ahead, Some(send(pieces, None)))
            }
            IBV_WR_RDMA_WRITE => (Work::Write { pieces, remote }, None),
            IBV_WR_RDMA_WRITE_WITH_IMM => {
                // Behind the data: TCP's order makes it arrive once the data is placed.
                let behind = Work::Immediate {
                    value: immediate(op.bytes, solicited).to_wire(),
                    solicited: true,
                };
                (Work::Write { pieces, remote }, Some(behind))
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
                (Work::Read { into, remote }, None)
            }
            _ => {
                let [sink] = pieces.as_slice() else {
                    return Err(libc::EINVAL);
                };
                let owner = self.qps.get(handle).ok_or(libc::EINVAL)?.owner;
                let adapter = self.device.adapter();
                // Now, as the peer's memory changes with the request: an answer without a place
                // could not be undone.
                if sink.bytes != 8 || adapter.check(owner, *sink, Access::LOCAL_WRITE).is_err() {
                    return Err(libc::EINVAL);
                }
                op.sink = Some(*sink);
                let (add, new) = (request.compare_add, request.swap);
                let atomic = match request.opcode {
                    IBV_WR_ATOMIC_FETCH_AND_ADD => Atomic::Add(add),
                    _ => Atomic::CompareSwap { expected: add, new },
                };
                (Work::Atomic { atomic, remote }, None)
            }
        };
        // Others are confirmed by a later one that asks: the peer takes them in order.
        let is_confirmed = op.is_signaled && op.opcode == IBV_WC_RDMA_WRITE;
        Ok([Some(first), second, is_confirmed.then_some(CONFIRMATION)])
    }

    /// Keeps a copy of inline data until it is sent; its piece.
    fn keep(&mut self, handle: u32, bytes: &[u8]) -> Result<Pieces, c_int> {
        let qp = self.qps.get(handle).ok_or(libc::EINVAL)?;
        let (room, places) = (qp.cap.max_inline_data.to_usize(), qp.cap.max_send_wr);
        // Places have one size, so that the n-th request's is known without a search.
        if bytes.len() > room {
            return Err(libc::EINVAL);
        }
        let adapter = self.device.adapter_mut();
        let region = match qp.copies {
            Some(region) => region,
            None => {
                // Most pairs never send any.
                let all = vec![0; room * places.to_usize()];
                let made = adapter.register(all, Access::NONE);
                *qp.copies.insert(made.map_err(|_| libc::ENOMEM)?)
            }
        };
        let at = qp.next_copy.to_usize() * room;
        // The last user of this place is over: no more than `max_send_wr` are not.
        qp.next_copy = (qp.next_copy + 1) % places.max(1);
        adapter.bytes_mut(region)[at..at + bytes.len()].copy_from_slice(bytes);
        let count = u32::try_from(bytes.len()).map_err(|_| libc::EINVAL)?;
        Ok(Pieces::from_iter([region.piece(at.to_u64(), count)]))
    }

    fn post_receive(&mut self, handle: u32, receive: Receive) -> Result<(), c_int> {
        let qp = self.qps.get(handle).ok_or(libc::EINVAL)?;
        if qp.srq.is_some() || qp.state == IBV_QPS_RESET {
            return Err(libc::EINVAL);
        }
        if qp.receives >= qp.cap.max_recv_wr.to_usize() {
            return Err(libc::ENOMEM);
        }
        // Counted first: on an error below it is given back, on a flush the completion does that.
        qp.receives += 1;
        if qp.state == IBV_QPS_ERR {
            let (cq, wc) = (qp.recv_cq, flushed(receive.id, IBV_WC_RECV, qp.number));
            self.emit(cq, wc, false, Some(handle));
            return Ok(());
        }
        let Some(connection) = qp.inbound.or(qp.connection) else {
            // librdmacm lets programs post before there is a connection, so that its first message
            // finds a buffer.
            qp.early.push_back(receive);
            return Ok(());
        };
        let id = receive.id;
        match self.device.post_receive(connection, receive) {
            Ok(()) => Ok(()),
            // The end of the connection is not booked yet.
            Err(RdmaError::Post(PostError::Ended)) => {
                let qp = self.qps.get(handle).ok_or(libc::EINVAL)?;
                if let Some(direct) = &mut qp.direct {
                    direct.keep(id);
                    return Ok(());
                }
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
        let (mut outcome, is_datagram) = match core.qps.find(handle, qp.addr()) {
            Some(found) => (Ok(()), found.is_datagram),
            None => (Err(libc::EINVAL), false),
        };
        // Taken out, since `post` borrows the whole state; put back with its capacity.
        let mut bytes = std::mem::take(&mut core.inline);
        while outcome.is_ok()
            && let Some(one) = at.as_ref()
        {
            bytes.clear();
            outcome = Request::read(one, &mut bytes, is_datagram)
                .and_then(|request| core.post(handle, &request, &bytes));
            if outcome.is_ok() {
                at = one.next;
            }
        }
        core.inline = bytes;
        // Work that failed at once has completions, which the program may poll for without a look
        // at the device.
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
        // A message may be waiting for this very receive, and no byte will arrive to wake anything.
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
        let Some((engine, handle)) = srq_of(srq) else {
            return libc::EINVAL;
        };
        let mut core = engine.lock();
        let Some(id) = core.srqs.find(handle, srq.addr()).map(|srq| srq.id) else {
            return libc::EINVAL;
        };
        let outcome = post_receives(wr, bad, |receive| {
            let posted = core.device.post_shared(id, receive);
            posted.map_err(|error| crate::number_of(&error))
        });
        core.serve_waiting();
        outcome
    }
}
