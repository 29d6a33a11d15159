//! The stack: one round of a loop, run to completion.
//!
//! A round is: frames received ([`Stack::receive`], many times), their effects
//! ([`Stack::process_staged`]), the application's calls, frames sent ([`Stack::transmit`], which
//! also runs the timers). Nothing in it blocks, and every action is caused by a frame, a call or a
//! timer. Must stay true: a step costs what it touches; no step walks all sessions.

pub(crate) mod across;
pub(crate) mod arrival;
pub(crate) mod direct_placement;
pub(crate) mod fragments;
pub(crate) mod icmp;
pub(crate) mod info;
pub(crate) mod last_flow;
pub(crate) mod link;
pub(crate) mod listener;
pub(crate) mod options;
pub(crate) mod reassembly;
pub(crate) mod renewal;
pub(crate) mod sessions;
pub(crate) mod shard;
pub(crate) mod sharing;
pub(crate) mod sockets;
pub(crate) mod strays;
pub(crate) mod udp;

use crate::buffer::NONE;
use crate::error::NetError;
use crate::frame::{Capabilities, Outgoing, Received};
use crate::memory::{Heap, MemorySource};
use crate::shared::Common;
use crate::shared::config::Config;
use crate::shared::counters::Counters;
use crate::state::flags::Flags;
use crate::state::hot::State;
use crate::state::store::Store;
use crate::state::table::Table;
use crate::tcp::expiry::Expiry;
use crate::tcp::output::{Outcome, Output};
use crate::tcp::timers::note_refused;
use crate::timer::Tick;
use arrival::Staging;
use direct_placement::DirectPlacement;
use fragments::Fragments;
use last_flow::LastFlow;
use link::Autoconfiguration;
use listener::Listeners;
use sessions::Sessions;
use shard::Shard;
use udp::Datagrams;

/// A protocol stack on one NIC. Does no I/O: see the crate's documentation for the round.
///
/// These are the calls on sockets and the steps of a round; what a frame or a timer causes is the
/// work of its parts.
pub struct Stack {
    pub(crate) host: Host,
}

/// The parts of a stack, each with its state, and the paths of frames between them.
pub(crate) struct Host {
    pub(crate) common: Common,
    pub(crate) sessions: Sessions,
    pub(crate) datagrams: Datagrams,
    pub(crate) staging: Staging,
    pub(crate) last_flow: LastFlow,
    pub(crate) autoconfiguration: Autoconfiguration,
    pub(crate) fragments: Fragments,
    pub(crate) direct_placement: DirectPlacement,
    /// Expired entries of the timer wheel: empty between two steps.
    pub(crate) due: Vec<(u32, Tick)>,
    /// Other stacks with the same address.
    pub(crate) shard: Shard,
    /// The frame being processed was sent by this stack itself.
    pub(crate) from_self: bool,
    pub(crate) refusal: Refusal,
}

/// A NIC that takes nothing.
#[derive(Debug, Default)]
pub(crate) struct Refusal {
    /// Segments that it had taken by then.
    sent: u64,
    /// Time since when; 0 before the first refusal.
    since_ns: u64,
    /// Place in the ready list of the next session to look at.
    next: usize,
}

impl std::fmt::Debug for Stack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stack")
            .field("sessions", &self.sessions())
            .field("counters", &self.counters())
            .finish_non_exhaustive()
    }
}

impl Stack {
    /// A stack on a NIC with these capabilities. Allocates the local store's memory; other memory
    /// when it is used.
    ///
    /// # Errors
    /// [`NetError::Config`] for an invalid configuration, [`NetError::Memory`] if there is no
    /// memory.
    pub fn new(config: Config, nic: &Capabilities) -> Result<Self, NetError> {
        Self::with_memory(config, nic, Box::new(Heap))
    }

    /// As [`Stack::new`], in memory from `source`: control blocks and tables now, buffers as they
    /// are needed.
    ///
    /// # Errors
    /// As [`Stack::new`].
    pub fn with_memory(
        config: Config,
        nic: &Capabilities,
        mut source: Box<dyn MemorySource>,
    ) -> Result<Self, NetError> {
        config.check()?;
        if !(576..=0xffff).contains(&nic.mtu_bytes) {
            return Err(NetError::Config {
                what: "the NIC's MTU",
                value: nic.mtu_bytes.to_string(),
                rule: "576 to 65535 bytes (1280 at least for IPv6)",
            });
        }
        // The blocks come first: a configuration that asks for too many is refused before anything
        // else is allocated.
        let store = Store::new(config.placement, config.sessions_max, &mut *source)?;
        let table = Table::new(config.sessions_max, &mut *source)?;
        let common = Common::new(config, nic, source);
        let mut host = Host {
            sessions: Sessions {
                store,
                table,
                listeners: Listeners::default(),
            },
            datagrams: Datagrams::default(),
            staging: Staging::new(common.config.placement),
            last_flow: LastFlow::new(),
            autoconfiguration: Autoconfiguration::default(),
            fragments: Fragments::default(),
            direct_placement: DirectPlacement::default(),
            due: Vec::with_capacity(DUE_FIRST),
            shard: Shard::default(),
            from_self: false,
            refusal: Refusal::default(),
            common,
        };
        host.autoconfiguration.begin(&mut host.common);
        Ok(Self { host })
    }

    /// Takes a frame. The caller owns its bytes again when this returns; processing may be deferred
    /// until [`Stack::process_staged`], so that a batch's control blocks are fetched together.
    #[inline]
    pub fn receive(&mut self, now_ns: u64, frame: Received<'_>) {
        self.host.common.set_now(now_ns);
        self.host.common.counters.frames_received += 1;
        self.host.arrive(frame);
    }

    /// Takes a frame that this stack sent to one of its own addresses, from the caller's loopback.
    /// From a NIC such a source is forged, and [`Stack::receive`] drops it.
    #[inline]
    pub fn receive_own(&mut self, now_ns: u64, frame: Received<'_>) {
        self.host.from_self = true;
        self.receive(now_ns, frame);
        self.host.from_self = false;
    }

    /// Processes the frames that [`Stack::receive`] deferred. Call it after a batch, before
    /// accessing sockets.
    #[inline]
    pub fn process_staged(&mut self) {
        self.host.process_staged_segments();
        self.host.sweep();
    }

    /// Runs the timers that are due and passes frames to `send` until there are no more or `send`
    /// has no room (returns false). True if all frames were sent.
    pub fn transmit(&mut self, now_ns: u64, send: &mut dyn FnMut(&Outgoing<'_>) -> bool) -> bool {
        self.host.common.set_now(now_ns);
        // Acknowledgments that wait stop timers that would otherwise send the same data again.
        self.process_staged();
        self.host.run_timers();
        feed_starved(&mut self.host);
        self.host.resolve();
        let common = &mut self.host.common;
        let sent = &mut common.counters.control_sent;
        // Control frames first: an ARP reply or a reset is small, and data may fill the NIC's
        // queue.
        if !common.control.flush(send, sent) || !self.host.transmit_ready(send) {
            self.host.note_refused();
            return false;
        }
        // Neighbours that the sessions requested while sending.
        self.host.resolve();
        self.host.sweep();
        let common = &mut self.host.common;
        let sent = &mut common.counters.control_sent;
        common.control.flush(send, sent) && common.ready.is_empty()
    }

    /// Latest time of the next call of [`Stack::transmit`], if no frame arrives before; none if
    /// there is no timer.
    #[must_use]
    pub fn next_timer(&self) -> Option<u64> {
        let now_ns = self.host.common.now_ns;
        let waits = !self.host.common.ready.is_empty()
            || !self.host.common.control.is_empty()
            || !self.host.staging.is_empty();
        if waits {
            return Some(now_ns);
        }
        let others = [
            self.host.common.wheel.next_ns(now_ns),
            self.host.common.neighbors.next_ns(),
            self.host.autoconfiguration.next_ns(),
            self.host.common.interface.next_end_ns(),
            self.host.datagrams.next_ns(),
        ];
        others.into_iter().flatten().min()
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.host.common.config
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters {
            searches: self.host.sessions.table.searches,
            search_hits: self.host.sessions.table.front_hits,
            ..self.host.common.counters
        }
    }

    /// Sessions that exist, in any state.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.host.sessions.store.taken()
    }

    /// The memory of all buffers.
    #[must_use]
    pub fn buffers(&self) -> Buffers {
        let pool = &self.host.common.pool;
        let (bytes_max, bytes_in_use) = pool.budget();
        Buffers {
            allocated_bytes: pool.bytes_held(),
            in_use: pool.taken(),
            bytes_max,
            bytes_in_use,
        }
    }
}

impl Host {
    /// Serves each session in the ready list.
    fn transmit_ready(&mut self, send: &mut dyn FnMut(&Outgoing<'_>) -> bool) -> bool {
        // A session with more to send goes to the end, and may be served again: the NIC decides
        // when a round is over.
        while let Some(number) = self.common.ready.pop_front() {
            let session = self.sessions.access(&mut self.common, number);
            // Cleared before its turn, in which it may become ready again.
            session.hot.clear(Flags::READY);
            if session.hot.state() == State::Closed {
                continue;
            }
            let mut output = Output::new(session, send);
            match output.run() {
                Outcome::Done | Outcome::Unresolved => {}
                Outcome::More => output.session.make_ready(),
                Outcome::Full => {
                    note_refused(&mut output.session);
                    output.session.hot.set(Flags::READY);
                    self.common.ready.push_front(number);
                    return false;
                }
            }
        }
        true
    }

    /// The NIC has no room. Only the first of the ready sessions is tried then; once the NIC has
    /// taken nothing for a while, the timers of those behind it run, too, so that they end together
    /// and not one after the other.
    #[cold]
    fn note_refused(&mut self) {
        let common = &mut self.common;
        let (now_ns, sent) = (common.now_ns, common.counters.segments_sent);
        if self.refusal.sent != sent || self.refusal.since_ns == 0 {
            self.refusal = Refusal {
                sent,
                since_ns: now_ns,
                next: 0,
            };
            return;
        }
        if now_ns.saturating_sub(self.refusal.since_ns) < REFUSED_NS {
            return;
        }
        let count = common.ready.len();
        for _ in 0..count.min(REFUSED_MAX) {
            // Cyclic: sessions leave and join the list meanwhile.
            let at = self.refusal.next % count;
            self.refusal.next = at + 1;
            let number = self.common.ready[at];
            note_refused(&mut self.sessions.access(&mut self.common, number));
        }
    }

    fn run_timers(&mut self) {
        let tick = self.common.tick;
        self.common.wheel.advance(tick, &mut self.due);
        for at in 0..self.due.len() {
            let (number, tick) = self.due[at];
            if number == fragments::TIMER {
                self.fragments.expire(&mut self.common, tick);
                continue;
            }
            let session = self.sessions.access(&mut self.common, number);
            // Otherwise the entry is stale: an earlier deadline, or another session with this
            // number.
            if session.hot.armed == tick {
                Expiry::new(session).run();
            }
        }
        // The list is a field so that its memory is reused.
        self.due.clear();
        self.common.neighbors.tick(self.common.now_ns);
        self.autoconfiguration.run(&mut self.common);
        self.sweep();
    }

    /// Sends neighbour requests, and wakes sessions that waited for replies.
    #[inline]
    fn resolve(&mut self) {
        if !self.common.neighbors.is_idle() || self.datagrams.next_ns().is_some() {
            self.resolve_neighbors();
        }
    }

    fn resolve_neighbors(&mut self) {
        while let Some(question) = self.common.neighbors.questions.pop() {
            self.common.ask(&question);
        }
        // In the order of waiting.
        let mut resolved = std::mem::take(&mut self.common.neighbors.resolved);
        for number in resolved.drain(..) {
            let mut session = self.sessions.access(&mut self.common, number);
            if session.hot.has(Flags::UNRESOLVED) {
                session.hot.clear(Flags::UNRESOLVED);
                session.make_ready();
            }
        }
        self.common.neighbors.resolved = resolved;
        while let Some((number, neighbor)) = self.common.neighbors.failed.pop() {
            let mut session = self.sessions.access(&mut self.common, number);
            if session.hot.has(Flags::UNRESOLVED) && session.path.hop().0 == neighbor {
                session.hot.clear(Flags::UNRESOLVED);
                session.hop_failed();
            }
        }
        if self.datagrams.next_ns().is_some() {
            self.datagrams.resolve(&mut self.common);
        }
        self.sweep();
    }

    /// Completes state changes of sessions: new ones go to their listeners, closed ones leave the
    /// table.
    #[inline]
    pub(crate) fn sweep(&mut self) {
        self.sessions.sweep(&mut self.common);
    }
}

/// The memory of a stack's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffers {
    /// Bytes that were allocated.
    pub allocated_bytes: usize,
    /// Number of buffers that sessions have.
    pub in_use: usize,
    /// The budget in bytes.
    pub bytes_max: usize,
    /// Bytes of the budget that are in use.
    pub bytes_in_use: usize,
}

/// Lets sessions write again that found no memory, some at a time.
#[inline]
fn feed_starved(host: &mut Host) {
    if !host.common.starved.is_empty() && host.common.pool.take_returned() {
        feed_some(&mut host.sessions, &mut host.common);
    }
}

#[cold]
fn feed_some(sessions: &mut Sessions, common: &mut Common) {
    for _ in 0..common.starved.len().min(FED_MAX) {
        let Some(number) = common.starved.pop_front() else {
            return;
        };
        let mut session = sessions.access(common, number);
        // Others have ended meanwhile, or their number was reused.
        if session.hot.has(Flags::WANTS_ROOM) && session.hot.state() != State::Closed {
            session.hot.clear(Flags::WANTS_ROOM);
            session.notify();
        }
    }
}

/// Time without room in the NIC after which waiting sessions count as stalled.
const REFUSED_NS: u64 = 100_000_000;
/// Sessions that are looked at in one round of such a NIC.
const REFUSED_MAX: usize = 64;

/// Initial capacity of the list of expired timers, of one round.
const DUE_FIRST: usize = 4096;

/// Sessions that may write again in one step, after memory was returned.
const FED_MAX: usize = 64;

const _: () = assert!(NONE == u32::MAX, "no session has this number");

/// Identifies a session. Valid until [`crate::Stack::close`]; never reused afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SessionId {
    pub(crate) number: u32,
    pub(crate) generation: u32,
}

/// Identifies a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ListenerId {
    pub(crate) number: u32,
    pub(crate) generation: u32,
}

/// Identifies a UDP socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct UdpId {
    pub(crate) number: u32,
    pub(crate) generation: u32,
}

macro_rules! parts {
    ($($name:ident)*) => { $(
        impl $name {
            /// The identifier from the result of [`Self::parts`].
            #[inline]
            #[must_use]
            pub fn from_parts(number: u32, generation: u32) -> Self {
                Self { number, generation }
            }

            /// Its number, less than 2^30, and the generation that distinguishes it from earlier
            /// ones with the same number.
            #[inline]
            #[must_use]
            pub fn parts(self) -> (u32, u32) {
                (self.number, self.generation)
            }
        }
    )* };
}
parts!(SessionId ListenerId UdpId);
