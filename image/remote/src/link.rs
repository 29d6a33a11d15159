//! Estimates the round trip and bandwidth of the link to a source from the requests made.
//!
//! Why here: pure, so that it can be tested without a clock; times are arguments.
//! Must stay true: the window never falls below [`WINDOW_BYTES_MIN`] nor rises above the caller's
//! limit, whatever the measurements are.
//!
//! The window is twice the product of the shortest recent round trip and the highest recent rate.
//! If the window itself limits the rate, the window doubles with each round. If the link is full,
//! one product of requests is queued in addition to the one in flight. "Recent" means the last
//! [`SLICES`] slices of time, as in BBR.

use sidecore_bare::width::{ToU64, ToUsize};
use std::time::Duration;

/// Estimator of a link.
#[derive(Debug, Default)]
pub(crate) struct Link {
    /// Shortest time to a reply's first byte, by slice.
    round_trips: [Option<Duration>; SLICES],
    /// Bytes received, by slice.
    bytes: [u64; SLICES],
    /// The number of the current slice.
    slice: u64,
}

impl Link {
    /// Records a reply's head, received `waited` after its request was sent. `now` counts from any
    /// fixed start.
    pub(crate) fn answered(&mut self, now: Duration, waited: Duration) {
        let slot = self.turn_to(now);
        let best = self.round_trips[slot].map_or(waited, |best| best.min(waited));
        self.round_trips[slot] = Some(best);
    }

    /// Records received bytes of a body.
    pub(crate) fn received(&mut self, now: Duration, bytes: u64) {
        let slot = self.turn_to(now);
        self.bytes[slot] += bytes;
    }

    /// The shortest recent round trip.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        self.round_trips.iter().flatten().min().copied()
    }

    /// The highest recent rate, in bytes per second.
    pub(crate) fn bytes_per_s(&self) -> u64 {
        let most = self.bytes.iter().max().copied().unwrap_or(0);
        most.saturating_mul(SLICES_PER_S)
    }

    /// Bytes to keep in flight, at most `most`.
    pub(crate) fn window_bytes(&self, most: u64) -> u64 {
        let round_trip = self.round_trip().unwrap_or_default().as_micros();
        // Any rate and any round trip may be measured: 64 bits would not hold every product.
        let product = u128::from(self.bytes_per_s()) * round_trip / 1_000_000;
        let window = u64::try_from(2 * product).unwrap_or(u64::MAX);
        window.max(WINDOW_BYTES_MIN).min(most)
    }

    /// Advances to the slice that contains `now`, dropping the slices that it replaces; returns its
    /// slot.
    fn turn_to(&mut self, now: Duration) -> usize {
        let slice = now.as_secs() * SLICES_PER_S + u64::from(now.subsec_millis()) / SLICE_MS;
        // Times of several threads may be slightly out of order.
        for passed in (self.slice + 1..=slice).take(SLICES) {
            let slot = slot_of(passed);
            // After a pause the old values are still the best estimate. A slice is dropped only
            // when another takes its place, and a full turn keeps the last one.
            self.round_trips[slot] = None;
            self.bytes[slot] = 0;
        }
        if slice > self.slice + SLICES.to_u64() {
            self.restart(slice);
        }
        self.slice = self.slice.max(slice);
        slot_of(self.slice)
    }

    /// Everything is older than the whole history: start over.
    fn restart(&mut self, slice: u64) {
        *self = Self {
            slice,
            ..Self::default()
        };
    }
}

/// The place of a slice in the history.
fn slot_of(slice: u64) -> usize {
    slice.to_usize() % SLICES
}

/// Number of slices in the history.
const SLICES: usize = 32;
/// Length of a slice. Shorter slices would mistake a burst out of a buffer for the link's rate.
const SLICE_MS: u64 = 200;
const SLICES_PER_S: u64 = 1000 / SLICE_MS;
/// Window before any measurement.
pub(crate) const WINDOW_BYTES_MIN: u64 = 16 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_window_is_twice_the_product_and_bounded() {
        let mut link = Link::default();
        assert_eq!(link.window_bytes(1 << 30), WINDOW_BYTES_MIN);
        // 125 MB/s at 200 ms: 25 MB.
        for at in 0..2000 {
            link.answered(at * MS, 200 * MS + at % 7 * MS);
            link.received(at * MS, 125_000);
        }
        let window = link.window_bytes(1 << 30);
        assert!((49_000_000..=51_000_000).contains(&window), "{window}");
        assert_eq!(link.window_bytes(20 << 20), 20 << 20);
        assert_eq!(link.round_trip(), Some(200 * MS));
        // Measurements are forgotten in the end.
        link.answered(3_600_000 * MS, 1 * MS);
        assert_eq!(link.window_bytes(1 << 30), WINDOW_BYTES_MIN);
        assert_eq!(link.round_trip(), Some(1 * MS));
    }

    #[test]
    fn times_out_of_order_change_no_other_slice() {
        let mut link = Link::default();
        link.received(5000 * MS, 1000);
        link.received(100 * MS, 1000);
        assert_eq!(link.bytes_per_s(), 10_000);
    }
}
