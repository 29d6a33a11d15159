//! The two fences of the sleep/wake protocol.
//!
//! Why here: every sleeper and every waker of the project runs through these two functions, so each
//! ordering has its partner in this file. README.md, "No wake-up is lost".

use crate::atomic::{Ordering, fence};

/// Proof that a change was made visible: the fence between a change and the look for sleepers.
///
/// One proof serves any number of looks, so a change that several sleepers may wait for costs one
/// fence. It is worth nothing for changes that are made after it.
#[derive(Debug, Clone, Copy)]
pub struct Changed(());

impl Changed {
    /// To be called after a change that a thread may sleep for. Costs a fence.
    #[inline]
    #[must_use = "sleepers are still asleep: notify them"]
    pub fn publish() -> Self {
        // Partner: the fence in `announce`. Either we see the sleeper that was announced before it,
        // or the sleeper sees the change.
        fence(Ordering::SeqCst);
        Self(())
    }
}

/// The fence between a sleeper's announcement and its last look at the condition.
#[inline]
pub(crate) fn announce() {
    // Partner: the fence in `Changed::publish`.
    fence(Ordering::SeqCst);
}
