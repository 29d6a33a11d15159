//! Fitting of the built-in machine's constants: each is fitted on one row of the paper, in this
//! order. All other results of the model are predictions.
//!
//! | constant | fitted on |
//! |---|---|
//! | off-loads of a bootstrap | Table 1, EDTLP, row 1 |
//! | SMT factor | Table 1, Linux, row 2 |
//! | cold resume | Table 1, EDTLP, row 8 |
//! | time by width | Table 2, which is an input (its rows 6 and 8 fit no smooth law) |
//! | the host's version of an off-load | the run on the PPE alone |
//!
//! The rival explanation (no cold resumes, but host work that grows with live tasks) takes an SMT
//! factor of 1.48 and a switch of 3.5 us as given, and fits the growth on row 8 of EDTLP. It
//! explains the other rows less well, and differs most beyond 8 live tasks.
//!
//! Must stay true: `cell/sim/machines/cell.toml` holds the results of [`fit`]; a test checks that.

use crate::machine::{Contention, Machine};
use crate::model::{Options, simulate};
use crate::paper;
use sidecore_sched::{Edtlp, Linux, Policy};

/// The fitted constants.
#[derive(Debug, Clone, PartialEq)]
pub struct Fit {
    /// Off-loads of one bootstrap.
    pub offloads: f64,
    /// Factor by which work takes longer while another thread of the same core is busy.
    pub smt_factor: f64,
    /// Time that a task loses when it comes back to a thread that another used, in microseconds.
    pub cold_resume_us: f64,
    /// An off-load on the host, in microseconds.
    pub host_version_us: f64,
    /// An off-load's time on 1 to 8 engines, relative to one.
    pub time_by_width: Vec<f64>,
}

/// The rival explanation as [`fit_contention`] gives it.
pub(crate) const CONTENTION: Contention = Contention {
    smt_factor: 1.48,
    switch_us: 3.5,
    growth_per_live: 0.105,
};

/// Fits the constants on `machine`, whose own values are starting points only. Takes about two
/// seconds in a release build.
#[must_use]
pub fn fit(machine: &Machine, seed: u64) -> Fit {
    let mut machine = machine.clone();
    // One task has no switch and no competitor: only the number of off-loads is left to explain.
    let alone = seconds(&machine, 1, &mut Edtlp, seed);
    let offloads = machine.task.offloads as f64 * paper::TABLE1_EDTLP_S[0] / alone;
    machine.task.offloads = offloads.round() as u64;

    // Two tasks, one a thread of the core: they neither switch nor wait for engines.
    let linux = paper::TABLE1_LINUX_S[1];
    let smt_factor = bisect(1.0, 3.0, |smt_factor| {
        machine.host.smt_factor = smt_factor;
        seconds(&machine, 2, &mut Linux::default(), seed) < linux
    });
    machine.host.smt_factor = smt_factor;

    // Eight tasks on two threads switch at each off-load; the other constants are fixed by now.
    let edtlp = paper::TABLE1_EDTLP_S[7];
    let cold_resume_us = bisect(0.0, 60.0, |cold_resume_us| {
        machine.host.cold_resume_us = cold_resume_us;
        seconds(&machine, 8, &mut Edtlp, seed) < edtlp
    });

    let host_s = offloads * paper::HOST_US * 1e-6;
    // What the host does is not split, so it is taken off before the ratio.
    let by_width = |total_s: &f64| (total_s - host_s) / (paper::TABLE2_S[0] - host_s);
    Fit {
        offloads,
        smt_factor,
        cold_resume_us,
        host_version_us: paper::PPE_ONLY_S / offloads * 1e6 - paper::HOST_US,
        time_by_width: paper::TABLE2_S.iter().map(by_width).collect(),
    }
}

/// Fits the rival explanation on `machine`: its growth, with the other constants as they are.
#[must_use]
#[cfg(test)]
pub(crate) fn fit_contention(machine: &Machine, seed: u64) -> Contention {
    let with = |growth_per_live: f64| Contention {
        growth_per_live,
        ..CONTENTION
    };
    let edtlp = paper::TABLE1_EDTLP_S[7];
    with(bisect(0.0, 1.0, |growth| {
        let machine = machine.clone().with_contention(&with(growth));
        seconds(&machine, 8, &mut Edtlp, seed) < edtlp
    }))
}

/// The largest relative error of rows 2 to 8 under EDTLP on `machine`.
#[must_use]
#[cfg(test)]
pub(crate) fn edtlp_error_max(machine: &Machine, seed: u64) -> f64 {
    use sidecore_bare::width::ToUsize;
    let error = |workers: u32| {
        let model = seconds(machine, workers, &mut Edtlp, seed);
        (model / paper::TABLE1_EDTLP_S[workers.to_usize() - 1] - 1.0).abs()
    };
    (2..=8).map(error).fold(0.0, f64::max)
}

fn seconds(machine: &Machine, tasks: u32, policy: &mut dyn Policy, seed: u64) -> f64 {
    simulate(
        machine,
        tasks,
        policy,
        Options {
            seed,
            offloads: 8192,
        },
    )
    .seconds
}

/// The value up to which `below` holds, where it holds for all smaller ones.
fn bisect(mut low: f64, mut high: f64, mut below: impl FnMut(f64) -> bool) -> f64 {
    // A 16,384th of the range: finer than the paper's figures.
    for _ in 0..14 {
        let middle = (low + high) / 2.0;
        if below(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    (low + high) / 2.0
}
