//! What off-loading a class of work costs at each width, as measured; and the off-load test.
//!
//! Why here: `equi` and later policies cap a width by what was measured to be useful, and fall
//! back to the host where the papers' test says so: off-load when
//! `t_engine + t_code + 2 t_comm < t_host`.
//! A mean would not do: where cores are shared, one loop in a hundred is held up for milliseconds,
//! and a width that was good would look bad for long. So an estimate falls fast and rises slowly,
//! and a sample counts for at most twice the estimate: it follows the undisturbed runs.
//!
//! Must stay true: with nothing measured the answer is optimistic (off-load, and as wide as asked
//! for); no width is ruled out for good, because a loser is tried again every
//! [`REMEASURE_EVERY`] arrivals, and one undisturbed run brings its estimate half-way down.
//!
//! Source: the multigrain scheduling paper of 2007, section 3 (granularity of off-loading).

use crate::policy::{Departure, WIDTH_MAX};

/// Weight of a sample above the estimate: 1/16. Below it: 1/2.
const RISE_SHIFT: u32 = 4;

/// After so many arrivals a width that looked worse is measured once more.
pub const REMEASURE_EVERY: u32 = 64;

/// Widths are told apart up to this one; wider shares the last entry.
const WIDTHS: usize = WIDTH_MAX as usize + 1;

/// Estimates of the time a unit takes, by width. Entry 0 is the host.
#[derive(Debug, Clone)]
pub struct Curve {
    /// Nanoseconds a unit, times 16, elapsed (all engines together count once). 0: not measured.
    unit_ns_x16: [u64; WIDTHS],
    arrivals: u32,
}

impl Default for Curve {
    fn default() -> Self {
        Self {
            unit_ns_x16: [0; WIDTHS],
            arrivals: 0,
        }
    }
}

impl Curve {
    /// Takes in a departure.
    pub fn learn(&mut self, departure: &Departure) {
        let units = u64::from(departure.units.max(1));
        let sample = (departure.elapsed_ns.saturating_mul(16) / units).max(1);
        let entry = &mut self.unit_ns_x16[place(departure.on_host, departure.width)];
        *entry = match *entry {
            0 => sample,
            now if sample < now => (now - (now - sample).div_ceil(2)).max(1),
            now => now + ((sample.min(now.saturating_mul(2)) - now) >> RISE_SHIFT),
        };
    }

    /// Counts an arrival; true when it is time to measure a width that looked worse.
    pub fn count_arrival(&mut self) -> bool {
        self.arrivals = self.arrivals.wrapping_add(1);
        self.arrivals.is_multiple_of(REMEASURE_EVERY)
    }

    /// Nanoseconds a unit at this width, or `None` where nothing was measured.
    #[must_use]
    pub fn unit_ns(&self, on_host: bool, width: u32) -> Option<f64> {
        let entry = self.unit_ns_x16[place(on_host, width)];
        (entry != 0).then_some(entry as f64 / 16.0)
    }

    /// The width from 1 to `limit` with the least measured time a unit; an unmeasured width counts
    /// as better than any measured one and the widest such is taken (optimistic first).
    #[must_use]
    pub fn best_width(&self, limit: u32) -> u32 {
        let limit = limit.clamp(1, WIDTH_MAX);
        let entry = |width: u32| self.unit_ns_x16[width as usize];
        if entry(limit) == 0 {
            return limit;
        }
        (1..=limit)
            .rev()
            .filter(|&width| entry(width) != 0)
            .min_by_key(|&width| entry(width))
            .unwrap_or(limit)
    }

    /// The papers' off-load test at this width: whether the engines' measured time, communication
    /// included, beats the host's. True while either side is unmeasured.
    #[must_use]
    pub fn offload_pays(&self, width: u32) -> bool {
        match (self.unit_ns(false, width), self.unit_ns(true, 1)) {
            (Some(engines), Some(host)) => engines < host,
            _ => true,
        }
    }
}

/// The table's entry for the host, or for a width.
fn place(on_host: bool, width: u32) -> usize {
    if on_host {
        0
    } else {
        width.clamp(1, WIDTH_MAX) as usize
    }
}
