//! Part of a policy for some of its callers: decisions that still hold, and events that are
//! reported to the policy a little later.
//!
//! Why here: a policy is one state for all cores. If each loop asked it, its lock would be a line
//! that all cores write. Most loops of a task are like the ones before. So a [`Shard`] gives
//! the last decision again where the policy says that it holds ([`Policy::holds`]). It keeps the
//! events of such loops until the policy is asked the next time, or they become too many.
//!
//! Must stay true: a policy gets each event once, with its own time, those of one shard in their
//! order. A task has one shard, or a departure that is kept in one could follow the task's next
//! arrival in another. At any time the policy lacks at most [`LAG_MAX`] events of each shard. No
//! decision is given again after as many events of its shard, nor [`LEASE_NS`] later: a policy
//! learns of long loops as they begin. With the policy's tick a driver reports the events of shards
//! that are quiet, or a policy would take a task that went quiet for one whose work goes on.
//! Windows, means and counts of a policy thus stay what they are, and move by a few events. Pure.
//! Source: own.

use crate::policy::{Arrival, Decision, Departure, Nanos, Policy, TaskId, Waiting};

/// The most events of one shard that its policy does not know: arrivals and departures.
pub const LAG_MAX: usize = 16;

/// Time without an event after which a shard is quiet.
const QUIET_NS: Nanos = 10_000_000;

/// Time for which a decision is given again: of loops that take longer, each is asked about.
const LEASE_NS: Nanos = 10_000_000;

/// Decisions that a shard repeats, of the kinds of arrivals that it saw last.
const LEASES: usize = 4;

/// Decisions and events of some callers.
#[derive(Debug)]
pub struct Shard {
    kept: Vec<Event>,
    /// Events so far, and the time of the last one.
    events: u64,
    last: Nanos,
    leases: [Option<Lease>; LEASES],
    /// The lease that the next one replaces.
    oldest: usize,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Arrived(Nanos, Arrival),
    Departed(Nanos, Departure),
}

/// A decision that holds for arrivals like this one.
#[derive(Debug, Clone, Copy)]
struct Lease {
    arrival: Arrival,
    decision: Decision,
    /// Events before it was given, and its time.
    since: u64,
    at: Nanos,
}

impl Lease {
    /// True if only the tasks differ.
    fn is_for(&self, arrival: &Arrival) -> bool {
        let task = self.arrival.task;
        self.arrival == Arrival { task, ..*arrival }
    }
}

impl Default for Shard {
    fn default() -> Self {
        Self {
            kept: Vec::with_capacity(LAG_MAX),
            events: 0,
            last: 0,
            leases: [None; LEASES],
            oldest: 0,
        }
    }
}

impl Shard {
    /// The decision on an arrival where an earlier one holds for it. Its departure goes to
    /// [`Self::depart`]. `None`: to be asked for ([`Self::ask`]). Allocates nothing.
    #[inline]
    pub fn decide(&mut self, now: Nanos, arrival: &Arrival) -> Option<Decision> {
        // With room for its departure.
        if self.kept.len() + 2 > LAG_MAX {
            return None;
        }
        let events = self.events;
        let holds = |lease: &&Lease| {
            lease.is_for(arrival)
                && events - lease.since < LAG_MAX as u64
                && now.saturating_sub(lease.at) < LEASE_NS
        };
        let decision = self.leases.iter().flatten().find(holds)?.decision;
        self.keep(Event::Arrived(now, *arrival));
        Some(decision)
    }

    /// Asks the policy about an arrival, after all events that it does not know. True if the
    /// departure may be reported later ([`Self::depart`]); else [`Self::report`] follows that.
    pub fn ask(
        &mut self,
        policy: &mut dyn Policy,
        now: Nanos,
        arrival: &Arrival,
    ) -> (Decision, bool) {
        self.report(policy);
        let decision = policy.arrive(now, arrival);
        self.events += 1;
        self.last = now;
        let holds = policy.holds(arrival);
        let lease = holds.then_some(Lease {
            arrival: *arrival,
            decision,
            since: self.events,
            at: now,
        });
        let mut leases = self.leases.iter();
        let known = leases.position(|it| it.is_some_and(|it| it.is_for(arrival)));
        match known {
            Some(place) => self.leases[place] = lease,
            None if holds => {
                self.leases[self.oldest] = lease;
                self.oldest = (self.oldest + 1) % LEASES;
            }
            None => {}
        }
        (decision, holds)
    }

    /// Keeps a departure for the policy. True if it is to be reported now ([`Self::report`]).
    pub fn depart(&mut self, now: Nanos, departure: &Departure) -> bool {
        self.keep(Event::Departed(now, *departure));
        self.kept.len() >= LAG_MAX
    }

    /// Reports all that was kept to the policy.
    pub fn report(&mut self, policy: &mut dyn Policy) {
        for event in self.kept.drain(..) {
            match event {
                Event::Arrived(at, arrival) => policy.arrived(at, &arrival),
                Event::Departed(at, departure) => policy.depart(at, &departure),
            }
        }
    }

    /// The same, where there was no event for a while.
    pub fn report_if_quiet(&mut self, policy: &mut dyn Policy, now: Nanos) {
        if now.saturating_sub(self.last) >= QUIET_NS {
            self.report(policy);
        }
    }

    fn keep(&mut self, event: Event) {
        let (Event::Arrived(at, _) | Event::Departed(at, _)) = event;
        self.events += 1;
        self.last = at;
        self.kept.push(event);
    }
}

/// A policy that is driven through shards, tasks in turn: as a pool of several cores does it, for
/// models in virtual time.
pub struct Sharded {
    policy: Box<dyn Policy>,
    shards: Box<[Shard]>,
    /// Tasks whose departures are reported at once.
    prompt: Vec<TaskId>,
    asked: u64,
}

impl Sharded {
    /// `policy` behind this many shards, at least one.
    #[must_use]
    pub fn new(policy: Box<dyn Policy>, shards: usize) -> Self {
        Self {
            policy,
            shards: (0..shards.max(1)).map(|_| Shard::default()).collect(),
            prompt: Vec::new(),
            asked: 0,
        }
    }

    /// Arrivals that the policy was asked about.
    #[must_use]
    pub fn asked(&self) -> u64 {
        self.asked
    }

    fn place(&self, task: TaskId) -> usize {
        // Fewer than there are, so it is a place.
        (task.0 % self.shards.len() as u64) as usize
    }
}

impl Policy for Sharded {
    fn name(&self) -> String {
        self.policy.name()
    }

    fn arrive(&mut self, now: Nanos, arrival: &Arrival) -> Decision {
        let place = self.place(arrival.task);
        let shard = &mut self.shards[place];
        if let Some(decision) = shard.decide(now, arrival) {
            return decision;
        }
        let (decision, lags) = shard.ask(&mut *self.policy, now, arrival);
        self.asked += 1;
        if !lags {
            self.prompt.push(arrival.task);
        }
        decision
    }

    fn depart(&mut self, now: Nanos, departure: &Departure) {
        let place = self.place(departure.task);
        let prompt = self.prompt.iter().position(|&it| it == departure.task);
        if let Some(prompt) = prompt {
            self.prompt.swap_remove(prompt);
        }
        let shard = &mut self.shards[place];
        if shard.depart(now, departure) || prompt.is_some() {
            shard.report(&mut *self.policy);
        }
    }

    fn tick(&mut self, now: Nanos) {
        for shard in &mut self.shards {
            shard.report_if_quiet(&mut *self.policy, now);
        }
        self.policy.tick(now);
    }

    fn live_tasks(&self, engines: u32) -> u32 {
        self.policy.live_tasks(engines)
    }

    fn waiting(&self) -> Waiting {
        self.policy.waiting()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::ClassId;
    use crate::{Equi, Llp, Mgps};

    fn arrival(task: u64, units: u32) -> Arrival {
        Arrival {
            task: TaskId(task),
            class: ClassId(1),
            units,
            engines_idle: 8,
            engines: 8,
            ready: 0,
            live: 1,
            waiting: 0,
        }
    }

    fn departure(task: u64, units: u32, width: u32) -> Departure {
        Departure {
            task: TaskId(task),
            class: ClassId(1),
            units,
            width,
            on_host: false,
            elapsed_ns: u64::from(units) * 1_000 / u64::from(width),
            work_ns: u64::from(units) * 1_000,
        }
    }

    /// An event: its time, its kind and its task.
    type Seen = (Nanos, &'static str, u64);

    /// Records its events; its decision holds if it says so.
    struct Recorder {
        holds: bool,
        seen: Vec<Seen>,
    }

    impl Policy for Recorder {
        fn name(&self) -> String {
            "recorder".into()
        }

        fn arrive(&mut self, now: Nanos, arrival: &Arrival) -> Decision {
            self.seen.push((now, "asked", arrival.task.0));
            Decision::engines(2)
        }

        fn depart(&mut self, now: Nanos, departure: &Departure) {
            self.seen.push((now, "departed", departure.task.0));
        }

        fn tick(&mut self, _now: Nanos) {}

        fn holds(&self, _arrival: &Arrival) -> bool {
            self.holds
        }

        fn arrived(&mut self, now: Nanos, arrival: &Arrival) {
            self.seen.push((now, "arrived", arrival.task.0));
        }
    }

    /// Events that a policy got of loops on one core, and how often it was asked.
    fn recorded(holds: bool, loops: u64, tasks: u64) -> (Vec<Seen>, u64) {
        let seen = Vec::new();
        let (mut policy, mut shard) = (Recorder { holds, seen }, Shard::default());
        let mut asked = 0;
        for at in 0..loops {
            let (now, task) = (2 * at, at % tasks);
            let arrives = arrival(task, 9);
            let (decision, lags) = match shard.decide(now, &arrives) {
                Some(decision) => (decision, true),
                None => {
                    asked += 1;
                    shard.ask(&mut policy, now, &arrives)
                }
            };
            assert_eq!(decision.width(), 2);
            if shard.depart(now + 1, &departure(task, 9, 2)) || !lags {
                shard.report(&mut policy);
            }
            let behind = now + 2 - policy.seen.len() as u64;
            assert!(behind <= LAG_MAX as u64, "{behind} events behind");
        }
        (policy.seen, asked)
    }

    #[test]
    fn a_policy_hears_of_each_event_once_in_order_and_soon() {
        let (seen, asked) = recorded(true, 100, 3);
        assert!(asked < 100 / 6, "{asked} of 100 asked");
        for (at, (time, what, task)) in seen.iter().enumerate() {
            let at = at as u64;
            assert_eq!((*time, *task), (at, at / 2 % 3));
            assert_eq!(*what == "departed", at % 2 == 1);
        }
        // A policy that does not say that its decisions hold hears of everything at once.
        let (seen, asked) = recorded(false, 100, 3);
        assert_eq!((seen.len(), asked), (200, 100));
    }

    #[test]
    fn another_kind_of_arrival_is_asked_about() {
        let mut shard = Shard::default();
        let mut policy = Llp::new(4);
        assert_eq!(shard.decide(0, &arrival(1, 9)), None);
        let (decision, lags) = shard.ask(&mut policy, 0, &arrival(1, 9));
        assert!(decision.width() == 4 && lags);
        assert_eq!(shard.decide(1, &arrival(2, 9)), Some(decision));
        for other in [
            arrival(1, 8),
            Arrival {
                engines_idle: 7,
                ..arrival(1, 9)
            },
            Arrival {
                ready: 1,
                ..arrival(1, 9)
            },
            Arrival {
                class: ClassId(2),
                ..arrival(1, 9)
            },
        ] {
            assert_eq!(shard.decide(1, &other), None, "{other:?}");
        }
        // Several kinds in turn are known at once, each for as many events.
        for units in [1, 2, 3] {
            shard.ask(&mut policy, 2, &arrival(1, units));
        }
        for units in [9, 1, 2, 3] {
            let decision = shard.decide(3, &arrival(1, units));
            assert_eq!(decision, Some(Decision::engines(units.min(4))));
        }
        for _ in 0..LAG_MAX {
            shard.ask(&mut policy, 4, &arrival(1, 1));
        }
        assert_eq!(shard.decide(5, &arrival(1, 9)), None);
    }

    #[test]
    fn a_decision_is_not_given_again_after_a_while() {
        let (mut shard, mut policy) = (Shard::default(), Llp::new(4));
        let (decision, _) = shard.ask(&mut policy, 7, &arrival(1, 9));
        let last = 7 + LEASE_NS - 1;
        assert_eq!(shard.decide(last, &arrival(1, 9)), Some(decision));
        assert_eq!(shard.decide(last + 1, &arrival(1, 9)), None);
        // Asked again, it holds again.
        shard.ask(&mut policy, last + 1, &arrival(1, 9));
        assert_eq!(shard.decide(last + 2, &arrival(1, 9)), Some(decision));
    }

    #[test]
    fn long_loops_are_reported_as_they_begin() {
        // One task of two engines, whose loops take a tick each: it keeps both engines.
        let mut sharded = Sharded::new(Box::<Mgps>::default(), 2);
        let mut now = 0;
        for at in 0..100 {
            let asks = Arrival {
                engines: 2,
                engines_idle: 2,
                ..arrival(1, 100)
            };
            let asked = sharded.asked();
            let width = sharded.arrive(now, &asks).width();
            assert_eq!(sharded.asked(), asked + 1);
            assert!(at < 3 || width == 2, "{width} at {at}");
            now += LEASE_NS;
            sharded.depart(now, &departure(1, 100, width));
            sharded.tick(now);
        }
    }

    #[test]
    fn a_trial_is_never_repeated_and_one_caller_asks_seldom() {
        // Sixty-four engines' worth of trials at the start, then a steady width.
        let mut sharded = Sharded::new(Box::new(Equi::default()), 1);
        for at in 0..2_000 {
            let width = sharded.arrive(at, &arrival(1, 1_000)).width();
            sharded.depart(at, &departure(1, 1_000, width));
        }
        let before = sharded.asked();
        for at in 2_000..4_000 {
            let width = sharded.arrive(at, &arrival(1, 1_000)).width();
            sharded.depart(at, &departure(1, 1_000, width));
        }
        let asked = sharded.asked() - before;
        assert!(asked < 2_000 / 2, "{asked} of 2000 asked");
    }

    #[test]
    fn the_window_of_mgps_is_counted_in_departures_as_before() {
        let run = |policy: &mut dyn Policy, loops: u64| {
            let mut width = 0;
            for at in 0..loops {
                width = policy.arrive(at * 1_000, &arrival(1, 100)).width();
                policy.depart(at * 1_000 + 500, &departure(1, 100, width));
            }
            width
        };
        // One task of eight engines: after a window of eight departures all engines are its.
        assert_eq!(run(&mut Mgps::default(), 8), 1);
        assert_eq!(run(&mut Mgps::default(), 9), 8);
        let sharded = |loops| run(&mut Sharded::new(Box::<Mgps>::default(), 1), loops);
        assert_eq!(sharded(8), 1);
        // Later by the lag at most, and by no more.
        assert_eq!(sharded(9 + LAG_MAX as u64), 8);
    }

    #[test]
    fn a_core_that_went_quiet_is_not_counted_for_long() {
        let mut sharded = Sharded::new(Box::<Mgps>::default(), 8);
        let mut now = 0;
        let mut loops = |tasks: u64, loops: u64| {
            let mut width = 0;
            for at in 0..loops {
                let task = at % tasks;
                now += 100_000;
                sharded.tick(now);
                width = sharded.arrive(now, &arrival(task, 100)).width();
                sharded.depart(now, &departure(task, 100, width));
            }
            width
        };
        assert_eq!(loops(8, 400), 1);
        // Seven tasks ended, their events not reported; the last one gets all engines.
        assert_eq!(loops(1, 300), 8);
        assert_eq!(loops(2, 300), 4);
    }
}
