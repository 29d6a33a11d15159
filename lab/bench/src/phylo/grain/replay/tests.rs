//! Replays whose seconds can be computed by hand.

use super::super::trace::Step;
use super::*;
use sidecore_sched::{ClassId, by_name};

const FREE: Costs = Costs {
    ask_ns: 0.0,
    late_ns: [0.0; 2],
    wake_ns: 0.0,
    grace_ns: 0.0,
    next_ns: 0.0,
};

/// A task of 100 loops of a millisecond in 1,000 chunks each, a tenth of it outside of them.
fn trace() -> Trace {
    let step = Step {
        before_ns: 1e5,
        class: ClassId(0),
        units: 1_000,
        loop_ns: 9e5,
    };
    Trace {
        steps: vec![step; 100],
        after_ns: 0.0,
    }
}

fn seconds(tasks: usize, policy: &str) -> f64 {
    let policy = by_name(policy).unwrap();
    replay(&vec![trace(); tasks], 2, policy, FREE)
}

fn about(found: f64, expected: f64) {
    assert!(
        (found / expected - 1.0).abs() < 0.06,
        "{found}, not {expected}"
    );
}

#[test]
fn what_can_be_reckoned_by_hand_comes_out() {
    about(seconds(1, "edtlp"), 0.1);
    about(seconds(3, "edtlp"), 0.2);
    about(seconds(4, "edtlp"), 0.2);
    // A tenth of each task is not split.
    about(seconds(1, "hybrid(2)"), 0.055);
    about(seconds(3, "hybrid(2)"), 3.0 * 0.055);
}

#[test]
fn freed_engines_join_the_last_task() {
    for policy in ["mgps", "equi"] {
        about(seconds(1, policy), 0.055);
        about(seconds(2, policy), 0.1);
        about(seconds(3, policy), 0.155);
        about(seconds(5, policy), 0.255);
    }
}

#[test]
fn what_handing_over_costs_is_paid() {
    let mut slow = FREE;
    slow.late_ns = [1e9; 2];
    let policy = by_name("hybrid(2)").unwrap();
    // The helper never comes in time: both are as fast as one.
    about(replay(&[trace()], 2, policy, slow), 0.1);
}
