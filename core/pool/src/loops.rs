//! One loop across several engines.
//!
//! Why here: the workers of a loop depend on its caller's place. On equal cores the caller's own
//! engine is the first one; with dedicated engines the caller only waits. A core outside the
//! engines does all of the loop in two cases: the policy leaves it to the host, or the caller is
//! itself inside an engine and no other is idle.
//!
//! Must stay true: the job is closed, with every helper out, before the items' borrow ends; an
//! engine without units left is given back before any wait for the others.

use crate::claims::Preferred;
use crate::command::Command;
use crate::error::{OffloadError, guarded};
use crate::job::JobTicket;
use crate::packet::Driver;
use crate::partition::{LoopPartition, Worker};
use crate::shared::{Claim, Shared, add};
use crate::task::WaitPoint;
use crate::tracks;
use parking_lot::Mutex;
use sidecore_bare::width::ToU64;
use sidecore_engine::Core;
use sidecore_sched::ClassId;
use sidecore_sched::split::SplitRun;
use sidecore_sync::WaitOptions;
use sidecore_sys::clock;
use sidecore_trace as trace;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A loop under way.
pub(crate) struct Loop<'a, T, F> {
    shared: &'a Shared,
    class: ClassId,
    partition: LoopPartition<'a, T>,
    kernel: &'a F,
    units: u32,
    /// Least number of items of a chunk.
    least: u32,
    /// Largest number of engines that take part.
    width: u32,
    /// Cycles that its engines have worked.
    work_cycles: AtomicU64,
    failed: Mutex<Option<OffloadError>>,
}

impl<'a, T: Send, F: Fn(&mut Core, usize, &mut [T]) + Sync> Loop<'a, T, F> {
    /// A loop on up to `width` engines, in chunks of `least` items or more; at most 2^32 - 1 items.
    /// `kernel` gets the place of a chunk's first item, and the chunk.
    pub(crate) fn new(
        shared: &'a Shared,
        class: ClassId,
        items: &'a mut [T],
        kernel: &'a F,
        least: u32,
        width: u32,
    ) -> Self {
        let split = match width {
            1 => Default::default(),
            _ => shared.splits.lock()[class.index()],
        };
        Self {
            shared,
            class,
            units: items.len() as u32,
            partition: LoopPartition::new(items, width, &split),
            kernel,
            least,
            width,
            work_cycles: AtomicU64::new(0),
            failed: Mutex::new(None),
        }
    }

    /// Cycles that its engines have worked in all.
    pub(crate) fn work_cycles(&self) -> u64 {
        // Relaxed: the job's gate orders it.
        self.work_cycles.load(Ordering::Relaxed)
    }

    /// Result of the loop, after all engines have left.
    pub(crate) fn result(self) -> Result<(), OffloadError> {
        self.failed.into_inner().map_or(Ok(()), Err)
    }

    /// Runs the loop on up to its width of engines, the first of which is the caller's. Returns the
    /// number of engines that took part or were asked to.
    pub(crate) fn run_here(&mut self, own: Claim<'_>) -> u32 {
        add(&own.slot().counters.called, 1);
        let (this, mut taken) = (&*self, 1);
        let mut own = Some(own);
        if this.width > 1 {
            let begun = clock::cycles();
            let mut first_ended = begun;
            let body = |driver: &mut Driver| this.do_all(driver);
            this.shared.jobs.with_open(&body, |ticket| {
                // The first to join has the first share.
                let mut worker = this.partition.join(this.least);
                let Some(own) = own.take() else { return };
                // Engines that are not idle yet join as they become so.
                this.ask(ticket, own.engine, &mut taken);
                own.drive(|driver| {
                    this.work(driver, &mut worker, || {
                        this.ask(ticket, own.engine, &mut taken);
                    });
                });
                first_ended = clock::cycles();
                // The engine is dropped here: others may have it while this waits for helpers.
            });
            if taken > 1 {
                this.learn(taken, begun, first_ended);
            }
        }
        if let Some(own) = own {
            // One engine was wanted, or no slot is free.
            own.drive(|driver| this.do_all(driver));
        }
        taken
    }

    /// Runs the loop on the caller's own core, with no engine.
    pub(crate) fn run_on_host(&self) -> Result<u32, OffloadError> {
        self.shared.on_host(|driver| self.do_all(driver))?;
        Ok(1)
    }

    /// Runs the loop on up to its width of engines, none of which is the caller's; it waits.
    pub(crate) fn run_there(&self) -> Result<u32, OffloadError> {
        let Some(first) = self.shared.acquire_or_host(true)? else {
            return self.run_on_host();
        };
        if self.width == 1 {
            first.send(|driver| self.do_all(driver))?;
            return Ok(1);
        }
        let mut taken = 1;
        let dealt = WaitPoint::new();
        let body = |driver: &mut Driver| {
            self.do_all(driver);
            // This engine is still inside the job, so its opener, whose stack this is on, waits.
            dealt.notify();
        };
        let mut first = Some(first);
        self.shared.jobs.with_open(&body, |ticket| {
            let Some(first) = first.take() else { return };
            let engine = first.engine;
            first.send_command(Command::Help(ticket));
            dealt.wait(LOOP_WAIT, || {
                self.ask(ticket, engine, &mut taken);
                (!self.partition.has_more()).then_some(())
            });
        });
        if let Some(first) = first {
            // No slot is free: one engine does it alone.
            first.send(|driver| self.do_all(driver))?;
        }
        Ok(taken)
    }

    fn do_all(&self, driver: &mut Driver) {
        let mut worker = self.partition.join(self.least);
        self.work(driver, &mut worker, || ());
    }

    /// Does chunks until none is left; `between` is called after each.
    fn work(&self, driver: &mut Driver, worker: &mut Worker, mut between: impl FnMut()) {
        // The clock is read once a chunk; the time between two chunks is negligible.
        let begun = clock::cycles();
        let mut before = begun;
        while let Some((first, items)) = self.partition.next(worker) {
            let count = items.len();
            driver.units += count.to_u64();
            let chunk = trace::begin();
            if let Err(error) = guarded(|| (self.kernel)(&mut driver.core, first, items)) {
                self.partition.stop();
                *self.failed.lock() = Some(error);
            }
            trace::span_since(chunk, &tracks::CHUNK, count.to_u64());
            let after = clock::cycles();
            worker.learn(count, after.wrapping_sub(before));
            before = after;
            between();
        }
        let cycles = before.wrapping_sub(begun);
        // Relaxed: read after the job's gate was shut.
        self.work_cycles.fetch_add(cycles, Ordering::Relaxed);
    }

    /// Asks idle engines to help until as many take part as may; those after `first` before others.
    fn ask(&self, ticket: JobTicket, first: usize, taken: &mut u32) {
        let after = Preferred::After(first);
        while *taken < self.width
            && self.partition.has_more()
            && !self.shared.has_urgent_waiters()
            && let Some(engine) = self.shared.claims.claim(after)
        {
            let claim = Claim {
                shared: self.shared,
                engine,
            };
            claim.send_command(Command::Help(ticket));
            *taken += 1;
        }
    }

    /// Tunes the split of this class: an engine that waited at the end, or took over items of
    /// others, had too small a share.
    fn learn(&self, taken: u32, begun: u64, first_ended: u64) {
        let ended = clock::cycles();
        // Only ratios of these times matter.
        let elapsed = ended.wrapping_sub(begun) as f64;
        let unit = elapsed * f64::from(taken) / f64::from(self.units.max(1));
        let (first, others) = self.partition.taken_over();
        self.shared.splits.lock()[self.class.index()].learn(&SplitRun {
            units: self.units,
            width: taken,
            elapsed_ns: elapsed,
            first_idle_ns: ended.wrapping_sub(first_ended) as f64 + f64::from(first) * unit,
            others_idle_ns: f64::from(others) * unit / f64::from(taken - 1),
        });
    }
}

/// Policy of a plain thread's wait for a loop that runs elsewhere.
const LOOP_WAIT: WaitOptions = WaitOptions {
    spins: 1_000,
    grace: Duration::ZERO,
};
