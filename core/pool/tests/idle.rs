//! Threads of an idle pool sleep. A process of its own, because all of the process's threads are
//! looked at.
//!
//! Checks the states of threads, not processor time. A polling thread is always found running or
//! runnable, however busy the machine is, and a sleeping one is found asleep.

use sidecore_offload::{Cancelled, Pool, PoolConfig, TaskOptions, TasksOptions, task};
use std::time::Duration;

/// Four engines and two hosts with nothing to do, and tasks that wait for a timer, for another task
/// and for an engine that is taken.
#[test]
fn waiting_tasks_and_idle_engines_sleep() {
    let pool = Pool::start(PoolConfig {
        engines: 4,
        ..PoolConfig::default()
    })
    .expect("a pool");
    let options = TasksOptions {
        hosts: 2,
        live_max: Some(8),
        ..TasksOptions::default()
    };
    let awake = pool
        .tasks(options, |scope| {
            let seats: Vec<_> = (0..4).map(|_| pool.seat()).collect();
            let due_ns = task::now_ns() + 1_000_000_000_000;
            let sleeper = scope.spawn(TaskOptions::default(), move |_| task::sleep_until(due_ns));
            let slept = sleeper.task();
            let joiner = scope.spawn(TaskOptions::default(), move |_| sleeper.join());
            let caller = scope.spawn(TaskOptions::default(), |_| pool.off_load(|_| 5));
            // The looks begin when the grace is over for all; how long that takes depends on the
            // load.
            while pool.snapshot().tasks.parked < 3 || threads_awake() > 0 {
                std::thread::sleep(Duration::from_millis(5));
            }
            let mut awake = 0;
            for _ in 0..LOOKS {
                std::thread::sleep(Duration::from_millis(10));
                awake += usize::from(threads_awake() > 0);
            }
            let tasks = pool.snapshot().tasks;
            assert_eq!((tasks.live, tasks.parked), (3, 3), "{tasks:?}");
            drop(seats);
            assert_eq!(caller.join().expect("no panic").expect("an engine"), 5);
            slept.cancel();
            let slept = joiner.join().expect("no panic").expect("no panic");
            assert_eq!(slept, Err(Cancelled));
            awake
        })
        .expect("no panic");
    // A thread that polls is awake at every look, one that wakes every millisecond at most of them.
    assert!(
        awake <= LOOKS / 10,
        "threads awake at {awake} of {LOOKS} looks"
    );
}

/// Threads of this process, besides this one, that run or want to.
fn threads_awake() -> usize {
    let own = rustix::thread::gettid().as_raw_nonzero().to_string();
    let threads = std::fs::read_dir("/proc/self/task").expect("a list of threads");
    let is_awake = |thread: &std::fs::DirEntry| {
        // "TID (NAME) STATE ..."; a thread that has ended meanwhile is not awake.
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        let state = stat.rsplit_once(") ").map(|(_, rest)| &rest[..1]);
        thread.file_name() != *own && state == Some("R")
    };
    threads.flatten().filter(is_awake).count()
}

const LOOKS: usize = 60;
