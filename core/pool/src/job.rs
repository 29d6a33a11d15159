//! Loop jobs whose closure borrows the caller's stack.
//!
//! A fixed slab of slots. A caller *opens* a slot with a borrowed closure, hands tickets to idle
//! engines, and works on the loop itself. Then it *closes* the slot: that shuts the gate and waits
//! until every helper that got in has come out. A ticket that is used after the close, or after the
//! slot was reused, finds the gate shut. Nothing is allocated after start-up.
//!
//! Why `unsafe` is here: the closure's lifetime is erased while it lies in the slot (this is the
//! shared-memory ring of request packets that the design allows it in).
//! Must stay true: `body` is written only between taking a free slot and opening its gate, and read
//! only by a helper that is counted in the gate; `close` returns only when that count is zero.
#![allow(unsafe_code)]

use crate::sync::{AtomicU64, Ordering};
use crate::task::WaitPoint;
use crossbeam_queue::ArrayQueue;
use sidecore_bare::width::ToUsize;
use sidecore_sync::WaitOptions;
use std::cell::UnsafeCell;
use std::time::Duration;

/// Loop jobs that may be open at once; a caller that finds none free runs its loop alone.
pub(crate) const JOBS_MAX: usize = 256;

/// A helper's part of a job: runs until no unit is left.
pub(crate) type Body<'a, C> = dyn Fn(&mut C) + Sync + 'a;

const CLOSED: u64 = 1 << 31;
const ACTIVE_MASK: u64 = CLOSED - 1;
const GENERATION_SHIFT: u32 = 32;
/// Generations wrap at 22 bits, so that a ticket fits a command's 62 bits. A ticket lives for one
/// wake-up; it would have to be delayed for four million openings of its slot to be mistaken.
const GENERATION_MASK: u64 = (1 << 22) - 1;

/// Identifies one opening of one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct JobTicket {
    slot: u32,
    generation: u32,
}

impl JobTicket {
    /// Packs the ticket in the lower 62 bits.
    pub(crate) fn to_bits(self) -> u64 {
        u64::from(self.generation) << GENERATION_SHIFT | u64::from(self.slot)
    }

    /// The reverse of [`Self::to_bits`]; ignores the upper 2 bits.
    pub(crate) fn from_bits(bits: u64) -> Self {
        let generation = (bits >> GENERATION_SHIFT) & GENERATION_MASK;
        Self {
            slot: bits as u32,
            generation: generation as u32,
        }
    }
}

#[repr(align(128))]
struct Slot<C> {
    /// Generation (upper half), closed bit, helpers inside.
    gate: AtomicU64,
    body: UnsafeCell<Option<*const Body<'static, C>>>,
    /// Wait point of the slot's closer for helpers that are still inside.
    departed: WaitPoint,
}

// SAFETY: `body` is written by the one caller that took the slot from the free list, before it
// opens the gate (Release), and read by helpers after they passed the gate (Acquire). The pointee
// is `Sync`, and the gate keeps it alive (see the module's head).
unsafe impl<C> Sync for Slot<C> {}
// SAFETY: as for `Sync`; the raw pointer is never dereferenced but through the gate.
unsafe impl<C> Send for Slot<C> {}

/// The slab. `C` is the type that a helper works with: an engine's core.
pub(crate) struct Jobs<C> {
    slots: Box<[Slot<C>]>,
    free: ArrayQueue<u32>,
}

impl<C: 'static> Jobs<C> {
    pub(crate) fn new(count: usize) -> Self {
        let free = ArrayQueue::new(count);
        for slot in 0..count as u32 {
            let _ = free.push(slot);
        }
        let slots = (0..count)
            .map(|_| Slot {
                gate: AtomicU64::new(CLOSED),
                body: UnsafeCell::new(None),
                departed: WaitPoint::new(),
            })
            .collect();
        Self { slots, free }
    }

    /// Opens a slot on `body`, runs `work` with its ticket, closes it, and returns the result of
    /// `work`. `None` (and `work` not run) when no slot is free. Blocks until all helpers have
    /// left, also when `work` panics.
    pub(crate) fn with_open<R>(
        &self,
        body: &Body<'_, C>,
        work: impl FnOnce(JobTicket) -> R,
    ) -> Option<R> {
        let slot = self.free.pop()?;
        let place = &self.slots[slot.to_usize()];
        let generation = (place.gate.load(Ordering::Relaxed) >> GENERATION_SHIFT).wrapping_add(1)
            & GENERATION_MASK;
        let erased: *const Body<'_, C> = body;
        // SAFETY: only the lifetime changes. `Guard` below shuts the gate and waits for every
        // helper before this function returns or unwinds, so no thread uses the pointer after
        // `body`'s borrow.
        let erased: *const Body<'static, C> = unsafe { std::mem::transmute(erased) };
        // SAFETY: the slot came off the free list, so its gate is shut, no thread is inside, and no
        // other caller has it: this is the only access.
        unsafe { *place.body.get() = Some(erased) };
        // Release: partner of the Acquire in `help`, publishes the body.
        place
            .gate
            .store(generation << GENERATION_SHIFT, Ordering::Release);
        let _guard = Guard { jobs: self, slot };
        Some(work(JobTicket {
            slot,
            generation: generation as u32,
        }))
    }

    /// Helps with a job if it is still open. Called by engine threads.
    pub(crate) fn help(&self, ticket: JobTicket, core: &mut C) {
        self.enter(ticket, |body| body(core));
    }

    /// Passes the gate and runs `inside`, unless the job was closed.
    fn enter(&self, ticket: JobTicket, inside: impl FnOnce(&Body<'_, C>)) {
        let Some(place) = self.slots.get(ticket.slot.to_usize()) else {
            return;
        };
        let mut gate = place.gate.load(Ordering::Acquire);
        loop {
            if gate & CLOSED != 0 || gate >> GENERATION_SHIFT != u64::from(ticket.generation) {
                return;
            }
            match place.gate.compare_exchange_weak(
                gate,
                gate + 1,
                Ordering::Acquire,
                Ordering::Acquire,
            ) {
                Ok(_) => break,
                Err(now) => gate = now,
            }
        }
        let _leave = Leave { place };
        // SAFETY: we are counted in the gate, so the opener has not returned and the body is alive;
        // it was written before the gate opened (Acquire above).
        let body = unsafe { *place.body.get() };
        if let Some(body) = body {
            // SAFETY: as above; the pointer came from a reference.
            inside(unsafe { &*body });
        }
    }

    fn close(&self, slot: u32) {
        let place = &self.slots[slot.to_usize()];
        place.gate.fetch_or(CLOSED, Ordering::AcqRel);
        // A helper finishes its last unit: microseconds, unless its core was taken from it.
        // Acquire: partner of the Release in `Leave`; the helpers' writes are visible after this.
        let is_empty = || place.gate.load(Ordering::Acquire) & ACTIVE_MASK == 0;
        place.departed.wait(CLOSE_WAIT, || is_empty().then_some(()));
        let _ = self.free.push(slot);
    }
}

/// Policy of a thread's wait for helpers in `close`: about 40 us of looking, then asleep. A task is
/// parked.
const CLOSE_WAIT: WaitOptions = WaitOptions {
    // Loom tries all orders anyway.
    spins: if cfg!(loom) { 0 } else { 1_000 },
    grace: Duration::ZERO,
};

struct Guard<'a, C: 'static> {
    jobs: &'a Jobs<C>,
    slot: u32,
}

impl<C: 'static> Drop for Guard<'_, C> {
    fn drop(&mut self) {
        self.jobs.close(self.slot);
    }
}

struct Leave<'a, C> {
    place: &'a Slot<C>,
}

impl<C> Drop for Leave<'_, C> {
    fn drop(&mut self) {
        // Release: partner of the Acquire in `close`.
        let before = self.place.gate.fetch_sub(1, Ordering::AcqRel);
        if before & CLOSED != 0 {
            // The closer may already be gone and the slot reused: then this is a spurious wake-up.
            self.place.departed.notify();
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    /// A helper either gets in while the closure is alive, or finds the gate shut; the closer sees
    /// the helper's writes.
    #[test]
    fn a_helper_never_outlives_the_job() {
        loom::model(|| {
            let jobs = Arc::new(Jobs::<u32>::new(1));
            let ticket = Arc::new(AtomicU64::new(u64::MAX));
            let helper = {
                let (jobs, ticket) = (Arc::clone(&jobs), Arc::clone(&ticket));
                loom::thread::spawn(move || {
                    let bits = ticket.load(Ordering::Acquire);
                    if bits != u64::MAX {
                        jobs.help(JobTicket::from_bits(bits), &mut 7);
                    }
                })
            };
            let alive = loom::sync::atomic::AtomicBool::new(true);
            let sum = AtomicU64::new(0);
            let body = |core: &mut u32| {
                assert!(
                    alive.load(Ordering::Relaxed),
                    "a helper came in after the close"
                );
                sum.fetch_add(u64::from(*core), Ordering::Relaxed);
            };
            let inside = jobs.with_open(&body, |opened| {
                ticket.store(opened.to_bits(), Ordering::Release);
                loom::thread::yield_now();
            });
            assert!(inside.is_some());
            alive.store(false, Ordering::Relaxed);
            assert!(matches!(sum.load(Ordering::Relaxed), 0 | 7));
            // The slot is free again, and the old ticket is worth nothing.
            let stale = JobTicket::from_bits(ticket.load(Ordering::Acquire));
            let second = |_: &mut u32| panic!("a stale ticket got in");
            let _ = jobs.with_open(&second, |_| jobs.help(stale, &mut 1));
            assert!(helper.join().is_ok());
        });
    }

    /// A parked closer wakes when its last helper has left, however its host and the helpers meet.
    #[test]
    fn a_parked_closer_is_told_that_its_helpers_have_left() {
        loom::model(|| {
            let jobs = Arc::new(Jobs::<u32>::new(1));
            let ticket = Arc::new(AtomicU64::new(u64::MAX));
            let helper = {
                let (jobs, ticket) = (Arc::clone(&jobs), Arc::clone(&ticket));
                loom::thread::spawn(move || {
                    let bits = ticket.load(Ordering::Acquire);
                    if bits != u64::MAX {
                        jobs.help(JobTicket::from_bits(bits), &mut 7);
                    }
                })
            };
            let sum = AtomicU64::new(0);
            let body = |core: &mut u32| {
                sum.fetch_add(u64::from(*core), Ordering::Relaxed);
            };
            crate::task::on_model_host(0, || {
                let opened = jobs.with_open(&body, |opened| {
                    ticket.store(opened.to_bits(), Ordering::Release);
                    loom::thread::yield_now();
                });
                assert!(opened.is_some());
            });
            let seen = sum.load(Ordering::Relaxed);
            assert!(helper.join().is_ok());
            assert_eq!(
                seen,
                sum.load(Ordering::Relaxed),
                "a helper was still inside"
            );
        });
    }
}
