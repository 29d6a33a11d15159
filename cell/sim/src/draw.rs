//! Random times that are exponential and yet have an exact mean.
//!
//! Why here: a model that simulates one off-load in sixteen must not owe its figures to luck. Each
//! stream repeatedly deals the same [`STRATA`] quantiles of the exponential distribution, each time
//! in another random order. So over each full deal the mean is exactly 1.
//! Must stay true: the same seed deals the same times on every machine.

use sidecore_bare::width::ToUsize;
use sidecore_random::SplitMix;
use std::rc::Rc;

/// Quantiles in one deal.
pub(crate) const STRATA: u32 = 1024;

/// The quantiles that all streams deal.
#[derive(Debug, Clone)]
pub(crate) struct Quantiles(Rc<[f64]>);

impl Default for Quantiles {
    fn default() -> Self {
        // The middles of equal strata; their mean is a little below 1, which is corrected.
        let raw = (0..STRATA).map(|i| -(1.0 - (f64::from(i) + 0.5) / f64::from(STRATA)).ln());
        let mean = raw.clone().sum::<f64>() / f64::from(STRATA);
        Self(raw.map(|time| time / mean).collect())
    }
}

/// One stream of exponential times of mean 1.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    quantiles: Quantiles,
    order: Box<[u32]>,
    at: u32,
    random: SplitMix,
}

impl Stream {
    /// A stream in an order of its own.
    #[must_use]
    pub(crate) fn new(quantiles: &Quantiles, seed: u64) -> Self {
        Self {
            quantiles: quantiles.clone(),
            order: (0..STRATA).collect(),
            at: 0,
            random: SplitMix::new(seed),
        }
    }

    /// The next time.
    pub(crate) fn next_time(&mut self) -> f64 {
        // Shuffled as it is dealt: Fisher and Yates, one step a time.
        let other = self.at + below(&mut self.random, STRATA - self.at);
        let at = self.at.to_usize();
        self.order.swap(at, other.to_usize());
        let time = self.quantiles.0[self.order[at].to_usize()];
        self.at = (self.at + 1) % STRATA;
        time
    }
}

/// A number from 0 up to but not including `limit`, which is not 0, by the upper half of the bits.
fn below(random: &mut SplitMix, limit: u32) -> u32 {
    (((random.bits() >> 32) * u64::from(limit)) >> 32) as u32
}
