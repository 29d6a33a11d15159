//! Tasks under real hosts and engines.

use super::*;
use crate::{Pool, PoolConfig, TaskOptions, TasksOptions};
use sidecore_sched::{ClassId, Llp};
use std::sync::atomic::{AtomicU64, Ordering};

const CLASS: ClassId = ClassId(0);

fn pool(engines: usize, dedicated: bool) -> Pool {
    Pool::start(PoolConfig {
        engines,
        dedicated,
        policy: Box::new(Llp::new(64)),
        ..PoolConfig::default()
    })
    .expect("a pool")
}

fn options(hosts: usize, live_max: usize) -> TasksOptions {
    TasksOptions {
        hosts,
        live_max: Some(live_max),
        ..TasksOptions::default()
    }
}

#[test]
fn tasks_borrow_off_load_and_give_results() {
    for (hosts, dedicated) in [(1, false), (2, false), (1, true), (3, true)] {
        let pool = pool(2, dedicated);
        let numbers: Vec<u64> = (0..100).collect();
        let sum = AtomicU64::new(0);
        let total: u64 = pool
            .tasks(options(hosts, 8), |scope| {
                let handles: Vec<_> = numbers
                    .iter()
                    .map(|number| {
                        let (pool, sum) = (&pool, &sum);
                        scope.spawn(TaskOptions::default(), move |_| {
                            let twice = pool.off_load(|_| number * 2).expect("no panic");
                            let mut items = vec![*number; 9];
                            pool.for_each(CLASS, &mut items, |_, item| *item += 1)
                                .expect("no panic");
                            sum.fetch_add(items.iter().sum(), Ordering::Relaxed);
                            yield_now();
                            twice
                        })
                    })
                    .collect();
                handles
                    .into_iter()
                    .map(|h| h.join().expect("a result"))
                    .sum()
            })
            .expect("no panic");
        assert_eq!(total, 9_900);
        assert_eq!(sum.into_inner(), 9 * (4_950 + 100));
        let snapshot = pool.snapshot();
        assert_eq!(snapshot.tasks.ended, 100);
        assert_eq!(
            (
                snapshot.tasks.live,
                snapshot.tasks.queued,
                snapshot.tasks.parked
            ),
            (0, 0, 0)
        );
        assert_eq!(pool.shared().tasks.ready.load(Ordering::Relaxed), 0);
        assert_eq!(pool.ready(), 0);
    }
}
