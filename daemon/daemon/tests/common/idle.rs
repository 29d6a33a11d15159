//! Check that threads sleep when they should, on a machine that may be busy.
//!
//! Why here: the processor time of a wake-up depends on the machine's other work, so a limit in
//! milliseconds fails under load. Here the threads of this process are compared with a reference
//! thread that only sleeps and wakes up. A sleeping thread costs, per wake-up, about as much as the
//! reference; a polling one costs a hundred times as much. Must stay true: no other test runs in
//! the same process. Source: /proc/PID/task/TID/schedstat (Documentation/scheduler/sched-stats in
//! Linux).

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Processor time and wake-ups of threads over some time.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Used {
    /// Time on a core.
    pub(crate) run_ns: u64,
    /// Times that they were given one: wake-ups, and returns after they were interrupted.
    pub(crate) turns: u64,
}

/// Usage of all threads of this process but the calling one, which sleeps for `time`, and that of a
/// reference thread that does nothing but sleep and wake up.
pub(crate) fn watch(time: Duration) -> (Used, Used) {
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let (send, receive) = std::sync::mpsc::channel();
    let reference = std::thread::spawn(move || {
        send.send(own_thread()).unwrap();
        while !stopped.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(10));
        }
    });
    let (reference_id, watcher) = (receive.recv().unwrap(), own_thread());
    let before = threads();
    std::thread::sleep(time);
    let after = threads();
    stop.store(true, Ordering::Relaxed);
    reference.join().unwrap();
    let (mut others, mut alone) = (Used::default(), Used::default());
    for (id, used) in after {
        let was = before.get(&id).copied().unwrap_or_default();
        let sum = match &id {
            id if *id == reference_id => &mut alone,
            id if *id == watcher => continue,
            _ => &mut others,
        };
        sum.run_ns += used.run_ns - was.run_ns;
        sum.turns += used.turns - was.turns;
    }
    (others, alone)
}

/// Fails unless threads that did `used` slept for nearly all of the time, as the reference did, and
/// were woken `turns_max` times at most.
pub(crate) fn assert_asleep(used: Used, reference: Used, turns_max: u64) {
    assert!(reference.turns > 0, "the reference never ran");
    let turn_ns = (reference.run_ns / reference.turns).max(10_000);
    // A turn of the daemon's does more than the reference's, the more so with cold caches; a thread
    // that polled would use a hundred times that.
    let allowed_ns = 16 * turn_ns * (used.turns + 50);
    println!("{used:?}; {turn_ns} ns a turn of the reference; {allowed_ns} ns allowed");
    assert!(
        used.run_ns <= allowed_ns,
        "{used:?}: more than {allowed_ns} ns, the reference used {turn_ns} ns a turn"
    );
    assert!(
        used.turns <= turns_max,
        "{used:?}: woken more than {turns_max} times"
    );
}

fn own_thread() -> String {
    let link = std::fs::read_link("/proc/thread-self").unwrap();
    link.file_name().unwrap().to_str().unwrap().to_owned()
}

fn threads() -> HashMap<String, Used> {
    let mut all = HashMap::new();
    for entry in std::fs::read_dir("/proc/self/task").unwrap() {
        let path = entry.unwrap().path();
        // One that has ended meanwhile is left out.
        let Ok(text) = std::fs::read_to_string(path.join("schedstat")) else {
            continue;
        };
        let numbers: Vec<u64> = text
            .split_whitespace()
            .map(|it| it.parse().unwrap())
            .collect();
        let used = Used {
            run_ns: numbers[0],
            turns: numbers[2],
        };
        all.insert(path.file_name().unwrap().to_str().unwrap().to_owned(), used);
    }
    all
}
