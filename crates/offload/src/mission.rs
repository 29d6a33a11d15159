//! The request packet of an engine's thread: one word, written by whoever claimed the engine.
//!
//! Why here: an engine is given at most one mission at a time (its idle bit is its lock), so one
//! word does, 128-byte aligned as the papers' request packets are. The thread spins on it for the
//! grace period and then blocks in a futex.
//! Must stay true: only the claimer of an idle engine sends; only its thread takes.

use crate::job::JobTicket;
use crate::packet::PacketAddress;
use crate::stalls::Stalls;
use crate::task::WaitPoint;
use crossbeam_utils::CachePadded;
use sidecore_sys::futex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What an engine's thread is told to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mission {
    /// Help with a loop job.
    Help(JobTicket),
    /// Run this packet and reply.
    Run(PacketAddress),
    /// Work off the background queue.
    Drain,
    /// End the thread.
    Exit,
}

const EMPTY: u32 = 0;
const FULL: u32 = 1;
const ASLEEP: u32 = 2;

const KIND_HELP: u64 = 0;
const KIND_DRAIN: u64 = 1 << 62;
const KIND_EXIT: u64 = 2 << 62;
const KIND_RUN: u64 = 3 << 62;

/// How often the spinning thread looks at the clock.
const SPINS_PER_CLOCK_READ: u32 = 32;

/// One engine thread's doorbell and packet.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Doorbell {
    state: AtomicU32,
    packet: AtomicU64,
    /// The way back, on a line of its own.
    reply: CachePadded<Reply>,
}

#[derive(Debug)]
struct Reply {
    /// Packets that the engine's thread has run.
    count: AtomicU64,
    counted: WaitPoint,
}

impl Doorbell {
    pub(crate) fn new() -> Self {
        Self {
            state: AtomicU32::new(EMPTY),
            packet: AtomicU64::new(0),
            reply: CachePadded::new(Reply {
                count: AtomicU64::new(0),
                counted: WaitPoint::new(),
            }),
        }
    }

    /// Packets that the engine's thread has run.
    pub(crate) fn replies(&self) -> u64 {
        // Acquire: partner of the Release in `reply`; what the packet's work left is there.
        self.reply.count.load(Ordering::Acquire)
    }

    /// Where to wait for [`Self::replies`] to change.
    pub(crate) fn replied(&self) -> &WaitPoint {
        &self.reply.counted
    }

    /// A packet was run. Only the engine's thread.
    pub(crate) fn reply(&self) {
        let count = self.reply.count.load(Ordering::Relaxed);
        // Release: partner of the Acquire in `replies`.
        self.reply.count.store(count + 1, Ordering::Release);
        self.reply.counted.notify();
    }

    /// Gives the engine a mission; wakes its thread if it sleeps. The caller owns the engine's claim
    /// and passes it on.
    pub(crate) fn ring(&self, mission: Mission) {
        let word = match mission {
            Mission::Help(ticket) => KIND_HELP | ticket.to_bits(),
            Mission::Run(packet) => KIND_RUN | packet.to_bits(),
            Mission::Drain => KIND_DRAIN,
            Mission::Exit => KIND_EXIT,
        };
        self.packet.store(word, Ordering::Relaxed);
        // Release: partner of the Acquire in `take`, publishes the packet.
        if self.state.swap(FULL, Ordering::AcqRel) == ASLEEP {
            futex::wake(&self.state, 1);
        }
    }

    /// Waits for the next mission: spins for `grace`, then sleeps.
    pub(crate) fn take(&self, grace: Duration, stalls: &mut Stalls) -> Mission {
        let mut spins = 0_u32;
        let mut start = None;
        loop {
            if self.state.load(Ordering::Acquire) == FULL {
                break;
            }
            spins = spins.wrapping_add(1);
            if !grace.is_zero() {
                std::hint::spin_loop();
                if !spins.is_multiple_of(SPINS_PER_CLOCK_READ)
                    || start.get_or_insert_with(Instant::now).elapsed() < grace
                {
                    continue;
                }
            }
            match self
                .state
                .compare_exchange(EMPTY, ASLEEP, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) | Err(ASLEEP) => {
                    // Woken for whatever reason: the state says whether there is a mission.
                    stalls.sleeping(|| futex::wait(&self.state, ASLEEP, None));
                }
                Err(_) => {}
            }
        }
        let word = self.packet.load(Ordering::Relaxed);
        self.state.store(EMPTY, Ordering::Release);
        match word & (3 << 62) {
            KIND_HELP => Mission::Help(JobTicket::from_bits(word)),
            KIND_DRAIN => Mission::Drain,
            KIND_RUN => Mission::Run(PacketAddress::from_bits(word & !KIND_RUN)),
            _ => Mission::Exit,
        }
    }
}
