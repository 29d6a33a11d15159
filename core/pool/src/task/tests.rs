//! Tasks under real hosts and engines.

use super::*;
use crate::{OffloadError, Pool, PoolConfig, TaskOptions, TasksOptions};
use sidecore_sched::{ClassId, Llp};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

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
fn more_than_64_hosts_sleep_and_are_woken() {
    const HOSTS: usize = 150;
    let pool = pool(2, false);
    let (waiting, go) = (AtomicUsize::new(0), WaitPoint::new());
    let sum: usize = pool
        .tasks(options(HOSTS, HOSTS), |scope| {
            let handles: Vec<_> = (0..HOSTS)
                .map(|number| {
                    let (waiting, go, pool) = (&waiting, &go, &pool);
                    scope.spawn(TaskOptions::default(), move |_| {
                        waiting.fetch_add(1, Ordering::SeqCst);
                        go.notify();
                        // The last to come wakes the others, whatever host they sleep on.
                        go.wait(THREAD_WAIT, || {
                            (waiting.load(Ordering::SeqCst) == HOSTS).then_some(())
                        });
                        pool.off_load(|_| number).expect("no panic")
                    })
                })
                .collect();
            let results = handles.into_iter().map(|handle| handle.join());
            results.map(|result| result.expect("a result")).sum()
        })
        .expect("no panic");
    assert_eq!(sum, HOSTS * (HOSTS - 1) / 2);
}

#[test]
fn more_hosts_than_a_process_may_have_are_refused() {
    let pool = pool(1, false);
    let error = pool.tasks(options(bell::HOSTS_MAX + 1, 1), |_| ());
    let error = error.expect_err("too many hosts").to_string();
    assert!(error.contains("1024") || error.contains("1,024"), "{error}");
    // None was kept.
    pool.tasks(options(2, 1), |_| ()).expect("two hosts");
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
        assert_eq!(pool.accounts().counts.ready.load(Ordering::Relaxed), 0);
        assert_eq!(pool.ready(), 0);
    }
}

#[test]
fn many_tasks_share_few_stacks_and_never_more_are_live_than_may_be() {
    let pool = pool(2, false);
    for live_max in [1, 2, 5] {
        let (live, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        pool.tasks(options(2, live_max), |scope| {
            for _ in 0..200 {
                scope.spawn(TaskOptions::default(), |_| {
                    let now = live.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(now, Ordering::SeqCst);
                    yield_now();
                    sleep_until(now_ns() + 20_000).expect("nobody cancels");
                    live.fetch_sub(1, Ordering::SeqCst);
                });
            }
        })
        .expect("no panic");
        assert!(most.load(Ordering::SeqCst) <= live_max);
        assert_eq!(live.into_inner(), 0);
    }
}

#[test]
fn a_task_runs_where_it_began() {
    let pool = pool(1, false);
    pool.tasks(options(3, 30), |scope| {
        for _ in 0..30 {
            scope.spawn(TaskOptions::default(), |task| {
                let thread = std::thread::current().id();
                for _ in 0..50 {
                    yield_now();
                    assert_eq!(std::thread::current().id(), thread);
                    assert_eq!(current().map(|current| current.id()), Some(task.id()));
                }
            });
        }
    })
    .expect("no panic");
    assert!(current().is_none());
}

#[test]
fn a_panic_is_an_error_of_its_join_and_of_the_scope_where_nobody_joins() {
    let pool = pool(2, false);
    let joined = pool.tasks(options(2, 4), |scope| {
        let bad = scope.spawn(TaskOptions::default(), |_| {
            yield_now();
            panic!("task fails on purpose")
        });
        let good = scope.spawn(TaskOptions::default(), |_| 7);
        let error = bad.join().map(|(): ()| ()).expect_err("it panicked");
        assert!(error.to_string().contains("fails on purpose"), "{error}");
        good.join().expect("a result")
    });
    assert_eq!(joined.expect("the panic was taken"), 7);
    let left = pool.tasks(options(2, 4), |scope| {
        drop(scope.spawn(TaskOptions::default(), |_| panic!("nobody looks")));
    });
    let error = left.expect_err("nobody joined it").to_string();
    assert!(error.contains("nobody looks"), "{error}");
    // A kernel's panic within a task is an error of the call, and both live on.
    pool.tasks(options(1, 4), |scope| {
        scope
            .spawn(TaskOptions::default(), |_| {
                let error = pool.off_load(|_| panic!("kernel fails")).map(|(): ()| ());
                assert!(matches!(error, Err(OffloadError::Panicked { .. })));
                assert_eq!(pool.off_load(|_| 3).expect("the engine lives on"), 3);
            })
            .join()
    })
    .expect("no panic")
    .expect("no panic");
}

#[test]
fn a_panic_of_the_scope_cancels_its_tasks_and_waits_for_them() {
    let pool = pool(1, false);
    let inside = AtomicUsize::new(0);
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        pool.tasks(options(2, 4), |scope| {
            for _ in 0..20 {
                scope.spawn(TaskOptions::default(), |_| {
                    inside.fetch_add(1, Ordering::SeqCst);
                    let ended = wait_until(|| false);
                    assert!(ended.is_err(), "only a cancel ends this");
                    inside.fetch_sub(1, Ordering::SeqCst);
                });
            }
            panic!("the scope fails on purpose");
        })
    }));
    assert!(outcome.is_err());
    assert_eq!(inside.into_inner(), 0);
    assert_eq!(pool.snapshot().tasks.ended, 20);
}

#[test]
fn what_is_cancelled_never_begins_or_finds_out() {
    let pool = pool(1, false);
    let began = AtomicUsize::new(0);
    pool.tasks(options(1, 1), |scope| {
        let first = scope.spawn(TaskOptions::default(), |task| {
            began.fetch_add(1, Ordering::SeqCst);
            assert_eq!(wait_until(|| false), Err(Cancelled));
            assert!(task.is_cancelled() && is_cancelled());
            let called = pool.off_load(|_| ());
            assert!(matches!(called, Err(OffloadError::Cancelled)));
            let looped = pool.for_each(CLASS, &mut [1, 2], |_, _| ());
            assert!(matches!(looped, Err(OffloadError::Cancelled)));
            assert_eq!(sleep_until(u64::MAX), Err(Cancelled));
        });
        let second = scope.spawn(TaskOptions::default(), |_| {
            began.fetch_add(1, Ordering::SeqCst);
        });
        let third = scope.spawn(TaskOptions::default(), |_| 3);
        while began.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        // The only place among the live is taken, so this has not begun.
        second.cancel();
        assert!(second.has_ended());
        assert!(matches!(second.join(), Err(OffloadError::Cancelled)));
        first.cancel();
        first.join().expect("it ended by itself");
        assert_eq!(third.join().expect("not cancelled"), 3);
        scope.cancel();
        let late = scope.spawn(TaskOptions::default(), |_| ());
        assert!(matches!(late.join(), Err(OffloadError::Cancelled)));
    })
    .expect("no panic");
    assert_eq!(began.into_inner(), 1);
}

#[test]
fn a_cancel_reaches_tasks_of_inner_scopes_on_other_hosts() {
    let pool = pool(1, false);
    let waiting = AtomicUsize::new(0);
    pool.tasks(options(3, 8), |scope| {
        let outer = scope.spawn(TaskOptions::default(), |_| {
            pool.tasks(TasksOptions::default(), |inner| {
                for _ in 0..5 {
                    inner.spawn(TaskOptions::default(), |_| {
                        waiting.fetch_add(1, Ordering::SeqCst);
                        assert_eq!(sleep_until(u64::MAX), Err(Cancelled));
                    });
                }
                wait_until(|| waiting.load(Ordering::SeqCst) == 2)
            })
            .expect("no panic")
        });
        while waiting.load(Ordering::SeqCst) < 2 {
            std::thread::yield_now();
        }
        outer.cancel();
        let _ = outer.join().expect("no panic");
    })
    .expect("no panic");
}

#[test]
fn scopes_and_joins_within_tasks_need_no_place_of_their_own() {
    fn count(pool: &Pool, depth: u32) -> u64 {
        if depth == 0 {
            return 1;
        }
        pool.tasks(TasksOptions::default(), |scope| {
            let left = scope.spawn(TaskOptions::default(), move |_| count(pool, depth - 1));
            let right = scope.spawn(TaskOptions::default(), move |_| count(pool, depth - 1));
            drop(scope.spawn(TaskOptions::default(), |_| yield_now()));
            left.join().expect("a count") + right.join().expect("a count")
        })
        .expect("no panic")
    }
    for (hosts, live_max) in [(1, 1), (2, 2), (2, 6)] {
        let pool = pool(1, false);
        let counted = pool
            .tasks(options(hosts, live_max), |scope| {
                let all = scope.spawn(TaskOptions::default(), |_| count(&pool, 6));
                all.join().expect("a count")
            })
            .expect("no panic");
        assert_eq!(counted, 64);
    }
}

#[test]
fn urgent_tasks_go_first_but_others_are_not_held_up_for_good() {
    let pool = pool(1, false);
    let order = parking_lot::Mutex::new(Vec::new());
    let gate = AtomicUsize::new(0);
    pool.tasks(options(1, 1), |scope| {
        drop(scope.spawn(TaskOptions::default(), |_| {
            wait_until(|| gate.load(Ordering::SeqCst) == 1)
        }));
        let order = &order;
        for _ in 0..3 {
            scope.spawn(TaskOptions::default(), move |_| order.lock().push('n'));
        }
        for _ in 0..40 {
            scope.spawn(TaskOptions::urgent(), move |_| order.lock().push('u'));
        }
        gate.store(1, Ordering::SeqCst);
    })
    .expect("no panic");
    let order: String = order.into_inner().into_iter().collect();
    assert_eq!(order.len(), 43);
    assert!(order.starts_with("uuuuuuuu"), "{order}");
    assert!(order.find('n').is_some_and(|place| place < 40), "{order}");
}

#[test]
fn an_urgent_waiter_goes_before_those_that_waited_longer() {
    let pool = pool(1, false);
    let order = parking_lot::Mutex::new(String::new());
    pool.tasks(options(1, 4), |scope| {
        let seat = pool.seat();
        for (place, name) in (1..).zip(['n', 'n', 'n', 'u']) {
            let options = match name {
                'u' => TaskOptions::urgent(),
                _ => TaskOptions::default(),
            };
            let (pool, order) = (&pool, &order);
            scope.spawn(options, move |_| pool.call(|_| order.lock().push(name)));
            while pool.snapshot().tasks.parked < place {
                std::thread::yield_now();
            }
        }
        drop(seat);
    })
    .expect("no panic");
    let order = order.into_inner();
    assert_eq!(order, "unnn");
}

#[test]
fn a_wake_ends_a_wait_and_timers_end_not_too_soon() {
    let pool = pool(1, false);
    pool.tasks(options(1, 8), |scope| {
        let flag = std::sync::Arc::new(AtomicUsize::new(0));
        let seen = std::sync::Arc::clone(&flag);
        let waiter = scope.spawn(TaskOptions::default(), move |_| {
            wait_until(|| seen.load(Ordering::SeqCst) == 1)
        });
        std::thread::sleep(Duration::from_millis(3));
        flag.store(1, Ordering::SeqCst);
        waiter.task().wake();
        assert_eq!(waiter.join().expect("no panic"), Ok(()));
        let sleepers: Vec<_> = (0..8)
            .map(|place| {
                scope.spawn(TaskOptions::default(), move |_| {
                    let due_ns = now_ns() + 100_000 * (1 + place);
                    assert_eq!(sleep_until(due_ns), Ok(()));
                    // Later by as much as the machine is busy; never sooner.
                    assert!(now_ns() >= due_ns);
                })
            })
            .collect();
        for sleeper in sleepers {
            sleeper.join().expect("in time");
        }
    })
    .expect("no panic");
}

#[test]
fn a_threads_priority_ends_with_its_closure() {
    assert_eq!(priority(), Priority::Normal);
    let panicked = std::panic::catch_unwind(|| {
        with_priority(Priority::Urgent, || {
            assert_eq!(priority(), Priority::Urgent);
            with_priority(Priority::Normal, || {
                assert_eq!(priority(), Priority::Normal)
            });
            assert_eq!(priority(), Priority::Urgent);
            panic!("on purpose");
        })
    });
    assert!(panicked.is_err());
    assert_eq!(priority(), Priority::Normal);
}

/// Runs everything on one engine; how many tasks it wants live goes up and down with the
/// departures.
struct Moody {
    departures: u32,
    wanted: fn(u32) -> u32,
}

impl sidecore_sched::Policy for Moody {
    fn name(&self) -> String {
        "moody".into()
    }

    fn arrive(&mut self, _: u64, _: &sidecore_sched::Arrival) -> sidecore_sched::Decision {
        sidecore_sched::Decision::engines(1)
    }

    fn depart(&mut self, _: u64, _: &sidecore_sched::Departure) {
        self.departures += 1;
    }

    fn tick(&mut self, _: u64) {}

    fn live_tasks(&self, _: u32) -> u32 {
        (self.wanted)(self.departures)
    }
}

fn moody(wanted: fn(u32) -> u32) -> Pool {
    Pool::start(PoolConfig {
        engines: 2,
        policy: Box::new(Moody {
            departures: 0,
            wanted,
        }),
        ..PoolConfig::default()
    })
    .expect("a pool")
}

fn three_hosts() -> TasksOptions {
    TasksOptions {
        hosts: 3,
        ..TasksOptions::default()
    }
}

#[test]
fn the_youngest_are_held_while_more_are_live_than_the_policy_wants() {
    // All eight begin, then two are wanted. The six others are held, each for a bounded time. On a
    // busy machine it may take many rounds until several are seen held at once.
    let pool = moody(|departures| if departures < 100 { 8 } else { 2 });
    let (begun, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let held_most = AtomicU64::new(0);
    let give_up_ns = now_ns() + 60_000_000_000;
    pool.tasks(three_hosts(), |scope| {
        for _ in 0..8 {
            scope.spawn(TaskOptions::default(), |_| {
                begun.fetch_add(1, Ordering::Relaxed);
                wait_until(|| begun.load(Ordering::Relaxed) == 8).expect("nobody cancels");
                let mut step = 0;
                while step < 400 || (held_most.load(Ordering::Relaxed) < 3 && now_ns() < give_up_ns)
                {
                    pool.off_load_as(CLASS, |_| std::hint::black_box(step))
                        .expect("no panic");
                    yield_now();
                    held_most.fetch_max(pool.snapshot().tasks.held, Ordering::Relaxed);
                    step += 1;
                }
                ended.fetch_add(1, Ordering::Relaxed);
            });
        }
    })
    .expect("no panic");
    assert_eq!(ended.into_inner(), 8);
    // More may be at work for a moment, when a task was held for the longest time.
    assert!(held_most.into_inner() >= 3);
    let tasks = pool.snapshot().tasks;
    assert_eq!((tasks.held, tasks.live, tasks.queued), (0, 0, 0));
    assert_eq!(pool.accounts().counts.ready.load(Ordering::Relaxed), 0);
}

#[test]
fn tasks_that_wait_for_held_ones_wait_for_no_place() {
    // One to eight, another number after every few departures.
    let pool = moody(|departures| 1 + departures / 7 * 5 % 8);
    let off_load = || pool.off_load_as(CLASS, |_| 1).expect("no panic");
    for way in 0..4 {
        let met = AtomicUsize::new(0);
        let sum = AtomicUsize::new(0);
        pool.tasks(three_hosts(), |scope| {
            // Each began before any waits: tasks that wait for one another need a place each.
            let tasks = if way < 2 { 1 } else { 24 };
            let mut above = Vec::new();
            for _ in 0..tasks {
                above.push(scope.spawn(TaskOptions::default(), |_| {
                    let mut done = 0;
                    for _ in 0..10 {
                        done += off_load();
                        match way {
                            // An inner scope, and joins in it.
                            0 => {
                                let inner = pool.tasks(TasksOptions::default(), |scope| {
                                    let tasks: Vec<_> = (0..6)
                                        .map(|_| {
                                            scope.spawn(TaskOptions::default(), |_| {
                                                yield_now();
                                                off_load() + off_load()
                                            })
                                        })
                                        .collect();
                                    tasks
                                        .into_iter()
                                        .map(|task| task.join().expect("a sum"))
                                        .sum::<usize>()
                                });
                                done += inner.expect("no panic");
                            }
                            1 => {
                                pool.tasks(TasksOptions::default(), |scope| {
                                    for _ in 0..6 {
                                        scope.spawn(TaskOptions::default(), |_| {
                                            off_load();
                                            yield_now();
                                            off_load();
                                        });
                                    }
                                })
                                .expect("no panic");
                            }
                            2 => sleep_until(now_ns() + 10_000).expect("nobody cancels"),
                            // The test polls for the work of held tasks.
                            _ => {
                                let before = met.fetch_add(1, Ordering::Relaxed);
                                let far = before.saturating_sub(200);
                                wait_until(|| met.load(Ordering::Relaxed) > far)
                                    .expect("nobody cancels");
                            }
                        }
                    }
                    sum.fetch_add(done, Ordering::Relaxed);
                }));
            }
            for task in above {
                task.join().expect("no panic");
            }
        })
        .expect("no panic");
        let wanted = match way {
            0 => 10 + 10 * 12,
            1 => 10,
            _ => 240,
        };
        assert_eq!(sum.into_inner(), wanted, "way {way}");
        let tasks = pool.snapshot().tasks;
        assert_eq!(
            (tasks.held, tasks.live, tasks.queued),
            (0, 0, 0),
            "way {way}"
        );
    }
}

#[test]
fn who_spins_for_a_held_task_meets_it_again() {
    let pool = moody(|departures| if departures < 4 { 4 } else { 1 });
    let rounds = [const { AtomicU64::new(0) }; 4];
    pool.tasks(three_hosts(), |scope| {
        for own in 0..4 {
            let (pool, rounds) = (&pool, &rounds);
            scope.spawn(TaskOptions::default(), move |_| {
                for round in 1..=5 {
                    pool.off_load_as(CLASS, |_| ()).expect("no panic");
                    rounds[own].store(round, Ordering::Relaxed);
                    // A barrier that the host cannot tell from work.
                    while rounds
                        .iter()
                        .any(|other| other.load(Ordering::Relaxed) < round)
                    {
                        yield_now();
                    }
                }
            });
        }
    })
    .expect("no panic");
    assert!(
        rounds
            .iter()
            .all(|round| round.load(Ordering::Relaxed) == 5)
    );
}
