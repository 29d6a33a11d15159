//! An estimate of the time that is left: each kind of task takes as long as those that are done,
//! and as many run side by side as did so far.

use super::plan::{Kind, Ledger};

/// Seconds that a ledger's finished tasks took, on whatever number of cores.
#[must_use]
pub fn spent_s(ledger: &Ledger) -> f64 {
    ledger.outcomes().map(|outcome| outcome.wall_s).sum()
}

/// Seconds that are left, if `spent_s` seconds of tasks were done in the last `elapsed_s`; nothing
/// before anything is done.
#[must_use]
pub fn left_s(ledger: &Ledger, spent_s: f64, elapsed_s: f64) -> Option<f64> {
    let mean = |kind| {
        let (mut sum, mut count) = (0.0, 0.0);
        for outcome in ledger.outcomes_of(kind) {
            (sum, count) = (sum + outcome.wall_s, count + 1.0);
        }
        (count > 0.0).then(|| (sum / count, count))
    };
    let [searches, bootstraps] = [Kind::Search, Kind::Bootstrap].map(mean);
    // Before the first of a kind is done, the other kind's mean stands for it.
    let any = searches.or(bootstraps)?.0;
    let [_, needed] = ledger.progress();
    let starts = f64::from(ledger.goal().starts);
    let left = |found: Option<(f64, f64)>, needed: f64| {
        let (mean_s, done) = found.unwrap_or((any, 0.0));
        mean_s * (needed - done).max(0.0)
    };
    let work_s = left(searches, starts) + left(bootstraps, f64::from(needed) - starts);
    // A resumed run has results of its own only after a while.
    let side_by_side = (spent_s > 0.0).then(|| spent_s / elapsed_s.max(1e-3))?;
    Some(work_s / side_by_side)
}
