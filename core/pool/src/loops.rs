//! One loop across several engines.
//!
//! Why here: the workers of a loop depend on its caller's place. On equal cores the caller's own
//! engine is the first one; with dedicated engines the caller only waits. A core outside the
//! engines does all of the loop in two cases: the policy leaves it to the host, or the caller is
//! itself inside an engine and no other is idle.
//!
//! Helpers are asked as a tree: each engine that takes part asks [`FAN_OUT`] idle ones and begins
//! to work, and these ask others in turn. So a loop of `n` engines is at full width after about
//! `log n` wake-ups, not `n`. Engines near the one that asks go first ([`Shared::claim_helper`]).
//! Each asks again after a chunk where the loop is still narrower than it may be: engines below one
//! that gets no core are asked by others, and so are engines that became idle meanwhile.
//!
//! Must stay true: the job is closed, with every helper out, before the items' borrow ends; an
//! engine without units left is given back before any wait for the others. A helper asks others
//! while it is counted inside the job, so its opener, which owns this, waits for it.

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
use sidecore_sched::split::SplitRun;
use sidecore_sched::{ClassId, Decision};
use sidecore_sync::WaitOptions;
use sidecore_sys::{clock, cpu};
use sidecore_trace as trace;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
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
    /// Place of the caller's part of the policy.
    part: usize,
    /// Engines that take part or were asked to.
    taken: AtomicU32,
    /// Ticket of the open job; [`NOT_OPEN`] while no engine is to be asked.
    ticket: AtomicU64,
    /// The job's first engine, where it is open.
    first: AtomicUsize,
    /// Cycles that its engines have worked.
    work_cycles: AtomicU64,
    failed: Mutex<Option<OffloadError>>,
}

impl<'a, T: Send, F: Fn(&mut Core, usize, &mut [T]) + Sync> Loop<'a, T, F> {
    /// A loop on up to `width` engines, in chunks of `least` items or more; at most 2^32 - 1 items.
    /// `kernel` gets the place of a chunk's first item, and the chunk. `part` is where the policy
    /// was asked.
    pub(crate) fn new(
        shared: &'a Shared,
        class: ClassId,
        items: &'a mut [T],
        kernel: &'a F,
        least: u32,
        (width, part): (u32, usize),
    ) -> Self {
        let split = match width {
            1 => Default::default(),
            _ => shared.split(part, class),
        };
        Self {
            shared,
            class,
            units: items.len() as u32,
            partition: LoopPartition::new(items, width, &split),
            kernel,
            least,
            width,
            part,
            taken: AtomicU32::new(1),
            ticket: AtomicU64::new(NOT_OPEN),
            first: AtomicUsize::new(0),
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

    /// Runs the loop as the policy decided; `own` is the caller's engine, if it has one. Returns
    /// the number of engines that took part or were asked to; an error where it did not begin.
    pub(crate) fn run(
        &mut self,
        decision: Decision,
        own: Option<Claim<'_>>,
    ) -> Result<u32, OffloadError> {
        match (decision, own) {
            (_, Some(own)) => Ok(self.run_here(own)),
            (Decision::Engines(_), None) if self.shared.dedicated => self.run_there(),
            (_, None) => self.run_on_host(),
        }
    }

    /// Runs the loop on up to its width of engines, the first of which is the caller's. Returns the
    /// number of engines that took part or were asked to.
    fn run_here(&mut self, own: Claim<'_>) -> u32 {
        add(&own.slot().counters.called, 1);
        let this = &*self;
        let mut own = Some(own);
        if this.width > 1 {
            let begun = clock::cycles();
            let mut first_ended = begun;
            let body = |driver: &mut Driver| this.do_all(driver);
            this.shared.jobs.with_open(&body, |ticket| {
                // The first to join has the first share.
                let mut worker = this.partition.join(this.least);
                let Some(own) = own.take() else { return };
                let cpu = own.slot().cpu;
                this.open(ticket, own.engine);
                this.ask(cpu);
                own.drive(|driver| {
                    // Engines that are not idle yet join as they become so.
                    this.work(driver, &mut worker, || this.ask(cpu));
                });
                first_ended = clock::cycles();
                // The engine is dropped here: others may have it while this waits for helpers.
            });
            let taken = this.taken();
            if taken > 1 {
                this.learn(taken, begun, first_ended);
            }
        }
        if let Some(own) = own {
            // One engine was wanted, or no slot is free.
            own.drive(|driver| this.do_all(driver));
        }
        this.taken()
    }

    /// Runs the loop on the caller's own core, with no engine.
    fn run_on_host(&self) -> Result<u32, OffloadError> {
        self.shared.on_host(|driver| self.do_all(driver))?;
        Ok(1)
    }

    /// Runs the loop on up to its width of engines, none of which is the caller's; it waits.
    fn run_there(&self) -> Result<u32, OffloadError> {
        let Some(first) = self.shared.acquire_or_host(true)? else {
            return self.run_on_host();
        };
        if self.width == 1 {
            first.send(|driver| self.do_all(driver))?;
            return Ok(1);
        }
        let dealt = WaitPoint::new();
        let body = |driver: &mut Driver| {
            self.do_all(driver);
            // This engine is still inside the job, so its opener, whose stack this is on, waits.
            dealt.notify();
        };
        let mut first = Some(first);
        self.shared.jobs.with_open(&body, |ticket| {
            let Some(first) = first.take() else { return };
            let cpu = first.slot().cpu;
            self.open(ticket, first.engine);
            first.send_command(Command::Help(ticket));
            dealt.wait(LOOP_WAIT, || {
                self.ask(cpu);
                (!self.partition.has_more()).then_some(())
            });
        });
        if let Some(first) = first {
            // No slot is free: one engine does it alone.
            first.send(|driver| self.do_all(driver))?;
        }
        Ok(self.taken())
    }

    /// Engines that took part or were asked to.
    fn taken(&self) -> u32 {
        // Relaxed: a count; the job's gate orders it.
        self.taken.load(Ordering::Relaxed)
    }

    /// Lets engines be asked, for a job whose first engine this is.
    fn open(&self, ticket: JobTicket, first: usize) {
        self.first.store(first, Ordering::Relaxed);
        // Release: partner of the Acquire in `ask`.
        self.ticket.store(ticket.to_bits(), Ordering::Release);
    }

    fn do_all(&self, driver: &mut Driver) {
        let ask = || {
            if self.taken() < self.width {
                self.ask(cpu::current());
            }
        };
        // Before its own work, so that others wake up meanwhile.
        ask();
        let mut worker = self.partition.join(self.least);
        self.work(driver, &mut worker, ask);
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

    /// Asks idle engines to help, [`FAN_OUT`] at most, until as many take part as may: those near
    /// this core first, and of these those after the loop's first engine.
    fn ask(&self, cpu: usize) {
        for _ in 0..FAN_OUT {
            let taken = self.taken();
            if taken >= self.width || !self.partition.has_more() || self.shared.has_urgent_waiters()
            {
                return;
            }
            // Acquire: partner of the Release in `open`.
            let ticket = self.ticket.load(Ordering::Acquire);
            if ticket == NOT_OPEN {
                return;
            }
            let first = self.first.load(Ordering::Relaxed);
            let Some(engine) = self.shared.claim_helper(cpu, first) else {
                return;
            };
            let claim = Claim {
                shared: self.shared,
                engine,
            };
            if !self.count(taken) {
                // The engine goes back.
                return;
            }
            claim.send_command(Command::Help(JobTicket::from_bits(ticket)));
        }
    }

    /// Counts an engine that is to be asked, where `taken` were counted a moment ago. False if as
    /// many as may take part are counted already.
    fn count(&self, taken: u32) -> bool {
        if taken == 1 && !self.shared.dedicated {
            // The caller is the only engine of the loop, so no other thread asks.
            self.taken.store(2, Ordering::Relaxed);
            return true;
        }
        // Several ask at once: the count never passes the width. Relaxed, as in `taken`.
        let more = |taken| (taken < self.width).then_some(taken + 1);
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
    }

    /// Tunes the split of this class: an engine that waited at the end, or took over items of
    /// others, had too small a share.
    fn learn(&self, taken: u32, begun: u64, first_ended: u64) {
        let ended = clock::cycles();
        // Only ratios of these times matter.
        let elapsed = ended.wrapping_sub(begun) as f64;
        let unit = elapsed * f64::from(taken) / f64::from(self.units.max(1));
        let (first, others) = self.partition.taken_over();
        let run = SplitRun {
            units: self.units,
            width: taken,
            elapsed_ns: elapsed,
            first_idle_ns: ended.wrapping_sub(first_ended) as f64 + f64::from(first) * unit,
            others_idle_ns: f64::from(others) * unit / f64::from(taken - 1),
        };
        self.shared.learn_split(self.part, self.class, &run);
    }
}

/// Not the bits of a ticket, which has fewer.
const NOT_OPEN: u64 = u64::MAX;

/// Engines that each one that takes part asks at a time.
const FAN_OUT: usize = 2;

/// Policy of a plain thread's wait for a loop that runs elsewhere.
const LOOP_WAIT: WaitOptions = WaitOptions {
    spins: 1_000,
    grace: Duration::ZERO,
};
