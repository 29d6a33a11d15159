//! All state behind a fabric's objects: one device, its endpoints, queues, counters and events.
//!
//! Objects of libfabric are handles: a pointer to the fabric and a number here. Must stay true: one
//! lock guards all state and is never held while waiting; an operation's context is returned once,
//! as a completion or an error, or not at all if none was requested; an endpoint has at most
//! [`DEPTH_MAX`] operations of a kind whose completions were not read, so that completion queues
//! are bounded by the endpoints that are bound to them.

mod connecting;
mod endpoint;
mod posting;

pub(crate) use endpoint::{Asked, BoundCq, Entry, Ep, Of, Op, Pep, Report};

use crate::bell::{Bell, Waiter};
use crate::place::{DEPTH_MAX, put_word};
use sidecore_rdma::{
    Completion, ConnectionId, Device, Kind, Options, PostError, QueueId, Queued, Queues, RdmaError,
    ReadyBy, Setup, SharedId, Stag, StartFault, Status, Transport,
};
use std::collections::{HashMap, VecDeque};
use std::io;
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
    /// Completions of operations that failed, with their error numbers.
    pub(crate) errors: VecDeque<(Entry, i32)>,
    pub(crate) bell: Bell,
    pub(crate) is_signaled: bool,
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

impl EqEvent {
    pub(crate) fn new(event: u32, fid: usize) -> Self {
        Self {
            event,
            fid,
            info: 0,
            data: Vec::new(),
            err: 0,
            context: 0,
        }
    }

    /// An event about an endpoint.
    fn of_ep(event: u32, ep: &Ep) -> Self {
        Self {
            context: ep.context,
            ..Self::new(event, ep.fid)
        }
    }

    pub(crate) fn with_data(self, data: Vec<u8>) -> Self {
        Self { data, ..self }
    }
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

/// A table of objects by number; numbers are used again.
pub(crate) struct Slab<T>(Vec<Option<T>>);

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Slab<T> {
    pub(crate) fn insert(&mut self, value: T) -> usize {
        // A search, not a list of free places: objects are few, and opened seldom.
        let free = self.0.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.0.push(None);
            self.0.len() - 1
        });
        self.0[index] = Some(value);
        index
    }

    pub(crate) fn get(&mut self, index: usize) -> Option<&mut T> {
        self.0.get_mut(index)?.as_mut()
    }

    pub(crate) fn remove(&mut self, index: usize) -> Option<T> {
        self.0.get_mut(index)?.take()
    }

    pub(crate) fn each(&mut self) -> impl Iterator<Item = (usize, &mut T)> {
        let places = self.0.iter_mut().enumerate();
        places.filter_map(|(index, place)| Some((index, place.as_mut()?)))
    }
}

/// Options of every pair: a message waits for its receive, both sides may send first.
fn options() -> Options {
    let crc = std::env::var_os("SIDECORE_FI_CRC").is_some_and(|value| value == "1");
    Options {
        crc,
        setup: Setup::PeerToPeer(ReadyBy::Message),
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
    -match error {
        RdmaError::Io(error) => error.raw_os_error().unwrap_or(libc::ENOTCONN),
        RdmaError::Memory(_) | RdmaError::TooMany(..) => libc::ENOMEM,
        RdmaError::Post(PostError::Full(_)) => libc::EAGAIN,
        RdmaError::Post(PostError::Fault(_)) => libc::EACCES,
        RdmaError::Post(PostError::TooLong) | RdmaError::Start(StartFault::PrivateData(..)) => {
            libc::EMSGSIZE
        }
        RdmaError::Post(PostError::NoReads) => libc::EOPNOTSUPP,
        RdmaError::Post(_)
        | RdmaError::Start(StartFault::NotRequested)
        | RdmaError::Ended(_)
        | RdmaError::Unknown(_) => libc::ENOTCONN,
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
        // One queue of the device for all endpoints: their own queues are libfabric's.
        while let Ok(count @ 1..) = self.device.poll(self.queue, &mut taken) {
            for queued in taken[..count].iter().flatten() {
                self.complete(queued);
            }
            if count < TAKEN_MAX {
                break;
            }
        }
        // Behind the completions: flushed work is reported before the end that flushed it.
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
        // Its endpoint may be closed: what was flushed then has been reported already.
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
                // The endpoint is known only now, and with it the queue that decides.
                let completes = ep.completes_receives();
                let srx = self.srxs.get(srx);
                let op = srx.and_then(|srx| srx.receives.remove(&completion.id));
                op.map(|op| Op {
                    completes: op.completes || completes,
                    ..op
                })
            }
            // Completions come in the order of posting, so the oldest operation is meant.
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
        // A failure is reported even of the first of several: the others are flushed behind it.
        if op.is_silent && is_done {
            return;
        }
        let Some(ep) = self.eps.get(index) else {
            return;
        };
        let (entry, bound) = if is_receive {
            (ep.received_entry(index, &op, completion), ep.receive_cq)
        } else {
            (Ep::sent_entry(index, &op), ep.send_cq)
        };
        let cntr = ep.cntrs.of(op.report.counter);
        if let Some(cntr) = cntr.and_then(|cntr| self.cntrs.get(cntr)) {
            if is_done {
                cntr.value += 1;
            } else {
                cntr.errors += 1;
            }
            cntr.bell.ring();
        }
        let Some(cq) = bound.and_then(|bound| self.cqs.get(bound.cq)) else {
            return;
        };
        if !is_done {
            cq.errors.push_back((entry, libc::ECANCELED));
        } else if op.completes {
            cq.entries.push_back(entry);
        } else {
            return;
        }
        cq.bell.ring();
        if let Some(unread) = self.unread(entry.of) {
            *unread += 1;
        }
    }

    /// The number of unread completions that counts against a bound.
    fn unread(&mut self, of: Of) -> Option<&mut usize> {
        match of {
            Of::Sends(ep) => Some(&mut self.eps.get(ep)?.unread_sends),
            Of::Receives(ep) => Some(&mut self.eps.get(ep)?.unread_receives),
            Of::Srx(srx) => Some(&mut self.srxs.get(srx)?.unread),
        }
    }

    /// A completion was read.
    pub(crate) fn was_read(&mut self, of: Of) {
        // Its endpoint may be closed already.
        if let Some(unread) = self.unread(of) {
            *unread = unread.saturating_sub(1);
        }
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
