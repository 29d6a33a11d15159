//! Which engines are idle: a bit each, claimed and released by anyone.
//!
//! Why here: a caller that borrows an idle engine and an engine thread that is given work must
//! never both drive the same core. Whoever cleared the bit owns the engine until it sets it again.
//! Must stay true: the operations are sequentially consistent, because a releaser sets its bit and
//! *then* looks for work that came meanwhile, while a poster queues its work and *then* looks for
//! an idle bit: one of the two must see the other (see README.md, "No work is left lying").

use crate::job::sync::{AtomicU64, Ordering};

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
        Self { idle: AtomicU64::new(u64::MAX >> (ENGINES_MAX - engines)) }
    }

    /// Takes an idle engine, `preferred` if it is one.
    pub(crate) fn claim(&self, preferred: usize) -> Option<usize> {
        let mut idle = self.idle.load(Ordering::SeqCst);
        loop {
            if idle == 0 {
                return None;
            }
            let wanted = 1_u64.checked_shl(preferred as u32).unwrap_or(0);
            let bit = if idle & wanted != 0 { wanted } else { idle & idle.wrapping_neg() };
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
        debug_assert_eq!(before & (1 << engine), 0, "engine {engine} was released twice");
    }

    /// How many are idle now.
    pub(crate) fn idle_count(&self) -> u32 {
        self.idle.load(Ordering::SeqCst).count_ones()
    }
}
