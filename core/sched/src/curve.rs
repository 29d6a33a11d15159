//! Measured cost of a class of work at each width, by the size of the call; the off-load test; and
//! the schedule of retries of widths that looked worse.
//!
//! Why here: every policy that splits loops caps a width by measurements of its use, and falls back
//! to the host where the paper's test says so: off-load when
//! `t_engine + t_code + 2 t_comm < t_host`. Both sides have to be measured, the host's too.
//!
//! A width's cost is a line over the *work* of a call, `a + c work`: splitting has a fixed cost
//! (`a`), and leaves a share of the work (`c`, at best one part in `width`). So samples of short
//! calls hold for long ones of the same class. The work of a call is known beforehand only from
//! earlier calls: [`Sizes`] keeps the time of a unit for each power of two of units, in a mean that
//! follows within a few calls. With drivers that measure the time of their units
//! ([`Departure::work_ns`]) each call is judged by its own work, whatever its size. With other
//! drivers units are taken to be alike, and only the elapsed times distinguish widths. Where units
//! become slower the more engines work on them (memory, shared caches), `slowing` has the factor,
//! from calls one after the other.
//!
//! The estimate must bear two kinds of noise. Where cores are shared, one loop in a hundred is held
//! up for milliseconds. So a sample counts for at most four times the estimate, and an estimate
//! rises slowly while it rests on few samples. Where tasks differ in size from one off-load to the
//! next, single samples say little. So it becomes a mean over up to [`SAMPLES_MAX`] of them. A
//! width that became fast again shows in [`LOW_RUN`](crate::entry::LOW_RUN) samples in a row below
//! a quarter of it; two are enough as long as it rests on few. And an engine that was asleep
//! answers its first call late: drivers that measure work have widths tried [`RUN`] calls in a row.
//!
//! Must stay true: with nothing measured the answer is optimistic (off-load, and as wide as
//! requested). Nothing is ruled out for good. Once each width that comes near the best was seen a
//! few times, trials of widths that look worse cost at most one part in [`TRIAL_SHARE`] of the
//! class's time and one task on the host beyond it.
//!
//! Source: the multigrain scheduling paper of 2007, section 5.2 (granularity test).

use crate::entry::{Entry, SAMPLES_MAX};
use crate::policy::{Decision, Departure, WIDTH_MAX};
use crate::sizes::Sizes;

/// Reciprocal of the share of a class's time that trials of worse-looking widths may cost.
pub(crate) const TRIAL_SHARE: f64 = 256.0;

/// Least number of arrivals of a class between two trials.
pub(crate) const TRIAL_EVERY: u32 = 32;

/// Calls in a row at a width that is tried, where drivers measure work.
pub(crate) const RUN: u8 = 3;

/// Measured costs by width. Entry 0 is the host.
#[derive(Debug, Clone)]
pub struct Curve {
    entries: [Entry; PLACES],
    sizes: Sizes,
    arrivals: u32,
    trial_at: u32,
    /// Place that is being tried, and calls that it still gets.
    run: (Place, u8),
    /// Departures of these calls that are to come, and the price of each of them.
    run_ends: u8,
    run_paid_ns: f64,
    /// True once a driver has reported the work of a call.
    is_work_known: bool,
    /// True if the last decision was the usual one: no trial, and nothing left to find out first.
    is_settled: bool,
    /// Units of the last departure.
    last_units: u32,
    /// The call before: its place, its kind of size, and the time of a unit in it.
    last: Option<(Place, usize, f32)>,
    /// Nanoseconds that trials may cost now. Negative after a first look at a slow host.
    credit_ns: f64,
}

impl Default for Curve {
    fn default() -> Self {
        Self {
            entries: [Entry::default(); PLACES],
            sizes: Sizes::default(),
            arrivals: 0,
            trial_at: 0,
            run: (Place::HOST, 0),
            run_ends: 0,
            run_paid_ns: 0.0,
            is_work_known: false,
            is_settled: false,
            last_units: 1,
            last: None,
            credit_ns: 0.0,
        }
    }
}

impl Curve {
    /// Takes in a departure.
    pub fn learn(&mut self, departure: &Departure) {
        let elapsed_ns = departure.elapsed_ns as f64;
        let units = departure.units.max(1);
        let place = Place::of(departure.on_host, departure.width);
        let first_look_at_host = departure.on_host && self.at(place).samples() == 0;
        self.last_units = units;
        if departure.work_ns != 0 {
            if self.run_ends > 0 && place == self.run.0 {
                // Engines that slept make a trial dearer than it was thought: paid afterwards.
                self.run_ends -= 1;
                self.credit_ns -= (elapsed_ns - self.run_paid_ns).max(0.0);
            }
            self.learn_with_work(departure, place);
        } else {
            // The reference keeps its first value: units are alike, and widths are compared by
            // elapsed times alone.
            let work_ns = self.sizes.work_ns(units).unwrap_or_else(|| {
                self.sizes.set(units, elapsed_ns * place.cores());
                elapsed_ns * place.cores()
            });
            let work_ns = work_ns.max(0.01);
            // Of the first call a little is taken to be fixed, so that it can be found out.
            let least = match place.is_split() {
                false => f64::INFINITY,
                true => FIRST_SHARE * elapsed_ns / work_ns,
            };
            let entry = self.at_mut(place);
            entry.learn(work_ns, elapsed_ns.max(0.1), least, SAMPLES_MAX, 1.0, false);
        }
        self.credit_ns += elapsed_ns / TRIAL_SHARE;
        // Bounded, so that hours without a trial do not pay for a burst of dear ones.
        self.credit_ns = self.credit_ns.min(elapsed_ns * CREDIT_TASKS_MAX);
        if first_look_at_host {
            // Only now is it known what the look cost; trials wait until it is earned again.
            self.credit_ns -= elapsed_ns;
        }
    }

    fn learn_with_work(&mut self, departure: &Departure, place: Place) {
        let (units, elapsed_ns) = (departure.units.max(1), departure.elapsed_ns as f64);
        let measured_ns = departure.work_ns as f64;
        self.is_work_known = true;
        let bucket = Sizes::bucket(units);
        let unit_ns = (measured_ns / f64::from(units)) as f32;
        if let Some((last_place, last_bucket, last_unit_ns)) = self.last
            && last_bucket == bucket
            && place.is_split() != last_place.is_split()
        {
            // One of the two ran on one core: how much slower are units where several work?
            let (wide, ratio) = match place > last_place {
                true => (place, unit_ns / last_unit_ns),
                false => (last_place, last_unit_ns / unit_ns),
            };
            self.at_mut(wide).learn_slowing(ratio, wide.width());
        }
        let was_alone = self
            .last
            .is_some_and(|(last_place, ..)| !last_place.is_split());
        self.last = Some((place, bucket, unit_ns));
        let slowing = f64::from(self.at(place).slowing());
        let work_ns = (measured_ns / slowing).max(1.0);
        self.sizes.learn(units, work_ns);
        // As if its units had been as fast as on one core.
        let elapsed_ns = (elapsed_ns / slowing).max(1.0);
        // After a call that was not split, this one shows the cost of waking engines rather than
        // that of the width.
        let was_asleep = place.is_split() && was_alone;
        // A host is slower or faster by a factor of its own.
        let least = match place {
            Place::HOST => f64::INFINITY,
            engines => 1.0 / engines.cores(),
        };
        let entry = &mut self.entries[place.index()];
        if was_asleep && entry.samples() != 0 && self.run_ends == 0 {
            // So does the way back from a trial.
            self.credit_ns -= (elapsed_ns - entry.cost_ns(work_ns)).max(0.0);
        }
        if entry.samples() != 0 && entry.is_new_to(work_ns) {
            entry.learn_anew(work_ns, elapsed_ns, RUN);
            return;
        }
        entry.drop_slow_first(work_ns, elapsed_ns);
        let trust = if was_asleep { ASLEEP_TRUST } else { 1.0 };
        entry.learn(work_ns, elapsed_ns, least, RECENT_SAMPLES, trust, true);
    }

    /// Decides for one arrival of `units` units that may use up to `limit` engines: the best
    /// measured width, one not measured yet, or now and then one that looked worse.
    #[must_use]
    pub fn choose(&mut self, limit: u32, units: u32) -> Decision {
        self.count_arrival();
        self.is_settled = false;
        let limit = limit.clamp(1, WIDTH_MAX);
        // Optimistic first: an estimate that was never measured cannot be compared.
        if let Some(width) = self.unexplored(limit, units) {
            return Decision::engines(width);
        }
        let best = self.best_for(limit, units);
        if !self.is_work_known
            && let Some(width) = self.contender(limit, best, units)
        {
            return Decision::engines(width);
        }
        if self.run.1 > 0 && self.run.0 <= Place::engines(limit) {
            self.run.1 -= 1;
            return self.run.0.decision();
        }
        let decision = match self.offload_pays_for(best, units) {
            true => Decision::engines(best),
            false => Decision::Host,
        };
        // A trial disturbs its call: at most one in TRIAL_EVERY arrivals, whatever the credit.
        if self.arrivals.wrapping_sub(self.trial_at) >= TRIAL_EVERY
            && let Some(trial) = self.trial(limit, units, decision)
        {
            return trial;
        }
        self.is_settled = true;
        decision
    }

    /// True if the last decision is the one that arrivals like it get, until more is learned.
    pub(crate) fn is_settled(&self) -> bool {
        self.is_settled
    }

    /// Counts an arrival that got an earlier decision.
    pub(crate) fn count_arrival(&mut self) {
        self.arrivals = self.arrivals.wrapping_add(1);
    }

    /// A width that must be seen before anything is decided; the widest first.
    fn unexplored(&self, limit: u32, units: u32) -> Option<u32> {
        if !self.is_work_known {
            return widths(limit).find(|&width| self.at_width(width).samples() == 0);
        }
        // Costs are lines over the work, and near widths cost alike: halves tell enough, trials do
        // the rest.
        let halves = (0..=limit.ilog2()).map(|halved| limit >> halved);
        let work_ns = self.sizes.work_ns(units).unwrap_or(0.0);
        let is_new = |entry: &Entry| entry.samples() < u32::from(RUN) || entry.is_new_to(work_ns);
        halves
            .into_iter()
            .find(|&width| is_new(self.at_width(width)))
    }

    /// Nanoseconds for each unit at this width in calls as large as the last one, or `None` if
    /// nothing was measured.
    #[must_use]
    pub fn unit_ns(&self, on_host: bool, width: u32) -> Option<f64> {
        let cost_ns = self.cost_ns(Place::of(on_host, width), self.last_units)?;
        Some(cost_ns / f64::from(self.last_units.max(1)))
    }

    /// Likely nanoseconds of a call of `units` at a place that was measured.
    fn cost_ns(&self, place: Place, units: u32) -> Option<f64> {
        let entry = self.at(place);
        let work_ns = self.sizes.work_ns(units)?;
        (entry.samples() != 0).then(|| entry.cost_ns(work_ns))
    }

    /// The same by the last samples, if those were all far below the estimate.
    fn lately_ns(&self, place: Place, units: u32) -> f64 {
        let work_ns = self.sizes.work_ns(units).unwrap_or(0.0);
        self.at(place).lately_ns(work_ns)
    }

    /// The width from 1 to `limit` that is best for calls as large as the last one: see
    /// [`Self::choose`]. `limit` where it was not measured (optimistic first).
    #[must_use]
    #[cfg(test)]
    pub(crate) fn best_width(&self, limit: u32) -> u32 {
        self.best_for(limit, self.last_units)
    }

    /// The width from 1 to `limit` with the least cost, and of those about as good the narrowest:
    /// others can use the engines that it leaves idle.
    fn best_for(&self, limit: u32, units: u32) -> u32 {
        let limit = limit.clamp(1, WIDTH_MAX);
        // The widest may be the best as long as it is unknown.
        if self.at_width(limit).samples() == 0 {
            return limit;
        }
        let costs = || (1..=limit).filter_map(|width| Some((width, self.width_ns(width, units)?)));
        let least = costs().map(|(_, ns)| ns).fold(f64::INFINITY, f64::min);
        costs()
            .find(|&(_, ns)| ns <= least * ABOUT_AS_GOOD)
            .map_or(limit, |(width, _)| width)
    }

    /// A width that may be the best and was seen too seldom to say; the one seen least first.
    fn contender(&self, limit: u32, best: u32, units: u32) -> Option<u32> {
        let close = self.width_ns(best, units).unwrap_or(0.0) * CLOSE;
        let unsure = |&width: &u32| {
            let entry = self.at_width(width);
            entry.samples() < 2
                || entry.is_young() && self.lately_ns(Place::engines(width), units) <= close
        };
        widths(limit)
            .filter(unsure)
            .min_by_key(|&width| self.at_width(width).samples())
    }

    /// The paper's off-load test at this width for calls as large as the last one. True if the
    /// engines' measured time, code loading and communication included, beats the host's, and while
    /// either side is unmeasured.
    #[must_use]
    #[cfg(test)]
    pub(crate) fn offload_pays(&self, width: u32) -> bool {
        self.offload_pays_for(width, self.last_units)
    }

    fn offload_pays_for(&self, width: u32, units: u32) -> bool {
        match (
            self.width_ns(width, units),
            self.cost_ns(Place::HOST, units),
        ) {
            (Some(engines), Some(host)) => engines < host,
            _ => true,
        }
    }

    /// The decision to try instead of `decision`: of all that are affordable, the one that was not
    /// tried for longest.
    fn trial(&mut self, limit: u32, units: u32, decision: Decision) -> Option<Decision> {
        let usual_ns = self.cost_ns(Place::decided(decision), units).unwrap_or(0.0);
        let run = if self.is_work_known { RUN } else { 1 };
        let affordable = |place: Place| -> Option<(Place, f64)> {
            let entry = self.at(place);
            let more_ns = match (place, entry.samples()) {
                // The host is scarce: while it does the work itself, it hands out none.
                (Place::HOST, 0) => self.serial_ns(limit, units) * HOST_GUESS,
                (Place::HOST, _) => self.lately_ns(place, units),
                (_, 0) => 0.0,
                // From few samples, it may be better than it looks.
                (_, samples) => {
                    let doubt = 1.0 - 1.0 / f64::from(samples.max(1)).sqrt();
                    (self.lately_ns(place, units) * doubt - usual_ns).max(0.0)
                }
            };
            let cost_ns = more_ns * f64::from(run) * f64::from(1u32 << entry.losses);
            (cost_ns <= self.credit_ns).then_some((place, cost_ns))
        };
        let (place, cost_ns) = widths(limit)
            .map(Place::engines)
            .chain([Place::HOST])
            .filter(|&place| place != Place::decided(decision))
            .filter_map(affordable)
            .min_by_key(|&(place, _)| self.at(place).tried_at)?;
        self.credit_ns -= cost_ns;
        self.trial_at = self.arrivals;
        self.run = (place, run - 1);
        (self.run_ends, self.run_paid_ns) = (run, usual_ns + cost_ns / f64::from(run));
        // From few samples a loss may be chance, and must not make the next trial rarer.
        let lost = self.at(place).samples() >= LOSS_SAMPLES
            && self.lately_ns(place, units) > usual_ns * CLEARLY;
        let arrivals = self.arrivals;
        let entry = self.at_mut(place);
        entry.tried_at = arrivals;
        entry.losses = if lost {
            (entry.losses + 1).min(LOSSES_MAX)
        } else {
            0
        };
        Some(place.decision())
    }

    /// About one engine's time for a call: measured, or as if wider ones were ideal.
    fn serial_ns(&self, limit: u32, units: u32) -> f64 {
        let ideal = |width: u32| Some(self.width_ns(width, units)? * f64::from(width));
        (1..=limit).find_map(ideal).unwrap_or(0.0)
    }

    fn width_ns(&self, width: u32, units: u32) -> Option<f64> {
        self.cost_ns(Place::engines(width), units)
    }

    fn at(&self, place: Place) -> &Entry {
        &self.entries[place.index()]
    }

    fn at_mut(&mut self, place: Place) -> &mut Entry {
        &mut self.entries[place.index()]
    }

    fn at_width(&self, width: u32) -> &Entry {
        self.at(Place::engines(width))
    }
}

/// The distinct widths up to `limit`, widest first: the limit itself, all up to eight, and above
/// that eight steps to each doubling or fewer.
fn widths(limit: u32) -> impl Iterator<Item = u32> {
    let worth = move |&width: &u32| {
        let step = (width.next_power_of_two() / 8).max(1);
        width == limit || width <= 8 || width.is_multiple_of(step)
    };
    (1..=limit).rev().filter(worth)
}

/// The place of a call: the host (0), or 1 to [`WIDTH_MAX`] engines. Narrower places are less.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place(u8);

impl Place {
    const HOST: Self = Self(0);

    /// `width` engines, clamped to the widths of the table.
    fn engines(width: u32) -> Self {
        Self(width.clamp(1, WIDTH_MAX) as u8)
    }

    fn of(on_host: bool, width: u32) -> Self {
        match on_host {
            true => Self::HOST,
            false => Self::engines(width),
        }
    }

    fn decided(decision: Decision) -> Self {
        Self::of(decision == Decision::Host, decision.width())
    }

    fn decision(self) -> Decision {
        match self {
            Self::HOST => Decision::Host,
            engines => Decision::engines(engines.width()),
        }
    }

    fn index(self) -> usize {
        self.0.into()
    }

    fn width(self) -> u32 {
        self.0.into()
    }

    /// Cores that work on the call.
    fn cores(self) -> f64 {
        self.0.max(1).into()
    }

    /// True if several cores work on the call.
    fn is_split(self) -> bool {
        self.0 > 1
    }
}

/// Entries of a table of all places.
const PLACES: usize = WIDTH_MAX as usize + 1;

/// Ratio of the costs of a width that was seen too seldom and of the best one, up to which it is
/// tried again. Tasks of one class differ in size, and the very first often does more than later
/// ones. (With one sample each, a search's loops of a class were never split again where the first
/// had been the long one.)
const CLOSE: f64 = 2.0;

/// Samples that an estimate is a mean over where each is judged by its own work.
const RECENT_SAMPLES: u16 = 64;

/// Share of a first call's time that is taken to grow with the work, where the driver does not
/// measure it.
const FIRST_SHARE: f64 = 0.9375;

/// Weight of a slow call whose engines may have been asleep.
const ASLEEP_TRUST: f64 = 0.125;

/// A first look at the host waits until this many times one engine's time is affordable.
const HOST_GUESS: f64 = 4.0;

/// Greatest ratio of times at which a narrower width counts as equally good.
const ABOUT_AS_GOOD: f64 = 1.015;

/// Least ratio of times at which a trial counts as lost.
const CLEARLY: f64 = 1.05;

/// Least number of samples with which a trial can be lost.
const LOSS_SAMPLES: u32 = 8;

/// Largest exponent of two by which trials become rarer.
const LOSSES_MAX: u8 = 6;

/// Upper bound of the saved credit for trials, in tasks' time.
const CREDIT_TASKS_MAX: f64 = 4096.0;
