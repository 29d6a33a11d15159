//! The request packet of an engine's thread: one word, written by the claimer of the engine.
//!
//! Why here: an engine has at most one command at a time (its idle bit is its lock), so one word is
//! enough, aligned to 128 bytes as the papers' request packets are. The thread spins on the count
//! of commands next to it for the grace period and then sleeps ([`MessageCount`]).
//! Must stay true: only the claimer of an idle engine sends; only its thread takes.

use crate::job::JobTicket;
use crate::packet::{Packet, Payload, REPLY_WORDS, REQUEST_WORDS};
use crate::stalls::Stalls;
use crate::sync::{AtomicU64, Ordering};
use crate::task::WaitPoint;
use crate::tracks;
use crossbeam_utils::CachePadded;
use sidecore_sync::MessageCount;
use sidecore_trace::{self as trace, Lane};
use std::time::{Duration, Instant};

/// Order to an engine's thread.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Command {
    /// Help with a loop job.
    Help(JobTicket),
    /// Run this packet and reply.
    Run(Packet),
    /// Run background work until its queue is empty.
    Drain,
    /// End the thread.
    Exit,
}

const KIND_HELP: u64 = 0;
const KIND_DRAIN: u64 = 1 << 62;
const KIND_EXIT: u64 = 2 << 62;
const KIND_RUN: u64 = 3 << 62;

/// Polls of the spinning thread for each reading of the clock.
const SPINS_PER_CLOCK_READ: u32 = 32;

/// One engine thread's commands and packets.
#[derive(Debug)]
#[repr(C, align(128))]
pub(crate) struct CommandSlot {
    /// Commands that were sent.
    commands: MessageCount,
    /// The last command.
    word: AtomicU64,
    /// Payload of a packet.
    request: Payload<REQUEST_WORDS>,
    /// The way back, on a line of its own.
    reply: CachePadded<Reply>,
    /// The engine's track.
    lane: Lane,
}

#[derive(Debug)]
#[repr(C)]
struct Reply {
    /// Packets that the engine's thread has run.
    count: AtomicU64,
    counted: WaitPoint,
    payload: Payload<REPLY_WORDS>,
}

impl CommandSlot {
    pub(crate) fn new(lane: Lane) -> Self {
        Self {
            lane,
            commands: MessageCount::new(),
            word: AtomicU64::new(0),
            request: Payload::new(),
            reply: CachePadded::new(Reply {
                count: AtomicU64::new(0),
                counted: WaitPoint::new(),
                payload: Payload::new(),
            }),
        }
    }

    /// Payload of a packet to the engine.
    pub(crate) fn request(&self) -> &Payload<REQUEST_WORDS> {
        &self.request
    }

    /// Payload of the engine's reply.
    pub(crate) fn reply_payload(&self) -> &Payload<REPLY_WORDS> {
        &self.reply.payload
    }

    /// Packets that the engine's thread has run.
    pub(crate) fn replies(&self) -> u64 {
        // Acquire: partner of the Release in `reply`; the results of the packet's work are visible.
        self.reply.count.load(Ordering::Acquire)
    }

    /// Wait point for a change of [`Self::replies`].
    pub(crate) fn replied(&self) -> &WaitPoint {
        &self.reply.counted
    }

    /// Announces that a packet was run. Only the engine's thread.
    pub(crate) fn reply(&self) {
        let count = self.reply.count.load(Ordering::Relaxed);
        // Release: partner of the Acquire in `replies`.
        self.reply.count.store(count + 1, Ordering::Release);
        self.reply.counted.notify();
    }

    /// The engine's track.
    pub(crate) fn lane(&self) -> Lane {
        self.lane
    }

    /// Gives the engine a command; wakes its thread if it sleeps. The caller owns the engine's
    /// claim and passes it on.
    pub(crate) fn send(&self, command: Command) {
        let word = match command {
            Command::Help(ticket) => KIND_HELP | ticket.to_bits(),
            Command::Run(packet) => KIND_RUN | packet.to_bits(),
            Command::Drain => KIND_DRAIN,
            Command::Exit => KIND_EXIT,
        };
        // Relaxed: published by the Release in `post`. Only the claim's holder posts, and the claim
        // orders its holders.
        self.word.store(word, Ordering::Relaxed);
        if trace::is_on() {
            trace::flow_from(&tracks::ASKS, self.lane.flow(self.commands.next()));
        }
        self.commands.post();
    }

    /// Waits for the next command after those that `seen` counts, which begins at 0: spins for
    /// `grace`, then sleeps. Only the engine's thread. While it is awake it only reads, so that the
    /// line comes to it once for each command.
    pub(crate) fn take(&self, grace: Duration, seen: &mut u32, stalls: &mut Stalls) -> Command {
        let _poll = trace::span(&tracks::POLL, 0, 0);
        let mut spins = 0_u32;
        let mut start = None;
        while !self.commands.poll(seen) {
            spins = spins.wrapping_add(1);
            if !grace.is_zero() {
                std::hint::spin_loop();
                if !spins.is_multiple_of(SPINS_PER_CLOCK_READ)
                    || start.get_or_insert_with(Instant::now).elapsed() < grace
                {
                    continue;
                }
            }
            let _sleep = trace::span(&tracks::SLEEP, 0, 0);
            // Woken for whatever reason: the count says whether there is a command.
            stalls.sleeping(|| self.commands.sleep(*seen));
        }
        // Relaxed: `poll` has acquired it.
        let word = self.word.load(Ordering::Relaxed);
        match word & (3 << 62) {
            KIND_HELP => Command::Help(JobTicket::from_bits(word)),
            KIND_DRAIN => Command::Drain,
            KIND_RUN => Command::Run(Packet::from_bits(word & !KIND_RUN)),
            _ => Command::Exit,
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    /// An engine's thread that sleeps at once misses no command, nor takes one twice.
    #[test]
    fn every_send_is_one_command() {
        loom::model(|| {
            let slot = Arc::new(CommandSlot::new(Lane::default()));
            let engine = {
                let slot = Arc::clone(&slot);
                loom::thread::spawn(move || {
                    let (mut seen, mut stalls) = (0, Stalls::new());
                    let first = slot.take(Duration::ZERO, &mut seen, &mut stalls);
                    assert!(matches!(first, Command::Drain));
                    slot.reply();
                    let second = slot.take(Duration::ZERO, &mut seen, &mut stalls);
                    assert!(matches!(second, Command::Exit));
                })
            };
            slot.send(Command::Drain);
            // The claim comes back with the reply.
            crate::task::on_model_host(1, || {
                let is_answered = || (slot.replies() == 1).then_some(());
                slot.replied()
                    .wait(sidecore_sync::WaitOptions::BLOCK, is_answered);
            });
            slot.send(Command::Exit);
            assert!(engine.join().is_ok());
        });
    }
}
