//! Measured cost of one width, `fixed + share * work`.
//!
//! Why here: the cost of a call at a width has a part that every call has, and a part that grows
//! with its work; calls of any size show both. Each error is assigned to the two parts in
//! proportion to their shares of the cost. So short calls correct the first and long ones the
//! second, whatever the sizes are, and neither part ever becomes negative. For the second each call
//! counts by its work. So ten short ones, which waking an engine made slow, do not outweigh the
//! long one for which it was woken. Where all calls were of one size the parts are not known, and
//! longer calls look as good as they can be: the first call's work is taken to have been divided
//! ideally, and the rest to be the fixed part.
//! Must stay true: among calls of one size the cost is the mean of their times. Pure.

/// Largest number of samples that an estimate is a mean over.
pub(crate) const SAMPLES_MAX: u16 = 1024;

/// Samples in a row below a quarter of the estimate that start it anew. By chance, exponential
/// times do this once in two thousand.
pub(crate) const LOW_RUN: u32 = 5;

/// One width, or the host.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Entry {
    /// Nanoseconds of every call, and nanoseconds for each of its work.
    fixed_ns: f32,
    share: f32,
    /// The work of the calls that the share is a mean over.
    works_ns: f32,
    /// The least work that the fixed part was learned of.
    work_least_ns: f32,
    /// The slowest of the run of low samples: elapsed time over work.
    low: f32,
    /// Factor by which units are slower than on one core alone, less 1; and the means of the
    /// samples of its logarithm, and of their squares.
    slower: f32,
    slowing_ln: f32,
    slowing_ln_squared: f32,
    /// The arrival at which it was tried last.
    pub(crate) tried_at: u32,
    samples: u16,
    slowing_samples: u8,
    low_run: u8,
    /// Calls that the fixed part is still learned anew from.
    anew: u8,
    /// Trials in a row that it lost: each makes the next one rarer.
    pub(crate) losses: u8,
}

impl Entry {
    /// Samples that the estimate rests on.
    pub(crate) fn samples(&self) -> u32 {
        self.samples.into()
    }

    /// True if calls of this much work are far shorter than all seen so far. Long calls do not show
    /// the fixed part.
    pub(crate) fn is_new_to(&self, work_ns: f64) -> bool {
        self.anew > 0 || work_ns * FAR < f64::from(self.work_least_ns)
    }

    /// Takes in a call far shorter than those before, and the few after it: the least fixed part.
    pub(crate) fn learn_anew(&mut self, work_ns: f64, elapsed_ns: f64, calls: u8) {
        let fixed_ns = (elapsed_ns - f64::from(self.share) * work_ns).max(0.0) as f32;
        if self.anew == 0 {
            self.anew = calls;
            self.fixed_ns = fixed_ns;
            self.work_least_ns = work_ns as f32;
        }
        self.anew -= 1;
        self.fixed_ns = self.fixed_ns.min(fixed_ns);
    }

    /// True if it rests on few samples.
    pub(crate) fn is_young(&self) -> bool {
        self.samples() < FIRST_SAMPLES
    }

    /// Factor by which units are slower at this width than on one core alone; at least 1.
    pub(crate) fn slowing(&self) -> f32 {
        1.0 + self.slower
    }

    /// Nanoseconds for so much work.
    pub(crate) fn cost_ns(&self, work_ns: f64) -> f64 {
        self.alone_ns(work_ns) * f64::from(self.slowing())
    }

    /// The same by the last samples if those were all far below the estimate.
    pub(crate) fn lately_ns(&self, work_ns: f64) -> f64 {
        match self.low_run {
            0 => self.cost_ns(work_ns),
            _ => f64::from(self.low) * work_ns * f64::from(self.slowing()),
        }
    }

    /// The cost if units were no slower than on one core.
    fn alone_ns(&self, work_ns: f64) -> f64 {
        f64::from(self.fixed_ns) + f64::from(self.share) * work_ns
    }

    /// Takes in a call of so much work; the estimate is a mean over up to `most` of them. `least`
    /// is the least share of the work that the width can leave. Samples above the estimate
    /// count for `trust` at most. `is_measured`: the work was, and not only guessed by its units.
    pub(crate) fn learn(
        &mut self,
        work_ns: f64,
        elapsed_ns: f64,
        least: f64,
        most: u16,
        trust: f64,
        is_measured: bool,
    ) {
        let sample = (elapsed_ns / work_ns) as f32;
        if self.samples == 0 {
            self.restart(work_ns, sample, least);
            return;
        }
        let expected_ns = self.alone_ns(work_ns);
        if elapsed_ns < expected_ns / 4.0 {
            self.low = match self.low_run {
                0 => sample,
                _ => self.low.max(sample),
            };
            self.low_run += 1;
            let enough = if self.is_young() {
                YOUNG_LOW_RUN
            } else {
                LOW_RUN
            };
            if u32::from(self.low_run) >= enough {
                self.restart(work_ns, self.low, least);
                return;
            }
        } else {
            self.low_run = 0;
        }
        self.samples = (self.samples + 1).min(most);
        self.work_least_ns = self.work_least_ns.min(work_ns as f32);
        let samples = f64::from(self.samples);
        // A sum; once the mean is over as many as it may be, one call's share of it goes.
        if self.samples == most {
            self.works_ns -= self.works_ns / f32::from(most);
        }
        self.works_ns += work_ns as f32;
        let bounded_ns = elapsed_ns.min(expected_ns * 4.0);
        let gain = |gain: f64| match bounded_ns > expected_ns {
            true => gain.min(RISE_GAIN_MAX) * trust,
            false => gain,
        };
        let fixed = f64::from(self.fixed_ns) / expected_ns;
        let rest = 1.0 - fixed;
        let error_ns = bounded_ns - expected_ns;
        let fixed_ns = f64::from(self.fixed_ns) + gain(1.0 / samples) * error_ns * fixed;
        self.fixed_ns = fixed_ns.max(0.0) as f32;
        // A long call says more about the share than many short ones, for which it matters less.
        // (Where the work is only thought, by the number of units, that would be to guess twice.)
        let weight = match is_measured {
            true => work_ns / f64::from(self.works_ns),
            false => 1.0 / samples,
        };
        let share = f64::from(self.share) + gain(weight) * error_ns * rest / work_ns;
        self.share = share.max(SHARE_MIN) as f32;
    }

    /// Forgets the only sample if this one is clearly below it: the first may have found engines
    /// asleep.
    pub(crate) fn drop_slow_first(&mut self, work_ns: f64, elapsed_ns: f64) {
        if self.samples == 1 && elapsed_ns < CLEARLY_LESS * self.alone_ns(work_ns) {
            self.samples = 0;
        }
    }

    fn restart(&mut self, work_ns: f64, ratio: f32, least: f64) {
        let elapsed_ns = f64::from(ratio) * work_ns;
        // A huge call's small losses are no fixed cost.
        let fixed_ns = (elapsed_ns - least * work_ns).min(FIXED_NS_FIRST);
        self.fixed_ns = fixed_ns.max(0.0) as f32;
        self.share = ((elapsed_ns - f64::from(self.fixed_ns)) / work_ns).max(SHARE_MIN) as f32;
        self.work_least_ns = work_ns as f32;
        self.works_ns = work_ns as f32;
        self.samples = 1;
        self.low_run = 0;
        self.anew = 0;
    }

    /// Takes in the factor by which a unit took longer at this width than in the previous call on
    /// one core. Where calls differ in size the factor is chance, and the samples then differ. So
    /// only the mean of the samples less its likely error counts.
    pub(crate) fn learn_slowing(&mut self, factor: f32, width: u32) {
        let bound = (2.0 * width as f32).ln();
        let sample = factor.max(f32::MIN_POSITIVE).ln().clamp(-bound, bound);
        self.slowing_samples = (self.slowing_samples + 1).min(SLOWING_SAMPLES);
        let samples = f32::from(self.slowing_samples);
        self.slowing_ln += (sample - self.slowing_ln) / samples;
        self.slowing_ln_squared += (sample * sample - self.slowing_ln_squared) / samples;
        let variance = (self.slowing_ln_squared - self.slowing_ln * self.slowing_ln).max(0.0);
        let error = match self.slowing_samples {
            // Slower than if the cores worked one after the other: likely another size.
            1 if sample > PLAUSIBLE * (width as f32).ln() => sample,
            _ => SLOWING_ERRORS * (variance / samples).sqrt(),
        };
        // Here, because every arrival asks for it.
        self.slower = (self.slowing_ln - error).max(0.0).exp_m1();
    }
}

/// Number of samples that are taken of each width that comes near the best. A first sample is
/// dropped when [`YOUNG_LOW_RUN`] samples after it are far below.
const FIRST_SAMPLES: u32 = 3;
const YOUNG_LOW_RUN: u32 = 2;

/// Greatest weight of a sample above the estimate.
const RISE_GAIN_MAX: f64 = 1.0 / 16.0;

/// Greatest fixed part that a first call is taken to have had: waking an engine.
const FIXED_NS_FIRST: f64 = 50_000.0;

/// Ratio below which a second sample takes the place of the first.
const CLEARLY_LESS: f64 = 0.9;

/// Least share of the work: estimates are divided by.
const SHARE_MIN: f64 = 1e-6;

/// Ratio of works at which a call is far shorter than another.
const FAR: f64 = 8.0;

/// Logarithm of a first factor of slowing, over that of the width, up to which it is believed.
const PLAUSIBLE: f32 = 1.1;

/// Standard errors by which the factor of slowing is taken to be less.
const SLOWING_ERRORS: f32 = 1.5;

/// Pairs that the factor of slowing is a mean over.
const SLOWING_SAMPLES: u8 = 16;
