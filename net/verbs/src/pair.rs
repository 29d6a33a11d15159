//! Queue pairs: creation, states, destruction. `fast` posts to them, `state` reports.
//!
//! Must stay true: a pair's connection is made by librdmacm, or by `exchange` for a program that
//! exchanges numbers itself; without one it takes receives, which are posted to the connection once
//! there is one.

use crate::abi::*;
use crate::device::{self, ContextObject, QP_MAX, READS_MAX, SGE_MAX};
use crate::direct::Direct;
use crate::engine::Engine;
use crate::memory::{pd_of, srq_of};
use crate::pointer_failed;
use crate::queue::cq_of;
use crate::state::{Core, Immediate, flushed};
use crate::steps::{self, Batch};
use sidecore_bare::width::ToUsize;
use sidecore_rdma::{
    ConnectionId, Options, PairId, Piece, ReadyBy, Receive, Region, Setup, SharedId,
};
use std::collections::VecDeque;
use std::ffi::c_int;

/// Most work requests of a send queue: each takes up to three of the device's.
pub(crate) const WORK_MAX: u32 = 5120;
/// The device's work for one request.
const PARTS_MAX: u32 = 3;
/// Most receives of a pair.
const RECEIVES_MAX: u32 = 1 << 14;
/// Least and longest data that is copied at posting, in bytes: programs send short messages so
/// without asking for room.
const INLINE_MIN: u32 = 64;
pub(crate) const INLINE_MAX: u32 = 1024;
/// Least number of reads that both sides may have outstanding: writes are confirmed by them.
const READS_MIN: u8 = 16;
/// Rounds of progress for a destroyed pair's last bytes before it is left to itself.
const LAST_MOVES: usize = 200;

/// A queue pair.
pub(crate) struct Qp {
    pub(crate) number: u32,
    pub(crate) context: u32,
    pub(crate) pd: u32,
    /// The owner of its domain's regions.
    pub(crate) owner: PairId,
    pub(crate) send_cq: u32,
    pub(crate) recv_cq: u32,
    pub(crate) srq: Option<u32>,
    pub(crate) cap: ibv_qp_cap,
    pub(crate) signals_all: bool,
    pub(crate) is_datagram: bool,
    pub(crate) state: c_int,
    /// Attributes that the program has set.
    pub(crate) attr: ibv_qp_attr,
    pub(crate) connection: Option<ConnectionId>,
    /// The other end, of a pair that is its own peer: messages arrive there.
    pub(crate) inbound: Option<ConnectionId>,
    /// The peer that the program has named.
    pub(crate) direct: Option<Box<Direct>>,
    /// Work in the order of posting.
    pub(crate) sends: VecDeque<SendOp>,
    /// Completions of work that were not polled.
    pub(crate) unread: usize,
    /// Receives whose completions were not polled.
    pub(crate) receives: usize,
    /// Receives that were posted before the connection.
    pub(crate) early: VecDeque<Receive>,
    /// Immediate data that arrived before its message.
    pub(crate) data: Option<Immediate>,
    /// The work that ended the connection has been reported.
    pub(crate) is_blamed: bool,
    /// Copies of inline data, and the place of the next one.
    pub(crate) copies: Option<Region>,
    pub(crate) next_copy: u32,
}

impl Qp {
    /// True if the peer's leaving is no fault yet: an adapter learns of it by the time limit.
    pub(crate) fn is_patient(&self) -> bool {
        self.direct.is_some() && !self.is_blamed && self.state != IBV_QPS_ERR
    }

    /// Slots of the send queue that are taken: a slot is free once the program knows that its work
    /// is over.
    pub(crate) fn slots(&self) -> usize {
        let held = self.direct.as_ref().map_or(0, |direct| direct.held.len());
        self.sends.len() + self.unread + held
    }

    /// The connection for new work; none for a pair that waits for its peer.
    ///
    /// # Errors
    /// The pair has no peer.
    pub(crate) fn way(&self) -> Result<Option<ConnectionId>, c_int> {
        match (&self.direct, self.connection) {
            (Some(direct), connection) => Ok(connection.filter(|_| direct.is_joined())),
            (None, Some(connection)) => Ok(Some(connection)),
            (None, None) => Err(libc::EINVAL),
        }
    }
}

/// A work request that is not over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SendOp {
    pub(crate) wr_id: u64,
    /// Of its completion.
    pub(crate) opcode: c_int,
    pub(crate) is_signaled: bool,
    /// The device's work for it that is not over.
    pub(crate) parts: u8,
    pub(crate) bytes: u32,
    /// The place of an atomic's old word.
    pub(crate) sink: Option<Piece>,
    /// Its status if it failed.
    pub(crate) failed: Option<c_int>,
    /// The peer that the program has named left before it was done.
    pub(crate) is_left: bool,
}

/// The program's structure of a pair.
#[repr(C)]
pub(crate) struct QpObject {
    pub(crate) raw: ibv_qp_ex,
    /// Work that is being written, of an extended pair.
    pub(crate) batch: Batch,
    is_extended: bool,
}

/// Options of a connection, except for its pair's.
pub(crate) fn options(ird: u8, ord: u8) -> Options {
    let crc = std::env::var_os("SIDECORE_VERBS_CRC").is_some_and(|value| value == "1");
    Options {
        crc,
        // Either side may send first.
        setup: Setup::PeerToPeer(ReadyBy::Message),
        ird: ird.clamp(READS_MIN, READS_MAX).into(),
        ord: ord.clamp(READS_MIN, READS_MAX).into(),
        send_depth: 1,
        receive_depth: 1,
        waits_for_receives: true,
        immediate_without_receive: true,
        segment_bytes: usize::MAX,
        ..Options::default()
    }
}

/// The engine and the handle of a pair that exists.
///
/// # Safety
/// NULL, or memory that can be read.
pub(crate) unsafe fn qp_of(qp: *mut ibv_qp) -> Option<(&'static Engine, u32)> {
    // SAFETY: the caller's promise; a pair has the context that it was made in.
    unsafe {
        let raw = qp.as_ref()?;
        Some((ContextObject::engine(raw.context)?, raw.handle))
    }
}

impl Core {
    /// Options of a pair's connection.
    pub(crate) fn options_of(&mut self, handle: u32, ird: u8, ord: u8) -> Option<Options> {
        let qp = self.qps.get(handle)?;
        let (owner, cap, srq) = (qp.owner, qp.cap, qp.srq);
        let shared: Option<SharedId> = srq.and_then(|srq| Some(self.srqs.get(srq)?.id));
        // A peer may have as many messages under way as the shared queue has receives, which others
        // post.
        let depth = match shared {
            Some(_) => RECEIVES_MAX,
            None => cap.max_recv_wr,
        };
        Some(Options {
            // Each request may become several pieces of work, and none may be refused once its
            // first is posted.
            send_depth: (PARTS_MAX * cap.max_send_wr).max(1).to_usize(),
            receive_depth: depth.max(1).to_usize(),
            shared,
            owner: Some(owner),
            ..options(ird, ord)
        })
    }

    /// Gives a pair its connection, and posts the receives that came before.
    pub(crate) fn attach(&mut self, handle: u32, connection: ConnectionId, is_inbound: bool) {
        let users = self.connections.entry(connection);
        users.or_default().qp = Some(handle);
        let Some(qp) = self.qps.get(handle) else {
            return;
        };
        match is_inbound {
            true => qp.inbound = Some(connection),
            false => qp.connection = Some(connection),
        }
        let connection = qp.inbound.unwrap_or(connection);
        let (number, recv_cq) = (qp.number, qp.recv_cq);
        // In posting order, ahead of what the program posts from now on.
        for receive in std::mem::take(&mut qp.early) {
            let id = receive.id;
            if self.device.post_receive(connection, receive).is_err() {
                // Its memory is no longer registered.
                let wc = ibv_wc {
                    status: IBV_WC_LOC_PROT_ERR,
                    ..crate::state::flushed(id, IBV_WC_RECV, number)
                };
                self.emit(recv_cq, wc, false, Some(handle));
            }
        }
    }

    /// Sends what was reported as sent, as far as the peer reads it.
    pub(crate) fn drain(&mut self, handle: u32) {
        let Some(connection) = self.qps.get(handle).and_then(|qp| qp.connection) else {
            return;
        };
        for _ in 0..LAST_MOVES {
            if self.device.is_drained(connection) {
                break;
            }
            self.device.progress().ok();
            std::thread::yield_now();
        }
    }

    /// Takes a pair's connection away, which is closed.
    pub(crate) fn detach(&mut self, handle: u32) {
        self.stop_meeting(handle);
        self.drain(handle);
        let Some(qp) = self.qps.get(handle) else {
            return;
        };
        for connection in [qp.connection.take(), qp.inbound.take()]
            .into_iter()
            .flatten()
        {
            // Completions of what was just sent belong to this pair, and are found by its
            // connection alone.
            self.book();
            self.device.close(connection).ok();
            self.connections.remove(&connection);
        }
    }

    /// Ends a pair's connection at once: everything posted is flushed.
    pub(crate) fn fail_pair(&mut self, handle: u32) {
        let Some(qp) = self.qps.get(handle) else {
            return;
        };
        // The program's own call or fault: no flushed work is to be taken for the one at fault.
        qp.is_blamed = true;
        match qp.connection {
            // The flushed work comes with the next look at the device's queue.
            Some(connection) => self.device.break_off(connection),
            None => self.set_state(handle, IBV_QPS_ERR),
        }
    }

    /// Changes a pair's state, also in the program's structure; on an error everything is flushed.
    pub(crate) fn set_state(&mut self, handle: u32, state: c_int) {
        let address = self.qps.address(handle);
        let Some(qp) = self.qps.get(handle) else {
            return;
        };
        // The receives below are flushed once, at the change, and not at each further error.
        let was = std::mem::replace(&mut qp.state, state);
        if address != 0 {
            // SAFETY: the pair's structure, which lives as long as its entry.
            unsafe { (*std::ptr::with_exposed_provenance_mut::<ibv_qp>(address)).state = state };
        }
        if state != IBV_QPS_ERR || was == IBV_QPS_ERR {
            return;
        }
        let (number, recv_cq, srq, context) = (qp.number, qp.recv_cq, qp.srq, qp.context);
        let early = std::mem::take(&mut qp.early);
        self.flush_held(handle);
        self.flush_kept(handle);
        // Those of a connection were flushed by it.
        for receive in early {
            let wc = flushed(receive.id, IBV_WC_RECV, number);
            self.emit(recv_cq, wc, false, Some(handle));
        }
        if srq.is_some() {
            // A pair of a shared queue flushes no receives of its own: the program learns by this
            // event alone that none will come.
            self.contexts
                .raise_async(context, address, IBV_EVENT_QP_LAST_WQE_REACHED);
        }
    }
}

fn is_supported(attr: &ibv_qp_init_attr) -> Result<(), c_int> {
    let cap = attr.cap;
    // Shared receives are connections' here.
    let is_known = match attr.qp_type {
        IBV_QPT_RC => true,
        IBV_QPT_UD => attr.srq.is_null(),
        _ => false,
    };
    if !is_known {
        return Err(libc::EOPNOTSUPP);
    }
    let is_within = cap.max_send_wr <= WORK_MAX
        && cap.max_recv_wr <= RECEIVES_MAX
        && cap.max_send_sge <= SGE_MAX
        && cap.max_recv_sge <= SGE_MAX
        && cap.max_inline_data <= INLINE_MAX;
    is_within.then_some(()).ok_or(libc::EINVAL)
}

/// Creates a pair.
///
/// # Safety
/// A domain, and attributes whose pointers are those of objects or NULL.
unsafe fn make(
    pd: *mut ibv_pd,
    attr: &mut ibv_qp_init_attr,
    is_extended: bool,
) -> Result<*mut ibv_qp, c_int> {
    // SAFETY: the caller's promise.
    unsafe {
        let (engine, domain) = pd_of(pd).ok_or(libc::EINVAL)?;
        is_supported(attr)?;
        // The program reads back what it has, as ibv_create_qp(3) says: at least what it asked for.
        attr.cap.max_inline_data = attr.cap.max_inline_data.max(INLINE_MIN);
        let (_, send_cq) = cq_of(attr.send_cq).ok_or(libc::EINVAL)?;
        let (_, recv_cq) = cq_of(attr.recv_cq).ok_or(libc::EINVAL)?;
        let srq = match attr.srq.is_null() {
            true => None,
            false => Some(srq_of(attr.srq).ok_or(libc::EINVAL)?.1),
        };
        let mut core = engine.lock();
        // All checks come before the first count: an error leaves nothing to undo.
        for (cq, raw) in [(send_cq, attr.send_cq), (recv_cq, attr.recv_cq)] {
            core.cqs.find(cq, raw.addr()).ok_or(libc::EINVAL)?;
        }
        if let Some(srq) = srq {
            core.srqs.find(srq, attr.srq.addr()).ok_or(libc::EINVAL)?;
        }
        if core.qps.len() >= usize::from(QP_MAX) {
            return Err(libc::ENOMEM);
        }
        let all = &mut *core;
        let number = all.exchange.new_number(&mut all.device)?;
        let (owner, context) = {
            let pd = core.pds.get(domain).ok_or(libc::EINVAL)?;
            pd.users += 1;
            (pd.owner, pd.context)
        };
        for cq in [send_cq, recv_cq] {
            if let Some(cq) = core.cqs.get(cq) {
                cq.users += 1;
            }
        }
        if let Some(srq) = srq.and_then(|srq| core.srqs.get(srq)) {
            srq.users += 1;
        }
        let handle = core.qps.insert(Qp {
            number,
            context,
            pd: domain,
            owner,
            send_cq,
            recv_cq,
            srq,
            cap: attr.cap,
            signals_all: attr.sq_sig_all != 0,
            is_datagram: attr.qp_type == IBV_QPT_UD,
            state: IBV_QPS_RESET,
            attr: ibv_qp_attr {
                path_mtu: IBV_MTU_4096,
                max_rd_atomic: READS_MIN,
                max_dest_rd_atomic: READS_MIN,
                port_num: 1,
                ..zeroed()
            },
            connection: None,
            inbound: None,
            direct: None,
            sends: VecDeque::new(),
            unread: 0,
            receives: 0,
            early: VecDeque::new(),
            data: None,
            is_blamed: false,
            copies: None,
            next_copy: 0,
        });
        let qp_base = ibv_qp {
            context: (*pd).context,
            qp_context: attr.qp_context,
            pd,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            handle,
            qp_num: number,
            state: IBV_QPS_RESET,
            qp_type: attr.qp_type,
            ..zeroed()
        };
        let object = Box::into_raw(Box::new(QpObject {
            raw: steps::extended(qp_base),
            batch: Batch::default(),
            is_extended,
        }));
        core.qps.name(handle, object.expose_provenance());
        core.exchange.enter(number, handle);
        Ok(object.cast())
    }
}

pub(crate) unsafe extern "C" fn create(
    pd: *mut ibv_pd,
    attr: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    // SAFETY: the arguments of ibv_create_qp(3).
    unsafe {
        match attr.as_mut() {
            Some(attr) => make(pd, attr, false).unwrap_or_else(pointer_failed),
            None => pointer_failed(libc::EINVAL),
        }
    }
}

pub(crate) unsafe extern "C" fn create_ex(
    context: *mut ibv_context,
    attr: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    // SAFETY: the arguments of ibv_create_qp_ex(3), whose attributes begin with those of
    // ibv_create_qp(3).
    unsafe {
        let Some(extended) = attr.as_ref().copied() else {
            return pointer_failed(libc::EINVAL);
        };
        if device::context_of(context).is_none() || extended.comp_mask & IBV_QP_INIT_ATTR_PD == 0 {
            return pointer_failed(libc::EINVAL);
        }
        // An extension that is passed over in silence would be a promise to the program.
        let known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        let has_ops = extended.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
        if extended.comp_mask & !known != 0 || has_ops && extended.send_ops_flags & !SEND_OPS != 0 {
            return pointer_failed(libc::EOPNOTSUPP);
        }
        let short = &mut *attr.cast::<ibv_qp_init_attr>();
        make(extended.pd, short, has_ops).unwrap_or_else(pointer_failed)
    }
}

pub(crate) unsafe extern "C" fn to_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: a pair, as ibv_qp_to_qp_ex(3) demands.
    unsafe {
        match qp.cast::<QpObject>().as_mut() {
            Some(object) if object.is_extended => &raw mut object.raw,
            _ => std::ptr::null_mut(),
        }
    }
}

pub(crate) unsafe extern "C" fn modify(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
) -> c_int {
    // SAFETY: a pair and attributes, as ibv_modify_qp(3) demands; others are refused.
    unsafe {
        let (Some((engine, handle)), Some(attr)) = (qp_of(qp), attr.as_ref()) else {
            return libc::EINVAL;
        };
        let mut core = engine.lock();
        let Some(found) = core.qps.find(handle, qp.addr()) else {
            return libc::EINVAL;
        };
        let changed = match found.connection.is_some() && found.direct.is_none() {
            true => core.change_connected(handle, attr, mask),
            false => core.change_pair(handle, attr, mask),
        };
        core.progress();
        if core.qps.is_direct(handle) {
            // Attempts to connect have times, which are no events.
            engine.watch(&mut core);
        }
        changed.err().unwrap_or(0)
    }
}

impl Core {
    /// Changes a pair that librdmacm has connected, and with it set its state.
    fn change_connected(
        &mut self,
        handle: u32,
        attr: &ibv_qp_attr,
        mask: c_int,
    ) -> Result<(), c_int> {
        let qp = self.qps.get(handle).ok_or(libc::EINVAL)?;
        if mask & IBV_QP_ACCESS_FLAGS != 0 {
            qp.attr.qp_access_flags = attr.qp_access_flags;
        }
        if mask & IBV_QP_STATE == 0 {
            return Ok(());
        }
        match attr.qp_state {
            IBV_QPS_ERR => self.fail_pair(handle),
            IBV_QPS_RESET => reset(self, handle),
            IBV_QPS_INIT | IBV_QPS_RTR | IBV_QPS_RTS | IBV_QPS_SQD => {}
            _ => return Err(libc::EINVAL),
        }
        Ok(())
    }
}

/// Forgets a pair's work and connection.
pub(crate) fn reset(core: &mut Core, handle: u32) {
    core.detach(handle);
    if let Some(qp) = core.qps.get(handle) {
        // A reset forgets all work without a completion, as verbs have it.
        qp.sends.clear();
        qp.early.clear();
        (qp.unread, qp.receives, qp.is_blamed, qp.data) = (0, 0, false, None);
        qp.direct = None;
        let (number, queues) = (qp.number, [qp.send_cq, qp.recv_cq]);
        for cq in queues {
            if let Some(cq) = core.cqs.get(cq) {
                // The slots that these would give back were just counted as free.
                cq.forget(number);
            }
        }
    }
    core.set_state(handle, IBV_QPS_RESET);
}

pub(crate) unsafe extern "C" fn query(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: a pair and places for attributes, as ibv_query_qp(3) demands.
    unsafe {
        let Some((engine, handle)) = qp_of(qp) else {
            return libc::EINVAL;
        };
        let mut core = engine.lock();
        let Some(found) = core.qps.find(handle, qp.addr()) else {
            return libc::EINVAL;
        };
        if !attr.is_null() {
            attr.write(ibv_qp_attr {
                qp_state: found.state,
                cur_qp_state: found.state,
                cap: found.cap,
                ..found.attr
            });
        }
        if !init.is_null() {
            init.write(ibv_qp_init_attr {
                qp_context: (*qp).qp_context,
                send_cq: (*qp).send_cq,
                recv_cq: (*qp).recv_cq,
                srq: (*qp).srq,
                cap: found.cap,
                qp_type: (*qp).qp_type,
                sq_sig_all: found.signals_all.into(),
            });
        }
        0
    }
}

pub(crate) unsafe extern "C" fn destroy(qp: *mut ibv_qp) -> c_int {
    // SAFETY: a pair, as ibv_destroy_qp(3) demands; others are refused.
    unsafe {
        let Some((engine, handle)) = qp_of(qp) else {
            return libc::EINVAL;
        };
        let mut core = engine.lock();
        if core.qps.find(handle, qp.addr()).is_none() {
            return libc::EINVAL;
        }
        reset(&mut core, handle);
        let context = core.remove_pair(handle).unwrap_or_default();
        // ibv_get_async_event(3): the structure stays until events that name it are acknowledged.
        while !core.contexts.forget_async(context, qp.addr()) {
            core = engine.wait(core);
        }
        drop(core);
        drop(Box::from_raw(qp.cast::<QpObject>()));
        0
    }
}
