//! A run's progress: the status of a search, as the list of servers has it, with its best tree so
//! far; and bars on standard error, where that is a terminal.
//!
//! Must stay true: no status is computed before a reader asks; the search never waits for one.

use indicatif::ProgressBar;
use parking_lot::Mutex;
use serde_json::json;
use sidecore_bare::width::ToU64;
use sidecore_phylo::analysis::job::{Best, Growing};
use sidecore_phylo::analysis::plan::{Ledger, Outlook};
use sidecore_phylo::analysis::supports::{AlignmentKind, Progress};
use sidecore_phylo::io::data::Reader;
use sidecore_status::{Kind, Status};
use sidecore_terminal::progress::{Shape, advance, bar};
use std::sync::Arc;
use std::time::Instant;

/// The finished part of a run, for its status.
#[derive(Debug, Clone, Default)]
pub(crate) struct Finished(Arc<Mutex<Tasks>>);

#[derive(Debug, Default)]
struct Tasks {
    done: u32,
    needed: u32,
    best: Option<Best>,
}

impl Finished {
    /// Takes over what the ledger says; call it after each change.
    pub(crate) fn note(&self, ledger: &Ledger) {
        let [done, needed] = ledger.progress();
        let mut tasks = self.0.lock();
        (tasks.done, tasks.needed) = (done, needed);
        if let Some(best) = ledger.best()
            && tasks
                .best
                .as_ref()
                .is_none_or(|known| best.lnl > known.log_likelihood)
        {
            tasks.best = Some(Best {
                log_likelihood: best.lnl,
                newick: best.tree.clone(),
            });
        }
    }

    /// The status of a run that begins now, of an alignment under a model.
    pub(crate) fn status(
        &self,
        alignment: String,
        model: String,
        names: &[String],
        growing: &Arc<Growing>,
    ) -> Arc<Status> {
        let (finished, growing) = (self.clone(), Arc::clone(growing));
        let (begun, name, names) = (Instant::now(), alignment.clone(), names.to_vec());
        Status::new(Kind::Search, name, move || {
            let (step, growing) = growing.look(&names);
            let tasks = finished.0.lock();
            let both = growing.as_ref().into_iter().chain(&tasks.best);
            let best = both.max_by(|a, b| a.log_likelihood.total_cmp(&b.log_likelihood));
            json!({
                "alignment": alignment,
                "model": model,
                "step": step,
                "tasks_done": tasks.done,
                "tasks_needed": tasks.needed,
                "log_likelihood": best.map(|best| best.log_likelihood),
                "best_tree_newick": best.map(|best| best.newick.as_str()),
                "elapsed_s": begun.elapsed().as_secs_f64(),
            })
        })
    }
}

/// Progress of a run on standard error, with an estimate of the time left.
pub(crate) struct RunBar {
    bar: ProgressBar,
    began: Instant,
    outlook: Outlook,
}

impl RunBar {
    /// Of a run that begins, with what the ledger has. The best tree is shown if there is one.
    pub(crate) fn begin(ledger: &Ledger, shows_best: bool) -> Self {
        let [done, needed] = ledger.progress();
        let bar = bar(Shape::Count, needed.into());
        bar.set_position(done.into());
        Self {
            bar,
            began: Instant::now(),
            outlook: Outlook::new(ledger, shows_best),
        }
    }

    /// After every change and a few times a second: `has_changed` if something was finished,
    /// `doing` is the step in words, or nothing.
    pub(crate) fn step(&self, ledger: &Ledger, has_changed: bool, doing: String) {
        if has_changed {
            let [done, needed] = ledger.progress();
            self.bar.set_length(needed.into());
            self.bar.set_position(done.into());
        }
        self.bar.set_message(match doing.is_empty() {
            true => {
                let elapsed_s = self.began.elapsed().as_secs_f64();
                self.outlook.words(ledger, elapsed_s)
            }
            false => doing,
        });
    }

    /// Takes the bar away; nothing is warned of before.
    pub(crate) fn end(self) {
        self.bar.finish_and_clear();
    }
}

/// Shows the progress of a support by an alignment, until it is dropped.
pub(crate) fn support_bar(kind: AlignmentKind, reader: Reader) -> impl FnMut(Progress) {
    let bar = match kind {
        AlignmentKind::Ufboot => bar(Shape::Found("ultrafast bootstraps: perturbation"), 0),
        _ => bar(Shape::Count, 0).with_message("branches"),
    };
    move |progress| match progress {
        Progress::Branches(done, all) => advance(&bar, done, all),
        Progress::Perturbations(done) => bar.set_position(done.to_u64()),
        Progress::Refined(done, all) => {
            bar.set_message(format!("{done} of {all} replicates refined"));
        }
        // The bar is taken away while the line is written.
        Progress::Unsettled(rounds) => bar.suspend(|| {
            (reader.warn)(&format!(
                "the ultrafast bootstraps have not settled after {rounds} perturbations"
            ));
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sidecore_phylo::analysis::plan::{Bootstraps, Goal, Kind as Task, Next, Outcome};
    use sidecore_phylo::bootstrap::Options;

    #[test]
    fn a_status_has_the_best_tree_so_far() {
        let mut ledger = Ledger::new(Goal {
            starts: 2,
            bootstraps: Bootstraps::Exactly(0),
            chain: 1,
            convergence: Options::default(),
        });
        let finished = Finished::default();
        finished.note(&ledger);
        let status = finished.status("a.phy".into(), "JC".into(), &[], &Arc::default());
        let value = status.value();
        assert!(value["best_tree_newick"].is_null() && value["log_likelihood"].is_null());
        assert_eq!(
            (&value["tasks_done"], &value["tasks_needed"]),
            (&json!(0), &json!(2))
        );
        for (index, lnl) in [(0, -7.0), (1, -9.0)] {
            let Next::Piece(piece) = ledger.take_next() else {
                panic!("a piece")
            };
            let outcome = Outcome {
                kind: Task::Search,
                index,
                lnl,
                tree: format!("(a,b,c{index});"),
                start: String::new(),
                models: Vec::new(),
                part_trees: Vec::new(),
                wall_s: 1.0,
            };
            ledger.finish(&piece, vec![outcome]);
            finished.note(&ledger);
        }
        let value = status.value();
        assert_eq!(
            (&value["kind"], &value["alignment"]),
            (&json!("search"), &json!("a.phy"))
        );
        assert_eq!(value["best_tree_newick"], "(a,b,c0);");
        assert_eq!(
            (&value["log_likelihood"], &value["tasks_done"]),
            (&json!(-7.0), &json!(2))
        );
    }
}
