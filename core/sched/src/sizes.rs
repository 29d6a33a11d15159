//! Work of calls to come, by their number of units: the time of a unit in calls of about as many.
//!
//! Why here: an arrival has the number of its units, not their time; loops of one class may be few
//! long units now and many short ones then.
//! Must stay true: a mean, so that a class whose calls of equal units differ in work is judged by
//! their average time. It is the larger of a fast mean, which follows within a few calls, and a
//! long one: splitting a short call in vain costs little, and not splitting a long one much.
//! Samples of other numbers of units count only where there is none of this one. Pure.

/// Time of a unit alone on one engine, for each power of two of units.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sizes([Size; BUCKETS]);

#[derive(Debug, Clone, Copy, Default)]
struct Size {
    lately_ns: f32,
    long_ns: f32,
    samples: u8,
}

impl Sizes {
    /// The power of two that `units` belongs to.
    pub(crate) fn bucket(units: u32) -> usize {
        (units.max(1).ilog2() as usize).min(BUCKETS - 1)
    }

    /// Likely nanoseconds of `units` on one engine; `None` before the first sample.
    pub(crate) fn work_ns(&self, units: u32) -> Option<f64> {
        let bucket = Self::bucket(units);
        let nearest = match &self.0[bucket] {
            // The usual case: arrivals ask this several times each.
            size if size.samples != 0 => size,
            _ => {
                let seen = |&(_, size): &(usize, &Size)| size.samples != 0;
                let sizes = self.0.iter().enumerate().filter(seen);
                sizes.min_by_key(|&(other, _)| other.abs_diff(bucket))?.1
            }
        };
        let unit_ns = nearest.lately_ns.max(nearest.long_ns);
        Some(f64::from(unit_ns) * f64::from(units.max(1)))
    }

    /// Takes in the work of a call.
    pub(crate) fn learn(&mut self, units: u32, work_ns: f64) {
        let unit_ns = (work_ns / f64::from(units.max(1))) as f32;
        let size = &mut self.0[Self::bucket(units)];
        size.samples = (size.samples + 1).min(LONG_SAMPLES);
        // Both are plain means until they rest on their full number of samples.
        size.lately_ns += (unit_ns - size.lately_ns) / f32::from(size.samples.min(LATE_SAMPLES));
        size.long_ns += (unit_ns - size.long_ns) / f32::from(size.samples);
    }

    /// Sets the work of calls that nothing is known of.
    pub(crate) fn set(&mut self, units: u32, work_ns: f64) {
        let unit_ns = ((work_ns / f64::from(units.max(1))) as f32).max(0.01);
        self.0[Self::bucket(units)] = Size {
            lately_ns: unit_ns,
            long_ns: unit_ns,
            samples: 1,
        };
    }
}

/// Powers of two that are tracked separately; more units than that count as the last.
const BUCKETS: usize = 24;

/// Calls that each mean is over.
const LATE_SAMPLES: u8 = 8;
const LONG_SAMPLES: u8 = 64;
