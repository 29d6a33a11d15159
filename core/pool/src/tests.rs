//! The pool under real threads.

use super::*;
use sidecore_sched::{Arrival, ClassId, Decision, Departure, Edtlp, Llp, Nanos, Policy};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

const CLASS: ClassId = ClassId(0);
/// So long a thing that must happen may take.
const PATIENCE: Duration = Duration::from_secs(120);

fn pool(engines: usize) -> Pool {
    pool_with(PoolConfig {
        engines,
        ..PoolConfig::default()
    })
}

fn pool_with(config: PoolConfig) -> Pool {
    Pool::start(config).expect("a pool")
}

#[test]
fn a_loop_hands_every_item_to_exactly_one_engine() {
    for engines in [1, 2, 3, 7] {
        let config = PoolConfig {
            engines,
            policy: Box::new(Llp::new(64)),
            ..PoolConfig::default()
        };
        let pool = pool_with(config);
        for units in [0, 1, 2, 3, 64, 1_000] {
            let mut items: Vec<u64> = (0..units).collect();
            pool.for_each(CLASS, &mut items, |_, item| *item += 1_000_000)
                .expect("no panic");
            assert!(
                items
                    .iter()
                    .enumerate()
                    .all(|(i, &item)| item == i as u64 + 1_000_000)
            );
        }
    }
}

#[test]
fn a_wide_loop_really_uses_several_engines() {
    let config = PoolConfig {
        engines: 2,
        policy: Box::new(Llp::new(2)),
        ..PoolConfig::default()
    };
    let pool = pool_with(config);
    // The second engine may be without a core for a while.
    let begun = std::time::Instant::now();
    let mut seen_two = false;
    while !seen_two && begun.elapsed() < PATIENCE {
        let mut items = vec![None; 64];
        pool.for_each(CLASS, &mut items, |_, item| {
            *item = Some(std::thread::current().id());
            std::thread::sleep(Duration::from_micros(50));
        })
        .expect("no panic");
        seen_two = items.iter().any(|id| *id != items[0]);
    }
    assert!(seen_two, "the second engine never took part");
}

#[test]
fn edtlp_keeps_a_loop_on_one_engine() {
    let config = PoolConfig {
        engines: 4,
        policy: Box::new(Edtlp),
        ..PoolConfig::default()
    };
    let pool = pool_with(config);
    let mut items = vec![None; 100];
    pool.for_each(CLASS, &mut items, |_, item| {
        *item = Some(std::thread::current().id())
    })
    .expect("no panic");
    assert!(
        items
            .iter()
            .all(|id| *id == Some(std::thread::current().id()))
    );
}

#[test]
fn a_panic_is_an_error_and_the_pool_lives_on() {
    let config = PoolConfig {
        engines: 3,
        policy: Box::new(Llp::new(3)),
        ..PoolConfig::default()
    };
    let pool = pool_with(config);
    for round in 0..50 {
        let mut items: Vec<usize> = (0..40).collect();
        let result = pool.for_each(CLASS, &mut items, |_, item| {
            assert!(*item != round % 40, "unit {item} fails on purpose");
        });
        let error = result.expect_err("one unit panicked").to_string();
        assert!(error.contains("fails on purpose"), "{error}");
        pool.for_each(CLASS, &mut items, |_, item| *item = 0)
            .expect("the pool lives on");
    }
    // The last helper may still be on its way out.
    wait_until("three idle engines", || pool.engines_idle() == 3);
}

#[test]
fn many_callers_share_few_engines() {
    let pool = pool(2);
    let inside = AtomicUsize::new(0);
    let most = AtomicUsize::new(0);
    let total = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..500 {
                    pool.call(|_| {
                        let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                        most.fetch_max(now, Ordering::SeqCst);
                        total.fetch_add(1, Ordering::SeqCst);
                        inside.fetch_sub(1, Ordering::SeqCst);
                    });
                }
            });
        }
    });
    assert_eq!(total.load(Ordering::SeqCst), 4_000);
    assert!(
        most.load(Ordering::SeqCst) <= 2,
        "more callers inside than engines"
    );
    assert_eq!(pool.engines_idle(), 2);
    assert_eq!(pool.ready(), 0);
}

struct Count {
    done: AtomicU64,
    sum: AtomicU64,
}

impl Background for Count {
    fn run(&self, _core: &mut sidecore_engine::Core, token: u64) {
        assert!(token != 13, "token 13 fails on purpose");
        self.sum.fetch_add(token, Ordering::SeqCst);
        self.done.fetch_add(1, Ordering::SeqCst);
    }
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "{what} did not happen");
        std::thread::sleep(Duration::from_micros(500));
    }
}

#[test]
fn background_work_is_done_by_whoever_becomes_idle() {
    let pool = pool(2);
    let count = Arc::new(Count {
        done: AtomicU64::new(0),
        sum: AtomicU64::new(0),
    });
    let job: Arc<dyn Background> = Arc::clone(&count) as _;
    for round in 0..200_u64 {
        let before = count.done.load(Ordering::SeqCst);
        // Posted while all engines are taken, so that a release must find it.
        let (a, b) = (pool.seat(), pool.seat());
        for token in 0..12 {
            assert!(pool.post(&job, token));
        }
        drop((a, b));
        wait_until("background work", || {
            count.done.load(Ordering::SeqCst) == before + 12
        });
        assert_eq!(count.sum.load(Ordering::SeqCst), (round + 1) * 66);
    }
}

#[test]
fn background_work_beyond_the_bound_is_refused_and_a_panic_in_it_is_counted() {
    let pool = pool_with(PoolConfig {
        engines: 1,
        backlog_max: 4,
        ..PoolConfig::default()
    });
    let count = Arc::new(Count {
        done: AtomicU64::new(0),
        sum: AtomicU64::new(0),
    });
    let job: Arc<dyn Background> = Arc::clone(&count) as _;
    let seat = pool.seat();
    let taken = (10..20).filter(|&token| pool.post(&job, token)).count();
    assert_eq!(taken, 4);
    drop(seat);
    wait_until("three of four", || count.done.load(Ordering::SeqCst) == 3);
    wait_until("the panic", || pool.counters()[0].panics == 1);
    wait_until("an idle engine", || pool.engines_idle() == 1);
}

#[test]
fn background_work_is_not_left_to_a_waiter_that_goes_without_an_engine() {
    let pool = pool(1);
    let count = Arc::new(Count {
        done: AtomicU64::new(0),
        sum: AtomicU64::new(0),
    });
    let job: Arc<dyn Background> = Arc::clone(&count) as _;
    let seat = pool.seat();
    // As a task does that then finds itself cancelled.
    let waits = pool.shared().count_waiter(false);
    assert!(pool.post(&job, 1));
    drop(seat);
    assert_eq!((pool.backlog(), pool.engines_idle()), (1, 1));
    drop(waits);
    wait_until("background work", || count.done.load(Ordering::SeqCst) == 1);
}

#[test]
fn everything_at_once_ends() {
    let pool = pool(3);
    let count = Arc::new(Count {
        done: AtomicU64::new(0),
        sum: AtomicU64::new(0),
    });
    let job: Arc<dyn Background> = Arc::clone(&count) as _;
    let units = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for caller in 0..4_u64 {
            let (pool, job, units) = (&pool, &job, &units);
            scope.spawn(move || {
                for round in 0..300 {
                    let mut items = vec![0_u8; 1 + (caller + round) as usize % 9];
                    let len = items.len() as u64;
                    pool.for_each(CLASS, &mut items, |_, item| *item += 1)
                        .expect("no panic");
                    assert!(items.iter().all(|&item| item == 1));
                    units.fetch_add(len, Ordering::Relaxed);
                    pool.post(job, 1);
                }
            });
        }
    });
    wait_until("an empty backlog", || {
        pool.backlog() == 0 && pool.engines_idle() == 3
    });
    assert!(units.load(Ordering::Relaxed) > 4 * 300);
}

#[test]
fn a_pool_of_no_or_too_many_engines_is_refused() {
    for engines in [0, ENGINES_MAX + 1, usize::MAX] {
        let result = Pool::start(PoolConfig {
            engines,
            ..PoolConfig::default()
        });
        assert!(matches!(result, Err(OffloadError::EngineCount { .. })));
    }
}

/// A pool of more engines than one word has bits, with small local stores.
fn large_pool(engines: usize) -> Pool {
    pool_with(PoolConfig {
        engines,
        core: sidecore_engine::CoreOptions {
            store_bytes: 16 << 10,
            ..sidecore_engine::CoreOptions::default()
        },
        policy: Box::new(Llp::new(engines as u32)),
        ..PoolConfig::default()
    })
}

#[test]
fn a_pool_of_more_than_64_engines_runs_a_loop_on_all_of_them_at_once() {
    for engines in [65, 130, ENGINES_MAX] {
        let pool = large_pool(engines);
        let inside = AtomicUsize::new(0);
        let mut items: Vec<usize> = (0..engines).collect();
        pool.for_each(CLASS, &mut items, |_, item| {
            inside.fetch_add(1, Ordering::SeqCst);
            // No engine takes a second unit before each has one.
            wait_until("a unit on every engine", || {
                inside.load(Ordering::SeqCst) == engines
            });
            *item += 1_000_000;
        })
        .expect("no panic");
        assert!(
            items
                .iter()
                .enumerate()
                .all(|(i, &item)| item == i + 1_000_000)
        );
        wait_until("idle engines", || pool.engines_idle() == engines);
        // A release counts before the engine is idle.
        assert!(pool.counters().iter().all(|engine| engine.units == 1));
        for units in [1, 64, 5_000] {
            let mut items: Vec<u64> = (0..units).collect();
            pool.for_each(CLASS, &mut items, |_, item| *item *= 3)
                .expect("no panic");
            assert!(
                items
                    .iter()
                    .enumerate()
                    .all(|(i, &item)| item == 3 * i as u64)
            );
        }
    }
}

#[test]
fn every_engine_of_a_large_pool_is_one_seat() {
    let pool = large_pool(130);
    let mut seats: Vec<_> = (0..130).map(|_| pool.seat()).collect();
    let mut engines: Vec<usize> = seats.iter().map(Seat::engine).collect();
    engines.sort_unstable();
    assert!(engines.iter().copied().eq(0..130));
    assert_eq!(pool.engines_idle(), 0);
    // A caller that waits is woken by an engine of the third word.
    let last = seats.iter().position(|seat| seat.engine() == 129);
    let last = seats.swap_remove(last.expect("the last engine"));
    let waited_for = std::thread::scope(|scope| {
        let caller = scope.spawn(|| pool.seat().engine());
        std::thread::sleep(Duration::from_millis(2));
        drop(last);
        caller.join().expect("no panic")
    });
    assert_eq!(waited_for, 129);
}

/// Events that a policy received, for each piece of work.
type Heard = Arc<parking_lot::Mutex<Vec<(Arrival, Option<Departure>)>>>;

/// Policy that answers as configured and records its events.
struct Spy {
    decision: Decision,
    heard: Heard,
}

impl Policy for Spy {
    fn name(&self) -> String {
        "spy".into()
    }

    fn arrive(&mut self, _now: Nanos, arrival: &Arrival) -> Decision {
        self.heard.lock().push((*arrival, None));
        self.decision
    }

    fn depart(&mut self, _now: Nanos, departure: &Departure) {
        let mut heard = self.heard.lock();
        let of_task = |(arrival, done): &&mut (Arrival, Option<Departure>)| {
            arrival.task == departure.task && done.is_none()
        };
        let entry = heard.iter_mut().find(of_task).expect("it arrived");
        entry.1 = Some(*departure);
    }

    fn tick(&mut self, _now: Nanos) {}
}

/// Policy whose decisions hold, with the kinds of its events.
struct Steady(Arc<parking_lot::Mutex<Vec<&'static str>>>);

impl Policy for Steady {
    fn name(&self) -> String {
        "steady".into()
    }

    fn arrive(&mut self, _now: Nanos, _arrival: &Arrival) -> Decision {
        self.0.lock().push("asked");
        Decision::engines(1)
    }

    fn holds(&self, _arrival: &Arrival) -> bool {
        true
    }

    fn arrived(&mut self, _now: Nanos, _arrival: &Arrival) {
        self.0.lock().push("arrived");
    }

    fn depart(&mut self, _now: Nanos, _departure: &Departure) {
        self.0.lock().push("departed");
    }

    fn tick(&mut self, _now: Nanos) {}
}

#[test]
fn a_policy_whose_decisions_hold_is_asked_seldom_and_hears_of_all_but_the_last() {
    const LOOPS: usize = 400;
    let heard = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let pool = pool_with(PoolConfig {
        engines: 1,
        policy: Box::new(Steady(Arc::clone(&heard))),
        ..PoolConfig::default()
    });
    for at in 0..LOOPS {
        let done = pool.off_load_as(CLASS, |_| at);
        assert_eq!(done.expect("no panic"), at);
    }
    let heard = heard.lock();
    let count = |what: &str| heard.iter().filter(|it| **it == what).count();
    let asked = count("asked");
    assert!((1..LOOPS / 2).contains(&asked), "{asked} of {LOOPS} asked");
    // One thread has one part, whatever cores it was on.
    let behind = 2 * LOOPS - heard.len();
    assert!(behind <= sidecore_sched::LAG_MAX, "{behind} events behind");
    assert!(count("departed") <= asked + count("arrived"));
}

#[test]
fn what_the_policy_leaves_to_the_host_runs_on_the_callers_own_core() {
    for dedicated in [false, true] {
        let heard = Heard::default();
        let pool = pool_with(PoolConfig {
            engines: 2,
            dedicated,
            policy: Box::new(Spy {
                decision: Decision::Host,
                heard: Arc::clone(&heard),
            }),
            ..PoolConfig::default()
        });
        let here = std::thread::current().id();
        let mut items = vec![None; 50];
        pool.for_each(CLASS, &mut items, |_, item| {
            *item = Some(std::thread::current().id());
        })
        .expect("no panic");
        assert!(items.iter().all(|id| *id == Some(here)));
        let ran_on = pool.off_load_as(CLASS, |_| std::thread::current().id());
        assert_eq!(ran_on.expect("no panic"), here);
        let commands: u64 = pool.counters().iter().map(|engine| engine.commands).sum();
        assert_eq!(commands, 0);
        let heard = heard.lock();
        assert_eq!(heard.len(), 2);
        for (arrival, departure) in heard.iter() {
            let departure = departure.expect("it departed");
            assert!(departure.on_host && departure.width == 1);
            assert_eq!((arrival.live, arrival.ready), (1, 0));
            assert_eq!(arrival.engines_idle, 2);
        }
    }
}

#[test]
fn a_policy_is_told_whose_work_it_is_and_how_many_are_live() {
    let heard = Heard::default();
    let pool = pool_with(PoolConfig {
        engines: 2,
        policy: Box::new(Spy {
            decision: Decision::engines(2),
            heard: Arc::clone(&heard),
        }),
        ..PoolConfig::default()
    });
    let options = TasksOptions {
        hosts: 1,
        live_max: Some(3),
        ..TasksOptions::default()
    };
    let inside = AtomicUsize::new(0);
    let ids: Vec<u64> = pool
        .tasks(options, |scope| {
            let handles: Vec<_> = (0..3)
                .map(|_| {
                    let (pool, inside) = (&pool, &inside);
                    scope.spawn(TaskOptions::default(), move |task| {
                        inside.fetch_add(1, Ordering::SeqCst);
                        // All three are live, and ready on the one host, when the first one asks.
                        task::wait_until(|| inside.load(Ordering::SeqCst) >= 3)
                            .expect("nobody cancels");
                        pool.for_each(CLASS, &mut [0; 8], |_, item| *item += 1)
                            .expect("no panic");
                        task.id().0
                    })
                })
                .collect();
            handles
                .into_iter()
                .map(|handle| handle.join().expect("an id"))
                .collect()
        })
        .expect("no panic");
    let heard = heard.lock();
    let mut told: Vec<u64> = heard.iter().map(|(arrival, _)| arrival.task.0).collect();
    told.sort_unstable();
    assert_eq!(told, ids, "tasks get their numbers in order");
    assert_eq!(heard[0].0.live, 3);
    assert!(heard[0].0.ready <= 2);
    assert!(heard.iter().all(|(arrival, done)| {
        arrival.engines == 2 && arrival.units == 8 && done.is_some_and(|done| !done.on_host)
    }));
}

#[test]
fn counters_say_who_did_what() {
    let pool = pool_with(PoolConfig {
        engines: 2,
        dedicated: true,
        policy: Box::new(Llp::new(2)),
        ..PoolConfig::default()
    });
    pool.for_each(CLASS, &mut [0_u8; 100], |_, _| {
        std::thread::sleep(Duration::from_micros(20));
    })
    .expect("no panic");
    pool.off_load(|_| std::thread::sleep(Duration::from_millis(1)))
        .expect("no panic");
    // An engine does its accounts after the reply.
    wait_until("accounts", || pool.engines_idle() == 2);
    let engines = pool.snapshot().engines;
    assert_eq!(engines.iter().map(|engine| engine.units).sum::<u64>(), 100);
    assert!(engines.iter().map(|engine| engine.commands).sum::<u64>() >= 2);
    let busy_ns: u64 = engines.iter().map(|engine| engine.busy_ns).sum();
    assert!(busy_ns >= 3_000_000, "{busy_ns} ns");
    assert_eq!(engines.iter().map(|engine| engine.called).sum::<u64>(), 0);
}

#[test]
fn threads_are_served_in_the_order_in_which_they_came() {
    let pool = pool(1);
    let order = parking_lot::Mutex::new(Vec::new());
    for _ in 0..20 {
        order.lock().clear();
        let seat = pool.seat();
        std::thread::scope(|scope| {
            for number in 0..8 {
                let (pool, order) = (&pool, &order);
                scope.spawn(move || {
                    // A task that has had its turn goes to the end of the queue.
                    for _ in 0..2 {
                        pool.call(|_| order.lock().push(number));
                    }
                });
                while pool.shared().line_len() <= number {
                    std::thread::yield_now();
                }
            }
            drop(seat);
        });
        assert_eq!(order.lock()[..8], [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(order.lock().len(), 16);
    }
}
