//! Number of live tasks: raised where more is better, left alone where more is worse.

use crate::climb::{Climb, LIVE_PER_ENGINE_MAX};

/// A machine whose throughput depends on the number of live tasks; `tasks` are there.
fn settle(tasks: u32, departures: u32, rate: impl Fn(u32) -> f64) -> (u32, f64) {
    let (mut climb, mut now, mut random) = (Climb::default(), 0.0_f64, 88_172_645_463_325_252_u64);
    climb.arrive(8, tasks.min(8), tasks.saturating_sub(8));
    for _ in 0..departures {
        let live = climb.target(8).min(tasks);
        assert!((8..=8 * LIVE_PER_ENGINE_MAX).contains(&climb.target(8)));
        climb.arrive(8, live, tasks - live);
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        // Times between departures vary by a half to one and a half.
        let noise = 0.5 + (random >> 11) as f64 / (1u64 << 53) as f64;
        now += noise * 1e4 / rate(live);
        climb.depart(now as u64, 1.0);
    }
    (climb.target(8), f64::from(departures) * 1e4 / now)
}

#[test]
fn more_live_tasks_where_more_gets_done() {
    // Up to 14 live tasks, each adds something.
    let rate = |live: u32| f64::from(live.min(14)) / 8.0;
    let (target, throughput) = settle(100, 300_000, rate);
    assert!(target >= 12, "{target} live");
    assert!(throughput > 1.5, "{throughput} of 1.75");
}

#[test]
fn no_more_live_tasks_where_each_costs() {
    for loss in [0.01, 0.02, 0.05, 0.2] {
        let rate = |live: u32| 1.0 / (1.0 + loss * f64::from(live - 8));
        let (target, throughput) = settle(100, 300_000, rate);
        assert!(
            throughput > 0.985,
            "a loss of {loss} a task: {throughput}, {target} live"
        );
    }
}

#[test]
fn goes_back_when_more_live_tasks_have_become_a_loss() {
    use std::cell::Cell;
    let calls = Cell::new(0u32);
    let rate = |live: u32| {
        calls.set(calls.get() + 1);
        if calls.get() < 150_000 {
            f64::from(live.min(16)) / 8.0
        } else {
            1.0 / (1.0 + 0.05 * f64::from(live - 8))
        }
    };
    let (target, _) = settle(100, 900_000, rate);
    assert!(target <= 10, "{target} live long after it became a loss");
}

#[test]
fn nothing_is_tried_with_too_few_tasks() {
    let rate = |live: u32| f64::from(live);
    let (mut climb, mut now) = (Climb::default(), 0.0);
    for _ in 0..50_000 {
        climb.arrive(8, 5, 0);
        now += 1e4 / rate(5);
        climb.depart(now as u64, 1.0);
        assert_eq!(climb.target(8), 8);
        assert!(!climb.trying());
    }
}

#[test]
fn while_waves_are_few_only_whole_ones_are_tried() {
    // Five waves of 8 are not few: the usual long step.
    for (tasks, wanted) in [(11, 11), (16, 16), (24, 12), (40, 12)] {
        let (mut climb, mut now) = (Climb::default(), 0);
        let mut first = None;
        for _ in 0..5_000 {
            let live = climb.target(8).min(tasks);
            climb.arrive(8, live, tasks - live);
            now += 1_000;
            climb.depart(now, 1.0);
            if climb.target(8) != 8 {
                first = first.or(Some(climb.target(8)));
            }
        }
        assert_eq!(first, Some(wanted), "{tasks} tasks");
    }
}
