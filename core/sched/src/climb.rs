//! Number of tasks to keep live, found by hill climbing on measured throughput.
//!
//! Why here: with as many live tasks as engines, engines idle while their tasks are on the host.
//! When tasks end one by one, the last wave also leaves engines empty. More live tasks mend both,
//! unless each costs the host more (its caches, its switches), which cannot be known beforehand. So
//! it is tried: windows with the present number and with another one in turn, so that a drift of
//! the load hits both alike. The work done in equal numbers of departures is compared.
//!
//! While few waves of tasks are left, only such numbers are tried upwards as make one wave less.
//!
//! Another number is taken only when it does better beyond doubt, and dropped as soon as that has
//! become unlikely. The more a candidate would lose, the sooner it is dropped.
//!
//! Must stay true: never fewer live tasks than engines, never more than [`LIVE_PER_ENGINE_MAX`] for
//! each. Nothing is tried while there are not enough tasks to keep the present number live. A lost
//! trial doubles the time to the next.
//!
//! Source: own.

use crate::policy::Nanos;

/// Largest number of live tasks for each engine.
pub(crate) const LIVE_PER_ENGINE_MAX: u32 = 4;

/// Hill climber over the number of live tasks.
#[derive(Debug, Clone, Default)]
pub(crate) struct Climb {
    engines: u32,
    /// The number that has been accepted; 0 until engines are known.
    accepted: u32,
    /// The next step, up (positive) or down.
    step: i32,
    trial: Option<Trial>,
    /// Departures until the next trial may begin.
    pause: u32,
    pause_next: u32,
    live: u32,
    /// Tasks that are there and not live.
    waiting: u32,
}

/// Rounds of four windows: accepted, candidate, candidate, accepted.
#[derive(Debug, Clone, Copy)]
struct Trial {
    candidate: u32,
    window: u32,
    departures: u32,
    began: Nanos,
    work: f64,
    /// Work and time of this round: the accepted number's first, the candidate's second.
    work_sums: [f64; 2],
    time_sums: [f64; 2],
    /// Logarithms of the rounds' ratios of throughput, candidate over accepted: how many, their
    /// mean, and the sum of squares about it.
    rounds: u32,
    mean: f64,
    squares: f64,
}

impl Climb {
    /// A task asks to off-load on a machine of `engines` while `live` tasks are live and `waiting`
    /// others are there.
    pub(crate) fn arrive(&mut self, engines: u32, live: u32, waiting: u32) {
        self.live = live;
        self.waiting = waiting;
        if self.engines != engines {
            *self = Self {
                engines,
                accepted: engines.max(1),
                // A long step first: its gain or loss shows soonest.
                step: (engines / 2).max(1).cast_signed(),
                pause: PAUSE_MIN,
                pause_next: PAUSE_MIN,
                live,
                waiting,
                trial: None,
            };
        }
    }

    /// Records the end of an off-load that was worth `work` (any unit, the same for all).
    pub(crate) fn depart(&mut self, now: Nanos, work: f64) {
        if self.accepted == 0 {
            return;
        }
        let Some(mut trial) = self.trial else {
            self.pause = self.pause.saturating_sub(1);
            if self.pause == 0 && self.live >= self.accepted {
                self.begin(now);
            }
            return;
        };
        trial.departures += 1;
        if trial.departures <= self.settle() {
            // Tasks come in or are parked; off-loads under way end before.
            trial.began = now;
            trial.work = 0.0;
            self.trial = Some(trial);
            return;
        }
        trial.work += work;
        if trial.departures < self.settle() + WINDOW {
            self.trial = Some(trial);
            return;
        }
        if self.live < trial.candidate.min(self.accepted) {
            // The tasks ran out: nothing to climb for.
            self.trial = None;
            self.pause = PAUSE_MIN;
            return;
        }
        let side = trial.side();
        trial.work_sums[side] += trial.work;
        trial.time_sums[side] += now.saturating_sub(trial.began) as f64;
        trial.window += 1;
        trial.departures = 0;
        trial.began = now;
        trial.work = 0.0;
        if trial.window.is_multiple_of(4) {
            trial.end_round();
            self.trial = Some(trial);
            self.judge(&trial);
        } else {
            self.trial = Some(trial);
        }
    }

    /// True while a trial is under way: equal amounts of work must then be reported as equal.
    #[must_use]
    pub(crate) fn trying(&self) -> bool {
        self.trial.is_some()
    }

    /// Number of tasks to keep live now.
    #[must_use]
    pub(crate) fn target(&self, engines: u32) -> u32 {
        match &self.trial {
            _ if self.accepted == 0 => engines,
            Some(trial) if trial.side() == 1 => trial.candidate,
            _ => self.accepted,
        }
    }

    fn begin(&mut self, now: Nanos) {
        let most = self.engines.saturating_mul(LIVE_PER_ENGINE_MAX);
        let candidate = match self.fewer_waves() {
            Some(candidate) if self.step > 0 => candidate,
            _ => self.accepted.saturating_add_signed(self.step),
        };
        let candidate = candidate.clamp(self.engines.max(1), most);
        if candidate == self.accepted {
            self.step = if self.step > 0 { -1 } else { 1 };
            self.pause = self.pause_next;
            return;
        }
        self.trial = Some(Trial {
            candidate,
            window: 0,
            departures: 0,
            began: now,
            work: 0.0,
            work_sums: [0.0; 2],
            time_sums: [0.0; 2],
            rounds: 0,
            mean: 0.0,
            squares: 0.0,
        });
    }

    /// The number of live tasks that makes one wave less of those that there are, where waves are
    /// few. Any other number between would leave a last wave that fills no engines, which costs
    /// more than all that a better throughput before it can gain.
    fn fewer_waves(&self) -> Option<u32> {
        let tasks = self.live + self.waiting;
        let waves = tasks.div_ceil(self.accepted.max(1));
        (2..=WAVES_FEW)
            .contains(&waves)
            .then(|| tasks.div_ceil(waves - 1))
    }

    /// After each round: goes on, takes the candidate, or drops it.
    fn judge(&mut self, trial: &Trial) {
        let error = trial.error();
        let last = trial.rounds >= ROUNDS_MAX;
        let taken = trial.rounds >= ROUNDS_TAKEN_MIN
            && trial.mean > error * if last { TAKEN_LAST } else { TAKEN_EARLY };
        let hopeless =
            trial.rounds >= ROUNDS_DROPPED_MIN && trial.mean + HOPELESS * error < GAIN_MIN;
        if !(taken || hopeless || last || trial.mean < DISASTER) {
            return;
        }
        self.trial = None;
        if taken {
            self.accepted = trial.candidate;
            self.step = self.step.saturating_mul(2);
            self.pause_next = PAUSE_MIN;
        } else {
            // Halve the step; when it cannot be halved, look the other way.
            self.step = match self.step / 2 {
                0 => -self.step.signum(),
                half => half,
            };
            self.pause_next = self.pause_next.saturating_mul(4).min(PAUSE_MAX);
        }
        self.pause = self.pause_next;
    }

    fn settle(&self) -> u32 {
        2 * self.accepted
    }
}

impl Trial {
    /// Owner of the window: 0 the accepted number, 1 the candidate. In the order 0 1 1 0, so
    /// that a steady drift favours neither.
    fn side(&self) -> usize {
        usize::from(matches!(self.window % 4, 1 | 2))
    }

    fn end_round(&mut self) {
        let rate = |side: usize| self.work_sums[side] / self.time_sums[side].max(1.0);
        let ratio = (rate(1).max(1e-9) / rate(0).max(1e-9)).ln();
        self.rounds += 1;
        // Welford's running mean and squares.
        let off = ratio - self.mean;
        self.mean += off / f64::from(self.rounds);
        self.squares += off * (ratio - self.mean);
        self.work_sums = [0.0; 2];
        self.time_sums = [0.0; 2];
    }

    /// The standard error of the mean, by the rounds' own spread.
    fn error(&self) -> f64 {
        let rounds = f64::from(self.rounds);
        (self.squares / (rounds - 1.0).max(1.0) / rounds).sqrt()
    }
}

/// Number of waves of tasks up to which the last wave counts.
const WAVES_FEW: u32 = 3;

/// Departures in a window.
const WINDOW: u32 = 512;

/// Least number of rounds before a candidate may be taken, or dropped; and the greatest number.
const ROUNDS_TAKEN_MIN: u32 = 4;
const ROUNDS_DROPPED_MIN: u32 = 2;
const ROUNDS_MAX: u32 = 16;

/// Standard errors by which a candidate must be better: to be taken early, and after all rounds.
const TAKEN_EARLY: f64 = 4.0;
const TAKEN_LAST: f64 = 2.0;

/// A candidate is dropped early when this many standard errors above its mean there is still no
/// gain of [`GAIN_MIN`].
const HOPELESS: f64 = 1.5;
const GAIN_MIN: f64 = 0.005;

/// Relative loss that needs no second round.
const DISASTER: f64 = -0.08;

/// Least and greatest number of departures between two trials.
const PAUSE_MIN: u32 = 512;
const PAUSE_MAX: u32 = 65_536;
