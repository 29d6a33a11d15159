//! Progress of a run on standard error, with an estimate of the time left.
//!
//! The estimate takes each kind of task to last as long as those did that are done, and as many to
//! run side by side as did so far.

use crate::output;
use indicatif::{ProgressBar, ProgressStyle};
use sidecore_phylo::analysis::plan::{Kind, Ledger};
use std::time::Instant;

pub(super) struct Progress {
    bar: ProgressBar,
    began: Instant,
    /// Seconds of tasks that earlier runs did.
    earlier_s: f64,
}

impl Progress {
    pub(super) fn new(ledger: &Ledger) -> Self {
        let [done, needed] = ledger.progress();
        let bar = output::progress(needed.into());
        if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:32}] {pos}/{len}") {
            bar.set_style(style);
        }
        bar.set_position(done.into());
        Self {
            bar,
            began: Instant::now(),
            earlier_s: spent_s(ledger),
        }
    }

    pub(super) fn show(&mut self, ledger: &Ledger, finished: bool) {
        if finished {
            let [done, needed] = ledger.progress();
            self.bar.set_length(needed.into());
            self.bar.set_position(done.into());
        }
        let best = ledger.best().map(|best| format!("best {:.2}", best.lnl));
        let elapsed_s = self.began.elapsed().as_secs_f64();
        let left = match left_s(ledger, spent_s(ledger) - self.earlier_s, elapsed_s) {
            Some(left_s) => format!("about {} left", time(left_s)),
            None => "first tasks".to_owned(),
        };
        let parts = best.into_iter().chain([left]);
        self.bar.set_message(parts.collect::<Vec<_>>().join(", "));
    }

    pub(super) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

fn spent_s(ledger: &Ledger) -> f64 {
    ledger.outcomes().map(|outcome| outcome.wall_s).sum()
}

/// Seconds that are left; nothing before anything is done.
fn left_s(ledger: &Ledger, spent_s: f64, elapsed_s: f64) -> Option<f64> {
    let mean = |kind| {
        let (mut sum, mut count) = (0.0, 0.0);
        for outcome in ledger.outcomes_of(kind) {
            (sum, count) = (sum + outcome.wall_s, count + 1.0);
        }
        (count > 0.0).then(|| (sum / count, count))
    };
    let [searches, bootstraps] = [Kind::Search, Kind::Bootstrap].map(mean);
    let any = searches.or(bootstraps)?.0;
    let [_, needed] = ledger.progress();
    let starts = f64::from(ledger.goal().starts);
    let left = |found: Option<(f64, f64)>, needed: f64| {
        let (mean_s, done) = found.unwrap_or((any, 0.0));
        mean_s * (needed - done).max(0.0)
    };
    let work_s = left(searches, starts) + left(bootstraps, f64::from(needed) - starts);
    let side_by_side = match spent_s > 0.0 {
        true => spent_s / elapsed_s.max(1e-3),
        false => return None,
    };
    Some(work_s / side_by_side)
}

fn time(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..=119 => format!("{whole} s"),
        120..=7_199 => format!("{} min", whole / 60),
        _ => format!("{} h {} min", whole / 3_600, whole % 3_600 / 60),
    }
}
