//! Distance of two cores: the time of a word from one to the other and back.
//!
//! Why here: a virtual machine's cores migrate. Those of one machine were 90 ns apart, or 480, and
//! changed within seconds. Code that passes lines between cores then runs at two speeds, and a
//! median over both is of neither. So every measurement of two cores states their distance. Must
//! stay true: threads of its own are pinned, the caller stays where it is; it ends in milliseconds,
//! even on a busy core.

use sidecore_sys::{SysError, cpu};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Nanoseconds that a word takes from core `here` to core `there` and back: the least mean of a few
/// short runs. None where the other core did not answer within 0.2 s. Blocks for about a
/// millisecond.
///
/// # Errors
/// [`SysError`] where a thread may not run on its core.
pub fn word_round_trip_ns(here: usize, there: usize) -> Result<Option<f64>, SysError> {
    let word = Word(AtomicU64::new(0));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let no_thread = |source| SysError::Call {
            call: "pthread_create",
            source,
        };
        let thread = || std::thread::Builder::new().name("distance".to_owned());
        let echo = thread().spawn_scoped(scope, || {
            // Both are threads of their own: the caller keeps its cores.
            let pinned = cpu::pin(there);
            let mut seen = 0;
            while pinned.is_ok() && !over.load(Ordering::Relaxed) {
                let now = word.0.load(Ordering::Relaxed);
                if now & 1 == 1 && now != seen {
                    // Only the word itself passes between them.
                    word.0.store(now + 1, Ordering::Relaxed);
                    seen = now;
                }
                std::hint::spin_loop();
            }
            pinned
        });
        let echo = echo.map_err(no_thread)?;
        let asking = thread().spawn_scoped(scope, || {
            let pinned = cpu::pin(here);
            let least = pinned.is_ok().then(|| ask(&word)).flatten();
            over.store(true, Ordering::Relaxed);
            pinned.map(|()| least)
        });
        let asking = asking.map_err(|source| {
            // The other one ends.
            over.store(true, Ordering::Relaxed);
            no_thread(source)
        })?;
        let least = join(asking)?;
        join(echo).map(|()| least)
    })
}

fn ask(word: &Word) -> Option<f64> {
    let begun = Instant::now();
    let mut least = None;
    for run in 0..RUNS {
        let mut start = Instant::now();
        for trip in 0..=TRIPS {
            if trip == 1 {
                // The first one waits for the other thread.
                start = Instant::now();
            }
            let ask = 2 * (run * (TRIPS + 1) + trip) + 1;
            word.0.store(ask, Ordering::Relaxed);
            while word.0.load(Ordering::Relaxed) != ask + 1 {
                // The other thread may not get its core at all.
                if begun.elapsed() > TIME_MAX {
                    return least;
                }
                std::hint::spin_loop();
            }
        }
        let mean = start.elapsed().as_nanos() as f64 / TRIPS as f64;
        // The least: everything that disturbs makes it longer.
        least = Some(least.map_or(mean, |least: f64| least.min(mean)));
    }
    least
}

fn join<T>(thread: std::thread::ScopedJoinHandle<'_, Result<T, SysError>>) -> Result<T, SysError> {
    match thread.join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}

/// A word on cache lines of its own.
#[repr(align(128))]
struct Word(AtomicU64);

const RUNS: u64 = 5;
const TRIPS: u64 = 200;
/// Longest time of a measurement, however busy the cores are.
const TIME_MAX: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::word_round_trip_ns;
    use sidecore_sys::cpu;

    #[test]
    fn two_cores_are_some_way_apart() {
        let cpus = cpu::allowed().unwrap();
        let [a, b] = [cpus[0], *cpus.last().unwrap()];
        if a == b {
            return;
        }
        // None on a machine that is very busy.
        if let Some(ns) = word_round_trip_ns(a, b).unwrap() {
            assert!(ns > 1.0, "{ns} ns");
        }
        assert_eq!(cpu::allowed().unwrap(), cpus, "the caller was moved");
    }
}
