//! Loop splits: every iteration once, the first engine's share bounded, and tuned until no engine
//! waits.

use crate::split::{FIRST_SHARE_MAX, Split, SplitRun};
use proptest::prelude::*;

/// A loop whose other engines begin `late_ns` after the first; each iteration takes `unit_ns`.
fn run(split: &Split, units: u32, width: u32, late_ns: f64, unit_ns: f64) -> SplitRun {
    let share = |index| split.share(units, width, index).len() as f64 * unit_ns;
    let ends = |index| share(index) + if index == 0 { 0.0 } else { late_ns };
    let last = (0..width).map(ends).fold(0.0, f64::max);
    let others: f64 = (1..width).map(|index| last - ends(index)).sum();
    SplitRun {
        units,
        width,
        elapsed_ns: last,
        first_idle_ns: last - ends(0),
        others_idle_ns: others / f64::from(width - 1),
    }
}

proptest! {
    #[test]
    fn every_iteration_belongs_to_one_engine(
        units in 1u32..100_000, width in 1u32..65, idle in 0.0..1e6f64, runs in 0u32..20,
    ) {
        let mut split = Split::default();
        for _ in 0..runs {
            split.learn(&SplitRun {
                units, width, elapsed_ns: 1e6, first_idle_ns: idle, others_idle_ns: 1e6 - idle,
            });
        }
        let mut next = 0;
        for index in 0..width {
            let share = split.share(units, width, index);
            prop_assert_eq!(share.start.min(units), next);
            prop_assert!(share.end >= share.start);
            next = share.end;
        }
        prop_assert_eq!(next, units);
        let even = f64::from(units) / f64::from(width.min(units));
        let first = f64::from(split.first_units(units, width));
        prop_assert!(first >= even.floor() && first <= (even * FIRST_SHARE_MAX).ceil());
    }

    /// The first engine's larger share makes up for the others' late start where it can, and stays
    /// there.
    #[test]
    fn the_share_is_tuned_until_nobody_waits(
        units in 200u32..20_000, width in 2u32..9, part in 0.0..0.9f64, unit_ns in 1.0..1e5f64,
    ) {
        // Late by a part of an even share: the first engine can make up for it within the bound.
        let late_ns = part * f64::from(units / width) * unit_ns;
        let mut split = Split::default();
        for _ in 0..60 {
            split.learn(&run(&split, units, width, late_ns, unit_ns));
        }
        for _ in 0..20 {
            let measured = run(&split, units, width, late_ns, unit_ns);
            let gap = (measured.first_idle_ns - measured.others_idle_ns).abs();
            prop_assert!(
                gap <= 0.02 * measured.elapsed_ns + 3.0 * unit_ns,
                "gap {gap} of {} after tuning, {split:?}", measured.elapsed_ns,
            );
            split.learn(&measured);
        }
    }
}

#[test]
fn one_disturbed_run_moves_the_share_a_little_only() {
    let mut split = Split::default();
    let before = split.first_units(800, 4);
    split.learn(&SplitRun {
        units: 800,
        width: 4,
        elapsed_ns: 1e9,
        first_idle_ns: 1e9,
        others_idle_ns: 0.0,
    });
    let moved = split.first_units(800, 4) - before;
    assert!(moved > 0 && moved <= 25, "moved by {moved} of 200");
}

#[test]
fn engines_beyond_the_iterations_get_none() {
    let split = Split::default();
    for units in 1..8 {
        let shares: Vec<usize> = (0..10)
            .map(|index| split.share(units, 8, index).len())
            .collect();
        let one_each = (0..10).map(|index| usize::from(index < units));
        assert!(shares.iter().copied().eq(one_each), "{units}: {shares:?}");
        assert_eq!(split.share(units, 8, 9), units..units);
    }
    assert_eq!(split.share(0, 8, 0), 0..0);
}

#[test]
fn idle_times_move_the_share_by_half_of_the_error() {
    // 400 iterations each, a nanosecond each. The first engine waited 80 ns longer.
    let run = SplitRun {
        units: 800,
        width: 2,
        elapsed_ns: 480.0,
        first_idle_ns: 80.0,
        others_idle_ns: 0.0,
    };
    let mut split = Split::default();
    split.learn(&run);
    // Eighty units late: half of them are believed, and half of those are the first one's.
    assert_eq!(split.first_units(800, 2), 420);
    // The others waited longer: back again, and never below an even share.
    for _ in 0..20 {
        split.learn(&SplitRun {
            elapsed_ns: 420.0,
            first_idle_ns: 0.0,
            others_idle_ns: 10.0,
            ..run
        });
    }
    assert_eq!(split.first_units(800, 2), 400);
    // A run on one engine, one without work for all, and one without time say nothing.
    split.learn(&run);
    let before = split;
    for (units, width, elapsed_ns) in [(800, 1, 480.0), (1, 2, 480.0), (800, 2, 0.0)] {
        split.learn(&SplitRun {
            units,
            width,
            elapsed_ns,
            ..run
        });
    }
    assert_eq!(split, before);
}
