//! The requests of one user that engines serve at this moment, and their limit.
//!
//! Why here: engines share their time fairly between clients, and one user may have many clients.
//! If an administrator wants engines to be left for others, a user's requests in flight are
//! limited. Must stay true: no thread waits here; a request above the limit stays with its client's
//! bell and is looked at again. Sessions of users without a limit have none of this. Any thread.

use std::sync::atomic::{AtomicU32, Ordering};

/// One user's requests in flight.
#[derive(Debug)]
pub(crate) struct UserLoad {
    serving: AtomicU32,
    max: u32,
}

impl UserLoad {
    /// At most `max` requests at once.
    pub(crate) fn new(max: u32) -> Self {
        Self {
            serving: AtomicU32::new(0),
            max,
        }
    }

    /// True while one more may be served. A glance, for choosing whose turn it is.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.serving.load(Ordering::Relaxed) < self.max
    }

    /// Counts one more, until the guard is dropped. `None` where there is no room.
    #[inline]
    pub(crate) fn begin(&self) -> Option<Serving<'_>> {
        // Relaxed: the count orders nothing but itself.
        let before = self.serving.fetch_add(1, Ordering::Relaxed);
        let serving = Serving(self);
        (before < self.max).then_some(serving)
    }
}

/// A request that is counted.
#[derive(Debug)]
pub(crate) struct Serving<'l>(&'l UserLoad);

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        self.0.serving.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_limit_are_served_at_once() {
        let load = UserLoad::new(2);
        let one = load.begin().unwrap();
        let _two = load.begin().unwrap();
        assert!(load.begin().is_none() && !load.has_room());
        drop(one);
        assert!(load.has_room() && load.begin().is_some());
    }
}
