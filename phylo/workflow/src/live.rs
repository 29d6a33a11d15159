//! A search's status, as the list of servers has it: its progress and its best tree so far.
//!
//! Must stay true: nothing is computed before a reader asks; the search never waits for one.

use parking_lot::Mutex;
use serde_json::json;
use sidecore_phylo::analysis::job::{Best, Growing};
use sidecore_phylo::analysis::plan::Ledger;
use sidecore_status::{Kind, Status};
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
