//! MGPS's windows, the caps by measurement, and the look at the host.

use super::{arrival, departure};
use crate::curve::TRIAL_SHARE;
use crate::policy::{ClassId, Decision, Policy, TaskId};
use crate::{Edtlp, Equi, Llp, Measured, Mgps, by_name};

/// `tasks` tasks off-load in turn, `rounds` times each, on eight engines; the width of the last.
fn in_turn(policy: &mut dyn Policy, tasks: u64, rounds: u64, now: &mut u64) -> u32 {
    let mut width = 0;
    for _ in 0..rounds {
        for task in 0..tasks {
            let mut asks = arrival(228, 8, 8, 0);
            asks.task = TaskId(task);
            width = policy.arrive(*now, &asks).width();
            *now += 100_000;
        }
        for task in 0..tasks {
            let mut ends = departure(228, width, false, 100_000 / u64::from(width));
            ends.task = TaskId(task);
            policy.depart(*now, &ends);
        }
    }
    width
}

#[test]
fn mgps_splits_loops_while_half_of_the_engines_or_fewer_have_tasks() {
    for (tasks, width) in [
        (1, 8),
        (2, 4),
        (3, 2),
        (4, 2),
        (5, 1),
        (6, 1),
        (8, 1),
        (40, 1),
    ] {
        let mut now = 0;
        let mut mgps = Mgps::default();
        assert_eq!(
            in_turn(&mut mgps, tasks, 1, &mut now),
            1,
            "begins with one engine a task"
        );
        assert_eq!(
            in_turn(&mut mgps, tasks, 20, &mut now),
            width,
            "{tasks} tasks"
        );
    }
}

#[test]
fn mgps_changes_its_mind_within_two_windows() {
    let (mut mgps, mut now) = (Mgps::default(), 0);
    in_turn(&mut mgps, 8, 8, &mut now);
    assert_eq!(mgps.width(), 1);
    // Sixteen departures of two tasks.
    in_turn(&mut mgps, 2, 8, &mut now);
    assert_eq!(mgps.width(), 4);
    in_turn(&mut mgps, 8, 2, &mut now);
    assert_eq!(mgps.width(), 1);
}

#[test]
fn mgps_ends_its_window_by_ticks_where_departures_are_rare() {
    let mut mgps = Mgps::default();
    let mut asks = arrival(228, 8, 8, 0);
    asks.task = TaskId(7);
    assert_eq!(mgps.arrive(0, &asks).width(), 1);
    mgps.tick(1_000_000);
    assert_eq!(mgps.width(), 1, "a millisecond is too soon");
    mgps.tick(20_000_000);
    assert_eq!(mgps.width(), 8, "one task, half of the engines idle");
}

#[test]
fn mgps_works_where_a_driver_does_not_tell_tasks_apart() {
    let mut mgps = Mgps::default();
    for _ in 0..8 {
        for _ in 0..8 {
            mgps.arrive(0, &arrival(228, 8, 8, 7));
        }
        for _ in 0..8 {
            mgps.depart(0, &departure(228, 1, false, 100));
        }
    }
    assert_eq!(mgps.width(), 1, "eight off-loads were under way at once");
}

#[test]
fn mgps_hears_of_time_and_of_departures_behind_its_measurements() {
    let mut policy = by_name("mgps").unwrap();
    assert_eq!(policy.arrive(0, &arrival(228, 8, 8, 0)).width(), 1);
    policy.tick(20_000_000);
    assert_eq!(policy.arrive(0, &arrival(228, 8, 8, 0)).width(), 8);
}

#[test]
fn each_class_has_a_curve_of_its_own_and_those_beyond_the_last_share_one() {
    let mut policy = Measured::new(Edtlp);
    for (class, elapsed_ns) in [(3, 300), (63, 630), (200, 630)] {
        let mut ends = departure(1, 1, false, elapsed_ns);
        ends.class = ClassId(class);
        policy.depart(0, &ends);
    }
    let unit_ns = |class: u16| policy.curve(ClassId(class)).unit_ns(false, 1);
    assert_eq!((unit_ns(3), unit_ns(4)), (Some(300.0), None));
    assert_eq!((unit_ns(63), unit_ns(1_000)), (Some(630.0), Some(630.0)));
}

/// With more live tasks a tenth less gets done, and each off-load takes three times as long. Two
/// numbers of tasks are compared by work that does not grow with the time it takes.
#[test]
fn equi_counts_a_slower_unit_for_no_more_work_while_it_tries() {
    let (mut equi, mut now) = (Equi::default(), 0);
    let mut held = vec![(8, 0)];
    for _ in 0..8_000 {
        let live = equi.live_tasks(8);
        let (interval_ns, elapsed_ns) = if live > 8 {
            (1_100, 3_000)
        } else {
            (1_000, 1_000)
        };
        let mut asks = arrival(1, 1, 8, 0);
        (asks.live, asks.waiting) = (live, 100 - live);
        equi.arrive(now, &asks);
        now += interval_ns;
        equi.depart(now, &departure(1, 1, false, elapsed_ns));
        let last = held.last_mut().unwrap();
        last.1 += 1;
        if equi.live_tasks(8) != last.0 {
            held.push((equi.live_tasks(8), 0));
        }
    }
    // One round is enough to see it (`climbing` has the lengths of windows and pauses).
    assert_eq!(held[1], (12, 2 * 528));
    assert_eq!(held[2], (8, 528 + 4 * 512 + 528));
}

/// Table 2 of the paper, in microseconds a run.
const BY_WIDTH_US: [u64; 8] = [287, 208, 194, 183, 181, 205, 183, 244];

#[test]
fn measurement_caps_every_policy_that_splits_loops() {
    for name in ["llp(8)", "mgps", "equi"] {
        let mut policy = by_name(name).unwrap();
        let mut widths = [0u32; 9];
        for step in 0..4000u64 {
            let width = policy.arrive(step, &arrival(228, 8, 8, 0)).width();
            widths[width as usize] += u32::from(step >= 200);
            let us = BY_WIDTH_US[width as usize - 1];
            policy.depart(step, &departure(228, width, false, us * 1000));
        }
        let good = widths[4] + widths[5] + widths[7];
        assert!(good >= 3700, "{name} of 3800 used {widths:?}");
    }
}

/// Drives one task with measured times; returns how often the host ran it, and the cost in all.
fn host_runs(policy: &mut dyn Policy, engine_us: u64, host_us: u64, runs: u64) -> (u64, u64) {
    let (mut on_host, mut us) = (0, 0);
    for step in 0..runs {
        let decision = policy.arrive(step, &arrival(1, 8, 8, 0));
        let is_host = decision == Decision::Host;
        let took = if is_host { host_us } else { engine_us };
        on_host += u64::from(is_host);
        us += took;
        policy.depart(step, &departure(1, 1, is_host, took * 1000));
    }
    (on_host, us)
}

#[test]
fn what_the_host_does_faster_stays_on_the_host() {
    // Whatever the policy: this is the paper's off-load test, not a matter of the grain.
    for name in ["edtlp", "llp(2)", "hybrid(2)", "mgps", "equi"] {
        let mut policy = by_name(name).unwrap();
        let (on_host, _) = host_runs(&mut *policy, 100, 60, 20_000);
        assert!(on_host > 17_000, "{name}: {on_host} of 20,000 on the host");
    }
}

#[test]
fn a_look_at_a_slow_host_costs_little() {
    for host_us in [101, 200, 1_000, 10_000] {
        let mut policy = Measured::new(Edtlp);
        let (on_host, us) = host_runs(&mut policy, 100, host_us, 50_000);
        assert!(on_host >= 1, "a host of {host_us} us was never looked at");
        // One part in TRIAL_SHARE, and one task beyond it.
        let least = 50_000 * 100;
        let most = least + (least as f64 / TRIAL_SHARE) as u64 + 2 * host_us;
        assert!(
            us <= most,
            "host of {host_us} us: {us} us instead of {least}"
        );
    }
}

#[test]
fn a_host_that_becomes_better_is_found() {
    let mut policy = Measured::new(Llp::new(1));
    let (before, _) = host_runs(&mut policy, 100, 150, 20_000);
    assert!(before < 200, "{before} runs on a slower host");
    let (after, _) = host_runs(&mut policy, 100, 20, 200_000);
    assert!(
        after > 100_000,
        "{after} of 200,000 on a host that is five times as fast"
    );
}
