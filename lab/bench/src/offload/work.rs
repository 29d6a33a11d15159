//! The host's share of a cycle, an engine that takes no core, and units of loops.
//!
//! Why here: to test a scheduler with eight engines on a machine of two cores, the engines must not
//! need cores: a *virtual* engine is a moment in the future at which it is done. The host's work
//! must be real work, the same for every candidate, however often it is interrupted: a number of
//! steps, found once by the processor time (not the wall time) that they take.
//! Any thread. Source: the scheduling paper (docs/papers.md), 11 us on the host, 96 us on an
//! engine.

use crate::measure::stats::median;
use serde::{Deserialize, Serialize};
use sidecore_sys::clock;

/// Serial work on the host: a number of arithmetic steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HostWork {
    steps: u64,
}

impl HostWork {
    /// As many steps as take `wanted_ns` of processor time. Takes some milliseconds.
    pub(crate) fn calibrate(wanted_ns: u64) -> Self {
        let sample = Self {
            steps: CALIBRATION_STEPS,
        };
        // The shortest of several: interruption adds to a sample, and nothing shortens it.
        let shortest_ns = (0..CALIBRATION_TRIES)
            .map(|_| {
                let begun_ns = clock::thread_cpu_ns();
                sample.run();
                clock::thread_cpu_ns() - begun_ns
            })
            .min()
            .unwrap_or(1);
        let steps = CALIBRATION_STEPS as f64 * wanted_ns as f64 / shortest_ns.max(1) as f64;
        Self {
            steps: steps.round().max(1.0) as u64,
        }
    }

    /// Does the work. Never blocks.
    pub(crate) fn run(self) {
        let mut value = 1_u64;
        for step in 0..self.steps {
            value = std::hint::black_box(value.wrapping_mul(0x5851_f42d_4c95_7f2d) ^ step);
        }
        std::hint::black_box(value);
    }
}

/// From when to when is counted, on the clock of [`clock::now_ns`], which all processes share.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Window {
    /// Workers begin.
    pub(crate) begin_ns: u64,
    /// Cycles that end from here on count.
    pub(crate) from_ns: u64,
    /// Workers end; later cycles do not count.
    pub(crate) until_ns: u64,
}

impl Window {
    /// Time that is counted.
    pub(crate) fn counted_ns(&self) -> u64 {
        self.until_ns - self.from_ns
    }
}

/// Counts of one worker.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counted {
    /// Cycles that ended inside the window.
    pub(crate) cycles: u64,
    /// 99th percentile of the cycles' times.
    pub(crate) p99_ns: u64,
}

/// A worker's cycles, over and over until the window ends. `wait` returns at the moment that it is
/// given.
pub(crate) fn count_cycles(
    work: HostWork,
    engine_ns: u64,
    window: &Window,
    wait: impl FnMut(u64),
) -> Counted {
    count_by(clock::now_ns, || work.run(), engine_ns, window, wait)
}

/// As [`count_cycles`], by any clock.
fn count_by(
    now_ns: impl Fn() -> u64,
    work: impl Fn(),
    engine_ns: u64,
    window: &Window,
    mut wait: impl FnMut(u64),
) -> Counted {
    // Made before anything is counted: no allocation among the cycles.
    let most = window.until_ns.saturating_sub(window.begin_ns) / engine_ns.max(1) + 1;
    let mut taken_ns = Vec::with_capacity(most as usize);
    let mut ended_ns = now_ns();
    while ended_ns < window.until_ns {
        let begun_ns = ended_ns;
        work();
        wait(now_ns() + engine_ns);
        ended_ns = now_ns();
        if (window.from_ns..window.until_ns).contains(&ended_ns) {
            taken_ns.push(ended_ns - begun_ns);
        }
    }
    taken_ns.sort_unstable();
    Counted {
        cycles: taken_ns.len() as u64,
        p99_ns: percentile(&taken_ns, 99),
    }
}

/// Repeats a call until the window ends, or until it reports a failure.
pub(crate) fn count_loops(window: &Window, mut one: impl FnMut() -> bool) -> Counted {
    // Made before anything is counted: no allocation meanwhile.
    let mut taken_ns = Vec::with_capacity(LOOPS_KEPT_MAX);
    let mut cycles = 0;
    let mut ended_ns = clock::now_ns();
    while ended_ns < window.until_ns {
        let begun_ns = ended_ns;
        if !one() {
            return Counted::default();
        }
        ended_ns = clock::now_ns();
        if (window.from_ns..window.until_ns).contains(&ended_ns) {
            cycles += 1;
            if taken_ns.len() < LOOPS_KEPT_MAX {
                taken_ns.push(ended_ns - begun_ns);
            }
        }
    }
    taken_ns.sort_unstable();
    Counted {
        cycles,
        p99_ns: percentile(&taken_ns, 99),
    }
}

/// A percentile of sorted values; 0 of none.
pub(crate) fn percentile(sorted: &[u64], percent: usize) -> u64 {
    match sorted.len() {
        0 => 0,
        count => sorted[(count - 1) * percent / 100],
    }
}

/// Work that no compiler shortens: a chain of steps, each of which needs the one before.
#[inline]
pub(crate) fn chain(mut value: u64, steps: u64) -> u64 {
    for step in 0..steps {
        value = value.wrapping_mul(0x5851_f42d_4c95_7f2d) ^ step;
    }
    value
}

/// Steps of a [`chain`] that takes a given time among others, on this core; the shortest of several
/// tries, as interruption only adds. Takes some milliseconds.
pub(crate) fn steps_of(unit_ns: u64) -> u64 {
    let units = (UNITS_NS / unit_ns).clamp(1, 10_000) as usize;
    let mut items: Vec<u64> = (0..units as u64).collect();
    let mut steps = (unit_ns * 9 / 10).max(1);
    for _ in 0..UNITS_TRIES {
        let taken_ns = (0..UNITS_TRIES).map(|_| {
            let begun_ns = clock::thread_cpu_ns();
            // A number of steps that the compiler knew could be folded.
            let steps = std::hint::black_box(steps);
            items
                .iter_mut()
                .for_each(|item| *item = chain(*item, steps));
            clock::thread_cpu_ns() - begun_ns
        });
        let unit_now_ns = taken_ns.min().unwrap_or(1) as f64 / units as f64;
        let next = steps as f64 * unit_ns as f64 / unit_now_ns.max(0.1);
        steps = (next.round() as u64).max(1);
    }
    std::hint::black_box(items);
    steps
}

/// Nanoseconds of one pass: the median of batches, after as much warm-up as shows their size.
pub(crate) fn measure(window_ns: u64, mut pass: impl FnMut()) -> f64 {
    let (begun_ns, mut taken_ns, mut passes) = (clock::now_ns(), 0, 0);
    while taken_ns < window_ns / 8 || passes < WARM_PASSES_LEAST {
        pass();
        passes += 1;
        taken_ns = clock::now_ns() - begun_ns;
        if taken_ns > window_ns {
            break;
        }
    }
    // So long that reading the clock does not count.
    let batch = (BATCH_NS * passes / taken_ns.max(1)).max(1);
    let begun_ns = clock::now_ns();
    let mut batches = Vec::new();
    loop {
        let from_ns = clock::now_ns();
        for _ in 0..batch {
            pass();
        }
        let until_ns = clock::now_ns();
        batches.push((until_ns - from_ns) as f64 / batch as f64);
        if until_ns - begun_ns >= window_ns {
            return median(&batches);
        }
    }
}

/// Time of a batch.
const BATCH_NS: u64 = 500_000;
const WARM_PASSES_LEAST: u64 = 3;
/// Time of the units of a calibration, and its tries.
const UNITS_NS: u64 = 500_000;
const UNITS_TRIES: usize = 5;
/// Times that are kept for the percentile; later ones only count.
const LOOPS_KEPT_MAX: usize = 1 << 20;
const CALIBRATION_STEPS: u64 = 200_000;
const CALIBRATION_TRIES: usize = 9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twice_the_time_is_twice_the_steps() {
        // The core's speed may change between the two, but not every time.
        let ratios: Vec<f64> = (0..100)
            .map(|_| (HostWork::calibrate(11_000), HostWork::calibrate(22_000)))
            .map(|(once, twice)| twice.steps as f64 / once.steps as f64)
            .take_while(|ratio| !(1.5..2.6).contains(ratio))
            .collect();
        assert!(ratios.len() < 100, "{ratios:?}");
    }

    #[test]
    fn only_cycles_inside_the_window_count() {
        // A clock that only the waits move: cycles of 1000 ns, however busy the machine is.
        let clock = std::cell::Cell::new(500_u64);
        let window = Window {
            begin_ns: 0,
            from_ns: 2_500,
            until_ns: 5_500,
        };
        let mut waits = 0;
        let now_ns = || clock.get();
        let counted = count_by(
            now_ns,
            || (),
            1_000,
            &window,
            |until_ns| {
                waits += 1;
                clock.set(until_ns);
            },
        );
        // They end at 1500, 2500, 3500, 4500 and 5500; the first and the last are outside.
        assert_eq!((waits, counted.cycles, counted.p99_ns), (5, 3, 1_000));
    }

    #[test]
    fn percentiles_of_few_values() {
        assert_eq!(percentile(&[], 99), 0);
        assert_eq!(percentile(&[7], 99), 7);
        let hundred: Vec<u64> = (1..=100).collect();
        assert_eq!(
            (percentile(&hundred, 50), percentile(&hundred, 99)),
            (50, 99)
        );
    }
}
