//! How many tasks to keep live, found by trying: hill climbing on measured throughput.
//!
//! Why here: with as many live tasks as engines, engines idle while their tasks are on the host;
//! and when tasks end one by one, the last wave leaves engines empty. More live tasks mend both,
//! unless each costs the host more (its caches, its switches), which nobody can know beforehand.
//! So it is tried: windows with the present number and with another one in turn, so that a drift of
//! the load hits both alike; the work done in equal numbers of departures is compared.
//!
//! A higher number is taken when it does as well (the last wave gains), a lower one only when it
//! does better. What "as well" may give away is bounded over all steps together.
//!
//! Must stay true: never fewer live tasks than engines, never more than [`LIVE_PER_ENGINE_MAX`] for
//! each; nothing is tried while there are not enough tasks to keep the present number live; a lost
//! trial doubles the time to the next.
//!
//! Source: own.

use crate::policy::Nanos;

/// Live tasks for each engine, at most.
pub const LIVE_PER_ENGINE_MAX: u32 = 4;

/// The climber.
#[derive(Debug, Clone, Default)]
pub struct Climb {
    engines: u32,
    /// The number that has been accepted; 0 until engines are known.
    accepted: u32,
    /// The next step, up (positive) or down.
    step: i32,
    /// Product of the accepted ratios below 1 since the last that was above.
    given_away: f64,
    trial: Option<Trial>,
    /// Departures until the next trial may begin.
    pause: u32,
    pause_next: u32,
    live: u32,
}

/// Windows in turn: accepted, candidate, candidate, accepted, ...
#[derive(Debug, Clone, Copy)]
struct Trial {
    candidate: u32,
    window: u32,
    departures: u32,
    began: Nanos,
    work: f64,
    /// Work and time of the accepted number [0] and of the candidate [1].
    work_sums: [f64; 2],
    time_sums: [f64; 2],
}

impl Climb {
    /// A task asks to off-load on a machine of `engines` while `live` tasks are live.
    pub fn arrive(&mut self, engines: u32, live: u32) {
        self.live = live;
        if self.engines != engines {
            *self = Self {
                engines,
                accepted: engines.max(1),
                step: 1,
                given_away: 1.0,
                pause: PAUSE_MIN,
                pause_next: PAUSE_MIN,
                live,
                trial: None,
            };
        }
    }

    /// An off-load ended that was worth `work` (any unit, the same for all).
    pub fn depart(&mut self, now: Nanos, work: f64) {
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
            // Tasks come in or are parked; what was under way before ends.
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
        self.trial = Some(trial);
        self.judge(&trial);
    }

    /// How many tasks to keep live now.
    #[must_use]
    pub fn target(&self, engines: u32) -> u32 {
        match &self.trial {
            _ if self.accepted == 0 => engines,
            Some(trial) if trial.side() == 1 => trial.candidate,
            _ => self.accepted,
        }
    }

    fn begin(&mut self, now: Nanos) {
        let most = self.engines.saturating_mul(LIVE_PER_ENGINE_MAX);
        let candidate = self
            .accepted
            .saturating_add_signed(self.step)
            .clamp(self.engines.max(1), most);
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
        });
    }

    /// After each pair of windows: goes on, takes the candidate, or drops it.
    fn judge(&mut self, trial: &Trial) {
        if !trial.window.is_multiple_of(2) {
            return;
        }
        let rate = |side: usize| trial.work_sums[side] / trial.time_sums[side].max(1.0);
        let ratio = rate(1) / rate(0).max(f64::MIN_POSITIVE);
        let (pairs, up) = (trial.window / 2, trial.candidate > self.accepted);
        let margin = CLEARLY / f64::from(pairs).sqrt();
        if pairs < PAIRS_MAX && (ratio - 1.0).abs() < margin {
            return;
        }
        let given_away = if ratio >= 1.0 {
            1.0
        } else {
            self.given_away * ratio
        };
        let taken = if up {
            given_away >= 1.0 - GIVE_AWAY_MAX
        } else {
            ratio >= 1.0 + GIVE_AWAY_MAX
        };
        self.trial = None;
        if taken {
            self.accepted = trial.candidate;
            self.given_away = given_away;
            self.step = self.step.saturating_mul(2);
            self.pause_next = PAUSE_MIN;
        } else {
            // Halve the step; when it cannot be halved, look the other way.
            self.step = match self.step / 2 {
                0 => -self.step.signum(),
                half => half,
            };
            self.pause_next = self.pause_next.saturating_mul(2).min(PAUSE_MAX);
        }
        self.pause = self.pause_next;
    }

    fn settle(&self) -> u32 {
        2 * self.accepted
    }
}

impl Trial {
    /// Whose window it is: 0 the accepted number's, 1 the candidate's. In the order 0 1 1 0, so
    /// that a steady drift favours neither.
    fn side(&self) -> usize {
        usize::from(matches!(self.window % 4, 1 | 2))
    }
}

/// Departures in a window.
const WINDOW: u32 = 256;

/// Pairs of windows in a trial, at most.
const PAIRS_MAX: u32 = 8;

/// After one pair, a difference of so much is believed; after n, of this over the root of n.
const CLEARLY: f64 = 0.15;

/// What "as well" may give away, over all steps together.
const GIVE_AWAY_MAX: f64 = 0.015;

/// Departures between two trials.
const PAUSE_MIN: u32 = 64;
const PAUSE_MAX: u32 = 65_536;
