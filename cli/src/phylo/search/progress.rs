//! Progress of a run on standard error, with an estimate of the time left.

use indicatif::ProgressBar;
use sidecore_phylo::analysis::plan::{Ledger, left_s, spent_s};
use sidecore_terminal::progress::{Shape, bar};
use std::time::Instant;

pub(in crate::phylo) struct Progress {
    bar: ProgressBar,
    began: Instant,
    /// Seconds of tasks that earlier runs did.
    earlier_s: f64,
    /// False where the tasks' log-likelihoods are of different data.
    shows_best: bool,
}

impl Progress {
    pub(in crate::phylo) fn new(ledger: &Ledger) -> Self {
        let [done, needed] = ledger.progress();
        let bar = bar(Shape::Count, needed.into());
        bar.set_position(done.into());
        Self {
            bar,
            began: Instant::now(),
            earlier_s: spent_s(ledger),
            shows_best: true,
        }
    }

    /// Of a run with a task a locus.
    pub(in crate::phylo) fn of_loci(ledger: &Ledger) -> Self {
        Self {
            shows_best: false,
            ..Self::new(ledger)
        }
    }

    pub(in crate::phylo) fn show(&mut self, ledger: &Ledger, finished: bool) {
        if finished {
            let [done, needed] = ledger.progress();
            self.bar.set_length(needed.into());
            self.bar.set_position(done.into());
        }
        let best = ledger.best().filter(|_| self.shows_best);
        let best = best.map(|best| format!("best {:.2}", best.lnl));
        let elapsed_s = self.began.elapsed().as_secs_f64();
        let left = match left_s(ledger, spent_s(ledger) - self.earlier_s, elapsed_s) {
            Some(left_s) => format!("about {} left", time(left_s)),
            None => "first tasks".to_owned(),
        };
        let parts = best.into_iter().chain([left]);
        self.bar.set_message(parts.collect::<Vec<_>>().join(", "));
    }

    pub(in crate::phylo) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

fn time(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..=119 => format!("{whole} s"),
        120..=7_199 => format!("{} min", whole / 60),
        _ => format!("{} h {} min", whole / 3_600, whole % 3_600 / 60),
    }
}
