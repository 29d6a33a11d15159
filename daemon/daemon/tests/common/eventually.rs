//! Wait for something that is due soon, on a machine that may be busy.

use std::time::{Duration, Instant};

/// Waits until `condition` holds.
///
/// # Panics
/// After a minute, with `what` in the message.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
