//! What an idle pool costs. A process of its own, because the whole process's time is measured.

use sidecore_offload::{Pool, PoolConfig, TaskOptions, TasksOptions, task};
use sidecore_sys::clock;
use std::time::Duration;

/// Four engines and two hosts with nothing to do, and tasks that wait for a timer, for another task
/// and for an engine that is taken.
#[test]
fn waiting_tasks_and_idle_engines_cost_next_to_nothing() {
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
    let used_ns = pool
        .tasks(options, |scope| {
            let seats: Vec<_> = (0..4).map(|_| pool.seat()).collect();
            let due_ns = task::now_ns() + 1_500_000_000;
            let sleeper = scope.spawn(TaskOptions::default(), move |_| task::sleep_until(due_ns));
            let joiner = scope.spawn(TaskOptions::default(), move |_| sleeper.join());
            let caller = scope.spawn(TaskOptions::default(), |_| pool.off_load(|_| 5));
            std::thread::sleep(Duration::from_millis(100));
            let before_ns = clock::process_cpu_ns();
            std::thread::sleep(Duration::from_secs(1));
            let used_ns = clock::process_cpu_ns() - before_ns;
            let tasks = pool.snapshot().tasks;
            assert_eq!((tasks.live, tasks.parked), (3, 3), "{tasks:?}");
            drop(seats);
            assert_eq!(caller.join().expect("no panic").expect("an engine"), 5);
            let slept = joiner.join().expect("no panic").expect("no panic");
            assert_eq!(slept, Ok(()));
            used_ns
        })
        .expect("no panic");
    // 1 % of a core would be 10 ms; this process may share the machine with others.
    assert!(
        used_ns < 50_000_000,
        "{used_ns} ns of processor time in 1 s"
    );
}
