//! A curve on machines in virtual time: splitting has a fixed cost, engines that the call before
//! did not use are asleep, units may slow each other down, and calls change in size. Each choice is
//! compared with the best one for its call, known only to the machine.

use super::departure;
use crate::curve::Curve;
use crate::policy::Decision;

#[derive(Clone, Copy)]
struct Machine {
    engines: u32,
    /// Cost of each call, and of a call of several engines.
    call_ns: f64,
    split_ns: f64,
    /// Further cost if the call before was not split.
    wake_ns: f64,
    /// Factor by which units become slower for each further engine.
    slower: f64,
}

/// Two cores, as measured: half a microsecond to a core that is awake, tens to one that sleeps.
const TWO: Machine = Machine {
    engines: 2,
    call_ns: 150.0,
    split_ns: 700.0,
    wake_ns: 30_000.0,
    slower: 0.0,
};

/// Nanoseconds a call that a single sample of waking engines may hide.
const HAIR_NS: f64 = 350.0;

struct Run {
    machine: Machine,
    curve: Curve,
    was_split: bool,
    taken_ns: f64,
    best_ns: f64,
    widths: Vec<u32>,
}

impl Run {
    fn new(machine: Machine) -> Self {
        Self {
            machine,
            curve: Curve::default(),
            was_split: false,
            taken_ns: 0.0,
            best_ns: 0.0,
            widths: Vec::new(),
        }
    }

    fn slower(&self, width: u32) -> f64 {
        1.0 + self.machine.slower * f64::from(width - 1)
    }

    /// Time of a call whose engines are awake. Units are not cut.
    fn warm_ns(&self, units: u32, unit_ns: f64, width: u32) -> f64 {
        let rows = units.div_ceil(width);
        let split_ns = if width > 1 {
            self.machine.split_ns
        } else {
            0.0
        };
        self.machine.call_ns + split_ns + f64::from(rows) * unit_ns * self.slower(width)
    }

    fn call(&mut self, units: u32, unit_ns: f64) {
        let limit = self.machine.engines.min(units);
        let decision = self.curve.choose(limit, units);
        let width = decision.width();
        let is_split = width > 1;
        let wake_ns = match is_split && !self.was_split {
            true => self.machine.wake_ns,
            false => 0.0,
        };
        let elapsed_ns = self.warm_ns(units, unit_ns, width) + wake_ns;
        self.was_split = is_split;
        let on_host = decision == Decision::Host;
        let mut ended = departure(units, width, on_host, elapsed_ns as u64);
        ended.work_ns = (f64::from(units) * unit_ns * self.slower(width)) as u64;
        self.curve.learn(&ended);
        self.taken_ns += elapsed_ns;
        let all = (1..=limit).map(|width| self.warm_ns(units, unit_ns, width));
        self.best_ns += all.fold(f64::INFINITY, f64::min);
        self.widths.push(width);
    }

    /// Time taken over the best possible, from here on.
    fn regret(&mut self, calls: impl IntoIterator<Item = (u32, f64)>) -> f64 {
        (self.taken_ns, self.best_ns) = (0.0, 0.0);
        for (units, unit_ns) in calls {
            self.call(units, unit_ns);
        }
        self.taken_ns / self.best_ns
    }
}

fn same(count: usize, units: u32, unit_ns: f64) -> impl Iterator<Item = (u32, f64)> {
    std::iter::repeat_n((units, unit_ns), count)
}

const SIZES: [(u32, f64); 12] = [
    (2, 20.0),
    (10, 20.0),
    (100, 20.0),
    (100_000, 20.0),
    (2, 1_000.0),
    (10, 1_000.0),
    (2, 10_000.0),
    (100, 10_000.0),
    (2, 100_000.0),
    (2, 1_000_000.0),
    (10, 1_000_000.0),
    (2, 10_000_000.0),
];

#[test]
fn calls_of_one_size_run_at_the_best_width() {
    for slower in [0.0, 0.3, 1.0] {
        for (units, unit_ns) in SIZES {
            let mut run = Run::new(Machine { slower, ..TWO });
            // The start has its cost: a few calls, of which the first finds all asleep.
            run.regret(same(20, units, unit_ns));
            let regret = run.regret(same(5_000, units, unit_ns));
            assert!(regret < 1.04, "{units} x {unit_ns}, {slower}: {regret}");
        }
    }
}

#[test]
fn what_was_learned_of_short_calls_holds_for_long_ones_and_back() {
    for from in SIZES {
        for to in SIZES {
            let mut run = Run::new(TWO);
            run.regret(same(1_000, from.0, from.1));
            // The very first is a surprise; after that it must be right.
            run.regret(same(3, to.0, to.1));
            let regret = run.regret(same(2_000, to.0, to.1));
            // Where splitting gains or loses a hair, either is right. Calls that have become short
            // are split a little longer: that cost is small against the long calls before.
            let beyond_ns = run.taken_ns - 1.05 * run.best_ns;
            let long_ns = f64::from(from.0) * from.1;
            assert!(
                regret < 1.05 || beyond_ns < 0.2 * long_ns || beyond_ns / 2_000.0 < HAIR_NS,
                "{from:?} to {to:?}: {regret}, {beyond_ns} ns, {:?}",
                &run.widths[1_003..1_040]
            );
        }
    }
}

#[test]
fn one_class_of_mixed_sizes_is_not_wrong() {
    // Classes that differ in the number of units.
    let mixed = [
        (200, 100.0),
        (100, 5_000.0),
        (2, 1_000_000.0),
        (10_000, 20.0),
        (2, 10_000.0),
    ];
    let mut run = Run::new(TWO);
    run.regret(mixed.into_iter().cycle().take(100));
    let regret = run.regret(mixed.into_iter().cycle().take(5_000));
    assert!(regret < 1.05, "{regret}");
    // Classes that do not differ: on average it pays to split.
    let mixed = [(2, 10_000.0), (2, 1_000_000.0), (2, 100_000.0)];
    let mut run = Run::new(TWO);
    run.regret(mixed.into_iter().cycle().take(100));
    let regret = run.regret(mixed.into_iter().cycle().take(5_000));
    assert!(regret < 1.05, "{regret}");
    // Wherever the sequence begins, and where engines take long to wake.
    for from in 0..3 {
        for wake_ns in [30_000.0, 180_000.0] {
            let mut run = Run::new(Machine { wake_ns, ..TWO });
            let mut calls = mixed.into_iter().cycle().skip(from);
            run.regret(calls.by_ref().take(6));
            let regret = run.regret(calls.take(300));
            assert!(regret < 1.15, "from {from}, {wake_ns}: {regret}");
        }
    }
    // Very short ones with a long one now and then.
    let calls = (0..20_000).map(|at| (2, if at % 50 == 0 { 1_000_000.0 } else { 100.0 }));
    let mut run = Run::new(TWO);
    let regret = run.regret(calls);
    let serial = 1_020.0 / 520.0;
    assert!(regret < serial, "{regret} is no better than never to split");
}

#[test]
fn a_machine_that_changes_is_followed() {
    let mut run = Run::new(Machine { slower: 1.0, ..TWO });
    run.regret(same(2_000, 10, 100_000.0));
    assert!(
        run.widths[1_900..]
            .iter()
            .filter(|&&width| width == 2)
            .count()
            < 10
    );
    run.machine.slower = 0.0;
    run.regret(same(4_000, 10, 100_000.0));
    let regret = run.regret(same(4_000, 10, 100_000.0));
    assert!(regret < 1.05, "free of its neighbours: {regret}");
    run.machine.split_ns = 2_000_000.0;
    run.regret(same(1_000, 10, 100_000.0));
    let regret = run.regret(same(4_000, 10, 100_000.0));
    assert!(regret < 1.05, "dear to split: {regret}");
}

#[test]
fn on_many_engines_looks_are_few() {
    for engines in [8, 64] {
        let machine = Machine {
            engines,
            split_ns: 3_000.0,
            ..TWO
        };
        for (units, unit_ns) in [(10_000, 1_000.0), (64, 200_000.0), (100, 100.0)] {
            let mut run = Run::new(machine);
            run.regret(same(40, units, unit_ns));
            let regret = run.regret(same(10_000, units, unit_ns));
            assert!(regret < 1.1, "{engines}, {units} x {unit_ns}: {regret}");
        }
    }
}
