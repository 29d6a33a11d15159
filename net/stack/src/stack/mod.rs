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
pub(crate) mod last_flow;
pub(crate) mod link;
pub(crate) mod listener;
pub(crate) mod names;
pub(crate) mod options;
pub(crate) mod reassembly;
pub(crate) mod renewal;
pub(crate) mod sessions;
pub(crate) mod siblings;
pub(crate) mod sockets;
pub(crate) mod udp;

use crate::buffer::pool::Pool;
use crate::buffer::slab::{NONE, Slab};
use crate::error::NetError;
use crate::frame::{Capabilities, Outgoing, Received};
use crate::memory::{Heap, MemorySource};
use crate::secrets::Secrets;
use crate::shared::config::Config;
use crate::shared::control::Control;
use crate::shared::counters::Counters;
use crate::shared::interface::Interface;
use crate::shared::neighbors::Neighbors;
use crate::shared::paths::Paths;
use crate::shared::{Budget, Common, IDENTIFICATIONS};
use crate::state::flags::Flags;
use crate::state::hot::State;
use crate::state::store::Store;
use crate::state::table::Table;
use crate::tcp::Session;
use crate::tcp::cold::Cold;
use crate::tcp::expiry::Expiry;
use crate::tcp::output::{Outcome, Output};
use crate::timer::{Tick, Wheel};
use arrival::Staging;
use last_flow::LastFlow;
use reassembly::Reassembly;
use sessions::Listeners;
use siblings::Siblings;
use sidecore_random::Random;
use std::collections::VecDeque;
use udp::Datagrams;

/// A protocol stack on one NIC. Does no I/O: see the crate's documentation for the round.
pub struct Stack {
    pub(crate) common: Common,
    pub(crate) store: Store<Cold>,
    pub(crate) table: Table,
    pub(crate) listeners: Listeners,
    pub(crate) datagrams: Datagrams,
    pub(crate) staging: Staging,
    pub(crate) last_flow: LastFlow,
    pub(crate) autoconfiguration: link::Autoconfiguration,
    pub(crate) reassembly: Reassembly,
    /// Tick of the reassembly entry in the wheel.
    pub(crate) reassembly_armed: Tick,
    pub(crate) direct_placement: direct_placement::DirectPlacement,
    pub(crate) due: Vec<(u32, Tick)>,
    /// Other stacks with the same address; none if there are none.
    pub(crate) siblings: Option<Box<Siblings>>,
    /// The frame being processed was sent by this stack itself.
    pub(crate) from_self: bool,
}

impl std::fmt::Debug for Stack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stack")
            .field("sessions", &self.store.taken())
            .field("counters", &self.common.counters)
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
        let mut random = Random::new(config.seed);
        let store = Store::new(config.placement, config.sessions_max, &mut *source)?;
        let table = Table::new(config.sessions_max, &mut *source)?;
        let interface = Interface::new(nic, &config.addresses, &config.routes);
        let common = Common {
            now_ns: 0,
            now_us: 0,
            now_ms: 0,
            tick: 0,
            pool: Pool::new(config.buffers_bytes, source),
            scoreboards: Slab::with_capacity(BOARDS_FIRST),
            out_of_order: Slab::default(),
            wheel: Wheel::new(0),
            secrets: Secrets::new(&mut random),
            random,
            interface,
            neighbors: Neighbors::default(),
            control: Control::new(),
            counters: Counters::default(),
            ready: VecDeque::with_capacity(LIST),
            pending_events: VecDeque::with_capacity(LIST),
            newly_closed: Vec::with_capacity(LIST),
            newly_established: Vec::with_capacity(LIST),
            time_wait: VecDeque::with_capacity(LIST),
            challenges: Budget::NEW,
            errors: Budget::NEW,
            next_port: 0,
            paths: Paths::default(),
            identifications: [0; IDENTIFICATIONS],
            long: Vec::new(),
            config,
        };
        let mut stack = Self {
            table,
            listeners: Listeners::default(),
            datagrams: Datagrams::default(),
            staging: Staging::new(common.config.placement),
            last_flow: LastFlow::new(),
            autoconfiguration: link::Autoconfiguration::default(),
            reassembly: Reassembly::default(),
            reassembly_armed: 0,
            direct_placement: direct_placement::DirectPlacement::default(),
            due: Vec::with_capacity(LIST),
            siblings: None,
            from_self: false,
            store,
            common,
        };
        stack.begin_link();
        Ok(stack)
    }

    /// Takes a frame. The caller owns its bytes again when this returns; processing may be deferred
    /// until [`Stack::process_staged`], so that a batch's control blocks are fetched together.
    #[inline]
    pub fn receive(&mut self, now_ns: u64, frame: Received<'_>) {
        self.common.set_now(now_ns);
        self.common.counters.frames_received += 1;
        self.arrive(frame);
    }

    /// Takes a frame that this stack sent to one of its own addresses, from the caller's loopback.
    /// From a NIC such a source is forged, and [`Stack::receive`] drops it.
    #[inline]
    pub fn receive_own(&mut self, now_ns: u64, frame: Received<'_>) {
        self.from_self = true;
        self.receive(now_ns, frame);
        self.from_self = false;
    }

    /// Processes the frames that [`Stack::receive`] deferred. Call it after a batch, before
    /// accessing sockets.
    #[inline]
    pub fn process_staged(&mut self) {
        self.process_staged_segments();
        self.sweep();
    }

    /// Runs the timers that are due and passes frames to `send` until there are no more or `send`
    /// has no room (returns false). True if all frames were sent.
    pub fn transmit(&mut self, now_ns: u64, send: &mut dyn FnMut(&Outgoing<'_>) -> bool) -> bool {
        self.common.set_now(now_ns);
        self.process_staged();
        self.run_timers();
        self.resolve();
        let common = &mut self.common;
        let sent = &mut common.counters.control_sent;
        if !common.control.flush(send, sent) || !self.transmit_ready(send) {
            return false;
        }
        // Neighbours that the sessions requested while sending.
        self.resolve();
        self.sweep();
        let common = &mut self.common;
        let sent = &mut common.counters.control_sent;
        common.control.flush(send, sent) && common.ready.is_empty()
    }

    /// Serves each session in the ready list.
    fn transmit_ready(&mut self, send: &mut dyn FnMut(&Outgoing<'_>) -> bool) -> bool {
        // A session with more to send goes to the end, and may be served again: the NIC decides
        // when a round is over.
        while let Some(number) = self.common.ready.pop_front() {
            let session = session(&mut self.store, &mut self.common, number);
            session.hot.clear(Flags::READY);
            if session.hot.state() == State::Closed {
                continue;
            }
            let mut output = Output::new(session, send);
            match output.run() {
                Outcome::Done | Outcome::Unresolved => {}
                Outcome::More => output.session.make_ready(),
                Outcome::Full => {
                    output.session.hot.set(Flags::READY);
                    self.common.ready.push_front(number);
                    return false;
                }
            }
        }
        true
    }

    /// Latest time of the next call of [`Stack::transmit`], if no frame arrives before; none if
    /// there is no timer.
    #[must_use]
    pub fn next_timer(&self) -> Option<u64> {
        let now_ns = self.common.now_ns;
        let waits = !self.common.ready.is_empty()
            || !self.common.control.is_empty()
            || !self.staging.is_empty();
        if waits {
            return Some(now_ns);
        }
        let others = [
            self.common.wheel.next_ns(now_ns),
            self.common.neighbors.next_ns(),
            self.autoconfiguration.next_ns(),
            self.next_datagram_ns(),
        ];
        others.into_iter().flatten().min()
    }

    fn run_timers(&mut self) {
        let tick = self.common.tick;
        self.common.wheel.advance(tick, &mut self.due);
        for at in 0..self.due.len() {
            let (number, tick) = self.due[at];
            if number == fragments::TIMER {
                self.expire_fragments(tick);
                continue;
            }
            let session = session(&mut self.store, &mut self.common, number);
            // Otherwise the entry is stale: an earlier deadline, or another session with this
            // number.
            if session.hot.armed == tick {
                Expiry::new(session).run();
            }
        }
        self.due.clear();
        self.common.neighbors.tick(self.common.now_ns);
        self.run_link_timers();
        self.sweep();
    }

    /// Sends neighbour requests, and wakes sessions that waited for replies.
    #[inline]
    fn resolve(&mut self) {
        if !self.common.neighbors.is_idle() || self.next_datagram_ns().is_some() {
            self.resolve_neighbors();
        }
    }

    fn resolve_neighbors(&mut self) {
        while let Some(question) = self.common.neighbors.questions.pop() {
            self.ask(&question);
        }
        // In the order of waiting.
        let mut resolved = std::mem::take(&mut self.common.neighbors.resolved);
        for number in resolved.drain(..) {
            let mut session = session(&mut self.store, &mut self.common, number);
            if session.hot.has(Flags::UNRESOLVED) {
                session.hot.clear(Flags::UNRESOLVED);
                session.make_ready();
            }
        }
        self.common.neighbors.resolved = resolved;
        while let Some(number) = self.common.neighbors.failed.pop() {
            let mut session = session(&mut self.store, &mut self.common, number);
            if session.hot.has(Flags::UNRESOLVED) {
                session.hot.clear(Flags::UNRESOLVED);
                session.hop_failed();
            }
        }
        if self.next_datagram_ns().is_some() {
            self.resolve_datagrams();
        }
        self.sweep();
    }

    /// Completes state changes of sessions: new ones go to their listeners, closed ones leave the
    /// table.
    #[inline]
    fn sweep(&mut self) {
        if !self.common.newly_established.is_empty() || !self.common.newly_closed.is_empty() {
            self.sweep_sessions();
        }
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.common.config
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters {
            searches: self.table.searches,
            search_hits: self.table.front_hits,
            ..self.common.counters
        }
    }

    /// [`Counters::frames_received`] alone.
    #[inline]
    pub fn frames_received(&self) -> u64 {
        self.common.counters.frames_received
    }

    /// Sessions that exist, in any state.
    #[must_use]
    pub fn sessions(&self) -> usize {
        self.store.taken()
    }

    /// Bytes of buffer memory that was allocated, and number of buffers in use.
    #[must_use]
    pub fn buffers(&self) -> (usize, usize) {
        (self.common.pool.bytes_held(), self.common.pool.taken())
    }
}

/// Access to a session.
#[inline]
pub(crate) fn session<'s>(
    store: &'s mut Store<Cold>,
    common: &'s mut Common,
    number: u32,
) -> Session<'s> {
    let (hot, path, cold) = store.session(number);
    Session {
        number,
        hot,
        path,
        cold,
        common,
    }
}

/// Scoreboards allocated at the start.
const BOARDS_FIRST: usize = 256;
/// Initial capacity of lists that grow with the events of one round.
const LIST: usize = 4096;

const _: () = assert!(NONE == u32::MAX, "no session has this number");
