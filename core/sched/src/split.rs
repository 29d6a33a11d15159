//! Division of a loop's iterations among its engines: the first engine's share is a little larger,
//! by as much as measured idle times say.
//!
//! Why here: the first engine has the loop's data already and begins at once; the others first get
//! the packet and fetch. With even shares the first one waits for them at the end. How much larger
//! its share should be depends on the loop and the machine, so it is tuned from one run of a loop
//! to the next: one [`Split`] for each loop class.
//!
//! Must stay true: every iteration belongs to exactly one engine. The first one's share stays
//! between an even share and `FIRST_SHARE_MAX` even shares. Each step is damped, so one disturbed
//! run moves the share by at most an eighth of its maximum.
//!
//! Source: the multigrain scheduling paper of 2007, section 5.3.1 (purposeful load unbalancing).
//!
//! ```
//! use sidecore_sched::split::{Split, SplitRun};
//!
//! let mut split = Split::default();
//! assert_eq!(split.share(100, 4, 0), 0..25);
//! // The first engine waited for the others at the end: it gets more next time.
//! split.learn(&SplitRun {
//!     units: 100,
//!     width: 4,
//!     elapsed_ns: 1_000.0,
//!     first_idle_ns: 300.0,
//!     others_idle_ns: 0.0,
//! });
//! assert!(split.first_units(100, 4) > 25);
//! ```

use std::ops::Range;

/// Upper bound of the first engine's share, in even shares.
pub(crate) const FIRST_SHARE_MAX: f64 = 2.0;

/// The tuned split of one class of loops, for any width.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Split {
    /// Time that the others lose at the start, in units of the time of one iteration. Width-free:
    /// the others' late start costs the same whatever their number.
    late_units: f64,
}

/// Measurements of one run of a split loop.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SplitRun {
    /// Iterations that it had.
    pub units: u32,
    /// Engines that took part.
    pub width: u32,
    /// From the first engine's start to the end of the last engine, in nanoseconds.
    pub elapsed_ns: f64,
    /// Time that the first engine waited at the end for others, in nanoseconds.
    pub first_idle_ns: f64,
    /// Time that the others waited at the end, in nanoseconds, on average.
    pub others_idle_ns: f64,
}

impl Default for Split {
    fn default() -> Self {
        Self { late_units: 0.0 }
    }
}

impl Split {
    /// Iterations of the first engine when `units` are split over `width` engines.
    #[must_use]
    pub fn first_units(&self, units: u32, width: u32) -> u32 {
        let width = width.clamp(1, units.max(1));
        if width == 1 {
            return units;
        }
        // All end together when first = other + late; the widths' sum gives the rest.
        let even = f64::from(units) / f64::from(width);
        let first = even + self.late_units * f64::from(width - 1) / f64::from(width);
        let most = (even * FIRST_SHARE_MAX).min(f64::from(units - (width - 1)));
        (first.clamp(even, most.max(even)).round() as u32).min(units - (width - 1))
    }

    /// The iterations of engine `index` of `width` (0 is the first). Empty where there are fewer
    /// iterations than engines.
    #[must_use]
    pub fn share(&self, units: u32, width: u32, index: u32) -> Range<u32> {
        let width = width.clamp(1, units.max(1));
        let first = self.first_units(units, width);
        match index {
            0 => 0..first,
            _ if index >= width => units..units,
            _ => {
                let (rest, others) = (u64::from(units - first), u64::from(width - 1));
                let cut = |at: u32| first + (rest * u64::from(at) / others) as u32;
                cut(index - 1)..cut(index)
            }
        }
    }

    /// Tunes the share by one run's idle times. A run on one engine changes nothing.
    pub fn learn(&mut self, run: &SplitRun) {
        if run.width < 2 || run.units < run.width || run.elapsed_ns <= 0.0 {
            return;
        }
        let even = f64::from(run.units) / f64::from(run.width);
        let first = f64::from(self.first_units(run.units, run.width));
        // An engine that seems to have been idle all along would make a unit cost nothing.
        let worked_ns = (run.elapsed_ns - run.first_idle_ns).max(run.elapsed_ns / 64.0);
        let unit_ns = worked_ns / first.max(1.0);
        // The first engine idle longer than the others: they started later than was thought.
        let error_units = (run.first_idle_ns - run.others_idle_ns) / unit_ns;
        let step_max = even * (FIRST_SHARE_MAX - 1.0) / 8.0;
        self.late_units += (error_units / 2.0).clamp(-step_max, step_max);
        // Negative would mean that the first engine starts later than those it sends packets to.
        self.late_units = self.late_units.clamp(0.0, even * f64::from(run.width));
    }
}
