//! Progress of a program that a test started, as the kernel reports it: proc_pid_status(5).
//!
//! Why here: a signal that arrives before a program has its handlers ends the program, and the time
//! until then depends on the machine. A test waits for the handlers, not for some milliseconds.
#![allow(clippy::unwrap_used, dead_code)] // Helper functions of tests; each test uses some.

use std::process::Child;
use std::time::{Duration, Instant};

/// Waits until `child` handles Ctrl-C; false if it ended before.
pub(crate) fn until_it_watches(child: &mut Child) -> bool {
    const SIGINT: u32 = 2;
    let begun = Instant::now();
    loop {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()));
        let status = status.unwrap_or_default();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.map_or(0, |mask| u64::from_str_radix(mask.trim(), 16).unwrap());
        if caught & 1 << (SIGINT - 1) != 0 {
            return true;
        }
        if child.try_wait().unwrap().is_some() {
            return false;
        }
        assert!(begun.elapsed() < PATIENCE, "it watches for no signal");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The process below `ancestor`, at any depth, whose command line holds `words`, each ended by a
/// NUL.
pub(crate) fn descendant(ancestor: u32, words: &str) -> Option<u32> {
    let children = format!("/proc/{ancestor}/task/{ancestor}/children");
    let children = std::fs::read_to_string(children).unwrap_or_default();
    children.split_whitespace().find_map(|id| {
        let line = std::fs::read_to_string(format!("/proc/{id}/cmdline"));
        let id = id.parse().unwrap();
        match line.is_ok_and(|line| line.contains(words)) {
            true => Some(id),
            false => descendant(id, words),
        }
    })
}

/// Limit of a wait for an event that must happen.
const PATIENCE: Duration = Duration::from_secs(120);
