//! State shared by all sessions of a stack: clocks, buffers, tables, counters and the queue of
//! control frames.
//!
//! Why here: `tcp` works on one session and on [`Common`], `stack` on all of them; both are above
//! this module, so that `tcp` does not depend on `stack`.
//! Must stay true: nothing here knows a session's state machine.

pub(crate) mod config;
pub(crate) mod control;
pub(crate) mod counters;
pub(crate) mod fragments;
pub(crate) mod frames;
pub(crate) mod interface;
pub(crate) mod neighbors;
pub(crate) mod paths;
pub(crate) mod shares;

use crate::buffer::Slab;
use crate::buffer::pool::Pool;
use crate::frame::Capabilities;
use crate::memory::MemorySource;
use crate::ranges::out_of_order::OutOfOrderRanges;
use crate::ranges::scoreboard::Scoreboard;
use crate::secrets::Secrets;
use crate::timer::{Tick, Wheel};
use config::Config;
use control::Control;
use counters::Counters;
use interface::Interface;
use neighbors::Neighbors;
use paths::Paths;
use shares::Shares;
use sidecore_random::Random;
use std::collections::VecDeque;

/// Socket with a pending event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventSource {
    /// A session's readiness changed.
    Session(u32),
    /// A listener has a session to accept.
    Listener(u32),
    /// A UDP socket has a datagram.
    Udp(u32),
}

/// State shared by all sessions of a stack.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) now_ns: u64,
    pub(crate) now_us: u32,
    pub(crate) now_ms: u32,
    pub(crate) tick: Tick,
    pub(crate) config: Config,
    pub(crate) pool: Pool,
    pub(crate) scoreboards: Slab<Scoreboard>,
    pub(crate) out_of_order: Slab<OutOfOrderRanges>,
    pub(crate) wheel: Wheel,
    pub(crate) secrets: Secrets,
    pub(crate) random: Random,
    pub(crate) interface: Interface,
    pub(crate) neighbors: Neighbors,
    pub(crate) control: Control,
    pub(crate) counters: Counters,
    /// Sessions that may have something to send.
    pub(crate) ready: VecDeque<u32>,
    /// Events for the applications.
    pub(crate) pending_events: VecDeque<EventSource>,
    /// Sessions that were closed, to be removed from the table.
    pub(crate) newly_closed: Vec<u32>,
    /// Embryonic sessions that are established, to be put into their listener's accept queue.
    pub(crate) newly_established: Vec<u32>,
    /// Sessions whose writes found no memory, in the order of their attempts.
    pub(crate) starved: VecDeque<u32>,
    /// Sessions in TIME-WAIT, the oldest first: evicted first.
    pub(crate) time_wait: VecDeque<u32>,
    /// Budget of challenge acknowledgments: RFC 5961 section 7.
    pub(crate) challenges: Budget,
    /// Budget of ICMP errors: RFC 4443 section 2.4 (f).
    pub(crate) errors: Budget,
    /// Advances with each chosen port (RFC 6056).
    pub(crate) next_port: u32,
    /// The MTU of paths that are narrower than the link.
    pub(crate) paths: Paths,
    /// Sessions by peer prefix and local port.
    pub(crate) shares: Shares,
    /// Counters of packets in fragments: see [`Common::identify`].
    pub(crate) identifications: [u32; IDENTIFICATIONS],
    /// Buffer for a packet to be fragmented; unused between two packets.
    pub(crate) long: Vec<u8>,
}

impl Common {
    /// The state at the start, with buffers in memory from `source`.
    pub(crate) fn new(config: Config, nic: &Capabilities, source: Box<dyn MemorySource>) -> Self {
        let mut random = Random::new(config.seed);
        Self {
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
            interface: Interface::new(nic, &config),
            neighbors: Neighbors::with_fixed(&config.neighbors),
            control: Control::new(),
            counters: Counters::default(),
            ready: VecDeque::with_capacity(LIST),
            pending_events: VecDeque::with_capacity(LIST),
            newly_closed: Vec::with_capacity(LIST),
            newly_established: Vec::with_capacity(LIST),
            starved: VecDeque::new(),
            time_wait: VecDeque::with_capacity(LIST),
            challenges: Budget::NEW,
            errors: Budget::NEW,
            next_port: 0,
            paths: Paths::default(),
            shares: Shares::default(),
            identifications: [0; IDENTIFICATIONS],
            long: Vec::new(),
            config,
        }
    }

    /// Advances the clocks; they never go back.
    #[inline]
    pub(crate) fn set_now(&mut self, now_ns: u64) {
        if now_ns > self.now_ns {
            self.now_ns = now_ns;
            self.now_us = (now_ns / 1_000) as u32;
            self.now_ms = (now_ns / 1_000_000) as u32;
            self.tick = crate::timer::tick_at(now_ns);
        }
    }

    /// The tick in `us` microseconds, and never the current one.
    #[inline]
    pub(crate) fn tick_in_us(&self, us: u32) -> Tick {
        crate::timer::tick_after(self.now_ns + u64::from(us) * 1_000)
    }

    /// The tick in `ms` milliseconds, or the most distant one of the wheel: a session woken too
    /// early waits again.
    pub(crate) fn tick_in_ms(&self, ms: u32) -> Tick {
        let ms = u64::from(ms.min(WHEEL_MS_MAX));
        crate::timer::tick_after(self.now_ns + ms * 1_000_000)
    }

    /// Takes one challenge ACK from this second's budget.
    pub(crate) fn may_challenge(&mut self) -> bool {
        self.challenges.take_one(self.now_ns, &mut self.random)
    }

    /// Takes one ICMP error from this second's budget, unless the queue is nearly full.
    pub(crate) fn may_report(&mut self) -> bool {
        self.control.room() >= ROOM_FOR_ERRORS
            && self.errors.take_one(self.now_ns, &mut self.random)
    }
}

/// Replies that may be sent in one second. The number is random: a fixed one can be counted from
/// outside and was a side channel, for challenges (CVE-2016-5696) and for ICMP errors
/// (CVE-2020-25705).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Budget {
    left: u32,
    second: u64,
}

impl Budget {
    /// Before the first second.
    pub(crate) const NEW: Self = Self {
        left: 0,
        second: u64::MAX,
    };

    fn take_one(&mut self, now_ns: u64, random: &mut Random) -> bool {
        let second = now_ns / 1_000_000_000;
        if second != self.second {
            self.second = second;
            self.left = BUDGET_MIN + random.below(u64::from(BUDGET_MIN)) as u32;
        }
        let may = self.left > 0;
        self.left -= u32::from(may);
        may
    }
}

/// Replies per second, at least; at most twice as many.
const BUDGET_MIN: u32 = 500;

/// Scoreboards allocated at the start.
const BOARDS_FIRST: usize = 256;
/// Initial capacity of lists that grow with the events of one round.
const LIST: usize = 4096;

/// Two days: the wheel's ticks wrap after 6.5.
const WHEEL_MS_MAX: u32 = 2 * 24 * 3600 * 1000;

/// Counters of identifications: RFC 7739 section 5.3.
pub(crate) const IDENTIFICATIONS: usize = 256;
/// Errors are sent only while this many frames have room in the queue: RFC 1812 section 4.3.2.8,
/// RFC 4443 section 2.4 (f).
const ROOM_FOR_ERRORS: usize = 512;
