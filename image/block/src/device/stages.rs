//! Time per block by stage: the rows of the papers' table.
//!
//! | the papers' stage | here |
//! |---|---|
//! | CLOOP driver -> ULD daemon | request to this device (measured by the export) |
//! | set-up in ULD daemon | `set_up`: range, cache, claim of a slot |
//! | ULD daemon -> SPE | `hand_over`: waiting for an engine, or waking one |
//! | set-up in SPE | `get`: getting the compressed bytes, checking them |
//! | decompression | `inflate` |
//!
//! Must stay true: recording is a few relaxed additions; reading the clock is the caller's cost
//! (about 25 ns each).

use sidecore_bare::width::ToUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A stage of serving a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// From the read's arrival to the claimed slot.
    SetUp,
    /// From the claimed slot to the kernel running on an engine.
    HandOver,
    /// Getting the compressed bytes to the engine and checking them.
    Get,
    /// Decompressing, until the wanted bytes are there.
    Inflate,
}

const STAGES: usize = 4;

/// Histogram buckets: powers of the square root of two from 1 ns up.
const BUCKETS: usize = 72;

/// Times of one stage.
#[derive(Debug)]
struct Times {
    count: AtomicU64,
    sum_ns: AtomicU64,
    buckets: [AtomicU64; BUCKETS],
}

/// Times of all stages since the start (or the last [`Stages::reset`]).
#[derive(Debug)]
pub struct Stages {
    times: [Times; STAGES],
}

impl Default for Stages {
    fn default() -> Self {
        Self {
            times: std::array::from_fn(|_| Times {
                count: AtomicU64::new(0),
                sum_ns: AtomicU64::new(0),
                buckets: std::array::from_fn(|_| AtomicU64::new(0)),
            }),
        }
    }
}

impl Stages {
    /// Records one block's time in one stage.
    pub fn record(&self, stage: Stage, ns: u64) {
        let times = self.of(stage);
        times.count.fetch_add(1, Ordering::Relaxed);
        times.sum_ns.fetch_add(ns, Ordering::Relaxed);
        times.buckets[bucket(ns)].fetch_add(1, Ordering::Relaxed);
    }

    /// Blocks recorded in a stage.
    #[must_use]
    pub fn count(&self, stage: Stage) -> u64 {
        self.of(stage).count.load(Ordering::Relaxed)
    }

    /// Mean time in ns, 0 where nothing was recorded.
    #[must_use]
    pub fn mean_ns(&self, stage: Stage) -> f64 {
        let times = self.of(stage);
        let count = times.count.load(Ordering::Relaxed);
        times.sum_ns.load(Ordering::Relaxed) as f64 / count.max(1) as f64
    }

    /// The time in ns that `share` (0 to 1) of the blocks did not exceed, to within 20 %; 0 where
    /// nothing was recorded.
    #[must_use]
    pub fn quantile_ns(&self, stage: Stage, share: f64) -> f64 {
        let times = self.of(stage);
        let total = times.count.load(Ordering::Relaxed);
        let mut left = (total as f64 * share).ceil().max(1.0) as u64;
        for (index, count) in times.buckets.iter().enumerate() {
            let count = count.load(Ordering::Relaxed);
            if count >= left {
                return if total == 0 {
                    0.0
                } else {
                    // Bounds of buckets are half powers of two; this is the middle of one.
                    2_f64.powf((index as f64 + 0.5) / 2.0)
                };
            }
            left -= count;
        }
        0.0
    }

    fn of(&self, stage: Stage) -> &Times {
        &self.times[stage as usize]
    }

    /// Starts over.
    pub fn reset(&self) {
        for times in &self.times {
            times.count.store(0, Ordering::Relaxed);
            times.sum_ns.store(0, Ordering::Relaxed);
            for bucket in &times.buckets {
                bucket.store(0, Ordering::Relaxed);
            }
        }
    }
}

/// Nanoseconds of `duration`, which is below 584 years.
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Twice the base-2 logarithm, by integer operations.
fn bucket(ns: u64) -> usize {
    let ns = ns.max(1);
    let log = ns.ilog2().to_usize();
    // The upper half of an octave begins at sqrt(2) times its start.
    let upper = u128::from(ns) * u128::from(ns) >= 1_u128 << (2 * log + 1);
    (2 * log + usize::from(upper)).min(BUCKETS - 1)
}
