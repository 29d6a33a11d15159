//! All state behind the program's structures: one device, its queues, pairs and connections.
//!
//! Must stay true: one lock guards all state and is never held while waiting; each signaled work
//! request and each receive of a pair completes once; a slot of a send queue is taken from posting
//! to the poll of its completion, or to its end where it asks for none.

use crate::abi::*;
use crate::cm::Id;
use crate::datagram::Datagrams;
use crate::engine::Watch;
use crate::event::CmChannel;
use crate::exchange::Exchange;
use crate::memory::{Ah, Srq};
use crate::pair::Qp;
use crate::queue::{Channel, Context, Cq};
use sidecore_bare::width::ToUsize;
use sidecore_rdma::{
    Access, Adapter, Completion, ConnectionId, Device, End, Event, Kind, ListenerId, PairId, Piece,
    QUEUE_DEPTH_MAX, QueueId, Queued, Queues, RdmaError, Region, Status, Transport,
};
use std::collections::HashMap;
use std::ffi::c_int;

/// Completions that one poll of the device takes.
const TAKEN_MAX: usize = 8;

/// All state of the process.
pub(crate) struct Core {
    pub(crate) device: Device,
    queue: QueueId,
    pub(crate) contexts: Table<Context>,
    pub(crate) pds: Table<Pd>,
    pub(crate) mrs: Table<Mr>,
    pub(crate) channels: Table<Channel>,
    pub(crate) cqs: Table<Cq>,
    pub(crate) srqs: Table<Srq>,
    pub(crate) ahs: Table<Ah>,
    pub(crate) qps: Table<Qp>,
    pub(crate) ids: Table<Id>,
    pub(crate) cm_channels: Table<CmChannel>,
    pub(crate) connections: HashMap<ConnectionId, Users>,
    pub(crate) listeners: HashMap<ListenerId, u32>,
    /// Room for a request's inline data, which is kept for the next call.
    pub(crate) inline: Vec<u8>,
    /// Polls of completion queues, all in all, and in vain since the last success.
    pub(crate) polls: u64,
    pub(crate) vain: u32,
    pub(crate) exchange: Exchange,
    pub(crate) datagrams: Datagrams,
    pub(crate) watch: Watch,
}

/// Objects that use a connection.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Users {
    pub(crate) qp: Option<u32>,
    pub(crate) id: Option<u32>,
}

/// A protection domain.
pub(crate) struct Pd {
    pub(crate) context: u32,
    /// The owner of its regions and pairs.
    pub(crate) owner: PairId,
    /// Regions, pairs and shared queues in it.
    pub(crate) users: usize,
}

/// Registered memory.
pub(crate) struct Mr {
    pub(crate) pd: u32,
    pub(crate) region: Region,
    pub(crate) access: u32,
}

impl Core {
    pub(crate) fn open() -> Result<Self, RdmaError> {
        let mut device = Device::open(Transport::from_environment())?;
        // One queue of the device for all: a program's queues may be shared, resized and armed in
        // ways that it has not.
        let queue = device.create_queue(QUEUE_DEPTH_MAX)?;
        Ok(Self {
            device,
            queue,
            contexts: Table::default(),
            pds: Table::default(),
            mrs: Table::default(),
            channels: Table::default(),
            cqs: Table::default(),
            srqs: Table::default(),
            ahs: Table::default(),
            qps: Table::default(),
            ids: Table::default(),
            cm_channels: Table::default(),
            connections: HashMap::new(),
            listeners: HashMap::new(),
            inline: Vec::new(),
            polls: 0,
            vain: 0,
            exchange: Exchange::default(),
            datagrams: Datagrams::default(),
            watch: Watch::default(),
        })
    }

    /// The device's queue for all connections: those of programs are ours.
    pub(crate) fn queues(&self) -> Queues {
        Queues {
            send: self.queue,
            receive: self.queue,
        }
    }

    /// Makes progress, and records the results; true if there was any.
    pub(crate) fn progress(&mut self) -> bool {
        // If the engine is gone, its connections are flushed anyway.
        let mut moved = self.device.progress().unwrap_or(true);
        self.book();
        self.advance_exchange();
        if self.device.take_watched() {
            moved |= self.take_datagrams();
        }
        moved
    }

    /// Makes progress; true if no byte waits for room in a stream.
    pub(crate) fn is_drained(&mut self) -> bool {
        self.device.progress().ok();
        let mut all = self.connections.keys();
        all.all(|&connection| self.device.is_drained(connection))
    }

    /// Sends what was posted, and records completions of the device.
    pub(crate) fn book_completions(&mut self) {
        self.device.send_posted();
        // On the stack: a poll is the hot path and allocates nothing.
        let mut taken = [None; TAKEN_MAX];
        while let Ok(count @ 1..) = self.device.poll(self.queue, &mut taken) {
            for queued in taken[..count].iter().flatten() {
                self.complete(queued);
            }
            if count < TAKEN_MAX {
                break;
            }
        }
    }

    /// Records completions and events of the device.
    pub(crate) fn book(&mut self) {
        self.book_completions();
        // Behind the completions: flushed work is reported before the end that flushed it.
        while let Some(event) = self.device.next_event() {
            match event {
                Event::Requested {
                    listener,
                    connection,
                    private_data,
                } => self.requested(listener, connection, private_data),
                Event::Established {
                    connection,
                    private_data,
                } => self.established(connection, private_data),
                Event::Ended {
                    connection,
                    end,
                    private_data,
                } => self.ended(connection, &end, private_data),
                _ => {}
            }
        }
    }

    fn complete(&mut self, queued: &Queued) {
        // Its pair may be destroyed: nothing is reported then.
        let users = self.connections.get(&queued.connection);
        // By the connection, not by a number in the completion: handles are used again.
        let Some(handle) = users.and_then(|users| users.qp) else {
            return;
        };
        if queued.completion.kind == Kind::Receive {
            self.received(handle, &queued.completion);
        } else {
            self.sent(handle, &queued.completion, queued.connection);
        }
    }

    fn received(&mut self, handle: u32, completion: &Completion) {
        let Some(qp) = self.qps.get(handle) else {
            return;
        };
        let is_done = completion.status == Status::Done;
        if !is_done
            && qp.state != IBV_QPS_ERR
            && let Some(direct) = &mut qp.direct
        {
            // An adapter learns of no peer's end: receives stay until the pair is in error.
            direct.keep(completion.id);
            return;
        }
        let immediate = completion.immediate.map(Immediate::from_wire);
        if is_done && !completion.solicited && immediate.is_some() {
            // It took no receive: its message comes next.
            qp.data = immediate;
            return;
        }
        let mut wc = ibv_wc {
            wr_id: completion.id,
            status: if is_done {
                IBV_WC_SUCCESS
            } else {
                IBV_WC_WR_FLUSH_ERR
            },
            opcode: IBV_WC_RECV,
            byte_len: completion.bytes,
            qp_num: qp.number,
            ..zeroed()
        };
        let mut solicited = completion.solicited;
        if let Some(immediate) = immediate {
            // Data of a write: it takes a receive, and leaves its buffer unchanged.
            wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
            wc.byte_len = immediate.bytes;
            solicited = immediate.solicited;
            wc.imm_data = immediate.data;
            wc.wc_flags = IBV_WC_WITH_IMM;
        } else if is_done && let Some(immediate) = qp.data.take() {
            wc.imm_data = immediate.data;
            wc.wc_flags = IBV_WC_WITH_IMM;
        }
        // In the place of immediate data, as ibv_poll_cq(3) has it: no message has both.
        if let Some(stag) = completion.invalidated {
            wc.imm_data = stag.0;
            wc.wc_flags = IBV_WC_WITH_INV;
        }
        let (cq, srq) = (qp.recv_cq, qp.srq);
        if let Some(srq) = srq {
            // The receive has just left the shared queue.
            self.look_at_limit(srq);
        }
        // Shared receives are counted by their queue.
        let of = srq.is_none().then_some(handle);
        self.emit(cq, wc, solicited, of);
    }

    fn sent(&mut self, handle: u32, completion: &Completion, connection: ConnectionId) {
        // Asked before the work is reported: the end's event comes behind its completions.
        let end = self.device.pair(connection).and_then(|pair| pair.end());
        let blamed = end.map_or(IBV_WC_WR_FLUSH_ERR, blame);
        let Some(qp) = self.qps.get(handle) else {
            return;
        };
        // A peer that leaves is one that does not answer.
        let is_left = blamed == IBV_WC_WR_FLUSH_ERR && qp.is_patient();
        // Work leaves once no part of it is left, so the oldest part is of the work at the front.
        let Some(op) = qp.sends.front_mut() else {
            return;
        };
        // A request may be two or three pieces of work, and the program sees one completion.
        op.parts -= 1;
        match completion.status {
            Status::Done => {}
            Status::Flushed if is_left => op.is_left = true,
            // Of everything that ended with the connection, the first is the one at fault: the peer
            // takes work in its order.
            Status::Flushed if !qp.is_blamed => {
                qp.is_blamed = true;
                // The first fault counts: what follows in the same request is flushed because of
                // it.
                op.failed = op.failed.or(Some(blamed));
            }
            Status::Flushed => op.failed = op.failed.or(Some(IBV_WC_WR_FLUSH_ERR)),
            Status::Local(_) => {
                qp.is_blamed = true;
                op.failed = op.failed.or(Some(IBV_WC_LOC_PROT_ERR));
            }
        }
        // Before the completion is reported: the program reads the old word as soon as it sees
        // that.
        if let (Some(original), Some(sink)) = (completion.original, op.sink) {
            let owner = qp.owner;
            if !put_word(self.device.adapter(), owner, sink, original)
                && let Some(qp) = self.qps.get(handle)
                && let Some(op) = qp.sends.front_mut()
            {
                op.failed = Some(IBV_WC_LOC_PROT_ERR);
            }
        }
        // In posting order only, as verbs demand: an answered read behind an open write waits.
        self.settle_sends(handle);
    }

    /// Reports work at the front of a send queue that is over.
    pub(crate) fn settle_sends(&mut self, handle: u32) {
        while let Some(qp) = self.qps.get(handle)
            && let Some(op) = qp.sends.front()
            && op.parts == 0
        {
            // A failure is always reported, asked for or not, as verbs have it.
            let (signals, cq, number) =
                (op.is_signaled || op.failed.is_some(), qp.send_cq, qp.number);
            let wc = ibv_wc {
                wr_id: op.wr_id,
                status: op.failed.unwrap_or(IBV_WC_SUCCESS),
                opcode: op.opcode,
                byte_len: op.bytes,
                qp_num: number,
                ..zeroed()
            };
            let is_waiting = op.is_left && op.failed.is_none();
            let op = qp.sends.pop_front();
            if let Some(op) = op.filter(|_| is_waiting) {
                self.hold(handle, op.into());
                continue;
            }
            if signals {
                // Its slot stays taken until the program polls: else a queue of completions could
                // overflow.
                qp.unread += 1;
                self.emit(cq, wc, false, Some(handle));
            }
            if wc.status == IBV_WC_LOC_PROT_ERR {
                self.fail_pair(handle);
            }
        }
    }

    /// Adds a completion to a queue, and raises the event that was asked for.
    pub(crate) fn emit(&mut self, cq: u32, wc: ibv_wc, solicited: bool, of: Option<u32>) {
        let Some(target) = self.cqs.get(cq) else {
            return;
        };
        // Errors raise solicited events, too (ibv_req_notify_cq(3)): a program that waits must see
        // them.
        if target.push(wc, of, solicited || wc.status != IBV_WC_SUCCESS) {
            self.raise(cq);
        }
    }
}

/// Stores the old word of an atomic; false if its place is gone.
fn put_word(adapter: &Adapter, owner: PairId, sink: Piece, original: u64) -> bool {
    match adapter.check(owner, sink, Access::LOCAL_WRITE) {
        Ok(Some(place)) => {
            // SAFETY: eight bytes of registered memory, as was just checked, which the program
            // leaves alone until the completion.
            unsafe { place.cast::<u64>().write_unaligned(original) };
            true
        }
        _ => false,
    }
}

/// The eight bytes of immediate data (RFC 7306), of which the interface has four. Those of a write
/// say more in the other four.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Immediate {
    /// The program's four, in network byte order as in its structures.
    pub(crate) data: u32,
    /// Length of the write.
    pub(crate) bytes: u32,
    /// The sender of the write asks for an event.
    pub(crate) solicited: bool,
}

impl Immediate {
    /// The bit for [`Self::solicited`]: every length is below it.
    const SOLICITED: u32 = 1 << 31;

    pub(crate) fn to_wire(self) -> u64 {
        let asks = if self.solicited { Self::SOLICITED } else { 0 };
        u64::from(self.bytes | asks) << 32 | u64::from(u32::from_be(self.data))
    }

    pub(crate) fn from_wire(value: u64) -> Self {
        let [a, b, c, d, data @ ..] = value.to_be_bytes();
        let high = u32::from_be_bytes([a, b, c, d]);
        Self {
            data: u32::from_ne_bytes(data),
            bytes: high & !Self::SOLICITED,
            solicited: high & Self::SOLICITED != 0,
        }
    }
}

/// A completion of flushed work.
pub(crate) fn flushed(wr_id: u64, opcode: c_int, qp_num: u32) -> ibv_wc {
    ibv_wc {
        wr_id,
        status: IBV_WC_WR_FLUSH_ERR,
        opcode,
        qp_num,
        ..zeroed()
    }
}

/// The status of the work that ended a connection.
fn blame(end: &End) -> c_int {
    match end {
        End::Received(terminate) => refused(terminate.numbers),
        _ => IBV_WC_WR_FLUSH_ERR,
    }
}

/// The status of work that a peer has refused, by its terminate message's layer, type and code.
fn refused(numbers: [u8; 3]) -> c_int {
    match numbers {
        // RDMAP's protection errors, and DDP's of tagged buffers.
        [0, 1, _] | [1, 1, _] => IBV_WC_REM_ACCESS_ERR,
        // A message that is longer than its buffer, or finds none.
        [1, 2, _] => IBV_WC_REM_INV_REQ_ERR,
        _ => IBV_WC_REM_OP_ERR,
    }
}

/// A table of objects with reused handles: by the handle in the program's structure, and by that
/// structure's address.
///
/// Must stay true: an entry is found only by both, so that a pointer to an object that was freed
/// names nothing, as long as its memory can be read.
pub(crate) struct Table<T> {
    places: Vec<Option<(usize, T)>>,
    free: Vec<u32>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self {
            places: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Table<T> {
    /// A handle for an object, whose address [`Self::name`] adds.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        // The handle freed last: its place is most likely in the cache.
        if let Some(handle) = self.free.pop() {
            self.places[handle.to_usize()] = Some((0, value));
            return handle;
        }
        self.places.push(Some((0, value)));
        u32::try_from(self.places.len() - 1).unwrap_or(u32::MAX)
    }

    /// Records the address of an object's structure.
    pub(crate) fn name(&mut self, handle: u32, address: usize) {
        if let Some(Some(place)) = self.places.get_mut(handle.to_usize()) {
            place.0 = address;
        }
    }

    /// The object of a structure.
    pub(crate) fn find(&mut self, handle: u32, address: usize) -> Option<&mut T> {
        let place = self.places.get_mut(handle.to_usize())?.as_mut()?;
        (place.0 == address).then_some(&mut place.1)
    }

    /// The object with a handle that this library has kept.
    pub(crate) fn get(&mut self, handle: u32) -> Option<&mut T> {
        let place = self.places.get_mut(handle.to_usize())?.as_mut();
        place.map(|(_, value)| value)
    }

    /// The address of an object's structure.
    pub(crate) fn address(&self, handle: u32) -> usize {
        let place = self.places.get(handle.to_usize());
        place.and_then(Option::as_ref).map_or(0, |place| place.0)
    }

    pub(crate) fn remove(&mut self, handle: u32) -> Option<T> {
        let place = self.places.get_mut(handle.to_usize())?.take()?;
        self.free.push(handle);
        Some(place.1)
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(crate) fn each(&mut self) -> impl Iterator<Item = (u32, &mut T)> {
        let places = (0..).zip(self.places.iter_mut());
        places.filter_map(|(handle, place)| Some((handle, &mut place.as_mut()?.1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidecore_rdma::MESSAGE_BYTES_MAX;

    #[test]
    fn an_end_names_the_status_of_the_work_at_fault() {
        let table = [
            // RDMAP: no such tag, its bounds, its rights; RFC 5040, section 4.8.
            ([0, 1, 0], IBV_WC_REM_ACCESS_ERR),
            ([0, 1, 1], IBV_WC_REM_ACCESS_ERR),
            ([0, 1, 2], IBV_WC_REM_ACCESS_ERR),
            // DDP: a tagged segment's tag and bounds; RFC 5041, section 8.2.
            ([1, 1, 0], IBV_WC_REM_ACCESS_ERR),
            ([1, 1, 1], IBV_WC_REM_ACCESS_ERR),
            // A message without a buffer, and one that is too long.
            ([1, 2, 2], IBV_WC_REM_INV_REQ_ERR),
            ([1, 2, 5], IBV_WC_REM_INV_REQ_ERR),
            // Everything else.
            ([0, 2, 7], IBV_WC_REM_OP_ERR),
            ([2, 0, 2], IBV_WC_REM_OP_ERR),
        ];
        for (numbers, status) in table {
            assert_eq!(refused(numbers), status, "{numbers:?}");
        }
        for end in [End::Lost, End::Orderly] {
            assert_eq!(blame(&end), IBV_WC_WR_FLUSH_ERR);
        }
    }

    #[test]
    fn immediate_data_comes_back_as_it_was_sent() {
        for (data, bytes, solicited, value) in [
            (0, 0, false, 0),
            (0x0102_0304, 0, false, 0x0102_0304),
            (u32::MAX, 7, true, 0x8000_0007_ffff_ffff),
            (5, MESSAGE_BYTES_MAX, true, 0xc000_0000_0000_0005),
        ] {
            // Programs have it in network byte order.
            let data = u32::to_be(data);
            let immediate = Immediate {
                data,
                bytes,
                solicited,
            };
            assert_eq!(immediate.to_wire(), value);
            assert_eq!(Immediate::from_wire(value), immediate);
        }
    }

    #[test]
    fn flushed_work_keeps_its_name() {
        let wc = flushed(9, IBV_WC_RECV, 4);
        assert_eq!((wc.wr_id, wc.opcode, wc.qp_num), (9, IBV_WC_RECV, 4));
        assert_eq!((wc.status, wc.byte_len), (IBV_WC_WR_FLUSH_ERR, 0));
    }

    #[test]
    fn a_freed_object_is_not_found_by_its_old_address() {
        let mut table = Table::default();
        let first = table.insert('a');
        table.name(first, 0x1000);
        assert_eq!(table.find(first, 0x1000), Some(&mut 'a'));
        assert_eq!(table.find(first, 0x2000), None);
        assert_eq!(table.remove(first), Some('a'));
        assert_eq!(table.remove(first), None);
        let second = table.insert('b');
        table.name(second, 0x2000);
        // The place is used again, and the old structure still names nothing.
        assert_eq!((first, table.find(first, 0x1000)), (second, None));
        assert_eq!((table.len(), table.address(second)), (1, 0x2000));
        assert_eq!(table.each().count(), 1);
    }
}
