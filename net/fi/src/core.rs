//! All state behind a fabric's objects: one device, its endpoints, queues, counters and events.
//!
//! Objects of libfabric are handles: a pointer to the fabric and a number here. Must stay true: one
//! lock guards all state and is never held while waiting; an operation's context is returned once,
//! as a completion or an error, or not at all if none was requested; an endpoint has at most
//! [`DEPTH_MAX`] operations of a kind whose completions were not read, so that completion queues
//! are bounded by the endpoints that are bound to them.

use crate::abi::*;
use crate::bell::{Bell, Waiter};
use crate::place::{DEPTH_MAX, INJECT_BYTES, gather, put_word};
use crate::slab::Slab;
use sidecore_rdma::{
    Completion, ConnectionId, Device, End, Event, Kind, ListenerId, Options, Pieces, Post, QueueId,
    Queued, Queues, RdmaError, Receive, Remote, SharedId, Stag, Status, Transport, Work,
};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Completions that one poll takes.
const TAKEN_MAX: usize = 64;
/// Outstanding work requests of an endpoint: an operation may take two.
const WORK_MAX: usize = 2 * DEPTH_MAX;
/// Outstanding reads and atomics, each way.
const READS: u16 = 64;
/// Unsuccessful polls between two yields: some ten microseconds.
const LOOKS_A_YIELD: u32 = 64;
/// Rounds of progress for a closed endpoint's last bytes before it is dropped.
const LAST_MOVES: usize = 2000;

/// Completion of a cancelled operation.
pub(crate) const FLUSHED: Completion = Completion {
    id: 0,
    kind: Kind::Send,
    status: Status::Flushed,
    bytes: 0,
    immediate: None,
    invalidated: None,
    solicited: false,
    original: None,
};

/// A fabric.
pub(crate) struct Fabric {
    core: Mutex<Core>,
}

/// A shared receive context.
pub(crate) struct Srx {
    pub(crate) id: SharedId,
    /// Posted receives, by their number in the context.
    pub(crate) receives: HashMap<u64, Op>,
    pub(crate) next_receive: u64,
    /// Number of unread completions.
    pub(crate) unread: usize,
}

/// A completion queue.
pub(crate) struct Cq {
    pub(crate) format: i32,
    pub(crate) entries: VecDeque<Entry>,
    pub(crate) errors: VecDeque<fi_cq_err_entry_owned>,
    pub(crate) bell: Bell,
    pub(crate) is_signaled: bool,
}

/// An error entry.
#[allow(non_camel_case_types)] // beside the type that it becomes
#[derive(Debug, Clone, Copy)]
pub(crate) struct fi_cq_err_entry_owned {
    pub(crate) entry: Entry,
    pub(crate) err: i32,
}

/// A completion as a queue holds it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) context: usize,
    pub(crate) flags: u64,
    pub(crate) len: usize,
    pub(crate) buf: usize,
    pub(crate) data: u64,
    /// Bound that it counts against until it is read.
    pub(crate) of: Of,
}

/// Bounds that completions count against.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Of {
    /// An endpoint's, for its sends or (true) its receives.
    Ep(usize, bool),
    /// A shared receive context's.
    Srx(usize),
}

/// A counter.
#[derive(Default)]
pub(crate) struct Cntr {
    pub(crate) value: u64,
    pub(crate) errors: u64,
    pub(crate) bell: Bell,
}

/// An event queue.
#[derive(Default)]
pub(crate) struct Eq {
    pub(crate) events: VecDeque<EqEvent>,
    pub(crate) bell: Bell,
    /// Data of the last error that was read.
    pub(crate) error_data: Vec<u8>,
}

/// An event.
#[derive(Debug)]
pub(crate) struct EqEvent {
    pub(crate) event: u32,
    /// The object that the event is about, as an address.
    pub(crate) fid: usize,
    pub(crate) info: usize,
    pub(crate) data: Vec<u8>,
    /// An error if not 0.
    pub(crate) err: i32,
    pub(crate) context: usize,
}

/// A listening endpoint.
pub(crate) struct Pep {
    pub(crate) fid: usize,
    pub(crate) address: SocketAddr,
    pub(crate) backlog: usize,
    pub(crate) eq: Option<usize>,
    pub(crate) listener: Option<ListenerId>,
    pub(crate) mode: u64,
}

/// An endpoint.
pub(crate) struct Ep {
    pub(crate) fid: usize,
    pub(crate) context: usize,
    pub(crate) connection: Option<ConnectionId>,
    pub(crate) is_passive: bool,
    pub(crate) is_connected: bool,
    pub(crate) is_over: bool,
    pub(crate) eq: Option<usize>,
    pub(crate) send_cq: Option<(usize, bool)>,
    pub(crate) receive_cq: Option<(usize, bool)>,
    /// Shared context of its receives.
    pub(crate) srx: Option<usize>,
    /// Counters of sends, receives, reads, writes.
    pub(crate) cntrs: [Option<usize>; 4],
    pub(crate) op_flags: u64,
    pub(crate) receive_flags: u64,
    pub(crate) source: Option<SocketAddr>,
    /// Address of the passive endpoint that it was created from, used as its source.
    pub(crate) bound: Option<SocketAddr>,
    /// Immediate data that arrived before its message.
    data: Option<u64>,
    sends: VecDeque<Op>,
    pub(crate) receives: VecDeque<Op>,
    /// Receives that were posted before the connection existed.
    pub(crate) early: VecDeque<Receive>,
    /// Number of the next receive.
    next_receive: u64,
    /// Number of unread completions, of sends and receives.
    unread: [usize; 2],
    /// Copies of injected data, one place per operation.
    copies: Box<[u8]>,
    next_copy: usize,
}

/// An operation in progress.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Op {
    pub(crate) context: usize,
    flags: u64,
    len: usize,
    buf: usize,
    /// A completion was requested.
    is_told: bool,
    /// The first of two work requests: only the second one reports a completion.
    is_silent: bool,
    counter: usize,
    /// For a receive: its number at the pair.
    pub(crate) number: u64,
    /// Address for the old value of an atomic; 0 for none.
    result: usize,
}

impl Op {
    /// A receive into `buffers`.
    pub(crate) fn receive(asked: &Asked, buffers: &[iovec], number: u64, is_told: bool) -> Self {
        Self {
            context: asked.context,
            flags: FI_RECV | FI_MSG,
            len: 0,
            buf: buffers.first().map_or(0, |buffer| buffer.iov_base.addr()),
            is_told,
            is_silent: false,
            counter: 1,
            number,
            result: 0,
        }
    }
}

/// Parameters of a request to an endpoint.
pub(crate) struct Asked {
    pub(crate) context: usize,
    /// Flags of the call.
    pub(crate) flags: u64,
    /// It reports a completion unless the queue uses selective completion.
    pub(crate) is_told: bool,
    pub(crate) data: Option<u64>,
}

/// All state of a fabric.
pub(crate) struct Core {
    pub(crate) device: Device,
    queue: QueueId,
    /// For unregistered memory of this process.
    local: Stag,
    pub(crate) cqs: Slab<Cq>,
    pub(crate) cntrs: Slab<Cntr>,
    pub(crate) eqs: Slab<Eq>,
    pub(crate) peps: Slab<Pep>,
    pub(crate) eps: Slab<Ep>,
    pub(crate) srxs: Slab<Srx>,
    by_connection: HashMap<ConnectionId, usize>,
    /// Number of progress calls, of all threads.
    pub(crate) looks: u64,
    /// Polls of completion queues since the last one that found a completion.
    pub(crate) vain: u32,
}

/// Options of every pair: a message waits for its receive, both sides may send first.
fn options() -> Options {
    let crc = std::env::var_os("SIDECORE_FI_CRC").is_some_and(|value| value == "1");
    Options {
        crc,
        peer_to_peer: true,
        ird: READS,
        ord: READS,
        send_depth: WORK_MAX,
        receive_depth: DEPTH_MAX,
        waits_for_receives: true,
        immediate_without_receive: true,
        segment_bytes: usize::MAX,
        ..Options::default()
    }
}

/// An error as a negative number of libfabric.
pub(crate) fn negative(error: &RdmaError) -> i32 {
    use sidecore_rdma::PostError;
    -match error {
        RdmaError::Io(error) => error.raw_os_error().unwrap_or(libc::ENOTCONN),
        RdmaError::Memory(_) | RdmaError::TooMany(..) => libc::ENOMEM,
        RdmaError::Post(PostError::Full(_)) => libc::EAGAIN,
        RdmaError::Post(PostError::Fault(_)) => libc::EACCES,
        RdmaError::Post(PostError::TooLong) | RdmaError::Start(_) => libc::EMSGSIZE,
        RdmaError::Post(PostError::NoReads) => libc::EOPNOTSUPP,
        RdmaError::Post(_) | RdmaError::Ended(_) | RdmaError::Unknown(_) => libc::ENOTCONN,
        RdmaError::Engine(_) => libc::ECONNREFUSED,
        _ => libc::EINVAL,
    }
}

impl Fabric {
    pub(crate) fn open() -> Result<Self, RdmaError> {
        let mut device = Device::open(Transport::from_environment())?;
        let queue = device.create_queue(sidecore_rdma::QUEUE_DEPTH_MAX)?;
        let adapter = device.adapter_mut();
        #[allow(unsafe_code)] // memory of operations, which libfabric lets be unregistered
        // SAFETY: its pieces are buffers of operations, which their caller leaves alone until the
        // completion, as fi_msg(3) and fi_rma(3) require; those of closed endpoints are dropped.
        let local = unsafe { adapter.register_everything()? };
        Ok(Self {
            core: Mutex::new(Core {
                device,
                queue,
                local,
                cqs: Slab::default(),
                cntrs: Slab::default(),
                eqs: Slab::default(),
                peps: Slab::default(),
                eps: Slab::default(),
                srxs: Slab::default(),
                by_connection: HashMap::new(),
                looks: 0,
                vain: 0,
            }),
        })
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Core> {
        // A poisoned lock is fine: no code unwinds between two dependent steps.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ep {
    pub(crate) fn new(fid: usize, context: usize) -> Self {
        Self {
            fid,
            context,
            connection: None,
            is_passive: false,
            is_connected: false,
            is_over: false,
            eq: None,
            send_cq: None,
            receive_cq: None,
            srx: None,
            cntrs: [None; 4],
            op_flags: 0,
            receive_flags: 0,
            source: None,
            bound: None,
            data: None,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            early: VecDeque::new(),
            next_receive: 0,
            unread: [0; 2],
            copies: Box::default(),
            next_copy: 0,
        }
    }
}

impl Core {
    /// Makes progress, and records the results.
    pub(crate) fn progress(&mut self) {
        self.looks = self.looks.wrapping_add(1);
        // If the engine is gone, its connections are flushed anyway.
        self.device.progress().ok();
        self.book();
    }

    fn book(&mut self) {
        let mut taken = [None; TAKEN_MAX];
        while let Ok(count @ 1..) = self.device.poll(self.queue, &mut taken) {
            for queued in taken[..count].iter().flatten() {
                self.complete(queued);
            }
            if count < TAKEN_MAX {
                break;
            }
        }
        while let Some(event) = self.device.next_event() {
            self.event(event);
        }
    }

    /// Counts an unsuccessful poll; true if the caller should yield.
    pub(crate) fn looked_in_vain(&mut self) -> bool {
        self.vain = self.vain.wrapping_add(1);
        self.vain.is_multiple_of(LOOKS_A_YIELD)
    }

    fn queues(&self) -> Queues {
        Queues {
            send: self.queue,
            receive: self.queue,
        }
    }

    fn complete(&mut self, queued: &Queued) {
        let Some(&index) = self.by_connection.get(&queued.connection) else {
            return;
        };
        let Some(ep) = self.eps.get(index) else {
            return;
        };
        let completion = queued.completion;
        let is_receive = completion.kind == Kind::Receive;
        let is_done = completion.status == Status::Done;
        if is_receive && is_done && !completion.solicited && completion.immediate.is_some() {
            // It took no receive: its message comes next.
            ep.data = completion.immediate;
            return;
        }
        let op = match ep.srx {
            Some(srx) if is_receive => {
                let is_selective = ep.receive_cq.is_some_and(|(_, is_selective)| is_selective);
                let srx = self.srxs.get(srx);
                let op = srx.and_then(|srx| srx.receives.remove(&completion.id));
                op.map(|op| Op {
                    is_told: op.is_told || !is_selective,
                    ..op
                })
            }
            None if is_receive => ep.receives.pop_front(),
            _ => ep.sends.pop_front(),
        };
        if let Some(op) = op {
            if let (Some(original), true) = (completion.original, op.result != 0) {
                put_word(op.result, original);
            }
            self.finish(index, op, is_receive, &completion);
        }
    }

    /// Records the end of an operation.
    pub(crate) fn finish(
        &mut self,
        index: usize,
        op: Op,
        is_receive: bool,
        completion: &Completion,
    ) {
        let is_done = completion.status == Status::Done;
        if op.is_silent && is_done {
            return;
        }
        let Some(ep) = self.eps.get(index) else {
            return;
        };
        let mut entry = Entry {
            context: op.context,
            flags: op.flags,
            len: if is_receive {
                completion.bytes as usize
            } else {
                op.len
            },
            buf: if is_receive { op.buf } else { 0 },
            data: 0,
            of: match ep.srx {
                Some(srx) if is_receive => Of::Srx(srx),
                _ => Of::Ep(index, is_receive),
            },
        };
        if is_receive
            && is_done
            && completion.immediate.is_none()
            && let Some(data) = ep.data.take()
        {
            entry.flags |= FI_REMOTE_CQ_DATA;
            entry.data = data;
        }
        if let Some(value) = completion.immediate {
            // Data of a write: it takes a receive, and leaves its buffer unchanged.
            entry.flags = FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA;
            (entry.data, entry.len, entry.buf) = (value, 0, 0);
        }
        if let Some(cntr) = ep.cntrs[op.counter].and_then(|cntr| self.cntrs.get(cntr)) {
            if is_done {
                cntr.value += 1;
            } else {
                cntr.errors += 1;
            }
            cntr.bell.ring();
        }
        let queue = if is_receive {
            ep.receive_cq
        } else {
            ep.send_cq
        };
        let Some(cq) = queue.and_then(|(cq, _)| self.cqs.get(cq)) else {
            return;
        };
        if !is_done {
            let err = libc::ECANCELED;
            cq.errors.push_back(fi_cq_err_entry_owned { entry, err });
        } else if op.is_told {
            cq.entries.push_back(entry);
        } else {
            return;
        }
        cq.bell.ring();
        match entry.of {
            Of::Ep(_, is_receive) => ep.unread[usize::from(is_receive)] += 1,
            Of::Srx(srx) => {
                if let Some(srx) = self.srxs.get(srx) {
                    srx.unread += 1;
                }
            }
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Requested {
                listener,
                connection,
                private_data,
            } => self.requested(listener, connection, private_data),
            Event::Established {
                connection,
                private_data,
            } => {
                let ep = self.by_connection.get(&connection);
                if let Some(ep) = ep.and_then(|&index| self.eps.get(index)) {
                    ep.is_connected = true;
                    let (fid, eq, context) = (ep.fid, ep.eq, ep.context);
                    self.tell(eq, FI_CONNECTED, fid, 0, private_data, 0, context);
                }
            }
            Event::Ended {
                connection,
                end,
                private_data,
            } => {
                let ep = self.by_connection.get(&connection);
                if let Some(ep) = ep.and_then(|&index| self.eps.get(index)) {
                    let (fid, eq, context) = (ep.fid, ep.eq, ep.context);
                    ep.is_over = true;
                    if ep.is_connected {
                        self.tell(eq, FI_SHUTDOWN, fid, 0, Vec::new(), 0, context);
                    } else {
                        let err = match end {
                            End::Rejected | End::Lost | End::Orderly => libc::ECONNREFUSED,
                            _ => libc::ECONNABORTED,
                        };
                        self.tell(eq, FI_SHUTDOWN, fid, 0, private_data, err, context);
                    }
                }
            }
            _ => {}
        }
    }

    fn requested(&mut self, listener: ListenerId, connection: ConnectionId, data: Vec<u8>) {
        let mut peps = self.peps.each();
        let pep = peps.find(|(_, pep)| pep.listener == Some(listener));
        let Some((index, pep)) = pep else {
            drop(peps);
            self.device.reject(connection, &[]).ok();
            return;
        };
        let (fid, eq, mode) = (pep.fid, pep.eq, pep.mode);
        drop(peps);
        let addresses = self.device.addresses(connection);
        let info = crate::info::request(addresses, mode, connection, index);
        self.tell(eq, FI_CONNREQ, fid, info, data, 0, 0);
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of an event")]
    fn tell(
        &mut self,
        eq: Option<usize>,
        event: u32,
        fid: usize,
        info: usize,
        data: Vec<u8>,
        err: i32,
        context: usize,
    ) {
        if let Some(eq) = eq.and_then(|eq| self.eqs.get(eq)) {
            eq.events.push_back(EqEvent {
                event,
                fid,
                info,
                data,
                err,
                context,
            });
            eq.bell.ring();
        }
    }

    /// Removes events about a closed object; connection requests among them are rejected.
    pub(crate) fn forget_events(&mut self, fid: usize) {
        let mut infos = Vec::new();
        for (_, eq) in self.eqs.each() {
            eq.events.retain(|event| {
                if event.fid == fid && event.info != 0 {
                    infos.push(event.info);
                }
                event.fid != fid
            });
        }
        for info in infos {
            if let Some(connection) = crate::info::free_request(info) {
                self.device.reject(connection, &[]).ok();
            }
        }
    }

    /// Listens at a passive endpoint's address.
    pub(crate) fn listen(&mut self, pep: usize) -> Result<(), i32> {
        let pep = self.peps.get(pep).ok_or(-libc::EINVAL)?;
        let (address, backlog) = (pep.address, pep.backlog);
        let listener = self.device.listen(address, backlog, options());
        let listener = listener.map_err(|error| negative(&error))?;
        pep.listener = Some(listener);
        if let Some(address) = self.device.listener_address(listener) {
            pep.address = address;
        }
        Ok(())
    }

    /// Connects an endpoint.
    pub(crate) fn connect(&mut self, ep: usize, peer: SocketAddr, data: &[u8]) -> Result<(), i32> {
        let queues = self.queues();
        let bound = self.eps.get(ep).and_then(|ep| ep.bound);
        let connected = self
            .device
            .connect_from(bound, peer, options(), queues, data);
        let connection = connected.map_err(|error| negative(&error))?;
        self.attach(ep, connection)?;
        // A thread may already wait for the outcome, in a call that began before.
        self.progress();
        Ok(())
    }

    /// Attaches a connection to an endpoint, and posts the receives that came before.
    pub(crate) fn attach(&mut self, index: usize, connection: ConnectionId) -> Result<(), i32> {
        let ep = self.eps.get(index).ok_or(-libc::EINVAL)?;
        ep.connection = Some(connection);
        if let Some(srx) = ep.srx {
            self.share(connection, srx)?;
        }
        let ep = self.eps.get(index).ok_or(-libc::EINVAL)?;
        for receive in std::mem::take(&mut ep.early) {
            let posted = self.device.post_receive(connection, receive);
            posted.map_err(|error| negative(&error))?;
        }
        self.by_connection.insert(connection, index);
        Ok(())
    }

    pub(crate) fn accept(&mut self, ep: usize, data: &[u8]) -> Result<(), i32> {
        let queues = self.queues();
        let connection = self.connection(ep)?;
        let accepted = self.device.accept(connection, queues, data);
        accepted.map_err(|error| negative(&error))?;
        self.progress();
        Ok(())
    }

    pub(crate) fn connection(&mut self, ep: usize) -> Result<ConnectionId, i32> {
        let ep = self.eps.get(ep).ok_or(-libc::EINVAL)?;
        ep.connection.ok_or(-libc::ENOTCONN)
    }

    /// Closes an endpoint: data reported as sent is still sent, other work is cancelled.
    pub(crate) fn close_ep(&mut self, index: usize) {
        let Some(ep) = self.eps.get(index) else {
            return;
        };
        let (fid, connection) = (ep.fid, ep.connection);
        if let Some(connection) = connection {
            for _ in 0..LAST_MOVES {
                if self.device.is_drained(connection) {
                    break;
                }
                self.device.progress().ok();
                std::thread::yield_now();
            }
            self.book();
            self.device.abort(connection).ok();
            self.by_connection.remove(&connection);
        }
        let Some(ep) = self.eps.get(index) else {
            return;
        };
        let (sends, receives) = (
            std::mem::take(&mut ep.sends),
            std::mem::take(&mut ep.receives),
        );
        for op in sends {
            self.finish(index, op, false, &FLUSHED);
        }
        for op in receives {
            self.finish(index, op, true, &FLUSHED);
        }
        self.eps.remove(index);
        self.forget_events(fid);
    }

    /// A completion was read.
    pub(crate) fn was_read(&mut self, of: Of) {
        let unread = match of {
            Of::Ep(ep, is_receive) => {
                let ep = self.eps.get(ep);
                ep.map(|ep| &mut ep.unread[usize::from(is_receive)])
            }
            Of::Srx(srx) => self.srxs.get(srx).map(|srx| &mut srx.unread),
        };
        if let Some(unread) = unread {
            *unread = unread.saturating_sub(1);
        }
    }

    /// Pieces of this process's memory for some buffers.
    pub(crate) fn pieces(&self, buffers: &[iovec]) -> Result<Pieces, i32> {
        let mut pieces = Pieces::new();
        for buffer in buffers {
            let bytes = u32::try_from(buffer.iov_len).map_err(|_| -libc::EMSGSIZE)?;
            let piece = sidecore_rdma::Piece {
                stag: self.local,
                offset: buffer.iov_base.expose_provenance() as u64,
                bytes,
            };
            pieces.try_push(piece).map_err(|_| -libc::EINVAL)?;
        }
        Ok(pieces)
    }

    pub(crate) fn post_receive(
        &mut self,
        index: usize,
        buffers: &[iovec],
        asked: &Asked,
    ) -> Result<(), i32> {
        let pieces = self.pieces(buffers)?;
        let ep = self.eps.get(index).ok_or(-libc::EINVAL)?;
        if ep.receives.len() + ep.unread[1] >= DEPTH_MAX {
            return Err(-libc::EAGAIN);
        }
        if ep.is_over {
            return Err(-libc::ENOTCONN);
        }
        let number = ep.next_receive;
        ep.next_receive += 1;
        let receive = Receive { id: number, pieces };
        match ep.connection {
            Some(connection) => {
                let posted = self.device.post_receive(connection, receive);
                posted.map_err(|error| negative(&error))?;
            }
            None => ep.early.push_back(receive),
        }
        let is_selective = ep.receive_cq.is_some_and(|(_, is_selective)| is_selective);
        let is_told = !is_selective || asked.flags & FI_COMPLETION != 0;
        let op = Op::receive(asked, buffers, number, is_told);
        ep.receives.push_back(op);
        Ok(())
    }

    /// Posts work of an endpoint; `results` are addresses for the results of atomics, `flags` those
    /// of its completion, and select the counter.
    pub(crate) fn post(
        &mut self,
        index: usize,
        work: Vec<Work>,
        results: &[usize],
        len: usize,
        asked: &Asked,
        (flags, counter): (u64, usize),
    ) -> Result<(), i32> {
        let ep = self.eps.get(index).ok_or(-libc::EINVAL)?;
        let connection = ep.connection.ok_or(-libc::ENOTCONN)?;
        if !ep.is_connected || ep.is_over {
            return Err(-libc::ENOTCONN);
        }
        let count = work.len() + usize::from(asked.flags & FI_DELIVERY_COMPLETE != 0);
        self.make_room(index, count + usize::from(asked.data.is_some()))?;
        let local = self.local;
        // A message's data is sent before it, and takes no receive there; a write's data follows
        // it.
        let is_message = flags & FI_MSG != 0;
        let data = asked.data.map(|value| Work::Immediate {
            value,
            solicited: !is_message,
        });
        let (ahead, behind) = if is_message {
            (data, None)
        } else {
            (None, data)
        };
        // Proof of delivery: the read's response arrives after everything before was placed.
        let proof = (asked.flags & FI_DELIVERY_COMPLETE != 0).then(|| Work::Read {
            into: sidecore_rdma::Piece {
                stag: local,
                offset: 0,
                bytes: 0,
            },
            remote: Remote {
                stag: Stag(0),
                offset: 0,
            },
        });
        let Some(ep) = self.eps.get(index) else {
            return Err(-libc::EINVAL);
        };
        let is_selective = ep.send_cq.is_some_and(|(_, is_selective)| is_selective);
        let is_told = asked.is_told && (!is_selective || asked.flags & FI_COMPLETION != 0);
        let mut fence = asked.flags & FI_FENCE != 0;
        let all = ahead.into_iter().chain(work).chain(behind).chain(proof);
        let mut all = all.peekable();
        let mut results = results.iter();
        while let Some(work) = all.next() {
            let is_last = all.peek().is_none();
            let result = match work {
                Work::Atomic { .. } => results.next().copied().unwrap_or(0),
                _ => 0,
            };
            let post = Post {
                id: 0,
                work,
                fence: std::mem::take(&mut fence),
            };
            let op = Op {
                context: asked.context,
                flags,
                len,
                buf: 0,
                is_told,
                is_silent: !is_last,
                counter,
                number: 0,
                result,
            };
            let posted = self.device.post(connection, post);
            posted.map_err(|error| negative(&error))?;
            // Reset at once: the next poll records operations that completed immediately.
            if let Some(ep) = self.eps.get(index) {
                ep.sends.push_back(op);
            }
        }
        Ok(())
    }

    /// Makes sure that `count` more work requests of an endpoint can be posted.
    fn make_room(&mut self, index: usize, count: usize) -> Result<(), i32> {
        if !self.has_room(index, count)? {
            // Completions of silent work requests are removed only by progress.
            self.progress();
            if !self.has_room(index, count)? {
                return Err(-libc::EAGAIN);
            }
        }
        Ok(())
    }

    fn has_room(&mut self, index: usize, count: usize) -> Result<bool, i32> {
        let ep = self.eps.get(index).ok_or(-libc::EINVAL)?;
        Ok(ep.sends.len() + ep.unread[0] + count <= DEPTH_MAX)
    }

    /// A copy of injected data, as a buffer that stays until its operation is complete.
    pub(crate) fn copy(&mut self, index: usize, buffers: &[iovec]) -> Result<iovec, i32> {
        // An operation may be three work requests: its own, data, and a proof of delivery.
        self.make_room(index, 3)?;
        let ep = self.eps.get(index).ok_or(-libc::EINVAL)?;
        if ep.copies.is_empty() {
            ep.copies = vec![0; DEPTH_MAX * INJECT_BYTES].into_boxed_slice();
        }
        let at = ep.next_copy * INJECT_BYTES;
        // Operations complete in the order of posting: the last user of this place is done.
        ep.next_copy = (ep.next_copy + 1) % DEPTH_MAX;
        let place = &mut ep.copies[at..at + INJECT_BYTES];
        let len = gather(buffers, place).ok_or(-libc::EMSGSIZE)?;
        Ok(iovec {
            iov_base: place.as_mut_ptr().cast(),
            iov_len: len,
        })
    }

    /// True if no event is pending, and the descriptor will report the next one.
    pub(crate) fn arm(&mut self) -> bool {
        self.device.arm().unwrap_or(false)
    }

    /// An object's bell, and the device, which wakes all objects.
    pub(crate) fn bell(&mut self, of: Waiter) -> Option<(&mut Bell, &Device)> {
        let bell = match of {
            Waiter::Cq(index) => &mut self.cqs.get(index)?.bell,
            Waiter::Cntr(index) => &mut self.cntrs.get(index)?.bell,
            Waiter::Eq(index) => &mut self.eqs.get(index)?.bell,
        };
        Some((bell, &self.device))
    }

    /// The bell's own descriptor, if there is one.
    pub(crate) fn bell_descriptor(&mut self, of: Waiter) -> Option<i32> {
        Some(self.bell(of)?.0.own()?.as_raw_fd())
    }

    /// The descriptor to wait for.
    pub(crate) fn wait_descriptor(&mut self, of: Waiter) -> io::Result<i32> {
        let (bell, device) = self.bell(of).ok_or(io::ErrorKind::NotFound)?;
        Ok(bell.descriptor(device)?.as_raw_fd())
    }
}
