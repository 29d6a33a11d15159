//! Measured cost of a class of work at each width; the off-load test; and the schedule of retries
//! of widths that looked worse.
//!
//! Why here: every policy that splits loops caps a width by what was measured to be useful, and
//! falls back to the host where the paper's test says so: off-load when
//! `t_engine + t_code + 2 t_comm < t_host`. Both sides have to be measured, the host's too.
//!
//! The estimate must bear two kinds of noise. Where cores are shared, one loop in a hundred is held
//! up for milliseconds; so a sample counts for at most four times the estimate, and an estimate
//! rises slowly while it rests on few samples. Where tasks differ in size from one off-load to the
//! next, single samples say little; so it becomes a mean over up to [`SAMPLES_MAX`] of them. A
//! width that became fast again is known by [`LOW_RUN`] samples in a row below a quarter of it; two
//! are enough as long as it rests on few.
//!
//! Must stay true: with nothing measured the answer is optimistic (off-load, and as wide as asked
//! for); nothing is ruled out for good; and once each width that comes near the best was seen a few
//! times, trying things that look worse costs at most one part in [`TRIAL_SHARE`] of the class's
//! time and one task on the host beyond it.
//!
//! Source: the multigrain scheduling paper of 2007, section 5.2 (granularity test).

use crate::policy::{Decision, Departure, WIDTH_MAX};

/// Largest number of samples that an estimate is a mean over.
pub(crate) const SAMPLES_MAX: u32 = 1024;

/// Samples in a row below a quarter of the estimate that start it anew. By chance, exponential
/// times do this once in two thousand.
pub(crate) const LOW_RUN: u32 = 5;

/// Reciprocal of the share of a class's time that trials of worse-looking widths may cost.
pub(crate) const TRIAL_SHARE: f64 = 256.0;

/// Least number of arrivals of a class between two trials.
pub(crate) const TRIAL_EVERY: u32 = 32;

/// Measured times a unit, by width. Entry 0 is the host.
#[derive(Debug, Clone)]
pub struct Curve {
    entries: [Entry; WIDTH_MAX as usize + 1],
    arrivals: u32,
    trial_at: u32,
    /// Nanoseconds that trials may cost now. Negative after a first look at a slow host.
    credit_ns: f64,
}

/// One width, or the host.
#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    /// Elapsed nanoseconds for each unit (engines working at the same time count once).
    unit_ns: f32,
    /// The slowest of the run of low samples.
    low_ns: f32,
    /// The arrival at which it was tried last.
    tried_at: u32,
    samples: u16,
    low_run: u8,
    /// Trials in a row that it lost: each makes the next one rarer.
    losses: u8,
}

impl Default for Curve {
    fn default() -> Self {
        Self {
            entries: [Entry::default(); WIDTH_MAX as usize + 1],
            arrivals: 0,
            trial_at: 0,
            credit_ns: 0.0,
        }
    }
}

impl Curve {
    /// Takes in a departure.
    pub fn learn(&mut self, departure: &Departure) {
        let elapsed_ns = departure.elapsed_ns as f64;
        let sample = (elapsed_ns / f64::from(departure.units.max(1))).max(0.01) as f32;
        let entry = &mut self.entries[place(departure.on_host, departure.width)];
        let first_look_at_host = departure.on_host && entry.samples == 0;
        entry.learn(sample);
        self.credit_ns += elapsed_ns / TRIAL_SHARE;
        self.credit_ns = self.credit_ns.min(elapsed_ns * CREDIT_TASKS_MAX);
        if first_look_at_host {
            self.credit_ns -= elapsed_ns;
        }
    }

    /// Decides for one arrival of `units` units that may use up to `limit` engines: what was
    /// measured best, something not measured yet, or now and then something that looked worse.
    #[must_use]
    pub fn choose(&mut self, limit: u32, units: u32) -> Decision {
        self.arrivals = self.arrivals.wrapping_add(1);
        let limit = limit.clamp(1, WIDTH_MAX);
        if let Some(width) = widths(limit).find(|&width| self.at(width).samples == 0) {
            return Decision::engines(width);
        }
        let best = self.best_width(limit);
        if let Some(width) = self.contender(limit, best) {
            return Decision::engines(width);
        }
        let decision = match self.offload_pays(best) {
            true => Decision::engines(best),
            false => Decision::Host,
        };
        if self.arrivals.wrapping_sub(self.trial_at) < TRIAL_EVERY {
            return decision;
        }
        self.trial(limit, units, decision).unwrap_or(decision)
    }

    /// Nanoseconds for each unit at this width, or `None` if nothing was measured.
    #[must_use]
    pub fn unit_ns(&self, on_host: bool, width: u32) -> Option<f64> {
        let entry = &self.entries[place(on_host, width)];
        (entry.samples != 0).then_some(f64::from(entry.unit_ns))
    }

    /// The width from 1 to `limit` with the least measured time a unit, and of those about as good
    /// the narrowest: what it leaves idle, others can use. `limit` where it was not measured
    /// (optimistic first).
    #[must_use]
    pub fn best_width(&self, limit: u32) -> u32 {
        let limit = limit.clamp(1, WIDTH_MAX);
        if self.at(limit).samples == 0 {
            return limit;
        }
        let measured = (1..=limit).filter(|&width| self.at(width).samples != 0);
        let least = measured
            .clone()
            .map(|width| self.at(width).unit_ns)
            .fold(f32::INFINITY, f32::min);
        measured
            .clone()
            .find(|&width| self.at(width).unit_ns <= least * ABOUT_AS_GOOD)
            .unwrap_or(limit)
    }

    /// A width that may be the best and was seen too seldom to say; the one seen least first.
    fn contender(&self, limit: u32, best: u32) -> Option<u32> {
        let close = self.at(best).unit_ns * CLOSE;
        let unsure = |&width: &u32| {
            let entry = self.at(width);
            entry.samples < 2 || entry.is_young() && entry.lately() <= close
        };
        widths(limit)
            .filter(unsure)
            .min_by_key(|&width| self.at(width).samples)
    }

    /// The paper's off-load test at this width: whether the engines' measured time, code loading
    /// and communication included, beats the host's. True while either side is unmeasured.
    #[must_use]
    pub fn offload_pays(&self, width: u32) -> bool {
        match (self.unit_ns(false, width), self.unit_ns(true, 1)) {
            (Some(engines), Some(host)) => engines < host,
            _ => true,
        }
    }

    /// The decision to try instead of `decision`: of all that are affordable, the one that was not
    /// tried for longest.
    fn trial(&mut self, limit: u32, units: u32, decision: Decision) -> Option<Decision> {
        let usual = self.entries[decided(decision)].unit_ns;
        let units = f64::from(units.max(1));
        let affordable = |place: usize| -> Option<(usize, f64)> {
            let entry = &self.entries[place];
            let unit_ns = match (place, entry.samples) {
                // The host is scarce: what it does itself, it does not hand out meanwhile.
                (0, 0) => self.serial_ns(limit) * HOST_GUESS,
                (0, _) => f64::from(entry.lately()),
                // From few samples, it may be better than it looks.
                (_, samples) => {
                    let doubt = 1.0 - 1.0 / f32::from(samples.max(1)).sqrt();
                    f64::from((entry.lately() * doubt - usual).max(0.0))
                }
            };
            let cost_ns = unit_ns * units * f64::from(1u32 << entry.losses);
            (cost_ns <= self.credit_ns).then_some((place, cost_ns))
        };
        let (place, cost_ns) = widths(limit)
            .map(|width| width as usize)
            .chain([0])
            .filter(|&place| place != decided(decision))
            .filter_map(affordable)
            .min_by_key(|&(place, _)| self.entries[place].tried_at)?;
        self.credit_ns -= cost_ns;
        self.trial_at = self.arrivals;
        let entry = &mut self.entries[place];
        entry.tried_at = self.arrivals;
        let lost = u32::from(entry.samples) >= LOSS_SAMPLES && entry.lately() > usual * CLEARLY;
        entry.losses = if lost {
            (entry.losses + 1).min(LOSSES_MAX)
        } else {
            0
        };
        Some(match place {
            0 => Decision::Host,
            width => Decision::engines(width as u32),
        })
    }

    /// About what one engine takes for a unit: measured, or as if wider ones were ideal.
    fn serial_ns(&self, limit: u32) -> f64 {
        let ideal = |width: u32| self.unit_ns(false, width).map(|ns| ns * f64::from(width));
        (1..=limit).find_map(ideal).unwrap_or(0.0)
    }

    fn at(&self, width: u32) -> &Entry {
        &self.entries[width as usize]
    }
}

impl Entry {
    /// The estimate, or the last samples if those were all far below it.
    fn lately(&self) -> f32 {
        match self.low_run {
            0 => self.unit_ns,
            _ => self.low_ns,
        }
    }

    /// True if it rests on few samples.
    fn is_young(&self) -> bool {
        u32::from(self.samples) < FIRST_SAMPLES
    }

    fn learn(&mut self, sample: f32) {
        if self.samples == 0 {
            self.unit_ns = sample;
            self.samples = 1;
            return;
        }
        if sample < self.unit_ns / 4.0 {
            self.low_ns = if self.low_run == 0 {
                sample
            } else {
                self.low_ns.max(sample)
            };
            self.low_run += 1;
            let enough = if self.is_young() {
                YOUNG_LOW_RUN
            } else {
                LOW_RUN
            };
            if u32::from(self.low_run) >= enough {
                self.unit_ns = self.low_ns;
                self.samples = 1;
                self.low_run = 0;
                return;
            }
        } else {
            self.low_run = 0;
        }
        self.samples = (self.samples + 1).min(SAMPLES_MAX as u16);
        let gain = 1.0 / f32::from(self.samples);
        if sample < self.unit_ns {
            self.unit_ns -= (self.unit_ns - sample) * gain;
        } else {
            let bounded = sample.min(self.unit_ns * 4.0);
            self.unit_ns += (bounded - self.unit_ns) * gain.min(RISE_GAIN_MAX);
        }
    }
}

/// The widths worth telling apart up to `limit`, widest first: the limit itself, all up to eight,
/// and above that eight steps to each doubling or fewer.
fn widths(limit: u32) -> impl Iterator<Item = u32> {
    let worth = move |&width: &u32| {
        let step = (width.next_power_of_two() / 8).max(1);
        width == limit || width <= 8 || width.is_multiple_of(step)
    };
    (1..=limit).rev().filter(worth)
}

/// The table's entry for the host, or for a width.
fn place(on_host: bool, width: u32) -> usize {
    if on_host {
        0
    } else {
        width.clamp(1, WIDTH_MAX) as usize
    }
}

fn decided(decision: Decision) -> usize {
    place(decision == Decision::Host, decision.width())
}

/// Number of samples that are taken of each width within the factor [`CLOSE`] of the best, since
/// tasks of one class differ in size, and the first one of all often does more than those that come
/// after it. A first sample is dropped when [`YOUNG_LOW_RUN`] samples after it are far below. (With
/// one sample each, a search's loops of a class were never split again where the first had been the
/// long one.)
const FIRST_SAMPLES: u32 = 3;
const CLOSE: f32 = 2.0;
const YOUNG_LOW_RUN: u32 = 2;

/// Greatest weight of a sample above the estimate.
const RISE_GAIN_MAX: f32 = 1.0 / 16.0;

/// A first look at the host waits until this many times one engine's time is affordable.
const HOST_GUESS: f64 = 4.0;

/// Greatest ratio of times at which a narrower width counts as equally good.
const ABOUT_AS_GOOD: f32 = 1.015;

/// Least ratio of times at which a trial counts as lost.
const CLEARLY: f32 = 1.05;

/// Least number of samples with which a trial can be lost.
const LOSS_SAMPLES: u32 = 8;

/// Largest exponent of two by which trials become rarer.
const LOSSES_MAX: u8 = 6;

/// Upper bound of the saved credit for trials, in tasks' time.
const CREDIT_TASKS_MAX: f64 = 4096.0;
