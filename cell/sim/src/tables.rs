//! Tables 1 and 2 of the paper next to the model.
//!
//! Why here: the model is fitted on them and judged by them. Each row says whether its value was
//! fitted or is a prediction.
//!
//! Source: the multigrain scheduling paper of 2007, Tables 1 and 2.
//!
//! ```
//! use sidecore_cell_sim::{Machine, tables};
//!
//! let rows = tables::table2(&Machine::cell()?, true, 1);
//! assert_eq!(rows.len(), 8);
//! // Two engines a loop are faster than one, on the model as in the paper.
//! assert!(rows[1].model_s < rows[0].model_s && rows[1].paper_s < rows[0].paper_s);
//! # Ok::<(), sidecore_cell_sim::CellError>(())
//! ```

use crate::machine::Machine;
use crate::model::{Options, simulate};
use crate::paper;
use crate::property::Property;
use serde::Serialize;
use sidecore_bare::width::ToUsize;
use sidecore_sched::{Linux, Llp, Measured, Policy};
use std::sync::atomic::{AtomicUsize, Ordering};

/// One row of Table 1. Papers' values only where the machine is theirs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Table1Row {
    /// Workers, with one bootstrap each.
    pub workers: u32,
    /// The paper, EDTLP, seconds.
    pub paper_edtlp_s: Option<f64>,
    /// The model, EDTLP, seconds.
    pub model_edtlp_s: f64,
    /// True if a constant was fitted on this value.
    pub edtlp_fitted: bool,
    /// The paper, Linux, seconds.
    pub paper_linux_s: Option<f64>,
    /// The model, Linux, seconds.
    pub model_linux_s: f64,
    /// True if a constant was fitted on this value.
    pub linux_fitted: bool,
}

/// One row of Table 2.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Table2Row {
    /// Engines that each loop is split over.
    pub engines: u32,
    /// The paper, seconds.
    pub paper_s: Option<f64>,
    /// The model, seconds.
    pub model_s: f64,
    /// True if the paper's value is an input of the model, so that its agreement proves nothing.
    pub input: bool,
}

/// Table 1 on `machine`; `papers` says whether the machine is theirs.
#[must_use]
pub fn table1(machine: &Machine, papers: bool, seed: u64) -> Vec<Table1Row> {
    // The paper's rows end with 8, whatever a machine has.
    let workers = if papers { 8 } else { machine.engines.count };
    let row = |workers: u32| {
        let options = Options::for_tasks(workers, seed);
        let seconds = |policy: &mut dyn Policy| simulate(machine, workers, policy, options).seconds;
        let paper = |table: &[f64; 8]| papers.then(|| table[workers.to_usize() - 1]);
        // Linux gets the machine's own slice; the other policies have none.
        let quantum_ns = (machine.host.quantum_ms * 1e6) as u64;
        Table1Row {
            workers,
            paper_edtlp_s: paper(&paper::TABLE1_EDTLP_S),
            model_edtlp_s: seconds(&mut Measured::new(sidecore_sched::Edtlp)),
            edtlp_fitted: papers && (workers == 1 || workers == 8),
            paper_linux_s: paper(&paper::TABLE1_LINUX_S),
            model_linux_s: seconds(&mut Linux::with_quantum(quantum_ns)),
            linux_fitted: papers && workers == 2,
        }
    };
    in_parallel((1..=workers).collect(), row)
}

/// Bounds that Table 1 must satisfy on the papers' machine.
#[must_use]
pub(crate) fn table1_properties(rows: &[Table1Row]) -> Vec<Property> {
    // The largest one, since a mean hides a row that the model has wrong.
    let worst = |errors: &mut dyn Iterator<Item = f64>| errors.map(f64::abs).fold(0.0, f64::max);
    let edtlp = |row: &Table1Row| {
        row.paper_edtlp_s
            .map(|paper| row.model_edtlp_s / paper - 1.0)
    };
    let linux = |row: &Table1Row| {
        row.paper_linux_s
            .map(|paper| row.model_linux_s / paper - 1.0)
    };
    // What was fitted agrees by construction.
    let predicted_edtlp = rows.iter().filter(|row| !row.edtlp_fitted);
    let predicted_linux = rows.iter().filter(|row| !row.linux_fitted);
    let last = rows.last();
    // Of the last row: at 8 workers on the papers' machine.
    let ratio = last.map_or(0.0, |row| row.model_linux_s / row.model_edtlp_s);
    let paper = paper::TABLE1_LINUX_S[7] / paper::TABLE1_EDTLP_S[7];
    vec![
        Property::at_most(
            "EDTLP: largest error of a predicted row",
            worst(&mut predicted_edtlp.filter_map(edtlp)),
            0.05,
        ),
        Property::at_most(
            "Linux: largest error of a predicted row",
            worst(&mut predicted_linux.filter_map(linux)),
            0.02,
        ),
        Property::at_most(
            "Linux over EDTLP at 8 workers (2.667): error",
            (ratio / paper - 1.0).abs(),
            0.03,
        ),
    ]
}

/// Table 2 on `machine`: one task under `llp(n)`, uncapped.
#[must_use]
pub fn table2(machine: &Machine, papers: bool, seed: u64) -> Vec<Table2Row> {
    let row = |engines: u32| Table2Row {
        engines,
        paper_s: papers.then(|| paper::TABLE2_S[engines.to_usize() - 1]),
        model_s: simulate(
            machine,
            1,
            &mut Llp::new(engines),
            Options::for_tasks(1, seed),
        )
        .seconds,
        // The speed-ups are the papers' measured ones, put in relative to one engine.
        input: papers,
    };
    let most = if papers { 8 } else { machine.engines.count };
    in_parallel((1..=most).collect(), row)
}

/// Applies `work` to all `inputs`, the last first: those take longest.
pub(crate) fn in_parallel<I: Copy + Sync, O: Send>(
    inputs: Vec<I>,
    work: impl Fn(I) -> O + Sync,
) -> Vec<O> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    // Counted down by relaxed read-modify-writes: each is dealt once, and the order does not
    // matter; joining the threads publishes their results.
    let left = AtomicUsize::new(inputs.len());
    let one_thread = || {
        let mut made = Vec::new();
        while let Ok(before) =
            left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
        {
            made.push((before - 1, work(inputs[before - 1])));
        }
        made
    };
    let mut all: Vec<(usize, O)> = std::thread::scope(|scope| {
        // With fewer threads where no more can be started.
        let start = |_| {
            std::thread::Builder::new()
                .spawn_scoped(scope, one_thread)
                .ok()
        };
        let others = 1..cores.min(inputs.len()).max(1);
        let threads: Vec<_> = others.map_while(start).collect();
        let mut all = one_thread();
        for thread in threads {
            match thread.join() {
                Ok(made) => all.extend(made),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all
    });
    all.sort_by_key(|&(index, _)| index);
    all.into_iter().map(|(_, output)| output).collect()
}
