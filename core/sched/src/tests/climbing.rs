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

/// A machine without noise: every departure is worth 1 and takes `interval_ns(target)`. The targets
/// in the order in which they held, each with the number of departures for which it did.
fn timeline(tasks: u32, departures: u32, interval_ns: impl Fn(u32) -> u64) -> Vec<(u32, u32)> {
    timeline_by_round(tasks, departures, |live, _| interval_ns(live))
}

/// The same with times that depend on the round of the first trial.
fn timeline_by_round(
    tasks: u32,
    departures: u32,
    interval_ns: impl Fn(u32, u32) -> u64,
) -> Vec<(u32, u32)> {
    let (mut climb, mut now) = (Climb::default(), 0);
    climb.arrive(8, tasks.min(8), tasks.saturating_sub(8));
    let mut held = vec![(climb.target(8), 0)];
    for departure in 0..departures {
        let live = climb.target(8).min(tasks);
        climb.arrive(8, live, tasks - live);
        now += interval_ns(live, departure.saturating_sub(512) / (4 * window(8)));
        climb.depart(now, 1.0);
        let last = held.last_mut().unwrap();
        last.1 += 1;
        if climb.target(8) != last.0 {
            held.push((climb.target(8), 0));
        }
    }
    held
}

/// Departures of a window: those that settle (two for each live task that is accepted), and 512
/// that count.
const fn window(accepted: u32) -> u32 {
    2 * accepted + 512
}

#[test]
fn before_a_machine_is_known_its_engines_are_the_target() {
    let mut climb = Climb::default();
    climb.depart(5, 1.0);
    assert_eq!((climb.target(3), climb.trying()), (3, false));
    climb.arrive(4, 1, 0);
    assert_eq!(climb.target(4), 4);
}

#[test]
fn a_round_is_four_windows_in_the_order_0_1_1_0() {
    // Nothing gained: a second round to be sure, and then the pause is four times as long.
    let held = timeline(100, 12_000, |_| 1_000);
    let wanted = [
        (8, 512 + window(8)),
        (12, 2 * window(8)),
        (8, 2 * window(8)),
        (12, 2 * window(8)),
        // Half of the step.
        (8, window(8) + 4 * 512 + window(8)),
        (10, 2 * window(8)),
    ];
    assert_eq!(held[..6], wanted);
}

#[test]
fn a_disaster_ends_a_trial_after_one_round() {
    let slower = |live: u32| if live > 8 { 1_100 } else { 1_000 };
    let held = timeline(100, 8_000, slower);
    assert_eq!(
        held[..3],
        [
            (8, 512 + window(8)),
            (12, 2 * window(8)),
            (8, window(8) + 4 * 512 + window(8)),
        ]
    );
    // A loss of seven hundredths does not count: the second round decides.
    let slower = |live: u32| if live > 8 { 1_070 } else { 1_000 };
    let held = timeline(100, 8_000, slower);
    assert_eq!(held[2..4], [(8, 2 * window(8)), (12, 2 * window(8))]);
}

#[test]
fn a_gain_is_taken_after_four_rounds_and_the_step_doubles() {
    // A hundredth better with any number above 8, and no difference among those.
    let faster = |live: u32| if live > 8 { 990 } else { 1_000 };
    let held = timeline(100, 16_000, faster);
    let wanted = [
        (8, 512 + window(8)),
        (12, 2 * window(8)),
        (8, 2 * window(8)),
        (12, 2 * window(8)),
        (8, 2 * window(8)),
        (12, 2 * window(8)),
        (8, 2 * window(8)),
        (12, 2 * window(8)),
        (8, window(8)),
        // Accepted; after the short pause 8 more are tried.
        (12, 512 + window(12)),
        (20, 2 * window(12)),
    ];
    assert_eq!(held[..11], wanted);
}

#[test]
fn a_steady_drift_is_no_gain() {
    use std::cell::Cell;
    // Everything gets a little slower all the time: the order of windows cancels it.
    let interval_ns = Cell::new(1_000_000.0);
    let held = timeline(100, 400_000, |_| {
        interval_ns.set(interval_ns.get() * 1.000_005);
        interval_ns.get() as u64
    });
    assert!(held.iter().all(|&(live, _)| live <= 12), "{held:?}");
}

#[test]
fn lost_trials_become_rarer_up_to_a_bound() {
    let slower = |live: u32| 1_000 + 25 * u64::from(live.abs_diff(8));
    let held = timeline(100, 1_000_000, slower);
    let trials: Vec<u32> = held
        .iter()
        .map(|&(live, _)| live)
        .filter(|&live| live != 8)
        .collect();
    // The step is halved (the smaller losses take two rounds), and below engines there is nothing
    // to try.
    assert_eq!(trials[..3], [12, 10, 10]);
    assert!(trials[3..].iter().all(|&live| live == 9), "{trials:?}");
    let longest = held.iter().map(|&(_, departures)| departures).max();
    // A trial downwards fails after a pause, and then one upwards after another.
    let most = 2 * 65_536 + 2 * window(8);
    assert_eq!(longest, Some(most));
}

#[test]
fn one_good_round_is_doubt_and_all_sixteen_are_run() {
    let once = |live: u32, round: u32| if live > 8 && round == 0 { 940 } else { 1_000 };
    let held = timeline_by_round(100, 42_000, once);
    let rounds = held
        .iter()
        .position(|&(_, departures)| departures > 4 * 512);
    // Each round makes the candidate's time one entry, and the accepted number's the other.
    assert_eq!(rounds, Some(2 * 16), "{held:?}");
    assert!(held.iter().all(|&(live, _)| live <= 12), "{held:?}");
}

#[test]
fn rounds_that_differ_less_than_they_gain_leave_no_doubt() {
    // A gain of 2.5 and 5.5 hundredths in turn: four standard errors are less than their mean.
    let gains = |live: u32, round: u32| match (live > 8, round % 2) {
        (false, _) => 1_000_000,
        (true, 0) => 975_310,
        (true, _) => 946_485,
    };
    let held = timeline_by_round(100, 12_000, gains);
    let wanted = [(12, 2 * window(8)), (8, window(8)), (12, 512 + window(12))];
    assert_eq!(held[7..10], wanted);
    // Of 2 and 6 hundredths: they are more, and it goes on.
    let gains = |live: u32, round: u32| match (live > 8, round % 2) {
        (false, _) => 1_000_000,
        (true, 0) => 980_199,
        (true, _) => 941_765,
    };
    let held = timeline_by_round(100, 12_000, gains);
    assert_eq!(held[8], (8, 2 * window(8)));
}

#[test]
fn at_the_bound_the_next_trial_goes_down() {
    // The more live tasks, the more gets done, without end.
    let held = timeline(1_000, 200_000, |live| 100_000 / u64::from(live));
    let reached = held.iter().position(|&(live, _)| live == 32).unwrap();
    let after = held[reached..]
        .iter()
        .find(|&&(live, _)| live > 24 && live != 32);
    assert_eq!(after.map(|&(live, _)| live), Some(31), "{held:?}");
}

#[test]
fn few_waves_are_no_reason_to_try_upwards_when_it_is_downwards_turn() {
    // Three waves of eight: twelve make two. Every other trial would be down, below engines.
    let held = timeline(24, 600_000, |live| if live > 8 { 1_050 } else { 1_000 });
    let longest = held.iter().map(|&(_, departures)| departures).max();
    assert_eq!(longest, Some(2 * 65_536 + 2 * window(8)));
}

#[test]
fn a_trial_ends_when_its_tasks_have() {
    let (mut climb, mut now) = (Climb::default(), 0);
    let mut depart = |climb: &mut Climb, live: u32| {
        climb.arrive(8, live, 0);
        now += 1_000;
        climb.depart(now, 1.0);
    };
    climb.arrive(8, 8, 92);
    for _ in 0..512 + window(8) {
        let target = climb.target(8);
        climb.arrive(8, target, 100 - target);
        depart(&mut climb, target);
    }
    assert!(climb.trying());
    // As many as are accepted are enough; fewer are not.
    for _ in 0..window(8) {
        depart(&mut climb, 8);
    }
    assert!(climb.trying());
    for _ in 0..window(8) {
        depart(&mut climb, 7);
    }
    assert!(!climb.trying());
    assert_eq!(climb.target(8), 8);
}
