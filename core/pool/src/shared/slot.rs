//! One engine of a pool: its core, its counters, and its thread.
//!
//! Why here: the holder of an engine's claim drives it, be it its own thread or a caller on its
//! core, and both do the accounts alike. Must stay true: counters are written only by the holder of
//! the claim; work that panics ends neither the engine nor its accounts.

use super::Shared;
use crate::command::{Command, CommandSlot};
use crate::error::guarded;
use crate::packet::Driver;
use crate::stalls::Stalls;
use crate::task;
use crate::tracks;
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use sidecore_sys::{clock, cpu};
use sidecore_trace::{self as trace, Name};
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of one engine, written by its driver.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) called: AtomicU64,
    pub(crate) commands: AtomicU64,
    pub(crate) background: AtomicU64,
    pub(crate) panics: AtomicU64,
    pub(crate) units: AtomicU64,
    pub(crate) busy_cycles: AtomicU64,
    pub(crate) stalls: AtomicU64,
    pub(crate) stalled_ns: AtomicU64,
}

/// An engine of the pool.
pub(crate) struct EngineSlot {
    pub(super) driver: CachePadded<Mutex<Driver>>,
    pub(crate) commands: CommandSlot,
    pub(crate) cpu: usize,
    pub(crate) counters: CachePadded<Counters>,
}

impl EngineSlot {
    /// Runs `work` on this engine; the caller has its claim.
    pub(super) fn drive<R>(
        &self,
        name: &'static Name,
        detail: u64,
        work: impl FnOnce(&mut Driver) -> R,
    ) -> R {
        struct Count<'a> {
            counters: &'a Counters,
            begun: u64,
            driver: parking_lot::MutexGuard<'a, Driver>,
        }
        impl Drop for Count<'_> {
            fn drop(&mut self) {
                task::count_drives(-1);
                let busy = clock::cycles().wrapping_sub(self.begun);
                add(&self.counters.busy_cycles, busy);
                let units = std::mem::take(&mut self.driver.units);
                if units > 0 {
                    add(&self.counters.units, units);
                }
            }
        }
        let _driven = self.commands.lane().enter(name, detail);
        let mut count = Count {
            counters: &self.counters,
            driver: self.driver.lock(),
            begun: clock::cycles(),
        };
        task::count_drives(1);
        work(&mut count.driver)
    }
}

impl Shared {
    /// Has as many engines rest as the process may have cores less than at its start.
    pub(crate) fn rest(&self, affordable: usize) {
        let engines = self.engines.len();
        for engine in self.resting.follow(&self.claims, engines, affordable) {
            self.give_back(engine);
        }
    }
}

/// The body of an engine's thread.
pub(crate) fn engine_thread(shared: &Shared, engine: usize, pin: bool) {
    let slot = &shared.engines[engine];
    if pin {
        // A refusal is not fatal: an engine that wanders is slower, not wrong.
        let _ = cpu::pin(slot.cpu);
    }
    let (grace, mut seen, mut stalls) = (shared.grace, 0, Stalls::new());
    loop {
        let command = slot.commands.take(grace, &mut seen, &mut stalls);
        match command {
            Command::Exit => return,
            Command::Help(ticket) => {
                slot.drive(&tracks::HELP, 0, |driver| {
                    trace::flow_to(&tracks::ASKS, slot.commands.lane().flow(seen));
                    shared.jobs.help(ticket, driver);
                });
                add(&slot.counters.commands, 1);
            }
            Command::Run(packet) => {
                add(&slot.counters.commands, 1);
                slot.drive(&tracks::PACKET, 0, |driver| {
                    trace::flow_to(&tracks::ASKS, slot.commands.lane().flow(seen));
                    let (request, reply) = (slot.commands.request(), slot.commands.reply_payload());
                    packet.run(request, reply, driver);
                    // Before the accounts are done: the sender waits for it.
                    slot.commands.reply();
                });
                count_stall(slot, &mut stalls);
                if packet.keeps_claim {
                    // The engine is the sender's, and the sender releases it; nothing here is ours
                    // to look at.
                    continue;
                }
            }
            Command::Drain => add(&slot.counters.commands, 1),
        }
        while !shared.has_waiters()
            && let Some(posted) = shared.backlog.pop()
        {
            add(&slot.counters.background, 1);
            let run = |driver: &mut Driver| posted.job.run(&mut driver.core, posted.token);
            if guarded(|| slot.drive(&tracks::BACKGROUND, posted.token, run)).is_err() {
                add(&slot.counters.panics, 1);
            }
        }
        count_stall(slot, &mut stalls);
        shared.give_back(engine);
    }
}

fn count_stall(slot: &EngineSlot, stalls: &mut Stalls) {
    if let Some(lost_ns) = stalls.look() {
        add(&slot.counters.stalls, 1);
        add(&slot.counters.stalled_ns, lost_ns);
    }
}

/// Adds to a counter that only the holder of the claim writes: no locked instruction needed.
pub(crate) fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}
