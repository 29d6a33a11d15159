//! The request packet of an engine's thread: one word, written by whoever claimed the engine.
//!
//! Why here: an engine is given at most one mission at a time (its idle bit is its lock), so one
//! word does, 128-byte aligned as the papers' request packets are. The thread spins on it for the
//! grace period and then blocks in a futex.
//! Must stay true: only the claimer of an idle engine sends; only its thread takes.

use crate::job::JobTicket;
use crate::packet::{Packet, Payload, REPLY_WORDS, REQUEST_WORDS};
use crate::stalls::Stalls;
use crate::sync::{AtomicU64, Ordering, Word};
use crate::task::WaitPoint;
use crossbeam_utils::CachePadded;
use std::time::{Duration, Instant};

/// What an engine's thread is told to do.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Mission {
    /// Help with a loop job.
    Help(JobTicket),
    /// Run this packet and reply.
    Run(Packet),
    /// Work off the background queue.
    Drain,
    /// End the thread.
    Exit,
}

/// The doorbell's lowest bit: its thread sleeps or is about to. The others count missions.
const ASLEEP: u32 = 1;
const ONE_MISSION: u32 = 2;

const KIND_HELP: u64 = 0;
const KIND_DRAIN: u64 = 1 << 62;
const KIND_EXIT: u64 = 2 << 62;
const KIND_RUN: u64 = 3 << 62;

/// How often the spinning thread looks at the clock.
const SPINS_PER_CLOCK_READ: u32 = 32;

/// One engine thread's doorbell and packet.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct Doorbell {
    state: Word,
    packet: AtomicU64,
    /// What a packet carries.
    request: Payload<REQUEST_WORDS>,
    /// The way back, on a line of its own.
    reply: CachePadded<Reply>,
}

#[derive(Debug)]
#[repr(C)]
struct Reply {
    /// Packets that the engine's thread has run.
    count: AtomicU64,
    counted: WaitPoint,
    payload: Payload<REPLY_WORDS>,
}

impl Doorbell {
    pub(crate) fn new() -> Self {
        Self {
            state: Word::new(0),
            packet: AtomicU64::new(0),
            request: Payload::new(),
            reply: CachePadded::new(Reply {
                count: AtomicU64::new(0),
                counted: WaitPoint::new(),
                payload: Payload::new(),
            }),
        }
    }

    /// What a packet carries to the engine.
    pub(crate) fn request(&self) -> &Payload<REQUEST_WORDS> {
        &self.request
    }

    /// What the engine's reply carries.
    pub(crate) fn reply_payload(&self) -> &Payload<REPLY_WORDS> {
        &self.reply.payload
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
        // Relaxed: only the claim's holder counts up, and the claim orders its holders. The thread may
        // fall asleep meanwhile, which the swap then sees.
        let state = self.state.value.load(Ordering::Relaxed);
        let rung = (state & !ASLEEP).wrapping_add(ONE_MISSION);
        // Release: partner of the Acquire in `take`, publishes the packet. AcqRel with the exchange
        // there, so that one of the two sees the other.
        if self.state.value.swap(rung, Ordering::AcqRel) & ASLEEP != 0 {
            self.state.wake();
        }
    }

    /// Waits for the next mission after those that `seen` counts, which begins at 0: spins for
    /// `grace`, then sleeps. Only the engine's thread. While it is awake it only reads, so that the
    /// line comes to it once for each mission.
    pub(crate) fn take(&self, grace: Duration, seen: &mut u32, stalls: &mut Stalls) -> Mission {
        let mut spins = 0_u32;
        let mut start = None;
        loop {
            let state = self.state.value.load(Ordering::Acquire);
            if state & !ASLEEP != *seen {
                *seen = state & !ASLEEP;
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
            let asleep = *seen | ASLEEP;
            match self.state.value.compare_exchange(
                *seen,
                asleep,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                // Woken for whatever reason: the state says whether there is a mission.
                Ok(_) => {
                    stalls.sleeping(|| self.state.sleep(asleep, None));
                }
                Err(state) if state == asleep => {
                    stalls.sleeping(|| self.state.sleep(asleep, None));
                }
                Err(_) => {}
            }
        }
        let word = self.packet.load(Ordering::Relaxed);
        match word & (3 << 62) {
            KIND_HELP => Mission::Help(JobTicket::from_bits(word)),
            KIND_DRAIN => Mission::Drain,
            KIND_RUN => Mission::Run(Packet::from_bits(word & !KIND_RUN)),
            _ => Mission::Exit,
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    /// An engine's thread that sleeps at once misses no mission, nor takes one twice.
    #[test]
    fn every_ring_is_one_mission() {
        loom::model(|| {
            let bell = Arc::new(Doorbell::new());
            let engine = {
                let bell = Arc::clone(&bell);
                loom::thread::spawn(move || {
                    let (mut seen, mut stalls) = (0, Stalls::new());
                    let first = bell.take(Duration::ZERO, &mut seen, &mut stalls);
                    assert!(matches!(first, Mission::Drain));
                    bell.reply();
                    let second = bell.take(Duration::ZERO, &mut seen, &mut stalls);
                    assert!(matches!(second, Mission::Exit));
                })
            };
            bell.ring(Mission::Drain);
            // The claim comes back with the reply.
            crate::task::on_model_host(1, || {
                let is_answered = || (bell.replies() == 1).then_some(());
                bell.replied()
                    .wait(sidecore_engine::WaitOptions::BLOCK, is_answered);
            });
            bell.ring(Mission::Exit);
            assert!(engine.join().is_ok());
        });
    }
}
