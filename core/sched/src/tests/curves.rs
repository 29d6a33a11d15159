//! The measured curve of a class: its estimates, the best width, and when something else is tried.

use super::departure;
use crate::curve::{Curve, TRIAL_EVERY};
use crate::entry::{LOW_RUN, SAMPLES_MAX};
use crate::policy::Decision;

/// The estimate at width 1 after these samples, in nanoseconds a unit.
fn estimate(samples: &[u64]) -> f64 {
    let mut curve = Curve::default();
    for &sample in samples {
        curve.learn(&departure(10, 1, false, 10 * sample));
    }
    curve.unit_ns(false, 1).unwrap()
}

fn assert_close(left: f64, right: f64) {
    assert!((left - right).abs() < 1e-3 * right, "{left} is not {right}");
}

#[test]
fn an_estimate_falls_as_a_mean_and_rises_slowly() {
    assert_close(estimate(&[100]), 100.0);
    assert_close(estimate(&[100, 80]), 90.0);
    assert_close(estimate(&[100, 80, 60]), 80.0);
    // A sixteenth of the way up at most,
    assert_close(estimate(&[100, 180]), 105.0);
    // and a sample counts for four times the estimate at most.
    assert_close(estimate(&[100, 400]), 118.75);
    assert_close(estimate(&[100, 1_000_000]), 118.75);
    // With many samples it is a mean in both directions.
    assert_close(estimate(&[&[1_000; 99][..], &[2_000]].concat()), 1_010.0);
    assert_close(estimate(&[&[1_000; 99][..], &[900]].concat()), 999.0);
    // Over the last ones, in effect: samples older than SAMPLES_MAX count no more than others.
    let old = vec![1_000; 3 * usize::from(SAMPLES_MAX)];
    let last = estimate(&[&old[..], &[1_000 + 1_024]].concat());
    assert!((1_000.9..=1_001.1).contains(&last), "{last}");
}

#[test]
fn samples_far_below_start_an_estimate_anew() {
    // Two are enough while it rests on few; the slower of the two is taken.
    assert_close(estimate(&[400, 60, 50]), 60.0);
    assert_close(estimate(&[400, 50, 55]), 55.0);
    // It rests on one sample then.
    assert_close(estimate(&[400, 60, 50, 50]), 55.0);
    // A quarter is not far below.
    assert_close(estimate(&[400, 100]), 250.0);
    assert_close(estimate(&[400, 100, 62]), 250.0 - 188.0 / 3.0);
    // Three samples are not few any longer.
    let old = [400; 3];
    let lows = [10; LOW_RUN as usize];
    assert_close(estimate(&[&old[..], &lows].concat()), 10.0);
    let fewer = estimate(&[&old[..], &lows[1..]].concat());
    assert!(fewer > 100.0, "{fewer}");
    // In a row, that is.
    let apart = estimate(&[&old[..], &lows[1..], &[400], &lows[1..]].concat());
    assert!(apart > 50.0, "{apart}");
}

#[test]
fn odd_departures_have_their_place() {
    let mut curve = Curve::default();
    assert_eq!(curve.unit_ns(false, 1), None);
    // Neither zero units nor zero time make a zero estimate.
    curve.learn(&departure(0, 0, false, 30));
    assert_close(curve.unit_ns(false, 1).unwrap(), 30.0);
    curve.learn(&departure(10, 2, false, 0));
    assert!(curve.unit_ns(false, 2).unwrap() > 0.0);
    // A place wider than the widest counts as that; the host has its own.
    curve.learn(&departure(10, 100, false, 50));
    assert_close(curve.unit_ns(false, 64).unwrap(), 5.0);
    assert_eq!(curve.unit_ns(true, 7), None);
    curve.learn(&departure(10, 7, true, 90));
    assert_close(curve.unit_ns(true, 1).unwrap(), 9.0);
    assert_eq!(curve.unit_ns(false, 7), None);
}

#[test]
fn of_widths_about_as_good_the_narrowest_is_best() {
    let curve = |units_ns: &[u64]| {
        let mut curve = Curve::default();
        for (index, ns) in units_ns.iter().enumerate() {
            curve.learn(&departure(1, index as u32 + 1, false, *ns));
        }
        curve
    };
    assert_eq!(curve(&[10_140, 10_000]).best_width(2), 1);
    assert_eq!(curve(&[10_160, 10_000]).best_width(2), 2);
    assert_eq!(curve(&[30_000, 10_000, 20_000]).best_width(3), 2);
    // Not beyond the limit, and a limit that was not measured is the answer.
    assert_eq!(curve(&[30_000, 10_000, 5_000]).best_width(2), 2);
    assert_eq!(curve(&[30_000, 10_000]).best_width(7), 7);
    assert_eq!(curve(&[30_000]).best_width(0), 1);
    assert_eq!(curve(&[30_000]).best_width(1_000), 64);
}

#[test]
fn equal_times_stay_on_the_host() {
    let mut curve = Curve::default();
    curve.learn(&departure(1, 2, false, 100));
    curve.learn(&departure(1, 1, true, 100));
    assert!(!curve.offload_pays(2));
    assert!(curve.offload_pays(1), "not measured");
}

/// The widths that a curve chooses, one departure after the other; 0 is the host.
fn choices(limit: u32, arrivals: usize, elapsed_ns: impl Fn(u32) -> u64) -> Vec<u32> {
    let mut curve = Curve::default();
    (0..arrivals)
        .map(|_| {
            let decision = curve.choose(limit, 100);
            let place = match decision {
                Decision::Host => 0,
                Decision::Engines(width) => width.get(),
            };
            let on_host = decision == Decision::Host;
            curve.learn(&departure(
                100,
                decision.width(),
                on_host,
                elapsed_ns(place),
            ));
            place
        })
        .collect()
}

#[test]
fn the_first_looks_go_to_the_widths_that_are_told_apart() {
    let ideal = |width: u32| 1_000_000 / u64::from(width.max(1));
    assert_eq!(choices(4, 4, ideal), [4, 3, 2, 1]);
    // All up to eight, and eight steps to a doubling above.
    assert_eq!(choices(13, 11, ideal), [13, 12, 10, 8, 7, 6, 5, 4, 3, 2, 1]);
    let many = [
        64, 56, 48, 40, 32, 28, 24, 20, 16, 14, 12, 10, 8, 7, 6, 5, 4, 3, 2, 1,
    ];
    assert_eq!(choices(64, many.len(), ideal), many);
    assert_eq!(choices(1_000, 2, ideal), [64, 56]);
    assert_eq!(choices(0, 1, ideal), [1]);
}

#[test]
fn what_comes_near_the_best_is_seen_three_times_and_others_twice() {
    let ns = |width: u32| [0, 100_000, 50_000, 200_000, 40_000][width as usize];
    let mut wanted = vec![4, 3, 2, 1, 4, 3, 2, 1, 4, 2];
    // Then the best, until something else may be tried.
    wanted.resize(TRIAL_EVERY as usize - 1, 4);
    assert_eq!(choices(4, wanted.len(), ns), wanted);
}

#[test]
fn trials_leave_as_many_arrivals_between_them_as_promised() {
    // Seen twice, a width three times as slow may be better than it looks: that look is free.
    let ns = |width: u32| [0, 300_000, 100_000][width as usize];
    let chosen = choices(2, 4_000, ns);
    assert_eq!(chosen[..4], [2, 1, 2, 1]);
    let trials: Vec<usize> = (4..chosen.len()).filter(|&at| chosen[at] != 2).collect();
    assert_eq!(trials[0] + 1, TRIAL_EVERY as usize);
    assert!(trials.len() > 2, "{trials:?}");
    let apart = |pair: &[usize]| pair[1] - pair[0] >= TRIAL_EVERY as usize;
    assert!(trials.windows(2).all(apart), "{trials:?}");
}

/// One engine and a host that is twice as slow: a look at the host costs two tasks, and each
/// task earns the 256th part of its time.
#[test]
fn looks_at_a_slow_host_are_earned_and_become_rarer() {
    let chosen = choices(1, 300_000, |width| [51_200, 25_600][width as usize]);
    let looks: Vec<usize> = (0..chosen.len()).filter(|&at| chosen[at] == 0).collect();
    // The first one waits for four tasks' time; it may have been dearer than that guess, so its
    // true cost is earned once more.
    assert_eq!(looks[..2], [4 * 256, 4 * 256 + 1_023]);
    let gaps: Vec<usize> = looks[1..]
        .windows(2)
        .map(|pair| pair[1] - pair[0])
        .collect();
    // A look earns two tasks' part itself. From eight samples on a lost one doubles the price.
    assert_eq!(gaps[..7], [511; 7]);
    for (index, &gap) in gaps[7..].iter().enumerate() {
        assert_eq!(gap, 512 * (1 << (index + 1).min(6)) - 1, "{gaps:?}");
    }
    assert!(gaps.len() > 14, "{gaps:?}");
}

#[test]
fn a_trial_that_is_lost_by_a_hair_does_not_become_rarer() {
    // A host that is three hundredths slower: each look costs that many tasks' time.
    let chosen = choices(1, 20_000, |width| [26_368, 25_600][width as usize]);
    let looks: Vec<usize> = (0..chosen.len()).filter(|&at| chosen[at] == 0).collect();
    let last = looks.windows(2).last().unwrap();
    assert!(looks.len() > 50 && last[1] - last[0] <= 265, "{looks:?}");
}
