//! The state of endpoints, and of their operations in progress.

use super::DEPTH_MAX;
use crate::abi::*;
use crate::place::{INJECT_BYTES, gather};
use sidecore_bare::width::ToUsize;
use sidecore_rdma::{Completion, ConnectionId, ListenerId, Receive, Status};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::net::SocketAddr;

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
    pub(crate) is_connected: bool,
    pub(crate) is_over: bool,
    pub(crate) eq: Option<usize>,
    pub(crate) send_cq: Option<BoundCq>,
    pub(crate) receive_cq: Option<BoundCq>,
    /// Shared context of its receives.
    pub(crate) srx: Option<usize>,
    pub(crate) cntrs: Cntrs,
    pub(crate) op_flags: u64,
    pub(crate) receive_flags: u64,
    pub(crate) source: Option<SocketAddr>,
    /// Address of the passive endpoint that it was created from, used as its source.
    pub(crate) bound: Option<SocketAddr>,
    /// Immediate data that arrived before its message.
    pub(super) data: Option<u64>,
    pub(super) sends: VecDeque<Op>,
    pub(crate) receives: VecDeque<Op>,
    /// Receives that were posted before the connection existed.
    pub(crate) early: VecDeque<Receive>,
    /// Number of the next receive.
    pub(super) next_receive: u64,
    pub(super) unread_sends: usize,
    pub(super) unread_receives: usize,
    copies: Copies,
}

/// A completion queue that an endpoint is bound to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BoundCq {
    pub(crate) cq: usize,
    /// Only operations that ask for a completion have one.
    pub(crate) is_selective: bool,
}

/// Counters of an endpoint.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Counter {
    Sends,
    Receives,
    Reads,
    Writes,
}

/// An endpoint's bindings of counters.
#[derive(Debug, Default)]
pub(crate) struct Cntrs {
    sends: Option<usize>,
    receives: Option<usize>,
    reads: Option<usize>,
    writes: Option<usize>,
}

impl Cntrs {
    /// Binds a counter for the operations that `flags` names.
    pub(crate) fn bind(&mut self, cntr: usize, flags: u64) {
        for (flag, place) in [
            (FI_SEND, &mut self.sends),
            (FI_RECV, &mut self.receives),
            (FI_READ, &mut self.reads),
            (FI_WRITE, &mut self.writes),
        ] {
            if flags & flag != 0 {
                *place = Some(cntr);
            }
        }
    }

    pub(crate) fn of(&self, counter: Counter) -> Option<usize> {
        match counter {
            Counter::Sends => self.sends,
            Counter::Receives => self.receives,
            Counter::Reads => self.reads,
            Counter::Writes => self.writes,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        let all = [self.sends, self.receives, self.reads, self.writes];
        all.iter().all(Option::is_none)
    }
}

/// Report of an operation: the flags of its completion, and its counter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Report {
    pub(super) flags: u64,
    pub(super) counter: Counter,
}

impl Report {
    pub(crate) const SEND: Self = Self::new(FI_SEND | FI_MSG, Counter::Sends);
    pub(crate) const RECEIVE: Self = Self::new(FI_RECV | FI_MSG, Counter::Receives);
    pub(crate) const READ: Self = Self::new(FI_READ | FI_RMA, Counter::Reads);
    pub(crate) const WRITE: Self = Self::new(FI_WRITE | FI_RMA, Counter::Writes);
    /// An atomic with a result.
    pub(crate) const FETCH: Self = Self::new(FI_READ | FI_ATOMIC, Counter::Reads);
    /// An atomic without one.
    pub(crate) const CHANGE: Self = Self::new(FI_WRITE | FI_ATOMIC, Counter::Writes);

    const fn new(flags: u64, counter: Counter) -> Self {
        Self { flags, counter }
    }
}

/// An operation in progress.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Op {
    pub(crate) context: usize,
    pub(super) report: Report,
    pub(super) len: usize,
    pub(super) buf: usize,
    /// A completion was requested.
    pub(super) completes: bool,
    /// The first of two work requests: only the second one reports a completion.
    pub(super) is_silent: bool,
    /// For a receive: its number at the pair.
    pub(crate) number: u64,
    /// Address for the old value of an atomic; 0 for none.
    pub(super) result: usize,
}

impl Op {
    /// A receive into `buffers`.
    pub(crate) fn receive(asked: &Asked, buffers: &[iovec], number: u64, completes: bool) -> Self {
        Self {
            context: asked.context,
            report: Report::RECEIVE,
            len: 0,
            // Of several pieces the first.
            buf: buffers.first().map_or(0, |buffer| buffer.iov_base.addr()),
            completes,
            is_silent: false,
            number,
            result: 0,
        }
    }
}

/// Parameters of a request to an endpoint.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) context: usize,
    pub(crate) flags: u64,
    /// The call has no flags: those of its endpoint apply.
    pub(crate) has_endpoint_flags: bool,
    /// It reports a completion unless the queue uses selective completion.
    pub(crate) completes: bool,
    pub(crate) data: Option<u64>,
}

impl Asked {
    /// Of a call without flags.
    pub(crate) fn short(context: *mut c_void) -> Self {
        Self {
            has_endpoint_flags: true,
            ..Self::message(context, 0, 0)
        }
    }

    /// Of a call with a message structure.
    pub(crate) fn message(context: *mut c_void, flags: u64, data: u64) -> Self {
        Self {
            context: context.expose_provenance(),
            flags,
            has_endpoint_flags: false,
            completes: true,
            // The field is undefined unless its flag is set.
            data: (flags & FI_REMOTE_CQ_DATA != 0).then_some(data),
        }
    }

    /// Of a call with copied data and without a completion.
    pub(crate) fn injected() -> Self {
        Self {
            context: 0,
            flags: FI_INJECT,
            has_endpoint_flags: false,
            completes: false,
            data: None,
        }
    }

    /// The same with immediate data for the peer.
    pub(crate) fn with_data(self, data: u64) -> Self {
        Self {
            data: Some(data),
            ..self
        }
    }
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Of {
    /// An endpoint's, for its sends.
    Sends(usize),
    /// An endpoint's, for its receives.
    Receives(usize),
    /// A shared receive context's.
    Srx(usize),
}

/// Copies of injected data, one place for each operation.
#[derive(Debug, Default)]
struct Copies {
    bytes: Box<[u8]>,
    next: usize,
}

impl Copies {
    /// Copies `buffers`; the copy stays until [`DEPTH_MAX`] others were made.
    fn add(&mut self, buffers: &[iovec]) -> Option<iovec> {
        // Many endpoints inject nothing.
        if self.bytes.is_empty() {
            self.bytes = vec![0; DEPTH_MAX * INJECT_BYTES].into_boxed_slice();
        }
        let at = self.next * INJECT_BYTES;
        let place = &mut self.bytes[at..at + INJECT_BYTES];
        let len = gather(buffers, place)?;
        self.next = (self.next + 1) % DEPTH_MAX;
        Some(iovec {
            iov_base: place.as_mut_ptr().cast(),
            iov_len: len,
        })
    }
}

impl Ep {
    pub(crate) fn new(fid: usize, context: usize) -> Self {
        Self {
            fid,
            context,
            connection: None,
            is_connected: false,
            is_over: false,
            eq: None,
            send_cq: None,
            receive_cq: None,
            srx: None,
            cntrs: Cntrs::default(),
            op_flags: 0,
            receive_flags: 0,
            source: None,
            bound: None,
            data: None,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            early: VecDeque::new(),
            next_receive: 0,
            unread_sends: 0,
            unread_receives: 0,
            copies: Copies::default(),
        }
    }

    /// True if operations of its receives report completions unless asked not to.
    pub(super) fn completes_receives(&self) -> bool {
        self.receive_cq.is_none_or(|bound| !bound.is_selective)
    }

    /// The same for its sends.
    pub(super) fn completes_sends(&self) -> bool {
        self.send_cq.is_none_or(|bound| !bound.is_selective)
    }

    /// True if `count` more work requests fit.
    pub(super) fn has_room(&self, count: usize) -> bool {
        self.sends.len() + self.unread_sends + count <= DEPTH_MAX
    }

    /// A copy of injected data.
    pub(super) fn copy(&mut self, buffers: &[iovec]) -> Option<iovec> {
        // Operations complete in the order of posting: the last user of this place is done.
        self.copies.add(buffers)
    }

    /// The completion of an operation of its sends.
    pub(super) fn sent_entry(index: usize, op: &Op) -> Entry {
        Entry {
            context: op.context,
            flags: op.report.flags,
            len: op.len,
            buf: 0,
            data: 0,
            of: Of::Sends(index),
        }
    }

    /// The completion of a receive.
    pub(super) fn received_entry(
        &mut self,
        index: usize,
        op: &Op,
        completion: &Completion,
    ) -> Entry {
        let mut entry = Entry {
            context: op.context,
            flags: op.report.flags,
            len: completion.bytes.to_usize(),
            buf: op.buf,
            data: 0,
            of: self.srx.map_or(Of::Receives(index), Of::Srx),
        };
        if let Some(value) = completion.immediate {
            // Data of a write: it takes a receive, and leaves its buffer unchanged.
            entry.flags = FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA;
            (entry.data, entry.len, entry.buf) = (value, 0, 0);
        } else if completion.status == Status::Done
            && let Some(data) = self.data.take()
        {
            // Data of this message: it arrived ahead of it, without a receive.
            entry.flags |= FI_REMOTE_CQ_DATA;
            entry.data = data;
        }
        entry
    }
}
