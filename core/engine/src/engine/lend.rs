//! Lending a job to a thread that outlives it.
//!
//! Why here: a job borrows its host's memory for `'s`, an engine's thread lives longer, and no safe
//! type says "it will be done by then". Only this place in the crate says it. Must stay true: a
//! [`Lent`] that was made is dropped before [`Loans::wait`] returns, and with it every use of the
//! job by others. The maker waits before `'s` ends.
#![allow(unsafe_code)] // Extends a lifetime; the argument is at the block.

use crate::core::Core;
use crate::wait::Waiter;
use sidecore_sync::EventCount;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A job as an engine sees it.
pub(crate) trait Job: Send + Sync {
    /// Runs it, to its end. Must not panic.
    fn run_on(&self, core: &mut Core);
}

/// Counts the jobs that are lent and not given back.
#[derive(Debug, Default)]
pub(crate) struct Loans {
    lent: AtomicUsize,
    returned: EventCount,
}

impl Loans {
    /// Waits until all that were lent are given back.
    pub(crate) fn wait(&self, waiter: &Waiter) {
        let none = || (self.lent.load(Ordering::Acquire) == 0).then_some(());
        waiter.wait(&self.returned, None, none);
    }
}

/// A job on loan.
pub(crate) struct Lent {
    /// Taken only by `drop`.
    job: Option<Arc<dyn Job>>,
    loans: Arc<Loans>,
}

impl Lent {
    /// Lends `job`, which may hold borrows of `'s`.
    ///
    /// # Safety
    /// Before `'s` ends, the caller waits ([`Loans::wait`]) for `loans`, however it leaves: by
    /// return or by panic.
    pub(crate) unsafe fn new<'s>(job: Arc<dyn Job + 's>, loans: &Arc<Loans>) -> Self {
        loans.lent.fetch_add(1, Ordering::Relaxed);
        // SAFETY: only the lifetime changes. Every use through this `Arc`, its drop included, comes
        // before the count goes down in `drop`, and the caller waits for that before `'s` ends.
        let job = unsafe { std::mem::transmute::<Arc<dyn Job + 's>, Arc<dyn Job>>(job) };
        Self {
            job: Some(job),
            loans: Arc::clone(loans),
        }
    }

    pub(crate) fn run_on(&self, core: &mut Core) {
        if let Some(job) = &self.job {
            job.run_on(core);
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.job = None;
        // Release, to the Acquire in `wait`: all uses of the job come before.
        self.loans.lent.fetch_sub(1, Ordering::Release);
        self.loans.returned.notify_all();
    }
}
