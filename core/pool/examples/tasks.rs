//! A program of a hundred tasks, each serial code with off-loaded loops in between, as a user
//! writes it.
//!
//! `cargo run --release -p sidecore-offload --example tasks [TASKS]`
//!
//! Every task follows its own random walk over a table and now and then sums a part of it. The sums
//! are loops; the policy decides their width. While a task waits for an engine or for the last
//! helper of its loop, its core runs another task. No code here depends on the number of cores.
#![allow(clippy::print_stdout)] // A program for people.

use sidecore_offload::{OffloadError, Pool, PoolConfig, TaskOptions, TasksOptions, task};
use sidecore_sched::ClassId;
use std::time::Instant;

const SUM: ClassId = ClassId(0);
const STEPS: usize = 20;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tasks: u64 = match std::env::args().nth(1) {
        Some(count) => count.parse()?,
        None => 100,
    };
    let table: Vec<f64> = (0..1 << 16).map(|i| (f64::from(i) * 0.37).sin()).collect();
    let pool = Pool::start(PoolConfig::default())?;
    let begun = Instant::now();
    let results = pool.tasks(TasksOptions::default(), |scope| {
        let handles: Vec<_> = (0..tasks)
            .map(|seed| {
                scope.spawn(TaskOptions::default(), {
                    let (pool, table) = (&pool, &table);
                    move |_| walk(pool, table, seed)
                })
            })
            .collect();
        handles
            .into_iter()
            .map(|handle| handle.join()?)
            .collect::<Result<Vec<f64>, OffloadError>>()
    })??;
    let elapsed = begun.elapsed();
    let total: f64 = results.iter().sum();
    println!("{tasks} tasks in {elapsed:.1?}, total {total:.6}");
    let snapshot = pool.snapshot();
    for (engine, counters) in snapshot.engines.iter().enumerate() {
        println!("engine {engine}: {counters:?}");
    }
    println!("{:?}", snapshot.tasks);
    Ok(())
}

/// One task: host work, an off-loaded sum, host work, and so on.
fn walk(pool: &Pool, table: &[f64], seed: u64) -> Result<f64, OffloadError> {
    let mut place = seed;
    let mut result = 0.0;
    for _ in 0..STEPS {
        for _ in 0..1_000 {
            place = place
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(seed | 1);
        }
        let part = &table[(place >> 48) as usize / 2..];
        let sum = pool.reduce(
            SUM,
            part.len(),
            1 << 10,
            |_core, range| part[range].iter().map(|value| value * value).sum::<f64>(),
            |left, right| left + right,
        )?;
        result += sum.unwrap_or(0.0) / part.len() as f64;
        if task::is_cancelled() {
            return Err(OffloadError::Cancelled);
        }
    }
    Ok(result)
}
