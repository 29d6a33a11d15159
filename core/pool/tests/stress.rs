//! Everything at once, from a seed: tasks in tasks, off-loads, loops in loops, reductions, cancels
//! and panics, with equal cores and with dedicated engines.
//!
//! `SIDECORE_SEED=n cargo test -p sidecore-offload --test stress` replays the choices of a run;
//! which thread is first differs.

#![allow(clippy::print_stdout)] // The seed, shown where a test fails.

use sidecore_offload::par::{Bridge, Enumerate, FilterMap, Par, Zip};
use sidecore_offload::{OffloadError, Pool, PoolConfig, Scope, TaskOptions, TasksOptions, task};
use sidecore_sched::{ClassId, Edtlp, Equi, Llp, Policy};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Duration of each test; one round takes milliseconds.
const TEST_TIME: Duration = Duration::from_secs(4);
const CLASS: ClassId = ClassId(1);

/// Random numbers that choose a run's steps.
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        sidecore_random::split_mix(&mut self.0)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

fn seed() -> u64 {
    let given = std::env::var("SIDECORE_SEED").ok();
    let seed = given.and_then(|text| text.parse().ok()).unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |time| time.as_nanos() as u64)
    });
    // Shown where the test fails.
    println!("SIDECORE_SEED={seed}");
    seed
}

fn policy(choice: u64) -> Box<dyn Policy> {
    match choice {
        0 => Box::new(Edtlp),
        1 => Box::new(Llp::new(3)),
        _ => Box::new(Equi::default()),
    }
}

#[test]
fn everything_at_once_ends_with_the_right_results() {
    let mut random = Random(seed());
    let begun = Instant::now();
    let mut rounds = 0;
    while begun.elapsed() < TEST_TIME {
        round(&mut random);
        rounds += 1;
    }
    assert!(rounds > 0);
}

fn round(random: &mut Random) {
    let engines = 1 + random.below(4) as usize;
    let pool = Pool::start(PoolConfig {
        engines,
        dedicated: random.below(2) == 0,
        policy: policy(random.below(3)),
        grace: Duration::from_micros(random.below(3) * 20),
        ..PoolConfig::default()
    })
    .expect("a pool");
    for _ in 0..3 {
        let options = TasksOptions {
            hosts: 1 + random.below(3) as usize,
            live_max: [None, Some(1), Some(4), Some(40)][random.below(4) as usize],
            ..TasksOptions::default()
        };
        let ended = AtomicU64::new(0);
        let spawned = 1 + random.below(30);
        let cancels = random.below(4) == 0;
        let result = pool.tasks(options, |scope| {
            let handles: Vec<_> = (0..spawned)
                .map(|_| spawn(scope, &pool, Random(random.next()), &ended))
                .collect();
            if cancels {
                std::thread::sleep(Duration::from_micros(random.below(500)));
                scope.cancel();
            }
            let joined = random.below(spawned + 1);
            for (place, handle) in (0..).zip(handles) {
                if random.below(20) == 0 {
                    handle.cancel();
                }
                if place < joined {
                    check(&handle.join());
                }
            }
        });
        // Tasks that panicked and were not joined are the scope's error, and the only one.
        match result {
            Ok(()) => {}
            Err(OffloadError::TaskPanicked { message }) => {
                assert!(message.contains("on purpose"), "{message}");
            }
            Err(other) => panic!("{other}"),
        }
        let tasks = pool.snapshot().tasks;
        assert_eq!(tasks.ended, tasks.spawned);
        assert_eq!((tasks.live, tasks.queued, tasks.parked), (0, 0, 0));
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while pool.engines_idle() < engines {
        assert!(Instant::now() < deadline, "an engine never came back");
        std::thread::yield_now();
    }
    assert_eq!(pool.ready(), 0);
}

fn check(result: &Result<(), OffloadError>) {
    match result {
        Ok(()) | Err(OffloadError::Cancelled) => {}
        Err(OffloadError::TaskPanicked { message }) => {
            assert!(message.contains("on purpose"), "{message}");
        }
        Err(other) => panic!("{other}"),
    }
}

fn spawn<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    pool: &'env Pool,
    mut random: Random,
    ended: &'env AtomicU64,
) -> sidecore_offload::JoinHandle<'scope, ()> {
    let options = match random.below(5) {
        0 => TaskOptions::urgent(),
        _ => TaskOptions::default(),
    };
    scope.spawn(options, move |_| {
        for _ in 0..random.below(8) {
            step(pool, &mut random);
        }
        if random.below(6) == 0 {
            let inner = pool.tasks(TasksOptions::default(), |scope| {
                let children: Vec<_> = (0..random.below(4))
                    .map(|_| {
                        let mut random = Random(random.next());
                        scope.spawn(TaskOptions::default(), move |_| step(pool, &mut random))
                    })
                    .collect();
                for child in children {
                    check(&child.join());
                }
            });
            inner.expect("all were joined");
        }
        ended.fetch_add(1, Ordering::Relaxed);
        assert!(random.below(25) > 0, "a task fails on purpose");
    })
}

fn spin(units: u64) -> u64 {
    (0..units * 50).fold(1, |sum: u64, i| sum.wrapping_mul(31).wrapping_add(i))
}

/// One thing that a task does, with its result checked.
fn step(pool: &Pool, random: &mut Random) {
    let size = random.below(100);
    match random.below(9) {
        0 => task::yield_now(),
        1 => {
            let _ = task::sleep_until(task::now_ns() + size * 1_000);
        }
        2 => assert_eq!(pool.call(|_| spin(size)), spin(size)),
        3 => match pool.off_load(|_| (size, spin(size))) {
            Ok(result) => assert_eq!(result, (size, spin(size))),
            Err(error) => assert!(matches!(error, OffloadError::Cancelled), "{error}"),
        },
        4 => {
            // A closure and a result that fit no packet.
            let large = [size; 40];
            match pool.off_load(move |_| large.map(|value| value + 1)) {
                Ok(result) => assert_eq!(result, [size + 1; 40]),
                Err(error) => assert!(matches!(error, OffloadError::Cancelled), "{error}"),
            }
        }
        5 => match pool.off_load(|_| -> u64 { panic!("a kernel fails on purpose") }) {
            Err(OffloadError::Panicked { message }) => assert!(message.contains("on purpose")),
            Err(OffloadError::Cancelled) => {}
            other => panic!("{other:?}"),
        },
        6 => {
            let mut items = vec![size; size as usize];
            match pool.for_each(CLASS, &mut items, |_, item| *item += spin(*item) | 1) {
                Ok(()) => {
                    let expected = size + (spin(size) | 1);
                    assert!(items.iter().all(|&item| item == expected));
                }
                Err(error) => assert!(matches!(error, OffloadError::Cancelled), "{error}"),
            }
        }
        7 => {
            // A loop in a loop.
            let mut rows = vec![vec![0_u64; 5]; 1 + size as usize % 7];
            let result = pool.for_each(CLASS, &mut rows, |_, row| {
                let done = pool.for_each(ClassId(2), row, |_, item| *item += 1);
                assert!(matches!(done, Ok(()) | Err(OffloadError::Cancelled)));
                if done.is_err() {
                    row.fill(1);
                }
            });
            match result {
                Ok(()) => assert!(rows.iter().flatten().all(|&item| item == 1)),
                Err(error) => assert!(matches!(error, OffloadError::Cancelled), "{error}"),
            }
        }
        _ => {
            let values: Vec<f64> = (0..size * 20).map(|i| 1.0 / (i as f64 + 1.5)).collect();
            let sum = |_: &mut _, range: std::ops::Range<usize>| values[range].iter().sum::<f64>();
            let result = pool.reduce(ClassId(3), values.len(), 7, sum, |a, b| a + b);
            match result {
                Ok(total) => {
                    let expected = tree(&values, 7);
                    assert_eq!(total.map(f64::to_bits), expected.map(f64::to_bits));
                }
                Err(error) => assert!(matches!(error, OffloadError::Cancelled), "{error}"),
            }
        }
    }
}

/// Reference of a reduction: sums of chunks, combined in a binary tree.
fn tree(values: &[f64], chunk: usize) -> Option<f64> {
    let chunks: Vec<f64> = values.chunks(chunk).map(|part| part.iter().sum()).collect();
    fn combine(values: &[f64]) -> Option<f64> {
        match values {
            [] => None,
            [value] => Some(*value),
            _ => {
                let (left, right) = values.split_at(values.len().next_power_of_two() / 2);
                Some(combine(left)? + combine(right)?)
            }
        }
    }
    combine(&chunks)
}

/// The same bits with any number of engines, any width, and engines that are held up at random.
#[test]
fn a_reduction_has_the_same_bits_for_any_number_of_engines() {
    let mut random = Random(seed());
    let values: Vec<f64> = (0..5_000)
        .map(|_| (random.next() as f64 / 1e18) * if random.below(2) == 0 { -1.0 } else { 1e-3 })
        .collect();
    for units in [0, 1, 2, 15, 16, 17, 1_000, 5_000] {
        let expected = tree(&values[..units], 16).map(f64::to_bits);
        for engines in 1..=6 {
            for dedicated in [false, true] {
                let width = 1 + random.below(engines as u64) as u32;
                let pool = Pool::start(PoolConfig {
                    engines,
                    dedicated,
                    policy: Box::new(Llp::new(width)),
                    ..PoolConfig::default()
                })
                .expect("a pool");
                for _ in 0..5 {
                    let held_up = random.next();
                    let map = |_: &mut _, range: std::ops::Range<usize>| {
                        if (range.start as u64 ^ held_up).is_multiple_of(13) {
                            std::thread::sleep(Duration::from_micros(held_up % 60));
                        }
                        values[range].iter().sum::<f64>()
                    };
                    let sum = pool.reduce(CLASS, units, 16, map, |a, b| a + b);
                    let sum = sum.expect("no panic").map(f64::to_bits);
                    assert_eq!(sum, expected, "{units} units on {engines} engines");
                }
            }
        }
    }
}

type Keep = fn(usize) -> Option<usize>;

fn odd(pool: &Pool, numbers: Range<usize>) -> FilterMap<'_, Range<usize>, Keep> {
    let keep: Keep = |n| (n % 2 == 1).then_some(n);
    pool.par_range(numbers).filter_map(keep)
}

fn placed<'p>(
    pool: &'p Pool,
    items: &'p [u64],
) -> Par<'p, Zip<Enumerate<&'p [u64]>, Range<usize>>> {
    pool.par(items).enumerate().zip(0..items.len())
}

fn bridge<'p>(pool: &'p Pool, items: &'p [u64]) -> Bridge<'p, std::slice::Iter<'p, u64>> {
    pool.par_bridge(items.iter())
}

/// Loops as iterators, forks and sorts from more threads than engines, each with its own answer.
#[test]
fn loops_forks_and_sorts_of_many_threads_do_not_mix() {
    let pool = Pool::start(PoolConfig {
        engines: 3,
        ..PoolConfig::default()
    })
    .expect("a pool");
    std::thread::scope(|scope| {
        for thread in 0..16_u64 {
            let pool = &pool;
            scope.spawn(move || {
                for round in 0..20 {
                    let mut items: Vec<u64> =
                        (0..3_000).map(|n| (n * 77 + thread) % 3_001).collect();
                    let wanted: u64 = items.iter().sum();
                    let count = odd(pool, 0..3_000).count().expect("no panic");
                    assert_eq!(count, 1_500);
                    let same = placed(pool, &items).filter(|((at, _), place)| at == place);
                    assert_eq!(same.count().expect("no panic"), items.len());
                    let seen = AtomicU64::new(0);
                    let add = |item: &u64| {
                        seen.fetch_add(*item, Ordering::Relaxed);
                    };
                    bridge(pool, &items).for_each(add).expect("no panic");
                    assert_eq!(seen.into_inner(), wanted, "thread {thread}, round {round}");
                    let (low, high) = items.split_at(1_000);
                    let sum = |part: &[u64]| part.iter().sum::<u64>();
                    let (low, high) = pool.join(|| sum(low), || sum(high)).expect("no panic");
                    assert_eq!(low + high, wanted);
                    pool.par_sort_unstable(&mut items).expect("no panic");
                    assert!(items.is_sorted());
                }
            });
        }
    });
}

/// Far more threads than engines, and far more engines than cores.
#[test]
fn threads_of_a_large_machine_get_their_own_answers() {
    const THREADS: u64 = 256;
    for (engines, dedicated) in [(2, false), (256, false), (256, true)] {
        let pool = Pool::start(PoolConfig {
            engines,
            dedicated,
            grace: Duration::ZERO,
            ..PoolConfig::default()
        })
        .expect("a pool");
        let done = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (pool, done) = (&pool, &done);
                scope.spawn(move || {
                    for round in 0..6 {
                        let number = thread * 100 + round;
                        let got = pool.off_load(|_| spin(number % 40) ^ number);
                        assert_eq!(got.expect("no panic"), spin(number % 40) ^ number);
                        let mut items = vec![number; 60];
                        pool.for_each(CLASS, &mut items, |_, item| *item = *item * 3 + 1)
                            .expect("no panic");
                        assert!(items.iter().all(|&item| item == number * 3 + 1));
                        let halves = pool.join(|| number + 1, || spin(number % 7));
                        let halves = halves.expect("no panic");
                        assert_eq!(halves, (number + 1, spin(number % 7)));
                    }
                    done.fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        assert_eq!(done.into_inner(), THREADS);
        let deadline = Instant::now() + Duration::from_secs(60);
        while pool.engines_idle() < engines {
            assert!(Instant::now() < deadline, "an engine never came back");
            std::thread::yield_now();
        }
        assert_eq!(pool.ready(), 0);
    }
}
