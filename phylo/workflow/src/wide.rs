//! One quick climb as the work of a run.

use crate::{WorkflowError, refuse};
use parking_lot::Mutex;
use sidecore_offload::{Pool, task};
use sidecore_phylo::analysis::AnalysisError;
use sidecore_phylo::analysis::plan::{Kind, Outcome, Piece};
use sidecore_phylo::analysis::setup::Setup;
use sidecore_phylo::analysis::workers::{Job, Watch};
use sidecore_phylo::io::input::Memory;
use sidecore_phylo::likelihood::Lengths;
use sidecore_wide::{Inference, Options, State, Step, WideError};

/// The one search of a run of little effort.
pub(crate) struct Wide<'r> {
    inference: Inference<'r>,
    options: Options,
    pool: &'r Pool,
    /// The step that is being done, in words.
    now: Mutex<String>,
}

impl<'r> Wide<'r> {
    /// Of a run's data, if they fit into memory.
    pub(crate) fn new(
        run: &'r Setup,
        pool: &'r Pool,
        memory: Memory,
    ) -> Result<Self, WorkflowError> {
        let lengths = run.lengths();
        if lengths == Lengths::Unlinked {
            return refuse("--effort fast takes no --brlen unlinked: give linked or scaled");
        }
        let inference = Inference::new(run.names(), run.parts())?;
        memory.check_work("the tree", inference.least_bytes())?;
        Ok(Self {
            inference,
            options: Options {
                lengths,
                seed: run.seed,
                memory: memory.of_work(),
            },
            pool,
            now: Mutex::default(),
        })
    }

    /// The step that is being done.
    pub(crate) fn now(&self) -> String {
        self.now.lock().clone()
    }

    fn show(&self, step: &Step<'_>) {
        let count = match step.all {
            0 => String::new(),
            all => format!(" {} of {all}", step.done),
        };
        let lnl = step.state.map(State::lnl).filter(|lnl| lnl.is_finite());
        let lnl = lnl.map_or(String::new(), |lnl| format!(", log-likelihood {lnl:.1}"));
        *self.now.lock() = format!("{}{count}{lnl}", step.stage);
    }
}

impl Job for Wide<'_> {
    fn run(
        &self,
        piece: &Piece,
        saved: Option<&str>,
        watch: &mut dyn Watch,
    ) -> Result<Option<Vec<Outcome>>, AnalysisError> {
        let began_ns = task::now_ns();
        let (kind, index) = (piece.kind, piece.first);
        // Before the first fit there is no state yet.
        let saved: Option<Option<State>> =
            saved
                .map(serde_json::from_str)
                .transpose()
                .map_err(|error| AnalysisError::State {
                    kind,
                    index,
                    why: error.to_string(),
                })?;
        let found = self
            .inference
            .run(self.options, saved.flatten(), self.pool, &mut |step| {
                self.show(step);
                // Only maps with odd keys cannot be written as JSON.
                watch.step(&mut || serde_json::to_string(&step.state).unwrap_or_default())
            });
        let found = found.map_err(|error| match error {
            // Among these is the end of a run that is broken off.
            WideError::Likelihood(error) => AnalysisError::Likelihood(error),
            error => AnalysisError::Piece {
                kind,
                index,
                why: error.to_string(),
            },
        })?;
        Ok(found.map(|found| {
            vec![Outcome {
                kind: Kind::Search,
                index,
                lnl: found.lnl,
                tree: found.tree,
                start: found.start,
                models: found.models,
                part_trees: Vec::new(),
                wall_s: task::now_ns().saturating_sub(began_ns) as f64 * 1e-9,
            }]
        }))
    }
}
