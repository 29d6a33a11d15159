//! scratch
#![allow(clippy::print_stdout, missing_docs)]
use sidecore_offload::{Pool, PoolConfig, TaskOptions, TasksOptions};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let only = std::env::args().nth(1);
    let pool = Pool::start(PoolConfig::default())?;
    let rayon = rayon::ThreadPoolBuilder::new().num_threads(2).build()?;
    let n = 50_000u64;
    let mut rates = [vec![], vec![]];
    for _ in 0..40 {
        for way in 0..2 {
            if only.as_deref().is_some_and(|o| o != ["f", "r"][way]) {
                continue;
            }
            let done = AtomicU64::new(0);
            let t = Instant::now();
            for _ in 0..3 {
                if way == 0 {
                    pool.tasks(TasksOptions::default(), |scope| {
                        for _ in 0..n {
                            scope.spawn(TaskOptions::default(), |_| {
                                done.fetch_add(1, Ordering::Relaxed);
                            });
                        }
                    })?;
                } else {
                    rayon.scope(|s| {
                        for _ in 0..n {
                            s.spawn(|_| {
                                done.fetch_add(1, Ordering::Relaxed);
                            });
                        }
                    });
                }
            }
            assert_eq!(done.load(Ordering::Relaxed), 3 * n);
            rates[way].push(3.0 * n as f64 / t.elapsed().as_secs_f64() / 1e6);
        }
    }
    for (way, r) in rates.iter_mut().enumerate() {
        r.sort_by(f64::total_cmp);
        if !r.is_empty() {
            println!(
                "{} median {:.2} M/s, quartiles {:.2} {:.2}",
                ["fibers", "rayon"][way],
                r[r.len() / 2],
                r[r.len() / 4],
                r[r.len() * 3 / 4]
            );
        }
    }
    Ok(())
}
