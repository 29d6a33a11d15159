//! Calls, jobs and hostile clients of a daemon that runs, mostly, in this process.
//!
//! Apart from it are the tests that look at the whole process, or kill one: `daemon_idle`,
//! `daemon_kill`, `other_user`.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // Helper functions of tests; seeds.

mod calls;
mod hostile;
mod jobs;
mod remote_wait;
mod stuck;

use std::time::{Duration, Instant};

/// Waits until `condition` holds, on a machine that may be busy.
///
/// # Panics
/// After a minute, with `what` in the message.
fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
