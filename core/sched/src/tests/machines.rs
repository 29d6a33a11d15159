//! A curve on machines in virtual time: splitting has a fixed cost, engines that the call before
//! did not use are asleep, units may slow each other down, and calls change in size. Each choice is
//! compared with the best one for its call, known only to the machine.

use super::{arrival, departure};
use crate::curve::Curve;
use crate::policy::{Decision, WIDTH_MAX};
use crate::{Equi, Policy};

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
    /// Further cost of a split for each engine that is asked: one after the other.
    ask_ns: f64,
    /// Engines of one node, and the further cost of a split for each other node that takes part.
    node_engines: u32,
    far_ns: f64,
}

impl Machine {
    fn slower(&self, width: u32) -> f64 {
        1.0 + self.slower * f64::from(width - 1)
    }

    /// Time of a call whose engines are awake. Units are not cut.
    fn warm_ns(&self, units: u32, unit_ns: f64, width: u32) -> f64 {
        let rows = units.div_ceil(width);
        let split_ns = if width > 1 {
            let far = width.div_ceil(self.node_engines) - 1;
            self.split_ns + self.ask_ns * f64::from(width - 1) + self.far_ns * f64::from(far)
        } else {
            0.0
        };
        self.call_ns + split_ns + f64::from(rows) * unit_ns * self.slower(width)
    }
}

/// Two cores, as measured: half a microsecond to a core that is awake, tens to one that sleeps.
const TWO: Machine = Machine {
    engines: 2,
    call_ns: 150.0,
    split_ns: 700.0,
    wake_ns: 30_000.0,
    slower: 0.0,
    ask_ns: 0.0,
    node_engines: 2,
    far_ns: 0.0,
};

/// A machine of several nodes: engines of another node take two microseconds more to join in.
fn nodes_of(nodes: u32, engines: u32) -> Machine {
    Machine {
        engines,
        split_ns: 3_000.0,
        ask_ns: 100.0,
        node_engines: engines / nodes,
        far_ns: 2_000.0,
        ..TWO
    }
}

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

    fn call(&mut self, units: u32, unit_ns: f64) {
        let limit = self.machine.engines.min(units).min(WIDTH_MAX);
        let decision = self.curve.choose(limit, units);
        let width = decision.width();
        let is_split = width > 1;
        let wake_ns = match is_split && !self.was_split {
            true => self.machine.wake_ns,
            false => 0.0,
        };
        let elapsed_ns = self.machine.warm_ns(units, unit_ns, width) + wake_ns;
        self.was_split = is_split;
        let on_host = decision == Decision::Host;
        let mut ended = departure(units, width, on_host, elapsed_ns as u64);
        ended.work_ns = (f64::from(units) * unit_ns * self.machine.slower(width)) as u64;
        self.curve.learn(&ended);
        self.taken_ns += elapsed_ns;
        let all = (1..=limit).map(|width| self.machine.warm_ns(units, unit_ns, width));
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

#[test]
fn on_several_nodes_widths_are_near_the_best() {
    for (nodes, engines) in [(2, 128), (8, 128), (2, 256), (8, 256)] {
        let machine = nodes_of(nodes, engines);
        let sizes = [
            (10_000, 1_000.0),
            (1_000, 2_000.0),
            (64, 200_000.0),
            (100, 100.0),
        ];
        for (units, unit_ns) in sizes {
            let mut run = Run::new(machine);
            run.regret(same(40, units, unit_ns));
            let regret = run.regret(same(10_000, units, unit_ns));
            assert!(
                regret < 1.15,
                "{nodes} nodes, {engines} engines, {units} x {unit_ns}: {regret}"
            );
        }
    }
}

/// Callers that each make one call after the other, with `equi`. Returns the share of all engines'
/// time that goes into units, once widths are known.
fn used_share(machine: Machine, callers: u32, units: u32, unit_ns: f64) -> f64 {
    const FIRST_CALLS: u32 = 500;
    const CALLS: u32 = 3_000;
    let mut equi = Equi::default();
    let (mut idle, mut wanting) = (machine.engines, callers);
    let (mut now_ns, mut known_ns) = (0_u64, 0_u64);
    // End, width, whether the host had it, and elapsed time.
    let mut running: Vec<(u64, u32, bool, u64)> = Vec::new();
    for call in 0..FIRST_CALLS + CALLS {
        while wanting > 0 && idle > 0 {
            wanting -= 1;
            let mut asks = arrival(units, idle, machine.engines, wanting);
            asks.live = callers;
            let decision = equi.arrive(now_ns, &asks);
            let width = decision.width();
            assert!(width <= idle, "{width} of {idle} idle engines");
            let elapsed_ns = machine.warm_ns(units, unit_ns, width) as u64;
            let on_host = decision == Decision::Host;
            running.push((now_ns + elapsed_ns, width, on_host, elapsed_ns));
            idle -= width;
        }
        let first = (0..running.len()).min_by_key(|&place| running[place].0);
        let ended = running.swap_remove(first.expect("a call runs"));
        let (end_ns, width, on_host, elapsed_ns) = ended;
        let mut ended = departure(units, width, on_host, elapsed_ns);
        ended.work_ns = (f64::from(units) * unit_ns) as u64;
        equi.depart(end_ns, &ended);
        now_ns = end_ns;
        idle += width;
        wanting += 1;
        if call + 1 == FIRST_CALLS {
            known_ns = now_ns;
        }
    }
    let work_ns = f64::from(CALLS) * f64::from(units) * unit_ns;
    work_ns / (f64::from(machine.engines) * (now_ns - known_ns) as f64)
}

#[test]
fn callers_on_several_nodes_keep_all_engines_at_work() {
    for (nodes, engines) in [(2, 128), (8, 128), (2, 256), (8, 256)] {
        for callers in [4, 32, 300] {
            let share = used_share(nodes_of(nodes, engines), callers, 1_000, 100_000.0);
            assert!(
                (0.75..1.05).contains(&share),
                "{nodes} nodes, {engines} engines, {callers} callers: {share}"
            );
        }
    }
}
