//! Random times that are exponential and yet have an exact mean.
//!
//! Why here: a model that simulates one off-load in sixteen must not owe its figures to luck. Each
//! stream deals the same [`STRATA`] quantiles of the exponential distribution in another random
//! order, again and again: over each full deal the mean is exactly 1.
//! Must stay true: the same seed deals the same times on every machine.

use std::rc::Rc;

/// Quantiles in one deal.
pub const STRATA: usize = 1024;

/// A small generator: SplitMix64 (Steele, Lea, Flood 2014).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// Begins a sequence.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 up to but not including `limit`, which is not 0.
    pub fn below(&mut self, limit: u32) -> u32 {
        (((self.bits() >> 32) * u64::from(limit)) >> 32) as u32
    }

    /// A number from 0 up to but not including 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// The quantiles that all streams deal.
#[derive(Debug, Clone)]
pub struct Quantiles(Rc<[f64]>);

impl Default for Quantiles {
    fn default() -> Self {
        let raw = (0..STRATA).map(|i| -(1.0 - (i as f64 + 0.5) / STRATA as f64).ln());
        let mean = raw.clone().sum::<f64>() / STRATA as f64;
        Self(raw.map(|time| time / mean).collect())
    }
}

/// One stream of exponential times of mean 1.
#[derive(Debug, Clone)]
pub struct Stream {
    quantiles: Quantiles,
    order: Box<[u16]>,
    at: usize,
    random: Random,
}

impl Stream {
    /// A stream in an order of its own.
    #[must_use]
    pub fn new(quantiles: &Quantiles, seed: u64) -> Self {
        Self {
            quantiles: quantiles.clone(),
            order: (0..STRATA as u16).collect(),
            at: 0,
            random: Random::new(seed),
        }
    }

    /// The next time.
    pub fn next_time(&mut self) -> f64 {
        // Shuffled as it is dealt: Fisher and Yates, one step a time.
        let left = (STRATA - self.at) as u32;
        let other = self.at + self.random.below(left) as usize;
        self.order.swap(self.at, other);
        let time = self.quantiles.0[usize::from(self.order[self.at])];
        self.at = (self.at + 1) % STRATA;
        time
    }
}
