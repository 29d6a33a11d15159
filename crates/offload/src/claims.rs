//! Which engines are idle: a bit each, claimed and released by anyone.
//!
//! Why here: a caller that borrows an idle engine and an engine thread that is given work must
//! never both drive the same core. Whoever cleared the bit owns the engine until it sets it again.
//! Must stay true: fences order the operations with what lies around them, because a releaser sets its bit and
//! *then* looks for work that came meanwhile, while a poster queues its work and *then* looks for
//! an idle bit: one of the two must see the other (see README.md, "No work is left lying").

use crate::sync::{AtomicU64, Ordering, fence};

/// The most engines a pool has: one bit each.
pub(crate) const ENGINES_MAX: usize = 64;

/// The set of idle engines.
#[derive(Debug)]
pub(crate) struct Claims {
    idle: AtomicU64,
}

impl Claims {
    /// All of `engines` idle; `engines` is 1 to [`ENGINES_MAX`].
    pub(crate) fn new(engines: usize) -> Self {
        Self {
            idle: AtomicU64::new(u64::MAX >> (ENGINES_MAX - engines)),
        }
    }

    /// Takes an idle engine, one of the set `near` if there is one.
    pub(crate) fn claim(&self, near: u64) -> Option<usize> {
        let mut idle = self.idle.load(Ordering::Relaxed);
        let mut fenced = false;
        loop {
            if idle == 0 {
                if fenced {
                    return None;
                }
                // Only who finds none must be sure of it. Partner: the read-modify-write in
                // `release`. What the caller queued before is seen by whoever releases after this
                // second look at the bits.
                fence(Ordering::SeqCst);
                fenced = true;
                idle = self.idle.load(Ordering::SeqCst);
                continue;
            }
            let wanted = match idle & near {
                0 => idle,
                near => near,
            };
            let bit = wanted & wanted.wrapping_neg();
            match self.idle.compare_exchange_weak(
                idle,
                idle & !bit,
                Ordering::SeqCst,
                Ordering::SeqCst,
            ) {
                Ok(_) => return Some(bit.trailing_zeros() as usize),
                Err(now) => idle = now,
            }
        }
    }

    /// Takes this engine if it is idle.
    pub(crate) fn claim_exactly(&self, engine: usize) -> bool {
        let bit = 1 << engine;
        self.idle.fetch_and(!bit, Ordering::SeqCst) & bit != 0
    }

    /// Gives an engine back.
    pub(crate) fn release(&self, engine: usize) {
        let before = self.idle.fetch_or(1 << engine, Ordering::SeqCst);
        debug_assert_eq!(
            before & (1 << engine),
            0,
            "engine {engine} was released twice"
        );
    }

    /// How many are idle now.
    pub(crate) fn idle_count(&self) -> u32 {
        self.idle.load(Ordering::SeqCst).count_ones()
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    /// README.md, "No work is left lying": a poster queues its work and then looks for an idle
    /// engine; a releaser gives its engine back and then looks at the queue. One of them finds both.
    #[test]
    fn posted_work_is_never_left_while_an_engine_is_idle() {
        loom::model(|| {
            let claims = Arc::new(Claims::new(1));
            let queued = Arc::new(AtomicU64::new(0));
            let done = Arc::new(AtomicU64::new(0));
            assert_eq!(claims.claim(0), Some(0));
            let drain = |claims: &Claims, queued: &AtomicU64, done: &AtomicU64| {
                loop {
                    while queued.swap(0, Ordering::SeqCst) == 1 {
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                    claims.release(0);
                    if queued.load(Ordering::SeqCst) == 0 || claims.claim(0).is_none() {
                        return;
                    }
                }
            };
            let poster = {
                let (claims, queued, done) =
                    (Arc::clone(&claims), Arc::clone(&queued), Arc::clone(&done));
                loom::thread::spawn(move || {
                    // A read-modify-write, as the queue's own push is.
                    queued.swap(1, Ordering::SeqCst);
                    if claims.claim(0).is_some() {
                        drain(&claims, &queued, &done);
                    }
                })
            };
            drain(&claims, &queued, &done);
            assert!(poster.join().is_ok());
            assert_eq!(done.load(Ordering::SeqCst), 1);
            assert_eq!(claims.idle_count(), 1);
        });
    }
}
