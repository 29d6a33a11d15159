//! Traversals by libraries of BEAGLE's interface: this project's against an installed BEAGLE.
//!
//! Why here: MrBayes and BEAST spend nearly all their time in these calls, so their ratio bounds
//! what those programs gain.
//! Must stay true: each library is loaded by a process of its own, which has one library's threads
//! and settings; the libraries of a round follow each other at once, in an order that rotates; both
//! get the same data and must return the same log-likelihood, or sum of derivatives, or the row has
//! an error.
//! A *site-node* is one pattern at one inner node.

mod client;

pub use client::ClientError;
use client::NO_GRADIENTS;

use super::BenchError;
use crate::measure::Machine;
use crate::measure::child::{ChildError, Speaker};
use crate::measure::interleave::{Candidate, run};
use crate::measure::quiet::{Noise, QuietRounds};
use crate::measure::stats::Series;
use serde::{Deserialize, Serialize};
use sidecore_terminal::{Column, Table, Text};
use std::io::{BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Scaling of partials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scaling {
    /// None.
    None,
    /// Every operation writes factors, and accumulates them.
    Always,
}

/// A measured traversal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// States: 4 (nucleotides), 20 (amino acids), 61 (codons).
    pub states: usize,
    /// Categories of rates.
    pub categories: usize,
    /// Taxa.
    pub taxa: usize,
    /// Patterns.
    pub patterns: usize,
    /// Scaling.
    pub scaling: Scaling,
    /// True in single precision.
    pub is_single: bool,
    /// True if the derivatives by all branches are computed, too: calls of version 4.
    pub is_gradient: bool,
}

/// A measurement of two libraries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BeagleOptions {
    /// This program, which `phylo bench beagle --library FILE` makes a worker.
    pub program: PathBuf,
    /// This project's library.
    pub ours: PathBuf,
    /// The peer's.
    pub peer: PathBuf,
    /// Engines of ours; with more than one, the peer may start threads of its own.
    pub engines: u16,
    /// Rounds, of which medians are taken.
    pub rounds: usize,
    /// Few shapes and short runs.
    pub is_quick: bool,
}

/// Two libraries at one shape.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct BeagleRow {
    /// The traversal.
    #[serde(flatten)]
    pub shape: Shape,
    /// Site-nodes a second of this project's library; the median.
    pub here_site_nodes_per_s: Option<f64>,
    /// The peer's.
    pub peer_site_nodes_per_s: Option<f64>,
    /// The median of the rounds' ratios, ours divided by the peer's: above 1 is faster.
    pub ratio: Option<f64>,
    /// Largest ratio less smallest, divided by the median.
    pub spread: Option<f64>,
    /// Name of the peer's implementation.
    pub peer_implementation: String,
    /// The reason where a library could not be measured, or both differ.
    pub error: Option<String>,
}

/// A worker's answer to a shape.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    /// Seconds of one traversal, the mean of a run.
    seconds: f64,
    /// Log-likelihood of the first one, or the sum of its derivatives.
    result: f64,
    /// Name of the implementation.
    implementation: String,
    /// The reason, where it could not be measured.
    error: Option<String>,
}

/// The measurement of all shapes.
#[derive(Debug, Clone, Serialize)]
pub struct BeagleReport {
    machine: Machine,
    engines: u16,
    rows: Vec<BeagleRow>,
    noise: Noise,
}

impl BeagleReport {
    /// Measures. `done` is called after each shape. Blocks for about a minute, or some seconds
    /// where the options ask for few.
    ///
    /// # Errors
    /// A worker cannot be started, or the run was cancelled.
    pub fn measured(
        options: &BeagleOptions,
        cancel: &AtomicBool,
        done: &dyn Fn(),
    ) -> Result<Self, BenchError> {
        let (rows, noise) = beagle(options, cancel, done)?;
        Ok(Self {
            machine: Machine::of_this_program(),
            engines: options.engines,
            rows,
            noise,
        })
    }

    /// True if a library could not be measured, or both differ.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.rows.iter().any(|row| row.error.is_some())
    }

    /// The same for people.
    #[must_use]
    pub fn text(&self) -> Text {
        text(&self.rows, &self.noise)
    }
}

/// Measures all shapes. Blocks for about a minute, or some seconds with `is_quick`.
///
/// # Errors
/// A worker cannot be started, or the run was cancelled. A library that cannot be loaded or refuses
/// a call is a row's error.
fn beagle(
    options: &BeagleOptions,
    cancel: &AtomicBool,
    done: &dyn Fn(),
) -> Result<(Vec<BeagleRow>, Noise), BenchError> {
    let mut noise = Noise::default();
    let mut rows = Vec::new();
    for shape in shapes(options.is_quick) {
        let is_gradient = shape.is_gradient;
        let row = row(options, shape, cancel, &mut noise)?;
        done();
        let lacks = |error: &String| error.contains(NO_GRADIENTS);
        // Version 3 has no such calls: there is nothing to compare.
        if !(is_gradient && row.error.as_ref().is_some_and(lacks)) {
            rows.push(row);
        }
    }
    Ok((rows, noise))
}

/// The measured shapes.
#[must_use]
pub fn shapes(is_quick: bool) -> Vec<Shape> {
    let shape = |states, categories, patterns, scaling, is_single| Shape {
        states,
        categories,
        taxa: 32,
        patterns,
        scaling,
        is_single,
        is_gradient: false,
    };
    let (none, always) = (Scaling::None, Scaling::Always);
    let mut shapes = vec![
        shape(4, 4, 1_000, none, false),
        shape(4, 4, 1_000, always, false),
        shape(20, 4, 500, always, false),
    ];
    if !is_quick {
        shapes.extend([
            shape(4, 4, 100, always, false),
            shape(4, 4, 10_000, none, false),
            shape(4, 4, 10_000, always, false),
            shape(4, 4, 10_000, always, true),
            shape(20, 4, 100, always, false),
            shape(20, 4, 4_000, always, false),
            shape(20, 4, 4_000, always, true),
            shape(61, 1, 500, always, false),
        ]);
    }
    let gradients = [
        shape(4, 4, 1_000, none, false),
        shape(20, 4, 500, none, false),
        shape(61, 1, 200, none, false),
    ];
    let gradients = gradients.into_iter().map(|shape| Shape {
        is_gradient: true,
        ..shape
    });
    shapes.extend(gradients.take(if is_quick { 1 } else { 3 }));
    shapes.sort_by_key(|it| {
        let way = (it.scaling == always, it.is_single, it.is_gradient);
        (it.states, it.patterns, way)
    });
    shapes
}

fn row(
    options: &BeagleOptions,
    shape: Shape,
    cancel: &AtomicBool,
    noise: &mut Noise,
) -> Result<BeagleRow, BenchError> {
    let mut ours = worker(options, &options.ours)?;
    let mut peer = worker(options, &options.peer)?;
    let (mut first, mut second) = (None, None);
    let measured = {
        let mut candidates = [
            Candidate::of_one("sidecore", |_: &()| {
                ask(&mut ours, &shape, cancel, &mut first)
            }),
            Candidate::of_one("beagle", |_: &()| {
                ask(&mut peer, &shape, cancel, &mut second)
            }),
        ];
        let go_on = |_round, _turn| Ok(true);
        let ends = |error: &ChildError| matches!(error, ChildError::Interrupted);
        let mut judge = QuietRounds::new(noise, options.rounds);
        run(
            options.rounds,
            1,
            &(),
            &mut candidates,
            go_on,
            ends,
            &mut judge,
        )?
    };
    let mut error = measured.iter().find_map(|of| {
        of.error
            .as_ref()
            .map(|error| format!("{}: {error}", of.name))
    });
    if let (Some(ours), Some(peer)) = (&first, &second) {
        let tolerance = if shape.is_single { 1e-4 } else { 1e-9 };
        if (ours.result - peer.result).abs() > tolerance * peer.result.abs() {
            error = Some(format!(
                "results differ: {} and {}",
                ours.result, peer.result
            ));
        }
    }
    let work = (shape.patterns * (shape.taxa - 1)) as f64;
    let series = |of: usize| {
        let seconds = &measured[of].samples[0];
        Series::new(seconds.iter().map(|seconds| work / seconds).collect())
    };
    let (here, there) = (series(0), series(1));
    let ratio = error.is_none().then(|| here.over(&there));
    Ok(BeagleRow {
        here_site_nodes_per_s: (here.rounds() > 0).then(|| here.median()),
        peer_site_nodes_per_s: (there.rounds() > 0).then(|| there.median()),
        ratio: ratio.as_ref().map(Series::median),
        spread: ratio.as_ref().map(Series::spread),
        peer_implementation: second.map(|it| it.implementation).unwrap_or_default(),
        error,
        shape,
    })
}

fn worker(options: &BeagleOptions, library: &Path) -> Result<Speaker, BenchError> {
    let mut command = Command::new(&options.program);
    command
        .args([
            "phylo",
            "bench",
            "beagle",
            "--engines",
            &options.engines.to_string(),
        ])
        .arg("--library")
        .arg(library)
        .env("SIDECORE_BEAGLE_ENGINES", options.engines.to_string());
    if options.is_quick {
        command.arg("--quick");
    }
    Ok(Speaker::spawn(&mut command)?)
}

/// Seconds of one traversal; keeps the first answer.
fn ask(
    worker: &mut Speaker,
    shape: &Shape,
    cancel: &AtomicBool,
    kept: &mut Option<Answer>,
) -> Result<f64, ChildError> {
    worker.tell(shape)?;
    let mut answer: Answer = worker.answer(cancel)?;
    if let Some(error) = answer.error.take() {
        return Err(worker.fault(error));
    }
    let seconds = answer.seconds;
    kept.get_or_insert(answer);
    Ok(seconds)
}

/// A worker: answers each line of `input`, a [`Shape`], by a measurement of the library. Ends with
/// its input. Blocks.
///
/// # Errors
/// The streams.
pub fn work(
    library: &Path,
    engines: u16,
    is_quick: bool,
    input: impl BufRead,
    mut output: impl Write,
) -> std::io::Result<()> {
    let patience = Duration::from_millis(if is_quick { 60 } else { 400 });
    let mut kept: Option<(Shape, client::Instance)> = None;
    for line in input.lines() {
        let shape: Shape = serde_json::from_str(&line?)?;
        let measured = answer(&mut kept, library, engines, shape, patience);
        let answer = measured.unwrap_or_else(|error| Answer {
            seconds: 0.0,
            result: 0.0,
            implementation: String::new(),
            error: Some(error.to_string()),
        });
        serde_json::to_writer(&mut output, &answer)?;
        output.write_all(b"\n")?;
        output.flush()?;
    }
    Ok(())
}

/// Measures a shape on the kept instance, or on one that is kept in its place.
fn answer(
    kept: &mut Option<(Shape, client::Instance)>,
    library: &Path,
    engines: u16,
    shape: Shape,
    patience: Duration,
) -> Result<Answer, ClientError> {
    let instance = match kept {
        Some((of, instance)) if *of == shape => instance,
        _ => {
            let instance = client::Instance::new(library, &shape, engines > 1)?;
            &mut kept.insert((shape, instance)).1
        }
    };
    let result = instance.traversal()?;
    let begun = Instant::now();
    let mut traversals = 0_u32;
    while begun.elapsed() < patience {
        instance.traversal()?;
        traversals += 1;
    }
    Ok(Answer {
        seconds: begun.elapsed().as_secs_f64() / f64::from(traversals.max(1)),
        result,
        implementation: instance.implementation.clone(),
        error: None,
    })
}

/// Rows as a table for people.
#[must_use]
fn text(rows: &[BeagleRow], noise: &Noise) -> Text {
    let mut table = Table::new([
        Column::right("states"),
        Column::right("patterns"),
        Column::left("scaling").rank(2),
        Column::left("precision").rank(1),
        Column::left("gradient").rank(4),
        Column::right("here M/s"),
        Column::right("BEAGLE M/s"),
        Column::right("ratio"),
        Column::right("spread").rank(3),
    ]);
    let millions =
        |value: Option<f64>| value.map_or("-".into(), |value| format!("{:.1}", value / 1e6));
    for row in rows {
        table.row([
            row.shape.states.to_string(),
            row.shape.patterns.to_string(),
            match row.shape.scaling {
                Scaling::None => "none".to_owned(),
                Scaling::Always => "always".to_owned(),
            },
            match row.shape.is_single {
                true => "single".to_owned(),
                false => "double".to_owned(),
            },
            match row.shape.is_gradient {
                true => "yes".to_owned(),
                false => "-".to_owned(),
            },
            millions(row.here_site_nodes_per_s),
            millions(row.peer_site_nodes_per_s),
            row.ratio.map_or("-".into(), |ratio| format!("{ratio:.2}")),
            row.spread
                .map_or("-".into(), |spread| format!("{:.0} %", 100.0 * spread)),
        ]);
    }
    let mut text = Text::from(table);
    text.line("M/s: million patterns a second at inner nodes, medians of interleaved rounds");
    if let Some(row) = rows.iter().find(|row| !row.peer_implementation.is_empty()) {
        text.line(format!(
            "BEAGLE's implementation: {}",
            row.peer_implementation
        ));
    }
    for row in rows {
        if let Some(error) = &row.error {
            text.line(format!(
                "{} states, {} patterns: {error}",
                row.shape.states, row.shape.patterns
            ));
        }
    }
    text.line(noise.line());
    text
}
