//! The kernels' speed on one core.
//!
//! Why here: one command makes the design's figures again. A row is the best of many short runs:
//! other work on the machine only ever makes a run slower.
//! A *site-node* is one pattern at one inner node; with site repeats most are never computed, and
//! the floating-point operations are counted as if they were not. *Traversals* keep every node's
//! values, as a search needs them; *unkept* ones give the likelihood alone, as fitting a parameter
//! needs it, and stay in the cache.

pub mod beagle;
pub mod grain;

use sidecore_cell_sim::CellError;
use sidecore_offload::OffloadError;
use sidecore_phylo::analysis::AnalysisError;
use sidecore_phylo::kernel::{
    Buffer, Inner, Isa, Operand, Shape, Tip, derivatives, evaluate, newview,
};
use sidecore_phylo::likelihood::{Likelihood, LikelihoodError, Options};
use sidecore_phylo::model::{Model, ModelError, ModelName};
use sidecore_phylo::msa::{Alphabet, MsaError, Patterns};
use sidecore_phylo::random::Random;
use sidecore_phylo::runner::Serial;
use sidecore_phylo::simulate::{numbered_names, simulate};
use sidecore_phylo::tree::{HalfId, Tree, random_tree};
use sidecore_sched::PolicyError;
use sidecore_sys::clock::thread_cpu_ns;
use sidecore_terminal::{Column, Table, Text};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Errors that keep a measurement from being made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The simulated alignment.
    #[error(transparent)]
    Msa(#[from] MsaError),
    /// The likelihood.
    #[error(transparent)]
    Likelihood(#[from] LikelihoodError),
    /// An analysis.
    #[error(transparent)]
    Analysis(#[from] AnalysisError),
    /// The engines.
    #[error(transparent)]
    Offload(#[from] OffloadError),
    /// A policy's name.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The model of the Cell.
    #[error(transparent)]
    Cell(#[from] CellError),
    /// A worker process.
    #[error(transparent)]
    Child(#[from] crate::measure::child::ChildError),
    /// Two runs that must give the same result differ.
    #[error("{bootstraps} bootstraps under {policy} gave other trees than under another policy")]
    Differs {
        /// The policy.
        policy: String,
        /// Bootstraps.
        bootstraps: u32,
    },
}

/// One measurement.
#[derive(Debug, Clone, serde::Serialize)]
pub struct KernelRow {
    /// The kernel and its operands.
    pub kernel: String,
    /// DNA or LG, four rates.
    pub model: &'static str,
    /// Patterns.
    pub patterns: usize,
    /// Taxa; 0 where the kernel runs alone.
    pub taxa: usize,
    /// Patterns times inner nodes (or branches) a second, in the best run.
    pub site_nodes_per_s: f64,
    /// Floating-point operations a second by the same count, in billions.
    pub gflops: f64,
}

/// The kernels' rates with one set of instructions.
#[derive(Debug, Clone, serde::Serialize)]
pub struct KernelReport {
    /// The instructions' name.
    pub isa: String,
    /// The measurements.
    pub rows: Vec<KernelRow>,
}

impl KernelReport {
    /// The same for people.
    #[must_use]
    pub fn text(&self) -> Text {
        text(&self.rows)
    }
}

/// Rows as a table for people.
fn text(rows: &[KernelRow]) -> Text {
    let mut table = Table::new([
        Column::left("kernel"),
        Column::left("model"),
        Column::right("taxa").rank(2),
        Column::right("patterns").rank(1),
        Column::right("M site-nodes/s"),
        Column::right("GFLOP/s"),
    ]);
    for row in rows {
        table.row([
            row.kernel.clone(),
            row.model.to_owned(),
            row.taxa.to_string(),
            row.patterns.to_string(),
            format!("{:.1}", row.site_nodes_per_s / 1e6),
            format!("{:.1}", row.gflops),
        ]);
    }
    let mut text = Text::from(table);
    text.line("best of many runs, one core, double precision");
    text
}

/// Measures all kernels with one set of instructions. Blocks for some ten seconds, or one or two.
///
/// # Errors
/// [`BenchError`].
pub fn kernels(isa: Isa, quick: bool) -> Result<Vec<KernelRow>, BenchError> {
    let patience = patience(quick);
    let mut rows = Vec::new();
    for (model, states) in [("DNA", 4), ("LG", 20)] {
        for patterns in if states == 4 {
            [128, 512, 2048]
        } else {
            [32, 128, 512]
        } {
            single(
                &mut rows,
                isa,
                model,
                Shape { states, rates: 4 },
                patterns,
                patience,
            );
        }
    }
    for (taxa, sites) in [(42, 1_200), (128, 4_000), (500, 2_000)] {
        traversals(&mut rows, isa, DNA, taxa, sites, patience)?;
    }
    traversals(&mut rows, isa, PROTEIN, 42, 800, patience)?;
    Ok(rows)
}

/// Measures full traversals of one's own tree and DNA or protein alignment. Blocks for a second.
///
/// # Errors
/// [`BenchError`].
pub fn traversal(
    isa: Isa,
    quick: bool,
    tree: &Tree,
    patterns: &Patterns,
) -> Result<Vec<KernelRow>, BenchError> {
    let name = match patterns.alphabet() {
        Alphabet::Protein => PROTEIN,
        _ => DNA,
    };
    let name = ModelName::parse(name, &mut |_| Err(std::io::ErrorKind::Unsupported.into()))?;
    let mut rows = Vec::new();
    full(
        &mut rows,
        isa,
        tree,
        patterns,
        &Model::new(name, patterns),
        patience(quick),
    )?;
    Ok(rows)
}

fn patience(quick: bool) -> Duration {
    Duration::from_millis(if quick { 30 } else { 400 })
}

/// Every kernel alone on `patterns` patterns, again and again.
fn single(
    rows: &mut Vec<KernelRow>,
    isa: Isa,
    model: &'static str,
    shape: Shape,
    patterns: usize,
    patience: Duration,
) {
    let mut random = Random::new(1);
    let mut filled = |quads: usize| {
        let mut buffer = Buffer::new(quads);
        buffer
            // Never near 0: values that need scaling would take another path.
            .doubles_mut()
            .iter_mut()
            .for_each(|value| *value = 0.1 + 0.9 * random.unit());
        buffer
    };
    let (span, matrix) = (shape.quads(), shape.matrix() / 4);
    let (left, right) = (filled(patterns * span), filled(patterns * span));
    let (p, q) = (filled(matrix), filled(matrix));
    let codes = if shape.states == 4 { 16 } else { 24 };
    let table = filled(codes * span);
    let powers = filled(3 * span);
    let mut out = filled(patterns * span);
    let mut counts = vec![0; patterns * shape.rates];
    let mut terms = Buffer::new(patterns.div_ceil(4) * shape.rates);
    let index: Vec<u16> = (0..patterns as u16).collect();
    let tips: Vec<u16> = (0..patterns)
        .map(|_| random.below(codes as u64) as u16)
        .collect();
    let fixed = vec![0.0; patterns];
    let weights = vec![1.0; patterns];
    let inner = |values, matrix| {
        Operand::Inner(Inner {
            matrix,
            values,
            scalers: &[],
            index: &index,
        })
    };
    let tip = Operand::Tip(Tip {
        table: table.as_slice(),
        index: &tips,
    });
    let near = inner(left.as_slice(), p.as_slice());
    let far = inner(right.as_slice(), q.as_slice());
    let mut row = |kernel: &str, flops: f64, seconds: f64| {
        let per_s = patterns as f64 / seconds;
        rows.push(KernelRow {
            kernel: kernel.to_owned(),
            model,
            patterns,
            taxa: 0,
            site_nodes_per_s: per_s,
            gflops: per_s * flops * 1e-9,
        });
    };
    let (s, n) = (shape.span() as f64, shape.states as f64);
    let product = s * (2.0 * n - 1.0);
    for (name, left, right, flops) in [
        ("newview inner-inner", &near, &far, 2.0 * product + s),
        ("newview tip-inner", &tip, &far, product + s),
        ("newview tip-tip", &tip, &tip, s),
    ] {
        let seconds = best(patience, || {
            newview(
                isa,
                shape,
                left,
                right,
                out.as_mut_slice(),
                &mut counts,
                true,
            );
        });
        row(name, flops, seconds);
    }
    let seconds = best(patience, || {
        evaluate(isa, shape, &near, &far, terms.as_mut_slice(), &mut counts);
    });
    row("evaluate inner-inner", product + 2.0 * s, seconds);
    let seconds = best(patience, || {
        newview(
            isa,
            shape,
            &near,
            &far,
            out.as_mut_slice(),
            &mut counts,
            false,
        );
    });
    row("sum table", 2.0 * product + s, seconds);
    let seconds = best(patience, || {
        black_box(derivatives(
            isa,
            shape,
            out.as_slice(),
            powers.as_slice(),
            &fixed,
            &weights,
        ));
    });
    row("derivatives", 6.0 * s, seconds);
}

/// Full traversals of a simulated alignment's tree.
fn traversals(
    rows: &mut Vec<KernelRow>,
    isa: Isa,
    name: &str,
    taxa: usize,
    sites: usize,
    patience: Duration,
) -> Result<(), BenchError> {
    let mut random = Random::new(7);
    let tree = random_tree(taxa, 0.05, &mut random);
    let name = ModelName::parse(name, &mut |_| Err(std::io::ErrorKind::Unsupported.into()))?;
    let truth = Model::without_alignment(name);
    let alignment = simulate(&tree, &numbered_names(taxa), &truth, sites, 11)?;
    let patterns = Patterns::new(&alignment, truth.alphabet())?;
    full(rows, isa, &tree, &patterns, &truth, patience)
}

/// Full traversals of a tree, with and without site repeats.
fn full(
    rows: &mut Vec<KernelRow>,
    isa: Isa,
    tree: &Tree,
    patterns: &Patterns,
    truth: &Model,
    patience: Duration,
) -> Result<(), BenchError> {
    let taxa = tree.taxa();
    let model = match truth.alphabet() {
        Alphabet::Protein => "LG",
        _ => "DNA",
    };
    let count = patterns.len();
    let edge = tree.edge(HalfId(0));
    for (kernel, repeats, keep) in [
        ("traversal, tip tables", false, true),
        ("traversal, site repeats", true, true),
        ("unkept, tip tables", false, false),
        ("unkept, site repeats", true, false),
    ] {
        let options = Options {
            isa,
            repeats,
            ..Options::default()
        };
        let patterns = patterns.clone();
        let mut likelihood =
            Likelihood::new(tree.clone(), patterns, truth.clone(), Serial, options)?;
        likelihood.evaluate()?;
        let mut failed = None;
        let seconds = best(patience, || {
            likelihood.forget_values();
            let run = match keep {
                true => likelihood.traverse(edge),
                false => likelihood.evaluate_once().map(drop),
            };
            failed = run.err().or(failed.take());
        });
        if let Some(error) = failed {
            return Err(error.into());
        }
        let per_s = ((taxa - 2) * count) as f64 / seconds;
        let shape = likelihood.parts()[0].process().shape;
        // Each node but the root's multiplies by one matrix, tips look theirs up.
        let (s, n) = (shape.span() as f64, shape.states as f64);
        let per_node = (s * (2.0 * n - 1.0)) * (taxa - 3) as f64 / (taxa - 2) as f64 + s;
        rows.push(KernelRow {
            kernel: kernel.to_owned(),
            model,
            patterns: count,
            taxa,
            site_nodes_per_s: per_s,
            gflops: per_s * per_node * 1e-9,
        });
    }
    Ok(())
}

/// Seconds of the fastest of as many runs as `patience` allows; a run is at least 20 microseconds.
/// They are processor seconds of this thread: other programs' time is not counted.
fn best(patience: Duration, mut run: impl FnMut()) -> f64 {
    run();
    let once = thread_cpu_ns();
    run();
    let once = thread_cpu_ns().saturating_sub(once).max(1) as f64;
    let again = (2e4 / once).ceil().clamp(1.0, 10_000.0);
    let again = again as u32;
    let began = Instant::now();
    let mut least = f64::INFINITY;
    loop {
        let start = thread_cpu_ns();
        (0..again).for_each(|_| run());
        let ran = thread_cpu_ns().saturating_sub(start).max(1);
        least = least.min(ran as f64 * 1e-9 / f64::from(again));
        // Asked last: a machine may take this thread's core for longer than `patience`.
        if began.elapsed() >= patience {
            return least;
        }
    }
}

const DNA: &str = "GTR{1.5/3.8/0.6/1.3/4.1/1}+FU{0.27/0.2/0.24/0.29}+G4m{0.3}";
const PROTEIN: &str = "LG+G4m{0.5}";
